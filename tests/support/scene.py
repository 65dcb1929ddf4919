"""Real operations on one index under forced interleavings, and what must hold at every instant.

One operation is stopped before its k-th request (and stands still, is killed, is answered with an
error after its write was carried out, or has its write carried out later), another runs, the first
goes on. tests/release/test_schedules.py takes a spread, tests/campaign.py all of them.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote

import pytest
from support.schedule import WRITES, Conductor
from support.shared import SharedShop, X, Y
from support.wheelset import WHO, Shop, make_set, pass_gate

from rocwheel.base.choices import ALL
from rocwheel.base.console import Console
from rocwheel.base.errors import RocwheelError, StoreError
from rocwheel.base.values import replace
from rocwheel.records.places import LAST_GOOD, Place
from rocwheel.release import audit, operations, promote, retention, stage
from rocwheel.release.index import page, publish
from rocwheel.release.index.channels import Retention
from rocwheel.release.ledger import log
from rocwheel.release.ledger.state import Action, Standing

PJRT, JAXLIB, PLUGIN = "jax-rocm7-pjrt", "jaxlib", "jax-rocm7-plugin"
# Stands still; ends; its write is carried out and answered with an error; it is answered so and
# carried out when everybody is done, or before the first goes on.
STOPS = ("stand", "kill", "lost", "late", "between")


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
    "staged": (
        "promote A",
        "promote B",
        "promote C",
        "adopt",
        "stage D",
        "prune staging",
        "repair",
    ),
    "A": ("promote B", "promote C", "rollback A", "yank A", "prune A", "repair"),
    "AB": ("rollback A", "rollback B", "prune A", "yank B", "repair"),
    "A rolled back": ("restore A", "prune A", "promote B", "promote C"),
    "A rolled back, B": ("restore A", "prune A", "rollback B", "prune B", "yank B"),
    "A yanked, B": ("unyank A", "rollback B", "prune A", "yank B"),
}


class Schedule(NamedTuple):
    """`first` up to its request number `at`, where it is stopped; all of `second`; the rest."""

    start: str
    first: str
    second: str
    at: int
    stop: str

    def __str__(self) -> str:
        return f"{self.start}: {self.first}, {self.stop} at {self.at}, {self.second}"


class Scene:
    """A store in some state, and the operations on it."""

    def __init__(self, shop: Shop, manifests, wheelhouses: Path) -> None:
        self.shop, self.manifests, self.wheelhouses = shop, manifests, wheelhouses
        self.is_harmed = False  # somebody damaged it: an operation may say that it is not shown
        self._pages: dict[str, tuple[page.Link, ...]] = {}
        self._digests: dict[str, str] = {}

    @property
    def indexes(self) -> tuple[Place, ...]:
        """Every index that installers may read."""
        release = self.shop.release
        return release, release.of(f"{release.family}/{LAST_GOOD}"), self.shop.staging

    def check_index(self, index: Place, listed: Collection[str]) -> None:
        """What must hold of all that one index lists."""

    @property
    def places(self) -> tuple[Place, ...]:
        """Every log that operations change."""
        return self.shop.release, self.shop.staging

    def run(self, name: str, store) -> bool:
        """One operation, from its first request on; whether it says that it changed something."""
        action, _, about = name.partition(" ")
        shop, manifest = self.shop.over(store), self.manifests.get(about)
        if action == "promote":
            shop.promote(manifest)
        elif action == "stage":
            shop.stage(self.wheelhouses / about)
        elif action == "adopt":
            operations.perform(audit.plan_adoption(shop.release, who=WHO))
        elif action == "repair":
            mend(shop.release)
        elif action == "prune":
            kept = tuple(m.sha256 for name, m in self.manifests.items() if name != about)
            keep = Retention(staging_days=1, release_days=1, keep_newest=0,
                             pinned=() if about == "staging" else kept)  # fmt: skip
            shop.channel = replace(shop.channel, retention=keep)
            place = shop.staging if about == "staging" else shop.release
            retention.apply(shop.prune_plan(place, days=365, reason=name))
        else:
            shop.change(Action(action), manifest, reason=name)
        return True

    def look(self, changed: Collection[str] | None = None) -> None:
        """What must hold at every instant, read past all code that is tested.

        After a write only what has its keys is read again: nobody else writes to this store.
        """
        for known in (self._pages, self._digests):
            for key in tuple(known if changed is None else changed):
                known.pop(key, None)
        for place in self.indexes:
            listed = {}
            for project in (PJRT, JAXLIB, PLUGIN):
                found: list[set[str]] = []
                for key in place.views(project, folder_keys=False):
                    shown = self._links(key)
                    found.append({link.filename for link in shown})
                    for link in shown:
                        self._is_there(resolved(key, unquote(link.url)), link)
                listed[project] = set().union(*found)
            self.check_index(place, set().union(*listed.values()))
            for plugin in listed[PLUGIN]:
                version, python = plugin.split("-")[1:3]
                for project in (PJRT, JAXLIB):
                    tag = python if project == JAXLIB else "py3"
                    assert any(
                        name.split("-")[1:3] == [version, tag] for name in listed[project]
                    ), f"{plugin} is listed without its {project}"

    def _links(self, key: str) -> tuple[page.Link, ...]:
        if key not in self._pages:
            try:
                data, _ = self.shop.store.read(key)
            except StoreError:
                data = b""
            self._pages[key] = _parsed(data)
        return self._pages[key]

    def _is_there(self, key: str, link: page.Link) -> None:
        if key not in self._digests:
            info = self.shop.store.info(key)
            assert info, f"{link.filename} is listed and its bytes are gone"
            self._digests[key] = info.sha256
        assert self._digests[key] == link.sha256, f"{link.filename} is listed with another hash"

    def end(self, processes) -> None:
        """What must hold when everybody is done."""
        for place in self.places:
            entries = self.shop.entries(place)
            assert all(n == 1 for n in Counter(item.id for item in entries).values()), "twice"
            if not any(process.was_killed or self._says_so(process) for process in processes):
                problems = audit.check_pages(place, log.read(place, files=True))
                assert problems == [], f"the pages do not show the log: {problems}"
            found = log.read(place, files=True)
            self._check_held(place, found)
            assert found.damage == {}, found.damage
            assert found.number == len(entries), "an entry of the log does not count"
            mend(place)
            problems = audit.check(place).problems
            assert problems == (), problems
            names = {
                item.key.removeprefix(place.key("")) for item in self.shop.store.keys(place.key(""))
            }
            assert not names & set(found.spent_paths()), "a spent name is there after a repair"
        self.look()
        for process in processes:
            if process.was_killed:
                continue
            if process.failure and not isinstance(process.failure, RocwheelError):
                raise process.failure
            done = [p for p in processes if p.name == process.name and not self._refused(p)]
            self._check_report(process, len(done))

    def _says_so(self, process) -> bool:
        """Whether it committed, and told of a page that keeps it from being shown."""
        cause = process.failure and process.failure.__cause__
        return self.is_harmed and isinstance(cause, publish.AheadError)

    def _check_held(self, place, found) -> None:
        sets = {manifest.sha256: manifest for manifest in self.manifests.values()}
        for known in found.sets.values():
            if known.standing is not Standing.PRUNED and known.id in sets:
                for wheel in sets[known.id].built:
                    info = self.shop.store.info(place.wheel(wheel.filename, wheel.sha256))
                    assert info, f"{wheel.filename}: held by {known.id[:8]}, and gone"

    def _check_report(self, process, done: int) -> None:
        """Check that a command whose error is a refusal left nothing in the log.

        `done` is how many of the same name do not say that they were refused.
        """
        action = process.name.partition(" ")[0]
        if not self._refused(process) or action not in {"rollback", "restore", "yank", "unyank"}:
            return
        reasons = [item.reason for item in self.shop.entries(self.shop.release)]
        assert reasons.count(process.name) <= done, f"{process.failure}, and it was done"

    def _refused(self, process) -> bool:
        failure = process.failure
        return not process.was_killed and bool(failure) and "committed" not in str(failure)


def mend(place) -> None:
    """`index repair`, of a release with `--skip-entry` for what its log lost."""
    lost = frozenset[int]()
    while not place.is_staging:
        state = log.read(place, files=True, skips=lost)
        if not (more := operations.damage(place, state, state.projects, lost).keys() - lost):
            break
        lost |= more
    (planned,) = audit.plan_repairs([place], WHO, tuple(map(str, lost)))
    audit.repair(place, WHO, planned.skips)


def resolved(page: str, url: str) -> str:
    """The key that a page's link leads to."""
    parts: list[str] = []
    for part in (*PurePosixPath(page).parent.parts, *PurePosixPath(url).parts):
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


