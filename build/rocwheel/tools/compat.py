"""Which JAX goes with which ROCm, GPU and CPython: tables of the data and of what was released.

A release counts as tested if passing verdicts lie beside it. Without a run, or without a channel,
the cell says "not known".
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from packaging.version import InvalidVersion, Version

import amdgpu_family_matrix as matrix
from amdgpu_family_matrix import Family
from rocwheel import source
from rocwheel.base.choices import ALL
from rocwheel.base.console import columns, printable
from rocwheel.base.errors import ObjectStaleError, RocwheelError
from rocwheel.base.values import Plain

if TYPE_CHECKING:  # what tables of the data do not need
    from rocwheel.records.places import Place
    from rocwheel.records.results import TestResult
    from rocwheel.records.verdict import Verdict
    from rocwheel.release.ledger.state import IndexState, Known

Looked: TypeAlias = "tuple[Place, Known, tuple[Verdict, ...]]"  # a released set, and what passed
NOT_KNOWN: Final = "not known"
TRIED: Final = {  # by tests of suites/smoke: what a row is about stands in the test's name
    "ROCm libraries": r"\btest_libraries\.py::test_function\[([^-]+)-(.+)-[^-]+\]",
    "JAX modules": r"\btest_modules\.py::test_import\[(.+)\]",
    "JAX features": r"\btest_unsupported\.py::test_feature\[(.+)\]",
}
MARKDOWN: Final = r"[\\`*|~<>&\[\]]|(?<![^\W_])_|_(?![^\W_])"  # what is markup in a cell
HEADERS: Final = {  # of what a channel says
    "Released": ("family", "JAX", "ROCm", "CPython", "exercised"),
    "Runtime images": ("image", "JAX", "ROCm", "Linux", "CPython"),
    "ROCm libraries": ("library", "used in", "since JAX", "since ROCm", "remark"),
    "JAX modules": ("module", "since JAX", "since ROCm", "remark"),
    "JAX features": ("feature", "since JAX", "since ROCm", "remark"),
}


class Table(Plain, frozen=True, kw_only=True):
    """One table of the page: its title, and rows of plain text below a header."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def shown(self) -> tuple[tuple[str, ...], ...]:
        """The rows that people see, each cell one line: one row where there is none."""
        rows = self.rows or (("none",) * len(self.header),)
        return tuple(tuple(map(printable, row)) for row in rows)

    def text(self) -> Iterator[str]:
        yield from (self.title, *columns(self.header, self.shown), "")

    def md(self) -> Iterator[str]:
        yield from (f"## {self.title}", "")
        for row in (self.header, ("---",) * len(self.header), *self.shown):
            cells = (re.sub(MARKDOWN, lambda odd: f"&#{ord(odd[0])};", cell) for cell in row)
            yield f"| {' | '.join(cells)} |"
        yield ""


def buildable(ci: Path, *, is_offered: bool = False) -> Table:
    """Return what can be built: the pins, newest first, with the ROCm that their sources take.

    A page for users leaves out unverified pins.
    """
    rows, pins = [], source.pins_of(ci)
    for pin in reversed(pins.pins):
        if is_offered and pin.unverified:
            continue
        version_class = pins.layouts[pin.layout].version_class(Version(pin.version))
        rocm = map(str, version_class.rocm) if version_class else (NOT_KNOWN,)
        mark = " (default)" if pin.default else " (unverified)" if pin.unverified else ""
        rows.append(
            (
                f"{pin.name}{mark}",
                ",".join(sorted(rocm, key=lambda text: ("!" in text, "<" in text, text))),
                ", ".join(map(str, pin.pythons)),
                "of the set" if pin.jaxlib.origin == "built" else "of the package index",
            )
        )
    return Table(
        title="JAX releases that can be built, for any GPU",
        header=("JAX", "ROCm", "CPython", "jaxlib"),
        rows=tuple(rows),
    )


def gpus(families: Iterable[Family]) -> Table:
    rows = ((item.name, ", ".join(item.products), ", ".join(item.targets)) for item in families)
    return Table(title="GPUs", header=("family", "products", "gfx targets"), rows=tuple(rows))


def looked_at(places: Iterable[Place]) -> tuple[Looked, ...]:
    """Read what is released at each place, with the verdicts that passed. Raises StoreError."""
    from rocwheel.records.verdict import State
    from rocwheel.release.ledger import log, verdicts
    from rocwheel.release.ledger.state import Standing

    looked = []
    for place in places:
        known_sets = log.read(place).of(place.family).sets.values()
        sets = [s for s in known_sets if s.standing is Standing.LISTED and s.jax]
        for known in sorted(sets, key=lambda item: (item.first, item.id), reverse=True):
            passed = tuple(
                verdict
                for item in verdicts.find(place.at(known.home), known.id)
                if (verdict := item.verdict) and verdict.state is State.PASS
                if not verdict.shard and not verdict.ran.unofficial
            )
            looked.append((place.at(known.home), known, passed))
    return tuple(looked)


