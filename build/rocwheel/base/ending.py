"""How threads learn that they are to end: each asks before it waits, tries again or goes on.

A signal reaches the main thread alone. It then waits for the threads it started
(`parallel.each`), so these have to learn of it: they finish the request under way, and nothing
after that. A thread without events to heed, such as the main one, is never ended here.
"""

from __future__ import annotations

import threading
import time
from typing import Final

SLICE: Final = 0.1  # seconds between two looks while waiting

_own = threading.local()


def heeded() -> tuple[threading.Event, ...]:
    """Return the events that end this thread."""
    events: tuple[threading.Event, ...] = getattr(_own, "events", ())
    return events


def heed(*events: threading.Event) -> None:
    """Have any of these events end this thread."""
    _own.events = events


def check() -> None:
    """Raise CancelledError when this thread is to end."""
    if any(event.is_set() for event in heeded()):
        from concurrent.futures import CancelledError

        raise CancelledError


def sleep(seconds: float) -> None:
    """Wait. Raises CancelledError as soon as this thread is to end."""
    if not heeded():
        time.sleep(seconds)
        return
    ends = time.monotonic() + seconds
    check()
    while (left := ends - time.monotonic()) > 0:
        heeded()[-1].wait(min(left, SLICE))
        check()
