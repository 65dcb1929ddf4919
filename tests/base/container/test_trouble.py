"""Engines in trouble: they die under a build, lose a client, have a disk full of half a layer."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from support import engines, registries
from support.processes import called
from support.tiers import merge_tries

from rocwheel.base import container
from rocwheel.base.container import ContainerSpec, EngineKind, User
from rocwheel.base.errors import CommandError, HostError
from rocwheel.base.process import Command, HostRunner, base_env
from rocwheel.base.values import replace
from rocwheel.image import registry
from rocwheel.image.build import explained

pytestmark = [
    pytest.mark.integration,
    pytest.mark.needs("dockerd", "docker-registry", "podman"),
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
    return container.ask(EngineKind(engine.kind), environ=environ, runner=runner), runner


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
        spec = ContainerSpec(
            engine=ours, image=TINY, run="dies", folder=short / "spec", user=User(uid=1, gid=1)
        )

        def kill():
            until(lambda: len(called(mark)) > 3)  # each: its client here, itself in the container
            os.kill(engine.daemon, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        command = Command(argv=tuple(mark.split()))
        with container.running(spec, runner=runner) as inside, ThreadPoolExecutor(1) as beside:
            shell = beside.submit(inside.interact, command)
            killer.start()
            for way in (partial(inside.run, command), shell.result):
                with pytest.raises(HostError, match="ended under us") as told:
                    way()
                assert "did the engine stop" in told.value.hint
            killer.join()
    assert not spec.folder.exists()

    until(lambda: not called(f"{run}/exec/containerd/containerd.toml"))  # it ends with its daemon
    for name in ("pid", "exec/containerd/containerd.pid"):
        (run / name).unlink(missing_ok=True)  # whose number may be anybody's by now
    with engines.docker(home, run=run) as engine:
        until(lambda: not called(mark))
        ours, runner = asked(engine)
        left = container.leftovers(ours, cache=tmp_path, runner=runner)
        container.remove(ours, left, cache=tmp_path, runner=runner)
        assert not engine.containers()
    subprocess.run(["umount", "--lazy", home], check=False, capture_output=True)


class Slow:
    """A socket before a daemon's: the first container is made only after one was to be removed.

    Who asked for it is killed meanwhile. As with a daemon that has much to do: what its client asked
    for comes after the client's end, and after whatever was done about that.
    """

    def __init__(self, socket_file: Path, daemon: Path, kill) -> None:
        self.daemon, self.kill = daemon, kill
        self.held, self.status = b"", 0  # the request, and what the daemon said to it
        self.sockets, self.threads = [socket.socket(socket.AF_UNIX)], []
        self.sockets[0].bind(str(socket_file))
        self.sockets[0].listen()
        self.begin(self.accept)

    def begin(self, target, *arguments) -> None:
        self.threads.append(threading.Thread(target=target, args=arguments, daemon=True))
        self.threads[-1].start()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        for item in [*self.sockets]:
            with suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
        for thread in [*self.threads]:
            thread.join(60)
        for item in self.sockets:
            item.close()

    def accept(self) -> None:
        with suppress(OSError):  # the test is over
            while True:
                client, _ = self.sockets[0].accept()
                upstream = socket.socket(socket.AF_UNIX)
                self.sockets += [client, upstream]
                upstream.connect(str(self.daemon))
                removing = threading.Event()
                self.begin(self.ask, client, upstream, removing)
                self.begin(self.answer, client, upstream, removing)

    def ask(self, client, upstream, removing) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 20):
                verb = data.partition(b"\r\n")[0]
                if verb.startswith(b"POST") and b"/containers/create" in verb and not self.held:
                    self.held = whole(data, client)
                    self.kill()
                    return
                if verb.startswith(b"DELETE"):
                    removing.set()
                upstream.sendall(data)
            upstream.shutdown(socket.SHUT_WR)

    def answer(self, client, upstream, removing) -> None:
        with suppress(OSError):
            while data := upstream.recv(1 << 20):
                if removing.is_set() and self.held and not self.status:
                    with socket.socket(socket.AF_UNIX) as late:
                        late.connect(str(self.daemon))
                        late.sendall(self.held)
                        self.status = int(late.recv(1 << 16).split()[1])
                client.sendall(data)
            client.shutdown(socket.SHUT_WR)


def whole(data: bytes, sender: socket.socket) -> bytes:
    """A request of which this is the beginning."""
    while b"\r\n\r\n" not in data:
        data += sender.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
    while len(body) < length:
        body += sender.recv(1 << 16)
    return head + b"\r\n\r\n" + body


def test_what_a_killed_client_had_asked_for_is_not_left_behind(root, short, tmp_path):
    with engines.docker(tmp_path / "docker", run=short) as engine:
        engine.load(root, TINY)

        def kill():
            for pid in called("--name=rocwheel-late"):
                os.kill(pid, signal.SIGKILL)

        through = {**engine.env, "DOCKER_HOST": f"unix://{short}/slow"}
        with Slow(short / "slow", short / "docker.sock", kill) as slow:
            ours, runner = asked(replace(engine, env=through))
            spec = ContainerSpec(
                engine=ours, image=TINY, run="late", folder=short / "spec", user=User(uid=1, gid=1)
            )
            with (
                pytest.raises(HostError, match="the container does not start"),
                container.running(spec, runner=runner),
            ):
                pass
        assert slow.status == 201  # it was made, after its client's end
        assert not engine.containers()


@pytest.mark.parametrize("kind", merge_tries("docker", of=["docker", "podman"]))
def test_a_disk_full_of_half_a_layer_is_one_error_and_holds_nothing(
    kind, root, short, tmp_path, console
):
    """By a pull and by a build."""
    large = tmp_path / "large"
    large.mkdir()
    (large / "file").write_bytes(os.urandom(LARGE_MB << 20))
    (short / "registry").mkdir()
    with registries.serving(short / "registry") as address:
        names = {name: f"{address}/{name}:1" for name in ("large", "tiny")}
        with engines.docker(tmp_path / "docker") as engine:
            engine.load(packed(large), names["large"])
            engine.load(root, names["tiny"])
            for name in names.values():
                engine("push", name)
        small = tmp_path / "small"
        with engines.ENGINES[kind](small, room=f"{LARGE_MB * 2 // 3}m") as engine:
            ours, runner = asked(engine)

            def obtain(name):
                return registry.obtain(name, ours, runner=runner, console=console)

            with pytest.raises(HostError, match="no space left on device") as told:
                obtain(names["large"])
            assert told.value.hint.startswith("free some space where the engine keeps images")
            assert not engine("images", "--all", "--quiet")
            assert obtain(names["tiny"]).size > 0  # what did not fit takes no room

            (large / "Dockerfile").write_text(f"FROM {names['tiny']}\nCOPY file /file\n")
            before = engine("images", "--all", "--quiet")
            command = ours.command("build", "--tag=rocwheel-test/large:1", str(large))
            with pytest.raises(CommandError) as failed:
                runner.run(replace(command, env={**command.env, "DOCKER_BUILDKIT": "1"}))
            told = explained("rocwheel-test/large:1", names["tiny"], failed.value)
            assert "the disk of the engine is full" in str(told)
            assert engine("images", "--all", "--quiet") == before
