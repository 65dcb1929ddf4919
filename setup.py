"""What pyproject.toml cannot say: the package lives in `build/`, its data elsewhere.

setuptools takes a folder named `build` for its own scratch space, which it leaves out of an sdist
and fills when it makes a wheel (https://github.com/pypa/setuptools/issues/2595), so that scratch
space gets another name here. The data (`ci/`, `suites/`, the miniature workspace) goes into the
wheel as `rocwheel/share`, with the commit it is built from.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build import build
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).parent
DATA = ("ci", "suites", "examples/miniature")
SOURCE = "source.json"
MATRIX = "amdgpu_family_matrix"


def source() -> dict[str, object]:
    """Return what is built: an sdist has it written down, else git knows it."""
    if (ROOT / SOURCE).exists():
        found: dict[str, object] = json.loads((ROOT / SOURCE).read_text(encoding="utf-8"))
        return found
    found = {"repository": "", "commit": "", "dirty": False, "digest": ""}
    if not (ROOT / ".git").exists():
        return found
    with tempfile.TemporaryDirectory() as folder:
        git = _Git(str(Path(folder) / "index"))
        try:
            commit = git.ask("rev-parse", "HEAD")
            git.ask("read-tree", commit)
            changed = git.ask("status", "--porcelain", "-uno")
            others = git.ask("ls-files", "--others", "--exclude-per-directory=.gitignore")
        except (OSError, subprocess.CalledProcessError):
            return found
    return {**found, "commit": commit, "dirty": bool(changed or others)}


class _Git:
    """The checkout, compared with its commit by an index of our own.

    As in `rocwheel.source.git`, which cannot be imported here: the user's configuration, and what
    the checkout's index is told to assume, decide nothing.
    """

    def __init__(self, index: str) -> None:
        ours = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
        self.environ = {**os.environ, **ours, "GIT_INDEX_FILE": index}  # noqa: TID251 - no cli here

    def ask(self, *arguments: str) -> str:
        """Return what git prints. Raises OSError, CalledProcessError."""
        argv = ("git", "-C", str(ROOT), "-c", "safe.directory=*", "-c", "core.fsmonitor=false")
        return subprocess.run(
            (*argv, *arguments), capture_output=True, text=True, check=True, env=self.environ
        ).stdout.strip()


def _write(folder: Path, found: dict[str, object]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SOURCE).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


class Build(build):
    """Scratch space that is not the folder of the package."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.build_base = ".setuptools"


class BuildPy(build_py):
    """Put the data into the package, and the matrix beside it."""

    def find_modules(self) -> list[tuple[str, str, str]]:
        return [("", MATRIX, f"{MATRIX}.py")]

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # the checkout's own is used
            return
        share = Path(self.build_lib) / "rocwheel" / "share"
        shutil.rmtree(share, ignore_errors=True)
        for name in DATA:
            shutil.copytree(
                ROOT / name,
                share / name,
                ignore=shutil.ignore_patterns("__pycache__", "bazel-*"),
            )
        _write(share, source())


class Sdist(sdist):
    """Say in the archive which commit it is."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        found = source()  # before the archive's own folder stands in the checkout
        super().make_release_tree(base_dir, files)
        _write(Path(base_dir), found)


setup(
    py_modules=[MATRIX],
    package_dir={"": "build", MATRIX: MATRIX},
    cmdclass={"build": Build, "build_py": BuildPy, "sdist": Sdist},
)
