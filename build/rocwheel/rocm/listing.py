"""Reads the pages and folders that list TheRock's tarballs.

Three kinds of page are read, whose formats are data (`ci/therock.yaml`): TheRock's own, a plain
list of links, and a bucket's XML. Only names and times of files are taken from a page. A page that
lists nothing, one that cannot be read and one with unknown names are three different errors.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import date, datetime, timezone
from html import unescape
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urljoin, urlsplit, urlunsplit

from packaging.version import Version

from rocwheel.base.console import count
from rocwheel.base.download import Client, without_secrets
from rocwheel.base.errors import ConfigError, FetchError
from rocwheel.base.values import Plain
from rocwheel.rocm import therock
from rocwheel.rocm.therock import ReleaseStream, TarballName

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


File = tuple[str, str, str]  # its name, its URL or path, and when it was put there


def newest_of(
    listed: Iterable[ListedTarball], where: str, stream: ReleaseStream | None = None
) -> dict[str, ListedTarball]:
    """Return the newest of each group; of a stream's page only versions that are like its own."""
    found = sorted(listed, key=order)
    fitting = [item for item in found if stream is None or stream.has(str(item.name.version))]
    if stream and not fitting:
        raise FetchError(
            f"{without_secrets(where)}: lists ROCm {found[-1].name.version}, and none that is like "
            f"{stream.example}",
            hint=f"name another stream, or correct `pattern` in ci/{therock.FILE}",
        )
    return {item.name.group: item for item in fitting}


def every(where: str, *, client: Client, cwd: Path) -> tuple[ListedTarball, ...]:
    """Return the tarballs to build with that the URL of a page, or a folder, lists."""
    if "://" in where:
        listed = list(_pages(where, client))
    elif (cwd / where).is_dir():
        paths = (path for path in sorted((cwd / where).iterdir()) if path.is_file())
        listed = [(path.name, str(path), "") for path in paths]
    else:
        raise ConfigError(
            f"{cwd / where}: no such folder", hint="check where the tarballs are listed"
        )
    found, odd, addresses = list[ListedTarball](), dict[str, None](), dict[str, str]()
    for name, source, modified in listed:
        parsed = therock.parse_name(name)
        if not parsed or not parsed.version:
            odd[name] = None
            continue
        if addresses.setdefault(name, source) != source:
            raise FetchError(
                f"{without_secrets(where)}: lists {name} twice, at two addresses",
                hint="name the right one with `source` in place of `tarballs`",
            )
        found.append(ListedTarball(name=parsed, source=source, modified=modified))
    chosen = tuple(item for item in found if item.name.is_release)
    if not chosen:
        raise _empty(without_secrets(where), [*odd], len(found))
    return chosen


def _empty(shown: str, odd: list[str], known: int) -> FetchError:
    others = f"{count(known, 'tarball')} of ROCm's tests or of another platform"
    if odd:
        return FetchError(
            f"{shown}: has {count(len(odd), 'file')} with a name that rocwheel does not know, "
            f"such as {odd[0]}{f', beside {others}' if known else ''}",
            hint="check the address; did TheRock change its names? `names` in ci/therock.yaml",
        )
    return FetchError(
        f"{shown}: lists nothing to build with: {others if known else 'it names no file'}",
        hint="check the address; a stream without a release looks like this",
    )


def order(item: ListedTarball) -> tuple[Any, ...]:
    """Return the sort key, newest last: a commit in a version (`.dev0+13caf791`) has no order."""
    version = item.name.version.version if item.name.version else Version("0")
    return Version(version.public), item.modified, version


def _pages(url: str, client: Client) -> Iterator[File]:
    address, following = url, therock.known().pages.bucket.following
    for _ in range(BUCKET_PAGES):
        text = client.read(address, limit=PAGE_BYTES, beside=url).decode("utf-8", "replace")
        yield from read(text, url)
        more = following.search(text) if "<ListBucketResult" in text else None
        if more is None:
            return
        parts = urlsplit(url)
        token = f"continuation-token={quote(unescape(more[1]), safe='')}"
        query = f"{parts.query}&{token}" if parts.query else f"list-type=2&{token}"
        address = urlunsplit(parts._replace(query=query))
    raise FetchError(f"{without_secrets(url)}: lists too many files", hint="name a longer prefix")


def read(text: str, url: str) -> list[File]:
    """Return the files that one page lists. Raises FetchError for one that was cut, or is none."""
    formats = therock.known().pages
    if "<ListBucketResult" in text:
        return _bucket(text, url)
    if refused := formats.bucket.error.search(text):
        raise _unreadable(url, f"its server answers {refused[1]}")
    if (constant := formats.constant.search(text)) is None:
        return _links(text, url)
    try:
        files, _ = json.JSONDecoder().raw_decode(text, constant.end())
    except (ValueError, RecursionError) as exc:
        raise _unreadable(url, f"its list of files is no whole JSON: {exc}") from exc
    listed = []
    for item in files:
        name = item.get("name") if isinstance(item, Mapping) else None
        if not isinstance(name, str):
            raise _unreadable(url, "its list of files has an entry without a name")
        source = urljoin(url, quote(name))
        listed.append((therock.base_name(name), source, str(item.get("mtime", ""))))
    return listed


def _links(text: str, url: str) -> list[File]:
    """Read a web server's list of a folder: links to what lies in it, or to tarballs elsewhere.

    It has a heading, or a link that shows the very name of a file.
    """
    formats, folder = therock.known().pages, urljoin(url, ".")
    is_list, listed = formats.heading.search(text) is not None, list[File]()
    for href, shown in formats.link.findall(text):
        try:
            source = urljoin(url, unescape(href))
            name = therock.base_name(source)
        except ValueError:  # such as `http://[bad`
            continue
        is_tarball = therock.parse_name(name) is not None
        path = source.partition("?")[0].partition("#")[0]
        if is_tarball or (path.startswith(folder) and path != folder):
            listed.append((name, source, ""))
            is_list |= is_tarball or ("." in name and unescape(shown).strip() == name)
    if "<html" in text.lower() and "</html>" not in text.lower():
        raise _unreadable(url, "its list of files does not end")
    if not is_list:
        raise _unreadable(url, "it is not a list of files" if text.strip() else "it is empty")
    return listed


def _bucket(text: str, url: str) -> list[File]:
    formats = therock.known().pages.bucket
    if "</ListBucketResult>" not in text:
        raise _unreadable(url, "its listing does not end")
    if "<IsTruncated>true" in text and not formats.following.search(text):
        raise _unreadable(url, "its listing goes on, and does not say how: ask with list-type=2")
    parts = urlsplit(url)
    # A bucket is listed at its root, for any prefix; one by path is named there.
    root = urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/", "", ""))
    listed = []
    for entry in formats.entry.findall(text):
        fields = {key: unescape(value) for key, value in formats.field.findall(entry)}
        if (key := fields.get("Key", "")) and not key.endswith("/"):
            source = urljoin(root, quote(key))
            listed.append((therock.base_name(key), source, fields.get("LastModified", "")))
    return listed


def _unreadable(url: str, problem: str) -> FetchError:
    return FetchError(
        f"{without_secrets(url)}: cannot be read: {problem}",
        hint="a login page, a page that was cut short and a new format look like this",
    )
