"""The pins and layouts in ci/ are the right ones, and how a version finds its own."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from packaging.version import Version

from rocwheel import source
from rocwheel.base.errors import ConfigError
from rocwheel.records.source_layout import ConditionalOptions, expand
from rocwheel.source import pins

ROOT = Path(__file__).parents[2]
FILE = ROOT / "ci" / "pins.yaml"
LAYOUTS = source.load_layouts(ROOT / "ci" / "layouts.yaml")
PINS = source.load_pins(FILE, layouts=LAYOUTS)
VERIFIED = [pin for pin in PINS.pins if not pin.unverified]


def mistake(folder: Path, old: str, new: str) -> ConfigError:
    """The error after the first `old` of the real file became `new`."""
    text = FILE.read_text()
    assert old in text
    (folder / "pins.yaml").write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        pins.load(folder / "pins.yaml", layouts=LAYOUTS)
    return caught.value


def test_every_release_has_the_commits_of_its_tag():
    with (ROOT / "tests" / "data" / "jax_pins.csv").open() as file:
        wanted = {
            row["jax"]: (row["jax_commit"], row["xla_commit"]) for row in csv.DictReader(file)
        }
    assert {pin.version: (pin.commit, pin.xla_commit) for pin in VERIFIED} == wanted


@pytest.mark.parametrize("pin", PINS.pins, ids=lambda pin: pin.version)
def test_upstream_wheels_are_pinned_for_every_cpython_and_never_twice(pin):
    assert tuple(pin.jaxlib.wheels) == tuple(map(str, pin.pythons))
    assert len({wheel.sha256 for wheel in pin.jaxlib.wheels.values()}) == len(pin.pythons)
    assert all(wheel.size > 10_000_000 for wheel in pin.jaxlib.wheels.values())


def test_a_release_that_is_newer_than_every_pin_says_how_it_would_be_built():
    with pytest.raises(
        ConfigError, match=r"the layout of JAX >=0\.11\.1, but its sources may"
    ) as caught:
        PINS.find("0.13.0")
    assert "`rocwheel pins add 0.13.0`" in caught.value.hint


def test_the_branches_amd_builds_are_pinned_by_what_its_released_plugins_say():
    branches = {pin.name: pin for pin in PINS.pins if pin.name != pin.version}
    assert sorted(branches) == [
        f"rocm-jaxlib-v0.{n}" for n in ("10.1", "10.2", "11.0", "11.1", "11.2")
    ] + ["rocm-jaxlib-v0.12.0"]
    for name, pin in branches.items():
        release = PINS.find(pin.version, allow_unverified=True)
        assert (pin.ref, pin.repository) == (name, "https://github.com/ROCm/jax")
        assert (pin.jaxlib, pin.pythons) == (release.jaxlib, release.pythons)
        assert pin.commit != release.commit
        with pytest.raises(ConfigError, match=r"the commit is what jax-rocm") as caught:
            PINS.find(name)
        where = f"{pin.version} --repository {pin.repository} --ref {name}"
        assert caught.value.hint.endswith(f"verify it: `rocwheel pins add {where}`")


def test_an_unverified_pin_is_used_only_where_that_is_allowed():
    with pytest.raises(ConfigError, match=r"JAX 0\.12\.0: its pin is unverified: ") as caught:
        PINS.find("0.12.0")
    assert "--allow-unverified-pin" in caught.value.hint
    assert "`rocwheel pins add 0.12.0`" in caught.value.hint
    pin = PINS.find("0.12.0", allow_unverified=True)
    assert pin.commit == "8dcb7aeced770bd22531b42d0b925c7342787c27"
    assert not pin.default


def test_an_unverified_pin_is_never_the_default(tmp_path):
    error = mistake(tmp_path, "    unverified: ", "    default: true\n    unverified: ")
    assert "never the default" in str(error)


# ci/layouts.yaml: what rocwheel relies on is data, and data that cannot be right is refused.


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
