"""A night in which no family found a ROCm, through the command line: every command says so."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from support.faultserver import FaultServer
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
    told = world.nightly("changes", "two", "--json", check=True)
    assert json.loads(told.out)["nothing_built"] is True


def test_a_stream_that_went_quiet_is_red_everywhere_though_all_else_is_kept(world, tmp_path):
    old = (datetime.now(tz=timezone.utc) - timedelta(days=8)).date()
    name = f"therock-dist-linux-gfx90a-7.1.0a{old:%Y%m%d}.tar.gz"
    with FaultServer() as server:
        page = server.add("tarball/", f'const files = [{{"name": "{name}", "mtime": 1}}]'.encode())
        server.add(f"tarball/{name}", b"ROCm")
        world.settings(SETTINGS.format(tarballs=page, excuse=""))
        for night in ("one", "two"):
            planned = world.plan(night, "--explain")
            assert planned.code == 0
            assert world.local(night).code == 5
    told = " ".join(planned.out.split())
    red = f"source.jax.rocm absent {page}: the newest is of {old}, 8 days old, and 7 are allowed"
    assert red in told
    assert "build.jax-gfx90a kept (staged)" in told
    words = f"the newest is of {old}, 8 days old"
    assert words in world.nightly("status", "two").out
    assert words in (world.folder / "store/status/index.html").read_text()
    checked = world.nightly("check")
    assert checked.code == 8
    assert f"source.jax.rocm: absent: {page}: {words}" in checked.err
    assert words in world.nightly("changes", "one", check=True).out
    doctor = world.run("doctor", "--for", "release", *world.target)
    assert "offered to two" in doctor.out
    assert words in doctor.out
