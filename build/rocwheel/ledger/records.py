"""What is kept beside the wheels: manifests, intents, releases (verdicts: `ledger.verdicts`).

Nothing here is ever changed or deleted. Each change to an index is an operation on one set (a
manifest, or the files that were here before us): its *intent* is written before anything else and
says which files, its *record* is written last. An intent without a record is an operation that was
cut short. The index can be made again from these alone (`History.live`).
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rocwheel.errors import (
    ObjectDiffersError,
    ObjectMissingError,
    StoreError,
)
from rocwheel.index.page import Entry
from rocwheel.manifest import Manifest
from rocwheel.model import is_sha256
from rocwheel.store import each
from rocwheel.values import canonical_json, replace, validated

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rocwheel.places import Place
    from rocwheel.store import Store

SCHEMA: Final = 1


class Action(enum.Enum):
    """What an operation does to the files of a set."""

    STAGE = "stage"
    PROMOTE = "promote"
    YANK = "yank"
    UNYANK = "unyank"
    ROLLBACK = "rollback"
    RESTORE = "restore"
    PRUNE = "prune"
    ADOPT = "adopt"

    @property
    def adds(self) -> bool:
        """Whether its files are in the index afterwards, that may not have been before."""
        return self in {Action.STAGE, Action.PROMOTE, Action.RESTORE, Action.ADOPT}

    @property
    def removes(self) -> bool:
        return self in {Action.ROLLBACK, Action.PRUNE}


@dataclass(frozen=True, kw_only=True)
class Intent:
    """What an operation is going to do."""

    set_id: str  # a manifest's SHA-256, or `places.ADOPTED`
    number: int  # operations on a set count from 1
    action: Action
    family: str
    time: str  # ISO 8601, UTC; also the upload time of the files it adds
    by: str
    reason: str
    entries: tuple[Entry, ...]
    rocm: str = ""
    jax: str = ""
    pythons: tuple[str, ...] = ()
    schema: int = field(default=SCHEMA)

    def to_bytes(self) -> bytes:
        document = dataclasses.asdict(self)
        entries = [{**item.to_json(), "project": item.project} for item in self.entries]
        return canonical_json({**document, "action": self.action.value, "entries": entries})

    @classmethod
    def from_bytes(cls, data: bytes, *, name: str) -> Intent:
        """Parse and validate. Raises ConfigError."""
        document = validated(data, schema="intent", name=name)
        entries = (Entry.from_json(item["project"], item) for item in document["entries"])
        return cls(
            **{
                **document,
                "action": Action(document["action"]),
                "pythons": tuple(document["pythons"]),
                "entries": tuple(entries),
            }
        )


@dataclass(frozen=True, kw_only=True)
class Record:
    """How an operation ended; for a promotion also what allowed it."""

    set_id: str
    number: int
    action: Action
    done: bool  # False: abandoned, a rollback undid it before it was complete
    time: str
    by: str
    reason: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    schema: int = field(default=SCHEMA)

    def to_bytes(self) -> bytes:
        return canonical_json({**dataclasses.asdict(self), "action": self.action.value})

    @classmethod
    def from_bytes(cls, data: bytes, *, name: str) -> Record:
        """Parse and validate. Raises ConfigError."""
        document = validated(data, schema="record", name=name)
        return cls(**{**document, "action": Action(document["action"])})


@dataclass(frozen=True, kw_only=True)
class History:
    """All operations on one set at one place, in order."""

    set_id: str
    intents: tuple[Intent, ...] = ()
    records: tuple[Record, ...] = ()

    @property
    def open(self) -> Intent | None:
        """The operation that was cut short, or is under way."""
        closed = {item.number for item in self.records}
        return next((item for item in self.intents if item.number not in closed), None)

    @property
    def next_number(self) -> int:
        return len(self.intents) + 1

    @property
    def last(self) -> Action | None:
        """The last completed operation that added or removed files."""
        done = [intent.action for intent, _ in self._done()]
        return next((item for item in reversed(done) if item.adds or item.removes), None)

    def record(self, action: Action) -> Record | None:
        """The newest record of a completed operation of this kind."""
        found = [record for intent, record in self._done() if intent.action is action]
        return found[-1] if found else None

    @property
    def live(self) -> dict[str, Entry]:
        """The files completed operations left in the index, by name."""
        files: dict[str, Entry] = {}
        for intent, _ in self._done():
            for entry in intent.entries:
                if intent.action.adds:
                    files[entry.filename] = entry
                elif intent.action.removes:
                    files.pop(entry.filename, None)
                elif entry.filename in files:
                    reason = intent.reason if intent.action is Action.YANK else None
                    files[entry.filename] = replace(entry, yanked=reason)
        return files

    @property
    def gone(self) -> dict[str, Entry]:
        """Files that once were in the index and are not now; their names stay taken."""
        known = {entry.filename: entry for intent in self.intents for entry in intent.entries}
        return {name: entry for name, entry in known.items() if name not in self.live}

    def _done(self) -> list[tuple[Intent, Record]]:
        records = {item.number: item for item in self.records}
        pairs = ((item, records.get(item.number)) for item in self.intents)
        return [(intent, record) for intent, record in pairs if record and record.done]


def put_manifest(place: Place, manifest: Manifest) -> None:
    place.store.create(
        place.manifest(manifest.sha256),
        manifest.to_bytes(),
        headers=place.record_headers,
        sha256=manifest.sha256,
    )


def find_manifest(place: Place, sha256: str) -> Manifest | None:
    """The manifest with this SHA-256. Raises StoreError when what is stored is something else."""
    key = place.manifest(sha256)
    try:
        data, _ = place.store.read(key)
    except ObjectMissingError:
        return None
    if hashlib.sha256(data).hexdigest() != sha256:
        raise StoreError(
            f"{place.store.locate(key)}: its SHA-256 is another", hint="the store was tampered with"
        )
    return Manifest.from_bytes(data, name=place.store.locate(key))


def manifests(place: Place, prefix: str = "") -> list[str]:
    """SHA-256 of the stored manifests, those that start with `prefix`."""
    start = place.manifest("").removesuffix(".json")
    keys = (item.key for item in place.store.keys(start + prefix))
    names = (key.removeprefix(start).removesuffix(".json") for key in keys)
    return [name for name in names if is_sha256(name)]


def put_intent(place: Place, intent: Intent) -> bool:
    """Write an intent; False when this number is taken by another one."""
    return _put(place, f"{place.intents(intent.set_id)}{intent.number}.json", intent.to_bytes())


def put_record(place: Place, record: Record) -> bool:
    """Write a record; False when this number is taken by another one."""
    return _put(place, f"{place.releases(record.set_id)}{record.number}.json", record.to_bytes())


def history(place: Place, set_id: str) -> History:
    """All operations on one set. Raises ConfigError for a record that cannot be read."""
    found = _histories(place, place.intents(set_id), place.releases(set_id))
    return found.get(set_id, History(set_id=set_id))


def histories(place: Place) -> dict[str, History]:
    """All operations at a place, by set."""
    return _histories(place, place.intents(), place.releases())


def projects(histories: Mapping[str, History]) -> list[str]:
    """Every project that some operation named, in order."""
    intents = (intent for history in histories.values() for intent in history.intents)
    return sorted({entry.project for intent in intents for entry in intent.entries})


def _put(place: Place, key: str, body: bytes) -> bool:
    try:
        place.store.create(key, body, headers=place.record_headers)
    except ObjectDiffersError:
        return False
    return True


def _histories(place: Place, intents_prefix: str, releases_prefix: str) -> dict[str, History]:
    store = place.store

    def read_intent(key: str) -> Intent:
        return Intent.from_bytes(store.read(key)[0], name=store.locate(key))

    def read_record(key: str) -> Record:
        return Record.from_bytes(store.read(key)[0], name=store.locate(key))

    # Records first: one written meanwhile then has its intent in the later listing.
    records = each(read_record, _numbered(store, releases_prefix), threads=store.connections)
    intents = each(read_intent, _numbered(store, intents_prefix), threads=store.connections)
    return {
        set_id: History(set_id=set_id, intents=_of(intents, set_id), records=_of(records, set_id))
        for set_id in sorted({item.set_id for item in intents})
    }


def _of(items: Iterable[Any], set_id: str) -> tuple[Any, ...]:
    chosen = (item for item in items if item.set_id == set_id)
    return tuple(sorted(chosen, key=lambda item: item.number))


def _numbered(store: Store, prefix: str) -> list[str]:
    return [item.key for item in store.keys(prefix) if re.search(r"/\d+\.json\Z", item.key)]
