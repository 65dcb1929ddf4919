"""TheRock's own page generators, at each of its release tags, and what we read of their pages.

The folder of checkouts holds TheRock as `therock`. Its `build_tools` at a tag are run as they are;
only the bucket they list is a stand-in, with the names TheRock's tarballs had at that release.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from checkouts import FOLDER, Commit
from support.faultserver import FaultServer

import amdgpu_family_matrix as matrix
from rocwheel.base.download import Client, Retry
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
        when = datetime(2026, 6, 1, tzinfo=timezone.utc)
        yield {"Contents": [{"Key": name, "LastModified": when} for name in json.load(sys.stdin)]}

generator.generate_index_s3(Bucket(), "bucket", "v4/tarball")
"""


@pytest.mark.parametrize("tag", TAGS)
def test_every_familys_tarball_is_found_on_the_page_that_therock_makes(
    tag: str, tmp_path: Path
) -> None:
    if not (FOLDER / "therock").is_dir():
        pytest.skip("the folder of checkouts has no TheRock")
    Commit("therock", tag).extract(tmp_path, "build_tools")
    version, groups = TAGS[tag], [*matrix.FAMILIES, "multiarch"]
    names = [
        f"therock-dist-linux-{group}{tests}-{version}.tar.gz"
        for group in groups
        for tests in ("", "-tests")
    ]
    names += [f"therock-dist-windows-gfx1151-{version}.tar.gz"]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    listed = str([f"v4/tarball/{name}" for name in names]).replace("'", '"')
    subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path)],
        input=listed,
        text=True,
        cwd=tmp_path,
        env=env,
        check=True,
    )
    page = (tmp_path / "index.html").read_bytes()
    with FaultServer() as server, Client({}, retry=Retry(attempts=1), note=print) as client:
        url = server.add("tarball-multi-arch/", page)
        newest = listing.newest(url, client=client, cwd=tmp_path)
    assert sorted(newest) == sorted(groups)
    assert {str(item.name.version) for item in newest.values()} == {version}
    assert all(item.modified for item in newest.values())
