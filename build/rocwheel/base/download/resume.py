"""One file as a stream of blocks that survives cuts, in this run and in the next.

A cut download continues where it was cut (RFC 9110, ranges and If-Range) when the server says
that the file is still the same.
"""

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, TypeVar

from msgspec import structs

from rocwheel.base import files
from rocwheel.base.console import size
from rocwheel.base.download.client import (
    BLOCK,
    Answer,
    Client,
    DownloadError,
    Fingerprint,
    LostError,
)
from rocwheel.base.download.urls import without_secrets
from rocwheel.base.errors import FetchError, RocmError

T = TypeVar("T")
PROGRESS: Final = 1 << 20  # bytes after which the failure count restarts
RESTARTS: Final = 3  # when the file at the source is replaced while it is fetched


class ChangedError(Exception):
    """The file at the source is another one than when its download began."""


class WrongBytesError(FetchError):
    """What came is damaged or not the file it should be: nothing of it is worth keeping."""


class Part:
    """The part of a download that is on disk: `<name>.part` and, beside it, what it is a part of.

    One writer; the caller holds a lock. Raises OSError when the disk refuses.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._about = path.with_suffix(".json")
        self.known: Fingerprint | None = None
        with suppress(OSError, ValueError, TypeError):
            self.known = Fingerprint(**json.loads(self._about.read_bytes()))
        # Unbuffered, and not a bare descriptor: a thread that is late finds it closed.
        self._file = path.open("a+b", buffering=0)
        if self.known is None:
            self._file.truncate(0)
        self.size = self._file.seek(0, os.SEEK_END)  # bytes that have come, from the first one on

    def begin(self, known: Fingerprint) -> None:
        """Start over: from now on this is a part of `known`."""
        self.truncate(0)
        files.write_json(self._about, structs.asdict(known))
        self.known = known

    def truncate(self, count: int) -> None:
        """Forget all but the first `count` bytes of what an earlier run left."""
        self.size = self._file.truncate(count)

    def replay(self) -> Iterator[bytes]:
        """Yield what is there already; nothing may be written meanwhile."""
        offset, end = 0, self.size
        while offset < end:
            block = os.pread(self._file.fileno(), min(BLOCK, end - offset), offset)
            if not block:
                raise OSError(errno.EIO, "holds less than was written", str(self._path))
            offset += len(block)
            yield block

    def write(self, block: bytes) -> None:
        rest = memoryview(block)
        while rest:
            count = self._file.write(rest)
            self.size += count
            rest = rest[count:]

    def close(self) -> None:
        """Keep what has come, if anything has."""
        self._file.close()
        if not self.size:
            self.discard()

    def discard(self) -> None:
        """Remove everything: it is in its place, or of no use."""
        files.remove(self._path)
        files.remove(self._about)


class Download:
    """The download of one file: the part an earlier run left, then the rest from the network."""

    def __init__(self, client: Client, url: str, part: Part) -> None:
        self._client = client
        self._url = url
        self._part = part
        self._answer: Answer | None = None
        self._stopped = False

    @property
    def kept(self) -> int:
        return self._part.size

    def begin(self) -> Fingerprint:
        """Ask for the file; return what the server says it is. Raises DownloadError."""
        part, known = self._part, self._part.known
        # Ask for one byte at least, even if all are here, so that the server names the file.
        start = min(part.size, ((known.size if known else 0) or part.size + 1) - 1)
        answer = (self._continued(start) if part.size else None) or self._client.get(self._url)
        if answer.start > 0:
            part.truncate(start)
        elif answer.status == 200:  # noqa: PLR2004
            part.begin(answer.fingerprint)
        else:
            answer.close()
            raise DownloadError(
                f"{without_secrets(self._url)}: {answer.status} where a file should come",
                hint="the server is broken; try another mirror",
            )
        self._answer = answer
        return answer.fingerprint

    def _continued(self, start: int) -> Answer | None:
        """Ask for the rest from byte `start` on; None where it is not certainly the same file."""
        known = self._part.known
        if known is None or not known.validator:
            return None
        answer = self._client.get(self._url, start=start, only_if=known)
        is_whole = answer.status == 200  # noqa: PLR2004
        if answer.fingerprint.same(known) and (is_whole or answer.start == start):
            return answer
        answer.close()
        return None

    def blocks(self) -> Iterator[bytes]:
        """Yield the whole file from its first byte, once.

        Raises DownloadError when patience ends, ChangedError when the source changed meanwhile.
        """
        yield from self._part.replay()
        answer, skip = self._answer, 0
        while answer and not self._stopped:
            before = self._part.size
            try:
                for block in answer.blocks():
                    fresh = block[skip:] if skip else block
                    skip -= min(skip, len(block))
                    if fresh:
                        self._part.write(fresh)
                        yield fresh
                self._complete(answer.fingerprint.size)
            except LostError as exc:
                if self._part.size - before >= PROGRESS:
                    self._client.progressed()
                self._client.failed(self._url, exc, kept=self._part.size)
            else:
                return
            finally:
                answer.close()
            done = self._part.size
            answer = self._answer = self._continued(done)
            if answer is None:
                raise ChangedError
            skip = 0 if answer.start else done

    def _complete(self, wanted: int | None) -> None:
        if wanted is not None and self._part.size < wanted:
            raise LostError(f"cut after {size(self._part.size)} of {size(wanted)}")
        if wanted is not None and self._part.size > wanted:
            raise ChangedError

    def close(self) -> None:
        if self._answer:
            self._answer.close()

    def cancel(self) -> None:
        """Stop `blocks`, which runs in another thread."""
        self._stopped = True
        self._client.cancel()
        if self._answer:
            self._answer.interrupt()


def consumed(
    client: Client,
    url: str,
    path: Path,
    consume: Callable[[Download, Fingerprint], T],
    *,
    again: Callable[[], None] = lambda: None,
) -> T:
    """Download what `consume` reads, through a part at `path` that is kept until it is done.

    `again` is called before it starts over, when the file changed at its source meanwhile. What
    turned out to be wrong is removed; after any other failure it is the start of the next run.
    Raises DownloadError, and what `consume` raises.
    """
    for _ in range(RESTARTS):
        part = Part(path)
        try:
            with closing(Download(client, url, part)) as download:
                return consume(download, download.begin())
        except ChangedError:
            part.discard()
            again()
        except (WrongBytesError, RocmError):
            part.discard()
            raise
        finally:
            part.close()
    raise DownloadError(
        f"{without_secrets(url)}: changes faster than it can be fetched",
        hint="give the address of a file that does not change",
    )


def save(
    client: Client, url: str, target: Path, *, sha256: str, progress: Callable[[int], None]
) -> None:
    """Download `url` into `target`, which appears whole and with this SHA-256 or not at all.

    The caller holds a lock. Raises DownloadError, and WrongBytesError for another digest.
    """

    def compare(download: Download, _: Fingerprint) -> None:
        digest, done = hashlib.sha256(), 0
        for block in download.blocks():
            digest.update(block)
            done += len(block)
            progress(done)
        if digest.hexdigest() != sha256:
            raise WrongBytesError(
                f"{without_secrets(url)}: SHA-256 is {digest.hexdigest()}, not {sha256}",
                hint="the server has another file; check the address and the checksum",
            )
        aside.replace(target)

    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f"{target.name}.part")
    consumed(client, url, aside, compare)
    files.remove(aside.with_suffix(".json"))
