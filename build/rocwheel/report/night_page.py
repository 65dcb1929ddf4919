"""The page of the nightly: what each family has, what is missing, and why.

One HTML file made of the summaries of the shown nights and nothing else, so that it costs the same
with ten nights stored as with four hundred. What may be released and what blocks it is copied from
`status`, never worked out here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import quote

from rocwheel.assets import style, template, text
from rocwheel.choices import TEST_KINDS
from rocwheel.console import duration, size
from rocwheel.ledger.nights import Phase, WheelRecipe
from rocwheel.model import timestamp
from rocwheel.report import night_summary
from rocwheel.report.night_summary import (
    CellChange,
    CellSummary,
    FamilySummary,
    NightSummary,
    changes,
    spoken,
    worst,
)

PAGE: Final = "status/index.html"  # key, below the store


@dataclass(frozen=True, kw_only=True)
class CellRow:
    """One (family, CPython, suite) with its past."""

    cell: CellSummary
    change: CellChange
    since: str  # the night since which it has this state
    strip: Mapping[str, str]  # colour -> SVG path


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
    changed = changes(summaries) if summaries else []
    cells = newest.cells if newest else ()
    queue = Counter(
        cell.runner or "any machine" for cell in cells if cell.phase in {Phase.WAITING, Phase.OPEN}
    )
    groups = _groups(summaries, {item.cell.name: item.change for item in changed})
    page = template("report/assets/night.html").render(
        css=style("report/assets/page.css", "report/assets/night.css"),
        js=text("report/assets/night.js"),
        title=title,
        made=timestamp(now),
        max_age_hours=max_age_hours,
        newest=newest,
        groups=groups,
        many={group.family.family for group in groups if not group.is_one_set},
        counts=Counter((cell.word, cell.colour) for cell in cells),
        causes=night_summary.causes(newest) if newest else [],
        changed=[item for item in changed if item.cell.phase is not Phase.BARRED],
        barred=[item for item in changed if item.cell.phase is Phase.BARRED],
        growth=list(night_summary.growth(summaries)) if summaries else [],
        sources=_sources(summaries),
        queue=sorted(queue.items()),
        nights=[_run(item, newest) for item in reversed(summaries)],
        shown=len(summaries),
        duration=duration,
        size=size,
        url=lambda key: f"{root}{quote(key)}" if key else "",
    )
    return page.encode()


def _run(summary: NightSummary, newest: NightSummary | None) -> dict[str, object]:
    """Return one night as a row: what it was made from, and a colour for each family."""
    names = [family.family for family in newest.families] if newest else []
    return {
        "night": summary,
        "red": sum(cell.colour == "bad" for cell in summary.cells),
        "colours": [(name, worst(summary.of_family(name))) for name in names],
    }


def _sources(
    summaries: Sequence[NightSummary],
) -> list[tuple[WheelRecipe, list[tuple[str, str, str]]]]:
    """Return each wheel set of the newest night, with what changed since its last night."""
    old = {item.name: item for night in summaries[:-1] for item in night.recipes}
    return [
        (item, list(night_summary.ranges(item, old[item.name])) if item.name in old else [])
        for item in (summaries[-1].recipes if summaries else ())
    ]


def _strip(colours: Sequence[str]) -> dict[str, str]:
    """Draw a square per night as one path per colour: small, and readable without a script."""
    paths: dict[str, list[str]] = {}
    for number, name in enumerate(colours):
        paths.setdefault(name, []).append(f"M{number * 6} 0h5v10h-5z")
    return {name: "".join(path) for name, path in paths.items()}


@dataclass(frozen=True, kw_only=True)
class FamilyTable:
    """The rows of one family, as a table of CPythons."""

    family: FamilySummary
    worst: str  # the colour of the whole family
    bad: tuple[CellSummary, ...]  # what did not pass, besides its tests
    pythons: tuple[str, ...]
    suites: tuple[tuple[str, str], ...]  # wheel set, suite: a row each
    is_one_set: bool
    rows: Mapping[tuple[str, str, str], CellRow]  # wheel set, suite, CPython
    images: tuple[CellSummary, ...]


def _groups(
    summaries: Sequence[NightSummary], change: Mapping[str, CellChange]
) -> list[FamilyTable]:
    """Return a table for each family, those with a red cell first."""
    if not summaries:
        return []
    newest, past = summaries[-1], [spoken(item) for item in summaries]
    groups = []
    for family in newest.families:
        name, cells = family.family, newest.of_family(family.family)
        tests = [
            _row(cell, past, summaries, change)
            for cell in past[-1].values()
            if cell.kind in TEST_KINDS and cell.family == name
        ]
        groups.append(
            FamilyTable(
                family=family,
                worst="bad" if newest.nothing_built and cells else worst(cells),
                bad=tuple(
                    cell
                    for cell in cells
                    if cell.kind not in {*TEST_KINDS, "image"} and cell.colour in {"bad", "warn"}
                ),
                pythons=tuple(sorted({row.cell.python for row in tests}, key=_version)),
                suites=tuple(dict.fromkeys((row.cell.wheels, row.cell.suite) for row in tests)),
                is_one_set=len({row.cell.wheels for row in tests}) <= 1,
                rows={(row.cell.wheels, row.cell.suite, row.cell.python): row for row in tests},
                images=tuple(cell for cell in cells if cell.kind == "image"),
            )
        )
    order = ("bad", "warn", "idle", "none", "good")
    return sorted(groups, key=lambda group: order.index(group.worst))


def _row(
    cell: CellSummary,
    past: Sequence[Mapping[tuple[str, ...], CellSummary]],
    summaries: Sequence[NightSummary],
    change: Mapping[str, CellChange],
) -> CellRow:
    cells = [tests.get(cell.identity) for tests in past]
    return CellRow(
        cell=cell,
        change=change.get(cell.name, CellChange.SAME),
        since=night_summary.since(cell, past, summaries),
        strip=_strip([item.colour if item else "none" for item in cells]),
    )


def _version(python: str) -> tuple[int, ...]:
    return tuple(int(part) for part in python.partition("-")[0].split(".") if part.isdigit())
