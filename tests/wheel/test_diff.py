"""What differs between two wheels is said once, and nothing where nothing does."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest
from support import wheels
from support.wheels import File, Wheel, Zip, make_bundle, make_elf, pack_bundle

from rocwheel.wheel.diff import diff

BASE = {
    "needed": ("libamdhip64.so.7",),
    "runpath": "/opt/rocm/lib",
    "versions": {"libc.so.6": ("GLIBC_2.17",)},
    "exports": ("PyInit_x",),
    "bundles": (pack_bundle(make_bundle(("gfx942", "gfx90a"))),),
}


def differences(folder: Path, first: Wheel, second: Wheel) -> list[str]:
    (folder / "a").mkdir()
    (folder / "b").mkdir()
    return [str(item) for item in diff(first.write(folder / "a"), second.write(folder / "b"))]


def module(**changes) -> Wheel:
    content = make_elf(**{**BASE, **changes})
    return Wheel(files={"demo/x.so": File(content, mode=0o755)})


def test_two_writes_of_one_input_differ_in_nothing(tmp_path: Path) -> None:
    assert differences(tmp_path, wheels.plugin(), wheels.plugin()) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"needed": ("libamdhip64.so.6",)}, ["NEEDED: - libamdhip64.so.7", "NEEDED: + libamdhip64.so.6"]),
        ({"runpath": "/opt"}, ["RUNPATH: /opt/rocm/lib -> /opt"]),
        ({"soname": "libx.so"}, ["SONAME: + libx.so"]),
        ({"rpath": "/opt"}, ["RPATH: + /opt"]),
        ({"machine": 183}, ["machine: x86_64 -> aarch64"]),
        (
            {"bundles": (pack_bundle(make_bundle(("gfx942",))),)},
            ["GPU code for gfx90a: - 1 code object, 1.3 KiB"],
        ),
        (
            {"bundles": (pack_bundle(make_bundle(("gfx942", "gfx90a"), code=b"longer code")),)},
            [
                f"GPU code for {target}: 1 code object, 1.3 KiB -> 1 code object, 11 B"
                for target in ("gfx90a", "gfx942")
            ],
        ),
        ({"bundles": BASE["bundles"] * 2}, [
            "GPU code bundles: 1 -> 2",
            "GPU code for gfx90a: 1 code object, 1.3 KiB -> 2 code objects, 2.5 KiB",
            "GPU code for gfx942: 1 code object, 1.3 KiB -> 2 code objects, 2.5 KiB",
        ]),
        ({"bundles": ()}, ["GPU code bundles: 1 -> 0",
         "GPU code for gfx90a: - 1 code object, 1.3 KiB", "GPU code for gfx942: - 1 code object, 1.3 KiB"]),
    ],
)  # fmt: skip
def test_a_shared_object_is_compared_by_what_it_means(changes, expected, tmp_path: Path) -> None:
    found = differences(tmp_path, module(), module(**changes))
    own = [line.removeprefix("demo/x.so: ") for line in found if line.startswith("demo/x.so")]
    assert [line for line in own if not line.startswith("bytes: ")] == expected


def test_metadata_is_compared_by_field(tmp_path: Path) -> None:
    before = Wheel(requires=("numpy>=2", "scipy"), entry_points="[x]\na = b\n")
    found = differences(tmp_path, before, Wheel(requires=("numpy>=1", "scipy")))
    assert "Requires-Dist: - numpy>=2" in found
    assert "Requires-Dist: + numpy>=1" in found
    assert "entry point of x: - a = b" in found
    assert any(line.startswith("*.dist-info/METADATA: bytes: ") for line in found)


def test_members_modes_times_and_order_are_compared(tmp_path: Path) -> None:
    first = Wheel(files={"demo/a": File(b"x"), "demo/b": File(b"y"), "demo/c": File(b"z")})
    second = Wheel(
        files={
            "demo/b": File(b"y", mode=0o600, date=(2030, 1, 2, 3, 4, 6)),
            "demo/a": File(b"x", method=0),
            "demo/d": File(b"z"),
        }
    )
    found = differences(tmp_path, first, second)
    assert "member: - demo/c" in found
    assert "member: + demo/d" in found
    assert "demo/b: mode: 100644 -> 100600" in found
    assert "demo/b: time: 2026-03-12 22:24:14 -> 2030-01-02 03:04:06" in found
    assert "demo/a: compression method: 8 -> 0" in found


def test_a_change_of_order_alone_is_a_difference(tmp_path: Path) -> None:
    files = {"demo/a": File(b"x"), "demo/b": File(b"y")}
    found = differences(tmp_path, Wheel(files=files), Wheel(files=dict(reversed(files.items()))))
    assert any(line.startswith("member: demo/a, demo/b, ") for line in found)


def test_the_same_content_packed_otherwise_is_another_file(tmp_path: Path) -> None:
    made = Wheel(files={"demo/a": File(b"abc" * 1000)})
    entries = wheels.entries(made)
    entries[0].packed = zlib.compress(b"abc" * 1000, 1)[2:-4]
    (tmp_path / "b").mkdir()
    second = tmp_path / "b" / made.name
    second.write_bytes(Zip(entries, comment=b"new").to_bytes())
    found = diff(made.write(tmp_path), second)
    assert {item.aspect for item in found if not item.member} == {"SHA-256", "size in bytes"}
    assert "bytes" not in {item.aspect for item in found}


def test_a_crc_that_was_made_to_agree_does_not_hide_a_change(tmp_path: Path) -> None:
    """The generator polynomial added anywhere leaves a CRC-32 as it is."""
    polynomial = (0xEDB88320 << 1 | 1).to_bytes(5, "little")
    first = bytes(8)
    second = polynomial + bytes(3)
    assert zlib.crc32(first) == zlib.crc32(second)
    found = differences(
        tmp_path, Wheel(files={"demo/a": File(first)}), Wheel(files={"demo/a": File(second)})
    )
    assert any(line.startswith("SHA-256: ") for line in found)


def test_the_size_is_compared(tmp_path: Path) -> None:
    second = Wheel(files={"demo.libs/libfoo-0123abcd.so.1": File(make_elf())})
    found = differences(tmp_path, Wheel(), second)
    assert any(line.startswith("size in bytes: ") for line in found)


def test_a_bumped_version_is_compared_member_by_member(tmp_path: Path) -> None:
    found = differences(tmp_path, wheels.pjrt(), wheels.pjrt(version="0.9.2"))
    assert "version: 0.9.1 -> 0.9.2" in found
    assert not any(line.startswith("member: ") for line in found)
    changed = {line.partition(":")[0] for line in found if ": bytes: " in line}
    names = ("jax_plugins/xla_rocm7/version.py", "*.dist-info/METADATA", "*.dist-info/RECORD")
    assert changed == {*names}


def test_a_terminal_gets_no_control_characters(tmp_path: Path) -> None:
    found = differences(tmp_path, module(runpath="/opt\x1b[2J"), module(runpath="/opt"))
    assert "demo/x.so: RUNPATH: /opt\\x1b[2J -> /opt" in found
    assert all(line.isprintable() for line in found)


def test_bundles_that_claim_to_lie_in_each_other_are_counted(tmp_path: Path) -> None:
    long = struct.pack("<Q", 1 << 40)
    claimed = make_bundle(("gfx942",)).replace(struct.pack("<Q", 8), long)
    found = differences(tmp_path, module(), module(bundles=(claimed,) * 3))
    assert any("GPU code bundles: 1 -> 3" in line for line in found)