@lru_cache(maxsize=4096)
def _parsed(data: bytes) -> tuple[page.Link, ...]:
    return page.links(data)


def without_waiting(patch) -> None:
    """No waiting between attempts: nobody is there to wait for."""
    for module in (log, publish):
        patch.setattr(module, "pause", lambda _failures: None)
    patch.setattr(operations, "ATTEMPTS", 6)


@contextmanager
def unwaiting(kind):
    """Start states of a kind, in memory where there is some, and no waiting meanwhile."""
    memory = Path("/dev/shm")  # where a sync costs nothing
    console = Console(sys.stderr, clock=time.monotonic, verbosity=-1)
    where = memory if os.access(memory, os.W_OK) else None
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir=where) as folder:
        without_waiting(patch)
        yield kind(Path(folder), console)


class Worlds:
    """Start states, each made once, in a folder that is copied for each schedule."""

    sets, starts, operations = SETS, STARTS, OPERATIONS
    shop: type[Shop] = Shop
    scene: type[Scene] = Scene

    def __init__(self, folder: Path, console) -> None:
        self.folder, self.console = folder, console
        self._shops: dict[str, Shop] = {}
        self._lengths: dict[tuple[str, str], tuple[str, ...]] = {}
        self.wheelhouses = folder / "wheelhouses"
        self.manifests = {
            name: make_set(self.wheelhouses / name, **options)
            for name, options in {**self.sets, "D": {"jax": "0.9.3", "pythons": ("3.12",)}}.items()
        }

    def fill(self, shop: Shop, start: str) -> Scene:
        scene = self.scene(shop, self.manifests, self.wheelhouses)
        for name in self.sets:
            self.stage(shop, name)
        for name in self.starts[start]:
            scene.run(name, shop.store)
        return scene

    def stage(self, shop: Shop, name: str) -> None:
        """Stage a set, which passes."""
        shop.stage(self.wheelhouses / name)
        pass_gate(shop.staging, self.manifests[name])

    def on_files(self, start: str) -> Scene:
        kept = self.folder / start.replace(" ", "-").replace(",", "")
        store = self.folder / "store"  # always the same: pages show the URL of their index
        shutil.rmtree(store, ignore_errors=True)
        if not kept.exists():
            self.fill(self.shop(store.as_uri(), self.console), start)
            store.rename(kept)
        shutil.copytree(kept, store)
        shop = self.shop(store.as_uri(), self.console)
        return self.scene(shop, self.manifests, self.wheelhouses)

    def on_objects(self, client, bucket: str, start: str) -> Scene:
        """The same in a bucket of which nobody else uses these prefixes: only what differs is put."""
        live, kept = f"live-{self.folder.name}/", f"kept-{self.folder.name}/{start}/"
        if bucket not in self._shops:
            self._shops[bucket] = Shop(f"s3://{bucket}/{live.rstrip('/')}", self.console)
            self._shops[bucket].store.abilities()
        shop = self._shops[bucket]
        wanted = _objects(client, bucket, kept)
        if not wanted:
            _mirror(client, bucket, f"kept-{self.folder.name}/nothing/", live)
            self.fill(shop, start)
            _mirror(client, bucket, live, kept)
        _mirror(client, bucket, kept, live)
        return Scene(shop, self.manifests, self.wheelhouses)

    def length(self, start: str, name: str) -> tuple[str, ...]:
        """The requests that an operation makes alone."""
        if (start, name) not in self._lengths:
            scene = self.on_files(start)
            conductor = Conductor(lambda _changed: None)
            process = conductor.begin(name, scene.shop.store, lambda store: scene.run(name, store))
            conductor.finish(process)
            self._lengths[start, name] = tuple(process.requests)
        return self._lengths[start, name]

    def pairs(self) -> Iterator[tuple[str, str, str]]:
        for start, names in self.operations.items():
            for first, second in itertools.product(names, repeat=2):
                yield start, first, second

    def schedules(self) -> Iterator[Schedule]:
        """All that differ.

        A process that is killed before a read is one that was killed before its next write, or has
        done all it does; a read whose answer is lost, or late, is one that was made. So stops other
        than `stand` are tried at writes alone.
        """
        for start, first, second in self.pairs():
            requests = self.length(start, first)
            for at in range(len(requests) + 1):
                yield Schedule(start, first, second, at, "stand")
                if at < len(requests) and requests[at].split()[0] in WRITES:
                    for stop in STOPS[1:]:
                        yield Schedule(start, first, second, at, stop)


