"""ELF facts and GPU code objects, read from streams."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.wheels import make_bundle, make_elf, pack_bundle

from rocwheel.wheel import elf, hip

TARGETS = ("gfx90a", "gfx942", "gfx1100", "gfx9-4-generic", "gfx12-generic")


def facts(image: bytes, *, step: int = 1 << 20) -> elf.ElfFacts:
    def stream():
        return (image[at : at + step] for at in range(0, len(image), step))

    return elf.scan("x.so", len(image), stream)


def test_what_the_loader_reads_is_reported() -> None:
    found = facts(
        make_elf(
            needed=("libamdhip64.so.7", "libc.so.6"),
            soname="libx.so.1",
            runpath="$ORIGIN/../rocm/lib:/opt/rocm/lib",
            versions={
                "libc.so.6": ("GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.9"),
                "libstdc++.so.6": ("GLIBCXX_3.4.22", "GLIBCXX_3.4.9", "CXXABI_1.3.11"),
            },
            exports=("GetPjrtApi",),
        )
    )
    assert found.machine == "x86_64"
    assert found.needed == ("libamdhip64.so.7", "libc.so.6", "libstdc++.so.6")
    assert found.soname == "libx.so.1"
    assert found.runpath == ("$ORIGIN/../rocm/lib", "/opt/rocm/lib")
    assert found.rpath == ()
    assert found.highest("GLIBC") == (2, 17)
    assert found.highest("GLIBCXX") == (3, 4, 22)
    assert found.highest("CXXABI") == (1, 3, 11)
    assert found.highest("GCC") == ()
    assert found.exports == ("GetPjrtApi",)


def test_relative_relocations_need_the_glibc_that_has_them() -> None:
    found = facts(make_elf(versions={"libc.so.6": ("GLIBC_2.17", "GLIBC_ABI_DT_RELR")}))
    assert found.highest("GLIBC") == (2, 36)


def test_another_machine_is_named_and_not_read_further() -> None:
    assert facts(make_elf(machine=183)).machine == "aarch64"
    image = bytearray(make_elf(needed=("libc.so.6",)))
    image[4] = 1  # 32 bits
    assert facts(bytes(image)).needed == ()


@settings(max_examples=40, deadline=None)
@given(
    step=st.integers(1, 70_000),
    padding=st.sampled_from((0, 5000, 3 << 20)),
    runpath=st.sampled_from(("", "/opt/rocm/lib")),
)
def test_facts_do_not_depend_on_how_the_bytes_come(step, padding, runpath) -> None:
    image = make_elf(
        needed=("libc.so.6",),
        runpath=runpath,
        versions={"libc.so.6": ("GLIBC_2.28",)},
        exports=("PyInit_x",),
        bundles=(make_bundle(TARGETS), pack_bundle(make_bundle(TARGETS))),
        padding=padding,
    )
    if step < 500 and len(image) > 1 << 20:
        step += 4000  # a million pieces show nothing more
    assert facts(image, step=step) == facts(image, step=len(image))
    assert list(hip.sum_of_objects(facts(image, step=step).bundles)) == sorted(TARGETS)


def test_tables_behind_what_passed_are_read_a_second_time() -> None:
    """A layout no linker makes: the strings lie in the middle, the dynamic segment at the end."""
    image = make_elf(needed=("libfar.so.1",), padding=0)
    middle = elf.FRONT + (1 << 20)

    dynamic_at, _, _, size = struct.unpack_from("<QQQQ", image, 64 + 56 + 8)
    strings_at = next(
        struct.unpack_from("<Q", image, at + 8)[0]
        for at in range(dynamic_at, dynamic_at + size, 16)
        if struct.unpack_from("<q", image, at)[0] == 5
    )
    strings = image[strings_at:dynamic_at]
    far = bytearray(image) + bytes(2 * middle)
    far[middle : middle + len(strings)] = strings
    moved = len(far)
    dynamic = bytearray(image[dynamic_at : dynamic_at + size])
    for at in range(0, len(dynamic), 16):
        if struct.unpack_from("<q", dynamic, at)[0] == 5:
            struct.pack_into("<Q", dynamic, at + 8, middle)
    far += dynamic
    struct.pack_into("<QQQ", far, 64 + 56 + 8, moved, moved, moved)
    struct.pack_into("<QQ", far, 64 + 32, len(far), len(far))
    far[strings_at : strings_at + len(strings)] = bytes(len(strings))
    passes = 0

    def stream():
        nonlocal passes
        passes += 1
        return (bytes(far[at : at + 65536]) for at in range(0, len(far), 65536))

    assert elf.scan("x.so", len(far), stream).needed == ("libfar.so.1",)
    assert passes == 2


@pytest.mark.parametrize("method", ["zlib", "zstd"])
@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("prefix", ["hipv4-", "hip-"])
def test_every_wrapper_clang_has_written_is_read(method, version, prefix) -> None:
    plain = make_bundle(TARGETS, prefix=prefix, code=bytes(90_000))
    bundle = hip.parse(pack_bundle(plain, version=version, method=method), offset=4096)
    assert bundle is not None
    assert bundle.targets == frozenset(TARGETS)
    assert (bundle.offset, bundle.unpacked, bundle.compression) == (4096, len(plain), method)


def test_only_the_front_of_a_huge_bundle_is_unpacked() -> None:
    plain = make_bundle(TARGETS, code=bytes(40 << 20))
    packed = pack_bundle(plain)
    bundle = hip.parse(packed[: hip.FRONT], offset=0)
    assert bundle is not None
    assert bundle.unpacked > 200 << 20
    assert bundle.targets == frozenset(TARGETS)


def test_features_are_kept_apart_from_the_target() -> None:
    bundle = hip.parse(make_bundle(("gfx90a:sramecc+:xnack-",)), offset=0)
    assert bundle is not None
    (item,) = bundle.objects
    assert (item.target, item.features) == ("gfx90a", ":sramecc+:xnack-")


def test_an_entry_without_code_is_no_target() -> None:
    bundle = hip.parse(make_bundle(("gfx942",), code=b""), offset=0)
    assert bundle is not None
    assert bundle.targets == frozenset()


@pytest.mark.parametrize(
    "front",
    [
        b"CCOB is a magic number",
        b"CCOB" + bytes(60),
        b"CCOB\x03\0\x01\0" + bytes(60),
        b"CCOB\x03\0\x09\0" + bytes(60),
        b"__CLANG_OFFLOAD_BUNDLE__",
        b"__CLANG_OFFLOAD_BUNDLE__" + b"\xff" * 60,
        b"__CLANG_OFFLOAD_BUNDLE__" + bytes(60),
        make_bundle(()),
        make_bundle(("gfx942",))[:60],
        b"",
    ],
)
def test_text_that_looks_like_a_bundle_is_none(front: bytes) -> None:
    assert hip.parse(front, offset=0) is None


def test_many_segments_do_not_make_reading_slow() -> None:
    """Each segment is held against each."""
    image = bytearray(make_elf(exports=("PyInit_x",)))
    head = image[64:120] * 65_000
    image[32:40], image[56:58] = len(image).to_bytes(8, "little"), (65_000).to_bytes(2, "little")
    with pytest.raises(elf.ElfError, match="65000 segments"):
        facts(bytes(image + head))


def test_a_bundle_that_is_cut_off_or_damaged_has_no_code() -> None:
    whole = pack_bundle(make_bundle(("gfx942",)))
    smaller = bytearray(whole)
    struct.pack_into("<Q", smaller, 16, struct.unpack_from("<Q", whole, 16)[0] // 2)
    cases = ((whole[:40], len(whole)), (whole, len(whole) - 1), (bytes(smaller), len(whole)))
    for front, room in cases:
        bundle = hip.parse(front, offset=0, room=room)
        assert bundle is not None
        assert bundle.targets == frozenset()


def test_the_compilers_own_strings_are_no_gpu_code() -> None:
    """A compiler inside a library has the magics as strings, perhaps on a page boundary."""
    image = make_elf(
        bundles=(
            b"CCOB" + b"usage" * 90,
            b"__CLANG_OFFLOAD_BUNDLE__\0usage",
            make_bundle(("gfx942",)),
        )
    )
    assert [bundle.targets for bundle in facts(image).bundles] == [frozenset({"gfx942"})]
