"""Do one thing with many items at once, and have the results in order.

Threads are enough: what takes time (a network, reading, inflating, hashing, compressing) happens
outside Python's lock, and processes would each start with importing all of this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import TypeVar

from rocwheel.host import cgroup

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def each(
    work: Callable[[_Item], _Result], items: Iterable[_Item], /, *, threads: int = 0
) -> list[_Result]:
    """The results of `work` in the order of the items; `threads` is 0 for one per usable CPU.

    Raises the failure of the first item that failed. What has not started when something fails,
    or on Ctrl-C, is not started any more.
    """
    known = list(items)
    width = min(len(known), threads or cgroup.cpus())
    if width <= 1:
        return [work(item) for item in known]
    stopped = threading.Event()

    def guarded(item: _Item) -> _Result:
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
            for failure in filter(None, (future.exception() for future in futures)):
                if not isinstance(failure, CancelledError):
                    raise failure
            return [future.result() for future in futures]
        finally:
            stopped.set()
