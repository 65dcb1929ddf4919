"""One page of an index: a value, and its two forms (PEP 691, 700, 714, 592, 740 and PEP 503).

A page contains the number of the log's state that it shows, its *mark*. So no two pages ever have
the same bytes, and a reader notices a page that is newer than itself.
Keys that start with an underscore are a server's own by PEP 700.
"""

import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from html.parser import HTMLParser
from itertools import groupby
from typing import Any, Final
from urllib.parse import quote, unquote, urljoin, urlsplit

import msgspec
from msgspec import UNSET

from rocwheel.base import assets
from rocwheel.base.console import count
from rocwheel.base.console import size as readable_size
from rocwheel.base.values import Plain
from rocwheel.base.versions import WheelKind, kind_of
from rocwheel.records.entry import Entry, parsed

API_VERSION: Final = "1.1"
PROVENANCE_VERSION: Final = "1.3"  # of a page that names a provenance
SECURE: Final = re.compile(r"https://|http://(localhost|127\.[\d.]+|\[::1\])[:/]")
PRIVATE: Final = "_rocwheel"
GENERATOR: Final = "rocwheel"
MARK: Final = "rocwheel-entry"  # before 0.3 each family had a log: rocwheel-log, rocwheel-log-all
_template = cache(assets.template)  # compiled once: an index has thousands of pages
UNFOLDED: Final = 3  # versions shown at once; the others open on a click
_MARKED: Final = (
    re.compile(rb'<meta name="%b" content="(\d{1,18})">' % MARK.encode()),
    re.compile(rb'"%b":(\d{1,18})\b' % MARK.encode()),
)
_OLDER: Final = (
    re.compile(rb'<meta name="rocwheel-log(?:-all)?" content="\d{1,18}">'),
    re.compile(rb'"rocwheel-log(?:-all)?":\d{1,18}\b'),
)


class Page(Plain, frozen=True, kw_only=True):
    """All listed files of one project at one place, newest version first."""

    project: str
    files: tuple[Entry, ...] = ()
    number: int = 0  # of the log's state that it shows
    family: str = ""  # whose page it is
    statements: Mapping[str, str] = {}  # set -> path of what is stated of it, below the prefix
    whole: frozenset[str] = frozenset()  # versions whose sets bring a jaxlib of their own

    def __post_init__(self) -> None:
        ordered = sorted(self.files, key=lambda file: file.filename)
        ordered.sort(key=lambda file: parsed(file.version), reverse=True)
        msgspec.structs.force_setattr(self, "files", tuple(ordered))

    @property
    def up(self) -> str:
        """Leads from the page to the prefix."""
        return "../" * (2 + self.family.count("/"))

    def to_json(self, *, index_url: str = "") -> bytes:
        return _json(
            self,
            name=self.project,
            versions=list(dict.fromkeys(item.version for item in self.files)),
            files=[_file(item, self, index_url) for item in self.files],
        )

    def provenance(self, entry: Entry, index_url: str) -> str:
        """Return where a file's provenance is; "" for none, or at no secure origin (PEP 740)."""
        if not entry.provenance or not SECURE.match(index_url):
            return ""
        folder = self.statements[entry.manifest].partition(f"/{entry.manifest}/")[0]
        name = f"{self.up}{folder}/{entry.manifest}/{quote(entry.filename)}.provenance"
        return urljoin(f"{index_url}{self.project}/", name)

    def to_html(self, *, index_url: str, compat: str = "") -> bytes:  # noqa: ARG002
        groups = [(v, list(files)) for v, files in groupby(self.files, lambda item: item.version)]
        blocks = (
            _version(files, self, index_url, is_open=at < UNFOLDED)
            for at, (_, files) in enumerate(groups)
        )
        return _render(
            self,
            title=f"{self.project} · {self.family}",
            project=self.project,
            family=self.family,
            count=f"{count(len(self.files), 'file')} in {count(len(groups), 'version')}",
            versions="\n".join(blocks),
        )

    def install(self, entry: Entry, index_url: str) -> str:
        """Return the lines that install a version: a plugin's or pjrt's with its set, then jax."""
        from rocwheel.records.install import Install  # and no page is made where one is only read

        lines = Install.of_version(
            self.project,
            entry.version,
            index_url,
            has_jaxlib=entry.version in self.whole,
            from_commit=None if entry.jax is UNSET else entry.jax,
        ).pip
        return "\n".join(lines if self.project.startswith("jax-rocm") else lines[:1])


class Root(Plain, frozen=True, kw_only=True):
    """The list of projects at one place (PEP 503 root page)."""

    projects: frozenset[str] = frozenset()
    number: int = 0
    family: str = ""
    project: str = ""

    def to_json(self, *, index_url: str = "") -> bytes:  # noqa: ARG002
        return _json(self, projects=[{"name": name} for name in sorted(self.projects)])

    def to_html(self, *, index_url: str, compat: str = "") -> bytes:
        kinds = {name: kind_of(name) for name in sorted(self.projects)}
        plugins = [name for name, kind in kinds.items() if kind and kind[0] is WheelKind.PLUGIN]
        return _render(
            self,
            install=[
                f"pip install --index-url {shlex.quote(index_url)} {name}" for name in plugins
            ],
            title=f"JAX for ROCm · {self.family}",
            project="",
            family=self.family,
            compat=compat,
            projects=[(name, quote(name)) for name in sorted(self.projects)],
        )


