"""The real code under forced interleavings, where two families and `all` show one log.

As test_schedules.py, with what holds there beside that (docs/release-protocol.md, "Several indexes of
one log"): an index shows a set only after an entry that made it pass for it.
"""

from __future__ import annotations

import itertools
import os
import random

import pytest
from model.test_protocol import OF_SHARED
from support.scene import STOPS, Schedule, play, shuffled, unwaiting
from support.shared import X, Y
from support.shared_scene import SharedWorlds
from support.tiers import merge_tries

from rocwheel.base.choices import ALL
from rocwheel.base.errors import RocwheelError
from rocwheel.base.values import replace
from rocwheel.release import operations
from rocwheel.release.ledger import state
from rocwheel.release.ledger.state import Action, Known, Standing

pytestmark = pytest.mark.integration

SEED = int(os.environ.get("ROCWHEEL_SEED", "20261121"))


@pytest.fixture(scope="module")
def worlds():
    with unwaiting(SharedWorlds) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("number", merge_tries(15, of=[15, 150]))
def test_pairs_of_operations_hold_wherever_one_is_stopped(worlds, number: int) -> None:
    for schedule in random.Random(SEED).sample(list(worlds.schedules()), number):
        play(worlds.on_files(schedule.start), schedule)


@pytest.mark.slow
@pytest.mark.parametrize("number", merge_tries(5, of=[5, 40]))
def test_three_operations_at_once_hold_in_orders_of_chance(worlds, number: int) -> None:
    dice = random.Random(SEED)
    for _ in range(number):
        shuffled(worlds, dice.randrange(1 << 30))


# Without any one of the rules of several indexes the code fails


def listed_by_any(view: str):
    """Let an index list what any family lists."""

    def change(patch) -> None:
        of = Known.of

        def any_of(self, asked: str):
            is_meant = (asked == ALL) == (view == ALL) and (self.must or asked != ALL)
            if not is_meant:
                return of(self, asked)
            return replace(self, families={asked: self.standing})

        patch.setattr(Known, "of", any_of)

    return change


def must_of_the_last(patch) -> None:
    bring = state._CHANGES[Action.PROMOTE]

    def change(now, entry):
        after = bring(now, entry)
        if not entry.sets:
            return after
        sets = {name: replace(after.sets[name], must=(X.name, Y.name, "z")) for name in entry.sets}
        return replace(after, sets={**after.sets, **sets})

    patch.setitem(state._CHANGES, Action.PROMOTE, change)


def all_is_left_out(patch) -> None:
    concerned = operations.concerned

    def change(now, entry):
        return concerned(now, entry) - {ALL}

    patch.setattr(operations, "concerned", change)
    patch.setattr(state, "concerned", change)


def prunes_for_one(patch) -> None:
    prune = state._CHANGES[Action.PRUNE]

    def change(now, entry):
        after = prune(now, entry)
        sets = dict(after.sets)
        for name in entry.sets:
            kept = {**sets[name].families, Y.name: Standing.LISTED}
            sets[name] = replace(sets[name], families=kept, standing=Standing.LISTED)
        listings = {
            name: replace(listing, spent=after.listings[name].spent)
            for name, listing in now.listings.items()
        }
        return replace(after, sets=sets, listings=listings)

    patch.setitem(state._CHANGES, Action.PRUNE, change)


def all_lists_the_alone(patch) -> None:
    of, views = Known.of, Known.views

    def any_of(self, asked: str):
        return of(self if self.must else replace(self, must=(*self.families,)), asked)

    patch.setattr(Known, "of", any_of)
    patch.setattr(Known, "views", property(lambda self: (*views.fget(self), ALL)))


MUTANTS = {
    "a family lists its own": (listed_by_any("x"), "A of x", "promote B y", "repair"),
    "all waits for each that must": (listed_by_any(ALL), "staged", "promote A x", "promote A y"),
    "must is fixed": (must_of_the_last, "A of x, which leads", "promote A y", "repair"),
    "all is touched": (all_is_left_out, "A", "rollback A x", "rollback A y"),
    "a prune is of all families": (prunes_for_one, "A", "prune A", "yank A"),
    "all lists sets for several": (all_lists_the_alone, "nothing", "promote O x", "repair"),
}


def test_every_rule_of_several_indexes_has_a_mutant_of_the_code() -> None:
    assert MUTANTS.keys() == OF_SHARED.keys()


@pytest.mark.slow
@pytest.mark.parametrize("rule", MUTANTS)
def test_without_the_rule_the_code_fails(worlds, rule: str) -> None:
    change, start, first, second = MUTANTS[rule]
    total = len(worlds.length(start, first))
    play(worlds.on_files(start), Schedule(start, first, second, total, "stand"))
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        for stop, at in itertools.product(STOPS, range(total, -1, -1)):
            try:
                play(worlds.on_files(start), Schedule(start, first, second, at, stop))
            except AssertionError as exc:
                if isinstance(exc.__cause__, (AssertionError, RocwheelError)):
                    return  # something does not hold, and not for a mistake in the mutant
                raise
    raise AssertionError(f"the code holds without the rule: {rule}")
