"""Results: everything one run of a suite found, test by test. The gate writes them, reports read.

A verdict sums them up in one state. Times are whole milliseconds since the run began, so that the
file is canonical JSON, as every record.
"""

from __future__ import annotations

import enum
import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Count, Value
from rocwheel.records.verdict import Counts, Device, State

SCHEMA: Final = 1
KEPT_FIGURES: Final = 20  # of earlier runs


class Outcome(enum.Enum):
    """How a test, or one attempt at it, ended; the worst first."""

    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    FAILED = "failed"
    FLAKY = "flaky"  # failed, then passed in a fresh process
    NOT_RUN = "not-run"
    XFAILED = "xfailed"
    SKIPPED = "skipped"
    DESELECTED = "deselected"  # by a marker expression or a conftest
    PASSED = "passed"

    @property
    def bad(self) -> bool:
        return self in _BAD


_BAD: Final = frozenset({Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.FAILED})


class Attempt(Value, frozen=True, kw_only=True):
    """One run of one test in one process."""

    outcome: Outcome
    lane: str
    process: Count
    start_ms: Count
    duration_ms: Count
    message: str = ""  # one line
    detail: str = ""  # traceback, or the stacks of all threads
    output: str = ""  # what the test printed; of much, both ends
    left: tuple[str, ...] = ()  # what it left behind in its process, and was put right
    figures: Mapping[str, Count] = msgspec.field(default_factory=dict)  # that it measured


class TestResult(Value, frozen=True, kw_only=True):
    """One test: its outcome, and every attempt that led to it."""

    __test__ = False  # pytest collects classes named Test...

    test: str  # node id
    outcome: Outcome
    attempts: tuple[Attempt, ...] = ()
    reason: str = ""  # of a skip, an expected failure, a test that did not run, a poisoning
    libraries: tuple[str, ...] = ()  # ROCm libraries the test is tagged with
    evidence: tuple[str, ...] = ()  # those of them seen in its process, or in a trace
    line: Count = 0  # in its file, from 1; 0 when unknown
    victims: Count = 0  # tests that failed in its process, because of it, and pass alone
    control: str | msgspec.UnsetType = msgspec.UNSET  # since schema 3, of a failure

    def __post_init__(self) -> None:
        if self.outcome.bad and not self.attempts:
            raise _contradiction(f"{self.test}: {self.outcome.value} without an attempt")

    @property
    def file(self) -> str:
        return self.test.partition("::")[0]

    @property
    def duration_ms(self) -> int:
        return sum(attempt.duration_ms for attempt in self.attempts)

    @property
    def worst(self) -> Attempt | None:
        """The attempt to show first."""
        order = list(Outcome)
        return min(self.attempts, key=lambda item: order.index(item.outcome), default=None)

    @property
    def why(self) -> str:
        """The reason for its outcome, after what a control run says of it."""
        reason = self.reason or (self.worst.message if self.worst else "")
        return f"{self.control}: {reason}" if self.control else reason


class CollectError(Value, frozen=True, kw_only=True):
    """A file whose tests could not be listed."""

    file: str
    message: str
    detail: str = ""
    control: str | msgspec.UnsetType = msgspec.UNSET  # since schema 3

    @property
    def why(self) -> str:
        """The message, after what a control run says of it."""
        return f"{self.control}: {self.message}" if self.control else self.message


class LaneRecord(Value, frozen=True, kw_only=True):
    """One lane of a run: the devices that its worker processes had to themselves."""

    name: str
    devices: tuple[Device, ...]
    lost: str = ""  # why no further process was given these devices


class ProcessRecord(Value, frozen=True, kw_only=True):
    """One worker process, from its start to its end."""

    number: Count
    lane: str
    start_ms: Count
    end_ms: Count
    ended: str  # "exit status 0", "signal 11", "killed: …"
    log: str = ""  # what it printed: a path from the folder of logs
    left: tuple[str, ...] = ()  # processes that it left behind and that were ended
    extra: tuple[str, ...] = ()  # modules it took from the tree of the tests, not from a wheel


class Fault(Value, frozen=True, kw_only=True):
    """Something wrong beyond the outcome of any single test, and the state it means."""

    state: State
    message: str


