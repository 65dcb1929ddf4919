"""What a log says: the fold of its entries, a pure function from entries to a state.

A set stands for each of its families by itself. `IndexState.of` is the state as one of them sees
it, or `all`: there a set is listed while every family that must have it lists it.

A state knows every wheel set, and of each project a *listing*: the files, which sets hold them,
and the names that are spent. What is listed (what installers see) follows from it: a file is
listed while one of its sets is released. An entry that does not fit its state changes nothing, and
stands in the state's `damage`.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from itertools import chain, takewhile
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from rocwheel.base.choices import ALL
from rocwheel.base.errors import ConfigError, ObjectDiffersError, PromotionError
from rocwheel.base.values import Count, Plain, Sha256, Value, replace
from rocwheel.base.versions import moment
from rocwheel.records.entry import Entry, parsed, rank, version_of
from rocwheel.records.places import FOREIGN, LAST_GOOD, NIGHT, NIGHTS, OWN, Place

FORMAT: Final = 4  # raised whenever a field of an entry, or what one means, changes
NEEDS: Final = "0.3.0"  # the first rocwheel that knows this format
FamilyId = Annotated[str, msgspec.Meta(pattern=r"\A[a-z][0-9a-zA-Z-]*\Z")]
SetId = Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{64}|foreign(-[a-z][0-9a-zA-Z-]*)?)\Z")]


class Action(enum.Enum):
    STAGE = "stage"
    PROMOTE = "promote"
    RESTORE = "restore"
    ADOPT = "adopt"
    MIGRATE = "migrate"  # of rocwheel 0.1.0 alone: sets of a store older than the log
    CARRY = "carry"  # the first entry: what the logs of before 0.3 say
    CLOSE = "close"  # the last entry of such a log: rocwheel of then writes no more there
    ATTEST = "attest"  # what was done with a set before is signed now, and nothing else changes
    ROLLBACK = "rollback"
    PRUNE = "prune"
    YANK = "yank"
    UNYANK = "unyank"
    SPEND = "spend"  # names of files that no set holds, before they are deleted
    SKIP = "skip"  # stands for an entry that was lost or damaged, and changes nothing

    @property
    def adds(self) -> bool:
        """Whether files may come to be listed by it."""
        return self in {
            Action.STAGE, Action.PROMOTE, Action.RESTORE, Action.ADOPT, Action.MIGRATE,
        }  # fmt: skip

    @property
    def removes(self) -> bool:
        """Whether listed files may leave by it. No action does both."""
        return self in {Action.ROLLBACK, Action.PRUNE}


class Standing(enum.Enum):
    LISTED = "listed"
    HELD = "held"  # rolled back: not listed, and its bytes are kept
    PRUNED = "pruned"


class Holding(Value, frozen=True, kw_only=True):
    set: SetId
    files: tuple[Entry, ...]
    jax: str = ""
    rocm: str = ""
    pythons: tuple[str, ...] = ()
    # Of rocwheel 0.1.0 alone: how a set stood before an entry of `migrate`, and since when.
    standing: Standing | UnsetType = UNSET
    first: str | UnsetType = UNSET
    changed: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        for text in (self.first, self.changed):
            if text:
                moment(text)


class Transition(Value, frozen=True, kw_only=True):
    """One entry of the log: creating it is the commit of an operation."""

    number: int
    previous: str  # SHA-256 of the entry before; "" where there is none
    id: str  # of the operation, which recognises its own entry by it
    action: Action
    time: str  # ISO 8601, UTC
    by: str
    reason: str
    family: str = ""  # before 0.3: whose log it is
    sets: tuple[SetId, ...] = ()  # what it is about; of a yank none is every set with these files
    names: tuple[str, ...] = ()  # paths of files, where it is not about all of a set's
    brings: tuple[Holding, ...] = ()
    evidence: dict[str, Any] = msgspec.field(default_factory=dict)
    # The families that the entry is for; of a set that comes, those that `all` waits for: none of a
    # set that was built for one of them.
    families: tuple[FamilyId, ...] | UnsetType = UNSET
    must: tuple[FamilyId, ...] | UnsetType = UNSET
    pages: tuple[FamilyId, ...] | UnsetType = UNSET  # before 0.3: families with pages of their own
    # Set -> family -> SHA-256 of the signed statements that hold for it since this entry.
    bundles: dict[SetId, dict[FamilyId, Sha256]] | UnsetType = UNSET
    carries: Carried | UnsetType = UNSET
    needs: str | UnsetType = UNSET  # the oldest rocwheel that knows the format; 0.1.0 wrote none
    format: Literal[1, 2, 3, 4] = FORMAT

    def __post_init__(self) -> None:
        moment(self.time)
        if self.format == FORMAT:
            msgspec.structs.force_setattr(self, "needs", NEEDS)


class Known(Value, frozen=True, kw_only=True, omit_defaults=True):
    """One wheel set as a log knows it: where it stands, since when, and its files."""

    id: SetId
    standing: Standing
    action: Action  # the last that changed its standing
    time: str  # when
    by: str
    reason: str
    first: str  # when it came
    jax: str
    rocm: str
    pythons: tuple[str, ...]
    projects: tuple[str, ...]
    files: Count
    yanked: Count
    families: dict[str, Standing]  # where it stands for each
    must: tuple[str, ...] = ()  # the families that `all` waits for, as its first entry said
    home: str = ""  # of a set of before 0.3: see `Place`
    # Of each family the last action there, when, by whom and why.
    last: dict[str, tuple[Action, str, str, str]] = msgspec.field(default_factory=dict)
    # Family -> SHA-256 of the signed statements about it; what is not named here proves nothing.
    bundles: dict[str, str] = msgspec.field(default_factory=dict)
    # Family -> CPython -> suites that had passed there when it was released.
    passed: dict[str, dict[str, tuple[str, ...]]] = msgspec.field(default_factory=dict)
    # Family -> the entry that released it there, where every required suite had passed.
    good: dict[str, int] = msgspec.field(default_factory=dict)
    nights: dict[str, str] = msgspec.field(default_factory=dict)  # family -> whose release it was

    def __post_init__(self) -> None:
        moment(self.time)
        moment(self.first)

    @property
    def views(self) -> tuple[str, ...]:
        return (*self.families, *([ALL] if self.must and ALL not in self.families else ()))

    @property
    def indexes(self) -> tuple[str, ...]:
        """The same, and those of a night and of the last good sets below them."""
        made = [*self.views]
        for view in self.views:
            made += [f"{view}/{NIGHTS}/{night}" for night in self.fact_for(self.nights, view)]
            made += [f"{view}/{LAST_GOOD}"] if self.fact_for(self.good, view) else []
        return tuple(made)

    def fact_for(self, about: Mapping[str, _Fact], view: str) -> list[_Fact]:
        """Return the fact about a family; about `all` the last of what all have that must."""
        names = self.must if view == ALL and ALL not in self.families else (view,)
        known = [about[name] for name in names if name in about]
        return [max(known)] if known and len(known) == len(names) else []

    def of(self, view: str) -> Known | None:
        """Return the set as a family sees it, or `all`; None where it never came for it."""
        names = self.must if view == ALL and ALL not in self.families else (view,)
        kinds = {self.families.get(name) for name in names}
        if kinds <= {None}:
            return None
        standing = kinds.pop() if len(kinds) == 1 else Standing.HELD  # not by all that must
        if self.standing is Standing.PRUNED:
            standing = Standing.PRUNED
        own = dict(zip(_BY, self.last.get(view, ()), strict=False))
        return replace(self, standing=standing, families={view: standing}, **own)

    def beside(self, other: Known) -> Known:
        """Return one set that two logs of before 0.3 know, each for families of its own."""
        first, second = sorted((self, other), key=lambda known: known.time)
        merged = {
            name: {**getattr(first, name), **getattr(second, name)}
            for name in ("families", "last", "bundles", "passed", "good", "nights")
        }
        least = min(first.standing, second.standing, key=list(Standing).index)
        began = min(self.first, other.first)
        return replace(second, standing=least, first=began, must=self.must or other.must, **merged)


_Fact = TypeVar("_Fact", int, str)
_BY: Final = ("action", "time", "by", "reason")  # of an entry, that a set keeps
_last: Final = attrgetter(*_BY)
_TORN: Final = "entry {} of the log does not follow the entry before it"


class File(Value, frozen=True, kw_only=True):
    entry: Entry
    sets: tuple[str, ...]
    # Set -> reason; that of "" holds for the file itself, whichever sets come and go.
    yanks: dict[str, str] = msgspec.field(default_factory=dict)


class Listing(Value, frozen=True, kw_only=True):
    project: str
    files: tuple[File, ...] = ()  # by name, and where they lie
    # Name -> path of bytes that were taken away for ever -> the families that knew them.
    spent: dict[str, dict[str, tuple[str, ...]]] = msgspec.field(default_factory=dict)

    def named(self, filename: str) -> tuple[File, ...]:
        """Return the files of that name that sets hold: of some families' sets different ones."""
        at = bisect_left(self.files, filename, key=lambda file: file.entry.filename)
        files = takewhile(lambda file: file.entry.filename == filename, self.files[at:])
        return tuple(files)

    def file(self, path: str) -> File | None:
        """Return the file that lies there, where a set holds it."""
        files = self.named(path.rpartition("/")[2])
        return next((file for file in files if file.entry.path == path), None)

    def having(self, file: File) -> Listing:
        """Return a listing with a file, in place of the one that lies there."""
        at = bisect_left(self.files, _place_of(file), key=_place_of)
        rest = self.files[at:]
        rest = rest[1:] if rest and rest[0].entry.path == file.entry.path else rest
        return replace(self, files=(*self.files[:at], file, *rest))

    def beside(self, other: Listing | None) -> Listing:
        """Return what two logs of before 0.3 say of a project together."""
        if other is None:
            return self
        spent = {
            name: {**self.spent.get(name, {}), **other.spent.get(name, {})}
            for name in {*self.spent, *other.spent}
        }
        return _listing(replace(self, spent=spent), (*self.files, *other.files))


