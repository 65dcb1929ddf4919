"""The engine of a Slurm cluster: a night becomes job arrays, and this process may go.

Cells that need the same and wait for the same are one array; a job waits with `afterany` for what
it depends on, and `nightly cell` then looks in the store whether that passed. What is submitted is
written into the night before `sbatch` is asked, under a token that is the job's name, so that a
submission whose answer was lost is found again. Jobs that could not say how they ended are asked
for with `scontrol`: node failure, preemption and memory are `infra`, a time limit is `timeout`,
cancelled is `not-run`. See https://slurm.schedmd.com/job_reason_codes.html and sbatch(1).
"""

import re
import shlex
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

from rocwheel.base import errors, files
from rocwheel.base.errors import CommandError, ConfigError, HostError
from rocwheel.base.parallel import each
from rocwheel.base.process import Command, Runner
from rocwheel.base.values import Plain, Value, replace
from rocwheel.base.versions import moment, timestamp
from rocwheel.night import standing
from rocwheel.night.cell import Worker, lost
from rocwheel.night.standing import CellStanding
from rocwheel.records.verdict import State
from rocwheel.release.ledger.nights import (
    AS_JSON,
    Begun,
    Book,
    Cell,
    CellAttempt,
    Needs,
    Nights,
    Phase,
)

GRACE: Final = 120  # seconds between a cell's own limit and the job's
# Before Slurm kills at the limit, so that the cell can say so:
# https://slurm.schedmd.com/sbatch.html#OPT_signal
SIGNAL: Final = "TERM@60"
PENDING: Final = frozenset(
    {
        "PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "REQUEUED", "SUSPENDED",
        "REQUEUE_HOLD", "SPECIAL_EXIT",
    }
)  # fmt: skip
WAITING: Final = frozenset({"PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT"})
CLAIMED: Final = timedelta(minutes=5)  # that a claim to submit holds; sbatch is given less
SBATCH_SECONDS: Final = 120.0
UNCLEAR: Final = ("timed out", "Zero Bytes")  # what sbatch says of an answer that did not come
CLAIM_POLL: Final = 0.5
LATE: Final = r"(0:)?0?[01]:[0-9]+|INVALID"
HELD: Final = "held"
# Reasons, in small letters, that no job can wait out:
# https://slurm.schedmd.com/job_reason_codes.html
STUCK: Final = (HELD, "reqnodenotavail", "drained", "partitiondown", "partitioninactive",
                "partitiontimelimit", "partitionnodelimit", "badconstraints")  # fmt: skip
ENDS: Final = {
    "NODE_FAIL": (State.INFRA, "its node failed"),
    "BOOT_FAIL": (State.INFRA, "its node did not boot"),
    "OUT_OF_MEMORY": (State.INFRA, "ran out of the memory it asked for"),
    "PREEMPTED": (State.INFRA, "was preempted"),
    "TIMEOUT": (State.TIMEOUT, "ran past the job's time limit"),
    "DEADLINE": (State.TIMEOUT, "ran past the job's deadline"),
    "CANCELLED": (State.NOT_RUN, "was cancelled in Slurm"),
    "REVOKED": (State.NOT_RUN, "was revoked in Slurm"),
    "PENDING": (State.INFRA, "was requeued"),
    "REQUEUED": (State.INFRA, "was requeued"),
}


class Submission(Value, frozen=True, kw_only=True):
    """An array that a client submits, or claims to submit; its token is the job's name."""

    token: str
    cells: tuple[str, ...]  # by array index
    by: str  # which client
    time: str
    job: str = ""  # its number, which is not stored; "" while Slurm has named none


