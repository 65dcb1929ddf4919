"""Reads from a stream what a shared object needs and offers, and where it looks for libraries.

`_Scan` is fed a file's bytes in order, once, and keeps only windows of it: the front, the dynamic
segment, the section table, and the front of every HIP bundle. For the few tables before the current
position, the file is fed again (`again`). NEEDED, SONAME and RUNPATH come from the dynamic segment,
as for the loader, not from section names. Format: System V gABI, chapter 5, and the GNU symbol
versioning of the LSB.
"""

from __future__ import annotations

import itertools
import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Final, NamedTuple

from rocwheel.base.values import Plain
from rocwheel.wheel import LIMITS, hip
from rocwheel.wheel.hip import HEADER, SECTION, SYMBOL

_Range = tuple[int, int]  # offsets in the file, the second one exclusive

MAGIC: Final = b"\x7fELF"
PJRT_ENTRY: Final = "GetPjrtApi"
MODULE_ENTRY: Final = "PyInit_"
GPU_MACHINE: Final = "amdgcn"  # a code object in a file of its own
MACHINES: Final = {62: "x86_64", 183: "aarch64", 3: "i686", 224: GPU_MACHINE}
FRONT: Final = 2 << 20  # bytes kept from the front: lld puts all dynamic tables there
WINDOW: Final = 32 << 20  # bytes one table may have
SEGMENTS: Final = 64  # of one file; linkers make 14
NAME: Final = 4096  # bytes of a library's name or a version's: PATH_MAX

_SEGMENT: Final = struct.Struct("<IIQQ8xQ16x")
_DYNAMIC: Final = struct.Struct("<qQ")
_NEED: Final = struct.Struct("<HHIII")
_AUX: Final = struct.Struct("<IHHII")
_DEFINITION: Final = struct.Struct("<HHHHIII")
_DT_NEEDED, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ, _DT_SONAME, _DT_RPATH = 1, 5, 6, 10, 14, 15
_DT_RUNPATH = 29
_DT_VERSYM, _DT_VERDEF, _DT_VERNEED = 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE
_SHT_DYNSYM, _SHT_VERDEF, _SHT_VERNEED = 11, 0x6FFFFFFD, 0x6FFFFFFE
_PT_LOAD, _PT_DYNAMIC, _PT_GNU_STACK = 1, 2, 0x6474E551
_WEAK: Final = 2
_GLOBAL_BINDINGS: Final = frozenset({1, _WEAK, 10})  # global, weak, GNU unique
_NO_VERSION: Final = itertools.repeat(1)
_VISIBLE: Final = frozenset({0, 3})  # default, protected
_VERSION: Final = re.compile(r"([A-Z]+)_([0-9]+(?:\.[0-9]+)*)\Z")
_RELR: Final = {"GLIBC_ABI_DT_RELR": "GLIBC_2.36"}  # the version that glibc got it in


class Segment(NamedTuple):
    """One program header."""

    type: int
    flags: int
    offset: int
    address: int
    filesz: int


class ElfError(Exception):
    """An ELF file whose headers cannot be right; the message says which."""


class Budget(Counter[str]):
    """The remaining size of tables of all ELF files of one wheel, by the field of `LIMITS`.

    Tables may overlap and may name one string a thousand times, so that a file of a few KB claims
    to hold gigabytes. The largest published wheel needs a hundredth of the limits.
    """

    def take(self, what: str, count: int) -> None:
        self[what] += count
        if self[what] > getattr(LIMITS, what):
            raise ElfError(f"tables with more {what.rpartition('_')[2]} than are read")


