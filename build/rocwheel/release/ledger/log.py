"""The log of one place in its store: reading what it says, committing the next entry.

`_rocwheel/log/<n>.json` is created once and never deleted; creating number n+1 *is* the commit of
an operation, so of two that decided on the same state one wins and the other decides again.
`state.json` is a snapshot of the fold. It may lag, and is only written once the pages show it.
"""

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Final

import msgspec

from rocwheel.base import files
from rocwheel.base.errors import (
    ConfigError,
    ObjectDiffersError,
    ObjectMissingError,
    RefusedError,
    StoreError,
)
from rocwheel.base.store import JSON, Headers, HugeError, glance, pause, replaced, swap
from rocwheel.base.values import Value, decoded, replace
from rocwheel.records.places import Place
from rocwheel.release.ledger.state import (
    FORMAT,
    IndexState,
    Known,
    Listing,
    Transition,
    apply,
    touched,
)

TRIES: Final = 5  # to learn how a commit ended


class UnknownError(StoreError):
    """A write was sent, and it is not known whether it took effect."""


class _Snapshot(Value, frozen=True, kw_only=True):
    number: int
    head: str
    sets: tuple[Known, ...]
    listings: dict[str, str]  # project -> digest
    spent: int
    below: str  # of a release: digest of what the store lists of the entries before this number
    format: int = FORMAT


class _Envelope(msgspec.Struct):
    """What entries of every format have; keys that are not known are passed over."""

    number: int
    previous: str
    needs: str = ""
    format: int = FORMAT


# Made here, by one thread: see `values._decoder`.
_ENVELOPE: Final = msgspec.json.Decoder(_Envelope)


def read(
    place: Place,
    projects: Iterable[str] | None = (),
    *,
    afresh: bool = False,
    skips: Collection[int] = (),
) -> IndexState:
    """Read the state that the log has now, with listings of these projects (None: of all).

    `afresh` folds the whole log, without the snapshot; entries with a number in `skips` change
    nothing then. So it is read as well where an entry of a release is not what it was when the
    snapshot was written. Raises StoreError where the log is a newer version's.
    """
    snapshot = None if afresh or skips else _snapshot(place)
    state = _folded(place, snapshot or _start(place), skips=skips)
    if snapshot and not place.is_staging and state.below != _below(state, snapshot.number):
        state = _folded(place, _start(place))
    return load(place, state, projects)


def load(place: Place, state: IndexState, projects: Iterable[str] | None) -> IndexState:
    """Return the same state with the listings of these projects (None: of all) at hand.

    One that is lost or damaged in the store is made again from the log. Raises StoreError where
    the log gives another one.
    """
    wanted = state.digests if projects is None else projects
    missing = sorted({p for p in wanted if p in state.digests and p not in state.listings})
    if not missing:
        return state
    stored = place.each(lambda project: _listing(place, project, state.digests[project]), missing)
    kept = {project: listing for project, listing in zip(missing, stored, strict=True) if listing}
    lost = [project for project in missing if project not in kept]
    again = _folded(place, _start(place), until=state.saved) if lost else state
    for project in lost:
        kept[project] = again.listing(project)
        if kept[project].sha256 != state.digests[project]:
            raise StoreError(
                f"{place.store.locate(place.listing(state.digests[project]))}: lost, and the log "
                "gives another one",
                hint=f"remove {place.store.locate(place.state)}, which names it, and run "
                f"`{place.command('repair')}`",
            )
    return replace(state, listings={**state.listings, **kept})


def at(place: Place, number: int, projects: Iterable[str]) -> IndexState:
    """Return the state that a log had with this entry. Raises StoreError where it says no more."""
    state = _snapshot(place)
    start = state if state and state.number <= number else _start(place)
    state = _folded(place, start, until=number)
    if state.number < number or (state.damage and not place.is_staging):
        raise StoreError(
            f"{place.location}: entry {number} of the log is shown on a page, and the log does "
            "not have it, or is damaged",
            hint=f"`{place.command('check')} --family {place.family}` says what is wrong",
        )
    return load(place, state, projects)


def skip(place: Place, entry: Transition) -> None:
    """Write an entry, as what follows the one before it, in place of one that is lost or damaged.

    Nothing else ever writes over an entry of a log. Raises StoreError.
    """
    before = _folded(place, _start(place), until=entry.number - 1)
    head = before.head if before.number == entry.number - 1 else ""
    key, body = place.log(entry.number), replace(entry, previous=head).to_bytes()
    there = place.store.info(key)
    place.store.replace(key, body, previous=there, headers=place.record_headers)


def differ(place: Place, state: IndexState, again: IndexState) -> bool:
    """Return whether the log, folded afresh and undamaged, gives another state than this one."""
    is_damaged = again.torn if place.is_staging else bool(again.damage)
    return (
        not is_damaged
        and again.number == state.number
        and (
            again.sets != state.sets
            or any(again.listings.get(name) != state.listing(name) for name in state.projects)
        )
    )


