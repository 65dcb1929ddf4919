"""What ends a cell, and what refuses to begin one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from rocwheel import __version__
from rocwheel.base import errors, home
from rocwheel.base.console import silent
from rocwheel.base.here import Here
from rocwheel.base.process import HostRunner
from rocwheel.base.store.file import FileStore
from rocwheel.base.versions import timestamp
from rocwheel.night import cell as cells
from rocwheel.night import standing
from rocwheel.records.verdict import State
from rocwheel.release.ledger.nights import (
    Begun,
    CauseClass,
    Cell,
    Needs,
    NightPlan,
    Nights,
    Phase,
)

NAME = "gate.jax.gfx90a.3.12.unit"


def worker(folder: Path, *, program: tuple[str, ...] = ("true",), **fields) -> cells.Worker:
    here = Here(
        environ=os.environ, cwd=folder, cache=folder / "cache", home=home.find(None),
        console=silent(), runner=HostRunner(dict(os.environ)), program=program,
    )  # fmt: skip
    return cells.Worker(**{"here": here, "host": "h", "engine": "github", **fields})


def playing(folder: Path, script: str) -> cells.Worker:
    return worker(folder, program=("sh", "-c", script, "rocwheel"))


def planned(folder: Path, *names: str, **fields) -> Nights:
    nights = Nights(FileStore(folder / "store"))
    said = {"kind": "gate", "argv": (), **fields}
    nights.add(
        NightPlan(
            night="one", made=timestamp(datetime.now(tz=timezone.utc)), by="me", tool=__version__,
            target=(), recipes=(), cells=tuple(Cell(name=n, **said) for n in names or (NAME,)),
        )
    )  # fmt: skip
    return nights


def begun(nights: Nights, **fields) -> Begun:
    now = timestamp(datetime.now(tz=timezone.utc))
    values = {"cell": NAME, "token": "other", "host": "elsewhere", "engine": "github", "job": "7"}
    return Begun(plan=nights.plan("one")[1], time=now, **{**values, **fields})


def run(nights: Nights, here: cells.Worker):
    return cells.run(nights, "one", NAME, here, cells.Signals())


def where(nights: Nights) -> standing.CellStanding:
    return standing.stand(Nights(nights.store).book("one"))[NAME]


def test_a_cell_that_runs_refuses_a_second_attempt(tmp_path):
    nights = planned(tmp_path)
    nights.begin("one", begun(nights))
    assert run(nights, worker(tmp_path)) is None
    assert len(where(nights).attempts) == 1


def test_of_two_that_begin_at_once_the_second_begins_nothing(tmp_path):
    nights = planned(tmp_path)
    assert nights.begin("one", begun(nights, token="a"), known=0) == 1
    assert nights.begin("one", begun(nights, token="b"), known=0) == 0
    assert nights.begin("one", begun(nights, token="a"), known=0) == 1, "an answer that was lost"
    assert len(where(nights).attempts) == 1


def test_an_earlier_attempt_of_the_same_job_was_requeued(tmp_path):
    nights = planned(tmp_path)
    nights.begin("one", begun(nights, job="12_3"))
    assert run(nights, worker(tmp_path, job="12_3")).state is State.PASS
    assert [item.ended.state for item in where(nights).attempts] == [State.INFRA, State.PASS]


def test_a_disk_that_cannot_be_written_is_infra_with_its_reason(tmp_path):
    nights = planned(tmp_path)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "nightly").write_text("a file where a folder is to be made")
    ended = run(nights, worker(tmp_path))
    assert ended.state is State.INFRA
    assert "nightly: File exists" in ended.reason


def test_a_command_that_says_nothing_still_leaves_a_reason(tmp_path):
    nights = planned(tmp_path)
    program = ("sh", "-c", "echo the last line of its log >&2; exit 41")
    ended = run(nights, worker(tmp_path, program=program))
    assert ended.state is State.FAIL
    assert ended.reason
    assert where(nights).phase is Phase.ENDED


@pytest.mark.needs("git")
def test_a_git_server_that_hangs_ends_with_the_limit_of_the_cell(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        where_ = f"http://127.0.0.1:{server.getsockname()[1]}/jax.git"
        nights = planned(tmp_path, repository=where_, commit="a" * 40, limit=2)
        started = time.monotonic()
        ended = run(nights, worker(tmp_path))
    assert ended.state is State.TIMEOUT
    assert where_ in ended.reason
    assert time.monotonic() - started < 60


@pytest.mark.needs("git")
def test_a_repository_that_cannot_be_reached_is_no_failure_of_the_wheels(tmp_path):
    nights = planned(tmp_path, repository=(tmp_path / "gone").as_uri(), commit="a" * 40)
    run(nights, worker(tmp_path))
    assert where(nights).state is State.INFRA
    assert "gone" in where(nights).reason


@pytest.mark.parametrize("option", ["--rocm", "--therock-path"])
def test_a_rocm_that_this_host_lacks_is_no_failure_of_the_wheels(tmp_path, option):
    lacking = tmp_path / "rocm"
    nights = planned(tmp_path, argv=("gate", f"{option}={lacking}"))
    ended = run(nights, worker(tmp_path))
    assert (ended.state, ended.exit_code) == (State.INFRA, 8)
    assert ended.reason == f"{lacking}: no such ROCm on this host"
    lacking.mkdir()
    assert run(nights, worker(tmp_path)).state is State.PASS


def silent_for(nights: Nights, minutes: float) -> None:
    """Let the store say that the attempt gave no sign for so long."""
    for file in Path(nights.store.root, nights.key("one", f"cells/{NAME}")).glob("1.*"):
        then = file.stat().st_mtime - 60 * minutes
        os.utime(file, (then, then))


def test_a_lost_attempt_is_followed_by_another_and_ends_itself_when_it_wakes_up(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(cells, "RENEWED", 0.2)
    nights = planned(tmp_path)
    sleeper = worker(tmp_path / "a", program=("sleep", "60", "#"))
    began, done = threading.Event(), []
    suspended, wake = Nights(nights.store), threading.Event()
    real = suspended.renew

    def asleep(*lease) -> bool:
        real(*lease)
        began.set()
        wake.wait(60)
        return real(*lease)

    monkeypatch.setattr(suspended, "renew", asleep)

    def attempt() -> None:
        try:
            cells.run(suspended, "one", NAME, sleeper, cells.Signals())
        except errors.InterruptError as exc:
            done.append(str(exc))

    thread = threading.Thread(target=attempt)
    thread.start()
    assert began.wait(60)
    assert run(nights, worker(tmp_path / "b")) is None, "it is alive"
    silent_for(nights, 4)
    assert where(nights).word == "lost"
    ended = run(Nights(nights.store), worker(tmp_path / "b"))
    assert ended.state is State.PASS
    wake.set()
    thread.join(60)
    assert done == [f"{NAME}: it was silent for minutes, and another attempt began"]
    assert where(nights).passed


def test_who_finds_an_attempt_lost_while_it_renews_its_lease_begins_nothing(tmp_path):
    nights = planned(tmp_path)
    nights.begin("one", begun(nights))
    assert nights.renew("one", NAME, 1, "other")
    silent_for(nights, 4)
    assert where(nights).word == "lost"
    late = nights.book("one")
    assert late.attempts[NAME][0].is_lost
    assert nights.renew("one", NAME, 1, "other"), "it is alive after all"
    assert not nights.take_over("one", NAME, 1, "mine")
    silent_for(nights, 4)
    assert nights.take_over("one", NAME, 1, "mine")
    assert where(nights).word == "lost", "it never said how it ended, and has no lease"
    assert not nights.renew("one", NAME, 1, "other")


@pytest.mark.parametrize(
    ("said", "code", "state", "cause"),
    [
        ("x.tar.gz: SHA-256 is 0123456789ab, not ba9876543210", 4, State.FAIL, CauseClass.INPUTS),
        ("https://rocm/: no answer", 4, State.INFRA, CauseClass.INPUTS),
        ("s3://b/a.whl: 7078 bytes are stored, not 7081", 7, State.FAIL, CauseClass.WHEELS),
        ("s3://b: no answer", 7, State.INFRA, CauseClass.STORE),
        ("file:///s/v2: No space left on device", 7, State.INFRA, CauseClass.STORE),
        ("/scratch: No space left on device", 8, State.INFRA, CauseClass.MACHINE),
        ("no room", 8, State.INFRA, CauseClass.MACHINE),
        ("3 failed", State.FAIL.exit_code, State.FAIL, CauseClass.TESTS),
        ("hipErrorNoDevice", State.CRASH.exit_code, State.INFRA, CauseClass.MACHINE),
    ],
)
def test_what_a_failure_tells_of_decides_whether_it_is_tried_again(
    tmp_path, said, code, state, cause
):
    nights = planned(tmp_path)
    document = json.dumps({"error": {"message": said}})
    ended = run(nights, worker(tmp_path, program=("sh", "-c", f"echo '{document}'; exit {code}")))
    assert (ended.state, ended.cause, ended.reason) == (state, cause, said)
    assert (where(nights).phase is Phase.ENDED) is (state is State.FAIL)


def test_a_gpu_that_hangs_is_the_machines_fault_and_not_that_of_the_tests_it_killed(tmp_path):
    nights = planned(tmp_path)
    line = "HW Exception by GPU node-4 (Agent handle: 0x55d) reason :GPU Hang"
    script = f"echo '{line}' >&2; echo '{{\"reason\": \"a_test.py::test_b: SIGABRT\"}}'; exit 23"
    ended = run(nights, worker(tmp_path, program=("sh", "-c", script)))
    assert (ended.state, ended.cause) == (State.INFRA, CauseClass.MACHINE)
    assert ended.reason == line


def test_a_build_that_could_not_be_staged_is_staged_by_the_next_attempt_and_not_built_again(
    tmp_path,
):
    """It was killed, or the store was away, in the middle of an upload."""
    stages = (("stage", "{wheelhouse}"),)
    nights = planned(tmp_path, kind="build", argv=("build", "{wheelhouse}"), stages=stages)
    here = playing(
        tmp_path,
        f"""
