"""One package page: a value, how it changes, and its two forms (JSON and HTML).

The JSON form (PEP 691, 700, 714, 592) is the state: publishers change it with compare-and-swap and
render the HTML form (PEP 503) from it. Keys that start with an underscore are a server's own by
PEP 700; ours carry what a person or a later command wants to know. A page only ever grows, except
through `without`, which remembers the digests of what left: their names stay taken.
"""

from __future__ import annotations

import dataclasses
import html
import json
import posixpath
from dataclasses import dataclass, field
from functools import lru_cache
from html.parser import HTMLParser
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote, urlsplit

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from rocwheel.console import size as readable_size
from rocwheel.errors import ConfigError, StoreError, WheelError
from rocwheel.model import is_sha256
from rocwheel.store import differs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sized

API_VERSION: Final = "1.1"
PRIVATE: Final = "_rocwheel"
GENERATOR: Final = "rocwheel"
UNFOLDED: Final = 3  # versions shown at once; the others open on a click


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One wheel in the index."""

    filename: str
    project: str  # normalised (PEP 503)
    version: str
    size: int
    sha256: str
    metadata_sha256: str  # of the `.metadata` file
    uploaded: str  # ISO 8601, UTC, whole seconds
    requires_python: str = ""
    yanked: str | None = None  # the reason; None when it is not
    kind: str = ""  # WheelKind; "" for a file that was here before us
    python: str = ""
    gfx_targets: tuple[str, ...] = ()
    rocm: str = ""
    manifest: str = ""

    def __post_init__(self) -> None:
        """Nothing is listed without its hash. Raises WheelError."""
        if not is_sha256(self.sha256):
            raise WheelError(
                f"{self.filename}: {self.sha256!r} is not a SHA-256",
                hint="every file in an index has one: build or stage the wheel set again",
            )

    def to_json(self) -> dict[str, Any]:
        """The file's object in a PEP 691 page."""
        core: dict[str, Any] = {}
        if self.metadata_sha256:
            core = {"sha256": self.metadata_sha256}
        document: dict[str, Any] = {
            "filename": self.filename,
            # pip before 23 checks the hash of a JSON page's file only when it is in the URL.
            "url": f"../{quote(self.filename, safe='')}#sha256={self.sha256}",
            "hashes": {"sha256": self.sha256},
            "size": self.size,
            "upload-time": self.uploaded,
            "yanked": self.yanked if self.yanked is not None else False,
            # Not under PEP 658's own name as well: pip 22.3 to 23.0 fail on it (PEP 714).
            "core-metadata": core or False,
            PRIVATE: {
                "version": self.version,
                "kind": self.kind,
                "python": self.python,
                "gfx_targets": list(self.gfx_targets),
                "rocm": self.rocm,
                "manifest": self.manifest,
            },
        }
        if self.requires_python:
            document["requires-python"] = self.requires_python
        return document

    @classmethod
    def from_json(cls, project: str, document: Mapping[str, Any]) -> Entry:
        """Parse what `to_json` made. Raises KeyError or TypeError for anything else."""
        own, core = document[PRIVATE], document["core-metadata"]
        return cls(
            filename=document["filename"],
            project=project,
            version=own["version"],
            size=document["size"],
            sha256=document["hashes"]["sha256"],
            metadata_sha256=core["sha256"] if core else "",
            uploaded=document["upload-time"],
            requires_python=document.get("requires-python", ""),
            yanked=None if document["yanked"] is False else str(document["yanked"]),
            kind=own["kind"],
            python=own["python"],
            gfx_targets=tuple(own["gfx_targets"]),
            rocm=own["rocm"],
            manifest=own["manifest"],
        )


