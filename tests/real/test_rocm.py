"""XLA's real rules on a TheRock-shaped tree: find_rocm_config.py is run, rocm_configure evaluated.

Evaluated by Bazel 7.7 are all of rocm_configure.bzl, find_rocm_config.py and the templates of crosstool
and rocm; not evaluated are sycl_configure.bzl (replaced: no SYCL), the BUILD files that come out
(test_graph.py does), and every compile.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkouts import XLA_FILES, Commit, upstream
from packaging.version import Version
from support import bazel7

from rocwheel import rocm, source

ROOT = Path(__file__).parents[2]
LAYOUTS = source.load_layouts(ROOT / "ci" / "layouts.yaml")
SKYLIB = Path("/usr/share/bazel/tools/skylib")
on_bazel_7 = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, for mounts and chroot")
# An XLA that the checkouts do not have cannot be looked into: the table says so at the end.
TREES = upstream()
BY_XLA = {commit.xla.name: commit for commit in TREES if commit.xla.is_here()}


def needs_of(xla: Commit) -> object:
    """What ci/layouts.yaml says the JAX versions with this XLA look for."""
    tree = BY_XLA[xla.name]
    layout = LAYOUTS["upstream"]
    match = re.search(r'^_version = "([^"]+)"', tree.text(layout.version.file), re.MULTILINE)
    assert match
    later = "_find_libs" not in xla.text("third_party/gpus/rocm_configure.bzl")
    found = layout.version_class(Version("0.11.0" if later else match[1]))
    assert found
    return found.needs


@pytest.fixture(params=sorted(BY_XLA), ids=lambda name: BY_XLA[name].name)
def xla(request: pytest.FixtureRequest) -> Commit:
    return Commit("xla", request.param)


def test_the_headers_that_find_rocm_config_wants_are_those_of_the_data(xla: Commit) -> None:
    script = xla.text("third_party/gpus/find_rocm_config.py")
    wanted = set(re.findall(r'^ +"(include/[\w/.-]+\.h)"', script, re.MULTILINE))
    old = {name for name in wanted if name == "include/rocm_version.h"}
    assert wanted - old <= set(needs_of(xla).files)
    assert len(wanted - old) == 11


def test_the_libraries_that_the_rules_want_are_those_of_the_data(xla: Commit) -> None:
    rule = xla.text("third_party/gpus/rocm_configure.bzl")
    template = xla.text("third_party/gpus/rocm/BUILD.tpl")
    looked_for = set(
        re.findall(r'^ +\("([\w-]+)", (?:rocm_config|repo_path|miopen|rccl)', rule, re.MULTILINE)
    )
    declared = set(
        re.findall(r'interface_library = "%\{rocm_root\}/lib/lib([\w-]+)\.so"', template)
    )
    wanted = looked_for or declared
    assert wanted
    assert wanted <= set(needs_of(xla).libraries)


def run_script(xla: Commit, tmp_path: Path, root: Path) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "find_rocm_config.py"
    script.write_text(xla.text("third_party/gpus/find_rocm_config.py"))
    env = {**os.environ, "ROCM_PATH": str(root)}
    return subprocess.run(
        [sys.executable, str(script)], env=env, capture_output=True, text=True, check=False
    )


def test_find_rocm_config_accepts_the_tree_and_refuses_what_the_data_refuses(
    xla: Commit, therock: Path, tmp_path: Path
) -> None:
    needs = needs_of(xla)
    assert rocm.missing(therock, needs) == ()
    assert run_script(xla, tmp_path, therock).returncode == 0
    script = xla.text("third_party/gpus/find_rocm_config.py")
    # Others are missed by the first compile only: the data refuse a tree without them, too.
    for header in (name for name in needs.files if name.endswith(".h") and name in script):
        hidden = therock / header
        aside = hidden.with_suffix(".hidden")
        hidden.rename(aside)
        try:
            assert rocm.missing(therock, needs) == (header,)
            assert run_script(xla, tmp_path, therock).returncode == 1, header
        finally:
            aside.rename(hidden)


def configure(xla: Commit, therock: Path, tmp_path: Path) -> Path:
    """Let Bazel evaluate XLA's rule with ROCM_PATH; the repository it makes."""
    folder = xla.extract(tmp_path / "xla", *XLA_FILES)
    rule = folder / "third_party/gpus/sycl_configure.bzl"
    rule.write_text("def enable_sycl(repository_ctx):\n    return False\n")
    # 0.10.2 takes ROCm from a repository that rules_ml_toolchain makes of ROCM_PATH.
    stand_in = tmp_path / "config_rocm_hipcc"
    (stand_in / "rocm").mkdir(parents=True)
    (stand_in / "WORKSPACE").touch()
    (stand_in / "rocm" / "BUILD").write_text('exports_files(["rocm_dist"])\n')
    (stand_in / "rocm" / "rocm_dist").symlink_to(therock)
    rule = (folder / "third_party/gpus/rocm_configure.bzl").read_text()
    label = ', rocm_dist = "@config_rocm_hipcc//rocm:rocm_dist"'
    attribute = label if '"rocm_dist": attr' in rule else ""
    for name in ("xla/WORKSPACE", "xla/third_party/BUILD", "BUILD"):
        (tmp_path / name).touch()
    (tmp_path / "WORKSPACE").write_text(
        f'local_repository(name = "bazel_skylib", path = "{SKYLIB}")\n'
        f'local_repository(name = "xla", path = "{folder}")\n'
        f'local_repository(name = "config_rocm_hipcc", path = "{stand_in}")\n'
        'load("@xla//third_party/gpus:rocm_configure.bzl", "rocm_configure")\n'
        f'rocm_configure(name = "local_config_rocm"{attribute})\n'
    )
    variables = {
        "TF_NEED_ROCM": "1",
        "ROCM_PATH": str(therock),
        "TF_ROCM_AMDGPU_TARGETS": "gfx942,gfx1100",
        "CLANG_COMPILER_PATH": "/usr/bin/clang-19",
        "TF_ROCM_CLANG": "1",
    }
    base, rc = tmp_path / "base", tmp_path / "bazelrc"
    rc.write_text(bazel7.RC)
    no_rc = ("--nohome_rc", "--nosystem_rc", f"--bazelrc={rc}", bazel7.label(tmp_path))
    done = subprocess.run(
        [
            *(bazel7.program(tmp_path), *no_rc, f"--output_base={base}", "--batch", "query"),
            *("--noenable_bzlmod", "--enable_workspace", "--experimental_repo_remote_exec"),
            "@local_config_rocm//rocm:all",
            *(f"--repo_env={name}={value}" for name, value in variables.items()),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    made = base / "external" / "local_config_rocm"
    assert (made / "crosstool" / "BUILD").is_file(), done.stderr[-3000:]
    return made


@pytest.mark.needs("mmdebstrap", "unshare", "chroot", "clang-19")
@on_bazel_7
def test_a_rocm_behind_links_is_listed_by_the_same_folders(therock: Path, tmp_path: Path) -> None:
    """Up to 0.10.1 absolute inclusions came from links: jax-ml/jax#18976, elixir-nx/xla#129."""
    link = tmp_path / "link"
    link.symlink_to(therock)
    made = configure(Commit("jax", "jax-v0.10.1").xla, link, tmp_path)
    toolchain = (made / "crosstool" / "BUILD").read_text()
    assert "/external/local_config_rocm/rocm/rocm_dist/lib/llvm/lib/clang/19/include" in toolchain
    assert str(therock) not in toolchain


@pytest.mark.needs("mmdebstrap", "unshare", "chroot", "clang-19")
@on_bazel_7
def test_rocm_configure_really_configures_the_tree(
    xla: Commit, therock: Path, tmp_path: Path, matrix: list
) -> None:
    made = configure(xla, therock, tmp_path)
    toolchain = made / "crosstool" / "BUILD"
    assert 'gfx942", "gfx1100' in (made / "rocm" / "build_defs.bzl").read_text()
    listed = re.search(r"cxx_builtin_include_directories = (.*)", toolchain.read_text())
    assert listed
    folders = re.findall(r'"([^"]*/lib/clang/\d+)/include"', listed[1])
    theirs = {Path(item).name for item in folders if "rocm_dist" in item}
    # The resource folder is named through the link that Bazel makes to ROCM_PATH, not by its own
    # place, so an absolute inclusion cannot follow from where the tree lies.
    assert all(
        "/external/local_config_rocm/rocm/rocm_dist/" in item
        for item in folders
        if "rocm_dist" in item
    )
    # Rules that look for ROCm by themselves call readelf, and list the folders of the tree's clang.
    assert theirs == {"19"} or "readelf" not in needs_of(xla).programs
    state = "knows clang 19" if theirs == {"19"} else f"lists clang {', '.join(theirs) or '-'}"
    matrix.append((BY_XLA[xla.name].name, "rocm_configure", "proved: evaluated", state))


def test_what_is_not_here_is_in_the_table(matrix: list) -> None:
    matrix += [
        (commit.name, "rocm_configure", "not known", "its XLA is in no checkout")
        for commit in TREES
        if not commit.xla.is_here()
    ]
