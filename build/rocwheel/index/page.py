"""One page of an index: a value, and its two forms (JSON: PEP 691, 700, 714, 592; HTML: PEP 503).

A page says which state of the log it shows: its number is a *mark* in its bytes, so that no two
pages are ever the same bytes again, and a page that is newer than its reader is known as that.
Keys that start with an underscore are a server's own by PEP 700.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Sized
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

from rocwheel import assets
from rocwheel.console import size as readable_size
from rocwheel.entry import Entry, parsed
from rocwheel.install import Install

if TYPE_CHECKING:
    from jinja2 import Template

API_VERSION: Final = "1.1"
PRIVATE: Final = "_rocwheel"
GENERATOR: Final = "rocwheel"
MARK: Final = "rocwheel-log"
UNFOLDED: Final = 3  # versions shown at once; the others open on a click
_MARKED: Final = (
    re.compile(rb'<meta name="' + MARK.encode() + rb'" content="(\d{1,18})">'),
    re.compile(rb'"' + MARK.encode() + rb'": (\d{1,18})\b'),
)


@dataclass(frozen=True, kw_only=True)
class Page:
    """All listed files of one project at one place, newest version first."""

    project: str
    files: tuple[Entry, ...] = ()
    number: int = 0  # of the log's state that it shows

    def __post_init__(self) -> None:
        """Keep the order that every publisher renders alike."""
        ordered = sorted(self.files, key=lambda file: file.filename)
        ordered.sort(key=lambda file: parsed(file.version), reverse=True)
        object.__setattr__(self, "files", tuple(ordered))

    def to_json(self) -> bytes:
        """Return the JSON form."""
        document = {
            "meta": _meta(self.number),
            "name": self.project,
            "versions": list(dict.fromkeys(item.version for item in self.files)),
            "files": [_file(item) for item in self.files],
        }
        return (json.dumps(document, ensure_ascii=False, sort_keys=True) + "\n").encode()

    def to_html(self, *, family: str, index_url: str) -> bytes:
        """Return the page as pip reads it and as a person does; `index_url` is shown."""
        versions = [
            _version(text, list(found)) | {"install": self._install(text, index_url)}
            for text, found in groupby(self.files, lambda item: item.version)
        ]
        count = f"{_count(self.files, 'file')} in {_count(versions, 'version')}, newest first"
        return _render(
            self.number,
            title=f"{self.project} · {family}",
            project=self.project,
            family=family,
            index_url=index_url,
            count=count,
            versions=versions,
            unfolded=UNFOLDED,
        )

    def _install(self, version: str, index_url: str) -> tuple[str, ...]:
        """Return the lines that install a version: a plugin's or pjrt's with both, then jax."""
        lines = Install.of_version(self.project, version, index_url).pip
        return lines if self.project.startswith("jax-rocm") else lines[:1]


@dataclass(frozen=True, kw_only=True)
class Root:
    """The list of projects at one place (PEP 503 root page)."""

    projects: frozenset[str] = frozenset()
    number: int = 0

    def to_json(self) -> bytes:
        """Return the JSON form."""
        document = {
            "meta": _meta(self.number),
            "projects": [{"name": name} for name in sorted(self.projects)],
        }
        return (json.dumps(document, sort_keys=True) + "\n").encode()

    def to_html(self, *, family: str, index_url: str) -> bytes:
        """Return the page for installers and people."""
        return _render(
            self.number,
            title=f"JAX for ROCm · {family}",
            project="",
            family=family,
            index_url=index_url,
            projects=[(name, quote(name)) for name in sorted(self.projects)],
        )


@dataclass(frozen=True, kw_only=True)
class Link:
    """One file as an HTML page shows it to an installer."""

    filename: str
    sha256: str
    metadata_sha256: str
    requires_python: str
    yanked: str | None  # the reason; None when it is not
    url: str  # as written, without the fragment


def links(data: bytes) -> tuple[Link, ...]:
    """Return what an installer finds in an HTML page; reads foreign pages too."""
    parser = _Links()
    parser.feed(data.decode("utf-8", "replace"))
    return tuple(parser.found)


def mark(data: bytes) -> int | None:
    """Return the number of the state that a page shows; None for a page of others."""
    for pattern in _MARKED:
        if found := pattern.search(data):
            return int(found[1])
    return None


def with_mark(data: bytes, number: int) -> bytes:
    """Return a page of ours as it would be if it showed the state of this number."""
    for pattern in _MARKED:
        if found := pattern.search(data):
            return b"%b%d%b" % (data[: found.start(1)], number, data[found.end(1) :])
    return data


def _meta(number: int) -> dict[str, Any]:
    return {"api-version": API_VERSION, PRIVATE: {"generator": GENERATOR, MARK: number}}


def _file(entry: Entry) -> dict[str, Any]:
    """Return the file's object in a PEP 691 page."""
    core = {"sha256": entry.metadata_sha256} if entry.metadata_sha256 else False
    document: dict[str, Any] = {
        "filename": entry.filename,
        # pip before 23 checks the hash of a JSON page's file only when it is in the URL:
        # https://github.com/pypa/pip/pull/11158
        "url": f"../{quote(entry.filename, safe='')}#sha256={entry.sha256}",
        "hashes": {"sha256": entry.sha256},
        "size": entry.size,
        "upload-time": entry.uploaded,
        "yanked": entry.yanked if entry.yanked is not None else False,
        # Not under PEP 658's own name as well: pip 22.3 to 23.0 fail on it:
        # https://peps.python.org/pep-0714/
        "core-metadata": core,
        PRIVATE: {
            "version": entry.version,
            "kind": entry.kind,
            "python": entry.python,
            "gfx_targets": list(entry.gfx_targets),
            "rocm": entry.rocm,
            "manifest": entry.manifest,
        },
    }
    if entry.requires_python:
        document["requires-python"] = entry.requires_python
    # PEP 592: true where no reason is given; an empty text would mean that it is not yanked.
    if entry.yanked == "":
        document["yanked"] = True
    return document