class Carried(Value, frozen=True, kw_only=True):
    """What logs of before 0.3 came to."""

    sets: tuple[Known, ...]
    files: dict[str, Listing]


class IndexState(Plain, frozen=True, kw_only=True):
    """The fold of a log up to one number; only listings that were asked for are loaded."""

    number: int = 0
    head: str = ""  # SHA-256 of the last entry
    sets: Mapping[str, Known] = {}
    listings: Mapping[str, Listing] = {}
    unread: frozenset[str] = frozenset()  # projects of the snapshot whose listings are not loaded
    files_sha256: str = ""  # of the object that has them
    rooted: frozenset[tuple[str, str]] = frozenset()  # of the snapshot: indexes and their projects
    saved: int = 0  # the snapshot's number: the pages show at least that state
    spent: int = 0  # the last entry that spent names
    below: str = ""  # of a snapshot: digest of what was listed of the entries before its last
    # Of a release: number of each entry that the store lists -> size and ETag.
    stored: Mapping[int, str] = {}
    touched: frozenset[str] = frozenset()  # projects that changed since the snapshot
    attested: frozenset[str] = frozenset()  # sets whose statements changed since then
    seen: frozenset[str] = frozenset()  # indexes whose pages changed by that
    # Indexes from which the last entry that added or removed anything there removed.
    removing: frozenset[str] = frozenset()
    # Number of each entry that could not be folded as it was committed, and why.
    damage: Mapping[int, str] = {}
    is_whole: bool = False  # folded from the first entry on: no snapshot could be used
    torn: bool = False  # an entry that was folded does not follow the entry before it
    is_skip: bool = False  # the last entry stands for a lost one, which the next one follows
    # Indexes and projects that have pages by a lost entry alone.
    strays: frozenset[tuple[str, str]] = frozenset()
    before: Mapping[
        str, IndexState
    ] = {}  # by folder, logs of before 0.3 until they are carried over
    is_closed: bool = False  # such a log goes on no more
    former: frozenset[str] = frozenset()  # sets whose plugins an index lists no more

    def indexed(self) -> frozenset[tuple[str, str]]:
        """Every index with the projects that have a page there; they never leave."""
        return self.strays.union(
            (index, project)
            for known in self.sets.values()
            for index in known.indexes
            for project in known.projects
        )

    @property
    def indexes(self) -> tuple[str, ...]:
        """Every index, with those of nights and of the last good sets."""
        return tuple(sorted({index for index, _ in self.indexed()}))

    @property
    def views(self) -> tuple[str, ...]:
        return tuple(index for index in self.indexes if "/" not in index)

    def of(self, index: str) -> IndexState:
        """Return the state as a family sees it, or `all`; or as an index below theirs shows it."""
        view, _, shelf = index.partition("/")
        night = shelf.removeprefix(f"{NIGHTS}/") if shelf != LAST_GOOD else ""
        sets = {
            name: own
            for name, known in self.sets.items()
            if (not night or known.fact_for(known.nights, view) == [night])
            and (own := known.of(view))
        }
        if shelf != LAST_GOOD:
            return replace(self, sets=sets)
        # The plugin of the last good set of each JAX release, and what any good set's plugin needs:
        # then a change only adds to the other pages, and one order of the pages is right.
        last, good = dict[str, tuple[int, str]](), dict[str, Known]()
        for name, known in sets.items():
            for number in self.sets[name].fact_for(known.good, view):
                if known.standing is Standing.LISTED:
                    jax, good[name] = parsed(known.jax).base_version, known
                    last[jax] = max(last.get(jax, (0, "")), (number, name))
        former = good.keys() - {name for _, name in last.values()}
        return replace(self, sets=good, former=frozenset(former))

    def parts(self, projects: Iterable[str]) -> Callable[[str], IndexState]:
        """Return `of` of these projects, for many indexes: of a night's only its sets and files."""
        sets, files = dict[str, dict[str, Known]](), dict[tuple[str, str], list[File]]()
        for known in self.sets.values():
            for index in (name for name in known.indexes if f"/{NIGHTS}/" in name):
                sets.setdefault(index, {})[known.id] = known
        listings = {project: self.listing(project) for project in projects}
        for project, listing in listings.items():
            for file in listing.files:
                for set_id in file.sets:
                    files.setdefault((project, set_id), []).append(file)

        def part(index: str) -> IndexState:
            if (own := sets.get(index)) is None:
                return replace(self, listings=listings).of(index)
            held = {
                name: _listing(x, chain.from_iterable(files.get((name, item), ()) for item in own))
                for name, x in listings.items()
            }
            return replace(self, sets=own, listings=held).of(index)

        return part

    @property
    def listed(self) -> list[Known]:
        sets = (known for name, known in self.sets.items() if not is_foreign(name))
        return [known for known in sets if known.standing is Standing.LISTED]

    @property
    def projects(self) -> frozenset[str]:
        return self.unread.union(self.listings)

    def listing(self, project: str) -> Listing:
        if project in self.unread:
            raise KeyError(f"{project}: not loaded")  # a bug: never taken for an empty one
        return self.listings.get(project) or Listing(project=project)

    def is_listed(self, file: File) -> bool:
        return any(self.lists(item) for item in file.sets)

    def shown(self, project: str) -> tuple[Entry, ...]:
        """Return the listed files of a project: its page is a function of this and the number."""
        gone = self.former if rank(project) else frozenset()
        listed = (
            file
            for file in self.listing(project).files
            if any(self.lists(item) and item not in gone for item in file.sets)
        )
        by_name = {file.entry.filename: file for file in listed}  # twice where two logs had it
        return tuple(map(self._shown, by_name.values()))

    def whole(self, project: str) -> frozenset[str]:
        """Return the versions of a project whose listed sets bring a jaxlib of their own."""
        return frozenset(
            file.entry.version
            for file in self.listing(project).files
            if any(self.lists(item) and "jaxlib" in self.sets[item].projects for item in file.sets)
        )

    def files(self, set_id: str) -> tuple[Entry, ...]:
        known = self.sets.get(set_id)
        held = (
            replace(file.entry, yanked=file.yanks.get(set_id))
            for project in (known.projects if known else ())
            for file in self.listing(project).files
            if set_id in file.sets
        )
        return tuple(sorted(held, key=lambda item: item.filename))

    def spent_paths(self) -> tuple[str, ...]:
        spent = (paths for item in self.listings.values() for paths in item.spent.values())
        return tuple(sorted(chain.from_iterable(spent)))

    def check_names(
        self, entries: Iterable[Entry], families: Collection[str], *, where: str
    ) -> None:
        """Raise where a name is spent (PromotionError) or other bytes' (ObjectDiffersError).

        It is for each family by itself: another one may have other bytes of that name.
        """
        for entry in entries:
            listing = self.listing(entry.project)
            spent = listing.spent.get(entry.filename, {})
            knew = {ALL, *families}
            if entry.path in spent or any(knew.intersection(names) for names in spent.values()):
                raise PromotionError(
                    f"{where}/{entry.filename}: this name was pruned and is spent for ever",
                    hint="build with a new version (--wheel-suffix or --wheel-post-release)",
                )
            for there in listing.named(entry.filename):
                owners = {name for item in there.sets for name in self.sets[item].families}
                if there.entry.sha256 == entry.sha256 or owners.isdisjoint(families):
                    continue
                raise ObjectDiffersError(
                    f"{where}/{entry.filename}: other bytes have this name: SHA-256 "
                    f"{there.entry.sha256}, not {entry.sha256}",
                    hint="a name is never used for other bytes: build with a new version "
                    "(--wheel-suffix)",
                )

    def skipped(self, *, digest: str, problem: str) -> IndexState:
        """Return the state after an entry that is damaged or does not fit: it changes nothing."""
        number = self.number + 1
        damage = {**self.damage, number: problem}
        return replace(self, damage=damage, number=number, head=digest, is_skip=not digest)

    def at(self, place: Place, set_id: str) -> Place:
        """Return a place for the records of a set, which may have come before 0.3."""
        known = self.sets.get(set_id)
        if known is None or not known.home:
            return place
        is_mine = place.family in known.families or known.home != OWN
        return place.of(place.family if is_mine else next(iter(known.families))).at(known.home)

    def lists(self, set_id: str) -> bool:
        known = self.sets.get(set_id)
        return known is not None and known.standing is Standing.LISTED

    def _shown(self, file: File) -> Entry:
        # yanked while the file itself is, or a listed set of it
        if not file.yanks:
            return file.entry
        own = [item for item in file.sets if self.lists(item)]
        reasons = [file.yanks[item] for item in ("", *own) if item in file.yanks]
        return replace(file.entry, yanked=reasons[0] if reasons else None)


