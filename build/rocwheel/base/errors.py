"""The catalogue of failures a user can act on.

Every error says in one line what went wrong (starting with the thing: a path, a URL, a key) and,
as `hint`, in one line what to do. Each direct subclass of `RocwheelError` has an exit code of its
own; 13 says that two wheels differ, 21-30 belong to the states of a gate. Exit code 1 is a bug in
rocwheel, 2 is a command line that click refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Final

# What every command takes for its cache; `--cache-dir` not all of them do.
ANOTHER_CACHE: Final = (
    "name a cache that can be written: ROCWHEEL_CACHE_DIR, or --cache-dir where it was given"
)

DIFFERENT: Final = 13  # the status of a comparison that found a difference: no failure


class RocwheelError(Exception):
    """A failure with a remedy: `str(error)` is what happened, `hint` what to do next."""

    exit_code: ClassVar[int] = 1
    kind: ClassVar[str] = "error"

    def __init_subclass__(cls, *, exit_code: int | None = None, kind: str = "") -> None:
        """Take how a command ends with it, and its name in JSON; a subclass has its base's."""
        cls.exit_code, cls.kind = exit_code or cls.exit_code, kind or cls.kind

    def __init__(self, message: str, *, hint: str = "", detail: str = "") -> None:
        """`detail` is shown before the two lines: the tail of a log, a failed action's stderr."""
        super().__init__(message)
        self.hint = hint
        self.detail = detail

    @property
    def last_line(self) -> str:
        return self.detail.strip().rpartition("\n")[2]


@contextmanager
def named(where: object, kind: type[RocwheelError], *, hint: str) -> Iterator[None]:
    """Turn an OSError about a file into an error with that file's name and a remedy."""
    try:
        yield
    except OSError as exc:
        raise kind(f"{where}: {exc.strerror}", hint=hint) from exc


class ConfigError(RocwheelError, exit_code=3, kind="config"):
    """An option, a path, a YAML file or a family that cannot be right."""


class FetchError(RocwheelError, exit_code=4, kind="fetch"):
    """A ROCm tarball or another download that did not come, or is not what it should be."""


class CommandError(RocwheelError, exit_code=5, kind="command"):
    """A program that rocwheel started failed; `detail` is the end of what it printed."""


class WheelError(RocwheelError, exit_code=6, kind="wheel"):
    """A wheel that a set lacks or has twice, that is malformed or breaks a rule."""


class StoreError(RocwheelError, exit_code=7, kind="store"):
    """Object storage refused, lost or corrupted something."""


class ObjectDiffersError(StoreError):
    """Other bytes are already stored under a name that is written once."""


class ObjectMissingError(StoreError):
    """Nothing is stored under this name."""


class ObjectStaleError(StoreError):
    """An object changed since it was read; read it again."""


class RefusedError(StoreError):
    """The store refused for good what was asked, and did nothing."""


class FullError(RefusedError):
    """The store has no room for what was to be written."""


class HostError(RocwheelError, exit_code=8, kind="host"):
    """This machine lacks something: a program, room on a disk, a permission."""


class PromotionError(RocwheelError, exit_code=9, kind="promotion"):
    """A release that policy, verdicts or the state of the index forbid."""


class RocmError(RocwheelError, exit_code=10, kind="rocm"):
    """A ROCm tree that is incomplete, contradicts itself or is not the one asked for."""


class SourceError(RocwheelError, exit_code=11, kind="source"):
    """A source tree that does not have the layout it should have."""


class BazelError(RocwheelError, exit_code=12, kind="bazel"):
    """A Bazel build that failed or did not leave what it promised."""


class InterruptError(RocwheelError, exit_code=130, kind="interrupted"):
    """SIGINT or SIGTERM ended the run; everything unfinished was removed."""


class Terminated(KeyboardInterrupt):
    """SIGTERM or SIGHUP, sent to this process alone; Ctrl-C goes to its children as well."""