echo $1 >> {tmp_path}/ran
case $1 in
build) mkdir $2; echo x > $2/manifest.json; echo '{{}}';;
stage) test -e $2/manifest.json || exit 9
       test -e {tmp_path}/there && echo '{{"manifest": "abc"}}' && exit 0
       echo '{{"error": {{"message": "the store is away"}}}}'; exit 7;;
esac
""",
    )
    first = run(nights, here)
    assert (first.state, first.cause, first.manifest) == (State.INFRA, CauseClass.STORE, "")
    (tmp_path / "there").touch()
    assert run(Nights(nights.store), here).manifest == "abc"
    assert (tmp_path / "ran").read_text().split() == ["build", "stage", "stage"]
    assert not list((tmp_path / "cache" / "nightly" / "built").iterdir())


@pytest.mark.parametrize("then", ["", "mkdir store"])
def test_a_build_does_not_stage_into_a_folder_that_does_not_hold_its_night(
    tmp_path, monkeypatch, then
):
    """The store comes back two seconds after it went away."""
    monkeypatch.setattr(cells, "SOON", 0.2)
    stages = (("stage", "{wheelhouse}"),)
    nights = planned(tmp_path, kind="build", argv=("build", "{wheelhouse}"), stages=stages)
    here = playing(
        tmp_path,
        f"""
