#!/usr/bin/env python3
"""The gate's engine beside `pytest -n 2` on synthetic suites: makespan, overhead, a crash's cost.

    python3 benchmarks/gate.py [--repeat 3] [--small] [--only schedule|many]
    python3 benchmarks/gate.py --device nvidia [--python PYTHON] [--processes 16]
                               [--checkout DIR --file tests/lax_test.py …]
    python3 benchmarks/gate.py --results gate-results/unit-3.12/results.json [--results …]

Prints a table for the README and ends with 1 when a limit is broken. Two suites on 2 slots: 40
files with skewed durations, and one whose longest file is the smallest, so that only recorded
durations put it first. The lower bound is half of all test time, or the longest test. Runs
alternate, figures are medians. No JAX is imported: what is measured is the engine, not the tests.
`many` is 2,000 trivial tests against pytest, with the CPU time of all processes, and what the
engine's own process takes for 36,000.

With `--device` nothing but that device is measured: our smoke suite, or files of a checkout of
JAX laid out without its package, by the gate's engine and by `pytest -n` with as many processes,
the same variables and the same Python, in turns; outcomes must be equal. A third arm gives the
engine's workers one compile cache: it is worth its while where outcomes are equal and the wall is
shorter. From the durations the time on 8 MI300X with 128 processes is estimated. The Python (by
default this one) needs JAX with its plugin, and pytest with pytest-xdist.

With `--results` nothing is run: the same estimate from what gates recorded, of all shards where a
suite was cut, with the files that the time goes to.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "build"), str(ROOT), str(ROOT / "tests")]

from support import gate  # noqa: E402

from rocwheel.base.host import cgroup  # noqa: E402
from rocwheel.base.process import HostRunner, base_env  # noqa: E402
from rocwheel.gate.engine.child import WorkerSpec  # noqa: E402
from rocwheel.gate.engine.loop import TestRunner  # noqa: E402
from rocwheel.gate.engine.plan import (  # noqa: E402
    Estimates,
    Lane,
    RunPlan,
    System,
    Watcher,
)
from rocwheel.gate.machine import accelerators, devices, preflight  # noqa: E402
from rocwheel.gate.suite.history import SuiteHistory  # noqa: E402
from rocwheel.records.results import Results  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SLOTS, SEED = 2, 7
ENV = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # as in the environment that a gate makes
EMPTY = "def test(): pass\n"
CRASH = "import os\ndef test_a(): pass\ndef test_b(): {}\ndef test_c(): pass\n"


@dataclass(frozen=True)
class Suite:
    """Files as text, with the seconds that their tests sleep."""

    files: dict[str, str]
    seconds: float
    longest: float

    @property
    def bound(self) -> float:
        """Seconds below which no schedule on the slots can be."""
        return max(self.seconds / SLOTS, self.longest)

    @property
    def sizes(self) -> dict[str, int]:
        return {name: len(text) for name, text in self.files.items()}


def of_sleeps(sleeps: dict[str, list[float]], padding: Callable[[str], int]) -> Suite:
    files = {
        name: "import time\n"
        + "".join(f"def test_{n}(): time.sleep({s:.4f})\n" for n, s in enumerate(found))
        + "#" * padding(name)
        for name, found in sleeps.items()
    }
    every = [seconds for found in sleeps.values() for seconds in found]
    return Suite(files, sum(every), max(every))


def skewed(files: int) -> Suite:
    source = random.Random(SEED)
    return of_sleeps(
        {
            f"test_{number:02d}.py": [
                min(3.0, 0.04 * source.paretovariate(1.1)) for _ in range(source.randint(1, 12))
            ]
            for number in range(files)
        },
        lambda _name: 0,
    )


def misleading(seconds: float) -> Suite:
    """Eight large files of one unit each, and a small one, last by name and size, of four."""
    sleeps = {f"test_{number}.py": [seconds / 4] * 4 for number in range(8)}
    sleeps["test_long.py"] = [4 * seconds]
    return of_sleeps(sleeps, lambda name: 0 if name == "test_long.py" else 1000)


def ours(root: Path, suite: Suite, past: SuiteHistory | None = None) -> gate.Run:
    estimates = past.estimates(suite.sizes) if past else Estimates(sizes=suite.sizes)
    return gate.run(root, suite.files, lanes=gate.lanes(SLOTS), estimates=estimates)


def theirs(root: Path, processes: int = SLOTS) -> float:
    """Seconds of pytest-xdist on what lies in `root`, as one process."""
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", str(processes)]
    argv += ["-c", os.devnull, f"--rootdir={root}", "-p", "no:cacheprovider", str(root)]
    started = time.monotonic()
    subprocess.run(argv, capture_output=True, cwd=root, env={**os.environ, **ENV}, check=False)
    return time.monotonic() - started


def engine(root: Path, text: str) -> float:
    return gate.run(root, {"test_a.py": text}, retry_limit=0).seconds


def per_turn(repeat: int, measure: Callable[[int], tuple[float, ...]]) -> tuple[float, ...]:
    """Medians of each figure over the turns."""
    turns: Iterable[tuple[float, ...]] = [measure(turn) for turn in range(repeat)]
    return tuple(statistics.median(found) for found in zip(*turns, strict=True))


@dataclass(frozen=True)
class Line:
    """One line of the table; `limit` is what rocwheel's figure may not exceed."""

    what: str
    unit: str
    rocwheel: float
    pytest: float
    limit: float
    why: str  # what the limit is

    @property
    def passed(self) -> bool:
        return self.rocwheel <= self.limit


