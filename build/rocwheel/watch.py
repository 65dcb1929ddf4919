"""Watch a child process: take its output as it comes, and notice when it does nothing any more.

Standard library only: `build/ci_build` uses it before anything is installed.
"""

from __future__ import annotations

import codecs
import os
import select
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from io import RawIOBase
from pathlib import Path
from typing import IO, Final

POLL_SECONDS: Final = 2.0
QUIET_SECONDS: Final = 300.0  # without output and CPU time before `quiet` is called
STUCK_SECONDS: Final = 7200.0  # and after so long it is ended


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
        self.last = time.monotonic()  # when something was printed
        self._stream, self._sink, self._on_line = stream, sink, on_line

    def run(self) -> None:
        """Read line by line as it arrives; a carriage return ends a line too."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pending = ""
        with suppress(ValueError, OSError):  # closed under us: the command is being stopped
            while chunk := os.read(self._stream.fileno(), 1 << 16):
                self.last = time.monotonic()
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


class StuckError(Exception):
    """A child did nothing for too long."""


def wait(
    process: subprocess.Popen[bytes],
    *,
    timeout: float | None,
    last: Callable[[], float],
    quiet: Callable[[float], None],
    quiet_seconds: float = QUIET_SECONDS,
    stuck_seconds: float = STUCK_SECONDS,
) -> int:
    """Wait for a child's end; call `quiet` with the seconds that it has rested.

    A child rests while it neither prints (`last` gives the time of the last output) nor uses CPU
    time; each rest calls `quiet` once. Raises subprocess.TimeoutExpired after `timeout` seconds,
    StuckError after too long a rest.
    """
    end = None if timeout is None else time.monotonic() + timeout
    used, since, reported = -1, time.monotonic(), False
    while True:
        left = POLL_SECONDS if end is None else min(POLL_SECONDS, max(0.0, end - time.monotonic()))
        with suppress(subprocess.TimeoutExpired):
            return end_of(process, min(left, quiet_seconds))
        now = time.monotonic()
        if end is not None and now >= end:
            raise subprocess.TimeoutExpired(process.args, timeout or 0.0)
        ticks = _cpu_ticks(process.pid)
        if ticks != used or last() > since:
            used, since, reported = ticks, now, False
        elif now - since >= stuck_seconds:
            raise StuckError
        elif now - since >= quiet_seconds and not reported:
            reported = True
            quiet(now - since)


def end_of(process: subprocess.Popen[bytes], timeout: float) -> int:
    """Wait as `Popen.wait` does, which sees an end up to 50 ms late where it is given a timeout.

    Raises subprocess.TimeoutExpired after `timeout` seconds.
    """
    try:
        end = os.pidfd_open(process.pid)  # pidfd_open(2)
    except OSError:  # Linux before 5.3, no descriptor is left, or another thread has waited for it
        return subprocess.Popen.wait(process, timeout)
    try:
        poll = select.poll()
        poll.register(end, select.POLLIN)
        if process.returncode is None and not poll.poll(timeout * 1000):
            raise subprocess.TimeoutExpired(process.args, timeout)
    finally:
        os.close(end)
    return subprocess.Popen.wait(process)


def _cpu_ticks(group: int) -> int:
    """CPU time of every process of a group that runs, as /proc counts it (proc_pid_stat(5))."""
    total = 0
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with suppress(OSError, ValueError, IndexError):  # it ended meanwhile
            stat = (process / "stat").read_text(encoding="utf-8", errors="replace")
            fields = stat.rpartition(")")[2].split()
            if int(fields[2]) == group:
                total += int(fields[11]) + int(fields[12]) + int(fields[13]) + int(fields[14])
    return total
