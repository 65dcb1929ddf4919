"""A release of JAX as `pin add` and `bump jax` find it: a git repository, and an index of jaxlib."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

from support import generations
from support.generations import GENERATIONS
from support.git_server import git
from support.rocm_packages import wheel

from rocwheel import source
from rocwheel.base.process import HostRunner, base_env
from rocwheel.gate.suite import suites
from rocwheel.tools import bump

CI = Path(__file__).parents[2] / "ci"
LAYOUTS = source.load_layouts(CI / "layouts.yaml")
VERSION, XLA = "0.11.1", "0123456789abcdef0123456789abcdef01234567"
ABIS = {"3.12": "cp312", "3.14-ft": "cp314t"}


class Place:
    """A repository of JAX, an index of jaxlib and a copy of ci/pins.yaml."""

    def __init__(self, folder: Path, console: object) -> None:
        self.console, self.folder = console, folder
        self.path = Path(shutil.copy(CI / "pins.yaml", folder / "pins.yaml"))
        self.jax = generations.write(folder / "jax", GENERATIONS[VERSION])
        third = self.jax / "third_party" / "xla"
        third.mkdir(parents=True, exist_ok=True)
        (third / "revision.bzl").write_text(f'XLA_COMMIT = "{XLA}"\n')
        (self.jax / ".bazelversion").write_text("7.7.0\n")
        for lock in (self.jax / "build").glob("requirements_lock_*"):
            lock.unlink()
        for name in ("3_12", "3_14_ft"):
            (self.jax / "build" / f"requirements_lock_{name}.txt").write_text("numpy==2.1.0\n")
        self.write_tests()
        git(self.jax, "init", "--quiet")
        self.commit(f"jax-v{VERSION}")
        for abi in ABIS.values():
            made = wheel(
                folder / "index", "jaxlib", VERSION, {"jaxlib/abi": abi.encode()},
                metadata="Requires-Python: >=3.12\n",
            )  # fmt: skip
            made.rename(
                made.with_name(f"jaxlib-{VERSION}-{abi[:5]}-{abi}-manylinux_2_27_x86_64.whl")
            )
        page = folder / "index" / "jaxlib"
        links = (f'<a href="{item.name}">x</a>' for item in page.glob("*.whl"))
        (page / "index.html").write_text("".join(links))

    def write_tests(self) -> None:
        """Two tests in a file for each pattern that a suite of JAX's tests has."""
        for suite in suites.load_all(CI):
            for pattern in (*suite.source.paths, *suite.source.exclude):
                name = pattern.replace("*", "x").removesuffix("_test.py") + "_test.py"
                if not suite.source.folder:
                    path = self.jax / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text("def test_a(): ...\nclass T:\n    def test_b(self): ...\n")

    def commit(self, tag: str) -> None:
        git(self.jax, "add", "--all")
        git(self.jax, "-c", "user.name=t", "-c", "user.email=t@e", "commit", "--quiet", "-m", tag)
        git(self.jax, "tag", tag)

    @property
    def runner(self) -> HostRunner:
        env = {"PATH": "/usr/bin:/bin", "PIP_INDEX_URL": (self.folder / "index").as_uri()}
        return HostRunner(base_env(env))

    def look_up(self, version: str = VERSION, *, ref: str = "") -> bump.PinFacts:
        return bump.look_up(
            version, repository=str(self.jax), ref=ref,
            known=source.load_pins(self.path, layouts=LAYOUTS),
            here=SimpleNamespace(
                cache=self.folder / "cache", runner=self.runner, console=self.console
            ),
        )  # fmt: skip