def commit(place: Place, entry: Transition) -> str:
    """Create an entry; return its digest, or "" when another one has its number.

    An error is no proof of losing: what is there afterwards decides. Raises UnknownError where
    that cannot be read either, RefusedError where the store did not let us write.
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
        return digest if there == body else ""
    raise UnknownError(
        f"{place.store.locate(key)}: it is not known whether this {entry.action.value} was "
        f"committed: {problem}",
        hint="run the same command again: it sees what became of it and continues",
    ) from problem


def save(place: Place, state: IndexState) -> IndexState:
    """Write the snapshot of a state that the pages show; a newer one stays.

    Nothing depends on it but time: what fails here is no failure of the operation.
    """
    try:
        listings = {p: state.listings[p] for p in sorted(state.touched & set(state.listings))}
        digests = {project: listing.sha256 for project, listing in listings.items()}

        def put(project: str) -> None:
            key, digest, data = place.listing(digests[project]), digests[project], listings[project]
            body, headers = data.stored(), place.record_headers
            try:
                place.store.create(key, body, headers=headers, sha256=digest)
            except ObjectDiffersError:  # damaged: only these bytes have this name
                there = place.store.info(key)
                place.store.replace(key, body, previous=there, headers=headers)

        new = [name for name, digest in digests.items() if state.digests.get(name) != digest]
        place.each(put, new)
        digests = {**state.digests, **digests}
        saved = replace(
            state, digests=digests, saved=state.number, touched=frozenset(), seen=frozenset()
        )
        snapshot = _Snapshot(
            number=saved.number,
            head=saved.head,
            sets=tuple(saved.sets.values()),
            listings=dict(sorted(saved.digests.items())),
            spent=saved.spent,
            below=_below(saved, saved.number),
        )
        body = msgspec.json.encode(snapshot, order="sorted")

        def change(data: bytes) -> bytes:
            old = _parsed(place, data)
            is_newer = old and old.number > state.number and _has(place, old.number, old.head)
            return data if is_newer else body

        swap(place.store, place.state, change, headers=Headers(content_type=JSON))
    except StoreError:
        return state
    return saved


def drop_listings(place: Place, age: timedelta) -> tuple[str, ...]:
    """Delete the listings that no snapshot names and that are older than this; return their keys.

    Age is by the store's clock. A reader with an older snapshot makes them again.
    """
    data, info = glance(place.store, place.state)
    snapshot = _parsed(place, data)
    if snapshot is None or info is None or info.now is None:
        return ()
    named = {place.listing(digest) for digest in snapshot.listings.values()}
    old = [
        item.key
        for item in place.store.keys(place.listing("").removesuffix(".json"))
        if item.key not in named and item.modified < info.now - age
    ]
    place.each(place.store.delete, old)
    return tuple(old)


def small(place: Place, key: str, *, sha256: str | None = None) -> bytes:
    """Read an object as a whole, and check its SHA-256 where one is given.

    Raises ObjectMissingError, HugeError, and ObjectDiffersError for other bytes.
    """
    data, _ = place.store.read(key)
    if sha256 is not None and (digest := files.sha256(data)) != sha256:
        raise replaced(place.store.locate(key), digest, sha256)
    return data


def _start(place: Place) -> IndexState:
    """Return the state before the first entry that is there: numbers may begin above 1."""
    stored = _stored(place)
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
    """Digest what the store listed of the entries before this one."""
    stored = sorted((n, mark) for n, mark in state.stored.items() if n < number)
    return files.sha256(msgspec.json.encode(stored))


def _snapshot(place: Place) -> IndexState | None:
    """Read the stored snapshot; None where none can be used."""
    snapshot = _parsed(place, glance(place.store, place.state)[0])
    if snapshot is None or not _has(place, snapshot.number, snapshot.head):
        return None
    return IndexState(
        number=snapshot.number,
        head=snapshot.head,
        sets={item.id: item for item in snapshot.sets},
        digests=snapshot.listings,
        saved=snapshot.number,
        spent=snapshot.spent,
        below=snapshot.below,
    )


def _parsed(place: Place, data: bytes) -> _Snapshot | None:
    """Parse a snapshot in our format; None for anything else: it only saves time."""
    with suppress(ConfigError):
        snapshot = decoded(data, _Snapshot, name=place.state)
        return snapshot if snapshot.format == FORMAT else None
    return None


def _has(place: Place, number: int, head: str) -> bool:
    """Whether the log that is here has the entry that a snapshot ends with.

    A copy of another day, or a log that lost its end, would otherwise go on after a gap.
    """
    return files.sha256(glance(place.store, place.log(number))[0]) == head


def _folded(
    place: Place, state: IndexState, *, until: int | None = None, skips: Collection[int] = ()
) -> IndexState:
    """Apply every entry after the state's number, or those up to `until`; not those to skip.

    Where a release ends its folder tells; there a hole is damage, at staging the end.
    """
    last = until
    if until is None and not place.is_staging:
        state = state if state.stored else replace(state, stored=_stored(place))
        last = max((*state.stored, *skips), default=0)
    while last is None or state.number < last:
        if state.number + 1 in skips:
            state = replace(state, number=state.number + 1, head="", is_skip=True)
            continue
        name = place.store.locate(place.log(state.number + 1))
        try:
            data = small(place, place.log(state.number + 1))
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
            if entry.family != place.family:
                raise ConfigError(f"{name}: it is of {entry.family}")  # noqa: TRY301
            state = load(place, state, touched(state, entry))
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
        envelope = _ENVELOPE.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        return  # garbage, which is told later
    follows = (envelope.number, envelope.previous) == (state.number + 1, state.head)
    if envelope.format > FORMAT and (follows or not place.is_staging):
        version = f"rocwheel ≥ {envelope.needs}" if envelope.needs else "a newer rocwheel"
        raise StoreError(
            f"{where}: format {envelope.format} needs {version}; this one knows {FORMAT}",
            hint="update rocwheel; nothing was changed",
        )


def _listing(place: Place, project: str, sha256: str) -> Listing | None:
    """Read a listing by its digest; None where it is lost or damaged."""
    data, _ = glance(place.store, place.listing(sha256))
    with suppress(ConfigError):
        if files.sha256(data) == sha256:
            listing = decoded(data, Listing, name=project)
            return listing if listing.project == project else None
    return None
