"""The engine of a Slurm cluster: a night runs in rounds, and this process need not stay.

A round submits the cells that are ready, each as a job named by cell and attempt, and one small
follower that runs the same command again as soon as one of the jobs has ended. Submissions are not
recorded: the queue knows jobs by their names, and Slurm starts the second of two jobs of one name
after the first (`singleton`); it then finds nothing to do. If a job left no end, the next round
asks Slurm: node failure, preemption and memory are `infra`, a time limit is `timeout`, cancelled is
`not-run`. For jobs that Slurm has forgotten, the lease decides. See
https://slurm.schedmd.com/job_reason_codes.html and sbatch(1).
"""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

from rocwheel.base import files
from rocwheel.base.errors import CommandError, HostError
from rocwheel.base.process import Command, Runner
from rocwheel.base.values import Plain
from rocwheel.base.versions import timestamp
from rocwheel.night import standing
from rocwheel.night.cell import Worker, lost
from rocwheel.night.standing import CellStanding
from rocwheel.records.verdict import State
from rocwheel.release.ledger.nights import (
    Begun,
    Book,
    CauseClass,
    Cell,
    CellAttempt,
    Nights,
    Phase,
)

GRACE: Final = 120  # seconds between a cell's own limit and the job's
FOLLOWER: Final = "follower"
# A store or a controller that is away is asked again for a quarter of an hour.
FOLLOW: Final = "for n in $(seq 15); do {line}; case $? in 0|3|5) exit;; esac; sleep 60; done"
SBATCH_SECONDS: Final = 120.0
OPEN: Final = frozenset(
    {
        "PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "REQUEUED", "SUSPENDED",
        "REQUEUE_HOLD", "SPECIAL_EXIT",
    }
)  # fmt: skip
WAITING: Final = frozenset({"PENDING", "REQUEUE_HOLD", "SPECIAL_EXIT"})
HELD: Final = "held"
# Reasons, in small letters, that no job can wait out:
# https://slurm.schedmd.com/job_reason_codes.html
STUCK: Final = (HELD, "reqnodenotavail", "drained", "partitiondown", "partitioninactive",
                "partitiontimelimit", "partitionnodelimit", "partitionconfig",
                "badconstraints")  # fmt: skip
ENDS: Final = {
    "NODE_FAIL": (State.INFRA, "its node failed"),
    "BOOT_FAIL": (State.INFRA, "its node did not boot"),
    "OUT_OF_MEMORY": (State.INFRA, "ran out of the memory it asked for"),
    "PREEMPTED": (State.INFRA, "was preempted"),
    "TIMEOUT": (State.TIMEOUT, "ran past the job's time limit"),
    "DEADLINE": (State.TIMEOUT, "ran past the job's deadline"),
    "CANCELLED": (State.NOT_RUN, "was cancelled in Slurm"),
    "REVOKED": (State.NOT_RUN, "was revoked in Slurm"),
}


class Job(Plain, frozen=True, kw_only=True):
    """A job of a night as Slurm knows it."""

    cell: str  # or the follower
    attempt: int
    number: str
    state: str = "PENDING"
    why: str = ""

    def __str__(self) -> str:
        return f"Slurm {self.number}: {self.why}"


