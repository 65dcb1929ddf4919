"""What programs read beside the page of the nightly: an Atom feed and a badge.

The feed has an entry for each shown night that differs from the one before (RFC 4287); the badge is
what https://shields.io/badges/endpoint-badge reads.
"""

import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Final

from rocwheel.night.night_summary import CellChange, Changed, NightSummary, causes, changes

FEED: Final = "status/feed.atom"  # keys, below the store
BADGE: Final = "status/badge.json"
COLOURS: Final = {"bad": "red", "warn": "yellow", "good": "brightgreen"}
QUIET: Final = frozenset({CellChange.STILL, CellChange.SLOWER})


def headline(summary: NightSummary) -> str:
    """Say in a few words how a night ended."""
    red = sum(cell.colour == "bad" for cell in summary.cells)
    if summary.nothing_built:
        return "nothing was built"
    if red:
        return f"{red} red"
    words = {"good": "green", "warn": "machines or flaky tests", "idle": "not finished"}
    return words.get(summary.colour, "empty")


def loud(summaries: Sequence[NightSummary]) -> list[Changed]:
    """Return what changed in the newest night that concerns people."""
    return [item for item in changes(summaries) if item.change not in QUIET]


def badge(summaries: Sequence[NightSummary]) -> bytes:
    """Render the badge of the newest night."""
    colour = summaries[-1].colour if summaries else ""
    document = {
        "schemaVersion": 1,
        "label": summaries[-1].night if summaries else "nightly",
        "message": headline(summaries[-1]) if summaries else "no night",
        "color": COLOURS.get(colour, "lightgrey"),
        "isError": colour == "bad",
    }
    return json.dumps(document, indent=2, sort_keys=True).encode() + b"\n"


def feed(summaries: Sequence[NightSummary], *, title: str, page: str) -> bytes:
    """Render the feed; `page` is the URL of the page, which entries link to."""
    root = ET.Element("feed", xmlns="http://www.w3.org/2005/Atom")
    updated = summaries[-1].written if summaries else "1970-01-01T00:00:00Z"
    _add(root, title=title, id=page, updated=updated)
    ET.SubElement(root, "link", href=page)
    ET.SubElement(ET.SubElement(root, "author"), "name").text = "rocwheel"
    for number in range(len(summaries), 0, -1):
        summary = summaries[number - 1]
        told = loud(summaries[:number])
        if told or number == 1:
            entry = ET.SubElement(root, "entry")
            lines = [f"{len(c.cells)} {c.first.word}: {c.first.reason}" for c in causes(summary)]
            lines += [f"{item.change.value}: {item.cell.name}" for item in told]
            _add(
                entry,
                title=f"{summary.night}: {headline(summary)}",
                id=f"{page}#{summary.night}",
                updated=summary.written,
                content="\n".join(lines) or "nothing to tell",
            )
            ET.SubElement(entry, "link", href=page)
    data: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return data


def _add(parent: ET.Element, **texts: str) -> None:
    for name, text in texts.items():
        clean = "".join(c for c in text if c.isprintable() or c in "\n\t")  # XML refuses the rest
        ET.SubElement(parent, name).text = clean
