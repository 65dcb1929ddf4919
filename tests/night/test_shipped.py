"""The night that rocwheel ships builds something of what TheRock's streams list today."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timezone
from pathlib import Path

import pytest
from support.faultserver import FaultServer

import amdgpu_family_matrix as matrix
from rocwheel.base import home
from rocwheel.base.console import silent
from rocwheel.base.download import Client, Retry
from rocwheel.base.here import Here
from rocwheel.base.values import replace
from rocwheel.night import resolving
from rocwheel.night import settings as settings_file
from rocwheel.rocm import therock

CI = Path(__file__).parents[2] / "ci"
# What each stream listed when ci/therock.yaml was last compared with it.
TODAY = {
    "nightly": "10.1.0a20260901",
    "dev": "10.1.0.dev0+d41894c0",
    "bkc": "10.1.0a20260811+bkc.20260814",
    "rc": "10.1.0rc0",
    "stable": "10.0.0",
}


def test_each_stream_has_its_version_of_today() -> None:
    assert TODAY.keys() == therock.known().streams.keys()


@pytest.mark.parametrize("by", ["name", "address"])
@pytest.mark.parametrize("stream", TODAY)
def test_the_shipped_night_plans_a_build_for_each_stream(stream, by, tmp_path, runner) -> None:
    families = {item.name: item for item in matrix.families(matrix.Trigger.NIGHTLY)}
    names = [
        f"therock-dist-linux-{name}-{TODAY[stream]}.tar.gz" for name in (*families, "multiarch")
    ]
    other = "therock-dist-linux-gfx90a-11.9.9.dev1.tar.gz"  # newer, and like no stream's
    files = [{"name": name, "mtime": 1788220800.0} for name in (*names, other)]  # 2026-09-01
    shutil.copytree(CI, tmp_path / "ci")
    settings = settings_file.load(CI / settings_file.FILE)
    with (
        FaultServer() as server,
        Client({}, retry=Retry(attempts=1), note=lambda _: None) as client,
    ):
        page = server.add("tarball/", f"const files = {json.dumps(files)};".encode())
        for name in names:
            server.add(f"tarball/{name.replace('+', '%2B')}", b"ROCm")
        where = therock.address(stream, "tarballs", ci=CI, cwd=tmp_path)
        text = (CI / therock.FILE).read_text().replace(where, page)
        (tmp_path / "ci" / therock.FILE).write_text(text)
        named = stream if by == "name" else page
        sets = [replace(s, rocm=replace(s.rocm, tarballs=named)) for s in settings.sets]
        here = Here(
            environ={}, cwd=tmp_path, cache=tmp_path / "cache", home=home.find(tmp_path / "ci"),
            console=silent(), runner=runner,
            now=lambda: datetime(2026, 9, 2, tzinfo=timezone.utc),
        )  # fmt: skip
        made, world = (
            replace(settings, sets=tuple(sets)),
            resolving.World(here=here, client=client, tool=""),
        )
        recipes, absent = resolving.resolve(made, families, world)
    built = {(recipe.name, family) for recipe in recipes for family in recipe.families}
    assert built == {(f"{s.name}-{name}", name) for s in settings.sets for name in families}
    assert [cell for cell in absent if cell.kind == "build"] == []
