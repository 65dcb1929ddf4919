"""Shell blocks of the pages that can be executed are, in the order they stand on their page."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path

import pytest
from e2e.conftest import PATH
from support import pages, slurm
from support.jax_release import Place

from rocwheel.base.console import silent
from rocwheel.base.values import replace

ROOT = Path(__file__).parents[2]


def of(world):
    found = []
    chosen = [block for block in pages.blocks() if block.marker == f"run: {world}"]
    for page, grouped in groupby(chosen, key=lambda block: block.page):
        blocks = list(grouped)
        needs = slurm.PROGRAMS if any("slurm" in block.text for block in blocks) else ()
        marks = [pytest.mark.needs(*needs)] if needs else []
        found.append(pytest.param(blocks, id=str(page.relative_to(ROOT)), marks=marks))
    return found


def program_of(checkout, folder):
    """A folder with `rocwheel` in it, as an installation would put it on PATH."""
    folder.mkdir()
    script = folder / "rocwheel"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{checkout}/build/ci_build" "$@"\n')
    script.chmod(0o755)
    return folder


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    return program_of(ROOT, tmp_path_factory.mktemp("pages") / "bin")


def execute(blocks, folder, env):
    """Run the blocks of a page in one shell, as a person types them."""
    lines = ["trap 'kill $(jobs -p) 2>/dev/null || true' EXIT"]
    lines += [line for block in blocks for line in (f": {block}", *block.commands)]
    done = subprocess.run(
        ["bash", "-e", "-u", "-x", "-c", "\n".join(lines)],
        cwd=folder, env=env, capture_output=True, text=True, timeout=1700, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"


@pytest.mark.parametrize("blocks", of("anywhere"))
def test_blocks_for_any_machine(blocks, tmp_path, program):
    path = f"{program}:{os.environ['PATH']}"
    execute(blocks, tmp_path, {**os.environ, "HOME": str(tmp_path), "PATH": path})


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


@pytest.mark.slow
@pytest.mark.xdist_group("demo")
@pytest.mark.parametrize("blocks", of("clone"))
def test_a_transcript_works_in_a_fresh_clone_with_a_fresh_home(blocks, demo, tmp_path):
    """What a release engineer, a JAX developer, an installer and a maintainer type."""
    world, _ = demo
    clone, home = tmp_path / "rocwheel", tmp_path / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    text = "".join(block.text for block in blocks)
    env = {
        **os.environ,
        "DEMO": str(world.wheelhouse / "demo"),
        "HOME": str(home),
        "PATH": f"{program_of(clone, tmp_path / 'bin')}:{Path(sys.executable).parent}:{PATH}",
        "PYTHON": "3.11",
        "WHEELHOUSE": str(world.wheelhouse / "current"),
        "XDG_CACHE_HOME": str(world.cache.parent),
    }
    if "$JAX" in text:
        jax = Place(home, silent())
        env |= {"JAX": str(jax.jax), "PIP_INDEX_URL": (jax.folder / "index").as_uri()}
    with slurm.cluster(tmp_path / "slurm") if "slurm" in text else nullcontext() as cluster:
        execute(blocks, clone, env | (cluster.env if cluster else {}))
