"""The one parser of a tarball's name, against every name that TheRock's own tests and docs use."""

from __future__ import annotations

import pytest

from rocwheel.rocm import tarball_name


@pytest.mark.parametrize(
    ("name", "group", "version", "is_release"),
    [
        ("therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz", "gfx94X-dcgpu", "7.10.0a20251120", True),
        ("therock-dist-linux-gfx110X-all-7.13.0a20260430.tar.gz", "gfx110X-all", "7.13.0a20260430", True),
        ("therock-dist-linux-multiarch-7.15.0a20260630.tar.gz", "multiarch", "7.15.0a20260630", True),
        ("therock-dist-linux-multiarch-tests-7.13.0.tar.gz", "multiarch", "7.13.0", False),
        ("therock-dist-linux-gfx94X-dcgpu-tests-7.14.0.dev0+13caf791.tar.gz", "gfx94X-dcgpu", "7.14.0.dev0+13caf791", False),
        ("therock-dist-linux-gfx1151-7.9.0rc1.tar.gz", "gfx1151", "7.9.0rc1", True),
        ("therock-dist-linux-multiarch-10.1.0a20260811+bkc.20260814.tar.gz", "multiarch", "10.1.0a20260811+bkc.20260814", True),
        ("therock-dist-windows-gfx1151-7.9.0.tar.gz", "gfx1151", "7.9.0", False),
        ("therock-dist-linux-gfx110X-all-7.10.0.tar.zst", "gfx110X-all", "7.10.0", True),
        ("therock-dist-linux-gfx77-what-7.10.0.tar.gz", "gfx77-what", "7.10.0", True),
        ("therock-dist-linux-gfx1151-1x2.tar.gz", "gfx1151", None, False),
    ],
)  # fmt: skip
def test_names_of_therock(name: str, group: str, version: str | None, is_release: bool) -> None:
    parsed = tarball_name.parse(name)
    assert parsed is not None
    assert (parsed.group, str(parsed.version) if parsed.version else None) == (group, version)
    assert parsed.is_release is is_release
    assert parsed.is_multiarch is (group == "multiarch")


@pytest.mark.parametrize(
    "name",
    [
        "rocm.tar.gz",
        "therock-dist-linux-gfx94X-dcgpu.tar.gz",
        "therock-dist-linux-7.10.0.tar.gz",
        "therock-dist-linux-gfx94X-dcgpu-7.10.0.tar.gz.sha256",
        "old-therock-dist-linux-gfx94X-dcgpu-7.10.0.tar.gz",
        "therock-dist-linux-gfx94X-dcgpu-7.10.0/x.tar.gz",
    ],
)
def test_other_names_are_none(name: str) -> None:
    assert tarball_name.parse(name) is None


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("https://host/a/rocm-7.10.0.dev0%2Bab.tar.gz?sig=1#x", "rocm-7.10.0.dev0+ab.tar.gz"),
        ("/tmp/what%20is/rocm?.tar.gz", "rocm?.tar.gz"),
        ("https://host/folder/", "folder"),
    ],
)
def test_the_last_part_of_a_url_or_path(source: str, name: str) -> None:
    assert tarball_name.base_name(source) == name


def test_a_family_is_one_of_the_matrix() -> None:
    known = tarball_name.parse("therock-dist-linux-gfx90a-7.10.0.tar.gz")
    other = tarball_name.parse("therock-dist-linux-gfx77X-7.10.0.tar.gz")
    assert known
    assert known.family
    assert known.family.targets == ("gfx90a",)
    assert other
    assert other.family is None
