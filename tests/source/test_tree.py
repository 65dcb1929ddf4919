"""Sources from a real git server and from folders: fetched once, checked, and told apart."""

from __future__ import annotations

import os
import subprocess
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from support import git_server, toy
from support.git_server import commit, git, repository

from rocwheel import source
from rocwheel.base import home
from rocwheel.base.errors import ConfigError, RocwheelError, SourceError
from rocwheel.base.git import Checkout, Source, checkout, identify
from rocwheel.base.process import HostRunner, base_env
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion
from rocwheel.source import SourceRequest

pytestmark = [pytest.mark.integration, pytest.mark.needs("git")]

CI = Path(__file__).parents[2] / "ci"
LAYOUTS = source.load_layouts(CI / "layouts.yaml")
XLA = "0123456789abcdef0123456789abcdef01234567"
JAX = {**toy.FILES, "third_party/xla/revision.bzl": f'XLA_COMMIT = "{XLA}"\nXLA_SHA256 = "x"\n'}


@dataclass(frozen=True, kw_only=True)
class Bench:
    """A repository laid out as JAX's behind an HTTP git server, and pins that name it."""

    url: str
    seen: list[str]
    jax: Path
    xla: Path
    first: str  # the pinned commit
    cache: Path
    pins: source.Pins
    runner: object
    console: object

    def resolve(self, pins=None, **asked):
        pins = pins or self.pins
        planned = source.plan(SourceRequest(**asked), pins=pins, cache=self.cache)
        return source.resolve(planned, pins=pins, runner=self.runner, console=self.console)


@pytest.fixture
def bench(tmp_path, runner, console):
    first = repository(tmp_path / "served/jax", JAX)
    commit(tmp_path / "served/jax", {"README.md": "later"})
    repository(tmp_path / "served/xla", {"xla/BUILD": "one"})
    with git_server.serve(tmp_path / "served") as (url, seen):
        pins = source.load_pins(CI / "pins.yaml", layouts=LAYOUTS)
        pinned = tuple(
            replace(pin, repository=f"{url}/jax", ref="main", commit=first, xla_commit=XLA)
            if pin.default
            else pin
            for pin in pins.pins
        )
        yield Bench(
            url=url,
            seen=seen,
            jax=tmp_path / "served/jax",
            xla=tmp_path / "served/xla",
            first=first,
            cache=tmp_path / "cache",
            pins=replace(pins, pins=pinned),
            runner=runner,
            console=console,
        )


def test_a_pin_is_fetched_shallowly_by_its_commit_and_only_once(bench):
    git(bench.jax, "config", "uploadpack.allowAnySHA1InWant", "true")
    tree = bench.resolve()
    assert tree.jax.commit == bench.first
    assert tree.jax.repository == f"{bench.url}/jax"  # where a gate gets its tests
    assert (tree.jax_version, tree.xla.commit, tree.dirty) == ("0.11.0", XLA, ())
    assert tree.jaxlib_origin == "upstream"
    assert git(tree.root, "rev-list", "--count", "HEAD") == "1"
    asked = len(bench.seen)
    assert bench.resolve().root == tree.root
    assert len(bench.seen) == asked


def test_a_server_without_bare_commits_is_asked_for_the_tag(bench):
    git(bench.jax, "tag", "-a", "jax-v0.11.0", bench.first, "-m", "release")
    with git_server.serve(bench.jax.parent, old=True) as (url, _):
        pin = replace(bench.pins.default, repository=f"{url}/jax", ref="jax-v0.11.0")
        tree = bench.resolve(pins=replace(bench.pins, pins=(pin,)))
    assert tree.jax.commit == bench.first


def test_a_tag_that_moved_is_not_taken_for_the_pinned_commit(bench):
    git(bench.jax, "tag", "-a", "jax-v0.11.0", "main", "-m", "release")
    with git_server.serve(bench.jax.parent, old=True) as (url, _):
        pin = replace(bench.pins.default, repository=f"{url}/jax", ref="jax-v0.11.0")
        with pytest.raises(SourceError, match=f"not {bench.first}"):
            bench.resolve(pins=replace(bench.pins, pins=(pin,)))


