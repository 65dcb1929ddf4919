"""Every key in a staging or release prefix, spelt in one place; `docs/layout.md` lists them.

One prefix has one log, of all families. What is ours and not the installers' lies below
`<prefix>/_rocwheel/`, wheels below `<prefix>/files/`, the pages of a family, or of `all`, below
`<prefix>/<family>/`. Before 0.3 each family had a log there, and `all` one: a set of then
keeps its *home*, the folder in which its wheels and records stay.
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
FILES: Final = "files"  # the folder of all wheels
SHORT: Final = 16  # digits of a wheel's SHA-256 that name its folder
NIGHTS: Final = "nights"  # below a family's index: one of each night, with what it released
LAST_GOOD: Final = "last-good"  # and one with the last set that passed, of each JAX release
NIGHT: Final = re.compile(r"(?!latest\Z)[A-Za-z0-9][A-Za-z0-9._-]{0,63}(?<!\.json)\Z")
BELOW: Final = re.compile(rf"/({NIGHTS}/[^/]+|{LAST_GOOD})/?\Z")  # ends the URL of such an index
FOREIGN: Final = "foreign"  # begins what stands for a manifest where files came before us
OWN: Final = "own"  # home of a set of before 0.3: a folder with its family's name

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class Place:
    """A staging or release prefix in an open store, as the users of one index see it."""

    record_headers: ClassVar = Headers(content_type=JSON, is_record=True)
    store: Store
    root: str  # "v2"
    family: str  # whose index: a family's, or that of `all`; of a night "gfx90a/nights/2026-05-01"
    home: str = ""  # of a set of before 0.3: OWN for a folder of its family's, or ALL
    is_staging: bool = False
    public_url: str = ""  # of the store's own root, behind a CDN or web server
    page_cache: str = ""  # Cache-Control
    wheel_cache: str = ""
    # proxies and CA bundle on the way to that URL
    public_environ: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def of(self, family: str) -> Place:
        """Return the same place as the users of a family, or of `all`, see it."""
        return replace(self, family=family)

    def at(self, home: str) -> Place:
        """Return the same place for the records of a set with that home."""
        return replace(self, home=home)

    @property
    def index(self) -> str:
        """Where the pages lie: "v2/gfx94X-dcgpu"."""
        return f"{self.root}/{self.family}"

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
        return self.served(f"{self.index}/")

    def served(self, key: str) -> str:
        """Return the URL under which an installer finds a key."""
        if self.public_url:
            return f"{self.public_url.rstrip('/')}/{quote(key, safe='/')}"
        return self.store.http(key)

    def key(self, name: str) -> str:
        return f"{self.root}/{name}"

    def keep(self, key: str, data: bytes) -> None:
        """Store a record, once; none for no bytes. Raises ObjectDiffersError, StoreError."""
        if data:
            self.store.create(key, data, headers=self.record_headers)

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

    def images(self, name: str = "") -> str:
        """Key of a record of a runtime image."""
        return f"{self.index}/{OURS}/images/{name}"

    # Records of one set: they stay in its home.

    @property
    def folder(self) -> str:
        """The folder of the prefix that is the set's home; "" of one that came since 0.3."""
        return {"": "", OWN: self.family, ALL: ALL}[self.home]

    def record(self, name: str) -> str:
        """Return how a record of a set is called below the place: `_rocwheel/…`, or in its home."""
        return f"{self.folder and f'{self.folder}/'}{OURS}/{name}"

    def wheel(self, filename: str, sha256: str) -> str:
        """Key of a set's wheel; what the index says of it has its path."""
        return self.key(f"{self.folder or f'{FILES}/{sha256[:SHORT]}'}/{filename}")

    def manifest(self, sha256: str) -> str:
        return self.key(self.record(f"manifests/{sha256}.json"))

    def verdicts(self, manifest: str) -> str:
        """Key prefix of everything runners of its family wrote about a manifest."""
        return self.key(self.record(f"verdicts/{manifest}/{self._own}"))

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

    def built(self, manifest: str, name: str = "") -> str:
        """Key of a statement about a set for all families; without a name the prefix of all."""
        return self.key(self.record(f"attestations/{manifest}/{name}"))

    def attestation(self, manifest: str, name: str = "") -> str:
        """Key of a family's signed statement about a manifest; without a name the prefix of all."""
        return self.built(manifest, f"{self._own}{name}")

    def bundle(self, sha256: str) -> str:
        """Key of a set's signed statements, which an entry of the log names by their digest."""
        return self.key(self.record(f"bundles/{sha256}.jsonl"))

    @property
    def _own(self) -> str:
        """Where a family keeps what is its own: in a folder with its name, but for its own home."""
        return "" if self.home == OWN else f"{self.family}/"

    # The log, its snapshot and head, of all sets.

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
    def head(self) -> str:
        """Key of the statement that says with which entry the log ends, and until when."""
        return self.key(f"{OURS}/head.json")

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