def is_foreign(set_id: str) -> bool:
    return set_id.startswith(FOREIGN)


def touched(state: IndexState, entry: Transition) -> tuple[str, ...]:
    """List the projects whose listings an entry changes. Raises ConfigError for an odd name."""
    changed = {file.project for holding in entry.brings for file in holding.files}
    changed |= {version_of(name)[0] for name in entry.names}
    changed |= set(entry.carries.files if entry.carries else ())
    for set_id in entry.sets:
        changed |= set(state.sets[set_id].projects if set_id in state.sets else ())
    return in_order(changed, removing=False)


def concerned(state: IndexState, entry: Transition) -> frozenset[str]:
    """Return the indexes whose pages an entry may change, by a state that has it or its sets."""
    named = (*entry.sets, *(holding.set for holding in entry.brings))
    if not named or entry.carries:
        return frozenset(state.indexes)
    sets = [state.sets[name] for name in named if name in state.sets]
    families = entry.families or {name for known in sets for name in known.families}
    is_of_all = entry.must or any(known.must for known in sets)
    views = {*families, *([ALL] if is_of_all else ())}
    below = (index for known in sets for index in known.indexes if index.partition("/")[0] in views)
    return frozenset(views.union(below))


def in_order(projects: Iterable[str], *, removing: bool) -> tuple[str, ...]:
    """Order projects as their pages change: what others need comes first, or last."""
    return tuple(sorted(projects, key=lambda item: (rank(item), item), reverse=removing))