CUT_SHORT: Final = "cut short by a signal"
# What a control run says of a failure; a colon and more may follow.
NEW: Final = "new"
KNOWN: Final = "also in the released set"
MACHINE: Final = "the machine"
UNSEEN: Final = "not looked at"


class Results(Value, frozen=True, kw_only=True):
    """One run of a suite, or of one shard of it."""

    suite: str
    shard: str  # "2/4", "" for the whole suite
    files: tuple[str, ...]  # of this shard
    suite_files: tuple[str, ...]  # of the whole suite, so that shards can be joined
    tests: tuple[TestResult, ...]
    collect_errors: tuple[CollectError, ...] = ()
    lanes: tuple[LaneRecord, ...] = ()
    processes: tuple[ProcessRecord, ...] = ()
    faults: tuple[Fault, ...] = ()
    # classes that look like tests and that pytest does not collect, files that tests left
    dropped: tuple[str, ...] = ()
    skips: Mapping[str, Count] = msgspec.field(default_factory=dict)  # by entry, `file:line`
    environment: Mapping[str, str] = msgspec.field(default_factory=dict)
    duration_ms: Count = 0
    schema: Literal[1, 2, 3] = 3  # 1 does not say which classes were dropped

    def __post_init__(self) -> None:
        if len({test.test for test in self.tests}) < len(self.tests):
            raise _contradiction("a test is there twice")
        if any(fault.state is State.PASS for fault in self.faults):
            raise _contradiction("a fault that is a pass")
        try:
            shlex.split(self.environment.get("command", ""))
        except ValueError as exc:
            raise _contradiction(f"environment.command: {exc}") from exc

    @property
    def figures(self) -> dict[str, int]:
        """What tests measured, by name: the last attempt of each."""
        return {
            name: number
            for test in self.tests
            for attempt in test.attempts[-1:]
            for name, number in attempt.figures.items()
        }

    @property
    def control(self) -> dict[str, str]:
        """What a control run says of each failure."""
        words = {test.test: test.control for test in self.failures}
        words |= {error.file: error.control for error in self.collect_errors}
        return {name: word for name, word in words.items() if word}

    @property
    def counts(self) -> Counts:
        return Counts(**Counter(test.outcome.name.lower() for test in self.tests))

    @property
    def worst(self) -> dict[str, Any] | None:
        """The test that went worst, a new failure first, for a program; None when none ran."""

        def place(test: TestResult) -> tuple[int, bool]:
            return order.index(test.outcome), not str(test.control).startswith(NEW)

        order = list(Outcome)
        test = min(self.tests, key=place, default=None)
        if test is None:
            return None
        attempt = test.worst
        about: dict[str, Any] = {}
        if attempt:
            figures = {"milliseconds": attempt.duration_ms, **attempt.figures}
            about = {"message": attempt.message, "figures": figures}
        about |= {"control": test.control} if test.control else {}
        return {"test": test.test, "outcome": test.outcome.value, **about}

    @property
    def failures(self) -> tuple[TestResult, ...]:
        """Tests with a bad outcome, in the order in which they first went wrong."""
        bad = [test for test in self.tests if test.outcome.bad]
        return tuple(sorted(bad, key=lambda test: min(a.start_ms for a in test.attempts)))


def _contradiction(what: str) -> ConfigError:
    return ConfigError(what, hint="use the file as rocwheel wrote it")


class LastRun(Value, frozen=True, kw_only=True):
    """The last whole run of a suite on a family and CPython: what the next is compared with."""

    manifest: str
    state: State
    ended: str
    bad: Mapping[str, str]  # test -> how it ended
    figures: Mapping[str, tuple[Count, ...]] = msgspec.field(default_factory=dict)  # newest last
    schema: Literal[1] = 1

    @classmethod
    def of(
        cls, results: Results, state: State, *, ended: str, before: LastRun | None = None
    ) -> LastRun:
        """Return the part of a run that is kept for the next; `before` has earlier figures."""
        figures = dict(before.figures if before else {})
        for name, number in results.figures.items():
            figures[name] = (*figures.get(name, ()), number)[-KEPT_FIGURES:]
        bad = {test.test: test.outcome.value for test in results.failures}
        manifest = results.environment.get("manifest", "")
        return cls(manifest=manifest, state=state, ended=ended, bad=bad, figures=figures)
