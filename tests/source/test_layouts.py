"""ci/layouts.yaml: what rocwheel relies on is data, and data that cannot be right is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.version import Version

from rocwheel.base.errors import ConfigError
from rocwheel.base.versions import PythonVersion, WheelKind
from rocwheel.records.source_layout import ConditionalOptions, expand
from rocwheel.source import pins

FILE = Path(__file__).parents[2] / "ci" / "layouts.yaml"
LAYOUTS = pins.load_layouts(FILE)


@pytest.mark.parametrize(
    ("version", "startup", "config"),
    [
        ("0.8.0", (), "rocm"),
        ("0.9.1", (), "rocm"),
        ("0.9.2", ("build/rocm/rocm.bazelrc",), "rocm_release_wheel"),
        ("0.10.2", ("build/rocm/rocm.bazelrc",), "rocm_clang_local"),
        ("0.11.0.dev20260701", ("build/rocm/rocm.bazelrc",), "rocm_clang_local"),
        ("0.13.0", ("build/rocm/rocm.bazelrc",), "rocm_clang_local"),
    ],
)
def test_a_version_finds_its_class(version, startup, config):
    found = LAYOUTS["upstream"].version_class(Version(version))
    assert found is not None
    assert found.startup_files == startup
    assert found.values["clang_rocm_config"] == (config,)


def test_a_version_too_old_has_no_class():
    assert LAYOUTS["upstream"].version_class(Version("0.7.1")) is None


def test_rocm_10_needs_jax_0_11_1():
    versions = {
        text: LAYOUTS["upstream"].version_class(Version(text)) for text in ("0.11.0", "0.11.1")
    }
    assert {text: "10.1" in found.rocm for text, found in versions.items()} == {
        "0.11.0": False,
        "0.11.1": True,
    }


def test_the_layout_builds_every_wheel():
    assert set(LAYOUTS["upstream"].targets) == set(WheelKind)


def test_lock_files_are_named_as_jax_names_them():
    locks = LAYOUTS["upstream"].lock_files
    assert locks.name(PythonVersion(3, 12)) == "build/requirements_lock_3_12.txt"
    assert locks.name(PythonVersion(3, 14, free_threaded=True)) == (
        "build/requirements_lock_3_14_ft.txt"
    )


@pytest.mark.parametrize(
    ("old", "new", "place", "hint"),
    [
        ("when: [free-threaded]", "when: [free-threded]", "unknown value", "free-threaded"),
        ("{python}", "{pythn}", r"unknown value \{pythn\}", "python"),
        ("plugin: //", "plugn: //", "unknown value 'plugn'", "plugin"),
        ("versions: ==0.8.0", "versions: 0.8.0", "Invalid specifier", "write"),
        ("when: [rocm, rocm-in-action-env]", "when: [rocm]", "no step asks for the feature", ""),
        ("    markers: [", "    marker: [", "unknown key", "markers"),
        ("schema: 1", "schema: 3", "reads schema 1", "same version"),
    ],
)
def test_a_mistake_is_named_with_file_line_key_and_remedy(old, new, place, hint, tmp_path):
    text = FILE.read_text()
    assert old in text
    (tmp_path / "layouts.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        pins.load_layouts(tmp_path / "layouts.yaml")
    assert re.match(
        r".*layouts\.yaml:\d+:\d+: layouts|.*layouts\.yaml:\d+:\d+: schema", str(caught.value)
    )
    assert re.search(place, str(caught.value))
    assert hint in caught.value.hint


def test_steps_give_their_options_when_all_conditions_hold():
    steps = (
        ConditionalOptions(when=frozenset(), options=("--always",)),
        ConditionalOptions(when=frozenset({"a"}), options=("--a={one}",)),
        ConditionalOptions(when=frozenset({"a", "b"}), options=("--ab",)),
        ConditionalOptions(when=frozenset({"a"}), options=("--config={many}", "--none={empty}")),
    )
    found = expand(
        steps, conditions=frozenset({"a"}), values={"one": "1 2", "many": ("x", "y"), "empty": ()}
    )
    assert found == ("--always", "--a=1 2", "--config=x", "--config=y")
