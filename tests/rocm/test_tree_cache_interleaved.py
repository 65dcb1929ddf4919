"""Three runs of one cache at once, stopped before each step that another may see, in every order.

Some publish one tree from different sources, one trims, one takes the tree.
Real folders and real locks: only where a run would wait for a lock does it ask again instead.
"""

from __future__ import annotations

import itertools
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.schedule import Conductor
from support.tarballs import FACTS

from rocwheel.base import files
from rocwheel.rocm import tree_cache
from rocwheel.rocm.tree_cache import Cache, CachedTree

NAME = "a" * 64
ONE_AND_A_USER, TWO = ("publish", "trim", "lease"), ("publish", "publish_too", "trim")
WAITS = "wait"


class Together:
    """The three runs on one folder, and what must be true whenever all of them stand still."""

    def __init__(self, folder: Path, runs: tuple[str, ...], *, there: bool) -> None:
        self.cache = Cache(folder)
        self.cache.prepare()
        self.conductor = Conductor(lambda _: None)
        self.held = {}  # run -> the inode of the tree it holds
        if there:
            with self.unpacked("first") as staging:
                self.published(staging).close()
        self.runs = runs
        self.processes = {}

    def begin(self) -> None:
        for name in self.runs:
            job = getattr(self, name)
            process = self.conductor.begin(name, SimpleNamespace(url=""), lambda _, job=job: job())
            self.processes[name] = process

    @contextmanager
    def unpacked(self, source):
        with self.cache.claim(source, waiting=lambda: pytest.fail("nobody else has it")) as staging:
            (staging / "tree").mkdir()
            (staging / "tree" / "file").write_text("whole")
            yield staging

    def published(self, staging):
        entry = CachedTree(
            sha256=NAME, source="s", packed=1, files=1, bytes=5, links=(), facts=FACTS
        )
        return self.cache.publish(staging, entry)[2]

    def publish(self, source="second"):
        with self.unpacked(source) as staging:
            return self.published(staging)

    def publish_too(self):
        return self.publish("third")

    def trim(self):
        went = []
        self.cache.trim(budget=0, removed=lambda name, _: went.append(name))
        return went

    def lease(self):
        found = self.cache.lease(NAME)
        return found and found[2]

    def step(self, name) -> bool:
        """Let one run do one step; whether it stands elsewhere now."""
        process = self.processes[name]
        before = process.waiting
        self.conductor.go(process)
        assert process.failure is None, process.failure
        self.look()
        return not (process.waiting == before and before.startswith(WAITS))

    def finish(self, names) -> None:
        """Let each go to its end, or until it waits for another; at last all are over."""
        while left := [name for name in names if not self.processes[name].is_over]:
            moved = False
            for name in left:
                while not self.processes[name].is_over and self.step(name):
                    moved = True
            assert moved, [self.processes[name].waiting for name in left]

    def look(self) -> None:
        """Who was given a tree has a whole one, and the same one, for as long as it is held."""
        for name, process in self.processes.items():
            if process.is_over and isinstance(process.result, files.Lock):
                assert (self.cache.trees / NAME / "tree" / "file").read_text() == "whole", name
                inode = (self.cache.trees / NAME).stat().st_ino
                assert self.held.setdefault(name, inode) == inode, name


@pytest.fixture
def stops(monkeypatch):
    """Every step of a `Cache` another can see asks the conductor first; set it to have that."""
    conductors = []

    def ask(request: str) -> None:
        here = threading.current_thread()
        for conductor in conductors:
            for process in conductor.processes:
                if process.thread is here:
                    conductor.ask(process, request, ())

    def locked(path, *, shared=False, waiting=lambda: None):
        ask(f"lock {path.name}")
        while (lock := files.try_locked(path, shared=shared)) is None:
            ask(f"{WAITS} {path.name}")
        return lock

    def asking(function):
        def asked(*arguments, **options):
            ask(function.__name__)
            return function(*arguments, **options)

        return asked

    ours = SimpleNamespace(
        locked=locked,
        try_locked=asking(files.try_locked),
        remove=asking(files.remove),
        entries=asking(files.entries),
        **{name: getattr(files, name) for name in ("Lock", "status", "write")},
    )
    monkeypatch.setattr(tree_cache, "files", ours)
    for name in ("tree", "_entry"):
        monkeypatch.setattr(Cache, name, asking(getattr(Cache, name)))
    return conductors


def steps_alone(together, stops, name):
    """How many steps a run takes with nobody beside it."""
    stops[:] = [together.conductor]
    together.begin()
    count = 0
    while not together.processes[name].is_over:
        together.step(name)
        count += 1
    together.finish(together.runs)
    return count


# of two that do the same, either may be the first: one order stands for both
ORDERS = [
    *itertools.permutations(ONE_AND_A_USER),
    *(order for order in itertools.permutations(TWO) if order.index(TWO[0]) < order.index(TWO[1])),
]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
@pytest.mark.parametrize("there", [True, False], ids=["cached", "new"])
def test_a_tree_that_is_held_stays_whole_whoever_else_publishes_and_trims(
    tmp_path, stops, order, there
):
    """The first is stopped after each of its steps, the second after each of its, the third ends."""
    first, second, third = order
    alone = [
        steps_alone(Together(tmp_path / name, order, there=there), stops, name)
        for name in (first, second)
    ]
    assert min(alone) >= 1
    for number, stopped in enumerate(itertools.product(*(range(count) for count in alone))):
        together = Together(tmp_path / str(number), order, there=there)
        stops[:] = [together.conductor]
        together.begin()
        for name, count in zip((first, second), stopped, strict=True):
            for _ in range(count):
                together.step(name)
        together.finish((third, first, second))
        assert together.held.keys() >= set(order) - {"trim", "lease"}
        stops.clear()
        assert together.trim() == []  # whoever holds it
        for process in together.processes.values():
            if isinstance(process.result, files.Lock):
                process.result.close()
        assert together.trim() == [NAME]
        assert list((together.cache.folder / "staging").iterdir()) == []
