"""What is submitted to Slurm waits for what has not ended, whatever the controller believes."""

from __future__ import annotations

import shutil
import time
from datetime import datetime, timezone

import pytest

from rocwheel.base.errors import CommandError, HostError
from rocwheel.base.store.opening import open_store
from rocwheel.base.versions import timestamp
from rocwheel.night.cell import Worker
from rocwheel.night.slurm import SlurmScheduler
from rocwheel.records.verdict import State
from rocwheel.release.ledger.nights import Begun, Cell, Ended, NightPlan, Nights

CELLS = (
    Cell(name="build", kind="build", argv=("dist_wheels",)),
    Cell(name="stage", kind="stage", argv=("stage",), after=("build",)),
)


class Controller:
    """Slurm's answers; a real controller cannot be killed at will between two of its saves."""

    def __init__(self) -> None:
        self.runs: list[str] = []  # tasks by the name of their job
        self.submitted: list[tuple[str, ...]] = []
        self.once: dict[str, str] = {}  # numbers by the name of the job, each said once
        self.refuses = ""  # what sbatch says in place of a number

    def capture(self, command) -> str:
        if command.argv[0] == "sbatch" and self.refuses:
            raise CommandError("exit status 1: sbatch", hint="", detail=self.refuses)
        if command.argv[0] == "sbatch":
            self.submitted.append(command.argv)
            return f"{len(self.submitted)}\n"
        if command.argv[0] == "sinfo":
            return "normal|(null)\n"
        if any("%T" in word for word in command.argv):
            return "".join(f"{task}|1|RUNNING|None\n" for task in self.runs)
        names = [word.removeprefix("--name=") for word in command.argv if "--name=" in word]
        return self.once.pop(names[0], "") if names else ""


def client(tmp_path, console, slurm: Controller) -> tuple[Nights, SlurmScheduler]:
    now = timestamp(datetime.now(tz=timezone.utc))
    nights = Nights(open_store((tmp_path / "store").as_uri()))
    nights.add(
        NightPlan(night="n", made=now, by="me", tool="1", target=(), recipes=(), cells=CELLS)
    )
    worker = Worker(
        runner=slurm, program=("rocwheel",), host="h", engine="slurm", job="",
        scratch=tmp_path, cache=tmp_path, console=console,
        now=lambda: datetime.now(tz=timezone.utc),
    )  # fmt: skip
    engine = SlurmScheduler(
        nights=nights, night="n", worker=worker, target=(),
    )  # fmt: skip
    return nights, engine


@pytest.mark.parametrize("ended", [False, True])
def test_no_job_waits_for_one_that_ended_but_that_slurm_shows_as_running(tmp_path, console, ended):
    now, slurm = timestamp(datetime.now(tz=timezone.utc)), Controller()
    nights, engine = client(tmp_path, console, slurm)
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


def test_a_job_that_another_client_is_submitting_is_waited_for_by_its_number(tmp_path, console):
    """Slurm has the job since a moment ago; sbatch's answer to that client is not written down."""
    slurm = Controller()
    nights, engine = client(tmp_path, console, slurm)
    build, _ = engine.submit()
    kept = nights.key("n", f"slurm/{build.token}.1.json")
    for key in [info.key for info in nights.store.keys(nights.key("n", "slurm/"))]:
        if key != kept:
            nights.store.delete(key)
    slurm.runs = [f"{build.token}_0"]
    (again,) = engine.submit()
    assert again.cells == ("stage",)
    assert "--dependency=afterany:1" in slurm.submitted[-1]


def test_a_client_takes_the_number_that_it_saw_though_slurm_is_silent_afterwards(tmp_path, console):
    slurm = Controller()
    nights, engine = client(tmp_path, console, slurm)
    first = engine.submit()
    for item in first:
        nights.store.delete(nights.key("n", f"slurm/{item.token}.{item.job}.job"))
    slurm.once = {item.token: f"{item.job}\n" for item in first}
    assert [item.job for item in engine.submit()] == ["1", "2"]
    assert len(slurm.submitted) == len(first), "nothing is submitted twice"


def test_what_slurm_refused_may_be_submitted_again_at_once(tmp_path, console):
    """Not after the five minutes for which a claim without an answer holds."""
    slurm = Controller()
    _, engine = client(tmp_path, console, slurm)
    slurm.refuses = "sbatch: error: Batch job submission failed: Invalid account\n"
    for _ in range(2):
        with pytest.raises(HostError, match="Invalid account"):
            engine.submit()
    slurm.refuses = ""
    started = time.monotonic()
    assert [item.job for item in engine.submit()] == ["1", "2"]
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(
    "said", [" ", "sbatch: error: Batch job submission failed: Socket timed out on send/recv\n"]
)
def test_a_submission_without_an_answer_keeps_its_claim(tmp_path, console, said):
    """sbatch was killed at its time limit: the controller may have the job, and say so later."""
    slurm = Controller()
    nights, engine = client(tmp_path, console, slurm)
    slurm.refuses = said
    with pytest.raises(HostError, match="sbatch"):
        engine.submit()
    keys = [info.key for info in nights.store.keys(nights.key("n", "slurm/"))]
    assert [key for key in keys if key.endswith(".refused")] == []


def test_jobs_of_a_night_that_was_removed_are_not_those_of_one_with_its_name(tmp_path, console):
    """Slurm goes on to show jobs that ended, by the names they had."""
    slurm = Controller()
    _, engine = client(tmp_path / "one", console, slurm)
    old = [item.token for item in engine.submit()]
    shutil.move(tmp_path / "one" / "store", tmp_path / "gone")
    time.sleep(1)  # a plan says when it was made, in seconds
    _, engine = client(tmp_path / "one", console, slurm)
    assert not {item.token for item in engine.submit()} & set(old)
