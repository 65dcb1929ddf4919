"""After a release: `yank` and `unyank` (PEP 592), `rollback` and `restore` of a whole set.

A yanked file stays installable for those who pin it; a rolled back set is out of the index, with
its bytes kept, and `restore` puts it back. A file of several sets is listed while one of them is,
and yanked while one of the listed ones is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Final

from rocwheel.base import files
from rocwheel.base.choices import ALL
from rocwheel.base.errors import ConfigError, ObjectDiffersError, PromotionError
from rocwheel.base.values import replace
from rocwheel.records.entry import Entry, version_of
from rocwheel.records.places import Place
from rocwheel.release import operations, proof, wheelset
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger import log, manifests
from rocwheel.release.ledger.state import (
    Action,
    IndexState,
    Known,
    Standing,
    Transition,
)
from rocwheel.release.operations import Operation, Who
from rocwheel.release.trust.policy import Signer

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
        "`index restore --reason WHY` puts it back; a corrected build needs a new version",
    ),
    Standing.PRUNED: (
        "was pruned",
        "its names are spent for ever: build it again under a new version",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Change(Operation):
    action: Action
    set_id: str = ""
    filenames: tuple[str, ...] = ()
    families: tuple[str, ...] = ()  # of a rollback or restore; none: each that stands otherwise
    channel: Channel | None = None
    signer: Signer | None = None  # who states it
    is_late: bool = False  # it is done, and is stated now

    def projects(self, state: IndexState) -> set[str]:
        known = state.sets.get(self.set_id)
        return {*(known.projects if known else ()), *(version_of(n)[0] for n in self.filenames)}

    def files(self, state: IndexState) -> tuple[Entry, ...]:
        """Return what it is about: files of the set, or listed ones by name."""
        if not self.set_id:
            views = state.views if self.place.family == ALL else (self.place.family,)
            pairs = product(map(state.of, views), sorted(self.projects(state)))
            shown = {item.path: item for seen, name in pairs for item in seen.shown(name)}
            return tuple(item for item in shown.values() if item.filename in self.filenames)
        chosen = set(self.filenames)
        return tuple(f for f in state.files(self.set_id) if not chosen or f.filename in chosen)

    def decide(self, state: IndexState) -> Transition | None:
        entry = self.change(state)
        return self.entry(state, Action.ATTEST) if entry is None and self.is_late else entry

    def change(self, state: IndexState) -> Transition | None:
        known = state.sets.get(self.set_id)
        standing = known.standing if known else None
        changed, views = self.files(state), [*(known.views if known else state.views)]
        families = list[str]()
        if self.action in {Action.ROLLBACK, Action.RESTORE}:
            views = families = self._changing(known)
            if not views:
                return None
        else:
            missing = sorted(set(self.filenames) - {item.filename for item in changed})
            if missing or (self.set_id and standing is not Standing.LISTED) or not changed:
                raise self._refused(standing, missing[0] if missing else "")
            if all((item.yanked is None) == (self.action is Action.UNYANK) for item in changed):
                return None
        if self.action in {Action.RESTORE, Action.UNYANK}:  # nothing may sort below what is there
            own = {item.filename for item in changed}
            coming = [
                replace(item, yanked=None)
                for item in changed
                if item.yanked is None or self.action is Action.UNYANK
            ]
            for view, project in product(views, self.projects(state)):
                shown = state.of(view).shown(project)
                others = (item for item in shown if item.filename not in own)
                wheelset.check_order(others, coming)
        sets = [self.set_id] if self.set_id else []
        names = [item.path for item in changed] if self.filenames else []
        return self.entry(state, self.action, sets=sets, names=names, families=sorted(families))

    def _changing(self, known: Known | None) -> list[str]:
        """Return the families for which a rollback or restore changes a set.

        None where all is done. Raises PromotionError for one for which it may not be, and where
        it neither changes anything nor is done.
        """
        standings = [Standing.LISTED, Standing.HELD]
        before, after = standings if self.action is Action.ROLLBACK else standings[::-1]
        views, is_done, standing = [], False, None
        for view in self.families or (known.families if known else ()):
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

    def prepare(self, state: IndexState, entry: Transition | None) -> Transition | None:
        """Check that a set that comes back has the bytes that were released; state what is done."""
        if self.action is Action.RESTORE:
            self.place.each(partial(operations.verify, self.place), self.files(state))
        if entry is None or not (bundles := self.statements(state)):
            return None if self.is_late and entry and entry.action is Action.ATTEST else entry
        named: dict[str, dict[str, str]] = {}
        for (set_id, view), data in bundles.items():
            named.setdefault(set_id, {})[view] = files.sha256(data)
            home = state.at(self.place.of(view), set_id)
            home.keep(home.bundle(named[set_id][view]), data)
        return replace(entry, bundles=named)

    def statements(self, state: IndexState) -> dict[tuple[str, str], bytes]:
        """Return what is stated of each set in each family, with what was stated before.

        A set that was released without a statement gets none, and what is said already is not said
        again.
        """
        made: dict[tuple[str, str], bytes] = {}
        if self.signer is None or self.channel is None:
            return made
        about: Any = {"action": self.action, "channel": self.channel, "who": self.who}
        views = map(self.place.of, self.views(state))
        for place, (set_id, names) in product(views, self.names(state).items()):
            known = state.sets.get(set_id)
            before, manifest = manifests.bundle(place, known) if known else b"", None
            with suppress(ObjectDiffersError):  # damaged: it leaves the index all the same
                manifest = manifests.find(state.at(place, set_id), set_id) if before else None
            if manifest:
                data = proof.extended(
                    before, manifest, names, place=place, signer=self.signer, **about
                )
                made |= {(set_id, place.family): data} if data else {}
        return made

    def names(self, state: IndexState) -> dict[str, list[str]]:
        if self.set_id:
            return {self.set_id: [*self.filenames]}
        names: dict[str, list[str]] = {}
        for item in self.files(state):
            file = state.listing(item.project).file(item.path)
            for set_id in file.sets if file else ():
                if state.lists(set_id):
                    names.setdefault(set_id, []).append(item.filename)
        return names

    def views(self, state: IndexState) -> tuple[str, ...]:
        sets = (state.sets[name] for name in self.names(state) if name in state.sets)
        every = dict.fromkeys(family for known in sets for family in known.families)
        return self.families or tuple(every)

    def _refused(
        self, standing: Standing | None, name: str = "", family: str = ""
    ) -> PromotionError:
        why, hint = REFUSED[standing]
        why += f" for {family}" if family else ""
        if name or not self.set_id:
            why = "is not in the index"
        what = name or self.set_id[:12]
        return PromotionError(f"{self.place.location}: {what} {why}", hint=hint)

    def file_lines(self, after: IndexState) -> list[str]:
        # a file that another set lists as well stays as it is
        changed = {
            item.path
            for view, project in product(after.views, self.projects(self.start))
            for item in {*self.start.of(view).shown(project)} ^ {*after.of(view).shown(project)}
        }
        return [f"{self.action.value:9}{self.place.locate(path)}" for path in sorted(changed)]

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        done = "nothing-to-do" if self.is_done else "signed" if self.is_late else DONE[self.action]
        return {
            "state": "planned" if dry_run and not self.is_done else done,
            "set": self.set_id,
            "families": list(self.views(self.start)),
            "files": [item.filename for item in self.files(self.start)],
            "reason": self.who.reason,
        }


def plan(
    place: Place,
    action: Action,
    *,
    who: Who,
    set_id: str = "",
    channel: Channel | None = None,
    signer: Signer | None = None,
    **names: Collection[str],
) -> Change:
    """Plan for `filenames` or `families`, which `signer` states; write nothing."""
    some: dict[str, Any] = {name: tuple(sorted(values)) for name, values in names.items()}
    some |= {"channel": channel, "signer": signer}
    state = operations.read(place)
    operation = Change(place=place, who=who, start=state, action=action, set_id=set_id, **some)
    if channel:
        for view in operation.views(state):
            proof.check_signer(channel, place.of(view), signer, who=who, action=action)
    is_done = operation.change(state) is None and operations.is_settled(state)
    if is_done and operation.statements(state):
        return replace(operation, is_late=True)
    return replace(operation, is_done=is_done)


def withdrawn(place: Place, known: Known) -> PromotionError:
    """Return the error for a set taken back at a place; it names the person and the remedy."""
    why, hint = REFUSED[known.standing]
    by = f"{known.by}: {known.reason}" if known.reason else known.by
    return PromotionError(f"{place.location}: {known.id[:12]} {why} by {by}", hint=hint)


def place_of(places: Sequence[Place], filename: str) -> Place:
    """Return the place that lists a file; the last one, where none does."""
    project, _ = version_of(filename)
    states = ((place, log.read(place, files=True)) for place in places)
    having = (place for place, state in states if state.listing(project).named(filename))
    return next(having, places[-1])


def with_reason(who: Who, reason: str) -> Who:
    """Return the same person with a reason. Raises ConfigError when there is none."""
    if not reason.strip():
        raise ConfigError("--reason: one line is needed", hint="say why; people will read it")
    return replace(who, reason=reason.strip())
