"""The page of the nightly: what each family has, what is missing, and why.

One HTML file made of the summaries of the shown nights and nothing else, so that it costs the same
with ten nights stored as with four hundred. What may be released and what blocks it is copied from
`status`, never worked out here.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import quote

from rocwheel.assets import style, template, text
from rocwheel.console import duration, size
from rocwheel.install import Install, Package
from rocwheel.ledger.log import LogEnd
from rocwheel.ledger.nights import Phase
from rocwheel.model import timestamp
from rocwheel.values import Value
from rocwheel.verdict import State

BAD: Final = frozenset(
    {
        State.FAIL,
        State.CRASH,
        State.TIMEOUT,
        State.COLLECT_ERROR,
        State.NOTHING_RAN,
        State.TOO_FEW_RAN,
    }
)
UNDER_WAY: Final = frozenset({Phase.WAITING, Phase.RUNNING})
PAGE: Final = "status/index.html"  # key, below the store
TESTS: Final = frozenset({"gate", "merge"})
PLOT_WIDTH: Final = 300.0
PLOT_HEIGHT: Final = 48.0


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
    reason: str = ""
    image: str = ""  # a runtime image that there is: NAME:TAG@sha256:…
    link: str = ""  # key
    log: str = ""  # key
    host: str = ""
    runner: str = ""
    attempts: int = 0
    milliseconds: int = 0
    time: str = ""  # when it ended

    @property
    def word(self) -> str:
        """The state as people read it."""
        if self.state is None or self.phase in UNDER_WAY:
            return self.phase.value
        return self.state.value

    @property
    def pull(self) -> str:
        """What brings its image, and never one that was pushed later."""
        name, _, digest = self.image.partition("@")
        return f"docker pull {name.rpartition(':')[0]}@{digest}"


class WheelSize(Value, frozen=True, kw_only=True):
    """A wheel of the newest set, with what its channel allows."""

    kind: str
    bytes: int
    budget: int = 0


class FamilySummary(Value, frozen=True, kw_only=True):
    """What a family has, as `status` says."""

    family: str
    green: str = ""  # manifest of the newest released set
    green_since: str = ""
    jax: str = ""
    rocm: str = ""
    pythons: tuple[str, ...] = ()
    index: str = ""  # URL
    requirements: tuple[str, ...] = ()  # what that set has in the index
    upstream: tuple[str, ...] = ()  # and what comes from the package index
    blocked: str = ""  # what holds up the newest set that is not released
    blocked_set: str = ""
    sizes: tuple[WheelSize, ...] = ()
    # Where its logs ended, () where a set waits: while they end there, all of this holds.
    ends: tuple[LogEnd, ...] = ()
    staged_since: str = ""  # nothing that staging holds is older; "" where nobody looked

    @property
    def install(self) -> Install:
        """How that set is installed."""
        ours, others = (
            tuple(
                Package(project=name, version=version)
                for name, _, version in (item.partition("==") for item in items)
            )
            for items in (self.requirements, self.upstream)
        )
        return Install(index=self.index, ours=ours, upstream=others, jax=self.jax)


class BuildSummary(Value, frozen=True, kw_only=True):
    """What was built from which inputs, remembered when the build itself is kept no longer."""

    wheels: str  # the set: its recipe's name
    inputs: str  # digest
    manifest: str  # SHA-256


class NightSummary(Value, frozen=True, kw_only=True):
    """The summary of one night, from which pages are made."""

    night: str
    made: str
    written: str
    by: str
    tool: str
    cells: tuple[CellSummary, ...]
    families: tuple[FamilySummary, ...]
    builds: tuple[BuildSummary, ...] = ()
    absent: tuple[tuple[str, str], ...] = ()
    quarantined: tuple[tuple[str, str], ...] = ()
    stopped: str = ""
    seconds: int = 0  # from plan to the last end


class CellChange(enum.Enum):
    """A cell against the same cell of the night before."""

    NEW = "new failure"
    FIXED = "fixed"
    STILL = "still failing"
    FLAKY = "flaky"
    INFRA = "infra"
    SAME = ""


def changes(here: NightSummary, before: NightSummary | None) -> dict[str, CellChange]:
    """How each cell differs from the night before, by its name without the shard."""
    old = {_identity(cell): cell.state for cell in before.cells} if before else {}
    return {cell.name: _change(cell.state, old.get(_identity(cell))) for cell in here.cells}


def _identity(cell: CellSummary) -> tuple[str, ...]:
    if cell.kind not in TESTS:
        return (cell.name,)
    return cell.wheels, cell.family, cell.python, cell.suite, cell.shard


def _change(state: State | None, old: State | None) -> CellChange:
    if state is State.FLAKY:
        return CellChange.FLAKY
    if state in {State.INFRA, State.NO_RUNNER}:
        return CellChange.INFRA
    if state in BAD:
        return CellChange.STILL if old in BAD else CellChange.NEW
    return CellChange.FIXED if state is State.PASS and old in BAD else CellChange.SAME


def colour(cell: CellSummary | None) -> str:
    """Which of five colours a cell has."""
    if cell is None:
        return "none"
    if cell.state is None or cell.phase in UNDER_WAY:
        return "idle"
    if cell.state in BAD:
        return "bad"
    return {State.PASS: "good", State.FLAKY: "warn"}.get(cell.state, "idle")


@dataclass(frozen=True, kw_only=True)
class CellRow:
    """One (family, CPython, suite) with its past."""

    family: str
    python: str
    suite: str
    state: str
    colour: str
    reason: str
    change: CellChange
    link: str
    log: str
    since: str  # the night since which it has this state
    strip: Mapping[str, str]  # colour -> SVG path


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A line over the shown nights."""

    title: str
    newest: str
    points: str  # of an SVG polyline
    about: str


