"""`pin add` against a git repository with JAX's layout and an index with jaxlib's wheels."""

from __future__ import annotations

import shutil

import pytest
from support.git_server import git
from support.jax_release import ABIS, CI, LAYOUTS, VERSION, XLA, Place

from rocwheel import source
from rocwheel.base.errors import ConfigError, FetchError, SourceError
from rocwheel.base.values import replace
from rocwheel.base.values import replace as replace_value
from rocwheel.tools import bump

pytestmark = [pytest.mark.integration, pytest.mark.needs("git")]


@pytest.fixture
def place(tmp_path, console):
    return Place(tmp_path, console)


def test_a_release_is_added_with_what_its_sources_and_wheels_say(place):
    before = place.path.read_text()
    facts = place.look_up()
    assert (facts.pin.xla_commit, facts.pin.bazel, facts.built_as) == (XLA, "7.7.0", "JAX >=0.11.1")
    text = bump.added(place.path, facts, default=True, layouts=LAYOUTS)
    place.path.write_text(text)
    pins = source.load_pins(place.path, layouts=LAYOUTS)
    assert pins.default.version == VERSION
    assert not pins.find(VERSION).unverified
    assert list(pins.find(VERSION).jaxlib.wheels) == list(ABIS)
    comments = [line for line in before.splitlines() if line.startswith("#")]
    assert [line for line in text.splitlines() if line.startswith("#")] == comments
    assert text.count("    default: true") == before.count("    default: true") == 1
    others = [pin for pin in pins.pins if pin.version not in (VERSION, "0.11.0")]
    was = source.load_pins(CI / "pins.yaml", layouts=LAYOUTS)
    assert others == [pin for pin in was.pins if pin.version not in (VERSION, "0.11.0")]
    shutil.rmtree(place.jax)  # it is refused before anything is fetched
    with pytest.raises(ConfigError, match="has a verified pin"):
        place.look_up()


def test_a_release_between_others_stands_in_its_place(place):
    facts = place.look_up()
    text = place.path.read_text()
    without = text[: text.index('  "0.11.1":')] + text[text.index('  "0.11.2":') :]
    place.path.write_text(without)
    place.path.write_text(bump.added(place.path, facts, default=False, layouts=LAYOUTS))
    names = [line for line in place.path.read_text().splitlines() if line.startswith('  "')]
    assert names[-5:] == [
        f'  "{name}":' for name in ("0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.12.0.1")
    ]
    pins = source.load_pins(place.path, layouts=LAYOUTS)
    assert pins.default.version == "0.11.0"


def test_what_contradicts_is_refused_and_nothing_is_written(place):
    before = place.path.read_bytes()
    with pytest.raises(SourceError, match=r"jax-v0\.11\.1 is JAX 0\.11\.1, not 0\.12\.5"):
        place.look_up("0.12.5", ref=f"jax-v{VERSION}")
    with pytest.raises(SourceError, match=r"has no branch or tag 'jax-v0\.13\.0'"):
        place.look_up("0.13.0")
    rc = place.jax / "build" / "rocm" / "rocm.bazelrc"
    rc.write_text(rc.read_text().replace("rocm_release_wheel", "rocm_other"))
    place.commit("changed")
    with pytest.raises(SourceError, match="should have") as caught:
        place.look_up(ref="changed")
    assert "add-a-jax-version" in caught.value.hint
    shutil.rmtree(place.folder / "index" / "jaxlib")
    with pytest.raises(FetchError, match="pip finds no wheel"):
        place.look_up()
    assert place.path.read_bytes() == before


def test_a_branch_of_a_fork_is_pinned_beside_the_release_of_its_version(place):
    git(place.jax, "branch", "rocm-jaxlib-v0.11.1")
    facts = place.look_up(ref="rocm-jaxlib-v0.11.1")
    text = bump.added(place.path, facts, default=False, layouts=LAYOUTS)
    before, _, unverified = place.path.read_text().partition("  rocm-jaxlib-v0.11.1:\n")
    assert text.startswith(before)
    assert "unverified:" in unverified
    assert "unverified:" not in text.removeprefix(before).partition("  rocm-jaxlib-v0.11.2:\n")[0]
    place.path.write_text(text)
    pins = source.load_pins(place.path, layouts=LAYOUTS)
    pin = pins.find("rocm-jaxlib-v0.11.1")
    assert (pin.version, pin.ref) == (VERSION, "rocm-jaxlib-v0.11.1")
    assert pin.commit == git(place.jax, "rev-parse", "HEAD")
    assert pins.find(VERSION, allow_unverified=True).ref == "jax-v0.11.1"
    planned = source.plan(
        source.SourceRequest(jax_version="rocm-jaxlib-v0.11.1"), pins=pins, cache=place.folder / "c"
    )
    tree = source.resolve(planned, pins=pins, runner=place.runner, console=place.console)
    assert (tree.jax_version, tree.jax.commit, tree.release) == (VERSION, pin.commit, pin)
    # which YAML would take for true, nothing, a number and a day
    for name in ("yes", "null", "1_000", "2026-11-01"):
        named = replace(facts, pin=replace_value(facts.pin, name=name, ref=name))
        place.path.write_text(bump.added(place.path, named, default=False, layouts=LAYOUTS))
        assert source.load_pins(place.path, layouts=LAYOUTS).find(name).ref == name
    place.path.write_text(text.replace('    version: "0.11.1"\n', ""))
    with pytest.raises(ConfigError, match=r"'rocm-jaxlib-v0\.11\.1' is not a version"):
        source.load_pins(place.path, layouts=LAYOUTS)
