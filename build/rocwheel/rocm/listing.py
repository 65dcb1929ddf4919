"""The pages and folders where TheRock's tarballs are listed, as they are served.

Three kinds of page are read, whose formats are data (`ci/therock.yaml`): TheRock's own, a plain
list of links, and the XML with which a bucket answers. Nothing of a page is trusted but the names
and times of its files.
"""

import json
from collections.abc import Iterator, Mapping
from html import unescape
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

from packaging.version import Version

from rocwheel.base.download import Client, without_secrets
from rocwheel.base.errors import ConfigError, FetchError
from rocwheel.base.values import Plain
from rocwheel.rocm import tarball_name, therock
from rocwheel.rocm.tarball_name import TarballName

PAGE_BYTES: Final = 64 << 20
BUCKET_PAGES: Final = 100  # of 1,000 files each


class ListedTarball(Plain, frozen=True, kw_only=True):
    """A tarball that a page or a folder lists, and what the page says of it."""

    name: TarballName
    source: str  # URL, or path
    modified: str = ""  # as the page spells it, later texts being later; "" where it says nothing


def newest(where: str, *, client: Client, cwd: Path) -> dict[str, ListedTarball]:
    """Return the newest tarball of each family, and of `multiarch`, that `where` lists.

    Raises what `every` raises, and FetchError for a page without tarballs of TheRock's.
    """
    oldest_first = sorted(every(where, client=client, cwd=cwd), key=order)
    chosen = {item.name.group: item for item in oldest_first}
    if not chosen:
        raise FetchError(
            f"{without_secrets(where)}: lists no ROCm tarball (therock-dist-linux-…)",
            hint="check the address: a login page, another project's or an empty one looks so",
        )
    return chosen


def every(where: str, *, client: Client, cwd: Path) -> Iterator[ListedTarball]:
    """Yield the tarballs to build with that the URL of a page, or a folder, lists.

    Raises FetchError for two of one name; ConfigError for a folder that is not there.
    """
    addresses: dict[str, str] = {}
    is_page = "://" in where
    if not is_page and not (cwd / where).is_dir():
        raise ConfigError(
            f"{cwd / where}: no such folder", hint="check where the tarballs are listed"
        )
    paths = sorted((cwd / where).glob("*.tar.*")) if not is_page else ()
    held = (item for path in paths for item in _listed(path.name, str(path)))
    for item in _page(where, client) if is_page else held:
        name = tarball_name.base_name(item.source)
        if addresses.setdefault(name, item.source) != item.source:
            raise FetchError(
                f"{without_secrets(where)}: lists {name} twice, at two addresses",
                hint="name the right one with `source` in place of `tarballs`",
            )
        if item.name.is_release:
            yield item


def _formats() -> therock.TarballPages:
    return therock.known().pages


def order(item: ListedTarball) -> tuple[Any, ...]:
    """Return what the newest has most of: a commit in a version (`.dev0+13caf791`) has no order."""
    version = item.name.version.version if item.name.version else Version("0")
    return Version(version.public), item.modified, version


def _page(url: str, client: Client) -> Iterator[ListedTarball]:
    address = url
    for _ in range(BUCKET_PAGES):
        body = client.read(address, limit=PAGE_BYTES, fresh=True, beside=url)
        if body is None:
            raise FetchError(
                f"{without_secrets(url)}: there is no such page", hint="check the address"
            )
        text = body.decode("utf-8", "replace")
        yield from read(text, url)
        more = _formats().bucket.following.search(text) if "<ListBucketResult" in text else None
        if more is None:
            return
        parts = urlsplit(url)
        token = f"continuation-token={quote(unescape(more[1]), safe='')}"
        query = f"{parts.query}&{token}" if parts.query else f"list-type=2&{token}"
        address = urlunsplit(parts._replace(query=query))
    raise FetchError(f"{without_secrets(url)}: lists too many files", hint="name a longer prefix")


def read(text: str, url: str) -> Iterator[ListedTarball]:
    """Yield the tarballs that one page lists. Raises FetchError for a page that was cut."""
    if "<ListBucketResult" in text:
        yield from _bucket(text, url)
        return
    if (constant := _formats().constant.search(text)) is None:
        for href in _formats().link.findall(text):
            yield from _listed(unquote(unescape(href)), unescape(href), page=url)
        return
    try:
        files, _ = json.JSONDecoder().raw_decode(text, constant.end())
    except (ValueError, RecursionError) as exc:
        raise _cut(url, "its list of files does not end") from exc
    for item in files:
        name = item.get("name") if isinstance(item, Mapping) else None
        if not isinstance(name, str):
            raise _cut(url, "its list of files has an entry without a name")
        yield from _listed(name, quote(name), page=url, modified=str(item.get("mtime", "")))


def _bucket(text: str, url: str) -> Iterator[ListedTarball]:
    if "</ListBucketResult>" not in text:
        raise _cut(url, "its listing does not end")
    if "<IsTruncated>true" in text and not _formats().bucket.following.search(text):
        raise _cut(url, "its listing goes on, and does not say how: ask with list-type=2")
    parts = urlsplit(url)
    for entry in _formats().bucket.entry.findall(text):
        fields = {key: unescape(value) for key, value in _formats().bucket.field.findall(entry)}
        key = fields.get("Key", "")
        # A bucket is listed at its root, whatever the prefix; one by path is named there.
        root = urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/", "", ""))
        yield from _listed(key, quote(key), page=root, modified=fields.get("LastModified", ""))


def _listed(
    name: str, address: str, *, page: str = "", modified: str = ""
) -> Iterator[ListedTarball]:
    """Yield the entry, if it is a tarball of TheRock's at an address that makes sense."""
    try:
        parsed = tarball_name.parse(tarball_name.base_name(name))
        source = urljoin(page, address) if page else address
    except ValueError:  # such as `http://[bad`
        return
    if parsed and parsed.version:
        yield ListedTarball(name=parsed, source=source, modified=modified)


def _cut(url: str, problem: str) -> FetchError:
    return FetchError(
        f"{without_secrets(url)}: {problem}",
        hint="the page came in part or has a format that is not known; try again later",
    )