def apply(state: IndexState, entry: Transition, *, digest: str) -> IndexState:
    """Return the next state; of an entry that does not fit, the same one and a problem."""
    try:
        if entry.number != state.number + 1:
            raise ValueError(f"it says that it is number {entry.number}")  # noqa: TRY301
        changed = _attested(_CHANGES[entry.action](state, entry), entry)
    except (ValueError, ConfigError, PromotionError, ObjectDiffersError) as exc:
        problem = f"entry {state.number + 1} of the log: {exc}; it changes nothing"
        return state.skipped(digest=digest, problem=problem)
    wrong = dict(changed.damage)
    if entry.previous != state.head and not state.is_skip:
        blamed = entry.number if state.head else state.number  # or the first entries are lost
        wrong[blamed] = _TORN.format(entry.number)
    elif wrong.get(state.number) == _TORN.format(state.number):
        # this entry follows the one that is there: the one before that was changed
        wrong.setdefault(state.number - 1, wrong.pop(state.number))
    if wrong != changed.damage:
        changed = replace(changed, damage=wrong, torn=True)
    views, removing = concerned(changed, entry), changed.removing
    if entry.action.adds or entry.action.removes:
        removing = removing | views if entry.action.removes else removing - views
    return replace(
        changed,
        number=state.number + 1,
        head=digest,
        touched=state.touched | set(touched(state, entry)),
        seen=state.seen | views,
        attested=state.attested | {*(entry.bundles or ())},
        removing=removing,
        spent=entry.number if entry.action in _SPENDING else state.spent,
        is_skip=entry.action is Action.SKIP,
    )