class Link(Plain, frozen=True, kw_only=True):
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
    return tuple(parser.links)


def mark(data: bytes) -> int | None:
    """Return the number of the state that a page shows; 0 before 0.3, None for a page of others."""
    for pattern in _MARKED:
        if match := pattern.search(data):
            return int(match[1])
    return 0 if any(pattern.search(data) for pattern in _OLDER) else None


def with_mark(data: bytes, number: int) -> bytes:
    for pattern in _MARKED:
        if match := pattern.search(data):
            return b"%b%d%b" % (data[: match.start(1)], number, data[match.end(1) :])
    return data


def _json(page: Page | Root, **values: Any) -> bytes:
    ours = {"generator": GENERATOR, MARK: page.number}  # first, where the mark is soon found
    meta = {"api-version": _api_version(page), PRIVATE: ours}
    return msgspec.json.encode({"meta": meta, **values}) + b"\n"


def _api_version(page: Page | Root) -> str:
    proven = isinstance(page, Page) and any(item.provenance for item in page.files)
    return PROVENANCE_VERSION if proven else API_VERSION


def _url(entry: Entry, page: Page) -> str:
    # Names of wheels have no others that need it: `quote` is quick where all is safe.
    path = quote(entry.path, safe="/+!").replace("+", "%2B").replace("!", "%21")
    # pip before 23 checks the hash of a JSON page's file only when it is in the URL:
    # https://github.com/pypa/pip/pull/11158
    return f"{page.up}{path}#sha256={entry.sha256}"


def _file(entry: Entry, page: Page, index_url: str) -> dict[str, Any]:
    document: dict[str, Any] = {
        "filename": entry.filename,
        "url": _url(entry, page),
        "hashes": {"sha256": entry.sha256},
        "size": entry.size,
        "upload-time": entry.uploaded,
        # PEP 592: true where no reason is given; an empty text would mean that it is not yanked.
        "yanked": False if entry.yanked is None else entry.yanked or True,
        # Not under PEP 658's own name as well: pip 22.3 to 23.0 fail on it:
        # https://peps.python.org/pep-0714/
        "core-metadata": {"sha256": entry.metadata_sha256} if entry.metadata_sha256 else False,
    }
    if entry.requires_python:
        document["requires-python"] = entry.requires_python
    if path := page.statements.get(entry.manifest):
        document[PRIVATE] = {"statements": f"{page.up}{path}"}
    if provenance := page.provenance(entry, index_url):
        document["provenance"] = provenance
    return document


def _version(files: Sequence[Entry], page: Page, index_url: str, *, is_open: bool) -> str:
    first = files[0]
    facts = [first.uploaded[:10], *([f"ROCm {first.rocm}"] if first.rocm else ())]
    yanked = all(item.yanked is not None for item in files)
    targets = sorted({target for item in files for target in item.gfx_targets})
    shown = "".join(f"<span class=gfx>{escape(target)}</span> " for target in targets)
    rows = "".join(_row(item, page, index_url) for item in files)
    install = page.install(first, index_url)
    return (
        f"<details{' open' if is_open else ''}><summary><h2>{escape(first.version)}</h2> "
        f"<span>{escape(' · '.join(facts))}{' · <b class=yanked>yanked</b>' if yanked else ''}"
        f"</span></summary>{f'<p>{shown}</p>' if targets else ''}"
        f"<code tabindex=0>{escape(install)}</code><table><thead><tr><th>File<th>Python<th>Size"
        f"<th>Uploaded (UTC)</thead><tbody>{rows}\n</tbody></table></details>"
    )


def _row(entry: Entry, page: Page, index_url: str) -> str:
    attributes, note = f'href="{_url(entry, page)}"', ""
    if entry.requires_python:
        attributes += f' data-requires-python="{escape(entry.requires_python)}"'
    if entry.uploaded:  # as uv reads it; pip asks JSON pages alone
        attributes += f' data-upload-time="{escape(entry.uploaded)}"'
    if entry.metadata_sha256:
        attributes += f' data-core-metadata="sha256={entry.metadata_sha256}"'
    if provenance := page.provenance(entry, index_url):
        attributes += f' data-provenance="{escape(provenance)}"'
    if entry.yanked is not None:
        attributes += f' data-yanked="{escape(entry.yanked)}"'
        note = f"<p class=yanked>yanked: {escape(entry.yanked or 'no reason given')}</p>"
    uploaded = entry.uploaded.replace("T", " ").partition(".")[0][:16]
    return (
        f"\n<tr><td><a {attributes}>{escape(entry.filename)}</a>{note}"
        f'<td data-name="Python">{escape(entry.python or ("any" if entry.kind else ""))}'
        f'<td data-name="Size">{readable_size(entry.size)}'
        f'<td data-name="Uploaded">{escape(uploaded)}'
    )


def _render(page: Page | Root, **values: Any) -> bytes:
    text = _template("release/index/assets/page.html.j2").render(
        mark=page.number,
        generator=GENERATOR,
        api_version=_api_version(page),
        theme=assets.style(),
        **values,
    )
    return f"{text}\n".encode("utf-8", "replace")


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[Link] = []

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
        self.links.append(
            Link(
                filename=name,
                sha256=digest if algorithm == "sha256" else "",
                metadata_sha256=metadata.removeprefix("sha256="),
                requires_python=given.get("data-requires-python") or "",
                yanked=(given["data-yanked"] or "") if "data-yanked" in given else None,
                url=href.partition("#")[0],
            )
        )
