"""The build record, `build.json`: how, where and how fast a wheel set was made.

It lies beside the manifest and is no part of the set's identity. Durations are milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Final, Literal

from rocwheel.base.values import Count, Sha256, Value
from rocwheel.base.versions import moment

BUILD_RECORD: Final = "build.json"


class TimedAction(Value, frozen=True, kw_only=True):
    """One of Bazel's actions and how long it took."""

    name: str
    milliseconds: Count


class InvocationRecord(Value, frozen=True, kw_only=True, omit_defaults=True):
    """One run of Bazel."""

    command: str  # as a line to paste
    actions_executed: Count
    cache_hits: Count
    bytes_made: Count
    bytes_cached: Count
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    milliseconds: Count
    critical_path_milliseconds: Count
    critical_path: tuple[TimedAction, ...]
    slowest_actions: tuple[TimedAction, ...]
    log: str  # path
    profile: str  # path


class BazelRecord(Value, frozen=True, kw_only=True, omit_defaults=True):
    """The Bazel that built the set, and its runs in order."""

    path: str
    version: str
    invocations: tuple[InvocationRecord, ...]
    programs: Mapping[str, Sha256] = {}  # Bazel and the compiler; in an image, that has them
    # repository -> URL -> digest by algorithm, of all that was fetched into the output base
    fetched: Mapping[str, Mapping[str, Mapping[str, str]]] = {}


class BuilderRecord(Value, frozen=True, kw_only=True):
    """The image a set was built in, and the engine that ran it."""

    reference: str  # as it was asked for
    config: str  # digest of its configuration, which the manifest has too
    digests: tuple[str, ...]  # repository@digest, of the registries it came from
    engine: str
    engine_version: str
    sandbox: str  # what Bazel's sandbox could be there


class FindingRecord(Value, frozen=True, kw_only=True):
    """A warning of `wheel verify` about one of the wheels."""

    rule: str
    severity: str
    message: str


class BuildRecord(Value, frozen=True, kw_only=True):
    """Facts about a build other than its inputs."""

    manifest: Sha256
    started: str  # ISO 8601, UTC
    host: str
    executor: Literal["host", "docker", "podman"]
    builder: BuilderRecord | None = None  # None on the host
    rocm_root: str
    source_root: str
    command_line: str
    bazel: BazelRecord
    milliseconds: Mapping[str, Count]  # by step
    findings: tuple[FindingRecord, ...]
    installed_with: Mapping[str, str] = {}  # client -> version, before the set was published
    schema: Literal[1] = 1

    @property
    def finished(self) -> str:
        """When the last step was done."""
        took = timedelta(milliseconds=sum(self.milliseconds.values()))
        return (moment(self.started) + took).isoformat()