# What each action does

_SPENDING: Final = frozenset({Action.PRUNE, Action.SPEND, Action.MIGRATE, Action.CARRY})
Change: TypeAlias = "Callable[[IndexState, Transition], IndexState]"


def _bring(state: IndexState, entry: Transition) -> IndexState:
    for holding in entry.brings:
        state = _brought(state, entry, holding)
    if entry.action is Action.MIGRATE:
        state = _migrated(state, entry)
    # A set that is here comes for further families; its files and who must have it stay.
    return _stand(Standing.LISTED, only={None})(state, entry) if entry.sets else state


def _brought(state: IndexState, entry: Transition, holding: Holding) -> IndexState:
    known = state.sets.get(holding.set)
    if known and not (known.standing is Standing.LISTED and entry.action is Action.ADOPT):
        raise ValueError(f"{holding.set[:12]} is {known.standing.value} already")
    if not holding.files:
        raise ValueError(f"{holding.set[:12]} has no file")
    for file in holding.files:
        project, version = version_of(file.filename)
        if "/" in file.filename or project != file.project:
            raise ValueError(f"{file.filename}: not a wheel of {file.project}")
        if parsed(version) != parsed(file.version):
            raise ValueError(f"{file.filename}: not a wheel of version {file.version}")
    families = entry.families or ()
    if not families:
        raise ValueError(f"{holding.set[:12]} is for no family")
    state.check_names(holding.files, families, where=holding.set[:12])
    listings, projects = dict(state.listings), {item.project for item in holding.files}
    for item in holding.files:
        listing = listings.get(item.project) or state.listing(item.project)
        there = listing.file(item.path) or File(entry=replace(item, yanked=None), sets=())
        yanks = {} if item.yanked is None else {holding.set: item.yanked}
        sets = tuple(dict.fromkeys((*there.sets, holding.set)))
        held = File(entry=there.entry, sets=sets, yanks={**there.yanks, **yanks})
        listings[item.project] = listing.having(held)
    yanked = sum(item.yanked is not None for item in holding.files)
    standing = Known(
        id=holding.set,
        **_by(entry, Standing.LISTED),
        first=known.first if known else entry.time,
        jax=holding.jax,
        rocm=holding.rocm,
        pythons=holding.pythons,
        projects=in_order({*projects, *(known.projects if known else ())}, removing=False),
        files=len({item.filename for item in holding.files}) + (known.files if known else 0),
        yanked=yanked + (known.yanked if known else 0),
        families=dict.fromkeys(families, Standing.LISTED),
        last=dict.fromkeys(families, _last(entry)),
        must=entry.must or (),
    )
    return replace(state, listings=listings, sets={**state.sets, holding.set: standing})


