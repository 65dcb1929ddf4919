"""Compressed tar archives as a stream: which compression it is, and the members in order.

Formats: what `tarfile` reads (ustar, pax, GNU) but sparse files, compressed with gzip (RFC 1952,
also several gzip members), xz or zstandard, or not at all. What cannot be right raises
WrongBytesError. Nothing here touches the disk.
"""

from __future__ import annotations

import enum
import io
import itertools
import re
import tarfile
import threading
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from queue import SimpleQueue
from typing import IO, Final, TypeAlias, cast, final

from rocwheel.base.download import WrongBytesError

Blocks: TypeAlias = Generator[bytes, None, None]
AHEAD: Final = 8  # blocks; bounds memory
STOP_SECONDS: Final = 5.0


@final
class ReadAhead:
    """A generator that runs ahead of its consumer in a thread; what it raises is raised there.

    Leaving the `with` block stops it wherever it is, so that an error or Ctrl-C in the last stage
    ends all of them.
    """

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


INFLATED: Final = 1 << 20  # bytes handed on at a time: few calls, and still in the CPU's cache
PACKED: Final = 1 << 18
# What `zstd -d` and `xz -d` take without being asked for more; bounds memory, not file size.
WINDOW: Final = 1 << 27
HEADERS: Final = 1 << 20  # bytes of one member's headers, long names and sparse maps included


class Compression(enum.Enum):
    """How an archive is compressed, by its first bytes and never by its name."""

    GZIP = b"\x1f\x8b"
    XZ = b"\xfd7zXZ\x00"
    ZSTD = b"\x28\xb5\x2f\xfd"
    NONE = b""

    @classmethod
    def of(cls, head: bytes) -> Compression | None:
        """Return the compression of what starts with `head` (512 bytes); None for no archive."""
        for item in (cls.GZIP, cls.XZ, cls.ZSTD):
            if head.startswith(item.value):
                return item
        return cls.NONE if head[257:262] == b"ustar" else None


def inflate(packed: Iterable[bytes], *, name: str) -> Blocks:
    """Decompress to the very end of `packed`; blocks of at most `INFLATED` bytes."""
    blocks = iter(packed)
    head = b""
    for block in blocks:
        head += block
        if len(head) >= tarfile.BLOCKSIZE:
            break
    if (compression := Compression.of(head)) is None:
        raise WrongBytesError(
            f"{name}: neither .tar.gz, .tar.xz nor .tar.zst",
            hint="check the address; a web page may have come instead of the tarball",
        )
    decoders = {Compression.GZIP: _gzip, Compression.XZ: _xz, Compression.ZSTD: _zstd}
    source = _Raw(itertools.chain((head,), blocks))
    try:
        if compression is Compression.NONE:
            yield from iter(lambda: source.read(INFLATED), b"")
        else:
            yield from decoders[compression](source, name)
    except EOFError as exc:
        raise cut(name) from exc


def _gzip(source: _Raw, name: str) -> Iterator[bytes]:
    from isal import igzip

    try:
        with igzip.open(source) as stream:  # type: ignore[no-untyped-call]
            while block := stream.read(INFLATED):
                yield block
    except (igzip.BadGzipFile, zlib.error) as exc:
        raise damaged(name, str(exc)) from exc


def _xz(source: _Raw, name: str) -> Iterator[bytes]:
    """Yield any number of xz streams with zero padding between them (xz file format, section 2)."""
    import lzma

    decoder, pending = None, source.read(PACKED)
    try:
        while pending or decoder:
            if decoder is None:
                pending = pending.lstrip(b"\0")
                if pending:
                    decoder = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=WINDOW + (WINDOW >> 2))
                else:
                    pending = source.read(PACKED)
                continue
            if block := decoder.decompress(pending, INFLATED):
                yield block
            pending = b""
            if decoder.eof:
                pending, decoder = decoder.unused_data or source.read(PACKED), None
            elif decoder.needs_input:
                pending = source.read(PACKED)
                if not pending:
                    raise EOFError
    except lzma.LZMAError as exc:
        raise damaged(name, str(exc)) from exc


