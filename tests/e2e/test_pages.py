"""Shell blocks of the pages that can be executed are, in the order they stand on their page."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest
from support import pages

from rocwheel.base.values import replace

ROOT = Path(__file__).parents[2]


def of(world):
    chosen = [block for block in pages.blocks() if block.marker == f"run: {world}"]
    return [
        pytest.param(list(blocks), id=str(page.relative_to(ROOT)))
        for page, blocks in groupby(chosen, key=lambda block: block.page)
    ]


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """A folder with `rocwheel` in it, as an installation would put it on PATH."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "rocwheel"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/build/ci_build" "$@"\n')
    script.chmod(0o755)
    return folder


def execute(blocks, folder, env):
    for block in blocks:
        done = subprocess.run(
            ["bash", "-e", "-u", "-c", "\n".join(block.commands)],
            cwd=folder, env=env, capture_output=True, text=True, timeout=1700, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr[-3000:]}"


@pytest.mark.parametrize("blocks", of("anywhere"))
def test_blocks_for_any_machine(blocks, tmp_path, program):
    execute(blocks, tmp_path, {**os.environ, "PATH": f"{program}:{os.environ['PATH']}"})


@pytest.mark.parametrize(
    "block", [block for block in pages.blocks() if block.marker.startswith("dry-run: ")], ids=str
)
def test_what_lacks_something_here_has_a_dry_run_that_ends_well(block, tmp_path, program):
    assert all(line.startswith("rocwheel ") for line in block.commands)
    dry = [line.replace("rocwheel ", "rocwheel --dry-run ", 1) for line in block.commands]
    env = {
        **os.environ,
        "PATH": f"{program}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "ROCWHEEL_DIST_WHEELS_ALLOW_DIRTY": "true",  # rocwheel's own checkout may be changed
    }
    execute([replace(block, language="sh", text="\n".join(dry))], tmp_path, env)


@pytest.mark.xdist_group("demo")
@pytest.mark.parametrize("blocks", of("demo"))
def test_blocks_for_what_the_demo_left(blocks, demo, program):
    world, done = demo
    tarball = next((world.cache / "demo").glob("*/therock-dist-*.tar.gz"))
    pythons = [item["python"] for item in done.document["installed"]]
    env = {
        **os.environ,
        **world.env,
        "PATH": f"{program}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(world.folder / "cache"),
        "FAMILIES": str(ROOT / "examples" / "miniature" / "families.yaml"),
        "PYTHONS": " ".join(pythons),
        "TARBALL": str(tarball),
    }
    execute(blocks, world.folder, env)


@pytest.mark.xdist_group("demo")
def test_the_demo_ends_with_an_index_a_line_to_paste_and_a_page(demo):
    _, done = demo
    assert done.document["index"].startswith("file:///")
    assert "--require-hashes" in done.document["pip"]
    assert "<html" in Path(done.document["page"]).read_text()
    assert done.document["pip"] in done.stderr
