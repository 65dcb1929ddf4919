"""Whose something is: a process of this machine, one that is gone, one that cannot be seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rocwheel
from rocwheel.base.container import claimed
from rocwheel.base.container.leftovers import DAY, LOCK, abandoned, clear, is_alive, owner
from rocwheel.base.errors import HostError


def test_processes_with_one_number_are_distinguished():
    assert is_alive(owner()) is True
    pid, _, rest = owner().partition(":")
    assert is_alive(f"{pid}:1{rest}") is False


def test_one_that_has_ended_is_gone():
    with subprocess.Popen(["sleep", "60"]) as process:
        mark = owner(process.pid)
        assert is_alive(mark) is True
        process.kill()
    assert is_alive(mark) is False


def test_a_process_of_a_job_container_counts_as_unknown():
    """It counts its processes by itself, and its number here is nobody or somebody else."""
    pid, started, boot, _, machine = owner().split(":")
    assert is_alive(f"{pid}:{started}:{boot}:4026539999:{machine}") is None
    assert is_alive(f"{pid}:{started}:another-boot:4026539999:{machine}") is False


def test_a_process_of_another_machine_counts_as_unknown():
    """Two may share a cache by NFS, each started when it was; or one lends its engine's socket."""
    pid, started, _, space, _ = owner().split(":")
    assert is_alive(f"{pid}:{started}:another-boot:{space}:another-one") is None
    assert is_alive("") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a /proc that hides processes")
