"""The verdict: the result of one suite for one wheel set, on one GPU family and one CPython.

The gate writes it, promotion reads it; it is the only thing the two share. A verdict names the
bytes it is about (the manifest's SHA-256 and every wheel's), never a version. It is stored as
canonical JSON, create-only and numbered, and a file that breaks `schemas/verdict.schema.json`
counts as no verdict.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from packaging.version import InvalidVersion, Version

from rocwheel.base.values import (
    MOST,
    Count,
    NonEmpty,
    Sha256,
    Sha256OrNone,
    Value,
    WheelFile,
    replace,
)

SCHEMA: Final = 2
FIRST_EXIT_CODE: Final = 20

Shard = Annotated[str, Meta(pattern=r"\A([0-9]+/[0-9]+)?\Z")]
Time = Annotated[  # ISO 8601, UTC
    str, Meta(pattern=r"\A[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(Z|\+00:00)\Z")
]


class State(enum.Enum):
    """How a suite ended. Only `PASS` lets a wheel set through; the order is that of exit codes."""

    PASS = "pass"  # noqa: S105 (a state, not a password)
    FLAKY = "flaky"  # everything passed, but more tests needed a retry than the suite allows
    FAIL = "fail"
    CRASH = "crash"
    TIMEOUT = "timeout"
    COLLECT_ERROR = "collect-error"
    NOTHING_RAN = "nothing-ran"
    TOO_FEW_RAN = "too-few-ran"
    NO_RUNNER = "no-runner"
    INFRA = "infra"  # the machine, not the wheels
    NOT_RUN = "not-run"  # never started, cut short, or a shard is missing
    UNCALIBRATED = "uncalibrated"  # of a cell: a family's first set waits for an approval

    @property
    def exit_code(self) -> int:
        """The gate's exit status: 0 for a pass, else 21 to 30; none is `UNCALIBRATED`."""
        return 0 if self is State.PASS else FIRST_EXIT_CODE + list(State).index(self)


# About the machine, or about nothing at all: no word on the wheels.
SILENT: Final = frozenset({State.NO_RUNNER, State.INFRA, State.NOT_RUN})
# No test failed in the last attempt; release policy decides which of these may be released.
PASSED: Final = frozenset({State.PASS, State.FLAKY, State.UNCALIBRATED})


class Counts(Value, frozen=True, kw_only=True):
    """Tests by outcome; each collected test is in exactly one of them."""

    passed: Count = 0
    failed: Count = 0
    crashed: Count = 0
    timed_out: Count = 0
    flaky: Count = 0  # failed, then passed in a fresh process
    skipped: Count = 0
    xfailed: Count = 0  # failed as the suite said it would
    deselected: Count = 0  # never given to pytest's loop
    not_run: Count = 0

    @property
    def collected(self) -> int:
        return sum(msgspec.structs.astuple(self))

    @property
    def ran(self) -> int:
        """The tests that passed, at once or when tried again."""
        return self.passed + self.flaky

    def by_outcome(self) -> dict[str, int]:
        """Return every number under its name."""
        return msgspec.structs.asdict(self)


class Demand(Value, frozen=True, kw_only=True):
    """What a suite demands of its results."""

    must_run: Count  # tests that passed, at once or when tried again
    may_skip: Count = 0
    may_xfail: Count = 0
    may_deselect: Count = 0  # left out by a marker expression or a conftest
    may_lose: Count = 0  # that the last released set had
    flaky_budget: Count = 0
    must_call: tuple[str, ...] = ()  # ROCm libraries that tests must have been seen to call

    def of_part(self, must_run: int = 0) -> Demand:
        """Return what is asked of a part of the suite: not that enough ran, or was called."""
        return replace(self, must_run=must_run, must_call=())

    def shortfalls(self, counts: Counts) -> Iterator[tuple[State, str]]:
        """Say where the counts of a whole suite, or of a shard, fall short of it."""
        if counts.collected == 0:
            yield State.NOTHING_RAN, "no test was collected"
            return
        if counts.ran < self.must_run:
            message = (
                f"tests that passed: {counts.ran}, must: {self.must_run}; "
                f"skipped: {counts.skipped}, expected to fail: {counts.xfailed}"
            )
            yield State.TOO_FEW_RAN, message
        for what, number, allowed in (
            ("skipped", counts.skipped, self.may_skip),
            ("expected to fail", counts.xfailed, self.may_xfail),
            ("deselected", counts.deselected, self.may_deselect),
        ):
            if number > allowed:
                yield State.TOO_FEW_RAN, f"tests {what}: {number}; allowed: {allowed}"
        if counts.flaky > self.flaky_budget:
            message = f"passed only when tried again: {counts.flaky}; allowed: {self.flaky_budget}"
            yield State.FLAKY, message


class Demands(Value, frozen=True, kw_only=True):
    """What a suite demands, by JAX."""

    expected: Demand
    by_jax: Mapping[str, Demand] = msgspec.field(default_factory=dict)  # from a release on

    def of(self, jax: str) -> Demand:
        """Return the demand for one JAX: that of the newest release that is not newer.

        A series after the last one here (0.12 after 0.11) has other tests. As many must pass, and
        what they do besides is not known.
        """
        try:
            version = Version(jax)
        except InvalidVersion:
            return self.expected
        named = [name for name in self.by_jax if Version(name) <= version]
        demand = self.by_jax[max(named, key=Version)] if named else self.expected
        newest = max(map(Version, self.by_jax), default=version)
        if version.release[:2] <= newest.release[:2]:
            return demand
        return replace(demand, may_skip=MOST, may_xfail=MOST, may_deselect=MOST)


