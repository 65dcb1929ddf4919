"""Compressed tar archives as a stream: which compression it is, and the members in order.

Formats: POSIX.1-1988 ustar, POSIX.1-2001 pax (`x`, `g`), GNU (long names, base-256 numbers, old
sparse files) and pax sparse files 0.0, 0.1 and 1.0, as in the GNU tar manual, "Basic Tar Format"
and "Storing Sparse Files"; compressed with gzip (RFC 1952, also several gzip members), xz or
zstandard, or not at all. What cannot be right raises FetchError. Nothing here touches the disk.
"""

from __future__ import annotations

import enum
import io
import itertools
import re
import zlib
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Final, cast

from rocwheel.errors import FetchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

BLOCK: Final = 512
INFLATED: Final = 1 << 20  # bytes handed on at a time: few calls, and still in the CPU's cache
PACKED: Final = 1 << 18
# What `zstd -d` and `xz -d` take without being asked for more; bounds memory, not file size.
WINDOW: Final = 1 << 27
EXTENSION_BYTES: Final = 1 << 20  # of a long name or a pax header
SPARSE_ENTRIES: Final = 1 << 16
_RECORD: Final = re.compile(rb"([0-9]{1,9}) ")


class Compression(enum.Enum):
    """Told from the first bytes, never from the file's name."""

    GZIP = b"\x1f\x8b"
    XZ = b"\xfd7zXZ\x00"
    ZSTD = b"\x28\xb5\x2f\xfd"
    NONE = b""

    @classmethod
    def of(cls, head: bytes) -> Compression | None:
        """The compression of what starts with `head` (512 bytes); None when it is no archive."""
        for item in (cls.GZIP, cls.XZ, cls.ZSTD):
            if head.startswith(item.value):
                return item
        return cls.NONE if head[257:262] == b"ustar" else None


def inflate(packed: Iterable[bytes], *, name: str) -> Iterator[bytes]:
    """Decompress to the very end of `packed`; blocks of at most `INFLATED` bytes.

    Raises FetchError for damage, for a stream that ends too early and for what is no archive.
    """
    blocks = iter(packed)
    head = b""
    for block in blocks:
        head += block
        if len(head) >= BLOCK:
            break
    compression = Compression.of(head)
    source = _Raw(itertools.chain((head,), blocks))
    try:
        match compression:
            case Compression.GZIP:
                yield from _gzip(source)
            case Compression.XZ:
                yield from _xz(source)
            case Compression.ZSTD:
                yield from _zstd(source)
            case Compression.NONE:
                yield from iter(lambda: source.read(INFLATED), b"")
            case None:
                raise FetchError(
                    f"{name}: neither .tar.gz, .tar.xz nor .tar.zst",
                    hint="check the address; a web page may have come instead of the tarball",
                )
    except EOFError as exc:
        raise cut(name) from exc
    except _Damaged as exc:
        raise damaged(name, str(exc)) from exc


class _Damaged(Exception):  # noqa: N818
    """The decoders' many errors as one."""


def _gzip(source: _Raw) -> Iterator[bytes]:
    from isal import igzip

    try:
        with igzip.open(source) as stream:  # type: ignore[no-untyped-call]
            while block := stream.read(INFLATED):
                yield block
    except (igzip.BadGzipFile, zlib.error) as exc:
        raise _Damaged(exc) from exc


def _xz(source: _Raw) -> Iterator[bytes]:
    """Any number of xz streams with zero padding between them (xz file format, section 2)."""
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
        raise _Damaged(exc) from exc


def _zstd(source: _Raw) -> Iterator[bytes]:
    import zstandard

    decoder = zstandard.ZstdDecompressor(max_window_size=WINDOW)
    try:
        with decoder.stream_reader(
            cast("IO[bytes]", source), read_size=PACKED, read_across_frames=True, closefd=False
        ) as stream:
            while block := stream.read(INFLATED):
                yield block
    except zstandard.ZstdError as exc:
        raise _Damaged(exc) from exc


