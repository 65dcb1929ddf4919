"""The engine: runs a suite's tests in worker processes, one per lane, and survives all of them.

A lane is one device (or several, for tests that need them) with the masks that give a process
exactly these. Whatever a worker does is attributed to the test it was running: a crash, a hang
(its stacks are dumped first), an exit. The rest of the suite goes on in a new process. A process
that cannot be killed is abandoned and its lane closed, as is a lane whose device does not answer
after a crash.
"""

from __future__ import annotations

import enum
import selectors
import signal
import subprocess
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rocwheel.gate.engine.child import Child, describe
from rocwheel.gate.engine.outcomes import STREAK, Outcomes, Rerun
from rocwheel.gate.engine.plan import Snapshot
from rocwheel.gate.engine.scheduler import Scheduler, Step
from rocwheel.gate.verdict import exits
from rocwheel.results import (
    Attempt,
    CollectError,
    Fault,
    LaneRecord,
    Outcome,
    ProcessRecord,
    Results,
)
from rocwheel.verdict import State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rocwheel.gate.engine.plan import Lane, RunPlan, System, Watcher
    from rocwheel.process import Command

TICK: Final = 0.05  # seconds between looks at deadlines
DUMP_SECONDS: Final = 0.5  # for a stuck process to write its stacks
END_SECONDS: Final = 60.0  # for a worker to tear down and exit
START_SECONDS: Final = 120.0  # for an interpreter with pytest to come up
START_ATTEMPTS: Final = 2


class _Mode(enum.Enum):
    FREE = "free"
    STARTING = "starting"
    READY = "ready"
    COLLECTING = "collecting"
    RUNNING = "running"
    ENDING = "ending"
    DUMPING = "dumping stacks"
    KILLING = "killing"
    PROBING = "probing the device"
    LOST = "lost"


@dataclass(kw_only=True)
class _Worker:
    """A lane at work: its process, what the process does, and what it did before."""

    lane: Lane
    mode: _Mode = _Mode.FREE
    since: float = 0.0  # when the mode began
    child: Child | None = None
    number: int = 0  # of the process
    born: float = 0.0
    step: Step | None = None
    rerun: Rerun | None = None
    left: list[str] = field(default_factory=list)  # tests of the rerun still to run
    began: float = 0.0  # when the running test did
    offset: int = 0  # of the log, where the running test began
    was: _Mode = _Mode.FREE  # what it did when it had to be stopped
    cause: str = ""  # why it had to be
    ran: list[str] = field(default_factory=list)  # in this process
    failed: int = 0
    streak: list[str] = field(default_factory=list)  # failures in a row
    bye: dict[str, Any] | None = None
    suspicion: int = STREAK  # failures in a row after which the process is replaced
    starts: int = 0  # failed, in a row
    probe: subprocess.Popen[bytes] | None = None
    shaken: bool = False  # something broke: ask the device before going on
    lost: str = ""


