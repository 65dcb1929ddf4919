"""Changing pages so that several publishers at once lose nothing.

A page is three objects that cannot change together: its JSON state and one or two HTML views. The
rule that keeps them right: read the views, read the state, swap the state, swap the views. A view
is only ever swapped for the one read *before* the state it is rendered from, so whoever swaps a
view last has seen the newest state; a swap that fails starts over. A publisher that is killed in
between leaves views that say what was true before, and the next run renders them.

Per page: three reads, at most three writes, one read of what is served.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rocwheel.errors import ObjectMissingError, ObjectStaleError, StoreError
from rocwheel.index.page import Page, Root, is_ours, links
from rocwheel.store import pause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from rocwheel.index.page import Entry
    from rocwheel.places import Place
    from rocwheel.store import Headers, Info

ATTEMPTS: Final = 60  # swaps that fail because somebody else was faster
POLL_SECONDS: Final = 2.0


def read_page(place: Place, project: str) -> Page:
    """The state of a page; an empty page where none is stored."""
    key = place.state(project)
    try:
        data, _ = place.store.read(key)
    except ObjectMissingError:
        return Page(project=project)
    return Page.from_json(data, where=place.store.locate(key))


def read_root(place: Place) -> Root:
    """The list of projects; an empty one where none is stored."""
    key = place.state("")
    try:
        data, _ = place.store.read(key)
    except ObjectMissingError:
        return Root()
    return Root.from_json(data, where=place.store.locate(key))


def change_page(
    place: Place,
    project: str,
    edit: Callable[[Page], Page],
    *,
    losing: frozenset[str] = frozenset(),
    adopting: bool = False,
    mending: bool = False,
) -> bool:
    """Apply `edit` to a page and see it served; return whether the page is new at this place.

    `losing` names the files that may leave. Raises StoreError when others would, when the page is
    another tool's (unless `adopting`) or cannot be read (unless `mending`: then it counts as
    empty), or when what is served afterwards is not what was written.
    """

    def parse(state: _Stored) -> Page:
        try:
            where = place.store.locate(state.key)
            return Page.from_json(state.data, where=where) if state.data else Page(project=project)
        except StoreError:
            if not mending:
                raise
            return Page(project=project)

    def apply(page: Page) -> Page:
        after = edit(page)
        _refuse_loss(place, page, after, losing)
        return after

    def render(page: Page) -> bytes:
        return page.to_html(family=place.family, index_url=place.url)

    after, body, is_new = _change(place, project, parse, apply, render, adopting=adopting)
    _see(place, project, after, body)
    return is_new


def change_root(place: Place, projects: Iterable[str], *, mending: bool = False) -> None:
    """Add projects to the list; they never leave it. `mending` as in `change_page`."""
    added = frozenset(projects)

    def parse(state: _Stored) -> Root:
        try:
            where = place.store.locate(state.key)
            return Root.from_json(state.data, where=where) if state.data else Root()
        except StoreError:
            if not mending:
                raise
            return Root()

    def render(root: Root) -> bytes:
        return root.to_html(family=place.family, index_url=place.url)

    _change(
        place, "", parse, lambda root: Root(projects=root.projects | added), render, adopting=True
    )


def await_public(
    place: Place, files: Mapping[str, Iterable[Entry]], *, seconds: float, absent: bool = False
) -> None:
    """Wait until the public URL lists the files (or, `absent`, no longer does).

    A CDN may show an old page for as long as it was told to. Raises StoreError when it does so
    for longer than `seconds`. Does nothing for a place without a public URL.
    """
    import requests

    if not place.public_url:
        return
    deadline = time.monotonic() + seconds
    for project, entries in files.items():
        url = place.link(f"{project}/")
        wanted = {(item.filename, item.sha256) for item in entries}
        while True:
            try:
                answer = requests.get(url, headers={"Cache-Control": "no-cache"}, timeout=30)
                shown = {(item.filename, item.sha256) for item in links(answer.content)}
                problem = f"{answer.status_code}" if answer.status_code != requests.codes.ok else ""
            except requests.RequestException as exc:
                shown, problem = set(), str(exc)
            if not problem and not (wanted & shown if absent else wanted - shown):
                break
            if time.monotonic() > deadline:
                what = problem or ("still listed" if absent else "not listed")
                name = min(item.filename for item in entries)
                raise StoreError(
                    f"{url}: {name}: {what} after {seconds:.0f} s",
                    hint="the store itself is right; check the CDN, then run the command again",
                )
            time.sleep(POLL_SECONDS)


@dataclass(frozen=True, kw_only=True)
class _Stored:
    """An object as it was read, or None twice where nothing is stored."""

    key: str
    data: bytes | None
    info: Info | None

    @classmethod
    def read(cls, place: Place, key: str) -> _Stored:
        try:
            data, info = place.store.read(key)
        except ObjectMissingError:
            return cls(key=key, data=None, info=None)
        return cls(key=key, data=data, info=info)

    def swap(self, place: Place, body: bytes, headers: Headers) -> None:
        """Replace it, if nobody did. Raises ObjectStaleError."""
        if self.data != body:
            place.store.replace(self.key, body, previous=self.info, headers=headers)


def _change(
    place: Place,
    project: str,
    parse: Callable[[_Stored], Any],
    edit: Callable[[Any], Any],
    render: Callable[[Any], bytes],
    *,
    adopting: bool,
) -> tuple[Any, bytes, bool]:
    """Swap state and views; return the new state, its view, and whether there was none before."""
    keys = place.views(project, folder_keys=place.store.abilities().folder_keys)
    for failures in range(1, ATTEMPTS + 1):
        views = [_Stored.read(place, key) for key in reversed(keys)]  # served last, changed last
        state = _Stored.read(place, place.state(project))
        if state.data is None and not adopting:
            _refuse_foreign(place, views)
        after = edit(parse(state))
        try:
            state.swap(place, after.to_json(), place.state_headers)
            body = render(after)
            for view in views:
                view.swap(place, body, place.view_headers)
        except ObjectStaleError:
            pause(min(failures, 6))
            continue
        return after, body, state.data is None
    raise ObjectStaleError(
        f"{place.store.locate(place.state(project))}: changed by others {ATTEMPTS} times in a row",
        hint="run the same command again",
    )


def _see(place: Place, project: str, page: Page, body: bytes) -> None:
    """Read what is served: it is the view that was written, or somebody changed it since."""
    key = place.views(project, folder_keys=place.store.abilities().folder_keys)[0]
    data, _ = place.store.read(key)
    if data == body:
        return
    shown = {(item.filename, item.sha256) for item in links(data)}
    now = read_page(place, project)
    for item in page.files:
        if now.file(item.filename) == item and (item.filename, item.sha256) not in shown:
            raise StoreError(
                f"{place.store.locate(key)}: {item.filename} is not listed",
                hint="run the same command again; if it stays, the store serves old objects",
            )


def _refuse_loss(place: Place, before: Page, after: Page, losing: frozenset[str]) -> None:
    lost = {item.filename for item in before.files} - {item.filename for item in after.files}
    if lost - losing:
        raise StoreError(
            f"{place.store.locate(place.state(before.project))}: would lose {min(lost - losing)}",
            hint="files leave an index only through rollback and prune",
        )


def _refuse_foreign(place: Place, views: Iterable[_Stored]) -> None:
    for view in views:
        if view.data is not None and not is_ours(view.data):
            raise StoreError(
                f"{place.store.locate(view.key)}: this page was made by another tool",
                hint="take its files over first: `index adopt`",
            )
