"""The head statement of a release: the last entry of its log, the state of its sets, an expiry.

A copy of the index from an earlier day looks like that of today. So a promoter's key signs with
which entry the log ends, and when that expires, as TUF's timestamp role does. It names tables of
sets, with their standing and statements, so that a user need not read the log. The tables lie under
their digests, one for each two first digits of a set: a promotion writes one of them again.
`Reader` reads an index as installers see it, and what the head says about each wheel.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urljoin

import msgspec

from rocwheel.base import files
from rocwheel.base.errors import ConfigError, ObjectMissingError, ObjectStaleError
from rocwheel.base.store import glance, stale
from rocwheel.base.values import Plain, Value, canonical_json, decoded
from rocwheel.base.versions import timestamp
from rocwheel.records.entry import version_of
from rocwheel.records.places import BELOW, OURS, Place
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger import manifests
from rocwheel.release.ledger.log import small
from rocwheel.release.ledger.state import IndexState
from rocwheel.release.trust import TrustError, envelope
from rocwheel.release.trust.envelope import Sha256Digest, Statement, StatementSubject
from rocwheel.release.trust.policy import SKEW, KeyRole, Signer, Trust, time_of
from rocwheel.release.trust.verifier import RELEASE, ChainLink

if TYPE_CHECKING:  # what only `trust verify` loads
    from rocwheel.base.download import Client

PREDICATE: Final = "https://rocwheel.dev/release-head/v1"
TABLES: Final = f"{OURS}/head/"
TRIES: Final = 20  # at what another process changes first
RENEW: Final = "`trust renew` or `index prune` with a promoter's --signer renews it"
MOST_BYTES: Final = 64 << 20  # of a page, and of a set's statements
HEAD: Final = "head"  # the role of the link with the head's expiry
_PUBLIC: Final = re.compile(
    r"(.+/_rocwheel/)attestations/([0-9a-f]{64})/(?:([^/]+)/)?bundle\.jsonl"
)
Table = Mapping[str, Mapping[str, tuple[str, str]]]  # set -> family -> standing, its statements


class Head(Value, frozen=True, kw_only=True):
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
        before = None  # of any signer, unchecked
        with suppress(TrustError, msgspec.ValidationError):
            before = msgspec.convert(envelope.parse(data, name="").statement.predicate, Head)
        if before and before.number > state.number:
            return
        there = {*(before.tables.values() if before else ())}
        for key, body in _damaged(place, {names[digits]: bodies[digits] for digits in names}):
            old = place.store.info(key)
            place.store.replace(key, body, previous=old, headers=place.record_headers)
        with suppress(ObjectStaleError):
            place.store.replace(place.head, line, previous=info, headers=place.record_headers)
            for digest in there - {*names.values()}:
                place.store.delete(place.key(f"{TABLES}{digest}.json"))
            return
    raise stale(place.store.locate(place.head))


def _damaged(place: Place, tables: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the tables that are not there with their size, by their keys."""
    sizes = {info.key: info.size for info in place.store.keys(place.key(TABLES))}
    for digest, body in tables.items():
        key = place.key(f"{TABLES}{digest}.json")
        if sizes.get(key) != len(body):
            yield key, body


def _table(state: IndexState, digits: str) -> bytes:
    return canonical_json(
        {
            name: {family: [seen.standing.value, known.bundles.get(family, "")]
                   for family in known.families if (seen := known.of(family))}
            for name, known in state.sets.items()
            if name.startswith(digits)
        }
    )  # fmt: skip


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


class Seen:
    """The newest heads that this machine saw, by place; older ones are refused."""

    def __init__(self, cache: Path) -> None:
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
            yield f"{where}: entry {number} is not the one seen here: the log was replaced"
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
    tables = {files.sha256(body): body for body in (_table(state, d) for d in head.tables)}
    for key, _ in _damaged(place, {d: tables[d] for d in head.tables.values() if d in tables}):
        problems.append(f"{place.store.locate(key)}: missing or damaged: {RENEW}")
    lag = f"{where}: is of entry {head.number}, the log ends with {state.number}: {RENEW}"
    return problems, lag if head.number < state.number else ""


# The index as installers see it


class _Page(msgspec.Struct):
    files: tuple[_File, ...] = ()
    projects: tuple[dict[str, str], ...] = ()


class _File(msgspec.Struct):
    filename: str
    hashes: dict[str, str]
    url: str
    ours: dict[str, str] = msgspec.field(name="_rocwheel", default_factory=dict)


class Asked(Plain, frozen=True, kw_only=True):
    """A wheel, or a manifest, that is verified."""

    name: str
    sha256: str
    bundle: bytes = b""  # its statements, where they are at hand
    index: str = ""  # URL of the index that lists it
    where: str = ""  # and of its statements; "" of a wheel that came before rocwheel
    url: str = ""  # its own