def test_a_developers_turn_compares_no_files_but_at_a_commit_whose_jaxlib_is_released(bench):
    here = bench.jax
    ran = []

    class Noting(HostRunner):
        def capture(self, command, /):
            ran.append(command.argv)
            return super().capture(command)

    noting = replace(bench, runner=Noting(base_env(os.environ)))
    turn = {"jax_source_dir": here, "xla_source_dir": bench.xla, "is_snapshot": True}
    (here / "README.md").write_text("not committed")
    tree = noting.resolve(**turn)
    assert (tree.jaxlib_origin, tree.dirty) == ("built", ())
    assert not any({"status", "ls-files"} & {*argv} for argv in ran), ran
    git(here, "checkout", "--force", bench.first)
    assert noting.resolve(**turn).jaxlib_origin == "upstream"
    (here / "README.md").write_text("not committed")
    assert noting.resolve(**turn).jaxlib_origin == "built"


def test_a_commit_that_is_gone_is_named(bench):
    gone = replace(bench.pins.default, commit="f" * 40, ref="")
    pins = replace(bench.pins, pins=(gone,))
    with pytest.raises(SourceError, match=r"not our ref f{40}") as caught:
        bench.resolve(pins=pins)
    assert "--jax-source-dir" in caught.value.hint
    assert list(bench.cache.rglob("*.part")) == []


def test_an_unreachable_server_is_named(bench, runner):
    wanted = Checkout(
        repository="http://127.0.0.1:9/jax", ref="", commit="f" * 40, folder=bench.cache / "x"
    )
    with pytest.raises(SourceError, match=r"http://127\.0\.0\.1:9/jax: "):
        checkout(wanted, runner=runner)
    assert not wanted.folder.exists()


def test_two_runs_at_once_fetch_once(bench):
    git(bench.jax, "config", "uploadpack.allowAnySHA1InWant", "true")
    trees, errors = [], []

    def run():
        try:
            trees.append(bench.resolve())
        except RocwheelError as exc:
            errors.append(exc)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len({tree.root for tree in trees}) == 1
    assert sum(path.endswith("git-upload-pack") for path in bench.seen) <= 2  # list, fetch


def test_a_cached_tree_that_was_changed_is_refused(bench):
    git(bench.jax, "config", "uploadpack.allowAnySHA1InWant", "true")
    tree = bench.resolve()
    (tree.root / "jax/version.py").write_text("changed")
    with pytest.raises(SourceError, match="was changed after it was fetched"):
        bench.resolve()


def test_a_tree_whose_xla_is_not_the_pinned_one_is_refused(bench):
    git(bench.jax, "config", "uploadpack.allowAnySHA1InWant", "true")
    pins = replace(bench.pins, pins=(replace(bench.pins.default, xla_commit="a" * 40),))
    with pytest.raises(SourceError, match=f"names XLA {XLA}"):
        bench.resolve(pins=pins)


def test_a_linker_is_that_of_the_xla_where_jaxs_configs_do_not_tell_it(bench):
    own = bench.resolve(jax_source_dir=bench.jax).version_class.linker
    other = {"gold": "lld", "lld": "gold"}[own]
    (name,) = {pin.layout for pin in bench.pins.pins if pin.default}
    layout = bench.pins.layouts[name]
    linked = replace(layout, xla=replace(layout.xla, linkers={XLA: other}))
    pins = replace(bench.pins, layouts={**bench.pins.layouts, name: linked})
    assert bench.resolve(pins=pins, jax_source_dir=bench.jax).version_class.linker == other
    commits = LAYOUTS["upstream"].xla.linkers
    assert {len(commit) for commit in commits} == {40}
    assert set(commits.values()) == {"lld"}


