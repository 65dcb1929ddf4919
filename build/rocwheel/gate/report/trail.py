"""The trail of a failing test: its attempts, the processes they ran in, how to run it again."""

import shlex

from rocwheel.base.console import count
from rocwheel.base.values import Plain
from rocwheel.records.results import Attempt, LastRun, Results, TestResult


class AttemptPlace(Plain, frozen=True, kw_only=True):
    """Where an attempt ran."""

    lane: str
    process: int
    ended: str  # how the process did, where this was its last test; "" elsewhere
    log: str  # its file, in the folder `logs` beside the page
    number: int  # of the tests in its process, from 1
    before: str  # the test that ran there before it, "" for the first
    ms: int


class Trail(Plain, frozen=True, kw_only=True):
    """The facts about one test that went wrong."""

    test: TestResult
    again: str  # the line that runs it again, "" when unknown
    change: str  # against the last run of the cell, "" when there is none
    ends: tuple[tuple[Attempt, AttemptPlace], ...]


class Trails:
    """The trails of a run's tests."""

    def __init__(self, results: Results, last: LastRun | None) -> None:
        self._command = results.environment.get("command", "")
        self._last = last
        # by lane, process, start and test
        self._places: dict[tuple[str, int, int, str], AttemptPlace] = {}
        processes = {(item.lane, item.number): item for item in results.processes}
        ran = [(attempt, test.test) for test in results.tests for attempt in test.attempts]
        ran.sort(key=lambda item: item[0].start_ms)  # at the same millisecond in the file's order
        last_of = {(item.lane, item.process): (item.start_ms, name) for item, name in ran}
        before: dict[tuple[str, int], tuple[int, str]] = {}  # in a process: number of a test, name
        for attempt, name in ran:
            where = attempt.lane, attempt.process
            known, (number, earlier) = processes.get(where), before.get(where, (0, ""))
            before[where] = (number + 1, name)
            self._places[attempt.lane, attempt.process, attempt.start_ms, name] = AttemptPlace(
                lane=attempt.lane,
                process=attempt.process,
                ended=known.ended if known and last_of[where] == (attempt.start_ms, name) else "",
                log=known.log if known else "",
                number=number + 1,
                before=earlier,
                ms=attempt.duration_ms,
            )

    def of(self, test: TestResult) -> Trail:
        change = ""
        if self._last:
            was = self._last.bad.get(test.test)
            change = f"{was} in the last run too" if was else "new: not so in the last run"
        ends = tuple((item, self.place(test.test, item)) for item in test.attempts)
        return Trail(test=test, again=self.again(test.test), change=change, ends=ends)

    def again(self, test: str) -> str:
        """Return the line that runs one test again, with the same wheels."""
        words = shlex.split(self._command)
        return shlex.join(["rocwheel", *words, f"--test={test}"]) if words else ""

    def place(self, test: str, attempt: Attempt) -> AttemptPlace:
        """Return where an attempt at a test ran."""
        return self._places[attempt.lane, attempt.process, attempt.start_ms, test]


def summary(results: Results, last: LastRun | None) -> str:
    """Compare with the last run of the cell, in a sentence."""
    if last is None:
        return "No run of this suite, family and CPython is known to compare this one with."
    new = sum(test.test not in last.bad for test in results.failures)
    old = len(results.failures) - new
    fixed = {t.test for t in results.tests if t.attempts and not t.outcome.bad} & set(last.bad)
    return (
        f"Against the last run ({last.state.value}, {last.ended}): {count(new, 'new failure')}, "
        f"{old} known from it, {len(fixed)} fixed."
    )