class KnownSuite(Value, frozen=True, kw_only=True):
    """A suite as a checkout has it: what must have run, exactly, for its verdict to count."""

    definition: Sha256  # of the suite's file
    skips: Sha256  # of the entries of the skip lists that name the suite
    tests: Sha256OrNone  # of our folder of tests; "" for JAX's own, of the wheels' commit
    selection: str  # pytest marker expression
    pytest: NonEmpty  # version
    demands: Demands
    rocm: Literal["root", "pip"] = "root"  # beside the wheels


class Ran(Value, frozen=True, kw_only=True):
    """What ran, exactly. A verdict that differs from the promoting side's suite counts nothing."""

    definition: Sha256OrNone = ""
    skips: Sha256OrNone = ""
    tests: str = ""  # commit of JAX whose tests ran, or SHA-256 of our folder
    selection: str = ""
    pytest: str = ""
    collected: Sha256OrNone = ""  # of the list of the tests' names; see `ledger.verdicts`
    unofficial: tuple[str, ...] = ()  # why it counts for nothing, though it is shown

    def differences(self, known: KnownSuite, *, jax_commit: str) -> Iterator[str]:
        """Say in what it is not the known suite with the tests of this commit."""
        wanted = {
            "suite file": (self.definition, known.definition),
            "skip list": (self.skips, known.skips),
            "tests": (self.tests, known.tests or jax_commit),
            "selection": (self.selection, known.selection),
            "pytest": (self.pytest, known.pytest),
        }
        for what, (here, there) in wanted.items():
            if here != there:
                yield f"{what} {here[:12] or 'unknown'}, this checkout has {there[:12] or 'none'}"


class Device(Value, frozen=True, kw_only=True):
    """An accelerator the suite ran on."""

    target: NonEmpty  # gfx942; another maker's name for other hardware; "cpu"
    serial: str = ""  # unique id from the driver, "" where there is none
    memory: Count = 0  # bytes, 0 when unknown


class RocmProvided(Value, frozen=True, kw_only=True):
    """The ROCm the gate put beside the wheels, which bring none themselves."""

    origin: Literal["tarball", "path", "pip", "none"]  # "none" for a suite without ROCm
    version: str = ""
    sha256: Sha256OrNone = ""  # of the tarball, or as the manifest has it
    name: str = ""  # base name of the tarball or path, or the requirements given to pip


class Attempts(Value, frozen=True, kw_only=True):
    """A test that ran more than once, with the outcome of every attempt in order."""

    test: NonEmpty  # pytest node id
    outcomes: Annotated[tuple[str, ...], Meta(min_length=2)]


class Verdict(Value, frozen=True, kw_only=True):
    """The result of one suite for one (manifest, family, CPython), as it is stored."""

    manifest: Sha256
    family: Annotated[str, Meta(pattern=r"\A[a-z][0-9a-zA-Z-]*\Z")]
    python: Annotated[str, Meta(pattern=r"\A[0-9]+\.[0-9]+(-ft)?\Z")]  # "3.12", "3.14-ft"
    suite: Annotated[str, Meta(pattern=r"\A[a-z][a-z0-9_]*\Z")]
    state: State
    reason: Annotated[str, Meta(pattern=r"\A[^\n]*\Z")]  # one line; "" for a pass
    counts: Counts
    wheels: Mapping[WheelFile, Sha256]  # file name -> SHA-256 of what was installed
    backend: str  # what jax.default_backend() said: "rocm", "cuda", "cpu"; "" when it never ran
    runner: str  # label of the runner
    host: str
    devices: tuple[Device, ...]
    rocm: RocmProvided
    jax_version: NonEmpty
    started: Time
    ended: Time
    tool: str  # rocwheel's commit, "-dirty" when files differ from it; its version elsewhere
    ran: Ran = Ran()
    first_failure: str = ""  # node id
    attempts: tuple[Attempts, ...] = ()
    reports: Mapping[str, str] = msgspec.field(default_factory=dict)  # by "junit", "html", "json"
    # "2/4"; "" for the whole suite. A shard never passes a set, but may fail it.
    shard: Shard = ""
    also: tuple[State, ...] = ()  # what else was true of the run, that its state would hide
    # What a control run says of each failure; since schema 2.
    control: Mapping[str, str] | msgspec.UnsetType = msgspec.UNSET
    schema: Literal[1, 2] = SCHEMA

    @property
    def failure(self) -> State | None:
        """The failure in it, even if its state is another; None for no failure."""
        no_failure = {State.PASS, State.UNCALIBRATED, *SILENT}
        counts = {
            State.FAIL: self.counts.failed,
            State.CRASH: self.counts.crashed,
            State.TIMEOUT: self.counts.timed_out,
        }
        states = (self.state, *self.also, *(state for state, number in counts.items() if number))
        return next((state for state in states if state not in no_failure), None)