def test_a_clean_checkout_is_its_commit(bench):
    tree = bench.resolve(jax_source_dir=bench.jax)
    assert tree.jax.commit == git(bench.jax, "rev-parse", "HEAD")
    assert (tree.jax.dirty, tree.jax.digest) == (False, "")
    assert tree.pythons == tuple(PythonVersion(3, minor) for minor in (10, 11, 12, 13))
    assert tree.local_suffix == f".jax{tree.jax.commit[:9]}"
    assert tree.jaxlib_origin == "built"  # it is not the pinned commit


def test_a_checkout_with_changes_is_dirty_and_says_so_in_the_version(bench):
    (bench.jax / "new.txt").write_text("not committed")
    tree = bench.resolve(jax_source_dir=bench.jax)
    assert tree.jax.dirty
    assert len(tree.jax.digest) == 64
    assert tree.dirty == ("JAX",)
    assert tree.local_suffix.endswith(".dirty")
    (bench.jax / "new.txt").write_text("other")
    assert bench.resolve(jax_source_dir=bench.jax).jax.digest != tree.jax.digest


def test_the_password_in_a_remote_url_stays_out_of_the_manifest(bench):
    git(bench.jax, "remote", "add", "origin", "https://me:secret@example.org:8443/jax.git?t=1")
    tree = bench.resolve(jax_source_dir=bench.jax)
    assert tree.jax.repository == "https://example.org:8443/jax"


def test_a_folder_without_git_is_its_digest(bench, tmp_path):
    folder = toy.make(tmp_path / "plain")
    tree = bench.resolve(jax_source_dir=folder)
    assert (tree.jax.commit, tree.jax.dirty, len(tree.jax.digest)) == ("", False, 64)
    assert (tree.xla.commit, tree.local_suffix) == ("", ".dirty")  # it calls itself a release
    unpinned = toy.make(tmp_path / "unpinned")
    (unpinned / "jax/version.py").write_text('_version = "0.11.9"\n')
    assert bench.resolve(jax_source_dir=unpinned).dirty == ()  # it names no XLA, as the miniature
    (unpinned / "third_party/xla").mkdir(parents=True, exist_ok=True)
    (unpinned / "third_party/xla/revision.bzl").write_text(JAX["third_party/xla/revision.bzl"])
    assert bench.resolve(jax_source_dir=unpinned).dirty == ("JAX",)
    same = bench.resolve(jax_source_dir=toy.make(tmp_path / "same"))
    assert same.jax.digest == tree.jax.digest
    (folder / "bazel-out").symlink_to(tmp_path)
    assert bench.resolve(jax_source_dir=folder).jax.digest == tree.jax.digest
    (folder / "WORKSPACE").chmod(0o755)
    assert bench.resolve(jax_source_dir=folder).jax.digest != tree.jax.digest


def test_a_folder_inside_another_repository_is_not_that_repository(bench):
    folder = toy.make(bench.jax / "examples/inner")
    assert bench.resolve(jax_source_dir=folder).jax.commit == ""


def test_a_local_xla_overrides_the_pinned_one_and_is_marked(bench):
    tree = bench.resolve(jax_source_dir=bench.jax, xla_source_dir=bench.xla)
    head = git(bench.xla, "rev-parse", "HEAD")
    assert (tree.xla.commit, tree.xla_dir) == (head, bench.xla)
    assert f".xla{head[:9]}" in tree.local_suffix
    (bench.xla / "xla/BUILD").write_text("changed")
    changed = bench.resolve(jax_source_dir=bench.jax, xla_source_dir=bench.xla)
    assert changed.dirty == ("XLA",)
    assert changed.local_suffix.endswith(".dirty")


def test_a_folder_that_is_no_jax_says_what_it_lacks(bench, tmp_path):
    with pytest.raises(SourceError, match=r"lacks WORKSPACE or MODULE\.bazel, \.bazelrc, jax/"):
        bench.resolve(jax_source_dir=tmp_path)
    with pytest.raises(SourceError, match="no such folder"):
        bench.resolve(jax_source_dir=tmp_path / "none")


