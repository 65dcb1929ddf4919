"""How anything that changes an index is done: decide on a state of the log, commit, settle.

`perform` is the one transaction; every command that changes an index is an `Operation`, which
decides what the next entry of the log is, purely, from a state. docs/release-protocol.md says why
each step is where it is.
"""

import abc
import threading
import uuid
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import product
from time import monotonic
from typing import Any, Final

from rocwheel.base import files
from rocwheel.base.choices import ALL
from rocwheel.base.console import Progress, duration
from rocwheel.base.errors import (
    ConfigError,
    ObjectMissingError,
    ObjectStaleError,
    PromotionError,
    StoreError,
)
from rocwheel.base.store import TEXT, Headers, ObjectInfo, Store, glance, replaced
from rocwheel.base.versions import timestamp
from rocwheel.records.entry import Entry
from rocwheel.records.manifest import WheelEntry
from rocwheel.records.places import BUNDLE, OURS, Place
from rocwheel.release.index.page import Page, Root
from rocwheel.release.index.publish import AheadError, Claim, await_public, claimed, settle
from rocwheel.release.ledger import log
from rocwheel.release.ledger.state import Action, IndexState, Transition, apply, in_order, touched
from rocwheel.wheel.metadata import WheelName

ATTEMPTS: Final = 60  # commits that fail because another one was faster
PUBLIC_SECONDS: Final = 300.0
LONGEST: Final = 1000  # characters of a name or a reason
CLOCKS_DIFFER: Final = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Who:
    """Who acts, when, and why: part of every entry of a log."""

    by: str
    now: datetime
    reason: str = ""
    is_checked: bool = False  # its clock is held against the store's before it is written down
    began: float = field(default_factory=monotonic, compare=False)  # when `now` was

    def __post_init__(self) -> None:
        """Refuse what no record can keep as one line. Raises ConfigError."""
        for option, text in (("--by", self.by), ("--reason", self.reason)):
            if not text.isprintable():  # nor is a byte that is no UTF-8
                what = "one line of printable text is needed"
                raise ConfigError(f"{option}: {what}", hint="say it in plain words")
            if len(text) > LONGEST:
                what = f"{len(text)} characters, {LONGEST} are kept"
                raise ConfigError(f"{option}: {what}", hint="give a link to the rest")

    @property
    def time(self) -> str:
        return timestamp(self.now)

    @property
    def clock(self) -> datetime:
        """What this machine's clock says by now."""
        return self.now + timedelta(seconds=monotonic() - self.began)


@dataclass(frozen=True, kw_only=True)
class Operation(abc.ABC):
    """One change of an index: `perform` makes it once or not at all."""

    place: Place
    who: Who
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    reads_all: bool = False  # it deletes, for which no snapshot is believed

    @abc.abstractmethod
    def wanted(self, state: IndexState) -> Collection[str]:
        """Return the projects whose listings are needed to decide."""

    @abc.abstractmethod
    def decide(self, state: IndexState) -> Transition | None:
        """Return the next entry of the log; None where the state is as it should be.

        A function of the state alone: nothing is read or written. Raises PromotionError or
        ObjectDiffersError where it may not be.
        """

    def prepare(self, state: IndexState, entry: Transition | None) -> Transition | None:  # noqa: ARG002
        """Put and verify the bytes that must be there before the commit; may be repeated.

        Return the entry, with what is known of it only now; None where none is needed after all.
        """
        return entry

    def entry(self, state: IndexState, action: Action, **about: Any) -> Transition:
        """Return the entry after `state` that does this; `about` are fields of `Transition`."""
        about = {name: v if isinstance(v, dict) else tuple(v) for name, v in about.items() if v}
        return Transition(
            number=state.number + 1,
            previous=state.head,
            id=self.id,
            action=action,
            family=self.place.family,
            time=self.who.time,
            by=self.who.by,
            reason=self.who.reason,
            **about,
        )


def damage(
    place: Place, state: IndexState, pages: Collection[str] = (), skips: Collection[int] = ()
) -> dict[int, str]:
    """Return what is wrong with a log by the number of the entry, first of all where it ends.

    A page that shows a later entry than the log has, and lists something else than the log says,
    tells that the log lost its end. Asked are the pages of these projects; where no snapshot fits
    the log, all of them; where it has no entry, the list of projects. The state is read without the
    entries in `skips`.
    """
    end_of = "" if place.is_staging else "; it changes nothing"
    damaged = {number: text.removesuffix(end_of) for number, text in state.damage.items()}
    if not is_settled(state) and state.is_whole:
        pages = state.projects
    for (index, name), claim in _claims(place, state, pages).items():
        if claim.number <= state.number:
            continue
        end = log.read(place, [name], skips=skips)
        listed = {(entry.filename, entry.yanked) for entry in end.of(index.view).shown(name)}
        is_other = not name or claim.shows != listed
        if claim.number > end.number and not end.damage and is_other:
            where = place.store.locate(place.log(end.number + 1))
            page = place.store.locate(f"{index.index}/{name}")
            damaged[end.number + 1] = f"{where}: missing: {page} shows entry {claim.number}"
    return damaged


