"""The GPU code of a HIP fat binary: which GPUs it is for, and whether they can load it.

A bundle is clang's offload bundle (`__CLANG_OFFLOAD_BUNDLE__`, then a table of entries), alone or
inside a compressed wrapper (`CCOB`, versions 1 to 3, zlib or zstd). The table stands at the front,
so a compressed bundle of gigabytes is known after its first block (`parse`). The wrapper has the
first 8 bytes of the MD5 of what was compressed, so `read` knows every changed bit; it also checks
each code object. Format: clang's ClangOffloadBundler and HIPSupport documents; `hipv4-` is clang's
prefix up to AMD clang 23, `hip-` the one after.

A code object is an ELF file: `e_flags` say for which processor, a note says in MessagePack which
kernels it has and for which target, and each kernel has a descriptor of 64 bytes that leads to its
code (LLVM's AMDGPUUsage, code object V3 to V6, and llvm/BinaryFormat/ELF.h).
"""

import hashlib
import io
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Final, NamedTuple

import msgspec

from rocwheel.base.values import Plain, replace

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
# EF_AMDGPU_MACH of llvm/include/llvm/BinaryFormat/ELF.h, llvm-project 008d0233ac9b; gfx1250 and
# gfx1251 as later ones and published wheels have them.
MACH: Final[Mapping[str, int]] = {
    "gfx700": 0x22, "gfx701": 0x23, "gfx702": 0x24, "gfx703": 0x25, "gfx704": 0x26, "gfx705": 0x3B,
    "gfx801": 0x28, "gfx802": 0x29, "gfx803": 0x2A, "gfx805": 0x3C, "gfx810": 0x2B,
    "gfx900": 0x2C, "gfx902": 0x2D, "gfx904": 0x2E, "gfx906": 0x2F, "gfx908": 0x30, "gfx909": 0x31,
    "gfx90a": 0x3F, "gfx90c": 0x32, "gfx942": 0x4C, "gfx950": 0x4F,
    "gfx1010": 0x33, "gfx1011": 0x34, "gfx1012": 0x35, "gfx1013": 0x42,
    "gfx1030": 0x36, "gfx1031": 0x37, "gfx1032": 0x38, "gfx1033": 0x39, "gfx1034": 0x3E,
    "gfx1035": 0x3D, "gfx1036": 0x45,
    "gfx1100": 0x41, "gfx1101": 0x46, "gfx1102": 0x47, "gfx1103": 0x44,
    "gfx1150": 0x43, "gfx1151": 0x4A, "gfx1152": 0x55, "gfx1153": 0x58,
    "gfx1200": 0x48, "gfx1201": 0x4E, "gfx1250": 0x49, "gfx1251": 0x5A,
    "gfx9-generic": 0x51, "gfx9-4-generic": 0x5F, "gfx10-1-generic": 0x52,
    "gfx10-3-generic": 0x53, "gfx11-generic": 0x54, "gfx12-generic": 0x59,
}  # fmt: skip
# Bits of e_flags that a feature has since V4: where they are, and their value for `-` and `+`.
FEATURES: Final = {"xnack": (0x300, 0x200, 0x300), "sramecc": (0xC00, 0x800, 0xC00)}
EM_AMDGPU: Final = 224
OSABI_HSA: Final = 64
DESCRIPTOR: Final = 64  # bytes of a kernel descriptor
KERNELS: Final = 50_000  # of one code object
COMPILER: Final = re.compile(rb"[ -~]{0,40}clang version [ -~]{1,300}")
_TRIPLE: Final = re.compile(r"amdgcn-amd-amdhsa-[a-z0-9]*-")
HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION: Final = struct.Struct("<IIQQQQIIQQ")
SYMBOL: Final = struct.Struct("<IBBHQQ")
_NOTE: Final = struct.Struct("<III")
# Sizes, distance to the code, registers (COMPUTE_PGM_RSRC1), properties.
_DESCRIPTOR: Final = struct.Struct("<III4xq24xI4xH")
_WAVE32: Final = 1 << 10
_PAIRED: Final = frozenset({"gfx90a", "gfx942", "gfx950", "gfx9-4-generic"})
_VERSIONS: Final = {1: 0, 2: 1, 3: 2, 4: 2}  # ABI of code objects V3 to V6 -> of their metadata
_DYNSYM, _NOTES, _NOBITS, _PROGBITS = 11, 7, 8, 1
_METADATA: Final = (b"AMDGPU\0\0", 32)  # name and type of the note that has the kernels
_OBJECT, _FUNCTION = 1, 2
_EXECUTABLE: Final = 4


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
    kernels: tuple[str, ...] = ()  # that one of them has

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
        try:
            inner = _unpacking(front[header : size or None], name)(TABLE)
        except (zlib.error, ValueError):
            inner = b""
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
    kernels: set[str] = set()
    digest, size = hashlib.md5(usedforsecurity=False), 0
    try:
        body = memoryview(data)[bundle.header : bundle.size or None]
        for piece, item in _pieces(bundle, _unpacking(body, bundle.compression)):
            digest.update(piece)
            size += len(piece)
            if item is None:
                continue
            try:
                compiler, names = check_code(piece, item.target, item.features)
                compilers.add(compiler)
                kernels |= names
            except CodeError as exc:
                problems.append(f"{item}: {exc}")
            except (struct.error, LookupError, TypeError, ValueError):
                problems.append(f"{item}: has a table that is cut off or leads outside it")
    except (zlib.error, OSError, ValueError) as exc:
        problems.append(f"does not unpack ({exc})")
    else:
        stamp = digest.hexdigest()[:16]
        if bundle.compression and size != bundle.unpacked:
            problems.append(f"unpacks to {size} bytes, its header says {bundle.unpacked}")
        elif bundle.digest not in ("", stamp):
            problems.insert(0, f"has MD5 {stamp} unpacked, its header says {bundle.digest}")
    made_by = tuple(sorted(compilers - {""}))
    return replace(
        bundle,
        is_read=True,
        problems=tuple(problems),
        compilers=made_by,
        kernels=tuple(kernels),
    )


