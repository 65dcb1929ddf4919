"""The log of one place in its store: reads its state, and commits the next entry.

`_rocwheel/log/<n>.json` is created once and never deleted; creating number n+1 *is* the commit of
an operation. Of two that decided on the same state, one wins and the other decides again.
`state.json` is a snapshot of the fold. It may lag, and is only written once the pages show it.

Before 0.3 each family had such a log below `<prefix>/<family>/`, and sets for several below
`<prefix>/all/`. Where a prefix has none of its own yet, it says what these say, together.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from rocwheel import __version__
from rocwheel.base import files
from rocwheel.base.choices import ALL
from rocwheel.base.errors import (
    ConfigError,
    ObjectMissingError,
    ObjectStaleError,
    RefusedError,
    StoreError,
)
from rocwheel.base.store import JSON, Headers, HugeError, glance, pause, replaced
from rocwheel.base.values import Sha256, Value, decoded, replace
from rocwheel.records.places import FOREIGN, OURS, OWN, Place
from rocwheel.release.ledger.state import (
    FORMAT,
    IndexState,
    Known,
    Listing,
    Transition,
    apply,
    touched,
)

SNAPSHOT: Final = 4  # its format; a reader of another one folds the log
TRIES: Final = 5  # to learn how a commit ended


class UnknownError(StoreError):
    """It is not known whether a write took effect."""


class _Snapshot(Value, frozen=True, kw_only=True):
    number: int
    head: str
    sets: tuple[Known, ...]
    projects: tuple[str, ...]
    files: Sha256  # digest of that object
    spent: int
    below: str  # of a release: digest of what the store lists of the entries before this number
    format: int = SNAPSHOT


def read(
    place: Place, *, files: bool = False, afresh: bool = False, skips: Collection[int] = ()
) -> IndexState:
    """Read the state that the log has now: its sets, and its `files` where they are needed.

    `afresh` folds the whole log, without the snapshot; entries with a number in `skips` change
    nothing then. So it is read as well where an entry of a release is not what it was when the
    snapshot was written. Raises StoreError where the log is a newer version's.
    """
    snapshot = None if afresh or skips else _snapshot(place)
    state = _folded(place, snapshot or _start(place), skips=skips)
    if snapshot and not place.is_staging and state.below != _below(state, snapshot.number):
        state = _folded(place, _start(place))
    if not (state.number or skips):
        state = _before(place, state)
    return load(place, state) if files else state


def load(place: Place, state: IndexState) -> IndexState:
    """Return the same state with its files at hand.

    Where the store has other files than the snapshot names, they are made again from the log; of a
    snapshot that is not the log's nothing is kept.
    """
    if not state.unread:
        return state
    data, stored = glance(place.store, place.files)[0], None
    with suppress(ConfigError):
        if files.sha256(data) == state.files_sha256:
            stored = decoded(data, dict[str, Listing], name=place.files)
    if stored is None:
        again = _folded(place, _start(place, state.stored), until=state.saved)
        if files.sha256(_encoded(again)) != state.files_sha256:
            return _folded(place, _start(place, state.stored), until=state.number)
        stored = dict(again.listings)
    return replace(state, listings={**stored, **state.listings}, unread=frozenset())


def _encoded(state: IndexState) -> bytes:
    listings = {name: state.listings[name] for name in _named(state)}
    return msgspec.json.encode(listings, order="sorted")


def _named(state: IndexState) -> tuple[str, ...]:
    """Return the projects that entries named: pages of others may be known, which list nothing."""
    each = sorted(state.listings.items())
    return tuple(name for name, listing in each if listing.files or listing.spent)


def skip(place: Place, entry: Transition) -> None:
    """Write an entry in place of a lost or damaged one; nothing else writes over an entry."""
    before = _folded(place, _start(place), until=entry.number - 1)
    head = before.head if before.number == entry.number - 1 else ""
    key, body = place.log(entry.number), replace(entry, previous=head).to_bytes()
    there = place.store.info(key)
    place.store.replace(key, body, previous=there, headers=place.record_headers)


def differ(place: Place, state: IndexState, again: IndexState) -> bool:
    """Return whether the undamaged log, folded from its start, gives another state than this."""
    is_damaged = again.torn if place.is_staging else bool(again.damage)
    return (
        not is_damaged
        and again.number == state.number
        and (
            again.sets != state.sets
            or any(again.listings.get(name) != state.listing(name) for name in state.projects)
        )
    )


def commit(place: Place, entry: Transition) -> str | bytes:
    """Create an entry; return its digest, or the bytes of another one that has its number.

    An error does not prove that the write failed: the entry that is there afterwards decides.
    Raises UnknownError where that cannot be read either, RefusedError where the store refused it.
    """
    key, body = place.log(entry.number), entry.to_bytes()
    digest = files.sha256(body)
    problem: StoreError | None = None
    for tried in range(TRIES):
        if tried:
            pause(tried)
        try:
            place.store.create(key, body, headers=place.record_headers, sha256=digest)
        except RefusedError:
            if problem is None:
                raise
        except StoreError as exc:
            problem = exc
        else:
            return digest
        try:
            there = small(place, key)
        except ObjectMissingError:
            continue  # the same put again
        except StoreError as exc:
            problem = exc
            continue
        return digest if there == body else there
    raise UnknownError(
        f"{place.store.locate(key)}: it is not known whether this {entry.action.value} was "
        f"committed: {problem}",
        hint="run the same command again: it sees what became of it and continues",
    ) from problem


def followed(place: Place, state: IndexState, data: bytes) -> IndexState:
    return _folded(place, state, until=state.number + 1, ahead={state.number + 1: data})


def save(place: Place, state: IndexState) -> IndexState:
    """Write the snapshot of a state that the pages show; a newer one stays.

    It only saves time, so a failure here is none of the operation. If two write at once, the files
    may be one's and the sets the other's: then they are made again.
    """
    try:
        state = load(place, state)
        if state.number - 1 not in state.stored:  # others were faster since it was listed
            state = replace(state, stored={**_stored(place), **state.stored})
        held = _encoded(state)
        snapshot = _Snapshot(
            number=state.number,
            head=state.head,
            sets=tuple(state.sets.values()),
            projects=_named(state),
            files=files.sha256(held),
            spent=state.spent,
            below=_below(state, state.number),
        )
        _put(place, snapshot, held)
    except StoreError:
        return state
    shown = {"saved": state.number, "rooted": state.indexed()}
    return replace(state, touched=frozenset(), seen=frozenset(), attested=frozenset(), **shown)


def _put(place: Place, snapshot: _Snapshot, held: bytes) -> None:
    """Store both halves of a snapshot, unless a newer one is there."""
    body, headers = msgspec.json.encode(snapshot, order="sorted"), Headers(content_type=JSON)
    for tried in range(TRIES):
        data, info = glance(place.store, place.state)
        old = _parsed(place, data)
        is_newer = old and old.number > snapshot.number and _has(place, old.number, old.head)
        if is_newer or (data == body and glance(place.store, place.files)[0] == held):
            return
        with suppress(ObjectStaleError):
            there = place.store.info(place.files) if info or tried else None
            place.store.replace(place.files, held, previous=there, headers=headers)
            place.store.replace(place.state, body, previous=info, headers=headers)
            return


def small(place: Place, key: str, *, sha256: str | None = None) -> bytes:
    """Read an object as a whole, and check its SHA-256 where one is given."""
    data, _ = place.store.read(key)
    if sha256 is not None and (digest := files.sha256(data)) != sha256:
        raise replaced(place.store.locate(key), digest, sha256)
    return data


def _start(place: Place, stored: Mapping[int, str] | None = None) -> IndexState:
    """Return the state before the first entry that is there: numbers may begin above 1."""
    stored = stored or _stored(place)
    first = min(stored, default=1)
    return IndexState(number=first - 1, saved=first - 1, is_whole=True, stored=stored)


def _stored(place: Place) -> dict[int, str]:
    """List the entries by number, with what changes when one is written again."""
    pattern = re.compile(re.escape(place.logs) + r"([1-9]\d{0,17})\.json")
    return {
        int(match[1]): f"{info.size} {info.etag or info.modified}"
        for info in place.store.keys(place.logs)
        if (match := pattern.fullmatch(info.key))
    }


def _below(state: IndexState, number: int) -> str:
    stored = sorted((n, mark) for n, mark in state.stored.items() if n < number)
    return files.sha256(msgspec.json.encode(stored))


def _snapshot(place: Place) -> IndexState | None:
    snapshot = _parsed(place, glance(place.store, place.state)[0])
    if snapshot is None or not _has(place, snapshot.number, snapshot.head):
        return None
    state = IndexState(
        number=snapshot.number,
        head=snapshot.head,
        sets={item.id: item for item in snapshot.sets},
        unread=frozenset(snapshot.projects),
        files_sha256=snapshot.files,
        saved=snapshot.number,
        spent=snapshot.spent,
        below=snapshot.below,
    )
    return replace(state, rooted=state.indexed())


def _parsed(place: Place, data: bytes) -> _Snapshot | None:
    """Parse a snapshot in our format; None for anything else: it only saves time."""
    with suppress(ConfigError):
        snapshot = decoded(data, _Snapshot, name=place.state)
        return snapshot if snapshot.format == SNAPSHOT else None
    return None


def _has(place: Place, number: int, head: str) -> bool:
    """Whether the log that is here has the entry that a snapshot ends with.

    A copy of another day, or a log that lost its end, would otherwise go on after a gap.
    """
    return files.sha256(glance(place.store, place.log(number))[0]) == head


def old(place: Place, folder: str) -> Place:
    """Return where the log of before 0.3 lies that a folder of a prefix has."""
    return dataclasses.replace(place, root=f"{place.root}/{folder}")


def _before(place: Place, state: IndexState) -> IndexState:
    """Return what the logs of before 0.3 say together, where there are some."""
    root = re.escape(f"{place.root}/")
    pattern = re.compile(rf"{root}([a-z][0-9a-zA-Z-]*)/{OURS}/log/\d+\.json")
    keys = (info.key for info in place.store.keys(place.key("")))
    folders = sorted({match[1] for key in keys if (match := pattern.fullmatch(key))})
    logs = {}
    for name in folders:
        there = old(place, name)
        logs[name] = _folded(there, _start(there), folder=name)
    sets, listings, damage = dict[str, Known](), dict[str, Listing](), list[str]()
    for name, log in logs.items():
        damage += log.damage.values()
        home = ALL if name == ALL else OWN
        for known in log.sets.values():
            item = replace(known, home=home)
            sets[known.id] = item.beside(sets[known.id]) if known.id in sets else item
        for project, listing in log.listings.items():
            listings[project] = listing.beside(listings.get(project))
    return replace(
        state,
        sets=sets,
        listings=listings,
        damage=dict(enumerate(damage, 1)),
        before=logs,
        spent=max((log.spent for log in logs.values()), default=0),
    )


def _modern(entry: Transition, folder: str) -> Transition:
    """Return an entry of a log of before 0.3 as this one would say it: its files stay there."""

    def renamed(set_id: str) -> str:
        return f"{FOREIGN}-{folder}" if set_id == FOREIGN else set_id

    brings = (
        replace(
            holding,
            set=renamed(holding.set),
            files=tuple(replace(file, folder=folder) for file in holding.files),
        )
        for holding in entry.brings
    )
    bundles = entry.bundles and {renamed(name): said for name, said in entry.bundles.items()}
    return replace(
        entry,
        families=entry.families or (folder,),
        sets=tuple(map(renamed, entry.sets)),
        names=tuple(f"{folder}/{name}" for name in entry.names),
        brings=tuple(brings),
        bundles=bundles,
    )


def _folded(
    place: Place,
    state: IndexState,
    *,
    until: int | None = None,
    skips: Collection[int] = (),
    folder: str = "",
    ahead: Mapping[int, bytes] | None = None,
) -> IndexState:
    """Apply every entry after the state's number, or those up to `until`; not those to skip.

    A release ends where its folder does, and a hole is damage; at staging a hole is the end.
    `folder` is that of a log of before 0.3.
    """
    last = until
    if until is None and not place.is_staging:
        state = state if state.stored else replace(state, stored=_stored(place))
        last = max((*state.stored, *skips), default=0)
    if ahead is None:
        listed = [n for n in sorted(state.stored) if state.number < n <= (last or n)]
        read = place.each(lambda n: glance(place.store, place.log(n))[0], listed)
        ahead = dict(zip(listed, read, strict=True))  # of what is gone or huge, the loop tells
    while last is None or state.number < last:
        if state.number + 1 in skips:
            state = replace(state, number=state.number + 1, head="", is_skip=True)
            continue
        name = place.store.locate(place.log(state.number + 1))
        try:
            data = ahead.get(state.number + 1) or small(place, place.log(state.number + 1))
        except ObjectMissingError:
            if place.is_staging or until is not None:  # which any page may name
                return state
            state = state.skipped(digest="", problem=f"{name}: missing, put it back")
            continue
        except HugeError as exc:
            state = state.skipped(digest="", problem=f"{exc}; it changes nothing")
            continue
        digest = files.sha256(data)
        _check_format(place, data, name, state)
        try:
            entry = Transition.from_bytes(data, name=name)
            if entry.family != folder or bool(entry.carries and folder):
                raise ConfigError(f"{name}: it is of {entry.family or place.root}")  # noqa: TRY301
            entry = _modern(entry, folder) if folder else entry
            state = load(place, state) if touched(state, entry) else state
        except ConfigError as exc:
            state = state.skipped(digest=digest, problem=f"{exc}; it changes nothing")
            continue
        state = apply(state, entry, digest=digest)
    return state


def _check_format(place: Place, data: bytes, where: str, state: IndexState) -> None:
    """Raise StoreError for an entry after this state that a newer version wrote.

    Of staging only for one that fits: strangers may write there.
    """
    try:
        said = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):
        return  # garbage, which is reported later
    follows = (said.get("number"), said.get("previous")) == (state.number + 1, state.head)
    written, needs = said.get("format"), said.get("needs")
    if isinstance(written, int) and written > FORMAT and (follows or not place.is_staging):
        version = f"rocwheel ≥ {needs}" if needs else "a newer rocwheel"
        raise StoreError(
            f"{where}: written by {version} (format {written}); this is {__version__}, "
            f"which reads formats up to {FORMAT}",
            hint="update rocwheel; nothing was changed",
        )