def _migrated(state: IndexState, entry: Transition) -> IndexState:
    sets = dict(state.sets)
    for holding in entry.brings:
        was = {"standing": holding.standing, "first": holding.first, "time": holding.changed}
        own: dict[str, Any] = {name: value for name, value in was.items() if value}
        if holding.standing:
            own["families"] = dict.fromkeys(sets[holding.set].families, holding.standing)
        sets[holding.set] = replace(sets[holding.set], **own, last={})
    return _spend(replace(state, sets=sets), entry)


def _attested(state: IndexState, entry: Transition) -> IndexState:
    """Return a state whose sets name the statements that an entry names, and what passed."""
    bundles = entry.bundles or _bundles_of_1(entry)
    sets, said, night = dict(state.sets), _evidence(entry), str(entry.evidence.get("night", ""))
    facts = {
        "passed": _passed(entry),
        "good": {name: entry.number for name, one in said.items() if is_good(one)},
        "nights": dict.fromkeys(said, night) if NIGHT.fullmatch(night) else {},
    }
    for set_id in (*entry.sets, *(holding.set for holding in entry.brings)) if said else ():
        known = sets[set_id]
        more = {name: getattr(known, name) | fact for name, fact in facts.items()}
        sets[set_id] = replace(known, **more)
    for set_id, named in bundles.items():
        if set_id not in sets:
            raise ValueError(f"statements about {set_id[:12]}, which is not known")
        sets[set_id] = replace(sets[set_id], bundles={**sets[set_id].bundles, **named})
    return replace(state, sets=sets)