cd {tmp_path}
case $1 in
build) mkdir $2; echo x > $2/manifest.json; mv store gone; {then or ":"}
       (sleep 2; rm -d store; mv gone store) & echo '{{}}';;
stage) mkdir -p store/v2; echo '{{"manifest": "abc"}}';;
esac
""",
    )
    first = run(nights, here)
    assert (first.state, first.cause, first.manifest) == (State.INFRA, CauseClass.STORE, "")
    assert "went away" in first.reason
    assert [path.name for path in (tmp_path / "store").iterdir() if path.name[0] != "."] == [
        "_rocwheel"
    ]
    assert run(Nights(nights.store), here).manifest == "abc"


def test_an_end_is_written_once_the_store_is_back(tmp_path, monkeypatch):
    """It was away for minutes when the work of hours was done."""
    nights = planned(tmp_path)
    real, left = nights.store.create, [3]

    def create(key, *rest, **how):
        if "begun" not in key and left[0]:
            left[0] -= 1
            raise errors.StoreError(f"{key}: no answer", hint="")
        return real(key, *rest, **how)

    monkeypatch.setattr(nights.store, "create", create)
    monkeypatch.setattr(cells, "SOON", 0.05)
    assert run(nights, worker(tmp_path)).state is State.PASS
    assert left == [0]
    assert where(nights).passed


def test_a_store_without_room_ends_a_cell_at_once_and_the_room_of_its_lease_is_its_ends(
    tmp_path, monkeypatch
):
    nights, real = planned(tmp_path), FileStore._scratch
    lease = Path(nights.store.root, nights.lease("one", NAME, 1))

    def scratch(store, key, *rest):
        if lease.exists():
            raise errors.FullError(f"{store.locate(key)}: No space left on device", hint="")
        return real(store, key, *rest)

    monkeypatch.setattr(cells, "RENEWED", 0.2)
    monkeypatch.setattr(FileStore, "_scratch", scratch)
    started = time.monotonic()
    ended = run(nights, worker(tmp_path, program=("sh", "-c", "sleep 60")))
    assert (ended.state, ended.cause, ended.log) == (State.INFRA, CauseClass.STORE, "")
    assert time.monotonic() - started < 30
    assert where(nights).last == ended


def test_a_folder_that_went_away_is_not_made_again(tmp_path):
    nights = planned(tmp_path)
    (tmp_path / "store").rename(tmp_path / "gone")
    for act in (nights.quarantined, lambda: nights.put_summary("one", b"{}")):
        with pytest.raises(errors.StoreError, match="the folder went away"):
            act()
    assert not (tmp_path / "store").exists()
    (tmp_path / "gone").rename(tmp_path / "store")
    assert run(nights, worker(tmp_path)).state is State.PASS


@pytest.mark.needs("git")
def test_a_cell_may_need_a_commit_of_xla_beside_one_of_jax(tmp_path):
    line = ["git", "-C", str(tmp_path / "xla"), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "xla").mkdir()
    (tmp_path / "xla" / "file").write_text("")
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "a"], ["rev-parse", "HEAD"]):
        commit = subprocess.run([*line, *words], check=True, capture_output=True, text=True).stdout
    own = ((tmp_path / "xla").as_uri(), commit.strip())
    nights = planned(tmp_path, argv=("cell", "--xla-source-dir={xla}"), xla=own)
    here = worker(tmp_path, program=("sh", "-c", 'cat "${1#*=}/file"'))
    assert run(nights, here).state is State.PASS


@pytest.mark.parametrize(
    ("kind", "cause", "held_back"),
    [("gate", None, True), ("gate", CauseClass.STORE, False), ("image", None, False)],
)
def test_what_says_nothing_of_gpus_takes_no_gates_from_a_host(tmp_path, kind, cause, held_back):
    """A host without an engine, a registry that is away, or a store that is full."""
    names = [f"{kind}.{number}" for number in range(3)]
    nights, here = planned(tmp_path, *names, kind=kind, needs=Needs(gpus=1)), worker(tmp_path)
    for name in names:
        attempt = begun(nights, cell=name, token=name, host="h")
        why = {"state": State.INFRA, "cause": cause, "reason": "docker: no such program"}
        nights.end("one", nights.begin("one", attempt), cells.end_of(attempt, here, 0, **why))
    cells.quarantine(nights, "one", here)
    assert set(nights.quarantined()) == ({"h"} if held_back else set())
