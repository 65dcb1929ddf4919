"""Every key in a staging or release prefix, spelt in one place; `docs/layout.md` lists them.

A wheel lies directly below `<prefix>/<family>/`, its page below `<prefix>/<family>/<project>/`,
rocwheel's own objects below `<prefix>/<family>/_rocwheel/`. For sets of several families, `all`
stands in a family's place, and each family has pages of its own, a *view*.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, TypeVar
from urllib.parse import quote

from rocwheel.base import parallel
from rocwheel.base.choices import ALL
from rocwheel.base.store import HTML, JSON, SIMPLE_JSON, WHEEL, Headers, Store

COMPAT: Final = "compat.html"
OURS: Final = "_rocwheel"
BUNDLE: Final = "bundle.jsonl"  # the public copy of the statements about a released set
FOREIGN: Final = "foreign"  # stands for a manifest where files came before us

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class Place:
    """The staging or release prefix of one family, or of `all`, in an open store."""

    record_headers: ClassVar = Headers(content_type=JSON, is_record=True)
    store: Store
    root: str  # "v2/gfx94X-dcgpu", "v2/all"
    family: str
    view: str = ""  # the family, or `all`, as which it is looked at; its own family without one
    is_split: bool = False  # each family has pages of its own, beside those of `all`
    is_staging: bool = False
    public_url: str = ""  # of the store's own root, behind a CDN or web server
    page_cache: str = ""  # Cache-Control
    wheel_cache: str = ""
    # proxies and CA bundle on the way to that URL
    public_environ: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Set the view to the family's own if none is named."""
        object.__setattr__(self, "view", self.view or self.family)

    def of(self, view: str) -> Place:
        """Return the same place as one family, or `all`, sees it."""
        return replace(self, view=view)

    def shown_as(self, view: str) -> Place:
        """Return the same place with the pages that one family, or `all`, has of its own."""
        return replace(self, view=view, is_split=self.is_split or view != self.family)

    @property
    def beside(self) -> Place:
        """The other log that has lines on a family's pages: its own, or that of `all`."""
        family = ALL if self.family == self.view else self.view
        root = f"{self.root.rpartition('/')[0]}/{family}"
        return replace(self, root=root, family=family, is_split=family == ALL)

    @property
    def index(self) -> str:
        """Where the pages lie: "v2/gfx94X-dcgpu", also of a view of "v2/all"."""
        return f"{self.root.rpartition('/')[0]}/{self.view}" if self.is_split else self.root

    def each(self, work: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """Run `work` on items, as many at once as the store takes connections."""
        return parallel.each(work, items, threads=self.store.connections)

    def locate(self, name: str) -> str:
        """Return the URL of a key below this place, for people."""
        return self.store.locate(self.key(name))

    @property
    def location(self) -> str:
        return self.store.locate(self.root)

    def command(self, name: str) -> str:
        """Return a command of `index` for this place: `index repair --staging`."""
        return f"index {name} --staging" if self.is_staging else f"index {name}"

    @property
    def url(self) -> str:
        """What `--index-url` takes; always ends with a slash."""
        return self._served(f"{self.index}/")

    def link(self, name: str) -> str:
        """Return the URL under which an installer finds `name` below this place."""
        return self._served(self.key(name))

    def _served(self, key: str) -> str:
        if self.public_url:
            return f"{self.public_url.rstrip('/')}/{quote(key, safe='/')}"
        return self.store.http(key)

    def key(self, name: str) -> str:
        return f"{self.root}/{name}"

    def metadata(self, filename: str) -> str:
        """Key of a wheel's core metadata (PEP 658)."""
        return self.key(f"{filename}.metadata")

    def json(self, project: str) -> str:
        """Key of a page's JSON form; "" is the list of projects."""
        return f"{self.index}/{project and project + '/'}index.json"

    def views(self, project: str, *, folder_keys: bool) -> tuple[str, ...]:
        """Return the keys of the HTML page: the one served first comes first."""
        folder = f"{self.index}/{project and project + '/'}"
        return (folder, f"{folder}index.html") if folder_keys else (f"{folder}index.html",)

    @property
    def compat(self) -> str:
        """Key of the page that says which JAX goes with which ROCm, GPU and CPython."""
        return f"{self.index}/{COMPAT}"

    def manifest(self, sha256: str) -> str:
        return self.key(f"{OURS}/manifests/{sha256}.json")

    def verdicts(self, manifest: str) -> str:
        """Key prefix of everything runners of its family wrote about a manifest."""
        return self.key(f"{OURS}/verdicts/{manifest}/{self._own}")

    @property
    def runners_probe(self) -> str:
        """Where a runner may try what the store can do."""
        return self.verdicts("probe").rstrip("/")

    def verdict(self, manifest: str, python: str, suite: str, sha256: str) -> str:
        """Key of a verdict: its own digest names it."""
        return f"{self.verdicts(manifest)}{python}/{suite}/{sha256}.json"

    def report(self, manifest: str, python: str, suite: str, name: str) -> str:
        """Key of a report of a verdict; `name` starts with the identity of the run."""
        return f"{self.verdicts(manifest)}{python}/{suite}/{name}"

    def attestation(self, manifest: str, name: str = "") -> str:
        """Key of a signed statement about a manifest; without a name the prefix of all."""
        return self.key(f"{OURS}/attestations/{manifest}/{self._own}{name}")

    def provenance(self, manifest: str, filename: str) -> str:
        """Key of a released wheel's provenance (PEP 740), which all families share."""
        return self.key(f"{OURS}/attestations/{manifest}/{filename}.provenance")

    @property
    def _own(self) -> str:
        """Folder of a family's own objects: below `all` it has the family's name."""
        return "" if self.view == self.family else f"{self.view}/"

    def log(self, number: int) -> str:
        """Key of one entry of the log; creating it is the commit."""
        return f"{self.logs}{number}.json"

    @property
    def logs(self) -> str:
        return self.key(f"{OURS}/log/")

    @property
    def state(self) -> str:
        """Key of the snapshot of the log's fold: of its sets."""
        return self.key(f"{OURS}/state.json")

    @property
    def files(self) -> str:
        """Key of the snapshot's other half: the files that its sets hold."""
        return self.key(f"{OURS}/files.json")

    @property
    def listings(self) -> str:
        """Key prefix of what versions before 0.3 kept in place of that."""
        return self.key(f"{OURS}/listings/")

    @property
    def head(self) -> str:
        """Key of the statement that says with which entry the log ends, and until when."""
        return self.key(f"{OURS}/head.json")

    def bundle(self, sha256: str) -> str:
        """Key of a set's signed statements, which an entry of the log names by their digest."""
        return self.key(f"{OURS}/bundles/{sha256}.jsonl")

    @property
    def wheel_headers(self) -> Headers:
        return Headers(content_type=WHEEL, cache_control=self.wheel_cache)

    @property
    def json_headers(self) -> Headers:
        """Headers of a JSON page: installers accept it under this type only."""
        return Headers(content_type=SIMPLE_JSON, cache_control=self.page_cache)

    @property
    def view_headers(self) -> Headers:
        return Headers(content_type=HTML, cache_control=self.page_cache)


def kept_seconds(cache_control: str) -> int:
    """Return how long caches may keep what is served with this header (RFC 9111)."""
    if re.search(r"no-cache|no-store", cache_control):
        return 0
    return max(map(int, re.findall(r"(?:max-age|s-maxage)=(\d{1,9})", cache_control)), default=0)
