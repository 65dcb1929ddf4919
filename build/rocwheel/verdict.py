"""The verdict: what one suite said about one wheel set, on one GPU family and one CPython.

The gate writes it, promotion reads it; it is the only thing the two share. A verdict names the
bytes it speaks of (the manifest's SHA-256 and every wheel's), never a version. It is stored as
canonical JSON, create-only and numbered, and a file that breaks `schemas/verdict.schema.json`
counts as no verdict.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rocwheel.errors import ConfigError
from rocwheel.manifest import canonical_json, validated

if TYPE_CHECKING:
    from collections.abc import Mapping

SCHEMA: Final = 1
FIRST_EXIT_CODE: Final = 20


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

    @property
    def exit_code(self) -> int:
        """The gate's exit status: 0 for `PASS`, otherwise one of 21 to 30, each state its own."""
        return 0 if self is State.PASS else FIRST_EXIT_CODE + list(State).index(self)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Tests by outcome; each collected test is in exactly one of them."""

    passed: int = 0
    failed: int = 0
    crashed: int = 0
    timed_out: int = 0
    flaky: int = 0  # failed, then passed in a fresh process
    skipped: int = 0
    xfailed: int = 0  # failed as the suite said it would
    not_run: int = 0

    @property
    def ran(self) -> int:
        """Tests that really ran to an outcome."""
        return self.collected - self.skipped - self.not_run

    @property
    def collected(self) -> int:
        return sum(dataclasses.astuple(self))


@dataclass(frozen=True, kw_only=True)
class Device:
    """An accelerator the suite ran on."""

    target: str  # gfx942; another maker's name for other hardware; "cpu"
    serial: str = ""  # unique id from the driver, "" where there is none
    memory: int = 0  # bytes, 0 when unknown


@dataclass(frozen=True, kw_only=True)
class RocmBrought:
    """The ROCm the gate put beside the wheels, which bring none themselves."""

    origin: str  # "tarball", "path", "pip", or "none" for a suite without ROCm
    version: str = ""
    sha256: str = ""  # of the tarball
    name: str = ""  # base name of the tarball or path, or the requirements given to pip


@dataclass(frozen=True, kw_only=True)
class Attempts:
    """A test that ran more than once, with the outcome of every attempt in order."""

    test: str  # pytest node id
    outcomes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One suite's word on one (manifest, family, CPython)."""

    manifest: str  # SHA-256
    family: str
    python: str  # "3.12", "3.14-ft"
    suite: str
    state: State
    reason: str  # one line; "" for a pass
    counts: Counts
    wheels: Mapping[str, str]  # file name -> SHA-256 of what was installed
    backend: str  # what jax.default_backend() said: "rocm", "cuda", "cpu"; "" when it never ran
    runner: str  # label of the runner
    host: str
    devices: tuple[Device, ...]
    rocm: RocmBrought
    jax_version: str
    started: str  # ISO 8601, UTC
    ended: str
    tool: str  # rocwheel's version or commit
    first_failure: str = ""  # node id
    attempts: tuple[Attempts, ...] = ()
    reports: Mapping[str, str] = field(default_factory=dict)  # "junit", "html", "json" -> key
    shard: str = ""  # "2/4"; "" for the whole suite, which alone counts for a release
    schema: int = field(default=SCHEMA)

    def to_bytes(self) -> bytes:
        """Canonical JSON, as it is stored."""
        return canonical_json({**dataclasses.asdict(self), "state": self.state.value})

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @classmethod
    def from_bytes(cls, data: bytes, *, name: str) -> Verdict:
        """Parse and validate; `name` is what errors call it. Raises ConfigError."""
        document = validated(data, schema="verdict", name=name)
        try:
            return cls(
                **{
                    **document,
                    "state": State(document["state"]),
                    "counts": Counts(**document["counts"]),
                    "devices": tuple(Device(**item) for item in document["devices"]),
                    "rocm": RocmBrought(**document["rocm"]),
                    "attempts": tuple(_attempts(item) for item in document["attempts"]),
                }
            )
        except TypeError as exc:
            raise ConfigError(f"{name}: {exc}", hint="use a rocwheel of the same version") from exc


def _attempts(item: Mapping[str, Any]) -> Attempts:
    return Attempts(test=item["test"], outcomes=tuple(item["outcomes"]))
