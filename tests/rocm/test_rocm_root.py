"""What makes a directory a ROCm tree, and what is read out of it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from support.tarballs import rocm_files, write

from rocwheel import rocm
from rocwheel.base.errors import RocmError
from rocwheel.base.versions import RocmVersion
from rocwheel.rocm.rocm_root import Facts, agreed_version, inspect, listing_digest

if TYPE_CHECKING:
    from pathlib import Path

    from rocwheel.base.console import Console


def facts(tmp_path: Path) -> Facts:
    return inspect(tmp_path, name="the tree")


def test_the_facts_of_a_sound_tree(tmp_path):
    assert facts(write(tmp_path, rocm_files())) == Facts(
        root="",
        info_version="7.10.0",
        header_version="7.10.0",
        clang="lib/llvm/bin/clang",
        bitcode="lib/llvm/amdgcn/bitcode",
        targets=("gfx942",),
        sonames=(
            "libamdhip64.so",
            "libamdhip64.so.7",
            "libamdhip64.so.7.1.0",
            "librocm_sysdeps_z.so.1",
        ),
    )


def test_facts_survive_json(tmp_path):
    found = facts(write(tmp_path, rocm_files()))
    assert Facts.from_bytes(found.to_bytes(), name="facts") == found


def test_one_wrapping_directory_is_looked_into(tmp_path):
    write(tmp_path / "therock-7.10", rocm_files())
    assert facts(tmp_path).root == "therock-7.10"


def test_the_layout_of_distribution_packages_is_known_too(tmp_path):
    write(tmp_path, rocm_files())
    (tmp_path / "amdgcn").mkdir()
    (tmp_path / "lib/llvm/amdgcn/bitcode").rename(tmp_path / "amdgcn/bitcode")
    assert facts(tmp_path).bitcode == "amdgcn/bitcode"


@pytest.mark.parametrize(
    ("missing", "says"),
    [
        (("include/rocm-core/rocm_version.h",), r"rocm_version\.h"),
        ((".info/version",), r"\.info/version"),
        ((".info/version", "include/rocm-core/rocm_version.h"), "no ROCm tree"),
        (("lib/llvm/bin/clang",), "no compiler at lib/llvm/bin/clang"),
        (("lib/llvm/bin/clang-20",), "no compiler at lib/llvm/bin/clang"),
        (("lib/llvm/amdgcn/bitcode/oclc_isa_version_942.bc",), "no device bitcode"),
    ],
)
def test_what_is_missing_is_named(missing, says, tmp_path):
    write(tmp_path, rocm_files())
    for name in missing:
        (tmp_path / name).unlink()
    with pytest.raises(RocmError, match=says) as caught:
        facts(tmp_path)
    assert str(caught.value).startswith("the tree: ")
    assert caught.value.hint


def test_a_compiler_that_cannot_be_executed_is_none(tmp_path):
    write(tmp_path, rocm_files())
    (tmp_path / "lib/llvm/bin/clang-20").chmod(0o644)
    with pytest.raises(RocmError, match="no compiler"):
        facts(tmp_path)


def test_an_empty_folder_is_no_rocm(tmp_path):
    with pytest.raises(RocmError, match="no ROCm tree"):
        facts(tmp_path)


def test_two_versions_in_one_tree_are_refused(tmp_path):
    write(tmp_path, rocm_files(info="7.9.0"))
    with pytest.raises(RocmError, match=r"says 7\.9\.0, .* says 7\.10\.0"):
        facts(tmp_path)


@pytest.mark.parametrize("info", ["7.10.0-41", "7.10.1", "7.10.0a20251120"])
def test_the_two_places_agree_on_major_and_minor_only(info, tmp_path):
    write(tmp_path, rocm_files(info=info))
    assert facts(tmp_path).info_version == info


def test_a_version_file_with_nonsense_is_refused(tmp_path):
    write(tmp_path, rocm_files(info="seven"))
    with pytest.raises(RocmError, match="seven"):
        facts(tmp_path)


def test_a_header_without_a_number_is_refused(tmp_path):
    write(tmp_path, rocm_files())
    header = tmp_path / "include/rocm-core/rocm_version.h"
    header.write_text(header.read_text().replace("ROCM_VERSION_MINOR", "ROCM_VERSION_MINI"))
    with pytest.raises(RocmError, match="ROCM_VERSION_MINOR"):
        facts(tmp_path)


def version(
    tmp_path: Path, *, asked: str = "", named: str = "", info: str = "7.10.0-41"
) -> RocmVersion:
    found = facts(write(tmp_path, rocm_files(info=info)))
    return agreed_version(
        found,
        asked=RocmVersion.parse(asked) if asked else None,
        named=RocmVersion.parse(named) if named else None,
        name="the tree",
    )


def test_the_version_is_as_asked_else_as_named_else_as_the_tree_says(tmp_path):
    nightly = "7.10.0a20251120"
    assert str(version(tmp_path / "1", asked="7.10.0", named=nightly)) == "7.10.0"
    assert str(version(tmp_path / "2", named=nightly)) == nightly
    assert str(version(tmp_path / "3")) == "7.10.0"


@pytest.mark.parametrize("how", ["asked", "named"])
def test_a_version_that_is_not_the_tree_s_is_refused(how, tmp_path):
    with pytest.raises(RocmError, match=r"the tree is ROCm 7\.10\.0, but 7\.1\.0"):
        version(tmp_path, **{how: "7.1.0"})


def test_7_1_is_not_7_10(tmp_path):
    with pytest.raises(RocmError):
        version(tmp_path, asked="7.1")


# A directory as it is.


def fetched(folder: Path, console: Console, **kwargs: str | None) -> rocm.RocmRoot:
    options = {"sha256": None, "version": None, **kwargs}
    planned = rocm.plan(str(folder), cache=folder.parent / "cache", cwd=folder.parent, **options)
    return rocm.fetch(planned, console=console)


def test_a_directory_is_used_as_it_is(tmp_path, console):
    folder = write(tmp_path / "rocm", rocm_files())
    root = fetched(folder, console)
    assert (root.root, root.origin, root.name) == (folder, "directory", "rocm")
    assert root.facts.clang == "lib/llvm/bin/clang"
    assert "libamdhip64.so.7" in root.facts.sonames
    assert not (tmp_path / "cache").exists()


def test_equal_copies_of_a_directory_have_one_digest(tmp_path, console):
    folder = write(tmp_path / "one", rocm_files())
    shutil.copytree(folder, tmp_path / "two", symlinks=True)
    assert fetched(folder, console).sha256 == fetched(tmp_path / "two", console).sha256


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "lib/new").write_bytes(b""),
        lambda root: (root / "lib/libamdhip64.so.7.1.0").write_bytes(b"longer than it was"),
        lambda root: (root / "lib/libamdhip64.so.7.1.0").chmod(0o644),
        lambda root: (root / "lib/libamdhip64.so").unlink(),
        lambda root: (root / "lib/empty").mkdir(),
        lambda root: (root / ".info/version").write_bytes(b"7.10.1\n"),
    ],
)
def test_a_changed_directory_has_another_digest(change, tmp_path):
    root = write(tmp_path, rocm_files())
    before = listing_digest(root)
    change(root)
    assert listing_digest(root) != before


def test_a_directory_of_another_version_is_refused(tmp_path, console):
    with pytest.raises(RocmError, match="was asked for"):
        fetched(write(tmp_path / "rocm", rocm_files()), console, version="7.2.0")
