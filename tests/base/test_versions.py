"""Names, versions and tags are spelt in one place, for every ROCm there will be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

import rocwheel
from rocwheel.base import errors
from rocwheel.base.errors import ConfigError, RocwheelError
from rocwheel.base.versions import (
    CPYTHONS,
    PythonVersion,
    RocmVersion,
    WheelKind,
    canonical_version,
    gfx_target,
    module_name,
    project_name,
    rocm_number,
    suggest,
)
from rocwheel.image import contents


@pytest.mark.parametrize(
    ("jax", "rocm", "number"),
    [
        ("0.9.1", "7.2.0", "60"),
        ("0.9.2", "7.2.0", "7"),
        ("0.9.2", "6.4.1", "60"),
        ("0.11.0", "10.1.0", "10"),
        ("0.11.0", "7.10.0a20251120", "7"),
    ],
)
def test_package_numbers_follow_jax_and_rocm(jax, rocm, number):
    assert rocm_number(jax=Version(jax), rocm=RocmVersion.parse(rocm)) == number


@given(
    major=st.sampled_from([6, 7, 9, 10, 11, 100]),
    minor=st.integers(0, 40),
    patch=st.integers(0, 40),
    suffix=st.sampled_from(["", "a20251120", "rc1", ".dev0+efed3c", ".dev0+0123"]),
)
def test_every_rocm_version_gives_a_whole_major_and_a_canonical_wheel_version(
    major, minor, patch, suffix
):
    rocm = RocmVersion.parse(f"{major}.{minor}.{patch}{suffix}")
    number = rocm_number(jax=Version("0.11.0"), rocm=rocm)
    assert number == ("60" if major == 6 else str(major))
    assert project_name(WheelKind.PLUGIN, number) == f"jax-rocm{number}-plugin"
    assert module_name(WheelKind.PJRT, number) == f"jax_plugins.xla_rocm{number}"
    joined = canonical_version("0.11.0", rocm.wheel_suffix)
    assert str(Version(joined)) == joined
    assert Version(joined).public == "0.11.0"


@pytest.mark.parametrize(
    ("rocm", "suffix"),
    [
        ("7.10.0", "+rocm7.10.0"),
        ("7.10.0a20251124", "+rocm7.10.0a20251124"),
        ("7.10.0.dev0+efed3c", "+devrocm7.10.0.dev0efed3c"),
        ("7.10.0-41", "+rocm7.10.0"),
    ],
)
def test_wheel_suffixes_are_those_the_nightlies_use(rocm, suffix):
    assert RocmVersion.parse(rocm).wheel_suffix == suffix


@pytest.mark.parametrize("text", ["", "seven", "7", "7.x", "rocm7.2"])
def test_nonsense_is_no_rocm_version(text):
    with pytest.raises(ConfigError):
        RocmVersion.parse(text)


@pytest.mark.parametrize("text", CPYTHONS)
def test_every_spelling_of_a_python_version_is_one_value(text):
    version = PythonVersion.parse(text)
    assert str(version) == text
    assert PythonVersion.parse(version.abi) == version
    assert PythonVersion.parse(text.replace("-ft", "t")) == version


def test_an_unknown_python_names_the_nearest_one():
    with pytest.raises(ConfigError) as caught:
        PythonVersion.parse("3.12.1")
    assert caught.value.hint == "did you mean 3.12?"


@pytest.mark.parametrize("text", ["gfx942", "gfx90a", "gfx9-4-generic", "gfx11-generic", "gfx1201"])
def test_gfx_targets_are_recognised(text):
    assert gfx_target(f" {text} ") == text


@pytest.mark.parametrize("text", ["942", "gfx", "gfx94X", "gfx9-4", "sm_90", "gfx942:xnack+"])
def test_other_words_are_no_gfx_targets(text):
    with pytest.raises(ConfigError):
        gfx_target(text)


def test_no_two_kinds_of_error_share_an_exit_code():
    kinds = [kind for kind in RocwheelError.__subclasses__() if kind.__module__ == errors.__name__]
    assert len({kind.exit_code for kind in kinds}) == len(kinds) >= 10
    assert len({kind.kind for kind in kinds}) == len(kinds)
    reserved = {0, 1, 2, *range(20, 40)}
    assert not reserved & {kind.exit_code for kind in kinds}
    assert errors.RocwheelError.exit_code == 1


def test_a_version_is_compared_with_versions_where_branches_are_offered_too():
    offered = ("0.8.0", "0.11.0", "rocm-jaxlib-v0.10.1")
    assert suggest("0.1", offered) == "did you mean 0.8.0?"
    assert suggest("0.11.9", offered) == "did you mean 0.11.0?"
    assert suggest("jax-v0.11.0", offered) == "did you mean 0.11.0?"
    assert suggest("v0.11.9", offered) == "did you mean 0.11.0?"
    assert suggest("rocm-jaxlib-v0.10.2", offered) == "did you mean rocm-jaxlib-v0.10.1?"


def test_a_new_cpython_is_one_edit():
    """No other module of the package spells the newest: neither its number nor its tag."""
    newest = CPYTHONS[-1].removesuffix("-ft")
    spelt = re.compile(rf"(?<![\d.]){re.escape(newest)}(?!\d)|(cp|python){newest.replace('.', '')}")
    package = Path(rocwheel.__file__).parent
    files = [path for path in package.rglob("*.py") if spelt.search(path.read_text())]
    assert files == [package / "base" / "versions.py"]
    assert all(PythonVersion.parse(name).executable in contents.SCRIPT for name in CPYTHONS)
