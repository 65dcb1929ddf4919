"""A tree of JAX since August 2026: MODULE.bazel and no WORKSPACE, and trees that are half of each."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support import generations
from support.generations import GENERATIONS

from rocwheel import source
from rocwheel.base.console import silent
from rocwheel.base.errors import ConfigError, SourceError
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion
from rocwheel.source import SourceRequest, bazelrc
from rocwheel.source.tree import compared, patches

CI = Path(__file__).parents[2] / "ci"
PINS = source.pins_of(CI)
XLA, OTHER = "2" * 40, "1" * 40
MODULE = """\
module(name = "jax")
bazel_dep(name = "rules_ml_toolchain")
archive_override(
    module_name = "rules_ml_toolchain",
    strip_prefix = "rules_ml_toolchain-%s",
    urls = ["https://github.com/google-ml-infra/rules_ml_toolchain/archive/x.tar.gz"],
)
bazel_dep(name = "xla")
archive_override(
    module_name = "xla",
    integrity = "sha256-Nv2IOgL72r2MEFzyipczdCCKcrF9OEm+6VcmcNjdKAk=",
    patch_strip = 1,
    patches = [
        # "//third_party/xla:temporary.patch",
        "//third_party/xla:one.patch",
    ],
    strip_prefix = "xla-%s",
    urls = ["https://github.com/ROCm/xla/archive/%s.tar.gz"],
)
bazel_dep(name = "grpc")
single_version_override(module_name = "grpc", patches = ["//third_party/grpc:grpc.patch"])
""" % (OTHER, XLA, XLA)  # noqa: UP031 - braces stand in it


def current(tmp_path: Path, **files: str | None) -> Path:
    """A tree in JAX's current shape; None removes a file."""
    root = generations.write(tmp_path / "jax", GENERATIONS["0.11.1"])
    rc = (root / ".bazelrc").read_text()
    shaped: dict[str, str | None] = {
        "WORKSPACE": None,
        "MODULE.bazel": MODULE,
        ".bazelversion": "8.7.0\n",
        ".bazelrc": f"common --enable_bzlmod --noenable_workspace\n{rc}",
        "third_party/xla/one.patch": "--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n",
        "build/requirements_lock_3_13.txt": "numpy==2.1.0\n    # via -r build/requirements.in\n",
        "build/requirements_lock_3_14.txt": "numpy==2.3.2\n    # via -r build/requirements.in\n",
        "build/requirements_lock_3_15.txt": "numpy==2.4.0\n",
        "build/requirements_lock_3_15_ft.txt": "numpy==2.4.0\n",
        "build/requirements_lock_3_11.txt": "",  # as a copy that was cut leaves it
        **files,
    }
    for name, text in shaped.items():
        if text is None:
            (root / name).unlink(missing_ok=True)
        else:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    return root


def resolve(root: Path, runner, console, **asked):
    planned = source.plan(
        SourceRequest(jax_source_dir=root, **asked), pins=PINS, cache=root.parent / "cache"
    )
    return source.resolve(planned, pins=PINS, runner=runner, console=console)


def test_a_tree_without_a_workspace_is_built_by_its_modules(tmp_path, runner, console):
    tree = resolve(current(tmp_path), runner, console)
    assert (tree.jax_version, tree.bazel, tree.modules) == ("0.11.1", "8.7.0", None)
    assert (tree.xla.repository, tree.xla.commit) == ("https://github.com/ROCm/xla", XLA)
    assert tree.version_class.marks.modules is True
    assert list(map(str, tree.pythons)) == ["3.12", "3.13", "3.14", "3.14-ft", "3.15", "3.15-ft"]
    assert any("jax-ml/jax#40859" in warning for warning in tree.warnings)


def test_a_tree_without_any_lock_file_is_refused_with_what_it_lacks(tmp_path, runner, console):
    root = current(tmp_path)
    for file in (root / "build").glob("requirements_lock_*"):
        file.unlink()
    with pytest.raises(ConfigError, match="has no lock file of any CPython"):
        resolve(root, runner, console).accept([])


def test_a_lock_file_that_names_what_is_apart_is_for_one_of_the_two(tmp_path, runner, console):
    apart = "numpy==2.3.2\n    # via -r build/nonfreethreading-requirements.txt\n"
    root = current(tmp_path, **{"build/requirements_lock_3_14.txt": apart})
    tree = resolve(root, runner, console)
    assert "3.14-ft" not in map(str, tree.pythons)
    with pytest.raises(ConfigError, match=r"CPython 3\.14-ft: .* has no lock file for it"):
        tree.accept([PythonVersion.parse("3.14-ft")])


def test_only_a_tree_that_was_looked_at_has_no_lock_file(tmp_path, runner):
    planned = source.plan(SourceRequest(jax_version="0.9.1"), pins=PINS, cache=tmp_path)
    tree = source.preview(planned, pins=PINS, runner=runner, console=silent())
    with pytest.raises(ConfigError, match=r"3\.15: the pin of JAX 0\.9\.1 does not name it"):
        tree.accept([PythonVersion.parse("3.15")])


