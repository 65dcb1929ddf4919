"""The page of the nightly: what each family has, what is missing, and why.

One HTML file made of the summaries of the shown nights and nothing else, so that it costs the same
with ten nights stored as with four hundred. What may be released and what blocks it is copied from
`status`, never worked out here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from rocwheel.base.assets import style, template, text
from rocwheel.base.choices import TEST_KINDS
from rocwheel.base.console import duration, size
from rocwheel.base.versions import PythonVersion, timestamp
from rocwheel.night import night_summary
from rocwheel.night.night_summary import CellChange, CellSummary, NightSummary
from rocwheel.release.ledger.nights import Phase

PAGE: Final = "status/index.html"  # key, below the store


def render(summaries: Sequence[NightSummary], *, now: datetime, title: str, root: str) -> bytes:
    """Render the page; `summaries` are oldest first, `root` is the URL that keys lie below."""
    newest = summaries[-1] if summaries else None
    changed = night_summary.changes(summaries) if summaries else []
    names = [family.family for family in newest.families] if newest else []
    groups = _groups(summaries, {item.cell.name: item.change for item in changed})
    old = {item.name: item for night in summaries[:-1] for item in night.recipes}
    page = template("night/assets/night.html").render(
        css=style("gate/report/assets/page.css", "night/assets/night.css"),
        js=text("night/assets/night.js"),
        title=title,
        made=timestamp(now),
        max_age_hours=36,
        newest=newest,
        groups=groups,
        sets=list(_sets(newest)) if newest else [],
        many={group["family"].family for group in groups if not group["is_one_set"]},
        counts=Counter((cell.word, cell.colour) for cell in (newest.cells if newest else ())),
        causes=night_summary.causes(newest) if newest else [],
        changed=[item for item in changed if item.cell.phase is not Phase.BARRED],
        barred=[item for item in changed if item.cell.phase is Phase.BARRED],
        growth=list(night_summary.growth(summaries)) if summaries else [],
        sources=[
            (item, list(night_summary.ranges(item, old[item.name])) if item.name in old else [])
            for item in (newest.recipes if newest else ())
        ],
        nights=[
            {
                "night": item,
                "red": sum(cell.colour == "bad" for cell in item.cells),
                "colours": [(name, night_summary.worst(item.of_family(name))) for name in names],
            }
            for item in reversed(summaries)
        ],
        shown=len(summaries),
        duration=duration,
        size=size,
        url=lambda key: f"{root}{quote(key)}" if key else "",
    )
    return page.encode()


def _sets(newest: NightSummary) -> Iterator[dict[str, Any]]:
    """Yield each set that is for several families: its tests, and where it is released."""
    tests = [cell for cell in night_summary.spoken(newest).values() if cell.kind in TEST_KINDS]
    manifests = {recipe.name: recipe.manifest for recipe in newest.recipes}
    for name in dict.fromkeys(cell.wheels for cell in tests):
        cells = {(c.family, c.suite, c.python): c for c in tests if c.wheels == name}
        of, suites, pythons = (dict.fromkeys(part) for part in zip(*cells, strict=True))
        if len(of) > 1:
            yield {
                "name": name,
                "manifest": manifests.get(name, ""),
                "families": [family for family in newest.families if family.family in of],
                "suites": list(suites),
                "pythons": sorted(pythons, key=PythonVersion.parse),
                "cells": cells,
            }


def _groups(
    summaries: Sequence[NightSummary], change: Mapping[str, CellChange]
) -> list[dict[str, Any]]:
    """Return what the page shows of each family, those with a red cell first."""
    if not summaries:
        return []
    newest, past = summaries[-1], [night_summary.spoken(item) for item in summaries]
    groups = []
    for family in newest.families:
        cells = newest.of_family(family.family)
        own = (cell for cell in past[-1].values() if cell.family == family.family)
        tests = [cell for cell in own if cell.kind in TEST_KINDS]
        groups.append(
            {
                "family": family,
                "worst": "bad" if newest.nothing_built and cells else night_summary.worst(cells),
                "bad": [  # besides its tests
                    cell
                    for cell in cells
                    if cell.kind not in {*TEST_KINDS, "image"} and cell.colour in {"bad", "warn"}
                ],
                "pythons": sorted({cell.python for cell in tests}, key=PythonVersion.parse),
                "suites": list(dict.fromkeys((cell.wheels, cell.suite) for cell in tests)),
                "is_one_set": len({cell.wheels for cell in tests}) <= 1,
                "rows": {
                    (cell.wheels, cell.suite, cell.python): {
                        "cell": cell,
                        "change": change.get(cell.name, CellChange.SAME),
                        "since": night_summary.since(cell, past, summaries),
                        "strip": _strip([night.get(cell.identity) for night in past]),
                    }
                    for cell in tests
                },
                "images": [cell for cell in cells if cell.kind == "image"],
            }
        )
    order = ("bad", "warn", "idle", "none", "good")
    return sorted(groups, key=lambda group: order.index(str(group["worst"])))


def _strip(cells: Iterable[CellSummary | None]) -> dict[str, str]:
    """Draw a square per night as one path per colour: small, and readable without a script."""
    paths: dict[str, list[str]] = {}
    for number, cell in enumerate(cells):
        paths.setdefault(cell.colour if cell else "none", []).append(f"M{number * 6} 0h5v10h-5z")
    return {name: "".join(path) for name, path in paths.items()}
