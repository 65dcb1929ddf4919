"""The protocol holds in every interleaving of the model, and without any one of its rules it fails.

This takes a seeded spread (`ROCWHEEL_SEED`); tests/campaign.py goes through all of them.
"""

from __future__ import annotations

import os
import random

import pytest
from model import protocol
from model.cases import Case, pairs, shared_pairs, shared_triples, triples
from model.protocol import FAMILY, RULES, SHARED, Model, Violation, explore, start, with_processes

SEED = int(os.environ.get("ROCWHEEL_SEED", "20261121"))
LIMIT = 40_000  # worlds of one case

# What shows that a rule is needed: where it starts, what runs, what goes wrong.
COUNTEREXAMPLES = {
    "settle before commit": ((("add", "A"),), (("add", "B"), ("rollback", "A")), {}),
    "one direction": ((("add", "A"),), (("replace", "B"),), {}),
    "order of projects": ((), (("add", "A"),), {}),
    "order when removing": ((("add", "A"),), (("rollback", "A"),), {}),
    "mark in the bytes": ((("add", "A"),), (("add", "B"), ("rollback", "A")), {}),
    "never over a newer mark": ((), (("add", "A"), ("add", "B")), {}),
    "keep empty pages": ((("add", "A"),), (("rollback", "A"), ("restore", "A")), {"delays": 1}),
    "the id decides": ((), (("add", "A"),), {"errors": 1}),
    "mark before delete": ((("add", "A"),), (("prune", "A"),), {}),
    "delete when settled": ((("add", "A"),), (("prune", "A"),), {}),
    "spent for ever": ((("add", "A"),), (("add", "A"), ("prune", "A")), {}),
    "rolled back holds": (
        (("add", "A"), ("add", "B"), ("rollback", "A")),
        (("prune", "B"),),
        {},
    ),
    "wait when adding": ((("add", "C"),), (("add", "A"),), {}),
    "wait when removing": ((("add", "A"),), (("rollback", "A"),), {}),
    "wait before delete": ((("add", "A"),), (("prune", "A"),), {}),
    "the record is the commit": ((), (("add", "A"),), {"kills": 1}),
    "a snapshot is shown": ((("add", "A"),), (("add", "B"), ("rollback", "A")), {"kills": 1}),
    "a snapshot is proven": (
        (("add", "A"), ("rollback", "A"), ("lost", "")),
        (("restore", "A"),),
        {},
    ),
    "a mark has its entry": ((("add", "A"), ("far ahead", "plugin")), (("add", "B"),), {}),
}
# The same of several indexes of one log.
OF_SHARED = {
    "a family lists its own": ((), (("add", "A", "x", "x"), ("add", "B", "y", "x")), {}),
    "all waits for each that must": ((), (("add", "A", "x", "xy"),), {}),
    "must is fixed": ((("add", "A", "x", "x"),), (("add", "A", "y", "xyz"),), {}),
    "all is touched": ((), (("add", "A", "xy", "xy"),), {}),
    "a prune is of all families": ((("add", "A", "xy", "xy"),), (("prune", "A", "x"),), {}),
    "all lists sets for several": ((), (("add", "A", "x", ""),), {}),
}


def test_every_rule_has_a_counterexample() -> None:
    assert COUNTEREXAMPLES.keys() | OF_SHARED.keys() == RULES.keys()


@pytest.mark.parametrize("rule", RULES)
def test_without_the_rule_the_model_fails_and_with_it_it_holds(rule: str) -> None:
    first, operations, luck = (COUNTEREXAMPLES | OF_SHARED)[rule]
    caches = rule.startswith("wait")
    layout = SHARED if rule in OF_SHARED else FAMILY
    mutant = frozenset({rule})
    world = with_processes(start(*first, layout=layout, without=mutant), *operations, **luck)
    with pytest.raises(Violation):
        explore(Model(without=mutant, caches=caches, layout=layout), world)
    if rule != "one direction":  # of which there is no operation
        world = with_processes(start(*first, layout=layout), *operations, **luck)
        assert explore(Model(caches=caches, layout=layout), world) > 1


