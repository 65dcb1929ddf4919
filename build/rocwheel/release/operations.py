"""The one transaction that changes an index: decide on a state of the log, commit, settle.

`perform` is the one transaction; every command that changes an index is an `Operation`, which
decides what the next entry of the log is, purely, from a state. docs/release-protocol.md says why
each step is where it is.
"""

import abc
import re
import threading
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from time import monotonic
from typing import Any, Final

from rocwheel.base import files
from rocwheel.base.choices import ALL
from rocwheel.base.console import Progress, count, duration
from rocwheel.base.errors import (
    ConfigError,
    ObjectMissingError,
    ObjectStaleError,
    PromotionError,
    StoreError,
)
from rocwheel.base.store import TEXT, Headers, ObjectInfo, Store, glance, replaced
from rocwheel.base.values import replace
from rocwheel.base.versions import timestamp
from rocwheel.records.entry import Entry
from rocwheel.records.manifest import WheelEntry
from rocwheel.records.places import BUNDLE, LAST_GOOD, NIGHTS, Place
from rocwheel.release.index.page import Page, Root
from rocwheel.release.index.publish import AheadError, Claim, await_public, claimed, settle
from rocwheel.release.ledger import log
from rocwheel.release.ledger.state import (
    Action,
    Carried,
    IndexState,
    Transition,
    apply,
    concerned,
    in_order,
    touched,
)

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
        """The present time by this machine's clock."""
        return self.now + timedelta(seconds=monotonic() - self.began)

    def entry(self, action: Action, number: int, previous: str = "", /, **about: Any) -> Transition:
        """Return an entry of a log, in which this person does that."""
        said = {"id": uuid.uuid4().hex, "by": self.by, "reason": self.reason, **about}
        return Transition(number=number, previous=previous, action=action, time=self.time, **said)


@dataclass(frozen=True, kw_only=True)
class Operation(abc.ABC):
    """One change of an index: `lines` says what it does, `perform` does it once or not at all."""

    place: Place
    who: Who
    start: IndexState  # that it was planned on, with its files
    is_done: bool = False  # as it was planned
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @abc.abstractmethod
    def decide(self, state: IndexState) -> Transition | None:
        """Return the next entry of the log; None where the state is as it should be.

        A function of the state alone, which reads and writes nothing. Raises PromotionError or
        ObjectDiffersError for a change that is not allowed.
        """

    def prepare(self, state: IndexState, entry: Transition | None) -> Transition | None:  # noqa: ARG002
        """Put and verify the bytes that must be there before the commit; may be repeated.

        Return the completed entry; None where none is needed after all.
        """
        return entry

    def entry(self, state: IndexState, action: Action, **about: Any) -> Transition:
        """Return the entry after `state` that does this; `about` are fields of `Transition`."""
        about = {name: v if isinstance(v, dict) else tuple(v) for name, v in about.items() if v}
        return self.who.entry(action, state.number + 1, state.head, id=self.id, **about)

    def lines(self) -> list[str]:
        """Say for people what it does: with older logs, files, pages, and the URL to wait for."""
        place, state = self.place, self.start
        lines = [] if self.is_done else carried_lines(place, state)
        entry = None if self.is_done else self.decide(state)
        if entry is None:
            return [*lines, *self.file_lines(state)]
        action, after = entry.action, apply(state, entry, digest="")
        lines += self.file_lines(after)
        projects = in_order(touched(after, entry), removing=action.removes)
        for index in indexes(place, after, concerned(after, entry)):
            where = index.store.locate(index.index)
            lines += [f"page     {where}/{project}/" for project in projects]
            if index.public_url and (action.adds or action.removes) and "/" not in index.family:
                most = duration(PUBLIC_SECONDS)
                lines.append(f"await    {index.url}: {most} at most, until it shows it")
        return lines

    def file_lines(self, after: IndexState) -> list[str]:  # noqa: ARG002
        """Say what it does with files; `after` is the state that it would leave."""
        return []


def damage(
    place: Place, state: IndexState, pages: Collection[str] = (), skips: Collection[int] = ()
) -> dict[int, str]:
    """Return the problems of a log by the number of the entry, a lost end first.

    A page that shows a later entry than the log has, and lists something else than the log says,
    proves that the log lost its end. Asked are the pages of these projects; where no snapshot fits
    the log, all of them; where it has no entry, the list of projects. The state is read without the
    entries in `skips`.
    """
    end_of = "" if place.is_staging else "; it changes nothing"
    damaged = {number: text.removesuffix(end_of) for number, text in state.damage.items()}
    if place.is_staging:
        return damaged
    if not is_settled(state) and state.is_whole:
        pages = {project for _, project in state.indexed()}
    asked = [*pages_in(place, state, pages, state.views)]  # others show no entry that these do not
    if not state.number:
        asked = [(index, name) for index, name in stored_pages(place) if not name]
    for (index, name), claim in claims(place, asked).items():
        if claim.number <= state.number:
            continue
        end = log.read(place, files=True, skips=skips)
        listed = {(entry.filename, entry.yanked) for entry in end.of(index.family).shown(name)}
        is_other = not name or claim.shows != listed
        if claim.number > end.number and not end.damage and is_other:
            where = place.store.locate(place.log(end.number + 1))
            page = place.store.locate(f"{index.index}/{name}")
            damaged[end.number + 1] = f"{where}: missing: {page} shows entry {claim.number}"
    return damaged


