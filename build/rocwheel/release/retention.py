"""`prune`: what retention by channel no longer keeps, what killed runs left, and `index repair`.

Never pruned: a pinned set, the newest sets of a JAX version, a file that another set holds (rolled
back ones included), adopted files. One entry of the log lets go of the sets and marks the names
that no set holds as spent, for ever; the pages show it; only then are bytes deleted.
"""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain
from typing import Any

from rocwheel.base.choices import ALL
from rocwheel.base.errors import ConfigError, StoreError
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import moment
from rocwheel.records.entry import version_of
from rocwheel.records.places import FOREIGN, Place
from rocwheel.release import operations
from rocwheel.release.index import publish
from rocwheel.release.index.channels import Channel, Retention
from rocwheel.release.ledger import log, manifests
from rocwheel.release.ledger.state import (
    Action,
    IndexState,
    Known,
    Listing,
    Standing,
    Transition,
    in_order,
)
from rocwheel.release.operations import Operation, Who

LEFTOVER_AGE = timedelta(days=1)  # of scratch files, and of files that no set holds


@dataclass(frozen=True, kw_only=True)
class Prune(Operation):
    """The operation that lets go of the sets that retention no longer keeps."""

    keep: Retention
    reads_all: bool = True

    def wanted(self, state: IndexState) -> Collection[str]:
        return {project for known, _ in self.expired(state) for project in known.projects}

    def expired(self, state: IndexState) -> tuple[tuple[Known, str], ...]:
        """Return the sets that go, and why."""
        kept, gone = {*self.keep.pinned, FOREIGN}, []
        days = self.keep.staging_days
        if not self.place.is_staging:
            days, kept = self.keep.release_days, kept | _newest(state, self.keep.keep_newest)
        for known in state.sets.values():
            # A set counts from what was last done to it: what was restored yesterday is young.
            age = self.who.now - moment(known.time)
            old = days is not None and age >= timedelta(days=days)
            if old and known.id not in kept and known.standing is not Standing.PRUNED:
                why = f"{known.id[:12]}: {age.days} days old, {days} are kept"
                gone.append((known, why))
        return tuple(gone)

    def decide(self, state: IndexState) -> Transition | None:
        sets = [known.id for known, _ in self.expired(state)]
        return self.entry(state, Action.PRUNE, sets=sets) if sets else None

    def leaving(self, state: IndexState) -> dict[str, list[str]]:
        """Return the files that go, by the set they go with: no staying set holds them."""
        gone: dict[str, list[str]] = {known.id: [] for known, _ in self.expired(state)}
        for project in self.wanted(state):
            for file in state.listing(project).files:
                if all(item in gone for item in file.sets):
                    gone[file.sets[0]].append(file.entry.filename)
        return gone


@dataclass(frozen=True, kw_only=True)
class Spend(Operation):
    """The operation that marks names of files that no set holds, so that they may be deleted."""

    filenames: tuple[str, ...]
    reads_all: bool = True

    def wanted(self, state: IndexState) -> Collection[str]:  # noqa: ARG002
        return {version_of(name)[0] for name in self.filenames}

    def decide(self, state: IndexState) -> Transition | None:
        free = self.free(state)
        return self.entry(state, Action.SPEND, names=free) if free else None

    def free(self, state: IndexState) -> tuple[str, ...]:
        """Return those that no set holds now and that are not spent yet."""
        held = {name for project in self.wanted(state) for name in state.listing(project).names}
        return tuple(name for name in self.filenames if name not in held)


class PrunePlan(Plain, frozen=True, kw_only=True):
    operation: Prune
    spend: Spend
    state: IndexState
    left: tuple[str, ...]  # keys below names that were spent before

    def lines(self) -> list[str]:
        place = self.operation.place
        leaving = self.operation.leaving(self.state)
        keys = []
        for known, why in self.operation.expired(self.state):
            keys += [(place.key(name), why) for name in leaving[known.id]]
        keys += [(place.key(name), "no set holds it") for name in self.spend.free(self.state)]
        keys += [(key, "spent before") for key in self.left]
        return [f"prune    {place.store.locate(key)} ({why})" for key, why in keys]

    def to_json(self, *, dry_run: bool, leftovers: Sequence[str] = ()) -> dict[str, Any]:
        """Return the plan as a document; `leftovers` is what `apply` returned."""
        done = "planned" if dry_run else "pruned"
        sets, leaving = self.operation.expired(self.state), self.operation.leaving(self.state)
        orphans = self.spend.free(self.state)
        return {
            "state": done if sets or orphans or self.left else "nothing-to-do",
            "place": self.operation.place.location,
            "sets": [
                {"set": known.id, "why": why, "files": leaving[known.id]} for known, why in sets
            ],
            "orphans": orphans,
            "leftovers": leftovers,
        }


def plan(place: Place, channel: Channel, *, who: Who, orphans: bool = False) -> PrunePlan:
    """Find what is expired at a place; with `orphans` also old wheels that no set holds."""
    operation = Prune(place=place, who=who, keep=channel.retention)
    spend = Spend(place=place, who=who, filenames=_unheld(place, who) if orphans else ())
    state = operations.read(operation)
    left = state.projects if state.spent else ()
    state = log.load(place, state, {*left, *spend.wanted(state)})
    return PrunePlan(operation=operation, spend=spend, state=state, left=_respent(place, state))