def render(
    summaries: Sequence[NightSummary],
    *,
    now: datetime,
    title: str,
    root: str,
    max_age_hours: int = 36,
) -> bytes:
    """Render the page; `summaries` are oldest first, `root` is the URL that keys lie below."""
    newest = summaries[-1] if summaries else None
    before = summaries[-2] if len(summaries) > 1 else None
    rows = _rows(summaries, newest, before, root) if newest else []
    other = (
        [
            cell
            for cell in newest.cells
            if cell.kind not in TESTS and cell.state not in {State.PASS, None}
        ]
        if newest
        else []
    )
    queue = Counter(
        cell.runner or "any machine"
        for cell in (newest.cells if newest else ())
        if cell.phase in {Phase.WAITING, Phase.OPEN}
    )
    page = template("report/assets/night.html").render(
        css=style("report/assets/page.css", "report/assets/night.css"),
        js=text("report/assets/night.js"),
        title=title,
        made=timestamp(now),
        max_age_hours=max_age_hours,
        newest=newest,
        groups=_groups(rows, newest),
        counts=Counter((row.state, row.colour) for row in rows),
        changed=sorted(
            (row for row in rows if row.change is not CellChange.SAME),
            key=lambda row: list(CellChange).index(row.change),
        ),
        other=other,
        queue=sorted(queue.items()),
        plots=_plots(summaries),
        nights=[(item, _night_colour(item)) for item in reversed(summaries)],
        shown=len(summaries),
        colour=colour,
        duration=duration,
        size=size,
        url=lambda key: f"{root}{quote(key)}" if key else "",
    )
    return page.encode()


def _tests(summary: NightSummary) -> dict[tuple[str, str, str], CellSummary]:
    """The cell that speaks for each (family, CPython, suite): the merge, or the worst gate."""
    found: dict[tuple[str, str, str], CellSummary] = {}
    for cell in summary.cells:
        if cell.kind not in TESTS:
            continue
        key = (cell.family, cell.python, cell.suite)
        old = found.get(key)
        worse = old is None or (old.kind == "gate" and _rank(cell) > _rank(old))
        if cell.kind == "merge" or worse:
            found[key] = cell
    return found


def _rank(cell: CellSummary) -> int:
    return list(State).index(cell.state) + 1 if cell.state else 0


