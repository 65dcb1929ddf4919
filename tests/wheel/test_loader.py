"""What glibc refuses, or dies of, is a problem of the file; what it loads is none: ld.so decides."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.wheels import make_elf

from rocwheel.wheel import elf

SOURCE = """
#include <math.h>
#include <stdio.h>
int data = 5; int *pointer = &data;
__attribute__((constructor)) static void begin(void) { data = 6; }
__attribute__((destructor)) static void end(void) { data = 7; }
void *PyInit_x(void) { printf("%f", cos(data)); return pointer; }
void *PyInit_data = &data;
"""
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SEGMENT = struct.Struct("<IIQQQQQQ")
LOAD, DYNAMIC, STACK, RELRO = 1, 2, 0x6474E551, 0x6474E552


class Image:
    """A shared object whose bytes are edited in place."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)

    def put(self, at: int, layout: str, *values: int) -> None:
        struct.pack_into(layout, self.data, at, *values)

    def segment(self, kind: int, nth: int = 0) -> int:
        """Return the offset of a program header."""
        count = struct.unpack_from("<H", self.data, 56)[0]
        heads = [64 + 56 * number for number in range(count)]
        return [at for at in heads if struct.unpack_from("<I", self.data, at)[0] == kind][nth]

    def offset(self, address: int) -> int:
        for nth in range(9):
            at = self.segment(LOAD, nth)
            _, _, offset, low, _, size, _, _ = SEGMENT.unpack_from(self.data, at)
            if low <= address < low + size:
                return address - low + offset
        raise AssertionError(address)

    def entry(self, tag: int) -> int:
        """Return the offset of an entry of the dynamic segment."""
        at = struct.unpack_from("<Q", self.data, self.segment(DYNAMIC) + 8)[0]
        while struct.unpack_from("<q", self.data, at)[0] != tag:
            assert struct.unpack_from("<q", self.data, at)[0], tag
            at += 16
        return at

    def table(self, tag: int) -> int:
        return self.offset(struct.unpack_from("<Q", self.data, self.entry(tag) + 8)[0])

    def symbol(self, name: bytes) -> int:
        """Return the offset of a dynamic symbol."""
        strings, at = self.table(5), self.table(6)
        while True:
            start = strings + struct.unpack_from("<I", self.data, at)[0]
            if self.data[start : start + len(name) + 1] == name + b"\0":
                return at
            at += 24


Edit = Callable[[Image], None]


def value(tag: int, number: int) -> Edit:
    return lambda image: image.put(image.entry(tag) + 8, "<Q", number)


def flag(tag: int, bits: int, *, instead: int) -> Edit:
    """Write an entry over one that the loader does not need."""
    return lambda image: image.put(image.entry(instead), "<qQ", tag, bits)


def drop(tag: int) -> Edit:
    return lambda image: image.put(image.entry(tag), "<qQ", 0x6FFFFDF5, 0)  # GNU_PRELINKED


def head(kind: int, field: int, number: int, nth: int = 0) -> Edit:
    """Change a 64-bit field of a program header, or its flags (field 1)."""
    at, layout = (4, "<I") if field == 1 else (8 * (field - 1), "<Q")
    return lambda image: image.put(image.segment(kind, nth) + at, layout, number)


def byte(at: int, number: int) -> Edit:
    return lambda image: image.put(at, "<B", number)


def half(at: int, number: int) -> Edit:
    return lambda image: image.put(at, "<H", number)


def symbol(at: int, layout: str, number: int) -> Edit:
    return lambda image: image.put(image.symbol(b"PyInit_x") + at, layout, number)


def need(at: int, layout: str, number: int) -> Edit:
    return lambda image: image.put(image.table(0x6FFFFFFE) + at, layout, number)


def _no_hash(image: Image) -> None:
    """Empty every bucket of DT_GNU_HASH."""
    at = image.table(0x6FFFFEF5)
    buckets, _, words, _ = struct.unpack_from("<4I", image.data, at)
    image.put(at + 16 + 8 * words, f"<{buckets}I", *[0] * buckets)


def _no_bloom(image: Image) -> None:
    at = image.table(0x6FFFFEF5)
    words = struct.unpack_from("<4I", image.data, at)[2]
    image.put(at + 16, f"<{words}Q", *[0] * words)


def _unneeded(image: Image) -> None:
    """Let the first version need be of a library that is not NEEDED."""
    at = image.table(0x6FFFFFFE)
    image.put(at + 4, "<I", struct.unpack_from("<I", image.data, image.symbol(b"PyInit_x"))[0])


def used(at: int, layout: str, number: int) -> Edit:
    """Change the symbol of a function that the C library defines."""
    return lambda image: image.put(image.symbol(b"printf") + at, layout, number)


def version(number: int) -> Edit:
    """Give that symbol the version of another number."""

    def edit(image: Image) -> None:
        nth = (image.symbol(b"printf") - image.table(6)) // 24
        image.put(image.table(0x6FFFFFF0) + 2 * nth, "<H", number)

    return edit


def shorter(tag: int) -> Edit:
    def edit(image: Image) -> None:
        at = image.entry(tag) + 8
        image.put(at, "<Q", struct.unpack_from("<Q", image.data, at)[0] - 1)

    return edit


