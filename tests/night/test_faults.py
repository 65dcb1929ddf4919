"""Nights under fire: every storage request fails once, and no attempt is lost or forgotten.

The full campaign: `ROCWHEEL_CAMPAIGN=full python3 tests/run.py tests/night/test_faults.py`.
Without that a spread of points is taken.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from itertools import count
from pathlib import Path

import pytest
from support.faults import KINDS, Fault
from support.tiers import merge_tries

from rocwheel import __version__
from rocwheel.base import home
from rocwheel.base.console import silent
from rocwheel.base.errors import RocwheelError
from rocwheel.base.here import Here
from rocwheel.base.process import HostRunner
from rocwheel.base.store import Options
from rocwheel.base.store.opening import open_store
from rocwheel.base.versions import timestamp
from rocwheel.night import standing
from rocwheel.night.cell import Signals, Worker
from rocwheel.night.local import LocalScheduler
from rocwheel.release.ledger.nights import Cell, NightPlan, Nights

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.xdist_group("seaweedfs"),
]
FULL = os.environ.get("ROCWHEEL_CAMPAIGN") == "full"
ROOT = Path(__file__).parents[2]
QUICK = Options(attempts=1, read_seconds=240, connect_seconds=60, connections=4)
# plays what a cell runs; everything else is ours
PLAYER = """
import json, os, sys
if sys.argv[1] != "play":
    from rocwheel.cli import main
    raise SystemExit(main(sys.argv[1:]))
with open(sys.argv[3], "a") as file:
    file.write(sys.argv[2] + "\\n")
print(json.dumps({"state": sys.argv[2], "reason": "played"}))
raise SystemExit({"pass": 0, "fail": 22}[sys.argv[2]])
"""


def now() -> datetime:
    return datetime.now(tz=timezone.utc)


def points(total: int, number: int, shift: int) -> Iterator[int]:
    """Which requests fail: all in the campaign, else a few spread over them."""
    step = 1 if FULL else max(1, total // number)
    yield from range(1 + (0 if FULL else shift % step), total + 1, step)


class Stage:
    """A store behind a proxy, a player, and as many nights as one likes."""

    def __init__(self, folder: Path, url: str, faults) -> None:
        self.faults, self.url, self._folder, self._names = faults, url, folder, count(1)
        self.nights = Nights(open_store(url, QUICK))
        self.nights.store.abilities()
        (folder / "player.py").write_text(PLAYER)
        env = {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'build'}:{ROOT}",
            "XDG_CACHE_HOME": str(folder),
        }
        here = Here(
            environ=env, cwd=folder, cache=folder, home=home.find(None), console=silent(),
            runner=HostRunner(env), program=(sys.executable, str(folder / "player.py")),
        )  # fmt: skip
        self.worker = Worker(here=here, host="here", engine="local")

    def night(self, **plays: str) -> str:
        """A stored night: each cell is one play, and waits for the end of the one before."""
        name = f"night-{next(self._names)}"
        made = []
        for cell, play in plays.items():
            argv = ("play", play, str(self.played(name, cell)))
            before = (made[-1].name,) if made else ()
            made.append(Cell(name=cell, kind="gate", argv=argv, settled=before, limit=60))
        plan = NightPlan(
            night=name, made=timestamp(now()), by="me", tool=__version__,
            target=(f"--store={self.url}",), recipes=(), cells=tuple(made), attempts=3,
        )  # fmt: skip
        self.faults.arm(None)
        self.nights.add(plan)
        return name

    def played(self, night: str, cell: str) -> Path:
        return self._folder / f"{night}.{cell}"

    def starts(self, night: str, cell: str) -> int:
        file = self.played(night, cell)
        return len(file.read_text().splitlines()) if file.exists() else 0

    def check(self, night: str) -> None:
        """Every start of a command has an attempt, and their numbers have no gap."""
        book = self.nights.book(night)
        for cell in book.plan.cells:
            tries = book.attempts.get(cell.name, ())
            assert [item.number for item in tries] == list(range(1, len(tries) + 1))
            assert self.starts(night, cell.name) <= len(tries), "one ran and nobody knows"


@pytest.fixture
def stage(tmp_path, front, servers):
    return Stage(tmp_path, servers.fresh_url("seaweedfs"), front.faults)


@pytest.mark.parametrize("kind", merge_tries("lost", of=["500", "lost"]))
def test_an_engine_whose_kth_request_fails_goes_on_or_is_started_again(stage, kind, front):
    """Engine and cells meet the fault, whoever asks first."""

    def engine(night: str) -> dict[str, standing.CellStanding]:
        with (stage.worker.here.cache / "out").open("ab") as output:
            return LocalScheduler(
                nights=Nights(open_store(stage.url, QUICK)), night=night, worker=stage.worker,
                target=(f"--store={stage.url}",), signals=Signals(), output=output,
                workers=2, cpus=2, memory_mib=1 << 20, gpus=0, disk=stage.worker.here.cache,
            ).run()  # fmt: skip

    plays = {"build": "pass", "gate": "fail", "promote": "pass"}
    engine(stage.night(**plays))
    total = len(stage.faults.seen)
    for number in points(total, 2, KINDS.index(kind)):
        night = stage.night(**plays)
        stage.faults.arm(Fault(number, kind, sticky=False))
        with suppress(RocwheelError):
            engine(night)
        stage.faults.arm(None)
        stage.check(night)
        found = engine(night)
        stage.check(night)
        assert {name: item.word for name, item in found.items()} == plays, number
        ends = stage.nights.book(night).attempts
        assert all(item.ended for items in ends.values() for item in items), "none is forgotten"