class SlurmScheduler(Plain, frozen=True, kw_only=True):
    """Submits the cells of one night to a Slurm cluster as job arrays."""

    nights: Nights
    night: str
    worker: Worker
    target: tuple[str, ...]
    most: int = 0  # tasks of an array at once, 0 for no limit

    @property
    def logs(self) -> Path:
        return self.worker.scratch / "slurm"

    def submit(self) -> list[Submission]:
        """Check the cluster, then submit every array that is not there. Raises HostError."""
        collect(self.nights, self.night, self.worker)
        # read before the queue: what another client submits from here on has our token
        made = submissions(self.nights, self.night)
        book = self.nights.book(self.night)
        standings = standing.stand(book, self.worker.now())
        # A job that is over, or that a killed controller had not saved, is nothing to wait for:
        # Slurm refuses a number that it does not know, and may give it to another job. Nor is a
        # cell that ended, though such a controller may have its job running.
        live = queued(self.nights, self.night, self.worker)
        jobs = {cell: job for cell, job in live.items() if not standings[cell].settled}
        groups = self._groups(standings, jobs)
        self._check(groups)
        self.logs.mkdir(parents=True, exist_ok=True)
        new = []
        for group in groups:
            one = self._submit(group, self._token(group, book, made), jobs, book)
            jobs |= dict.fromkeys(one.cells, one.job)
            new.append(one)
        return new

    def lines(self, book: Book, standings: Mapping[str, CellStanding]) -> Iterator[str]:
        """Yield what would be submitted."""
        for group in self._groups(standings, queued(self.nights, self.night, self.worker)):
            token = self._token(group, book)
            yield shlex.join(self._argv(token, group, {}, book))
            yield from (f"  {number}: {cell.name}" for number, cell in enumerate(group))

    def _groups(
        self, standings: Mapping[str, CellStanding], live: Collection[str]
    ) -> list[list[Cell]]:
        """Open cells that need the same and wait for the same, in the order of the plan.

        What waits for a cell that another engine runs is left to that engine.
        """
        groups: dict[tuple[object, ...], list[Cell]] = {}
        coming = set(live)
        for item in standings.values():
            cell = item.cell
            if item.phase not in {Phase.WAITING, Phase.OPEN} or cell.name in live:
                continue
            if self.worker.job and item.state is State.NOT_RUN:  # cancelled: a person submits it
                continue
            waits = (n for n in (*cell.after, *cell.settled) if not standings[n].settled)
            if any(name not in coming for name in waits):
                continue
            coming.add(cell.name)
            key = (cell.kind, cell.needs, cell.limit, cell.after, cell.settled)
            groups.setdefault(key, []).append(cell)
        return list(groups.values())

    def _check(self, groups: Sequence[Sequence[Cell]]) -> None:
        """Raise HostError before anything is submitted: no Slurm, no such partition or GRES."""
        try:
            answer = self.worker.runner.capture(
                Command(argv=("sinfo", "--noheader", "--format=%R|%G"), timeout=60.0)
            )
        except CommandError as exc:
            hint = "is slurmctld up? see `scontrol ping`"
            raise HostError(f"sinfo: {_last_line(exc)}", hint=hint) from exc
        has: dict[str, set[str]] = {}
        for line in answer.splitlines():
            partition, _, resources = line.partition("|")
            has.setdefault(partition, set()).update(_resources(resources))
        for group in groups:
            needs = group[0].needs
            if needs.partition and needs.partition not in has:
                raise HostError(
                    f"{group[0].name}: Slurm has no partition {needs.partition}",
                    hint=f"partitions: {', '.join(sorted(has))}; rename it with --pools",
                )
            offered = has.get(needs.partition) or {name for one in has.values() for name in one}
            if needs.gpus and needs.gres and needs.gres not in offered:
                raise HostError(
                    f"{group[0].name}: partition {needs.partition or 'any'} has no {needs.gres}",
                    hint=f"it has: {', '.join(sorted(offered)) or 'nothing'}; rename with --pools",
                )

    def _token(self, group: Sequence[Cell], book: Book, made: Sequence[Submission] = ()) -> str:
        """Return the same until Slurm gave it a number, so that nothing is submitted twice."""
        before = Counter(name for item in made if item.job for name in item.cells)
        what = [
            f"{cell.name} {len(book.attempts.get(cell.name, ()))} {before[cell.name]}"
            for cell in group
        ]
        where = [self.nights.store.url, book.sha256]  # a night may be made anew under its name
        digest = files.sha256("\n".join([*where, *what]).encode())
        return f"rocwheel-{digest[:16]}"

    def _submit(
        self, group: Sequence[Cell], token: str, jobs: Mapping[str, str], book: Book
    ) -> Submission:
        """Submit an array under a claim, or find the job of a client that had claimed it."""
        record = Submission(
            token=token,
            cells=tuple(cell.name for cell in group),
            by=uuid.uuid4().hex,
            time=timestamp(self.worker.now()),
        )
        number, job = self._claim(record)
        job = job or _job_named(token, self.worker.runner)
        if not job:
            script = self.logs / f"{token}.sh"
            script.write_text(self._script(group), encoding="utf-8")
            argv = (*self._argv(token, group, jobs, book), str(script))
            try:
                answer = self.worker.runner.capture(Command(argv=argv, timeout=SBATCH_SECONDS))
            except CommandError as exc:
                if exc.detail.strip() and not any(word in exc.detail for word in UNCLEAR):
                    self._note(f"{token}.{number}.refused")
                raise HostError(
                    f"sbatch: {_last_line(exc)}",
                    hint=f"what was submitted goes on; then run again: `nightly run {self.night}`",
                ) from exc
            job = answer.strip().partition(";")[0]
        self._note(f"{token}.{job}.job")
        return replace(record, job=job)

    def _note(self, name: str) -> None:
        """Store an object whose name says all."""
        key = self.nights.key(self.night, f"slurm/{name}")
        self.nights.store.create(key, b"{}\n", headers=AS_JSON)

    def _claim(self, record: Submission) -> tuple[int, str]:
        """Store a submission, create-only, as the claim to make it.

        Return the number of the claim, and of the job where another client got one. Wait while
        another client's claim is young, was not refused and has no job yet.
        """
        store, number = self.nights.store, 1
        while True:
            stem = self.nights.key(self.night, f"slurm/{record.token}.{number}.")
            key = f"{stem}json"
            try:
                store.create(key, record.to_bytes(), headers=AS_JSON)
            except errors.ObjectDiffersError:
                theirs = Submission.from_bytes(store.read(key)[0], name=store.locate(key))
                is_old = self.worker.now() - moment(theirs.time) > CLAIMED
                if job := _job_named(record.token, self.worker.runner):
                    return number, job
                if is_old or store.info(f"{stem}refused"):
                    number += 1
                else:
                    time.sleep(CLAIM_POLL)
            else:
                return number, ""

    def _argv(
        self, token: str, group: Sequence[Cell], jobs: Mapping[str, str], book: Book
    ) -> tuple[str, ...]:
        needs: Needs = group[0].needs
        waits = sorted({jobs[n] for n in (*group[0].after, *group[0].settled) if n in jobs})
        bound = f"%{self.most}" if self.most else ""
        minutes = -(-(group[0].limit + GRACE) // 60)
        shown = sorted(book.quarantined) if needs.gpus else []
        return (
            "sbatch",
            "--parsable",
            "--requeue",
            "--open-mode=append",
            "--export=ALL",
            f"--job-name={token}",
            f"--comment=rocwheel {self.night} {group[0].kind}",
            f"--array=0-{len(group) - 1}{bound}",
            f"--time={minutes}",
            f"--signal=B:{SIGNAL}",
            f"--cpus-per-task={needs.cpus}",
            f"--mem={needs.memory_mib}M",
            f"--output={self.logs}/{token}-%a.log",
            *((f"--partition={needs.partition}",) if needs.partition else ()),
            *((f"--gres={needs.gres}:{needs.gpus}",) if needs.gpus and needs.gres else ()),
            *((f"--dependency=afterany:{':'.join(waits)}",) if waits else ()),
            *((f"--exclude={','.join(shown)}",) if shown else ()),
        )

    def _script(self, group: Sequence[Cell]) -> str:
        """Return the batch script: its array index chooses the cell, which replaces the shell."""
        words = (*self.worker.program, "nightly", "cell", self.night)
        own = shlex.join((*words, "--engine=slurm", *self.target))
        how = shlex.quote(f"--program={shlex.join(self.worker.program)}")
        names = shlex.join(cell.name for cell in group)
        return (
            "#!/bin/sh\n"
            f"set -- {names}\n"
            'shift "$SLURM_ARRAY_TASK_ID"\n'
            f'exec {own} {how} --job="$SLURM_ARRAY_JOB_ID"_"$SLURM_ARRAY_TASK_ID" -- "$1"\n'
        )


def _resources(text: str) -> Iterator[str]:
    """Split an offer: `gpu:mi300x:8(S:0-1),shard:4` is one of gpu, gpu:mi300x and shard."""
    for item in re.sub(r"\([^)]*\)", "", text).split(","):
        name, *rest = item.split(":")
        yield from {name, ":".join((name, *rest[: not "".join(rest[:1]).isdigit()]))} - {""}


def _last_line(exc: CommandError) -> str:
    """Return what a command said last."""
    return (exc.detail.strip().splitlines() or [str(exc)])[-1]


def submissions(nights: Nights, night: str) -> list[Submission]:
    """Return everything that was submitted for a night, oldest first.

    One whose answer was lost, or is under way, has no number here, though Slurm may know it.
    """
    prefix = nights.key(night, "slurm/")
    names = [info.key.removeprefix(prefix).split(".") for info in nights.store.keys(prefix)]
    jobs = {token: number for token, number, kind in names if kind == "job"}
    claims = {token: f"{prefix}{token}.{n}.json" for token, n, kind in names if kind == "json"}

    def read(key: str) -> Submission:
        try:
            data = nights.store.read(key)[0]
        except errors.ObjectMissingError:
            raise ConfigError(f"{key}: went away", hint="the night was pruned") from None
        made = Submission.from_bytes(data, name=nights.store.locate(key))
        return replace(made, job=jobs.get(made.token, ""))

    made = each(read, claims.values(), threads=nights.store.connections)
    return sorted(made, key=lambda item: item.time)


def _job_named(token: str, runner: Runner) -> str:
    """Return the number of a job by its name, where Slurm still knows it."""
    argv = ("squeue", "--noheader", "--array", f"--name={token}", "--states=all", "--format=%F")
    lines = _ask(runner, argv).split()
    return lines[0] if lines else ""


def _ask(runner: Runner, argv: tuple[str, ...]) -> str:
    """Return what Slurm says; "" where it does not answer or does not know."""
    try:
        return runner.capture(Command(argv=argv, timeout=60.0))
    except (CommandError, HostError):
        return ""


class Task(Plain, frozen=True):
    """A submitted cell as Slurm knows it; without a state where it does not."""

    cell: str
    submitted: str  # time
    number: int
    job: str
    state: str
    why: str

    @property
    def name(self) -> str:
        """What Slurm calls it."""
        return f"{self.job}_{self.number}"

    def __str__(self) -> str:
        return f"Slurm {self.name}: {self.why}"


def _tasks(nights: Nights, night: str, runner: Runner) -> list[Task]:
    """Return the task of each submitted cell, of which number and state are of one answer.

    Slurm is asked by names: a controller that lost its state begins to count again, and another
    client may be submitting, so that a number that is asked for before the state may be missing.
    """
    made = submissions(nights, night)
    known: dict[str, tuple[str, str, str]] = {}
    names = ",".join(item.token for item in made)
    argv = (
        "squeue", "--noheader", "--array", f"--name={names}", "--states=all",
        "--format=%j_%K|%F|%T|%r",
    )  # fmt: skip
    for line in _ask(runner, argv).splitlines() if made else ():
        task, job, state, why = line.strip().split("|", 3)
        known[task] = (job, state, why)
    return [
        Task(cell, item.time, number, *known.get(f"{item.token}_{number}", (item.job, "", "")))
        for item in made
        for number, cell in enumerate(item.cells)
    ]


def queued(nights: Nights, night: str, worker: Worker) -> dict[str, str]:
    """Return the cells that Slurm has in its queue or runs, each with the number of its job.

    Without the job of this worker: a cell that is ending may be submitted again.
    """
    tasks = _tasks(nights, night, worker.runner)
    return {t.cell: t.job for t in tasks if t.state in PENDING and t.name != worker.job}


def waiting(nights: Nights, night: str, runner: Runner) -> dict[str, Task] | None:
    """Return the cells that wait in Slurm; None where nothing was submitted."""
    tasks = _tasks(nights, night, runner)
    return {t.cell: t for t in tasks if t.state in WAITING} if tasks else None


def answers(runner: Runner) -> bool:
    """Return whether Slurm can be asked here: its programs are, and its controller is up."""
    return bool(_ask(runner, ("sinfo", "--noheader")))


def held(waits: Mapping[str, Task] | None) -> list[Task]:
    """Return those of the waiting tasks that do not start before a person acts."""
    tasks = (waits or {}).values()
    return [task for task in tasks if any(word in task.why.lower() for word in STUCK)]


def release_lines(held: Sequence[Task], runner: Runner) -> list[str]:
    """Return the lines that a person has to run so that these jobs go on."""
    argv = ("sinfo", "--noheader", "--Node", "--states=drain,drained,down,fail", "--format=%N")
    nodes = sorted(set(_ask(runner, argv).split())) if held else ()
    jobs = sorted({task.name for task in held if HELD in task.why.lower()})
    lines = [f"scontrol update nodename={node} state=resume" for node in nodes]
    return lines + [f"scontrol release {job}" for job in jobs]


def why_ended(
    runner: Runner, job: str, environ: Mapping[str, str]
) -> Callable[[], tuple[State, str]]:
    """Ask Slurm why a cell got a signal.

    While a job is being ended its state is COMPLETING whatever the cause; a requeue has counted
    it as restarted by then. That it was preempted slurmctld forgets with the requeue (it tells
    accounting), but slurmstepd writes it into the job's output before it sends a signal.
    """
    restarts = int(environ.get("SLURM_RESTART_COUNT", "0") or 0)
    output = Path("/proc/self/fd/2")
    before = files.status(output)
    begins = before.st_size if before else 0

    def ask() -> tuple[State, str]:
        with suppress(OSError):  # a pipe or a terminal says nothing
            if output.is_file() and b"DUE TO PREEMPTION" in output.read_bytes()[begins:]:
                return ENDS["PREEMPTED"]
        said = _ask(runner, ("scontrol", "show", "job", job, "--oneliner"))
        facts = dict(re.findall(r"\b(JobState|Restarts|PreemptTime)=(\S+)", said))
        state = facts.get("JobState", "")
        if facts.get("PreemptTime", "None") not in {"None", "N/A"}:
            return ENDS["PREEMPTED"]
        if int(facts.get("Restarts", "0")) > restarts:
            return ENDS["REQUEUED"]
        if state == "COMPLETING":
            return ENDS["CANCELLED"]
        ask_left = ("squeue", "-h", f"--jobs={job}", "-o%L")
        # with less than two minutes left: 1:40, or INVALID
        if state == "RUNNING" and re.fullmatch(LATE, _ask(runner, ask_left).strip()):
            return ENDS["TIMEOUT"]
        return ENDS.get(state, (State.INFRA, f"ended from outside while {state or 'unknown'}"))

    return ask


def collect(nights: Nights, night: str, worker: Worker) -> int:
    """Say of jobs that ended without a word how they ended; return how many those were.

    A job that never began and is not known any more counts too: an attempt that did not run.
    """
    tasks = _tasks(nights, night, worker.runner)
    is_known = any(task.state for task in tasks)
    if not tasks or not (is_known or answers(worker.runner)):
        return 0  # the controller is away: nothing is known of any job
    book = nights.book(night)
    over = (task for task in tasks if task.state not in PENDING and task.name != worker.job)
    return sum(_tell(nights, book, worker, task) for task in over)


def _tell(nights: Nights, book: Book, worker: Worker, task: Task) -> int:
    attempts = book.attempts.get(task.cell, ())
    ours = [a for a in attempts if a.begun and a.begun.job == task.name]
    other = f"Slurm says {task.state}: {task.why}"
    why = other if task.state else "Slurm does not know its job any more"
    state, reason = ENDS.get(task.state, (State.INFRA, why))
    later = any(a.begun and moment(a.begun.time) >= moment(task.submitted) for a in attempts)
    if not ours and not later and task.state in ENDS:
        begun = Begun(
            token=task.name, cell=task.cell, plan=book.sha256, host="", engine="slurm",
            job=task.name, seen=standing.told(book, book.plan.cell(task.cell)),
            time=timestamp(worker.now()),
        )  # fmt: skip
        known = max((item.number for item in attempts), default=0)
        if number := nights.begin(book.plan.night, begun, known=known):
            ours = [CellAttempt(number=number, begun=begun)]
    return sum(lost(nights, book, a, worker, state=state, why=reason) for a in ours)
