"""Reads an index as installers see it, and its release's head about each wheel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from typing import Final
from urllib.parse import urljoin

import msgspec

from rocwheel.base import files
from rocwheel.base.download import Client
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Plain, decoded
from rocwheel.records.entry import version_of
from rocwheel.release.ledger import manifests
from rocwheel.release.trust import TrustError, head
from rocwheel.release.trust.head import Head, Seen
from rocwheel.release.trust.policy import Trust
from rocwheel.release.trust.verifier import RELEASE, ChainLink

MOST_BYTES: Final = 64 << 20  # of a page, and of a set's statements
HEAD: Final = "head"  # the role of the link with the head's expiry
_PUBLIC: Final = re.compile(
    r"(.+/_rocwheel/)attestations/([0-9a-f]{64})/(?:([^/]+)/)?bundle\.jsonl"
)


class _Page(msgspec.Struct):
    """The fields of a PEP 691 page that are used."""

    files: tuple[_File, ...] = ()
    projects: tuple[dict[str, str], ...] = ()


class _File(msgspec.Struct):
    filename: str
    hashes: dict[str, str]
    url: str
    ours: dict[str, str] = msgspec.field(name="_rocwheel", default_factory=dict)


class OfferedWheel(Plain, frozen=True, kw_only=True):
    """A wheel of an index: the digest on its page, and the place of statements about it."""

    filename: str
    sha256: str
    where: str  # URL; "" of a wheel that came before rocwheel
    url: str = ""  # its own


class Asked(Plain, frozen=True, kw_only=True):
    """A file to verify, with its statements and the index's head."""

    name: str
    sha256: str
    bundle: bytes
    index: str = ""  # URL of the index that lists it
    links: tuple[ChainLink, ...] = ()


class Reader:
    """Reads indexes and the head statements of their releases, each once."""

    def __init__(
        self, client: Client, trust: Trust, seen: Seen, *, now: datetime, at_least: int
    ) -> None:
        self.client, self._trust, self._seen = client, trust, seen
        self._now, self._at_least = now, at_least
        self._head = lru_cache(self._read_head)
        self._get = lru_cache(maxsize=8)(self._fetch)  # of one set come one after the other

    def offers(self, index: str) -> Iterator[OfferedWheel]:
        """Yield every wheel of an index. Raises ConfigError where there is none, FetchError."""
        for project in self._page(f"{index}/index.json").projects:
            yield from self._of(index, str(project.get("name")))

    def offer(self, index: str, filename: str) -> OfferedWheel:
        """Return one wheel. Raises TrustError where the index does not list it."""
        for item in self._of(index, version_of(filename)[0]):
            if item.filename == filename:
                return item
        hint = "it was rolled back or pruned, or it is another index's"
        raise TrustError(f"{index}: does not list {filename}", hint=hint)

    def asked(self, found: OfferedWheel, index: str, name: str, sha256: str) -> Asked:
        """Return a wheel with the statements that the release's head names, and no others."""
        bundle, links = b"", tuple[ChainLink, ...]()
        if found.where:
            bundle, links = self._statements(found.where, index)
        return Asked(name=name, sha256=sha256, bundle=bundle, index=index, links=links)

    def _statements(self, where: str, index: str) -> tuple[bytes, tuple[ChainLink, ...]]:
        if not (match := _PUBLIC.fullmatch(where)):
            what = f"{where}: no statements of a release are there"
            return b"", (ChainLink(role=HEAD, holds=False, about=what),)
        base, manifest, family = match.groups()
        prefix, _, own = index.rstrip("/").rpartition("/")
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
            raise TrustError(f"{where}: no head statement", hint=head.RENEW)
        said = head.read(data, self._trust, now=self._now, name=where)
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
        return dict(head.read_table(data, manifest, name=where))

    def _fetch(self, url: str) -> bytes:
        return self.client.read(url, limit=MOST_BYTES, fresh=True) or b""

    def _of(self, index: str, project: str) -> Iterator[OfferedWheel]:
        url = f"{index}/{project}/index.json"
        for item in self._page(url).files:
            link, sha256 = item.ours.get("statements", ""), item.hashes.get("sha256", "")
            where = urljoin(url, link) if link else ""
            at = urljoin(url, item.url.partition("#")[0])
            yield OfferedWheel(filename=item.filename, sha256=sha256, where=where, url=at)

    def _page(self, url: str) -> _Page:
        if not (data := self._fetch(url)):
            raise ConfigError(f"{url}: no page of an index", hint="give what --index-url takes")
        return decoded(data, _Page, name=url)
