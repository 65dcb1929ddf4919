"""Goes through a GitHub workflow as GitHub would: jobs by `needs`, matrices, outputs, summaries.

Only what our workflows use: `run:` steps in bash, `env`, outputs of steps and jobs, `fromJSON`,
`toJSON`, `||`, `==`, `!=`, `!cancelled()`, `!failure()`, reusable workflows. Steps that use an action are passed over.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import yaml

FOLDER = Path(__file__).parents[2] / ".github" / "workflows"


def load(name: str) -> dict:
    return yaml.load((FOLDER / name).read_text(), Loader=yaml.BaseLoader)


@dataclass
class Step:
    """A step that ran."""

    workflow: str
    job: str
    line: str
    code: int
    output: str


@dataclass
class Walk:
    """A run of workflows; `ran` is every `run:` line, in order."""

    cwd: Path
    env: dict[str, str]
    lost: tuple[str, ...] = ()  # cells whose job never gets a runner
    ran: list[Step] = field(default_factory=list)

    def workflow(self, name: str, inputs: dict[str, str]) -> dict[str, str]:
        """Run one; returns the result of each job."""
        document = load(name)
        results: dict[str, str] = {}
        needs: dict[str, dict] = {}
        jobs = dict(document["jobs"])
        while jobs:
            ready = [j for j, job in jobs.items() if set(_list(job.get("needs"))) <= set(results)]
            assert ready, f"{name}: needs in a circle"
            for label in ready:
                job = jobs.pop(label)
                scope = {
                    "inputs": inputs,
                    "needs": needs,
                    "vars": {},
                    "secrets": {},
                    "github": {"ref": "main"},
                }
                results[label], outputs = self._job(name, document, label, job, scope)
                needs[label] = {"outputs": outputs, "result": results[label]}
        return results

    def _job(self, name, document, label, job, scope) -> tuple[str, dict]:
        condition = job.get("if")
        bad = [n for n in _list(job.get("needs")) if scope["needs"][n]["result"] != "success"]
        if (condition and not truth(condition, scope)) or (bad and not condition):
            return "skipped", {}
        rows = [{}]
        if "strategy" in job:
            matrix = job["strategy"]["matrix"]
            rows = value(matrix, scope)["include"] if isinstance(matrix, str) else [
                {key: item} for key, items in matrix.items() for item in value(items, scope)
            ]  # fmt: skip
        assert rows, f"{name}: {label}: GitHub fails a run whose matrix has no values"
        codes, outputs = [], {}
        for row in rows:
            own = {**scope, "matrix": row}
            if row.get("cell") in self.lost:
                codes.append(1)
                continue
            if "uses" in job:
                inner = {key: str(value(text, own)) for key, text in job["with"].items()}
                called = self.workflow(Path(job["uses"]).name, inner)
                codes += [int(result == "failure") for result in called.values()]
            else:
                code, outputs = self._steps(name, document, label, job, own)
                codes.append(code)
        return ("failure" if any(codes) else "success"), outputs

    def _steps(self, name, document, label, job, scope) -> tuple[int, dict]:
        steps: dict[str, dict] = {}
        failed = 0
        shared = {**document.get("env", {}), **job.get("env", {})}
        for step in job["steps"]:
            condition = step.get("if", "")
            if "run" not in step or (condition and not truth(condition, scope)):
                continue
            if failed and "!cancelled()" not in condition:
                continue
            env = {k: str(value(v, scope)) for k, v in {**shared, **step.get("env", {})}.items()}
            outputs = self.cwd / "outputs"
            outputs.write_text("")
            done = subprocess.run(
                ["bash", "-eo", "pipefail", "-c", step["run"]],
                cwd=self.cwd,
                env={
                    **os.environ, **self.env, **env,
                    "GITHUB_OUTPUT": str(outputs),
                    "GITHUB_STEP_SUMMARY": str(self.cwd / "summary.md"),
                    "GITHUB_ACTIONS": "true",
                    "GITHUB_ACTOR": "octocat",
                },
                capture_output=True, text=True, check=False, timeout=900,
            )  # fmt: skip
            said = done.stdout + done.stderr
            self.ran.append(Step(name, label, step["run"], done.returncode, said))
            pairs = [line.partition("=") for line in outputs.read_text().splitlines()]
            steps[step.get("id", "")] = {"outputs": {key: text for key, _, text in pairs}}
            failed = failed or done.returncode
        if failed:
            return failed, {}
        given = {**scope, "steps": steps}
        return 0, {key: value(text, given) for key, text in job.get("outputs", {}).items()}


def _list(needs) -> list[str]:
    return [needs] if isinstance(needs, str) else list(needs or [])


def value(text, scope):
    """What a field means, expressions replaced."""
    if not isinstance(text, str):
        return text
    whole = re.fullmatch(r"\$\{\{(.*?)\}\}", text.strip())
    if whole:
        return expression(whole[1], scope)
    return re.sub(r"\$\{\{(.*?)\}\}", lambda match: str(expression(match[1], scope)), text)


def truth(text: str, scope) -> bool:
    return all(bool(expression(part, scope)) for part in text.split("&&"))


def expression(text: str, scope):
    text = text.strip()
    if "||" in text:
        left, right = text.split("||", 1)
        return expression(left, scope) or expression(right, scope)
    if compared := re.fullmatch(r"(.*)([!=])=(.*)", text):
        same = expression(compared[1], scope) == expression(compared[3], scope)
        return same == (compared[2] == "=")
    if text in {"!cancelled()", "!failure()"}:
        results = [item["result"] for item in scope["needs"].values()]
        return text == "!cancelled()" or "failure" not in results
    if match := re.fullmatch(r"(from|to)JSON\((.*)\)", text):
        convert = json.loads if match[1] == "from" else json.dumps
        return convert(expression(match[2], scope))
    if match := re.fullmatch(r"'(.*)'", text):
        return match[1]
    found = scope
    for part in text.split("."):
        found = found.get(part, "") if isinstance(found, dict) else ""
    return found
