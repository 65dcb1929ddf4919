"""The facts about a night: verdict, causes, what users have of it, and what changed.

`truth` alone derives them. `run`, `status`, `check`, `changes`, the page, its feed and its badge
print that value. Its summary is stored, so that a page of thirty nights reads thirty objects, and
so that a later night can be compared with it: with the newest that was over when that was planned.
"""

import enum
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, ClassVar, Final, Literal

from amdgpu_family_matrix import Family
from rocwheel.base.assets import template
from rocwheel.base.choices import ALL, TEST_KINDS
from rocwheel.base.console import count, duration
from rocwheel.base.errors import ConfigError
from rocwheel.base.parallel import each
from rocwheel.base.store import Store
from rocwheel.base.values import Plain, Value, replace
from rocwheel.base.versions import WheelKind, moment, timestamp
from rocwheel.night import slurm, standing
from rocwheel.night.bisect import Bisection, BisectRequest
from rocwheel.night.probes import VARIABLE
from rocwheel.night.standing import CellStanding
from rocwheel.records.install import Install
from rocwheel.records.results import KNOWN, MACHINE
from rocwheel.records.verdict import SILENT, State
from rocwheel.release import status
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger import log, manifests
from rocwheel.release.ledger.nights import (
    LASTING,
    LATE,
    Book,
    CauseClass,
    Nights,
    Phase,
    WheelRecipe,
)
from rocwheel.release.ledger.state import IndexState, Standing

LISTED: Final = 40  # changes in a message
STATES: Final = frozenset(state.value for state in State)
PAST: Final = 7  # nights among which the last summary is looked for: one may have left none
BUILDS: Final = 200  # sets whose inputs are remembered
BAD: Final = frozenset(State) - SILENT - {State.PASS, State.FLAKY}
REPAIRED: Final = frozenset({CauseClass.INPUTS, CauseClass.MACHINE, CauseClass.STORE})
UNDER_WAY: Final = frozenset({Phase.WAITING, Phase.RUNNING})
NEVER_RAN: Final = 2 * 3600  # seconds after which a night that was planned should have begun
# In which nothing of a night began or ended, though cells could: an engine here starts them within
# seconds, a cluster's node may have to boot.
STALLED: Final = {"local": timedelta(minutes=2), "slurm": timedelta(minutes=15)}
STOPPED: Final = (CauseClass.LOST, CauseClass.STORE)  # nothing may be left that tries it again
SLOWER: Final = (1.5, 300_000)  # a cell that took so many times as long, and so many ms more
BIGGER: Final = 1.05  # a wheel that grew so many times


class CellSummary(Value, frozen=True, kw_only=True):
    """How one cell of one night ended, as the page shows it."""

    name: str
    kind: str
    family: str = ""
    python: str = ""
    suite: str = ""
    wheels: str = ""
    shard: str = ""
    phase: Phase = Phase.ENDED
    state: State | None = None  # None before the first attempt ended
    excused: bool = False  # that it is absent, or has no runner
    cause: CauseClass | None = None
    reason: str = ""
    image: str = ""  # a runtime image that there is: NAME:TAG@sha256:…
    link: str = ""  # key
    log: str = ""  # key
    host: str = ""
    attempts: int = 0
    milliseconds: int = 0
    time: str = ""  # when it ended
    gpus: int = 0
    waited: int = 0  # milliseconds from when it could begin until it began
    testing: int = 0  # milliseconds in which a test ran

    @property
    def word(self) -> str:
        """The state as people read it."""
        if self.state is None or self.phase in {*UNDER_WAY, Phase.BARRED}:
            return self.phase.value
        return self.cause.value if self.cause is CauseClass.LOST else self.state.value

    @property
    def colour(self) -> str:
        """Which of five colours it has."""
        missing = self.phase is Phase.ABSENT
        lasts = self.phase is Phase.ENDED and self.cause in LASTING
        if self.excused and (missing or self.state is State.NO_RUNNER):
            return "none"
        if missing or lasts or (self.state in BAD and self.phase not in UNDER_WAY):
            return "bad"
        if self.state is None or self.phase in UNDER_WAY or self.state is State.NOT_RUN:
            return "idle"
        return "good" if self.state is State.PASS else "warn"

    @property
    def after(self) -> str:
        """The cell because of which it did not run, or was refused; else some text."""
        return self.reason.removeprefix(f"{self.name}: ").partition(": ")[0]

    @property
    def of_set(self) -> tuple[str, str]:
        """Family and wheel set that it is about."""
        return self.family, self.wheels

    @property
    def identity(self) -> tuple[str, ...]:
        """The identity of the cell across nights, independent of its suite's shards."""
        own = (self.wheels, self.family, self.python, self.suite)
        return own if self.kind in TEST_KINDS else (self.name,)