@pytest.mark.parametrize(
    ("version", "options", "by_module"),
    [
        ("0.9.1", (), False),
        ("0.11.0", ("--config=rocm_clang_hermetic_local_sysroot",), False),
        ("0.11.1", (), True),
        ("0.12.0", (), True),
        ("0.9.1", ("--config=bzlmod",), True),
        ("0.9.2", ("--config", "of_the_user"), True),  # what it says is not known yet
        ("0.10.0", ("--enable_bzlmod",), True),
        ("0.10.0", ("--config=bzlmod", "--noenable_bzlmod"), False),
        ("0.12.0", ("--enable_bzlmod=false",), False),
    ],
)
def test_a_pin_whose_sources_are_not_here_is_as_its_wheels_and_the_options_say(
    version, options, by_module, tmp_path, runner
):
    asked = SourceRequest(jax_version=version, allow_unverified_pin=True, bazel_options=options)
    planned = source.plan(asked, pins=PINS, cache=tmp_path)
    tree = source.preview(planned, pins=PINS, runner=runner, console=silent())
    assert bool(tree.modules) is by_module
    assert tree.version_class.marks.modules in {None, by_module}


@pytest.mark.parametrize(
    ("files", "modules", "problem"),
    [
        ({"WORKSPACE": ""}, None, ""),  # --noenable_workspace
        ({"WORKSPACE": "", ".bazelrc": "common --enable_bzlmod --enable_workspace\n"}, True, ""),
        ({"WORKSPACE": "", ".bazelrc": "common --enable_bzlmod\n"}, None, ""),
        ({"WORKSPACE": "", ".bazelrc": "", ".bazelversion": "7.7.0"}, True, ""),
        ({"WORKSPACE": "", ".bazelrc": "", ".bazelversion": "6.5.0"}, False, ""),
        ({"WORKSPACE": "", ".bazelrc": "", "MODULE.bazel": None}, False, ""),
        ({"WORKSPACE": "", ".bazelrc": "common --noenable_bzlmod\n"}, False, ""),
        ({"WORKSPACE": "", ".bazelrc": "build --enable_bzlmod=false\n"}, False, ""),
        ({"WORKSPACE": "", ".bazelrc": ""}, None, ""),
        ({".bazelrc": ""}, None, ""),
        (
            {"MODULE.bazel": None, "WORKSPACE": ""},
            None,
            "enable bzlmod, and it has no MODULE.bazel",
        ),
        (
            {".bazelrc": "common --noenable_bzlmod\n"},
            None,
            "disable bzlmod, and it has no WORKSPACE",
        ),
    ],
)
def test_a_tree_that_is_half_of_each_is_one_of_the_two_or_an_error(
    files, modules, problem, tmp_path
):
    root = current(tmp_path, **files)
    rc = bazelrc.read_rc(root)
    if problem:
        with pytest.raises(SourceError, match=problem) as caught:
            bazelrc.modules(root, rc)
        assert caught.value.hint
    else:
        assert bazelrc.modules(root, rc) is modules


def test_a_users_own_config_turns_bzlmod_on(tmp_path):
    rc = "common --noenable_bzlmod\ncommon:bzlmod --enable_bzlmod --noenable_workspace\n"
    root = current(tmp_path, **{"WORKSPACE": "", ".bazelrc": rc})
    assert bazelrc.modules(root, bazelrc.read_rc(root)) is False
    assert bazelrc.modules(root, bazelrc.read_rc(root), ["--config=bzlmod"]) is None


@pytest.mark.parametrize(
    ("lacks", "options"),
    [("MODULE.bazel", ("--config=bzlmod",)), ("WORKSPACE", ("--noenable_bzlmod",))],
)
def test_options_choose_the_class_of_a_tree_and_are_named_where_it_lacks_a_file(
    lacks, options, tmp_path, runner, console
):
    rc = "common:bzlmod --enable_bzlmod --noenable_workspace\n"
    revision = f'XLA_COMMIT = "{OTHER}"\n'
    root = current(tmp_path, **{"WORKSPACE": "", "third_party/xla/revision.bzl": revision})
    (root / ".bazelrc").write_text(rc + (root / ".bazelrc").read_text())
    tree = resolve(root, runner, console, bazel_options=("--noenable_bzlmod",))
    assert (tree.modules, tree.version_class.marks.modules) == (False, False)
    (root / lacks).unlink()
    with pytest.raises(SourceError, match=f"--bazel-options={options[0]} .* no {lacks}") as caught:
        resolve(root, runner, console, bazel_options=options)
    assert caught.value.hint == "drop that option"