class _Raw(io.RawIOBase):
    """Blocks as the file object that decoders want to read from."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks = iter(blocks)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: bytearray | memoryview) -> int:  # type: ignore[override]
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        count = min(len(target), len(self._rest))
        target[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

    def read(self, count: int = -1) -> bytes:
        """One block at most; b"" only at the end."""
        if not self._rest:
            block = next(self._blocks, b"")
            while not block and (more := next(self._blocks, None)) is not None:
                block = more
            self._rest = memoryview(block)
        taken = self._rest if count < 0 else self._rest[:count]
        self._rest = self._rest[len(taken) :]
        return bytes(taken)


def cut(name: str) -> FetchError:
    return FetchError(
        f"{name}: ends in the middle, it was cut short", hint="fetch it again, or mend the mirror"
    )


def damaged(name: str, problem: str) -> FetchError:
    return FetchError(f"{name}: damaged: {problem}", hint="fetch it again, or mend the mirror")


class Kind(enum.Enum):
    """What a member is."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symbolic link"
    HARDLINK = "hard link"


_KINDS: Final = {
    b"0": Kind.FILE,
    b"\0": Kind.FILE,
    b"7": Kind.FILE,  # "contiguous": a plain file everywhere but on long-gone systems
    b"S": Kind.FILE,
    b"1": Kind.HARDLINK,
    b"2": Kind.SYMLINK,
    b"5": Kind.DIRECTORY,
}
_REFUSED: Final = {
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a named pipe",
    b"D": "a GNU directory dump",
    b"M": "the rest of another volume",
}


@dataclass(frozen=True, slots=True)
class Member:
    """One member; names are the archive's bytes, not yet checked."""

    name: bytes
    kind: Kind
    mode: int
    mtime_ns: int
    packed: int  # bytes of data in the archive
    size: int  # bytes of the file; more than `packed` for a sparse file
    link: bytes = b""
    sparse: tuple[tuple[int, int], ...] | None = None  # (offset, length) of the data


@dataclass(frozen=True, slots=True)
class _Header:
    """One header block, as it stands there."""

    name: bytes
    mode: int
    size: int
    mtime: int
    type: bytes
    link: bytes


