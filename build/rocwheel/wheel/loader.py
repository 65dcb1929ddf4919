"""What glibc demands of a shared object before `dlopen` succeeds: one table of rules.

The loader checks little and trusts the rest: a table outside its segment ends the process. So each
rule here is a refusal or a crash of ld.so (glibc 2.36, elf/dl-load.c, elf/dl-version.c,
elf/get-dynamic-info.h, sysdeps/x86_64/dl-machine.h); `tests/wheel/test_loader.py` holds them
against the real one. What the code does, and what its relocations write, is not looked at.
"""

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

PT_LOAD: Final = 1
PT_DYNAMIC: Final = 2
PT_GNU_STACK: Final = 0x6474E551
PT_GNU_RELRO: Final = 0x6474E552
DT_GNU_HASH: Final = 0x6FFFFEF5
_X, _W, _R = 1, 2, 4  # flags of a segment
_PLACED: Final = frozenset({0, 1, 5, 6, 7, 8, 16, 17, 18, 36, 37})  # R_X86_64_…, as ld.so has them
PAGE: Final = 4096
SPAN: Final = 4 << 30  # bytes of address space; code cannot reach further than 2 GiB

# Tables that the loader reads: tag -> name, tag of their size, bytes of an entry, or of the first.
_TABLES: Final = {
    5: ("DT_STRTAB", 10, 1), 6: ("DT_SYMTAB", 0, 24), 7: ("DT_RELA", 8, 24),
    23: ("DT_JMPREL", 2, 24), 25: ("DT_INIT_ARRAY", 27, 8), 26: ("DT_FINI_ARRAY", 28, 8),
    36: ("DT_RELR", 35, 8), 0x6FFFFFF0: ("DT_VERSYM", 0, 2), 0x6FFFFFFC: ("DT_VERDEF", 0, 20),
    0x6FFFFFFE: ("DT_VERNEED", 0, 16), DT_GNU_HASH: ("DT_GNU_HASH", 0, 16),
}  # fmt: skip
_WRITTEN: Final = (25, 26)  # where addresses of functions are relocated
RELOCATIONS: Final = ((7, 8), (23, 2))  # tag, tag of its size
_CODE: Final = {12: "DT_INIT", 13: "DT_FINI"}
# tag -> the one value that it may have; with the tag on the right it must be there.
_FIXED: Final = {
    9: ("DT_RELAENT", 24, 7), 11: ("DT_SYMENT", 24, 6), 20: ("DT_PLTREL", 7, 23),
    37: ("DT_RELRENT", 8, 36),
}  # fmt: skip
_BOTH: Final = {0x6FFFFFFE: ("DT_VERNEED without DT_VERSYM", 0x6FFFFFF0)}
_NEVER: Final = {
    0x7FFFFFFF: "DT_FILTER", 0x7FFFFFFD: "DT_AUXILIARY", 0x6FFFFEFC: "DT_AUDIT",
    0x6FFFFEFB: "DT_DEPAUDIT", 22: "DT_TEXTREL",
}  # fmt: skip
_FLAGS: Final = {
    (30, 0x4): "DF_TEXTREL", (0x6FFFFFFB, 0x40): "DF_1_NOOPEN", (0x6FFFFFFB, 0x8000000): "DF_1_PIE",
}  # fmt: skip


class Segment(NamedTuple):
    """One program header."""

    type: int
    flags: int
    offset: int
    address: int
    physical: int
    filesz: int
    memsz: int
    align: int

    def holds(self, address: int, size: int) -> bool:
        """Return whether these bytes of memory come from the file."""
        return self.address <= address and address + size <= self.address + self.filesz


def problems(
    identity: tuple[bytes, int, int],
    segments: Sequence[Segment],
    dynamic: Mapping[int, Sequence[int]],
    size: int,
) -> Iterator[str]:
    """Yield why glibc cannot load a file; `identity` is its e_ident, e_type and e_version."""
    ident, kind, version = identity
    if kind != 3 or version != 1:  # noqa: PLR2004
        yield f"no shared object (type {kind}, version {version})"
    if ident[6] != 1 or ident[7] not in (0, 3) or any(ident[8:]):
        yield f"made for another system ({ident[6:].hex(' ')})"
    loads = [item for item in segments if item.type == PT_LOAD]
    yield from _loads(loads, size)
    yield from _others(segments, loads)
    yield from _dynamic(dynamic, loads)


def _loads(loads: Sequence[Segment], size: int) -> Iterator[str]:
    end = 0
    for item in loads:
        if item.align % PAGE or item.align & (item.align - 1) or not item.align:
            yield f"a segment aligned to {item.align:#x}"
        elif (item.address - item.offset) % item.align:
            yield "a segment whose address and offset do not fit"
        if item.offset + item.filesz > size or item.filesz > item.memsz:
            yield "a segment that the file does not fill"
        if item.address < end // PAGE * PAGE or item.address + item.memsz > SPAN:
            yield "segments that overlap, or that no address space holds"
        end = item.address + item.memsz
    if not loads:
        yield "no segment to load"


