"""What a run is given, the state of its lanes, and what each of them does next."""

from __future__ import annotations

import enum
import os
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Final

from rocwheel.base.values import Plain
from rocwheel.gate.engine.outcomes import STREAK

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rocwheel.base.process import Command, HostRunner
    from rocwheel.bazel import KnownFailure
    from rocwheel.gate.engine.child import Child, WorkerSpec
    from rocwheel.gate.engine.outcomes import Outcomes, Rerun
    from rocwheel.gate.engine.protocol import Bye
    from rocwheel.gate.machine.accelerators import Accelerator
    from rocwheel.records.results import Attempt

AHEAD_SECONDS: Final = 0.1  # of tests a worker is sent before it asks
AHEAD_TESTS: Final = 32
AHEAD_UNKNOWN: Final = 2  # of a file of which nothing is known yet
UNKNOWN_TEST: Final = 0.05  # seconds, until anything was measured
UNKNOWN_COLLECT: Final = 1.0
MEASURED: Final = 3  # tests of a file, before their mean stands for the others


class Step(Plain, frozen=True, kw_only=True):
    """What a lane does next: collect `file` when `test` is None, otherwise run the test."""

    file: str
    test: str | None = None
    then: str | None = None  # the likely next test of the same process


class Estimates(Plain, frozen=True, kw_only=True):
    tests: Mapping[str, float] = {}  # node id -> seconds
    sizes: Mapping[str, int] = {}  # file -> bytes


class Lane(Plain, frozen=True, kw_only=True):
    """Where processes run: their devices, the environment for these, and a check of them."""

    name: str
    devices: tuple[Accelerator, ...]
    env: Mapping[str, str]
    cpus: range = range(0)  # that its processes keep to, of those of this one; none: all
    probe: Command | None = None  # exits 0 while the devices answer


class RunPlan(Plain, frozen=True, kw_only=True):
    suite: str
    shard: str
    files: tuple[str, ...]
    suite_files: tuple[str, ...]
    worker: WorkerSpec
    lanes: tuple[Lane, ...]
    test_deadline: float
    deadline: float  # of the whole run
    retry_limit: int
    backend: str = ""  # that JAX must have used, where a worker used JAX
    modules: str = ""  # folder that watched modules must have come from
    alone: frozenset[str] = frozenset()  # files that need a process of their own
    process_memory: int = 0  # bytes; a process that holds more is sent no other test; 0 for any
    hidden: Callable[[str], tuple[str, ...]] = lambda _file: ()  # tests of a file, unimported
    estimates: Estimates = Estimates()
    wanted: Callable[[str], bool] = lambda _test: True  # whether a test is looked at at all
    skip: Callable[[str], str] = lambda _test: ""  # the reason not to run a test
    device_errors: tuple[KnownFailure, ...] = ()
    kill_deadline: float = 10.0


class System(Plain, frozen=True, kw_only=True):
    starter: HostRunner
    clock: Callable[[], float]
    killpg: Callable[[int, int], None] = os.killpg
    oom_kills: Callable[[], int] = lambda: 0
    quarantine: Callable[[Accelerator, str], object] = lambda _device, _reason: None


class Snapshot(Plain, frozen=True, kw_only=True):
    done: int
    total: int  # as far as it is known
    bad: int
    lanes: tuple[tuple[str, str, float], ...]  # name, what it does, for how many seconds


class Watcher:
    """Gets the events of a run; this one ignores them."""

    def progress(self, snapshot: Snapshot) -> None: ...

    def failed(self, test: str, attempt: Attempt) -> None: ...


class LaneMode(enum.Enum):
    FREE = "free"
    STARTING = "starting"
    READY = "ready"
    COLLECTING = "collecting"
    RUNNING = "running"
    ENDING = "ending"
    DUMPING = "dumping stacks"
    KILLING = "killing"
    PROBING = "probing the device"
    LOST = "lost"


