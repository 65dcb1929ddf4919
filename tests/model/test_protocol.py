"""The protocol holds in every interleaving of the model, and without any one of its rules it fails.

This takes a seeded spread (`ROCWHEEL_SEED`); tests/campaign.py goes through all of them.
"""

from __future__ import annotations

import os
import random

import pytest
from model.cases import pairs, triples
from model.protocol import RULES, Model, Violation, explore, start, with_processes

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


def spread(found, count: int):
    return random.Random(SEED).sample(list(found), count)


@pytest.mark.parametrize("case", [*spread(pairs(), 60), *spread(triples(), 10)], ids=str)
def test_operations_at_once_hold(case) -> None:
    assert case.worlds(limit=LIMIT) > 1
