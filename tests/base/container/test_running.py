"""A container as a runner: the same tests under Docker and under rootful podman."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path, PurePosixPath

import pytest
from support.engines import BASE
from support.processes import called

from rocwheel.base import container
from rocwheel.base.container import ContainerLimits, ContainerSpec, Mount, User
from rocwheel.base.container.running import _end_monitor, _monitored
from rocwheel.base.container.spec import LABEL
from rocwheel.base.errors import CommandError, HostError
from rocwheel.base.host.machine import Programs
from rocwheel.base.process import Command, GuestPath
from rocwheel.base.values import replace
from rocwheel.image import contents

pytestmark = [
    pytest.mark.integration,
    pytest.mark.needs("dockerd", "podman", "mmdebstrap"),
    pytest.mark.xdist_group("containers"),
]

ROOT = Path(__file__).parents[3]
ORDINARY = User(uid=1234, gid=1234, groups=(1234, 2345), name="somebody")


@pytest.fixture
def spec(asked, tmp_path):
    (tmp_path / "data").mkdir()
    tmp_path.chmod(0o755)
    return ContainerSpec(
        engine=asked,
        image=BASE,
        run=f"test-{random.randrange(10**9)}",
        folder=tmp_path / "run",
        user=ORDINARY,
        mounts=(Mount(host=tmp_path / "data", guest=guest("/data"), writable=True),),
    )


def guest(text: str) -> GuestPath:
    return GuestPath(PurePosixPath(text))


def sh(script: str, **settings) -> Command:
    return Command(argv=("sh", "-c", script), **settings)


def gone(engine, name: str, seconds: float = 240.0) -> bool:
    until = time.monotonic() + seconds
    while name in engine.containers():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def test_an_engine_says_who_it_is(asked, engine):
    assert asked.kind.value == engine.kind
    assert asked.architecture == "amd64"
    assert asked.root.is_dir()


def test_commands_run_inside_as_the_caller_and_leave_their_files(spec, host, tmp_path):
    (tmp_path / "data").chmod(0o777)
    with container.running(spec, runner=host) as running:
        said = running.capture(
            sh(
                "id -u; id -un; id -G; echo $HOME; umask; echo made > /data/file",
                cwd=guest("/data"),
            )
        )
        assert said.split("\n")[:4] == ["1234", "somebody", "1234 2345", "/rocwheel/home"]
        assert (tmp_path / "data" / "file").stat().st_uid == 1234
        seen: list[str] = []
        done = running.run(
            sh("echo one; echo two >&2; pwd; echo $WORD", cwd=guest("/data"), env={"WORD": "a b"}),
            on_line=seen.append,
        )
        assert sorted(seen) == sorted(["one", "two", "/data", "a b"])
        assert done.returncode == 0


def test_it_may_nothing_that_it_need_not(spec, host):
    with container.running(spec, runner=host) as running:
        assert running.run(sh("touch /usr/x"), check=False).returncode != 0  # read-only root
        assert running.run(sh("touch /rocwheel/run/x"), check=False).returncode != 0
        status = running.capture(sh("cat /proc/self/status"))
        assert "CapEff:\t0000000000000000" in status
        assert "NoNewPrivs:\t1" in status
        interfaces = running.capture(sh("cat /proc/net/dev")).splitlines()[2:]
        assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]
        assert "tmpfs" in running.capture(sh("grep ' /tmp ' /proc/mounts"))


def test_paths_are_translated_and_back(spec, host, tmp_path):
    with container.running(spec, runner=host) as running:
        inside = running.path(tmp_path / "data" / "x")
        assert str(inside) == "/data/x"
        assert running.host(inside) == tmp_path / "data" / "x"
        with pytest.raises(HostError, match="is not mounted"):
            running.path(Path("/etc/hostname"))
        with pytest.raises(HostError, match="exists only in the container"):
            running.host(guest("/usr/bin"))


def test_a_command_fails_as_on_the_host(spec, host):
    with container.running(spec, runner=host) as running:
        with pytest.raises(CommandError, match="exit status 3") as failed:
            running.run(sh("echo why; exit 3"))
        assert "why" in failed.value.detail
        with pytest.raises(HostError, match="no such program or folder"):
            running.run(Command(argv=("no-such-program",)))
        with pytest.raises(HostError, match="no such program or folder"):
            running.run(Command(argv=("true",), cwd=guest("/no/such/folder")))
        with pytest.raises(CommandError, match="exit status 4"):
            running.capture(sh("exit 4"))


def test_an_interrupted_command_ends_inside_too(spec, host, engine):
    with container.running(spec, runner=host) as running:
        with pytest.raises(CommandError, match="no end after"):
            running.run(sh("sleep 301 & sleep 302", timeout=1.0))
        left = running.capture(sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '"))
        assert "sleep 301" not in left
        assert "sleep 302" not in left


def test_nothing_is_left_when_all_went_well(spec, host, engine):
    with container.running(spec, runner=host):
        assert spec.name in engine.containers()
    assert spec.name not in engine.containers()
    assert not spec.folder.exists()


def start_child(spec: ContainerSpec, engine, *, entered: str = "running") -> subprocess.Popen[str]:
    """Another process that runs a container with a command in it, and says so."""
    program = f"""
