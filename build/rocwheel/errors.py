"""The catalogue of failures a user can act on.

Every error says in one line what went wrong (starting with the thing: a path, a URL, a key) and,
as `hint`, in one line what to do. Each direct subclass of `RocwheelError` has an exit code of its
own; 13 says that two wheels differ, 20-39 belong to the states of a gate. Exit code 1 is a bug in
rocwheel, 2 is a command line that click refuses.
"""

from __future__ import annotations

from typing import ClassVar, Final

# What every command takes for its cache; `--cache-dir` not all of them do.
ANOTHER_CACHE: Final = (
    "name a cache that can be written: ROCWHEEL_CACHE_DIR, or --cache-dir where it was given"
)


class RocwheelError(Exception):
    """A failure with a remedy: `str(error)` is what happened, `hint` what to do next."""

    exit_code: ClassVar[int] = 1
    kind: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "", detail: str = "") -> None:
        """`detail` is shown before the two lines: the tail of a log, a failed action's stderr."""
        super().__init__(message)
        self.hint = hint
        self.detail = detail


class ConfigError(RocwheelError):
    """An option, a path, a YAML file or a family that cannot be right."""

    exit_code = 3
    kind = "config"


class FetchError(RocwheelError):
    """A ROCm tarball or another download that could not be had, or is not what it should be."""

    exit_code = 4
    kind = "fetch"


class CommandError(RocwheelError):
    """A program that rocwheel started failed."""

    exit_code = 5
    kind = "command"


class WheelError(RocwheelError):
    """A wheel that a set lacks or has twice, that is malformed or breaks a rule."""

    exit_code = 6
    kind = "wheel"


class StoreError(RocwheelError):
    """Object storage refused, lost or corrupted something."""

    exit_code = 7
    kind = "store"


class ObjectDiffersError(StoreError):
    """Other bytes are already stored under a name that is written once."""


class ObjectMissingError(StoreError):
    """Nothing is stored under this name."""


class ObjectStaleError(StoreError):
    """An object changed since it was read; read it again."""


class RefusedError(StoreError):
    """The store refused for good what was asked, and did nothing."""


class HostError(RocwheelError):
    """This machine lacks something: a program, room on a disk, a permission."""

    exit_code = 8
    kind = "host"


class PromotionError(RocwheelError):
    """A release that policy, verdicts or the state of the index forbid."""

    exit_code = 9
    kind = "promotion"


class RocmError(RocwheelError):
    """A ROCm tree that is incomplete, contradicts itself or is not the one asked for."""

    exit_code = 10
    kind = "rocm"


class SourceError(RocwheelError):
    """A source tree that does not have the layout it should have."""

    exit_code = 11
    kind = "source"


class BazelError(RocwheelError):
    """A Bazel build that failed or did not leave what it promised."""

    exit_code = 12
    kind = "bazel"


class InterruptError(RocwheelError):
    """SIGINT or SIGTERM ended the run; everything unfinished was removed."""

    exit_code = 130
    kind = "interrupted"


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, which only this process got; of a Ctrl-C a terminal tells its children."""
