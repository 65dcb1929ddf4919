#!/usr/bin/env python3
"""Bisects of the miniature with real builds and gates: what each names, its builds, its time.

    python benchmarks/bisection.py [--work DIR] [--warm] [CASE[:SEED]]…

JAX's tree has 30 commits with five merges, of which the 9th and the 19th name another XLA; XLA's
has 20. A case puts something bad at a place that its seed chooses, builds and gates a night before
and one after it, and asks `nightly bisect`. With `--warm` it asks again without the probes: Bazel's
cache has the builds then. Needs what the demo needs (bazel, clang-19, …) and minutes for each case.
Ends with status 1 where another commit is named, or a probe ran twice. With `--work` a case
that was cut off goes on.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "build"), str(ROOT), str(ROOT / "tests")]

from support.engines import PROGRAMS, SYSTEM  # noqa: E402
from support.night import of_commit  # noqa: E402

from rocwheel.base.store.opening import open_store  # noqa: E402
from rocwheel.records.verdict import State  # noqa: E402
from rocwheel.release.ledger.nights import Nights  # noqa: E402

MINIATURE = ROOT / "examples" / "miniature"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
OPENXLA = "https://github.com/openxla/xla"
XLA_BZL = """
def _impl(ctx):
    ctx.execute(["git", "clone", "-q", "{xla}", "."])
    if ctx.execute(["git", "checkout", "-q", ctx.attr.commit]).return_code:
        fail("no such XLA")

xla = repository_rule(implementation = _impl, attrs = {{"commit": attr.string()}})
"""
FAMILIES = """
families:
  - name: miniature
    about: any machine
    targets: [gfx90a]
    suites: {miniature: required}
    runners: [any-machine]
    proof: {backend: cpu, devices: false, rocm: true, official: false}
"""
TEST = "test_miniature.py::test_jaxlib_computes"
SUM, GOOD = "double sum = 0;", "double sum = XLA_START + A * B + 0;"
BAD, BROKEN = GOOD.replace("+ 0", "+ 1"), GOOD.replace("0;", "0 no C++;")
OTHER = f'return PyErr_Format(PyExc_TypeError, "another"); {GOOD}'
FLAKY = GOOD.replace("+ 0", "+ (std::random_device()() % 100 < {})")
SIDE = 4  # of six commits, on a branch that the next one merges
Changes = dict[int, Callable[["Tree"], None]]


class Tree:
    """A repository that grows commit by commit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commits: list[str] = []
        folder.mkdir(exist_ok=True)
        self.git("init", "-q", "-b", "main")
        self.git("config", "uploadpack.allowFilter", "true")

    def git(self, *words: str) -> str:
        who = ("-c", "user.name=Ann", "-c", "user.email=a@b")
        line = ["git", *who, "-C", str(self.folder), *words]
        day = f"{1764547200 + len(self.commits)} +0000"  # so that cases begin with one commit
        env = {**os.environ, "GIT_AUTHOR_DATE": day, "GIT_COMMITTER_DATE": day}
        done = subprocess.run(line, env=env, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def put(self, name: str, text: str, old: str = "") -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.read_text().replace(old, text) if old else text)

    def commit(self, title: str) -> None:
        self.git("add", "-A", "-f")
        self.git("commit", "-qm", title)
        self.commits.append(self.git("rev-parse", "HEAD"))


def xla_tree(folder: Path, bad: int) -> Tree:
    tree = Tree(folder)
    tree.put("BUILD", 'exports_files(["start.h"], visibility = ["//visibility:public"])\n')
    tree.put("WORKSPACE", "")
    for number in range(20):
        tree.put("start.h", f"#define XLA_START {int(number >= bad)}  // {number}\n")
        tree.commit(f"XLA {number}")
    return tree


def jax_tree(folder: Path, xla: Tree, changes: Changes) -> Tree:
    """30 commits: every sixth is a merge, of the branch that is the one before it."""
    ignore = shutil.ignore_patterns("bazel-*")
    shutil.copytree(MINIATURE / "workspace", folder, ignore=ignore)
    tree, source = Tree(folder), "jaxlib/_jax.cc"
    tree.put(source, "#include <random>\n#include <vector>", "#include <vector>")
    heads = ("external/xla/start.h", "jaxlib/a.h", "jaxlib/b.h")
    lines = "".join(f'#include "{name}"\n' for name in heads)
    tree.put(source, f"{lines}\nnamespace {{\n\n// Reads", "\nnamespace {\n\n// Reads")
    tree.put(source, GOOD, SUM)
    for name in "ab":
        tree.put(f"jaxlib/{name}.h", f"#define {name.upper()} 0\n")
    hdrs = 'python = True,\n    hdrs = ["a.h", "b.h", "@xla//:start.h"],'
    tree.put("jaxlib/BUILD.bazel", hdrs, "python = True,")
    tree.put("third_party/xla/BUILD", "")
    tree.put("third_party/xla/xla.bzl", XLA_BZL.format(xla=xla.folder))
    load = 'load("//third_party/xla:revision.bzl", "XLA_COMMIT")\n'
    load += 'load("//third_party/xla:xla.bzl", "xla")\n\nxla(name = "xla", commit = XLA_COMMIT)\n'
    tree.put("WORKSPACE", (folder / "WORKSPACE").read_text() + load)
    for number in range(30):
        if number % 6 == SIDE:
            tree.git("checkout", "-qb", "side", "HEAD~1")
        if number % 6 == SIDE + 1:
            tree.git("checkout", "-q", "main")
            tree.git("merge", "-q", "--no-ff", "--no-commit", "side")
            tree.git("branch", "-qD", "side")
        tree.put(f"note-{number}", "")
        at = 0 if number < 9 else 9 if number < 19 else 19
        if number in {0, 9, 19}:
            tree.put("third_party/xla/revision.bzl", f'XLA_COMMIT = "{xla.commits[at]}"\n')
        changes.get(number, lambda _tree: None)(tree)
        tree.commit(f"JAX {number}")
    return tree


