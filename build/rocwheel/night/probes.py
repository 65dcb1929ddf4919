"""Probes: one test against one wheel set, as cells of a plan that an engine of nights runs.

They lie in a store of their own, `<store>/bisect`, so that what is built for one is never staged,
shown or promoted with the sets of nights. Its name is the digest of what it builds and asks: the
same question finds the answer in the store, on any machine and after any number of kills.
"""

import enum
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from rocwheel import __version__
from rocwheel.base import files
from rocwheel.base.errors import (
    BazelError,
    ConfigError,
    HostError,
    RocmError,
    SourceError,
    WheelError,
)
from rocwheel.base.values import Plain, canonical_json, replace
from rocwheel.base.versions import timestamp
from rocwheel.gate import subject
from rocwheel.night import standing
from rocwheel.night.standing import CellStanding
from rocwheel.records.results import Outcome
from rocwheel.records.verdict import FIRST_EXIT_CODE, SILENT, State
from rocwheel.release.ledger.nights import Book, Cell, NightPlan, Nights, Order

STORE: Final = ("--channel", "--store", "--channels-file")  # words that name one
# Each commit has a tree, and so a Bazel server, which nothing asks again.
LEAVES: Final = "--bazel-startup-options=--max_idle_secs=15"
# What tells of the set by a command's exit status: all else is the machine's, network's or store's.
REFUSED: Final = frozenset(
    kind.exit_code for kind in (WheelError, RocmError, SourceError, BazelError)
)
GONE: Final = frozenset({ConfigError.exit_code, WheelError.exit_code})  # a set that is withdrawn
FAILED: Final = frozenset({Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.FAILED})
VARIABLE: Final = re.compile(r"0x[0-9a-f]+|[0-9a-f]{8,}|[0-9]+")  # of a message, from run to run


class Side(Plain, frozen=True, kw_only=True):
    """A wheel set that a test is tried against: of a night, or built for the probe."""

    label: str
    gate: Cell  # that tried it, or would have
    manifest: str = ""  # of a night's own set
    build: Cell | None = None  # without staging and suffix; what makes any other set
    rocm: str = ""  # its source
    suffix: str = ""  # that begins the local version of what is built

    @property
    def identity(self) -> str:
        """What is built: the same digest is the same set."""
        build = self.build
        about = [build.argv, build.repository, build.commit, *build.xla] if build else []
        return files.sha256(canonical_json([__version__, *(about or [self.manifest])]))


class ProbeAnswer(enum.Enum):
    """What a probe says of a set."""

    GOOD = "good"
    BAD = "bad"
    OTHER = "another failure"
    FLAKY = "flaky"
    NOT_BUILT = "not built"
    ABSENT = "no such test"
    NO_SET = "no such set"


class Run(Plain, frozen=True, kw_only=True):
    """One probe that ended."""

    answer: ProbeAnswer
    why: str = ""
    probe: str = ""  # its plan
    manifest: str = ""
    took: int = 0  # milliseconds
    gpus: int = 0  # milliseconds of GPUs


