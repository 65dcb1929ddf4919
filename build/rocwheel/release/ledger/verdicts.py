"""Stored verdicts: in-toto test results, none of which can be changed or hidden unseen.

Runners may put and may not delete, and some stores let a put replace an object. An unsigned verdict
is therefore named by its digest: another one in its place does not fit the name, and counts as a
failure. What a runner's key signs lies under that key by its number, and names the one before. All
verdicts of a cell are read; `trust.verifier` decides what their signatures prove.
Before 0.3 a verdict was stored plain; such a one is read, and what was signed about it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final, TypeAlias

from rocwheel.base import files
from rocwheel.base.errors import ConfigError, ObjectDiffersError, ObjectMissingError
from rocwheel.base.store import TEXT, Headers, HugeError
from rocwheel.base.values import Plain, replace
from rocwheel.records.places import Place
from rocwheel.records.verdict import PASSED, Verdict
from rocwheel.release.ledger.log import small
from rocwheel.release.ledger.state import IndexState, Standing
from rocwheel.release.trust import TrustError, envelope, statements
from rocwheel.release.trust.policy import Signer

LOOKS_BACK: Final = 5  # released sets in which the tests of a suite are looked for
Cell: TypeAlias = "tuple[str, str]"  # suite and CPython
LARGEST: Final = envelope.LARGEST  # bytes of a verdict that is read; ours have some thousand
ATTEMPTS: Final = 20  # at a number that another process with the same key takes first
_NUMBER: Final = re.compile(r"([1-9][0-9]{0,8})\.json")
_STORED: Final = re.compile(  # CPython, suite, then a key's number, or the verdict's digest
    r"([^/]+)/([^/]+)/(?:([0-9a-f]{64})/([1-9][0-9]{0,8})|([^/]+))\.json"
)


class FoundVerdict(Plain, frozen=True, kw_only=True):
    """A verdict as it is stored; `verdict` is None where it does not count as one."""

    key: str
    where: str  # what people know the key by
    python: str  # of the cell it lies in
    suite: str
    sha256: str  # of the verdict; of what is none, of its bytes
    keyid: str = ""  # of the key below which it lies
    number: int = 0  # there
    verdict: Verdict | None = None
    problem: str = ""  # why it is none
    tests: frozenset[str] = frozenset()  # that a whole, passing verdict is about
    line: bytes = b""  # as it is stored
    seen: datetime | None = None  # when the store got it


class Coverage(Plain, frozen=True, kw_only=True):
    """What whole, passing verdicts on a set are about."""

    tests: Mapping[Cell, frozenset[str]] = {}
    ran: Mapping[Cell, int] = {}  # the most tests that passed in one

    def least(self, suite: str, python: str) -> int | None:
        """Return how many tests of a cell passed; of a new CPython, the fewest of another one."""
        numbers = {cell[1]: number for cell, number in self.ran.items() if cell[0] == suite}
        return numbers.get(python, min(numbers.values(), default=None))


NOTHING: Final = Coverage()


def add(
    place: Place, verdict: Verdict, signer: Signer | None = None, *, parts: Sequence[str] = ()
) -> str:
    """Store a verdict, once; return its key. Raises StoreError, TrustError.

    A signed one is the next of its key's in this cell; `parts` are the verdicts of the shards that
    it was made of.
    """
    cell = (verdict.manifest, verdict.python, verdict.suite)
    if signer is None:
        key = place.verdict(*cell, verdict.sha256)
        place.keep(key, envelope.unsigned(statements.result(verdict)))
        return key
    folder = place.report(*cell, f"{signer.public_key.keyid}/")
    for _ in range(ATTEMPTS):
        numbers = (_NUMBER.fullmatch(item.key[len(folder) :]) for item in place.store.keys(folder))
        number = max((int(match[1]) for match in numbers if match), default=0)
        previous = files.sha256(place.store.read(f"{folder}{number}.json")[0]) if number else ""
        statement = statements.result(verdict, number=number + 1, previous=previous, parts=parts)
        data = envelope.sign(envelope.unsigned(statement), signer, name="this statement")
        key = f"{folder}{number + 1}.json"
        with suppress(ObjectDiffersError):  # another process with this key was faster
            place.keep(key, data)
            return key
    what = f"{ATTEMPTS} statements of this key about {verdict.suite} came first"
    raise TrustError(f"{place.location}: {what}", hint="give each runner a key of its own")


def add_tests(place: Place, verdict: Verdict, names: bytes) -> None:
    """Store the list of the tests a verdict is about, one name per line. Raises StoreError."""
    headers, digest = Headers(content_type=TEXT), verdict.ran.collected
    place.store.create(_tests(place, verdict), names, headers=headers, sha256=digest)


def coverage(verdicts: Iterable[FoundVerdict]) -> Coverage:
    """Return what whole, passing verdicts are about, by suite and CPython."""
    tests, ran = dict[Cell, frozenset[str]](), dict[Cell, int]()
    for item in verdicts:
        cell, said = (item.suite, item.python), item.verdict
        if said and not said.shard and said.state in PASSED:
            ran[cell] = max(ran.get(cell, 0), said.counts.ran)
        if item.tests:
            tests[cell] = tests.get(cell, frozenset()) | item.tests
    return Coverage(tests=tests, ran=ran)


def released_coverage(release: Place, state: IndexState, cells: Collection[Cell]) -> Coverage:
    """Return what ran of the last released set that has each of these cells. Raises StoreError."""
    before = NOTHING
    sets = state.of(release.family).sets.values()
    released = (known for known in sets if known.standing is Standing.LISTED)
    for known in sorted(released, key=lambda known: known.first, reverse=True)[:LOOKS_BACK]:
        # What passed without a list came after no set with one: that would have barred it.
        if set(cells) <= before.ran.keys():
            break
        one = coverage(find(release.at(known.home), known.id))
        before = Coverage(tests={**one.tests, **before.tests}, ran={**one.ran, **before.ran})
    return before


def cells(verdicts: Iterable[FoundVerdict]) -> set[Cell]:
    return {(item.suite, item.python) for item in verdicts if item.verdict}


def keys(place: Place, manifest: str) -> list[str]:
    """List the keys of what lies where verdicts on a manifest do. Raises StoreError."""
    return [item.key for item, _ in _cells(place, manifest)]


def lost(verdicts: Sequence[FoundVerdict], before: Coverage) -> dict[Cell, tuple[str, ...]]:
    """Return the tests that a cell had before and has no more; without a list it has none."""
    covered = coverage(verdicts)
    missing = {cell: before.tests.get(cell, frozenset()) - covered.tests.get(cell, frozenset())
               for cell in cells(verdicts)}  # fmt: skip
    return {cell: tuple(sorted(names)) for cell, names in missing.items() if names}


def find(place: Place, manifest: str) -> tuple[FoundVerdict, ...]:
    """Read all that lies where verdicts on a manifest do, by cell and name. Raises StoreError."""
    cells = _cells(place, manifest)
    return tuple(place.each(lambda cell: _read(place, manifest, *cell), cells))


def _cells(place: Place, manifest: str) -> list[tuple[FoundVerdict, int]]:
    prefix = place.verdicts(manifest)
    return [
        (
            FoundVerdict(
                key=item.key,
                where=place.store.locate(item.key),
                python=match[1],
                suite=match[2],
                keyid=match[3] or "",
                number=int(match[4] or 0),
                sha256=match[5] or "",
                seen=item.modified,
            ),
            item.size,
        )
        for item in place.store.keys(prefix)
        if (match := _STORED.fullmatch(item.key[len(prefix) :]))
    ]


def copy(verdict: FoundVerdict, release: Place) -> None:
    """Copy to the release the verdict that was read. Raises ObjectDiffersError, StoreError."""
    said = verdict.verdict
    if said is None:  # the release's evidence names it; garbage is not copied
        return
    if verdict.tests:
        names = "".join(f"{name}\n" for name in sorted(verdict.tests))
        add_tests(release, said, names.encode())
    name = files.sha256(verdict.line) if verdict.keyid else verdict.sha256
    release.keep(release.verdict(said.manifest, said.python, said.suite, name), verdict.line)


def _tests(place: Place, verdict: Verdict) -> str:
    name = f"tests/{verdict.ran.collected}.txt"
    return place.report(verdict.manifest, verdict.python, verdict.suite, name)


def _read(place: Place, manifest: str, item: FoundVerdict, size: int) -> FoundVerdict:
    data = b""
    try:
        if size > LARGEST:
            raise ConfigError(f"{size} bytes are not a verdict")  # noqa: TRY301
        data, _ = place.store.read(item.key)
        item = replace(item, line=data)
        verdict = _verdict(place, manifest, item)
        return replace(item, verdict=verdict, sha256=verdict.sha256, tests=_listed(place, verdict))
    except (ConfigError, TrustError) as exc:
        return replace(item, problem=str(exc), sha256=item.sha256 or files.sha256(data))


def _verdict(place: Place, manifest: str, item: FoundVerdict) -> Verdict:
    """Return the verdict in a cell. Raises ConfigError, TrustError for what is none of it."""
    name, data = item.where, item.line
    if data.startswith(envelope.STARTS):
        statement = envelope.parse(data, name=name).statement
        verdict = statements.verdict_in(statement, name=name)
    else:  # of before 0.3
        verdict = Verdict.from_bytes(data, name=name)
    if not item.keyid and item.sha256 not in {verdict.sha256, files.sha256(data)}:
        raise ConfigError("its contents differ from its name: it was changed")
    about = (verdict.manifest, verdict.family, verdict.python, verdict.suite)
    if about != (manifest, place.family, item.python, item.suite):
        raise ConfigError("it is about another manifest, family, CPython or suite")
    return verdict


def _listed(place: Place, verdict: Verdict) -> frozenset[str]:
    """Return the names of the tests that a whole, passing verdict is about.

    There are none if it names no list. Raises ConfigError for another list than the named one:
    lost tests could not be seen without it.
    """
    if verdict.shard or verdict.state not in PASSED or not verdict.ran.collected:
        return frozenset()
    try:
        data = small(place, _tests(place, verdict), sha256=verdict.ran.collected)
    except (ObjectMissingError, ObjectDiffersError, HugeError) as exc:
        raise ConfigError(f"the list of its tests: {exc}") from exc
    return frozenset(data.decode(errors="replace").splitlines())
