#!/usr/bin/env python3
"""JAX's own tests under the gate's engine beside `pytest -n 2`: node ids, outcomes, wall time.

    python3 benchmarks/jax_tests.py --python ENV/bin/python --checkout JAX \\
        --work DIR [--files 40 --seed 7 | --all] [--file-seconds 240]
    python3 benchmarks/jax_tests.py --python ENV/bin/python --checkout JAX \\
        --work DIR --collect [--alone] [--suite multi_gpu] [--record 0.10.2]
    python3 benchmarks/jax_tests.py --python ENV/bin/python --checkout JAX \\
        --work DIR --skips

ENV has jax, jaxlib, pytest-xdist and what the suite `unit` requires; JAX is a checkout of the same
release. Each file runs alone under either, on the CPU, with the
environment of the suite and JAX_NUM_GENERATED_CASES=1. What is done is kept in DIR and not done
again: a comparison that was cut short goes on where it was. With --seconds nothing new is begun
after so long, and what is still missing is said: exit status 2. Otherwise it ends with 1 when
something differs. A file that either needs longer for than --file-seconds is left out, and said.

With --collect no test runs: the engine collects the whole suite as a gate does, with the number of
generated cases of the suite, and so does `pytest --collect-only`, in one process. A file of which
they find different tests is collected by pytest once more, in a process of its own. With --alone
the engine only: what the suite has for this release. --record writes the number down in
ci/jax_tests.json, of which docs/reference/jax-tests.md is made.

With --skips each test runs up to the first program that JAX would compile, and JAX's test utilities
are told that the device is one AMD GPU: how many tests skip themselves there, as far as that is
decided without a GPU. It is the least number; what a test finds out later is not in it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "build"), str(ROOT), str(ROOT / "tests")]

from support import gate  # noqa: E402

from rocwheel.base.values import replace  # noqa: E402
from rocwheel.gate.engine.loop import TestRunner  # noqa: E402
from rocwheel.gate.engine.plan import RunPlan, Watcher  # noqa: E402
from rocwheel.gate.engine.worker.channel import one_line  # noqa: E402
from rocwheel.gate.suite import discovery, suites  # noqa: E402
from rocwheel.gate.suite.discovery import Shard, SuiteFiles  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rocwheel.records.results import Results

# a pytest plugin that writes one line for each collected test and each report
PLUGIN = """
import json, os
def pytest_collection_finish(session):
    if not os.environ.get("PYTEST_XDIST_WORKER") and not session.config.option.collectonly:
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
# a pytest plugin: the device is an AMD GPU, and a test ends well where it would compile something
UP_TO_COMPILING = """
import pytest
from _pytest.unittest import TestCaseFunction
class Reached(BaseException):
    pass
def stop(*_, **__):
    raise Reached
def pytest_configure():
    import jax._src.test_util as utilities
    from jax._src import compiler
    compiler.compile_or_get_cached = stop
    utilities.device_under_test = lambda: "gpu"
    utilities.is_device_rocm = lambda: True
    utilities.request_cpu_devices = lambda _: None
add = TestCaseFunction._addexcinfo
def unless_reached(self, info):
    if not issubclass(info[0], Reached):
        add(self, info)
TestCaseFunction._addexcinfo = unless_reached
@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call():
    try:
        return (yield)
    except Reached:
        return True
"""
RUNNERS = ("engine", "pytest")
TOGETHER = 16  # files that are begun and kept together
COLLECTED = "collected"  # why no test runs where only the ids count
WORST = ("failed", "skipped", "xfailed", "passed")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """What is compared: an environment, a suite laid out from a checkout, how long a file may."""

    python: Path
    tests: SuiteFiles
    env: Mapping[str, str]
    file_seconds: float

    @property
    def work(self) -> Path:
        return self.tests.root.parent


