"""The two pipes to the engine, and text that every report can hold."""

import fcntl
import json
import os
import re
import threading
from typing import Any

HIGH_DESCRIPTOR = 800  # a test that closes the first few hundred descriptors misses ours
LOST_PIPE = 71  # exit status of a process whose pipe a test has closed or replaced
MOST_TEXT = 4096  # characters of one line
MOST_FIGURE = (1 << 53) - 1  # as `rocwheel.base.values.MOST`: what every reader of JSON can hold

# Tests replace what they like, `os.getpid` included: what the worker itself needs it keeps.
_getpid, _write, _exit, _dumps, _fstat = os.getpid, os.write, os._exit, json.dumps, os.fstat
_set_blocking = os.set_blocking
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class EventWriter:
    """JSON lines to the engine; a process that a test forked stays silent.

    What is emitted with `hold` goes out with the next event: one write per test is enough.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = _high(descriptor)
        self._pid = _getpid()
        self._pipe = _fstat(self._descriptor)[1:3]
        self._held = b""
        self._lock = threading.RLock()  # threads of a test emit, too, and handlers of signals

    @property
    def forked(self) -> bool:
        """Return whether this process is a child of the worker and not the worker."""
        return _getpid() != self._pid

    def emit(self, event: str, *, hold: bool = False, **values: Any) -> None:
        if self.forked:
            return
        line = _dumps({"event": event, **values}).encode() + b"\n"
        with self._lock:
            self._held += line
            if not hold:
                self.flush()

    def flush(self) -> None:
        with self._lock:
            if self.forked:
                return
            data, self._held = self._held, b""
            try:
                if _fstat(self._descriptor)[1:3] != self._pipe:
                    _exit(LOST_PIPE)
                while data:
                    data = data[_write(self._descriptor, data) :]
            except OSError:
                _exit(LOST_PIPE)


class CommandReader:
    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(_high(descriptor), "rb")

    def next(self) -> dict[str, Any]:
        """Wait for the next command; the end of the pipe is `end`."""
        try:
            _set_blocking(self._file.fileno(), True)  # noqa: FBT003 - a test may have changed that
            line = self._file.readline()
        except OSError:
            _exit(LOST_PIPE)
        return dict(json.loads(line)) if line else {"op": "end"}


def _high(descriptor: int) -> int:
    """Move a descriptor out of the way of tests that close all low ones."""
    try:
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR)
    except OSError:  # a low limit of open files
        return descriptor
    os.close(descriptor)
    return high


def valid(text: str) -> str:
    """Replace what UTF-8 cannot hold: a lone surrogate of a test must not break the report."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def one_line(text: str) -> str:
    """Return one line that any report can hold; node ids are made so once, here: two stay two."""
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], valid(str(text)))


def readable(text: str) -> str:
    """Return what a test says in one line of a length that a report can show."""
    words = " ".join(str(text).split())
    cut = len(words) > MOST_TEXT
    return one_line(f"{words[:MOST_TEXT]}… ({len(words)} characters)" if cut else words)