@dataclass(kw_only=True, slots=True)
class LaneWork:
    lane: Lane
    mode: LaneMode = LaneMode.FREE
    since: float = 0.0  # when the mode began
    step: Step | None = None  # what comes next, and cannot begin yet
    rerun: Rerun | None = None
    left: list[str] = field(default_factory=list)  # tests of the rerun still to send
    unanswered: bool = False  # whether the search that the rerun is for waits for its answer
    suspicion: int = STREAK  # failures in a row after which the process is replaced
    starts: int = 0  # that failed, in a row
    probe: subprocess.Popen[bytes] | None = None
    suspect: bool = False  # something broke: ask the device before going on
    lost: str = ""  # why no further process is started

    # of the process
    child: Child | None = None
    number: int = 0
    born: float = 0.0
    collecting: Step | None = None
    importing: bool = False  # whether it said that it began to
    sent: deque[Step] = field(default_factory=deque)  # tests it was sent and did not begin
    running: Step | None = None  # the test it began last, while that runs
    batch: int = 0  # grows with every failure: what was sent before is void
    began: float = 0.0  # when the running test did
    offset: int = 0  # of the log, where it began
    last: str = ""  # the test that it finished last
    history: list[str] = field(default_factory=list)  # tests that it ran, in order
    streak: int = 0  # failures in a row
    bye: Bye | None = None
    at_exit: list[str] = field(default_factory=list)  # tests that registered what runs at its end
    was: LaneMode = LaneMode.FREE  # what it did when it had to be stopped
    cause: str = ""  # why it had to be
    stacks: str = ""  # what it has written of them by now
    grew: float = 0.0  # when that became more
    broken: bool = False  # because it broke the protocol
    full: bool = False  # it holds more memory than a process may that goes on
    unfit: str = ""  # why another process is to try what this one could not

    def new_process(self, child: Child, number: int, now: float) -> None:
        fresh = LaneWork(lane=self.lane, child=child, number=number, born=now, began=now)
        for name in OF_PROCESS:
            setattr(self, name, getattr(fresh, name))
        self.mode, self.since = LaneMode.STARTING, now

    @property
    def spent(self) -> bool:
        """Whether the process must be replaced before its next test; each runs one at least."""
        return self.full and bool(self.history) and self.rerun is None

    @property
    def busy(self) -> bool:
        return self.mode not in (LaneMode.FREE, LaneMode.LOST) or self.step is not None

    @property
    def process(self) -> Child:
        if self.child is None:
            raise ValueError(f"{self.lane.name} has no process")
        return self.child

    @property
    def wanted(self) -> Step:
        if self.collecting is None:
            raise ValueError(f"{self.lane.name} collects nothing")
        return self.collecting

    @property
    def title(self) -> str:
        return f"process {self.number} on {self.lane.name}"

    @property
    def doing(self) -> str:
        """What it does, in a word or the name of a test or file."""
        step = self.running or self.collecting or (self.sent[0] if self.sent else None)
        return (step.test or step.file) if step else self.mode.value


_FIELDS: Final = [field.name for field in fields(LaneWork)]
OF_PROCESS: Final = _FIELDS[_FIELDS.index("child") :]


@dataclass(kw_only=True)
class _Piece:
    file: str
    tests: deque[str] | None  # None: not collected yet


class Scheduler:
    """The tests of a run that no process has begun: files longest first.

    A file stays with the lane that collected it, so that it is imported once. A lane without work
    takes over the end of another lane's file when both then finish earlier, the import of the file
    included. Durations come from earlier runs. Files that never ran are ordered by size, and the
    tests measured so far give their estimate.
    """

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
        self._held.pop(lane, None)

    @property
    def uncollected(self) -> tuple[str, ...]:
        pieces = (*self._held.values(), *self._waiting)
        return tuple(piece.file for piece in pieces if piece.tests is None)

    @property
    def empty(self) -> bool:
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
        piece = self._held[lane]
        left = sum(self.estimate(piece.file, test) for test in piece.tests or ())
        if lane in self._running:
            test, since = self._running[lane]
            expected, ran = self.estimate(piece.file, test), now - since
            # beyond its estimate a test is likely to go on for as long as it already has
            left += expected - ran if ran < expected else ran
        return left

    def estimate(self, file: str, test: str) -> float:
        if test in self._known:
            return self._known[test]
        total, number = self._sums.get(file, (0.0, 0))
        if not number:
            total = sum(seconds for seconds, _ in self._sums.values())
            number = sum(count for _, count in self._sums.values())
        return total / number if number else UNKNOWN_TEST


class Supply:
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