def _pieces(
    bundle: Bundle, unpack: Callable[[int], bytes]
) -> Iterator[tuple[bytes, CodeObject | None]]:
    """Yield all bytes in order: each code object in one piece, what lies between in several."""
    at = 0
    for item in sorted((x for x in bundle.objects if x.size), key=lambda item: item.offset):
        if item.offset < at:
            raise ValueError("code objects that overlap")
        if item.size > OBJECT:
            raise ValueError(f"a code object of {item.size} bytes is more than is read")
        while at < item.offset and (piece := unpack(min(STEP, item.offset - at))):
            yield piece, None
            at += len(piece)
        yield unpack(item.size), item
        at += item.size
    while piece := unpack(STEP):
        yield piece, None
        at += len(piece)
        if at > bundle.unpacked:
            raise ValueError("more bytes than its header says")


def _unpacking(body: memoryview | bytes, compression: str) -> Callable[[int], bytes]:
    """Return a function that unpacks so many more bytes, or what is left."""
    import zstandard

    if not compression:
        return io.BytesIO(body).read
    if compression == "zlib":
        inflate, rest = zlib.decompressobj(), [body]
        return lambda size: inflate.decompress(
            rest.pop() if rest else inflate.unconsumed_tail, size
        )
    reader = zstandard.ZstdDecompressor().stream_reader(body)

    def unpack(size: int) -> bytes:
        try:
            return reader.read(size)
        except zstandard.ZstdError as exc:
            raise ValueError(str(exc)) from None

    return unpack


def _entries(front: bytes) -> list[tuple[int, int, str]]:
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


class CodeError(Exception):
    """A code object that no GPU can load; the message says why."""


