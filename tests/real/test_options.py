"""Everything a build would ask of JAX's real sources is there: configs, labels, flags, variables."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from checkouts import FOLDER, JAX_FILES, Commit, external, upstream
from support import tarballs

from rocwheel import bazel, dist, source
from rocwheel.base import home
from rocwheel.base.console import silent
from rocwheel.base.errors import HostError, SourceError
from rocwheel.base.here import Here
from rocwheel.base.process import HostRunner, base_env
from rocwheel.base.values import replace
from rocwheel.dist import checks, inputs

ROOT = Path(__file__).parents[2]
TARBALL = "therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz"
LABEL = re.compile(r"@(?P<repository>\w+)//(?P<package>[\w/]*):(?P<name>[\w-]+)")


def compilers(folder: Path) -> Path:
    """A clang that answers as one with every linker does: the options are compared, not it."""
    folder.mkdir()
    script = (
        '#!/bin/sh\ncase "$1" in -dumpversion) echo 18.1.8;; *ld.lld) echo /x/ld.lld;;'
        " *ld.gold) echo /x/ld.gold;; esac\n"
    )
    for name in ("clang", "clang++", "gcc", "g++"):
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    return folder


def gathered(commit: Commit, tmp_path: Path, **changes: object) -> tuple:
    """The tree at a commit, and what `dist_wheels --dry-run` plans for it."""
    root = commit.extract(tmp_path / "tree", *JAX_FILES)
    git = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "-A", "-f"], ["commit", "-qm", "t"]):
        subprocess.run([*git, *words], check=True)
    return gathered_folder(root, tmp_path, **changes)


def gathered_folder(root: Path, tmp_path: Path, **changes: object) -> tuple:
    """The tree of a folder, and what `dist_wheels --dry-run` plans for it."""
    folder = compilers(tmp_path / "bin")
    asked = dist.Request(
        allow_dirty=True,  # of the checkout that the tests stand in
        therock=str(tarballs.rocm_folder(tmp_path / "rocm")),
        gfx_targets=("gfx942",),
        jax_source_dir=root,
        wheelhouse=tmp_path / "wheelhouse",
        cache=tmp_path / "cache",
        home=home.find(None),
        cwd=tmp_path,
        environ={"PATH": f"{folder}:{os.environ['PATH']}"},
    )
    planned = dist.plan(replace(asked, **changes))
    here = Here(
        environ=asked.environ, cwd=tmp_path, cache=asked.cache, home=asked.home, console=silent(),
        runner=HostRunner(base_env(os.environ)),
    )  # fmt: skip
    found = inputs.gather(planned, here, fetch=False)
    return planned, found.tree, found.spec, found.notes


# What XLA's repository rules make, and from which template; not looked up is what is not here.
TEMPLATES = {
    "local_config_rocm//rocm": "third_party/gpus/rocm/BUILD.tpl",
    "local_config_rocm//crosstool": "third_party/gpus/crosstool/BUILD.rocm.tpl",
    "local_config_cuda//": "third_party/gpus/local_config_cuda.BUILD",
    "local_config_cuda//cuda": "third_party/gpus/cuda/hermetic/BUILD.tpl",
}
# Repositories whose definitions none of the checkouts has.
ELSEWHERE = {"compute_library", "cuda_driver", "ml_build_config_platform", "local_config_apple_cc"}


def labels(options: tuple[str, ...]) -> set[tuple[str, str, str]]:
    """External labels that options name, as flags or as values: repository, package, target."""
    found = set()
    for option in options:
        for text in (option.removeprefix("--"), option.partition("=")[2].strip('"')):
            match = LABEL.match(text)
            if match:
                found.add((match["repository"], match["package"], match["name"]))
    return found


def looked_up(commit: Commit, options: tuple[str, ...]) -> tuple[set[str], set[str]]:
    """External labels that are defined at this pin, and those that could not be looked up."""
    there, unknown = set(), set()
    for repository, package, name in labels(options):
        label = f"@{repository}//{package}:{name}"
        template = TEMPLATES.get(f"{repository}//{package}")
        if template:
            text = commit.xla.text(template)
        elif repository in ELSEWHERE or (where := external(commit, repository)) is None:
            unknown.add(label)
            continue
        else:
            names = where.git("ls-tree", "--name-only", where.name, f"{package}/").split()
            build = [path for path in names if path.endswith(("/BUILD", "/BUILD.bazel"))]
            assert build, f"{commit.name}: {label}: no such package at {where.name}"
            text = where.text(build[0])
        assert f'"{name}"' in text, f"{commit.name}: {label}: not defined at this pin"
        there.add(label)
    return there, unknown


@pytest.mark.parametrize("compiler", ["clang", "hermetic", "clang by path"])
@pytest.mark.parametrize("commit", upstream(), ids=lambda commit: commit.name)
def test_every_config_label_flag_and_variable_is_in_the_tree(
    commit: Commit, compiler: str, tmp_path: Path, matrix: list
) -> None:
    changes: dict[str, object] = {"compiler": compiler.split(maxsplit=1)[0]}
    if compiler == "clang by path":
        changes["compiler_path"] = tmp_path / "bin" / "clang"
    try:
        _, tree, spec, _ = gathered(commit, tmp_path, **changes)
    except HostError as exc:  # the compiler that `hermetic` stands for at this pin is not here
        if compiler != "hermetic" or "compiles its ROCm wheels with it" not in str(exc):
            raise
        matrix.append((commit.name, compiler, "refused", "needs the clang its rc file names"))
        return
    invocations = bazel.invocations(spec)
    checks.check_options(tree, invocations)
    rule = commit.xla.text("third_party/gpus/rocm_configure.bzl")
    known, unknown = set[str](), set[str]()
    for invocation in invocations:
        options = tree.rc.flatten(invocation.recipe)
        defined, elsewhere = looked_up(commit, options)
        known |= defined
        unknown |= elsewhere
        if not any(kind.needs_rocm for kind in invocation.kinds):
            continue
        values = source.variables(options)
        for name in ("ROCM_PATH", "TF_ROCM_AMDGPU_TARGETS", "TF_NEED_ROCM"):
            assert name in values
            assert name in rule
        assert values["ROCM_PATH"] == str(spec.rocm_root)
        assert values["TF_ROCM_AMDGPU_TARGETS"] == "gfx942"
        compressed = values.get("HIPCC_COMPILE_FLAGS_APPEND", "")
        assert compressed == "--offload-compress"
    local = spec.compiler.kind == "clang"
    broken = bool(tree.version_class.own_clang)
    state = ("reasoned: fails" if broken else "proved: options") if local else "proved: options"
    route = "machine's own" if local else "JAX's hermetic"
    said = f"{route}; class {tree.version_class}; {len(known)} external labels"
    missed = f"; not looked up: {', '.join(sorted(unknown))}" if unknown else ""
    matrix.append((commit.name, compiler, state, said + missed))


@pytest.mark.parametrize(
    ("name", "versions"),
    [("d521deb88b", "<0.11.1,>=0.10.2"), ("66dbacad76", "<=0.9.2,>0.9.1")],
)
def test_development_commits_belong_to_the_class_of_what_they_have(
    name: str, versions: str, tmp_path: Path
) -> None:
    _, tree, spec, notes = gathered(Commit("jax", name), tmp_path)
    assert str(tree.version_class) == f"JAX {versions}"
    if name == "66dbacad76":
        assert spec.rocm_number == "7"
    else:
        assert any("but has what" in note for note in notes)


def test_the_forks_default_branch_is_too_old(tmp_path: Path, matrix: list) -> None:
    if not (FOLDER / "rocm-fork").is_dir():
        pytest.skip("the folder of checkouts has no fork")
    fork = Commit("rocm-fork", "HEAD")
    with pytest.raises(SourceError, match="is too old") as caught:  # its default branch is 0.6
        gathered(fork, tmp_path, compiler="hermetic")
    matrix.append(("rocm-fork", "any", "refused", str(caught.value).rpartition(": ")[2]))


@pytest.mark.parametrize("commit", upstream(), ids=lambda commit: commit.name)
def test_the_linker_of_a_class_is_that_of_xlas_toolchain(commit: Commit, tmp_path: Path) -> None:
    _, tree, _, _ = gathered(commit, tmp_path)
    template = commit.xla.text("third_party/gpus/crosstool/BUILD.rocm.tpl")
    assert set(re.findall(r'"-fuse-ld=(\w+)"', template)) == {tree.version_class.linker}


@pytest.mark.parametrize("commit", upstream(), ids=lambda commit: commit.name)
def test_the_machines_own_clang_is_passed_over_where_xlas_list_of_headers_is_wrong(
    commit: Commit, tmp_path: Path
) -> None:
    _, tree, _, _ = gathered(commit, tmp_path)
    rule = commit.xla.text("third_party/gpus/rocm_configure.bzl")
    if re.search(r"lib/clang/\d+/include", rule):
        assert tree.version_class.own_clang
    if "-print-resource-dir" in rule:
        assert not tree.version_class.own_clang


def test_the_newest_tree_edited_to_jaxs_current_shape_builds_its_plan(tmp_path: Path) -> None:
    """As JAX's #39895, #40053, #40086, #39882 and #39946 changed it, which the folder need not have."""
    if not (FOLDER / "jax").is_dir():
        pytest.skip("the folder of checkouts has no JAX")
    commit = Commit("jax", "HEAD")
    root = commit.extract(tmp_path / "shape", *JAX_FILES)
    module = (root / "MODULE.bazel").read_text()
    rc = (root / ".bazelrc").read_text()
    for name in ("WORKSPACE", "build/requirements_lock_3_14_ft.txt"):
        (root / name).unlink(missing_ok=True)
    (root / ".bazelversion").write_text("8.7.0\n")
    on = "common --enable_bzlmod --noenable_workspace"
    (root / ".bazelrc").write_text(rc.replace("common --noenable_bzlmod", on))
    lock = root / "build" / "requirements_lock_3_14.txt"
    merged = lock.read_text().replace("nonfreethreading-requirements", "test-requirements")
    lock.write_text(merged)
    for name in ("3_15", "3_15_ft"):
        lock.with_name(f"requirements_lock_{name}.txt").write_text(merged)
    git = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "-A", "-f"], ["commit", "-qm", "t"]):
        subprocess.run([*git, *words], check=True)
    _, tree, spec, _ = gathered_folder(root, tmp_path)
    assert (tree.bazel, tree.modules) == ("8.7.0", None)
    assert tree.xla.commit in module
    assert {"3.14-ft", "3.15", "3.15-ft"} <= set(map(str, tree.pythons))
    assert "3.13-ft" not in map(str, tree.pythons)
    made = bazel.invocations(spec)
    checks.check_options(tree, made)
    assert len(made) == len(tree.pythons) + len(tree.pythons)  # plugin and jaxlib of each
