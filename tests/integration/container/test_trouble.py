"""Engines in trouble: one that dies under a build, and one whose disk is full of half a layer."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest
from support import engines, registries

from rocwheel import container
from rocwheel.container import EngineKind, Spec, User
from rocwheel.errors import HostError
from rocwheel.image import found
from rocwheel.process import Command, HostRunner, base_env

pytestmark = [
    pytest.mark.needs("dockerd", "docker-registry"),
    pytest.mark.xdist_group("containers"),
]

TINY = "rocwheel-test/tiny:1"
LARGE_MB = 32


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A root file system with a shell and little else, as an archive."""
    folder = tmp_path_factory.mktemp("tiny")
    for name in ("bin", "etc", "proc", "sys", "dev", "tmp", "var/tmp", "run", "rocwheel"):
        (folder / "root" / name).mkdir(parents=True)
    for program in ("sh", "cat", "sleep"):
        file = shutil.which(program, path=engines.SYSTEM)
        shutil.copy(file, folder / "root" / "bin")
        said = subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"(/\S+) \(0x", said):
            target = folder / "root" / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
    return packed(folder / "root")


def packed(folder: Path) -> Path:
    archive = folder.with_suffix(".tar")
    subprocess.run(["tar", "-C", folder, "-cf", archive, "."], check=True)
    return archive


@pytest.fixture
def short():
    """A folder whose name is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="rocwheel-") as name:
        yield Path(name)


def asked(engine):
    runner = HostRunner({**base_env(os.environ), **engine.env})
    environ = {**os.environ, **engine.env}
    return container.ask(EngineKind.DOCKER, environ=environ, runner=runner), runner


def seen(text: str) -> list[int]:
    """Processes with these words in their command lines."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            pids += [int(entry.name)] if text.encode() in line else []
    return pids


def until(condition) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_an_engine_that_dies_is_one_error_and_its_next_start_leaves_nothing(root, short, tmp_path):
    (short / "run").mkdir()
    home, run = tmp_path / "docker", short / "run"
    mark = f"sleep 86{os.getpid():07}"  # seconds that nobody else waits

    with engines.docker(home, run=run) as engine:
        engine.load(root, TINY)
        ours, runner = asked(engine)
        spec = Spec(
            engine=ours, image=TINY, run="dies", folder=short / "spec", user=User(uid=1, gid=1)
        )

        def kill():
            until(lambda: len(seen(mark)) > 1)  # its client here, itself in the container
            os.kill(engine.daemon, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        with container.running(spec, runner=runner) as inside:
            killer.start()
            with pytest.raises(HostError, match="ended under us") as told:
                inside.run(Command(argv=tuple(mark.split())))
            killer.join()
    assert "did the engine stop" in told.value.hint
    assert not spec.folder.exists()

    until(lambda: not seen(f"{run}/exec/containerd/containerd.toml"))  # it ends with its daemon
    for name in ("pid", "exec/containerd/containerd.pid"):
        (run / name).unlink(missing_ok=True)  # whose number may be anybody's by now
    with engines.docker(home, run=run) as engine:
        until(lambda: not seen(mark))
        ours, runner = asked(engine)
        left = container.leftovers(ours, runner=runner)
        container.remove(ours, left, runner=runner)
        assert not engine.containers()
    subprocess.run(["umount", "--lazy", home], check=False, capture_output=True)


def test_a_disk_full_of_half_a_layer_is_one_error_and_holds_nothing(root, short, tmp_path, console):
    large = tmp_path / "large"
    large.mkdir()
    (large / "file").write_bytes(os.urandom(LARGE_MB << 20))
    (short / "registry").mkdir()
    with registries.serving(short / "registry") as registry:
        names = {name: f"{registry}/{name}:1" for name in ("large", "tiny")}
        with engines.docker(tmp_path / "docker") as engine:
            engine.load(packed(large), names["large"])
            engine.load(root, names["tiny"])
            for name in names.values():
                engine("push", name)
        with engines.docker(tmp_path / "small", room=f"{LARGE_MB * 2 // 3}m") as engine:
            ours, runner = asked(engine)

            def obtain(name):
                return found.obtain(name, engine=ours, locked=False, runner=runner, console=console)

            with pytest.raises(HostError, match="no space left on device") as told:
                obtain(names["large"])
            assert told.value.hint.startswith("free some space where the engine keeps images")
            assert not engine("images", "--all", "--quiet")
            assert obtain(names["tiny"]).size > 0  # what did not fit takes no room
