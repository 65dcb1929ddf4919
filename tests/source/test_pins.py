"""ci/pins.yaml: the pins are the right ones, and every mistake in it is named with its place."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from packaging.version import Version

from rocwheel import source
from rocwheel.base.errors import ConfigError
from rocwheel.base.versions import PythonVersion
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


def test_the_default_is_the_newest():
    assert PINS.default == VERIFIED[-1]


def test_jaxlib_is_built_up_to_0_9_0_and_taken_from_upstream_afterwards():
    built = [pin.version for pin in PINS.pins if pin.jaxlib.origin == "built"]
    assert built == ["0.8.0", "0.8.1", "0.8.2", "0.8.3", "0.9.0", "0.9.0.1"]


@pytest.mark.parametrize("pin", PINS.pins, ids=lambda pin: pin.version)
def test_upstream_wheels_are_pinned_for_every_cpython_and_never_twice(pin):
    assert tuple(pin.jaxlib.wheels) == tuple(map(str, pin.pythons))
    assert len({wheel.sha256 for wheel in pin.jaxlib.wheels.values()}) == len(pin.pythons)
    assert all(wheel.size > 10_000_000 for wheel in pin.jaxlib.wheels.values())


@pytest.mark.parametrize("pin", PINS.pins, ids=lambda pin: pin.version)
def test_cpython_3_11_is_accepted_before_0_11_only(pin):
    assert (PythonVersion(3, 11) in pin.pythons) == (Version(pin.version) < Version("0.11.0"))


def test_an_unknown_version_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"JAX 0\.9\.11: no pin in .*pins\.yaml") as caught:
        PINS.find("0.9.11")
    assert caught.value.hint.startswith("did you mean 0.9.1?")


def test_a_release_that_is_newer_than_every_pin_says_how_it_would_be_built():
    with pytest.raises(
        ConfigError, match=r"built as JAX >=0\.11\.1, which was not compared"
    ) as caught:
        PINS.find("0.13.0")
    assert "rocwheel pins add 0.13.0" in caught.value.hint


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
        assert caught.value.hint.endswith(f"verify it: rocwheel pins add {where}")


def test_an_unverified_pin_is_used_only_where_that_is_allowed():
    with pytest.raises(ConfigError, match=r"JAX 0\.12\.0: its pin is unverified: ") as caught:
        PINS.find("0.12.0")
    assert "--allow-unverified-pin" in caught.value.hint
    assert "rocwheel pins add 0.12.0" in caught.value.hint
    pin = PINS.find("0.12.0", allow_unverified=True)
    assert pin.commit == "8dcb7aeced770bd22531b42d0b925c7342787c27"
    assert not pin.default


def test_an_unverified_pin_is_never_the_default(tmp_path):
    error = mistake(tmp_path, "    unverified: ", "    default: true\n    unverified: ")
    assert "never the default" in str(error)


@pytest.mark.parametrize(
    ("old", "new", "place", "hint"),
    [
        ("commit:", "comit:", r"pins\.0\.8\.0\.comit: unknown key", "did you mean commit?"),
        ("layout: upstream", "layout: upstrem", r"unknown value 'upstrem'", "upstream"),
        ('"3.11"', '"3.111"', r"pythons\[0\]: '3\.111': unknown Python", "3.11"),
        ("403977d2e2", "403977", r"commit: '403977\w+' is not 40 hexadecimal", "write all"),
        ("origin: built", "origin: build", r"jaxlib\.origin: unknown value 'build'", "built"),
        ("    ref: jax-v0.8.0\n", "", r"pins\.0\.8\.0: 'ref' is missing", "add `ref:`"),
        ("schema: 1", "schema: 2", r"schema: this rocwheel reads schema 1", "same version"),
        ('bazel: "7.4.1"', "bazel: 7", r"bazel: expected `str`, got `int`", "quotes"),
        ("default: true", "default: false", r"0 pins are marked default", "exactly one"),
        (
            "jaxlib-0.9.1-cp312",
            "jaxlib-0.9.0-cp312",
            r"does not start with jaxlib-0\.9\.1-cp312",
            "",
        ),
        ("      origin: built\n", "", "'origin' is missing", "add `origin:`"),
        (
            '"0.8.0":',
            '"0.7.0":',
            r"no class of layout 'upstream' holds JAX 0\.7\.0",
            "layouts.yaml",
        ),
    ],
)
def test_a_mistake_is_named_with_file_line_key_and_remedy(old, new, place, hint, tmp_path):
    error = mistake(tmp_path, old, new)
    assert re.match(r".*pins\.yaml:\d+:\d+: ", str(error))
    assert re.search(place, str(error))
    assert hint in error.hint


def test_the_line_of_a_mistake_is_its_line(tmp_path):
    lines = FILE.read_text().splitlines()
    number = next(n for n, line in enumerate(lines, 1) if "ref:" in line)
    assert f"pins.yaml:{number}:" in str(mistake(tmp_path, "ref: jax-v0.8.0", "ref: [a]"))
