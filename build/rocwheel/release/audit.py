"""`index check`, `index repair` and `index adopt`.

A check writes nothing: it downloads and compares everything an index lists. A repair undoes what a
stopped run, a lost page or a change by hand left at one place: afterwards every page shows what the
log says, and pruned files are deleted. An adoption begins an index with wheels that lay in a
family's folder, listed as they are: they become a set of their own, which is never pruned, and stay
where they are. Yanks are taken over from the pages that list them.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any, Final

from packaging.utils import canonicalize_name

from rocwheel.base import files
from rocwheel.base.choices import ALL
from rocwheel.base.errors import (
    CommandError,
    ConfigError,
    ObjectMissingError,
    PromotionError,
    RocwheelError,
    StoreError,
    WheelError,
)
from rocwheel.base.process import Command, Runner
from rocwheel.base.store import Counter, HugeError, ObjectInfo, fetch, glance
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import PythonVersion, timestamp
from rocwheel.records.entry import Entry, version_of
from rocwheel.records.manifest import Manifest
from rocwheel.records.places import BUNDLE, FOREIGN, NIGHTS, Place
from rocwheel.release import operations, retention, status, wheelset
from rocwheel.release.index.page import Link, Page, Root, links, mark
from rocwheel.release.index.publish import forms
from rocwheel.release.index.serve import Site
from rocwheel.release.ledger import log, manifests
from rocwheel.release.ledger.state import (
    Action,
    Holding,
    IndexState,
    Known,
    Listing,
    Transition,
)
from rocwheel.release.operations import Operation, Who

_AHEAD: Final = "the log ends with"  # of a page that shows a later entry
RESOLVE_SECONDS: Final = 600.0  # for one resolution by pip


class Checked(Plain, frozen=True, kw_only=True):
    files: int
    problems: tuple[str, ...]
    state: IndexState


def check(place: Place, *, download: bool = True, count: Counter | None = None) -> Checked:
    """Compare what lies at a place with its log; write nothing.

    Compared: the log, folded again, with its snapshot; every form of every page with what the log
    says; names and sizes of files; statements. With `download` also each wheel's hash, its METADATA
    with `.metadata` and Requires-Python, and requirements within each set.
    """
    state = log.read(place, files=True)
    if state.before:
        lines = operations.carried_lines(place, state)
        lines.append(f"`{place.command('repair')}` does it")
        return Checked(files=0, problems=tuple(lines), state=state)
    damage = operations.damage(place, state, state.projects)
    problems = list(status.problems(place, state, damage))
    if damage and not place.is_staging:
        # pages know more than it
        return Checked(files=0, problems=tuple(problems), state=state)
    there = {info.key: info for info in place.store.keys(place.key(""))}
    problems += _check_log(place, state)
    problems += check_pages(place, state, there, reads_all=download)
    views = [state.of(view) for view in _views(place, state) if "/" not in view]
    pairs = product(views, sorted(state.projects))
    listed = {entry.path: entry for seen, project in pairs for entry in seen.shown(project)}
    for entry in listed.values():
        names = [entry.path, *([f"{entry.path}.metadata"] if entry.metadata_sha256 else ())]
        keys = [*map(place.key, names)]
        if entry.provenance:
            home = state.at(place, entry.manifest)
            keys.append(home.built(entry.manifest, f"{entry.filename}.provenance"))
        problems += (f"{place.store.locate(key)}: missing" for key in keys if key not in there)
        info = there.get(keys[0])
        if info and info.size != entry.size:
            what = f"{info.size} bytes, listed are {entry.size}"
            problems.append(f"{place.locate(entry.path)}: {what}")
    metadata: dict[str, bytes] = {}

    def one(entry: Entry) -> list[str]:
        wrong, metadata[entry.path] = _check_file(place, entry, count)
        return wrong

    wheels = [item for item in listed.values() if place.key(item.path) in there]
    problems += chain.from_iterable(place.each(one, wheels if download else ()))
    problems += _check_sets(place, state, there, metadata if download else None)
    return Checked(files=len(listed), problems=tuple(problems), state=state)


def _views(place: Place, state: IndexState) -> tuple[str, ...]:
    """Return the indexes that are looked at: one family's, or with `all` every one."""
    every = (i for i in state.indexes if place.family in {ALL, i.partition("/")[0]})
    return tuple(every) or (place.family,)