class Reader:
    """Reads indexes and the head statements of their releases, each once."""

    def __init__(
        self, client: Client, trust: Trust, seen: Seen, *, now: datetime, at_least: int
    ) -> None:
        self.client, self._trust, self._seen = client, trust, seen
        self._now, self._at_least = now, at_least
        self._head = lru_cache(self._read_head)
        self._get = lru_cache(maxsize=8)(self._fetch)  # of one set come one after the other

    def offers(self, index: str) -> list[Asked]:
        """Return every wheel of an index, those of one set one after the other."""
        projects = (str(item.get("name")) for item in self._page(f"{index}/index.json").projects)
        found = (wheel for name in projects for wheel in self._of(index, name))
        return sorted(found, key=lambda wheel: wheel.where)

    def offer(self, index: str, filename: str) -> Asked:
        """Return one wheel. Raises TrustError where the index does not list it."""
        for item in self._of(index, version_of(filename)[0]):
            if item.name == filename:
                return item
        hint = "it was rolled back or pruned, or it is another index's"
        raise TrustError(f"{index}: does not list {filename}", hint=hint)

    def statements(self, asked: Asked) -> tuple[bytes, tuple[ChainLink, ...]]:
        """Return those that the release's head names, and no others, and what it says of a set."""
        where, index = asked.where, asked.index
        if not where:
            return asked.bundle, ()
        if not (match := _PUBLIC.fullmatch(where)):
            what = f"{where}: no statements of a release are there"
            return b"", (ChainLink(role=HEAD, holds=False, about=what),)
        base, manifest, family = match.groups()
        prefix, _, own = BELOW.sub("", index).rstrip("/").rpartition("/")
        log = f"{prefix}/_rocwheel/"  # a set of before 0.3 has its statements elsewhere
        try:
            said = self._head(log)
            named = self._named(log, said, manifest)
        except (TrustError, ConfigError) as exc:
            return b"", (ChainLink(role=HEAD, holds=False, about=str(exc)),)
        standing, digest = named.get(family or own, ("", ""))
        if not digest:
            what = f"{manifest[:12]}: no entry of the log up to {said.number} releases it, signed"
            return b"", (ChainLink(role=HEAD, holds=False, about=what),)
        about = f"entry {said.number} of {said.time}, to be believed until {said.expires}"
        links = [ChainLink(role=HEAD, holds=True, about=about)]
        if standing != "listed":
            links.append(ChainLink(role=RELEASE, holds=False, about=f"the log has it {standing}"))
        data = self._get(f"{base}bundles/{digest}.jsonl")
        if files.sha256(data) != digest and not manifests.begins(data := self._get(where), digest):
            what = f"{where}: not the statements that the log names ({digest[:12]})"
            return b"", (*links, ChainLink(role=HEAD, holds=False, about=what))
        return data, tuple(links)

    def _read_head(self, base: str) -> Head:
        where = f"{base}head.json"
        data = self._fetch(where)
        if not data:
            raise TrustError(f"{where}: no head statement", hint=RENEW)
        said = read(data, self._trust, now=self._now, name=where)
        for why in self._seen.check(where, said.number, said.digest, at_least=self._at_least):
            raise TrustError(why, hint="ask who runs the index")
        return said

    def _named(self, base: str, said: Head, manifest: str) -> dict[str, tuple[str, str]]:
        digest = said.tables.get(manifest[:2], "")
        if not digest:
            return {}
        where = f"{base}head/{digest}.json"
        data = self._get(where)
        if files.sha256(data) != digest:
            raise TrustError(f"{where}: not the table that the head names", hint="run it again")
        return decoded(data, dict[str, dict[str, tuple[str, str]]], name=where).get(manifest, {})

    def _fetch(self, url: str) -> bytes:
        from rocwheel.base.download import AbsentError

        with suppress(AbsentError):
            return self.client.read(url, limit=MOST_BYTES, fresh=True)
        return b""

    def _of(self, index: str, project: str) -> Iterator[Asked]:
        url = f"{index}/{project}/index.json"
        for item in self._page(url).files:
            link, sha256 = item.ours.get("statements", ""), item.hashes.get("sha256", "")
            where = urljoin(url, link) if link else ""
            at = urljoin(url, item.url.partition("#")[0])
            yield Asked(name=item.filename, sha256=sha256, index=index, where=where, url=at)

    def _page(self, url: str) -> _Page:
        if not (data := self._fetch(url)):
            raise ConfigError(f"{url}: no page of an index", hint="give what --index-url takes")
        return decoded(data, _Page, name=url)