def measure(folder: Path, repeat: int, *, small: bool) -> list[Line]:
    skew, mislead = skewed(8 if small else 40), misleading(0.1 if small else 1.0)
    number = 200 if small else 2000
    many = "".join(f"def test_{n}(): pass\n" for n in range(number))

    def makespan(turn: int) -> tuple[float, ...]:
        root = folder / f"skewed-{turn}"
        return ours(root, skew).seconds, theirs(root)

    def order(turn: int) -> tuple[float, ...]:
        root = folder / f"misleading-{turn}"
        first = ours(root, mislead)
        past = SuiteHistory().with_results(first.results)
        return first.seconds, ours(root, mislead, past).seconds, theirs(root)

    def overhead(turn: int) -> tuple[float, ...]:
        one, all_ = folder / f"one-{turn}", folder / f"many-{turn}"
        mine = engine(all_, many) - engine(one, EMPTY)
        return 1000 * mine / number, 1000 * (theirs(all_, 1) - theirs(one, 1)) / number

    def crash(turn: int) -> tuple[float, ...]:
        calm, bad = folder / f"calm-{turn}", folder / f"crash-{turn}"
        mine = engine(bad, CRASH.format("os.abort()")) - engine(calm, CRASH.format("pass"))
        return mine, theirs(bad, 1) - theirs(calm, 1)

    gate_skewed, xdist_skewed = per_turn(repeat, makespan)
    first, later, xdist_order = per_turn(repeat, order)
    gate_test, xdist_test = per_turn(repeat, overhead)
    gate_crash, xdist_crash = per_turn(repeat, crash)
    files, bound = f"{len(skew.files)} skewed files", f"of {skew.bound:.1f} s"
    return [
        Line(f"{files}, over the lower bound {bound}", "x", gate_skewed / skew.bound,
             xdist_skewed / skew.bound, 1.15, "1.15"),
        Line(files, "s", gate_skewed, xdist_skewed, xdist_skewed, "`pytest -n 2`"),
        Line("longest file smallest, first run", "s", first, xdist_order, 1.1 * xdist_order,
             "1.1 x `pytest -n 2`"),
        Line("the same with recorded durations", "s", later, xdist_order, first, "the first run"),
        Line("overhead per empty test", "ms", gate_test, xdist_test, 10.0, "10 ms"),
        Line("one crash, beyond the test itself", "s", gate_crash, xdist_crash, 2.0, "2 s"),
    ]  # fmt: skip


