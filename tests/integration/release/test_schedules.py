"""The real code under forced interleavings of every pair of operations, at every storage request.

One operation is stopped before its k-th request (and stands still, is killed, is answered with an
error after its write was carried out, or has its write carried out later), another runs, the first
goes on. At every instant no plugin is listed without its pjrt and jaxlib, and what is listed is
there with its hash; afterwards reports are true, pages show the log, and `index repair` finds nothing
left to do. CI takes a seeded spread; all of them, on files and SeaweedFS:

    ROCWHEEL_CAMPAIGN=full python3 tests/run.py -n 2 tests/integration/release/test_schedules.py
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from model.protocol import RULES
from support.schedule import Conductor
from support.wheelset import FAMILY, NOW, WHO, Shop, make_set, pass_gate

from rocwheel.console import Console
from rocwheel.errors import PromotionError, RocwheelError, StoreError
from rocwheel.index import publish
from rocwheel.index.channels import Retention
from rocwheel.index.page import Page, links
from rocwheel.ledger import log, state
from rocwheel.ledger.state import Action, Standing
from rocwheel.release import adopt, audit, operations, promote, retention, stage, withdraw
from rocwheel.values import replace

FULL = os.environ.get("ROCWHEEL_CAMPAIGN") == "full"
SEED = int(os.environ.get("ROCWHEEL_SEED", "20261121"))
FILES, OBJECTS = (100, 3) if not FULL else (10**9, 10**9)  # schedules of the spread
PJRT, JAXLIB, PLUGIN = "jax-rocm7-pjrt", "jaxlib", "jax-rocm7-plugin"
STOPS = ("stand", "kill", "lost", "late")

# A and B share all their files but the jaxlib and plugin of one CPython; C shares nothing.
SETS = {
    "A": {"pythons": ("3.11", "3.12")},
    "B": {"pythons": ("3.12", "3.13")},
    "C": {"jax": "0.9.2", "pythons": ("3.12",)},
}
STARTS = {
    "staged": (),
    "A": ("promote A",),
    "AB": ("promote A", "promote B"),
    "A rolled back": ("promote A", "rollback A"),
    "A rolled back, B": ("promote A", "rollback A", "promote B"),
    "A yanked, B": ("promote A", "yank A", "promote B"),
}
OPERATIONS = {
    "staged": ("promote A", "promote B", "promote C", "adopt", "stage D", "prune staging"),
    "A": ("promote B", "promote C", "rollback A", "yank A", "prune A", "repair"),
    "AB": ("rollback A", "rollback B", "prune A", "yank B", "repair"),
    "A rolled back": ("restore A", "prune A", "promote B", "promote C"),
    "A rolled back, B": ("restore A", "prune A", "rollback B", "prune B", "yank B"),
    "A yanked, B": ("unyank A", "rollback B", "prune A", "yank B"),
}


class Scene:
    """A store in some state, and the operations on it."""

    def __init__(self, shop: Shop, manifests, wheelhouses: Path) -> None:
        self.shop, self.manifests, self.wheelhouses = shop, manifests, wheelhouses
        self.every, self._requests = 1, 0

    def watch(self) -> None:
        """Look, after every request or every so many of them."""
        self._requests += 1
        if self._requests % self.every == 0:
            self.look()

    def run(self, name: str, store) -> bool:
        """One operation, from its first request on; whether it says that it changed something."""
        action, _, about = name.partition(" ")
        shop = self.shop
        place = replace(shop.release, store=store)
        staging = replace(shop.staging, store=store)
        who = withdraw.with_reason(WHO, name)
        manifest = self.manifests.get(about)
        if action == "promote":
            plan = promote.plan(manifest, FAMILY, shop.channel, store, who=WHO)
            if not plan.is_done:
                promote.apply(plan, console=shop.console)
        elif action == "stage":
            planned = stage.plan(self.wheelhouses / about, FAMILY, shop.channel, store, who=WHO)
            stage.apply(planned, console=shop.console)
        elif action == "adopt":
            adopt.apply(adopt.plan(place, who=WHO))
        elif action == "repair":
            retention.repair(place)
        elif action == "prune":
            target = staging if about == "staging" else place
            late = replace(who, now=NOW.replace(year=2027))
            kept = tuple(m.sha256 for name, m in self.manifests.items() if name != about)
            keep = Retention(staging_days=1, release_days=1, keep_newest=0,
                             pinned=() if about == "staging" else kept)  # fmt: skip
            channel = replace(shop.channel, retention=keep)
            planned = retention.plan(target, channel, who=late, is_staging=about == "staging")
            retention.apply(planned, who=late)
        else:
            change = withdraw.plan(place, Action(action), who=who, set_id=manifest.sha256)
            withdraw.apply(change)
        return True

    def look(self) -> None:
        """What must hold at every instant, read past all code that is tested."""
        for place in (self.shop.release, self.shop.staging):
            listed = {}
            for project in (PJRT, JAXLIB, PLUGIN):
                found: list[set[str]] = []
                for key in place.views(project, folder_keys=False):
                    try:
                        data, _ = self.shop.store.read(key)
                    except StoreError:
                        continue
                    found.append({link.filename for link in links(data)})
                    for link in links(data):
                        self._is_there(place, link)
                listed[project] = set().union(*found)
            for plugin in listed[PLUGIN]:
                version, python = plugin.split("-")[1:3]
                for project in (PJRT, JAXLIB):
                    tag = python if project == JAXLIB else "py3"
                    assert any(
                        name.split("-")[1:3] == [version, tag] for name in listed[project]
                    ), f"{plugin} is listed without its {project}"

    def _is_there(self, place, link) -> None:
        store = self.shop.store
        if store.url.startswith("file:"):
            path = store.root / place.key(link.filename)
            assert path.exists(), f"{link.filename} is listed and its bytes are gone"
            stat = path.stat()
            digest = _digest(path, stat.st_ino, stat.st_mtime_ns, stat.st_size)
        else:
            info = store.info(place.key(link.filename))
            assert info, f"{link.filename} is listed and its bytes are gone"
            digest = info.sha256
        assert digest == link.sha256, f"{link.filename} is listed with another hash"

    def end(self, processes) -> None:
        """What must hold when everybody is done."""
        for place in (self.shop.release, self.shop.staging):
            entries = self.shop.entries(place)
            assert all(n == 1 for n in Counter(item.id for item in entries).values()), "twice"
            if not any(process.was_killed for process in processes):
                assert audit.check_pages(place) == [], "the pages do not show the log"
            found = log.load(place, log.read(place), None)
            self._check_held(place, found)
            assert found.problems == (), found.problems
            assert found.number == len(entries), "an entry of the log does not count"
            retention.repair(place)
            assert audit.check(place).problems == ()
            names = {
                item.key.removeprefix(place.key("")) for item in self.shop.store.keys(place.key(""))
            }
            assert not names & set(found.doomed(since=0)), "a spent name is there after a repair"
        self.look()
        for process in processes:
            if process.was_killed:
                continue
            assert process.failure is None or isinstance(process.failure, RocwheelError), (
                f"{process.name}: {process.failure!r}"
            )
            self._check_report(process)

    def _check_held(self, place, found) -> None:
        sets = {manifest.sha256: manifest for manifest in self.manifests.values()}
        for known in found.sets.values():
            if known.standing is not Standing.PRUNED and known.id in sets:
                for wheel in sets[known.id].built:
                    info = self.shop.store.info(place.key(wheel.filename))
                    assert info, f"{wheel.filename}: held by {known.id[:8]}, and gone"

    def _check_report(self, process) -> None:
        """A refusal means that nothing was done; what cannot be said, or was done, is told so."""
        action = process.name.partition(" ")[0]
        if process.failure is None or action not in {"rollback", "restore", "yank", "unyank"}:
            return
        reasons = {item.reason for item in self.shop.entries(self.shop.release)}
        told = "committed" in str(process.failure)
        assert told or process.name not in reasons, f"{process.failure}, and it was done"


@cache
def _digest(path: Path, *_version: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def quick():
    """No waiting between attempts: nobody is there to wait for."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (log, publish):
            patch.setattr(module, "pause", lambda _failures: None)
        patch.setattr(operations, "ATTEMPTS", 6)
        yield


