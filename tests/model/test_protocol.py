"""The protocol holds in every interleaving of the model, and without any one of its rules it fails.

CI takes a seeded spread of the pairs of operations; all of them, and triples:
`ROCWHEEL_CAMPAIGN=full python3 tests/run.py -n 2 tests/model` (hours).
"""

from __future__ import annotations

import itertools
import os
import random

import pytest
from model.protocol import RULES, Model, Violation, explore, start, with_processes

FULL = os.environ.get("ROCWHEEL_CAMPAIGN") == "full"
SEED = int(os.environ.get("ROCWHEEL_SEED", "20261121"))
LIMIT = 5_000_000 if FULL else 40_000  # worlds of one case

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
)
# Staging is `add` and `prune` on a log of its own; adoption is `add` of the foreign set.
OPERATIONS = (
    *itertools.product(("add", "rollback", "restore", "prune", "yank", "unyank"), "AB"),
    ("add", "C"),
    ("prune", "C"),
    ("repair", ""),
)
LUCK = (
    {},
    {"kills": 1},
    {"errors": 1},
    {"delays": 1},
    {"kills": 1, "delays": 1},
    {"errors": 1, "delays": 1},
)

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
}


def test_every_rule_has_a_counterexample() -> None:
    assert COUNTEREXAMPLES.keys() == RULES.keys()


@pytest.mark.parametrize("rule", RULES)
def test_without_the_rule_the_model_fails_and_with_it_it_holds(rule: str) -> None:
    first, operations, luck = COUNTEREXAMPLES[rule]
    caches = rule.startswith("wait")
    world = with_processes(start(*first), *operations, **luck)
    with pytest.raises(Violation):
        explore(Model(without=frozenset({rule}), caches=caches), world)
    if rule != "one direction":  # of which there is no operation
        assert explore(Model(caches=caches), world) > 1


def cases():
    """Every pair of operations from every start, with every kind of luck."""
    pairs = list(itertools.combinations_with_replacement(OPERATIONS, 2))
    return itertools.product(STARTS, pairs, LUCK, (False, True))


def spread(found, count: int):
    found = list(found)
    random.Random(SEED).shuffle(found)
    return found if FULL else found[:count]


def name(case) -> str:
    first, operations, luck, caches = case
    text = "-".join(f"{a}{s}" for a, s in first) or "empty"
    return (
        f"{text}:{'+'.join(f'{a}{s}' for a, s in operations)}:{luck}:{'caches' if caches else ''}"
    )


@pytest.mark.parametrize("case", spread(cases(), 60), ids=name)
def test_pairs_of_operations_hold(case) -> None:
    first, operations, luck, caches = case
    world = with_processes(start(*first), *operations, **luck)
    assert explore(Model(caches=caches), world, limit=LIMIT) > 1


def triples():
    for first, operations in itertools.product(STARTS[1:], itertools.combinations(OPERATIONS, 3)):
        yield first, operations, {}, False


@pytest.mark.parametrize("case", spread(triples(), 10)[:400], ids=name)
def test_triples_of_operations_hold(case) -> None:
    first, operations, luck, caches = case
    world = with_processes(start(*first), *operations, **luck)
    assert explore(Model(caches=caches), world, limit=LIMIT) > 1