def _version(version: str, entries: list[Entry]) -> dict[str, Any]:
    """Return one version's files as the template shows them."""
    first = entries[0]
    facts = [first.uploaded[:10], *([f"ROCm {first.rocm}"] if first.rocm else ())]
    return {
        "version": version,
        "told": " · ".join(facts),
        "is_yanked": all(item.yanked is not None for item in entries),
        "targets": sorted({target for item in entries for target in item.gfx_targets}),
        "files": [_row(item) for item in entries],
    }


def _row(entry: Entry) -> dict[str, Any]:
    attributes = {"href": f"../{quote(entry.filename, safe='')}#sha256={entry.sha256}"}
    if entry.requires_python:
        attributes["data-requires-python"] = entry.requires_python
    if entry.metadata_sha256:
        attributes["data-core-metadata"] = f"sha256={entry.metadata_sha256}"
    if entry.yanked is not None:
        attributes["data-yanked"] = entry.yanked
    return {
        "attributes": list(attributes.items()),
        "filename": entry.filename,
        "yanked": entry.yanked,
        "python": entry.python or ("any" if entry.kind else ""),
        "size": readable_size(entry.size),
        "uploaded": entry.uploaded.replace("T", " ").partition(".")[0][:16],
    }


def _render(number: int, **values: Any) -> bytes:
    text = _template().render(
        number=number,
        mark=MARK,
        generator=GENERATOR,
        api_version=API_VERSION,
        theme=assets.style(),
        **values,
    )
    return text.encode("utf-8", "replace")


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    return Environment(
        autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    ).from_string(assets.text("index/assets/page.html.j2"))


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Link] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        href = given.get("href") or ""
        try:
            parts = urlsplit(href)
        except ValueError:  # such as `http://[bad`
            return
        name = posixpath.basename(unquote(parts.path))
        if tag != "a" or not name.endswith(".whl"):
            return
        algorithm, _, digest = parts.fragment.partition("=")
        metadata = given.get("data-core-metadata") or given.get("data-dist-info-metadata") or ""
        self.found.append(
            Link(
                filename=name,
                sha256=digest if algorithm == "sha256" else "",
                metadata_sha256=metadata.removeprefix("sha256="),
                requires_python=given.get("data-requires-python") or "",
                yanked=(given["data-yanked"] or "") if "data-yanked" in given else None,
                url=href.partition("#")[0],
            )
        )


def _count(items: Sized, noun: str) -> str:
    return f"{len(items)} {noun}{'' if len(items) == 1 else 's'}"
