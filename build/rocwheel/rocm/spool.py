"""A download on its way: what has come is kept on disk until the tree is complete."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING

from rocwheel.web import BLOCK, Remote

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Spool:
    """The file `<key>.part` and, beside it, what it is a part of.

    One writer; the caller holds the lock of the key. Raises OSError when the disk refuses.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._about = path.with_suffix(".json")
        self.remote = self._read_about()
        # Unbuffered, and not a bare descriptor: a thread that is late finds it closed.
        self._file = path.open("a+b", buffering=0)
        if self.remote is None:
            self._file.truncate(0)
        self.size = self._file.seek(0, os.SEEK_END)

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
        self.size = self._file.truncate(count)

    def replay(self) -> Iterator[bytes]:
        """What is there already; nothing may be written meanwhile."""
        end, offset = self.size, 0
        while offset < end:
            block = os.pread(self._file.fileno(), min(BLOCK, end - offset), offset)
            if not block:
                raise OSError(5, "read less than was written", str(self._path))
            offset += len(block)
            yield block

    def write(self, block: bytes) -> None:
        rest = memoryview(block)
        while rest:
            rest = rest[self._file.write(rest) :]
        self.size += len(block)

    def close(self) -> None:
        self._file.close()

    def discard(self) -> None:
        """Remove everything: it is unpacked, or of no use."""
        self._path.unlink(missing_ok=True)
        self._about.unlink(missing_ok=True)
