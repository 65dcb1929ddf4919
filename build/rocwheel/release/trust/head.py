"""The head statement of a release: the last entry of its log, the state of its sets, an expiry.

A copy of the index from an earlier day looks like that of today. So a promoter's key signs with
which entry the log ends, and when that expires, as TUF's timestamp role does. It names tables of
sets, with their standing and statements, so that a user need not read the log. The tables lie under
their digests, one for each two first digits of a set: a promotion writes one of them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec

from rocwheel.base import files
from rocwheel.base.errors import ConfigError, ObjectMissingError, ObjectStaleError
from rocwheel.base.store import glance, stale
from rocwheel.base.values import Value, canonical_json, decoded
from rocwheel.base.versions import timestamp
from rocwheel.records.places import OURS, Place
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger.log import small
from rocwheel.release.ledger.state import IndexState, Known
from rocwheel.release.trust import TrustError, envelope
from rocwheel.release.trust.envelope import Sha256Digest, Statement, StatementSubject
from rocwheel.release.trust.policy import SKEW, KeyRole, Signer, Trust, time_of

PREDICATE: Final = "https://rocwheel.dev/release-head/v1"
TABLES: Final = f"{OURS}/head/"
TRIES: Final = 20  # at what another process changes first
RENEW: Final = "`trust renew` with a promoter's --signer renews it, as each `prune` with one does"
Table = Mapping[str, Mapping[str, tuple[str, str]]]  # set -> family -> standing, its statements


class Head(Value, frozen=True, kw_only=True):
    """The fields of a head statement."""

    number: int  # of the last entry of the log
    digest: str  # of that
    channel: str
    prefix: str
    url: str
    time: str
    expires: str
    tables: Mapping[str, str]  # first two digits of sets -> digest of their table
    schema: int = 1


def renew(
    place: Place, state: IndexState, channel: Channel, signer: Signer | None, *, now: datetime
) -> None:
    """Write a release's head statement with a promoter's key; a later statement stays.

    Without a key nothing is written, and readers see that it lags. Raises StoreError.
    """
    if signer is None or place.is_staging or not state.number:
        return
    days = channel.trust.rule(channel.name).fresh_days
    bodies = {digits: _table(state, digits) for digits in sorted({s[:2] for s in state.sets})}
    names = {digits: files.sha256(body) for digits, body in bodies.items()}
    said = Head(
        number=state.number,
        digest=state.head,
        channel=channel.name,
        prefix=place.root,
        url=place.served(f"{place.root}/"),
        time=timestamp(now),
        expires=timestamp(now + timedelta(days=days)),
        tables=names,
    )
    entry = Sha256Digest(sha256=state.head)
    made = Statement(
        predicate_type=PREDICATE,
        subject=(StatementSubject(name=f"log/{state.number}.json", digest=entry),),
        predicate=msgspec.to_builtins(said),
    )
    line = envelope.sign(envelope.unsigned(made), signer, name="the head statement")
    for _ in range(TRIES):
        data, info = glance(place.store, place.head)
        before = _unchecked(data)
        if before and before.number > state.number:
            return
        there = {*(before.tables.values() if before else ())}
        for digits, digest in names.items():
            if digest not in there:
                key, body = place.key(f"{TABLES}{digest}.json"), bodies[digits]
                place.store.create(key, body, headers=place.record_headers, sha256=digest)
        with suppress(ObjectStaleError):
            place.store.replace(place.head, line, previous=info, headers=place.record_headers)
            for digest in there - {*names.values()}:
                place.store.delete(place.key(f"{TABLES}{digest}.json"))
            return
    raise stale(place.store.locate(place.head))


def _table(state: IndexState, digits: str) -> bytes:
    """Spell where the sets whose names begin so stand in each family, and with which statements."""
    return canonical_json(
        {
            name: {family: [seen.standing.value, known.bundles.get(family, "")]
                   for family, seen in _views(known)}
            for name, known in state.sets.items()
            if name.startswith(digits)
        }
    )  # fmt: skip


def _views(known: Known) -> Iterator[tuple[str, Known]]:
    for family in known.families:
        if seen := known.of(family):
            yield family, seen


def read_table(data: bytes, manifest: str, *, name: str) -> Mapping[str, tuple[str, str]]:
    """Return a set's standing and statements in each family. Raises ConfigError."""
    return decoded(data, dict[str, dict[str, tuple[str, str]]], name=name).get(manifest, {})


