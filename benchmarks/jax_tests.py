#!/usr/bin/env python3
"""JAX's own tests under the gate's engine beside `pytest -n 2`: node ids, outcomes, wall time.

    python3 benchmarks/jax_tests.py --python ENV/bin/python --checkout JAX \\
        --work DIR [--files 40 --seed 7 | --all]

ENV has jax, jaxlib, pytest-xdist and what the suite `unit` requires; JAX is a checkout of the same
release. Each file runs alone under either, on the CPU, with the
environment of the suite and JAX_NUM_GENERATED_CASES=1. What is done is kept in DIR and not done
again: a comparison that was cut short goes on where it was. With --seconds nothing new is begun
after so long, and what is still missing is said: exit status 2. Otherwise it ends with 1 when
something differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "build"), str(ROOT), str(ROOT / "tests")]

from support import gate  # noqa: E402

from rocwheel.gate.engine.loop import Engine  # noqa: E402
from rocwheel.gate.engine.plan import RunPlan, Watcher  # noqa: E402
from rocwheel.gate.suite import discovery, static, suites  # noqa: E402
from rocwheel.gate.suite.discovery import Shard, SuiteFiles  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

# a pytest plugin that writes one line for each collected test and each report
PLUGIN = """
import json, os
def pytest_collection_finish(session):
    if not os.environ.get("PYTEST_XDIST_WORKER"):
        return
    with open(os.environ["REPORT"] + ".ids", "w") as file:
        json.dump([item.nodeid for item in session.items], file)
def pytest_runtest_logreport(report):
    if os.environ.get("PYTEST_XDIST_WORKER"):
        return
    outcome = report.outcome
    if hasattr(report, "wasxfail"):
        outcome = "xfailed" if report.skipped else "passed"
    with open(os.environ["REPORT"], "a") as file:
        print(json.dumps([report.nodeid, report.when, outcome]), file=file)
"""
RUNNERS = ("engine", "pytest")
WORST = ("failed", "skipped", "xfailed", "passed")


def pytest_of(python: Path, tests: SuiteFiles, file: str, env: dict[str, str]) -> dict[str, object]:
    """Node ids and outcomes of one file under pytest-xdist, in two processes."""
    report = tests.root.parent / "report"
    for path in (report, report.with_name("report.ids")):
        path.unlink(missing_ok=True)
    plugin = tests.root.parent / "plugin" / "reporting.py"
    plugin.parent.mkdir(exist_ok=True)
    plugin.write_text(PLUGIN)
    argv = [python, "-m", "pytest", "-q", "-n", "2", "-p", "xdist", "-p", "reporting"]
    argv += [*tests.arguments, f"--rootdir={tests.root}", "-p", "no:cacheprovider", file]
    # the modules that the wheel lacks are found as under the engine: asked last
    (plugin.parent / "sitecustomize.py").write_text(EXTRA.format(str(tests.modules or "")))
    env = {**env, "PYTHONPATH": str(plugin.parent), "REPORT": str(report),
           "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # fmt: skip
    started = time.monotonic()
    subprocess.run(argv, cwd=tests.root, env=env, capture_output=True, check=False)
    seconds = time.monotonic() - started
    outcomes: dict[str, str] = {}
    for line in report.read_text().splitlines() if report.exists() else ():
        test, when, outcome = json.loads(line)
        if when == "call" or outcome != "passed":
            outcomes[test] = min(outcome, outcomes.get(test, outcome), key=WORST.index)
    ids = report.with_name("report.ids")
    return {
        "ids": json.loads(ids.read_text()) if ids.exists() else [],
        "outcomes": outcomes,
        "seconds": seconds,
    }


EXTRA = """
import sys
from importlib.machinery import PathFinder
from pathlib import Path
class Extra:
    def find_spec(self, name, path, target=None):
        if path is None or not {0!r}:
            return None
        spec = PathFinder.find_spec(name, [str(Path({0!r}, *name.split(".")[:-1]))])
        return spec if spec and spec.origin else None