class FamilySummary(Value, frozen=True, kw_only=True):
    """A family's sets, as `status` shows them."""

    family: str
    green: str = ""  # manifest of the newest released set
    green_since: str = ""
    install: Install | None = None  # how that set is installed
    sizes: Mapping[str, int] = {}  # bytes of its largest wheel of each kind
    blocked: str = ""  # what holds up the newest set that is not released
    blocked_set: str = ""


class NightSummary(Value, frozen=True, kw_only=True):
    """The summary of one night, from which pages are made."""

    night: str
    made: str
    written: str
    by: str
    tool: str
    cells: tuple[CellSummary, ...]
    families: tuple[FamilySummary, ...]
    recipes: tuple[WheelRecipe, ...] = ()  # with what was built
    builds: tuple[WheelRecipe, ...] = ()  # the newest of each name that was, kept or not
    quarantined: tuple[tuple[str, str], ...] = ()
    stopped: str = ""
    data: tuple[str, ...] = ()  # of its plan
    nothing_built: bool = False
    seconds: int = 0  # from plan to the last end
    schema: Literal[3] = 3
    schema_hint: ClassVar[str] = "pages leave it out; `nightly prune` removes it in time"

    @property
    def colour(self) -> str:
        """The worst colour of its cells."""
        return "bad" if self.nothing_built else worst(self.cells)

    @property
    def red(self) -> int:
        """How many cells are red, not counting a promotion that one of them holds up."""
        bad = {cell.name: cell for cell in self.cells if cell.colour == "bad"}
        return sum(cell.after not in bad for cell in bad.values())

    @property
    def verdict(self) -> str:
        """How the night ended, in a few words."""
        if self.nothing_built:
            return "nothing was built"
        if self.red:
            return f"{self.red} red"
        lost = sum(cell.cause is CauseClass.LOST for cell in self.cells)
        if any(cell.phase in {*UNDER_WAY, Phase.OPEN} for cell in self.cells):
            return f"{lost} lost, not finished" if lost else "not finished"
        left_out = all(c.phase is Phase.BARRED for c in self.cells if c.colour == "idle")
        idle = "yellow" if left_out else "not finished"  # dropped by a person
        return {"good": "green", "warn": "yellow", "idle": idle}.get(self.colour, "empty")

    @property
    def impact(self) -> str:
        """Which families got its sets, and what the others keep."""
        wanted = dict.fromkeys(name for recipe in self.recipes for name in recipe.families)
        wanted |= dict.fromkeys(c.family for c in self.cells if c.family and c.colour != "none")
        if not wanted:
            return ""
        of = {item.family: item for item in self.families}
        made = {(name, r.manifest) for r in self.recipes if r.manifest for name in r.families}
        lack = [name for name in wanted if name not in of or (name, of[name].green) not in made]
        noun = "family" if len(wanted) == 1 else "families"
        parts = [f"{len(wanted) - len(lack)} of {len(wanted)} {noun} released"]
        kept: dict[str, list[str]] = {}
        for name in lack:
            has = of[name].install if name in of and of[name].green else None
            what = f"JAX {has.jax} of {day(of[name].green_since)}" if has else ""
            kept.setdefault(what, []).append(name)
        for what, (first, *more) in kept.items():
            verb = ("keep" if what else "have") if more else ("keeps" if what else "has")
            who = f"{first} and {len(more)} more" if more else first
            parts.append(f"{who} {verb} {what or 'no release'}")
        return "; ".join(parts)

    @property
    def short(self) -> str:
        """Verdict, impact and day, as a title."""
        parts = (self.verdict, self.impact.partition(";")[0], day(self.made))
        return " · ".join(filter(None, parts))

    @property
    def over(self) -> str:
        """The time when its last cell ended, as far as known."""
        return timestamp(moment(self.made) + timedelta(seconds=self.seconds))

    def of_family(self, family: str) -> list[CellSummary]:
        """Return the cells of a family, and the shared ones of its wheel sets."""
        own = [cell for cell in self.cells if cell.family == family]
        sets = {cell.wheels for cell in own}
        common = (c for c in self.cells if c.kind == "build" and not c.family)
        return own + [cell for cell in common if cell.wheels in sets]