def read(data: bytes, trust: Trust, *, now: datetime, name: str) -> Head:
    """Check a head statement and return it. Raises TrustError, also for an expired one."""
    signed = envelope.read(data, trust, name=name)
    if signed.statement.predicate_type != PREDICATE:
        raise TrustError(f"{name}: predicateType: no head statement", hint=RENEW)
    try:
        head = msgspec.convert(signed.statement.predicate, Head)
        made, until = time_of(head.time), time_of(head.expires)
    except (msgspec.ValidationError, ConfigError) as exc:
        raise TrustError(f"{name}: {exc}", hint=RENEW) from exc
    if signed.statement.subjects != {f"log/{head.number}.json": head.digest}:
        raise TrustError(f"{name}: subject: not the entry that it says", hint=RENEW)
    times, scopes = (made, signed.logged or made), (head.channel, "", "")
    for keyid in signed.signatures:
        if why := trust.keys[keyid].refusal(KeyRole.PROMOTER, scopes, times):
            raise TrustError(f"{name}: {trust.name(keyid)}: {why}", hint=RENEW)
    if made > now + SKEW:
        raise TrustError(f"{name}: time: it was made at {head.time}, later than now", hint=RENEW)
    if now > until + SKEW:
        what = f"{name}: expired on {head.expires}: what came since may be kept from you"
        raise TrustError(what, hint=RENEW)
    return head


def _unchecked(data: bytes) -> Head | None:
    """Return a stored statement of any signer, unchecked; None for an invalid one."""
    with suppress(TrustError, msgspec.ValidationError):
        return msgspec.convert(envelope.parse(data, name="").statement.predicate, Head)
    return None


class Seen:
    """The newest heads that this machine saw, by place; older ones are refused."""

    def __init__(self, cache: Path) -> None:
        """Take the cache folder of this user."""
        self._path = cache / "heads.json"

    def known(self) -> dict[str, tuple[int, str]]:
        with suppress(OSError, ConfigError):
            return decoded(self._path.read_bytes(), dict[str, tuple[int, str]], name="")
        return {}

    def check(self, where: str, number: int, digest: str, *, at_least: int = 0) -> Iterator[str]:
        """Yield why a head is older than one seen before, or another; else remember it."""
        known = self.known()
        seen = known.get(where, (0, ""))
        if number < max(seen[0], at_least):
            who = "was seen here" if number < seen[0] else "--at-least asks for"
            yield (
                f"{where}: ends with entry {number}, and {max(seen[0], at_least)} {who}: it is a "
                "copy of an earlier day"
            )
        elif number == seen[0] and digest != seen[1]:
            yield f"{where}: entry {number} is another one than was seen here: the log was replaced"
        elif number > seen[0]:
            with suppress(OSError):
                self._path.parent.mkdir(parents=True, exist_ok=True)
                known[where] = (number, digest)
                files.write(self._path, json.dumps(known, sort_keys=True).encode())


def check(
    place: Place,
    state: IndexState,
    channel: Channel,
    seen: Seen,
    *,
    now: datetime,
    at_least: int = 0,
) -> tuple[list[str], str]:
    """Return the problems of a release's end, and whether its head lags.

    Without a required promoter there is no head, and nothing is remembered.
    """
    if place.is_staging:
        return [], ""
    if not channel.requires(KeyRole.PROMOTER):
        short = f"{place.location}: ends with entry {state.number}, --at-least asks for {at_least}"
        return [short] if state.number < at_least else [], ""
    problems = [*seen.check(place.location, state.number, state.head, at_least=at_least)]
    if not state.number:
        return problems, ""
    where = place.store.locate(place.head)
    data, _ = glance(place.store, place.head)
    if not data:
        return [*problems, f"{where}: missing: {RENEW}"], ""
    try:
        head = read(data, channel.trust, now=now, name=where)
        entry = small(place, place.log(head.number)) if head.number <= state.number else b""
    except (TrustError, ObjectMissingError) as exc:
        return [*problems, str(exc)], ""
    if (head.channel, head.prefix) != (channel.name, place.root):
        problems.append(
            f"{where}: is of channel {head.channel}, {head.prefix}: put there by a copy"
        )
    if head.number > state.number:
        what = "the prefix is a copy of an earlier day"
        problems.append(f"{where}: says {head.number}, the log ends with {state.number}: {what}")
    elif files.sha256(entry) != head.digest:
        problems.append(f"{where}: entry {head.number} of the log is another one than it names")
    lag = f"{where}: is of entry {head.number}, the log ends with {state.number}: {RENEW}"
    return problems, lag if head.number < state.number else ""
