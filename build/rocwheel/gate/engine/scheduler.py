"""The scheduler: which lane runs which test next.

Files go longest first, and a lane without work takes some over from a slower one.

A file stays with the lane that collected it, so that it is imported once. A lane without work takes
over the end of another lane's file when both then finish earlier, the import of the file included.
Durations come from earlier runs. Files that never ran are ordered by size, and the tests measured
so far give their estimate.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocwheel.base.values import Plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

UNKNOWN_TEST: Final = 0.05  # seconds, until anything was measured
UNKNOWN_COLLECT: Final = 1.0
MEASURED: Final = 3  # tests of a file, before their mean stands for the others


class Step(Plain, frozen=True, kw_only=True):
    """What a lane does next: collect `file` when `test` is None, otherwise run the test."""

    file: str
    test: str | None = None
    then: str | None = None  # the likely next test of the same process


class Estimates(Plain, frozen=True, kw_only=True):
    """What is known before the run."""

    tests: Mapping[str, float] = {}  # node id -> seconds
    sizes: Mapping[str, int] = {}  # file -> bytes


@dataclass(kw_only=True)
class _Piece:
    file: str
    tests: deque[str] | None  # None: not collected yet


class Scheduler:
    """The tests of a run that no process has begun yet."""

    def __init__(self, files: Iterable[str], estimates: Estimates) -> None:
        self._known = dict(estimates.tests)
        self._collect: dict[str, float] = {}
        self._sums: dict[str, tuple[float, int]] = {}  # file -> measured seconds and tests
        self._held: dict[str, _Piece] = {}
        self._running: dict[str, tuple[str, float]] = {}  # lane -> test, since when

        known: dict[str, float] = defaultdict(float)
        for test, seconds in estimates.tests.items():
            known[test.partition("::")[0]] += seconds

        def rank(file: str) -> tuple[bool, float, int, str]:
            """Return the sort key: files never run come first, the largest before the others."""
            return file in known, -known.get(file, 0.0), -estimates.sizes.get(file, 0), file

        self._waiting = [_Piece(file=file, tests=None) for file in sorted(files, key=rank)]

    def next(self, lane: str, now: float) -> Step | None:
        """Take the next step for `lane`; None if no step would make the run end earlier."""
        self._running.pop(lane, None)
        piece = self._held.get(lane)
        if piece is None or (piece.tests is not None and not piece.tests):
            self._held.pop(lane, None)
            piece = self._waiting.pop(0) if self._waiting else self._take_over(now)
            if piece is None:
                return None
            self._held[lane] = piece
        if piece.tests is None:
            return Step(file=piece.file)
        if not piece.tests:  # a file without tests
            return self.next(lane, now)
        test = piece.tests.popleft()
        self._running[lane] = (test, now)
        return Step(file=piece.file, test=test, then=piece.tests[0] if piece.tests else None)

    def collected(self, lane: str, tests: Iterable[str], seconds: float) -> None:
        """Fill in the tests of the file that `lane` holds."""
        piece = self._held[lane]
        piece.tests = deque(tests)
        self._collect[piece.file] = seconds

    def measured(self, file: str, test: str, seconds: float) -> None:
        self._known[test] = seconds
        total, number = self._sums.get(file, (0.0, 0))
        self._sums[file] = (total + seconds, number + 1)

    def more(self, lane: str) -> bool:
        """Return whether the file that `lane` holds has tests that were not handed out."""
        piece = self._held.get(lane)
        return piece is not None and bool(piece.tests)

    def knows(self, lane: str) -> bool:
        """Return whether the durations of the tests that `lane` holds were measured."""
        piece = self._held.get(lane)
        if piece is None:
            return False
        measured = self._sums.get(piece.file, (0.0, 0))[1] >= MEASURED
        return measured or bool(piece.tests and piece.tests[0] in self._known)

    def put_back(self, lane: str, test: str) -> None:
        """Return a test that `lane` took and did not begin."""
        piece = self._held.get(lane)
        if piece is not None and piece.tests is not None:
            piece.tests.appendleft(test)

    def give_back(self, lane: str) -> None:
        """Put the work of a lost lane back to the front."""
        self._running.pop(lane, None)
        piece = self._held.pop(lane, None)
        if piece is not None and piece.tests != deque():
            self._waiting.insert(0, piece)

    def drop_file(self, lane: str) -> None:
        """Forget the file that `lane` holds: it cannot be collected."""
        self._held.pop(lane, None)

    @property
    def uncollected(self) -> tuple[str, ...]:
        pieces = (*self._held.values(), *self._waiting)
        return tuple(piece.file for piece in pieces if piece.tests is None)

    @property
    def empty(self) -> bool:
        """Return whether every test has been handed out."""
        pieces = (*self._held.values(), *self._waiting)
        return all(piece.tests is not None and not piece.tests for piece in pieces)

    def _take_over(self, now: float) -> _Piece | None:
        """Split the piece that would end last, when the split ends earlier."""
        victim = max(self._held, key=lambda lane: self._left(lane, now), default=None)
        if victim is None:
            return None
        piece = self._held[victim]
        if not piece.tests:
            return None
        theirs = self._left(victim, now)
        ours = self._collect.get(piece.file, UNKNOWN_COLLECT)
        taken: deque[str] = deque()
        while piece.tests:
            seconds = self.estimate(piece.file, piece.tests[-1])
            if ours + seconds >= theirs:
                break
            taken.appendleft(piece.tests.pop())
            ours, theirs = ours + seconds, theirs - seconds
        return _Piece(file=piece.file, tests=taken) if taken else None

    def _left(self, lane: str, now: float) -> float:
        """Return seconds until `lane` has finished its work."""
        piece = self._held[lane]
        left = sum(self.estimate(piece.file, test) for test in piece.tests or ())
        if lane in self._running:
            test, since = self._running[lane]
            expected, ran = self.estimate(piece.file, test), now - since
            # beyond its estimate a test is likely to go on for as long as it already has
            left += expected - ran if ran < expected else ran
        return left

    def estimate(self, file: str, test: str) -> float:
        """Return seconds a test is likely to take."""
        if test in self._known:
            return self._known[test]
        total, number = self._sums.get(file, (0.0, 0))
        if not number:
            total = sum(seconds for seconds, _ in self._sums.values())
            number = sum(count for _, count in self._sums.values())
        return total / number if number else UNKNOWN_TEST
