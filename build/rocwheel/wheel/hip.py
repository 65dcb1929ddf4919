"""Which GPUs a HIP fat binary has code for, read from the first bytes of each bundle.

A bundle is clang's offload bundle (`__CLANG_OFFLOAD_BUNDLE__`, then a table of entries), alone or
inside a compressed wrapper (`CCOB`, versions 1 to 3, zlib or zstd). The table stands at the front,
so a compressed bundle of gigabytes is known after its first block; `unpacked` gives all of it in
pieces. Format: clang's ClangOffloadBundler and HIPSupport documents; `hipv4-` is clang's prefix up
to AMD clang 23, `hip-` the one after.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ALIGNMENT: Final = 4096  # of every bundle in a .hip_fatbin section
PLAIN: Final = b"__CLANG_OFFLOAD_BUNDLE__"
PACKED: Final = b"CCOB"
INITIALS: Final = frozenset({PLAIN[0], PACKED[0]})
FRONT: Final = 192 << 10  # bytes that hold the first zstd block (128 KiB at most) and its header
READ: Final = 128 << 10  # bytes of compressed input at a time
UNPACKED: Final = 1 << 20  # bytes of unpacked output at a time
TABLE: Final = 64 << 10  # bytes of inner table that are unpacked; 27 targets need 2 KiB
MAX_ENTRIES: Final = 512
_ENTRY: Final = struct.Struct("<QQQ")
_WRAPPERS: Final = {  # version -> (layout after the version and method, whether it has a total)
    1: struct.Struct("<IQ"),
    2: struct.Struct("<IIQ"),
    3: struct.Struct("<QQQ"),
}
_DEVICE: Final = re.compile(
    r"hip(?:v4)?-amdgcn-amd-amdhsa-[a-z0-9]*-(gfx[0-9a-z-]+)((?::[a-z]+[+-])*)\Z"
)
_ID: Final = re.compile(r"[A-Za-z0-9_.:+-]{1,256}\Z")


@dataclass(frozen=True, kw_only=True)
class CodeObject:
    """One entry of a bundle: a gfx target, its features (`:xnack+`), the bytes it has."""

    target: str
    features: str
    offset: int  # in the unpacked bundle
    size: int

    def __str__(self) -> str:
        return self.target + self.features


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """One bundle: where it lies in the file, and the code objects in it."""

    offset: int
    size: int  # bytes in the file, 0 where the wrapper does not say
    unpacked: int  # bytes after decompression; `size` again for a plain bundle
    compression: str  # "", "zlib" or "zstd"
    objects: tuple[CodeObject, ...]

    @property
    def targets(self) -> frozenset[str]:
        """Targets with code; an entry of no bytes is none."""
        return frozenset(item.target for item in self.objects if item.size)


def looks_like(front: bytes) -> bool:
    """Whether these bytes may begin a bundle; a shorter `front` than a magic may."""
    front = front[: len(PLAIN)]
    return bool(front) and (PLAIN.startswith(front) or (front[:4] == PACKED[: len(front[:4])]))


def parse(front: bytes, *, offset: int) -> Bundle | None:
    """Read a bundle from its first `FRONT` bytes; None where there is no bundle with GPU code.

    Data that merely contains the magic (a compiler library does) fails one of the checks.
    """
    if front.startswith(PLAIN):
        objects = _table(front)
        return _bundle(offset, _extent(front), _extent(front), "", objects)
    if not front.startswith(PACKED) or len(front) < 32:  # noqa: PLR2004
        return None
    version, method = struct.unpack_from("<HH", front, 4)
    layout = _WRAPPERS.get(version)
    if layout is None or method > 1:
        return None
    *sizes, _hash = layout.unpack_from(front, 8)
    size, unpacked = sizes if len(sizes) > 1 else (0, sizes[0])
    body = front[8 + layout.size : size or None]
    try:
        inner = _unzstd(body) if method else zlib.decompressobj().decompress(body, TABLE)
    except (zlib.error, ValueError):
        return None
    return _bundle(offset, size, unpacked, "zstd" if method else "zlib", _table(inner))


class Forward:
    """Bytes that come in pieces, read like a file that only goes forward."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")
        self._at = 0
        self._end = 0

    def range(self, start: int, size: int) -> bool:
        """Go to a range and end there; False where it has passed, or the bytes end before it."""
        self._end = start
        while self.read(UNPACKED):
            pass
        self._end = start + size
        return self._at == start

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end of the range, or of all."""
        if not self._rest:
            self._rest = memoryview(next(self._pieces, b""))
        size = max(0, min(size, self._end - self._at))
        piece, self._rest = bytes(self._rest[:size]), self._rest[size:]
        self._at += len(piece)
        return piece

    def exactly(self, size: int) -> bytes:
        """The next `size` bytes, whatever pieces they come in. Raises ValueError at the end."""
        data = b""
        while len(data) < size:
            piece = self.read(size - len(data))
            if not piece:
                raise ValueError("cut short")
            data += piece
        return data


def unpacked(bundle: Bundle, source: Forward) -> Iterator[bytes]:
    """The bytes of a plain bundle, from a source that was set to the bundle's range.

    Raises ValueError where the compressed bytes are damaged.
    """
    if bundle.compression:
        front = source.exactly(8)
        source.exactly(_WRAPPERS[int.from_bytes(front[4:6], "little")].size)
    return _UNPACK[bundle.compression](source)


def _plain(source: Forward) -> Iterator[bytes]:
    return iter(lambda: source.read(UNPACKED), b"")


def _zlib(source: Forward) -> Iterator[bytes]:
    inflate = zlib.decompressobj()
    try:
        while not inflate.eof:
            packed = inflate.unconsumed_tail or source.read(READ)
            piece = inflate.decompress(packed, UNPACKED)
            if not (packed or piece):
                return  # cut short
            yield piece
    except zlib.error as exc:
        raise ValueError(str(exc)) from exc


def _zstd(source: Forward) -> Iterator[bytes]:
    import zstandard

    try:
        yield from zstandard.ZstdDecompressor().read_to_iter(
            source,  # type: ignore[arg-type]  # of a file it uses read() only
            write_size=UNPACKED,
        )
    except zstandard.ZstdError as exc:
        raise ValueError(str(exc)) from exc


_UNPACK: Final = {"": _plain, "zlib": _zlib, "zstd": _zstd}


def _bundle(
    offset: int, size: int, unpacked: int, compression: str, objects: tuple[CodeObject, ...]
) -> Bundle | None:
    if not objects:
        return None
    return Bundle(
        offset=offset, size=size, unpacked=unpacked, compression=compression, objects=objects
    )


def _unzstd(body: bytes) -> bytes:
    import zstandard

    try:
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            return reader.read(TABLE)
    except zstandard.ZstdError as exc:
        raise ValueError(str(exc)) from exc


def _entries(front: bytes) -> list[tuple[int, int, str]]:
    """The table's (offset, size, id) rows; empty where it is no table."""
    at = len(PLAIN) + 8
    if not front.startswith(PLAIN) or len(front) < at:
        return []
    count = int.from_bytes(front[len(PLAIN) : at], "little")
    if not 0 < count <= MAX_ENTRIES:
        return []
    rows = []
    for _ in range(count):
        if len(front) < at + _ENTRY.size:
            return []
        offset, size, length = _ENTRY.unpack_from(front, at)
        at += _ENTRY.size
        name = front[at : at + length].decode("latin-1")
        at += length
        if len(name) != length or not _ID.match(name):
            return []
        rows.append((offset, size, name))
    return rows


def _table(front: bytes) -> tuple[CodeObject, ...]:
    found = ((offset, size, _DEVICE.match(name)) for offset, size, name in _entries(front))
    return tuple(
        CodeObject(target=match[1], features=match[2], offset=offset, size=size)
        for offset, size, match in found
        if match
    )


def _extent(front: bytes) -> int:
    return max((offset + size for offset, size, _ in _entries(front)), default=0)