class Probes(Plain, frozen=True, kw_only=True):
    """The probes of one test in a store; `run` has an engine run a plan until it is settled."""

    nights: Nights
    test: str
    metric: str = ""  # a number that the test reports, in place of pass and fail
    threshold: str = ""  # beyond which it is bad: "250", or "<250" where less is
    by: str
    run: Callable[[str], None]
    now: Callable[[], datetime]

    def __call__(self, side: Side, number: int) -> Run:
        """Return how the test did in its n-th probe against a set, from the store if it is there.

        Raises HostError where a machine kept it from ending, and StoreError.
        """
        manifest, took = side.manifest, 0
        if side.build:
            name = f"set-{side.identity[:16]}"
            built = self._settled(name, self._build(side, side.build))
            took = built.last.milliseconds if built.last and number == 1 else 0
            manifest = built.manifest
            if not manifest:
                return Run(answer=ProbeAnswer.NOT_BUILT, why=built.reason, probe=name, took=took)
        words = self.words(side, manifest)
        name = f"probe-{files.sha256(canonical_json([__version__, *words, number]))[:16]}"
        gate = replace(
            side.gate,
            name="gate.probe",
            kind="gate",
            argv=(*words, "--output={scratch}/results"),
            after=(),
            settled=(),
            shard="",
            kept="",
            why="bisect",
        )
        tried = self._settled(name, gate)
        of_gate = tried.last.milliseconds if tried.last else 0
        answer, why = self._measured(tried) if self.metric else _answer(tried)
        gpus = of_gate * gate.needs.gpus
        took += of_gate
        return Run(answer=answer, why=why, probe=name, manifest=manifest, took=took, gpus=gpus)

    def words(self, side: Side, manifest: str) -> tuple[str, ...]:
        """Return the words of a gate of the one test against a set."""
        gone = ("--manifest", "--shard", "--rocm", "--output", *(STORE if side.build else ()))
        place = (f"--store={self.nights.store.url}",) if side.build else ()
        kept = without(side.gate.argv, *gone)
        rocm = subject.rocm_option(side.rocm)
        return (*kept, *place, *rocm, f"--manifest={manifest}", f"--test={self.test}")

    def _build(self, side: Side, build: Cell) -> Cell:
        own = tuple(word for word in side.gate.argv if word.startswith("--family-file="))
        place = (f"--family={side.gate.family}", *own, f"--store={self.nights.store.url}")
        suffix = f"--wheel-suffix={side.suffix}.p{side.identity[:8]}"
        return replace(
            build,
            name="build.probe",
            argv=(*build.argv, suffix, LEAVES, "--wheelhouse={wheelhouse}"),
            stages=(("stage", "{wheelhouse}", *place),),
            kept="",
            why="bisect",
        )

    def _measured(self, tried: CellStanding) -> tuple[ProbeAnswer, str]:
        worst, limit = tried.last.worst if tried.last else None, float(self.threshold.lstrip("<"))
        if not worst or self.metric not in worst.figures:
            _, why = _answer(tried)
            return ProbeAnswer.ABSENT, f"reports no {self.metric} {why}".strip()
        number, is_less = worst.figures[self.metric], self.threshold.startswith("<")
        is_bad = number < limit if is_less else number > limit
        return ProbeAnswer.BAD if is_bad else ProbeAnswer.GOOD, f"{self.metric}: {number}"

    def _settled(self, name: str, cell: Cell) -> CellStanding:
        """Return where the one cell of a plan stands once it has ended."""
        one = standing.stand(self._book(name, cell))[cell.name]
        for _ in range(2):  # an engine that this one waits for may be killed
            if one.settled and says_nothing(one):
                time = timestamp(self.now())
                about = {"by": self.by, "reason": "the bisect goes on", "time": time}
                order = Order(action="retry", cell=cell.name, seen=len(one.attempts), **about)
                self.nights.order(name, order)
            if not one.settled or says_nothing(one):
                self.run(name)
                one = standing.stand(self.nights.book(name))[cell.name]
            if one.state is not State.NOT_RUN:
                break
        if not one.settled or one.state is None or says_nothing(one):
            raise HostError(
                f"{name}: {one.word}: {one.reason}", hint="run the same command again: it goes on"
            )
        return one

    def _book(self, name: str, cell: Cell) -> Book:
        with suppress(ConfigError):  # there is none, or another machine adds it now
            return self.nights.book(name)
        plan = NightPlan(
            night=name,
            made=timestamp(self.now()),
            by=self.by,
            tool=__version__,
            target=(f"--store={self.nights.store.url}",),
            recipes=(),
            cells=(cell,),
        )
        with suppress(ConfigError):
            self.nights.add(plan)
        return self.nights.book(name)


def says_nothing(one: CellStanding) -> bool:
    """Return whether a cell ended for a reason that is not its set's, such as a bug of ours."""
    if one.state in SILENT or one.passed or not one.last:
        return one.state in SILENT
    code = one.last.exit_code
    if one.cell.kind == "build":
        return code not in REFUSED
    return 0 < code < FIRST_EXIT_CODE and code not in GONE


def _answer(tried: CellStanding) -> tuple[ProbeAnswer, str]:
    last = tried.last
    worst = last.worst if last else None
    if worst and worst.outcome in FAILED:
        return ProbeAnswer.BAD, f"{worst.outcome.value}: {worst.message}"
    if worst and worst.outcome is Outcome.FLAKY:
        return ProbeAnswer.FLAKY, worst.message
    if worst and worst.outcome is Outcome.PASSED:
        return ProbeAnswer.GOOD, ""
    if worst or tried.state in {State.NOTHING_RAN, State.TOO_FEW_RAN}:
        return ProbeAnswer.ABSENT, worst.outcome.value if worst else tried.reason
    if last and last.exit_code in GONE:
        return ProbeAnswer.NO_SET, last.reason
    # its wheels cannot be installed, or imported
    return ProbeAnswer.BAD, f"{tried.word}: {tried.reason}"


def without(argv: Sequence[str], *names: str) -> tuple[str, ...]:
    """Return words without these options, which are written `--name=value`."""
    return tuple(word for word in argv if word.partition("=")[0] not in names)
