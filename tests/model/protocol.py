"""An explicit-state model of how an index is changed (docs/release-protocol.md), and its checker.

A world is a log, pages, copies of pages on their way to installers, bytes, writes that are under way
for long, and processes between two storage requests. `explore` goes through every interleaving of
them, with kills, writes that are carried out and reported as failed, and writes that arrive late.

Small on purpose: three sets that share files, three projects, one form per page (or two). What the
real code adds to this (threads within a step, real stores) is tried in
tests/release/test_schedules.py.

One log is shown by several indexes (`SHARED`): one of each family (x, y), and `all`, which lists what
every family lists that a set must have; one that was built for a family alone must have none, and is
not there. Where it is about one index alone (`FAMILY`), the others are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

P, J, G = "pjrt", "jaxlib", "plugin"
PROJECTS = (P, J, G)
SETS = {
    "A": ("p1", "j1", "g1"),
    "B": ("p1", "j2", "g2"),  # shares the pjrt of A
    "C": ("p2", "j1", "g3"),  # shares the jaxlib of A
}
NEEDS = {files[2]: files[:2] for files in SETS.values()}
PROJECT = {"p": P, "j": J, "g": G}
LATER = {P: 0, J: 0, G: 1}  # plugins after what they need
ALL = "all"  # the index of what every family lists that must


class Layout(NamedTuple):
    """Which indexes show a log: their names, and the projects that sets have there."""

    views: tuple[str, ...]
    projects: tuple[str, ...]

    @property
    def pages(self) -> tuple[tuple[str, str], ...]:
        return pages_of(self)

    def files(self, name: str) -> tuple[str, ...]:
        return tuple(file for file in SETS[name] if PROJECT[file[0]] in self.projects)


@cache
def pages_of(layout: Layout) -> tuple[tuple[str, str], ...]:
    return tuple((view, project) for view in layout.views for project in layout.projects)


FAMILY = Layout(("x",), PROJECTS)
SHARED = Layout(
    ("x", "y", ALL), (P, G)
)  # two projects are enough for every order, and fewer worlds

# Each names a rule of the protocol; a model without it must fail.
RULES = {
    "settle before commit": "an operation commits on a state that the pages do not show yet",
    "one direction": "one commit takes a set out and puts another in",
    "order of projects": "the plugin's page changes first when files are added",
    "order when removing": "the pjrt's page changes first when files are removed",
    "mark in the bytes": "two pages of the same list have the same ETag",
    "never over a newer mark": "a page that is newer than the state is put over",
    "keep empty pages": "a page without files is deleted",
    "the id decides": "a commit that was answered with an error counts as lost",
    "mark before delete": "bytes are deleted before the commit",
    "delete when settled": "bytes are deleted before the pages show the commit",
    "spent for ever": "a set that needs deleted names may be put again",
    "rolled back holds": "a prune spends names that a rolled back set holds",
    "wait when adding": "the plugin's page is put while old copies of its pjrt's page live",
    "wait when removing": "the pjrt's page is put while old copies of the plugin's page live",
    "wait before delete": "bytes are deleted while copies of pages that list them live",
    "the record is the commit": "an entry is written, and another object says how many count",
    "a snapshot is shown": "the snapshot is written before the pages show it",
    "a snapshot is proven": "a snapshot is believed whose last entry the log does not have",
    "a mark has its entry": "a page is left whose mark is above the end of the log",
    "a family lists its own": "a family's page lists what any family has",
    "all waits for each that must": "the page of all lists what one family has",
    "must is fixed": "a later promotion changes which families a set must have",
    "all is touched": "an operation on a family's sets leaves the pages of all as they are",
    "a prune is of all families": "a prune spends names that another family lists",
    "all lists sets for several": "the page of all lists a set that was built for one family",
}

# What somebody did to a store: put a page with its list and a mark that is so far above the log;
# took the last entry of the log away.
AHEAD = {"ahead": 1, "far ahead": 2}
HARMS = {*AHEAD, "lost"}


class Entry(NamedTuple):
    """One entry of the log; `id` is the operation's."""

    action: str
    set: str
    id: int
    families: str = "x"
    must: str = "x"  # of the set's first entry: families that list it before `all` does


class Page(NamedTuple):
    """A page as it is stored: what it lists, and of which state."""

    mark: int
    files: frozenset[str]