class ElfFacts(Plain, frozen=True, kw_only=True):
    """One ELF file of a wheel."""

    path: str
    size: int
    machine: str
    soname: str = ""
    needed: tuple[str, ...] = ()
    rpath: tuple[str, ...] = ()
    runpath: tuple[str, ...] = ()
    versions: Mapping[str, tuple[str, ...]] = {}  # SONAME -> versions
    exports: tuple[str, ...] = ()
    bundles: tuple[hip.Bundle, ...] = ()
    executable_stack: bool = False  # which newer glibc refuses
    wrappers: int = 0  # by which bundles are handed to HIP
    imports: Mapping[str, str] = {}  # name -> `library:version` that it wants, "" for no version
    defines: Mapping[str, str] = {}  # exported name -> its version, of libraries that have some

    def highest(self, prefix: str) -> tuple[int, ...]:
        """Return the highest needed version of `GLIBC`, `CXXABI` …; () for none."""
        names = itertools.chain.from_iterable(self.versions.values())
        parsed = (_VERSION.match(_RELR.get(name, name)) for name in names)
        numbers = (each[2].split(".") for each in parsed if each and each[1] == prefix)
        return max((tuple(map(int, number)) for number in numbers), default=())


class GpuCode:
    """Reads the bundles of one wheel, on all cores, up to a number of unpacked bytes."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._cores = os.cpu_count() or 1
        self._pool = ThreadPoolExecutor(self._cores)
        self._pending: list[Future[hip.Bundle]] = []

    def takes(self, bundle: hip.Bundle) -> bool:
        """Return whether a bundle is to be read, and count its unpacked size."""
        if not bundle.objects or bundle.unpacked > self._room:
            return False
        self._room -= bundle.unpacked
        return True

    def read(self, bundle: hip.Bundle, data: bytearray) -> Future[hip.Bundle]:
        """Read a bundle in a thread; wait first where each has one and another waits."""
        self._pending = [item for item in self._pending if not item.done()]
        if len(self._pending) > self._cores:
            wait(self._pending, return_when=FIRST_COMPLETED)
        self._pending.append(self._pool.submit(hip.read, bundle, data))
        return self._pending[-1]

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def scan(
    path: str,
    size: int,
    stream: Callable[[], Iterable[bytes]],
    *,
    budget: Budget | None = None,
    code: GpuCode | None = None,
) -> ElfFacts:
    """Return facts about a file; each call of `stream` gives its bytes from the first."""
    reading = _Scan(path, size, budget=Budget() if budget is None else budget, code=code)
    for piece in stream():
        reading.feed(piece)
    while missing := reading.again():
        for piece in stream():
            reading.feed(piece)
            missing -= len(piece)
            if missing <= 0:
                break
    if reading.facts is None:
        raise ElfError("tables that contradict each other")
    return reading.facts


class _Scan:
    """The facts of one ELF file, gathered while its bytes pass by.

    Feed every byte in order; then, while `again()` is not 0, feed that many from the first again;
    then take `facts`.
    """

    def __init__(self, path: str, size: int, *, budget: Budget, code: GpuCode | None) -> None:
        self.path = path
        self.size = size
        self._budget = budget
        self._code = code
        self._whole: list[tuple[hip.Bundle, bytearray, int]] = []  # that pass, and their sizes
        self._read: list[Future[hip.Bundle]] = []
        self._wrappers = 0
        self._tail = b""
        self._at = 0
        self._windows: dict[_Range, bytearray] = {}
        self._open: list[_Range] = []  # windows that are not full yet
        self._fronts: list[_Range] = []  # those of them that may hold the front of a bundle
        self._bundles: list[hip.Bundle] = []
        self._first_time = True
        self.facts: ElfFacts | None = None
        self._want((0, min(FRONT, size)))

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of the file. Raises ElfError when headers cannot be right."""
        start, end = self._at, self._at + len(piece)
        if self._first_time:
            self._spot_bundles(piece)
        full = False
        for window in self._open:
            low, high = max(window[0], start), min(window[1], end)
            if low < high:
                self._windows[window][low - window[0] : high - window[0]] = piece[
                    low - start : high - start
                ]
                full = full or high == window[1]
        self._at = end
        if full:
            self._open = [window for window in self._open if window[1] > end]
            self._read_fronts()
            if self._first_time:
                self._decode()
        if self._first_time:
            self._collect(piece, start)

    def again(self) -> int:
        """Return, at the end of the bytes, how many from the first must be fed once more."""
        if self._first_time:
            done = {bundle.offset: bundle for bundle in (item.result() for item in self._read)}
            self._bundles = [done.get(item.offset, item) for item in self._bundles]
        self._first_time = False
        self._at = 0
        self.facts = self._decode()
        return max((window[1] for window in self._open), default=0)

    def _want(self, window: _Range) -> None:
        start, end = window
        if not 0 <= start <= end <= self.size:
            raise ElfError(f"a table of {end - start} bytes at {start} in {self.size} bytes")
        if end - start > WINDOW:
            raise ElfError(f"a table of {end - start} bytes is more than is read")
        held = any(start >= low and end <= high for low, high in self._windows)
        if start == end or held or (self._first_time and start < self._at):
            return
        self._windows[window] = bytearray(end - start)
        self._open.append(window)

    def _get(self, start: int, size: int) -> memoryview:
        """Return bytes of the file; raises _LaterError when they have not passed (again) yet."""
        end = start + size
        self._want((start, end))
        for (low, high), data in self._windows.items():
            if low <= start and end <= high and (low, high) not in self._open:
                return memoryview(data)[start - low : end - low]
        if start == end:
            return memoryview(b"")
        raise _LaterError

    def _spot_bundles(self, piece: bytes) -> None:
        """Ask for the front of each place on a page boundary that begins like a bundle."""
        first = -self._at % hip.ALIGNMENT
        initials = piece[first :: hip.ALIGNMENT]
        for number, initial in enumerate(initials):
            if initial not in hip.INITIALS:
                continue
            at = first + number * hip.ALIGNMENT
            if hip.looks_like(piece[at : at + len(hip.PLAIN)]):
                self._budget.take("bundle_fronts", 1)
                start = self._at + at
                window = (start, min(start + hip.FRONT, self.size))
                self._windows[window] = bytearray(window[1] - window[0])
                self._open.append(window)
                self._fronts.append(window)

    def _collect(self, piece: bytes, at: int) -> None:
        """Add to the bundles that are read whole, and hand over those that are complete."""
        most = len(hip.WRAPPER) - 1
        near = self._tail + piece[:most]
        self._wrappers += near.count(hip.WRAPPER) + piece.count(hip.WRAPPER)
        self._tail = (near if len(piece) < most else piece)[-most:]
        for item in [*self._whole]:
            bundle, data, size = item
            start = bundle.offset + len(data) - at
            data += piece[start : start + size - len(data)]
            if len(data) >= size and self._code:
                self._whole.remove(item)
                self._read.append(self._code.read(bundle, data))

    def _read_fronts(self) -> None:
        for window in [item for item in self._fronts if item not in self._open]:
            self._fronts.remove(window)
            front = self._windows.pop(window)
            room = self.size - window[0]
            bundle = hip.parse(bytes(front), offset=window[0], room=room)
            if bundle:
                self._budget.take("code_objects", len(bundle.objects))
                self._bundles.append(bundle)
                if self._first_time and self._code and self._code.takes(bundle):
                    # version 1 of the wrapper does not say how long it is
                    size = bundle.size or min(room, bundle.unpacked + hip.FRONT)
                    self._whole.append((bundle, front[:size], size))

    def _decode(self) -> ElfFacts | None:
        try:
            return self._decoded()
        except _LaterError:
            return None
        except (struct.error, IndexError, UnicodeDecodeError) as exc:
            raise ElfError("a table that is cut off or leads outside the file") from exc

    def _decoded(self) -> ElfFacts:
        front = self._get(0, min(HEADER.size, self.size))
        machine, phoff, phnum, shoff, shnum = _header(front)
        segments = [
            Segment(*each) for each in _SEGMENT.iter_unpack(self._get(phoff, phnum * _SEGMENT.size))
        ]
        self._want((shoff, shoff + shnum * SECTION.size))
        loads = [item for item in segments if item.type == _PT_LOAD]
        dynamic = self._dynamic([item for item in segments if item.type == _PT_DYNAMIC])
        sections = self._get(shoff, shnum * SECTION.size)
        places = [
            self._described(sections, _SHT_VERNEED, dynamic.get(_DT_VERNEED), loads),
            self._described(sections, _SHT_VERDEF, dynamic.get(_DT_VERDEF), loads),
            self._described(sections, _SHT_DYNSYM, dynamic.get(_DT_SYMTAB), loads),
            (_offset(loads, dynamic.get(_DT_STRTAB, [0])[-1]), dynamic.get(_DT_STRSZ, [0])[-1]),
        ]
        count = places[2][1] // SYMBOL.size
        at = _offset(loads, dynamic.get(_DT_VERSYM, [0])[-1])
        places.append((at, count * 2 if at else 0))
        for start, size in places:  # what has passed, they wait for together
            self._want((start, start + size))
        needs, definitions, symbols, names, chosen = itertools.starmap(self._get, places)
        self._budget.take("elf_entries", shnum + count)
        strings = _Strings(bytes(names), self._budget)
        versions, numbers = _versions(needs, strings)
        numbers |= _definitions(definitions, strings)
        imports, defines = _symbols(symbols, strings, chosen, numbers)
        return ElfFacts(
            path=self.path,
            size=self.size,
            machine=machine,
            soname="".join(strings.at(value) for value in dynamic.get(_DT_SONAME, [])[-1:]),
            needed=tuple(strings.at(value) for value in dynamic.get(_DT_NEEDED, [])),
            rpath=_path_list(strings, dynamic.get(_DT_RPATH, [])[-1:]),
            runpath=_path_list(strings, dynamic.get(_DT_RUNPATH, [])[-1:]),
            versions=versions,
            exports=tuple(sorted(defines)),
            bundles=tuple(sorted(self._bundles, key=lambda bundle: bundle.offset)),
            executable_stack=any(x.type == _PT_GNU_STACK and x.flags & 1 for x in segments),
            wrappers=self._wrappers,
            imports=imports,
            defines=defines if any(defines.values()) else {},
        )

    def _described(
        self, sections: memoryview, kind: int, address: list[int] | None, loads: list[Segment]
    ) -> tuple[int, int]:
        if address is None:
            return 0, 0
        places = [(item[4], item[5]) for item in SECTION.iter_unpack(sections) if item[1] == kind]
        if len(places) > 1:
            raise ElfError("two sections where one can be used")
        if not places or places[0][0] != _offset(loads, address[-1]):
            raise ElfError("symbols or version needs that no section describes (was it stripped?)")
        return places[0]

    def _dynamic(self, segments: list[Segment]) -> dict[int, list[int]]:
        values: dict[int, list[int]] = {}
        if len(segments) > 1:
            raise ElfError("two dynamic segments")
        for segment in segments:
            raw = self._get(segment.offset, segment.filesz - segment.filesz % _DYNAMIC.size)
            if len(raw) > WINDOW // _DYNAMIC.size:
                raise ElfError("a dynamic segment that is larger than any")
            for tag, value in _DYNAMIC.iter_unpack(raw):
                if tag == 0:
                    break
                values.setdefault(tag, []).append(value)
        return values


