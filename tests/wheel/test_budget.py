"""What a small hostile wheel may cost and say: every command that reads wheels, on all we have.

The promise is 256 MiB, and 2 s besides four times the time to read and inflate the wheel; each
command runs in a process that gets five times that and is killed by the kernel beyond it. No
command ends in a traceback or shows what a terminal would obey, and no wheel forges a line.
"""

from __future__ import annotations

import io
import json
import math
import os
import resource
import struct
import subprocess
import sys
import traceback
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import pytest
from support import odd, wheels
from support.hostile import CORPUS, NAME
from support.odd import FORGED
from support.tiers import merge_tries
from support.wheels import Entry, File, Wheel, Zip, deflated

from rocwheel.cli import main

pytestmark = pytest.mark.integration

MIB = 1 << 20
SECONDS = 20  # ten times two
MEMORY = 5 * 256 * MIB


def elf(
    *,
    strings: bytes = b"\0",
    dynamic: Iterable[tuple[int, int]] = (),
    symbols: bytes = b"",
    needs: bytes = b"",
    sections: Sequence[tuple[int, int, int]] = (),
    tail: bytes = b"",
) -> bytes:
    """A shared object with these tables one after the other; `sections` (kind, offset, size)."""
    at = 64 + 2 * 56
    strings_at = at
    symbols_at = strings_at + len(strings)
    needs_at = symbols_at + len(symbols)
    entries = [*dynamic, (5, strings_at), (10, len(strings))]
    entries += [(0x6FFFFFFE, needs_at)] if needs else []
    raw = b"".join(struct.pack("<qQ", *entry) for entry in [*entries, (0, 0)])
    dynamic_at = needs_at + len(needs)
    sections_at = dynamic_at + len(raw)
    rows = list(sections) or [(0, 0, 0), (11, symbols_at, len(symbols))]
    rows += [(0x6FFFFFFE, needs_at, len(needs))] if needs else []
    table = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, 2, offset, offset, size, 0, 0, 1, 24)
        for kind, offset, size in rows
    )
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1" + bytes(9), 3, 62, 1, 0, 64, sections_at, 0, 64,
        56, 2, 64, len(rows), 0,
    )  # fmt: skip
    total = sections_at + len(table) + len(tail)
    segments = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, total, total, 4096)
    segments += struct.pack(
        "<IIQQQQQQ", 2, 6, dynamic_at, dynamic_at, dynamic_at, len(raw), len(raw), 8
    )
    return header + segments + strings + symbols + needs + raw + table + tail


def symbol(name: int) -> bytes:
    return struct.pack("<IBBHQQ", name, 0x12, 0, 1, 0x40, 0)


def need(count: int, *, aux: int, following: int) -> bytes:
    return struct.pack("<HHIII", 1, count, 1, aux, following)


def of(*files: bytes) -> bytes:
    members = {f"demo/x{number}.so": File(data, mode=0o755) for number, data in enumerate(files)}
    return Zip(wheels.entries(Wheel(files=members))).to_bytes()


def with_text(name: str, content: bytes) -> bytes:
    members = wheels.entries(Wheel(files={"demo/__init__.py": File()}))
    for member in members:
        if member.name.decode() == f"demo-1.0.dist-info/{name}":
            member.content = content
    return Zip(members).to_bytes()


def with_module(name: str, content: bytes) -> bytes:
    return Zip(wheels.entries(Wheel(files={f"demo/{name}": File(content)}))).to_bytes()


def many_members(count: int) -> bytes:
    """So many empty members that a 16-bit count of them begins again from 0."""
    empty = [Entry(f"d/{number:x}".encode(), method=0) for number in range(count)]
    return Zip([*empty, *wheels.entries(Wheel())], count=(count + 3) & 0xFFFF).to_bytes()


def beside(members: Iterable[Entry]) -> bytes:
    """A sound wheel with more members."""
    return Zip([*wheels.entries(Wheel()), *members]).to_bytes()


def alike(names: Iterable[str], content: bytes) -> bytes:
    """Members of one content, which is packed once."""
    packed, crc = deflated(content), zlib.crc32(content)
    return beside(Entry(name.encode(), packed=packed, size=len(content), crc=crc) for name in names)


def empty(names: Iterable[str]) -> bytes:
    return beside(Entry(name.encode(), method=0) for name in names)


