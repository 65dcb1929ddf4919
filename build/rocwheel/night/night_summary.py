"""The summary of a night, and what it says against the night before.

A night leaves one summary in the store; the page, the message, the feed, the badge and the check
are functions of summaries alone.
"""

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from rocwheel.base.choices import TEST_KINDS
from rocwheel.base.values import Plain, Value, replace
from rocwheel.records.install import Install
from rocwheel.records.verdict import SILENT, State
from rocwheel.release.ledger.nights import Phase, WheelRecipe
from rocwheel.rocm import therock

BAD: Final = frozenset(State) - SILENT - {State.PASS, State.FLAKY}
UNDER_WAY: Final = frozenset({Phase.WAITING, Phase.RUNNING})
SLOWER: Final = (1.5, 300_000)  # a cell that took so many times as long, and so many ms more
BIGGER: Final = 1.05  # a wheel that grew so many times
XLA: Final = "https://github.com/openxla/xla"


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
    reason: str = ""
    image: str = ""  # a runtime image that there is: NAME:TAG@sha256:…
    link: str = ""  # key
    log: str = ""  # key
    host: str = ""
    attempts: int = 0
    milliseconds: int = 0
    time: str = ""  # when it ended

    @property
    def word(self) -> str:
        """The state as people read it."""
        if self.state is None or self.phase in {*UNDER_WAY, Phase.BARRED}:
            return self.phase.value
        return self.state.value

    @property
    def colour(self) -> str:
        """Which of five colours it has."""
        missing = self.phase is Phase.ABSENT
        if self.excused and (missing or self.state is State.NO_RUNNER):
            return "none"
        if missing or (self.state in BAD and self.phase not in UNDER_WAY):
            return "bad"
        if self.state is None or self.phase in UNDER_WAY or self.state is State.NOT_RUN:
            return "idle"
        return "good" if self.state is State.PASS else "warn"

    @property
    def pull(self) -> str:
        """What brings its image, and never one that was pushed later."""
        name, _, digest = self.image.partition("@")
        return f"docker pull {name.rpartition(':')[0]}@{digest}"

    @property
    def identity(self) -> tuple[str, ...]:
        """What is the same cell in another night, however its suite is cut."""
        own = (self.wheels, self.family, self.python, self.suite)
        return own if self.kind in TEST_KINDS else (self.name,)


class FamilySummary(Value, frozen=True, kw_only=True):
    """What a family has, as `status` says."""

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
    nothing_built: bool = False
    seconds: int = 0  # from plan to the last end
    schema: Literal[2] = 2
    anew: ClassVar[str] = "pages and messages leave it out; `nightly prune` removes it in time"

    @property
    def colour(self) -> str:
        """The worst colour of its cells."""
        return "bad" if self.nothing_built else worst(self.cells)

    def of_family(self, family: str) -> list[CellSummary]:
        """Return the cells of a family, and those of its wheel sets that are no family's own."""
        own = [cell for cell in self.cells if cell.family == family]
        sets = {cell.wheels for cell in own}
        common = (c for c in self.cells if c.kind in {"build", "stage"} and not c.family)
        return own + [cell for cell in common if cell.wheels in sets]


def ranges(recipe: WheelRecipe, old: WheelRecipe) -> Iterator[tuple[str, str, str]]:
    """Yield what differs from an older recipe: its name, the range, a link to the changes."""
    for what, url, before, now in (
        ("JAX", recipe.jax_repository, old.jax_commit, recipe.jax_commit),
        ("XLA", XLA, old.xla_commit, recipe.xla_commit),
    ):
        if before != now:
            yield what, f"{before[:10] or '?'}…{now[:10] or '?'}", _compare(url, before, now)
    was, is_now = (f"{r.rocm_version or '?'} ({r.rocm_sha256[:8]})" for r in (old, recipe))
    if was != is_now:
        yield "ROCm", f"{was} → {is_now}", therock.changes(old.rocm_version, recipe.rocm_version)
    if old.tool != recipe.tool:
        commits = (f"{one.tool} ".split(" ")[1] for one in (old, recipe))  # after its version
        link = _compare(recipe.tool_repository, *commits)
        yield "rocwheel", f"{old.tool} → {recipe.tool}", link


def _compare(url: str, old: str, new: str) -> str:
    """Return where GitHub shows what is between two commits; "" for what is none or elsewhere."""
    known = url.startswith("https://github.com/") and old and new
    return f"{url.removesuffix('.git')}/compare/{old}...{new}" if known else ""


def worst(cells: Sequence[CellSummary]) -> str:
    """Return the worst colour of cells."""
    colours = {cell.colour for cell in cells}
    return next((name for name in ("bad", "warn", "idle", "good") if name in colours), "none")


class CellChange(enum.Enum):
    """A cell against the same cell of the night before, the most urgent first."""

    NEW = "new failure"
    ABSENT = "absent"
    NOT_RUN = "no longer run"
    FLAKY = "flaky"
    INFRA = "infra"
    STILL = "still failing"
    SLOWER = "slower"
    FIXED = "fixed"
    SAME = ""


