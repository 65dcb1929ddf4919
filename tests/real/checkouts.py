"""The real sources: git repositories in one folder, read at the commits that are pinned.

The folder is named by ROCWHEEL_REAL_SOURCES and holds, as clones or bare repositories with their
history: `jax` (jax-ml/jax), `xla` (openxla/xla, or a fork that has its commits), `rocm-fork`
(ROCm/jax), `rules_ml_toolchain` (google-ml-infra), `rules_python` (bazel-contrib, with its tags)
and `therock` (ROCm/TheRock). Nothing of them is ever copied into this project.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("ROCWHEEL_REAL_SOURCES") or "/dev/null/none")  # never a folder
PINS = yaml.safe_load((ROOT / "ci" / "pins.yaml").read_text())["pins"]
# Development commits whose number says another class than the one they belong to.
DEVELOPMENT = ("d521deb88b", "66dbacad76")
# What rocwheel and the rules it evaluates read of a tree.
JAX_FILES = (
    *(".bazelrc", ".bazelversion", "WORKSPACE", "MODULE.bazel", "build", "jax/version.py"),
    *("jaxlib/tools/BUILD.bazel", "jaxlib/plugin_support.py", "third_party/xla"),
)
XLA_FILES = ("third_party/gpus", "third_party/remote_config", "third_party/BUILD")


@dataclass(frozen=True)
class Commit:
    """One commit of one repository."""

    repository: str
    name: str

    def git(self, *words: str) -> str:
        argv = ["git", "-C", str(FOLDER / self.repository), *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout

    def is_here(self) -> bool:
        """Whether the checkout has it; a snapshot may be older than what names the commit."""
        argv = [
            "git",
            "-C",
            str(FOLDER / self.repository),
            "cat-file",
            "-e",
            f"{self.name}^{{commit}}",
        ]
        return subprocess.run(argv, check=False, capture_output=True).returncode == 0

    def text(self, path: str) -> str:
        return self.git("show", f"{self.name}:{path}")

    def extract(self, into: Path, *paths: str) -> Path:
        """Write the files below `paths`; what a partial repository lacks is left out."""
        for row in self.git("ls-tree", "-r", "-z", self.name, *paths).split("\0"):
            if not row:
                continue
            (mode, kind, blob), path = row.split("\t")[0].split(), row.split("\t")[1]
            argv = ["git", "-C", str(FOLDER / self.repository), "cat-file", "blob", blob]
            done = subprocess.run(argv, check=False, capture_output=True)
            if kind != "blob" or done.returncode:
                continue
            file = into / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(done.stdout)
            file.chmod(0o755 if mode == "100755" else 0o644)
        return into

    @property
    def xla(self) -> Commit:
        """The XLA commit that a commit of JAX is built with."""
        for name in ("revision.bzl", "workspace.bzl"):
            if not self.git("ls-tree", self.name, f"third_party/xla/{name}"):
                continue
            match = re.search(
                r'XLA_COMMIT = "([0-9a-f]{40})"', self.text(f"third_party/xla/{name}")
            )
            if match:
                return Commit("xla", match[1])
        raise AssertionError(f"{self.repository} {self.name}: names no XLA commit")


def external(commit: Commit, name: str) -> Commit | None:
    """The commit of an external repository that is in force for a commit of JAX.

    XLA's choice wins over the one JAX's WORKSPACE names, because `xla_workspace3()` comes first and
    `tf_http_archive` passes over a repository that exists. None for a commit that is not in the folder.
    """
    if name == "xla":
        return commit.xla
    if not (FOLDER / name).is_dir():
        return None
    places = [
        (commit.xla, "workspace3.bzl"),
        (commit.xla, "third_party/py/python_init_rules.bzl"),
        (commit, "WORKSPACE"),
    ]
    for where, path in places:
        found = re.search(rf'strip_prefix = "{name}-([\w.]+)"', where.text(path))
        if found:
            commit = Commit(name, found[1])
            return commit if commit.is_here() else None
    return None


def newest(repository: str, count: int) -> list[str]:
    """The newest commits of a repository's default branch, shortened."""
    if not (FOLDER / repository).is_dir():
        return []
    return Commit(repository, "HEAD").git("log", f"-{count}", "--format=%h", "HEAD").split()


def upstream() -> list[Commit]:
    """Every pin, the two newest commits of main, and the development commits."""
    if not (FOLDER / "jax").is_dir():
        return []
    pins = [entry["ref"] for entry in PINS.values()]
    named = [Commit("jax", name) for name in (*pins, *newest("jax", 2), *DEVELOPMENT)]
    return [commit for commit in named if commit.is_here()]  # a snapshot may end before a pin