def _claims(
    place: Place, state: IndexState, pages: Collection[str], views: Collection[str] = ()
) -> dict[tuple[Place, str], Claim]:
    """Return what these pages of a release say; the list of projects where it has no log yet."""
    if place.is_staging or (state.number and not pages):
        return {}
    if not views and place.view != place.family:
        views = [place.view]  # a family's user asks what that family sees
    names = sorted(state.projects & set(pages))
    both = list(product(indexes(place, state, views), names))
    if not state.number:
        both = [(place.shown_as(place.family), "")]
    claims = zip(both, place.each(lambda pair: claimed(*pair), both), strict=True)
    return {pair: claim for pair, claim in claims if claim}


def indexes(place: Place, state: IndexState, views: Collection[str] = ()) -> tuple[Place, ...]:
    """Return the place as itself and as these families see it: as all of them for none, or ""."""
    names = [name for name in state.views if not views or "" in views or name in views]
    return tuple(map(place.shown_as, (place.family, *names)))


def check_sound(
    place: Place, state: IndexState, *, pages: Collection[str] = (), skips: Collection[int] = ()
) -> None:
    """Raise StoreError for a damaged log of a release: nothing is decided on half of it.

    `pages` are projects whose pages are asked as well, `skips` entries that are given up. Staging
    stays lenient: strangers may write there, and nothing is released from it unproven.
    """
    if not place.is_staging and (problems := damage(place, state, pages, skips)):
        raise damaged(place, state, problems, skips)


def damaged(
    place: Place, state: IndexState, problems: Mapping[int, str], skips: Collection[int] = ()
) -> StoreError:
    """Return the error for a damaged log of a release: its first problem, and the way out."""
    number = min(problems)
    what, skip = place.log(number), " ".join(f"--skip-entry {n}" for n in (*skips, number))
    way = f"`index repair {skip} --reason …`, which the log keeps"
    if not state.number and place.family != ALL:
        what, way = place.logs, "`index adopt` begins it anew with what the pages list"
    lags = ""
    if number > state.number:
        lags = "where this is a copy of the bucket that is not up to date yet, wait for it; else "
    return StoreError(
        f"{place.location}: the log is damaged: {problems[number]}",
        hint=f"{lags}put {what} back from a copy of the bucket; if it is lost for good: {way}",
    )


def read(operation: Operation) -> IndexState:
    """Return the state an operation decides on. Raises StoreError for a damaged log."""
    state = log.read(operation.place, afresh=operation.reads_all)
    check_sound(operation.place, state)
    return log.load(operation.place, state, operation.wanted(state))


def perform(operation: Operation, state: IndexState | None = None) -> IndexState:
    """Carry an operation out, from this state (or the log's) on; return the state it left.

    Raises what `decide` and `prepare` raise, having changed nothing; UnknownError where it is not
    known whether it took effect; StoreError where it did and the pages do not show it.
    """
    place, who = operation.place, operation.who
    if who.is_checked:
        check_clock(place.store, (place.state, place.json("")), now=who.clock, where=place.location)
    for _ in range(ATTEMPTS):
        state = state or read(operation)
        check_sound(place, state)
        state = complete(place, state)
        state = log.load(place, state, operation.wanted(state))
        entry = operation.decide(state)
        if entry is None:
            operation.prepare(state, None)
            return state
        state = log.load(place, state, touched(state, entry))
        claims = _check_ahead(place, state, entry)
        _check_claims(place, state, entry)
        entry = operation.prepare(state, entry)
        if entry is None:
            return state
        if digest := log.commit(place, entry):
            after = apply(state, entry, digest=digest)
            return _shown(operation, entry, after, claims)
        state = None
    raise PromotionError(
        f"{place.location}: {ATTEMPTS} other changes came first, one after the other",
        hint="run the same command again",
    )


def complete(place: Place, state: IndexState) -> IndexState:
    """Let the pages show a state, where a command was stopped before they did."""
    if is_settled(state):
        return state
    return repair(place, state, in_order(state.touched, removing=False), views=state.seen)


