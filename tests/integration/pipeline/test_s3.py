"""A night in a bucket: a real S3 server, the same commands, pip from the released index."""

from __future__ import annotations

import json

import pytest
from support.night import World
from support.s3 import servers  # noqa: F401 - a fixture

from rocwheel.store import Options

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("seaweedfs")]


@pytest.fixture
def world(tmp_path, servers):  # noqa: F811
    env = servers["seaweedfs"].environ()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        yield World(tmp_path, servers.fresh_url("seaweedfs"), env=env, options=Options())


def test_one_family_is_held_and_another_promoted_and_page_and_status_agree(world):
    world.settings(families="gfx90a, gfx1151")
    world.script(gate={"gfx1151.*unit*": "fail"})
    world.plan("one", check=True)
    done = world.local("one")
    assert done.code == 5, done.err
    states = world.states("one")
    assert states["promote.jax.gfx90a"] == "pass"
    assert states["promote.jax.gfx1151"] == "fail"
    for family, state in (("gfx90a", "released"), ("gfx1151", "staged")):
        said = world.run("--json", "status", f"--family={family}", *world.target)
        assert [item["state"] for item in json.loads(said.out)["sets"]] == [state]
    page = world.folder / "state.html"
    world.run("report", "state", f"--output={page}", *world.target, check=True)
    text = page.read_text()
    assert text.count("Released: JAX") == 1
    assert "Nothing released." in text
    assert "unit on 3.12: fail" in text


def test_a_night_that_has_nothing_to_do_says_so_and_promotes_nothing_twice(world):
    world.plan("one", check=True)
    assert world.local("one").code == 0
    again = world.plan("two", check=True)
    assert "2 cells to run" in again.out
    assert world.local("two").code == 0
