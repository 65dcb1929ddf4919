"""The messages of a worker, parsed strictly: what is not one of them breaks the protocol.

A test runs in the same process as the worker and can write to its pipe, so every message is
checked: `parse` refuses another form, the engine a message at the wrong time, such as a second
outcome of one test. Text is made printable here, once, for every report.
"""

import re
from typing import Annotated, Final, Literal

import msgspec

from rocwheel.base.values import Count

LINE_LIMIT: Final = 64 << 20  # bytes of one message: the node ids of a very large file
SHOWN: Final = 200  # characters of a broken message
Seconds = Annotated[float, msgspec.Meta(le=1e9)]  # thirty years

# C0 and C1 controls, and what some readers take for a line's end; tab and newline stay in texts
_CONTROLS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufffe\uffff]")
_LINES: Final = re.compile(r"[\t\n]+")


class BrokenProtocolError(Exception):
    """The pipe of a worker has bytes that no worker writes."""


class _Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True,
             tag_field="event"):  # fmt: skip
    """What every message has: its tag."""


class Ready(_Event, tag="ready", frozen=True, kw_only=True):
    pid: Count
    pytest: str


class Collecting(_Event, tag="collecting", frozen=True, kw_only=True):
    file: str


class Collected(_Event, tag="collected", frozen=True, kw_only=True):
    file: str
    tests: tuple[str, ...]
    deselected: tuple[str, ...]
    lines: tuple[Count, ...]
    tags: dict[str, tuple[str, ...]]
    error: str
    skipped: str
    dropped: tuple[str, ...]  # what pytest says that it does not collect, such as a class
    seconds: Seconds


class Started(_Event, tag="start", frozen=True, kw_only=True):
    test: str
    offset: Count  # of the log


class Finished(_Event, tag="finish", frozen=True, kw_only=True):
    test: str
    batch: Count
    offset: Count
    outcome: Literal["passed", "failed", "skipped", "xfailed"]
    message: str
    detail: str
    seconds: Seconds
    evidence: tuple[str, ...]
    left: tuple[str, ...]
    exits: bool = False  # whether it registered what runs at the process's end
    figures: dict[str, Count] = {}  # that it measured: pytest's `record_property`
    going: bool  # whether the session goes on


class Late(_Event, tag="late", frozen=True, kw_only=True):
    """A fixture failed after its test was reported."""

    test: str
    message: str


class Stray(_Event, tag="stray", frozen=True, kw_only=True):
    """Something that an earlier test left running failed; "" for a fixture of the session."""

    test: str
    message: str


class Bye(_Event, tag="bye", frozen=True, kw_only=True):
    """All is over, what runs at the process's end included: what it counted and loaded."""

    failed: Count
    modules: dict[str, str]
    backends: tuple[str, ...]
    extra: tuple[str, ...]  # modules that came from the tree of the tests, not from a wheel


Event = Ready | Collecting | Collected | Started | Finished | Late | Stray | Bye
_DECODER: Final = msgspec.json.Decoder(Event)


def parse(line: bytes) -> Event:
    try:
        event: Event = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        shown = one_line(line[:SHOWN].decode(errors="backslashreplace"))
        raise BrokenProtocolError(f"wrote {shown!r}: {exc}") from exc
    if isinstance(event, Collected):
        if len(event.lines) != len(event.tests):
            raise BrokenProtocolError(f"wrote {len(event.lines)} lines of {len(event.tests)} tests")
        if any(map(_CONTROLS.search, (*event.tests, *event.deselected))):
            raise BrokenProtocolError("wrote control characters in a node id")
    return event


def printable(text: str) -> str:
    """Return text without control characters, as every report can hold it."""
    return _CONTROLS.sub(lambda match: ascii(match[0])[1:-1], text)


def one_line(text: str) -> str:
    return printable(_LINES.sub(" ", text)).strip()
