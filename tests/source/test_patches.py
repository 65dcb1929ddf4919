"""JAX's patches of XLA, compared with a folder of the user's."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rocwheel import source
from rocwheel.source import tree as sources

LAYOUT = source.load_layouts(Path(__file__).parents[2] / "ci" / "layouts.yaml")["upstream"]

ONE = """\
--- a/xla/one.cc
+++ b/xla/one.cc
@@ -1 +1 @@
-old
+new
"""
ELSEWHERE = ONE.replace("one.cc", "gone.cc")
WORKSPACE = """\
        patch_file = [
            # "//third_party/xla:temporary.patch",
            "//third_party/xla:one.patch",
            "//third_party/xla:elsewhere.patch",
        ],
"""


@pytest.fixture
def tree(tmp_path: Path) -> tuple[Path, ...]:
    folder = tmp_path / "jax" / "third_party" / "xla"
    folder.mkdir(parents=True)
    (folder / "workspace.bzl").write_text(WORKSPACE)
    for name, text in (("one", ONE), ("elsewhere", ELSEWHERE), ("temporary", ONE)):
        (folder / f"{name}.patch").write_text(text)
    return sources.patches(tmp_path / "jax", LAYOUT.xla, by_module=False)


@pytest.fixture
def xla(tmp_path: Path) -> Path:
    folder = tmp_path / "sources" / ("1" * 40)
    (folder / "xla").mkdir(parents=True)
    (folder / "xla" / "one.cc").write_text("old\n")
    git = ["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "t"]):
        subprocess.run([*git, *words], check=True)
    return folder


def test_only_patches_that_are_applied_are_named(tree) -> None:
    assert [patch.name for patch in tree] == ["one.patch", "elsewhere.patch"]


def test_a_tree_without_patches_has_none(tmp_path: Path) -> None:
    assert sources.patches(tmp_path, LAYOUT.xla, by_module=False) == ()


def test_a_folder_of_the_users_is_compared_and_never_changed(tree, xla, runner) -> None:
    applied, (lacks, other) = sources.compared(xla, tree, runner=runner)
    assert applied == ()
    assert f"git -C {xla} apply {tree[0]}" in lacks
    assert "elsewhere.patch does not apply" in other
    assert (xla / "xla" / "one.cc").read_text() == "old\n"
    (xla / "xla" / "one.cc").write_text("new\n")
    assert sources.compared(xla, tree, runner=runner)[0] == ("one.patch",)
