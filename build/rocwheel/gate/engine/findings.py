"""Findings: what a run writes down, from the first attempt to its results.

Texts come from processes that may write anything; they are made printable here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from rocwheel.gate.engine import protocol
from rocwheel.gate.engine.lane_work import LaneWork
from rocwheel.gate.engine.outcomes import Outcomes
from rocwheel.gate.engine.plan import RunPlan, Watcher
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


class Findings:
    """All that a run found so far; `outcomes` are its tests."""

    def __init__(self, plan: RunPlan, clock: Callable[[], float], watcher: Watcher) -> None:
        self.outcomes = Outcomes(retry_limit=plan.retry_limit)
        self._plan, self._clock, self._watcher = plan, clock, watcher
        self._started = clock()
        self._faults: list[Fault] = []
        self._processes: list[ProcessRecord] = []

    @property
    def seconds(self) -> float:
        """How long the run has taken."""
        return self._clock() - self._started

    def fault(self, state: State, message: str) -> None:
        """Note what no single test's outcome says."""
        self._faults.append(Fault(state=state, message=protocol.one_line(message)))

    def collect_error(self, file: str, message: str, detail: str) -> None:
        """Note a file whose tests could not be listed."""
        self.outcomes.collect_errors.append(
            CollectError(
                file=protocol.one_line(file),
                message=protocol.one_line(message),
                detail=protocol.printable(detail),
            )
        )

    def attempt(
        self,
        work: LaneWork,
        outcome: Outcome,
        *,
        seconds: float,
        message: str,
        detail: str = "",
        output: str = "",
        left: Iterable[str] = (),
        figures: Mapping[str, int] | None = None,
    ) -> Attempt:
        """Return one attempt at a test by the process of a lane."""
        return Attempt(
            outcome=outcome,
            lane=work.lane.name,
            process=work.number,
            start_ms=_ms(work.began - self._started),
            duration_ms=_ms(seconds),
            message=protocol.one_line(message),
            detail=protocol.printable(detail),
            output=output,
            left=tuple(map(protocol.one_line, left)),
            figures={protocol.one_line(name): n for name, n in (figures or {}).items()},
        )

    def enter(
        self,
        work: LaneWork,
        test: str,
        attempt: Attempt,
        evidence: Iterable[str] = (),
        *,
        again: bool = True,
    ) -> None:
        """Enter an attempt, of a rerun or not; a bad one is tried `again`."""
        rerun, bad = work.rerun, attempt.outcome.bad
        if rerun and rerun.confirms:
            suspect, victim = rerun.tests
            if test == victim:
                self.outcomes.confirmed(suspect, victim, failed=bad)
        else:
            self.outcomes.attempted(
                test, attempt, evidence=evidence, retry=rerun is not None, again=again,
                before=work.before,
            )  # fmt: skip
            if bad:
                self._watcher.failed(test, attempt)
        if rerun is None:
            if bad:
                work.streak.append((test, work.before))
            else:
                self.close_streak(work)
            work.before = test

    def amend(self, work: LaneWork, outcome: Outcome, message: str) -> None:
        """Make the test that ran last what its end, or a late failure, showed it to be."""
        if outcome is Outcome.FAILED:
            work.late += 1
        if not (work.rerun and work.rerun.confirms):
            output = work.process.output(work.offset) if outcome is Outcome.CRASHED else ""
            self.outcomes.amend(work.last, outcome, protocol.one_line(message), output=output)

    def close_streak(self, work: LaneWork) -> None:
        """Tell of failures in a row, each with what ran before it."""
        before = {test: previous for test, previous in work.streak if previous}
        self.outcomes.streak([test for test, _ in work.streak], before)
        work.streak = []

    def check_exit(self, work: LaneWork, how: str, status: int, *, killed: bool) -> None:
        """Hold what a worker reported against how it ended."""
        end = exits.End(
            process=work.title,
            last=work.last,
            how=how,
            status=status,
            killed=killed,
            ran=work.ran,
            late=work.late,
            bye=work.bye,
        )
        for fault in exits.contradictions(end):
            self.fault(fault.state, fault.message)
        for fault in exits.strangers(end, self._plan.backend, self._plan.modules):
            self.fault(fault.state, fault.message)

    def process(self, work: LaneWork, ended: str) -> None:
        """Note the end of a lane's process."""
        child = work.process
        self._processes.append(
            ProcessRecord(
                number=work.number,
                lane=work.lane.name,
                start_ms=_ms(work.born - self._started),
                end_ms=_ms(self.seconds),
                ended=protocol.one_line(ended),
                log=child.log.name,
                left=child.left,
                extra=work.bye.extra if work.bye else (),
            )
        )

    def results(self, works: Iterable[LaneWork], waiting: Mapping[str, str]) -> Results:
        """Return everything; `waiting` maps a file or test that did not run to the reason."""
        plan = self._plan
        return Results(
            suite=plan.suite,
            shard=plan.shard,
            files=plan.files,
            suite_files=plan.suite_files,
            tests=self.outcomes.results(not_run=waiting),
            collect_errors=tuple(self.outcomes.collect_errors),
            lanes=tuple(
                LaneRecord(
                    name=work.lane.name,
                    devices=tuple(item.device for item in work.lane.devices),
                    lost=work.lost,
                )
                for work in works
            ),
            processes=tuple(self._processes),
            faults=tuple(self._faults),
            duration_ms=_ms(self.seconds),
        )


def _ms(seconds: float) -> int:
    return max(0, round(1000 * seconds))
