"""After a release: `yank` and `unyank` (PEP 592), `rollback` and `restore` of a whole set.

A yanked file stays installable for those who pin it; a rolled back set is out of the index, with
its bytes kept, and `restore` puts it back. Both are operations with a reason, kept in the records.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rocwheel.errors import ConfigError, ObjectMissingError, PromotionError
from rocwheel.ledger import records
from rocwheel.ledger.records import Action, Record
from rocwheel.release import operations
from rocwheel.release.operations import short
from rocwheel.store import each, replaced

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from rocwheel.index.page import Entry, Page
    from rocwheel.ledger.records import History
    from rocwheel.places import Place
    from rocwheel.release.operations import Who


DONE: Final = {
    Action.YANK: "yanked",
    Action.UNYANK: "unyanked",
    Action.ROLLBACK: "rolled-back",
    Action.RESTORE: "restored",
}


@dataclass(frozen=True, kw_only=True)
class Change:
    """One operation on files that are, or were, in the index."""

    place: Place
    action: Action
    history: History
    entries: tuple[Entry, ...]
    spared: frozenset[str] = frozenset()  # files that another set lists as well
    is_done: bool = False  # the index is as it should be already
    undoes: bool = False  # an unfinished promotion is abandoned first

    def lines(self) -> list[str]:
        """The plan for people: every file and page."""
        act, pages = self.action.value, operations.in_order(self.action, self.entries)
        lines = [
            f"{act:9}{self.place.store.locate(self.place.key(item.filename))}"
            for item in self.entries
            if item.filename not in self.spared
        ]
        return [
            *lines,
            *(f"page     {self.place.location}/{project}/" for project in pages),
        ]

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        done = "nothing-to-do" if self.is_done else DONE[self.action]
        return {
            "state": "planned" if dry_run and not self.is_done else done,
            "set": self.history.set_id,
            "family": self.place.family,
            "files": [item.filename for item in self.entries],
        }


def plan_yank(
    place: Place, *, set_id: str = "", filenames: Collection[str] = (), undo: bool = False
) -> Change:
    """Yank (or unyank) a whole set, or only the named files. Raises PromotionError, ConfigError."""
    if not set_id:
        set_id = _owner(place, filenames)
    history = records.history(place, set_id)
    live = history.live
    unknown = sorted(set(filenames) - set(live))
    if not live or unknown:
        raise PromotionError(
            f"{place.location}: {unknown[0] if unknown else short(set_id)} is not in the index",
            hint="look at `status` for what is released",
        )
    entries = [live[name] for name in sorted(filenames or live)]
    action = Action.UNYANK if undo else Action.YANK
    changed = [item for item in entries if (item.yanked is None) != undo]
    return Change(
        place=place,
        action=action,
        history=history,
        entries=tuple(changed or entries),
        is_done=not changed and history.open is None,
    )


def plan_rollback(place: Place, set_id: str) -> Change:
    """Take a set out of the index, or what an unfinished promotion put there already.

    Files that another released set shares stay. Raises PromotionError when there is nothing.
    """
    histories = records.histories(place)
    history = histories.get(set_id, records.History(set_id=set_id))
    undoes = history.open is not None and history.open.action is Action.PROMOTE
    if history.last in {Action.ROLLBACK, None} and not history.open:
        if history.last:
            return Change(
                place=place, action=Action.ROLLBACK, history=history, entries=(), is_done=True
            )
        raise PromotionError(
            f"{place.location}: {short(set_id)} was never released",
            hint="look at `status` for what is released",
        )
    entries = history.open.entries if history.open and undoes else tuple(history.live.values())
    if history.open and history.open.action is Action.ROLLBACK:
        entries = history.open.entries
    return Change(
        place=place,
        action=Action.ROLLBACK,
        history=history,
        entries=entries,
        spared=needed_by_others(histories, set_id),
        undoes=undoes,
    )


def plan_restore(place: Place, set_id: str) -> Change:
    """Put a rolled back set into the index again; its bytes must be those that were released.

    Raises PromotionError when it was not rolled back, ObjectMissingError or ObjectDiffersError
    when its wheels are not what they were.
    """
    history = records.history(place, set_id)
    if history.last is Action.RESTORE and not history.open:
        return Change(place=place, action=Action.RESTORE, history=history, entries=(), is_done=True)
    if history.last is not Action.ROLLBACK:
        raise PromotionError(
            f"{place.location}: {short(set_id)} was not rolled back",
            hint="`restore` undoes a rollback; `promote` releases a gated set",
        )
    entries = next(
        item.entries for item in reversed(history.intents) if item.action is Action.ROLLBACK
    )

    def check(entry: Entry) -> None:
        key = place.key(entry.filename)
        info = place.store.info(key)
        if info is None:
            raise ObjectMissingError(
                f"{place.store.locate(key)}: the wheel is gone", hint="stage and promote again"
            )
        if (digest := place.store.digest(info)) != entry.sha256:
            raise replaced(place.store.locate(key), digest, entry.sha256)

    each(check, entries, threads=place.store.connections)
    return Change(place=place, action=Action.RESTORE, history=history, entries=entries)


def apply(change: Change, *, who: Who) -> None:
    """Do it; returns when the index shows it."""
    place, history = change.place, change.history
    if change.is_done:
        return
    if change.undoes and history.open:
        abandon(place, history, who=who)
        history = records.history(place, history.set_id)
    operation = operations.begin(place, history, change.action, change.entries, who=who)
    edit = _edit(change.action, operation.intent.reason, place)
    operation.publish(edit, sparing=change.spared)
    operation.finish()


def abandon(place: Place, history: History, *, who: Who) -> None:
    """Close an unfinished operation as not done; a run that still does it finds out at its end."""
    there = history.open
    if there and not records.put_record(
        place,
        Record(
            set_id=there.set_id,
            number=there.number,
            action=there.action,
            done=False,
            time=who.time,
            by=who.by,
            reason=who.reason,
        ),
    ):
        raise PromotionError(
            f"{place.location}: {there.action.value} of {short(there.set_id)} was completed "
            "meanwhile",
            hint="run the command again",
        )


def needed_by_others(histories: Mapping[str, History], set_id: str) -> frozenset[str]:
    """Files that other sets list, or are about to."""
    return frozenset(
        name
        for other in histories.values()
        if other.set_id != set_id
        for name in (*other.live, *(item.filename for item in _adding(other)))
    )


def _adding(history: History) -> tuple[Entry, ...]:
    return history.open.entries if history.open and history.open.action.adds else ()


def _edit(action: Action, reason: str, place: Place) -> Any:
    def edit(page: Page, files: list[Entry]) -> Page:
        names = [item.filename for item in files]
        if action is Action.ROLLBACK:
            return page.without(names)
        if action is Action.RESTORE:
            return page.with_files(files, where=place.location)
        return page.yanked(names, reason if action is Action.YANK else None)

    return edit


def _owner(place: Place, filenames: Collection[str]) -> str:
    """A set that lists all these files. Raises PromotionError."""
    wanted = set(filenames)
    for history in records.histories(place).values():
        if wanted <= set(history.live):
            return history.set_id
    raise PromotionError(
        f"{place.location}: {min(wanted)} is not in the index, or not in one set with the others",
        hint="look at `status` for what is released; name files of one set",
    )


def with_reason(who: Who, reason: str) -> Who:
    """The same person with a reason. Raises ConfigError when there is none."""
    if not reason.strip() or "\n" in reason:
        raise ConfigError("--reason: one line is needed", hint="say why; people will read it")
    return dataclasses.replace(who, reason=reason.strip())