class Worlds:
    """Start states, each made once, in a folder that is copied for each schedule."""

    def __init__(self, folder: Path, console) -> None:
        self.folder, self.console = folder, console
        self.wheelhouses = folder / "wheelhouses"
        self.manifests = {
            name: make_set(self.wheelhouses / name, **options)
            for name, options in {**SETS, "D": {"jax": "0.9.3", "pythons": ("3.12",)}}.items()
        }

    def fill(self, shop: Shop, start: str) -> Scene:
        scene = Scene(shop, self.manifests, self.wheelhouses)
        for name in SETS:
            shop.stage(self.wheelhouses / name)
            pass_gate(shop.staging, self.manifests[name])
        for name in STARTS[start]:
            scene.run(name, shop.store)
        return scene

    def on_files(self, start: str) -> Scene:
        kept = self.folder / start.replace(" ", "-").replace(",", "")
        store = self.folder / "store"  # always the same: pages show the URL of their index
        shutil.rmtree(store, ignore_errors=True)
        if not kept.exists():
            self.fill(Shop(store.as_uri(), self.console), start)
            store.rename(kept)
        shutil.copytree(kept, store)
        return Scene(Shop(store.as_uri(), self.console), self.manifests, self.wheelhouses)


@pytest.fixture(scope="module")
def worlds(quick):
    memory = Path("/dev/shm")  # where a sync costs nothing
    console = Console(sys.stderr, clock=time.monotonic, verbosity=-1)
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Worlds(Path(folder), console)


