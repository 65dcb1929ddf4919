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

from rocwheel.results import Attempt, CollectError, Outcome, TestResult
from rocwheel.values import replace

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

STREAK: Final = 2  # failures in a row that make a process suspect


@dataclass(frozen=True, kw_only=True)
class Rerun:
    """Tests to run, in order, in a fresh process of their own."""

    tests: tuple[str, ...]
    avoid: str = ""  # the lane of the failed attempt: another device tells more
    confirms: bool = False  # (suspect, victim), instead of a retry


@dataclass(kw_only=True)
class _Entry:
    file: str
    tags: tuple[str, ...] = ()
    line: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    evidence: set[str] = field(default_factory=set)
    outcome: Outcome | None = None  # decided without an attempt, or against them
    reason: str = ""
    retried: bool = False


@dataclass(frozen=True, kw_only=True)
class _Streak:
    """Tests that failed in a row in one process, each with the test that ran before it."""

    tests: tuple[str, ...]
    before: Mapping[str, str]


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
        self._streaks: list[_Streak] = []  # whose tests are still being tried again
        self._victims: dict[str, tuple[str, ...]] = {}  # first victim -> all, while in question

    def collected(
        self,
        file: str,
        tests: Iterable[str],
        *,
        tags: Mapping[str, Sequence[str]],
        lines: Mapping[str, int],
    ) -> None:
        for test in tests:
            self._entries[test] = _Entry(
                file=file, tags=tuple(tags.get(test, ())), line=lines.get(test, 0)
            )

    def file(self, test: str) -> str:
        return self._entries[test].file

    def skip(self, test: str, reason: str, *, file: str | None = None) -> None:
        """Record a test that is not to run (or, with `file`, a whole file that skips itself)."""
        if file is not None:
            self._entries[test] = _Entry(file=file)
        entry = self._entries[test]
        entry.outcome, entry.reason = Outcome.SKIPPED, reason
        self.finished += 1

    def attempted(
        self, test: str, attempt: Attempt, *, evidence: Iterable[str] = (), retry: bool = False
    ) -> None:
        """Record an attempt; a bad first one is tried again while there are few of them."""
        entry = self._entries[test]
        entry.evidence.update(evidence)
        entry.attempts.append(attempt)
        if not attempt.outcome.bad:
            entry.reason = entry.reason or attempt.message
        if retry:
            entry.retried = True
            self._suspect()
            return
        self.finished += 1
        if attempt.outcome.bad:
            self.bad += 1
            if self.bad <= self._limit:
                self._retries.append(Rerun(tests=(test,), avoid=attempt.lane))

    def late(self, test: str, message: str) -> None:
        """Make a test that was reported well a failure: its fixture failed afterwards."""
        entry = self._entries[test]
        last = entry.attempts.pop()
        self.finished -= not entry.retried
        failed = replace(last, outcome=Outcome.FAILED, message=last.message or message)
        self.attempted(test, failed, retry=entry.retried)

    def streak(self, tests: Sequence[str], before: Mapping[str, str]) -> None:
        """Record failures in a row in one process; single ones say nothing."""
        if len(tests) >= STREAK:
            self._streaks.append(_Streak(tests=tuple(tests), before=dict(before)))
            self._suspect()

    def confirmed(self, suspect: str, victim: str, *, failed: bool) -> None:
        """Take the answer to a suspicion: whether `victim` failed after `suspect` again."""
        victims = self._victims.pop(victim)
        if not failed:
            return
        guilty = self._entries[suspect]
        guilty.outcome = Outcome.FAILED
        guilty.reason = (
            f"poisons its process: {len(victims)} tests after it failed there and pass alone"
        )
        for name in victims:
            entry = self._entries[name]
            entry.outcome = Outcome.PASSED
            entry.reason = f"failed after {suspect} in one process, passes alone"

    def rerun(self, lane: str, *, alone: bool) -> Rerun | None:
        """Take the next tests that need a fresh process; `alone`: no other lane could."""
        for number, rerun in enumerate(self._retries):
            if alone or rerun.avoid != lane:
                del self._retries[number]
                return rerun
        return None

    def put_back(self, rerun: Rerun) -> None:
        """Take back an rerun whose lane was lost before it ran."""
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
        found = [
            TestResult(
                test=test,
                outcome=self._outcome(entry),
                attempts=tuple(entry.attempts),
                reason=entry.reason or ("" if entry.attempts else not_run.get(test, "")),
                libraries=entry.tags,
                evidence=tuple(sorted(entry.evidence)),
                line=entry.line,
            )
            for test, entry in self._entries.items()
        ]
        found += [
            TestResult(test=name, outcome=Outcome.NOT_RUN, reason=reason)
            for name, reason in not_run.items()
            if name not in self._entries
        ]
        return tuple(found)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Tests that no process has finished."""
        return tuple(
            test
            for test, entry in self._entries.items()
            if not entry.attempts and entry.outcome is None
        )

    def _suspect(self) -> None:
        """Ask for a confirmation of every streak whose tests have all been tried again."""
        for streak in tuple(self._streaks):
            if not all(self._entries[test].retried for test in streak.tests):
                continue
            self._streaks.remove(streak)
            passing = self._passing(streak)
            suspect = streak.before.get(passing[0]) if passing else None
            if suspect is not None and len(passing) >= STREAK:
                self._victims[passing[0]] = passing
                self._retries.append(Rerun(tests=(suspect, passing[0]), confirms=True))

    def _passing(self, streak: _Streak) -> tuple[str, ...]:
        """Tests of a streak that passed when they were tried again."""
        entries = ((test, self._entries[test]) for test in streak.tests)
        return tuple(
            test
            for test, entry in entries
            if entry.retried and entry.attempts[-1].outcome is Outcome.PASSED
        )

    @staticmethod
    def _outcome(entry: _Entry) -> Outcome:
        if entry.outcome is not None:
            return entry.outcome
        if not entry.attempts:
            return Outcome.NOT_RUN
        outcomes = [attempt.outcome for attempt in entry.attempts]
        if not outcomes[0].bad:
            return outcomes[0]
        if outcomes[-1] in (Outcome.PASSED, Outcome.XFAILED):
            return Outcome.FLAKY
        return min(filter(lambda item: item.bad, outcomes), key=list(Outcome).index)