@dataclass(frozen=True, kw_only=True)
class Page:
    """All files of one project at one place, sorted: newest version first."""

    project: str
    files: tuple[Entry, ...] = ()
    gone: Mapping[str, str] = field(default_factory=dict)  # file name -> SHA-256 of what left

    def __post_init__(self) -> None:
        """Keep the order that every publisher renders alike."""
        ordered = sorted(self.files, key=lambda file: file.filename)
        ordered.sort(key=lambda file: parsed(file.version), reverse=True)
        object.__setattr__(self, "files", tuple(ordered))

    def file(self, filename: str) -> Entry | None:
        return next((item for item in self.files if item.filename == filename), None)

    def taken(self, entries: Iterable[Entry], *, where: str) -> None:
        """Raise ObjectDiffersError when a name belongs, or belonged, to other bytes."""
        used = {**self.gone, **{item.filename: item.sha256 for item in self.files}}
        for entry in entries:
            if used.get(entry.filename, entry.sha256) != entry.sha256:
                raise differs(f"{where}/{entry.filename}", used[entry.filename], entry.sha256)

    def with_files(self, entries: Iterable[Entry], *, where: str = "") -> Page:
        """Add files; one that is listed already stays as it is. Raises ObjectDiffersError."""
        entries = tuple(entries)
        self.taken(entries, where=where or self.project)
        listed = {item.filename for item in self.files}
        new = {item.filename: item for item in entries if item.filename not in listed}
        gone = {name: sha for name, sha in self.gone.items() if name not in new}
        return dataclasses.replace(self, files=(*self.files, *new.values()), gone=gone)

    def without(self, filenames: Iterable[str]) -> Page:
        """Take files out; their names stay taken."""
        leaving = set(filenames)
        gone = {item.filename: item.sha256 for item in self.files if item.filename in leaving}
        staying = tuple(item for item in self.files if item.filename not in leaving)
        return dataclasses.replace(self, files=staying, gone={**self.gone, **gone})

    def yanked(self, filenames: Iterable[str], reason: str | None) -> Page:
        """Mark files as yanked (PEP 592), or with None as not."""
        chosen = set(filenames)
        files = (
            dataclasses.replace(item, yanked=reason) if item.filename in chosen else item
            for item in self.files
        )
        return dataclasses.replace(self, files=tuple(files))

    def to_json(self) -> bytes:
        document = {
            "meta": {"api-version": API_VERSION, PRIVATE: {"generator": GENERATOR}},
            "name": self.project,
            "versions": list(dict.fromkeys(item.version for item in self.files)),
            "files": [item.to_json() for item in self.files],
            PRIVATE: {"gone": dict(sorted(self.gone.items()))},
        }
        return (json.dumps(document, ensure_ascii=False, sort_keys=True) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, *, where: str) -> Page:
        """Parse a page that we wrote. Raises StoreError, naming `where`, for any other."""
        try:
            document = json.loads(data)
            project = document["name"]
            return cls(
                project=project,
                files=tuple(Entry.from_json(project, item) for item in document["files"]),
                gone=dict(document[PRIVATE]["gone"]),
            )
        except (ValueError, KeyError, TypeError, WheelError) as exc:
            raise StoreError(
                f"{where}: not a page that rocwheel wrote ({type(exc).__name__}: {exc})",
                hint="files that were here before: `index adopt`; a damaged page: `index rebuild`",
            ) from exc

    def to_html(self, *, family: str, index_url: str) -> bytes:
        """The page as pip reads it (PEP 503) and as a person does; `index_url` is shown."""
        versions = [(text, list(files)) for text, files in groupby(self.files, _version)]
        parts = [_head(f"{self.project} · {family}", up="../")]
        count = f"{_count(self.files, 'file')} in {_count(versions, 'version')}, newest first"
        parts.append(f"<h1>{_text(self.project)}</h1><p class=told>{_text(family)} · {count}</p>")
        for number, (version, files) in enumerate(versions):
            unfolded = " open" if number < UNFOLDED else ""
            parts.append(f"<details{unfolded}>{self._version_html(version, files, index_url)}")
        if not versions:
            parts.append("<p>No files now.</p>")
        parts.append(_FOOT)
        return "".join(parts).encode()

    def _version_html(self, version: str, files: list[Entry], index_url: str) -> str:
        targets = sorted({target for item in files for target in item.gfx_targets})
        facts = [files[0].uploaded[:10], *([f"ROCm {files[0].rocm}"] if files[0].rocm else ())]
        told = _text(" · ".join(facts))
        if all(item.yanked is not None for item in files):
            told += " · <b class=yanked>yanked</b>"
        chips = "".join(f"<span class=gfx>{_text(target)}</span> " for target in targets)
        line = f"pip install '{self.project}=={version}' --extra-index-url {index_url}"
        rows = "".join(_row(item) for item in files)
        return (
            f"<summary><h2>{_text(version)}</h2> <span>{told}</span></summary>"
            f"{chips and f'<p>{chips}</p>'}<code tabindex=0>{_text(line)}</code>"
            "<table><thead><tr><th>File<th>Python<th>Size<th>Uploaded (UTC)</thead>"
            f"<tbody>{rows}</tbody></table></details>\n"
        )