def test_a_hidden_process_counts_as_unknown():
    """Where users do not see each other's processes, nobody's container is taken for a leftover."""
    with subprocess.Popen(["sleep", "3600"]) as process:
        mark = owner(process.pid)
        process.kill()
    hide = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    ask = "import os, sys; from rocwheel.base.container.leftovers import is_alive;"
    ask += "print(*map(is_alive, sys.argv[1:]));"  # while all of Python can be read, too
    ask += "os.setgid(1234); os.setuid(1234); print(*map(is_alive, sys.argv[1:]))"
    said = subprocess.run(
        ["unshare", "--mount", "sh", "-c", hide, "sh", sys.executable, "-c", ask, owner(), mark],
        env={**os.environ, "PYTHONPATH": str(Path(rocwheel.__file__).parents[1])},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said.split() == ["True", "False", "None", "False"]


def gone(**other: str) -> str:
    """The mark of a process that has ended, or of one that differs in something else."""
    pid, started, boot, space, machine = owner().split(":")
    fields = {"pid": pid, "started": f"1{started}", "boot": boot, "space": space}
    return ":".join((fields | {"machine": machine} | other).values())


def a_folder(place: Path, name: str, mark: str = "", *, age: float = 0.0) -> Path:
    (place / name).mkdir(parents=True)
    if mark:
        (place / f"{name}.owner").symlink_to(mark)
    then = time.time() - age
    os.utime(place / name, (then, then))
    return place / name


def test_only_unused_folders_are_leftovers(tmp_path):
    a_folder(tmp_path, "alive", owner(), age=9 * DAY)
    a_folder(tmp_path, "of-another-machine", gone(boot="x", machine="y"), age=9 * DAY)
    a_folder(tmp_path, "of-a-job-container", gone(space="1"), age=9 * DAY)
    a_folder(tmp_path, "made-by-hand", age=DAY / 2)
    left = [
        a_folder(tmp_path, "gone", gone()),
        a_folder(tmp_path, "forgotten", age=2 * DAY),
        a_folder(tmp_path, "before-a-power-cut", gone(boot="x")),
        tmp_path / "never-made",
    ]
    (tmp_path / "never-made.owner").symlink_to(gone())
    used = {item.name for item in tmp_path.iterdir()}
    used -= {item.name for item in left} | {f"{item.name}.owner" for item in left}
    assert abandoned(tmp_path) == tuple(sorted(left))
    clear(tmp_path)
    assert {item.name for item in tmp_path.iterdir()} == used
    assert abandoned(tmp_path) == ()


def test_the_next_one_clears_away_what_dead_ones_left(tmp_path):
    dead = a_folder(tmp_path, "dead", gone())
    with claimed(tmp_path / "one") as one, claimed(tmp_path / "two") as two:
        assert not dead.exists()
        assert one.is_dir()
        assert two.is_dir()
    assert not list(tmp_path.iterdir())


def test_a_cache_that_takes_no_folder_is_one_error(tmp_path):
    (tmp_path / "file").touch()
    with (
        pytest.raises(HostError, match="file: File exists") as told,
        claimed(tmp_path / "file" / "x"),
    ):
        pass
    assert "--cache-dir" in told.value.hint


# In a process of its own, which has no threads that a fork would lose: a program is killed before
# its first change of a file, before its second, and so on; what it left each time is told.
KILLED = """
import itertools, json, os, signal, sys
from contextlib import suppress
from rocwheel.base.values import replace
from pathlib import Path
from rocwheel.base.container import kept as kept_there
from rocwheel.base.errors import RocwheelError
from rocwheel.base.process import HostRunner
from rocwheel.base.container import EngineKind, ContainerSpec, User, claimed
from rocwheel.base.container.engine import ContainerEngine
from rocwheel.base.container.leftovers import abandoned, clear

CHANGES = {"os.mkdir", "os.symlink", "os.rename", "os.remove", "os.rmdir", "open", "os.utime"}
place = Path(sys.argv[1])
engine = ContainerEngine(
    kind=EngineKind.DOCKER, program="/bin/true", version="27.0", architecture="amd64",
    root=place, rootless=False,
)
spec = ContainerSpec(engine=engine, image="x", run="abc", folder=place / "abc", user=User(uid=1, gid=1))

def run():
    with claimed(spec.folder):
        for name, text in spec.files.items():
            (spec.folder / name).write_text(text)

def kept():
    with suppress(RocwheelError), kept_there(replace(spec, keep_minutes=30), runner=HostRunner({})):
        pass

program = globals()[sys.argv[2]]

for moment in itertools.count():
    pid = os.fork()
    if pid == 0:
        left = itertools.count(moment, -1)
        def look(event, _):
            if event in CHANGES and next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(look)
        program()
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != -signal.SIGKILL:
        sys.exit(status)
    told = {"left": [str(item.relative_to(place)) for item in place.rglob("*")]}
    told["found"] = [item.name for item in abandoned(place)]
    for item in (place, *place.rglob("*")):
        if item.exists():
            os.utime(item, (0, 0))
    told["found later"] = [item.name for item in abandoned(place)]
    clear(place)
    told["still"] = [str(item.relative_to(place)) for item in place.rglob("*")]
    print(json.dumps(told))
"""


def killed(place: Path, program: str) -> list[dict]:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, place, program],
        env={**os.environ, "PYTHONPATH": str(Path(rocwheel.__file__).parents[1])},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_whenever_a_run_is_killed_its_folder_is_found(tmp_path):
    place = tmp_path / "containers"
    moments = killed(place, "run")
    for item in moments:
        left = {*item["left"]}
        assert all(name.startswith(("abc/", "abc.owner")) or name == "abc" for name in left)
        assert item["found"] == (["abc"] if left else [])
        assert item["still"] == []
    assert any("abc/group" in item["left"] for item in moments)
    assert any(item["left"] == ["abc.owner"] for item in moments)
    assert not list(place.iterdir())


def test_whenever_one_that_is_kept_is_killed_its_folder_is_found_a_day_later(tmp_path):
    moments = killed(tmp_path / "containers", "kept")
    for item in moments:
        names = {name for name in item["left"] if name != LOCK and "/" not in name}
        assert item["found"] == []
        assert item["found later"] == sorted(names)
        assert {*item["still"]} <= {LOCK}
    assert any("abc/alive" in item["left"] for item in moments)
