"""Do one thing with many items at once, and have the results in order.

Threads are enough: what takes time (a network, reading, inflating, hashing, compressing) happens
outside Python's lock, and processes would each start with importing all of this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from rocwheel.base import ending
from rocwheel.base.host import cgroup

if TYPE_CHECKING:  # as long to import as a wheel of 130 MB takes to copy
    from concurrent.futures import Future

LOOK: Final = 0.5  # seconds

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def each(
    work: Callable[[_Item], _Result], items: Iterable[_Item], /, *, threads: int = 0
) -> list[_Result]:
    """Return the results of `work` in the items' order; `threads` 0 is one per usable CPU.

    Raises the failure of the first item that failed. After a failure, or Ctrl-C, no further item is
    started; on Ctrl-C the started ones end soon (`base.ending`).
    """
    known = list(items)
    width = min(len(known), threads or cgroup.cpus()) if len(known) > 1 else 1
    if width <= 1:
        return [work(item) for item in known]
    from concurrent.futures import CancelledError, ThreadPoolExecutor

    stopped, ended = threading.Event(), threading.Event()
    outer = ending.heeded()

    def guarded(item: _Item) -> _Result:
        ending.heed(*outer, ended)
        if stopped.is_set():
            raise CancelledError
        try:
            return work(item)
        except BaseException:
            stopped.set()
            raise

    with ThreadPoolExecutor(width) as pool:
        try:
            futures = [pool.submit(guarded, item) for item in known]
            for failure in filter(None, map(_failure, futures)):
                if not isinstance(failure, CancelledError):
                    raise failure
            return [future.result() for future in futures]
        except KeyboardInterrupt:
            ended.set()
            raise
        finally:
            stopped.set()


def _failure(future: Future[Any]) -> BaseException | None:
    """Wait for a future; return what it failed with.

    A signal that comes between Python's last look for one and the wait for a lock wakes no thread:
    so no wait is for ever.
    """
    from concurrent.futures import TimeoutError as NotYetError  # the built-in one, from 3.11 on

    while True:
        with suppress(NotYetError):
            return future.exception(timeout=LOOK)
