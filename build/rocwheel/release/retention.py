"""`prune` removes what the channel's retention does not keep, and leftovers.

Never pruned: a pinned set, the newest sets of a JAX version, a file that another set holds (rolled
back ones included), adopted files. One entry of the log releases the sets and marks the names that
no set holds as spent, for ever; the pages show it; only then are bytes deleted.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Any

from rocwheel.base.errors import ConfigError
from rocwheel.base.values import replace
from rocwheel.base.versions import moment
from rocwheel.records.entry import version_of
from rocwheel.records.places import FILES, Place
from rocwheel.release import operations
from rocwheel.release.index import publish
from rocwheel.release.index.channels import Channel, Retention
from rocwheel.release.ledger import log
from rocwheel.release.ledger.state import (
    Action,
    IndexState,
    Known,
    Standing,
    Transition,
    is_foreign,
)
from rocwheel.release.operations import Operation, Who

LEFTOVER_AGE = timedelta(days=1)  # of scratch files, and of files that no set holds


@dataclass(frozen=True, kw_only=True)
class Spend(Operation):
    """The operation that marks files that no set holds, so that they may be deleted."""

    paths: tuple[str, ...]

    def decide(self, state: IndexState) -> Transition | None:
        free = self.free(state)
        return self.entry(state, Action.SPEND, names=free) if free else None

    def free(self, state: IndexState) -> tuple[str, ...]:
        """Return those that no set holds now and that are not spent yet."""
        listings = {path: state.listing(version_of(path)[0]) for path in self.paths}
        return tuple(
            path
            for path, listing in listings.items()
            if not listing.file(path) and path not in listing.spent.get(path.rpartition("/")[2], ())
        )


@dataclass(frozen=True, kw_only=True)
class Prune(Operation):
    keep: Retention
    spend: Spend
    left: tuple[str, ...]  # keys below names that were spent before

    def expired(self, state: IndexState) -> tuple[tuple[Known, str], ...]:
        kept, gone = {*self.keep.pinned}, list[tuple[Known, str]]()
        days = self.keep.staging_days
        if not self.place.is_staging:
            days, kept = self.keep.release_days, kept | _newest(state, self.keep.keep_newest)
        for known in state.sets.values():
            # A set counts from what was last done to it: what was restored yesterday is young.
            age = self.who.now - moment(known.time)
            old = days is not None and age >= timedelta(days=days)
            is_kept = known.id in kept or is_foreign(known.id)
            if old and not is_kept and known.standing is not Standing.PRUNED:
                why = f"{known.id[:12]}: {age.days} days old, {days} are kept"
                gone.append((known, why))
        return tuple(gone)

    def decide(self, state: IndexState) -> Transition | None:
        sets = [known.id for known, _ in self.expired(state)]
        return self.entry(state, Action.PRUNE, sets=sets) if sets else None

    def projects(self, state: IndexState) -> set[str]:
        return {project for known, _ in self.expired(state) for project in known.projects}

    def leaving(self, state: IndexState) -> dict[str, list[str]]:
        """Return the files that go, by the set they go with: no staying set holds them."""
        gone: dict[str, list[str]] = {known.id: [] for known, _ in self.expired(state)}
        for project in self.projects(state):
            for file in state.listing(project).files:
                if all(item in gone for item in file.sets):
                    gone[file.sets[0]].append(file.entry.path)
        return gone

    def file_lines(self, after: IndexState) -> list[str]:  # noqa: ARG002
        place, leaving, keys = self.place, self.leaving(self.start), list[tuple[str, str]]()
        for known, why in self.expired(self.start):
            keys += [(place.key(name), why) for name in leaving[known.id]]
        keys += [(place.key(name), "no set holds it") for name in self.spend.free(self.start)]
        keys += [(key, "spent before") for key in self.left]
        return [f"prune    {place.store.locate(key)} ({why})" for key, why in keys]

    def to_json(self, *, dry_run: bool, leftovers: Sequence[str] = ()) -> dict[str, Any]:
        """Return the plan as a document; `leftovers` is what `apply` returned."""
        done, leaving = "planned" if dry_run else "pruned", self.leaving(self.start)
        return {
            "state": "nothing-to-do" if self.is_done else done,
            "place": self.place.location,
            "sets": [
                {"set": known.id, "why": why, "files": leaving[known.id]}
                for known, why in self.expired(self.start)
            ],
            "orphans": self.spend.free(self.start),
            "leftovers": leftovers,
        }


def plan(place: Place, channel: Channel, *, who: Who, orphans: bool = False) -> Prune:
    """Plan on the whole log, since no snapshot is believed for what deletes."""
    paths = _unheld(place, who) if orphans else ()
    about: Any = {"place": place, "who": who, "start": operations.read(place, afresh=True)}
    left = _respent(place, about["start"])
    spend, keep = Spend(paths=paths, **about), channel.retention
    prune = Prune(keep=keep, spend=spend, left=left, **about)
    removes = prune.expired(prune.start) or spend.free(prune.start) or left
    return replace(prune, is_done=not removes)


def plans(
    pairs: Iterable[tuple[Place, Place]], channel: Channel, *, who: Who, orphans: bool
) -> Iterator[Prune]:
    """Plan for staging and release of each pair; each plan looks at its place when it is due."""
    places = {place.root: place for place in chain.from_iterable(pairs)}
    for place in places.values():  # each once: families share one
        planned = plan(place, channel, who=who, orphans=orphans)
        clocks = (place.state, place.log(planned.start.number))
        operations.check_clock(place.store, clocks, now=who.clock, where=place.location)
        yield planned


def apply(prune: Prune) -> tuple[str, ...]:
    """Prune a place; return the names of leftovers of killed runs that were removed as well."""
    place, old = prune.place, prune.who.now - LEFTOVER_AGE
    if prune.is_done:  # a snapshot that is the log's may say then that the pages show it all
        snapshot = log.read(place, files=True)
        if not log.differ(place, snapshot, prune.start):
            operations.complete(place, snapshot)
            return tuple(place.store.sweep(old))
    leaving = prune.projects(prune.start) | {version_of(path)[0] for path in prune.spend.paths}
    # before they are stored with another header
    kept = publish.page_seconds([*map(place.of, prune.start.views)], leaving)
    state = operations.perform(prune)
    if prune.spend.paths:
        state = operations.perform(replace(prune.spend, start=state))
    sweep(place, operations.complete(place, state), seconds=kept)
    return tuple(place.store.sweep(old))


def sweep(place: Place, state: IndexState, *, seconds: int = 0) -> tuple[str, ...]:
    """Delete objects under spent names, once copies of pages that show one are `seconds` old."""
    state = log.load(place, state)
    keys = _respent(place, state)
    if keys:
        pages = {version_of(key.rpartition("/")[2].removesuffix(".metadata"))[0] for key in keys}
        indexes = [*map(place.of, state.views)]
        time.sleep(max(seconds, publish.page_seconds(indexes, pages)))
    place.each(place.store.delete, keys)
    return keys


def _respent(place: Place, state: IndexState) -> tuple[str, ...]:
    """List the keys below spent names under which something is stored, whenever it came."""
    if not state.spent:
        return ()
    there = {info.key for info in place.store.keys(place.key(""))}
    names = (name for path in state.spent_paths() for name in (path, f"{path}.metadata"))
    return tuple(key for key in map(place.key, names) if key in there)


def _unheld(place: Place, who: Who) -> tuple[str, ...]:
    """Return the paths of old wheels; whether a set holds them is decided on the state."""
    base = place.key("")
    wheels = []
    for info in place.store.keys(place.key(f"{FILES}/")):
        path = info.key.removeprefix(base).removesuffix(".metadata")
        if not path.endswith(".whl") or who.now - info.modified < LEFTOVER_AGE:
            continue
        try:
            version_of(path)
        except ConfigError:
            continue  # `index check` reports it
        wheels.append(path)
    return tuple(dict.fromkeys(wheels))


def _newest(state: IndexState, count: int) -> set[str]:
    """Return the newest listed sets of each JAX version and index, by their first release."""
    by_jax: dict[tuple[str, str], list[Known]] = {}
    for view in state.views:
        sets = sorted(state.of(view).sets.values(), key=lambda item: item.first, reverse=True)
        for known in (item for item in sets if item.standing is Standing.LISTED):
            by_jax.setdefault((view, known.jax), []).append(known)
    return {known.id for sets in by_jax.values() for known in sets[:count]}