def worst(cells: Sequence[CellSummary]) -> str:
    """Return the worst colour of cells."""
    colours = {cell.colour for cell in cells}
    return next((name for name in ("bad", "warn", "idle", "good") if name in colours), "none")


def day(time: str) -> str:
    """Return a time as people write a day: 24 November."""
    return f"{moment(time):%d %B}".lstrip("0")


class CellChange(enum.Enum):
    """A cell against the same cell of the night before, the most urgent first."""

    NEW = "new failure"
    FAILS = "fails"  # in a night that nothing can be compared with
    ABSENT = "absent"
    NOT_RUN = "no longer run"
    FLAKY = "flaky"
    INFRA = "infra"
    STILL = "still failing"
    SLOWER = "slower"
    FIXED = "fixed"
    SAME = ""


QUIET: Final = frozenset({CellChange.STILL, CellChange.SLOWER, CellChange.SAME})
LOUD: Final = {
    State.NOT_RUN: CellChange.NOT_RUN,
    State.FLAKY: CellChange.FLAKY,
    State.INFRA: CellChange.INFRA,
    State.NO_RUNNER: CellChange.INFRA,
}


class Changed(Plain, frozen=True, kw_only=True):
    """A cell whose state people want to know, and the night since which it has that state."""

    cell: CellSummary
    change: CellChange
    since: str

    @property
    def what(self) -> str:
        """The change as people read it."""
        is_other = self.change is CellChange.FAILS and self.cell.state is not State.FAIL
        return self.cell.word if is_other else self.change.value


def _spoken(summary: NightSummary) -> dict[tuple[str, ...], CellSummary]:
    """Return one cell for each identity: of a suite the merge, or its worst gate."""
    cells: dict[tuple[str, ...], CellSummary] = {}
    for cell in sorted(summary.cells, key=lambda cell: cell.kind == "merge"):
        old = cells.get(cell.identity)
        code = cell.state.exit_code if cell.state else -1
        if not old or cell.kind == "merge" or code > (old.state.exit_code if old.state else -1):
            cells[cell.identity] = cell
    return cells


def _change(cell: CellSummary, old: CellSummary | None, *, has_before: bool) -> CellChange:
    if cell.phase in UNDER_WAY or cell.colour == "none":
        return CellChange.SAME
    if cell.colour == "good":
        if old and old.phase not in UNDER_WAY and old.colour in {"bad", "warn", "idle"}:
            return CellChange.FIXED
        times, more = SLOWER
        before = old.milliseconds if old and cell.phase is not Phase.KEPT else 0
        is_slower = before and cell.milliseconds > max(before * times, before + more)
        return CellChange.SLOWER if is_slower else CellChange.SAME
    is_infra = cell.state is State.INFRA  # of several causes
    is_same = old and old.word == cell.word and (old.cause is cell.cause or not is_infra)
    if is_same or (old and old.state in BAD and cell.state in BAD):
        return CellChange.STILL
    if not has_before:
        return CellChange.FAILS
    loud = LOUD.get(cell.state, CellChange.NEW) if cell.state else CellChange.ABSENT
    return CellChange.NEW if cell.state and cell.colour == "bad" else loud


