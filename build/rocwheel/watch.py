"""Take the output of a child process as it comes.

Standard library only: `build/ci_build` uses it before anything is installed.
"""

from __future__ import annotations

import codecs
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from io import RawIOBase
from typing import IO


class Pump(threading.Thread):
    """Takes everything a child prints, to the end, whatever becomes of those who want it.

    A full disk or a terminal that went away must not stop the reading: the child would wait for
    ever for room in its pipe. The first such error is kept (`error`), for who waits for the child.
    """

    def __init__(
        self,
        stream: IO[bytes],
        *,
        keep: int | None,
        sink: RawIOBase | None,
        on_line: Callable[[str], None] | None,
    ) -> None:
        """`keep` is how many last lines `lines` holds, None for all.

        `sink` has no buffer, so that its end cannot fail too.
        """
        super().__init__(daemon=True)
        self.lines: deque[str] = deque(maxlen=keep)
        self.error: Exception | None = None
        self._stream, self._sink, self._on_line = stream, sink, on_line

    def run(self) -> None:
        """Read line by line as it arrives; a carriage return ends a line too."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pending = ""
        with suppress(ValueError, OSError):  # closed under us: the command is being stopped
            while chunk := os.read(self._stream.fileno(), 1 << 16):
                text = decoder.decode(chunk)
                self._try(self._write, text)
                parts = (pending + text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
                *whole, pending = parts
                for line in whole:
                    self._emit(line)
        if pending:
            self._emit(pending)

    def _emit(self, line: str) -> None:
        self.lines.append(line)
        if self._on_line:
            self._try(self._on_line, line)

    def _write(self, text: str) -> None:
        rest = memoryview(text.encode())
        while self._sink and rest:
            rest = rest[self._sink.write(rest) :]

    def _try(self, action: Callable[[str], None], text: str) -> None:
        """Pass text on until that fails for the first time."""
        if self.error is None:
            try:
                action(text)
            except Exception as exc:  # noqa: BLE001 - raised again by who waits
                self.error = exc
