"""Supply: what each lane does next, of the suite's tests and of those that must run again."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from rocwheel.gate.engine.lane_work import LaneMode, LaneWork
from rocwheel.gate.engine.outcomes import Outcomes
from rocwheel.gate.engine.plan import RunPlan
from rocwheel.gate.engine.scheduler import Scheduler, Step

AHEAD_SECONDS: Final = 0.1  # of tests a worker is sent before it asks
AHEAD_TESTS: Final = 32
AHEAD_UNKNOWN: Final = 2  # of a file of which nothing is known yet


class Supply:
    """The work of a run that no process has begun."""

    def __init__(self, plan: RunPlan, outcomes: Outcomes, clock: Callable[[], float]) -> None:
        self.scheduler = Scheduler(plan.files, plan.estimates)
        self._plan, self._outcomes, self._clock = plan, outcomes, clock
        self._expected = Counter(test.partition("::")[0] for test in plan.estimates.tests)

    def next(self, work: LaneWork, works: Sequence[LaneWork]) -> Step | None:
        """Take the next step for a lane; when all is handed out, a rerun of a bad test."""
        if work.rerun is None:
            step = self.scheduler.next(work.lane.name, self._clock())
            if step or work.mode is not LaneMode.FREE:
                return step
            near = frozenset(  # several processes on one GPU have a device in common
                item.lane.name for item in works if set(item.lane.devices) & set(work.lane.devices)
            )
            well = {item.lane.name for item in works if item.mode is not LaneMode.LOST}
            work.rerun = self._outcomes.rerun(near, alone=well <= near)
            work.left = list(work.rerun.tests) if work.rerun else []
            work.unanswered = bool(work.rerun and work.rerun.searches)
        if not work.left:
            return None
        test = work.left.pop(0)
        then = work.left[0] if work.left else None
        return Step(file=self._outcomes.file(test), test=test, then=then)

    def ahead(self, work: LaneWork) -> list[Step]:
        """Take the tests to send a running worker before it asks, of the file it is at."""
        scheduler, lane = self.scheduler, work.lane.name
        if work.rerun or work.step or work.full or not scheduler.more(lane):
            return []
        most = AHEAD_TESTS if scheduler.knows(lane) else AHEAD_UNKNOWN
        seconds = sum(scheduler.estimate(item.file, item.test or "") for item in work.sent)
        if len(work.sent) > most // 2 or seconds > AHEAD_SECONDS / 2:
            return []
        steps: list[Step] = []
        now = self._clock()
        while (
            len(work.sent) + len(steps) < most and seconds < AHEAD_SECONDS and scheduler.more(lane)
        ):
            step = scheduler.next(lane, now)
            if step is None:
                break
            steps.append(step)
            seconds += scheduler.estimate(step.file, step.test or "")
        return steps

    def take_back(self, work: LaneWork) -> None:
        """Return the tests that were sent and never begun."""
        for step in reversed(work.sent):
            if work.rerun:
                work.left.insert(0, str(step.test))
            else:
                self.scheduler.put_back(work.lane.name, str(step.test))
        work.sent.clear()

    def keeps(self, work: LaneWork) -> bool:
        """Whether the process of an idle lane has a use: its next step, or work to take over."""
        step = work.step
        if step is None:
            return not (work.rerun or self._outcomes.waiting or self.scheduler.empty)
        if work.spent:
            return False
        # some files must be alone in their process
        alone, seen = self._plan.alone, work.process.collected
        if step.file in seen or not seen or work.rerun:
            return True
        return step.file not in alone and not seen & alone

    def lose(self, work: LaneWork) -> None:
        """Give the work of a lost lane to the others."""
        step, work.step = work.step, None
        if work.rerun and work.rerun.searches and not work.unanswered:
            work.rerun = None
        elif work.rerun:
            self._outcomes.put_back(work.rerun)
        elif step and step.test:
            self.scheduler.put_back(work.lane.name, step.test)
        self.scheduler.give_back(work.lane.name)

    @property
    def total(self) -> int:
        """Tests of the run, as far as they are known or were met in earlier runs."""
        unknown = sum(self._expected.get(file, 0) for file in self.scheduler.uncollected)
        return self._outcomes.known + unknown
