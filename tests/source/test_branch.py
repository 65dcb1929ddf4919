"""A branch of JAX (`--jax-repository`, `--jax-ref`) from a real git server, resolved once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support import git_server, toy
from support.git_server import commit, git, repository

from rocwheel import dist, source
from rocwheel.base import home
from rocwheel.base.errors import ConfigError, SourceError
from rocwheel.base.values import replace

pytestmark = [pytest.mark.integration, pytest.mark.needs("git")]

CI = Path(__file__).parents[2] / "ci"
JAX = {**toy.FILES, "third_party/xla/revision.bzl": f'XLA_COMMIT = "{"0" * 40}"\n'}


@pytest.fixture
def served(tmp_path):
    repository(tmp_path / "served/jax", JAX)
    git(tmp_path / "served/jax", "branch", "rocm-jaxlib-v0.11.0")
    with git_server.serve(tmp_path / "served") as (url, seen):
        yield f"{url}/jax", tmp_path / "served/jax", seen


@pytest.fixture
def request_of(tmp_path):
    def make(**changes):
        return dist.Request(
            therock="https://rocm.example/therock-dist-linux-gfx94X-dcgpu-7.10.0.tar.gz",
            wheelhouse=tmp_path / "wheelhouse",
            cache=tmp_path / "cache",
            home=home.find(None),
            cwd=tmp_path,
            **changes,
        )

    return make


def test_a_branch_is_the_commit_it_had_when_it_was_asked(served, request_of, runner, console):
    url, folder, _ = served
    asked = request_of(jax_repository=url, jax_ref="rocm-jaxlib-v0.11.0")
    first = dist.resolved(asked, runner=runner)
    assert first.jax_ref == git(folder, "rev-parse", "HEAD")
    assert dist.resolved(first, runner=runner) == first  # resolved once
    git(folder, "checkout", "--quiet", "rocm-jaxlib-v0.11.0")
    moved = commit(folder, {"README.md": "later"})
    planned = dist.plan(first)
    tree = source.resolve(
        planned.sources,
        pins=planned.pins,
        runner=runner,
        console=console,
    )
    assert (tree.jax.repository, tree.jax.commit, tree.jax.dirty) == (url, first.jax_ref, False)
    assert dist.resolved(asked, runner=runner).jax_ref == moved != first.jax_ref


def test_a_dry_run_names_branch_and_commit_and_fetches_nothing(served, request_of, runner, here):
    url, folder, seen = served
    asked = request_of(jax_repository=url, jax_ref="main", allow_dirty=True,
                       environ={"PATH": "/usr/bin:/bin"})  # fmt: skip
    lines = "\n".join(dist.dry_run(dist.plan(dist.resolved(asked, runner=runner)), here))
    assert git(folder, "rev-parse", "HEAD") in lines
    assert "JAX main is not here yet" in lines
    assert not [path for path in seen if path.endswith("git-upload-pack")][1:]  # one ls-remote


def test_a_dry_run_names_the_wheels_that_the_build_makes(served, request_of, runner, console):
    """Another commit than the pin's marks the version, and has a jaxlib of its own."""
    url, folder, _ = served
    asked = request_of(jax_repository=url, jax_ref="main", jax_version="0.11.0")
    planned = dist.plan(dist.resolved(asked, runner=runner))
    places = {"pins": planned.pins, "runner": runner, "console": console}
    before = source.preview(planned.sources, **places)
    tree = source.resolve(planned.sources, **places)
    assert tree.jax_version == before.jax_version
    assert (before.local_suffix, before.jaxlib_origin) == (tree.local_suffix, tree.jaxlib_origin)
    assert before.local_suffix == f".jax{git(folder, 'rev-parse', 'HEAD')[:9]}"


def test_a_ref_that_does_not_exist_is_named(served, request_of, runner):
    url, _, _ = served
    with pytest.raises(SourceError, match=f"^{url}: has no branch or tag 'rocm-jaxlib'") as caught:
        dist.resolved(request_of(jax_repository=url, jax_ref="rocm-jaxlib"), runner=runner)
    assert "a branch, a tag or a whole commit" in caught.value.hint


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"jax_ref": ""}, r"jax: which commit\?$"),
        ({"jax_source_dir": Path("/x")}, "a folder and a JAX branch"),
        ({"password": "secret"}, ": JAX repository with a password"),
        ({"jax_version": "0.12.0"}, "its pin is unverified"),
    ],
)
def test_what_contradicts_itself_is_refused_before_git_is_asked(
    changes, problem, served, request_of, runner
):
    url, _, seen = served
    password = changes.get("password")
    url = url.replace("://", f"://me:{password}@") if password else url
    rest = {key: value for key, value in changes.items() if key != "password"}
    asked = request_of(**{"jax_repository": url, "jax_ref": "main", **rest})
    with pytest.raises(ConfigError, match=problem) as caught:
        dist.plan(dist.resolved(asked, runner=runner))
    assert "secret" not in f"{caught.value} {caught.value.hint}"
    assert seen == []


def test_without_a_repository_it_is_the_one_of_the_pin_that_is_named(
    served, request_of, runner, tmp_path
):
    url, folder, _ = served
    ci = Path(shutil.copytree(CI, tmp_path / "ci"))
    before, mark, after = (ci / "pins.yaml").read_text().partition('  "0.9.2":\n')
    _, _, rest = after.partition("\n")
    (ci / "pins.yaml").write_text(f"{before}{mark}    repository: {url}\n{rest}")
    asked = replace(request_of(jax_version="0.9.2", jax_ref="main"), home=home.find(ci))
    found = dist.plan(dist.resolved(asked, runner=runner))
    assert found.sources.checkout.repository == url
    assert found.sources.checkout.commit == git(folder, "rev-parse", "HEAD")


@pytest.mark.parametrize("ref", ["", "a" * 40])
def test_an_unverified_pin_is_never_locked(ref, request_of, runner):
    asked = request_of(jax_version="0.12.0", jax_ref=ref, allow_unverified_pin=True)
    dist.plan(dist.resolved(asked, runner=runner))
    with pytest.raises(ConfigError, match=r"^JAX 0\.12\.0: an unverified pin, and --locked"):
        dist.plan(dist.resolved(replace(asked, locked=True), runner=runner))
