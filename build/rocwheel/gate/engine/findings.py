"""Findings: the record of a run, from the first attempt to its results.

Texts come from processes that may write anything; they are made printable here, once.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rocwheel.gate.engine import protocol
from rocwheel.gate.engine.outcomes import Outcomes
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rocwheel.bazel import KnownFailure
    from rocwheel.gate.engine.plan import LaneWork, RunPlan, Watcher


class Findings:
    """All that a run found so far; `outcomes` are its tests."""

    def __init__(self, plan: RunPlan, clock: Callable[[], float], watcher: Watcher) -> None:
        self.outcomes = Outcomes(retry_limit=plan.retry_limit)
        self._plan, self._clock, self._watcher = plan, clock, watcher
        self._started = clock()
        self.dropped: tuple[str, ...] = ()  # what pytest said that it does not collect
        self._faults: list[Fault] = []
        self._processes: list[ProcessRecord] = []

    @property
    def seconds(self) -> float:
        return self._clock() - self._started

    def fault(self, state: State, message: str) -> None:
        self._faults.append(Fault(state=state, message=protocol.one_line(message)))

    def collect_error(self, file: str, message: str, detail: str) -> None:
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
        texts = attempt.message, attempt.detail, attempt.output
        if rerun and rerun.searches:
            if test == rerun.tests[-1]:
                self.searched(work, bad=bad)
        else:
            self.outcomes.attempted(
                test, attempt, evidence=evidence, retry=rerun is not None, again=again,
                before=work.history,
                machine=self._of_machine(*texts) if bad else "",
            )  # fmt: skip
            if bad:
                self._watcher.failed(test, attempt)
        work.history.append(test)
        work.streak = work.streak + 1 if bad and rerun is None else 0

    def of_device(self, *texts: str) -> tuple[KnownFailure, str] | None:
        """Return the device error in these texts of an attempt, and its name."""
        for error in self._plan.device_errors:
            for text in texts:
                if match := error.pattern.search(text):
                    return error, match[0]
        return None

    def _of_machine(self, *texts: str) -> str:
        """Return the machine's error that an attempt met, and what to do about it; or ""."""
        error = self.of_device(*texts)
        return f"{error[1]}; {error[0].remedy}" if error and error[0].cause == "machine" else ""

    def searched(self, work: LaneWork, *, bad: bool) -> None:
        if work.rerun and work.unanswered:
            work.unanswered = False
            self.outcomes.searched(work.rerun, bad=bad)

    def amend(self, work: LaneWork, outcome: Outcome, message: str) -> None:
        """Change the outcome of the last test after its process's end, or a late failure."""
        if not (work.rerun and work.rerun.searches):
            output = work.process.output(work.offset) if outcome is Outcome.CRASHED else ""
            self.outcomes.amend(
                work.last, outcome, protocol.one_line(message), output=output,
                before=work.history[:-1], machine=self._of_machine(message, output),
            )  # fmt: skip

    def check_exit(self, work: LaneWork, how: str, status: int, *, killed: bool) -> None:
        """Compare a worker's report with how it ended; a difference is a fault."""
        last = f", after {work.last}" if work.last else ""
        if work.at_exit:
            last += f" (functions that run then are of {', '.join(work.at_exit[-3:])})"
        if killed or work.bye is None:
            state = State.TIMEOUT if killed else State.CRASH
            self.fault(state, f"{work.title} ended badly{last}: {how}")
        if work.bye is None:
            return
        if not killed and status != int(work.bye.failed > 0):
            what = f"{how}{last}, but {work.bye.failed} failures counted there"
            self.fault(State.CRASH if status < 0 else State.FAIL, f"{work.title}: {what}")
        used, backend, folder = work.bye.backends, self._plan.backend, self._plan.modules
        if backend and used and backend not in used:
            self.fault(State.INFRA, f"{work.title} ran on {', '.join(used)}, not on {backend}")
        for module, path in work.bye.modules.items():
            if folder and not path.startswith(f"{folder}{os.sep}"):
                what = f"imported {module} from {path}, not from {folder}"
                self.fault(State.INFRA, f"{work.title} {what}")

    def process(self, work: LaneWork, ended: str) -> None:
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
        for test, why in self.outcomes.of_machine:
            self.fault(State.INFRA, f"{test}: {why}")
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
            dropped=tuple(map(protocol.one_line, self.dropped)),
            duration_ms=_ms(self.seconds),
        )


def _ms(seconds: float) -> int:
    return max(0, round(1000 * seconds))
