"""What a small hostile wheel may cost: memory and CPU time of every operation that reads one.

The promise is 256 MiB, and 2 s besides four times the time to read and inflate the wheel; each
operation runs in a process that gets five times that and is killed by the kernel beyond it.
"""

from __future__ import annotations

import os
import resource
import struct
import traceback
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from support import wheels
from support.wheels import Entry, File, Wheel, Zip, deflated

from rocwheel.errors import WheelError
from rocwheel.wheel import show
from rocwheel.wheel.diff import diff
from rocwheel.wheel.inspect import inspect
from rocwheel.wheel.policy import load as load_policy
from rocwheel.wheel.rename import NewVersion, plan_retag, plan_reversion
from rocwheel.wheel.repair import plan_repair
from rocwheel.wheel.verify import verify

POLICY = load_policy(Path(__file__).parents[3] / "ci" / "wheel_policy.yaml")
NAME = "demo-1.0-py3-none-manylinux_2_28_x86_64.whl"
MIB = 1 << 20
SECONDS = 10  # five times two
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
    "names of thousands of parts": lambda: Zip(
        [
            *wheels.entries(Wheel()),
            *(Entry(b"demo/" + b"a/" * 30_000 + b"%d" % n) for n in range(20)),
        ]
    ).to_bytes(),
    "as many deep names as may be": lambda: Zip(
        [
            *wheels.entries(Wheel()),
            *(Entry(b"a/" * 500 + b"%d" % n, method=0) for n in range(14_000)),
        ]
    ).to_bytes(),
    "a count of members that wraps": lambda: many_members(200_000),
    "as many members as may be": lambda: many_members(65_000),
    "local headers of hundreds of megabytes": lambda: Zip(
        [
            *wheels.entries(Wheel()),
            *(
                Entry(f"demo/{n}".encode(), method=0, local_extra=b"zz\xf0\xff" + bytes(0xFFF0))
                for n in range(4000)
            ),
        ]
    ).to_bytes(),
    "hundreds of megabytes behind a descriptor": lambda: Zip(
        [*wheels.entries(Wheel()), Entry(b"demo/x", b"x", descriptor="signed")],
        gap=bytes(400 * MIB),
    ).to_bytes(),
    "a member that expands two hundred times": lambda: Zip(
        [
            *wheels.entries(Wheel()),
            Entry(
                b"demo/x", packed=deflated(bytes(256 * MIB)), size=256 * MIB,
                crc=zlib.crc32(bytes(256 * MIB)),
            ),
        ]
    ).to_bytes(),
    "two texts that differ in every line": lambda: with_module(
        "text.py", b"".join(b"%d\n" % (n % 7) for n in range(300_000))
    ),
}  # fmt: skip


OPERATIONS: dict[str, Callable[[Path, Path], object]] = {
    "verify": lambda path, _: show.verdict_document({"x": verify(path, policy=POLICY)}),
    "inspect": lambda path, _: [
        (show.document(report), list(show.lines(report, width=80)))
        for report in [inspect(path, hashes=True)]
    ],
    "retag": lambda path, _: plan_retag([path], platform="manylinux_2_35_x86_64"),
    "reversion": lambda path, _: plan_reversion([path], NewVersion(post=1)),
    "repair": lambda path, _: plan_repair(path, policy=POLICY),
    "diff": lambda path, other: [*diff(other, path), *diff(path, other)],
}


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """A sound wheel to compare with; it has a text of its own in the hostile text's place."""
    lines = b"".join(b"%d\n" % (n % 11) for n in range(300_000))
    return Wheel(files={"demo/x0.so": File(elf()), "demo/text.py": File(lines)}).write(
        tmp_path_factory.mktemp("other")
    )


def within_budget(action: Callable[[], object], *, seconds: int = SECONDS) -> str:
    """Run it in a fork with little memory and time; "" or what went wrong."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            with suppress(WheelError):
                action()
            status = 0
        except BaseException:  # noqa: BLE001  # the parent shall see it
            os.write(write, traceback.format_exc(limit=-3).encode()[:4000])
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read().decode()
    _, status, usage = os.wait4(child, 0)
    if status:
        return (
            told or f"ended with {os.waitstatus_to_exitcode(status)} after {usage.ru_utime:.0f} s"
        )
    return ""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork() while hypothesis has a thread
@pytest.mark.parametrize("title", CASES)
@pytest.mark.slow
def test_a_hostile_wheel_costs_little(title: str, other: Path, tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(CASES[title]())
    for name, operation in OPERATIONS.items():
        assert not within_budget(partial(operation, path, other)), name


def test_what_costs_too_much_is_noticed() -> None:
    """The limits of the test above hold."""
    assert "MemoryError" in within_budget(lambda: bytearray(2 * MEMORY))
    assert within_budget(lambda: sum(range(1 << 40)), seconds=1)