def released(looked: Iterable[Looked]) -> Table:
    rows = []
    for place, known, passed in looked:
        for python in known.pythons:
            suites = ", ".join(sorted({item.suite for item in passed if item.python == python}))
            rows.append((place.family, known.jax, known.rocm, python, suites or NOT_KNOWN))
    return Table(title="Released", header=HEADERS["Released"], rows=tuple(rows))


def images(looked: Iterable[Looked]) -> Table:
    from rocwheel.night import image_record as record

    jax = {(place.index, known.id): known.jax for place, known, _ in looked}
    rows = (
        (one.pinned, jax[root, one.manifest], one.rocm, one.base.partition("@")[0], one.python)
        for root, place in {place.index: place for place, *_ in looked}.items()
        for one in reversed(record.records(place))
        if one.released and (root, one.manifest) in jax
    )
    return Table(title="Runtime images", header=HEADERS["Runtime images"], rows=tuple(rows))


def tried(looked: Iterable[Looked]) -> Iterator[Table]:
    """Return libraries, modules and features, each since the oldest JAX and ROCm it passed with.

    These are results of the suite `smoke`, on one CPython of each pair; unreadable ones are left
    out. The reason why something did not run is that of the newest pair.
    """
    from rocwheel.gate.verdict import storing

    oldest = {  # of several runs with one pair of versions
        (known.jax, known.rocm): (place, verdict)
        for place, known, passed in looked
        for verdict in passed
        if verdict.suite == "smoke" and "json" in verdict.reports
    }
    rows: dict[tuple[str, ...], list[tuple[Version, Version, TestResult]]] = defaultdict(list)
    for versions, run in oldest.items():
        with suppress(RocwheelError, InvalidVersion):
            jax, rocm = map(Version, versions)
            for (title, pattern), test in product(TRIED.items(), storing.shard_of(*run).tests):
                if match := re.search(pattern, test.test):
                    about = (title, *match.groups())
                    rows[about].append((jax, rocm, test))
    for title in TRIED:
        cells = tuple((*key[1:], *_since(runs)) for key, runs in rows.items() if key[0] == title)
        yield Table(title=title, header=HEADERS[title], rows=cells) if cells else unasked(title)


def _since(runs: Sequence[tuple[Version, Version, TestResult]]) -> Iterator[str]:
    from rocwheel.records.results import Outcome

    passed = [run for run in runs if run[2].outcome in {Outcome.PASSED, Outcome.FLAKY}]
    yield str(min(jax for jax, _, _ in passed)) if passed else NOT_KNOWN
    yield str(min(rocm for _, rocm, _ in passed)) if passed else NOT_KNOWN
    seen = any(test.evidence for *_, test in passed)
    yield runs[0][2].reason or ("its library was seen at work" if seen else "")


def refresh(place: Place, state: IndexState, ci: Path) -> None:
    """Put the page beside the index of a release, as its log says. Raises StoreError."""
    from rocwheel.release.ledger.state import Standing

    names, shown = [place.family], state.of(place.family).sets.values()
    sets = [known for known in shown if known.standing is Standing.LISTED and known.jax]
    sets.sort(key=lambda known: (known.first, known.id), reverse=True)
    if place.family == ALL:  # the sets of every family that must have them
        names = sorted({name for known in sets for name in state.sets[known.id].families})
    rows = []
    for name, known, python in ((n, s, p) for n in names for s in sets for p in s.pythons):
        seen = state.sets[known.id].of(name)
        if seen and seen.standing is Standing.LISTED:
            suites = ", ".join(sorted(known.passed.get(name, {}).get(python, ())))
            rows.append((name, known.jax, known.rocm, python, suites or NOT_KNOWN))
    table = Table(title="Released", header=HEADERS["Released"], rows=tuple(rows))
    families = [matrix.FAMILIES[name] for name in names if name in matrix.FAMILIES]
    offered = buildable(ci, is_offered=True)
    tables = (table, *((gpus(families),) if families else ()), offered)
    previous = place.store.info(place.compat)
    body = f"{render(tables, 'html')}\n".encode()
    with suppress(ObjectStaleError):  # a command beside this one has just put one as new
        place.store.replace(place.compat, body, previous=previous, headers=place.view_headers)


def of_channel(places: Iterable[Place]) -> tuple[Table, ...]:
    """Return every table of what is released. Raises StoreError."""
    looked = looked_at(places)
    return (released(looked), images(looked), *tried(looked))


def unasked(title: str) -> Table:
    """Return a table where no channel was named, or no results can be read."""
    header = HEADERS[title]
    return Table(title=title, header=header, rows=((NOT_KNOWN,) * len(header),))


def render(tables: Iterable[Table], form: str) -> str:
    """Return the tables in one of `choices.TABLE_FORMS`."""
    if form == "html":
        from rocwheel.base import assets

        page = assets.template("base/assets/compat.html")
        css = assets.style("gate/report/assets/page.css")
        return page.render(tables=list(tables), css=css, title="JAX and ROCm")
    return "\n".join(line for table in tables for line in getattr(table, form)()).rstrip("\n")


def document(tables: Iterable[Table]) -> dict[str, Any]:
    return {
        table.title: [dict(zip(table.header, row, strict=True)) for row in table.rows]
        for table in tables
    }