LOUD: Final = {
    State.NOT_RUN: CellChange.NOT_RUN,
    State.FLAKY: CellChange.FLAKY,
    State.INFRA: CellChange.INFRA,
    State.NO_RUNNER: CellChange.INFRA,
}


def spoken(summary: NightSummary) -> dict[tuple[str, ...], CellSummary]:
    """Return the cell that speaks for each identity: of a suite the merge, or its worst gate."""
    cells: dict[tuple[str, ...], CellSummary] = {}
    for cell in summary.cells:
        old = cells.get(cell.identity)
        if old is None or cell.kind == "merge" or (old.kind == "gate" and _rank(cell) > _rank(old)):
            cells[cell.identity] = cell
    return cells


def _rank(cell: CellSummary) -> int:
    return list(State).index(cell.state) + 1 if cell.state else 0


class Changed(Plain, frozen=True, kw_only=True):
    """A cell whose state people want to hear of, and the night since which it has it."""

    cell: CellSummary
    change: CellChange
    since: str


def changes(summaries: Sequence[NightSummary]) -> list[Changed]:
    """Compare every cell of the newest night with the night before; the most urgent first."""
    past = [spoken(item) for item in summaries]
    here, before = past[-1], past[-2] if len(past) > 1 else {}
    missing = {cell.wheels for cell in here.values() if cell.phase is Phase.ABSENT}
    left_out = [
        replace(old, phase=Phase.ABSENT, state=None, excused=False, link="", log="",
                reason=f"was in the night {summaries[-2].night}; nothing of this one expects it")
        for key, old in before.items()
        if key not in here and old.wheels not in missing and old.wheels and old.state is State.PASS
    ]  # fmt: skip
    made = [
        Changed(cell=cell, change=change, since=since(cell, past, summaries))
        for cell in (*here.values(), *left_out)
        if (change := _change(cell, before.get(cell.identity))) is not CellChange.SAME
    ]
    return sorted(made, key=lambda item: list(CellChange).index(item.change))


def since(
    cell: CellSummary,
    past: Sequence[Mapping[tuple[str, ...], CellSummary]],
    summaries: Sequence[NightSummary],
) -> str:
    """Return the night since which a cell has its present state."""
    first = len(past) - 1
    while first and (old := past[first - 1].get(cell.identity)) and old.word == cell.word:
        first -= 1
    return summaries[first].night


def _change(cell: CellSummary, old: CellSummary | None) -> CellChange:
    if cell.phase in UNDER_WAY or cell.colour == "none":
        return CellChange.SAME
    if cell.colour == "good":
        if old and old.phase not in UNDER_WAY and old.colour in {"bad", "warn", "idle"}:
            return CellChange.FIXED
        times, more = SLOWER
        before = old.milliseconds if old and cell.phase is not Phase.KEPT else 0
        is_slower = before and cell.milliseconds > max(before * times, before + more)
        return CellChange.SLOWER if is_slower else CellChange.SAME
    if old and (old.word == cell.word or (old.state in BAD and cell.state in BAD)):
        return CellChange.STILL
    return CellChange.ABSENT if cell.state is None else LOUD.get(cell.state, CellChange.NEW)


def growth(summaries: Sequence[NightSummary]) -> Iterator[tuple[str, str, int, int]]:
    """Yield family, kind, bytes before and now of each released wheel that grew."""
    before = summaries[-2].families if len(summaries) > 1 else ()
    old = {family.family: family.sizes for family in before}
    for family in summaries[-1].families:
        for kind, size in family.sizes.items():
            was = old.get(family.family, {}).get(kind, 0)
            if was and size > was * BIGGER:
                yield family.family, kind, was, size


@dataclass
class Cause:
    """One reason for which cells did not pass: the first of them, all of them, what waits."""

    first: CellSummary
    cells: list[CellSummary] = field(default_factory=list)
    held: int = 0  # cells that did not run because of these


def causes(summary: NightSummary) -> list[Cause]:
    """Group the cells that did not pass by the signature of their reason; reds come first."""
    made: dict[str, Cause] = {}
    by_name: dict[str, Cause] = {}
    for cell in sorted(summary.cells, key=lambda c: (c.colour != "bad", c.phase is Phase.BARRED)):
        if cell.colour not in {"bad", "warn"} and cell.state is not State.NOT_RUN:
            continue
        root = by_name.get(cell.reason.partition(": ")[0])
        if cell.phase is Phase.BARRED and root:
            root.held += 1
            continue
        cause = made.setdefault(_signature(cell), Cause(first=cell))
        cause.cells.append(cell)
        by_name[cell.name] = cause
    return list(made.values())


def _signature(cell: CellSummary) -> str:
    """Return the reason of a cell without what differs from cell to cell."""
    text = cell.reason
    for own in (cell.family, cell.python, cell.suite, cell.wheels, cell.host):
        text = text.replace(own, "*") if own else text
    return f"{cell.word} {re.sub(r'0x[0-9a-f]+|[0-9a-f]{8,}|[0-9]+', '#', text)}"