class Process(NamedTuple):
    """An operation between two storage requests."""

    action: str
    set: str
    families: str = "x"
    must: str = "x"
    pc: str = "snapshot"
    number: int = 0  # of the state it knows
    saved: int = 0
    acts: str = ""  # the families of its entry
    todo: tuple[Any, ...] = ()  # what the step goes through: pages, files
    seen: Page | None = None
    settled: tuple[
        tuple[tuple[str, str], Page], ...
    ] = ()  # pages whose older copies it must wait for
    attempts: int = 0
    unclear: bool = False
    committed: int = 0
    report: str = ""  # done, nothing, refused, unknown, killed, committed (and not shown)


class Late(NamedTuple):
    """A request that was answered with an error and may be carried out yet."""

    kind: str  # page, delete, log, head
    key: Any
    before: Page | None = None
    after: Page | None = None
    number: int = 0
    entry: Entry | None = None


class World(NamedTuple):
    """Everything."""

    log: tuple[Entry, ...]
    head: int  # how many entries count; all of them, but for one mutant
    snapshot: tuple[Entry, ...]  # the log that it is the fold of
    pages: tuple[Page | None, ...]
    copies: tuple[tuple[Page, ...], ...]  # of each page, the oldest first
    bytes: frozenset[str]
    late: frozenset[Late]
    processes: tuple[Process, ...]
    errors: int
    delays: int
    kills: int


