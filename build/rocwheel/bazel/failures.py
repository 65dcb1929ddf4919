"""Failures that many builds or tests share: recognised by a line of output, shown with a remedy.

The patterns are data: `ci/known_failures.yaml` of builds, `ci/device_errors.yaml` of devices,
`ci/causes.yaml` of what else a night's cell tells of.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from rocwheel.base import yaml_file
from rocwheel.base.console import COLOURS
from rocwheel.base.errors import BazelError
from rocwheel.base.values import Value, replace
from rocwheel.base.yaml_file import FieldError

SHOWN: Final = 320  # characters of a line
# The start of what a compiler, a linker or Bazel calls an error; not a path with the word in it.
_ERROR: Final = re.compile(
    r"(?:^|[\s:])(?:fatal )?error:|^(?:ERROR|FATAL|Traceback)\b", re.IGNORECASE
)


def errors(output: str) -> list[str]:
    """Return the lines that call themselves an error, without colours."""
    return [line for line in COLOURS.sub("", output).splitlines() if _ERROR.search(line)]


class KnownFailure(Value, frozen=True, kw_only=True, rename={"example": "line"}):
    """One kind of failure: the pattern of a line, an example of one, and what to do about it."""

    name: str = ""  # its key in the file
    pattern: re.Pattern[str]
    example: str
    remedy: str
    # whose it is; after a `process` error the process can use its device no more
    cause: Literal["wheels", "process", "machine", "inputs", "store"] = "wheels"

    def __post_init__(self) -> None:
        if not self.pattern.search(self.example):
            raise FieldError("does not match the example", "pattern", hint="correct one of the two")


class _File(Value, frozen=True, kw_only=True):
    schema: Literal[1]
    failures: Mapping[str, KnownFailure]


def load(path: Path) -> tuple[KnownFailure, ...]:
    """Read the patterns. Raises ConfigError, also for one that misses its own example."""
    known = yaml_file.read(path, _File).failures
    return tuple(replace(failure, name=name) for name, failure in known.items())


def recognised(output: str, known: tuple[KnownFailure, ...]) -> tuple[KnownFailure | None, str]:
    """Return the first known failure in the order of `known`, and the line that shows it.

    Without one: the first line that calls itself an error, or "".
    """
    lines = COLOURS.sub("", output).splitlines()
    for failure in known:
        for line in lines:
            if failure.pattern.search(line):
                return failure, line.strip()
    return None, next((line.strip() for line in lines if _ERROR.search(line)), "")


@contextmanager
def explained(known: tuple[KnownFailure, ...]) -> Iterator[None]:
    """Add to a BazelError its first error line, and the remedy where the failure is known."""
    try:
        yield
    except BazelError as exc:
        failure, line = recognised(exc.detail or str(exc), known)
        shown = f"{line[:SHOWN]}…" if len(line) > SHOWN else line
        message = f"{exc}: {shown}" if shown and shown not in str(exc) else str(exc)
        hint = f"{failure.remedy}; {exc.hint}" if failure else exc.hint
        raise BazelError(message, hint=hint, detail=exc.detail) from exc
