"""Outcomes: every test of a run with its attempts, and which tests must run again to know more.

A test that failed, crashed or hung runs once more in a fresh process. If it passes alone, the
tests that ran before it in its process may have left something. They run again in their order, and
the test after them; the more recent ones first, then all. If it goes wrong again, the run is halved
until one necessary test is left. Eight more runs, four with that test and four without it, must
show the same, or the victim is flaky by itself; then that test is named, and the victim passed.
Nothing here starts a process: the engine asks for the next `Rerun` and reports attempts.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocwheel.base.console import count
from rocwheel.base.values import Plain, replace
from rocwheel.records.results import Attempt, CollectError, Outcome, TestResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

STREAK: Final = 2  # failures in a row that make a process suspect
GROWTH: Final = 4  # how much longer each history is that is tried after another
MOST_HISTORY: Final = 1800.0  # seconds of tests that are run again before a victim
PATIENCE: Final = 30.0  # seconds for a victim to pass behind others, and ten times what it took
CONFIRMED: Final = (True, False, False, True, True, False, True, False)  # with it, or without
_DID: Final = {Outcome.CRASHED: "crashed", Outcome.TIMED_OUT: "hung", Outcome.FAILED: "failed"}


class Rerun(Plain, frozen=True, kw_only=True):
    """Tests to run, in order, in a fresh process of their own."""

    tests: tuple[str, ...]
    avoid: str = ""  # the lane of the failed attempt: another device shows more
    searches: bool = False  # for who left what the last test met, instead of a retry
    patience: float = float("inf")  # seconds for the last test of a search


@dataclass(kw_only=True, slots=True)
class _Entry:
    file: str
    tags: tuple[str, ...] = ()
    line: int = 0
    attempts: tuple[Attempt, ...] = ()
    evidence: frozenset[str] = frozenset()
    before: tuple[str, ...] = ()  # the tests that ran before it in its process, where it went wrong
    outcome: Outcome | None = None  # decided without an attempt, or against them
    reason: str = ""
    retried: bool = False
    victims: int = 0
    machine: str = ""  # what its first attempt met that is the machine's


@dataclass(kw_only=True, slots=True)
class _Search:
    """A search for the test that left what `victim` met, in ever shorter parts of `history`."""

    victim: str
    history: tuple[str, ...]
    bad: int = -1  # a start behind which the victim goes wrong; -1: none is known
    good: int  # the first start behind which it is known to pass
    start: int  # of the run that was asked for
    leaver: str = ""  # one that is known to leave something, tried by itself
    confirmed: int = 0  # runs that showed again what the search found


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
        self._search: dict[int, _Search] = {}  # by the process in which its victim went wrong
        self._victims: dict[int, deque[str]] = {}  # of the same, still to be looked into
        self._leavers: dict[int, str] = {}

    def collected(
        self, file: str, tests: Mapping[str, int], *, tags: Mapping[str, Sequence[str]]
    ) -> None:
        for test, line in tests.items():
            self._entries[test] = _Entry(file=file, tags=tuple(tags.get(test, ())), line=line)

    def __contains__(self, test: str) -> bool:
        return test in self._entries

    def file(self, test: str) -> str:
        return self._entries[test].file

    def skip(self, test: str, reason: str) -> None:
        entry = self._entries[test]
        entry.outcome, entry.reason = Outcome.SKIPPED, reason
        self.finished += 1

    def deselected(self, file: str, tests: Iterable[str]) -> None:
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
        before: Sequence[str] = (),
        machine: str = "",
    ) -> None:
        """Record an attempt; a bad first one is tried `again` while there are few of them.

        `before` are the tests that ran before it in its process, in order; `machine` is an error of
        the machine that it met.
        """
        entry = self._entries[test]
        if attempt.outcome.bad and not retry and self.bad < self._limit:
            entry.before = tuple(before)
        if evidence:
            entry.evidence |= frozenset(evidence)
        entry.attempts = (*entry.attempts, attempt)
        if not attempt.outcome.bad:
            entry.reason = entry.reason or attempt.message
        if retry:
            self._tried_again(test, entry, machine)
            return
        entry.machine = machine
        self.finished += 1
        if attempt.outcome.bad:
            self.bad += 1
            if again and self.bad <= self._limit:
                self._retries.append(Rerun(tests=(test,), avoid=attempt.lane))

    def amend(
        self,
        test: str,
        outcome: Outcome,
        message: str,
        *,
        output: str = "",
        before: Sequence[str] = (),
        machine: str = "",
    ) -> None:
        """Record that the last attempt at a test was worse than reported: it broke something."""
        entry = self._entries[test]
        *earlier, last = entry.attempts
        worse = replace(
            last, outcome=outcome, message=last.message or message, output=last.output or output
        )
        if last.outcome.bad:  # it is counted and tried again already
            entry.attempts = (*earlier, worse)
            return
        entry.attempts = tuple(earlier)
        self.finished -= not entry.retried
        self.attempted(test, worse, retry=entry.retried, before=before, machine=machine)

    def searched(self, rerun: Rerun, *, bad: bool) -> None:
        process = self._entries[rerun.tests[-1]].attempts[0].process
        search = self._search[process]
        if search.leaver:
            if bad:
                self._left(process, search.leaver)
                return
            search.leaver = ""
        elif search.bad >= 0 and search.good - search.bad == 1:
            if bad is not CONFIRMED[search.confirmed]:
                self._next_victim(process)  # by itself it goes wrong only sometimes
                return
            search.confirmed += 1
        elif bad:
            search.bad = search.start
        else:
            search.good = search.start
        self._look(process)

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
        self._retries.appendleft(rerun)

    @property
    def of_machine(self) -> list[tuple[str, str]]:
        return [(test, entry.machine) for test, entry in self._entries.items() if entry.machine]

    @property
    def waiting(self) -> bool:
        return bool(self._retries)

    @property
    def known(self) -> int:
        return len(self._entries)

    def results(self, *, not_run: Mapping[str, str]) -> tuple[TestResult, ...]:
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
        return tuple(
            test
            for test, entry in self._entries.items()
            if not entry.attempts and entry.outcome is None
        )

    def _tried_again(self, test: str, entry: _Entry, machine: str) -> None:
        if entry.retried:
            return
        entry.retried = True
        passes = entry.attempts[-1].outcome is Outcome.PASSED
        if entry.machine and passes:
            entry.outcome, entry.reason = Outcome.PASSED, f"{entry.machine}; passes on another try"
        elif machine:  # on two devices, or twice on one: it is the test that does it
            entry.machine = ""
        elif entry.before and passes:
            process = entry.attempts[0].process
            self._victims.setdefault(process, deque()).append(test)
            if process not in self._search:
                self._next_victim(process)

    def _next_victim(self, process: int) -> None:
        self._search.pop(process, None)
        if not (victims := self._victims.get(process)):
            return
        victim = victims.popleft()
        history, seconds = self._entries[victim].before, 0.0
        for start in range(len(history) - 1, -1, -1):
            attempts = self._entries[history[start]].attempts
            seconds += attempts[0].duration_ms / 1000 if attempts else 0.0
            if seconds > MOST_HISTORY:
                history = history[start + 1 :]
                break
        known = self._leavers.get(process, "")
        search = _Search(
            victim=victim, history=history, good=len(history), start=len(history),
            leaver=known if known in history else "",
        )  # fmt: skip
        self._search[process] = search
        self._look(process)

    def _look(self, process: int) -> None:
        """Ask for the next run of a search, or end it."""
        search = self._search[process]
        if search.leaver:
            self._ask(search, (search.leaver,))
            return
        if search.bad < 0:  # not seen again yet
            tried = len(search.history) - search.good
            if not search.good:
                self._next_victim(process)  # it was not they
                return
            search.start = max(0, len(search.history) - max(1, tried * GROWTH))
        elif search.good - search.bad == 1:
            if search.confirmed == len(CONFIRMED):
                self._left(process, search.history[search.bad])
                return
            search.start = search.bad if CONFIRMED[search.confirmed] else search.good
        else:
            search.start = (search.bad + search.good) // 2
        self._ask(search, search.history[search.start :])

    def _ask(self, search: _Search, before: tuple[str, ...]) -> None:
        entry = self._entries[search.victim]
        alone = entry.attempts[-1].duration_ms / 1000
        self._retries.append(
            Rerun(
                tests=(*before, search.victim),
                avoid=entry.attempts[0].lane,
                searches=True,
                patience=PATIENCE + 10 * alone,
            )
        )

    def _left(self, process: int, leaver: str) -> None:
        victim = self._search[process].victim
        self._leavers[process] = leaver
        guilty, entry = self._entries[leaver], self._entries[victim]
        first = entry.attempts[0].outcome
        did = _DID[first]
        guilty.victims += 1
        guilty.outcome = min((_outcome(guilty), first), key=list(Outcome).index)
        left = next((f" ({', '.join(item.left)})" for item in guilty.attempts if item.left), "")
        others = count(guilty.victims, "test")
        alone = "passes alone" if guilty.victims == 1 else "pass alone"
        guilty.reason = f"poisons its process{left}: {others} after it {did} there and {alone}"
        entry.outcome = Outcome.PASSED
        entry.reason = f"{did} after {leaver} in one process, passes alone"
        self._next_victim(process)


def _outcome(entry: _Entry) -> Outcome:
    """Return one outcome of all attempts: a crash or a hang stays one after a later pass."""
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
