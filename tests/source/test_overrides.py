"""Overridden sources are seen in the wheels' version, or refused; nobody has to remember them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support import tarballs, toy
from support.git_server import git, repository

from rocwheel import bazel, dist
from rocwheel.base import home
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion

pytestmark = [pytest.mark.integration, pytest.mark.needs("bazel", "git")]

ROOT = Path(__file__).parents[2]


@pytest.fixture
def request_(tmp_path):
    """A request to build a toy JAX and a local XLA against a ROCm directory."""
    tarballs.rocm_folder(tmp_path / "rocm")
    repository(tmp_path / "jax", toy.FILES)
    repository(tmp_path / "xla", {"xla/BUILD": ""})
    return dist.Request(
        therock=str(tmp_path / "rocm"),
        gfx_targets=("gfx942",),
        jax_source_dir=tmp_path / "jax",
        xla_source_dir=tmp_path / "xla",
        compiler="hermetic",
        allow_dirty=True,
        wheelhouse=tmp_path / "wheelhouse",
        cache=tmp_path / "cache",
        home=home.find(None),
        cwd=tmp_path,
        environ={"PATH": os.environ["PATH"]},
    )


def version(request, here) -> str:
    spec = dist.gather(dist.plan(request), here, fetch=False).spec
    bazel.invocations(spec)  # refuses a version that is not canonical
    return spec.jax_version + spec.version_suffix


def test_a_release_version_carries_the_short_commits_and_dirty(request_, here):
    jax = git(request_.jax_source_dir, "rev-parse", "--short=9", "HEAD")
    xla = git(request_.xla_source_dir, "rev-parse", "--short=9", "HEAD")
    assert version(request_, here) == f"0.11.0+rocm7.10.0.jax{jax}.xla{xla}"
    (request_.xla_source_dir / "xla/BUILD").write_text("changed")
    assert version(request_, here) == f"0.11.0+rocm7.10.0.jax{jax}.xla{xla}.dirty"
    post = replace(request_, wheel_suffix=".post1")
    assert version(post, here) == f"0.11.0.post1+jax{jax}.xla{xla}.dirty"


def without_git(folder: Path) -> None:
    shutil.rmtree(folder / ".git")


def changed(folder: Path) -> None:
    (folder / "xla/BUILD").write_text("changed")


@pytest.mark.parametrize("damage", [without_git, changed])
@pytest.mark.parametrize("jax", ["a folder", "a pin that is not here"])
def test_a_dry_run_refuses_an_xla_that_no_commit_has(request_, here, jax, damage):
    """As the run does, whether JAX is here or is fetched later."""
    asked = request_ if jax == "a folder" else of_a_pin(request_)
    commit = git(asked.xla_source_dir, "rev-parse", "--short=9", "HEAD")
    suffix = version(asked, here).partition(".xla")[2]
    assert suffix == commit
    damage(asked.xla_source_dir)
    suffix = version(asked, here).partition(".xla")[2]
    assert suffix.endswith(".dirty")
    assert suffix.startswith(commit) == (damage is changed)
    planned = dist.plan(replace(asked, allow_dirty=False))
    how = "make its folder a git checkout" if damage is without_git else "commit them"
    for fetch in (False, True) if jax == "a folder" else (False,):
        with pytest.raises(ConfigError, match=r"XLA.*: changes that are in no commit") as caught:
            dist.gather(planned, here, fetch=fetch)
        assert caught.value.hint.startswith(f"{how}, or add --allow-dirty")


def of_a_pin(request: dist.Request) -> dist.Request:
    pythons = (PythonVersion(3, 12),)
    return replace(request, jax_source_dir=None, jax_version="0.11.0", pythons=pythons)


def test_a_jax_without_git_never_gets_the_name_of_the_release(request_, here):
    """Nothing says that its files are the release's."""
    assert not version(request_, here).endswith(".dirty")
    without_git(request_.jax_source_dir)
    assert version(request_, here).endswith(".dirty")
    planned = dist.plan(replace(request_, allow_dirty=False))
    with pytest.raises(ConfigError, match=r"JAX.*: changes that are in no commit") as caught:
        dist.gather(planned, here)
    assert (caught.value.hint or "").startswith("make its folder a git checkout")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pythons": (PythonVersion(3, 14),)}, "CPython 3.14: .* has no lock file"),
        ({"rocm_version": "7.0.2"}, r"ROCm 7\.0\.2: JAX 0\.11\.0 needs ROCm"),
        ({"rocm_version": "10.1.0"}, r"ROCm 10\.1\.0: JAX 0\.11\.0 needs ROCm"),
        ({"wheel_suffix": "+rocm7_2"}, "PEP 440 spells it"),
        ({"jaxlib": "upstream", "pythons": (PythonVersion(3, 10),)}, "no upstream wheel is pinned"),
    ],
)
def test_what_cannot_work_is_refused_before_bazel_is_even_looked_for(
    request_, here, changes, reason
):
    asked = {"rocm_version": "7.10.0", "bazel_path": "/no/bazel", **changes}
    with pytest.raises(ConfigError, match=reason):
        dist.gather(dist.plan(replace(request_, **asked)), here)


@pytest.mark.parametrize(("version", "module"), [("7.7.0", True), ("no_version", False)])
def test_bazel_gets_the_overriding_folder(request_, here, tmp_path, version, module):
    """As a repository; also as a module where Bazel knows what that is."""
    program = tmp_path / "a-bazel"
    program.write_text(f"#!/bin/sh\necho bazel {version}\n")
    program.chmod(0o755)
    planned = dist.plan(replace(request_, bazel_path=str(program)))
    shown = "\n".join(dist.dry_run(planned, here))
    assert f"--override_repository=xla={request_.xla_source_dir}" in shown
    assert (f"--override_module=xla={request_.xla_source_dir}" in shown) == module
