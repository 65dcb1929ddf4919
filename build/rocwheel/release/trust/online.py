"""What an index offers, as installers see it, and the statements it has about each wheel."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urljoin

import msgspec

from rocwheel.base.download import Client
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Plain, decoded
from rocwheel.records.entry import version_of
from rocwheel.release.trust import TrustError

MOST_BYTES: Final = 64 << 20  # of a page, and of a set's statements


class _Page(msgspec.Struct):
    """What is asked of a PEP 691 page; other fields are passed over."""

    files: tuple[_File, ...] = ()
    projects: tuple[dict[str, Any], ...] = ()


class _File(msgspec.Struct):
    filename: str
    hashes: dict[str, str]
    ours: dict[str, str] = msgspec.field(name="_rocwheel", default_factory=dict)


class OfferedWheel(Plain, frozen=True, kw_only=True):
    """A wheel of an index: the digest that its page states, and where statements about it are."""

    filename: str
    sha256: str
    where: str  # URL; "" of a wheel that came before rocwheel


def offers(client: Client, index: str) -> Iterator[OfferedWheel]:
    """Yield every wheel of an index. Raises ConfigError where there is none, FetchError."""
    for project in _page(client, f"{index}/index.json").projects:
        yield from _of(client, index, str(project.get("name")))


def offer(client: Client, index: str, filename: str) -> OfferedWheel:
    """Return one wheel. Raises TrustError where the index does not list it."""
    for item in _of(client, index, version_of(filename)[0]):
        if item.filename == filename:
            return item
    hint = "it was rolled back or pruned, or it is another index's"
    raise TrustError(f"{index}: does not list {filename}", hint=hint)


@lru_cache(maxsize=4)  # of the wheels of one set, which come one after the other
def statements(client: Client, where: str) -> bytes:
    """Return the statements at a URL that a page names; none where the set is unsigned."""
    return (client.read(where, limit=MOST_BYTES, fresh=True) if where else None) or b""


def _of(client: Client, index: str, project: str) -> Iterator[OfferedWheel]:
    url = f"{index}/{project}/index.json"
    for item in _page(client, url).files:
        link, sha256 = item.ours.get("statements", ""), item.hashes.get("sha256", "")
        where = urljoin(url, link) if link else ""
        yield OfferedWheel(filename=item.filename, sha256=sha256, where=where)


def _page(client: Client, url: str) -> _Page:
    data = client.read(url, limit=MOST_BYTES, fresh=True)
    if data is None:
        raise ConfigError(f"{url}: no page of an index", hint="give what --index-url takes")
    return decoded(data, _Page, name=url)
