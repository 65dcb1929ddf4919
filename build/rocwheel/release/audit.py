"""`index check` downloads and compares everything an index lists; `index repair` repairs its pages.

A check writes nothing. A repair undoes what a stopped run, a lost page or a change by hand left at
one place: afterwards every page shows what the log says, and pruned files are deleted.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, product
from pathlib import Path
from typing import Any, Final

from rocwheel.base import files
from rocwheel.base.choices import ALL
from rocwheel.base.errors import ConfigError, ObjectMissingError, RocwheelError, WheelError
from rocwheel.base.store import Counter, HugeError, ObjectInfo, fetch, glance
from rocwheel.base.values import Plain, replace
from rocwheel.records.entry import Entry
from rocwheel.records.places import BUNDLE, Place
from rocwheel.release import operations, retention, status, wheelset
from rocwheel.release.index.page import Page, Root, links, mark
from rocwheel.release.index.publish import forms
from rocwheel.release.ledger import log, manifests
from rocwheel.release.ledger.state import Action, IndexState, Transition
from rocwheel.release.operations import Who

_AHEAD: Final = "the log ends with"  # of a page that shows a later entry


class Checked(Plain, frozen=True, kw_only=True):
    """The extent of a check, and one line per problem."""

    files: int
    problems: tuple[str, ...]


def check(place: Place, *, count: Counter | None = None) -> Checked:
    """Download everything the index lists and compare.

    Compared: the log, folded again, with its snapshot; every form of every page with what the log
    says; what it lists with hash and size; METADATA in the wheel with `.metadata` and
    Requires-Python; requirements within each set.
    """
    state = log.load(place, log.read(place), None)
    if state.before:
        lines = operations.carried_lines(place, state)
        return Checked(files=0, problems=(*lines, f"`{place.command('repair')}` does it"))
    damage = operations.damage(place, state, state.projects)
    problems = list(status.problems(place, state, damage))
    if damage and not place.is_staging:
        return Checked(files=0, problems=tuple(problems))  # pages know more than it
    problems += _check_log(place, state)
    problems += check_pages(place, state)
    views = [state.of(view) for view in _views(place, state)]
    pairs = product(views, sorted(state.projects))
    listed = {entry.path: entry for seen, project in pairs for entry in seen.shown(project)}
    metadata: dict[str, bytes] = {}

    def one(entry: Entry) -> list[str]:
        known = state.sets.get(entry.manifest)
        wrong, data = _check_file(place, entry, known.home if known else "", count)
        metadata[entry.path] = data
        return wrong

    for wrong in place.each(one, listed.values()):
        problems += wrong
    problems += _check_sets(place, state, metadata)
    return Checked(files=len(listed), problems=tuple(problems))


def _views(place: Place, state: IndexState) -> tuple[str, ...]:
    """Return the indexes that are looked at: one family's, or with `all` every one."""
    return state.views if place.family == ALL else (place.family,)


class IndexRepair(Plain, frozen=True, kw_only=True):
    """The problems of the pages of a place, and the keys that were deleted there."""

    place: Place
    who: Who
    problems: tuple[str, ...]
    skips: tuple[Transition, ...] = ()  # entries that stand for damaged ones
    deleted: tuple[str, ...] = ()  # keys; known when it was applied

    def lines(self) -> list[str]:
        locate = self.place.store.locate
        return [*self.problems, *(f"deleted {locate(key)}" for key in self.deleted)]

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        done = "planned" if dry_run else "repaired"
        return {
            "state": done if self.problems or self.deleted else "nothing-to-do",
            "place": self.place.location,
            "found": list(self.problems),
            "deleted": list(self.deleted),
        }


def plan_repairs(
    places: Iterable[Place], who: Who, skip: Collection[str] = ()
) -> list[IndexRepair]:
    """Compare every page of these places with its log; write nothing.

    `skip` names entries to give up, by number or key. Raises StoreError for a log
    of a release that is damaged beside them, ConfigError for a name of no damaged entry, or of two.
    """
    plans = [_plan_repair(place, who, skip) for place in places]
    for name in skip:
        meant = [
            (p.place, e.number) for p in plans for e in p.skips if _is(p.place, name, e.number)
        ]
        if len(meant) != 1:
            where = " and ".join(plan.place.location for plan in plans)
            keys = " ".join(f"--skip-entry {place.log(number)}" for place, number in meant)
            raise ConfigError(
                f"--skip-entry {name}: means {len(meant)} damaged entries of {where}",
                hint=f"name those that are lost for good: {keys}"
                if keys
                else "`status` names the entries that are damaged",
            )
    return plans