class Violation(AssertionError):  # noqa: N818 (what it is called)
    """An invariant does not hold in a reachable world."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """The protocol, or one without some of its rules."""

    without: frozenset[str] = field(default_factory=frozenset)
    caches: bool = False
    attempts: int = 2
    layout: Layout = FAMILY
    all_moves: bool = False  # also those that show nothing new

    def lacks(self, rule: str) -> bool:
        assert rule in RULES
        return rule in self.without


class Fold(NamedTuple):
    """What a log says."""

    standing: tuple[tuple[tuple[str, str], str], ...]  # (set, family) -> listed, held, pruned
    spent: frozenset[str]
    yanked: frozenset[str]
    removing: frozenset[
        str
    ]  # indexes from which the last entry of theirs that adds or removes removed
    must: tuple[tuple[str, str], ...] = ()  # set -> families


@cache
def fold(log: tuple[Entry, ...], without: frozenset[str]) -> Fold:
    standing: dict[tuple[str, str], str] = {}
    spent: set[str] = set()
    yanked: set[str] = set()
    must: dict[str, str] = {}
    removing: frozenset[str] = frozenset()
    for entry in log:
        if not allowed(entry, standing, spent, yanked, without):
            continue
        views = views_of(entry, standing, must)
        if entry.action in {"rollback", "prune"}:
            removing |= views
        elif entry.action in {"add", "restore", "replace"}:
            removing -= views
        mine = [(entry.set, family) for family in entry.families]
        if entry.action in {"add", "restore"}:
            standing |= dict.fromkeys(mine, "listed")
            if entry.action == "add" and (entry.set not in must or "must is fixed" in without):
                must[entry.set] = entry.must
        elif entry.action == "replace":  # a mutant: A out, B in
            standing["A", "x"], standing["B", "x"], must["B"] = "held", "listed", "x"
        elif entry.action == "rollback":
            standing |= dict.fromkeys(mine, "held")
        elif entry.action == "prune":
            whole = "a prune is of all families" not in without
            standing |= {
                key: "pruned" for key in standing if key[0] == entry.set and (whole or key in mine)
            }
            keeping = {"listed"} if "rolled back holds" in without else {"listed", "held"}
            others = {key[0] for key, kind in standing.items() if kind in keeping} - {entry.set}
            spent |= set(SETS[entry.set]) - {file for name in others for file in SETS[name]}
        elif entry.action == "yank":
            yanked.add(entry.set)
        elif entry.action == "unyank":
            yanked.discard(entry.set)
    return Fold(
        tuple(sorted(standing.items())),
        frozenset(spent),
        frozenset(yanked),
        removing,
        tuple(sorted(must.items())),
    )


def views_of(entry, standing, must) -> frozenset[str]:
    """The indexes that an entry concerns: of its families, or of all that have the set; and all."""
    families = set(entry.families)
    if entry.action in {"prune", "yank", "unyank"}:
        families |= {family for name, family in standing if name == entry.set}
    return frozenset(families | ({ALL} if must.get(entry.set, entry.must) else set()))


def allowed(entry, standing, spent, yanked, without) -> bool:
    """Whether an entry changes anything in a state."""
    if entry.action == "garbage":
        return False
    if entry.action == "replace":
        return standing.get(("A", "x")) == "listed" and ("B", "x") not in standing
    everywhere = {kind for (name, _), kind in standing.items() if name == entry.set}
    here = {standing.get((entry.set, family), "") for family in entry.families}
    if entry.action == "add":
        again = "spent for ever" in without
        free = again or not (spent & set(SETS[entry.set]) or "pruned" in everywhere)
        return free and here <= ({"", "pruned"} if again else {""})
    if entry.action == "prune":
        return bool(everywhere & {"listed", "held"})
    if entry.action in {"yank", "unyank"}:
        return "listed" in everywhere and (entry.set in yanked) is (entry.action == "unyank")
    return here == {"held" if entry.action == "restore" else "listed"}


@cache
def listed(log: tuple[Entry, ...], view: str, without: frozenset[str]) -> frozenset[str]:
    """The sets that an index lists."""
    state = fold(log, without)
    standing, must = dict(state.standing), dict(state.must)
    families = {family for _, family in standing}

    def is_listed(name: str) -> bool:
        asked: tuple[str, ...] = (view,)
        if view == ALL:
            asked = tuple(must.get(name, "x"))
            if not asked and "all lists sets for several" not in without:
                return False
        is_any = (
            "all waits for each that must" in without
            if view == ALL
            else "a family lists its own" in without
        )
        if is_any:
            return any(standing.get((name, family)) == "listed" for family in families)
        return all(standing.get((name, family)) == "listed" for family in asked)

    return frozenset(name for name in {name for name, _ in standing} if is_listed(name))


@cache
def shown(log: tuple[Entry, ...], page: tuple[str, str], without: frozenset[str]) -> frozenset[str]:
    """f: the list of a page, by the state alone. A yanked file is another line."""
    view, project = page
    names = listed(log, view, without)
    files = {file for name in names for file in SETS[name] if PROJECT[file[0]] == project}
    yanks = {file for name in names & fold(log, without).yanked for file in SETS[name]}
    return frozenset(f"{file}!" if file in yanks else file for file in files)


def proven(log: tuple[Entry, ...], snapshot: tuple[Entry, ...]) -> bool:
    """Whether a log has the entry that a snapshot ends with, and so all before it."""
    return log[: len(snapshot)] == snapshot


def touched(model: Model, log: tuple[Entry, ...], after: int) -> tuple[tuple[str, str], ...]:
    """The pages that entries may have changed: of their families, and of all."""
    views: set[str] = set() if model.lacks("all is touched") else {ALL}
    views |= {family for entry in log[after:] for family in (entry.families or "xy")}
    if all(entry.action == "garbage" for entry in log[after:]):
        return ()
    return tuple(page for page in model.layout.pages if page[0] in views)


def holding(state: Fold, layout: Layout) -> frozenset[str]:
    """Files of sets that hold them."""
    return frozenset(
        file
        for (name, _), kind in state.standing
        if kind in {"listed", "held"}
        for file in layout.files(name)
    )


def start(
    *entries: tuple[str, ...], without: frozenset[str] = frozenset(), layout: Layout = FAMILY
) -> World:
    """A world after some operations, each complete, and after a harm that comes last, if any.

    An entry is an action, a set, and in the shared layout its families, and those that must.
    """
    harm, about = entries[-1][:2] if entries and entries[-1][0] in HARMS else ("", "")
    log = tuple(Entry(e[0], e[1], -1, *e[2:]) for e in entries if e[0] not in HARMS)
    state = fold(log, without)
    marks = {p: len(log) + (AHEAD.get(harm, 0) if p[1] == about else 0) for p in layout.pages}
    pages = tuple(Page(marks[p], shown(log, p, without)) if log else None for p in layout.pages)
    there = frozenset(
        f for entry in log if entry.action in {"add", "replace"} for f in layout.files(entry.set)
    )
    snapshot = log
    if harm == "lost":
        log = log[:-1]
    return World(
        log=log, head=len(log), snapshot=snapshot, pages=pages,
        copies=tuple((page,) if page else () for page in pages),
        bytes=there - state.spent, late=frozenset(), processes=(), errors=0, delays=0, kills=0,
    )  # fmt: skip


def explore(
    model: Model, world: World, *, limit: int = 0, visit: Callable[[World], None] | None = None
) -> int:
    """Visit every reachable world, or `limit` of them; return how many.

    Raises Violation with the way there.
    """
    stack: list[tuple[World, int]] = [(world, -1)]
    seen = {world}
    trail: list[tuple[World, int]] = []
    while stack:
        current, parent = stack.pop()
        here = len(trail)
        trail.append((current, parent))
        if visit:
            visit(current)
        problem = broken(model, current)
        steps = list(moves(model, current))
        if not problem:
            problem = next(filter(None, (ended_badly(model, w) for w in ends(current, steps))), "")
        if problem:
            raise Violation(f"{problem}\n" + "\n".join(path(trail, here)))
        for following in (*steps, *accidents(model, current)):
            count = len(seen)
            seen.add(following)
            if len(seen) > count:
                stack.append((following, here))
        if limit and len(seen) > limit:
            break  # the rest is left to the full campaign
    return len(seen)


def ends(world: World, steps: list[World]) -> Iterator[World]:
    """The world, if nothing may happen any more: a late write need not arrive.

    A process that was killed is one that stands still for ever: nothing waits for it. So each
    kill is looked at where all others are over, and takes no turn of its own.
    """
    running = [number for number, process in enumerate(world.processes) if not process.report]
    if not steps:
        yield world
    elif len(running) <= world.kills:
        for number in running:
            world = replaced(world, number, ended(world.processes[number], "killed"))
        yield world


def path(trail: list[tuple[World, int]], at: int) -> list[str]:
    lines: list[str] = []
    while at >= 0:
        world, parent = trail[at]
        pages = [f"{p.mark}:{','.join(sorted(p.files))}" if p else "-" for p in world.pages]
        lines.append(
            f"log={[e[:2] for e in world.log]} saved={len(world.snapshot)} pages={pages} "
            f"bytes={sorted(world.bytes)} late={[write[:2] for write in world.late]} "
            + " ".join(
                f"[{p.action} {p.set} {p.pc} n={p.number} {p.report}]" for p in world.processes
            )
        )
        at = parent
    return lines[::-1]


# Invariants


def broken(model: Model, world: World) -> str:
    """What is wrong with a world, at any instant; "" when nothing is."""
    log = world.log[: world.head]
    asked = tuple((process.action, process.set, process.report) for process in world.processes)
    pages = world.copies if model.caches else world.pages
    return (
        broken_pages(pages, world.bytes, model.layout)
        or broken_bytes(log, world.bytes, model.without, model.layout)
        or broken_reports(world.log, asked)
        or (broken_views(pages, world.log, model.layout) if len(model.layout.views) > 1 else "")
    )


@cache
def broken_views(
    pages: tuple[tuple[Page, ...] | Page | None, ...], log: tuple[Entry, ...], layout: Layout
) -> str:
    """Whether an index shows a set that never was for it: a family's users see what passed there."""
    logs = [log[:end] for end in range(len(log) + 1)]
    for (view, _), found in zip(layout.pages, pages, strict=True):
        passed = {name for part in logs for name in listed(part, view, frozenset())}
        allowed_files = {file for name in passed for file in SETS[name]}
        for page in [found] if isinstance(found, Page) else found or ():
            if strangers := {file.rstrip("!") for file in page.files} - allowed_files:
                return f"{min(strangers)} is listed for {view} and never passed there"
    return ""