def test_options_left_by_an_earlier_build_are_refused(bench):
    (bench.jax / ".jax_configure.bazelrc").write_text("build --config=rocm\n")
    with pytest.raises(SourceError, match=r"\.jax_configure\.bazelrc: options of an earlier"):
        bench.resolve(jax_source_dir=bench.jax)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("jax/version.py", "__version__ = 1\n", "has no line `_version"),
        ("jax/version.py", '_version = "next"\n', "'next' is not a version"),
        ("jax/version.py", '_version = "0.5.0"\n', r"JAX 0\.5\.0 is too old"),
        ("third_party/xla/revision.bzl", "X = 1\n", "no file says which XLA"),
        ("jaxlib/tools/BUILD.bazel", "x = 1\n", "has no target jaxlib_wheel, which the upstream"),
    ],
)
def test_a_tree_that_contradicts_its_layout_is_refused(bench, name, text, problem):
    (bench.jax / name).write_text(text)
    with pytest.raises(SourceError, match=problem):
        bench.resolve(jax_source_dir=bench.jax)


def test_a_missing_rc_file_is_found_before_the_build(bench):
    (bench.jax / "build/rocm/rocm.bazelrc").unlink()
    with pytest.raises(SourceError, match=r"rocm\.bazelrc: missing"):
        bench.resolve(jax_source_dir=bench.jax)


def test_a_cpython_without_a_lock_file_is_refused(bench):
    tree = bench.resolve(jax_source_dir=bench.jax)
    tree.accept((PythonVersion(3, 12),))
    with pytest.raises(ConfigError, match=r"CPython 3\.14: .* no lock file") as caught:
        tree.accept((PythonVersion(3, 12), PythonVersion(3, 14)))
    assert caught.value.hint == "JAX 0.11.0 accepts: 3.10, 3.11, 3.12, 3.13"


def test_a_program_in_the_trees_own_git_configuration_is_not_run(bench, tmp_path):
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    git(bench.jax, "config", "core.fsmonitor", str(trap))
    bench.resolve(jax_source_dir=bench.jax)
    assert not (tmp_path / "sprung").exists()
    subprocess.run(["git", "status"], cwd=bench.jax, check=True, capture_output=True)
    assert (tmp_path / "sprung").exists()  # the trap works


def test_a_preview_of_a_folder_fetches_nothing(bench):
    asked = SourceRequest(jax_source_dir=bench.jax, xla_source_dir=bench.xla)
    planned = source.plan(asked, pins=bench.pins, cache=bench.cache)
    tree = source.preview(planned, pins=bench.pins, runner=bench.runner, console=bench.console)
    assert bench.seen == []
    assert planned.commands == ()
    assert tree.xla_dir == bench.xla
    assert not bench.cache.exists()


@pytest.mark.parametrize(
    "url",
    [
        "https://github.com/jax-ml/jax",
        "https://github.com/jax-ml/jax.git/",
        "https://token@GitHub.com:443/jax-ml/jax.git",
        "git@github.com:jax-ml/jax.git",
        "ssh://git@github.com:22/jax-ml/jax",
        "git://github.com/jax-ml/jax.git",
    ],
)
def test_one_repository_has_one_name_however_it_was_cloned(bench, url):
    git(bench.jax, "remote", "add", "origin", url)
    assert bench.resolve(jax_source_dir=bench.jax).jax.repository == "https://github.com/jax-ml/jax"


@pytest.mark.parametrize("url", ["/home/me/jax", "file:///home/me/jax", "../jax", "C:\\jax", "x:["])
def test_a_repository_that_is_not_public_is_named_by_its_commit_alone(bench, url):
    git(bench.jax, "remote", "add", "origin", url)
    assert bench.resolve(jax_source_dir=bench.jax).jax.repository == ""