def stored_pages(place: Place, keys: Iterable[str] | None = None) -> Iterator[tuple[Place, str]]:
    """Yield every page below a place, those of others too; "" is a list of projects."""
    base = place.key("")
    keys = (info.key for info in place.store.keys(base)) if keys is None else keys
    page = re.compile(rf"([^/]+(?:/{NIGHTS}/[^/]+|/{LAST_GOOD})?)/(?:([^/_][^/]*)/)?index\.html")
    for key in keys:
        if match := page.fullmatch(key.removeprefix(base)):
            yield place.of(match[1]), match[2] or ""


def claims(place: Place, asked: Iterable[tuple[Place, str]]) -> dict[tuple[Place, str], Claim]:
    pairs = list(asked)
    found = zip(pairs, place.each(lambda pair: claimed(*pair), pairs), strict=True)
    return {pair: claim for pair, claim in found if claim}


def pages_in(
    place: Place, state: IndexState, projects: Collection[str], views: Collection[str] | None = None
) -> Iterator[tuple[Place, str]]:
    """Yield every page of these projects that a state has, in these indexes; None: in all."""
    for view, project in sorted(state.indexed()):
        if project in projects and (views is None or view in views):
            yield place.of(view), project


def indexes(
    place: Place, state: IndexState, views: Collection[str] | None = None
) -> tuple[Place, ...]:
    """Return the place as the users of these indexes see it; None: of all that there are."""
    return tuple(place.of(name) for name in state.indexes if views is None or name in views)


def check_sound(
    place: Place, state: IndexState, *, pages: Collection[str] = (), skips: Collection[int] = ()
) -> None:
    """Raise StoreError for a damaged log of a release: no decision rests on half of it.

    `pages` are projects whose pages are asked as well, `skips` entries that are given up. Staging
    stays lenient: strangers may write there, and a release takes nothing unproven from it.
    """
    if not place.is_staging and (problems := damage(place, state, pages, skips)):
        raise damaged(place, state, problems, skips)


def damaged(
    place: Place, state: IndexState, problems: Mapping[int, str], skips: Collection[int] = ()
) -> StoreError:
    number = min(problems)
    what, skip = place.log(number), " ".join(f"--skip-entry {n}" for n in (*skips, number))
    way = f"`index repair {skip} --reason …`, which the log keeps"
    if not state.number:
        what = place.logs
    if state.before:
        way = "repair it with the rocwheel that wrote it, before this one carries it over"
    wrong, lags = "the log is damaged", ""
    if number > state.number:
        wrong = "the log ends before what its pages show"
        lags = "where this is a copy of the bucket that is not up to date yet, wait for it; else "
    return StoreError(
        f"{place.location}: {wrong}: {problems[number]}",
        hint=f"{lags}put {what} back from a copy of the bucket; if it is lost for good: {way}",
    )


def read(place: Place, *, afresh: bool = False) -> IndexState:
    """Return a state, with its files, to plan an operation on. Raises StoreError for damage."""
    state = log.read(place, afresh=afresh)
    check_sound(place, state)
    return log.load(place, state)


def perform(operation: Operation) -> IndexState:
    """Carry an operation out, from the state on that it was planned on; return the one it left.

    Raises what `decide` and `prepare` raise, having changed nothing; UnknownError where it is not
    known whether it took effect; StoreError where it did and the pages do not show it.
    """
    place, who, state = operation.place, operation.who, operation.start
    if who.is_checked:
        check_clock(place.store, (place.state, place.json("")), now=who.clock, where=place.location)
    seen: Collection[Claim] = ()
    for attempt in range(ATTEMPTS):
        check_sound(place, state)
        if state.before:
            carry(place, state, who)
            state = read(place, afresh=True)
            continue
        entry = operation.decide(state)
        if entry is None:
            state = complete(place, state)
            operation.prepare(state, None)
            return state
        # Indexes of others need not show what was committed for them. What adds may follow what
        # added: one order of the pages is right for both.
        views = concerned(apply(state, entry, digest=""), entry)
        if not entry.action.adds or views & state.removing:
            state = complete(place, state, views)
        seen = () if attempt else _look_ahead(place, state, entry)
        entry = operation.prepare(state, entry)
        if entry is None:
            return state
        made = log.commit(place, entry)
        if isinstance(made, str):
            after = apply(state, entry, digest=made)
            return _shown(operation, entry, after, seen)
        state = log.followed(place, state, made)
    raise PromotionError(
        f"{place.location}: {ATTEMPTS} other changes came first, one after the other",
        hint="run the same command again",
    )


