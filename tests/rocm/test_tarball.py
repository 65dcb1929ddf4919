"""Reading tar streams: everything GNU tar and Python write, and nothing that is damaged."""

from __future__ import annotations

import gzip
import lzma
import tarfile
from contextlib import suppress

import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support import tarballs
from support.tarballs import END, File, Link, Raw

from rocwheel.base.errors import FetchError
from rocwheel.rocm.tarball import Compression, MemberKind, TarMember, TarReader, inflate

FORMATS = {
    "ustar": tarfile.USTAR_FORMAT,
    "gnu": tarfile.GNU_FORMAT,
    "pax": tarfile.PAX_FORMAT,
}


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def read(data: bytes, *, size: int = 1000) -> list[tuple[TarMember, bytes]]:
    """Every member with its data; the stream arrives in pieces of `size` bytes."""
    reader = TarReader(pieces(data, size), name="x.tar")
    found = [(member, b"".join(bytes(run) for run in reader.data())) for member in reader.members()]
    reader.drain()
    return found


def inflated(data: bytes, *, size: int = 1000) -> bytes:
    return b"".join(inflate(iter(pieces(data, size)), name="x.tar.gz"))


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("size", [1, 512, 777, 1 << 20])
def test_members_and_data_are_read_in_blocks_of_any_size(format_, size):
    files = tarballs.rocm_files()
    data = tarballs.tar(files, format_=FORMATS[format_])
    found = {
        member.name.decode().rstrip("/"): (member, body) for member, body in read(data, size=size)
    }
    for name, item in files.items():
        member, body = found[name]
        if isinstance(item, Link):
            assert (member.kind, member.link.decode()) == (MemberKind.SYMLINK, item.target)
        else:
            assert (member.kind, body, member.mode) == (MemberKind.FILE, item.data, item.mode)
            assert member.mtime_ns == tarballs.MTIME * 1_000_000_000


@pytest.mark.parametrize("format_", ["gnu", "pax"])
def test_long_names_and_long_link_targets_survive(format_):
    name = "/".join(["directory" * 8] * 6) + "/ünï.so"
    data = tarballs.tar(
        {name: File(data=b"x"), "short": Link(target=name)}, format_=FORMATS[format_]
    )
    found = [member for member, _ in read(data) if member.kind is not MemberKind.DIRECTORY]
    assert found[0].name.decode() == name
    assert found[1].link.decode() == name


def test_a_ustar_prefix_is_put_before_the_name():
    name = "a" * 90 + "/" + "b" * 90
    data = tarballs.tar({name: File(data=b"x")}, format_=tarfile.USTAR_FORMAT)
    assert read(data)[-1][0].name.decode() == name


names = st.text(
    st.characters(blacklist_categories=("Cs",), blacklist_characters="\0/"),
    min_size=1,
    max_size=150,
).filter(lambda name: name not in (".", ".."))


@settings(max_examples=60, deadline=None)
@given(
    files=st.dictionaries(names, st.binary(max_size=2000), max_size=5),
    format_=st.sampled_from(["gnu", "pax"]),
    size=st.integers(1, 3000),
)
def test_what_tarfile_writes_is_read_back(files, format_, size):
    data = tarballs.tar(
        {name: File(data=body) for name, body in files.items()}, format_=FORMATS[format_]
    )
    assert {member.name.decode(): body for member, body in read(data, size=size)} == files


@settings(max_examples=200, deadline=None)
@given(place=st.integers(0, 20_000), value=st.integers(1, 255))
def test_a_changed_byte_in_a_tar_is_an_error_or_data_never_a_crash(place, value):
    data = bytearray(tarballs.tar(tarballs.rocm_files(), format_=tarfile.PAX_FORMAT))
    data[place % len(data)] ^= value
    with suppress(FetchError):  # anything else is a crash
        read(bytes(data))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=3000))
@example(b"\x1f\x8b")
@example(b"\xfd7zXZ\0")
@example(b"\x28\xb5\x2f\xfd")
def test_noise_is_refused_not_crashed_on(noise):
    with pytest.raises(FetchError):
        read(inflated(noise + b"\0"))


def test_a_member_that_is_not_read_is_passed_over():
    data = tarballs.tar({"one": File(data=b"1" * 5000), "two": File(data=b"2")})
    reader = TarReader(pieces(data, 600), name="x.tar")
    assert [member.name for member in reader.members()] == [b"one", b"two"]


def test_times_before_1970_and_fractions_are_read():
    header = Raw(name=b"h", type=b"x", data=tarballs.pax(mtime="-1.25"))
    found = read(bytes(header) + bytes(Raw(name=b"old", data=b"x")) + END)
    assert found[0][0].mtime_ns == -1_250_000_000


def test_a_size_beyond_octal_is_read_from_the_base_256_field():
    size = b"\x80" + (3).to_bytes(11, "big")
    member, body = read(bytes(Raw(name=b"big", data=b"abc", size=size)) + END)[0]
    assert (member.size, body) == (3, b"abc")


def test_a_volume_label_and_a_global_comment_are_passed_over():
    data = (
        bytes(Raw(name=b"label", type=b"V"))
        + bytes(Raw(name=b"g", type=b"g", data=tarballs.pax(comment="made today")))
        + bytes(Raw(name=b"file", data=b"x"))
        + END
    )
    assert [member.name for member, _ in read(data)] == [b"file"]


# Sparse files: the same file in the four ways there are.

