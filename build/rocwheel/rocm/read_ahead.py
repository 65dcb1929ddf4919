"""Generators that run ahead in a thread, a bounded number of blocks before their reader.

A stage is a generator. `ReadAhead(blocks)` runs it ahead of its consumer; what it raises is
raised there. Leaving the `with` block stops it wherever it is, so that an error or Ctrl-C in
the last stage ends all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from queue import SimpleQueue
from typing import Final, TypeAlias, final

Blocks: TypeAlias = Generator[bytes, None, None]
AHEAD: Final = 8  # blocks; bounds memory
STOP_SECONDS: Final = 5.0


@final
class ReadAhead:
    """A generator that runs ahead in a thread."""

    def __init__(
        self, blocks: Blocks, *, name: str, cancel: Callable[[], None] | None = None
    ) -> None:
        """`cancel`, called from another thread, wakes a generator that waits for something."""
        self._blocks = blocks
        self._cancel = cancel
        self._ready = SimpleQueue[bytes | BaseException]()  # how it ended comes last
        self._room = threading.Semaphore(AHEAD)
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> ReadAhead:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        # a daemon: one that hangs in a system call holds up nothing
        self._thread.join(STOP_SECONDS)

    def stop(self) -> None:
        """End the stage at its next block, and wake it and its reader."""
        self._stopped = True
        self._room.release()
        self._ready.put(StopIteration())
        if self._cancel and self._thread.is_alive():
            self._cancel()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        item = self._ready.get()
        if isinstance(item, BaseException):
            self._ready.put(item)  # for who asks again
            raise item
        self._room.release()
        return item

    def _run(self) -> None:
        end: BaseException = StopIteration()
        try:
            with closing(self._blocks):
                for block in self._blocks:
                    self._room.acquire()
                    if self._stopped:
                        break
                    self._ready.put(block)
        except BaseException as exc:  # noqa: BLE001 - handed to the thread that reads
            end = exc
        self._ready.put(end)