def becomes(*texts: str) -> Callable[[Tree], None]:
    """Return a change of the line that computes, from any of its texts to the last."""

    def change(tree: Tree) -> None:
        for old in texts[:-1]:
            tree.put("jaxlib/_jax.cc", texts[-1], old)

    return change


def case_of(name: str, chance: random.Random) -> tuple[Changes, int, str]:
    """Return a case's changes of JAX's commits, which of XLA's is bad, and what is to be named."""
    place, never = chance.randrange(1, 30), 99
    main_line = [number for number in range(27) if number % 6 != SIDE]
    changes: Changes = {}
    xla_bad, expected = never, ""
    if name == "jax":
        changes, expected = {place: becomes(GOOD, BAD)}, f"JAX {place}"
    elif name == "xla":
        xla_bad = chance.randrange(1, 20)
        expected = f"XLA {xla_bad}"
    elif name == "merge":
        place = chance.choice([5, 11, 17, 23, 29])
        changes[place - 2] = lambda tree: tree.put("jaxlib/a.h", "#define A 1\n")
        changes[place - 1] = lambda tree: tree.put("jaxlib/b.h", "#define B 1\n")
        expected = f"JAX {place}"
    elif name == "broken":  # three do not build, one of which may be it
        place = chance.choice(main_line[5:])
        first = place - chance.choice([0, 1, 2, 4])
        is_beside = place > first + 3
        changes = {first: becomes(GOOD, BROKEN), first + 3: becomes(BROKEN, BAD)}
        expected = f"range with JAX {first}"
        if is_beside:
            changes |= {first + 3: becomes(BROKEN, GOOD), place: becomes(GOOD, BAD)}
            expected = f"JAX {place}"
    elif name.startswith("flaky"):
        changes[place] = becomes(GOOD, FLAKY.format(name.removeprefix("flaky")))
    elif name == "two":  # another failure before this one
        first, place = sorted(chance.sample(main_line[1:], 2))
        changes = {first: becomes(GOOD, OTHER), place: becomes(OTHER, BAD)}
    else:
        expected = "ROCm"
    return changes, xla_bad, expected