def _objects(client, bucket: str, prefix: str) -> dict[str, str]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    found = (item for page_ in pages for item in page_.get("Contents", ()))
    return {item["Key"].removeprefix(prefix): item["ETag"] for item in found}


def _mirror(client, bucket: str, source: str, target: str) -> None:
    wanted, there = _objects(client, bucket, source), _objects(client, bucket, target)
    for key in there.keys() - wanted.keys():
        client.delete_object(Bucket=bucket, Key=target + key)
    for key, etag in wanted.items():
        if there.get(key) != etag:
            where = {"Bucket": bucket, "Key": source + key}
            client.copy_object(Bucket=bucket, Key=target + key, CopySource=where)


def play(scene: Scene, schedule: Schedule) -> None:
    """Carry a schedule out. Raises AssertionError, which names it, where something does not hold."""
    try:
        _play(scene, schedule)
    except Exception as exc:
        raise AssertionError(f"{schedule}: {exc}") from exc


def _play(scene: Scene, schedule: Schedule) -> None:
    _, first, second, at, stop = schedule
    conductor = Conductor(scene.look)
    one = conductor.begin(first, scene.shop.store, lambda store: scene.run(first, store))
    while not one.is_over and len(one.requests) < at:
        conductor.go(one)
    if stop == "kill":
        conductor.kill(one)
    elif stop != "stand":
        conductor.go(one, "lost" if stop == "lost" else "late")
    two = conductor.begin(second, scene.shop.store, lambda store: scene.run(second, store))
    conductor.finish(two)
    if stop == "between":
        conductor.arrive()
    conductor.finish(one)
    conductor.arrive()
    scene.end(conductor.processes)


