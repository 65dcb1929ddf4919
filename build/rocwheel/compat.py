"""Which JAX goes with which ROCm, GPU and CPython: tables of the data and of what was released.

A release is called exercised where passing verdicts lie beside it; where no suite ran, or
where no channel was asked, the cell says "not known".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from packaging.version import Version

import amdgpu_family_matrix as matrix
from amdgpu_family_matrix import Family
from rocwheel import source
from rocwheel.choices import ALL
from rocwheel.console import columns
from rocwheel.errors import ObjectStaleError

if TYPE_CHECKING:  # what tables of the data do not need
    from rocwheel.places import Place

NOT_KNOWN: Final = "not known"
RELEASED: Final = ("family", "JAX", "ROCm", "CPython", "exercised")


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table of the page: its title, and rows of plain text below a header."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def shown(self) -> tuple[tuple[str, ...], ...]:
        """The rows that people see: one where there is none."""
        return self.rows or (("none",) * len(self.header),)

    def text(self) -> Iterator[str]:
        yield from (self.title, *columns(self.header, self.shown), "")

    def md(self) -> Iterator[str]:
        yield from (f"## {self.title}", "")
        for row in (self.header, ("---",) * len(self.header), *self.shown):
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
        yield ""

    def rst(self) -> Iterator[str]:
        yield from (self.title, "=" * len(self.title), "")
        yield from (".. list-table::", "   :header-rows: 1", "")
        for row in (self.header, *self.shown):
            for number, cell in enumerate(row):
                yield f"   {'* -' if number == 0 else '  -'} {cell}"
        yield ""

    def html(self) -> Iterator[str]:
        yield f"<h2>{escape(self.title)}</h2>"
        yield f"<table><thead>{_row('th', self.header)}</thead><tbody>"
        yield from (_row("td", row) for row in self.shown)
        yield "</tbody></table>"


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _range(versions: Iterable[object]) -> str:
    """Return a set of specifiers as people read them: from, below, without."""
    ordered = sorted(map(str, versions), key=lambda text: ("!" in text, "<" in text, text))
    return ",".join(ordered)


def buildable(ci: Path) -> Table:
    """Return what can be built: the pins, newest first, with the ROCm that their sources take."""
    rows, pins = [], source.pins_of(ci)
    for pin in reversed(pins.pins):
        version_class = pins.layouts[pin.layout].version_class(Version(pin.version))
        mark = " (default)" if pin.default else " (unverified)" if pin.unverified else ""
        rows.append(
            (
                f"{pin.name}{mark}",
                _range(version_class.rocm) if version_class else NOT_KNOWN,
                ", ".join(map(str, pin.pythons)),
                "of the set" if pin.jaxlib.origin == "built" else "of the package index",
            )
        )
    return Table(
        title="JAX releases that can be built",
        header=("JAX", "ROCm", "CPython", "jaxlib"),
        rows=tuple(rows),
    )


def gpus(families: Iterable[Family]) -> Table:
    """Return which GPUs a family has."""
    rows = ((item.name, ", ".join(item.products), ", ".join(item.targets)) for item in families)
    return Table(title="GPUs", header=("family", "products", "gfx targets"), rows=tuple(rows))


def released(places: Iterable[Place], *, among: Collection[str] | None = None) -> Table:
    """Return what is released, with the suites that passed on each CPython. Raises StoreError.

    `among` are the sets that it is about; None: all.
    """
    from rocwheel.ledger import log, verdicts
    from rocwheel.ledger.state import Standing
    from rocwheel.verdict import State

    rows = []
    for place in places:
        known_sets = log.read(place).of(place.view).sets.values()
        listed = [s for s in known_sets if s.standing is Standing.LISTED and s.jax]
        sets = listed if among is None else [s for s in listed if s.id in among]
        for known in sorted(sets, key=lambda item: (item.first, item.id), reverse=True):
            passed = {
                (item.python, item.suite)
                for item in verdicts.find(place, known.id)
                if (verdict := item.verdict) and verdict.state is State.PASS
                if not verdict.shard and not verdict.ran.unofficial
            }
            for python in known.pythons:
                suites = ", ".join(sorted(suite for one, suite in passed if one == python))
                rows.append((place.view, known.jax, known.rocm, python, suites or NOT_KNOWN))
    return Table(title="Released", header=RELEASED, rows=tuple(rows))


def refresh(place: Place, ci: Path) -> None:
    """Put the page beside the index of a release, as things are now. Raises StoreError."""
    from rocwheel.ledger import log
    from rocwheel.ledger.state import Standing

    names, among = [place.view], None
    if place.view == ALL:  # what every family has that must, whatever some have besides
        state = log.read(place)
        sets = state.of(ALL).sets.values()
        among = {known.id for known in sets if known.standing is Standing.LISTED}
        names = sorted({name for set_id in among for name in state.sets[set_id].families})
    families = [matrix.FAMILIES[name] for name in names if name in matrix.FAMILIES]
    sets = released(map(place.of, names), among=among)  # first what users can install
    shown = (sets, *((gpus(families),) if families else ()), buildable(ci))
    previous = place.store.info(place.compat)
    body = f"{render(shown, 'html')}\n".encode()
    with suppress(ObjectStaleError):  # a command beside this one has just put one as new
        place.store.replace(place.compat, body, previous=previous, headers=place.view_headers)


def unasked() -> Table:
    """Return the table of releases where no channel was named."""
    row = ("not looked at: --channel or --store looks", *("",) * (len(RELEASED) - 1))
    return Table(title="Released", header=RELEASED, rows=(row,))


def render(tables: Iterable[Table], form: str) -> str:
    """Return the tables in one of `choices.TABLE_FORMS`."""
    lines = [line for table in tables for line in getattr(table, form)()]
    if form == "html":
        from rocwheel import assets

        head = (
            '<!doctype html><html lang="en"><meta charset="utf-8"><title>JAX and ROCm</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>{assets.style()}body{{padding:1rem}}td,th{{padding:.2rem .8rem .2rem 0;"
            "text-align:left;vertical-align:top}</style>"
        )
        lines = [f"{head}<h1>Which JAX for which ROCm, GPU and CPython</h1>", *lines, "</html>"]
    return "\n".join(lines).rstrip("\n")


def document(tables: Iterable[Table]) -> dict[str, Any]:
    return {
        table.title: [dict(zip(table.header, row, strict=True)) for row in table.rows]
        for table in tables
    }
