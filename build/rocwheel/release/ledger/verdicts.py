"""Stored verdicts: each under its own SHA-256, so that none can be changed or hidden.

Runners may put and may not delete, and some stores let a put replace an object. A verdict's name is
therefore the digest of its bytes: who writes other bytes over it leaves a name that does not
fit, which is found here and counts as a failure. Neither the order nor the number of verdicts
means anything; all of a cell are read.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from rocwheel.base import files
from rocwheel.base.errors import ConfigError, ObjectDiffersError, ObjectMissingError
from rocwheel.base.store import TEXT, Headers, HugeError
from rocwheel.base.values import Plain, replace
from rocwheel.records.places import Place
from rocwheel.records.verdict import PASSED, Verdict
from rocwheel.release.ledger.log import small
from rocwheel.release.ledger.state import IndexState, Standing

LOOKS_BACK: Final = 5  # released sets in which the tests of a suite are looked for
Cell: TypeAlias = "tuple[str, str]"  # suite and CPython
Coverage: TypeAlias = "Mapping[Cell, frozenset[str]]"  # the tests of each cell
LARGEST: Final = 4 << 20  # bytes of a verdict that is read; ours have some thousand


class FoundVerdict(Plain, frozen=True, kw_only=True):
    """A verdict as it is stored; `verdict` is None where it does not count as one."""

    key: str
    python: str  # of the cell it lies in
    suite: str
    sha256: str  # its name
    verdict: Verdict | None = None
    problem: str = ""  # why it is none
    tests: frozenset[str] = frozenset()  # that a whole, passing verdict is about


def add(place: Place, verdict: Verdict) -> str:
    """Store a verdict, once; return its key. Raises StoreError."""
    key = place.verdict(verdict.manifest, verdict.python, verdict.suite, verdict.sha256)
    place.store.create(key, verdict.to_bytes(), headers=place.record_headers, sha256=verdict.sha256)
    return key


def add_tests(place: Place, verdict: Verdict, names: bytes) -> None:
    """Store the list of the tests a verdict is about, one name per line. Raises StoreError."""
    headers, digest = Headers(content_type=TEXT), verdict.ran.collected
    place.store.create(_tests(place, verdict), names, headers=headers, sha256=digest)


def coverage(verdicts: Iterable[FoundVerdict]) -> Coverage:
    """Return the tests that whole, passing verdicts are about, by suite and CPython."""
    covered: dict[Cell, frozenset[str]] = {}
    for item in verdicts:
        if item.tests:
            cell = (item.suite, item.python)
            covered[cell] = covered.get(cell, frozenset()) | item.tests
    return covered


def released_coverage(release: Place, state: IndexState, cells: Collection[Cell]) -> Coverage:
    """Return the tests of the last released set that has each of these cells. Raises StoreError."""
    before: Coverage = {}
    sets = state.of(release.view).sets.values()
    released = (known for known in sets if known.standing is Standing.LISTED)
    for known in sorted(released, key=lambda known: known.first, reverse=True)[:LOOKS_BACK]:
        if set(cells) <= before.keys():
            break
        before = {**coverage(find(release, known.id)), **before}
    return {cell: names for cell, names in before.items() if cell in cells}


def cells(verdicts: Iterable[FoundVerdict]) -> set[Cell]:
    """Return the suites and CPythons that any verdict is about, with a list of tests or without."""
    return {(item.suite, item.python) for item in verdicts if item.verdict}


def keys(place: Place, manifest: str) -> list[str]:
    """List the keys of what lies where verdicts on a manifest do. Raises StoreError."""
    return [item.key for item, _ in _cells(place, manifest)]


def lost(verdicts: Sequence[FoundVerdict], before: Coverage) -> dict[Cell, tuple[str, ...]]:
    """Return the tests that a cell had before and has no more; without a list it has none."""
    covered = coverage(verdicts)
    missing = {cell: before.get(cell, frozenset()) - covered.get(cell, frozenset())
               for cell in cells(verdicts)}  # fmt: skip
    return {cell: tuple(sorted(names)) for cell, names in missing.items() if names}


def find(place: Place, manifest: str) -> tuple[FoundVerdict, ...]:
    """Read all that lies where verdicts on a manifest do, by cell and name. Raises StoreError."""
    cells = _cells(place, manifest)
    return tuple(place.each(lambda cell: _read(place, manifest, *cell), cells))


def _cells(place: Place, manifest: str) -> list[tuple[FoundVerdict, int]]:
    """Return what lies where verdicts do, none of it read, with its size."""
    prefix = place.verdicts(manifest)
    pattern = re.compile(re.escape(prefix) + r"([^/]+)/([^/]+)/([^/]+)\.json")
    return [
        (FoundVerdict(key=item.key, python=match[1], suite=match[2], sha256=match[3]), item.size)
        for item in place.store.keys(prefix)
        if (match := pattern.fullmatch(item.key))
    ]


def keep(verdict: FoundVerdict, release: Place) -> None:
    """Copy to the release the verdict that was read. Raises ObjectDiffersError, StoreError."""
    if verdict.verdict is None:  # told in the release's evidence; garbage is not carried along
        return
    if verdict.tests:
        names = "".join(f"{name}\n" for name in sorted(verdict.tests))
        add_tests(release, verdict.verdict, names.encode())
    add(release, verdict.verdict)


def _tests(place: Place, verdict: Verdict) -> str:
    name = f"tests/{verdict.ran.collected}.txt"
    return place.report(verdict.manifest, verdict.python, verdict.suite, name)


def _read(place: Place, manifest: str, item: FoundVerdict, size: int) -> FoundVerdict:
    try:
        verdict = _verdict(place, manifest, item, size)
        return replace(item, verdict=verdict, tests=_listed(place, verdict))
    except ConfigError as exc:
        return replace(item, problem=str(exc))


def _verdict(place: Place, manifest: str, item: FoundVerdict, size: int) -> Verdict:
    """Read a verdict of a cell. Raises ConfigError for what is none, or is of another cell."""
    if size > LARGEST:
        raise ConfigError(f"{size} bytes are no verdict")
    data, _ = place.store.read(item.key)
    if files.sha256(data) != item.sha256:
        raise ConfigError("its contents differ from its name: it was changed")
    verdict = Verdict.from_bytes(data, name=place.store.locate(item.key))
    about = (verdict.manifest, verdict.family, verdict.python, verdict.suite)
    if about != (manifest, place.view, item.python, item.suite):
        raise ConfigError("it is about another manifest, family, CPython or suite")
    return verdict


def _listed(place: Place, verdict: Verdict) -> frozenset[str]:
    """Return the names of the tests that a whole, passing verdict is about.

    There are none where it names no list of them. Raises ConfigError for a list that is not the one
    it names: without it lost tests could not be seen.
    """
    if verdict.shard or verdict.state not in PASSED or not verdict.ran.collected:
        return frozenset()
    try:
        data = small(place, _tests(place, verdict), sha256=verdict.ran.collected)
    except (ObjectMissingError, ObjectDiffersError, HugeError) as exc:
        raise ConfigError(f"the list of its tests: {exc}") from exc
    return frozenset(data.decode(errors="replace").splitlines())