def _bundles_of_1(entry: Transition) -> dict[str, dict[str, str]]:
    if entry.format != 1 or entry.action is not Action.PROMOTE:
        return {}
    said = {family: one.get("attestations") for family, one in _evidence(entry).items()}
    named = {family: text for family, text in said.items() if isinstance(text, str)}
    sets = (*entry.sets, *(holding.set for holding in entry.brings))
    return dict.fromkeys(sets, named) if named else {}


def _evidence(entry: Transition) -> dict[str, dict[str, Any]]:
    said = entry.evidence.get("families", {entry.family: entry.evidence})
    is_ours = entry.action is Action.PROMOTE and isinstance(said, dict)
    return {name: one for name, one in said.items() if isinstance(one, dict)} if is_ours else {}


def is_good(said: Mapping[str, Any]) -> bool:
    """Return whether a decision's required cells all passed: without a bypass, nor a failure."""
    cells = said.get("cells")
    required = [
        cell.get("state")
        for cell in (cells if isinstance(cells, (list, tuple)) else ())
        if isinstance(cell, dict) and cell.get("level") == "required"
    ]
    return bool(required) and {*map(str, required)} <= {"pass", "uncalibrated"}


def _passed(entry: Transition) -> dict[str, dict[str, tuple[str, ...]]]:
    passed: dict[str, dict[str, tuple[str, ...]]] = {}
    for family, said in _evidence(entry).items():
        with suppress(msgspec.ValidationError, KeyError):  # else it says nothing
            for cell in msgspec.convert(said.get("cells", []), list[dict[str, Any]]):
                python, suites = str(cell["python"]), passed.setdefault(family, {})
                if cell["state"] == "pass":
                    suites[python] = (*suites.get(python, ()), str(cell["suite"]))
    return passed


def _by(entry: Transition, standing: Standing) -> dict[str, Any]:
    return {"standing": standing, **dict(zip(_BY, _last(entry), strict=True))}


def _stand(standing: Standing, *, only: Collection[Standing | None]) -> Change:
    def change(state: IndexState, entry: Transition) -> IndexState:
        if not entry.sets:
            raise ValueError(f"{entry.action.value} of nothing")
        sets = dict(state.sets)
        for set_id in entry.sets:
            known = state.sets.get(set_id)
            if known is None:
                raise ValueError(f"{entry.action.value}: {set_id[:12]} is not known")
            for seen in map(known.of, entry.families) if entry.families else (known,):
                if (seen and seen.standing) not in only:
                    what = seen.standing.value if seen else "not known"
                    raise ValueError(f"{entry.action.value}: {set_id[:12]} is {what}")
            changed = dict.fromkeys(entry.families or known.families, standing)
            families = {**known.families, **changed}
            # It is listed while it is for one of them.
            least = min(families.values(), key=list(Standing).index)
            by, last = _by(entry, least), known.last | dict.fromkeys(changed, _last(entry))
            sets[set_id] = replace(known, **by, families=families, last=last)
        return replace(state, sets=sets)

    return change