@dataclass(frozen=True, kw_only=True)
class Root:
    """The list of projects at one place (PEP 503 root page)."""

    projects: frozenset[str] = frozenset()

    def to_json(self) -> bytes:
        document = {
            "meta": {"api-version": API_VERSION, PRIVATE: {"generator": GENERATOR}},
            "projects": [{"name": name} for name in sorted(self.projects)],
        }
        return (json.dumps(document, sort_keys=True) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, *, where: str) -> Root:
        try:
            document = json.loads(data)
            return cls(projects=frozenset(item["name"] for item in document["projects"]))
        except (ValueError, KeyError, TypeError) as exc:
            raise StoreError(
                f"{where}: not a list of projects", hint="make it again: `index rebuild`"
            ) from exc

    def to_html(self, *, family: str, index_url: str) -> bytes:
        items = "".join(
            f'<li><a href="{quote(name)}/">{_text(name)}</a></li>\n'
            for name in sorted(self.projects)
        )
        return (
            f"{_head(f'JAX for ROCm · {family}')}<h1>JAX wheels for {_text(family)}</h1>"
            f"<p>An index for pip and uv:</p>"
            f"<code tabindex=0>--extra-index-url {_text(index_url)}</code>"
            f"<ul class=projects>\n{items}</ul>{_FOOT}"
        ).encode()


@dataclass(frozen=True, kw_only=True)
class Link:
    """One file as an HTML page shows it to an installer."""

    filename: str
    sha256: str
    metadata_sha256: str
    requires_python: str
    yanked: str | None  # the reason; None when it is not
    url: str  # as written, without the fragment


@lru_cache(maxsize=1 << 16)
def parsed(version: str) -> Version:
    """A version to compare with; pages compare the same ones again and again."""
    return Version(version)


def links(data: bytes) -> tuple[Link, ...]:
    """What an installer finds in an HTML page; reads foreign pages too."""
    parser = _Links()
    parser.feed(data.decode("utf-8", "replace"))
    return tuple(parser.found)


def is_ours(data: bytes) -> bool:
    """Whether an HTML page was written by rocwheel."""
    return f'<meta name="generator" content="{GENERATOR}">'.encode() in data


def version_of(filename: str) -> tuple[str, str]:
    """Project (PEP 503) and version in a wheel's name. Raises ConfigError."""
    try:
        project, version, _, _ = parse_wheel_filename(filename)
    except InvalidWheelFilename as exc:
        raise ConfigError(str(exc), hint="copy the name from the index") from exc
    return canonicalize_name(project), str(version)


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[Link] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        href = given.get("href") or ""
        parts = urlsplit(href)
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


def _version(entry: Entry) -> str:
    return entry.version


def _text(text: str) -> str:
    return html.escape(text, quote=True)


