"""What makes a directory a ROCm tree, and what is read out of it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from support.tarballs import rocm_files, write

from rocwheel import rocm
from rocwheel.base.errors import RocmError
from rocwheel.base.versions import RocmVersion
from rocwheel.cli import main
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


def test_the_layout_of_distribution_packages_is_known_too(tmp_path):
    write(tmp_path, rocm_files())
    (tmp_path / "amdgcn").mkdir()
    (tmp_path / "lib/llvm/amdgcn/bitcode").rename(tmp_path / "amdgcn/bitcode")
    assert facts(tmp_path).bitcode == "amdgcn/bitcode"


@pytest.mark.parametrize(
    ("inside", "hint"),
    [
        ("_rocm_sdk_core", "expand the packages: `rocm-sdk init` makes _rocm_sdk_devel; name that"),
        ("_rocm_sdk_devel", "{}/_rocm_sdk_devel is empty: remove it; `rocm-sdk init` makes it"),
        ("_rocm_sdk_devel/bin", "name {}/_rocm_sdk_devel"),
    ],
)
def test_a_folder_of_pips_packages_is_refused_with_what_makes_a_tree_of_it(
    inside, hint, tmp_path, capsys
):
    (tmp_path / inside).mkdir(parents=True)
    assert main(["rocm", "fetch", f"--therock-path={tmp_path}"]) == RocmError.exit_code
    assert hint.format(tmp_path) in capsys.readouterr().err


HEADER = "include/rocm-core/rocm_version.h"
CLANG = "lib/llvm/bin/clang"
SOUND = rocm_files()


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({HEADER: None}, r"tree: include/rocm-core/rocm_version\.h: No such file"),
        ({".info/version": None}, r"\.info/version"),
        ({".info/version": None, HEADER: None}, "no ROCm tree"),
        (dict.fromkeys(SOUND), "no ROCm tree"),
        ({CLANG: None}, "no compiler at lib/llvm/bin/clang"),
        ({f"{CLANG}-20": None}, "no compiler at lib/llvm/bin/clang"),
        ({"lib/llvm/amdgcn/bitcode/oclc_isa_version_942.bc": None}, "no device bitcode"),
        ({".info/version": b"7.9.0"}, r"says 7\.9\.0, .* says 7\.10\.0"),
        ({".info/version": b"seven"}, "seven"),
        ({HEADER: b"#define ROCM_VERSION_MAJOR 7"}, "does not define ROCM_VERSION_MINOR"),
    ],
)
def test_what_is_missing_or_contradicts_is_named(files, says, tmp_path):
    write(tmp_path, SOUND)
    for name, content in files.items():
        (tmp_path / name).unlink()
        if content:
            (tmp_path / name).write_bytes(content)
    with pytest.raises(RocmError, match=says) as caught:
        facts(tmp_path)
    assert str(caught.value).startswith("the tree: ")
    assert caught.value.hint


def test_a_compiler_that_cannot_be_executed_is_none(tmp_path):
    write(tmp_path, SOUND)
    (tmp_path / f"{CLANG}-20").chmod(0o644)
    with pytest.raises(RocmError, match="no compiler"):
        facts(tmp_path)


@pytest.mark.parametrize("info", ["7.10.0-41", "7.10.1", "7.10.0a20251120"])
def test_the_two_places_agree_on_major_and_minor_only(info, tmp_path):
    write(tmp_path, rocm_files(info=info))
    assert facts(tmp_path).info_version == info


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
        fetched(write(tmp_path / "rocm", rocm_files()), console, version="7.1")