def shuffled(worlds: Worlds, seed: int) -> None:
    """Three operations at once, each request in an order of chance."""
    dice = random.Random(seed)
    start = dice.choice(list(worlds.operations))
    names = [dice.choice(worlds.operations[start]) for _ in range(3)]
    try:
        _shuffled(worlds.on_files(start), names, dice)
    except Exception as exc:
        raise AssertionError(f"{start}: {names}, seed {seed}: {exc}") from exc


def _shuffled(scene: Scene, names, dice: random.Random) -> None:
    """All of them at once, each request in an order of chance."""
    conductor = Conductor(scene.look)
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


# The same of one log that two families and `all` show, for sets of two families and one of one.

BOTH = tuple(sorted((X.name, Y.name)))
NAMES = {"x": X, "y": Y}
ALONE = "O"  # was built for X alone
SHARED_SETS = {
    "A": {"pythons": ("3.12",), "families": BOTH, "gfx": (*X.targets, *Y.targets)},
    "B": {"jax": "0.9.2", "pythons": ("3.12",), "families": BOTH, "gfx": (*X.targets, *Y.targets)},
    ALONE: {"jax": "0.9.0", "pythons": ("3.12",)},
}
SHARED_STARTS = {
    "nothing": (),
    "staged": ("promote O x",),
    "A": ("promote O x", "promote A xy"),
    "A of x": ("promote O x", "promote A x"),
    "A of x, which leads": ("promote O x", "lead A x"),
    "A, not for y": ("promote O x", "promote A xy", "rollback A y"),
}
SHARED_OPERATIONS = {
    "nothing": ("promote O x", "promote A x", "repair"),
    "staged": ("promote A xy", "promote A x", "promote A y", "rollback O x"),
    "A": ("promote B x", "rollback A x", "rollback A y", "yank A", "prune A", "rollback O x"),
    "A of x": ("promote A y", "rollback A x", "promote B y", "prune A", "repair"),
    "A of x, which leads": ("promote A y", "rollback A x", "repair"),
    "A, not for y": ("restore A y", "rollback A x", "promote B xy", "prune A"),
}