def test_the_xla_that_is_recorded_is_the_one_that_a_users_config_builds(tmp_path, runner, console):
    """JAX 0.9.1 names one commit for WORKSPACE and another one in MODULE.bazel."""
    rc = "common --noenable_bzlmod\ncommon:bzlmod --enable_bzlmod --noenable_workspace\n"
    revision = f'XLA_COMMIT = "{OTHER}"\n'
    root = current(
        tmp_path,
        **{"WORKSPACE": "", ".bazelrc": rc, "third_party/xla/revision.bzl": revision},
    )
    for options, modules, commit in (
        ((), False, OTHER),
        (("--config=bzlmod", "--config=of_the_user"), None, XLA),
    ):
        tree = resolve(root, runner, console, bazel_options=options)
        assert (tree.modules, tree.xla.commit) == (modules, commit)


def test_a_module_without_an_xla_is_an_error(tmp_path, runner, console):
    root = current(tmp_path, **{"MODULE.bazel": 'module(name = "jax")\n'})
    with pytest.raises(SourceError, match="has no archive_override of the module xla"):
        resolve(root, runner, console)


def test_a_module_that_builds_no_xla_needs_none(tmp_path, runner, console):
    root = current(tmp_path, **{"MODULE.bazel": 'module(name = "jax")\n'})
    shutil.rmtree(root / "third_party/xla")
    assert not resolve(root, runner, console).xla.commit


def test_patches_of_a_module_are_compared_with_a_users_own_xla(tmp_path, runner, console):
    root, own = current(tmp_path), tmp_path / "xla"
    own.mkdir()
    (own / "x").write_text("old\n")
    git = ["git", "-C", own, "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "t"]):
        subprocess.run([*git, *words], check=True)
    tree = resolve(root, runner, console, xla_source_dir=own)
    assert any("lacks JAX's one.patch" in warning for warning in tree.warnings)
    (own / "x").write_text("new\n")
    assert resolve(root, runner, console, xla_source_dir=own).xla_patches == ("one.patch",)


def test_of_a_workspace_only_patches_that_are_applied_are_named(tmp_path):
    layout, folder = PINS.layouts["upstream"].xla, tmp_path / "third_party" / "xla"
    assert patches(tmp_path, layout, by_module=False) == ()
    folder.mkdir(parents=True)
    (folder / "workspace.bzl").write_text(
        'patch_file = [\n    # "//third_party/xla:temporary.patch",\n'
        '    "//third_party/xla:one.patch",\n    "//third_party/xla:two.patch",\n],\n'
    )
    for name in ("one", "two", "temporary"):
        (folder / f"{name}.patch").touch()
    found = patches(tmp_path, layout, by_module=False)
    assert [patch.name for patch in found] == ["one.patch", "two.patch"]


def test_neighbouring_patches_are_compared_in_their_order(tmp_path, runner):
    folder, lines = tmp_path / "xla", [f"{n}\n" for n in range(6)]
    folder.mkdir()
    patches = []
    versions = [lines, [*lines[:2], "a\n", *lines[3:]], [*lines[:2], "a\n", "b\n", *lines[4:]]]
    for number in (1, 2):
        for side, text in (("a", versions[number - 1]), ("b", versions[number])):
            (tmp_path / side).mkdir(exist_ok=True)
            (tmp_path / side / "x").write_text("".join(text))
        done = subprocess.run(
            ["diff", "-u", "a/x", "b/x"], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        patches.append(tmp_path / f"{number}.patch")
        patches[-1].write_text(done.stdout)
        shutil.rmtree(tmp_path / "b")
    for text, applied, said in (
        (versions[2], ("1.patch", "2.patch"), []),
        (versions[1], ("1.patch",), ["lacks JAX's 2.patch"]),
        (versions[0], (), ["lacks JAX's 1.patch", "lacks JAX's 2.patch"]),
        (["7\n"], (), ["1.patch does not apply", "2.patch does not apply"]),
    ):
        (folder / "x").write_text("".join(text))
        found, warnings = compared(folder, tuple(patches), runner=runner)
        assert found == applied
        assert len(warnings) == len(said)
        assert all(part in line for part, line in zip(said, warnings, strict=True))
        assert (folder / "x").read_text() == "".join(text)


def test_every_pin_with_a_digest_of_each_cpython_that_its_jaxlib_has():
    for name in ("0.11.1", "0.12.0.1", "rocm-jaxlib-v0.11.2", "rocm-jaxlib-v0.12.0"):
        pin = PINS.find(name, allow_unverified=True)
        assert {"3.15", "3.15-ft"} <= set(map(str, pin.pythons))
        assert pin.jaxlib.wheels["3.15-ft"].filename.split("-")[3] == "cp315t"
    commits = {name: PINS.find(name, allow_unverified=True).commit for name in (
        "rocm-jaxlib-v0.11.1", "rocm-jaxlib-v0.11.2", "rocm-jaxlib-v0.12.0")}  # fmt: skip
    assert [commit[:12] for commit in commits.values()] == [
        "937d60458b07", "cf5cc1999c31", "a9e8b977a5be",
    ]  # fmt: skip
    assert replace(PINS.default, unverified="") == PINS.default