@dataclass
class Cause:
    """One reason why cells did not pass: the first of them, all of them, and what waits."""

    first: CellSummary
    cells: list[CellSummary] = field(default_factory=list)
    held: list[str] = field(default_factory=list)  # cells that did not run because of these
    change: Changed | None = None  # the most urgent of its cells

    @property
    def what(self) -> str:
        """Its cause in a word."""
        return self.first.cause.value if self.first.cause else self.first.word

    @property
    def todo(self) -> str:
        """What to do before its lines are typed."""
        cause = self.first.cause
        if self.first.phase not in {Phase.ENDED, Phase.OPEN} or cause not in REPAIRED:
            return ""
        named = " that the plan names" if self.otherwise else ""
        return f"repair the {cause.value}{named}, then "

    @property
    def otherwise(self) -> str:
        """What else helps: a plan never changes."""
        is_over = self.first.phase is Phase.ENDED and self.first.cause is CauseClass.INPUTS
        return "if the plan is wrong, plan another night" if is_over else ""

    def ask(self, lines: Iterable[str]) -> str:
        """Return what to do, with its lines, as the end of a sentence about it."""
        typed = (self.todo or "run ") + ", then ".join(f"`{line}`" for line in lines)
        return "; ".join(filter(None, (typed, self.otherwise)))

    def lines(self, of: NightSummary) -> Iterator[str]:
        """Yield the lines to type, without the program and the store."""
        first, night = self.first, of.night
        promotion = next(
            (c for c in of.cells if c.kind == "promote" and c.of_set == first.of_set), None
        )
        if first.phase is Phase.OPEN:
            yield f"nightly run {night}"
        elif first.phase is Phase.ABSENT:
            yield " ".join(("nightly plan --dry-run --explain", shlex.join(of.data))).rstrip()
        elif first.state is State.FLAKY and promotion:
            if promotion.state is State.PASS:  # a person has approved it
                yield f"nightly cell {night} {first.name} --dry-run"
                return
            made = (x.manifest[:12] for x in of.recipes if x.name == first.wheels and x.manifest)
            own = [word for word in of.data if word.startswith("--family-file=")]
            words = (
                f"--manifest={next(made, 'SET')}", f"--family={first.family}", *own,
                f"--approve={first.suite}:{first.python}", "--by=NAME", "--reason=WHY",
            )  # fmt: skip
            yield f"promote {shlex.join(words)}"
            yield f"nightly retry {night} {promotion.name} --reason=WHY"
            yield f"nightly run {night}"
        elif first.cause in {CauseClass.TESTS, CauseClass.WHEELS} and first.kind != "promote":
            yield f"nightly cell {night} {first.name} --dry-run"
        else:
            yield f"nightly retry {night} {self._again(of)} --reason=WHY"

    def _again(self, of: NightSummary) -> str:
        """Return the cell to try again: that whose verdict a promotion did not find, or itself."""
        first = self.first
        again = (
            cell.name
            for cell in of.cells
            if first.kind == "promote" and cell.phase is Phase.ENDED and not cell.shard
            if cell.of_set == first.of_set
            and f"{cell.suite} on CPython {cell.python} is not-run" in first.reason
        )
        return next(again, first.name)