def pairs():
    for start, names in OPERATIONS.items():
        for first, second in itertools.product(names, repeat=2):
            yield start, first, second


def length(worlds: Worlds, start: str, name: str) -> int:
    """How many requests an operation makes alone."""
    scene = worlds.on_files(start)
    conductor = Conductor(lambda: None)
    process = conductor.begin(name, scene.shop.store, lambda store: scene.run(name, store))
    conductor.finish(process)
    return len(process.requests)


def play(scene: Scene, first: str, second: str, at: int, stop: str) -> list[str]:
    """`first` up to its request number `at`, where it is stopped; all of `second`; the rest."""
    conductor = Conductor(scene.watch)
    one = conductor.begin(first, scene.shop.store, lambda store: scene.run(first, store))
    while not one.is_over and len(one.requests) < at:
        conductor.go(one)
    if stop == "kill":
        conductor.kill(one)
    elif stop in {"lost", "late"}:
        conductor.go(one, stop)
    two = conductor.begin(second, scene.shop.store, lambda store: scene.run(second, store))
    conductor.finish(two)
    conductor.finish(one)
    conductor.arrive()
    scene.end(conductor.processes)
    return [*one.requests, *two.requests]


def shuffled(scene: Scene, names, dice: random.Random) -> None:
    """All of them at once, each request in an order of chance."""
    conductor = Conductor(scene.watch)
    running = [
        conductor.begin(
            f"{name}", scene.shop.store, lambda store, name=name: scene.run(name, store)
        )
        for name in names
    ]
    while left := [process for process in running if not process.is_over]:
        process = dice.choice(left)
        roll = dice.random()
        conductor.go(
            process,
            "kill" if roll < 0.005 else "lost" if roll < 0.02 else "late" if roll < 0.03 else "go",
        )
        if conductor.late and dice.random() < 0.1:
            conductor.arrive()
    conductor.arrive()
    scene.end(running)