def test_rocwheel_itself_is_its_commit_however_it_was_cloned(bench, tmp_path):
    """Its commit is in every manifest, whose digest is the name of a set."""
    clones = {name: tmp_path / name for name in ("https", "ssh", "folder")}
    for name, folder in clones.items():
        git(tmp_path, "clone", "--quiet", str(bench.jax), str(folder))
        if name != "folder":
            url = f"{name}://git@github.com/ROCm/rocm-jax.git"
            git(folder, "remote", "set-url", "origin", url)
    tools = [
        home.tool(
            home.Home(root=folder, ci=folder / "ci", tests=folder),
            partial(identify, runner=bench.runner),
        )
        for folder in clones.values()
    ]
    commit_of_all = git(bench.jax, "rev-parse", "HEAD").strip()
    assert tools == [Source(repository="", commit=commit_of_all)] * 3


def hide_untracked(bench, tmp_path):
    git(bench.jax, "config", "status.showUntrackedFiles", "no")
    (bench.jax / "new.txt").write_text("new")


def exclude_for_oneself(bench, tmp_path):
    (bench.jax / ".git" / "info").mkdir(exist_ok=True)
    (bench.jax / ".git" / "info" / "exclude").write_text("*.txt\n")
    (bench.jax / "new.txt").write_text("new")


def exclude_for_all_trees(bench, tmp_path):
    (tmp_path / "ignore").write_text("*.txt\n")
    git(bench.jax, "config", "core.excludesFile", str(tmp_path / "ignore"))
    (bench.jax / "new.txt").write_text("new")


def tracked(bench):
    return git(bench.jax, "ls-files").splitlines()[0]


def assume_unchanged(bench, tmp_path):
    git(bench.jax, "update-index", "--assume-unchanged", tracked(bench))
    (bench.jax / tracked(bench)).write_text("changed")


def skip_worktree(bench, tmp_path):
    git(bench.jax, "update-index", "--skip-worktree", tracked(bench))
    (bench.jax / tracked(bench)).write_text("changed")


def filter_that_lies(bench, tmp_path):
    name = tracked(bench)
    original = (bench.jax / name).read_text()
    (tmp_path / "original").write_text(original)
    git(
        bench.jax, "config", "filter.lie.clean", f"cat {tmp_path}/original; touch {tmp_path}/sprung"
    )
    (bench.jax / ".git" / "info").mkdir(exist_ok=True)
    (bench.jax / ".git" / "info" / "attributes").write_text(f"{name} filter=lie\n")
    (bench.jax / name).write_text("#" * len(original))  # of another size git asks no filter


@pytest.mark.parametrize(
    "how",
    [
        hide_untracked, exclude_for_oneself, exclude_for_all_trees, assume_unchanged,
        skip_worktree, filter_that_lies,
    ],
)  # fmt: skip
def test_no_configuration_makes_a_changed_tree_clean_or_runs_a_program(bench, tmp_path, how):
    how(bench, tmp_path)
    said = subprocess.run(
        ["git", "status", "--porcelain"], cwd=bench.jax, check=True, capture_output=True
    ).stdout
    assert said == b"", "the configuration hides the change from git"
    (tmp_path / "sprung").unlink(missing_ok=True)
    tree = bench.resolve(jax_source_dir=bench.jax)
    assert tree.jax.dirty
    assert len(tree.jax.digest) == 64
    assert not (tmp_path / "sprung").exists()


def test_the_users_own_configuration_counts_as_little(bench, tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[status]\n\tshowUntrackedFiles = no\n")
    monkeypatch.setenv("HOME", str(home))
    (bench.jax / "new.txt").write_text("new")
    assert identify(bench.jax, runner=HostRunner(base_env(os.environ))).dirty


def test_an_ignored_file_leaves_a_tree_clean(bench):
    (bench.jax / ".gitignore").write_text("*.log\n")
    git(bench.jax, "add", ".gitignore")
    git(bench.jax, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "ignore")
    (bench.jax / "a.log").write_text("said")
    assert not bench.resolve(jax_source_dir=bench.jax).jax.dirty
