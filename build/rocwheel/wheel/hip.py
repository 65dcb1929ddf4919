"""Which GPUs a HIP fat binary has code for, read from the first bytes of each bundle.

A bundle is clang's offload bundle (`__CLANG_OFFLOAD_BUNDLE__`, then a table of entries), alone or
inside a compressed wrapper (`CCOB`, versions 1 to 3, zlib or zstd). The table stands at the front,
so a compressed bundle of gigabytes is known after its first block. Format: clang's
ClangOffloadBundler and HIPSupport documents; `hipv4-` is clang's prefix up to AMD clang 23, `hip-`
the one after.
"""

import re
import struct
import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple

from rocwheel.base.values import Plain

ALIGNMENT: Final = 4096  # of every bundle in a .hip_fatbin section
PLAIN: Final = b"__CLANG_OFFLOAD_BUNDLE__"
PACKED: Final = b"CCOB"
INITIALS: Final = frozenset({PLAIN[0], PACKED[0]})
FRONT: Final = 192 << 10  # bytes that hold the first zstd block (128 KiB at most) and its header
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


class CodeObject(NamedTuple):
    """One entry of a bundle: a gfx target, its features (`:xnack+`), the bytes it has."""

    target: str
    features: str
    size: int

    def __str__(self) -> str:
        return self.target + self.features


class Bundle(Plain, frozen=True, kw_only=True):
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


def sum_of_objects(bundles: Iterable[Bundle]) -> dict[str, tuple[int, int]]:
    """Return for each gfx target how many code objects bundles have, and their bytes unpacked."""
    sums: dict[str, tuple[int, int]] = {}
    for item in (entry for bundle in bundles for entry in bundle.objects if entry.size):
        count, total = sums.get(item.target, (0, 0))
        sums[item.target] = count + 1, total + item.size
    return dict(sorted(sums.items()))


def in_all(bundles: Iterable[Bundle]) -> tuple[str, ...]:
    """Return the gfx targets that each of the bundles has code for, sorted; () without bundles."""
    sets = [bundle.targets for bundle in bundles]
    return tuple(sorted(frozenset.intersection(*sets))) if sets else ()


def looks_like(front: bytes) -> bool:
    """Return whether these bytes may begin a bundle; a shorter `front` than a magic may."""
    front = front[: len(PLAIN)]
    return bool(front) and (PLAIN.startswith(front) or (front[:4] == PACKED[: len(front[:4])]))


def parse(front: bytes, *, offset: int, room: int = 1 << 62) -> Bundle | None:
    """Read a bundle from its first `FRONT` bytes; None where there is no bundle with GPU code.

    Data that merely contains the magic (a compiler library does) fails one of the checks. A bundle
    that is longer than the `room` that its file has, or does not unpack to what its table says,
    has no objects.
    """
    inner, size, unpacked, name, damaged = front, 0, 0, "", False
    if not front.startswith(PLAIN):
        if not front.startswith(PACKED) or len(front) < 32:  # noqa: PLR2004
            return None
        version, method = struct.unpack_from("<HH", front, 4)
        layout = _WRAPPERS.get(version)
        if layout is None or method > 1:
            return None
        *sizes, _hash = layout.unpack_from(front, 8)
        size, unpacked = sizes if len(sizes) > 1 else (0, sizes[0])
        name = "zstd" if method else "zlib"
        inner = _unpacked(front[8 + layout.size : size or None], name)
        # Enough of a header that a damaged bundle is more likely than a text.
        damaged = not inner.startswith(PLAIN) and 8 + layout.size < size < unpacked < 1 << 40
    rows = _entries(inner)
    end = max((at + length for at, length, _ in rows), default=0)
    if not name:
        size = unpacked = end
    objects = tuple(
        CodeObject(target=match[1], features=match[2], size=length)
        for length, match in ((length, _DEVICE.match(text)) for _, length, text in rows)
        if match
    )
    if not objects and not damaged:
        return None
    objects = objects if size <= room and end <= unpacked else ()
    return Bundle(offset=offset, size=size, unpacked=unpacked, compression=name, objects=objects)


def _unpacked(body: bytes, compression: str) -> bytes:
    """Return the table at the front; b"" where the bytes are damaged."""
    import zstandard

    try:
        if compression == "zlib":
            return zlib.decompressobj().decompress(body, TABLE)
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            return reader.read(TABLE)
    except (zlib.error, zstandard.ZstdError):
        return b""


def _entries(front: bytes) -> list[tuple[int, int, str]]:
    """Return the table's (offset, size, id) rows; empty where it is no table."""
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
