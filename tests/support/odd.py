"""Wheels that are odd in ways a builder, an attacker or a bad day may make them.

Each is small. Some may ship, some may not; none may cost much, end in a traceback or say a line
that is not ours.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

from support import wheels
from support.wheels import File, Wheel, Zip, make_bundle, make_elf, pack_bundle

FORGED = "error: FORGED"
EVIL = f"x\n{FORGED}\r{FORGED}\x1b[2J\u2028{FORGED}\x85{FORGED}\u202e"
DIGITS = "1" * 5000  # more than int() takes
MODULE = "jax_rocm7_plugin/_linalg.so"
PLUGIN = wheels.plugin()
NAME = PLUGIN.name


def text(*lines: str, wheel: Wheel = PLUGIN) -> bytes:
    """METADATA with more lines."""
    own = wheel.members()[f"{wheel.dist_info}/METADATA"].content.decode()
    head, _, body = own.partition("\n\n")
    return "\n".join([head, *lines, "", body]).encode("utf-8", "surrogateescape")


def metadata(*lines: str) -> bytes:
    return made(PLUGIN.but(metadata=text(*lines)))


def only(field: str, value: str) -> bytes:
    """METADATA with one field that says something else."""
    own = text().decode().split("\n")
    return made(PLUGIN.but(metadata="\n".join(
        f"{field}: {value}" if line.startswith(f"{field}:") else line for line in own
    ).encode()))  # fmt: skip


def more(new: dict[str, File]) -> bytes:
    return made(PLUGIN.but(files={**PLUGIN.files, **new}))


def module(**changes) -> bytes:
    """The plugin's module, made otherwise."""
    same = {
        "needed": ("libamdhip64.so.7", "libc.so.6"), "runpath": ":".join(wheels.SHORT_RUNPATH),
        "exports": ("PyInit__linalg",), "bundles": (make_bundle(("gfx942", "gfx1100")),),
    }  # fmt: skip
    return more({MODULE: File(make_elf(**{**same, **changes}), mode=0o755)})


def image(content: bytes) -> bytes:
    return more({MODULE: File(content, mode=0o755)})


SOUND = PLUGIN.files[MODULE].content


def patched(at: int, layout: str, *values: int, base: bytes = SOUND) -> bytes:
    data = bytearray(base)
    struct.pack_into(layout, data, at, *values)
    return image(bytes(data))


def made(wheel: Wheel, **changes) -> bytes:
    return Zip(wheels.entries(wheel), **changes).to_bytes()


def bundle(content: bytes) -> bytes:
    return module(bundles=(content,))


def wrapped(
    body: bytes, *, version: int = 3, method: int = 1, size: int = 0, total: int = 0
) -> bytes:
    layout = {1: "<IQ", 2: "<IIQ", 3: "<QQQ"}[version]
    values = (total, 7) if version == 1 else (size or 32 + len(body), total, 7)
    return b"CCOB" + struct.pack("<HH", version, method) + struct.pack(layout, *values) + body


def zstd_frame(window_log: int) -> bytes:
    """A frame that asks for a window of that size and has one block of one repeated byte."""
    descriptor = bytes([(window_log - 10) << 3])
    block = (1 | 1 << 1 | (128 << 10) << 3).to_bytes(3, "little") + b"\0"
    return b"\x28\xb5\x2f\xfd" + b"\0" + descriptor + block


