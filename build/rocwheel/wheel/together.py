"""Do one thing with each wheel of a set, on all cores, and have the results in order.

Threads are enough: what takes time (reading, inflating, hashing, compressing, copying) happens
outside Python's lock. Processes would each start with
importing all of this.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0))


def each(
    function: Callable[[_Item], _Result], items: Iterable[_Item], *, at_once: int = 0
) -> list[_Result]:
    """The function's results in the order of the items; `at_once` is 0 for all cores.

    Raises what it raises for the first item that fails; items that have not begun are left out.
    """
    known = list(items)
    width = min(len(known), at_once or cores())
    if width <= 1:
        return [function(item) for item in known]
    with ThreadPoolExecutor(width) as pool:
        try:
            return list(pool.map(function, known))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