def _others(segments: Sequence[Segment], loads: Sequence[Segment]) -> Iterator[str]:
    stacks = [item.flags for item in segments if item.type == PT_GNU_STACK]
    if not stacks or stacks[-1] & _X:
        yield "an executable stack, which newer glibc refuses"
    for item in segments:
        if item.type == PT_DYNAMIC and not any(
            each.flags & _W
            and each.holds(item.address, item.filesz)
            and each.address - each.offset == item.address - item.offset
            for each in loads
        ):
            yield "a dynamic segment that is not in memory to write to"
        if item.type == PT_GNU_RELRO and not any(
            each.address <= item.address
            and item.address + item.memsz <= each.address + each.memsz + PAGE
            for each in loads
        ):
            yield "a part to be made read-only that is no part of it"


def _dynamic(dynamic: Mapping[int, Sequence[int]], loads: Sequence[Segment]) -> Iterator[str]:
    if 5 not in dynamic or 6 not in dynamic:  # noqa: PLR2004
        yield "no dynamic strings or symbols"
    if DT_GNU_HASH not in dynamic:
        yield "no DT_GNU_HASH, in which dlsym() finds names"
    yield from (f"dynamic entry {tag:#x} twice" for tag, x in dynamic.items() if len(x) > 1 < tag)
    last = {tag: values[-1] for tag, values in dynamic.items()}
    for tag, (name, sized_by, least) in _TABLES.items():
        need = last.get(sized_by, SPAN) if sized_by else least
        flags = _W if tag in _WRITTEN else _R
        if tag in last and not any(x.flags & flags and x.holds(last[tag], need) for x in loads):
            yield f"{name} outside the file"
        if last.get(sized_by, 0) % least or (sized_by in last and tag not in last):
            yield f"{name} is missing, or ends within an entry"
    for tag, name in _CODE.items():
        if tag in last and not any(item.flags & _X and item.holds(last[tag], 1) for item in loads):
            yield f"{name} is no code"
    for tag, (name, value, owner) in _FIXED.items():
        if owner in last and last.get(tag) != value:
            yield f"{name} is {last.get(tag, 'missing')}"
    yield from (text for tag, (text, other) in _BOTH.items() if tag in last and other not in last)
    yield from (name for tag, name in _NEVER.items() if tag in last)
    yield from (name for (tag, bit), name in _FLAGS.items() if last.get(tag, 0) & bit)


def misplaced(table: memoryview, symbols: int, segments: Iterable[Segment]) -> Iterator[str]:
    """Yield what is wrong with a table of relocations (DT_RELA, DT_JMPREL) of x86-64.

    Only the ends are compared: a table of 400,000 entries takes as long as hashing its library.
    """
    writable = [item for item in segments if item.type == PT_LOAD and item.flags & _W]
    ends = [end for item in writable for end in (item.address, item.address + item.memsz - 8)]
    places, types, symbols_of = table.cast("Q")[::3], table.cast("I")[2::6], table.cast("I")[3::6]
    if not ends or min(places) < min(ends) or max(places) > max(ends):
        yield "a relocation of what cannot be written to"
    if max(symbols_of) >= max(symbols, 1):
        yield "a relocation by a symbol that there is not"
    if not _PLACED.issuperset(types):
        yield "a relocation of a type that ld.so does not know"


def sysv_hash(name: bytes) -> int:
    """Return the hash of the System V gABI, which symbol versions have too."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        value = (value ^ (value >> 24 & 0xF0)) & 0x0FFFFFFF
    return value


def gnu_hash(name: bytes) -> int:
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


def lookup(table: memoryview, name: bytes) -> Iterator[int]:
    """Yield symbols that dlsym() tries in DT_GNU_HASH by number, -1 for those of other names."""
    value = gnu_hash(name)
    if not table:
        return
    buckets, first, words, shift = struct.unpack_from("<4I", table)
    if not buckets or not words or words & (words - 1):
        return
    (bloom,) = struct.unpack_from("<Q", table, 16 + value // 64 % words * 8)
    if not bloom >> value % 64 & bloom >> (value >> shift) % 64 & 1:
        return
    chains = 16 + 8 * words + 4 * buckets
    (number,) = struct.unpack_from("<I", table, 16 + 8 * words + value % buckets * 4)
    while first <= number < first + (len(table) - chains) // 4:
        (link,) = struct.unpack_from("<I", table, chains + (number - first) * 4)
        yield number if link | 1 == value | 1 else -1
        if link & 1:
            return
        number += 1
