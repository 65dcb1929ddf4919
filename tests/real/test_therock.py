"""TheRock's own page generators, at each of its release tags, and what we read of their pages.

The folder of checkouts holds TheRock as `therock`. Its `build_tools` at a tag are run as they are;
only the bucket they list is a stand-in, with the names TheRock's tarballs had at that release.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import date, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from checkouts import FOLDER, Commit
from support.faultserver import FaultServer

import amdgpu_family_matrix as matrix
from rocwheel.base.download import Client, Retry
from rocwheel.cli import main
from rocwheel.rocm import listing

if TYPE_CHECKING:
    from pathlib import Path

TAGS = {  # and the versions its pages listed
    "therock-7.9.0": "7.9.0rc1",
    "therock-7.10": "7.10.0a20251120",
    "therock-7.11": "7.11.0a20260201",
    "therock-7.12": "7.12.0.dev0+13caf791",
    "therock-7.13": "7.13.0a20260430",
    "therock-7.14": "7.14.0a20260617",
    "HEAD": "10.1.0a20260811+bkc.20260814",
    "89553ce": "10.1.0a20260901",
}
RUN = """
import json, sys
from datetime import datetime, timezone
sys.path[:0] = [sys.argv[1] + "/build_tools", sys.argv[1] + "/build_tools/github_actions"]
import index_generation_s3_tar as generator

class Bucket:
    def get_paginator(self, _name):
        return self
    def paginate(self, **_asked):
        when = datetime.fromisoformat(sys.argv[2]).replace(tzinfo=timezone.utc)
        yield {"Contents": [{"Key": name, "LastModified": when} for name in json.load(sys.stdin)]}

generator.generate_index_s3(Bucket(), "bucket", "v4/tarball")
"""


def page_of(tag: str, version: str, folder: Path, *, day: str = "2026-06-01") -> bytes:
    """The page that TheRock's generator at a tag makes of that version's tarballs."""
    if not (FOLDER / "therock").is_dir():
        pytest.skip("the folder of checkouts has no TheRock")
    Commit("therock", tag).extract(folder, "build_tools")
    names = [
        f"therock-dist-linux-{group}{tests}-{version}.tar.gz"
        for group in [*matrix.FAMILIES, "multiarch"]
        for tests in ("", "-tests")
    ]
    names += [f"therock-dist-windows-gfx1151-{version}.tar.gz"]
    listed = json.dumps([f"v4/tarball/{name}" for name in names])
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [sys.executable, "-c", RUN, str(folder), day]
    subprocess.run(argv, input=listed, text=True, cwd=folder, env=env, check=True)
    return (folder / "index.html").read_bytes()


@pytest.mark.parametrize("tag", TAGS)
def test_every_familys_tarball_is_found_on_the_page_that_therock_makes(
    tag: str, tmp_path: Path
) -> None:
    page, version = page_of(tag, TAGS[tag], tmp_path), TAGS[tag]
    with FaultServer() as server, Client({}, retry=Retry(attempts=1), note=print) as client:
        url = server.add("tarball-multi-arch/", page)
        newest = listing.newest_of(listing.every(url, client=client, cwd=tmp_path), url)
    assert sorted(newest) == sorted([*matrix.FAMILIES, "multiarch"])
    assert {str(item.name.version) for item in newest.values()} == {version}
    assert all(item.modified for item in newest.values())


@pytest.mark.parametrize(
    ("age", "said"),
    [
        (0, ""),
        (8, "8 days old, and 7 are allowed; has TheRock moved?"),
        (None, "days old, and 7 are allowed; has TheRock moved?"),  # frozen at the old address
    ],
)
def test_a_plan_explains_what_the_pages_of_therock_offer(age, said, tmp_path, capsys) -> None:
    today = datetime.now(tz=timezone.utc).date()
    day = date(2026, 8, 22) if age is None else today - timedelta(days=age)
    version = f"10.1.0a{day:%Y%m%d}"
    page = page_of("89553ce", version, tmp_path, day=f"{day}")
    (tmp_path / "jax").mkdir()
    with FaultServer() as server:
        url = server.add("tarball/", page)
        server.add(f"tarball/therock-dist-linux-gfx90a-{version}.tar.gz", b"ROCm")
        (tmp_path / "nightly.yaml").write_text(
            "sets: [{name: x, source_dir: jax, pythons: ['3.12'], families: [gfx90a], "
            f"rocm: {{tarballs: '{url}'}}}}]\n"
        )
        words = (f"--config={tmp_path}/nightly.yaml", f"--store={(tmp_path / 'store').as_uri()}")
        assert main(["nightly", "plan", "--dry-run", "--explain", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split()[:2] == ["build.x-gfx90a", "run"] for line in lines)
    sources = [line for line in lines if line.startswith("source.x.rocm")]
    assert len(sources) == bool(said)
    assert all(said in line and f"the newest is of {day}" in line for line in sources)
