"""Generators that run ahead in a thread, a bounded number of blocks before their reader.

A stage is a generator. `ReadAhead(blocks)` runs it ahead of its consumer; what it raises is
raised there. Leaving the `with` block stops it wherever it is, so that an error or Ctrl-C in
the last stage ends all of them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Final, final

AHEAD: Final = 8  # blocks; bounds memory
STOP_SECONDS: Final = 5.0


@final
class ReadAhead:
    """A generator that runs ahead in a thread."""

    def __init__(
        self,
        blocks: Generator[bytes, None, None] | Iterator[bytes],
        *,
        name: str,
        cancel: Callable[[], None] | None = None,
    ) -> None:
        """`cancel`, called from another thread, wakes a generator that waits for something."""
        self._blocks = blocks
        self._cancel = cancel
        self._ready: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._ended = False
        self._stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> ReadAhead:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._thread.join(
            STOP_SECONDS
        )  # a daemon: one that hangs in a system call holds up nothing

    def stop(self) -> None:
        """End the stage at its next block, and what it waits for now."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._cancel and self._thread.is_alive():
            self._cancel()

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        with self._changed:
            while not self._ready:
                if self._stopped:
                    raise StopIteration
                if self._ended:
                    if self._error is not None:
                        raise self._error
                    raise StopIteration
                self._changed.wait()
            block = self._ready.popleft()
            self._changed.notify_all()
            return block

    def _run(self) -> None:
        error = None
        try:
            for block in self._blocks:
                if not self._put(block):
                    break
        except BaseException as exc:  # noqa: BLE001 - handed to the thread that reads
            error = exc
        finally:
            close = getattr(self._blocks, "close", None)
            if close:
                close()
            with self._changed:
                self._error, self._ended = error, True
                self._changed.notify_all()

    def _put(self, block: bytes) -> bool:
        with self._changed:
            while len(self._ready) >= AHEAD and not self._stopped:
                self._changed.wait()
            self._ready.append(block)
            self._changed.notify_all()
            return not self._stopped
