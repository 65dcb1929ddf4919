"""Reads the pages and folders that list TheRock's tarballs.

Three kinds of page are read, whose formats are data (`ci/therock.yaml`): TheRock's own, a plain
list of links, and a bucket's XML. Only names and times of files are taken from a page. An empty
page, a page of another kind and a page with unknown names are three different errors.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import date, datetime, timezone
from html import unescape
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

from packaging.version import Version

from rocwheel.base.console import count
from rocwheel.base.download import Client, without_secrets
from rocwheel.base.errors import ConfigError, FetchError
from rocwheel.base.values import Plain
from rocwheel.rocm import therock
from rocwheel.rocm.therock import TarballName

PAGE_BYTES: Final = 64 << 20
BUCKET_PAGES: Final = 100  # of 1,000 files each


class ListedTarball(Plain, frozen=True, kw_only=True):
    """A tarball that a page or a folder lists, and what the page says of it."""

    name: TarballName
    source: str  # URL, or path
    modified: str = ""  # as the page spells it, later texts being later; "" where it says nothing

    @property
    def day(self) -> date | None:
        """The day it was built: as its version says, else the day it was put there."""
        if self.name.version and (named := therock.day_of(self.name.version)):
            return named
        with suppress(ValueError, OverflowError, OSError):
            return datetime.fromtimestamp(float(self.modified), tz=timezone.utc).date()
        with suppress(ValueError):
            return date.fromisoformat(self.modified[:10])
        return None


class _Listed(Plain, frozen=True, kw_only=True):
    """What one page or folder lists: tarballs of TheRock's, and how many files it names in all."""

    tarballs: tuple[ListedTarball, ...]
    names: tuple[str, ...]  # of all files


def newest(where: str, *, client: Client, cwd: Path) -> dict[str, ListedTarball]:
    """Return the newest tarball of each family, and of `multiarch`, that `where` lists."""
    return {
        item.name.group: item for item in sorted(every(where, client=client, cwd=cwd), key=order)
    }


def every(where: str, *, client: Client, cwd: Path) -> tuple[ListedTarball, ...]:
    """Return the tarballs to build with that the URL of a page, or a folder, lists."""
    if "://" in where:
        pages = list(_pages(where, client))
    elif (cwd / where).is_dir():
        paths = [path for path in sorted((cwd / where).iterdir()) if ".tar." in path.name]
        held = tuple(item for path in paths for item in _listed(path.name, str(path)))
        pages = [_Listed(tarballs=held, names=tuple(path.name for path in paths))]
    else:
        raise ConfigError(
            f"{cwd / where}: no such folder", hint="check where the tarballs are listed"
        )
    addresses: dict[str, str] = {}
    found = [item for page in pages for item in page.tarballs]
    for item in found:
        name = therock.base_name(item.source)
        if addresses.setdefault(name, item.source) != item.source:
            raise FetchError(
                f"{without_secrets(where)}: lists {name} twice, at two addresses",
                hint="name the right one with `source` in place of `tarballs`",
            )
    chosen = tuple(item for item in found if item.name.is_release)
    if not chosen:
        raise _empty(where, [name for page in pages for name in page.names], len(found))
    return chosen


def _empty(where: str, names: list[str], known: int) -> FetchError:
    shown = without_secrets(where)
    odd = [name for name in names if ".tar." in name]
    if odd and not known:
        return FetchError(
            f"{shown}: has {count(len(odd), 'tarball')} with a name that rocwheel does not know, "
            f"such as {odd[0]}",
            hint="TheRock may have changed its names: `names` in ci/therock.yaml",
        )
    rest = f" ({count(known, 'tarball')} of ROCm's tests or of another platform)" if known else ""
    return FetchError(
        f"{shown}: lists nothing to build with{rest}: no therock-dist-linux-…",
        hint="check the address; a stream without a release looks like this",
    )


def _formats() -> therock.TarballPages:
    return therock.known().pages


