"""Publishes pages: `settle` makes them show a state of the log, even after it was stopped.

A page is put only if it is older than the state and lists something else, and only in place of
exactly what was read. Since each page carries the number of its state in its bytes, a publisher
that was delayed for hours finds its page changed and leaves it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby, product
from typing import TYPE_CHECKING, Final, TypeAlias

from rocwheel.base.errors import ConfigError, FetchError, ObjectStaleError, RefusedError, StoreError
from rocwheel.base.store import Headers, ObjectInfo, glance, pause
from rocwheel.base.values import Plain, replace
from rocwheel.records.entry import Entry, rank, version_of
from rocwheel.records.places import COMPAT, Place, kept_seconds
from rocwheel.release.index.page import Page, Root, links, mark, with_mark

if TYPE_CHECKING:  # what only waits for public pages
    from rocwheel.base.download import Client

Shown: TypeAlias = "Page | Root"


class AheadError(StoreError):
    """A page shows an entry that the log does not have: a later one than it ends with."""

    def __init__(self, place: Place, where: str, shown: int, end: int) -> None:
        super().__init__(
            f"{where}: shows entry {shown}, the log ends with {end}",
            hint=f"run `{place.command('repair')}`; where the log lost its end, put it back first",
        )


ATTEMPTS: Final = 60  # reads of a page that another process changes each time
FAILURES: Final = 3  # of a write before it is given up
POLL_SECONDS: Final = 2.0
PAGE_BYTES: Final = 64 << 20  # of a public page; one link is some 300 bytes
ROUND: Final = 1.0  # seconds; HTTP dates have no fractions


class Form(Plain, frozen=True, kw_only=True):
    """One stored form of a page (HTML or JSON): its key, and its bytes for any state's number."""

    key: str
    headers: Headers
    number: int
    body: bytes  # for that number; rendered once, also where pages are many megabytes
    is_new: bool = False  # nothing is expected there

    def render(self, number: int) -> bytes:
        """Return its bytes for a state of this number that lists the same."""
        return self.body if number == self.number else with_mark(self.body, number)


def forms(place: Place, page: Shown, *, folder_keys: bool) -> tuple[Form, ...]:
    """Return all objects of one page at a place; the one served first comes last."""
    index = place.of(page.family)
    compat = "" if place.is_staging or "/" in page.family else COMPAT
    html = page.to_html(index_url=index.url, compat=compat)
    body = page.to_json(index_url=index.url)
    number, views = page.number, index.views(page.project, folder_keys=folder_keys)
    return (
        Form(key=index.json(page.project), headers=place.json_headers, number=number, body=body),
        *(
            Form(key=key, headers=place.view_headers, number=number, body=html)
            for key in reversed(views)
        ),
    )


def settle(
    place: Place,
    pages: Sequence[Shown],
    *,
    removing: bool,
    log_end: Callable[[], int],
    claims: Iterable[Claim] = (),
    absent: Collection[tuple[str, str]] = (),
    repairs: bool = False,
) -> None:
    """Let every page show at least its state, the pages others need before (or after) theirs.

    Between the two it waits until no cache on the way to an installer can have an older copy of the
    earlier pages. Raises StoreError; the next `settle` does the rest.

    A page that is ahead of the state was put by a faster process, after an entry of the log. Where
    `log_end`, asked after the page was read, says that there is none, it is an error, or with
    `repairs` a page to put. What `claims` read before is not read again where it must be put: the
    put itself finds out whether it is still what was read. So do pages that are `absent` for all
    that the log says, by index and project.
    """
    early = {claim.info.key: claim for claim in claims}

    def step(page: Shown) -> int:
        return rank(page.project) if page.project else 2

    if not pages:
        return
    folders = place.store.abilities().folder_keys
    steps = [
        [
            replace(form, is_new=(page.family, page.project) in absent)
            for page in group
            for form in forms(place, page, folder_keys=folders)
        ]
        for _, group in groupby(sorted(pages, key=step, reverse=removing), step)
    ]
    copies_end = 0.0  # by time.monotonic()
    for wanted in steps:
        seen = place.each(lambda form: _look(place, form, early.get(form.key)), wanted)
        if max(item.number for item in seen) > wanted[0].number:
            seen = _checked_ahead(place, wanted, seen, log_end(), repairs=repairs)
        if any(item.is_behind for item in seen) and (left := copies_end - time.monotonic()) > 0:
            time.sleep(left)
        ends = place.each(partial(_put, place), seen)
        copies_end = max((copies_end, *ends))


def await_public(
    place: Place, files: Mapping[str, Iterable[Entry]], *, seconds: float, absent: bool = False
) -> None:
    """Wait until the public URL lists the files (or, `absent`, no longer does).

    A CDN may show an old page for as long as its headers allow. Raises StoreError after `seconds`.
    Does nothing for a place without a public URL.
    """
    if not place.public_url:
        return
    from rocwheel.base.download import Client, Retry

    deadline = time.monotonic() + seconds
    once = Retry(attempts=1, contact=seconds + POLL_SECONDS)  # the loop below is the patient one
    with Client(place.public_environ, retry=once, note=lambda _: None) as client:
        for project, entries in files.items():
            url = f"{place.url}{project}/"
            wanted = {(item.filename, item.sha256) for item in entries}
            while wanted and (problem := _unlike(client, url, wanted, absent=absent)):
                if time.monotonic() > deadline:
                    name, _ = min(wanted)
                    raise StoreError(
                        f"{url}: {name}: {problem} after {seconds:.0f} s",
                        hint="the store itself is right; check the CDN, then run the command again",
                    )
                time.sleep(POLL_SECONDS)


