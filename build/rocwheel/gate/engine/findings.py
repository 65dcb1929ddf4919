"""Findings: what a run writes down, from the first attempt to its results.

Texts come from processes that may write anything; they are made printable here, once.
"""

import os
from collections.abc import Callable, Iterable, Mapping

from rocwheel.gate.engine import protocol
from rocwheel.gate.engine.lane_work import LaneWork
from rocwheel.gate.engine.outcomes import Outcomes
from rocwheel.gate.engine.plan import RunPlan, Watcher
from rocwheel.gate.engine.protocol import Bye
from rocwheel.records.results import (
    Attempt,
    CollectError,
    Fault,
    LaneRecord,
    Outcome,
    ProcessRecord,
    Results,
)
from rocwheel.records.verdict import State


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
        self.outcomes.streak(dict(work.streak))
        work.streak = []

    def check_exit(self, work: LaneWork, how: str, status: int, *, killed: bool) -> None:
        """Hold what a worker reported against how it ended: agreement is silent."""
        last = f", after {work.last}" if work.last else ""
        if killed or work.bye is None:
            state = State.TIMEOUT if killed else State.CRASH
            self.fault(state, f"{work.title} ended badly{last}: {how}")
        if work.bye is None:
            return
        if not killed and (problem := _contradiction(work, work.bye, f"{how}{last}", status)):
            self.fault(State.CRASH if status < 0 else State.FAIL, f"{work.title}: {problem}")
        used, backend, folder = work.bye.backends, self._plan.backend, self._plan.modules
        if backend and used and backend not in used:
            self.fault(State.INFRA, f"{work.title} ran on {', '.join(used)}, not on {backend}")
        for module, path in work.bye.modules.items():
            if folder and not path.startswith(f"{folder}{os.sep}"):
                what = f"imported {module} from {path}, not from {folder}"
                self.fault(State.INFRA, f"{work.title} {what}")

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


def _contradiction(work: LaneWork, bye: Bye, end: str, status: int) -> str:
    """Return how counts of engine, worker and pytest differ, "" where they agree."""
    failed = work.ran["failed"] + work.late
    if status != int(failed > 0) or bye.failed != failed:
        return f"{end}, but {failed} failures heard of, {bye.failed} counted there"
    if dict(bye.ran) != dict(+work.ran):
        counts = (
            ", ".join(f"{number} {name}" for name, number in sorted(ran.items())) or "none"
            for ran in (work.ran, bye.ran)
        )
        return f"heard of {', counted there '.join(counts)}"
    if bye.pytest_failed and not failed:
        return f"pytest counted {bye.pytest_failed} failures, none was reported"
    return ""


def _ms(seconds: float) -> int:
    return max(0, round(1000 * seconds))
