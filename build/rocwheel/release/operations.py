"""Operations on an index that survive being killed and being run twice at once.

`begin` writes the intent, or takes up one that was cut short; `finish` writes the record. In
between, everything may be repeated: what was done already is seen and not done again.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from rocwheel.errors import PromotionError
from rocwheel.index.page import Page
from rocwheel.index.publish import await_public, change_page, change_root
from rocwheel.ledger import records
from rocwheel.ledger.records import Action, Intent, Record
from rocwheel.model import WheelKind
from rocwheel.store import each
from rocwheel.values import replace
from rocwheel.wheel.metadata import WheelName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime
    from typing import Any

    from rocwheel.console import Progress
    from rocwheel.index.page import Entry
    from rocwheel.ledger.records import History
    from rocwheel.manifest import Manifest, WheelEntry
    from rocwheel.places import Place
    from rocwheel.store import Info

# pjrt first: a plugin is never listed before what it depends on.
ORDER: Final = {WheelKind.PJRT.value: 0, WheelKind.JAXLIB.value: 1, WheelKind.PLUGIN.value: 2}
PUBLIC_SECONDS: Final = 300.0


@dataclass(frozen=True, kw_only=True)
class Who:
    """Who acts, when, and why: part of every intent and record."""

    by: str
    now: datetime
    reason: str = ""

    @property
    def time(self) -> str:
        return self.now.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An operation under way: its intent is stored, its record is not, or not yet again."""

    place: Place
    intent: Intent
    resumed: bool  # an earlier run, or one beside us, began it

    def publish(
        self,
        edit: Callable[[Page, list[Entry]], Page],
        *,
        sparing: frozenset[str] = frozenset(),
    ) -> None:
        """Change every page of the intent's files: dependencies first, or last when they leave.

        Files of `sparing` are left alone. Returns when the pages, and those behind the public
        URL, show the change.
        """
        action = self.intent.action
        pages = in_order(
            action, (item for item in self.intent.entries if item.filename not in sparing)
        )
        losing = frozenset(item.filename for item in self.intent.entries if action.removes)
        new = [
            project
            for project in pages
            if change_page(
                self.place,
                project,
                partial(_edited, edit=edit, entries=pages[project]),
                losing=losing,
                adopting=action is Action.ADOPT,
            )
        ]
        if new or (self.resumed and action.adds):
            change_root(self.place, pages)
        await_public(self.place, pages, seconds=PUBLIC_SECONDS, absent=action.removes)

    def finish(self, *, evidence: Mapping[str, Any] | None = None, done: bool = True) -> None:
        """Write the record. Raises PromotionError when it ended otherwise meanwhile."""
        intent = self.intent
        record = Record(
            set_id=intent.set_id,
            number=intent.number,
            action=intent.action,
            done=done,
            time=intent.time,
            by=intent.by,
            reason=intent.reason,
            evidence=evidence or {},
        )
        if records.put_record(self.place, record):
            return
        there = {r.number: r.done for r in records.history(self.place, intent.set_id).records}
        if there[intent.number] != done:
            raise PromotionError(
                f"{self.place.location}: {intent.action.value} of {short(intent.set_id)} was "
                f"{'completed' if there[intent.number] else 'rolled back'} by another run",
                hint="look at `status`, then run the command you still want",
            )


def begin(
    place: Place,
    history: History,
    action: Action,
    entries: Iterable[Entry],
    *,
    who: Who,
    manifest: Manifest | None = None,
) -> Operation:
    """Write the intent, or take up the one that does the same to the same files.

    Files that an operation adds get the intent's time as their upload time, so that a run that
    takes over renders the same pages. Raises PromotionError when another operation is open.
    """
    chosen = tuple(sorted(entries, key=lambda item: item.filename))
    while True:
        there = history.open or _done_before(history, action)
        if there and _does(there, action, chosen):
            return Operation(place=place, intent=there, resumed=True)
        if history.open:
            raise _busy(place, history.open)
        stamped = chosen
        if action in {Action.STAGE, Action.PROMOTE}:
            stamped = tuple(replace(item, uploaded=who.time) for item in chosen)
        intent = Intent(
            set_id=history.set_id,
            number=history.next_number,
            action=action,
            family=place.family,
            time=who.time,
            by=who.by,
            reason=who.reason,
            entries=stamped,
            rocm=manifest.rocm.version if manifest else "",
            jax=manifest.jax_version if manifest else "",
            pythons=manifest.pythons if manifest else (),
        )
        if records.put_intent(place, intent):
            return Operation(place=place, intent=intent, resumed=False)
        history = records.history(place, history.set_id)  # somebody else began meanwhile


def withdraw(place: Place, entries: Iterable[Entry]) -> None:
    """Take files out of the pages, dependents first."""
    pages = by_project(entries)
    for project, files in reversed(pages.items()):
        names = frozenset(item.filename for item in files)
        change_page(place, project, partial(Page.without, filenames=names), losing=names)


def by_project(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Entries by project, projects that others depend on first."""
    pages: dict[str, list[Entry]] = {}
    for entry in sorted(entries, key=lambda item: (ORDER.get(item.kind, -1), item.project)):
        pages.setdefault(entry.project, []).append(entry)
    return pages


def in_order(action: Action, entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """Entries by project, in the order in which an action changes the pages."""
    pages = by_project(entries)
    return dict(reversed(pages.items())) if action.removes else pages


class Tally:
    """Adds up bytes from many threads for one progress bar."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._done = progress, 0
        self._lock = threading.Lock()

    def __call__(self, size: int) -> None:
        with self._lock:
            self._done += size
            self._progress.update(self._done)


def stored(place: Place, entries: Iterable[Entry]) -> dict[str, Info]:
    """What is stored at a place under the names of these versions, by file name.

    One listing per project and version: its cost does not grow with the place.
    """
    names = (WheelName.parse(entry.filename) for entry in entries)
    starts = sorted({f"{name.distribution}-{name.version_text}-" for name in names})
    found = each(
        lambda start: list(place.store.keys(place.key(start))),
        starts,
        threads=place.store.connections,
    )
    base = place.key("")
    return {info.key.removeprefix(base): info for infos in found for info in infos}


def listed(pages: Mapping[str, Page], entries: Iterable[Entry | WheelEntry]) -> bool:
    """Whether the pages, by project, list every file with its hash."""
    return all(
        (file := pages[entry.project].file(entry.filename)) and file.sha256 == entry.sha256
        for entry in entries
    )


def short(set_id: str) -> str:
    """How a set is called in messages."""
    return set_id[:12]


def _edited(page: Page, *, edit: Callable[[Page, list[Entry]], Page], entries: list[Entry]) -> Page:
    return edit(page, entries)


def _done_before(history: History, action: Action) -> Intent | None:
    """The completed operation that left things as this one would."""
    if history.last is not action or action not in {Action.STAGE, Action.PROMOTE}:
        return None
    return next(item for item in reversed(history.intents) if item.action is action)


def _does(intent: Intent, action: Action, entries: Iterable[Entry]) -> bool:
    wanted = {(item.filename, item.sha256) for item in entries}
    return intent.action is action and wanted == {
        (item.filename, item.sha256) for item in intent.entries
    }


def _busy(place: Place, there: Intent) -> PromotionError:
    undo = ", or `rollback` to undo it" if there.action is Action.PROMOTE else ""
    return PromotionError(
        f"{place.location}: {there.action.value} of {short(there.set_id)}, begun by "
        f"{there.by or 'somebody'} at {there.time}, is not complete",
        hint=f"run `{there.action.value}` again to complete it{undo}",
    )