ODD: dict[str, Callable[[], bytes]] = {
    # METADATA
    "a version of 5,000 digits": lambda: only("Version", DIGITS),
    "a requirement of 5,000 digits": lambda: metadata(f"Requires-Dist: numpy=={DIGITS}"),
    "a pin of 5,000 digits": lambda: metadata(f"Requires-Dist: jax-rocm7-pjrt<={DIGITS}"),
    "Requires-Python of 5,000 digits": lambda: only("Requires-Python", f">=3.{DIGITS}"),
    "a marker of 5,000 digits": lambda: metadata(
        f"Requires-Dist: jax-rocm7-pjrt==0.9.1; python_version < '{DIGITS}'"
    ),
    "a marker of 20,000 brackets": lambda: metadata(
        f"Requires-Dist: numpy; {'(' * 20_000}os_name == 'x'{')' * 20_000}"
    ),
    "a marker that has no end": lambda: metadata(
        "Requires-Dist: numpy; " + "os_name == 'x' and " * 50_000 + "os_name == 'x'"
    ),
    "a marker that compares what cannot be": lambda: metadata(
        "Requires-Dist: jax-rocm7-pjrt==0.9.1; 'x' < os_name"
    ),
    "a marker of a version that is none": lambda: metadata(
        "Requires-Dist: jax-rocm7-pjrt==0.9.1; python_version ~= 'x'"
    ),
    "a requirement of 60,000 clauses": lambda: metadata(
        "Requires-Dist: jax-rocm7-pjrt" + ",".join(f"!=1.{n}" for n in range(60_000))
    ),
    "Requires-Python of 60,000 clauses": lambda: only(
        "Requires-Python", ",".join(f"!=3.11.{n}" for n in range(60_000)) + ",>=3.99"
    ),
    "fifty thousand pins": lambda: metadata(*["Requires-Dist: jax-rocm7-pjrt==0.9.1"] * 50_000),
    "a name of a thousand dots": lambda: metadata("Requires-Dist: a" + "." * 100_000 + "b"),
    "a requirement of blanks": lambda: metadata("Requires-Dist: numpy" + " " * 500_000 + "@"),
    "a requirement of extras": lambda: metadata(f"Requires-Dist: numpy[{'a,' * 50_000}a]"),
    "a pin with an escape sequence": lambda: metadata(f"Requires-Dist: jax-rocm7-pjrt=={EVIL}"),
    # libraries
    "a library of 32 bits": lambda: image(SOUND[:4] + b"\1" + SOUND[5:]),
    "a library for big-endian machines": lambda: image(SOUND[:5] + b"\2" + SOUND[6:]),
    "a library of a machine that nobody has": lambda: patched(18, "<H", 999),
    "a program": lambda: patched(16, "<H", 2),
    "an object file": lambda: patched(16, "<H", 1),
    "a core dump": lambda: patched(16, "<H", 4),
    "an ELF version of the future": lambda: patched(20, "<I", 9),
    "segments whose number stands elsewhere": lambda: patched(56, "<H", 0xFFFF),
    "a library of nothing but its header": lambda: patched(
        32, "<QQIHHHHHH", 0, 0, 0, 64, 0, 0, 0, 0, 0, base=SOUND[:64]
    ),
    "a NEEDED library with our words": lambda: module(needed=(EVIL,)),
    "a SONAME with our words": lambda: module(soname=EVIL),
    "a RUNPATH with our words": lambda: module(runpath=EVIL),
    "a RUNPATH of colons": lambda: module(runpath=":" * 4000),
    "a symbol with our words": lambda: module(exports=("PyInit__linalg", EVIL)),
    "a symbol version with our words": lambda: module(versions={EVIL: (EVIL,)}),
    "a symbol version of 4,000 digits": lambda: module(versions={"libc.so.6": (f"GLIBC_{'9' * 4000}",)}),
    "a library that needs a path": lambda: module(needed=("/tmp/libx.so",)),
    "a library that needs a parent": lambda: module(needed=("../libx.so",)),
    "a library that needs nothing by name": lambda: module(needed=("",)),
    "a library that needs itself": lambda: module(needed=("_linalg.so",)),
    # bundles
    "a target with our words": lambda: bundle(make_bundle((f"gfx942{EVIL}",))),
    "a bundle that is longer than the file": lambda: bundle(wrapped(b"", size=1 << 60)),
    "a bundle of exabytes": lambda: bundle(pack_bundle(make_bundle(("gfx942",)))[:16] + b"\xff" * 8),
    "a zstd window of 2 GiB": lambda: bundle(wrapped(zstd_frame(31))),
    "a zstd window of 128 MiB": lambda: bundle(wrapped(zstd_frame(27))),
    "a bundle that inflates without end": lambda: bundle(
        wrapped(zlib.compress(make_bundle(("gfx942",)) + bytes(64 << 20)), method=0)
    ),
    "code objects that overlap": lambda: bundle(
        make_bundle(("gfx942", "gfx1100")).replace(struct.pack("<Q", 8), struct.pack("<Q", 1 << 40))
    ),
    "a bundle in a bundle": lambda: bundle(pack_bundle(pack_bundle(make_bundle(("gfx942",))))),
}  # fmt: skip
