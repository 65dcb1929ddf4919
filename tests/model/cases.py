"""What the model is tried on: operations from several starts, with bad luck."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from model.protocol import FAMILY, SHARED, Layout, Model, explore, start, with_processes

STARTS = (
    (),
    (("add", "A"),),
    (("add", "A"), ("add", "B")),
    (("add", "A"), ("garbage", "")),
    (("add", "A"), ("rollback", "A")),
    (("add", "A"), ("yank", "A"), ("add", "C")),
    (("add", "A"), ("add", "B"), ("rollback", "A")),
    (("add", "A"), ("rollback", "A"), ("add", "B")),
    (("add", "A"), ("add", "B"), ("prune", "A")),
    (("add", "A"), ("rollback", "A"), ("lost", "")),
    (("add", "A"), ("ahead", "plugin")),
    (("add", "A"), ("far ahead", "plugin")),
)
# Staging is `add` and `prune` on a log of its own; adoption is `add` of the foreign set.
OPERATIONS = (
    *itertools.product(("add", "rollback", "restore", "prune", "yank", "unyank"), "AB"),
    ("add", "C"),
    ("prune", "C"),
    ("repair", ""),
)
# A kill that may happen need not: these contain each alone, and none. In the same way the worlds
# with caches contain those without: there each copy expires the moment it is old.
LUCK = ({"kills": 1, "delays": 1}, {"errors": 1, "delays": 1})
# A repair takes a page back to an older mark, so what it replaced may come again with an entry that
# was lost and is made again, and a late write of the repair fits it. No rule prevents this.
LUCK_AFTER_LOSS = ({"kills": 1}, {"errors": 1})
# One log that indexes of two families and of all show. A set must have both, or only x, or is of one.
SHARED_STARTS = (
    (),
    (("add", "A", "x", "xy"),),
    (("add", "A", "xy", "xy"),),
    (("add", "A", "x", "x"),),
    (("add", "A", "x", ""),),
    (("add", "A", "xy", "xy"), ("add", "B", "x", "xy")),
    (("add", "A", "xy", "xy"), ("rollback", "A", "y")),
    (("add", "A", "xy", "xy"), ("rollback", "A", "x"), ("add", "B", "y", "xy")),
    (("add", "A", "xy", "xy"), ("add", "B", "xy", "xy"), ("prune", "A", "xy")),
)
SHARED_OPERATIONS = (
    *(("add", name, families, "xy") for name in "AB" for families in ("x", "y", "xy")),
    ("add", "C", "y", ""),
    *itertools.product(("rollback", "restore"), "A", ("x", "y", "xy")),
    ("rollback", "B", "x"),
    ("prune", "A", "xy"),
    ("prune", "B", "xy"),
    ("yank", "A", "xy"),
    ("repair", ""),
)


class Case(NamedTuple):
    """Operations that begin at once in a world where others are done, and how much goes wrong."""

    first: tuple[tuple[str, ...], ...]
    operations: tuple[tuple[str, ...], ...]
    luck: dict[str, int]
    layout: Layout = FAMILY

    def __str__(self) -> str:
        text = "-".join(f"{a}{' '.join(s)}" for a, *s in self.first) or "empty"
        operations = "+".join(f"{a}{' '.join(s)}" for a, *s in self.operations)
        luck = "".join(f" {name}={count}" for name, count in self.luck.items())
        return f"{text}: {operations}{luck}"

    def worlds(self, *, limit: int = 0) -> int:
        """Visit every world, or so many of them; return how many. Raises Violation."""
        world = start(*self.first, layout=self.layout)
        world = with_processes(world, *self.operations, **self.luck)
        return explore(Model(caches=True, layout=self.layout), world, limit=limit)


def pairs() -> Iterator[Case]:
    """Every pair of operations from every start, with every kind of luck."""
    found = list(itertools.combinations_with_replacement(OPERATIONS, 2))
    for first, operations in itertools.product(STARTS, found):
        is_harmed = ("lost", "") in first
        for luck in LUCK_AFTER_LOSS if is_harmed else LUCK:
            yield Case(first, operations, luck)


def triples() -> Iterator[Case]:
    """Every three different operations from every start that is not empty, where nothing goes wrong."""
    for first, operations in itertools.product(STARTS[1:], itertools.combinations(OPERATIONS, 3)):
        yield Case(first, operations, {})


def shared_pairs() -> Iterator[Case]:
    """Every pair of operations on one log that two families and `all` show."""
    both = itertools.combinations_with_replacement(SHARED_OPERATIONS, 2)
    for first, operations, luck in itertools.product(SHARED_STARTS, list(both), LUCK):
        yield Case(first, operations, luck, SHARED)


def shared_triples() -> Iterator[Case]:
    """Every three different operations there, where nothing goes wrong."""
    three = itertools.combinations(SHARED_OPERATIONS, 3)
    for first, operations in itertools.product(SHARED_STARTS[1:], list(three)):
        yield Case(first, operations, {}, SHARED)