class Truth(Plain, frozen=True, kw_only=True, dict=True):
    """A night with those before it: the value that pages and commands print."""

    summaries: tuple[NightSummary, ...]  # oldest first; the last is the night itself
    has_newer: bool = False
    where: str = ""  # option that names the store
    findings: Mapping[str, Bisection] = {}  # of bisects that ended in this night, by key

    @property
    def night(self) -> NightSummary:
        return self.summaries[-1]

    @cached_property
    def before(self) -> NightSummary | None:
        """The night it is compared with: the newest that was over when it was planned."""
        planned = moment(self.night.made)
        over = (item for item in reversed(self.summaries[:-1]) if moment(item.over) <= planned)
        return next(over, None)

    @cached_property
    def spoken(self) -> list[dict[tuple[str, ...], CellSummary]]:
        """Of each night the cells that speak for it."""
        return [_spoken(item) for item in self.summaries]

    def since(self, cell: CellSummary) -> str:
        """Return the night since which a cell has its present state."""
        first = len(self.spoken) - 1
        while first and (old := self.spoken[first - 1].get(cell.identity)):
            if old.word != cell.word:
                break
            first -= 1
        return self.summaries[first].night

    @cached_property
    def changes(self) -> list[Changed]:
        """Every cell that differs from the night before; the most urgent first."""
        here, before = self.spoken[-1], self.before
        old = _spoken(before) if before else {}
        missing = {cell.wheels for cell in here.values() if cell.phase is Phase.ABSENT}
        left_out = [
            replace(cell, phase=Phase.ABSENT, state=None, excused=False, link="", log="",
                    cause=CauseClass.ABSENT,
                    reason=f"was in the night {before.night}; nothing of this one expects it")
            for key, cell in old.items() if before
            if key not in here and cell.wheels not in missing and cell.wheels
            and cell.state is State.PASS
        ]  # fmt: skip
        made = (
            Changed(cell=cell, change=change, since=self.since(cell))
            for cell in (*here.values(), *left_out)
            if (change := _change(cell, old.get(cell.identity), has_before=bool(before)))
            is not CellChange.SAME
        )
        return sorted(made, key=lambda item: list(CellChange).index(item.change))

    def new_failures(self, book: Book) -> Iterator[BisectRequest]:
        """Yield what to bisect: the worst test of each gate that passed in the night before.

        Not where a control run says that it fails in the released set as well, or that it is the
        machine.
        """
        for cell in (item.cell for item in self.changes if item.change is CellChange.NEW):
            gates = [c.name for c in self.night.cells if c.identity == cell.identity]
            tries = (item.ended for name in gates for item in book.attempts.get(name, ()))
            worst = next((end.worst for end in tries if end and end.worst and end.cause), None)
            is_new = worst and not worst.control.startswith((KNOWN, MACHINE))
            if self.before and worst and is_new and cell.cause is CauseClass.TESTS:
                ends: dict[str, Any] = {"good": self.before.night, "bad": self.night.night}
                names = ("family", "suite", "python", "wheels")
                ends |= {name: getattr(cell, name) for name in names}
                yield BisectRequest(test=worst.test, **ends)

    @property
    def loud(self) -> list[Changed]:
        """Changes that people should know, without cells that only wait for a cause."""
        held = {name for cause in self.causes for name in cause.held}
        changes = (item for item in self.changes if item.change not in QUIET)
        return [item for item in changes if item.cell.name not in held]

    @property
    def new(self) -> str:
        """How many causes of failures are new; "" for none."""
        changes = (cause.change.change for cause in self.causes if cause.change)
        new = sum(change is CellChange.NEW for change in changes)
        return count(new, "new failure") if new else ""

    @property
    def growth(self) -> Iterator[tuple[str, str, int, int]]:
        """Family, kind, bytes before and now of each released wheel that grew."""
        old = {item.family: item.sizes for item in self.before.families} if self.before else {}
        for family in self.night.families:
            for kind, size in family.sizes.items():
                was = old.get(family.family, {}).get(kind, 0)
                if was and size > was * BIGGER:
                    yield family.family, kind, was, size

    @cached_property
    def causes(self) -> list[Cause]:
        """Why cells did not pass, by the signature of their reason: reds first, new ones first."""
        made: dict[str, Cause] = {}
        by_name: dict[str, Cause] = {}
        for cell in sorted(
            self.night.cells,
            key=lambda c: (c.phase is Phase.BARRED, c.kind == "promote", c.colour != "bad"),
        ):
            is_idle = cell.state is State.NOT_RUN and cell.phase not in UNDER_WAY
            if cell.colour not in {"bad", "warn"} and not is_idle:
                continue
            if root := by_name.get(cell.after):
                root.held.append(cell.name)
                continue
            text = cell.reason  # without what differs from cell to cell
            for own in (cell.family, cell.python, cell.suite, cell.wheels, cell.host):
                text = text.replace(own, "*") if own else text
            signature = f"{cell.word} {VARIABLE.sub('#', text)}"
            cause = made.setdefault(signature, Cause(first=cell))
            cause.cells.append(cell)
            by_name[cell.name] = cause

        for cause in made.values():
            names = {cell.name for cell in cause.cells}
            cause.change = next((i for i in self.changes if i.cell.name in names), None)
        order = [i.change for i in self.changes]

        def urgency(cause: Cause) -> tuple[bool, int]:
            place = order.index(cause.change.change) if cause.change else len(order)
            return cause.first.colour != "bad", place

        return sorted(made.values(), key=urgency)

    def lines(self, cause: Cause) -> list[str]:
        """Return the lines to type about a cause."""
        data = [word for word in self.night.data if word.startswith("--ci-dir=")]
        rest = " ".join(filter(None, (shlex.join(data), self.where)))
        return [f"rocwheel {line} {rest}".rstrip() for line in cause.lines(self.night)]

    def found(self, cause: Cause) -> Iterator[tuple[str, str]]:
        """Yield what bisects say of a cause's tests, and the key of the text about each."""
        of = {(c.family, c.suite, c.python, c.wheels) for c in cause.cells}
        for key, item in self.findings.items():
            about = item.asked
            if (about.family, about.suite, about.python, about.wheels) in of:
                yield item.line, f"{key.removesuffix('.json')}.md" if item.is_named else ""

    @property
    def headline(self) -> str:
        """Verdict and impact in a line."""
        return " · ".join(filter(None, (self.night.verdict, self.night.impact, self.new)))

    def document(self, page: str) -> dict[str, Any]:
        """Return it for a program."""
        night = self.night
        return {
            "night": night.night,
            "page": page,
            "headline": self.headline,
            "verdict": night.verdict,
            "impact": night.impact,
            "nothing_built": night.nothing_built,
            "has_newer": self.has_newer,
            "compared_with": self.before.night if self.before else None,
            "changes": [
                {"cell": i.cell.name, "change": i.change.value, "state": i.cell.word,
                 "cause": i.cell.cause.value if i.cell.cause else None, "reason": i.cell.reason,
                 "since": i.since}
                for i in self.loud
            ],
            "causes": [
                {"cause": c.what, "reason": c.first.reason, "first": c.first.name,
                 "cells": len(c.cells), "held": len(c.held), "todo": c.todo, "lines": self.lines(c),
                 "bisects": [text for text, _ in self.found(c)]}
                for c in self.causes
            ],
            "blocked": {item.family: item.blocked for item in night.families if item.blocked},
        }  # fmt: skip

    def markdown(self, page: str) -> str:
        """Return it for a chat, a mail or the summary of a workflow."""
        made = template("night/assets/changes.md")
        return made.render(facts=self, page=page, count=count, listed=LISTED)


