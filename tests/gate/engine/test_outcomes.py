"""What attempts at a test make of it, and which tests are to be run again."""

from __future__ import annotations

import random
from itertools import cycle

import pytest

from rocwheel.gate.engine import outcomes
from rocwheel.gate.engine.outcomes import Outcomes, Rerun
from rocwheel.records.results import Attempt, Outcome

PASSED, FAILED, CRASHED = Outcome.PASSED, Outcome.FAILED, Outcome.CRASHED


def attempt(outcome, lane="gpu0", start=0, message="why"):
    return Attempt(
        outcome=outcome, lane=lane, process=1, start_ms=start, duration_ms=5, message=message
    )


def outcomes_of(*names, limit=10):
    book = Outcomes(retry_limit=limit)
    book.collected("a", dict.fromkeys(names, 0), tags={})
    return book


def outcome(book, name):
    return next(test.outcome for test in book.results(not_run={}) if test.test == name)


@pytest.mark.parametrize(
    ("first", "second", "final"),
    [
        (FAILED, PASSED, Outcome.FLAKY),
        (CRASHED, PASSED, CRASHED),
        (FAILED, FAILED, FAILED),
        (FAILED, CRASHED, CRASHED),
        (CRASHED, FAILED, CRASHED),
        (FAILED, Outcome.SKIPPED, FAILED),
        (FAILED, Outcome.XFAILED, Outcome.FLAKY),
    ],
)
def test_two_attempts_make_one_outcome(first, second, final):
    book = outcomes_of("t")
    book.attempted("t", attempt(first))
    assert book.rerun(frozenset({"gpu0"}), alone=True) == Rerun(tests=("t",), avoid="gpu0")
    book.attempted("t", attempt(second), retry=True)
    assert outcome(book, "t") is final
    assert not book.waiting


def test_a_retry_waits_for_another_device_unless_there_is_none():
    book = outcomes_of("t")
    book.attempted("t", attempt(FAILED, "gpu0"))
    assert book.rerun(frozenset({"gpu0"}), alone=False) is None
    assert book.rerun(frozenset({"gpu1"}), alone=False) is not None


def test_more_failures_than_the_limit_are_not_tried_again():
    book = outcomes_of("t1", "t2", limit=1)
    book.attempted("t1", attempt(FAILED))
    book.attempted("t2", attempt(FAILED))
    assert book.rerun(frozenset({"gpu0"}), alone=True)
    assert not book.waiting


def search(history, is_bad):
    """Look for who left what the last test met; return the histories that were tried."""
    book = outcomes_of(*history, "v")
    for name in history:
        book.attempted(name, attempt(PASSED))
    book.attempted("v", attempt(FAILED), before=history)
    book.rerun(frozenset({"gpu0"}), alone=True)
    book.attempted("v", attempt(PASSED), retry=True)
    tried = []
    while rerun := book.rerun(frozenset(), alone=True):
        assert rerun.tests[-1] == "v"
        tried.append(len(rerun.tests) - 1)
        book.searched(rerun, bad=is_bad(rerun))
    return book, tried


@pytest.mark.parametrize("number", [0, 1, 5, 63, 64, 98, 99])
def test_who_left_something_is_found_by_halving_the_history(number):
    history = [f"t{n}" for n in range(100)]
    book, tried = search(history, lambda rerun: history[number] in rerun.tests)
    assert [name for name in history if outcome(book, name) is FAILED] == [history[number]]
    assert outcome(book, "v") is PASSED
    assert len(tried) < 20


def test_what_a_history_does_not_bring_back_is_flaky_and_blames_nobody():
    book, tried = search([f"t{n}" for n in range(100)], lambda _rerun: False)
    assert tried == [1, 4, 16, 64, 100]
    assert outcome(book, "v") is Outcome.FLAKY
    assert book.bad == 1


@pytest.mark.parametrize("pattern", [(True, False), (True,), (False,)])
def test_a_test_that_goes_wrong_at_every_other_try_blames_no_other(pattern):
    answers = cycle(pattern)
    book, _ = search([f"t{n}" for n in range(40)], lambda _rerun: next(answers))
    assert outcome(book, "v") is Outcome.FLAKY
    assert book.bad == 1


def test_a_test_that_goes_wrong_at_random_blames_hardly_any_other():
    chance, blamed = random.Random(7), 0
    for _ in range(400):
        book, _ = search([f"t{n}" for n in range(40)], lambda _rerun: chance.random() > 0.5)
        blamed += outcome(book, "v") is PASSED
    assert blamed <= 4, "at most one of a hundred"


def test_a_history_that_takes_too_long_is_tried_as_far_as_its_end(monkeypatch):
    monkeypatch.setattr(outcomes, "MOST_HISTORY", 0.1025)
    _, tried = search([f"t{n}" for n in range(100)], lambda rerun: "t0" in rerun.tests)
    assert tried == [1, 4, 16, 20], "a hundred milliseconds of tests that take five each"


def test_a_second_victim_asks_for_the_one_that_is_known_first():
    book = outcomes_of("leaves", "between", "v1", "v2")
    for name in ("leaves", "between"):
        book.attempted(name, attempt(PASSED))
    book.attempted("v1", attempt(FAILED), before=["leaves", "between"])
    book.attempted("v2", attempt(CRASHED), before=["leaves", "between", "v1"])
    for name in ("v1", "v2"):
        book.rerun(frozenset({"gpu0"}), alone=True)
        book.attempted(name, attempt(PASSED), retry=True)
    tried = []
    while rerun := book.rerun(frozenset(), alone=True):
        tried.append(rerun.tests)
        book.searched(rerun, bad="leaves" in rerun.tests)
    assert tried[-1] == ("leaves", "v2")
    assert len(tried) == 11
    assert outcome(book, "leaves") is CRASHED, "the worst that it did"


GPU_HANG = "HW Exception by GPU node-4"


@pytest.mark.parametrize(
    ("second", "met", "final", "is_machines"),
    [
        (PASSED, "", PASSED, True),
        (CRASHED, GPU_HANG, CRASHED, False),
        (FAILED, "", CRASHED, True),
    ],
)
def test_an_error_of_the_machine_is_one_unless_another_device_has_it_too(
    second, met, final, is_machines
):
    book = outcomes_of("t")
    book.attempted("t", attempt(CRASHED), before=["other"], machine=GPU_HANG)
    book.attempted("t", attempt(second), retry=True, machine=met)
    assert outcome(book, "t") is final
    assert bool(book.of_machine) is is_machines