class SharedScene(Scene):
    """A store with one log for two families, and the operations on it."""

    def run(self, name: str, store) -> bool:
        action, about, *named = [*name.split(), ""]
        families = [NAMES[letter] for letter in "".join(named)]
        shop, manifest = self.shop.over(store), self.manifests.get(about)
        if action in {"promote", "lead"}:
            shop.channel = replace(shop.channel, must=(X.name,) if action == "lead" else ())
            plan = shop.promote_plan(manifest, *families)
            if not plan.is_done:
                promote.apply(plan, console=shop.console)
        elif action in {"rollback", "restore"}:
            shop.take(Action(action), manifest, *families, reason=name)
        else:
            return super().run(name, store)
        return True

    @property
    def indexes(self) -> tuple[Place, ...]:
        return tuple(map(self.shop.release.of, (X.name, Y.name, ALL)))

    def check_index(self, index: Place, listed: Collection[str]) -> None:
        strange = {*listed} - self._passed()[index.family]
        assert not strange, f"{index.family} lists what did not pass there: {strange}"

    def _passed(self) -> dict[str, set[str]]:
        """The files of the sets that an entry ever made pass for each index."""
        files = {
            manifest.sha256: {wheel.filename for wheel in manifest.built}
            for manifest in self.manifests.values()
        }
        passed = {X.name: set(), Y.name: set(), ALL: set()}
        families, must = dict[str, set[str]](), dict[str, tuple[str, ...]]()
        for entry in self.shop.entries(self.shop.release):
            if entry.action is Action.PROMOTE:
                for name in (*entry.sets, *(holding.set for holding in entry.brings)):
                    families.setdefault(name, set()).update(entry.families)
                    must.setdefault(name, entry.must or ())
        for name, own in families.items():
            for view in (*own, *([ALL] if must[name] and own.issuperset(must[name]) else ())):
                passed[view] |= files[name]
        return passed


class SharedWorlds(Worlds):
    """Start states of a store with one log for two families."""

    sets, starts, operations = SHARED_SETS, SHARED_STARTS, SHARED_OPERATIONS
    shop, scene = SharedShop, SharedScene

    def stage(self, shop: Shop, name: str) -> None:
        manifest, folder = self.manifests[name], self.wheelhouses / name
        families = (X,) if name == ALONE else (X, Y)
        only = X if name == ALONE else None
        staged = stage.plan(folder, only, shop.channel, shop.store, who=WHO)
        stage.apply(staged, console=shop.console)
        for family in families:
            pass_gate(shop.staging.of(family.name), manifest, family=family)
