"""What a `kill -9` leaves with an engine and in the cache: who tells it and who removes it agree."""

from __future__ import annotations

import io
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from support.engines import BASE
from support.processes import called

from rocwheel.base import container
from rocwheel.base.container import ContainerSpec, User
from rocwheel.base.container.leftovers import owner
from rocwheel.base.values import replace
from rocwheel.image import build as building
from rocwheel.image.registry import inspect

pytestmark = [
    pytest.mark.integration,
    pytest.mark.needs("dockerd", "podman", "mmdebstrap"),
    pytest.mark.xdist_group("containers"),
]

ROOT = Path(__file__).parents[3]
# A build of something on a base, killed with all its processes; what says `begun` is in a step.
KILLED = """
import os, signal, subprocess, sys
from pathlib import Path
from rocwheel.base import container
from rocwheel.image import build as building
from rocwheel.image.registry import inspect
from rocwheel.base.process import HostRunner, base_env
kind, base, context, scratch = sys.argv[1:]
runner = HostRunner(base_env(os.environ))
engine = container.ask(container.EngineKind(kind), environ=os.environ, runner=runner)
found = inspect(base, engine=engine, runner=runner)
folder = Path(scratch) / "context-killed"
with container.claimed(folder), building.named(found, engine=engine, runner=runner) as name:
    print(name, flush=True)
    if context:
        build = [kind, "build", "--network=none", f"--build-arg=BASE={name}", context]
        with subprocess.Popen(build, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as client:
            for line in client.stdout:
                if b"begun" in line and b"echo" not in line:
                    break
            client.kill()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def environ(engine, tmp_path):
    """Of a user with a cache of their own."""
    return {**os.environ, **engine.env, "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture(autouse=True)
def pruned(asked, host, tmp_path):
    """What an earlier kill left in the engine's storage goes first: a test counts its own."""
    cache = tmp_path / "cache" / "rocwheel"
    left = container.leftovers(asked, cache=cache, runner=host)
    container.remove(asked, left, cache=cache, runner=host)


@pytest.fixture
def spec(asked, environ):
    run = f"test-{random.randrange(10**9)}"
    return ContainerSpec(
        engine=asked, image=BASE, run=run, folder=scratch(environ) / run,
        user=User(uid=1234, gid=1234),
    )  # fmt: skip


@pytest.fixture
def unnamed(engine, tmp_path):
    """An image that is known by its id alone."""
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        member = tarfile.TarInfo("file")
        member.size = 16
        archive.addfile(member, io.BytesIO(random.randbytes(16)))
    identity = engine("import", str(tmp_path / "root.tar")).splitlines()[-1]
    yield identity
    engine("rmi", identity, check=False)


def scratch(environ) -> Path:
    return Path(environ["XDG_CACHE_HOME"], "rocwheel", container.PLACE)


def kill_a_build(engine, environ, base: str, context: Path | str = "") -> str:
    """The name that it gave its base."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED, engine.kind, base, str(context), scratch(environ)],
        env={**environ, "PYTHONPATH": str(ROOT / "build")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout.strip()


def tool(environ, *words: str) -> dict:
    done = subprocess.run(
        [sys.executable, str(ROOT / "build" / "ci_build"), "--json", *words],
        env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in ({0, 8} if words[0] == "doctor" else {0}), done.stderr
    return json.loads(done.stdout)


def told(engine, environ) -> list[str]:
    """What `doctor` says is left over."""
    (row,) = [item for item in tool(environ, "doctor")["checks"] if item["name"] == engine.kind]
    names = row["found"].partition(", left over: ")[2].split()
    assert bool(names) == row["remedy"].endswith(
        f"ci_build image prune --container-engine {engine.kind}`"
    )
    return names


def prune(engine, environ, *words: str) -> list[str]:
    return tool(environ, "image", "prune", f"--container-engine={engine.kind}", *words)["removed"]


def names(engine) -> set[str]:
    listed = {*engine("images", "--format", "{{.Repository}}:{{.Tag}}").split()}
    return {name for name in listed if "<none>" not in name}


def test_a_base_that_has_no_other_name_outlives_what_is_made_on_it(asked, host, engine, unnamed):
    base = inspect(unnamed, engine=asked, runner=host)
    with building.named(base, engine=asked, runner=host) as name:
        assert name in names(engine)
    assert name not in names(engine)
    assert inspect(unnamed, engine=asked, runner=host) == base


def test_a_base_that_has_no_other_name_outlives_the_pruning(asked, host, engine, unnamed, environ):
    base = inspect(unnamed, engine=asked, runner=host)
    before = names(engine)
    left = kill_a_build(engine, environ, unnamed)
    assert names(engine) == before | {left}
    assert left in prune(engine, environ)
    assert names(engine) == before
    assert inspect(unnamed, engine=asked, runner=host) == base
    assert prune(engine, environ) == []


def test_doctor_tells_what_prune_removes_and_nothing_of_who_is_at_work(host, engine, spec, environ):
    engine("tag", BASE, "rocwheel-test/strangers:1")
    stranger = engine("create", BASE, "true")
    dead = replace(spec, run=f"{spec.run}-dead", owner=owner().replace(":", ":1", 1))
    base = inspect(BASE, engine=spec.engine, runner=host)
    left = kill_a_build(engine, environ, BASE)
    folder = scratch(environ) / "context-killed"
    try:
        assert folder.is_dir()
        host.run(dead.take_name)
        with building.named(base, engine=spec.engine, runner=host) as used:
            assert {left, used} < names(engine)
            found = told(engine, environ)
            assert sorted(found) == sorted([left, dead.name, str(folder)])
            assert prune(engine, environ, "--dry-run") == found
            assert told(engine, environ) == found
            with container.running(spec, runner=host):  # which clears the folder away by itself
                found.remove(str(folder))
                assert not folder.exists()
                assert told(engine, environ) == found
                assert prune(engine, environ) == found
                assert spec.name in engine.containers()
                assert spec.folder.is_dir()
            assert used in names(engine)
            assert told(engine, environ) == []
        assert {left, used} & names(engine) == set()
        assert any("rocwheel-test/strangers:1" in name for name in names(engine))
        assert inspect(BASE, engine=spec.engine, runner=host).identity == base.identity
        assert engine("inspect", "--type=container", "--format={{.Id}}", stranger) == stranger
    finally:
        engine.remove(stranger)
        engine("rmi", "rocwheel-test/strangers:1")
    assert not list(scratch(environ).glob("[!k]*"))


def test_where_a_killed_build_ran_its_steps_is_pruned(engine, environ, tmp_path):
    """Podman's clients keep that in its storage; a daemon clears it away itself."""
    seconds = f"86{random.randrange(10**7):07}"  # that nobody else waits
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(
        f"ARG BASE\nFROM $BASE\nRUN echo begun && exec sleep {seconds}\n"
    )
    try:
        # where Podman keeps a step's settings until its end
        left = kill_a_build(engine, environ | {"TMPDIR": str(tmp_path)}, BASE, context)
        found = told(engine, environ)
        steps = [name for name in found if name.endswith("-working-container")]
        assert len(steps) == (1 if engine.kind == "podman" else 0)
        assert {left, *steps} <= {*found}
        assert prune(engine, environ) == found
        assert told(engine, environ) == []
        if engine.kind == "podman":
            assert engine("ps", "--all", "--external", "--quiet") == ""
    finally:  # what it had begun
        for pid in called(f"sleep {seconds}"):
            os.kill(pid, signal.SIGKILL)
