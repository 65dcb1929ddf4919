"""`index rebuild` and `index adopt`: pages from records, and files that came before us.

The index is a function of the records, never of a listing: `rebuild` makes every page again from
them. What a listing is good for is finding files no record knows, which `adopt` takes over.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rocwheel.errors import ConfigError, PromotionError, StoreError
from rocwheel.index.page import Entry, Page, links, version_of
from rocwheel.index.publish import change_page, change_root, read_page
from rocwheel.ledger import records
from rocwheel.ledger.records import Action
from rocwheel.places import ADOPTED
from rocwheel.release import operations, wheelset
from rocwheel.release.audit import downloaded
from rocwheel.store import each

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rocwheel.ledger.records import History
    from rocwheel.places import Place
    from rocwheel.release.operations import Who
    from rocwheel.store import Counter


@dataclass(frozen=True, kw_only=True)
class Rebuild:
    """What each page lacks and has too much, by the records."""

    place: Place
    histories: Mapping[str, History]
    changes: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]  # project -> added, removed
    damaged: frozenset[str] = field(default_factory=frozenset)  # pages that cannot be read

    def lines(self) -> list[str]:
        lines = [
            f"page     {self.place.location}/{project}/ cannot be read, it is made again"
            for project in sorted(self.damaged)
        ]
        for project, (added, removed) in self.changes.items():
            lines += [f"add      {self.place.location}/{project}/: {name}" for name in added]
            lines += [f"remove   {self.place.location}/{project}/: {name}" for name in removed]
        return lines

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        return {
            "state": "planned" if dry_run else "rebuilt",
            "changes": {
                project: {"added": list(added), "removed": list(removed)}
                for project, (added, removed) in self.changes.items()
            },
            "damaged": sorted(self.damaged),
        }


def plan_rebuild(place: Place) -> Rebuild:
    """Compare every page with the records; write nothing."""
    histories = records.histories(place)
    changes: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    damaged = set()
    for project in records.projects(histories):
        try:
            page = read_page(place, project)
        except StoreError:
            page = Page(project=project)
            damaged.add(project)
        target = _rebuilt(page, histories)
        before, after = ({item.filename for item in p.files} for p in (page, target))
        if target != page:
            changes[project] = (tuple(sorted(after - before)), tuple(sorted(before - after)))
    return Rebuild(place=place, histories=histories, changes=changes, damaged=frozenset(damaged))


def apply_rebuild(rebuild: Rebuild) -> None:
    """Make every page again, those without a change included: views may be missing."""
    known = records.projects(rebuild.histories)
    gone = frozenset(name for item in rebuild.histories.values() for name in item.gone)
    for project in known:
        change_page(
            rebuild.place,
            project,
            lambda page: _rebuilt(page, rebuild.histories),
            losing=gone,
            adopting=True,
            mending=True,
        )
    if known:
        change_root(rebuild.place, known, mending=True)


def _rebuilt(page: Page, histories: Mapping[str, History]) -> Page:
    """The page the records describe.

    Listed files of an operation under way stay, and so do files no record knows.
    """
    live: dict[str, Entry] = {}
    for history in histories.values():
        for name, entry in history.live.items():
            shared = live.get(name, entry)  # a file of two sets is yanked when either is
            if entry.project == page.project:
                live[name] = shared if shared.yanked is not None else entry
    closed = {
        name: entry
        for history in histories.values()
        if not history.open
        for name, entry in history.gone.items()
        if entry.project == page.project and name not in live
    }
    kept = [item for item in page.files if item.filename not in {*live, *closed}]
    gone = {**page.gone, **{name: entry.sha256 for name, entry in closed.items()}}
    return Page(
        project=page.project,
        files=(*live.values(), *kept),
        gone={name: sha for name, sha in gone.items() if name not in live},
    )


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """Files that came before us, as they will be listed."""

    place: Place
    history: History
    entries: tuple[Entry, ...]
    metadata: Mapping[str, bytes]

    def lines(self) -> list[str]:
        return [
            f"adopt    {self.place.store.locate(self.place.key(item.filename))} ({item.sha256})"
            for item in self.entries
        ]

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        done = "planned" if dry_run else "adopted"
        return {
            "state": done if self.entries else "nothing-to-do",
            "files": [item.filename for item in self.entries],
        }


def plan_adoption(place: Place, *, count: Counter | None = None) -> Adoption:
    """Find the wheels at a place that no record knows; read every one of them.

    Raises PromotionError when a page that another tool made lists a file that is not there.
    """
    histories = records.histories(place)
    recorded = {e.filename for h in histories.values() for i in h.intents for e in i.entries}
    base = place.key("")
    names = [info.key.removeprefix(base) for info in place.store.keys(base)]
    wheels = [name for name in names if "/" not in name and name.endswith(".whl")]
    _check_nothing_lost(place, names, frozenset(wheels))
    found = each(
        lambda name: _foreign(place, name, count),
        [name for name in wheels if name not in recorded],
        threads=place.store.connections,
    )
    return Adoption(
        place=place,
        history=histories.get(ADOPTED, records.History(set_id=ADOPTED)),
        entries=tuple(entry for entry, _ in found),
        metadata={entry.filename: data for entry, data in found},
    )


def apply_adoption(adoption: Adoption, *, who: Who) -> None:
    """List the files as foreign; their `.metadata` files are written beside them."""
    place, store = adoption.place, adoption.place.store
    operation = operations.begin(place, adoption.history, Action.ADOPT, adoption.entries, who=who)
    each(
        lambda entry: store.create(
            place.metadata(entry.filename),
            adoption.metadata[entry.filename],
            headers=place.metadata_headers,
            sha256=entry.metadata_sha256,
        ),
        adoption.entries,
        threads=store.connections,
    )
    operation.publish(lambda page, files: page.with_files(files, where=place.location))
    operation.finish()


def _foreign(place: Place, name: str, count: Counter | None) -> tuple[Entry, bytes]:
    try:
        project, version = version_of(name)
    except ConfigError as exc:
        raise PromotionError(
            f"{place.store.locate(place.key(name))}: {exc}",
            hint="rename or remove it: no installer can use it",
        ) from exc
    with downloaded(place, name, count) as wheel:
        metadata = wheelset.read_metadata(wheel.path)
    entry = Entry(
        filename=name,
        project=project,
        version=version,
        size=wheel.size,
        sha256=wheel.sha256,
        metadata_sha256=hashlib.sha256(metadata).hexdigest(),
        uploaded=wheel.modified,
        requires_python=wheelset.requires_python(metadata, name=name),
    )
    return entry, metadata


def _check_nothing_lost(place: Place, names: list[str], wheels: frozenset[str]) -> None:
    """Every file on a page of another tool must be one that is taken over."""
    for name in names:
        if not name.endswith("/index.html") or name.startswith("_"):
            continue
        data, _ = place.store.read(place.key(name))
        for link in links(data):
            if link.filename not in wheels:
                raise PromotionError(
                    f"{place.store.locate(place.key(name))}: lists {link.filename}, which is not "
                    "here",
                    hint="copy the file here first, or take it off that page",
                )
