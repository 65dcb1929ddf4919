"""Runs a synthetic suite in the engine: files given as text, lanes that are CPUs."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rocwheel.base import home
from rocwheel.base.console import Console
from rocwheel.base.here import Here
from rocwheel.base.process import HostRunner, base_env
from rocwheel.gate.engine.child import WorkerSpec
from rocwheel.gate.engine.loop import TestRunner
from rocwheel.gate.engine.plan import Lane, RunPlan, Snapshot, System, Watcher
from rocwheel.gate.machine.accelerators import Accelerator, Maker
from rocwheel.gate.verdict.judge import judge
from rocwheel.records.verdict import Demand

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocwheel.records.results import Fault, Results, TestResult


@dataclass(frozen=True)
class Run:
    """Results and what they are judged to be."""

    results: Results
    verdict: Fault
    seconds: float

    def __getitem__(self, test: str) -> TestResult:
        return next(item for item in self.results.tests if item.test == test)

    def outcomes(self) -> dict[str, str]:
        return {item.test: item.outcome.value for item in self.results.tests}

    def attempts(self, test: str) -> list[str]:
        return [attempt.outcome.value for attempt in self[test].attempts]


def lanes(count: int, **kwargs) -> tuple[Lane, ...]:
    return tuple(
        Lane(
            name=f"gpu{number}",
            devices=(
                Accelerator(
                    maker=Maker.AMD, index=number, target="gfx942", serial=f"serial{number}"
                ),
            ),
            env={"LANE": str(number)},
            **kwargs,
        )
        for number in range(count)
    )


def write(root: Path, files: Mapping[str, str]) -> tuple[str, ...]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tuple(name for name in files if Path(name).name.startswith("test_"))


def machine(**kwargs) -> System:
    settings = {"clock": time.monotonic, **kwargs}
    return System(starter=HostRunner(base_env(os.environ)), **settings)


class Leaper(Watcher):
    """A clock that leaps over a deadline when a suite says that it hangs.

    A suite says so by a file. That meets a deadline long enough for everything else, on a machine
    however busy. The clock waits for a whole turn of the engine after the file came: what the
    worker wrote before it is known by then, so that the leap falls into what hangs.
    """

    SECONDS = 1_000_000.0

    def __init__(self, root: Path) -> None:
        self._root = root
        self._there: set[Path] = set()  # one turn ago
        self._leapt: set[Path] = set()

    def clock(self) -> float:
        return time.monotonic() + len(self._leapt) * self.SECONDS

    def progress(self, snapshot: Snapshot) -> None:
        del snapshot
        self._leapt |= self._there
        self._there = set(self._root.glob("hangs*"))


def run_hanging(root: Path, files: Mapping[str, str], **kwargs) -> Run:
    """Run a suite of which a test hangs, or several; each makes a file `hangs*` first.

    The deadline of tests is 100 s, by a clock that leaps then; the run has none.
    """
    leaper = Leaper(root)
    settings = {"test_deadline": 100.0, "deadline": float("inf"), **kwargs}
    return run(root, files, watcher=leaper, world=machine(clock=leaper.clock), **settings)


def plan(root: Path, files: tuple[str, ...], **kwargs) -> RunPlan:
    logs = root.parent / f"{root.name}-logs"
    worker = {
        "python": Path(sys.executable),
        "root": root,
        "arguments": ("-c", os.devnull),
        "env": kwargs.pop("env", {}),
        "logs": logs,
        **kwargs.pop("worker", {}),
    }
    settings = {
        "suite": "synthetic",
        "shard": "",
        "suite_files": files,
        "lanes": lanes(1),
        "test_deadline": 100.0,
        "deadline": 500.0,
        "kill_deadline": 60.0,
        "retry_limit": 20,
        **kwargs,
    }
    return RunPlan(files=files, worker=WorkerSpec(**worker), **settings)


def run(
    root: Path,
    files: Mapping[str, str],
    *,
    watcher: Watcher | None = None,
    world: System | None = None,
    must_run: int = 1,
    may_skip: int = 0,
    flaky_budget: int = 0,
    **kwargs,
) -> Run:
    names = write(root, files)
    engine = TestRunner(plan(root, names, **kwargs), world or machine(), watcher or Watcher())
    started = time.monotonic()
    results = engine.run()
    seconds = time.monotonic() - started
    demand = Demand(must_run=must_run, may_skip=may_skip, flaky_budget=flaky_budget)
    return Run(results, judge(results, demand), seconds)


def here(folder: Path, console: Console | None = None, **changes) -> Here:
    """This machine, with folders of a test's own."""
    environ = dict(os.environ)
    settings = {
        "environ": environ,
        "runner": HostRunner(base_env(environ)),
        "cwd": folder,
        "cache": folder / "cache",
        "home": home.find(None),
        "console": console or Console(StringIO(), clock=time.monotonic),
        **changes,
    }
    return Here(**settings)
