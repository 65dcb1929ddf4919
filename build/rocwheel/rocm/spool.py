"""A download on its way: what has come is kept on disk until the tree is complete.

It is written past the page cache (O_DIRECT) where the file system can do that: nobody reads it
unless the run is cut, and filling the page cache with it costs as much as a quarter of unpacking.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import mmap
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from rocwheel.download import BLOCK, Remote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ALIGNED: Final = 4096  # bytes; O_DIRECT wants memory, place and length in such steps
BUFFER: Final = 1 << 20


class Spool:
    """The file `<key>.part` and, beside it, what it is a part of.

    One writer; the caller holds the lock of the key. Raises OSError when the disk refuses. A
    killed run loses the last `BUFFER` bytes, one that is closed loses nothing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._about = path.with_suffix(".json")
        self.remote = self._read_about()
        # Unbuffered, and not a bare descriptor: a thread that is late finds it closed.
        self._file = path.open("a+b", buffering=0)
        self._buffer = mmap.mmap(-1, BUFFER)  # a mapping is aligned
        self._view = memoryview(self._buffer)
        self._held = 0  # bytes in the buffer
        if self.remote is None:
            self._file.truncate(0)
        self._written = self._file.seek(0, os.SEEK_END)

    @property
    def size(self) -> int:
        """Bytes that have come, from the first one on."""
        return self._written + self._held

    def _read_about(self) -> Remote | None:
        try:
            return Remote(**json.loads(self._about.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def begin(self, remote: Remote) -> None:
        """Start over: from now on this is a part of `remote`."""
        self.truncate(0)
        self._about.write_text(json.dumps(dataclasses.asdict(remote)), encoding="utf-8")
        self.remote = remote

    def truncate(self, count: int) -> None:
        """Forget all but the first `count` bytes of what an earlier run left."""
        self._held = 0
        self._written = self._file.truncate(count)

    def replay(self) -> Iterator[bytes]:
        """What is there already; nothing may be written meanwhile."""
        offset = 0
        while offset < self._written:
            block = os.pread(self._file.fileno(), min(BLOCK, self._written - offset), offset)
            if not block:
                raise OSError(errno.EIO, "holds less than was written", str(self._path))
            offset += len(block)
            yield block

    def write(self, block: bytes) -> None:
        rest = memoryview(block)
        while rest:
            # The first write ends on a boundary, so that all further ones are aligned.
            room = BUFFER - self._written % ALIGNED - self._held
            part = rest[:room]
            self._view[self._held : self._held + len(part)] = part
            self._held += len(part)
            rest = rest[len(part) :]
            if len(part) == room:
                self._flush()

    def _flush(self) -> None:
        """Write what is held: past the page cache if it lies aligned, else the ordinary way."""
        while self._held:
            direct = self._held % ALIGNED == 0 and self._written % ALIGNED == 0
            direct = self._set_direct(wanted=direct)
            try:
                count = self._file.write(self._view[: self._held])
            except OSError as exc:
                if exc.errno != errno.EINVAL or not direct:
                    raise
                self._direct = False  # this file system only says so now
                continue
            self._view[: self._held - count] = self._view[count : self._held]
            self._held -= count
            self._written += count

    _direct = hasattr(os, "O_DIRECT")

    def _set_direct(self, *, wanted: bool) -> bool:
        """Switch O_DIRECT for this file; whether it is on now."""
        wanted = wanted and self._direct
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        changed = flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT
        if changed != flags:
            try:
                fcntl.fcntl(self._file, fcntl.F_SETFL, changed)
            except OSError:
                self._direct = wanted = False
        return wanted

    def close(self) -> None:
        """Keep what has come, as far as the disk takes it."""
        if not self._file.closed:
            with suppress(OSError):
                self._flush()
            self._file.close()
            self._view.release()
            self._buffer.close()

    def discard(self) -> None:
        """Remove everything: it is unpacked, or of no use."""
        self._held = 0
        self._path.unlink(missing_ok=True)
        self._about.unlink(missing_ok=True)
