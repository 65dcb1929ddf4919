"""One demo, run for real, that every end-to-end test starts from."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pytest
from support import forked
from support.engines import PROGRAMS, SYSTEM
from support.processes import called
from support.s3 import servers

from rocwheel import cli
from rocwheel.base import files
from rocwheel.base.host import machine

__all__ = ["servers"]

ROOT = Path(__file__).parents[2]
EXECUTABLE = ROOT / "build" / "ci_build"
PATH = (
    f"{PROGRAMS}:{SYSTEM}:{os.environ['PATH']}"  # builds take the system's CPythons, as images do
)


@dataclass
class Done:
    """A finished run of the executable."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def document(self):
        return json.loads(self.stdout)


@dataclass
class World:
    """A folder with a cache and a wheelhouse of its own, and the executable to use in it."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)  # of a build, where a test has one

    @property
    def wheelhouse(self) -> Path:
        return self.folder / "wheelhouse"

    @property
    def cache(self) -> Path:
        """Where rocwheel keeps things: another world's, where the environment says so."""
        return Path(self.env.get("XDG_CACHE_HOME", self.folder / "cache")) / "rocwheel"

    def share(self, **kept: Path) -> World:
        """Build with what this session has already; `kept` are folders of a cache by their name."""
        self.cache.mkdir(parents=True)
        for name, folder in kept.items():
            (self.cache / name.replace("_", "-")).symlink_to(folder)
        return self

    def environ(self, env: dict[str, str]) -> dict[str, str]:
        cache = str(self.folder / "cache")
        return {**os.environ, "PATH": PATH, "XDG_CACHE_HOME": cache, **self.env, **env}

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(EXECUTABLE), *arguments],
            cwd=self.folder,
            env=self.environ(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *arguments: str, **env: str) -> Done:
        """Run the command in a fork of the tests' process, which has all of it imported."""
        started = time.monotonic()
        done = forked.run(
            cli.main, [*arguments], cwd=self.folder, env=self.environ(env), timeout=1700,
            program=str(EXECUTABLE),
        )  # fmt: skip
        return Done(done.code, done.out, done.err, time.monotonic() - started)

    def unfinished(self) -> list[str]:
        """What a run that failed must not leave in the wheelhouse."""
        place = self.wheelhouse / ".unfinished"
        hidden = [path.name for path in self.wheelhouse.glob(".*") if path != place]
        return hidden + [path.name for path in place.glob("*")]

    def processes(self) -> list[str]:
        """Command lines of processes that work below this folder, Bazel servers included."""
        return [" ".join(words)[:200] for words in called(str(self.folder)).values()]

    def kill(self) -> None:
        """End what an interrupted run left behind."""
        for pid in called(str(self.folder)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="session")
def made(common, disk_cache, versions):
    """What `demo` made and said, once for all workers, and a copy of it for tests that only read.

    Its servers end with the last worker that uses it.
    """
    world, copy = World(common / "demo"), World(common / "host")
    world.env["ROCWHEEL_DEMO_PYTHON_VERSIONS"] = versions
    answer, used = common / "demo.json", (common / "demo.used").open("w")
    fcntl.flock(used, fcntl.LOCK_SH)
    with files.locked(common / "demo.lock"):
        if not answer.exists():
            for each in (world, copy):
                each.folder.mkdir()
                each.share(bazel_disk=disk_cache)
            started = time.monotonic()
            process = world.start("--json", "demo")  # the executable itself, as a user starts it
            out, err = process.communicate(timeout=1700)
            assert process.returncode == 0, err[-4000:]
            done = Done(process.returncode, out, err, time.monotonic() - started)
            shutil.copytree(world.wheelhouse, copy.wheelhouse, symlinks=True)
            shutil.copytree(world.cache / "demo", copy.cache / "demo", symlinks=True)
            answer.write_text(json.dumps(asdict(done)))
    yield world, copy, Done(**json.loads(answer.read_text()))
    with used, suppress(BlockingIOError):
        fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
        stop_servers(world)


@pytest.fixture(scope="session")
def demo(made):
    """A world in which `demo` has run once, for two CPythons at most, and what it said."""
    world, _, done = made
    return world, done


@pytest.fixture(scope="session")
def on_host(made):
    """What that demo built, staged, gated and released, as it was then."""
    _, copy, _ = made
    yield copy
    stop_servers(copy)


@pytest.fixture(scope="session")
def versions(runner):
    """CPythons that the host builds for: the base's, and another one where there is one."""
    others = [
        str(item.version)
        for item in machine.pythons({**os.environ, "PATH": PATH}, runner=runner)
        if item.headers and str(item.version) not in {"3.11", "3.14-ft"}
    ]
    return ",".join(["3.11", *others[-1:]])


def by_hand(world: World, workspace: Path) -> list[str]:
    """Return the options of a build of the miniature by hand, from the tarball of its demo."""
    tarball = next((world.cache / "demo").glob("*/therock-dist-*.tar.gz"))
    return [
        f"--therock-path={tarball}",
        "--rocm-version=7.10.0a20251120",
        "--gfx-targets=gfx90a,gfx942,gfx1100,gfx1201",
        f"--jax-source-dir={workspace}",
        "--jaxlib=built",
        "--bazel-startup-options=--bazelrc=bazel/debian.bazelrc",
        "--bazel-options=--repo_env=MINIATURE_PYTHON_3_11=/usr/bin/python3.11",
        "--bazel-options=--repo_env=CC=/usr/bin/clang-19",
    ]


def interpreter(version: str) -> str:
    """Return the system's CPython, as a build of `World` finds it, or else ours."""
    return shutil.which(f"python{version}", path=SYSTEM) or os.path.realpath(sys.executable)


def stop_servers(world: World) -> None:
    """End the Bazel servers that wait for another build of this world."""
    for base in (world.cache / "bazel").glob("*/server/server.pid.txt"):
        try:
            os.kill(int(base.read_text()), 15)
        except (ProcessLookupError, ValueError):
            continue