import sys, time
sys.path[:0] = [{str(ROOT / "build")!r}]
import pickle
from rocwheel.base import container
from rocwheel.base.process import Command, HostRunner
import signal
def interrupt(*_):
    raise KeyboardInterrupt
signal.signal(signal.SIGTERM, interrupt)
spec = pickle.load(open(sys.argv[1], "rb"))
print("starting", flush=True)
with container.{entered}(spec, runner=HostRunner(dict({ {**os.environ, **engine.env}!r}))) as running:
    print("up", flush=True)
    running.run(Command(argv=("sh", "-c", "touch /data/begun; exec sleep 300")))
"""
    import pickle

    file = spec.folder.parent / "spec.pickle"
    file.write_bytes(pickle.dumps(spec))
    return subprocess.Popen(
        [sys.executable, "-c", program, str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL", "client"])
def test_however_we_end_the_container_ends(how, spec, host, engine, tmp_path):
    stranger = f"stranger-{spec.run}"
    engine("run", "--detach", "--network=none", "--name", stranger, BASE, "sleep", "1000")
    try:
        (tmp_path / "data").chmod(0o777)
        child = start_child(spec, engine)
        assert child.stdout.readline() == "starting\n"
        assert child.stdout.readline() == "up\n", child.communicate()[1]
        until = time.monotonic() + 240
        while not (tmp_path / "data" / "begun").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        if how == "client":
            (client,) = called(f"--name={spec.name}")
            os.kill(client, signal.SIGKILL)
        else:
            child.send_signal(getattr(signal, how))
        child.communicate(timeout=240)
        assert gone(engine, spec.name)
        until = time.monotonic() + 240
        while clients := called(spec.name):
            assert time.monotonic() < until, clients
            time.sleep(0.1)
        assert stranger in engine.containers()
        assert all(path.stat().st_uid == 1234 for path in (tmp_path / "data").iterdir())
    finally:
        engine.remove(stranger)


@pytest.fixture
def stays(spec, engine):
    """What `dev --keep-container` starts, of the same user that writes its folder."""
    own = User(uid=os.getuid(), gid=os.getgid())
    yield next_turn(spec, user=own, keep_minutes=30)
    for name in engine(
        "ps", "--all", f"--filter=label={LABEL}.kept", "--format={{.Names}}"
    ).split():
        engine.remove(name)


def next_turn(spec: ContainerSpec, **changed) -> ContainerSpec:
    run = f"test-{random.randrange(10**9)}"
    return replace(spec, run=run, folder=spec.folder.with_name(run), **changed)


def forget(spec: ContainerSpec) -> None:
    """Turn the clock of a kept container: it was not used for long."""
    os.utime(spec.folder / "alive", (0, 0))


def test_a_kept_container_serves_the_next_turn_and_ends_when_it_was_idle(
    stays, asked, host, engine
):
    """What was started in it goes on; the clock is turned, not waited for."""
    with container.kept(stays, runner=host) as one:
        one.run(sh("nohup sleep 900 > /tmp/out 2>&1 & echo $! > /tmp/server"))
    assert container.leftovers(asked, cache=stays.folder.parent, runner=host) == ()
    with container.kept(next_turn(stays, keep_minutes=60), runner=host) as two:
        assert two.spec.name == one.spec.name
        assert two.capture(sh('kill -0 "$(cat /tmp/server)" && echo there')) == "there\n"
    assert (stays.folder / "alive").read_text() == "60\n"
    more = next_turn(stays, limits=ContainerLimits(shm="2g"))
    with container.kept(more, runner=host) as other:
        assert other.spec.name == more.name
        assert stays.name in engine.containers()
    forget(stays)
    assert gone(engine, stays.name, seconds=60)
    with container.kept(next_turn(stays), runner=host) as again:
        assert again.spec.name != stays.name
        assert again.capture(sh("ls /tmp")) == ""
    shutil.rmtree(again.spec.folder)
    with container.kept(next_turn(stays), runner=host) as anew:
        assert anew.spec.name != again.spec.name


def test_a_turn_that_sleeps_keeps_its_container(stays, engine):
    """However long it is stopped (Ctrl-Z): the container's clock is turned, not waited for."""
    child = start_child(stays, engine, entered="kept")
    try:
        assert child.stdout.readline() == "starting\n"
        assert child.stdout.readline() == "up\n", child.communicate()[1]
        child.send_signal(signal.SIGSTOP)
        for _ in range(2):  # looks of the container's first process
            forget(stays)
            until = time.monotonic() + 60
            while (stays.folder / "alive").stat().st_mtime == 0:
                assert stays.name in engine.containers(), "it ended under its turn"
                assert time.monotonic() < until
                time.sleep(0.1)
        child.kill()
        child.communicate(timeout=240)
        time.sleep(0.1)
        forget(stays)
        assert gone(engine, stays.name, seconds=60)  # no turn holds it any more
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize("how", ["of other folders", "paused", "ended"])
def test_a_container_that_is_of_no_use_is_left_alone(how, stays, asked, host, engine):
    """It has all our labels; another one is started beside it."""
    labels = [f"--label={name}={value}" for name, value in stays.labels.items()]
    name = f"rocwheel-{stays.run}-other"
    words = ("--network=none", f"--name={name}", *labels, BASE, "sleep", "1000")
    engine(*("create" if how == "ended" else "run --detach").split(), *words)
    if how == "paused":
        engine("pause", name)
    try:
        identity = engine("inspect", "--format={{.Id}}", name)
        with container.kept(stays, runner=host) as ours:
            assert ours.spec.name == stays.name
        assert engine("inspect", "--format={{.Id}}", name) == identity
        assert container.leftovers(asked, cache=stays.folder.parent, runner=host) == ()
    finally:
        engine("unpause", name, check=False)
        engine.remove(name)


