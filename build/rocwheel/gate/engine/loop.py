"""The engine: runs a suite's tests in worker processes, one per lane, and survives all of them.

A lane is one device (or several, for tests that need them) with the masks that give a process
exactly these. Everything a worker does is attributed to the test it was running: a crash, a hang
(its stacks are dumped first), an exit, a broken protocol. The rest of the suite goes on in a new
process. A process that cannot be killed is abandoned and its lane closed, as is a lane whose
device does not answer after a crash.

Tests are sent ahead, so that a worker need not wait; the worker reports which one begins. If none
had begun, the end of a process belongs to the test before.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import time
from contextlib import suppress
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from rocwheel.gate.engine import protocol
from rocwheel.gate.engine.child import Child, describe
from rocwheel.gate.engine.findings import Findings
from rocwheel.gate.engine.outcomes import STREAK
from rocwheel.gate.engine.plan import LaneMode, LaneWork, Snapshot, Supply
from rocwheel.gate.engine.protocol import BrokenProtocolError
from rocwheel.gate.engine.worker import supervisor
from rocwheel.records.results import CUT_SHORT, Outcome, Results
from rocwheel.records.verdict import State

if TYPE_CHECKING:
    from rocwheel.gate.engine.plan import RunPlan, Step, System, Watcher
    from rocwheel.gate.engine.protocol import Event

TICK: Final = 0.05  # seconds between looks at deadlines
DUMP_SECONDS: Final = 5.0  # for a stuck process to write its stacks, or not to
DUMPED_SECONDS: Final = 0.5  # without another word: it has written them
END_SECONDS: Final = 300.0  # for a worker to tear down and exit: compiled code by the gigabyte
START_SECONDS: Final = 120.0  # for an interpreter with pytest to come up
START_ATTEMPTS: Final = 2
_SHOWN: Final = re.compile(r"(?:^E(?:   .*)?$\n?)+", re.MULTILINE)  # how pytest shows an exception
TRIM_SECONDS: Final = 1.0  # between looks at the size of logs and processes


class TestRunner:
    def __init__(self, plan: RunPlan, system: System, watcher: Watcher) -> None:
        self._plan, self._system, self._watcher = plan, system, watcher
        self._findings = Findings(plan, system.clock, watcher)
        self._outcomes = self._findings.outcomes
        self._supply = Supply(plan, self._outcomes, system.clock)
        self._scheduler = self._supply.scheduler
        self._works = [LaneWork(lane=lane, since=system.clock()) for lane in plan.lanes]
        self._selector = selectors.DefaultSelector()
        self._started_processes = 0
        # files that a fresh process is to collect again, at first or for a test that was sent
        self._afresh: set[tuple[str, bool]] = set()
        self._stop = ""  # why the run ends now
        self._closing = ""  # why nothing new is begun
        self._ticked = self._trimmed = system.clock()
        self._ooms = system.oom_kills()
        self._strange = set(supervisor.children(os.getpid()))  # processes that are no lane's

    def run(self) -> Results:
        """Run everything; SIGINT (as KeyboardInterrupt) ends the run early, with its results."""
        self._plan.worker.logs.mkdir(parents=True, exist_ok=True)
        supervisor.adopt(orphans=True)
        try:
            while not self._over():
                self._turn()
        except KeyboardInterrupt:
            self._findings.fault(State.NOT_RUN, CUT_SHORT)
            self._stop = CUT_SHORT
        finally:
            self._stop_all()
            supervisor.adopt(orphans=False)
            self._selector.close()
        reason = self._stop or "its file could not be imported again"
        waiting = dict.fromkeys((*self._outcomes.unfinished, *self._scheduler.uncollected), reason)
        return self._findings.results(self._works, waiting)

    def _turn(self) -> None:
        for work in self._works:
            self._advance(work)
        if self._over():
            return
        for key, _ in self._selector.select(TICK):
            self._look(key.data)
        now = self._system.clock()
        if now - self._ticked < TICK:
            return
        self._ticked = now
        for work in self._works:
            self._look(work)
        if now - self._trimmed > TRIM_SECONDS:
            self._trimmed = now
            self._tend()
        if self._findings.seconds > self._plan.deadline:
            self._close_down(f"the deadline of {self._plan.deadline:g} s passed")
        now = self._system.clock()  # a lane may have begun something since the last reading
        lanes = ((w.lane.name, w.doing, now - max(w.since, w.began)) for w in self._works)
        self._watcher.progress(
            Snapshot(
                done=self._outcomes.finished,
                total=self._supply.total,
                bad=self._outcomes.bad,
                lanes=tuple(lanes),
            )
        )

    def _tend(self) -> None:
        for work in self._works:
            if work.child:
                work.child.tend()
                if work.mode is not LaneMode.ENDING:  # the reason for its end is still to come
                    work.full = 0 < self._plan.process_memory < work.child.memory()

    def _over(self) -> bool:
        if self._stop:
            return True
        if self._closing:
            if not any(work.mode in (LaneMode.DUMPING, LaneMode.KILLING) for work in self._works):
                self._stop = self._closing
            return bool(self._stop)
        if any(work.busy for work in self._works):
            return False
        if all(work.mode is LaneMode.LOST for work in self._works):
            self._stop = "no device is left"
            return True
        return self._scheduler.empty and not self._outcomes.waiting

    # --- work ------------------------------------------------------------------------------------

    def _advance(self, work: LaneWork) -> None:
        if self._closing:
            return
        if work.mode is LaneMode.RUNNING:
            self._send(work, self._supply.ahead(work))
        if work.mode not in (LaneMode.FREE, LaneMode.READY):
            return
        work.step = work.step or self._supply.next(work, self._works)
        if work.mode is LaneMode.READY and not self._supply.keeps(work):
            self._enter(work, LaneMode.ENDING)
            work.process.send(op="end")
        elif work.step is None:
            return
        elif work.mode is LaneMode.READY:
            self._go(work, work.step)
        elif work.suspect and work.lane.probe:
            with (self._plan.worker.logs / f"probe-{work.lane.name}.log").open("ab") as output:
                work.probe = self._system.starter.start(work.lane.probe, output=output)
            self._enter(work, LaneMode.PROBING)
        else:
            self._start(work)

    def _go(self, work: LaneWork, step: Step) -> None:
        work.step = None
        if step.file not in work.process.collected:
            work.collecting = step
            self._enter(work, LaneMode.COLLECTING)
            work.process.send(op="collect", file=step.file)
            return
        self._enter(work, LaneMode.RUNNING)
        work.began = work.since
        self._send(work, [step])
        self._send(work, self._supply.ahead(work))

    def _send(self, work: LaneWork, steps: list[Step]) -> None:
        if not steps:
            return
        work.sent += steps
        tests = [step.test for step in steps]
        work.process.send(op="run", tests=tests, then=steps[-1].then, batch=work.batch)

    def _start(self, work: LaneWork) -> None:
        self._started_processes += 1
        name = f"{self._started_processes:03d}-{work.lane.name}"
        lane, spec = work.lane, self._plan.worker
        child = Child(spec, self._system.starter, name=name, env=lane.env, cpus=lane.cpus)
        for descriptor in child.descriptors:
            self._selector.register(descriptor, selectors.EVENT_READ, work)
        work.new_process(child, self._started_processes, self._system.clock())

    def _enter(self, work: LaneWork, mode: LaneMode) -> None:
        work.mode, work.since = mode, self._system.clock()

    # --- what a worker says ----------------------------------------------------------------------

    def _look(self, work: LaneWork) -> None:
        if work.probe:
            self._look_at_probe(work, work.probe)
            return
        child = work.child
        if child is None or work.mode is LaneMode.LOST:
            return
        status = child.ended()  # before reading: what it said last is read in any case
        if child.orphaned and self._sweep():
            status = None
        try:
            for event in child.read():
                # what a process says once it is over its deadline changes nothing
                if work.mode not in (LaneMode.DUMPING, LaneMode.KILLING):
                    self._hear(work, event)
        except BrokenProtocolError as exc:
            if work.mode not in (LaneMode.DUMPING, LaneMode.KILLING):
                self._kill(work, f"it broke the protocol of workers: it {exc}", broken=True)
        if status is not None:
            self._ended(work, status)
        else:
            child.flush()
            self._watch(work)

    def _hear(self, work: LaneWork, event: Event) -> None:
        """Handle a message. Raises BrokenProtocolError for one at the wrong time."""
        match event, work.mode:
            case protocol.Ready(), LaneMode.STARTING:
                work.starts = 0
                self._enter(work, LaneMode.READY)
            case protocol.Collecting(), LaneMode.COLLECTING if event.file == work.wanted.file:
                work.importing = True
            case protocol.Collected(), LaneMode.COLLECTING if work.importing and (
                event.file == work.wanted.file
            ):
                self._collected(work, event)
            case protocol.Started(), LaneMode.RUNNING if (
                not work.running and work.sent and work.sent[0].test == event.test
            ):
                work.running = work.sent.popleft()
                work.began, work.offset = self._system.clock(), event.offset
            case protocol.Finished(), LaneMode.RUNNING if (
                work.running and work.running.test == event.test and event.batch == work.batch
            ):
                self._finished(work, work.running, event)
            case protocol.Late(), LaneMode.RUNNING | LaneMode.READY | LaneMode.ENDING if (
                not work.running and event.test == work.last
            ):
                self._findings.amend(work, Outcome.FAILED, event.message)
            case protocol.Stray(), _ if work.last or work.running:
                origin = f"{event.test} in " if event.test else ""
                self._findings.fault(State.FAIL, f"{origin}{work.title}: {event.message}")
            case protocol.Bye(), LaneMode.ENDING if not work.bye:
                work.bye = event
            case _:
                kind = type(event).__name__
                raise BrokenProtocolError(f"wrote {kind} while it was {work.mode.value}")
        if work.mode in (LaneMode.READY, LaneMode.RUNNING):
            self._advance(work)

    def _collected(self, work: LaneWork, event: protocol.Collected) -> None:
        if event.error and self._tries_afresh(work, _said(event.error)):
            work.step = work.wanted if work.wanted.test else None  # a test that it was sent
            work.collecting, work.importing = None, False
            self._enter(work, LaneMode.ENDING)
            work.process.send(op="end")
            return
        step, work.collecting, work.importing = work.wanted, None, False
        work.process.collected.add(step.file)
        self._enter(work, LaneMode.READY)
        if step.test is None:
            self._take_in(work, event)
        elif step.test in event.tests:
            work.step = step
        else:
            # the file was collected before: what differs now is not to be trusted
            message = event.error or f"{step.test} was not collected again"
            if not work.unanswered:
                self._findings.collect_error(step.file, _said(message), event.error)
            if work.rerun is None:
                self._scheduler.drop_file(work.lane.name)
            work.left = []

    def _take_in(self, work: LaneWork, event: protocol.Collected) -> None:
        """Record a file's tests, and skip those that are not to run."""
        file, plan = event.file, self._plan
        taken = [test for test in event.tests if test in self._outcomes]
        if event.error or taken:
            message = _said(event.error) if event.error else f"{taken[0]} is a test of another file"
            self._findings.collect_error(file, message, event.error)
            self._scheduler.drop_file(work.lane.name)
            return
        listed = zip(event.tests, event.lines, strict=True)
        tests = {test: line for test, line in listed if plan.wanted(test)}
        if event.skipped and not event.tests:  # a skip of the module hides all of its tests
            hidden = {test: 0 for test in plan.hidden(file) or (file,) if plan.wanted(test)}
            self._outcomes.collected(file, hidden, tags={})
            for test in hidden:
                self._outcomes.skip(test, event.skipped)
        self._outcomes.collected(file, tests, tags=event.tags)
        self._findings.dropped += event.dropped
        self._outcomes.deselected(file, filter(plan.wanted, event.deselected))
        run = []
        for test in tests:
            if reason := plan.skip(test):
                self._outcomes.skip(test, reason)
            else:
                run.append(test)
        self._scheduler.collected(work.lane.name, run, event.seconds)

    def _finished(self, work: LaneWork, step: Step, event: protocol.Finished) -> None:
        outcome = Outcome(event.outcome)
        output = work.process.output(work.offset, event.offset) if outcome.bad else ""
        attempt = self._findings.attempt(
            work,
            outcome,
            seconds=event.seconds,
            message=event.message,
            detail=event.detail,
            output=output,
            left=event.left,
            figures=event.figures,
        )
        self._scheduler.measured(step.file, event.test, event.seconds)
        work.running, work.last = None, event.test
        work.at_exit += [event.test] if event.exits else []
        if outcome.bad or not event.going:  # what was sent after it is not run
            work.batch += 1
            self._supply.take_back(work)
        if not work.sent:
            self._enter(work, LaneMode.READY if event.going else LaneMode.ENDING)
        self._findings.enter(work, event.test, attempt, event.evidence, again=not self._closing)
        if not outcome.bad:
            if len(work.history) == 1:  # the first of its process: replacing it helped
                work.suspicion = STREAK
        elif work.mode is LaneMode.READY:
            # an error that every later test of the process would meet
            if error := self._findings.of_device(attempt.message, attempt.detail):
                self._kill(work, f"its device is of no more use to it: {error[1]}")
            elif work.streak >= work.suspicion:
                work.suspicion *= 2  # until a replacement proves right
                self._kill(work, f"{work.streak} failures in a row")

    def _tries_afresh(self, work: LaneWork, why: str) -> bool:
        """Return whether a fresh process is to collect a file again: once, after another's work."""
        file, key = work.wanted.file, (work.wanted.file, work.wanted.test is not None)
        used = bool(work.history) or len(work.process.collected) > 0
        if not used or work.rerun or key in self._afresh:
            return False
        self._afresh.add(key)
        before = f", after {work.last}" if work.last else ""
        work.unfit = f", replaced: it could not collect {file}{before}: {why}"
        return True

    # --- what happens to a worker ----------------------------------------------------------------

    def _watch(self, work: LaneWork) -> None:
        plan, now = self._plan, self._system.clock()
        rerun, most = work.rerun, plan.test_deadline
        if rerun and work.running and work.running.test == rerun.tests[-1]:
            most = min(most, rerun.patience)
        match work.mode:
            case LaneMode.RUNNING if now - work.began > most:
                self._dump(work, f"no end after {most:g} s")
            case LaneMode.COLLECTING if now - work.since > plan.test_deadline:
                self._dump(work, f"no end of its import after {plan.test_deadline:g} s")
            case LaneMode.STARTING if now - work.since > START_SECONDS:
                self._dump(work, f"no start within {START_SECONDS:g} s")
            case LaneMode.ENDING if now - work.since > END_SECONDS:
                self._dump(work, f"no exit within {END_SECONDS:g} s")
            case LaneMode.DUMPING if now - work.since > DUMP_SECONDS or self._dumped(work, now):
                self._kill(work, work.cause)
            case LaneMode.KILLING if now - work.since > plan.kill_deadline:
                self._abandon(work)

    def _dump(self, work: LaneWork, cause: str) -> None:
        work.was, work.cause = work.mode, cause
        work.stacks, work.grew = "", self._system.clock()
        self._enter(work, LaneMode.DUMPING)
        work.process.dump()

    def _dumped(self, work: LaneWork, now: float) -> bool:
        """Return whether a process has written its stacks: on a busy machine that may be late."""
        stacks = work.process.stack()
        if stacks != work.stacks:
            work.stacks, work.grew = stacks, now
        return bool(stacks) and now - work.grew > DUMPED_SECONDS

    def _kill(self, work: LaneWork, cause: str, *, broken: bool = False) -> None:
        if work.mode is not LaneMode.DUMPING:
            work.was, work.cause, work.broken = work.mode, cause, broken
        self._enter(work, LaneMode.KILLING)
        work.process.kill(self._system.killpg)

    def _close_down(self, reason: str) -> None:
        """End the run, but first find out what every worker is doing."""
        if self._closing:
            return
        self._closing = reason
        named = []
        for work in self._works:
            if work.mode in (LaneMode.RUNNING, LaneMode.COLLECTING):
                named.append(work.doing)
                self._dump(work, f"{reason} while it ran")
            elif work.mode is LaneMode.ENDING:
                named.append(f"the end of {work.title}")
                self._dump(work, f"{reason} while it ended")
        during = f" during {', '.join(named)}" if named else ""
        self._findings.fault(State.TIMEOUT, f"{reason}{during}")

    def _ended(self, work: LaneWork, status: int) -> None:
        killed = work.mode in (LaneMode.DUMPING, LaneMode.KILLING)
        mode = work.was if killed else work.mode
        why = work.cause if killed else describe(status)
        if not killed and status == -signal.SIGKILL and self._system.oom_kills() > self._ooms:
            self._ooms = self._system.oom_kills()
            why += ": out of memory"
        self._blame(work, mode, why, status, killed=killed)
        full = ", replaced: it held too much memory" if work.spent and work.step else ""
        how = f"killed: {work.cause}" if killed else f"{describe(status)}{full}"
        self._close(work, f"{how}{work.unfit}")
        self._enter(work, LaneMode.FREE)
        work.suspect = work.suspect or killed or status < 0

    def _blame(
        self, work: LaneWork, mode: LaneMode, how: str, status: int, *, killed: bool
    ) -> None:
        hung = killed and not work.broken
        if mode is LaneMode.RUNNING:
            self._broke(work, Outcome.TIMED_OUT if hung else Outcome.CRASHED, how)
        elif mode is LaneMode.COLLECTING and not work.importing and work.last:
            self._findings.amend(work, Outcome.CRASHED, f"after it was reported: {how}")
            work.step, work.collecting = work.collecting, None
        elif mode is LaneMode.COLLECTING:
            self._no_import(work, how)
        elif mode is LaneMode.STARTING:
            self._no_start(work, how)
        elif work.broken and work.last:
            self._findings.amend(work, Outcome.CRASHED, how)
        elif mode is LaneMode.ENDING or not killed:
            if killed and work.process.stack():
                how = f"{how}; its stacks: {work.process.stacks.name}"
            self._findings.check_exit(work, how, status, killed=killed)
        if work.rerun and mode is not LaneMode.STARTING:
            self._findings.searched(work, bad=False)  # those before the victim did not get through
            work.rerun, work.left = None, []

    def _no_import(self, work: LaneWork, how: str) -> None:
        """Record that the import of a file ended its process, unless another process tries it."""
        if not self._tries_afresh(work, how):
            detail = f"{work.process.stack()}\n{work.process.output(0)}".strip()
            self._findings.collect_error(work.wanted.file, f"import: {how}", detail)
            if work.rerun is None:
                self._scheduler.drop_file(work.lane.name)
        else:
            work.step = work.collecting  # its next process begins with the test that was sent
        work.collecting = None

    def _broke(self, work: LaneWork, outcome: Outcome, how: str) -> None:
        """Record the crash or hang of the running test.

        If none had begun, the test before broke the process, or the first could not begin.
        """
        if work.running is None and work.last:
            self._findings.amend(work, outcome, f"after it was reported: {how}")
            self._supply.take_back(work)
            return
        step, work.running = work.running or work.sent.popleft(), None
        attempt = self._findings.attempt(
            work,
            outcome,
            seconds=self._system.clock() - work.began,
            message=how,
            detail=work.process.stack(),
            output=work.process.output(work.offset),
        )
        self._supply.take_back(work)
        self._findings.enter(work, str(step.test), attempt, again=not self._closing)

    def _no_start(self, work: LaneWork, how: str) -> None:
        """Try again once; a session that does not start says nothing about any test."""
        work.starts += 1
        if work.starts < START_ATTEMPTS:
            return
        output = work.process.output(0).strip()
        message = f"pytest did not start: {how}: {_last(output)}"
        self._findings.collect_error("(session)", message, output)
        self._stop = "pytest did not start"

    def _abandon(self, work: LaneWork) -> None:
        """Give up a process that SIGKILL does not end; its devices stay with it."""
        pid = work.process.process.pid
        if work.was is LaneMode.RUNNING:
            self._broke(work, Outcome.TIMED_OUT, f"{work.cause}, and it cannot be killed")
        self._close(work, "abandoned: it cannot be killed")
        self._lose(work, f"process {pid} cannot be killed")

    def _lose(self, work: LaneWork, reason: str) -> None:
        work.lost = reason
        self._enter(work, LaneMode.LOST)
        self._supply.lose(work)
        for device in work.lane.devices:
            self._system.quarantine(device, reason)
        self._findings.fault(State.INFRA, f"{work.lane.name} is lost: {reason}")

    # --- devices ---------------------------------------------------------------------------------

    def _look_at_probe(self, work: LaneWork, probe: subprocess.Popen[bytes]) -> None:
        status = probe.poll()
        if status is None and self._system.clock() - work.since <= START_SECONDS:
            return
        work.probe = None
        if status == 0:
            work.suspect = False
            self._enter(work, LaneMode.FREE)
            return
        how = f"no answer within {START_SECONDS:g} s" if status is None else describe(status)
        if status is None:
            self._system.killpg(probe.pid, signal.SIGKILL)
        self._lose(work, f"its device does not answer after a crash or hang: {how}")

    def _sweep(self) -> bool:
        """Kill what killed supervisors left to this process; return whether there was any."""
        own = {work.child.process.pid for work in self._works if work.child}
        own |= {work.probe.pid for work in self._works if work.probe}
        left = set(supervisor.children(os.getpid())) - own - self._strange
        for pid in left:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        return bool(left)

    # --- ends ------------------------------------------------------------------------------------

    def _close(self, work: LaneWork, ended: str) -> None:
        child = work.process
        for descriptor in child.descriptors:
            self._selector.unregister(descriptor)
        child.close()
        self._findings.process(work, ended)
        work.child = None

    def _stop_all(self) -> None:
        for work in self._works:
            if work.probe:
                self._system.killpg(work.probe.pid, signal.SIGKILL)
                work.probe.wait()
            if work.child:
                work.child.kill(self._system.killpg)
        for work in self._works:
            if work.child:
                with suppress(subprocess.TimeoutExpired):
                    work.child.process.wait(self._plan.kill_deadline)
                work.child.ended()
                self._close(work, f"killed: {self._stop}")
        until = self._system.clock() + self._plan.kill_deadline
        while self._sweep() and self._system.clock() < until:
            time.sleep(TICK)


def _said(error: str) -> str:
    """Return the line that states an error of pytest's.

    In tracebacks it is the first line of the last exception; indented lines are code.
    """
    shown = _SHOWN.findall(error)
    lines = [line[4:] for line in shown[-1].splitlines()] if shown else error.splitlines()
    worded = [line for line in lines if line.strip()]
    for line, following in zip_longest(worded, worded[1:], fillvalue=""):
        if not line[0].isspace():  # the text may begin with empty lines
            return f"{line.strip()} {following.strip()}" if line.strip()[-1] == ":" else line
    return _last(error)


def _last(text: str) -> str:
    return text.strip().rpartition("\n")[2].removeprefix("E").strip()