class IndexRepair(Plain, frozen=True, kw_only=True):
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
            many = f"{len(meant)} damaged entries have" if meant else "no damaged entry has"
            keys = " ".join(f"--skip-entry {place.log(number)}" for place, number in meant)
            raise ConfigError(
                f"--skip-entry {name}: {many} that name at {where}",
                hint=f"name those that are lost for good: {keys}"
                if keys
                else "`status` names the entries that are damaged",
            )
    return plans


def _is(place: Place, name: str, number: int) -> bool:
    return name in {str(number), place.log(number), place.store.locate(place.log(number))}


def _plan_repair(place: Place, who: Who, skip: Collection[str]) -> IndexRepair:
    place = place.of(ALL)  # all pages that show its log are repaired
    state = log.read(place, files=True, afresh=not place.is_staging)
    skips = list[int]()
    for _ in skip:  # each shows what is damaged after it
        damaged = operations.damage(place, state, state.projects, skips)
        if named := [n for n in sorted(damaged) if any(_is(place, name, n) for name in skip)]:
            skips.append(named[0])
            state = log.read(place, files=True, skips=skips)
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
    was = {number: glance(place.store, place.log(number))[0] for number in skips}
    entries = (
        who.entry(Action.SKIP, number, evidence={"was": data.decode(errors="backslashreplace")})
        for number, data in was.items()
    )
    return IndexRepair(place=place, who=who, problems=tuple(problems), skips=tuple(entries))


def repair(place: Place, who: Who, skips: Iterable[Transition] = ()) -> tuple[str, ...]:
    """Make every page show what the log says, and delete what it no longer names; return the keys.

    A snapshot that is not the fold of the log is none, unless the log is what is damaged. Raises
    StoreError for a damaged log of a release, and where bytes are missing that would be listed.
    """
    for skip in skips:
        log.skip(place, skip)
    state = log.read(place, files=True)
    again = log.read(place, files=True, afresh=True)
    operations.check_sound(place, again, pages=again.projects)
    if state.before:
        operations.carry(place, state, who)
        return repair(place, who)
    if not state.number:  # a page would claim a place that no log has begun
        return repair(place, who) if _begun_above(place, who) else ()
    if not place.is_staging or log.differ(place, state, again):
        state = again  # and what is damaged or lost of the snapshot is stored again
    there = {info.key for info in place.store.keys(place.key(""))}
    for entry in [item for project in sorted(state.projects) for item in state.shown(project)]:
        if place.key(entry.path) not in there:
            raise StoreError(
                f"{place.locate(entry.path)}: missing, and the log lists it",
                hint="put the wheel back, or roll its set back or prune it",
            )
    state = recalled(place, state, there)
    return retention.sweep(place, operations.show(place, state, repairs=True))


def _begun_above(place: Place, who: Who) -> bool:
    found = operations.claims(place, operations.stored_pages(place) if place.is_staging else ())
    highest = max((claim.number for claim in found.values()), default=0)
    skip = who.entry(Action.SKIP, highest, reason="the log was lost")
    return highest > 0 and isinstance(log.commit(place, skip), str)


def recalled(place: Place, state: IndexState, keys: Iterable[str]) -> IndexState:
    """Return a state with the indexes and projects that have pages by lost entries alone."""
    known = state.indexed()
    asked = (
        (index, name)
        for index, name in operations.stored_pages(place, keys)
        if name and (index.family, name) not in known
    )
    found = operations.claims(place, asked if state.number else ())
    strays = {(index.family, name) for (index, name), claim in found.items() if claim.number > 0}
    empty = {name: Listing(project=name) for _, name in strays} | dict(state.listings)
    return replace(state, listings=empty, strays=frozenset(strays))