@cache
def broken_pages(
    pages: tuple[tuple[Page, ...] | Page | None, ...], there: frozenset[str], layout: Layout
) -> str:
    """What is wrong with what installers may see: any mix of an index's pages, or of their copies."""
    each = len(layout.projects)
    return next(
        filter(
            None,
            (
                _broken_index(pages[at : at + each], there, layout)
                for at in range(0, len(pages), each)
            ),
        ),
        "",
    )


@cache
def _broken_index(
    pages: tuple[tuple[Page, ...] | Page | None, ...], there: frozenset[str], layout: Layout
) -> str:
    views = [
        [page.files for page in ([found] if isinstance(found, Page) else found or ())]
        or [frozenset()]
        for found in pages
    ]
    named = [[{f.rstrip("!") for f in view} for view in found] for found in views]
    for plugins in named[-1]:
        for plugin in plugins:
            for need in NEEDS[plugin]:
                project = PROJECT[need[0]]
                if project in layout.projects and any(
                    need not in view for view in named[layout.projects.index(project)]
                ):
                    return f"{plugin} is listed without {need}"
    for found in named:
        for view in found:
            if missing := view - there:
                return f"{min(missing)} is listed and its bytes are gone"
    return ""


@cache
def broken_bytes(
    log: tuple[Entry, ...], there: frozenset[str], without: frozenset[str], layout: Layout
) -> str:
    """Whether bytes that a set holds are gone."""
    lost = holding(fold(log, without), layout) - there
    return f"{min(lost)} is held and its bytes are gone" if lost else ""