def spread(found, count: int):
    return random.Random(SEED).sample(list(found), count)


SPREAD = (*spread(pairs(), 24), *spread(triples(), 4))
SHARED_SPREAD = (*spread(shared_pairs(), 12), *spread(shared_triples(), 1))
# What an operation did not show before its commit, since it concerns others, it shows afterwards.
OF_OTHERS = Case(
    (("add", "A", "x", "x"),),
    (("add", "A", "xy", "xy"), ("rollback", "A", "x"), ("rollback", "A", "y")),
    {},
    SHARED,
)


@pytest.mark.parametrize("case", [*SPREAD, *SHARED_SPREAD, OF_OTHERS], ids=str)
def test_operations_at_once_hold(case) -> None:
    assert case.worlds(limit=LIMIT) > 1


# With kills, late writes, and copies that are waited for.
COMPARED = (
    Case((("add", "A"),), (("add", "B"), ("prune", "A")), {"errors": 1}),
    Case((("add", "A"),), (("yank", "A"), ("rollback", "A")), {"kills": 1, "delays": 1}),
    Case((("add", "A"), ("rollback", "A")), (("restore", "A"),), {"errors": 1, "delays": 1}),
    Case((("add", "C"),), (("add", "A"), ("prune", "C")), {"kills": 1}),
    Case(
        (("add", "A", "x", "xy"),),
        (("add", "B", "y", "xy"), ("yank", "A", "xy")),
        {"kills": 1},
        SHARED,
    ),
    Case(
        (("add", "A", "x", "x"),),
        (("rollback", "A", "x"), ("repair", "")),
        {"kills": 1, "errors": 1},
        SHARED,
    ),
)


def observed(case: Case, *, all_moves: bool):
    """What anybody can see of a case: what is there with which copies of pages, and how it may end."""
    model = Model(caches=True, layout=case.layout, all_moves=all_moves)
    instants, results = dict[object, set[tuple[frozenset[frozenset[str]], ...]]](), set[object]()

    def visit(world) -> None:
        pages = tuple(page.files if page else frozenset() for page in world.pages)
        copies = tuple(
            frozenset(page.files for page in found) or frozenset([frozenset()])
            for found in world.copies
        )
        instants.setdefault((world.log, pages, world.bytes), set()).add(copies)
        for end in protocol.ends(world, list(protocol.moves(model, world))):
            reports = tuple(process.report for process in end.processes)
            results.add((world.log, pages, world.bytes, world.snapshot, reports))

    world = with_processes(start(*case.first, layout=case.layout), *case.operations, **case.luck)
    explore(model, world, visit=visit)
    return instants, results


def shows_less(whole, part) -> bool:
    """Whether a part of the moves shows less than the whole."""
    (every, every_end), (some, some_end) = whole, part
    return (every.keys(), every_end) != (some.keys(), some_end) or any(
        not any(all(map(frozenset.issuperset, wider, copies)) for wider in some[instant])
        for instant, found in every.items()
        for copies in found
    )


def newest(copies):
    """The newest copy of each page: what a reduction must not show alone."""
    return tuple(found[-1:] for found in copies)


@pytest.mark.parametrize("case", COMPARED, ids=str)
def test_moves_that_are_left_out_show_nothing_new(case) -> None:
    assert not shows_less(observed(case, all_moves=True), observed(case, all_moves=False))


@pytest.mark.parametrize(
    ("at", "name", "broken"),
    [
        (4, "expired", lambda world, _at, _count: world._replace(copies=newest(world.copies))),
        (2, "accidents", lambda _model, _world: ()),
        (3, "ends", lambda world, steps: () if steps else (world,)),
    ],
)
def test_a_move_that_is_missing_is_noticed(at, name, broken, monkeypatch) -> None:
    every = observed(COMPARED[at], all_moves=True)
    monkeypatch.setattr(protocol, name, broken)
    assert shows_less(every, observed(COMPARED[at], all_moves=False))