def check_pages(
    place: Place,
    state: IndexState,
    there: Mapping[str, ObjectInfo] | None = None,
    *,
    reads_all: bool = True,
) -> list[str]:
    """Compare every form of every page with what a state of the log says, all of it loaded.

    `there` is what lies at the place. Without `reads_all` a night's pages are compared by size.
    """
    if there is None:
        there = {info.key: info for info in place.store.keys(place.key(""))}
    state = recalled(place, state, there)
    if not state.projects:
        return []
    # Whether pages are stored under folder keys is seen, not tried: a check writes nothing.
    views = _views(place, state)
    folders, sizes = f"{place.of(views[0]).index}/" in there, {} if reads_all else there
    pages = operations.pages_of(place, state, sorted(state.projects), views)
    problems = place.each(lambda page: _check_page(place, page, folders, sizes), pages)
    said = list(dict.fromkeys(chain.from_iterable(problems)))
    if any(_AHEAD in text for text in said) and log.read(place).number > state.number:
        # others went on while this looked, and pages show it
        return check_pages(place, log.read(place, files=True), reads_all=reads_all)
    return said


def _check_log(place: Place, state: IndexState) -> Iterator[str]:
    if not state.number:
        return
    again = log.read(place, files=True, afresh=True)
    if log.differ(place, state, again):
        repairs = f"`{place.command('repair')}` repairs it"
        yield f"{place.store.locate(place.state)}: not what the log says: {repairs}"
    if again.number < state.number:
        yield f"{place.store.locate(place.log(again.number + 1))}: missing, put it back"
    for problem in {*again.damage.values()} - {*state.damage.values()}:
        yield f"{place.location}: {problem}"