def test_a_kept_container_is_not_the_one_of_a_folder_that_was_replaced(
    stays, host, engine, tmp_path
):
    """It goes on seeing the old one, also where a link leads elsewhere now."""
    link = tmp_path / "data"
    link.rename(tmp_path / "old")
    (tmp_path / "new").mkdir()
    seen = []
    for name in ("old", "new", "old"):
        link.unlink(missing_ok=True)
        link.symlink_to(name)
        (tmp_path / name / "which").write_text(name)
        with container.kept(next_turn(stays), runner=host) as inside:
            seen.append(inside.capture(sh("cat /data/which")))
    assert seen == ["old", "new", "old"]
    shutil.rmtree(tmp_path / "old")
    (tmp_path / "old").mkdir()
    (tmp_path / "old/which").write_text("made again")
    with container.kept(next_turn(stays), runner=host) as inside:
        assert inside.capture(sh("cat /data/which")) == "made again"


def test_a_container_that_cannot_be_kept_is_one_error_and_leaves_nothing(
    stays, host, engine, tmp_path
):
    (tmp_path / "empty").touch()
    hidden = Mount(host=tmp_path / "empty", guest=guest("/usr/bin/flock"))
    wrong = replace(stays, mounts=(*stays.mounts, hidden))
    for changed, words in ((wrong, "flock"), (replace(stays, image="rocwheel-test/none:1"), "")):
        with (
            pytest.raises(HostError, match=f"does not start.*{words}") as refused,
            container.kept(next_turn(changed), runner=host),
        ):
            pass
        assert refused.value.hint
    assert not [name for name in engine.containers() if name.startswith("rocwheel-test-")]
    assert {item.name for item in tmp_path.iterdir()} == {"data", "empty", "kept.lock"}