def known(nights: Nights, names: Sequence[str], warn: Callable[[str], None]) -> list[NightSummary]:
    """Return the summaries of earlier nights; warn once of those that cannot be read."""
    unread: list[ConfigError] = []

    def read(night: str) -> NightSummary | None:
        where = nights.store.locate(nights.key(night, "summary.json"))
        try:
            data = nights.summary(night)
            return NightSummary.from_bytes(data, name=where) if data else None
        except ConfigError as exc:
            unread.append(exc)
            return None

    made = [item for item in each(read, names, threads=8) if item]
    if unread:
        more = f" (and {len(unread) - 1} more)" if unread[1:] else ""
        warn(f"{unread[0]}{more}: {unread[0].hint}")
    return made


def truth(
    nights: Nights,
    night: str,
    families: Mapping[str, Family],
    channel: Channel,
    *,
    now: datetime,
    warn: Callable[[str], None],
    shown: int = PAST,
    book: Book | None = None,
) -> Truth:
    """Return the facts about a night now, with the summaries before it. Raises StoreError."""
    names = nights.names()
    place = names.index(night) if night in names else len(names)
    past = known(nights, names[max(0, place + 1 - shown) : place], warn)
    book = book or nights.book(night)
    before = past[-1] if past else None
    here = _summary(book, families, channel, nights.store, now=now, before=before)
    findings: dict[str, Bisection] = {}
    for key, data in book.findings.items():
        try:
            findings[key] = Bisection.from_bytes(data, name=nights.store.locate(key))
        except ConfigError as exc:
            warn(str(exc))
    return Truth(
        summaries=(*past, here),
        has_newer=place + 1 < len(names),
        where=channel.option,
        findings=findings,
    )


