"""What ends a cell, and what refuses to begin one."""

from __future__ import annotations

import os
import socket
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from rocwheel import __version__
from rocwheel.base.console import silent
from rocwheel.base.process import HostRunner
from rocwheel.base.store.file import FileStore
from rocwheel.base.versions import timestamp
from rocwheel.night import cell as cells
from rocwheel.night import standing
from rocwheel.records.verdict import State
from rocwheel.release.ledger.nights import Begun, Cell, NightPlan, Nights, Order, Phase

NAME = "gate.jax.gfx90a.3.12.unit"


def worker(folder: Path, **fields) -> cells.Worker:
    values = {
        "runner": HostRunner(dict(os.environ)), "program": ("true",), "host": "h",
        "engine": "github", "job": "", "scratch": folder / "scratch", "cache": folder / "cache",
        "console": silent(), "now": lambda: datetime.now(tz=timezone.utc),
    }  # fmt: skip
    return cells.Worker(**{**values, **fields})


def planned(folder: Path, **fields) -> Nights:
    nights = Nights(FileStore(folder / "store"))
    cell = Cell(name=NAME, kind="gate", argv=(), **fields)
    nights.add(
        NightPlan(
            night="one", made=timestamp(datetime.now(tz=timezone.utc)), by="me",
            tool=__version__, target=(), recipes=(), cells=(cell,),
        )
    )  # fmt: skip
    return nights


def begun(nights: Nights, **fields) -> Begun:
    now = timestamp(datetime.now(tz=timezone.utc))
    values = {"token": "other", "host": "elsewhere", "engine": "github", "job": "7"}
    plan = nights.plan("one")[1]
    return Begun(cell=NAME, plan=plan, time=now, **{**values, **fields})


def run(nights: Nights, here: cells.Worker):
    return cells.run(nights, "one", NAME, here, cells.Signals())


def where(nights: Nights) -> standing.CellStanding:
    return standing.stand(nights.book("one"), datetime.now(tz=timezone.utc))[NAME]


def test_a_cell_that_runs_refuses_a_second_attempt_until_a_person_asks_for_one(tmp_path):
    nights = planned(tmp_path)
    nights.begin("one", begun(nights))
    assert run(nights, worker(tmp_path)) is None
    assert len(where(nights).attempts) == 1
    now = timestamp(datetime.now(tz=timezone.utc))
    nights.order("one", Order(action="retry", cell=NAME, by="me", reason="lost", time=now, seen=1))
    assert run(nights, worker(tmp_path)).state is State.PASS


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
    (tmp_path / "scratch").write_text("a file where a folder is to be made, as on a full disk")
    ended = run(nights, worker(tmp_path))
    assert ended.state is State.INFRA
    assert "scratch: File exists" in ended.reason


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


@pytest.mark.parametrize("option", ["--rocm", "--therock-path"])
def test_a_rocm_that_this_host_lacks_is_no_failure_of_the_wheels(tmp_path, option):
    nights = Nights(FileStore(tmp_path / "store"))
    lacking = tmp_path / "rocm"
    cell = Cell(name=NAME, kind="gate", argv=("gate", f"{option}={lacking}"))
    nights.add(
        NightPlan(
            night="one", made=timestamp(datetime.now(tz=timezone.utc)), by="me",
            tool=__version__, target=(), recipes=(), cells=(cell,),
        )
    )  # fmt: skip
    ended = run(nights, worker(tmp_path))
    assert (ended.state, ended.exit_code) == (State.INFRA, 8)
    assert ended.reason == f"{lacking}: no such ROCm on this host"
    lacking.mkdir()
    assert run(nights, worker(tmp_path)).state is State.PASS