def _is(place: Place, name: str, number: int) -> bool:
    """Return whether an entry of a place is meant by a name."""
    return name in {str(number), place.log(number), place.store.locate(place.log(number))}


def _plan_repair(place: Place, who: Who, skip: Collection[str]) -> IndexRepair:
    place = place.of(ALL)  # all pages that show its log are repaired
    state, skips = log.read(place, None, afresh=not place.is_staging), list[int]()
    for _ in skip:  # each shows what is damaged after it
        damaged = operations.damage(place, state, state.projects, skips)
        if named := [n for n in sorted(damaged) if any(_is(place, name, n) for name in skip)]:
            skips.append(named[0])
            state = log.read(place, None, skips=skips)
    operations.check_sound(place, state, pages=state.projects, skips=skips)
    problems = operations.carried_lines(place, state) or check_pages(place, state)
    problems += [f"{place.location}: entry {n} changes nothing from now on" for n in skips]
    shown = operations.indexes(place, state) if skips else ()
    for index, project in product(shown, sorted(state.projects)):
        data, _ = glance(place.store, index.views(project, folder_keys=False)[0])
        where, names = place.store.locate(index.index), {link.filename for link in links(data)}
        problems += [
            f"{where}: lists {entry.filename} again: roll its set back if not meant"
            for entry in state.of(index.family).shown(project)
            if entry.filename not in names
        ]
    entries = tuple(_skip(place, number, who) for number in skips)
    return IndexRepair(place=place, who=who, problems=tuple(problems), skips=entries)


def apply_repair(repair: IndexRepair) -> IndexRepair:
    """Write every page again and delete; return the same with the keys that were deleted."""
    for entry in repair.skips:
        log.skip(repair.place, entry)
    return replace(repair, deleted=retention.repair(repair.place, repair.who))


def _skip(place: Place, number: int, who: Who) -> Transition:
    was, _ = glance(place.store, place.log(number))
    return Transition(
        number=number,
        previous="",
        id=uuid.uuid4().hex,
        action=Action.SKIP,
        time=who.time,
        by=who.by,
        reason=who.reason,
        evidence={"was": was.decode(errors="backslashreplace")},
    )


def check_pages(place: Place, state: IndexState) -> list[str]:
    """Compare every form of every page with what a state of the log says, all of it loaded."""
    state = retention.recalled(place, state)
    if not state.projects:
        return []
    # Whether pages are stored under folder keys is seen, not tried: a check writes nothing.
    index = place.of((state.views or (place.family,))[0])
    first = next(iter(place.store.keys(f"{index.index}/")), None)
    folders = first is not None and first.key == f"{index.index}/"
    views = _views(place, state)
    pages = operations.pages_of(place, state, sorted(state.projects), views)
    problems = place.each(lambda page: _check_page(place, page, folder_keys=folders), pages)
    said = list(dict.fromkeys(chain.from_iterable(problems)))
    if any(_AHEAD in text for text in said) and log.read(place).number > state.number:
        # others went on while this looked, and pages show it
        return check_pages(place, log.read(place, None))
    return said


def _check_log(place: Place, state: IndexState) -> Iterator[str]:
    """Compare the snapshot with the fold of the log: either may have been changed by hand."""
    if not state.number:
        return
    again = log.load(place, log.read(place, afresh=True), None)
    if log.differ(place, state, again):
        repairs = f"`{place.command('repair')}` repairs it"
        yield f"{place.store.locate(place.state)}: not what the log says: {repairs}"
    if again.number < state.number:
        yield f"{place.store.locate(place.log(again.number + 1))}: missing, put it back"
    for problem in {*again.damage.values()} - {*state.damage.values()}:
        yield f"{place.location}: {problem}"