def _summary(
    book: Book,
    families: Mapping[str, Family],
    channel: Channel,
    store: Store,
    *,
    now: datetime,
    before: NightSummary | None,
) -> NightSummary:
    """Make the summary of a night; `before` is the newest other one. Raises StoreError."""
    standings = standing.stand(book)
    wanted = [name for recipe in book.plan.recipes for name in recipe.families]
    wanted += [cell.family for cell in book.plan.cells]
    # what is released stays shown, also of a family that the data have no more
    green = [item for item in before.families if item.green] if before else []
    unknown = [item for item in green if item.family not in families]
    wanted += [item.family for item in green]
    chosen = [families[name] for name in dict.fromkeys(wanted) if name in families]
    ends = [item.last.time for item in standings.values() if item.last]
    held = standing.stopped(book.orders)
    logs: dict[str, IndexState] = {}  # by prefix, which families share
    made = each(lambda f: _family(f, channel, store, now, logs), chosen, threads=4)
    recipes = standing.built_of(book)
    builds = {item.inputs: item for item in before.builds} if before else {}
    for item in (item for item in recipes if item.manifest):
        builds.pop(item.inputs, None)  # the newest comes last
        builds[item.inputs] = item
    return NightSummary(
        night=book.plan.night,
        made=book.plan.made,
        written=timestamp(now),
        by=book.plan.by,
        tool=book.plan.tool,
        data=book.plan.data,
        cells=tuple(
            _cell(item, standings)
            for item in standings.values()
            # the page only where it failed
            if item.cell.kind != "page" or not (item.passed or item.phase in UNDER_WAY)
        ),
        families=(*made, *unknown),
        recipes=recipes,
        builds=tuple(builds.values())[-BUILDS:],
        nothing_built=standing.nothing_built(standings),
        quarantined=tuple((host, mark.reason) for host, mark in sorted(book.quarantined.items())),
        stopped=f"Stopped by {held.by}: {held.reason}" if held else "",
        seconds=round((moment(max(ends)) - moment(book.plan.made)).total_seconds()) if ends else 0,
    )


def _cell(item: CellStanding, standings: Mapping[str, CellStanding]) -> CellSummary:
    last, cell = item.last, item.cell
    same = ("name", "kind", "family", "python", "suite", "wheels", "shard")
    own: dict[str, Any] = {name: getattr(cell, name) for name in same}
    state = item.state
    if item.phase is Phase.KEPT:
        own["image"] = cell.image
        state = State(cell.kept) if cell.kept in STATES else state
    elif last:
        ended = ("image", "link", "log", "host", "milliseconds", "time", "testing")
        own |= {name: getattr(last, name) for name in ended}
        needs = (standings[name].last for name in (*cell.after, *cell.settled))
        could = max((moment(end.time) for end in needs if end), default=moment(last.began))
        own["waited"] = max(0, round(1000 * (moment(last.began) - could).total_seconds()))
        own["gpus"] = cell.needs.gpus
    return CellSummary(
        phase=item.phase,
        state=state,
        excused=bool(cell.excused),
        cause=item.cause,
        reason=item.reason,
        attempts=len(item.attempts),
        **own,
    )


def _family(
    family: Family, channel: Channel, store: Store, now: datetime, logs: dict[str, IndexState]
) -> FamilySummary:
    newest, blocked, blocked_set = FamilySummary(family=family.name), "", ""
    for staging, release in channel.pairs(store, family.name):
        for row in status.rows(staging, release, family, channel, now=now):
            if row.state == "released" and row.known.yanked < row.files:
                is_newer = row.released > newest.green_since
                at = release.at(row.known.home)
                if is_newer and (manifest := manifests.find(at, row.set_id)):
                    sizes = {kind.value: 0 for kind in WheelKind}
                    for wheel in manifest.built:
                        sizes[wheel.kind] = max(sizes[wheel.kind], wheel.size)
                    if release.root not in logs:
                        logs[release.root] = log.read(release)
                    shared = logs[release.root].of(ALL).sets.get(row.set_id)
                    is_listed = shared and shared.standing is Standing.LISTED
                    newest = FamilySummary(
                        family=family.name,
                        green=row.set_id,
                        green_since=row.released,
                        install=Install.of(
                            manifest,
                            (release.of(ALL) if is_listed else release).url,
                            targets=family.targets if manifest.families else (),
                        ),
                        sizes=sizes,
                    )
            elif row.blocked_by and not (blocked or newest.green):  # rows are youngest first
                blocked, blocked_set = row.blocked_by, row.set_id
    return replace(newest, blocked=blocked, blocked_set=blocked_set)


