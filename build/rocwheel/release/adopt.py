"""`index adopt`: wheels that lay in a prefix before rocwheel, listed as they are.

They become a set of their own, `foreign`, which is kept and shown and never pruned. Yanks are taken
over from the pages that list the files. A log that was lost is made again this way, too: it then
continues above the highest number that a page shows.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from rocwheel.base import files
from rocwheel.base.choices import ALL
from rocwheel.base.errors import ConfigError, PromotionError, StoreError
from rocwheel.base.store import Counter
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import timestamp
from rocwheel.records.entry import Entry, version_of
from rocwheel.records.places import FOREIGN, Place
from rocwheel.release import operations, wheelset
from rocwheel.release.audit import downloaded
from rocwheel.release.index.page import MARK_ALL, Link, links, mark
from rocwheel.release.index.publish import claimed
from rocwheel.release.ledger import log, manifests
from rocwheel.release.ledger.state import Action, Holding, IndexState, Transition
from rocwheel.release.operations import Operation, Who


@dataclass(frozen=True, kw_only=True)
class Adopt(Operation):
    """List files as foreign; their `.metadata` files are written beside them."""

    entries: tuple[Entry, ...]
    metadata: Mapping[str, bytes]
    begins: bool = False  # pages are here and no log: even without a file there shall be one

    def wanted(self, state: IndexState) -> Collection[str]:  # noqa: ARG002
        return {entry.project for entry in self.entries}

    def decide(self, state: IndexState) -> Transition | None:
        known = {name for project in self.wanted(state) for name in state.listing(project).names}
        new = tuple(entry for entry in self.entries if entry.filename not in known)
        # Nothing says for which families these were: they are on the index of all.
        own = [ALL] if self.place.family == ALL else []
        brings = [Holding(set=FOREIGN, files=new)] if new else []
        if brings or (self.begins and not state.head):
            return self.entry(state, Action.ADOPT, brings=brings, families=own, must=own)
        return None

    def prepare(self, state: IndexState, entry: Transition | None) -> Transition | None:  # noqa: ARG002
        place, data = self.place, self.metadata
        place.each(
            lambda item: operations.put_metadata(place, item, data[item.filename]), self.entries
        )
        return entry


class Adoption(Plain, frozen=True, kw_only=True):
    """Files that came before us, as they will be listed."""

    operation: Adopt
    state: IndexState
    left: tuple[str, ...] = ()  # wheels that were withdrawn, or are of an unfinished promotion

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.operation.entries

    @property
    def is_needed(self) -> bool:
        """Whether the log gets an entry by it."""
        return self.operation.decide(self.state) is not None

    def lines(self) -> list[str]:
        place = self.operation.place
        lines = []
        for item in self.entries:
            yanked = "" if item.yanked is None else f", yanked: {item.yanked}"
            where = place.locate(item.filename)
            lines.append(f"adopt    {where} ({item.sha256}){yanked}")
        lines += [
            f"left     {place.locate(name)}: on no page: withdrawn, or of an "
            "unfinished operation, which the same again completes (`prune --orphans` removes it)"
            for name in self.left
        ]
        if self.is_needed and not self.entries:
            lines.append(f"log      {place.location}: begins anew")
        return lines

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        done = "planned" if dry_run else "adopted"
        return {
            "state": done if self.is_needed else "nothing-to-do",
            "files": [item.filename for item in self.entries],
            "left": list(self.left),
        }


def plan(place: Place, *, who: Who, count: Counter | None = None) -> Adoption:
    """Find the wheels at a place that no set holds; read every one of them.

    Raises PromotionError when a page that another tool made lists a file that is not there.
    """
    state = log.load(place, log.read(place), None)
    if state.number:
        operations.check_sound(place, state)
    if place.family == ALL and not state.number and claimed(place.of(ALL), ""):
        raise StoreError(
            f"{place.location}: the log is gone, and which family a set had passed for with it",
            hint=f"put {place.logs} back from a copy of the bucket",
        )
    base = place.key("")
    names = [info.key.removeprefix(base) for info in place.store.keys(base)]
    wheels = frozenset(name for name in names if "/" not in name and name.endswith(".whl"))
    shown, highest, has_pages = _pages(place, names, wheels)
    if highest > state.number:
        # A page follows its entry: what is not in the log now is gone, not about to come.
        state = log.load(place, log.read(place), None)
    is_new = has_pages and not state.number
    if not state.number:
        state = replace(state, number=highest, saved=highest)
    known = {name for project in state.projects for name in state.listing(project).names}
    # An operation that puts such a set goes on, or was stopped: half of a set is not listed.
    half = {w.filename for one in manifests.of_no_set(place, state.sets) for w in one.wheels}
    left = half & wheels - known - shown.keys()
    if highest and is_new:  # pages of ours show all that was listed: the rest was withdrawn
        left |= wheels - known - shown.keys()
    foreign = place.each(
        lambda name: _foreign(place, name, shown.get(name), count), sorted(wheels - known - left)
    )
    operation = Adopt(
        place=place,
        who=who,
        entries=tuple(entry for entry, _ in foreign),
        metadata={entry.filename: data for entry, data in foreign},
        begins=is_new,
    )
    return Adoption(operation=operation, state=state, left=tuple(sorted(left)))


def _foreign(
    place: Place, name: str, shown: Link | None, count: Counter | None
) -> tuple[Entry, bytes]:
    try:
        project, version = version_of(name)
    except ConfigError as exc:
        raise PromotionError(
            f"{place.locate(name)}: {exc}", hint="rename or remove it: no installer can use it"
        ) from exc
    with downloaded(place, name, count) as (path, info):
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
    )
    return entry, metadata


def _pages(
    place: Place, names: list[str], wheels: frozenset[str]
) -> tuple[dict[str, Link], int, bool]:
    """Read what pages that are here show of each file, and the highest number on one.

    Every file they list must be one that is taken over, but for the lines of the log of `all`; at
    last, whether there is a page that shows more than those.
    """
    shown, numbers = dict[str, Link](), [0]
    for name in names:
        if name != "index.html" and (not name.endswith("/index.html") or name.startswith("_")):
            continue
        data, _ = place.store.read(place.key(name))
        numbers.append(-1 if (number := mark(data)) is None else number)
        is_shared = mark(data, MARK_ALL) is not None
        for link in links(data):
            if is_shared and link.url.startswith("../../"):
                continue
            if link.filename not in wheels:
                raise PromotionError(
                    f"{place.locate(name)}: lists {link.filename}, which is not here",
                    hint="copy the file here first, or take it off that page",
                )
            shown[link.filename] = link
    return shown, max(numbers), any(numbers)