def order(item: ListedTarball) -> tuple[Any, ...]:
    """Return the sort key, newest last: a commit in a version (`.dev0+13caf791`) has no order."""
    version = item.name.version.version if item.name.version else Version("0")
    return Version(version.public), item.modified, version


def _pages(url: str, client: Client) -> Iterator[_Listed]:
    address = url
    for _ in range(BUCKET_PAGES):
        body = client.read(address, limit=PAGE_BYTES, fresh=True, beside=url)
        if body is None:
            raise FetchError(
                f"{without_secrets(url)}: there is no such page", hint="check the address"
            )
        text = body.decode("utf-8", "replace")
        yield read(text, url)
        more = _formats().bucket.following.search(text) if "<ListBucketResult" in text else None
        if more is None:
            return
        parts = urlsplit(url)
        token = f"continuation-token={quote(unescape(more[1]), safe='')}"
        query = f"{parts.query}&{token}" if parts.query else f"list-type=2&{token}"
        address = urlunsplit(parts._replace(query=query))
    raise FetchError(f"{without_secrets(url)}: lists too many files", hint="name a longer prefix")


def read(text: str, url: str) -> _Listed:
    """Return what one page lists. Raises FetchError for a page that was cut, or is none."""
    if "<ListBucketResult" in text:
        return _bucket(text, url)
    if (constant := _formats().constant.search(text)) is None:
        return _links(text, url)
    try:
        files, _ = json.JSONDecoder().raw_decode(text, constant.end())
    except (ValueError, RecursionError) as exc:
        raise _unreadable(url, "its list of files does not end") from exc
    tarballs, names = list[ListedTarball](), list[str]()
    for item in files:
        name = item.get("name") if isinstance(item, Mapping) else None
        if not isinstance(name, str):
            raise _unreadable(url, "its list of files has an entry without a name")
        names.append(name)
        tarballs += _listed(name, quote(name), page=url, modified=str(item.get("mtime", "")))
    return _Listed(tarballs=tuple(tarballs), names=tuple(names))


def _links(text: str, url: str) -> _Listed:
    """Read a web server's list of a folder: links to tarballs, or only a heading."""
    links = [unescape(href) for href in _formats().link.findall(text)]
    names = tuple(unquote(href).partition("?")[0].rpartition("/")[2] for href in links)
    if not any(".tar." in name for name in names) and not _formats().heading.search(text):
        raise _unreadable(url, "it is not a list of tarballs that rocwheel knows")
    found = (item for href in links for item in _listed(unquote(href), href, page=url))
    return _Listed(tarballs=tuple(found), names=names)


def _bucket(text: str, url: str) -> _Listed:
    if "</ListBucketResult>" not in text:
        raise _unreadable(url, "its listing does not end")
    if "<IsTruncated>true" in text and not _formats().bucket.following.search(text):
        raise _unreadable(url, "its listing goes on, and does not say how: ask with list-type=2")
    parts = urlsplit(url)
    # A bucket is listed at its root, for any prefix; one by path is named there.
    root = urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/", "", ""))
    tarballs, names = list[ListedTarball](), list[str]()
    for entry in _formats().bucket.entry.findall(text):
        fields = {key: unescape(value) for key, value in _formats().bucket.field.findall(entry)}
        key = fields.get("Key", "")
        names.append(therock.base_name(key))
        tarballs += _listed(key, quote(key), page=root, modified=fields.get("LastModified", ""))
    return _Listed(tarballs=tuple(tarballs), names=tuple(names))


def _listed(
    name: str, address: str, *, page: str = "", modified: str = ""
) -> Iterator[ListedTarball]:
    try:
        parsed = therock.parse_name(therock.base_name(name))
        source = urljoin(page, address) if page else address
    except ValueError:  # such as `http://[bad`
        return
    if parsed and parsed.version:
        yield ListedTarball(name=parsed, source=source, modified=modified)


def _unreadable(url: str, problem: str) -> FetchError:
    return FetchError(
        f"{without_secrets(url)}: cannot be read: {problem}",
        hint="a login page, a page that was cut short and a new format look like this",
    )