@cache
def broken_reports(log: tuple[Entry, ...], asked: tuple[tuple[str, str, str], ...]) -> str:
    """Whether an operation took effect twice, or says something else than it did."""
    for number, (action, set_id, report) in enumerate(asked):
        times = sum(1 for entry in log if entry.id == number)
        if times > 1:
            return f"{action} {set_id} took effect {times} times"
        if report in {"refused", "nothing"} and times:
            return f"{action} {set_id} reported {report} and took effect"
        if report in {"done", "committed"} and not times:
            return f"{action} {set_id} reported {report} and took no effect"
    return ""


def ended_badly(model: Model, world: World) -> str:
    """What is wrong when nothing moves any more: pages, reports, and whether `repair` leads out."""
    state = fold(world.log[: world.head], model.without)
    if waiting := [process for process in world.processes if not process.report]:
        return f"{waiting[0].action} {waiting[0].set} waits for ever at {waiting[0].pc}"
    if world.head != len(world.log):
        return "an entry is there that does not count, and nobody can say whether it should"
    settled = all(
        page.files == shown(world.log, project, model.without)
        if page
        else project not in touched(Model(layout=model.layout), world.log, 0)
        for project, page in zip(model.layout.pages, world.pages, strict=True)
    )
    if not settled and all(p.report in {"done", "nothing"} for p in world.processes):
        return "every command ended well and the pages do not show the state"
    # `index repair`: every page, then spent names.
    for project, page in zip(model.layout.pages, world.pages, strict=True):
        if page and page.mark > len(world.log) and model.lacks("a mark has its entry"):
            return f"{project} shows a state that is not there: no command mends it"
    return "" if holding(state, model.layout) <= world.bytes else "held bytes are gone for good"


# Steps


def moves(model: Model, world: World) -> Iterator[World]:
    """Every world one storage request away, or, with `all_moves`, the end of one copy of a page."""
    for number, process in enumerate(world.processes):
        if not process.report:
            for following in step(model, world, number, process):
                yield thought(model, following, number)
    for number, copies in enumerate(world.copies if model.all_moves else ()):
        if len(copies) > 1:
            yield expired(world, number, 1)


def accidents(model: Model, world: World) -> Iterator[World]:
    """Every world one late write away; with `all_moves` also a kill.

    What is left out shows nothing new (docs/release-protocol.md, "Trying it").
    """
    for write in world.late:
        rest = world._replace(late=world.late - {write})
        after = apply(model, rest, write)
        if model.all_moves:
            yield rest
        if after != rest or model.all_moves:  # else it may as well arrive later
            yield after
    if model.all_moves:
        for number, process in enumerate(world.processes):
            if world.kills and not process.report:
                killed = replaced(world, number, ended(process, "killed"))
                yield killed._replace(kills=world.kills - 1)


def expired(world: World, number: int, count: int) -> World:
    """The world in which a page's oldest copies are no more."""
    copies = list(world.copies)
    copies[number] = copies[number][count:]
    return world._replace(copies=tuple(copies))


def thought(model: Model, world: World, number: int) -> World:
    """The world after what a process does by itself, up to its next storage request.

    Nobody sees these steps and nothing changes them, so they take no turn of their own.
    """
    split = model.lacks("the record is the commit") or model.lacks("a snapshot is shown")
    while True:
        me = world.processes[number]
        if me.report:
            return replaced(world, number, ended(me, me.report))
        alone = (
            me.pc == "decide"
            or (me.pc == "head" and not split)
            or (me.pc in {"bytes", "delete", "delete-early", "delete-first"} and not me.todo)
            # What an entry is stays so.
            or (me.pc == "whose" and len(world.log) > me.number and not model.all_moves)
        )
        if not alone:
            return world
        (world,) = step(model, world, number, me)


def ended(process: Process, report: str) -> Process:
    """A process of which nothing matters any more but what it said."""
    return Process(action=process.action, set=process.set, pc="", report=report)


def replaced(world: World, number: int, process: Process) -> World:
    processes = list(world.processes)
    processes[number] = process
    return world._replace(processes=tuple(processes))


def etag(model: Model, page: Page | None) -> object:
    return page.files if page and model.lacks("mark in the bytes") else page


