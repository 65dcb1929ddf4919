"""Unpacking: what is sound survives, what is not leaves nothing outside the folder."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
from support import tarballs
from support.tarballs import File, Link, Raw

from rocwheel.base.errors import FetchError
from rocwheel.rocm.tarball import inflate
from rocwheel.rocm.unpack import Unpacked, UnpackLimits, unpack

if TYPE_CHECKING:
    from pathlib import Path


def unpacked(data: bytes, into: Path, *, limits: UnpackLimits | None = None) -> Unpacked:
    blocks = inflate(iter([data]), name="x.tar.gz")
    return unpack(blocks, into, name="x.tar.gz", packed=lambda: len(data), limits=limits)


def writable(root: Path) -> list[str]:
    return [
        str(path)
        for path in (root, *root.rglob("*"))
        if not path.is_symlink() and stat.S_IMODE(path.stat().st_mode) & 0o222
    ]


def test_files_links_modes_and_times_survive(tmp_path):
    tree = tmp_path / "tree"
    done = unpacked(tarballs.rocm_tarball(), tree)
    assert done.files == 7
    for name, item in tarballs.rocm_files().items():
        path = tree / name
        if isinstance(item, Link):
            assert str(path.readlink()) == item.target
        else:
            assert path.read_bytes() == item.data
            assert os.access(path, os.X_OK) == bool(item.mode & 0o111)
            assert path.stat().st_mtime == tarballs.MTIME


def test_nothing_in_the_tree_is_writable(tmp_path):
    tree = tmp_path / "tree"
    unpacked(tarballs.rocm_tarball(), tree)
    assert writable(tree) == []


def test_setuid_and_sticky_bits_do_not_survive(tmp_path):
    members = [
        Raw(name=b"root", data=b"x", mode=0o6755),
        Raw(name=b"dir/", type=b"5", mode=0o1777),
    ]
    unpacked(tarballs.gz(tarballs.raw_tar(members)), tmp_path / "tree")
    assert stat.S_IMODE((tmp_path / "tree/root").stat().st_mode) == 0o555
    assert stat.S_IMODE((tmp_path / "tree/dir").stat().st_mode) == 0o555


def test_the_owner_can_always_read_and_enter(tmp_path):
    members = [Raw(name=b"d/", type=b"5", mode=0), Raw(name=b"d/f", data=b"x", mode=0)]
    unpacked(tarballs.gz(tarballs.raw_tar(members)), tmp_path / "tree")
    assert stat.S_IMODE((tmp_path / "tree/d").stat().st_mode) == 0o500
    assert stat.S_IMODE((tmp_path / "tree/d/f").stat().st_mode) == 0o400


def test_the_umask_is_respected(tmp_path):
    before = os.umask(0o077)
    try:
        unpacked(tarballs.rocm_tarball(), tmp_path / "tree")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "tree/lib").stat().st_mode) == 0o500
    assert stat.S_IMODE((tmp_path / "tree/.info/version").stat().st_mode) == 0o400


def test_hard_links_stay_one_file(tmp_path):
    members = [
        Raw(name=b"one", data=b"same"),
        Raw(name=b"./two", type=b"1", link=b"./one"),
        Raw(name=b"soft", type=b"2", link=b"one"),
        Raw(name=b"soft2", type=b"1", link=b"soft"),
    ]
    tree = tmp_path / "tree"
    unpacked(tarballs.gz(tarballs.raw_tar(members)), tree)
    assert (tree / "one").samefile(tree / "two")
    assert str((tree / "soft2").readlink()) == "one"


def test_links_that_stay_inside_are_kept(tmp_path):
    members = [
        Raw(name=b"lib/up", type=b"2", link=b"../bin/../lib"),
        Raw(name=b"dangling", type=b"2", link=b"lib/not/there"),
        Raw(name=b"root", type=b"2", link=b"."),
        Raw(name=b"deep", type=b"2", link=b"lib/up/llvm/../../bin"),
    ]
    unpacked(tarballs.gz(tarballs.raw_tar(members)), tmp_path / "tree")
    assert (tmp_path / "tree/deep").resolve() == tmp_path / "tree/bin"
    assert (tmp_path / "tree/dangling").is_symlink()


def test_folders_without_a_member_of_their_own_are_made(tmp_path):
    data = tarballs.raw_tar([Raw(name=b"new//./deep/er/file", data=b"x")])
    unpacked(tarballs.gz(data), tmp_path / "tree")
    assert (tmp_path / "tree/new/deep/er/file").read_bytes() == b"x"
    assert writable(tmp_path / "tree") == []


def test_names_that_are_not_utf_8_survive(tmp_path):
    unpacked(tarballs.gz(tarballs.raw_tar([Raw(name=b"\xff\xfe", data=b"x")])), tmp_path / "tree")
    assert (tmp_path / "tree" / os.fsdecode(b"\xff\xfe")).read_bytes() == b"x"


@pytest.mark.parametrize("title", tarballs.malicious())
def test_a_malicious_member_is_refused_by_name(title, tmp_path):
    data, says = tarballs.malicious()[title]
    home = tmp_path / "home"
    home.mkdir()
    outside = sorted(tmp_path.rglob("*"))
    with pytest.raises(FetchError) as caught:
        unpacked(data, home / "tree")
    assert says in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert caught.value.hint
    inside = set((home / "tree").rglob("*")) | {home / "tree"}
    assert sorted(set(tmp_path.rglob("*")) - inside) == outside


def test_a_bomb_is_stopped_before_it_fills_the_disk(tmp_path):
    data = tarballs.gz(tarballs.tar({"zeros": File(data=bytes(40 << 20))}))
    limits = UnpackLimits(slack=8 << 20, ratio=50)
    with pytest.raises(FetchError, match="out of all proportion"):
        unpacked(data, tmp_path / "tree", limits=limits)
    assert (tmp_path / "tree/zeros").stat().st_size < 24 << 20


def test_a_bomb_behind_the_end_of_the_archive_is_stopped_too(tmp_path):
    data = tarballs.gz(tarballs.raw_tar([], after=bytes(40 << 20)))
    with pytest.raises(FetchError, match="out of all proportion"):
        unpacked(data, tmp_path / "tree", limits=UnpackLimits(slack=8 << 20, ratio=50))


def test_a_tree_bigger_than_any_rocm_is_refused(tmp_path):
    files = {f"f{number}": File(data=bytes(1000)) for number in range(20)}
    with pytest.raises(FetchError, match="absurdly big"):
        unpacked(
            tarballs.gz(tarballs.tar(files)), tmp_path / "t", limits=UnpackLimits(unpacked=10_000)
        )


def test_too_many_members_are_refused(tmp_path):
    files = {f"f{number}": File(data=b"") for number in range(20)}
    packed = tarballs.gz(tarballs.tar(files))
    with pytest.raises(FetchError, match="one member too many"):
        unpacked(packed, tmp_path / "one", limits=UnpackLimits(members=10))
    with pytest.raises(FetchError, match="one member too many"):
        unpacked(packed, tmp_path / "two", limits=UnpackLimits(name_bytes=20))