class Campaign:
    """A folder with what all cases share: the caches and two builds of ROCm."""

    def __init__(self, work: Path, *, is_warm: bool) -> None:
        self.work, self.cache, self.is_warm = work, work / "cache", is_warm
        (work / "families.yaml").write_text(FAMILIES)
        self.rocm = [work / f"therock-dist-linux-gfx90a-7.10.0a2025112{n}.tar.gz" for n in (0, 1)]
        copy = work / "miniature"
        for number, tarball in enumerate(self.rocm):
            if not tarball.exists():
                shutil.copytree(MINIATURE, copy, dirs_exist_ok=True)
                runtime, version = copy / "therock" / "hip_runtime.c", "*version = HIP_VERSION;"
                text = runtime.read_text()
                assert version in text
                runtime.write_text(text.replace(version, "*version = 0;") if number else text)
                words = (f"--output={tarball}", f"--rocm-version=7.10.0a2025112{number}")
                line = [sys.executable, str(copy / "make_therock.py"), *words]
                subprocess.run(line, check=True, stdout=subprocess.DEVNULL)

    def start(self, *words: str) -> subprocess.Popen[str]:
        swapped = f"url.file://{self.work / 'xla'}.insteadOf"
        env = {
            **os.environ, "PATH": f"{PROGRAMS}:{SYSTEM}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(self.cache),
            "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": swapped, "GIT_CONFIG_VALUE_0": OPENXLA,
        }  # fmt: skip
        line = [sys.executable, str(ROOT / "build" / "ci_build"), *words]
        line += [f"--store={(self.work / 'store').as_uri()}"]
        return subprocess.Popen(
            line, cwd=self.work, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        process = self.start(*words)
        out, err = process.communicate()
        if process.returncode not in codes:
            raise SystemExit(f"{' '.join(words)}: {process.returncode}\n{err[-3000:]}")
        return out

    def night(self, name: str, tree: Tree, commit: str, rocm: Path) -> None:
        path = f"{SYSTEM}:{os.environ['PATH']}"
        program = shutil.which(f"python{PYTHON}", path=path)
        text = of_commit(PYTHON, program, jax=tree.folder, commit=commit, rocm=rocm, suffix=name)
        (self.work / "nightly.yaml").write_text(text)
        words = (f"--night={name}", f"--config={self.work}/nightly.yaml")
        self.run("nightly", "plan", f"--family-file={self.work}/families.yaml", *words)
        self.run("nightly", "run", name, codes=(0, 5))

    def case(self, title: str) -> tuple[str, bool]:
        """Play a case; return its row of the table, and whether it is right."""
        name, _, seed = title.partition(":")
        changes, xla_bad, expected = case_of(name.removeprefix("kills-"), random.Random(title))
        store, kept, begun = (self.work / n for n in ("store", "store-of-one", "begun"))
        goes_on = begun.exists() and begun.read_text() == title
        for folder in ("xla", "jax", *(() if goes_on else ("store",))):
            shutil.rmtree(self.work / folder, ignore_errors=True)
        xla = xla_tree(self.work / "xla", xla_bad)
        jax = jax_tree(self.work / "jax", xla, changes)
        test = "test_miniature.py::test_the_hip_runtime_is_found_and_answers"
        test = test if expected == "ROCm" else TEST
        if not kept.exists():
            self.night("one", jax, jax.commits[0], self.rocm[0])
            shutil.copytree(store, kept)
        if not goes_on:
            shutil.copytree(kept, store, dirs_exist_ok=True)
            self.night("two", jax, jax.commits[-1], self.rocm[expected == "ROCm"])
            begun.write_text(title)
        line = ("--json", "nightly", "bisect", f"--test={test}", "--good=one", "--bad=two")
        line += ("--family=miniature", "--suite=miniature")
        kills, chance = 10 * name.startswith("kills-"), random.Random(seed)
        for _ in range(kills):
            process = self.start(*line)
            with suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(2, 15))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        took, found = self.timed(*line)
        probes = Nights(open_store((store / "bisect").as_uri()))
        ends = {
            night: [
                item for tries in probes.book(night).attempts.values() for item in tries
                if item.ended and not item.ended.written_by
                and item.ended.state is not State.NOT_RUN
            ]
            for night in probes.names()
        }  # fmt: skip
        twice = [night for night, items in ends.items() if len(items) > 1]
        builds = sum(night.startswith("set-") for night in ends)
        warm = 0.0
        if self.is_warm and not kills:
            shutil.rmtree(store / "bisect")
            warm, again = self.timed(*line)
            twice += ["warm"] * (again["about"] != found["about"])
        named = [xla.commits.index(c["commit"]) if c["commit"] in xla.commits else
                 jax.commits.index(c["commit"]) for c in found["commits"]]  # fmt: skip
        told = f"{found['input']} {','.join(map(str, named))}".strip() or "nothing"
        if expected.startswith("range"):
            is_right = found["state"] == "range" and int(expected.split()[-1]) in named
        elif expected:
            is_right = found["state"] == "found" and told == expected
        else:
            is_right = found["state"] != "found"
        most = 4 + sum(item["answer"] == "not built" for item in found["tried"])
        most += sum(math.ceil(math.log2(n)) for n in ((29, 20) if name == "xla" else (29,)))
        times = (f"{took:.0f} s", f"{warm:.0f} s" if warm else "")
        numbers = (f"{builds} (≤ {most})", str(len(ends) - builds))
        row = (title, expected or "no commit", f"{found['state']}: {told}", *numbers, *times)
        print(found["about"], *found["told"], sep="\n", file=sys.stderr)
        return f"| {' | '.join(row)} |", is_right and not twice and builds <= most

    def timed(self, *line: str) -> tuple[float, dict[str, Any]]:
        started = time.monotonic()
        found = json.loads(self.run(*line, codes=(0, 5)))
        return time.monotonic() - started, found


ALL = ("jax:1", "jax:2", "xla:1", "xla:2", "merge:1", "broken:1", "broken:2", "broken:3", "rocm:1",
       "two:1", "flaky10:1", "flaky50:1", "kills-jax:1")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, help="A folder for caches and cases, which stays.")
    parser.add_argument("--warm", action="store_true", help="Ask again without the probes.")
    parser.add_argument("cases", nargs="*", default=ALL, metavar="CASE", help=" ".join(ALL))
    options = parser.parse_args()
    work = (options.work or Path(tempfile.mkdtemp(prefix="rocwheel-bisect-"))).resolve()
    work.mkdir(parents=True, exist_ok=True)
    try:
        campaign, rights = Campaign(work, is_warm=options.warm), []
        print("| case | bad is | answer | builds | gates | took | warm |\n" + "| --- " * 7 + "|")
        for title in options.cases:
            row, is_right = campaign.case(title)
            rights.append(is_right)
            print(row, "" if is_right else "WRONG", flush=True)
    finally:
        if not options.work:
            shutil.rmtree(work, ignore_errors=True)
    return 0 if all(rights) else 1


if __name__ == "__main__":
    sys.exit(main())
