"""After a release: `yank` and `unyank` (PEP 592), `rollback` and `restore` of a whole set.

A yanked file stays installable for those who pin it; a rolled back set is out of the index, with
its bytes kept, and `restore` puts it back. A file of several sets is listed while one of them is,
and yanked while one of the listed ones is.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final

from rocwheel.base.errors import ConfigError, PromotionError
from rocwheel.base.values import Plain, replace
from rocwheel.records.entry import Entry, version_of
from rocwheel.records.places import Place
from rocwheel.release import operations, wheelset
from rocwheel.release.ledger import log
from rocwheel.release.ledger.state import Action, IndexState, Known, Standing, Transition
from rocwheel.release.ledger.state import apply as apply_entry
from rocwheel.release.operations import Operation, Who

DONE: Final = {
    Action.YANK: "yanked",
    Action.UNYANK: "unyanked",
    Action.ROLLBACK: "rolled-back",
    Action.RESTORE: "restored",
}
# why a set is not changed that stands so, and what to do
REFUSED: Final = {
    None: (
        "was never released",
        "look at `status` for what is released; `promote` releases a gated set",
    ),
    Standing.LISTED: ("was not rolled back", "look at `status` for what is released"),
    Standing.HELD: (
        "was rolled back",
        "`restore --reason WHY` puts it back; a mended build needs a new version",
    ),
    Standing.PRUNED: (
        "was pruned",
        "its names are spent for ever: build it again under a new version",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Change(Operation):
    """Yank, unyank, roll back or restore a set, or yank single files of whatever sets list them."""

    action: Action
    set_id: str = ""
    filenames: tuple[str, ...] = ()
    families: tuple[str, ...] = ()  # of a set below `all`; none: of each that stands otherwise

    def wanted(self, state: IndexState) -> Collection[str]:
        known = state.sets.get(self.set_id)
        return {*(known.projects if known else ()), *(version_of(n)[0] for n in self.filenames)}

    def files(self, state: IndexState) -> tuple[Entry, ...]:
        """Return what it is about: files of the set, or listed ones by name."""
        if not self.set_id:
            shown = (item for name in sorted(self.wanted(state)) for item in state.shown(name))
            return tuple(item for item in shown if item.filename in self.filenames)
        chosen = set(self.filenames)
        return tuple(f for f in state.files(self.set_id) if not chosen or f.filename in chosen)

    def decide(self, state: IndexState) -> Transition | None:
        known = state.sets.get(self.set_id)
        standing = known.standing if known else None
        files, views = self.files(state), [""]
        if self.action in {Action.ROLLBACK, Action.RESTORE}:
            views = self._changing(known)
            if not views:
                return None
        else:
            missing = sorted(set(self.filenames) - {item.filename for item in files})
            if missing or (self.set_id and standing is not Standing.LISTED) or not files:
                raise self._refused(standing, missing[0] if missing else "")
            if all((item.yanked is None) == (self.action is Action.UNYANK) for item in files):
                return None
        if self.action in {Action.RESTORE, Action.UNYANK}:  # nothing may sort below what is there
            names = {item.filename for item in files}
            coming = [
                replace(item, yanked=None)
                for item in files
                if item.yanked is None or self.action is Action.UNYANK
            ]
            for view, project in product(views, self.wanted(state)):
                shown = state.of(view).shown(project)
                others = (item for item in shown if item.filename not in names)
                wheelset.check_order(others, coming)
        sets = [self.set_id] if self.set_id else []
        families = sorted(filter(None, views))
        return self.entry(state, self.action, sets=sets, names=self.filenames, families=families)

    def _changing(self, known: Known | None) -> list[str]:
        """Return the families for which a rollback or restore changes a set: "" where it has none.

        None where all is done. Raises PromotionError for one for which it may not be, and where
        it neither changes anything nor is done.
        """
        standings = [Standing.LISTED, Standing.HELD]
        before, after = standings if self.action is Action.ROLLBACK else standings[::-1]
        views, is_done, standing = [], False, None
        for view in self.families or (known.families if known else ()) or ("",):
            seen = known.of(view) if known else None
            standing = seen.standing if seen else None
            if standing is before:
                views.append(view)
            elif seen and standing is after and self.action in {Action.ROLLBACK, seen.action}:
                is_done = True
            elif self.families:
                raise self._refused(standing, family=view)
        if not (views or is_done):
            raise self._refused(standing)
        return views

    def prepare(self, state: IndexState) -> None:
        """Check that a set that comes back has the bytes that were released."""
        if self.action is Action.RESTORE:
            self.place.each(partial(operations.verify, self.place), self.files(state))

    def _refused(
        self, standing: Standing | None, name: str = "", family: str = ""
    ) -> PromotionError:
        why, hint = REFUSED[standing]
        why += f" for {family}" if family else ""
        if name or not self.set_id:
            why = "is not in the index"
        what = name or self.set_id[:12]
        return PromotionError(f"{self.place.location}: {what} {why}", hint=hint)


class ChangePlan(Plain, frozen=True, kw_only=True):
    operation: Change
    state: IndexState
    is_done: bool

    @property
    def files(self) -> tuple[Entry, ...]:
        return self.operation.files(self.state)

    @property
    def names(self) -> dict[str, list[str]]:
        """What it changes of each set: single files, or none named for a whole one."""
        if self.operation.set_id:
            return {self.operation.set_id: [*self.operation.filenames]}
        names: dict[str, list[str]] = {}
        for name in self.operation.filenames:
            file = self.state.listing(version_of(name)[0]).file(name)
            for set_id in file.sets if file else ():
                if self.state.lists(set_id):
                    names.setdefault(set_id, []).append(name)
        return names

    def lines(self) -> list[str]:
        place, action = self.operation.place, self.operation.action
        entry = None if self.is_done else self.operation.decide(self.state)
        after = apply_entry(self.state, entry, digest="") if entry else self.state
        # a file that another set lists as well stays as it is
        indexes = operations.indexes(place, after, (entry and entry.families) or ())
        changed = {
            item.filename
            for index, project in product(indexes, self.operation.wanted(self.state))
            for item in {*self.state.of(index.view).shown(project)}
            ^ {*after.of(index.view).shown(project)}
        }
        lines = [f"{action.value:9}{place.locate(name)}" for name in sorted(changed)]
        for index in indexes:
            lines += operations.page_lines(index, self.files, action)
        return lines

    @property
    def families(self) -> tuple[str, ...]:
        """Return the families whose index changes: the place's own, or some below `all`."""
        sets = (self.state.sets[name] for name in self.names if name in self.state.sets)
        every = dict.fromkeys(family for known in sets for family in known.families)
        return self.operation.families or tuple(every) or (self.operation.place.view,)

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        done = "nothing-to-do" if self.is_done else DONE[self.operation.action]
        return {
            "state": "planned" if dry_run and not self.is_done else done,
            "set": self.operation.set_id,
            "family": self.operation.place.family,
            **({"families": list(self.operation.families)} if self.operation.families else {}),
            "files": [item.filename for item in self.files],
            "reason": self.operation.who.reason,
        }