def schedules(worlds: Worlds):
    """Every (start, first, second, request, stop)."""
    lengths: dict[tuple[str, str], int] = {}
    for start, first, second in pairs():
        if (start, first) not in lengths:
            lengths[start, first] = length(worlds, start, first)
        for at in range(lengths[start, first] + 1):
            for stop in STOPS:
                yield start, first, second, at, stop


@pytest.mark.slow
def test_every_pair_of_operations_holds_wherever_one_is_stopped(worlds) -> None:
    found = list(schedules(worlds))
    total = len(found)
    random.Random(SEED).shuffle(found)
    tried = 0
    for start, first, second, at, stop in found[:FILES]:
        scene = worlds.on_files(start)
        try:
            play(scene, first, second, at, stop)
        except BaseException as exc:
            raise AssertionError(f"{start}: {first}, {stop} at {at}, {second}: {exc}") from exc
        tried += 1
    print(f"{tried} of {total} schedules, seed {SEED}")


@pytest.mark.slow
def test_three_operations_at_once_hold_in_orders_of_chance(worlds) -> None:
    dice = random.Random(SEED)
    for number in range(2000 if FULL else 25):
        start = dice.choice(list(OPERATIONS))
        names = [dice.choice(OPERATIONS[start]) for _ in range(3)]
        seed = dice.randrange(1 << 30)
        scene = worlds.on_files(start)
        try:
            shuffled(scene, names, random.Random(seed))
        except BaseException as exc:
            raise AssertionError(f"{number}: {start}: {names}, seed {seed}: {exc}") from exc


@pytest.mark.slow
def test_pairs_hold_on_object_storage_too(worlds, servers, monkeypatch, console) -> None:
    for key, value in servers["seaweedfs"].environ().items():
        monkeypatch.setenv(key, value)
    found = [
        (start, first, second, at, stop)
        for start, first, second in pairs()
        for at in range(1, 60, 3)
        for stop in STOPS
    ]
    random.Random(SEED).shuffle(found)
    for start, first, second, at, stop in found[:OBJECTS]:
        shop = Shop(servers.fresh_url("seaweedfs"), console)
        shop.store.abilities()
        scene = worlds.fill(shop, start)
        scene.every = 1 if FULL else 10  # a look is some twenty requests
        try:
            play(scene, first, second, at, stop)
        except BaseException as exc:
            raise AssertionError(f"{start}: {first}, {stop} at {at}, {second}: {exc}") from exc


# Without any one of its rules the code fails


def unsettled(patch) -> None:
    patch.setattr(operations, "complete", lambda _place, state: state)


def two_directions(patch) -> None:
    bring = state._CHANGES[Action.PROMOTE]

    def change(now, entry):
        after = bring(now, entry)
        out = {
            name: replace(known, standing=Standing.HELD)
            for name, known in now.sets.items()
            if name not in entry.sets
        }
        return replace(after, sets={**after.sets, **out})

    patch.setitem(state._CHANGES, Action.PROMOTE, change)


def plugins_first(patch) -> None:
    patch.setattr(publish, "rank", lambda project: int(not project.endswith("-plugin")))


def always_adding(patch) -> None:
    settle = publish.settle
    patch.setattr(
        operations,
        "settle",
        lambda place, pages, removing: settle(place, pages, removing=False),  # noqa: ARG005
    )


def no_mark(patch) -> None:
    for name in ("to_html", "to_json"):
        render = getattr(Page, name)

        def same(self, *, render=render, **options):
            return render(self, **{**options, "number": 1})

        patch.setattr(Page, name, same)


def over_newer(patch) -> None:
    mark = publish.mark
    patch.setattr(publish, "mark", lambda data: None if mark(data) is None else 0)


def deletes_empty_pages(patch) -> None:
    put = publish._put

    def change(place, form, seen):
        ends = put(place, form, seen)
        data = form.render(form.number)
        if seen.is_behind and form.key.count("/") > 2 and b".whl" not in data:
            place.store.delete(form.key)
        return ends

    patch.setattr(publish, "_put", change)