def newest(nights: Nights, warn: Callable[[str], None]) -> NightSummary | None:
    """Return the newest summary, with builds of later nights that left none."""
    names = nights.names()[-PAST:]
    last = next(reversed(known(nights, names, warn)), None)
    later = names[names.index(last.night) + 1 :] if last else names
    builds = {item.inputs: item for item in last.builds} if last else {}
    for night in later:
        with suppress(ConfigError):  # edited, of another format, or partly deleted
            builds |= {
                item.inputs: item for item in standing.built_of(nights.book(night)) if item.manifest
            }
    if last is None and builds:
        last = NightSummary(night="", made="", written="", by="", tool="", cells=(), families=())
    return last and replace(last, builds=tuple(builds.values()))


def problems(
    nights: Nights,
    now: datetime,
    limit: float,
    waits: Mapping[str, slurm.Job],
    *,
    has_slurm: bool = True,
) -> list[str]:
    """Yield what is wrong with the newest nights, each a line that names its cause.

    `limit` is the largest age of the newest, in seconds; `waits` is what waits in Slurm, unknown
    without `has_slurm`.
    """
    names = nights.names()
    if not names:
        return [f"{nights.store.url}: has no night"]
    night, book = names[-1], nights.book(names[-1])
    standings = standing.stand(book)
    age = (now - moment(book.plan.made)).total_seconds()
    over = _is_over(standings)
    lines = [f"{job.cell}: held by the scheduler: {job}" for job in slurm.held(waits)]
    if age > limit:
        lines.append(f"{night}: the newest night is {duration(age)} old")
    if -age > LATE.total_seconds():
        lines.append(f"{night}: is {duration(-age)} ahead of this machine's clock: set the clock")
    started = book.attempts or not any(cell.is_to_run for cell in book.plan.cells)
    if not (started or waits) and age > min(limit, NEVER_RAN):
        lines.append(f"{night}: was planned and never ran")
    left = count(sum(not item.settled for item in standings.values()), "cell")
    if stop := None if over else standing.stopped(book.orders):
        again = f"`nightly retry {night} --reason=WHY`"
        lines.append(f"{night}: was stopped by {stop.by} with {left} to do: {again}")
    go_on = f"nightly run {night}"
    if not (over or waits or stop) and _is_stalled(book, standings, now):
        how = f"stands still with {left} to do: `{go_on}`"
        if "slurm" in engines(book) and not has_slurm:
            how = f"nothing runs of {left} to do, and Slurm cannot be asked here: check it there"
        lines.append(f"{night}: {how}")
    by_itself = waits or "github" in engines(book)  # a follower or a new job takes it up
    lines += standing.grouped(
        (name, f"{item.cause.value}: {item.reason}" + ("" if by_itself else f": `{go_on}`"))
        for name, item in standings.items()
        if item.cause in STOPPED and not item.settled
    )
    lines += standing.grouped(
        (name, f"absent: {item.reason}")
        for name, item in standings.items()
        if item.phase is Phase.ABSENT and not item.green
    )
    if standing.nothing_built(standings):
        lines.append(f"{night}: nothing was built")
    judged = names[-1:] if over else names[-2:-1]  # one that goes on has no summary yet
    ended = bool(judged)
    with suppress(ConfigError):  # edited, or of another format
        ended = ended and (over or _is_over(standing.stand(nights.book(judged[0]))))
    unread: list[str] = []
    if ended and not known(nights, judged, unread.append):
        why = unread or [f"{judged[0]}: has no summary: its page was never made"]
        lines += [f"{text}: `nightly report --night {judged[0]}`" for text in why]
    return lines


def _is_over(standings: Mapping[str, CellStanding]) -> bool:
    return all(item.settled or item.cell.kind == "page" for item in standings.values())


def _is_stalled(book: Book, standings: Mapping[str, CellStanding], now: datetime) -> bool:
    """Return whether nothing of a night has run for a while though cells are to be run.

    On GitHub a cell may wait for its runner without limit.
    """
    tries = [item for items in book.attempts.values() for item in items]
    moments = [moment(item.time) for t in tries for item in (t.begun, t.ended) if item]
    runs = any(item.phase is Phase.RUNNING for item in standings.values())
    began = engines(book)
    if runs or not moments or "github" in began:
        return False
    patience = max((STALLED[name] for name in began if name in STALLED), default=timedelta(0))
    return now - max(moments) > patience


def engines(book: Book) -> set[str]:
    """Return the engines that began attempts of a night."""
    return {t.begun.engine for tries in book.attempts.values() for t in tries if t.begun}
