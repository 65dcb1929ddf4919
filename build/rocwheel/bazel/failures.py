"""Failures that many builds share: recognised by a line of their output, told with the remedy.

The patterns are data, `ci/known_failures.yaml`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocwheel import located_yaml
from rocwheel.errors import BazelError
from rocwheel.located_yaml import Field

SCHEMA: Final = 1
SHOWN: Final = 160  # characters of a line
# The start of what a compiler, a linker or Bazel calls an error; not a path with the word in it.
_ERROR: Final = re.compile(
    r"(?:^|[\s:])(?:fatal )?error:|^(?:ERROR|FATAL|Traceback)\b", re.IGNORECASE
)


@dataclass(frozen=True, kw_only=True)
class KnownFailure:
    """One kind of failure."""

    name: str
    pattern: re.Pattern[str]
    example: str
    remedy: str


def load(path: Path) -> tuple[KnownFailure, ...]:
    """Read the patterns. Raises ConfigError, also for one that misses its own example."""
    fields = located_yaml.load(path).record(required=("schema", "failures"))
    fields["schema"].schema(SCHEMA)
    return tuple(_known(name, entry) for name, entry in fields["failures"].mapping().items())


def _known(name: str, entry: Field) -> KnownFailure:
    fields = entry.record(required=("pattern", "line", "remedy"))
    text = fields["pattern"].string()
    try:
        pattern = re.compile(text)
    except re.error as exc:
        fields["pattern"].fail(f"{text!r}: {exc}", hint="write a regular expression")
    example = fields["line"].string()
    if not pattern.search(example):
        fields["pattern"].fail("does not match the example", hint="mend one of the two")
    return KnownFailure(
        name=name, pattern=pattern, example=example, remedy=fields["remedy"].string()
    )


def recognised(
    output: str, known: tuple[KnownFailure, ...]
) -> tuple[KnownFailure, str] | tuple[None, str]:
    """The first known failure in the order of `known`, and the line that shows it.

    Without one: the first line that calls itself an error, or "".
    """
    lines = output.splitlines()
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