def _longer(image: Image) -> None:
    """Let the versions of the first library be those of the second one, too; the count says no."""
    at = image.table(0x6FFFFFFE)
    image.put(at + 16 + 12, "<I", 32)


def relocation(tag: int, at: int, layout: str, number: int) -> Edit:
    """Change the last relocation of a table."""

    def edit(image: Image) -> None:
        length = struct.unpack_from("<Q", image.data, image.entry({7: 8, 23: 2}[tag]) + 8)[0]
        image.put(image.table(tag) + length - 24 + at, layout, number)

    return edit


# What ld.so does with each is asked of it, not written down here.
MUTANTS: dict[str, Edit] = {
    "nothing": lambda _: None,
    "the ABI of Linux": byte(7, 3),
    "the ABI of FreeBSD": byte(7, 9),
    "a version of the ABI": byte(8, 7),
    "something behind the ABI": byte(12, 1),
    "another version of ELF": lambda image: image.put(20, "<I", 2),
    "another version in front": byte(6, 2),
    "an object file": half(16, 1),
    "a program": half(16, 2),
    "a core dump": half(16, 4),
    "no segment to load": half(56, 0),
    "an odd alignment": head(LOAD, 7, 3),
    "an alignment below a page": head(LOAD, 7, 8),
    "no alignment": head(LOAD, 7, 0),
    "an offset that does not fit": head(LOAD, 2, 0x10, nth=1),
    "more memory than any": head(LOAD, 6, 1 << 46, nth=3),
    "less memory than file": head(LOAD, 6, 8, nth=3),
    "segments in another order": head(LOAD, 3, 0x8000000, nth=1),
    "a file that is too short": lambda image: image.data.__delitem__(slice(0x2000, None)),
    "a dynamic segment elsewhere": head(DYNAMIC, 3, 0x7000000),
    "a part to protect elsewhere": head(RELRO, 3, 0x7000000),
    "dynamic strings elsewhere": value(5, 0x7000000),
    "symbols elsewhere": value(6, 0x7000000),
    "relocations elsewhere": value(7, 0x7000000),
    "relocations without end": value(8, 0x700000 * 24),
    "relocations of another size": value(9, 16),
    "relocations of no size": drop(9),
    "relocations without a length": drop(8),
    "calls elsewhere": value(23, 0x7000000),
    "calls of another kind": value(20, 17),
    "constructors elsewhere": value(25, 0x7000000),
    "constructors without a length": drop(27),
    "a beginning elsewhere": value(12, 0x7000000),
    "a beginning in the data": lambda image: image.put(
        image.entry(12) + 8, "<Q", struct.unpack_from("<Q", image.data, image.entry(25) + 8)[0]
    ),
    "a hash table elsewhere": value(0x6FFFFEF5, 0x7000000),
    "no hash table": drop(0x6FFFFEF5),
    "a hash table without buckets": _no_hash,
    "a hash table without a filter": _no_bloom,
    "versions elsewhere": value(0x6FFFFFF0, 0x7000000),
    "version needs elsewhere": value(0x6FFFFFFE, 0x7000000),
    "version needs without versions": drop(0x6FFFFFF0),
    "version needs of another format": need(0, "<H", 2),
    "version needs of a wrong hash": need(16, "<I", 5),
    "version needs of another library": _unneeded,
    "a library that may not be opened": flag(0x6FFFFFFB, 0x40, instead=0x6FFFFFF9),
    "a program like a library": flag(0x6FFFFFFB, 0x8000001, instead=0x6FFFFFF9),
    "an entry that is no code": symbol(8, "<Q", 0x7000000),
    "an entry at 0": symbol(8, "<Q", 0),
    "an entry that is not defined": symbol(6, "<H", 0),
    "an absolute entry": symbol(6, "<H", 0xFFF1),
    "a local entry": symbol(4, "<B", 0x02),
    "a hidden entry": symbol(5, "<B", 2),
    "an entry that says it is data": symbol(4, "<B", 0x11),
    "an entry that finds itself": symbol(4, "<B", 0x1A),
    "constructors in the headers": value(25, 8),
    "destructors in the headers": value(26, 8),
    "headers that cannot be read": head(LOAD, 1, 0),
    "a weak entry": symbol(4, "<B", 0x22),
    "another name of the entry": symbol(0, "<I", 1),
    "a used name outside the strings": used(0, "<I", 0xFFFFF000),
    "a used name that is local": used(4, "<B", 0x02),
    "a used name that is hidden": used(5, "<B", 2),
    "a used name of no version": version(99),
    "versions of two libraries in one": _longer,
    "relocations that end within an entry": shorter(8),
    "calls that end within an entry": shorter(2),
    "constructors that end within an entry": shorter(27),
    "a length without relocations": drop(7),
    "a relocation outside": relocation(7, 0, "<Q", 0x7000000),
    "a relocation of code": relocation(7, 0, "<Q", 0x1000),
    "a relocation of no type": relocation(7, 8, "<I", 99),
    "a relocation by no symbol": relocation(7, 12, "<I", 1 << 24),
    "a call from outside": relocation(23, 0, "<Q", 0x7000000),
    "a call from code": relocation(23, 0, "<Q", 0x1000),
    "a call of no symbol": relocation(23, 12, "<I", 1 << 24),
}  # fmt: skip
# What does not fail here and now, but is refused for a reason.
STRICTER = {
    "less memory than file": "the kernel pads it, another may not",
    "an alignment below a page": "newer glibc loads it",
    "an odd alignment": "newer glibc loads it",
    "no alignment": "newer glibc loads it",
    "a part to protect elsewhere": "another library may lie there",
    "an entry that is not defined": "dlsym() gives what stands there",
    "an absolute entry": "it is not moved with the library, so a call leads anywhere",
    "an entry that is no code": "dlsym() finds it, a call dies",
    "an entry that finds itself": "what the entry returns is called",
    "destructors in the headers": "the process dies when it ends",
    "something behind the ABI": "glibc checked it until 2.40",
    "a beginning in the data": "the call dies",
    "segments in another order": "memory may lie there",
    "a used name that is local": "a call of it dies",
    "a used name of no version": "what lies behind the table decides",
    "a used name that is hidden": "a call of it dies",
    "versions of two libraries in one": "the other library may lack the version",
    "relocations that end within an entry": "the last one is not applied",
    "calls that end within an entry": "the last one is not applied",
    "constructors that end within an entry": "the last one is not run",
}


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> bytes:
    """A library as a compiler makes it, with tables of every kind."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("library")
    (folder / "x.c").write_text(SOURCE)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wl,--hash-style=gnu,-z,lazy,-z,separate-code",
         "-o", folder / "x.so", folder / "x.c", "-Wl,--no-as-needed", "-lm"],
        check=True,
    )  # fmt: skip
    return (folder / "x.so").read_bytes()


LOADER = """
import ctypes, os, sys
for path in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            entry = ctypes.CDLL(path, mode=os.RTLD_NOW).PyInit_x
            os._exit(0 if ctypes.cast(entry, ctypes.c_void_p).value else 1)
        except BaseException:
            os._exit(1)  # the child must never return
    print(int(os.waitpid(child, 0)[1] == 0))