def pytest_of(what: Compared, files: tuple[str, ...], *how: str) -> dict[str, object]:
    """Node ids and outcomes of files under pytest: with `-n 2`, or `--collect-only`."""
    tests = what.tests
    report = what.work / "report"
    for path in (report, report.with_name("report.ids")):
        path.unlink(missing_ok=True)
    plugin = what.work / "plugin" / "reporting.py"
    plugin.parent.mkdir(exist_ok=True)
    plugin.write_text(PLUGIN)
    argv = [what.python, "-m", "pytest", "-q", *how, "-p", "reporting"]
    argv += [*tests.arguments, f"--rootdir={tests.root}", "-p", "no:cacheprovider", *files]
    # the modules that the wheel lacks are found as under the engine: asked last
    (plugin.parent / "sitecustomize.py").write_text(EXTRA.format(str(tests.modules or "")))
    env = {**what.env, "PYTHONPATH": str(plugin.parent), "REPORT": str(report),
           "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # fmt: skip
    started = time.monotonic()
    with subprocess.Popen(
        argv, cwd=tests.root, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            process.wait(what.file_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return {"cut": what.file_seconds}
    seconds = time.monotonic() - started
    outcomes: dict[str, str] = {}
    for line in report.read_text().splitlines() if report.exists() else ():
        test, when, outcome = json.loads(line)
        test = one_line(test)
        if when == "call" or outcome != "passed":
            outcomes[test] = min(outcome, outcomes.get(test, outcome), key=WORST.index)
    ids = report.with_name("report.ids")
    return {
        "ids": [*map(one_line, json.loads(ids.read_text()))] if ids.exists() else [],
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


def engine_of(what: Compared, file: str) -> dict[str, object]:
    """The same under the engine, on two lanes."""
    started = time.monotonic()
    results = _run(what, (file,), what.file_seconds)
    seconds = time.monotonic() - started
    if seconds > what.file_seconds:
        return {"cut": what.file_seconds}
    outcomes = {test.test: test.outcome.value for test in results.tests}
    return {
        "ids": [test.test for test in results.tests if test.attempts],
        "outcomes": outcomes,
        "seconds": seconds,
        "collect_errors": [error.message for error in results.collect_errors],
    }


def collected(what: Compared) -> dict[str, object]:
    """What the engine collects of the whole suite: node ids by file, and what it could not."""
    started = time.monotonic()
    results = _run(what, what.tests.files, float("inf"), skip=lambda _test: COLLECTED)
    ids: dict[str, list[str]] = {file: [] for file in what.tests.files}
    hidden: dict[str, str] = {}
    for test in results.tests:
        if test.reason == COLLECTED:
            ids[test.file].append(test.test)
        else:
            hidden[test.test] = test.reason
    return {
        "ids": ids,
        "hidden": hidden,
        "errors": {
            **{error.file: error.message for error in results.collect_errors},
            **{f"fault {n}": fault.message for n, fault in enumerate(results.faults)},
        },
        "seconds": time.monotonic() - started,
    }


def skipped(what: Compared, files: tuple[str, ...]) -> dict[str, object]:
    """Outcomes of files whose tests end where they would compile something."""
    plugin = what.work / "plugin" / "up_to_compiling.py"
    plugin.parent.mkdir(exist_ok=True)
    plugin.write_text(UP_TO_COMPILING)
    there = replace(what, env={**what.env, "PYTHONPATH": str(plugin.parent)})
    results = _run(there, files, float("inf"), arguments=("-p", plugin.stem), deadline=60.0)
    return {"outcomes": {test.test: test.outcome.value for test in results.tests}}


def _run(
    what: Compared, files: tuple[str, ...], seconds: float, *,
    arguments: tuple[str, ...] = (), deadline: float = 900.0, **more: Any,
) -> Results:  # fmt: skip
    tests = what.tests
    worker = gate.WorkerSpec(
        python=what.python, root=tests.root, arguments=(*tests.arguments, *arguments),
        env=what.env, modules=tests.modules, logs=what.work / "logs",
    )  # fmt: skip

    def hidden(name: str) -> tuple[str, ...]:
        text = (tests.root / name).read_text(encoding="utf-8")
        return tuple(discovery.tests_of(name, text))

    plan = RunPlan(
        suite="unit", shard="", files=files, suite_files=files, worker=worker,
        lanes=gate.lanes(2), test_deadline=deadline, deadline=seconds, retry_limit=0,
        alone=tests.alone, hidden=hidden, **more,
    )  # fmt: skip
    return TestRunner(plan, gate.machine(), Watcher()).run()


def differences(engine: dict[str, object], pytest: dict[str, object]) -> list[str]:
    """What differs between two runs of a file; a whole file that skips itself has no ids."""
    mine, theirs, errors = engine["outcomes"], pytest["outcomes"], engine["collect_errors"]
    if not theirs and not errors and set(mine.values()) <= {"skipped"}:
        return []
    both = set(engine["ids"]) ^ set(pytest["ids"])
    found = [f"{test}: only under one of them" for test in sorted(both)]
    found += [
        f"{test}: {mine[test]} under the engine, {theirs[test]} under pytest"
        for test in sorted(set(mine) & set(theirs))
        if mine[test] != theirs[test]
    ]
    return [*found, *errors]


def kept(path: Path, run: Callable[[], dict[str, object]], *, cap: float) -> dict[str, object]:
    """What `run` found, now or earlier; what took too long is tried again with more time."""
    found = json.loads(path.read_text()) if path.exists() else {"cut": 0.0}
    if found.get("cut", cap) < cap:
        found = run()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    return found


def show(file: str, runs: dict[str, dict[str, object]]) -> None:
    """Print a line about a file, and one for each difference."""
    seconds = " ".join(f"{name} {run['seconds']:.1f} s" for name, run in runs.items())
    print(f"{file}: {len(runs['engine']['outcomes'])} tests, {seconds}", flush=True)
    for line in differences(**runs):
        print(f"  {line}", flush=True)


def compare_outcomes(what: Compared, files: list[str], until: float) -> int:
    """Run each file under both, the smallest first."""
    pairs, long = {}, []
    for file in sorted(files, key=lambda file: what.tests.sizes[file]):
        runs = {}
        for name, run in (
            ("engine", lambda file=file: engine_of(what, file)),
            ("pytest", lambda file=file: pytest_of(what, (file,), "-n", "2", "-p", "xdist")),
        ):
            path = what.work / "done" / f"{file.replace('/', '-')}-{name}.json"
            if path.exists() or time.monotonic() < until:
                runs[name] = kept(path, run, cap=what.file_seconds)
        if any("cut" in run for run in runs.values()):
            long.append(file)
            print(f"{file}: longer than {what.file_seconds:.0f} s", flush=True)
        elif len(runs) == len(RUNNERS):
            pairs[file] = runs
            show(file, runs)
    wall = {name: sum(runs[name]["seconds"] for runs in pairs.values()) for name in RUNNERS}
    different = sum(len(differences(**runs)) for runs in pairs.values())
    number = sum(len(runs["engine"]["outcomes"]) for runs in pairs.values())
    ratio = wall["engine"] / wall["pytest"] if wall["pytest"] else 0.0
    print(f"{len(pairs)} of {len(files)} files, {len(long)} too long, {number} tests, "
          f"{different} differences; "
          f"wall {wall['engine']:.0f} s : {wall['pytest']:.0f} s = {ratio:.2f}")  # fmt: skip
    if len(pairs) < len(files):
        return 2
    return 1 if different else 0


def compare_ids(what: Compared, *, suite: str, alone: bool, record: str) -> int:
    """Collect the suite with the engine and with pytest; where they differ, a file by itself."""
    folder = what.work / "collected"
    mine = kept(folder / "engine.json", lambda: collected(what), cap=what.file_seconds)
    number = sum(map(len, mine["ids"].values()))
    print(f"{len(what.tests.files)} files, {number} tests, {len(mine['hidden'])} more in "
          f"files that skip themselves, {len(mine['errors'])} files lost; "
          f"{mine['seconds']:.0f} s", flush=True)  # fmt: skip
    for file, message in mine["errors"].items():
        print(f"  {file}: {message}")
    if mine["errors"]:
        return 1
    if record:
        write_down(record, suite, number + len(mine["hidden"]))
    if alone:
        return 0

    def pytest_only(*files: str) -> dict[str, list[str]]:
        name = files[0].replace("/", "-") if len(files) == 1 else "pytest"
        # with an error in one file pytest collects the others, and says so at the end
        how = ("--collect-only", "--continue-on-collection-errors")
        run = kept(
            folder / f"{name}.json", lambda: pytest_of(what, files, *how), cap=what.file_seconds
        )
        found: dict[str, list[str]] = {file: [] for file in files}
        for test in run.get("ids", ()):
            found[test.partition("::")[0]].append(test)
        return found

    different = 0
    for file, together in pytest_only(*what.tests.files).items():
        both = set(mine["ids"][file]) ^ set(together)
        if both:
            print(f"{file}: {len(together)} beside others, collected again", flush=True)
            both = set(mine["ids"][file]) ^ set(pytest_only(file)[file])
        different += len(both)
        for test in sorted(both):
            print(f"  {test}: only under one of them", flush=True)
    print(f"{different} differences")
    return 1 if different else 0


def write_down(version: str, suite: str, number: int) -> None:
    """Record how many tests a suite has for one JAX."""
    path = ROOT / "ci" / "jax_tests.json"
    known = json.loads(path.read_text(encoding="utf-8"))
    known.setdefault(version, {})[suite] = number
    path.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def count_skips(what: Compared, until: float) -> int:
    """Say how many tests of the suite skip themselves on an AMD GPU."""
    files, counts, done = what.tests.files, Counter[str](), 0
    for first in range(0, len(files), TOGETHER):
        some = files[first : first + TOGETHER]
        path = what.work / "skips" / f"{first}.json"
        if path.exists() or time.monotonic() < until:
            found = kept(path, lambda some=some: skipped(what, some), cap=float("inf"))
            outcomes = Counter(found["outcomes"].values())
            counts.update(outcomes)
            done += len(some)
            print(f"{some[0]} to {some[-1]}: {dict(outcomes)}", flush=True)
    print(f"{done} of {len(files)} files, {counts.total()} tests, {dict(counts)}")
    return 0 if done == len(files) else 2


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in ("--python", "--checkout", "--work"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--files", type=int, default=40, help="beside those that are alone")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="then begin no more")
    parser.add_argument("--file-seconds", type=float, default=float("inf"), help="cut a file off")
    parser.add_argument("--collect", action="store_true", help="node ids only")
    parser.add_argument("--suite", default="unit")
    parser.add_argument("--record", metavar="JAX", default="", help="with --collect: in ci/")
    parser.add_argument("--alone", action="store_true", help="with --collect: without pytest")
    parser.add_argument("--skips", action="store_true", help="what skips itself on an AMD GPU")
    arguments = parser.parse_args()
    suite = suites.load(ROOT / "ci", arguments.suite)
    tests = discovery.find(suite.source, arguments.checkout, Shard())
    tests = discovery.lay_out(tests, suite.source, arguments.work.resolve())
    env = {**os.environ, **suite.environment, "JAX_PLATFORMS": "cpu"}
    if not (arguments.collect or arguments.skips):
        env["JAX_NUM_GENERATED_CASES"] = "1"
    what = Compared(
        python=arguments.python, tests=tests, env=env, file_seconds=arguments.file_seconds
    )
    until = time.monotonic() + arguments.seconds
    if arguments.collect:
        return compare_ids(what, suite=suite.name, alone=arguments.alone, record=arguments.record)
    if arguments.skips:
        return count_skips(what, until)
    others = sorted(set(tests.files) - tests.alone)
    chosen = random.Random(arguments.seed).sample(others, min(arguments.files, len(others)))
    files = tests.files if arguments.all else (*tests.alone, *chosen)
    return compare_outcomes(what, list(files), until)


if __name__ == "__main__":
    sys.exit(main())
