"""The end of a worker held against what it reported: agreement is silent, the rest are faults."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rocwheel.results import Fault
from rocwheel.verdict import State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, kw_only=True)
class End:
    """How a worker ended that was running no test."""

    process: str  # "process 3 on gpu0"
    last: str  # the test it ran last, "" when none
    how: str
    status: int  # exit status, negative for a signal
    killed: bool  # by the engine, for a deadline
    failed: int  # failures the engine heard of
    bye: Mapping[str, Any] | None  # its own last word


def contradictions(end: End) -> Iterator[Fault]:
    """A bad end, or a count of failures that differs from the one that was heard."""
    last = f", after {end.last}" if end.last else ""
    if end.killed or end.bye is None:
        state = State.TIMEOUT if end.killed else State.CRASH
        yield Fault(state=state, message=f"{end.process} ended badly{last}: {end.how}")
    elif end.status != int(end.failed > 0) or end.bye["failed"] != end.failed:
        state = State.CRASH if end.status < 0 else State.FAIL
        heard = f"{end.failed} failures heard of, {end.bye['failed']} counted there"
        yield Fault(state=state, message=f"{end.process}: {end.how}{last}, but {heard}")


def strangers(end: End, backend: str, folder: str) -> Iterator[Fault]:
    """Imports that are not what was installed in `folder`, a backend that is not the one meant."""
    if end.bye is None:
        return
    used = end.bye["backends"]
    if backend and used and backend not in used:
        message = f"{end.process} ran on {', '.join(used)}, not on {backend}"
        yield Fault(state=State.INFRA, message=message)
    for module, path in end.bye["modules"].items():
        if folder and not path.startswith(f"{folder}{os.sep}"):
            message = f"{end.process} imported {module} from {path}, not from {folder}"
            yield Fault(state=State.INFRA, message=message)
