"""Checks one AMD GPU code object by its own tables: what the GPU's loader and HIP demand of it.

A code object is an ELF file: `e_flags` say for which processor, a note says in MessagePack which
kernels it has and for which target, and each kernel has a descriptor of 64 bytes that leads to its
code. Formats: LLVM's AMDGPUUsage (code object V3 to V6) and llvm/BinaryFormat/ELF.h.
"""

import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

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
ENTRY_AT: Final = 16  # where it has the distance to the kernel's code
KERNELS: Final = 50_000  # of one code object
COMPILER: Final = re.compile(rb"[ -~]{0,40}clang version [ -~]{1,300}")
_TRIPLE: Final = re.compile(r"amdgcn-amd-amdhsa-[a-z0-9]*-")
_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_NOTE: Final = struct.Struct("<III")
_DYNSYM, _NOTES, _NOBITS, _PROGBITS = 11, 7, 8, 1
_METADATA: Final = (b"AMDGPU\0\0", 32)  # name and type of the note that has the kernels
_OBJECT, _FUNCTION = 1, 2
_EXECUTABLE: Final = 4


class CodeError(Exception):
    """A code object that no GPU can load; the message says why."""


def read(data: memoryview, target: str, features: str) -> str:
    """Check a code object that is filed under a target; return its compiler, "" for none.

    Raises CodeError.
    """
    try:
        return _read(data, target, features)
    except (struct.error, LookupError, TypeError, ValueError) as exc:
        raise CodeError(f"has a broken table ({exc})") from None


def _read(data: memoryview, target: str, features: str) -> str:
    if bytes(data[:6]) != b"\x7fELF\x02\x01":
        raise CodeError("is no ELF file" if any(data[:64]) else "is empty")
    ident, kind, machine, _, _, _, at, flags, *counts = _HEADER.unpack_from(data)
    if machine != EM_AMDGPU or ident[7] != OSABI_HSA or kind != 3:  # noqa: PLR2004  # ET_DYN
        raise CodeError(f"is for machine {machine}, system {ident[7]}, not for AMD GPUs")
    if MACH.get(target, flags & 0xFF) != flags & 0xFF:
        other = next((name for name, mach in MACH.items() if mach == flags & 0xFF), "no known GPU")
        raise CodeError(f"is for {other} (e_flags {flags:#x})")
    if ident[8] >= 2:  # noqa: PLR2004  # V4 and later
        _check_features(features, flags)
    count = counts[4]
    sections = [_SECTION.unpack_from(data, at + n * _SECTION.size) for n in range(count)]
    if any(s[1] != _NOBITS and s[4] + s[5] > len(data) for s in sections):
        raise CodeError("is cut off")
    metadata = _metadata(data, sections)
    stated = str(metadata.get("amdhsa.target", ""))
    if stated and _TRIPLE.sub("", stated) != f"{target}{features}":
        raise CodeError(f"says it is for {stated}")
    _check_kernels(data, sections, metadata)
    name_of = memoryview(data)[sections[counts[5]][4] :] if count else b""
    for section in sections:
        if bytes(name_of[section[0] : section[0] + 9]) == b".comment\0":
            found = COMPILER.search(data[section[4] : section[4] + section[5]])
            return found[0].decode() if found else ""
    return ""


def _check_features(features: str, flags: int) -> None:
    stated = {item[:-1]: item[-1] for item in features.split(":") if item}
    for name, (mask, off, on) in FEATURES.items():
        wanted = {"+": on, "-": off}.get(stated.get(name, ""))
        fixed = flags & mask in (off, on)
        if (fixed or wanted) and flags & mask != wanted:
            raise CodeError(f"has another {name} than {features or 'none'} (e_flags {flags:#x})")


def _metadata(data: memoryview, sections: list[tuple[int, ...]]) -> Mapping[str, Any]:
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
                    found = msgspec.msgpack.decode(data[content : content + size])
                except (msgspec.DecodeError, RecursionError) as exc:
                    raise CodeError(f"has metadata that cannot be read ({exc})") from None
                if not isinstance(found, dict):
                    raise CodeError("has metadata that is no map")
                return found
            at = content + (size + 3) // 4 * 4
    raise CodeError("has no metadata")


def _check_kernels(
    data: memoryview, sections: list[tuple[int, ...]], metadata: Mapping[str, Any]
) -> None:
    kernels = metadata.get("amdhsa.kernels", [])
    if not isinstance(kernels, list) or len(kernels) > KERNELS:
        raise CodeError("has metadata without a list of kernels")
    symbols = dict(_symbols(data, sections))
    for kernel in kernels:
        name, symbol = kernel[".name"], kernel[".symbol"]
        descriptor, code = symbols.get(symbol), symbols.get(name)
        if descriptor is None or descriptor[0] != _OBJECT or descriptor[3] != DESCRIPTOR:
            raise CodeError(f"has no kernel descriptor {symbol}")
        if code is None or code[0] != _FUNCTION:
            raise CodeError(f"has no kernel {name}")
        place = _place(sections, descriptor[1], descriptor[2], DESCRIPTOR)
        (distance,) = struct.unpack_from("<q", data, place + ENTRY_AT)
        if descriptor[2] + distance != code[2]:
            raise CodeError(f"has a descriptor that leads not to kernel {name}")
        start = _place(sections, code[1], code[2], code[3], flags=_EXECUTABLE)
        if code[3] and not any(data[start : start + code[3]]):  # some kernels are empty on purpose
            raise CodeError(f"has no instructions in kernel {name}")


def _place(
    sections: list[tuple[int, ...]], number: int, address: int, size: int, *, flags: int = 0
) -> int:
    """Return where in the file a section has bytes of memory."""
    section = sections[number]
    inside = section[3] <= address and address + size <= section[3] + section[5]
    if section[1] != _PROGBITS or section[2] & flags != flags or not inside:
        raise CodeError("has symbols that lead outside its sections")
    return address - section[3] + section[4]


def _symbols(
    data: memoryview, sections: list[tuple[int, ...]]
) -> Iterator[tuple[str, tuple[int, int, int, int]]]:
    """Yield the dynamic symbols: name -> type, section, address, size."""
    for section in sections:
        if section[1] != _DYNSYM:
            continue
        names = data[sections[section[6]][4] :][: sections[section[6]][5]]
        text = bytes(names)
        table = data[section[4] : section[4] + section[5] - section[5] % _SYMBOL.size]
        for name, info, _, number, address, size in _SYMBOL.iter_unpack(table):
            if number:
                end = text.index(b"\0", name)
                yield text[name:end].decode(), (info & 15, number, address, size)