def repair(
    place: Place,
    state: IndexState,
    projects: Collection[str],
    *,
    views: Collection[str] = (),
    claims: Iterable[Claim] = (),
    mends: bool = False,
) -> IndexState:
    """Let these pages, and with them the list of projects, show a state; then save it.

    Pages of `all` and of the families in `views` (none: of all that have some). With `mends` also
    in place of pages that show what the log never said, which else is an error.
    """
    state = log.load(place, state, projects)
    begins = place.family == ALL and set(projects) >= state.projects  # a family's pages, perhaps
    has_root = mends or begins or not set(projects) <= state.rooted
    pages = pages_of(place, state, projects, views)
    settle(
        place,
        [page for page in pages if has_root or page.project],
        removing=state.removes,
        log_end=lambda: log.read(place).number,
        beside=beside,
        claims=claims,
        mends=mends,
    )
    _show_bundles(place, state, state.sets if mends else state.attested)
    return log.save(place, state)


def _show_bundles(place: Place, state: IndexState, sets: Iterable[str]) -> None:
    """Let the public copies of these sets' statements be those that the log names.

    Whoever was faster has put what only adds to ours. Of a promotion by 0.2 the public copy is all
    there is.
    """
    named = [
        (name, view, sha256) for name in sets for view, sha256 in state.sets[name].bundles.items()
    ]

    def show(about: tuple[str, str, str]) -> None:
        set_id, view, sha256 = about
        key = place.of(view).attestation(set_id, BUNDLE)
        there, info = glance(place.store, key)
        if files.sha256(there) == sha256:
            return
        ours, _ = glance(place.store, place.bundle(sha256))
        if ours and not there.startswith(ours):
            with suppress(ObjectStaleError):
                place.store.replace(key, ours, previous=info, headers=place.record_headers)

    place.each(show, named)


def pages_of(
    place: Place, state: IndexState, projects: Iterable[str], views: Collection[str] = ()
) -> list[Page | Root]:
    """Return the lists of projects, and the pages of these, as a state has them."""
    pages, names = list[Page | Root](), tuple(projects)
    for index in indexes(place, state, views):
        seen, folder = state.of(index.view), "" if index.view == ALL else f"../{ALL}/"
        marks: dict[str, Any] = {"number": state.number, "view": index.view}
        if index.view != place.family:
            marks |= {"number": 0, "shared": state.number}
        pages.append(Root(projects=state.projects, **marks))
        for name in names:
            files, whole = seen.shown(name), seen.whole(name)
            far = {}
            for item in files if place.family == ALL else ():
                known = state.sets.get(item.manifest)
                owner = known.must[0] if index.view == ALL and known and known.must else index.view
                statements = f"{folder}{OURS}/attestations/{item.manifest}/{owner}"
                far[item.filename] = (folder, statements)
            pages.append(Page(project=name, files=files, whole=whole, far=far, **marks))
    return pages


def beside(index: Place, page: Page | Root, number: int) -> Page | Root:
    """Return a family's page with the lines that its other log has there since this entry.

    A page is a function of the states of both logs: whichever writes it keeps the other's number.
    """
    if not number:
        return page
    other, names = index.beside, [page.project] if page.project else []
    there = pages_of(other, log.at(other, number, names), names, [index.view])[-1]
    near, far = (page, there) if page.shared is None else (there, page)
    marks: dict[str, Any] = {"view": page.view, "number": near.number, "shared": far.shared}
    if isinstance(near, Root) or isinstance(far, Root):
        projects = (item.projects for item in (near, far) if isinstance(item, Root))
        return Root(projects=frozenset().union(*projects), **marks)
    here = {entry.filename for entry in near.files}
    more = [entry for entry in far.files if entry.filename not in here]
    return Page(
        project=page.project,
        files=(*near.files, *more),
        far={entry.filename: far.far[entry.filename] for entry in more},
        whole=near.whole | far.whole,
        **marks,
    )


def stored(place: Place, entries: Iterable[Entry | WheelEntry]) -> dict[str, ObjectInfo]:
    """Return what is stored at a place under the names of these versions, by file name.

    One listing per project and version: its cost does not grow with the place.
    """
    names = (WheelName.parse(entry.filename) for entry in entries)
    starts = sorted({f"{name.distribution}-{name.version_text}-" for name in names})
    listings = place.each(lambda start: list(place.store.keys(place.key(start))), starts)
    base = place.key("")
    return {info.key.removeprefix(base): info for infos in listings for info in infos}


def put_metadata(place: Place, entry: Entry, data: bytes) -> None:
    """Store the METADATA of a wheel beside it (PEP 658), once."""
    key = place.metadata(entry.filename)
    headers = Headers(content_type=TEXT, cache_control=place.wheel_cache)
    place.store.create(key, data, headers=headers, sha256=entry.metadata_sha256)


def is_settled(state: IndexState) -> bool:
    """Return whether the pages show a state: no command was stopped after its commit."""
    return state.number == state.saved


def verify(place: Place, entry: Entry) -> None:
    """Check that a wheel that was released is there with its bytes. Raises StoreError."""
    store, key = place.store, place.key(entry.filename)
    info = store.info(key)
    if info is None:
        raise ObjectMissingError(
            f"{store.locate(key)}: the wheel is gone",
            hint="it was deleted by hand: build the set again under a new version",
        )
    if (digest := store.digest(info)) != entry.sha256:
        raise replaced(store.locate(key), digest, entry.sha256)