def _zstd(source: _Raw, name: str) -> Iterator[bytes]:
    import zstandard

    decoder = zstandard.ZstdDecompressor(max_window_size=WINDOW)
    try:
        with decoder.stream_reader(
            cast("IO[bytes]", source), read_size=PACKED, read_across_frames=True, closefd=False
        ) as stream:
            while block := stream.read(INFLATED):
                yield block
    except zstandard.ZstdError as exc:
        raise damaged(name, str(exc)) from exc


class _Raw(io.RawIOBase):
    """Blocks as the file object that decoders want to read from."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: bytearray | memoryview) -> int:  # type: ignore[override]
        while not self._rest:
            if (block := next(self._blocks, None)) is None:
                return 0
            self._rest = memoryview(block)
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def read(self, count: int = -1) -> bytes:
        return super().read(count) or b""  # never None: it does not wait


def cut(name: str) -> WrongBytesError:
    return WrongBytesError(f"{name}: cut short", hint="fetch it again, or check the mirror")


def damaged(name: str, problem: str) -> WrongBytesError:
    return WrongBytesError(
        f"{name}: damaged: {problem}", hint="fetch it again, or check the mirror"
    )


class MemberKind(enum.Enum):
    """The kind of a member: a file, a folder, a link."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symbolic link"
    HARDLINK = "hard link"


_KINDS: Final = {
    tarfile.REGTYPE: MemberKind.FILE,
    tarfile.AREGTYPE: MemberKind.FILE,
    tarfile.CONTTYPE: MemberKind.FILE,  # "contiguous": a plain file but on long-gone systems
    tarfile.LNKTYPE: MemberKind.HARDLINK,
    tarfile.SYMTYPE: MemberKind.SYMLINK,
    tarfile.DIRTYPE: MemberKind.DIRECTORY,
}
_REFUSED: Final = {
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a named pipe",
    b"D": "a GNU directory dump",
    b"M": "the rest of another volume",
}
_LABEL: Final = b"V"
_FOR_ONE_MEMBER: Final = re.compile(r"path|linkpath|size|GNU\.sparse\..*")


@dataclass(frozen=True, slots=True)
class TarMember:
    """One member; names are the archive's bytes, not yet checked."""

    name: bytes
    kind: MemberKind
    mode: int
    mtime_ns: int
    size: int  # bytes of the file
    link: bytes = b""


class TarReader:
    """The members of a tar stream, in order, each with its data.

    `tarfile` reads the headers; data is handed on in the decoder's own blocks. What `tarfile`
    silently takes for the end of the archive (a damaged or cut header) is an error here.
    """

    def __init__(self, blocks: Iterable[bytes], *, name: str) -> None:
        self._blocks = iter(blocks)
        self._stream = _Forward(self._blocks, name)
        self._name = name
        self._left = 0  # bytes of the current member's data not yet read

    def members(self) -> Iterator[TarMember]:
        """Yield every member up to the end-of-archive block; its data may be left unread."""
        try:
            with tarfile.TarFile(
                fileobj=cast("IO[bytes]", self._stream), encoding="utf-8", errors="surrogateescape"
            ) as tar:
                # Python 3.10 trips over asking an empty archive for more.
                for info in iter(tar.next, None) if tar.firstmember else ():  # type: ignore[attr-defined]
                    tar.members.clear()  # type: ignore[attr-defined]  # it keeps every one
                    # Defaults for all members: comments are fine, a name for everything is not.
                    for key in filter(_FOR_ONE_MEMBER.fullmatch, tar.pax_headers):
                        why = f"has its {key} from a header for every member"
                        raise refused(self._name, _bytes(info.name), why)
                    if info.type != _LABEL:
                        yield self._member(info)
                    self._stream.next_member()
        except (tarfile.TarError, ArithmeticError, LookupError, ValueError, RecursionError) as exc:
            raise damaged(self._name, f"{exc} at byte {self._stream.tell()}") from exc
        self._stream.check_end()

    def data(self) -> Iterator[memoryview]:
        """Yield the current member's data in runs; each is valid until the next one."""
        while self._left:
            run = self._stream.run(self._left)
            self._left -= len(run)
            yield run

    def drain(self) -> None:
        """Read what follows the end-of-archive block, so that its checksums are checked too."""
        for _ in self._blocks:
            pass

    def _member(self, info: tarfile.TarInfo) -> TarMember:
        name = _bytes(info.name)
        if info.type in _REFUSED or info.sparse is not None:
            what = _REFUSED.get(info.type, "a sparse file, as `tar --sparse` makes")
            raise refused(self._name, name, f"is {what}")
        if (kind := _KINDS.get(info.type)) is None:
            raise refused(self._name, name, f"is of the unknown type {info.type!r}")
        if kind is MemberKind.FILE and name.endswith(b"/"):
            kind = MemberKind.DIRECTORY  # as archives of before 1988 say it
        if info.size < 0:
            raise damaged(self._name, f"{shown(name)} has a negative size")
        size = info.size if kind is MemberKind.FILE else 0
        self._left = size
        exact = info.pax_headers.get("mtime")  # to the nanosecond; `info.mtime` is a float
        return TarMember(
            name=name,
            kind=kind,
            mode=info.mode,
            mtime_ns=int(Decimal(exact or info.mtime) * 10**9),
            size=size,
            link=_bytes(info.linkname),
        )