sys.meta_path.append(Extra())
"""


def engine_of(python: Path, tests: SuiteFiles, file: str, env: dict[str, str]) -> dict[str, object]:
    """The same under the engine, on two lanes."""
    worker = gate.WorkerSpec(
        python=python, root=tests.root, arguments=tests.arguments, env=env, modules=tests.modules,
        logs=tests.root.parent / "logs",
    )  # fmt: skip
    text = (tests.root / file).read_text(encoding="utf-8")
    plan = RunPlan(
        suite="unit", shard="", files=(file,), suite_files=(file,), worker=worker,
        lanes=gate.lanes(2), test_deadline=900.0, deadline=3600.0, retry_limit=0,
        alone=tests.alone, hidden=lambda name: static.tests_of(name, text),
    )  # fmt: skip
    started = time.monotonic()
    results = Engine(plan, gate.machine(), Watcher()).run()
    seconds = time.monotonic() - started
    outcomes = {test.test: test.outcome.value for test in results.tests}
    return {
        "ids": [test.test for test in results.tests if test.attempts],
        "outcomes": outcomes,
        "seconds": seconds,
        "collect_errors": [error.message for error in results.collect_errors],
    }


def differences(engine: dict[str, object], pytest: dict[str, object]) -> list[str]:
    """What differs between two runs of a file; a whole file that skips itself has no ids."""
    mine, theirs = engine["outcomes"], pytest["outcomes"]
    if not theirs and set(mine.values()) <= {"skipped"}:
        return []
    both = set(engine["ids"]) ^ set(pytest["ids"])
    found = [f"{test}: only under one of them" for test in sorted(both)]
    found += [
        f"{test}: {mine[test]} under the engine, {theirs[test]} under pytest"
        for test in sorted(set(mine) & set(theirs))
        if mine[test] != theirs[test]
    ]
    return [*found, *engine["collect_errors"]]


def kept(path: Path, run: Callable[[], dict[str, object]], until: float) -> dict[str, object]:
    """What `run` found, now or earlier; nothing when it is too late to begin."""
    if not path.exists():
        if time.monotonic() > until:
            return {}
        found = run()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    return json.loads(path.read_text())


def show(file: str, runs: dict[str, dict[str, object]]) -> None:
    """Print a line about a file, and one for each difference."""
    seconds = " ".join(f"{name} {run['seconds']:.1f} s" for name, run in runs.items())
    print(f"{file}: {len(runs['engine']['outcomes'])} tests, {seconds}", flush=True)
    for line in differences(**runs):
        print(f"  {line}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("--python", "--checkout", "--work"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--files", type=int, default=40, help="beside those that are alone")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="then begin no more")
    arguments = parser.parse_args()
    suite = suites.load(ROOT / "ci", "unit")
    tests = discovery.find(suite.source, arguments.checkout, Shard())
    tests = discovery.lay_out(tests, suite.source, arguments.work.resolve())
    env = {**os.environ, **suite.environment, "JAX_PLATFORMS": "cpu",
           "JAX_NUM_GENERATED_CASES": "1"}  # fmt: skip
    others = sorted(set(tests.files) - tests.alone)
    chosen = random.Random(arguments.seed).sample(others, min(arguments.files, len(others)))
    files = tests.files if arguments.all else sorted({*tests.alone, *chosen})
    files.sort(key=lambda file: tests.sizes[file])
    until = time.monotonic() + arguments.seconds
    pairs = {}
    for file in files:
        runs = {
            name: kept(
                arguments.work / "done" / f"{file.replace('/', '-')}-{name}.json",
                lambda runner=runner, file=file: runner(arguments.python, tests, file, env),
                until,
            )
            for name, runner in (("engine", engine_of), ("pytest", pytest_of))
        }
        if all(runs.values()):
            pairs[file] = runs
            show(file, runs)
    wall = {name: sum(runs[name]["seconds"] for runs in pairs.values()) for name in RUNNERS}
    different = sum(len(differences(**runs)) for runs in pairs.values())
    number = sum(len(runs["engine"]["outcomes"]) for runs in pairs.values())
    ratio = wall["engine"] / wall["pytest"] if wall["pytest"] else 0.0
    print(f"{len(pairs)} of {len(files)} files, {number} tests, {different} differences; "
          f"wall {wall['engine']:.0f} s : {wall['pytest']:.0f} s = {ratio:.2f}")  # fmt: skip
    if len(pairs) < len(files):
        return 2
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