class _Kernel(msgspec.Struct, gc=False):
    name: str = msgspec.field(name=".name")
    symbol: str = msgspec.field(name=".symbol")
    group: int | None = msgspec.field(name=".group_segment_fixed_size", default=None)
    private: int | None = msgspec.field(name=".private_segment_fixed_size", default=None)
    arguments: int | None = msgspec.field(name=".kernarg_segment_size", default=None)
    wave: int | None = msgspec.field(name=".wavefront_size", default=None)
    registers: int = msgspec.field(name=".vgpr_count", default=0)


class _Metadata(msgspec.Struct):
    kernels: Annotated[list[_Kernel], msgspec.Meta(max_length=KERNELS)] = msgspec.field(
        name="amdhsa.kernels", default_factory=list
    )
    target: str = msgspec.field(name="amdhsa.target", default="")
    version: list[int] = msgspec.field(name="amdhsa.version", default_factory=list)


def check_code(data: bytes, target: str, features: str) -> tuple[str, frozenset[str]]:
    """Check a code object that is filed under a target; return its compiler and its kernels."""
    if bytes(data[:6]) != b"\x7fELF\x02\x01":
        raise CodeError("is not an ELF file" if any(data[:64]) else "is empty")
    ident, kind, machine, _, _, _, at, flags, *counts = HEADER.unpack_from(data)
    if machine != EM_AMDGPU or ident[7] != OSABI_HSA or kind != 3:  # noqa: PLR2004  # ET_DYN
        raise CodeError(f"is for machine {machine}, system {ident[7]}, not for AMD GPUs")
    if MACH.get(target, flags & 0xFF) != flags & 0xFF:
        other = next((name for name, mach in MACH.items() if mach == flags & 0xFF), "no known GPU")
        raise CodeError(f"is for {other} (e_flags {flags:#x})")
    if ident[8] >= 2:  # noqa: PLR2004  # V4 and later
        _check_features(features, flags)
    count = counts[4]
    sections = [SECTION.unpack_from(data, at + n * SECTION.size) for n in range(count)]
    if any(s[1] != _NOBITS and s[4] + s[5] > len(data) for s in sections):
        raise CodeError("is cut off")
    metadata = _metadata(data, sections)
    if metadata.target and _TRIPLE.sub("", metadata.target) != f"{target}{features}":
        raise CodeError(f"says it is for {metadata.target}")
    if metadata.version and metadata.version[1:] != [_VERSIONS.get(ident[8])]:
        raise CodeError(f"is of ABI {ident[8]}, its metadata of version {metadata.version}")
    _check_kernels(data, sections, metadata.kernels, target, executable=_executable(data))
    names = frozenset(kernel.name for kernel in metadata.kernels)
    name_of = memoryview(data)[sections[counts[5]][4] :] if count else b""
    for section in sections:
        if bytes(name_of[section[0] : section[0] + 9]) == b".comment\0":
            found = COMPILER.search(data[section[4] : section[4] + section[5]])
            return found[0].decode() if found else "", names
    return "", names


def _check_features(features: str, flags: int) -> None:
    stated = {item[:-1]: item[-1] for item in features.split(":") if item}
    for name, (mask, off, on) in FEATURES.items():
        wanted = {"+": on, "-": off}.get(stated.get(name, ""))
        fixed = flags & mask in (off, on)
        if (fixed or wanted) and flags & mask != wanted:
            raise CodeError(f"has another {name} than {features or 'none'} (e_flags {flags:#x})")