def plans(
    pairs: Iterable[tuple[Place, Place]], channel: Channel, *, who: Who, orphans: bool
) -> Iterator[PrunePlan]:
    """Plan for staging and release of each pair; each plan looks at its place when it is due."""
    places = {place.root: place.of(place.family) for place in chain.from_iterable(pairs)}
    for place in places.values():  # each once: several families may share one
        planned = plan(place, channel, who=who, orphans=orphans)
        told = (place.state, place.log(planned.state.number))
        operations.check_clock(place.store, told, now=who.clock, where=place.location)
        yield planned


def apply(plan: PrunePlan, *, who: Who) -> tuple[str, ...]:
    """Prune a place; return the names of leftovers of killed runs that were removed as well."""
    place = plan.operation.place
    leaving = {*plan.operation.wanted(plan.state), *plan.spend.wanted(plan.state)}
    kept = publish.page_seconds(
        operations.indexes(place, plan.state), leaving
    )  # before they are stored with another header
    state = operations.perform(plan.operation, plan.state)
    if plan.spend.filenames:
        state = operations.perform(plan.spend, state)
    sweep(place, operations.complete(place, state), seconds=kept)
    log.drop_listings(place, LEFTOVER_AGE)
    return tuple(place.store.sweep(who.now - LEFTOVER_AGE))


def sweep(place: Place, state: IndexState, *, seconds: int = 0) -> tuple[str, ...]:
    """Delete what spent names hold, once copies of pages that show one are `seconds` old."""
    state = log.load(place, state, None)
    keys = _respent(place, state)
    if keys:
        pages = {version_of(key.rpartition("/")[2].removesuffix(".metadata"))[0] for key in keys}
        indexes = operations.indexes(place, state)
        time.sleep(max(seconds, publish.page_seconds(indexes, pages)))
    place.each(place.store.delete, keys)
    return keys


def _respent(place: Place, state: IndexState) -> tuple[str, ...]:
    """List the keys below spent names under which something is stored, whenever it came."""
    if not state.spent:
        return ()
    there = {info.key for info in place.store.keys(place.key(""))}
    keys = (key for name in state.spent_names() for key in (place.key(name), place.metadata(name)))
    return tuple(key for key in keys if key in there)


def repair(place: Place) -> tuple[str, ...]:
    """Let every page show what the log says, and delete what it no longer names; return its keys.

    A snapshot that is not the fold of the log is none, unless the log is what is damaged. Raises
    StoreError for a damaged log of a release, and where bytes are missing that would be listed.
    """
    state = log.load(place, log.read(place), None)
    again = log.load(place, log.read(place, afresh=True), None)
    operations.check_sound(place, again, pages=again.projects)
    if not state.number:
        return ()  # a page would claim a place that no log has begun
    if not place.is_staging or log.differ(place, state, again):
        state = again  # and what is damaged or lost of the snapshot is stored again
    there = {info.key for info in place.store.keys(place.key(""))}
    for entry in [item for project in sorted(state.projects) for item in state.shown(project)]:
        if place.key(entry.filename) not in there:
            raise StoreError(
                f"{place.locate(entry.filename)}: missing, and the log lists it",
                hint="put the wheel back, or roll its set back or prune it",
            )
    state = recalled(place, state)
    projects = in_order(state.projects, removing=False)
    state = operations.repair(place, state, projects, mends=True)
    return (*sweep(place, state), *log.drop_listings(place, LEFTOVER_AGE))


def recalled(place: Place, state: IndexState) -> IndexState:
    """Return a state with the projects and families that have pages by entries that were lost."""
    lost = [*manifests.of_no_set(place, state.sets)] if state.number else []
    families = {name for one in lost for name in one.families} - {*state.views}
    projects = {wheel.project for one in lost for wheel in one.built} - state.projects
    asked = [(place.shown_as(name), "") for name in families] + [(place, name) for name in projects]
    claims = place.each(lambda pair: publish.claimed(*pair), asked)
    shown = [pair for pair, claim in zip(asked, claims, strict=True) if claim and claim.number > 0]
    empty = {name: Listing(project=name) for _, name in shown if name}
    strays = frozenset(index.view for index, name in shown if not name)
    return replace(state, listings={**state.listings, **empty}, strays=strays)


def _unheld(place: Place, who: Who) -> tuple[str, ...]:
    """Return old wheels in the store; whether a set holds them is decided on the state."""
    base = place.key("")
    wheels = []
    for info in place.store.keys(base):
        name = info.key.removeprefix(base).removesuffix(".metadata")
        if "/" in name or not name.endswith(".whl") or who.now - info.modified < LEFTOVER_AGE:
            continue
        try:
            version_of(name)
        except ConfigError:
            continue  # `index check` tells of it
        wheels.append(name)
    return tuple(dict.fromkeys(wheels))


def _newest(state: IndexState, count: int) -> set[str]:
    """Return the newest listed sets of each JAX version and index, by their first release."""
    if families := {name for known in state.sets.values() for name in known.families}:
        return {item for name in (ALL, *families) for item in _newest(state.of(name), count)}
    by_jax: dict[str, list[Known]] = {}
    for known in sorted(state.sets.values(), key=lambda item: item.first, reverse=True):
        if known.standing is Standing.LISTED:
            by_jax.setdefault(known.jax, []).append(known)
    return {known.id for sets in by_jax.values() for known in sets[:count]}