class _LaterError(Exception):
    """Bytes are needed that have not passed yet."""


def _header(raw: memoryview) -> tuple[str, int, int, int, int]:
    if len(raw) < HEADER.size:
        raise ElfError("cut short in its header")
    ident, _, machine, _, _, phoff, shoff, _, *counts, _ = HEADER.unpack(raw)
    size, phsize, phnum, shsize, shnum = counts
    if ident[4] not in (1, 2) or ident[5] not in (1, 2):
        raise ElfError("a class or byte order that does not exist")
    if ident[4] == 1 or ident[5] == 2:  # noqa: PLR2004  # not 64 bits, or big-endian
        machine = int.from_bytes(raw[18:20], "big" if ident[5] == 2 else "little")  # noqa: PLR2004
        return MACHINES.get(machine, f"machine-{machine}"), 0, 0, 0, 0
    if size != HEADER.size or (phnum and phsize != _SEGMENT.size):
        raise ElfError("headers of a wrong size")
    if phnum > SEGMENTS:  # each is held against each
        raise ElfError(f"{phnum} segments are more than any library has")
    if (shnum and shsize != SECTION.size) or (shoff and not shnum):
        raise ElfError("a section table of a wrong size")
    return MACHINES.get(machine, f"machine-{machine}"), phoff, phnum, shoff, shnum


