"""The GPU code of a HIP fat binary: which GPUs it is for, and whether they can load it.

A bundle is clang's offload bundle (`__CLANG_OFFLOAD_BUNDLE__`, then a table of entries), alone or
inside a compressed wrapper (`CCOB`, versions 1 to 3, zlib or zstd). The table stands at the front,
so a compressed bundle of gigabytes is known after its first block (`parse`). The wrapper has the
first 8 bytes of the MD5 of what was compressed, so `read` knows every changed bit; it also checks
each code object. Format: clang's ClangOffloadBundler and HIPSupport documents; `hipv4-` is clang's
prefix up to AMD clang 23, `hip-` the one after.
"""

import hashlib
import re
import struct
import zlib
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from rocwheel.base.values import Plain, replace
from rocwheel.wheel import code_object

ALIGNMENT: Final = 4096  # of every bundle in a .hip_fatbin section
PLAIN: Final = b"__CLANG_OFFLOAD_BUNDLE__"
PACKED: Final = b"CCOB"
INITIALS: Final = frozenset({PLAIN[0], PACKED[0]})
FRONT: Final = 192 << 10  # bytes that hold the first zstd block (128 KiB at most) and its header
TABLE: Final = 64 << 10  # bytes of inner table that are unpacked; 27 targets need 2 KiB
MAX_ENTRIES: Final = 512
STEP: Final = 1 << 20  # bytes that are unpacked at a time
OBJECT: Final = 1 << 30  # bytes of one code object that are read
WRAPPER: Final = b"FPIH\x01\0\0\0"  # by which a library hands one bundle to HIP: magic, version
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
    offset: int  # in the unpacked bundle

    def __str__(self) -> str:
        return self.target + self.features


class Bundle(Plain, frozen=True, kw_only=True):
    """One bundle: where it lies in the file, and the code objects in it."""

    offset: int
    size: int  # bytes in the file, 0 where the wrapper does not say
    unpacked: int  # bytes after decompression; `size` again for a plain bundle
    compression: str  # "", "zlib" or "zstd"
    objects: tuple[CodeObject, ...]
    header: int = 0  # bytes of the wrapper before what is compressed
    digest: str = ""  # of the unpacked bytes, as the wrapper has it
    is_read: bool = False  # whether the code itself was looked at
    problems: tuple[str, ...] = ()  # why a GPU cannot load it
    compilers: tuple[str, ...] = ()  # that made its code objects

    @property
    def targets(self) -> frozenset[str]:
        """Targets with code; an entry without bytes does not count."""
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
    """Return whether these bytes may begin a bundle, even if they are shorter than a magic."""
    front = front[: len(PLAIN)]
    return bool(front) and (PLAIN.startswith(front) or (front[:4] == PACKED[: len(front[:4])]))


def parse(front: bytes, *, offset: int, room: int = 1 << 62) -> Bundle | None:
    """Read a bundle from its first `FRONT` bytes; None where there is no bundle with GPU code.

    Data that merely contains the magic (a compiler library does) fails one of the checks. A bundle
    that is longer than the `room` that its file has, or does not unpack to what its table says,
    has no objects.
    """
    inner, size, unpacked, name, damaged, header, digest = front, 0, 0, "", False, 0, ""
    if not front.startswith(PLAIN):
        if not front.startswith(PACKED) or len(front) < 32:  # noqa: PLR2004
            return None
        version, method = struct.unpack_from("<HH", front, 4)
        layout = _WRAPPERS.get(version)
        if layout is None or method > 1:
            return None
        *sizes, _hash = layout.unpack_from(front, 8)
        size, unpacked = sizes if len(sizes) > 1 else (0, sizes[0])
        name, header = "zstd" if method else "zlib", 8 + layout.size
        digest = front[header - 8 : header].hex()
        inner = _table(front[header : size or None], name)
        # Enough of a header that a damaged bundle is more likely than a text.
        damaged = not inner.startswith(PLAIN) and header < size < unpacked < 1 << 40
    rows = _entries(inner)
    end = max((at + length for at, length, _ in rows), default=0)
    if not name:
        size = unpacked = end
    objects = tuple(
        CodeObject(target=match[1], features=match[2], size=length, offset=at)
        for at, length, match in ((at, length, _DEVICE.match(text)) for at, length, text in rows)
        if match
    )
    if not objects and not damaged:
        return None
    objects = objects if size <= room and end <= unpacked else ()
    return Bundle(
        offset=offset,
        size=size,
        unpacked=unpacked,
        compression=name,
        objects=objects,
        header=header,
        digest=digest,
    )


