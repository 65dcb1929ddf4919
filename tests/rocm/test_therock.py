"""ci/therock.yaml: a channel's name stands for its address."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocwheel.base import yaml_file
from rocwheel.base.errors import ConfigError
from rocwheel.rocm import therock

CI = Path(__file__).parents[2] / "ci"


def test_a_channel_stands_for_its_address(tmp_path: Path) -> None:
    def asked(text: str, kind: therock.Kind = "tarballs") -> str:
        return therock.address(text, kind, ci=CI, cwd=tmp_path)

    assert asked("nightly") == "https://rocm.nightlies.amd.com/tarball-multi-arch/"
    assert asked("nightly", "packages") == "https://rocm.nightlies.amd.com/whl-multi-arch/"
    assert asked("https://mirror/rocm/") == "https://mirror/rocm/"
    assert asked("./stable") == "./stable"
    (tmp_path / "stable").mkdir()
    assert asked("stable") == "stable"


def test_a_word_that_is_no_channel_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'nigthly': neither a channel") as caught:
        therock.address("nigthly", "tarballs", ci=CI, cwd=tmp_path)
    assert caught.value.hint == "did you mean nightly?"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("    packages: https://repo.amd.com/rocm/whl-multi-arch/\n", "", "'packages' is missing"),
        ("https://repo.amd.com/rocm/tarball/", "http://repo.amd.com/", "not an https address"),
        ("    asan:", "    asn:", "unknown key"),
        ("(?P<tests>-tests)", "(-tests)", "has no group 'tests'"),
        (r"<(Key|Size", "<((Key|Size", "cannot refer to an open group"),
        ("  kernel_packs: .kpack", "  kpack: .kpack", "unknown key"),
    ],
)
def test_a_mistake_is_named_with_its_place(old, new, problem, tmp_path: Path) -> None:
    text = (CI / therock.FILE).read_text()
    assert old in text
    (tmp_path / therock.FILE).write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=rf"therock\.yaml:\d+:\d+: .*{problem}"):
        yaml_file.read(tmp_path / therock.FILE, therock.TheRock)


@pytest.mark.parametrize(
    ("old", "new", "link"),
    [
        ("7.13.0", "7.14.0", "compare/therock-7.13...therock-7.14"),
        ("7.15.0a20260630", "10.1.0a20260811", "commits/main/?since=2026-06-30&until=2026-08-11"),
        ("7.14.0.dev0+13caf791", "7.14.0.dev0+ffff00aa", "compare/13caf791...ffff00aa"),
        ("7.13.0", "7.15.0a20260630", ""),
        ("7.13.0rc1", "7.13.0", ""),
        ("7.13.0", "7.13.1", ""),  # how TheRock would call its tag is not known
        ("", "7.13.0", ""),
    ],
)
def test_versions_tell_where_people_read_what_changed(old, new, link):
    there = "https://github.com/ROCm/TheRock/"
    assert therock.changes(old, new) == (link and there + link)