def many(root: Path, number: int) -> dict[str, float]:
    """What the engine takes for trivial tests, seen from its own process."""
    files = {
        f"test_{n:02d}.py": "".join(f"def test_{m}(): pass\n" for m in range(number // 20))
        for n in range(20)
    }
    root.mkdir(exist_ok=True)
    before = resource.getrusage(resource.RUSAGE_SELF)
    run = gate.run(root, files, lanes=gate.lanes(SLOTS), deadline=3600.0)
    after = resource.getrusage(resource.RUSAGE_SELF)
    starts = [attempt.start_ms for test in run.results.tests for attempt in test.attempts]
    assert run.results.counts.passed == number
    return {
        "first": min(starts) / 1000,
        "cpu": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "memory": peak() / 1024,
    }


def peak() -> float:
    """KiB this process had at most; a child's `ru_maxrss` begins with its parent's."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def spent(argv: list[str], root: Path) -> tuple[float, float, str]:
    """Wall and CPU seconds of a command with all its processes, and what it printed."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        argv, cwd=root, env={**os.environ, **ENV}, stdout=subprocess.PIPE, text=True, check=False
    )
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - started
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, done.stdout


def measure_many(folder: Path, repeat: int, *, small: bool) -> list[Line]:
    number, most = (200, 400) if small else (2000, 36_000)
    xdist = [sys.executable, "-m", "pytest", "-q", "-p", "xdist", "-n", str(SLOTS)]
    xdist += ["-c", os.devnull, "-p", "no:cacheprovider"]

    def ours_of(root: Path, count: int) -> tuple[float, float, dict[str, float]]:
        argv = [sys.executable, __file__, "--child", str(root), "--tests", str(count)]
        wall, cpu, said = spent(argv, folder)
        return wall, cpu, json.loads(said)

    def turn(number_of: int) -> tuple[float, ...]:
        root = folder / f"trivial-{number_of}"
        wall, cpu, said = ours_of(root, number)
        other = spent([*xdist, f"--rootdir={root}", str(root)], root)
        return wall, cpu, said["first"], other[0], other[1]

    wall, cpu, first, xdist_wall, xdist_cpu = per_turn(repeat, turn)
    _, _, large = ours_of(folder / "most", most)
    what = f"{number:,} trivial tests"
    return [
        Line(what, "s", wall, xdist_wall, xdist_wall, "`pytest -n 2`"),
        Line(f"{what}, CPU of all processes", "s", cpu, xdist_cpu, 1.1 * xdist_cpu,
             "1.1 x `pytest -n 2`"),
        Line("first test after the environment stands", "s", first, float("nan"), 1.0, "1 s"),
        Line(f"{most:,} tests, CPU of the engine", "s", large["cpu"], float("nan"), 5.0, "5 s"),
        Line(f"{most:,} tests, memory of the engine", "MiB", large["memory"], float("nan"), 60.0,
             "60 MiB"),
    ]  # fmt: skip


# --- on a device ---------------------------------------------------------------------------------

LANES = 128  # 8 MI300X with 16 processes each
SHOWN_FILES = 5
START_SECONDS = 20.0  # for a process of JAX to come up and import its first file


@dataclass(frozen=True)
class DeviceRun:
    """One run of the tests: seconds of wall and CPU, and outcome and seconds of each test."""

    wall: float
    cpu: float
    outcomes: dict[str, str]
    seconds: dict[str, float]


def lanes_on(device: str, processes: int) -> tuple[Lane, ...]:
    """Return the gate's own lanes for that many processes: devices and CPUs shared out."""
    runner = HostRunner(base_env(os.environ))
    found = {
        "nvidia": lambda: accelerators.nvidia(runner, os.environ),
        "gpu": lambda: accelerators.amd(Path("/"), os.environ),
        "cpu": accelerators.cpu,
    }[device]()
    if not found.devices:
        raise SystemExit(f"this machine has no {device}")
    backend = preflight.platforms(found.devices[0].maker)
    env = {"JAX_PLATFORMS": backend, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    mine = found.devices[:processes]
    shared, jobs = (processes, 1) if device == "cpu" else (len(mine), processes // len(mine))
    allotted = devices.Allotted(
        allotment=found, per_process=1, most=shared, jobs=jobs, usable=cgroup.cpus()
    )
    return tuple(devices.lanes(allotted, mine, env))


@dataclass(frozen=True)
class Job:
    """What both arms run, and where."""

    root: Path
    python: Path
    files: tuple[str, ...]
    lanes: tuple[Lane, ...]


def by_engine(job: Job, logs: Path, env: dict[str, str]) -> DeviceRun:
    root, files = job.root, job.files
    sizes = {file: (root / file).stat().st_size for file in files}
    plan = RunPlan(
        suite="device", shard="", files=files, suite_files=files, lanes=job.lanes,
        test_deadline=900.0, deadline=7200.0, retry_limit=50, estimates=Estimates(sizes=sizes),
        worker=WorkerSpec(
            python=job.python, root=root, arguments=("-c", os.devnull), env=env, logs=logs
        ),
    )  # fmt: skip
    machine = System(starter=HostRunner(base_env(os.environ)), clock=time.monotonic)
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    results = TestRunner(plan, machine, Watcher()).run()
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    for error in results.collect_errors:
        print(f"{error.file}: {error.message}", file=sys.stderr)
    print(f"engine: {wall:.1f} s", file=sys.stderr)
    return DeviceRun(
        wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        {test.test: test.outcome.value for test in results.tests},
        {test.test: test.duration_ms / 1000 for test in results.tests},
    )  # fmt: skip


def by_pytest(job: Job, logs: Path) -> DeviceRun:
    root, number = job.root, str(len(job.lanes))
    report = logs / "theirs.xml"
    argv = [
        str(job.python),
        "-m",
        "pytest",
        "-q",
        "-p",
        "xdist",
        "-n",
        number,
        "-c",
        os.devnull,
    ]
    argv += [f"--rootdir={root}", "-p", "no:cacheprovider", f"--junitxml={report}", *job.files]
    env = {**base_env(os.environ), **ENV, **job.lanes[0].env, "PYTHONPATH": str(root)}
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    subprocess.run(argv, cwd=root, env=env, capture_output=True, check=False)
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"pytest: {wall:.1f} s", file=sys.stderr)
    outcomes, seconds = {}, {}
    for case in ET.parse(report).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        kinds = {child.tag for child in case}
        is_expected = any(child.get("type") == "pytest.xfail" for child in case)
        outcomes[name] = (
            "failed" if kinds & {"failure", "error"} else "xfailed" if is_expected
            else "skipped" if "skipped" in kinds else "passed"
        )  # fmt: skip
        seconds[name] = float(case.get("time") or 0)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return DeviceRun(wall, cpu, outcomes, seconds)


def dotted(outcomes: dict[str, str]) -> dict[str, str]:
    """Return outcomes by the names that JUnit files have."""
    names = {}
    for test, outcome in outcomes.items():
        file, *parts = test.split("[", 1)[0].split("::")
        bracket = test[test.index("[") :] if "[" in test else ""
        where = ".".join((file.removesuffix(".py").replace("/", "."), *parts[:-1]))
        names[f"{where}::{parts[-1] if parts else ''}{bracket}"] = outcome
    return names


def estimate(seconds: dict[str, float]) -> float:
    """Return the wall seconds of these tests on `LANES` processes: longest first."""
    loads = [START_SECONDS] * LANES
    for took in sorted(seconds.values(), reverse=True):
        loads[loads.index(min(loads))] += took
    return max(loads)


def measure_device(folder: Path, arguments: argparse.Namespace) -> list[Line]:
    root = (arguments.checkout or ROOT / "suites" / "smoke").resolve()
    named = arguments.file or [path.name for path in sorted(root.glob("test_*.py"))]
    lanes = lanes_on(arguments.device, arguments.processes)
    job = Job(root, arguments.python, tuple(named), lanes)
    cache = {"JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
             "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}  # fmt: skip
    pairs = [
        (by_engine(job, folder / f"logs-{turn}", {}),
         by_pytest(job, folder / f"logs-{turn}"),
         by_engine(job, folder / f"cached-{turn}", cache))
        for turn in range(arguments.repeat)
    ]  # fmt: skip
    wall, cpu, xdist_wall, xdist_cpu, cached = (
        statistics.median(values)
        for values in zip(
            *((a.wall, a.cpu, b.wall, b.cpu, c.wall) for a, b, c in pairs), strict=True
        )
    )
    mine, theirs, other = pairs[-1]
    different = {n for n, o in dotted(mine.outcomes).items() if theirs.outcomes.get(n) != o}
    changed = {name for name, o in mine.outcomes.items() if other.outcomes.get(name) != o}
    for name in sorted(different | changed):
        print(f"{name}: another outcome", file=sys.stderr)
    number, processes = f"{len(mine.outcomes):,} tests", f"`pytest -n {len(lanes)}`"
    return [
        Line(f"{number}, wall", "s", wall, xdist_wall, 0.6 * xdist_wall, f"0.6 x {processes}"),
        Line(f"{number}, CPU", "s", cpu, xdist_cpu, 0.9 * xdist_cpu, f"0.9 x {processes}"),
        Line("outcomes that differ from pytest's", "", len(different), math.nan, 0, "none"),
        Line("wall with one compile cache", "s", cached, math.nan, wall, "the wall without"),
        Line("outcomes that differ with the cache", "", len(changed), math.nan, 0, "none"),
        estimated(mine.seconds),
    ]  # fmt: skip


def estimated(seconds: dict[str, float]) -> Line:
    """Return the estimate for these tests, and what it is made of."""
    bound, longest = sum(seconds.values()) / LANES, max(seconds.values())
    return Line(
        f"estimate: 8 MI300X, {LANES} processes", "s", estimate(seconds), math.nan, math.inf,
        f"{bound:.0f} s are tests, {START_SECONDS:.0f} s the start; the longest test takes "
        f"{longest:.0f} s",
    )  # fmt: skip


def recorded(paths: list[Path]) -> list[Line]:
    """Estimate from the durations that gates wrote down, and say which files they are of."""
    runs = [Results.from_bytes(path.read_bytes(), name=str(path)) for path in paths]
    seconds = {test.test: test.duration_ms / 1000 for run in runs for test in run.tests}
    whole, by_file = sum(seconds.values()), dict[str, float]()
    for test, took in seconds.items():
        file = test.partition("::")[0]
        by_file[file] = by_file.get(file, 0.0) + took
    slowest = [
        Line(f"tests of {file}", "s", took, math.nan, math.inf, f"{took / whole:.0%} of all")
        for file, took in sorted(by_file.items(), key=lambda item: -item[1])[:SHOWN_FILES]
    ]
    return [estimated(seconds), *slowest]


MEASURES = {"schedule": measure, "many": measure_many}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--small", action="store_true", help="a quick look, its figures mean little"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=sorted(MEASURES))
    parser.add_argument("--device", choices=["gpu", "nvidia", "cpu"], help="measure on that alone")
    parser.add_argument("--results", type=Path, action="append", help="estimate from these alone")
    parser.add_argument("--python", type=Path, default=Path(sys.executable))
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--checkout", type=Path, help="a folder with JAX's tests/ and conftest.py")
    parser.add_argument("--file", action="append", help="of it: tests/lax_test.py; repeatable")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--tests", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(many(arguments.child, arguments.tests)))
        return 0
    with tempfile.TemporaryDirectory(prefix="gate-bench-") as folder:
        lines = (
            recorded(arguments.results)
            if arguments.results
            else measure_device(Path(folder), arguments)
            if arguments.device
            else [
                line
                for name, take in MEASURES.items()
                if arguments.only in (None, name)
                for line in take(Path(folder), arguments.repeat, small=arguments.small)
            ]
        )
    if arguments.json:
        print(json.dumps([{**asdict(line), "passed": line.passed} for line in lines], indent=2))
    else:
        print("| | rocwheel | `pytest -n` | at most | |\n| --- | --- | --- | --- | --- |")
        for line in lines:
            mine, other = (
                "" if math.isnan(value) else f"{value:.2f} {line.unit}"
                for value in (line.rocwheel, line.pytest)
            )
            verdict = "pass" if line.passed else "FAIL"
            print(f"| {line.what} | {mine} | {other} | {line.why} | {verdict} |")
    return 0 if arguments.small or all(line.passed for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