def _metadata(data: bytes, sections: list[tuple[int, ...]]) -> _Metadata:
    for section in sections:
        if section[1] != _NOTES:
            continue
        at, end = section[4], section[4] + section[5]
        while at < end:
            name_size, size, kind = _NOTE.unpack_from(data, at)
            name_at = at + _NOTE.size
            content = name_at + (name_size + 3) // 4 * 4
            if (bytes(data[name_at:content]), kind) == _METADATA:
                try:
                    return msgspec.msgpack.decode(data[content : content + size], type=_Metadata)
                except (msgspec.DecodeError, RecursionError) as exc:
                    raise CodeError(f"has metadata that cannot be read ({exc})") from None
            at = content + (size + 3) // 4 * 4
    raise CodeError("has no metadata")


def _check_kernels(
    data: bytes,
    sections: list[tuple[int, ...]],
    kernels: Iterable[_Kernel],
    target: str,
    *,
    executable: list[tuple[int, int]] | None,
) -> None:
    symbols = _symbols(data, sections)
    for kernel in kernels:
        descriptor, code = symbols.get(kernel.symbol), symbols.get(kernel.name)
        if descriptor is None or descriptor[1] & 15 != _OBJECT or descriptor[5] != DESCRIPTOR:
            raise CodeError(f"has no kernel descriptor {kernel.symbol}")
        if code is None or code[1] & 15 != _FUNCTION:
            raise CodeError(f"has no kernel {kernel.name}")
        *sizes, distance, registers, properties = _DESCRIPTOR.unpack_from(
            data, _place(sections, descriptor)
        )
        wave = 32 if properties & _WAVE32 else 64
        for stated, value in zip(
            (kernel.group, kernel.private, kernel.arguments, kernel.wave),
            (*sizes, wave),
            strict=True,
        ):
            if stated not in (None, value):
                what = f"has a descriptor of kernel {kernel.name} that says {value}"
                raise CodeError(f"{what} where the metadata says {stated}")
        # In which units registers are given to a kernel; it may get more than it uses.
        unit = 8 if wave == 32 or target in _PAIRED else 4  # noqa: PLR2004
        given = ((registers & 63) + 1) * unit * (2 if target.startswith("gfx125") else 1)
        if given < kernel.registers:
            what = f"has a descriptor of kernel {kernel.name} that gives it {given} registers"
            raise CodeError(f"{what}, the metadata says {kernel.registers}")
        if descriptor[4] + distance != code[4]:
            raise CodeError(f"has a descriptor that leads not to kernel {kernel.name}")
        start, size = _place(sections, code, flags=_EXECUTABLE), code[5]
        if (
            size
            and executable is not None
            and not any(low <= code[4] < high for low, high in executable)
        ):
            raise CodeError(f"does not load kernel {kernel.name} as code")
        # some kernels are empty on purpose
        if size and not data[start] and not any(data[start : start + size]):
            raise CodeError(f"has no instructions in kernel {kernel.name}")


def _executable(data: bytes) -> list[tuple[int, int]] | None:
    """Return the addresses that are loaded as code; None where none are listed."""
    at, count = struct.unpack_from("<Q16xH", data, 32)
    if not count:
        return None
    segments = (struct.unpack_from("<II8xQ16xQ", data, at + 56 * n) for n in range(count))
    return [(low, low + size) for kind, flags, low, size in segments if kind == 1 and flags & 1]


def _place(sections: list[tuple[int, ...]], symbol: tuple[int, ...], *, flags: int = 0) -> int:
    _, _, _, number, address, size = symbol
    _, kind, has, low, at, length, *_ = sections[number]
    if kind != _PROGBITS or has & flags != flags or not low <= address <= low + length - size:
        raise CodeError("has symbols that lead outside its sections")
    return address - low + at


def _symbols(data: bytes, sections: list[tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for section in sections:
        if section[1] == _DYNSYM:
            strings = sections[section[6]]
            names = data[strings[4] : strings[4] + strings[5]]
            table = data[section[4] : section[4] + section[5] - section[5] % SYMBOL.size]
            for symbol in SYMBOL.iter_unpack(table):
                if symbol[3]:
                    name = names[symbol[0] : names.index(b"\0", symbol[0])]
                    found[name.decode()] = symbol
    return found
