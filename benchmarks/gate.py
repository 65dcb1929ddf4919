#!/usr/bin/env python3
"""The gate's engine beside `pytest -n 2` on synthetic suites: makespan, overhead, a crash's cost.

    python3 benchmarks/gate.py [--repeat 3] [--small] [--only schedule|many]

Prints a table for the README and ends with 1 when a limit is broken. Two suites on 2 slots: 40
files with skewed durations, and one whose longest file is the smallest, so that only recorded
durations put it first. The lower bound is half of all test time, or the longest test. Runs
alternate, figures are medians. No JAX is imported: what is measured is the engine, not the tests.
`many` is 2,000 trivial tests against pytest, with the CPU time of all processes, and what the
engine's own process takes for 36,000.
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

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "build"), str(ROOT), str(ROOT / "tests")]

from support import gate  # noqa: E402

from rocwheel.gate.engine.scheduler import Estimates  # noqa: E402
from rocwheel.gate.suite.history import SuiteHistory  # noqa: E402

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


MEASURES = {"schedule": measure, "many": measure_many}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--small", action="store_true", help="a quick look, its figures mean little"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=sorted(MEASURES))
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--tests", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(many(arguments.child, arguments.tests)))
        return 0
    with tempfile.TemporaryDirectory(prefix="gate-bench-") as folder:
        lines = [
            line
            for name, take in MEASURES.items()
            if arguments.only in (None, name)
            for line in take(Path(folder), arguments.repeat, small=arguments.small)
        ]
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
