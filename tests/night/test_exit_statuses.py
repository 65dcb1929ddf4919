"""A night in which no family found a ROCm, through the command line: every command says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.night import World

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(600)]
SETTINGS = """
sets:
  - name: jax
    source_dir: source
    pythons: ["3.12"]
    families: [gfx90a]
    rocm: {{tarballs: {tarballs}}}
build: {{cpus: 1, memory_mib: 64, disk_mib: 1, hours: 1}}
{excuse}
"""
EXCUSE = """
excused:
  - {cells: "*", owner: ann, reason: "no ROCm until June", until: 2999-01-01}
"""


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, (tmp_path / "store").as_uri())


def settle(world: World, excuse: str = "") -> Path:
    tarballs = world.folder / "tarballs"
    tarballs.mkdir()
    world.settings(SETTINGS.format(tarballs=tarballs, excuse=excuse))
    return tarballs


@pytest.mark.parametrize("excuse", ["", EXCUSE])
def test_no_command_ends_with_0_after_a_night_that_built_nothing(world, excuse):
    settle(world, excuse)
    planned = world.plan("one")
    assert planned.code == 5
    assert "one: nothing can be built" in planned.err
    assert world.plan("two", "--keep-going").code == 0
    ran = world.local("two")
    assert ran.code == 5
    assert "two: nothing was built" in ran.err
    assert "nothing was built" in (world.folder / "store/status/index.html").read_text().lower()
    assert world.nightly("status", "two").code == 5
    checked = world.nightly("check")
    assert checked.code == 8
    assert ("two: nothing was built" if excuse else "build.jax-gfx90a: absent") in checked.err
    told = world.nightly("notify", "two", f"--file={world.folder}/two.json")
    assert told.code == 0
    assert json.loads((world.folder / "two.json").read_text())["nothing_built"] is True


def test_a_night_that_is_too_old_is_told_once_and_again_of_the_next_one(world):
    settle(world)
    message = world.folder / "stale.json"
    say = ("notify", "--max-age=1m", f"--file={message}")
    world.plan("one", "--keep-going", check=True)
    assert "nothing-to-do" in world.nightly(*say, check=True).out
    assert not message.exists()
    for night in ("one", "two"):
        if night == "two":
            world.plan(night, "--keep-going", check=True)
        old = ("notify", "--max-age=0.0001m", f"--file={message}")
        assert world.nightly(*old, check=True).out.split() == [night, "told"]
        document = json.loads(message.read_text())
        assert document["night"] == night
        assert document["headline"].startswith("no newer night for more than")
        message.unlink()
        assert world.nightly(*old, check=True).out.split() == [night, "nothing-to-do"]
        assert not message.exists()
