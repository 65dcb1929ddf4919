"""`index migrate`: taking over a store that versions before the log wrote, once.

Those kept an *intent* and a *record* per operation, in a folder per set. What their completed
operations left becomes the first entry of the log; an operation that was cut short never happened.
Before that, an intent that those versions cannot read is put beside theirs: they then refuse
whatever reads all of a place, or one of its sets, and the pages of the log stop the rest.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rocwheel.console import count
from rocwheel.entry import Entry
from rocwheel.errors import ConfigError, StoreError
from rocwheel.ledger import log
from rocwheel.ledger.state import Action, Holding, IndexState, Standing, Transition
from rocwheel.parallel import each
from rocwheel.places import FOREIGN, Place
from rocwheel.release import operations
from rocwheel.release.operations import Operation, Who

# Earlier versions know schema 1 only, and read every intent of a place or a set before they write.
STOP: Final = b'{"moved": "this place has a log now: use a newer rocwheel", "schema": 2}\n'
ADOPTED: Final = "adopted"  # what those versions called `foreign`
ADDS: Final = frozenset({"stage", "promote", "restore", "adopt"})
REMOVES: Final = frozenset({"rollback", "prune"})


@dataclass(frozen=True, kw_only=True)
class Migrate(Operation):
    """The first entry of a log: what was before it."""

    brings: tuple[Holding, ...]
    spent: tuple[str, ...]

    def wanted(self, state: IndexState) -> Collection[str]:  # noqa: ARG002
        return ()

    def decide(self, state: IndexState) -> Transition | None:
        if state.number:
            return None
        return self.entry(state, Action.MIGRATE, names=self.spent, brings=self.brings)


@dataclass(frozen=True, kw_only=True)
class Migration:
    """What the old records say."""

    operation: Migrate
    stops: tuple[str, ...]  # keys that stop earlier versions
    unfinished: tuple[str, ...]  # operations that were cut short: they count as never begun

    @property
    def is_needed(self) -> bool:
        return bool(self.stops)

    def lines(self) -> list[str]:
        place = self.operation.place
        sets = [
            f"set      {item.set[:12]}: {item.standing.value}, {count(len(item.files), 'file')}"
            for item in self.operation.brings
        ]
        lines = [f"stop     {place.store.locate(key)}" for key in self.stops]
        return [*lines, *sets, *(f"dropped  {text}" for text in self.unfinished)]

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        done = "planned" if dry_run else "migrated"
        return {
            "state": done if self.is_needed else "nothing-to-do",
            "place": self.operation.place.location,
            "sets": len(self.operation.brings),
            "spent": len(self.operation.spent),
            "unfinished": list(self.unfinished),
        }


def plan(place: Place, *, who: Who) -> Migration:
    """Read the old records; nothing is needed where there are none, or a log already.

    Raises ConfigError for a record that cannot be read.
    """
    histories = {} if next(iter(place.store.keys(place.logs)), None) else _read(place)
    brings, spent, unfinished = [], set(), []
    for set_id, history in sorted(histories.items()):
        try:
            holding, gone = _holding(set_id, history)
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise ConfigError(
                f"{place.store.locate(place.before('intents', set_id))}: a record lacks what "
                f"earlier versions wrote: {exc!r}",
                hint="move it away, then run this again",
            ) from exc
        spent |= gone
        if holding:
            brings.append(holding)
        unfinished += [
            f"{item['action']} of {set_id[:12]} by {item['by']} at {item['time']}"
            for number, item in sorted(history.intents.items())
            if number not in history.records
        ]
    held = {file.filename for holding in brings for file in holding.files}
    stops = [f"{place.before('intents', '0' * 64)}1.json"] if histories else []
    stops += [
        f"{place.before('intents', set_id)}{max(history.intents, default=0) + 1}.json"
        for set_id, history in sorted(histories.items())
    ]
    operation = Migrate(
        place=place, who=who, brings=tuple(brings), spent=tuple(sorted(spent - held))
    )
    return Migration(operation=operation, stops=tuple(stops), unfinished=tuple(unfinished))


def apply(migration: Migration, *, who: Who) -> None:
    """Stop earlier versions, read again what they left, commit, make every page again."""
    place = migration.operation.place
    for key in migration.stops:
        place.store.create(key, STOP, headers=place.record_headers)
    state = operations.perform(plan(place, who=who).operation, IndexState())
    operations.repair(place, log.load(place, state, None), sorted(state.projects))


@dataclass(frozen=True, kw_only=True)
class _History:
    """All intents and records of one set, by number."""

    intents: Mapping[int, dict[str, Any]]
    records: Mapping[int, dict[str, Any]]

    def done(self) -> list[dict[str, Any]]:
        return [
            item
            for number, item in sorted(self.intents.items())
            if self.records.get(number, {}).get("done")
        ]


def _read(place: Place) -> dict[str, _History]:
    found: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
    for kind in ("intents", "releases"):
        keys = list(log.before(place, kind))
        bodies = each(
            lambda match: place.store.read(match[0])[0], keys, threads=place.store.connections
        )
        for match, body in zip(keys, bodies, strict=True):
            where = place.store.locate(match[0])
            try:
                document = json.loads(body)
                schema = document["schema"]
            except (ValueError, KeyError, TypeError) as exc:
                raise ConfigError(
                    f"{where}: not a record", hint="move it away, then run this again"
                ) from exc
            if schema == 1:
                kinds = found.setdefault(match[1], {"intents": {}, "releases": {}})
                kinds[kind][int(match[2])] = document
            elif body != STOP:
                raise StoreError(
                    f"{where}: schema {schema} is not known", hint="use the version that wrote it"
                )
    return {
        set_id: _History(intents=kinds["intents"], records=kinds["releases"])
        for set_id, kinds in found.items()
    }


def _holding(set_id: str, history: _History) -> tuple[Holding | None, set[str]]:
    """What completed operations left of a set, and the names it let go of."""
    live: dict[str, Entry] = {}
    known: dict[str, Entry] = {}
    last = ""
    done = history.done()
    for intent in done:
        action = intent["action"]
        last = action if action in ADDS | REMOVES else last
        for document in intent["entries"]:
            entry = _entry(document)
            if action in ADDS:
                live[entry.filename] = known[entry.filename] = entry
            elif action in REMOVES:
                live.pop(entry.filename, None)
            elif entry.filename in live:
                yanked = intent["reason"] if action == "yank" else None
                live[entry.filename] = msgspec.structs.replace(entry, yanked=yanked)
    files = known if last == "rollback" else live
    if not files:
        return None, set(known)
    first = done[0]
    holding = Holding(
        set=FOREIGN if set_id == ADOPTED else set_id,
        files=tuple(files[name] for name in sorted(files)),
        standing=Standing.HELD if last == "rollback" else Standing.LISTED,
        jax=first["jax"],
        rocm=first["rocm"],
        pythons=tuple(first["pythons"]),
        first=first["time"],
        changed=done[-1]["time"],
    )
    return holding, set(known) - set(files)


def _entry(document: dict[str, Any]) -> Entry:
    own, core = document["_rocwheel"], document["core-metadata"]
    return Entry(
        filename=document["filename"],
        project=document["project"],
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