def apply(model: Model, world: World, write: Late) -> World:
    """Carry a request out, if its condition holds."""
    if write.kind == "page":
        at = model.layout.pages.index(write.key)
        if etag(model, world.pages[at]) != etag(model, write.before):
            return world
        pages, copies = list(world.pages), list(world.copies)
        pages[at] = write.after
        if write.after and model.caches:
            copies[at] = (*(page for page in copies[at] if page != write.after), write.after)
        return world._replace(pages=tuple(pages), copies=tuple(copies))
    if write.kind == "delete":
        return world._replace(bytes=world.bytes - {write.key})
    if write.kind == "head":
        return world._replace(head=max(world.head, write.number))
    if len(world.log) != write.number - 1:
        return world  # after a gap it is created as well, and counts for nobody
    assert write.entry
    log = (*world.log, write.entry)
    split = model.lacks("the record is the commit")
    return world._replace(log=log, head=world.head if split else len(log))


def holds(model: Model, world: World, write: Late) -> bool:
    """Whether a request's condition holds now: otherwise it is refused, for certain."""
    if write.kind == "page":
        return etag(model, world.pages[model.layout.pages.index(write.key)]) == etag(
            model, write.before
        )
    return write.kind != "log" or len(world.log) < write.number


def answers(model: Model, world: World, write: Late) -> Iterator[tuple[str, World]]:
    """How a write may end: ok, refused, or an error that says nothing."""
    if not holds(model, world, write):
        yield "refused", world
        return
    yield "ok", apply(model, world, write)
    if world.errors:
        fewer = world._replace(errors=world.errors - 1)
        yield "error", apply(model, fewer, write)
        yield "error", fewer
    if world.delays:
        yield "error", world._replace(delays=world.delays - 1, late=world.late | {write})


def step(  # noqa: PLR0912 (one for each step)
    model: Model, world: World, number: int, me: Process
) -> Iterator[World]:
    """What a process does next."""
    counted = world.log[: world.head]

    def go(process: Process, there: World = world) -> World:
        return replaced(there, number, process)

    if me.pc == "snapshot":
        # Entries are never deleted, so whether it is proven may be asked at once.
        believed = proven(counted, world.snapshot) or model.lacks("a snapshot is proven")
        yield go(me._replace(pc="log", saved=len(world.snapshot) if believed else 0))
    elif me.pc == "log":
        known = me._replace(number=max(len(counted), me.saved), seen=None, settled=())
        yield go(to_settle(model, counted, known, "settle"))
    elif me.pc in {"settle", "show", "over"}:
        yield from settling(model, world, number, me)
    elif me.pc == "decide":
        # Above the log's end only what a snapshot said, that was believed.
        log = world.snapshot if me.number > len(counted) else counted[: me.number]
        yield go(decide(model, log, me))
    elif me.pc == "bytes":
        yield from putting(model, world, number, me)
    elif me.pc == "commit":
        entry = Entry(me.action, me.set, number, me.acts, me.must)
        write = Late(kind="log", key="log", number=me.number + 1, entry=entry)
        for answer, there in answers(model, world, write):
            if answer == "ok":
                yield go(me._replace(pc="head"), there)
            elif answer == "error" and model.lacks("the id decides"):
                yield go(me._replace(report="refused"), there)
            else:
                unclear = me.unclear or answer == "error"
                yield go(me._replace(pc="whose", unclear=unclear), there)
    elif me.pc == "whose":
        yield from asking(model, world, number, me)
    elif me.pc == "head":
        after = me._replace(committed=me.number + 1, number=me.number + 1)
        there = world
        if model.lacks("the record is the commit"):
            there = apply(model, world, Late(kind="head", key="head", number=me.number + 1))
        if model.lacks("a snapshot is shown"):
            there = saved(there, after.number)
        if me.action == "prune" and model.lacks("delete when settled"):
            yield go(to_delete(model, there, after._replace(pc="delete-early")), there)
        else:
            log = there.log[: there.head]
            yield go(to_settle(model, log[: after.number], after, "show"), there)
    elif me.pc == "save":
        there = saved(world, me.number)
        if (
            me.action == "prune"
            and not model.lacks("mark before delete")
            and not model.lacks("delete when settled")
        ):
            yield go(to_delete(model, there, me._replace(pc="delete")), there)
        else:
            yield go(me._replace(report="done"), there)
    elif me.pc in {"delete", "delete-early", "delete-first"}:
        yield from deleting(model, world, number, me)
    else:
        raise AssertionError(me.pc)


def saved(world: World, number: int) -> World:
    """The world with a snapshot of this state, where it has no newer one that is proven."""
    log = world.log[: world.head]
    if len(world.snapshot) > number and proven(log, world.snapshot):
        return world
    return world._replace(snapshot=log[:number])