SPARSE_BODY = b"A" * 512 + b"B" * 300
SPARSE_MAP = ((0, 512), (4096, 300))


def sparse_old() -> bytes:
    return bytes(tarballs._sparse(*SPARSE_MAP, size=8192, data=SPARSE_BODY))


def sparse_pax(**records: str) -> bytes:
    named = {key.replace("_", "."): value for key, value in records.items()}
    header = Raw(name=b"h", type=b"x", data=tarballs.pax(**named))
    return bytes(header) + bytes(Raw(name=b"sparse", data=SPARSE_BODY))


def sparse_0_0() -> bytes:
    records = [("GNU.sparse.size", "8192"), ("GNU.sparse.numblocks", "2")]
    for offset, length in SPARSE_MAP:
        records += [("GNU.sparse.offset", str(offset)), ("GNU.sparse.numbytes", str(length))]
    data = b"".join(tarballs.pax_record(key.encode(), value.encode()) for key, value in records)
    return bytes(Raw(name=b"h", type=b"x", data=data)) + bytes(
        Raw(name=b"sparse", data=SPARSE_BODY)
    )


def sparse_0_1() -> bytes:
    return sparse_pax(
        GNU_sparse_size="8192", GNU_sparse_name="sparse", GNU_sparse_map="0,512,4096,300"
    )


def sparse_1_0() -> bytes:
    records = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "sparse",
        "GNU.sparse.realsize": "8192",
    }
    header = Raw(name=b"h", type=b"x", data=tarballs.pax(**records))
    map_ = b"2\n0\n512\n4096\n300\n".ljust(512, b"\0")
    return bytes(header) + bytes(Raw(name=b"GNUSparseFile.0/sparse", data=map_ + SPARSE_BODY))


@pytest.mark.parametrize("form", [sparse_old, sparse_0_0, sparse_0_1, sparse_1_0])
def test_a_sparse_file_is_refused_by_name_in_every_form(form):
    with pytest.raises(FetchError, match=r"member .*sparse.* is a sparse file"):
        read(form() + END)


# Compression.


@pytest.mark.parametrize("kind", tarballs.COMPRESSORS)
def test_a_compression_is_recognised_by_its_bytes(kind):
    tar = tarballs.tar({**tarballs.rocm_files(), **tarballs.filler(3_000_000)})
    packed = tarballs.COMPRESSORS[kind](tar)
    assert (
        Compression.of(packed[:512])
        is {
            "gz": Compression.GZIP,
            "xz": Compression.XZ,
            "zst": Compression.ZSTD,
        }[kind]
    )
    assert inflated(packed, size=70_000) == tar


def test_a_tar_without_compression_is_taken_too():
    tar = tarballs.tar(tarballs.rocm_files())
    assert inflated(tar) == tar


def test_several_members_or_streams_are_one_archive():
    tar = tarballs.tar(tarballs.rocm_files())
    half = len(tar) // 2
    for packed in (
        gzip.compress(tar[:half]) + gzip.compress(tar[half:]) + b"\0" * 512,
        lzma.compress(tar[:half]) + b"\0" * 8 + lzma.compress(tar[half:]),
        zstandard.compress(tar[:half]) + zstandard.compress(tar[half:]),
    ):
        assert inflated(packed) == tar


@pytest.mark.parametrize("kind", tarballs.COMPRESSORS)
@pytest.mark.parametrize("part", [0.0, 0.001, 0.3, 0.99, -1])
def test_a_cut_archive_is_an_error(kind, part):
    packed = tarballs.COMPRESSORS[kind](tarballs.tar(tarballs.filler(300_000)))
    cut = packed[: int(len(packed) * part) if part >= 0 else -1]
    with pytest.raises(FetchError):
        # zstandard's reader does not tell a cut from an end: the missing end of the tar does.
        read(inflated(cut))


@pytest.mark.parametrize("kind", tarballs.COMPRESSORS)
def test_a_flipped_bit_is_an_error(kind):
    packed = bytearray(
        tarballs.COMPRESSORS[kind](tarballs.tar(tarballs.filler(300_000)))
        if kind != "zst"
        else zstandard.ZstdCompressor(write_checksum=True).compress(
            tarballs.tar(tarballs.filler(300_000))
        )
    )
    packed[len(packed) // 2] ^= 1
    with pytest.raises(FetchError, match="damaged"):
        read(inflated(bytes(packed)))


def test_a_tar_cut_between_two_members_is_an_error():
    tar = tarballs.tar({"one": File(data=b"1"), "two": File(data=b"2")})
    with pytest.raises(FetchError, match="cut short"):
        read(tar[:1024])


def test_xz_that_wants_too_much_memory_is_refused():
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 29}]
    packed = lzma.compress(tarballs.tar(tarballs.rocm_files()), filters=filters)
    with pytest.raises(FetchError, match="damaged"):
        inflated(packed)


def test_memory_does_not_grow_with_what_a_block_unpacks_to():
    zeros = gzip.compress(bytes(200 << 20), compresslevel=9)
    largest = max(len(block) for block in inflate(iter([zeros]), name="x"))
    assert largest <= 1 << 20


def test_a_name_in_a_message_is_bounded_and_printable():
    data = tarballs.raw_tar([Raw(name=b"bad\x1b\n" + b"n" * 90, type=b"6")])
    with pytest.raises(FetchError) as caught:
        read(data)
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)
