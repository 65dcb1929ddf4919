"""The end of a worker held against what it reported: agreement is silent, the rest are faults."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rocwheel.gate.engine.protocol import Bye
from rocwheel.results import Fault
from rocwheel.verdict import State


@dataclass(frozen=True, kw_only=True)
class End:
    """How a worker ended that was running no test."""

    process: str  # "process 3 on gpu0"
    last: str  # the test it ran last, "" when none
    how: str
    status: int  # exit status, negative for a signal
    killed: bool  # by the engine, for a deadline
    ran: Mapping[str, int]  # outcomes the engine heard of
    late: int  # failures it heard of afterwards
    bye: Bye | None  # its own last word

    @property
    def failed(self) -> int:
        return self.ran.get("failed", 0) + self.late


def contradictions(end: End) -> Iterator[Fault]:
    """Yield a bad end, and counts that differ between engine, worker and pytest."""
    last = f", after {end.last}" if end.last else ""
    if end.killed or end.bye is None:
        state = State.TIMEOUT if end.killed else State.CRASH
        yield Fault(state=state, message=f"{end.process} ended badly{last}: {end.how}")
        return
    bad = State.CRASH if end.status < 0 else State.FAIL
    if end.status != int(end.failed > 0) or end.bye.failed != end.failed:
        heard = f"{end.failed} failures heard of, {end.bye.failed} counted there"
        yield Fault(state=bad, message=f"{end.process}: {end.how}{last}, but {heard}")
    elif dict(end.bye.ran) != {name: number for name, number in end.ran.items() if number}:
        heard = f"heard of {_counts(end.ran)}, counted there {_counts(end.bye.ran)}"
        yield Fault(state=bad, message=f"{end.process}: {heard}")
    elif end.bye.pytest_failed and not end.failed:
        heard = f"pytest counted {end.bye.pytest_failed} failures, none was reported"
        yield Fault(state=bad, message=f"{end.process}: {heard}")


def strangers(end: End, backend: str, folder: str) -> Iterator[Fault]:
    """Yield imports from outside of `folder`, and a backend that is not the one meant."""
    if end.bye is None:
        return
    used = end.bye.backends
    if backend and used and backend not in used:
        message = f"{end.process} ran on {', '.join(used)}, not on {backend}"
        yield Fault(state=State.INFRA, message=message)
    for module, path in end.bye.modules.items():
        if folder and not path.startswith(f"{folder}{os.sep}"):
            message = f"{end.process} imported {module} from {path}, not from {folder}"
            yield Fault(state=State.INFRA, message=message)


def _counts(ran: Mapping[Any, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(ran.items())) or "none"