def _unlike(client: Client, url: str, wanted: set[tuple[str, str]], *, absent: bool) -> str:
    try:
        page = client.read(url, limit=PAGE_BYTES, fresh=True)
    except FetchError as exc:
        return str(exc).removeprefix(f"{url}: ")
    shown = {(item.filename, item.sha256) for item in links(page)}
    if absent:
        return "still listed" if wanted & shown else ""
    return "not listed" if wanted - shown else ""


def page_seconds(indexes: Sequence[Place], projects: Collection[str]) -> int:
    if not (indexes and projects):
        return 0
    place, pages = indexes[0], product(indexes, projects)
    folders = place.store.abilities().folder_keys
    keys = [key for i, n in pages for key in (i.json(n), *i.views(n, folder_keys=folders))]
    infos = place.each(place.store.info, keys)
    return max((_kept(place, info) for info in infos if info), default=0)


def _kept(place: Place, info: ObjectInfo) -> int:
    return kept_seconds(info.cache_control or place.page_cache)


class Claim(Plain, frozen=True, kw_only=True):
    """A page that is stored under a project's name, ours or not."""

    project: str
    number: int  # of the state it shows; -1: another tool made it; 0: a log of before 0.3
    data: bytes
    info: ObjectInfo

    @property
    def is_empty(self) -> bool:
        """Return whether it lists no file of the project: none but wheels of another one."""
        for link in links(self.data):
            try:
                if version_of(link.filename)[0] == self.project:
                    return False
            except ConfigError:  # for all that is known, it is the project's
                return False
        return True

    @property
    def shows(self) -> frozenset[tuple[str, str | None]]:
        return frozenset((link.filename, link.yanked) for link in links(self.data))


def claimed(place: Place, project: str) -> Claim | None:
    plain = place.views(project, folder_keys=False)[0]
    for key in (plain, place.json(project)):
        data, info = glance(place.store, key)
        if info:
            number = -1 if (shown := mark(data)) is None else shown
            return Claim(project=project, number=number, data=data, info=info)
    return None


class _Seen(Plain, frozen=True, kw_only=True):
    """An object as it was read, or nothing; `ends` is when no older copy can be left."""

    form: Form
    info: ObjectInfo | None = None
    is_behind: bool = True  # it must be put
    ends: float = 0.0
    number: int = 0  # of the state it shows
    kept: int = 0  # seconds that copies of it may be kept, by its own Cache-Control


def _look(place: Place, form: Form, early: Claim | None = None) -> _Seen:
    if form.is_new:
        return _Seen(form=replace(form, is_new=False))
    data, info = (early.data, early.info) if early else glance(place.store, form.key)
    if info is None:
        return _Seen(form=form)
    number = mark(data)
    is_behind = number is None or (number <= form.number and data != form.render(number))
    if early and not is_behind:  # no put will find out whether it changed since
        return _look(place, form)
    left = float(kept := _kept(place, info))
    if left and info.now:
        left = max(0.0, left + ROUND - (info.now - info.modified).total_seconds())
    ends = time.monotonic() + left if left else 0.0
    return _Seen(
        form=form, info=info, is_behind=is_behind, ends=ends, number=number or 0, kept=kept
    )


def _checked_ahead(
    place: Place, wanted: Sequence[Form], seen: Sequence[_Seen], end: int, *, repairs: bool
) -> list[_Seen]:
    wrong = [form for form, item in zip(wanted, seen, strict=True) if item.number > end]
    if wrong and not repairs:
        raise AheadError(
            place, place.store.locate(wrong[0].key), max(item.number for item in seen), end
        )
    return [replace(item, is_behind=item.is_behind or item.number > end) for item in seen]


def _put(place: Place, seen: _Seen) -> float:
    """Put a page where it is behind; return when no older copy of it can be left."""
    failures, form = 0, seen.form
    for attempt in range(1, ATTEMPTS + 1):
        if not seen.is_behind:
            return seen.ends
        try:
            body = seen.form.render(form.number)
            place.store.replace(form.key, body, previous=seen.info, headers=form.headers)
        except ObjectStaleError:
            pause(min(attempt, 6))
        except RefusedError:
            raise
        except StoreError:  # which is no proof that it did not happen: read again
            failures += 1
            seen = _look(place, form)
            if seen.is_behind and failures == FAILURES:
                raise
            pause(failures)
        else:
            # copies of what stood there live as long
            kept = max(kept_seconds(place.page_cache), seen.kept)
            return time.monotonic() + kept if kept else 0.0
        seen = _look(place, form)
    raise ObjectStaleError(
        f"{place.store.locate(form.key)}: changed by others {ATTEMPTS} times in a row",
        hint="run the same command again",
    )