def _check_page(place: Place, page: Page | Root, *, folder_keys: bool) -> list[str]:
    """Every form of a page lists what the log says."""
    index = place.of(page.family)
    again, problems = f"`{place.command('repair')}` makes it again", []
    for form in forms(place, page, folder_keys=folder_keys):
        where = place.store.locate(form.key)
        data, info = glance(place.store, form.key)
        if info is None:
            problems.append(f"{where}: missing: {again}")
            continue
        number = mark(data)
        if number is None or (number <= form.number and data != form.render(number)):
            elsewhere = number is not None and links(data) == links(form.render(number))
            is_html = not form.key.endswith(".json") and index.url.encode() not in data
            problems.append(
                f"{index.store.locate(index.index)}: pages name another address than {index.url}: "
                f"{again}"
                if elsewhere and is_html
                else f"{where}: not what the log says: {again}"
            )
        if number is not None and number > form.number:
            problems.append(
                f"{where}: shows entry {number}, {_AHEAD} {form.number}: {again}; where "
                "the log lost its end, put it back first"
            )
    return problems


def _check_file(
    place: Place, entry: Entry, home: str, count: Counter | None
) -> tuple[list[str], bytes]:
    """Download a wheel; compare digest, size, METADATA, Requires-Python."""
    where = place.locate(entry.path)
    problems: list[str] = []
    try:
        with downloaded(place, entry.path, count) as (path, info):
            if (info.sha256, info.size) != (entry.sha256, entry.size):
                problems.append(f"{where}: SHA-256 is {info.sha256}, listed is {entry.sha256}")
            inside = wheelset.read_metadata(path)
        proof = place.at(home).built(entry.manifest, f"{entry.filename}.provenance")
        if entry.provenance and not place.store.info(proof):
            problems.append(f"{where}: its provenance is gone")
        if entry.metadata_sha256:
            beside, _ = place.store.read(place.key(f"{entry.path}.metadata"))
            if beside != inside or files.sha256(beside) != entry.metadata_sha256:
                problems.append(f"{where}.metadata: not the wheel's METADATA")
            required = wheelset.requires_python(inside, name=entry.filename)
            if required != entry.requires_python:
                problems.append(f"{where}: Requires-Python is {required!r}, listed is another")
    except (ObjectMissingError, HugeError, WheelError) as exc:
        return [*problems, str(exc)], b""
    return problems, inside


def _check_sets(place: Place, state: IndexState, metadata: Mapping[str, bytes]) -> Iterator[str]:
    """Every listed set is complete and closed, for each of its CPythons."""
    views = {*_views(place, state)}
    for known in (item for item in state.listed if views & {*item.views}):
        home = state.at(place, known.id)
        for view, sha256 in known.bundles.items():  # of 0.2, which added to them, as well
            key = home.of(view).attestation(known.id, BUNDLE)
            data, _ = glance(place.store, key)
            is_old = files.sha256(data) != sha256 and not place.store.info(
                home.of(view).bundle(sha256)
            )
            if files.sha256(data) != sha256 and not (is_old and manifests.begins(data, sha256)):
                again = f"`{place.command('repair')}` puts them back"
                yield f"{place.store.locate(key)}: not the statements that the log names: {again}"
        try:
            manifest = manifests.find(home, known.id)
            if manifest is None:
                yield f"{place.store.locate(home.manifest(known.id))}: missing"
                continue
            wheelset.check_complete(manifest)
            own = dict[str, bytes]()
            for wheel in manifest.built:
                path = home.wheel(wheel.filename, wheel.sha256).removeprefix(place.key(""))
                if not metadata.get(path):
                    hint = f"`{place.command('repair')}`"
                    raise WheelError(f"{wheel.filename}: not listed or not readable", hint=hint)
                own[wheel.filename] = metadata[path]
            wheelset.check_closed(manifest, own)
        except RocwheelError as exc:
            yield f"{place.location}: {known.id[:12]}: {exc}"


@contextmanager
def downloaded(place: Place, path: str, count: Counter | None) -> Iterator[tuple[Path, ObjectInfo]]:
    """Fetch a wheel into a scratch file, hashed while it comes; the file is removed afterwards."""
    with tempfile.NamedTemporaryFile(prefix="rocwheel-", suffix=".whl") as file:
        info = fetch(place.store, place.key(path), file, count)
        yield Path(file.name), info
