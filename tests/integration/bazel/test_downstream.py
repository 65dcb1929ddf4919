"""ROCm/rocm-jax: Bazel runs its wheel builders, and jaxlib is the upstream one, by its hash."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from support import bazel_bench, tarballs, toy
from support.git_server import repository

from rocwheel import bazel, dist, home
from rocwheel.errors import BazelError, ConfigError
from rocwheel.model import PythonVersion, WheelKind

pytestmark = [pytest.mark.needs("bazel", "git"), pytest.mark.xdist_group("bazel")]

ROOT = Path(__file__).parents[3]


@pytest.fixture
def request_(tmp_path):
    files = {f"jax_rocm_plugin/{name}": text for name, text in toy.DOWNSTREAM.items()}
    repository(tmp_path / "rocm-jax", files)
    yield dist.Request(
        therock=str(tarballs.rocm_folder(tmp_path / "rocm")),
        gfx_targets=("gfx942",),
        pythons=(PythonVersion(3, 12),),
        jax_source_dir=tmp_path / "rocm-jax",
        compiler="gcc",
        allow_dirty=True,
        wheelhouse=tmp_path / "wheelhouse",
        cache=tmp_path / "cache",
        home=home.find(None),
        cwd=tmp_path,
        environ={"PATH": os.environ["PATH"]},
    )
    bazel_bench.stop(tmp_path / "cache")


def test_its_programs_write_wheels_that_are_taken(request_, runner, console, tmp_path):
    inputs = dist.gather(dist.plan(request_), runner=runner, console=console)
    made = {}
    for invocation in bazel.invocations(inputs.spec):
        done = bazel.build(
            invocation,
            folder=tmp_path / "logs",
            into=tmp_path / "out",
            runner=runner,
            console=console,
        )
        made |= done.outputs
    assert {kind: path.name for kind, path in made.items()} == {
        WheelKind.PLUGIN: "jax_rocm7_plugin-0.9.1+rocm7.10.0-cp312-cp312-linux_x86_64.whl",
        WheelKind.PJRT: "jax_rocm7_pjrt-0.9.1+rocm7.10.0-py3-none-linux_x86_64.whl",
    }
    assert toy.text_of(made[WheelKind.PJRT]).strip() == inputs.tree.jax.commit
    assert inputs.tree.upstream_jaxlib(PythonVersion(3, 12)).filename.startswith("jaxlib-0.9.1-")


def test_a_jaxlib_that_nobody_pinned_is_missed_before_bazel_starts(request_, runner):
    version = request_.jax_source_dir / "jax_rocm_plugin/pjrt/python/version.py"
    version.write_text('_version = "0.9.99"\n')
    with pytest.raises(
        ConfigError, match=r"jaxlib 0\.9\.99 for CPython 3\.12: no upstream"
    ) as caught:
        list(dist.dry_run(dist.plan(request_), runner=runner))
    assert caught.value.hint == "add its SHA-256 to ci/pins.yaml"


def test_a_program_that_writes_nothing_is_an_error(request_, runner, console, tmp_path):
    program = request_.jax_source_dir / "jax_rocm_plugin/program.bzl"
    program.write_text(program.read_text().replace("python3 pack.py", "true"))
    inputs = dist.gather(dist.plan(request_), runner=runner, console=console)
    with pytest.raises(BazelError, match="made 0 wheels, not one: none"):
        bazel.build(
            bazel.invocations(inputs.spec)[0],
            folder=tmp_path / "logs",
            into=tmp_path / "out",
            runner=runner,
            console=console,
        )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"jaxlib": "built"}, "jaxlib: the downstream layout does not build it"),
        ({"compiler": "hermetic"}, "hermetic: the downstream layout cannot be built with it"),
        ({"pythons": (PythonVersion(3, 10),)}, "no lock file"),
        ({"wheel_suffix": ".post1"}, "only makes +rocm suffixes"),
    ],
)
def test_what_it_cannot_do_is_refused_before_bazel_starts(request_, runner, changes, reason):
    with pytest.raises(ConfigError) as caught:
        list(dist.dry_run(dist.plan(replace(request_, **changes)), runner=runner))
    assert reason in str(caught.value)
    assert caught.value.hint
