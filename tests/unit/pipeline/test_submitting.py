"""What is submitted to Slurm waits for what has not ended, whatever the controller believes."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest

from rocwheel.ledger.nights import Begun, Cell, Ended, NightPlan, Nights
from rocwheel.model import timestamp
from rocwheel.pipeline.cell import Worker
from rocwheel.pipeline.slurm import SlurmScheduler
from rocwheel.process import HostRunner
from rocwheel.store.opening import open_store
from rocwheel.verdict import State

CELLS = (
    Cell(name="build", kind="build", argv=("dist_wheels",)),
    Cell(name="stage", kind="stage", argv=("stage",), after=("build",)),
)


class Controller:
    """Slurm's answers; a real controller cannot be killed at will between two of its saves."""

    def __init__(self) -> None:
        self.runs: list[str] = []  # tasks by the name of their job
        self.submitted: list[tuple[str, ...]] = []

    def capture(self, command) -> str:
        if command.argv[0] == "sbatch":
            self.submitted.append(command.argv)
            return f"{len(self.submitted)}\n"
        if command.argv[0] == "sinfo":
            return "normal|(null)\n"
        tasks = any("%T" in word for word in command.argv)
        return "".join(f"{task}|RUNNING|None\n" for task in self.runs) if tasks else ""


@pytest.mark.parametrize("ended", [False, True])
def test_no_job_waits_for_one_that_ended_but_that_slurm_shows_as_running(tmp_path, console, ended):
    now = timestamp(datetime.now(tz=timezone.utc))
    nights, slurm = Nights(open_store((tmp_path / "store").as_uri())), Controller()
    nights.add(
        NightPlan(night="n", made=now, by="me", tool="1", target=(), recipes=(), cells=CELLS)
    )
    worker = Worker(
        runner=HostRunner({}), program=("rocwheel",), host="h", engine="slurm", job="",
        scratch=tmp_path, cache=tmp_path, console=console,
        now=lambda: datetime.now(tz=timezone.utc),
    )  # fmt: skip
    engine = SlurmScheduler(
        nights=nights, night="n", worker=worker, runner=slurm, target=(), most=0,
        logs=Path(tmp_path / "logs"),
    )  # fmt: skip
    build, _ = engine.submit()
    slurm.runs = [f"{build.token}_0"]  # of the other, saved later, it knows nothing any more
    plan = nights.plan("n")[1]
    said = {"cell": "build", "plan": plan, "host": "h", "engine": "slurm", "time": now}
    number = nights.begin("n", Begun(token="t", job=f"{build.job}_0", **said))
    if ended:
        nights.end(
            "n", number, Ended(state=State.PASS, reason="", began=now, milliseconds=1, **said)
        )
    (again,) = engine.submit()
    assert again.cells == ("stage",)
    waits = [word for word in slurm.submitted[-1] if word.startswith("--dependency")]
    assert waits == ([] if ended else [f"--dependency=afterany:{build.job}"])