class Engine:
    """One run of a plan."""

    def __init__(self, plan: RunPlan, machine: System, watcher: Watcher) -> None:
        self._plan, self._machine, self._watcher = plan, machine, watcher
        self._scheduler = Scheduler(plan.files, plan.estimates)
        self._outcomes = Outcomes(retry_limit=plan.retry_limit)
        self._workers = [_Worker(lane=lane, since=machine.clock()) for lane in plan.lanes]
        self._selector = selectors.DefaultSelector()
        self._faults: list[Fault] = []
        self._processes: list[ProcessRecord] = []
        self._stop = ""  # why the run ends now
        self._started = machine.clock()
        self._expected = _expected(plan)
        self._ooms = machine.oom_kills()

    def run(self) -> Results:
        """Run everything; SIGINT (as KeyboardInterrupt) ends the run early, with its results."""
        plan = self._plan
        plan.worker.logs.mkdir(parents=True, exist_ok=True)
        try:
            while not self._over():
                self._turn()
        except KeyboardInterrupt:
            self._cut(State.NOT_RUN, "cut short by a signal")
        finally:
            self._stop_all()
            self._selector.close()
        reason = self._stop or "its file could not be imported again"
        waiting = dict.fromkeys((*self._outcomes.unfinished, *self._scheduler.uncollected), reason)
        return Results(
            suite=plan.suite,
            shard=plan.shard,
            files=plan.files,
            suite_files=plan.suite_files,
            tests=self._outcomes.results(not_run=waiting),
            collect_errors=tuple(self._outcomes.collect_errors),
            lanes=tuple(
                LaneRecord(
                    name=worker.lane.name,
                    devices=tuple(item.device for item in worker.lane.devices),
                    lost=worker.lost,
                )
                for worker in self._workers
            ),
            processes=tuple(self._processes),
            faults=tuple(self._faults),
            duration_ms=self._ms(self._machine.clock() - self._started),
        )

    def _turn(self) -> None:
        """Hand out work, wait for something to happen, look at every worker."""
        for worker in self._workers:
            self._advance(worker)
        if self._over():
            return
        self._selector.select(TICK)
        for worker in self._workers:
            self._look(worker)
        now = self._machine.clock()
        if now - self._started > self._plan.deadline:
            self._cut(State.TIMEOUT, f"the deadline of {self._plan.deadline:g} s passed")
        self._watcher.progress(self._snapshot(now))

    def _over(self) -> bool:
        if self._stop:
            return True
        modes = {worker.mode for worker in self._workers}
        if modes == {_Mode.LOST}:
            self._stop = "no device is left"
            return True
        idle = modes <= {_Mode.FREE, _Mode.LOST} and not any(item.step for item in self._workers)
        return idle and self._scheduler.empty and not self._outcomes.waiting

    # --- work ------------------------------------------------------------------------------------

    def _advance(self, worker: _Worker) -> None:
        """Give a worker that has nothing to do its next step, if there is one."""
        if worker.mode not in (_Mode.FREE, _Mode.READY):
            return
        worker.step = worker.step or self._next(worker)
        if worker.step is None:
            if worker.mode is _Mode.READY and self._done_with(worker):
                self._enter(worker, _Mode.ENDING)
                _child(worker).send(op="end")
        elif worker.mode is _Mode.READY:
            self._go(worker, worker.step)
        elif worker.shaken and worker.lane.probe:
            self._ask(worker, worker.lane.probe)
        else:
            self._start(worker)

    def _next(self, worker: _Worker) -> Step | None:
        if worker.rerun is None:
            step = self._scheduler.next(worker.lane.name, self._machine.clock())
            if step or worker.mode is not _Mode.FREE:
                return step
            alone = sum(item.mode is not _Mode.LOST for item in self._workers) == 1
            worker.rerun = self._outcomes.rerun(worker.lane.name, alone=alone)
            worker.left = list(worker.rerun.tests) if worker.rerun else []
        if not worker.left:
            return None
        test = worker.left.pop(0)
        then = worker.left[0] if worker.left else None
        return Step(file=self._outcomes.file(test), test=test, then=then)

    def _done_with(self, worker: _Worker) -> bool:
        """Whether the process of an idle worker can go; it stays while it may take work over."""
        return worker.rerun is not None or self._outcomes.waiting or self._scheduler.empty

    def _go(self, worker: _Worker, step: Step) -> None:
        if step.file not in _child(worker).collected:
            self._enter(worker, _Mode.COLLECTING)
            _child(worker).send(op="collect", file=step.file)
        else:
            self._enter(worker, _Mode.RUNNING)
            worker.began = worker.since
            _child(worker).send(op="run", test=step.test, then=step.then)

    def _start(self, worker: _Worker) -> None:
        worker.number = len(self._processes) + sum(1 for item in self._workers if item.child) + 1
        name = f"{worker.number:03d}-{worker.lane.name}"
        worker.child = Child(
            self._plan.worker, self._machine.starter, name=name, env=worker.lane.env
        )
        for descriptor in worker.child.descriptors:
            self._selector.register(descriptor, selectors.EVENT_READ)
        worker.born = self._machine.clock()
        worker.ran, worker.streak, worker.failed, worker.bye = [], [], 0, None
        self._enter(worker, _Mode.STARTING)

    def _enter(self, worker: _Worker, mode: _Mode) -> None:
        worker.mode, worker.since = mode, self._machine.clock()

    # --- what a worker says ----------------------------------------------------------------------

    def _look(self, worker: _Worker) -> None:
        if worker.probe:
            self._look_at_probe(worker, worker.probe)
            return
        child = worker.child
        if child is None or worker.mode is _Mode.LOST:
            return
        status = child.ended()  # before reading: what it said last is read in any case
        for event in child.read():
            # what a process says once it is over its deadline changes nothing
            if worker.mode not in (_Mode.DUMPING, _Mode.KILLING):
                self._hear(worker, event)
        if status is not None:
            self._ended(worker, status)
        else:
            self._watch(worker)

    def _hear(self, worker: _Worker, event: dict[str, Any]) -> None:
        match event["event"]:
            case "ready":
                worker.starts = 0
                self._enter(worker, _Mode.READY)
                self._advance(worker)
            case "collected":
                self._collected(worker, event)
            case "start":
                worker.began, worker.offset = self._machine.clock(), event["offset"]
            case "finish":
                self._finished(worker, event)
            case "late":
                worker.failed += 1
                if not (worker.rerun and worker.rerun.confirms):
                    self._outcomes.late(event["test"], event["message"])
            case "bye":
                worker.bye = event
            case other:
                raise ValueError(f"{other}: no event of the worker")

    def _collected(self, worker: _Worker, event: dict[str, Any]) -> None:
        step = _step(worker)
        _child(worker).collected.add(step.file)
        if step.test is None:
            worker.step = None
            self._take_in(worker, event)
        elif step.test not in event["tests"]:
            # the file was collected before: what differs now is not to be trusted
            message = event["error"] or f"{step.test} was not collected again"
            self._outcomes.collect_errors.append(
                CollectError(file=step.file, message=_first(message), detail=event["error"])
            )
            if worker.rerun is None:
                self._scheduler.drop_file(worker.lane.name)
            worker.step, worker.left = None, []
        self._enter(worker, _Mode.READY)
        self._advance(worker)

    def _take_in(self, worker: _Worker, event: dict[str, Any]) -> None:
        """Enter a file's tests into the books, those that are not to run apart."""
        file = event["file"]
        if event["error"]:
            self._outcomes.collect_errors.append(
                CollectError(file=file, message=_last(event["error"]), detail=event["error"])
            )
            self._scheduler.drop_file(worker.lane.name)
            return
        tests = [test for test in event["tests"] if self._plan.wanted(test)]
        self._outcomes.collected(file, tests, tags=event["tags"], lines=event["lines"])
        if event["skipped"] and not event["tests"]:
            self._outcomes.skip(file, event["skipped"], file=file)
        run = []
        for test in tests:
            if reason := self._plan.skip(test):
                self._outcomes.skip(test, reason)
            else:
                run.append(test)
        self._scheduler.collected(worker.lane.name, run, event["seconds"])

    def _finished(self, worker: _Worker, event: dict[str, Any]) -> None:
        step, outcome = _step(worker), Outcome(event["outcome"])
        output = _child(worker).output(worker.offset, event["offset"]) if outcome.bad else ""
        attempt = self._attempt(
            worker,
            outcome,
            seconds=event["seconds"],
            message=event["message"],
            detail=event["detail"],
            output=output,
        )
        self._scheduler.measured(step.file, event["test"], event["seconds"])
        worker.step = None
        self._enter(worker, _Mode.READY if event["going"] else _Mode.ENDING)
        self._record(worker, event["test"], attempt, event["evidence"])
        if worker.mode is _Mode.READY and len(worker.streak) >= worker.suspicion:
            worker.suspicion *= 2  # where it was in vain, look less often
            self._kill(worker, f"{len(worker.streak)} failures in a row")
        self._advance(worker)

    def _record(
        self, worker: _Worker, test: str, attempt: Attempt, evidence: Iterable[str] = ()
    ) -> None:
        rerun, bad = worker.rerun, attempt.outcome.bad
        worker.failed += bad
        if rerun and rerun.confirms:
            suspect, victim = rerun.tests
            if test == victim:
                self._outcomes.confirmed(suspect, victim, failed=bad)
        else:
            self._outcomes.attempted(test, attempt, evidence=evidence, retry=rerun is not None)
            if bad:
                self._watcher.failed(test, attempt)
        if rerun is None:
            worker.ran.append(test)
            if bad:
                worker.streak.append(test)
            else:
                self._close_streak(worker)

    def _close_streak(self, worker: _Worker) -> None:
        """Tell the ledger of failures in a row, each with what ran before it."""
        before = {
            test: previous
            for previous, test in zip(worker.ran, worker.ran[1:], strict=False)
            if test in worker.streak
        }
        self._outcomes.streak(worker.streak, before)
        worker.streak = []

    def _attempt(
        self,
        worker: _Worker,
        outcome: Outcome,
        *,
        seconds: float,
        message: str,
        detail: str,
        output: str,
    ) -> Attempt:
        return Attempt(
            outcome=outcome,
            lane=worker.lane.name,
            process=worker.number,
            start_ms=self._ms(worker.began - self._started),
            duration_ms=self._ms(seconds),
            message=message,
            detail=detail,
            output=output,
        )

    # --- what happens to a worker ----------------------------------------------------------------

    def _watch(self, worker: _Worker) -> None:
        """Act when what a worker does takes longer than it may."""
        plan, now = self._plan, self._machine.clock()
        match worker.mode:
            case _Mode.RUNNING if now - worker.began > plan.test_deadline:
                self._dump(worker, f"no end after {plan.test_deadline:g} s")
            case _Mode.COLLECTING if now - worker.since > plan.test_deadline:
                self._dump(worker, f"no end of its import after {plan.test_deadline:g} s")
            case _Mode.STARTING if now - worker.since > START_SECONDS:
                self._dump(worker, f"no start within {START_SECONDS:g} s")
            case _Mode.ENDING if now - worker.since > END_SECONDS:
                self._dump(worker, f"no exit within {END_SECONDS:g} s")
            case _Mode.DUMPING if now - worker.since > DUMP_SECONDS:
                self._kill(worker, worker.cause)
            case _Mode.KILLING if now - worker.since > plan.kill_deadline:
                self._abandon(worker)
            case _:
                pass

    def _dump(self, worker: _Worker, cause: str) -> None:
        worker.was, worker.cause = worker.mode, cause
        self._enter(worker, _Mode.DUMPING)
        _child(worker).dump()

    def _kill(self, worker: _Worker, cause: str) -> None:
        if worker.mode is not _Mode.DUMPING:
            worker.was, worker.cause = worker.mode, cause
        self._enter(worker, _Mode.KILLING)
        _child(worker).kill(self._machine.killpg)

    def _ended(self, worker: _Worker, status: int) -> None:
        """Draw the conclusions from a process's end, then let its lane go on."""
        killed = worker.mode in (_Mode.DUMPING, _Mode.KILLING)
        _child(worker).kill(self._machine.killpg)  # what it started goes with it
        self._blame(worker, worker.was if killed else worker.mode, status, killed=killed)
        self._close(worker, f"killed: {worker.cause}" if killed else describe(status))
        self._enter(worker, _Mode.FREE)
        worker.shaken = worker.shaken or killed or status < 0

    def _blame(self, worker: _Worker, mode: _Mode, status: int, *, killed: bool) -> None:
        """Attribute an end to the test or file it happened in."""
        how = worker.cause if killed else self._how(status)
        if mode is _Mode.RUNNING:
            outcome = Outcome.TIMED_OUT if killed else Outcome.CRASHED
            self._broke(worker, outcome, how)
        elif mode is _Mode.COLLECTING:
            detail = f"{_child(worker).stack()}\n{_child(worker).output(0)}".strip()
            error = CollectError(file=_step(worker).file, message=f"import: {how}", detail=detail)
            self._outcomes.collect_errors.append(error)
            if worker.rerun is None:
                self._scheduler.drop_file(worker.lane.name)
            worker.step = None
        elif mode is _Mode.STARTING:
            self._no_start(worker, how)
        elif mode is _Mode.ENDING or not killed:
            self._check_exit(worker, how, status, killed=killed)
        self._close_streak(worker)
        if worker.rerun and mode is not _Mode.STARTING:
            self._leave_episode(worker)

    def _broke(self, worker: _Worker, outcome: Outcome, how: str) -> None:
        """Record the running test's crash or hang."""
        child, step = _child(worker), _step(worker)
        attempt = self._attempt(
            worker,
            outcome,
            seconds=self._machine.clock() - worker.began,
            message=how,
            detail=child.stack(),
            output=child.output(worker.offset),
        )
        worker.step = None
        self._record(worker, str(step.test), attempt)

    def _leave_episode(self, worker: _Worker) -> None:
        rerun, left = worker.rerun, worker.left
        worker.rerun, worker.left = None, []
        if rerun and rerun.confirms and left:  # the suspect itself did not get through
            self._outcomes.confirmed(*rerun.tests, failed=False)

    def _no_start(self, worker: _Worker, how: str) -> None:
        """Try again once; a session that cannot begin has nothing to say of any test."""
        worker.starts += 1
        if worker.starts < START_ATTEMPTS:
            return
        output = _child(worker).output(0).strip()
        message = f"pytest did not start: {how}: {_last(output)}"
        self._outcomes.collect_errors.append(
            CollectError(file="(session)", message=message, detail=output)
        )
        self._stop = "pytest did not start"

    def _check_exit(self, worker: _Worker, how: str, status: int, *, killed: bool) -> None:
        """Hold what a worker reported against how it ended."""
        end = exits.End(
            process=f"process {worker.number} on {worker.lane.name}",
            last=worker.ran[-1] if worker.ran else "",
            how=how,
            status=status,
            killed=killed,
            failed=worker.failed,
            bye=worker.bye,
        )
        self._faults += exits.contradictions(end)
        self._faults += exits.strangers(end, self._plan.backend, self._plan.modules)

    def _abandon(self, worker: _Worker) -> None:
        """Give up a process that SIGKILL does not end; its devices stay with it."""
        child = _child(worker)
        if worker.was is _Mode.RUNNING:
            self._broke(worker, Outcome.TIMED_OUT, f"{worker.cause}, and it cannot be killed")
        self._close(worker, "abandoned: it cannot be killed")
        self._lose(worker, f"process {child.process.pid} cannot be killed")

    def _lose(self, worker: _Worker, reason: str) -> None:
        """Take a lane out of the run; what it had to do goes to the others."""
        worker.lost = reason
        self._enter(worker, _Mode.LOST)
        step, worker.step = worker.step, None
        if worker.rerun:
            self._outcomes.put_back(worker.rerun)
        elif step and step.test:
            self._scheduler.put_back(worker.lane.name, step.test)
        self._scheduler.give_back(worker.lane.name)
        for device in worker.lane.devices:
            self._machine.quarantine(device, reason)
        self._fault(State.INFRA, f"{worker.lane.name} is lost: {reason}")

    # --- devices ---------------------------------------------------------------------------------

    def _ask(self, worker: _Worker, command: Command) -> None:
        """Ask the device of a lane whether it still works."""
        with (self._plan.worker.logs / f"probe-{worker.lane.name}.log").open("ab") as output:
            worker.probe = self._machine.starter.start(command, output=output)
        self._enter(worker, _Mode.PROBING)

    def _look_at_probe(self, worker: _Worker, probe: subprocess.Popen[bytes]) -> None:
        status = probe.poll()
        if status is None and self._machine.clock() - worker.since <= START_SECONDS:
            return
        worker.probe = None
        if status == 0:
            worker.shaken = False
            self._enter(worker, _Mode.FREE)
            return
        how = f"no answer within {START_SECONDS:g} s" if status is None else describe(status)
        if status is None:
            self._machine.killpg(probe.pid, signal.SIGKILL)
        self._lose(worker, f"its device does not answer after a crash or hang: {how}")

    # --- ends ------------------------------------------------------------------------------------

    def _how(self, status: int) -> str:
        how = describe(status)
        if status == -signal.SIGKILL and self._machine.oom_kills() > self._ooms:
            self._ooms = self._machine.oom_kills()
            return f"{how}: out of memory"
        return how

    def _close(self, worker: _Worker, ended: str) -> None:
        child = _child(worker)
        for descriptor in child.descriptors:
            self._selector.unregister(descriptor)
        child.close()
        worker.child = None
        self._processes.append(
            ProcessRecord(
                number=worker.number,
                lane=worker.lane.name,
                start_ms=self._ms(worker.born - self._started),
                end_ms=self._ms(self._machine.clock() - self._started),
                ended=ended,
            )
        )

    def _cut(self, state: State, reason: str) -> None:
        self._fault(state, reason)
        self._stop = reason

    def _fault(self, state: State, message: str) -> None:
        self._faults.append(Fault(state=state, message=message))

    def _stop_all(self) -> None:
        """Leave no process behind, however the run ends."""
        for worker in self._workers:
            if worker.probe:
                self._machine.killpg(worker.probe.pid, signal.SIGKILL)
                worker.probe.wait()
            if worker.child:
                worker.child.kill(self._machine.killpg)
        for worker in self._workers:
            if worker.child:
                with suppress(subprocess.TimeoutExpired):
                    worker.child.process.wait(self._plan.kill_deadline)
                self._close(worker, f"killed: {self._stop}")

    def _snapshot(self, now: float) -> Snapshot:
        unknown = sum(self._expected.get(file, 0) for file in self._scheduler.uncollected)
        return Snapshot(
            done=self._outcomes.finished,
            total=self._outcomes.known + unknown,
            bad=self._outcomes.bad,
            lanes=tuple(
                (
                    worker.lane.name,
                    (worker.step.test or worker.step.file) if worker.step else worker.mode.value,
                    now - worker.since,
                )
                for worker in self._workers
            ),
        )

    @staticmethod
    def _ms(seconds: float) -> int:
        return max(0, round(1000 * seconds))


def _expected(plan: RunPlan) -> dict[str, int]:
    """How many tests each file had in earlier runs."""
    return Counter(test.partition("::")[0] for test in plan.estimates.tests)


def _child(worker: _Worker) -> Child:
    if worker.child is None:
        raise ValueError(f"{worker.lane.name} has no process")
    return worker.child


def _step(worker: _Worker) -> Step:
    if worker.step is None:
        raise ValueError(f"{worker.lane.name} has no step")
    return worker.step


def _first(text: str) -> str:
    return text.strip().partition("\n")[0]


def _last(text: str) -> str:
    """Return the last line, where a traceback says what it was."""
    return text.strip().rpartition("\n")[2].removeprefix("E").strip()