@pytest.mark.parametrize("engine", ["podman"], indirect=True)  # Docker has no such monitor
def test_what_a_killed_client_of_podman_had_begun_is_ended(spec, engine):
    """Its monitor waits for a start that nobody asks for any more, and Podman may not know of it."""
    engine("create", f"--name={spec.name}", "--network=none", spec.image, "sleep", "900")
    try:
        engine("init", spec.name)
        assert len(_monitored(spec.name)) == 1
        assert _monitored(spec.name[:-1]) == []
        _end_monitor(spec.name)
        assert _monitored(spec.name) == []
    finally:
        engine.remove(spec.name)


@pytest.mark.parametrize("way", ["run", "interact"])
def test_a_container_that_is_removed_under_us_is_one_error(way, spec, host, engine, tmp_path):
    (tmp_path / "data").chmod(0o777)

    def kill() -> None:
        until = time.monotonic() + 240
        while not (tmp_path / "data" / "begun").exists() and time.monotonic() < until:
            time.sleep(0.05)
        engine("kill", spec.name)

    with container.running(spec, runner=host) as running:
        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(HostError, match="ended under us"):
            getattr(running, way)(sh("touch /data/begun; sleep 900"))
        killer.join()


def test_a_killed_client_is_an_error_and_its_command_ends(spec, host, engine):
    mark = f"sleep 87{os.getpid():07}"  # seconds that nobody else waits

    def kill() -> None:
        until = time.monotonic() + 240
        while not (clients := _clients(engine, spec.name, mark)) and time.monotonic() < until:
            time.sleep(0.05)
        for pid in clients:
            os.kill(pid, signal.SIGKILL)

    with container.running(spec, runner=host) as running:
        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(HostError, match="its client ended by signal 9"):
            running.interact(sh(mark))
        killer.join()
        assert not called(mark)


def _clients(engine, name: str, mark: str) -> list[int]:
    """The engine's clients that carry a command into a container."""
    found = called(mark).items()
    return [pid for pid, words in found if Path(words[0]).name == engine.kind and name in words]


@pytest.mark.parametrize("remember", [True, False])
def test_an_image_is_asked_where_the_cache_cannot_or_shall_not_be_written(
    remember, spec, host, engine, tmp_path
):
    (tmp_path / "file").touch()
    cache = tmp_path / ("file" if remember else "new") / "cache"  # which root cannot make either
    there = set(tmp_path.iterdir())
    spec = replace(spec, folder=cache / container.PLACE / spec.run, user=User(uid=0, gid=0))
    facts = contents.ask(spec, "sha256:0", cache=cache, runner=host, remember=remember)
    assert facts.interpreters
    with contents.entered(spec, runner=host, remember=remember) as inside:
        assert Programs(runner=inside).has("sh")
    assert set(tmp_path.iterdir()) == there
    assert spec.name not in engine.containers()