def complete(place: Place, state: IndexState, views: frozenset[str] | None = None) -> IndexState:
    """Make the pages show a state, if a command was stopped before they did.

    With `views` only those of these indexes; the snapshot then waits for the others.
    """
    due = state.seen if views is None else state.seen & views
    if is_settled(state) or (views is not None and not due):
        return state
    return show(place, state, views=due)


def carry(place: Place, state: IndexState, who: Who) -> None:
    """Close the logs of before 0.3, and begin one that says what they say. Bytes stay in place.

    Who is faster, here or with an older rocwheel in one of them, is seen: then it is not done, and
    the caller reads again. Raises StoreError.
    """
    who = replace(who, reason="the layout of 0.3")
    for folder, before in state.before.items():
        closes = who.entry(Action.CLOSE, before.number + 1, before.head, family=folder)
        if not (before.is_closed or isinstance(log.commit(log.old(place, folder), closes), str)):
            return
    begins = who.entry(
        Action.CARRY,
        1,
        evidence={folder: before.number for folder, before in state.before.items()},
        carries=Carried(sets=tuple(state.sets.values()), files=dict(state.listings)),
    )
    digest = log.commit(place, begins)
    if isinstance(digest, str):
        state = apply(replace(state, sets={}, listings={}, before={}), begins, digest=digest)
        complete(place, state)


def carried_lines(place: Place, state: IndexState) -> list[str]:
    """Say for people that a command is going to carry older logs over."""
    return [
        f"{'carry':9}{place.locate(folder)}/, which rocwheel before 0.3 wrote: its log ends with "
        f"{count(len(before.sets), 'set')}, which go on in that of {place.location}; bytes stay"
        for folder, before in state.before.items()
    ]


def show(
    place: Place,
    state: IndexState,
    *,
    views: frozenset[str] | None = None,
    seen: Iterable[Claim] = (),
    repairs: bool = False,
) -> IndexState:
    """Make pages, and the list of projects, show what changed since the snapshot; then save it.

    Pages of the indexes in `views`; None: of all. With `repairs` all pages, also in place of those
    that show what the log never said, which else is an error.
    """
    state = log.load(place, state)
    projects = in_order(state.projects if repairs else state.touched, removing=False)
    changed = {(index.family, name) for index, name in pages_in(place, state, projects, views)}
    has_root, is_known = repairs or not changed <= state.rooted, state.rooted or state.number == 1
    pages = [page for page in pages_of(place, state, projects, views) if (has_root or page.project)]
    for removing in (True, False):
        settle(
            place,
            [page for page in pages if (page.family in state.removing) is removing],
            removing=removing,
            log_end=lambda: log.read(place).number,
            claims=seen,
            # of a log that was read afresh it is not known which pages there were
            absent=changed - state.rooted if is_known and not repairs else (),
            repairs=repairs,
        )
    if views is not None and not views >= state.seen:
        return state  # what others committed meanwhile is theirs to show
    _show_bundles(place, state, repairs=repairs)
    return log.save(place, state)


def _show_bundles(place: Place, state: IndexState, *, repairs: bool) -> None:
    """Write the public copies of new statements as the log names them; of all that `repairs` finds.

    A faster process has put a copy that only adds to ours. Of a promotion by 0.2 the public copy is
    the only one.
    """
    sets = state.sets if repairs else state.attested
    named = [
        (name, view, sha256) for name in sets for view, sha256 in state.sets[name].bundles.items()
    ]

    def show(about: tuple[str, str, str]) -> None:
        set_id, view, sha256 = about
        home = place.of(view).at(state.sets[set_id].home)
        keys = home.attestation(set_id, BUNDLE), home.bundle(sha256)
        copy, info = glance(place.store, keys[0])
        if files.sha256(copy) == sha256 and not repairs:
            return
        ours, own = glance(place.store, keys[1])
        for key, there, previous, other in (
            (keys[0], copy, info, ours),
            (keys[1], ours, own, copy),
        ):
            if files.sha256(other) == sha256 and not there.startswith(other):
                with suppress(ObjectStaleError):
                    place.store.replace(key, other, previous=previous, headers=place.record_headers)

    place.each(show, named)


