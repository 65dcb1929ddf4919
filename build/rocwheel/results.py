"""Results: everything one run of a suite found, test by test. The gate writes them, reports read.

A verdict is the one line drawn from them. Times are whole milliseconds since the run began, so
that the file is canonical JSON as every other record.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rocwheel.errors import ConfigError
from rocwheel.manifest import canonical_json
from rocwheel.verdict import Counts, Device, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEMA: Final = 1


class Outcome(enum.Enum):
    """How a test, or one attempt at it, ended; the worst first."""

    CRASHED = "crashed"
    TIMED_OUT = "timed-out"
    FAILED = "failed"
    FLAKY = "flaky"  # failed, then passed in a fresh process
    NOT_RUN = "not-run"
    XFAILED = "xfailed"
    SKIPPED = "skipped"
    PASSED = "passed"

    @property
    def bad(self) -> bool:
        return self in _BAD


_BAD: Final = frozenset({Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.FAILED})


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One run of one test in one process."""

    outcome: Outcome
    lane: str
    process: int
    start_ms: int
    duration_ms: int
    message: str = ""  # one line
    detail: str = ""  # traceback, or the stacks of all threads
    output: str = ""  # the end of what the test printed


@dataclass(frozen=True, kw_only=True)
class TestResult:
    """One test: its outcome, and every attempt that led to it."""

    __test__ = False  # pytest collects classes named Test...

    test: str  # node id
    outcome: Outcome
    attempts: tuple[Attempt, ...] = ()
    reason: str = ""  # of a skip, an expected failure, a test that did not run, a poisoning
    libraries: tuple[str, ...] = ()  # ROCm libraries the test is tagged with
    evidence: tuple[str, ...] = ()  # those of them seen in its process, or in a trace
    line: int = 0  # in its file, from 1; 0 when unknown

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


@dataclass(frozen=True, kw_only=True)
class CollectError:
    """A file whose tests could not be listed."""

    file: str
    message: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class LaneRecord:
    """One place tests ran: the devices its processes had to themselves."""

    name: str
    devices: tuple[Device, ...]
    lost: str = ""  # why no further process was given these devices


@dataclass(frozen=True, kw_only=True)
class ProcessRecord:
    """One worker process, from its start to its end."""

    number: int
    lane: str
    start_ms: int
    end_ms: int
    ended: str  # "exit status 0", "signal 11", "killed: …"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """Something wrong that no single test's outcome says, and the state it means."""

    state: State
    message: str


@dataclass(frozen=True, kw_only=True)
class Results:
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
    skips: Mapping[str, int] = field(default_factory=dict)  # entry's `file:line` -> tests it met
    environment: Mapping[str, str] = field(default_factory=dict)
    duration_ms: int = 0
    schema: int = field(default=SCHEMA)

    @property
    def counts(self) -> Counts:
        number = dict.fromkeys(Outcome, 0)
        for test in self.tests:
            number[test.outcome] += 1
        return Counts(
            passed=number[Outcome.PASSED],
            failed=number[Outcome.FAILED],
            crashed=number[Outcome.CRASHED],
            timed_out=number[Outcome.TIMED_OUT],
            flaky=number[Outcome.FLAKY],
            skipped=number[Outcome.SKIPPED],
            xfailed=number[Outcome.XFAILED],
            not_run=number[Outcome.NOT_RUN],
        )

    @property
    def failures(self) -> tuple[TestResult, ...]:
        """Tests with a bad outcome, in the order in which they first went wrong."""
        bad = [test for test in self.tests if test.outcome.bad]
        return tuple(sorted(bad, key=lambda test: min(a.start_ms for a in test.attempts)))

    def to_bytes(self) -> bytes:
        """Canonical JSON, as it is stored."""
        return canonical_json(_plain(dataclasses.asdict(self)))

    @classmethod
    def from_bytes(cls, data: bytes, *, name: str) -> Results:
        """Parse; `name` is what errors call it. Raises ConfigError when it is not one of ours."""
        try:
            document = json.loads(data)
            return cls(
                **{
                    **{key: _frozen(value) for key, value in document.items()},
                    "tests": tuple(_test(item) for item in document["tests"]),
                    "collect_errors": _all(CollectError, document["collect_errors"]),
                    "lanes": tuple(
                        LaneRecord(**{**item, "devices": _all(Device, item["devices"])})
                        for item in document["lanes"]
                    ),
                    "processes": _all(ProcessRecord, document["processes"]),
                    "faults": tuple(
                        Fault(state=State(item["state"]), message=item["message"])
                        for item in document["faults"]
                    ),
                }
            )
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            raise ConfigError(
                f"{name}: not results of a suite: {exc}", hint="use a rocwheel of the same version"
            ) from exc


def _test(item: Mapping[str, Any]) -> TestResult:
    attempts = tuple(
        Attempt(**{**attempt, "outcome": Outcome(attempt["outcome"])})
        for attempt in item["attempts"]
    )
    frozen = {key: _frozen(value) for key, value in item.items()}
    return TestResult(**{**frozen, "outcome": Outcome(item["outcome"]), "attempts": attempts})


def _all(cls: Any, items: Iterable[Mapping[str, Any]]) -> tuple[Any, ...]:
    return tuple(cls(**item) for item in items)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