def _rows(
    summaries: Sequence[NightSummary], newest: NightSummary, before: NightSummary | None, root: str
) -> list[CellRow]:
    past = [_tests(summary) for summary in summaries]
    change = changes(newest, before)
    keys = sorted({key for tests in past[-1:] for key in tests})
    rows = []
    for key in keys:
        cell = past[-1][key]
        cells = [tests.get(key) for tests in past]
        since = len(cells) - 1
        while since > 0 and (earlier := cells[since - 1]) and earlier.word == cell.word:
            since -= 1
        rows.append(
            CellRow(
                family=key[0],
                python=key[1],
                suite=key[2],
                state=cell.word,
                colour=colour(cell),
                reason=cell.reason,
                change=change.get(cell.name, CellChange.SAME),
                link=f"{root}{quote(cell.link)}" if cell.link else "",
                log=f"{root}{quote(cell.log)}" if cell.log else "",
                since=summaries[since].night,
                strip=_strip([colour(item) for item in cells]),
            )
        )
    return rows


def _strip(colours: Sequence[str]) -> dict[str, str]:
    """A square per night as one path per colour: small, and readable without a script."""
    paths: dict[str, list[str]] = {}
    for number, name in enumerate(colours):
        paths.setdefault(name, []).append(f"M{number * 6} 0h5v10h-5z")
    return {name: "".join(path) for name, path in paths.items()}


@dataclass(frozen=True, kw_only=True)
class FamilyTable:
    """The rows of one family, as a table of CPythons."""

    family: FamilySummary
    pythons: tuple[str, ...]
    suites: tuple[str, ...]
    rows: Mapping[tuple[str, str], CellRow]
    absent: tuple[tuple[str, str], ...]
    images: tuple[CellSummary, ...]

    @property
    def worst(self) -> str:
        """The colour of the whole family."""
        seen = {row.colour for row in self.rows.values()}
        return next((name for name in ("bad", "warn", "idle", "good") if name in seen), "none")


def _groups(rows: Sequence[CellRow], newest: NightSummary | None) -> list[FamilyTable]:
    found = []
    for family in newest.families if newest else ():
        own = [row for row in rows if row.family == family.family]
        gone = tuple(
            (name, why)
            for name, why in (newest.absent if newest else ())
            if f".{family.family}." in name
            or name.endswith((f"-{family.family}", f".{family.family}"))
        )
        found.append(
            FamilyTable(
                family=family,
                pythons=tuple(sorted({row.python for row in own}, key=_version)),
                suites=tuple(dict.fromkeys(row.suite for row in own)),
                rows={(row.suite, row.python): row for row in own},
                absent=gone,
                images=tuple(
                    cell
                    for cell in (newest.cells if newest else ())
                    if cell.kind == "image" and cell.family == family.family
                ),
            )
        )
    return found


def _version(python: str) -> tuple[int, ...]:
    return tuple(int(part) for part in python.partition("-")[0].split(".") if part.isdigit())


def _night_colour(summary: NightSummary) -> str:
    seen = {colour(cell) for cell in summary.cells}
    return next((name for name in ("bad", "warn", "idle", "good") if name in seen), "none")


def _plots(summaries: Sequence[NightSummary]) -> list[Plot]:
    """Sizes of wheels, and minutes of building and testing, night by night."""
    found = []
    for kind in ("jaxlib", "plugin", "pjrt"):
        values = [
            max((s.bytes for f in item.families for s in f.sizes if s.kind == kind), default=0)
            for item in summaries
        ]
        budget = max(
            (
                s.budget
                for f in (summaries[-1].families if summaries else ())
                for s in f.sizes
                if s.kind == kind
            ),
            default=0,
        )
        about = f"of {size(budget)} allowed" if budget else "no budget"
        found += _plot(f"{kind} wheel, largest", values, size, about)
    for title, kinds in (("building", {"build", "image"}), ("testing", TESTS)):
        values = [
            sum(
                cell.milliseconds
                for cell in item.cells
                if cell.kind in kinds and cell.phase is not Phase.KEPT
            )
            // 1000
            for item in summaries
        ]
        found += _plot(f"{title}, machine time", values, duration, "per night")
    values = [item.seconds for item in summaries]
    return found + _plot("night, from plan to end", values, duration, "wall time")


def _plot(
    title: str, values: Sequence[int], show: Callable[[float], str], about: str
) -> list[Plot]:
    if not any(values):
        return []
    top, step = max(values), PLOT_WIDTH / max(1, len(values) - 1)
    points = " ".join(
        f"{number * step:.1f},{PLOT_HEIGHT - 2 - (PLOT_HEIGHT - 4) * value / top:.1f}"
        for number, value in enumerate(values)
    )
    return [Plot(title=title, newest=show(values[-1]), points=points, about=about)]