def _row(entry: Entry) -> str:
    attributes = [f'href="../{quote(entry.filename, safe="")}#sha256={entry.sha256}"']
    if entry.requires_python:
        attributes.append(f'data-requires-python="{_text(entry.requires_python)}"')
    if entry.metadata_sha256:
        attributes.append(f'data-core-metadata="sha256={entry.metadata_sha256}"')
        attributes.append(f'data-dist-info-metadata="sha256={entry.metadata_sha256}"')
    note = ""
    if entry.yanked is not None:
        attributes.append(f'data-yanked="{_text(entry.yanked)}"')
        note = f"<p class=yanked>yanked: {_text(entry.yanked or 'no reason given')}</p>"
    uploaded = entry.uploaded.replace("T", " ").partition(".")[0][:16]
    python = entry.python or ("any" if entry.kind else "")
    return (
        f"<tr><td><a {' '.join(attributes)}>{_text(entry.filename)}</a>{note}"
        f'<td data-name="Python">{_text(python)}'
        f'<td data-name="Size">{readable_size(entry.size)}'
        f'<td data-name="Uploaded">{_text(uploaded)}\n'
    )


def _head(title: str, *, up: str = "") -> str:
    # Every link on a project page must be a file (PEP 503), so the way back is a form.
    back = f"<form action='{up}'><button>All projects</button></form>" if up else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="pypi:repository-version" content="{API_VERSION}">'
        f'<meta name="generator" content="{GENERATOR}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>{back}\n"
    )


_FOOT: Final = "</body></html>\n"
_STYLE: Final = (
    ":root{color-scheme:light dark;--ink:#1c1e21;--soft:#5c636e;--line:#d9dde3;--paper:#fff;"
    "--block:#f3f5f8;--link:#0b57c2;--warn:#a33000}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#9aa3af;--line:#343a43;"
    "--paper:#15181c;--block:#20252b;--link:#7db4ff;--warn:#ff9d76}}"
    "body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);"
    "max-width:70rem;margin:0 auto;padding:1.25rem}"
    "h1{font-size:1.6rem;margin:.2rem 0}"
    "h2{font-size:1.1rem;margin:0;display:inline;overflow-wrap:anywhere}"
    "p{margin:.25rem 0;color:var(--soft)}.told{margin-bottom:1rem}a{color:var(--link)}"
    "details{border-top:1px solid var(--line);padding:.6rem 0}details[open]{padding-bottom:1.2rem}"
    "summary{cursor:pointer}summary span{color:var(--soft);margin-left:.4rem}"
    "code{display:block;background:var(--block);border-radius:.4rem;padding:.6rem .8rem;"
    "margin:.6rem 0;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85rem;user-select:all}"
    "table{border-collapse:collapse;width:100%;font-size:.9rem}"
    "th{text-align:left;color:var(--soft);font-weight:500}"
    "th,td{padding:.3rem .8rem .3rem 0;vertical-align:top}"
    "td{border-top:1px solid var(--line);white-space:nowrap}"
    "th:nth-child(2){width:4rem}th:nth-child(3){width:6rem}th:nth-child(4){width:10rem}"
    "td:first-child{white-space:normal;overflow-wrap:anywhere}"
    ".gfx{display:inline-block;border:1px solid var(--line);border-radius:1rem;"
    "padding:0 .6rem;font-size:.8rem}"
    ".yanked{color:var(--warn)}.projects{padding-left:1.2rem;font-size:1.1rem;line-height:2}"
    "button{font:inherit;font-size:.85rem;color:var(--link);background:none;"
    "border:1px solid var(--line);border-radius:.4rem;padding:.2rem .7rem;cursor:pointer}"
    "@media(max-width:40rem){thead{display:none}tr{display:block;padding:.4rem 0;"
    "border-top:1px solid var(--line)}td{display:inline-block;border:0;padding:0 1rem 0 0}"
    "td:first-child{display:block}td+td::before{content:attr(data-name) ' ';color:var(--soft)}}"
)
