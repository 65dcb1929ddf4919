"""`prune`: what retention by channel no longer keeps, and what killed runs left.

Never pruned: a pinned set, the newest sets of a JAX version, a file that another set lists, a
staged set whose promotion is under way, anything no record knows. Manifests, verdicts and records
stay for ever, and the names of pruned files stay taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from rocwheel.ledger import records
from rocwheel.ledger.records import Action
from rocwheel.release import operations, withdraw
from rocwheel.release.operations import short
from rocwheel.store import each

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rocwheel.index.channels import Channel
    from rocwheel.index.page import Entry
    from rocwheel.ledger.records import History
    from rocwheel.places import Place
    from rocwheel.release.operations import Who

LEFTOVER_AGE = timedelta(days=1)  # of scratch files and unfinished uploads


@dataclass(frozen=True, kw_only=True)
class Expired:
    """One set, or what is left of one, to prune at one place."""

    place: Place
    history: History
    entries: tuple[Entry, ...]
    spared: frozenset[str]  # files that another set needs
    why: str
    undoes: bool  # it was never complete

    @property
    def leaving(self) -> tuple[Entry, ...]:
        return tuple(item for item in self.entries if item.filename not in self.spared)


@dataclass(frozen=True, kw_only=True)
class PrunePlan:
    """What `prune` is going to remove."""

    places: tuple[Place, ...]
    expired: tuple[Expired, ...]

    def lines(self) -> list[str]:
        return [
            f"prune    {item.place.store.locate(item.place.key(entry.filename))} ({item.why})"
            for item in self.expired
            for entry in item.leaving
        ]

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        done = "planned" if dry_run else "pruned"
        return {
            "state": done if self.expired else "nothing-to-do",
            "sets": [
                {
                    "set": item.history.set_id,
                    "place": item.place.location,
                    "why": item.why,
                    "files": [entry.filename for entry in item.leaving],
                }
                for item in self.expired
            ],
        }


def plan(staging: Place, release: Place, channel: Channel, *, now: datetime) -> PrunePlan:
    """Find what is expired at both places."""
    staged, released = records.histories(staging), records.histories(release)
    promoting = {item.set_id for item in released.values() if item.open}
    keep = channel.retention
    newest = _newest(released, keep.keep_newest)
    expired = (
        *_expired(
            staging, staged, days=keep.staging_days, kept={*keep.pinned, *promoting}, now=now
        ),
        *_expired(release, released, days=keep.release_days, kept={*keep.pinned, *newest}, now=now),
    )
    return PrunePlan(places=(staging, release), expired=tuple(expired))


def apply(plan: PrunePlan, *, who: Who) -> tuple[str, ...]:
    """Do it; return the names of leftovers of killed runs that were removed as well."""
    for item in plan.expired:
        history = item.history
        if item.undoes:
            withdraw.abandon(item.place, history, who=who)
            history = records.history(item.place, history.set_id)
        operation = operations.begin(item.place, history, Action.PRUNE, item.entries, who=who)
        operation.publish(
            lambda page, files: page.without(file.filename for file in files), sparing=item.spared
        )
        place = item.place
        keys = [
            key
            for entry in item.leaving
            for key in (place.key(entry.filename), place.metadata(entry.filename))
        ]
        each(place.store.delete, keys, threads=place.store.connections)
        operation.finish()
    before = who.now - LEFTOVER_AGE
    return tuple(name for place in plan.places for name in place.store.sweep(place.key(""), before))


def _expired(
    place: Place,
    histories: Mapping[str, History],
    *,
    days: int | None,
    kept: set[str],
    now: datetime,
) -> Iterator[Expired]:
    for history in histories.values():
        others = withdraw.needed_by_others(histories, history.set_id)
        if history.open and history.open.action is Action.PRUNE:
            yield Expired(
                place=place,
                history=history,
                entries=history.open.entries,
                spared=others,
                why="a prune that was cut short",
                undoes=False,
            )
            continue
        if days is None or history.set_id in kept:
            continue
        # A set counts from its last operation, so that what was restored yesterday is young.
        age = now - max(moment(item.time) for item in history.intents)
        if age < timedelta(days=days) or history.last is Action.PRUNE:
            continue
        undoes = history.open is not None
        files = history.open.entries if history.open else tuple(_files(history))
        if any(item.filename not in others for item in files) and (
            not undoes or history.last is None
        ):
            what = "never completed" if undoes else "older"
            yield Expired(
                place=place,
                history=history,
                entries=files,
                spared=others,
                why=f"{short(history.set_id)}: {what}, {age.days} days, {days} are kept",
                undoes=undoes,
            )


def _files(history: History) -> Iterator[Entry]:
    """The files a set still has in the store: those in the index, or rolled back and kept."""
    if history.last is Action.ROLLBACK:
        yield from history.gone.values()
    yield from history.live.values()


def _newest(histories: Mapping[str, History], count: int) -> set[str]:
    """The newest sets of each JAX version, by their first release; adopted files always."""
    by_jax: dict[str, list[History]] = {}
    kept = set()
    for history in histories.values():
        if not history.intents[0].jax:
            kept.add(history.set_id)
        elif history.live:
            by_jax.setdefault(history.intents[0].jax, []).append(history)
    for found in by_jax.values():
        found.sort(key=lambda item: item.intents[0].time, reverse=True)
        kept.update(item.set_id for item in found[:count])
    return kept


def moment(text: str) -> datetime:
    """A record's time."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)