def plan(
    place: Place, action: Action, *, who: Who, set_id: str = "", **names: Collection[str]
) -> ChangePlan:
    """Plan for `filenames` or `families`; write nothing. PromotionError if it may not be."""
    some: dict[str, Any] = {name: tuple(sorted(values)) for name, values in names.items()}
    operation = Change(place=place, who=who, action=action, set_id=set_id, **some)
    state = operations.read(operation)
    is_done = operation.decide(state) is None and operations.is_settled(state)
    return ChangePlan(operation=operation, state=state, is_done=is_done)


def withdrawn(place: Place, known: Known) -> PromotionError:
    """Return the error for a set taken back at a place; it names the person and the remedy."""
    why, hint = REFUSED[known.standing]
    told = f"{known.by}: {known.reason}" if known.reason else known.by
    return PromotionError(f"{place.location}: {known.id[:12]} {why} by {told}", hint=hint)


def place_of(places: Sequence[Place], filename: str) -> Place:
    """Return the place that lists a file; the last one, where none does."""
    project, _ = version_of(filename)
    for place in places:
        if filename in {item.filename for item in log.read(place, [project]).shown(project)}:
            return place
    return places[-1]


def with_reason(who: Who, reason: str) -> Who:
    """Return the same person with a reason. Raises ConfigError when there is none."""
    if not reason.strip() or "\n" in reason:
        raise ConfigError("--reason: one line is needed", hint="say why; people will read it")
    return replace(who, reason=reason.strip())
