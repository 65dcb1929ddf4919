"""What attempts at a test make of it, and which tests are to be run again."""

from __future__ import annotations

import pytest

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


def test_a_suspicion_that_is_not_confirmed_leaves_flaky_tests():
    book = outcomes_of("p", "t1", "t2")
    book.attempted("p", attempt(PASSED))
    for name in ("t1", "t2"):
        book.attempted(name, attempt(FAILED))
    book.streak({"t1": "p", "t2": "t1"})
    for name in ("t1", "t2"):
        book.rerun(frozenset({"gpu0"}), alone=True)
        book.attempted(name, attempt(PASSED), retry=True)
    question = book.rerun(frozenset({"gpu0"}), alone=True)
    assert question == Rerun(tests=("p", "t1"), confirms=True)
    book.confirmed("p", "t1", failed=False)
    assert outcome(book, "p") is PASSED
    assert outcome(book, "t1") is Outcome.FLAKY


def test_the_poisoner_is_the_test_before_the_first_innocent_one():
    book = outcomes_of("t1", "t2", "t3")
    for name in ("t1", "t2", "t3"):
        book.attempted(name, attempt(FAILED))
        book.rerun(frozenset({"gpu0"}), alone=True)
    book.attempted("t1", attempt(FAILED), retry=True)
    book.attempted("t2", attempt(PASSED), retry=True)
    book.attempted("t3", attempt(PASSED), retry=True)
    book.streak({"t1": "", "t2": "t1", "t3": "t2"})
    assert book.rerun(frozenset({"gpu0"}), alone=True) == Rerun(tests=("t1", "t2"), confirms=True)
    book.confirmed("t1", "t2", failed=True)
    assert [outcome(book, name) for name in ("t1", "t2", "t3")] == [FAILED, PASSED, PASSED]