"""


def loads(*paths: Path) -> list[bool]:
    """Return whether ld.so loads each library and finds its entry.

    Asked in a process of its own: what this one has mapped and loaded by now would count, too.
    """
    program = [sys.executable, "-I", "-S", "-c", LOADER, *map(str, paths)]
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    return [line == "1" for line in done.stdout.splitlines()]


def is_sound(image: bytes) -> bool:
    try:
        facts = elf.scan("x.so", len(image), lambda: [image])
    except elf.ElfError:
        return False
    return not facts.problems and "PyInit_x" in facts.exports


def test_what_the_loader_refuses_is_a_problem_and_nothing_else_is(
    library: bytes, tmp_path: Path
) -> None:
    images = {title: Image(library) for title in MUTANTS}
    paths = [tmp_path / f"{number}.so" for number in range(len(images))]
    for path, (title, image) in zip(paths, images.items(), strict=True):
        MUTANTS[title](image)
        path.write_bytes(image.data)
    sound = [is_sound(bytes(image.data)) for image in images.values()]
    verdicts = dict(zip(images, zip(loads(*paths), sound, strict=True), strict=True))
    assert verdicts["nothing"] == (True, True)
    assert sum(not loaded for loaded, _ in verdicts.values()) > 30
    assert [title for title, (loaded, sound) in verdicts.items() if sound and not loaded] == []
    strict = {title for title, (loaded, sound) in verdicts.items() if loaded and not sound}
    # What the loader finds "elsewhere" is what this process happens to have mapped there.
    by_chance = {title for title in MUTANTS if title.endswith("elsewhere")}
    assert sorted(strict - STRICTER.keys() - by_chance) == []


def test_the_wheels_of_these_tests_have_libraries_that_load(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(make_elf(versions={"libc.so.6": ("GLIBC_2.17",)}, exports=("PyInit_x",)))
    assert loads(path) == [True]
    assert is_sound(path.read_bytes())


# What a newer glibc refuses, or what loads code that `verify` does not see.
@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (head(STACK, 1, 7), "an executable stack"),
        (lambda image: image.put(image.segment(STACK), "<I", 0), "an executable stack"),
        (flag(0x7FFFFFFF, 1, instead=0x6FFFFFF9), "DT_FILTER"),
        (flag(0x7FFFFFFD, 1, instead=0x6FFFFFF9), "DT_AUXILIARY"),
        (flag(22, 0, instead=0x6FFFFFF9), "DT_TEXTREL"),
        (flag(12, 0x1000, instead=0x6FFFFFF9), "dynamic entry 0xc twice"),
    ],
)
def test_what_loads_here_but_not_everywhere_is_a_problem(
    library: bytes, edit: Edit, problem: str
) -> None:
    image = Image(library)
    edit(image)
    facts = elf.scan("x.so", len(image.data), lambda: [bytes(image.data)])
    assert any(text.startswith(problem) for text in facts.problems)