class SlurmScheduler(Plain, frozen=True, kw_only=True, dict=True):
    """Submits the cells of one night to a Slurm cluster, round by round."""

    nights: Nights
    night: str
    worker: Worker
    target: tuple[str, ...]
    most: int = 0  # cells in the queue at once, 0 for no limit
    stays: bool = False  # this process goes on by itself, without a follower

    @cached_property
    def logs(self) -> Path:
        folder = self.worker.scratch / "slurm"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def follows(self) -> bool:
        """Return whether this process is a follower's, whose output no person reads."""
        name = self.worker.here.environ.get("SLURM_JOB_NAME", "")
        return name.startswith(_stem(self.nights, self.night))

    def check_held(self) -> None:
        """Raise HostError where a job waits for a person, unless no person reads it."""
        runner = self.worker.here.runner
        found = held(waiting(self.nights, self.night, runner))
        if found and not self.follows:
            raise HostError(
                f"{found[0].cell}: its job waits for a person: {found[0]}",
                hint="; ".join(release_lines(found, runner)),
            )

    def submit(self) -> list[Job]:
        """Submit ready cells and their follower; return the new jobs. Raises HostError."""
        runner = self.worker.here.runner
        nodes = _nodes(runner)
        jobs = queue(self.nights, self.night, runner)
        self._collect(jobs)
        book = self.nights.book(self.night)
        standings = standing.stand(book)
        for item in standings.values():
            if not item.settled:
                _check(item.cell, nodes)
        made = [
            Job(
                cell=cell.name,
                attempt=_next(book, cell),
                number=self._sbatch(*self._argv(cell, book, nodes)),
            )
            for cell in self._wanted(standings, jobs)
        ]
        going = [job.number for job in [*jobs, *made] if job.cell != FOLLOWER and job.state in OPEN]
        if going and not self.stays:
            self._follow(going, [job for job in jobs if job.cell == FOLLOWER])
        return made

    def _wanted(self, standings: Mapping[str, CellStanding], jobs: Sequence[Job]) -> list[Cell]:
        """Return the cells that may start now and are not in the queue, up to the limit."""
        there = {job.cell for job in jobs if job.state in OPEN}
        cells = [
            item.cell
            for item in standings.values()
            if item.phase in {Phase.WAITING, Phase.OPEN}
            and item.cell.name not in there
            and standing.ready(standings, item.cell)
            # a follower leaves what was cancelled to a person
            and not (self.follows and item.phase is Phase.OPEN and item.state is State.NOT_RUN)
        ]
        return cells[: max(0, self.most - len(there))] if self.most else cells

    def _sbatch(self, *words: str) -> str:
        """Return the number of a new job. Raises HostError."""
        try:
            argv = ("sbatch", *words)
            answer = self.worker.here.runner.capture(Command(argv=argv, timeout=SBATCH_SECONDS))
        except CommandError as exc:
            raise HostError(
                f"sbatch: {exc.last_line or exc}",
                hint=f"what was submitted goes on; then run again: `nightly run {self.night}`",
            ) from exc
        return answer.strip().partition(";")[0]

    def _argv(
        self, cell: Cell, book: Book, nodes: Mapping[str, Mapping[str, set[str]]]
    ) -> tuple[str, ...]:
        needs, minutes = cell.needs, -(-(cell.limit + GRACE) // 60)
        name = f"{_stem(self.nights, self.night)}{cell.name}.{_next(book, cell)}"
        own = set(nodes.get(needs.partition) or ())
        barred = set(book.quarantined) & own if needs.gpus else set()
        tried = {
            item.ended.host
            for item in book.attempts.get(cell.name, ())
            if item.ended and item.ended.cause is CauseClass.MACHINE
        }
        if own - barred - tried:  # another GPU
            barred |= tried & own
        return (
            "--parsable",
            "--no-requeue",
            "--export=ALL",
            "--dependency=singleton",
            f"--job-name={name}",
            f"--comment=rocwheel {self.night} {cell.kind}",
            f"--time={minutes}",
            f"--cpus-per-task={needs.cpus}",
            f"--mem={needs.memory_mib}M",
            f"--output={self.logs}/{name}-%j.log",
            *((f"--partition={needs.partition}",) if needs.partition else ()),
            *((f"--gres={needs.gres}:{needs.gpus}",) if needs.gpus and needs.gres else ()),
            *((f"--exclude={','.join(sorted(barred))}",) if barred else ()),
            f"--wrap=exec {self._line('cell', cell.name)} --job=$SLURM_JOB_ID",
        )

    def _follow(self, going: Sequence[str], old: Sequence[Job]) -> None:
        """Submit the command that goes on when one of these jobs has ended; old ones go."""
        name = f"{_stem(self.nights, self.night)}{FOLLOWER}.1"
        self._sbatch(
            "--parsable",
            "--requeue",
            "--export=ALL",
            f"--dependency={'?'.join(f'afterany:{number}' for number in going)}",
            f"--job-name={name}",
            f"--comment=rocwheel {self.night} {FOLLOWER}",
            "--time=30",
            "--cpus-per-task=1",
            "--mem=512M",
            "--open-mode=append",
            f"--output={self.logs}/{name}.log",
            f"--wrap={FOLLOW.format(line=self._line('run'))}",
        )
        for job in (job for job in old if job.state in WAITING):
            _ask(self.worker.here.runner, ("scancel", "--state=PENDING", job.number))

    def _line(self, verb: str, *names: str) -> str:
        program = self.worker.here.program
        words = (*program, "nightly", verb, self.night, *names, "--engine=slurm", *self.target)
        most = (f"--workers={self.most}",) if self.most and verb == "run" else ()
        return shlex.join((*words, f"--program={shlex.join(program)}", *most))

    def _collect(self, jobs: Sequence[Job]) -> None:
        """Record the ends of jobs that left none.

        A job that never began counts too: it is an attempt that did not run.
        """
        over = [job for job in jobs if job.state not in OPEN and job.cell != FOLLOWER]
        book = self.nights.book(self.night) if over else None
        for job in over:
            if book and any(cell.name == job.cell for cell in book.plan.cells):
                self._tell(book, job, {j.number for j in jobs if j.cell == job.cell} - {job.number})

    def _tell(self, book: Book, job: Job, others: set[str]) -> None:
        attempts = book.attempts.get(job.cell, ())
        ours = [a for a in attempts if a.begun and a.begun.job == job.number and not a.ended]
        state, reason = ENDS.get(job.state, (State.INFRA, f"Slurm says {job.state}: {job.why}"))
        last = max((item.number for item in attempts), default=0)
        if not ours and last < job.attempt and not others:
            begun = Begun(
                token=job.number, cell=job.cell, plan=book.sha256, host="", engine="slurm",
                job=job.number, seen=standing.ends_seen(book, book.plan.cell(job.cell)),
                time=timestamp(self.worker.here.now()),
            )  # fmt: skip
            if number := self.nights.begin(book.plan.night, begun, known=last):
                ours = [CellAttempt(number=number, begun=begun)]
        for attempt in ours:
            lost(self.nights, book, attempt, self.worker, state=state, why=reason)


def _stem(nights: Nights, night: str) -> str:
    """Return the prefix of a night's job names; a night may be planned again."""
    _, sha256 = nights.plan(night)
    return f"rocwheel.{files.sha256(f'{nights.store.url} {sha256}'.encode())[:12]}."


def _next(book: Book, cell: Cell) -> int:
    return 1 + max((item.number for item in book.attempts.get(cell.name, ())), default=0)


def queue(nights: Nights, night: str, runner: Runner) -> list[Job]:
    """Return the jobs of a night that Slurm knows; none where it cannot be asked."""
    stem = _stem(nights, night)
    argv = ("squeue", "--noheader", "--states=all", "--format=%j|%A|%T|%r")
    jobs = []
    for line in _ask(runner, argv).splitlines():
        name, _, rest = line.strip().partition("|")
        if name.startswith(stem):
            cell, _, attempt = name.removeprefix(stem).rpartition(".")
            number, state, why = rest.split("|", 2)
            jobs.append(Job(cell=cell, attempt=int(attempt), number=number, state=state, why=why))
    return jobs


def waiting(nights: Nights, night: str, runner: Runner) -> dict[str, Job]:
    """Return the cells, and the follower, that wait in Slurm."""
    return {job.cell: job for job in queue(nights, night, runner) if job.state in WAITING}


def answers(runner: Runner) -> bool:
    """Return whether Slurm can be asked here: its programs exist, and its controller is up."""
    return bool(_ask(runner, ("sinfo", "--noheader")))


def held(waits: Mapping[str, Job]) -> list[Job]:
    """Return those of the waiting jobs that do not start before a person acts."""
    return [job for job in waits.values() if any(word in job.why.lower() for word in STUCK)]


def release_lines(held: Sequence[Job], runner: Runner) -> list[str]:
    """Return the lines for a person to run, so that these jobs go on."""
    argv = ("sinfo", "--noheader", "--Node", "--states=drain,drained,down,fail", "--format=%N")
    nodes = sorted(set(_ask(runner, argv).split())) if held else ()
    lines = [f"scontrol update nodename={node} state=resume" for node in nodes]
    for job in sorted(held, key=lambda job: job.number):
        if HELD in job.why.lower():
            lines.append(f"scontrol release {job.number}")
        elif not nodes:  # such as more than a partition has
            lines.append(f"scontrol show job {job.number}")
    return lines


def _nodes(runner: Runner) -> dict[str, dict[str, set[str]]]:
    """Return nodes and their resources by partition; "" is all of them. Raises HostError."""
    try:
        argv = ("sinfo", "--noheader", "--Node", "--format=%R|%N|%G")
        answer = runner.capture(Command(argv=argv, timeout=60.0))
    except CommandError as exc:
        hint = "is slurmctld up? see `scontrol ping`"
        raise HostError(f"sinfo: {exc.last_line or exc}", hint=hint) from exc
    nodes: dict[str, dict[str, set[str]]] = defaultdict(dict)
    for line in answer.splitlines():
        partition, node, resources = (*line.split("|"), "", "")[:3]
        nodes[partition][node] = nodes[""][node] = set(_resources(resources))
    return nodes


def _check(cell: Cell, nodes: Mapping[str, Mapping[str, set[str]]]) -> None:
    """Raise HostError before anything is submitted: no such partition or GRES."""
    needs = cell.needs
    if needs.partition not in nodes:
        raise HostError(
            f"{cell.name}: Slurm has no partition {needs.partition}",
            hint=f"partitions: {', '.join(sorted(set(nodes) - {''}))}; rename it with --pools",
        )
    offered = {name for one in nodes[needs.partition].values() for name in one}
    if needs.gpus and needs.gres and needs.gres not in offered:
        raise HostError(
            f"{cell.name}: partition {needs.partition or 'any'} has no {needs.gres}",
            hint=f"it has: {', '.join(sorted(offered)) or 'nothing'}; rename with --pools",
        )


def _resources(text: str) -> Iterator[str]:
    """Split an offer: `gpu:mi300x:8(S:0-1),shard:4` is one of gpu, gpu:mi300x and shard."""
    for item in re.sub(r"\([^)]*\)", "", text).split(","):
        name, *rest = item.split(":")
        yield from {name, ":".join((name, *rest[: not "".join(rest[:1]).isdigit()]))} - {""}


def _ask(runner: Runner, argv: tuple[str, ...]) -> str:
    """Return Slurm's answer; "" where it does not answer or does not know."""
    try:
        return runner.capture(Command(argv=argv, timeout=60.0))
    except (CommandError, HostError):
        return ""
