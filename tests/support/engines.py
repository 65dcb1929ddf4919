"""Real container engines for tests: a Docker daemon and a podman with folders of their own.

Their storage lies in the user's cache folder (`rocwheel-tests`), so that the base image and what
is built on it are made once per machine. The daemon dies with the process that started it; one
test session at a time uses it. Nothing is shared with an engine that the machine already runs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from support.processes import DIES_WITH_US

ROOT = Path(__file__).parents[2]
DEBIAN = "bookworm"
ARCHIVE = "http://deb.debian.org/debian"
BASE_PACKAGES = ("ca-certificates", "python3")
BASE = "rocwheel-test/base:bookworm"
SYSTEM = "/usr/sbin:/usr/bin:/sbin:/bin"
PROGRAMS = str(Path(__file__).parent / "bin")  # that stand before this machine's


@dataclass(frozen=True, kw_only=True)
class TestEngine:
    """An engine that runs: how its client is told to talk to it."""

    __test__ = False

    kind: str
    env: dict[str, str] = field(default_factory=dict)
    daemon: int = 0  # process id, where there is one

    def __call__(self, *arguments: str, check: bool = True, **settings) -> str:
        done = subprocess.run(
            [self.kind, *arguments],
            env={**os.environ, **self.env, **settings.pop("env", {})},
            capture_output=True,
            text=True,
            check=False,
            **settings,
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout.strip()

    def containers(self) -> list[str]:
        return self("ps", "--all", "--format", "{{.Names}}").split()

    def remove(self, name: str) -> None:
        self("kill", name, check=False)
        self("rm", "--force", name, check=False)

    def load(self, tarball: Path, name: str) -> None:
        """A root file system as an image."""
        self("import", "--change", f"ENV PATH={SYSTEM}", str(tarball), name)


def folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "rocwheel-tests"


def base_tarball() -> Path:
    """A Debian with Python: what an image starts from. Made once (about a minute)."""
    options = ["--variant=minbase", f"--include={','.join(BASE_PACKAGES)}", DEBIAN]
    key = hashlib.sha256(" ".join(options).encode()).hexdigest()[:12]
    target = folder() / f"base-{key}.tar"
    folder().mkdir(parents=True, exist_ok=True)
    with (folder() / "base.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            scratch = target.with_suffix(f".{os.getpid()}.tar")
            subprocess.run(
                ["mmdebstrap", *options, str(scratch), ARCHIVE],
                check=True,
                capture_output=True,
                timeout=1700,
            )
            scratch.rename(target)
    return target


@contextmanager
def docker(
    home: Path | None = None, *, run: Path | None = None, room: str = ""
) -> Iterator[TestEngine]:
    """A Docker daemon of our own; with `home` one that has nothing but what lies there.

    A daemon that is killed leaves what only the next one with the same `run` clears away. With
    `room` its storage is in memory, as large as that, and gone with it.
    """
    home = home or folder() / "docker"
    home.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        lock = stack.enter_context(home.with_suffix(".lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)
        run = run or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        run.chmod(0o755)
        log = stack.enter_context((run / "log").open("wb"))
        small = f'mount -t tmpfs -o size={room} tmpfs "$0" && exec "$@"'
        daemon = subprocess.Popen(
            [
                *DIES_WITH_US,
                *(("unshare", "--mount", "sh", "-c", small, str(home)) if room else ()),
                *("dockerd", "--host", f"unix://{run}/docker.sock", "--data-root", str(home)),
                *("--exec-root", f"{run}/exec", "--pidfile", f"{run}/pid"),
                *("--bridge=none", "--iptables=false", "--ip-forward=false"),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "PATH": f"{SYSTEM}:{os.environ['PATH']}"},
        )
        try:
            engine = TestEngine(
                kind="docker",
                env={
                    "DOCKER_HOST": f"unix://{run}/docker.sock",
                    "DOCKER_BUILDKIT": "1",
                    "PATH": f"{SYSTEM}:{os.environ['PATH']}",
                },
                daemon=daemon.pid,
            )
            until = time.monotonic() + 240
            while not engine("version", "--format", "{{.Server.Version}}", check=False):
                assert daemon.poll() is None, (run / "log").read_text()[-2000:]
                assert time.monotonic() < until, "dockerd does not answer"
                time.sleep(0.2)
            (run / "docker.sock").chmod(0o666)  # for builds as an ordinary user
            yield engine
        finally:
            daemon.terminate()
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(30)
            if daemon.poll() is None:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()


@contextmanager
def podman(home: Path | None = None, *, room: str = "") -> Iterator[TestEngine]:
    """Podman with storage and settings of its own: runc and cgroupfs work everywhere.

    With `home` one that has nothing but what lies there. What it mounted for all of its containers
    goes with the last who uses the storage. With `room` its storage is in memory, as large as that.
    """
    home = home or folder() / "podman"
    home.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        lock = stack.enter_context(home.with_suffix(".lock").open("w"))
        run = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        fcntl.flock(lock, fcntl.LOCK_SH)
        (run / "containers.conf").write_text(
            '[containers]\ndefault_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]\n'
            '[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
        )
        (run / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{home}"\nrunroot = "{run}/run"\n'
        )
        if room:
            mount(home, room)
        try:
            yield TestEngine(
                kind="podman",
                env={
                    "CONTAINERS_CONF": f"{run}/containers.conf",
                    "CONTAINERS_STORAGE_CONF": f"{run}/storage.conf",
                },
            )
        finally:
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                unmount(home / "overlay")
                if room:
                    unmount(home)


def mount(folder: Path, room: str) -> None:
    """A file system in memory; `size` is its room."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", folder], check=True)


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", folder], check=False, capture_output=True)


ENGINES = {"docker": docker, "podman": podman}


def with_image(engine: TestEngine, name: str = BASE) -> TestEngine:
    """Make sure the engine has the base image."""
    if not engine("images", "--quiet", name):
        engine.load(base_tarball(), name)
    return engine


def hand_over(name: str, giver: TestEngine, taker: TestEngine) -> None:
    """The same image in another engine, under the same digest."""
    env = {**os.environ, **giver.env}
    whole = ("--format=oci-archive",) if giver.kind == "podman" else ()  # its other ones change it
    save = [giver.kind, "save", *whole, name]
    with subprocess.Popen(save, env=env, stdout=subprocess.PIPE) as saving:
        taker("load", stdin=saving.stdout)
    assert saving.returncode == 0


def image_config(engine: TestEngine, name: str) -> dict:
    return json.loads(engine("inspect", "--type", "image", name))[0]


def clear(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def with_builder(engine: TestEngine) -> str:
    """The reference of the builder image `debian_12` on our base; made once per session.

    Podman takes the one that Docker made: the same bytes under the same digest.
    """
    if engine.kind == "docker":
        return build_builder(with_image(engine))
    with docker() as other:
        name = build_builder(with_image(other))
        if engine("images", "--quiet", name):
            return name
        hand_over(name, other, engine)
    return f"localhost/{name}" if engine("images", "--quiet", f"localhost/{name}") else name


def build_builder(engine: TestEngine) -> str:
    """`image build` as a user runs it; the reference it prints."""
    checkout = Path(__file__).parents[2]
    done = subprocess.run(
        [
            *(sys.executable, str(checkout / "build" / "ci_build"), "image", "build"),
            *("--container-engine", engine.kind, "--recipe", "debian_12", "--base", BASE),
            *("--build-network", "host"),
        ],
        env={**os.environ, **engine.env},
        capture_output=True,
        text=True,
        check=False,
        timeout=1700,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout.strip()