def _prune(state: IndexState, entry: Transition) -> IndexState:
    """Release the files of the sets; names that no set holds then are spent."""
    leaving, listings = set(entry.sets), dict(state.listings)
    for project in touched(state, entry):
        listing = state.listing(project)
        kept: list[File] = []
        for file in listing.files:
            holders = tuple(item for item in file.sets if item not in leaving)
            if holders:
                yanks = {key: text for key, text in file.yanks.items() if key not in leaving}
                kept.append(replace(file, sets=holders, yanks=yanks))
            else:
                knew = {name for item in file.sets for name in state.sets[item].families}
                listing = _without(listing, file.entry.path, knew)
        listings[project] = _listing(listing, kept)
    pruned = _stand(Standing.PRUNED, only={Standing.LISTED, Standing.HELD})(state, entry)
    return replace(pruned, listings=listings)


def _spend(state: IndexState, entry: Transition) -> IndexState:
    listings = dict(state.listings)
    for name in entry.names:
        project = version_of(name)[0]
        listing = listings.get(project) or state.listing(project)
        if listing.file(name):
            raise ValueError(f"{name}: a set holds it")
        listings[project] = _without(listing, name, entry.families or ())
    return replace(state, listings=listings)


def _without(listing: Listing, path: str, families: Iterable[str]) -> Listing:
    """Return a listing in which a path is spent, and its name for these families."""
    name = path.rpartition("/")[2]
    paths = {path: tuple(sorted(families)), **listing.spent.get(name, {})}
    return replace(listing, spent={**listing.spent, name: paths})


def _carry(state: IndexState, entry: Transition) -> IndexState:
    if not entry.carries or state.sets or state.listings:
        raise ValueError("carries over what began before it")
    sets = {known.id: known for known in entry.carries.sets}
    return replace(state, sets=sets, listings=entry.carries.files)


def _mark(state: IndexState, entry: Transition) -> IndexState:
    """Yank or unyank: all files of the sets, or those named, in every listed set or the given."""
    count = 0
    listings, sets = dict(state.listings), dict(state.sets)
    for set_id in entry.sets:
        if not state.lists(set_id):
            raise ValueError(f"{entry.action.value}: {set_id[:12]} is not listed")
    for project in touched(state, entry):
        listing, files = state.listing(project), []
        for file in listing.files:
            is_meant = not entry.names or file.entry.path in entry.names
            asked = (entry.sets or file.sets) if is_meant else ()
            chosen = [item for item in asked if item in file.sets and state.lists(item)]
            count += len(chosen)
            yanks = dict(file.yanks)
            # Where no set was named, it holds for the file itself as well.
            for item in (*chosen, *([""] if chosen and not entry.sets else ())):
                yanks.pop(item, None)
                if entry.action is Action.YANK:
                    yanks[item] = entry.reason
            for item in file.sets:
                was, now = (not {item, ""}.isdisjoint(each) for each in (file.yanks, yanks))
                if was != now and (known := sets.get(item)):
                    sets[item] = replace(known, yanked=known.yanked + now - was)
            files.append(replace(file, yanks=yanks))
        listings[project] = _listing(listing, files)
    if not count:
        raise ValueError(f"{entry.action.value} of nothing")
    return replace(state, listings=listings, sets=sets)


_CHANGES: Final[Mapping[Action, Change]] = {
    Action.STAGE: _bring,
    Action.PROMOTE: _bring,
    Action.ADOPT: _bring,
    Action.MIGRATE: _bring,
    Action.CARRY: _carry,
    Action.CLOSE: lambda state, _entry: replace(state, is_closed=True),
    Action.ATTEST: lambda state, _entry: state,
    Action.RESTORE: _stand(Standing.LISTED, only=frozenset({Standing.HELD})),
    Action.ROLLBACK: _stand(Standing.HELD, only=frozenset({Standing.LISTED})),
    Action.PRUNE: _prune,
    Action.YANK: _mark,
    Action.UNYANK: _mark,
    Action.SPEND: _spend,
    Action.SKIP: lambda state, _entry: state,
}


def _place_of(file: File) -> tuple[str, str]:
    return file.entry.filename, file.entry.path


def _listing(listing: Listing, files: Iterable[File]) -> Listing:
    return replace(listing, files=tuple(sorted(files, key=_place_of)))
