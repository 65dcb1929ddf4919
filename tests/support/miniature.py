"""The miniature as a tree of an earlier generation: its rc files, marks and toolchain."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from support import generations

if TYPE_CHECKING:
    from support.generations import Generation

WORKSPACE = Path(__file__).parents[2] / "examples" / "miniature" / "workspace"
# What the miniature's rules need beside the configs that every generation has.
_CROSSTOOL = "build:rocm --crosstool_top=@local_config_rocm//crosstool:toolchain\n"
# Its local toolchain lists the headers of one clang only. (JAX after 0.11.0 lists none; here 0.11.1 has
# the list of 0.11.0, so that the oldest and the newest of that kind are both met.)
OWN_HEADERS = frozenset({"0.11.0", "0.11.1"})


def write(root: Path, generation: Generation, *, says: str = "", clang: str) -> Path:
    """Write the workspace of `generation` over whatever is at `root`.

    `says` is the version in it, `clang` the compiler its local route names.
    """
    for old in ("build", "jaxlib", "third_party"):
        shutil.rmtree(root / old, ignore_errors=True)
    ignored = shutil.ignore_patterns("bazel-*")
    shutil.copytree(WORKSPACE, root, dirs_exist_ok=True, ignore=ignored)
    kept = {
        name: (root / name).read_bytes()
        for name in ("WORKSPACE", "jaxlib/tools/BUILD.bazel", "jax/version.py")
    }
    shutil.rmtree(root / "build" / "rocm")
    (root / "jaxlib" / "plugin_support.py").unlink()
    generations.write(root, generation, says=says, clang=clang)
    shutil.rmtree(root / "third_party")
    (root / ".bazelversion").unlink()
    for name, content in kept.items():
        (root / name).write_bytes(content)
    version = root / "jax" / "version.py"
    version.write_text(version.read_text().replace("0.11.99", says or generation.version))
    late = bool(generation.rocm_bazelrc)
    with (root / ("build/rocm/rocm.bazelrc" if late else ".bazelrc")).open("a") as rc:
        rc.write(_CROSSTOOL)
    if generation.plugin.startswith('"jax_rocm6'):  # a number that the tree itself decides
        build = root / "jaxlib" / "tools" / "BUILD.bazel"
        text = build.read_text().replace(".format(ROCM_MAJOR_VERSION)", '.format("60")')
        build.write_text(text.replace("wheel_name = _PLUGIN", f"wheel_name = {generation.plugin}"))
    new = generation.version in OWN_HEADERS
    (root / "bazel" / "generation.bzl").write_text(
        f'LOCAL_CLANG_HEADERS = "{"18" if new else ""}"\n'
        f'LOCAL_LINKER = "{"lld" if new else "gold"}"\n'
    )
    return root