def errors_are_losses(patch) -> None:
    def commit(place, entry):
        body = entry.to_bytes()
        try:
            place.store.create(place.log(entry.number), body, headers=place.record_headers)
        except StoreError as exc:
            raise PromotionError(f"refused: {exc}", hint="made up") from exc
        return hashlib.sha256(body).hexdigest()

    patch.setattr(log, "commit", commit)


def delete(place, names) -> None:
    for name in names:
        place.store.delete(place.key(name))


def deletes_first(patch) -> None:
    def prepare(self, now) -> None:
        for names in self.leaving(now).values():
            delete(self.place, names)

    patch.setattr(retention.Prune, "prepare", prepare)


def deletes_unsettled(patch) -> None:
    repair = operations.repair

    def change(place, now, projects):
        delete(place, now.doomed(since=now.swept))
        return repair(place, now, projects)

    patch.setattr(operations, "repair", change)


def names_come_back(patch) -> None:
    patch.setattr(state.IndexState, "check_names", lambda *_args, **_options: None)


def rolled_back_lets_go(patch) -> None:
    prune = state._CHANGES[Action.PRUNE]

    def change(now, entry):
        listed = {name for name, known in now.sets.items() if known.standing is Standing.LISTED}
        listings = {
            project: replace(
                listing,
                files=tuple(
                    replace(file, sets=tuple(s for s in file.sets if s in listed))
                    for file in listing.files
                ),
            )
            for project, listing in now.listings.items()
        }
        return prune(replace(now, listings=listings), entry)

    patch.setitem(state._CHANGES, Action.PRUNE, change)


def saves_first(patch) -> None:
    repair = operations.repair

    def change(place, now, projects):
        log.save(place, now)
        return repair(place, now, projects)

    patch.setattr(operations, "repair", change)


def snapshot_is_the_head(patch) -> None:
    folded = log._folded

    def change(place, now):
        return now if now.saved else folded(place, now)

    patch.setattr(log, "_folded", change)


MUTANTS = {
    "settle before commit": (unsettled, "A", "promote B", "rollback A"),
    "one direction": (two_directions, "A", "promote C", "repair"),
    "order of projects": (plugins_first, "staged", "promote A", "promote B"),
    "order when removing": (always_adding, "A", "rollback A", "repair"),
    "mark in the bytes": (no_mark, "A", "promote B", "rollback A"),
    "never over a newer mark": (over_newer, "A", "promote B", "rollback A"),
    "keep empty pages": (deletes_empty_pages, "A", "rollback A", "repair"),
    "the id decides": (errors_are_losses, "A", "rollback A", "repair"),
    "mark before delete": (deletes_first, "A", "prune A", "repair"),
    "delete when settled": (deletes_unsettled, "A", "prune A", "repair"),
    "spent for ever": (names_come_back, "A", "prune A", "promote B"),
    "rolled back holds": (rolled_back_lets_go, "A rolled back, B", "prune B", "repair"),
    "a snapshot is shown": (saves_first, "A", "rollback A", "promote B"),
    "the record is the commit": (snapshot_is_the_head, "A", "rollback A", "promote B"),
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", MUTANTS)
def test_without_the_rule_the_code_fails(worlds, rule: str) -> None:
    change, start, first, second = MUTANTS[rule]
    total = length(worlds, start, first)
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        # From the end: what a rule is about comes late in an operation.
        for stop, at in itertools.product(STOPS, range(total, -1, -1)):
            scene = worlds.on_files(start)
            try:
                play(scene, first, second, at, stop)
            except (AssertionError, RocwheelError, KeyError):
                return
    raise AssertionError(f"the code holds without the rule: {rule}")


def test_every_rule_of_the_model_has_a_mutant_of_the_code() -> None:
    waits = {rule for rule in RULES if rule.startswith("wait")}  # test_caches.py
    assert MUTANTS.keys() == RULES.keys() - waits