def to_settle(model: Model, log: tuple[Entry, ...], me: Process, pc: str) -> Process:
    """Begin a `settle`: which projects, in which order."""
    if pc == "settle" and model.lacks("settle before commit"):
        return me._replace(pc="decide", todo=())
    everything = me.action == "repair" and me.number > 0
    state = fold(log[: me.number], model.without)
    wanted = model.layout.pages if everything else touched(model, log[: me.number], me.saved)
    if pc == "settle" and not everything and not decide(model, log[: me.number], me).report:
        # Indexes of others need not show what was committed for them.
        entry = Entry(me.action, me.set, -2, me.families, me.must)
        mine = views_of(entry, dict(state.standing), dict(state.must))
        wanted = tuple(page for page in wanted if page[0] in mine)
        if me.action in {"add", "restore"} and not mine & state.removing:
            wanted = ()  # what adds may follow what added
    projects: list[tuple[str, str]] = []
    for backwards in (True, False):
        of = (page for page in wanted if (page[0] in state.removing) is backwards)
        wrong = "order when removing" if backwards else "order of projects"
        back = backwards != model.lacks(wrong)
        projects += sorted(of, key=lambda page: LATER[page[1]], reverse=back)
    me = me._replace(pc=pc, todo=tuple(projects), seen=None, settled=())
    return me if projects else settled(me)


def settled(me: Process) -> Process:
    if me.pc == "show":
        return me._replace(pc="save", seen=None, settled=())
    return me._replace(pc="decide", seen=None, settled=(), todo=())


def settling(model: Model, world: World, number: int, me: Process) -> Iterator[World]:
    """One request of a `settle`: look at a page; at the log's end, where it is ahead; put it."""
    project = me.todo[0]
    at = model.layout.pages.index(project)
    log = world.log[: me.number]
    wanted = shown(log, project, model.without)

    def advance(page: Page | None, there: World = world) -> World:
        pc = "show" if me.pc == "show" else "settle"
        found = (*me.settled, *([(project, page)] if page else ()))
        after = me._replace(pc=pc, todo=me.todo[1:], seen=None, settled=found)
        return replaced(there, number, after if after.todo else settled(after))

    page = me.seen or world.pages[at]
    newer = page and page.mark > me.number and not model.lacks("never over a newer mark")
    # Where the log goes on to a mark when the page is read, it does so when it is asked, too.
    stays = newer and (page.mark <= len(world.log) or model.lacks("a mark has its entry"))
    if me.seen is None and page and not newer:
        stays = page.files == wanted
    if stays and me.pc != "over":
        yield advance(page)
    elif me.seen is None and (newer or model.all_moves or model.lacks("mark in the bytes")):
        yield replaced(world, number, me._replace(seen=page or Page(-1, frozenset())))
    elif newer and me.pc != "over":
        report = "committed" if me.committed else "refused"
        told = {"pc": "over"} if me.action == "repair" else {"report": report}
        yield replaced(world, number, me._replace(**told))
    else:
        # A put whose page changed since it was read is refused, and the page is read again. So it
        # may as well be read in the same instant.
        me = me if me.seen else me._replace(seen=page or Page(-1, frozenset()))
        yield from replacing(model, world, number, me, wanted, advance)


def replacing(model, world, number, me, wanted, advance) -> Iterator[World]:  # noqa: PLR0917
    """Put a page in place of the one that was seen, once copies of others that it needs are old."""
    log, project = world.log[: me.number], me.todo[0]
    removes = project[0] in fold(log, model.without).removing
    rule = "wait when removing" if removes else "wait when adding"
    if model.caches and not model.lacks(rule):
        for earlier, found in me.settled:
            at = model.layout.pages.index(earlier)
            if LATER[earlier[1]] != LATER[project[1]] and found in world.copies[at][1:]:
                if model.all_moves:
                    return  # it waits
                # Copies are a danger as long as they live, so each lives until it is waited for.
                world = expired(world, at, world.copies[at].index(found))
    before = None if me.seen.mark == -1 else me.seen
    after: Page | None = Page(me.number, wanted)
    if not wanted and model.lacks("keep empty pages"):
        after = None
    write = Late(kind="page", key=project, before=before, after=after)
    for answer, there in answers(model, world, write):
        if answer == "ok":
            yield advance(after, there)
        else:  # any failure: read again
            pc = "show" if me.pc == "show" else "settle"
            yield replaced(there, number, me._replace(pc=pc, seen=None))