def commits(count: int) -> bytes:
    """So many modules that say of which commits they are, after texts that could be names."""
    line = b"a" * 99 + b"'" + b"0123456789" * 4 + b"'\n"
    return alike(
        (f"demo/{number}/commit_info.py" for number in range(count)),
        line * ((60 << 10) // len(line)),
    )


def brackets(count: int) -> bytes:
    """So many requirements whose markers have 150 brackets each."""
    marker = "(" * 150 + "python_version>'3'" + ")" * 150
    made = Wheel(requires=tuple(f"x{number}; {marker}" for number in range(count)))
    return Zip(wheels.entries(made)).to_bytes()


def sboms(count: int) -> bytes:
    """Return a wheel with lists of components that all have other names."""
    made = Wheel()
    files = {}
    for number in range(count):
        parts = b",".join(b'{"name":"%x"}' % (number << 16 | n) for n in range(13_000))
        content = b'{"bomFormat":"CycloneDX","components":[%s]}' % parts
        files[f"{made.dist_info}/sboms/{number}.json"] = wheels.File(content)
    return Zip(wheels.entries(made.but(files=files))).to_bytes()


def source(content: bytes) -> bytes:
    """A plugin with this Python file."""
    made = wheels.plugin(version="1.0", tag="cp312-cp312-manylinux_2_28_x86_64")
    files = {**made.files, "jax_rocm7_plugin/x.py": File(content)}
    return Zip(wheels.entries(made.but(files=files))).to_bytes()


def bundles(count: int) -> bytes:
    """Bundles of 500 targets each, one on each page that is large enough."""
    one = wheels.make_bundle([f"gfx{number}" for number in range(500)], code=b"")
    return elf(tail=b"".join(bytes(-len(one) % 4096) + one for _ in range(count)))


def fronts(count: int) -> bytes:
    """What looks like a compressed bundle and holds 64 KiB of nothing, on every page."""
    packed = wheels.pack_bundle(bytes(64 << 10))
    return elf(tail=(packed + bytes(-len(packed) % 4096)) * count)


LONG = b"\0" + b"A" * (6 * MIB) + b"\0"
SHORT = b"\0" + b"A" * 4000 + b"\0"

CASES: dict[str, Callable[[], bytes]] = {
    "modules in folders of their own": lambda: empty(
        f"{number:05}/" + "a/" * 480 + "m.py" for number in range(7_000)
    ),
    "15 GB of zeros in 15 MB": lambda: alike(
        (f"demo/{number}" for number in range(960)), bytes(16 * MIB)
    ),
    "2,000 modules that name commits": lambda: commits(2_000),
    "30 requirements of 150 brackets": lambda: brackets(30),
    "a source that takes its square to compile": lambda: source(b'f"' + b"{a}" * 300_000 + b'"'),
    "a source that takes memory to compile": lambda: source(b"a\n" * (7 << 20)),
    "thousands of libraries with one long name": lambda: of(
        elf(strings=LONG, dynamic=[(1, 1 + number) for number in range(2000)])
    ),
    "thousands of libraries in a name of allowed length": lambda: of(
        elf(strings=SHORT, dynamic=[(1, 1 + number % 4000) for number in range(60_000)])
    ),
    "symbols whose names overlap": lambda: of(
        elf(strings=LONG, symbols=b"".join(symbol(1 + 7 * number) for number in range(90_000)))
    ),
    "symbols in a name of allowed length": lambda: of(
        elf(strings=SHORT, symbols=b"".join(symbol(1 + n % 4000) for n in range(400_000)))
    ),
    "thirty tables of millions of symbols": lambda: of(
        *[elf(strings=b"\0a\0", symbols=symbol(1) * 600_000)] * 30
    ),
    "five thousand symbol tables": lambda: of(
        elf(
            strings=b"\0a\0",
            symbols=symbol(1) * 100_000,
            sections=[(11, 64 + 112 + 3, 24 * (100_000 - n)) for n in range(5000)],
        )
    ),
    "version needs that overlap": lambda: of(
        elf(
            strings=b"\0libc.so.6\0",
            needs=need(65_535, aux=16, following=1) * 400
            + struct.pack("<IHHII", 0, 0, 2, 1, 16) * 65_535,
        )
    ),
    "a dynamic segment of millions of entries": lambda: of(
        elf(strings=b"\0a\0", dynamic=[(1, 1)] * 1_500_000)
    ),
    "sections as far as the table goes": lambda: of(
        *[elf(sections=[(0x6FFFFF00 + 0xFE - 0x100, 0, 0)] * 65_000)] * 10
    ),
    "RUNPATH of millions of entries": lambda: of(
        elf(strings=b"\0" + b"a:" * (3 * MIB) + b"\0", dynamic=[(29, 1)])
    ),
    "bundles of 500 targets": lambda: of(bundles(1200)),
    "ten thousand fronts of bundles": lambda: of(fronts(12_000)),
    "METADATA of 1.5 million folded lines": lambda: with_text(
        "METADATA", b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n" + b" \n" * 1_500_000
    ),
    "METADATA as large as may be": lambda: with_text(
        "METADATA", b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n" + b" \n" * 650_000
    ),
    "METADATA of a million requirements": lambda: with_text(
        "METADATA",
        b"Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n" + b"Requires-Dist: a\n" * 100_000,
    ),
    "RECORD of millions of rows": lambda: with_text("RECORD", b",,\n" * 5_000_000),
    "RECORD of one quoted field": lambda: with_text("RECORD", b'"' + b"\n" * (15 * MIB) + b'",,\n'),
    "entry points of a million lines": lambda: Zip(
        wheels.entries(Wheel(entry_points="[x]\n" + "a=b\n" * 400_000))
    ).to_bytes(),
    "WHEEL of a hundred thousand tags": lambda: with_text(
        "WHEEL", b"Wheel-Version: 1.0\n" + b"Tag: py3-none-any\n" * 100_000
    ),
    "a version module that makes patterns slow": lambda: with_module(
        "version.py", b"_release_version" * 100_000 + b"\n_git_hash=" + b" " * 400_000
    ),
    "commits that make patterns slow": lambda: with_module("commit_info.py", b"a" * 65_000),
    "commits without end": lambda: with_module(
        "commit_info.py", (b"a" * 8 + b"='" + b"0" * 40 + b"'\n") * 1200
    ),
    "twelve SBOMs of as much as may be": lambda: sboms(12),
    "names of thousands of parts": lambda: beside(
        Entry(b"demo/" + b"a/" * 30_000 + b"%d" % n) for n in range(20)
    ),
    "as many deep names as may be": lambda: empty("a/" * 500 + str(n) for n in range(14_000)),
    "a count of members that wraps": lambda: many_members(200_000),
    "as many members as may be": lambda: many_members(65_000),
    "local headers of hundreds of megabytes": lambda: beside(
        Entry(f"demo/{n}".encode(), method=0, local_extra=b"zz\xf0\xff" + bytes(0xFFF0))
        for n in range(4000)
    ),
    "hundreds of megabytes behind a descriptor": lambda: Zip(
        [*wheels.entries(Wheel()), Entry(b"demo/x", b"x", descriptor="signed")],
        gap=bytes(400 * MIB),
    ).to_bytes(),
    "a member that expands two hundred times": lambda: alike(["demo/x"], bytes(256 * MIB)),
    "two texts that differ in every line": lambda: with_module(
        "text.py", b"".join(b"%d\n" % (n % 7) for n in range(300_000))
    ),
}  # fmt: skip


# command -> its arguments
COMMANDS: dict[str, tuple[str, ...]] = {
    "verify": ("verify", "{wheel}"),
    "verify as JSON": ("verify", "--json", "{wheel}"),
    "inspect": ("inspect", "{wheel}"),
    "inspect as JSON": ("inspect", "--json", "{wheel}"),
    "retag": ("retag", "{wheel}", "--platform-tag", "manylinux_2_35_x86_64", "--output", "{out}"),
    "reversion": ("reversion", "{wheel}", "--post-release", "1", "--output", "{out}"),
    "repair": ("repair", "{wheel}", "--output", "{out}"),
    "diff": ("diff", "{other}", "{wheel}"),
}
# What a merge tries; the others read as one of these does: only what they print or write differs.
MERGED = ("verify", "inspect as JSON", "reversion", "repair", "diff")
# Most time or memory of all; `verify` has a test of its own for them, in a process of its own.
COSTLY = (
    "as many deep names as may be", "METADATA of a million requirements",
    "modules in folders of their own",
)  # fmt: skip
ALSO_LONG = ("as many members as may be", "twelve SBOMs of as much as may be")
ENDINGS = {0, 5, 6}  # done; patchelf failed; the wheel is not sound, or may not ship


def merged_of(title: str) -> tuple[str, ...]:
    """Return the commands that a merge tries on a wheel: one read, one write of a long one."""
    return ("reversion",) if title in COSTLY else MERGED[:3:2] if title in ALSO_LONG else MERGED


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """A sound wheel to compare with; it has a text of its own in the hostile text's place."""
    lines = b"".join(b"%d\n" % (n % 11) for n in range(300_000))
    return Wheel(files={"demo/x0.so": File(elf()), "demo/text.py": File(lines)}).write(
        tmp_path_factory.mktemp("other")
    )


def ran(arguments: Sequence[str]) -> str:
    """Run one command here; "" or what is wrong with how it ended and what it said."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(["wheel", *arguments])
    said = [*out.getvalue().split("\n"), *err.getvalue().split("\n")]
    if status not in ENDINGS:
        return f"exit status {status}"
    if forged := [line for line in said if line.lstrip().startswith(FORGED)]:
        return f"forged: {forged[0][:200]}"
    if obeyed := [line for line in said if not line.isprintable()]:
        return f"not printable: {obeyed[0][:200]!r}"
    if status and not out.getvalue():
        last = [line.partition(":")[0] for line in err.getvalue().splitlines()[-2:]]
        return "" if last == ["error", "hint"] else f"no error and hint: {err.getvalue()[:200]}"
    if "--json" in arguments:
        json.loads(out.getvalue())
    return ""


def within_budget(actions: Mapping[str, Callable[[], str]], *, seconds: int = SECONDS) -> list[str]:
    """Do each in one fork with little memory, and little time for each; what went wrong."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
            for title, action in actions.items():
                spent = math.ceil(sum(os.times()[:2]))
                resource.setrlimit(resource.RLIMIT_CPU, (spent + seconds, -1))
                os.write(write, f"\n{title}: ".encode())
                try:
                    os.write(write, action().encode())
                except BaseException:  # noqa: BLE001  # the parent shall see it
                    shown = traceback.format_exc(limit=-3)[-1500:]
                    os.write(write, shown.replace("\n", " | ").encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read().decode().splitlines()[1:]
    _, status, _ = os.wait4(child, 0)
    found = [line for line in told if not line.endswith(": ")]
    if status:
        found.append(f"{told[-1]}ended with {os.waitstatus_to_exitcode(status)}")
    return found


def on(paths: Mapping[str, Path], command: str, other: Path) -> dict[str, Callable[[], str]]:
    return {
        title: partial(
            ran,
            [
                part.format(wheel=path, other=other, out=path.parent / command.replace(" ", "-"))
                for part in COMMANDS[command]
            ],
        )
        for title, path in paths.items()
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork() while hypothesis has a thread
@pytest.mark.parametrize(
    ("title", "commands"),
    [
        pytest.param(
            title, commands, marks=() if commands == merged_of(title) else pytest.mark.soak
        )
        for title in CASES
        for commands in dict.fromkeys([merged_of(title), MERGED, ("retag",)])
    ],
    ids=lambda value: value if isinstance(value, str) else ", ".join(value),
)
@pytest.mark.slow
def test_a_hostile_wheel_costs_little(
    title: str, commands: tuple[str, ...], other: Path, tmp_path: Path
) -> None:
    path = tmp_path / NAME
    path.write_bytes(CASES[title]())
    for command in commands:
        assert not within_budget(on({title: path}, command, other))


@pytest.mark.parametrize("title", COSTLY)
@pytest.mark.slow
def test_verify_needs_no_more_than_security_md_says(title: str, tmp_path: Path) -> None:
    """In a process of its own, whose memory is not that of the tests; generous with time."""
    path = tmp_path / NAME
    path.write_bytes(CASES[title]())
    # its own peak: ru_maxrss of a child begins with that of the process it was forked from
    peak = "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    program = f"import sys; from rocwheel.cli import main; main(sys.argv[1:]); {peak}"
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", program, "wheel", "verify", path], stdout=out, stderr=err
        )
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    said = (tmp_path / "out").read_text()
    assert said.startswith(NAME), (tmp_path / "err").read_text()
    assert int(said.split()[-1]) <= 256 << 10  # KiB
    assert used.ru_utime + used.ru_stime <= SECONDS


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> dict[str, Path]:
    """Every small hostile wheel there is."""
    folder = tmp_path_factory.mktemp("small")
    made = {title: (NAME, data) for title, (data, _) in CORPUS.items()}
    made |= {title: (odd.NAME, make()) for title, make in odd.ODD.items()}
    assert len(made) == len(CORPUS) + len(odd.ODD)
    paths = {}
    for number, (title, (name, data)) in enumerate(made.items()):
        paths[title] = folder / str(number) / name
        paths[title].parent.mkdir()
        paths[title].write_bytes(data)
    return paths


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("command", merge_tries(*MERGED, of=COMMANDS))
@pytest.mark.slow
def test_every_command_ends_well_on_every_small_hostile_wheel(
    command: str, small: dict[str, Path], other: Path
) -> None:
    assert not within_budget(on(small, command, other))


def test_what_costs_too_much_is_noticed() -> None:
    """The limits of the tests above hold, and what went before is told."""

    def too_large() -> str:
        return str(len(bytearray(2 * MEMORY)))

    def too_long() -> str:
        return str(sum(range(1 << 40)))

    found = within_budget(
        {"fine": str, "large": too_large, "said": lambda: "no", "long": too_long}, seconds=1
    )
    assert [line.partition(":")[0] for line in found] == ["large", "said", "long"]
    assert "MemoryError" in found[0]
