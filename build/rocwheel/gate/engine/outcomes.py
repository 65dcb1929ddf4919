"""Outcomes: every test of a run with its attempts, and which tests must run again to know more.

A test that failed, crashed or hung runs once more in a fresh process. When several tests in a row
failed in one process and pass alone, the test before them is suspected of having poisoned the
process; running it and its first victim together in a fresh process confirms it or not. Nothing
here starts a process: the engine asks for the next `Rerun` and reports attempts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from rocwheel.base.console import count
from rocwheel.base.values import Plain, replace
from rocwheel.records.results import Attempt, CollectError, Outcome, TestResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

STREAK: Final = 2  # failures in a row that make a process suspect


class Rerun(Plain, frozen=True, kw_only=True):
    """Tests to run, in order, in a fresh process of their own."""

    tests: tuple[str, ...]
    avoid: str = ""  # the lane of the failed attempt: another device tells more
    confirms: bool = False  # (suspect, victim), instead of a retry


@dataclass(kw_only=True, slots=True)
class _Entry:
    file: str
    tags: tuple[str, ...] = ()
    line: int = 0
    attempts: tuple[Attempt, ...] = ()
    evidence: frozenset[str] = frozenset()
    before: str = ""  # the test that ran before it in its process, where it crashed
    outcome: Outcome | None = None  # decided without an attempt, or against them
    reason: str = ""
    retried: bool = False
    streak: Mapping[str, str] = field(default_factory=dict)  # it failed in: see `streak`
    victims: int = 0


class Outcomes:
    """Every test of a run: what it is, its attempts, its outcome."""

    def __init__(self, *, retry_limit: int) -> None:
        """`retry_limit` failures are tried again; a suite with more of them is not flaky."""
        self.collect_errors: list[CollectError] = []
        self.finished = 0  # tests with an outcome that is not going to change by running others
        self.bad = 0
        self._limit = retry_limit
        self._entries: dict[str, _Entry] = {}
        self._retries: deque[Rerun] = deque()
        self._victims: dict[str, tuple[str, ...]] = {}  # first victim -> all, while in question

    def collected(
        self, file: str, tests: Mapping[str, int], *, tags: Mapping[str, Sequence[str]]
    ) -> None:
        """Enter the tests of a file, each with its line."""
        for test, line in tests.items():
            self._entries[test] = _Entry(file=file, tags=tuple(tags.get(test, ())), line=line)

    def __contains__(self, test: str) -> bool:
        return test in self._entries

    def file(self, test: str) -> str:
        return self._entries[test].file

    def skip(self, test: str, reason: str) -> None:
        """Record a test that is not to run."""
        entry = self._entries[test]
        entry.outcome, entry.reason = Outcome.SKIPPED, reason
        self.finished += 1

    def deselected(self, file: str, tests: Iterable[str]) -> None:
        """Record tests that pytest left out by its options."""
        for test in tests:
            self._entries.setdefault(test, _Entry(file=file, outcome=Outcome.DESELECTED))

    def attempted(
        self,
        test: str,
        attempt: Attempt,
        *,
        evidence: Iterable[str] = (),
        retry: bool = False,
        again: bool = True,
        before: str = "",
    ) -> None:
        """Record an attempt; a bad first one is tried `again` while there are few of them.

        `before` is the test that ran before it in its process.
        """
        entry = self._entries[test]
        if attempt.outcome is Outcome.CRASHED and not retry:
            entry.before = before
        if evidence:
            entry.evidence |= frozenset(evidence)
        entry.attempts = (*entry.attempts, attempt)
        if not attempt.outcome.bad:
            entry.reason = entry.reason or attempt.message
        if retry:
            self._tried_again(test, entry)
            return
        self.finished += 1
        if attempt.outcome.bad:
            self.bad += 1
            if again and self.bad <= self._limit:
                self._retries.append(Rerun(tests=(test,), avoid=attempt.lane))

    def amend(self, test: str, outcome: Outcome, message: str, *, output: str = "") -> None:
        """Make the last attempt at a test worse than it was reported: it broke something later."""
        entry = self._entries[test]
        *before, last = entry.attempts
        worse = replace(
            last, outcome=outcome, message=last.message or message, output=last.output or output
        )
        if last.outcome.bad:  # it is counted and tried again already
            entry.attempts = (*before, worse)
            return
        entry.attempts = tuple(before)
        self.finished -= not entry.retried
        self.attempted(test, worse, retry=entry.retried)

    def streak(self, streak: Mapping[str, str]) -> None:
        """Record failures in a row in one process; single ones say nothing.

        Each test has the one that ran before it, "" where none did.
        """
        if len(streak) < STREAK:
            return
        for test in streak:
            self._entries[test].streak = streak
        self._suspect(streak)

    def confirmed(self, suspect: str, victim: str, *, failed: bool) -> None:
        """Take the answer to a suspicion: whether `victim` failed after `suspect` again."""
        victims = self._victims.pop(victim)
        if not failed:
            return
        guilty, crash = self._entries[suspect], bool(self._entries[victim].before)
        guilty.outcome = Outcome.CRASHED if crash else Outcome.FAILED
        guilty.victims = len(victims)
        did, others = "crashed" if crash else "failed", count(len(victims), "test")
        guilty.reason = f"poisons its process: {others} after it {did} there and pass alone"
        for name in victims:
            entry = self._entries[name]
            entry.outcome = Outcome.PASSED
            entry.reason = f"{did} after {suspect} in one process, passes alone"

    def rerun(self, near: frozenset[str], *, alone: bool) -> Rerun | None:
        """Take the next tests that need a fresh process, on another device than before.

        `near` are the lanes of the device that asks; `alone`: no other device could.
        """
        for number, rerun in enumerate(self._retries):
            if alone or rerun.avoid not in near:
                del self._retries[number]
                return rerun
        return None

    def put_back(self, rerun: Rerun) -> None:
        """Take back a rerun whose lane was lost before it ran."""
        self._retries.appendleft(rerun)

    @property
    def waiting(self) -> bool:
        return bool(self._retries)

    @property
    def known(self) -> int:
        """Tests seen so far."""
        return len(self._entries)

    def results(self, *, not_run: Mapping[str, str]) -> tuple[TestResult, ...]:
        """Return every test; `not_run` maps a file or a test without an attempt to the reason."""
        tests = [
            TestResult(
                test=test,
                outcome=_outcome(entry),
                attempts=entry.attempts,
                reason=entry.reason or ("" if entry.attempts else not_run.get(test, "")),
                libraries=entry.tags,
                evidence=tuple(sorted(entry.evidence)),
                line=entry.line,
                victims=entry.victims,
            )
            for test, entry in self._entries.items()
        ]
        tests += [
            TestResult(test=name, outcome=Outcome.NOT_RUN, reason=reason)
            for name, reason in not_run.items()
            if name not in self._entries
        ]
        return tuple(tests)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Tests that no process has finished."""
        return tuple(
            test
            for test, entry in self._entries.items()
            if not entry.attempts and entry.outcome is None
        )

    def _tried_again(self, test: str, entry: _Entry) -> None:
        if entry.retried:
            return
        entry.retried = True
        if entry.streak:
            self._suspect(entry.streak)
        elif entry.before and entry.attempts[-1].outcome is Outcome.PASSED:
            self._victims[test] = (test,)
            self._retries.append(Rerun(tests=(entry.before, test), confirms=True))

    def _suspect(self, streak: Mapping[str, str]) -> None:
        """Ask for a confirmation of a streak, once all of its tests have been tried again."""
        entries = {test: self._entries[test] for test in streak}
        if not all(entry.retried for entry in entries.values()):
            return
        ends = {test: entry.attempts[-1].outcome for test, entry in entries.items()}
        passing = tuple(test for test, outcome in ends.items() if outcome is Outcome.PASSED)
        if len(passing) >= STREAK and streak[passing[0]]:
            self._victims[passing[0]] = passing
            self._retries.append(Rerun(tests=(streak[passing[0]], passing[0]), confirms=True))


def _outcome(entry: _Entry) -> Outcome:
    """Return one outcome of all attempts: a crash or a hang stays one, whatever came after."""
    if entry.outcome is not None:
        return entry.outcome
    if not entry.attempts:
        return Outcome.NOT_RUN
    outcomes = [attempt.outcome for attempt in entry.attempts]
    if not outcomes[0].bad:
        return outcomes[0]
    worst = min(filter(lambda item: item.bad, outcomes), key=list(Outcome).index)
    if worst is Outcome.FAILED and outcomes[-1] in (Outcome.PASSED, Outcome.XFAILED):
        return Outcome.FLAKY
    return worst