def decide(model: Model, log: tuple[Entry, ...], me: Process) -> Process:
    """Purely, on the state: refuse, nothing to do, or the next entry."""
    state = fold(log, model.without)
    standing = dict(state.standing)
    done = {"add": "listed", "restore": "listed", "rollback": "held", "prune": "pruned"}
    if me.action == "repair":
        return me._replace(report="nothing")
    here = {family: standing.get((me.set, family), "") for family in me.families}
    new = "".join(f for f, kind in here.items() if kind != done.get(me.action))
    whole = me.action != "prune" or not model.lacks("a prune is of all families")
    if me.action in {"prune", "yank", "unyank"} and whole:
        new = "".join(family for name, family in standing if name == me.set) or "x"
    entry = Entry(me.action, me.set, -2, new, me.must)
    if new and allowed(entry, standing, set(state.spent), set(state.yanked), model.without):
        me = me._replace(acts=new)
        if me.action in {"add", "restore", "replace"}:
            return me._replace(pc="bytes", todo=model.layout.files(me.set))
        if me.action == "prune" and model.lacks("mark before delete"):
            going = fold((*log, entry), model.without).spent - state.spent
            return me._replace(pc="delete-first", todo=tuple(sorted(going)))
        return me._replace(pc="commit")
    if me.action in {"yank", "unyank"} or set(here.values()) == {done.get(me.action)}:
        return me._replace(report="nothing")
    return me._replace(report="refused")


def putting(model: Model, world: World, number: int, me: Process) -> Iterator[World]:
    """One file: put it, create-only, and verify it; or verify what a rollback kept."""
    if not me.todo:
        yield replaced(world, number, me._replace(pc="commit"))
        return
    file = me.todo[0]
    if file not in world.bytes and me.action == "restore":
        yield replaced(world, number, me._replace(report="refused"))
        return
    there = world._replace(bytes=world.bytes | {file})
    after = me._replace(todo=me.todo[1:])
    yield replaced(there, number, after if after.todo else after._replace(pc="commit"))


def asking(model: Model, world: World, number: int, me: Process) -> Iterator[World]:
    """After a commit that was not answered well: what is there decides."""
    if len(world.log) > me.number:
        if world.log[me.number].id == number:
            yield replaced(world, number, me._replace(pc="head"))
        elif me.attempts + 1 >= model.attempts:
            yield replaced(world, number, me._replace(report="refused"))
        else:
            again = me._replace(pc="snapshot", attempts=me.attempts + 1, unclear=False)
            yield replaced(world, number, again)
    elif me.attempts + 1 >= model.attempts:
        yield replaced(world, number, me._replace(report="unknown"))
    else:
        yield replaced(world, number, me._replace(pc="commit", attempts=me.attempts + 1))


def to_delete(model: Model, world: World, me: Process) -> Process:
    before = fold(world.log[: me.committed - 1], model.without).spent
    gone = fold(world.log[: me.committed], model.without).spent - before
    return me._replace(todo=tuple(sorted(gone)))


def deleting(model: Model, world: World, number: int, me: Process) -> Iterator[World]:
    """One file of spent name; a delayed delete arrives whenever it likes."""
    if not me.todo:
        if me.pc == "delete":
            yield replaced(world, number, me._replace(report="done"))
        elif me.pc == "delete-first":
            yield replaced(world, number, me._replace(pc="commit"))
        else:
            log = world.log[: world.head]
            yield replaced(world, number, to_settle(model, log[: me.number], me, "show"))
        return
    if model.caches and me.pc == "delete" and not model.lacks("wait before delete"):
        for at, copies in enumerate(world.copies):
            count = max((n for n, p in enumerate(copies[:-1], 1) if _lists(p, me.todo)), default=0)
            if count and model.all_moves:
                return  # it waits
            world = expired(world, at, count) if count else world
    write = Late(kind="delete", key=me.todo[0])
    for answer, there in answers(model, world, write):
        rest = me.todo[1:] if answer == "ok" else me.todo
        yield replaced(there, number, me._replace(todo=rest))


def _lists(page: Page, files: tuple[str, ...]) -> bool:
    return bool({file.rstrip("!") for file in page.files} & set(files))


def with_processes(
    world: World,
    *operations: tuple[str, ...],
    errors: int = 0,
    delays: int = 0,
    kills: int = 0,
) -> World:
    """The same world with these operations about to begin, and this much bad luck."""
    processes = tuple(Process(*words) for words in operations)
    return world._replace(processes=processes, errors=errors, delays=delays, kills=kills)