class _Forward:
    """A stream of blocks as the file that `tarfile` reads headers from: it only goes forward."""

    def __init__(self, blocks: Iterable[bytes], name: str) -> None:
        self._blocks = iter(blocks)
        self._name = name
        self._block = memoryview(b"")
        self._at = 0
        self._position = 0
        self._headers = HEADERS
        self._last = b""

    def next_member(self) -> None:
        """Begin another member, whose headers may have `HEADERS` bytes."""
        self._headers = HEADERS

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> None:
        if position < self._position:
            raise damaged(self._name, f"a header that points back to byte {position}")
        while self._position < position:
            self.run(position - self._position)

    def read(self, count: int) -> bytes:
        """Return `count` bytes of headers; fewer only at the end of the stream."""
        if not 0 <= count <= self._headers:
            raise damaged(self._name, f"a header of {count} bytes at byte {self._position}")
        self._headers -= count
        data = bytearray()
        while len(data) < count and self._more():
            data += self._take(count - len(data))
        self._last = bytes(data)
        return self._last

    def run(self, count: int) -> memoryview:
        """Read one byte at least, `count` at most. Raises WrongBytesError at the stream's end."""
        if not self._more():
            raise cut(self._name)
        return self._take(count)

    def check_end(self) -> None:
        """Raise WrongBytesError unless what was read last is an end-of-archive block."""
        if len(self._last) < tarfile.BLOCKSIZE:
            raise cut(self._name)
        if any(self._last):
            at = self._position - tarfile.BLOCKSIZE
            raise damaged(self._name, f"no tar header at byte {at}")

    def close(self) -> None:
        """Close nothing: the blocks belong to the caller."""

    def _more(self) -> bool:
        while self._at == len(self._block):
            if (block := next(self._blocks, None)) is None:
                return False
            self._block, self._at = memoryview(block), 0
        return True

    def _take(self, count: int) -> memoryview:
        run = self._block[self._at : self._at + count]
        self._at += len(run)
        self._position += len(run)
        return run


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def refused(archive: str, member: bytes, problem: str) -> WrongBytesError:
    """Return the error for a member that will not be unpacked."""
    return WrongBytesError(
        f"{archive}: member {shown(member)} {problem}",
        hint="do not use this archive; get it from where it was made",
    )


def shown(name: bytes) -> str:
    """Return a name for a message: bounded, and without control characters."""
    text = name.decode("utf-8", "backslashreplace")
    text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return repr(text if len(text) <= 120 else f"{text[:80]}…{text[-30:]}").replace("\\\\", "\\")  # noqa: PLR2004
