"""`index adopt`: wheels that lay in a family's folder before rocwheel, listed as they are.

They become a set of their own, which is kept and shown and never pruned, and stay where they are.
Yanks are taken over from the pages that list them. It begins an index: one that has a set already
takes nothing over, and a log that was lost comes back from a copy of the bucket.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from rocwheel.base import files
from rocwheel.base.errors import ConfigError, PromotionError, StoreError
from rocwheel.base.store import Counter
from rocwheel.base.values import Plain
from rocwheel.base.versions import timestamp
from rocwheel.records.entry import Entry, version_of
from rocwheel.records.places import FOREIGN, Place
from rocwheel.release import operations, wheelset
from rocwheel.release.audit import downloaded
from rocwheel.release.index.page import Link, links, mark
from rocwheel.release.ledger import log
from rocwheel.release.ledger.state import Action, Holding, IndexState, Transition
from rocwheel.release.operations import Operation, Who


@dataclass(frozen=True, kw_only=True)
class Adopt(Operation):
    """List files as foreign; their `.metadata` files are written beside them."""

    entries: tuple[Entry, ...]
    metadata: Mapping[str, bytes]

    def wanted(self, state: IndexState) -> Collection[str]:  # noqa: ARG002
        return {entry.project for entry in self.entries}

    def decide(self, state: IndexState) -> Transition | None:
        family = self.place.family
        if not self.entries or family in state.views:
            return None
        brings = [Holding(set=f"{FOREIGN}-{family}", files=self.entries)]
        return self.entry(state, Action.ADOPT, brings=brings, families=[family])

    def prepare(self, state: IndexState, entry: Transition | None) -> Transition | None:  # noqa: ARG002
        place, data = self.place, self.metadata
        place.each(
            lambda item: operations.put_metadata(place, item, data[item.filename]), self.entries
        )
        return entry


class Adoption(Plain, frozen=True, kw_only=True):
    """Files from before rocwheel, as they will be listed."""

    operation: Adopt
    state: IndexState

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.operation.entries

    @property
    def is_needed(self) -> bool:
        """Return whether the log needs an entry for it."""
        return self.operation.decide(self.state) is not None

    def lines(self) -> list[str]:
        place = self.operation.place
        lines = operations.carried_lines(place, self.state) if self.entries else []
        for item in self.entries:
            yanked = "" if item.yanked is None else f", yanked: {item.yanked}"
            lines.append(f"adopt    {place.locate(item.path)} ({item.sha256}){yanked}")
        return lines

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        done = "planned" if dry_run else "adopted"
        return {
            "state": done if self.is_needed else "nothing-to-do",
            "files": [item.filename for item in self.entries],
        }


def plan(place: Place, *, who: Who, count: Counter | None = None) -> Adoption:
    """Find the wheels in a family's folder, where its index has no set; read every one of them.

    Raises PromotionError when a page that another tool made lists a file that is not there,
    StoreError where the log was lost.
    """
    state = log.load(place, log.read(place), None)
    operations.check_sound(place, state)
    base = f"{place.index}/"
    names = [info.key.removeprefix(base) for info in place.store.keys(base)]
    wheels = sorted(name for name in names if "/" not in name and name.endswith(".whl"))
    if place.family in state.views:
        wheels, names = [], []
    shown = _pages(place, names, frozenset(wheels))
    foreign = place.each(lambda name: _foreign(place, name, shown.get(name), count), wheels)
    operation = Adopt(
        place=place,
        who=who,
        entries=tuple(entry for entry, _ in foreign),
        metadata={entry.filename: data for entry, data in foreign},
    )
    return Adoption(operation=operation, state=state)


def _foreign(
    place: Place, name: str, shown: Link | None, count: Counter | None
) -> tuple[Entry, bytes]:
    try:
        project, version = version_of(name)
    except ConfigError as exc:
        raise PromotionError(
            f"{place.store.locate(place.index)}/{name}: {exc}",
            hint="rename or remove it: no installer can use it",
        ) from exc
    with downloaded(place, f"{place.family}/{name}", count) as (path, info):
        metadata = wheelset.read_metadata(path)
    entry = Entry(
        filename=name,
        project=project,
        version=version,
        size=info.size,
        sha256=info.sha256,
        metadata_sha256=files.sha256(metadata),
        uploaded=timestamp(info.modified),
        requires_python=wheelset.requires_python(metadata, name=name),
        yanked=shown.yanked if shown else None,
        folder=place.family,
    )
    return entry, metadata


def _pages(place: Place, names: list[str], wheels: frozenset[str]) -> dict[str, Link]:
    """Read what pages that are here show of each file, which must be one that is taken over."""
    shown = dict[str, Link]()
    for name in names:
        if name != "index.html" and (not name.endswith("/index.html") or name.startswith("_")):
            continue
        where = f"{place.index}/{name}"
        data, _ = place.store.read(where)
        if mark(data):
            raise StoreError(
                f"{place.store.locate(where)}: shows an entry of a log that is gone",
                hint=f"put {place.logs} back from a copy of the bucket",
            )
        for link in links(data):
            if link.filename not in wheels:
                raise PromotionError(
                    f"{place.store.locate(where)}: lists {link.filename}, which is not here",
                    hint="copy the file here first, or take it off that page",
                )
            shown[link.filename] = link
    return shown