def read(bundle: Bundle, data: bytearray) -> Bundle:
    """Unpack a bundle and check its code objects; `data` may be longer than the bundle."""
    problems: list[str] = []
    compilers: set[str] = set()
    try:
        pieces = _unpacked(memoryview(data)[bundle.header :], bundle.compression)
        digest, size = _walk(pieces, bundle, problems, compilers)
    except (zlib.error, OSError, ValueError) as exc:
        digest, size = "", -1
        problems.append(f"does not unpack ({exc})")
    if size >= 0 and bundle.compression and size != bundle.unpacked:
        problems.append(f"unpacks to {size} bytes, its header says {bundle.unpacked}")
    elif size >= 0 and bundle.digest and digest != bundle.digest:
        problems.insert(0, f"has MD5 {digest} unpacked, its header says {bundle.digest}")
    return replace(
        bundle, is_read=True, problems=tuple(problems), compilers=tuple(sorted(compilers))
    )


def _walk(
    pieces: Iterator[bytes], bundle: Bundle, problems: list[str], compilers: set[str]
) -> tuple[str, int]:
    """Check the code objects of a stream; return the digest and the size of all of it.

    Only one code object is in memory at a time.
    """
    digest, at, left = hashlib.md5(usedforsecurity=False), 0, bundle.unpacked
    objects = iter(sorted((x for x in bundle.objects if x.size), key=lambda item: item.offset))
    wanted, held = next(objects, None), bytearray()
    for piece in pieces:
        if (left := left - len(piece)) < 0:
            raise ValueError("more bytes than its header says")
        digest.update(piece)
        while wanted:
            low = max(wanted.offset + len(held) - at, 0)
            held += piece[low : wanted.offset + wanted.size - at]
            if len(held) < wanted.size:
                break
            try:
                view = memoryview(held)
                compilers.add(code_object.read(view, wanted.target, wanted.features))
            except code_object.CodeError as exc:
                problems.append(f"{wanted}: {exc}")
            following, held = next(objects, None), bytearray()
            if following and following.offset < wanted.offset + wanted.size:
                raise ValueError("code objects that overlap")
            wanted = following
            if wanted and wanted.size > OBJECT:
                raise ValueError(f"a code object of {wanted.size} bytes is more than is read")
        at += len(piece)
    if wanted:
        problems.append(f"{wanted}: is cut off")
    compilers.discard("")
    return digest.hexdigest()[:16], at


def _unpacked(body: memoryview, compression: str) -> Iterator[bytes]:
    import zstandard

    if compression == "zstd":
        with zstandard.ZstdDecompressor().stream_reader(body) as reader:
            yield from _pieces(reader, zstandard.ZstdError)
    elif compression:
        decompressor = zlib.decompressobj()
        piece = decompressor.decompress(body, STEP)
        while piece:
            yield piece
            piece = decompressor.decompress(decompressor.unconsumed_tail, STEP)
    else:
        yield from (bytes(body[at : at + STEP]) for at in range(0, len(body), STEP))


def _pieces(reader: Any, error: type[Exception]) -> Iterator[bytes]:
    try:
        yield from iter(lambda: reader.read(STEP), b"")
    except error as exc:
        raise ValueError(str(exc)) from None


def _table(body: bytes, compression: str) -> bytes:
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