def pages_of(
    place: Place,
    state: IndexState,
    projects: Iterable[str],
    views: Collection[str] | None = None,
) -> list[Page | Root]:
    """Return the lists of projects, and the pages of these, as a state has them."""
    pages, indexed, parts = list[Page | Root](), dict[str, set[str]](), state.parts(projects)
    for name, project in state.indexed():
        indexed.setdefault(name, set()).add(project)
    for index in indexes(place, state, views):
        seen, own = parts(index.family), indexed[index.family]
        about: Any = {"number": state.number, "family": index.family}
        pages.append(Root(projects=frozenset(own), **about))
        for name in (name for name in seen.listings if name in own):
            files, whole = seen.shown(name), seen.whole(name)
            statements = {}
            for known in (state.sets.get(item.manifest) for item in files):
                if known:
                    view = index.family.partition("/")[0]
                    of = index.of(known.must[0] if view == ALL and known.must else view)
                    key = of.at(known.home).attestation(known.id, BUNDLE)
                    statements[known.id] = key.removeprefix(place.key(""))
            page = Page(project=name, files=files, whole=whole, statements=statements, **about)
            pages.append(page)
    return pages


def stored(place: Place, wheels: Iterable[Entry | WheelEntry]) -> dict[str, ObjectInfo]:
    """Return what is stored at a place of these wheels and their METADATA, by file name."""
    keys = [place.wheel(wheel.filename, wheel.sha256) for wheel in wheels]
    found = chain.from_iterable(place.each(lambda key: list(place.store.keys(key)), keys))
    return {info.key.rpartition("/")[2]: info for info in found}


def put_metadata(place: Place, entry: Entry, data: bytes) -> None:
    key = place.key(f"{entry.path}.metadata")
    headers = Headers(content_type=TEXT, cache_control=place.wheel_cache)
    place.store.create(key, data, headers=headers, sha256=entry.metadata_sha256)


def is_settled(state: IndexState) -> bool:
    """Return whether the pages show a state: no command was stopped after its commit."""
    return state.number == state.saved


def verify(place: Place, entry: Entry) -> None:
    """Check that a wheel that was released is there with its bytes. Raises StoreError."""
    store, key = place.store, place.key(entry.path)
    info = store.info(key)
    if info is None:
        raise ObjectMissingError(
            f"{store.locate(key)}: the wheel is gone",
            hint="it was deleted by hand: build the set again under a new version",
        )
    if (digest := store.digest(info)) != entry.sha256:
        raise replaced(store.locate(key), digest, entry.sha256)


def check_clock(
    store: Store,
    keys: Iterable[str],
    *,
    now: datetime,
    where: str,
    limit: timedelta = CLOCKS_DIFFER,
) -> None:
    """Raise ConfigError for a clock that is far off the store's, since ages depend on it.

    The store's time comes with the first of these objects that exists. An empty plan is checked as
    well: leftovers of uploads are found when it is applied.
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
    operation: Operation, entry: Transition, state: IndexState, seen: Iterable[Claim]
) -> IndexState:
    """Let, in step 6, the pages show what was committed."""
    place = operation.place
    projects = touched(state, entry)
    try:
        after = show(place, state, views=state.seen, seen=seen)
        for index in indexes(place, state, concerned(state, entry) & {*state.views}):
            shows = state.of(index.family)
            changed = {
                project: [
                    file.entry
                    for file in state.listing(project).files
                    if set(entry.sets or [h.set for h in entry.brings]) & set(file.sets)
                    and shows.is_listed(file) is not entry.action.removes
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


def _look_ahead(place: Place, state: IndexState, entry: Transition) -> Collection[Claim]:
    """Look once at the pages that an entry changes, before it is committed; return what they say.

    Refused is what a page would not show, since it is ahead of the log, and what would be written
    over a page that no entry of the log knows. Raises StoreError.
    """
    after = apply(state, entry, digest="")
    projects, views = touched(state, entry), concerned(after, entry) & {*after.views}
    known, here = state.indexed(), {*pages_in(place, after, projects, views)}
    here |= {(place.of(view), "") for view in {*after.views} - {*state.views}}
    asked = {(index, name) for index, name in here if (index.family, name) not in known}
    found = claims(place, sorted(asked if place.is_staging else here, key=str))
    for (index, name), claim in found.items():
        where = place.store.locate(f"{index.index}/{name}").rstrip("/")
        if claim.number > state.number:
            check_sound(place, state, pages=projects)  # else it lists the same, and is made again
            if claim.number > (end := log.read(place).number):
                raise AheadError(place, where, claim.number, end)
        is_new = (index, name) in asked and entry.action is not Action.ADOPT
        if is_new and claim.number <= 0 and not (name and claim.is_empty):
            made = "another tool" if claim.number < 0 else "a log that is gone"
            way = f"take its files over first: `{place.command('adopt')}`"
            if index.family in state.views:
                way = "move it away: this index has sets of ours, and takes no files over"
            raise StoreError(f"{where}/: this page was made by {made}", hint=way)
    return [claim for pair, claim in found.items() if pair not in asked]