def page_lines(place: Place, entries: Iterable[Entry], action: Action) -> list[str]:
    """Return the pages that change, for people, in their order, and which URL is waited for."""
    projects = in_order({entry.project for entry in entries}, removing=action.removes)
    lines = [f"page     {place.store.locate(place.index)}/{project}/" for project in projects]
    if lines and place.public_url and (action.adds or action.removes):
        lines.append(f"await    {place.url}: {duration(PUBLIC_SECONDS)} at most, until it shows it")
    return lines


def check_clock(
    store: Store,
    keys: Iterable[str],
    *,
    now: datetime,
    where: str,
    limit: timedelta = CLOCKS_DIFFER,
) -> None:
    """Refuse to call anything old by a clock that is far off the store's. Raises ConfigError.

    The store tells its time with the first of these objects that is there. A plan of nothing is
    checked as well: leftovers of uploads are found when it is applied.
    """
    info = next(filter(None, map(store.info, keys)), None)
    if info and info.now and abs(now - info.now) > limit:
        raise ConfigError(
            f"{where}: this machine's clock says {now:%Y-%m-%d %H:%M}, the store's "
            f"{info.now:%Y-%m-%d %H:%M}; they may differ by {duration(limit.total_seconds())}",
            hint="set the clock: the log keeps times, and what is pruned is gone for ever",
        )


class Tally:
    """Adds up bytes from many threads for one progress bar."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._done = progress, 0
        self._lock = threading.Lock()

    def __call__(self, size: int) -> None:
        with self._lock:
            self._done += size
            self._progress.update(self._done)


def _shown(
    operation: Operation, entry: Transition, state: IndexState, claims: Iterable[Claim]
) -> IndexState:
    """Let, in step 6, the pages show what was committed."""
    place = operation.place
    projects = touched(state, entry)
    order = in_order(state.touched, removing=False)
    try:
        after = repair(place, state, order, views=state.seen, claims=claims)
        for index in indexes(place, state, entry.families or ()):
            seen = state.of(index.view)
            changed = {
                project: [
                    file.entry
                    for file in state.listing(project).files
                    if set(entry.sets or [h.set for h in entry.brings]) & set(file.sets)
                    and seen.is_listed(file) is not state.removes
                ]
                for project in projects
            }
            if entry.action.adds or entry.action.removes:
                await_public(index, changed, seconds=PUBLIC_SECONDS, absent=entry.action.removes)
    except StoreError as exc:
        then = f"; then `{place.command('repair')}`, or the same command again, completes it"
        raise StoreError(
            f"{exc} ({entry.action.value} is committed as entry {entry.number} of the log, and the "
            "pages do not show it yet)",
            hint=exc.hint if isinstance(exc, AheadError) else f"{exc.hint}{then}",
        ) from exc
    return after


def _check_ahead(place: Place, state: IndexState, entry: Transition) -> Collection[Claim]:
    """Refuse to commit what a page would not show, since it is ahead of the log.

    Return what the pages say. Raises StoreError.
    """
    projects = touched(state, entry)
    claims = _claims(place, state, projects, entry.families or ())
    for (index, name), claim in claims.items():
        if claim.number <= state.number:
            continue
        check_sound(place, state, pages=projects)  # else it lists the same, and can be made again
        if claim.number > (end := log.read(place).number):
            raise AheadError(place, f"{index.index}/{name}", claim.number, end)
    return claims.values()


def _check_claims(place: Place, state: IndexState, entry: Transition) -> None:
    """Refuse to write over pages that no entry of the log knows. Raises StoreError."""
    if entry.action is Action.ADOPT:
        return
    every = touched(state, entry)
    new = [project for project in every if project not in state.projects]
    begun = [place.shown_as(view) for view in {*(entry.pages or ())} - {*state.views}]
    asked = [*product(indexes(place, state), new), *product(begun, (*every, ""))]
    asked += [] if state.number else [(place.shown_as(place.family), "")]
    for index, project in asked:
        claim = claimed(index, project)
        if claim is None or not claim.number or (state.number and claim.is_empty):
            continue  # nothing is there that could be lost, or the page's other log has it
        number = claim.number
        if 0 <= number <= state.number > 0:
            continue  # of a log that was lost, and made again by an adoption of all it listed
        if number > state.number and log.read(place).number > state.number:
            continue  # another command was faster, and the commit will say so
        where = place.store.locate(f"{index.index}/{project}")
        made = "another tool" if number < 0 else "a log that is gone"
        raise StoreError(
            f"{where.rstrip('/')}/: this page was made by {made}",
            hint=f"take its files over first: `{place.command('adopt')}`",
        )