def _check_page(
    place: Place,
    page: Page | Root,
    folder_keys: bool,  # noqa: FBT001
    sizes: Mapping[str, ObjectInfo],
) -> list[str]:
    index, above = place.of(page.family), place.of(page.family.partition("/")[0])
    again, problems = f"`{place.command('repair')}` makes it again", []
    for form in forms(place, page, folder_keys=folder_keys):
        where, listed = place.store.locate(form.key), sizes.get(form.key)
        size = listed.size if listed and f"/{NIGHTS}/" in page.family else -1
        if len(form.render(0)) <= size <= len(form.body):  # its mark may have fewer digits
            continue
        data, info = glance(place.store, form.key)
        if info is None:
            problems.append(f"{where}: missing: {again}")
            continue
        number = mark(data)
        if number is None or (number <= form.number and data != form.render(number)):
            elsewhere = number is not None and links(data) == links(form.render(number))
            is_html = not form.key.endswith(".json") and index.url.encode() not in data
            problems.append(
                f"{place.store.locate(above.index)}: pages name another address than {above.url}: "
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


def _check_file(place: Place, entry: Entry, count: Counter | None) -> tuple[list[str], bytes]:
    where = place.locate(entry.path)
    problems: list[str] = []
    try:
        with downloaded(place, entry.path, count) as (path, info):
            if info.sha256 != entry.sha256:
                problems.append(f"{where}: SHA-256 is {info.sha256}, listed is {entry.sha256}")
            inside = wheelset.read_metadata(path)
        if entry.metadata_sha256:
            beside, found = glance(place.store, place.key(f"{entry.path}.metadata"))
            if found and (beside != inside or files.sha256(beside) != entry.metadata_sha256):
                problems.append(f"{where}.metadata: not the wheel's METADATA")
            required = wheelset.requires_python(inside, name=entry.filename)
            if required != entry.requires_python:
                problems.append(f"{where}: Requires-Python is {required!r}, listed is another")
    except (ObjectMissingError, HugeError, WheelError) as exc:
        return [*problems, str(exc)], b""
    return problems, inside


def _check_statements(home: Place, known: Known, there: Mapping[str, ObjectInfo]) -> Iterator[str]:
    """Check a set's statements and their public copies; one with the other's ETag is the same."""
    store = home.store
    for view, sha256 in known.bundles.items():
        own, key = home.of(view).bundle(sha256), home.of(view).attestation(known.id, BUNDLE)
        again = f"not the statements that the log names: `{home.command('repair')}` puts them back"
        copy, named = there.get(key), there.get(own)
        if copy and named and copy.etag and copy.etag == named.etag:
            continue
        data, _ = glance(store, key)
        is_old = not named and manifests.begins(data, sha256)  # of 0.2, which added to them
        if files.sha256(data) != sha256 and not is_old:
            yield f"{store.locate(key)}: {again}"
        if not known.home and (named is None or named.size != len(data)):
            yield f"{store.locate(own)}: {again}"


def _check_sets(
    place: Place,
    state: IndexState,
    there: Mapping[str, ObjectInfo],
    metadata: Mapping[str, bytes] | None,
) -> Iterator[str]:
    """Check statements of listed sets; with METADATA that each is complete and closed."""
    views = {*_views(place, state)}
    for known in (item for item in state.listed if views & {*item.views}):
        home = state.at(place, known.id)
        yield from _check_statements(home, known, there)
        if home.manifest(known.id) not in there:
            yield f"{place.store.locate(home.manifest(known.id))}: missing"
            continue
        try:
            manifest = manifests.find(home, known.id) if metadata is not None else None
            if manifest is None or metadata is None:
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


# What lay in a folder before rocwheel


@dataclass(frozen=True, kw_only=True)
class Adopt(Operation):
    """List files as foreign; their `.metadata` files are written beside them."""

    entries: tuple[Entry, ...]
    metadata: Mapping[str, bytes]

    def decide(self, state: IndexState) -> Transition | None:
        family = self.place.family
        if not self.entries or family in state.views:
            return None
        brings = [Holding(set=f"{FOREIGN}-{family}", files=self.entries)]
        return self.entry(state, Action.ADOPT, brings=brings, families=[family])

    def prepare(self, state: IndexState, entry: Transition | None) -> Transition | None:  # noqa: ARG002
        place, data = self.place, self.metadata
        place.each(
            lambda item: operations.put_metadata(place, item, data[item.filename]), self.entries
        )
        return entry

    def file_lines(self, after: IndexState) -> list[str]:  # noqa: ARG002
        lines = []
        for item in self.entries:
            yanked = "" if item.yanked is None else f", yanked: {item.yanked}"
            lines.append(f"adopt    {self.place.locate(item.path)} ({item.sha256}){yanked}")
        return lines

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        done = "planned" if dry_run else "adopted"
        return {
            "state": "nothing-to-do" if self.is_done else done,
            "files": [item.filename for item in self.entries],
        }


def plan_adoption(place: Place, *, who: Who, count: Counter | None = None) -> Adopt:
    """Find the wheels in a family's folder, where its index has no set; read every one of them."""
    state = operations.read(place)
    base = f"{place.index}/"
    names = [info.key.removeprefix(base) for info in place.store.keys(base)]
    wheels = sorted(name for name in names if "/" not in name and name.endswith(".whl"))
    if place.family in state.views:
        wheels, names = [], []
    shown = _pages(place, names, frozenset(wheels))
    foreign = place.each(lambda name: _foreign(place, name, shown.get(name), count), wheels)
    operation = Adopt(
        place=place,
        who=who,
        start=state,
        entries=tuple(entry for entry, _ in foreign),
        metadata={entry.filename: data for entry, data in foreign},
    )
    return replace(operation, is_done=operation.decide(state) is None)


def _foreign(
    place: Place, name: str, shown: Link | None, count: Counter | None
) -> tuple[Entry, bytes]:
    try:
        project, version = version_of(name)
    except ConfigError as exc:
        raise PromotionError(
            f"{place.store.locate(place.index)}/{name}: {exc}",
            hint="rename or remove it: no installer can use it",
        ) from exc
    with downloaded(place, f"{place.family}/{name}", count) as (path, info):
        metadata = wheelset.read_metadata(path)
    entry = Entry(
        filename=name,
        project=project,
        version=version,
        size=info.size,
        sha256=info.sha256,
        metadata_sha256=files.sha256(metadata),
        uploaded=timestamp(info.modified),
        requires_python=wheelset.requires_python(metadata, name=name),
        yanked=shown.yanked if shown else None,
        folder=place.family,
    )
    return entry, metadata


def _pages(place: Place, names: list[str], wheels: frozenset[str]) -> dict[str, Link]:
    shown = dict[str, Link]()
    for name in names:
        if name != "index.html" and (not name.endswith("/index.html") or name.startswith("_")):
            continue
        where = f"{place.index}/{name}"
        data, _ = place.store.read(where)
        if mark(data):
            raise StoreError(
                f"{place.store.locate(where)}: shows an entry of a log that is gone",
                hint=f"put {place.logs} back from a copy of the bucket",
            )
        for link in links(data):
            if link.filename not in wheels:
                raise PromotionError(
                    f"{place.store.locate(where)}: lists {link.filename}, which is not here",
                    hint="copy the file here first, or take it off that page",
                )
            shown[link.filename] = link
    return shown


# In a closed world: names of a set come from our index alone, every other name from upstream. No
# installer can say that by options, so the index is served here, and other names are redirected.


def resolve(place: Place, *, upstream: str, python: Path, runner: Runner) -> list[str]:
    """Resolve every set in the index; return one line per CPython where pip chose otherwise."""
    with Site(place.store, upstream=upstream).running() as site:
        index, state = f"{site.url}{place.index}/", log.read(place)
        pip = (str(python), "-m", "pip", "install", "--index-url", index)
        said = [
            (version, _problem(manifest, version, runner, pip))
            for known in state.of(place.family).listed
            if (manifest := manifests.find(state.at(place, known.id), known.id))
            for version in manifest.pythons
        ]
    return [f"{place.location}: CPython {version}: {text}" for version, text in said if text]


def _problem(manifest: Manifest, version: str, runner: Runner, pip: tuple[str, ...]) -> str:
    """Return the problem, or "" if pip chooses exactly the manifest's versions for a CPython."""
    wanted = {w.project: w.version for w in manifest.built if w.python in {"", version}}
    platforms = sorted({tag.rpartition("-")[2] for w in manifest.built for tag in w.tags})
    target = PythonVersion.parse(version)
    with tempfile.TemporaryDirectory(prefix="rocwheel-") as scratch:
        report = Path(scratch) / "report.json"
        argv = (
            *pip, "--dry-run", "--ignore-installed",
            "--quiet", "--isolated", "--no-cache-dir", "--disable-pip-version-check",
            "--report", str(report), "--target", str(report.with_name("target")),
            "--only-binary=:all:",
            "--python-version", f"{target.major}.{target.minor}", "--implementation", "cp",
            "--abi", target.abi, "--abi", "none", "--abi", "abi3",
            *(part for name in platforms for part in ("--platform", name)),
            *(f"{project}=={number}" for project, number in sorted(wanted.items())),
        )  # fmt: skip
        try:
            runner.run(Command(argv=argv, timeout=RESOLVE_SECONDS))
        except CommandError as exc:
            return (exc.detail.strip().splitlines() or [str(exc)])[-1]
        chosen: dict[str, str] = {
            str(canonicalize_name(item["metadata"]["name"])): item["metadata"]["version"]
            for item in json.loads(report.read_bytes())["install"]
        }
    for project, number in sorted(wanted.items()):
        if chosen.get(project) != number:
            return f"pip chose {project} {chosen.get(project)}, not {number}"
    return ""