class _Strings:
    """A string table; reading it uses the wheel's budget."""

    def __init__(self, data: bytes, budget: Budget) -> None:
        self._data = data
        self._budget = budget

    def at(self, offset: int, *, limit: int = NAME) -> str:
        if not 0 <= offset < len(self._data):
            raise ElfError(f"a name outside its string table (at {offset})")
        end = self._data.find(b"\0", offset, offset + limit + 1)
        if end < 0:
            raise ElfError("a name without an end, or longer than any path")
        self._budget.take("elf_names", end - offset + 1)
        return self._data[offset:end].decode("utf-8", "backslashreplace")


def _offset(loads: list[Segment], address: int) -> int:
    if not address:
        return 0
    for item in loads:
        if item.address <= address < item.address + item.filesz:
            return address - item.address + item.offset
    raise ElfError(f"an address outside every segment ({address:#x})")


def _path_list(strings: _Strings, values: list[int]) -> tuple[str, ...]:
    """Return the entries of search paths; glibc takes an empty one for the current directory."""
    lists = [strings.at(value, limit=16 * NAME) for value in values]
    return tuple(part for text in lists if text for part in text.split(":"))


def _symbols(
    raw: memoryview, strings: _Strings, chosen: memoryview, numbers: Mapping[int, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the names that another library must define, and those that others may use.

    `chosen` has the number of each symbol's version, `numbers` the version of each number.
    """
    imports: dict[str, str] = {}
    exports: dict[str, str] = {}
    versions = itertools.chain((each for (each,) in struct.iter_unpack("<H", chosen)), _NO_VERSION)
    raw = raw[: len(raw) - len(raw) % SYMBOL.size]
    for number, fields in zip(versions, SYMBOL.iter_unpack(raw), strict=False):
        name, info, other, section, _, _ = fields
        if not name or info >> 4 not in _GLOBAL_BINDINGS:
            continue
        version = numbers.get(number & 0x7FFF, "")
        if section and other & 3 in _VISIBLE:
            exports[strings.at(name)] = version
        elif not section and info >> 4 != _WEAK:
            imports[strings.at(name)] = version
    return imports, exports


def _versions(
    raw: memoryview, strings: _Strings
) -> tuple[dict[str, tuple[str, ...]], dict[int, str]]:
    """Return SONAME -> the symbol versions needed of it, and `SONAME:version` by their numbers."""
    wanted: dict[str, list[str]] = {}
    numbers: dict[int, str] = {}
    left = len(raw) // _NEED.size  # records, of both kinds: they are equally long
    at = 0
    while raw:  # `following` only leads forward, so a chain ends or leaves the table
        _, count, file, aux, following = _NEED.unpack_from(raw, at)
        library = strings.at(file)
        names = wanted.setdefault(library, [])
        position = at + aux
        left -= count + 1
        if left < 0:
            raise ElfError("version needs that overlap")
        for _ in range(count):
            _, _, number, name, step = _AUX.unpack_from(raw, position)
            names.append(strings.at(name))
            numbers[number & 0x7FFF] = f"{library}:{names[-1]}"
            position += step
        if not following:
            break
        at += following
    return {library: tuple(sorted(names)) for library, names in wanted.items()}, numbers


def _definitions(raw: memoryview, strings: _Strings) -> dict[int, str]:
    numbers: dict[int, str] = {}
    at, left = 0, len(raw) // _DEFINITION.size
    while raw and left:
        _, _, number, _, _, aux, following = _DEFINITION.unpack_from(raw, at)
        (name,) = struct.unpack_from("<I", raw, at + aux)
        if number > 1:
            numbers[number & 0x7FFF] = strings.at(name)
        if not following:
            break
        at, left = at + following, left - 1
    return numbers