class TarReader:
    """The members of a tar stream, in order, each with its data."""

    def __init__(self, blocks: Iterable[bytes], *, name: str) -> None:
        self._blocks = iter(blocks)
        self._name = name
        self._block = memoryview(b"")
        self._at = 0
        self._left = 0  # data and padding of the current member not yet read
        self._padding = 0
        self._sparse: list[tuple[int, int]] = []
        self.position = 0  # bytes of the tar stream read so far

    def members(self) -> Iterator[Member]:
        """Yield every member up to the end-of-archive block; its data may be left unread."""
        extended: dict[bytes, bytes] = {}
        while (header := self._header()) is not None:
            match header.type:
                case b"L":
                    extended[b"path"] = self._text(header)
                case b"K":
                    extended[b"linkpath"] = self._text(header)
                case b"x" | b"X":
                    extended.update(self._pax(header))
                case b"g":
                    self._global(header)
                case b"V":
                    self._start(header.size)
                case _:
                    yield self._member(header, extended)
                    extended = {}
            self._skip()
        if extended:
            raise damaged(self._name, "an extended header without its member")

    def data(self) -> Iterator[memoryview]:
        """The current member's data in runs; each is valid until the next one."""
        while self._left:
            run = self._run(self._left)
            self._left -= len(run)
            yield run

    def drain(self) -> None:
        """Read what follows the end-of-archive block, so that its checksums are checked too."""
        for block in self._blocks:
            self.position += len(block)

    def _member(self, header: _Header, extended: Mapping[bytes, bytes]) -> Member:
        name = extended.get(b"path", header.name)
        if header.type in _REFUSED:
            raise refused(self._name, name, f"is {_REFUSED[header.type]}")
        kind = _KINDS.get(header.type)
        if kind is None:
            raise refused(self._name, name, f"is of the unknown type {header.type!r}")
        if kind is Kind.FILE and name.endswith(b"/"):
            kind = Kind.DIRECTORY  # as archives of before 1988 say it
        size = header.size
        if b"size" in extended:
            size = self._decimal(extended[b"size"], "size")
        if kind is not Kind.FILE:
            size = 0  # POSIX: a size there says nothing about data that follows
        self._start(size)
        member = Member(
            name=name,
            kind=kind,
            mode=header.mode,
            mtime_ns=self._mtime(extended, header),
            packed=size,
            size=size,
            link=extended.get(b"linkpath", header.link),
        )
        if header.type == b"S":
            return self._gnu_sparse(member)
        if b"GNU.sparse.map" in extended or b"GNU.sparse.major" in extended or self._sparse:
            return self._pax_sparse(member, extended)
        return member

    def _mtime(self, extended: Mapping[bytes, bytes], header: _Header) -> int:
        text = extended.get(b"mtime")
        if text is None:
            return header.mtime * 1_000_000_000
        match = re.fullmatch(rb"(-?[0-9]{1,18})(?:\.([0-9]*))?", text)
        if not match:
            raise damaged(self._name, f"the time {text!r}")
        return int(match[1]) * 1_000_000_000 + int((match[2] or b"")[:9].ljust(9, b"0"))

    def _header(self) -> _Header | None:
        """The next header block; None at the end-of-archive block."""
        block = self._exactly(BLOCK)
        total = sum(block)
        if not total:
            return None
        stored = self._number(block[148:156])
        if stored != total - sum(block[148:156]) + 8 * 0x20:
            raise damaged(self._name, f"no tar header at byte {self.position - BLOCK}")
        name = block[:100].split(b"\0", 1)[0]
        kind = block[156:157]
        if block[257:265] == b"ustar\x0000" and block[345]:
            name = block[345:500].split(b"\0", 1)[0] + b"/" + name
        header = _Header(
            name=name,
            mode=self._number(block[100:108]),
            size=self._number(block[124:136]),
            mtime=self._number(block[136:148]),
            type=kind,
            link=block[157:257].split(b"\0", 1)[0],
        )
        if header.size < 0:
            raise refused(self._name, header.name, "has a negative size")
        if kind == b"S":
            self._sparse = self._gnu_map(block)
        return header

    def _number(self, field: bytes) -> int:
        """An octal number, or a base-256 one (GNU) where the first bit is set."""
        if field[0] & 0x80:
            return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big") - (
                (1 << (8 * len(field) - 1)) if field[0] & 0x40 else 0
            )
        text = field.split(b"\0", 1)[0].strip(b" ")
        if not text:
            return 0
        if not text.isdigit():
            raise damaged(self._name, f"the number {field!r} at byte {self.position - BLOCK}")
        try:
            return int(text, 8)
        except ValueError as exc:
            raise damaged(self._name, f"the number {field!r}") from exc

    def _decimal(self, text: bytes, what: str) -> int:
        if not text.isdigit() or len(text) > 18:  # noqa: PLR2004 - more than any file has
            raise damaged(self._name, f"the {what} {text[:40]!r}")
        return int(text)

    # Extended headers.

    def _text(self, header: _Header) -> bytes:
        return self._extension(header).rstrip(b"\0")

    def _extension(self, header: _Header) -> bytes:
        if header.size > EXTENSION_BYTES:
            raise refused(self._name, header.name, f"is a header of {header.size} bytes")
        self._start(header.size)
        return b"".join(bytes(run) for run in self.data())

    def _pax(self, header: _Header) -> dict[bytes, bytes]:
        r"""Records `<length> <key>=<value>\n`; the length counts the whole record."""
        data = self._extension(header)
        found: dict[bytes, bytes] = {}
        offset, start = None, 0
        while start < len(data):
            match = _RECORD.match(data, start)
            end = start + int(match[1]) if match else 0
            if not match or not match.end() < end <= len(data) or data[end - 1 : end] != b"\n":
                raise damaged(self._name, "a pax header that is not one")
            key, separator, value = data[match.end() : end - 1].partition(b"=")
            if not separator:
                raise damaged(self._name, "a pax header that is not one")
            if key == b"GNU.sparse.offset":
                offset = self._decimal(value, "sparse offset")
            elif key == b"GNU.sparse.numbytes" and offset is not None:
                self._sparse.append((offset, self._decimal(value, "sparse length")))
            found[key] = value
            start = end
        return found

    def _global(self, header: _Header) -> None:
        """Defaults for all members: comments are fine, a name for everything is not."""
        for key in self._pax(header):
            if key in (b"path", b"linkpath", b"size") or key.startswith(b"GNU.sparse"):
                raise refused(self._name, header.name, f"sets {shown(key)} for every member")

    # Sparse files.

    def _gnu_map(self, block: bytes) -> list[tuple[int, int]]:
        """The map of an old GNU sparse header, and of the extension blocks that follow it."""
        entries = self._gnu_entries(block[386:482])
        size = self._number(block[483:495])
        more = block[482]
        while more:
            block = self._exactly(BLOCK)
            entries += self._gnu_entries(block[:504])
            more = block[504]
            if len(entries) > SPARSE_ENTRIES:
                raise damaged(self._name, "a sparse file of too many pieces")
        return [*entries, (size, 0)]

    def _gnu_entries(self, area: bytes) -> list[tuple[int, int]]:
        fields = [area[at : at + 24] for at in range(0, len(area), 24)]
        return [
            (self._number(field[:12]), self._number(field[12:])) for field in fields if field[0]
        ]

    def _gnu_sparse(self, member: Member) -> Member:
        *entries, (size, _) = self._sparse
        return self._with_map(member, entries, size)

    def _pax_sparse(self, member: Member, extended: Mapping[bytes, bytes]) -> Member:
        """Sparse files of pax archives: 0.0 repeats keys, 0.1 has a map, 1.0 begins its data."""
        size = self._decimal(
            extended.get(b"GNU.sparse.realsize", extended.get(b"GNU.sparse.size", b"")),
            "sparse size",
        )
        member = replace(member, name=extended.get(b"GNU.sparse.name", member.name))
        if b"GNU.sparse.map" in extended:
            numbers = [
                self._decimal(text, "sparse map")
                for text in extended[b"GNU.sparse.map"].split(b",")
            ]
            return self._with_map(member, zip(numbers[::2], numbers[1::2], strict=False), size)
        if extended.get(b"GNU.sparse.major") != b"1":
            return self._with_map(member, self._sparse, size)
        number = self._lines()
        count = number()
        if count > SPARSE_ENTRIES:
            raise damaged(self._name, "a sparse file of too many pieces")
        entries = [(number(), number()) for _ in range(count)]
        return self._with_map(replace(member, packed=self._left), entries, size)

    def _lines(self) -> Callable[[], int]:
        """Reads decimal lines at the start of the data, whole blocks at a time."""
        text = b""

        def number() -> int:
            nonlocal text
            while b"\n" not in text:
                if self._left < BLOCK:
                    raise damaged(self._name, "a sparse map that does not end")
                self._left -= BLOCK
                text += self._exactly(BLOCK)
            line, _, text = text.partition(b"\n")
            return self._decimal(line, "sparse map")

        return number

    def _with_map(self, member: Member, entries: Iterable[tuple[int, int]], size: int) -> Member:
        """Check that the pieces lie in order within the file and are exactly the data."""
        pieces, end, total = tuple(entries), 0, 0
        self._sparse = []
        for offset, length in pieces:
            if offset < end or length < 0:
                raise damaged(self._name, f"the sparse map of {shown(member.name)}")
            end, total = offset + length, total + length
        if end > size or total != member.packed:
            raise damaged(self._name, f"the sparse map of {shown(member.name)}")
        return replace(member, size=size, sparse=pieces)

    # The stream below.

    def _start(self, size: int) -> None:
        self._left, self._padding = size, -size % BLOCK

    def _skip(self) -> None:
        for _ in self.data():
            pass
        while self._padding:
            self._padding -= len(self._run(self._padding))

    def _run(self, count: int) -> memoryview:
        """At least one and at most `count` bytes."""
        while self._at == len(self._block):
            block = next(self._blocks, None)
            if block is None:
                raise cut(self._name)
            self._block, self._at = memoryview(block), 0
        run = self._block[self._at : self._at + count]
        self._at += len(run)
        self.position += len(run)
        return run

    def _exactly(self, count: int) -> bytes:
        data = bytes(self._run(count))
        while len(data) < count:
            data += self._run(count - len(data))
        return data


def refused(archive: str, member: bytes, problem: str) -> FetchError:
    """The error for a member that will not be unpacked."""
    return FetchError(
        f"{archive}: member {shown(member)} {problem}",
        hint="do not use this archive; get it from where it was made",
    )


def shown(name: bytes) -> str:
    """A name for a message: bounded, and without control characters."""
    text = name.decode("utf-8", "backslashreplace")
    text = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
    return repr(text if len(text) <= 120 else f"{text[:80]}…{text[-30:]}").replace("\\\\", "\\")  # noqa: PLR2004
