"""What earlier runs took and how they ended."""

from __future__ import annotations

import pytest

from rocwheel.gate.suite.history import KEPT, SuiteHistory
from rocwheel.results import Attempt, Outcome, Results, TestResult
from rocwheel.values import replace


def result(name, outcome=Outcome.PASSED, ms=100, lane="gpu0"):
    attempt = Attempt(outcome=outcome, lane=lane, process=1, start_ms=0, duration_ms=ms)
    return TestResult(test=name, outcome=outcome, attempts=(attempt,))


def results(*tests, **changes):
    files = tuple(dict.fromkeys(test.file for test in tests))
    base = Results(suite="s", shard="", files=files, suite_files=files, tests=tests)
    return replace(base, **changes)


def test_a_history_keeps_durations_and_the_last_outcomes():
    past = SuiteHistory()
    for number in range(KEPT + 5):
        past = past.with_results(results(result("a::t", ms=100 + number)))
    past = past.with_results(results(result("a::t", Outcome.FAILED)))
    assert past.tests["a::t"].outcomes == "p" * (KEPT - 1) + "f"
    assert 100 <= past.tests["a::t"].milliseconds <= 115
    assert SuiteHistory.from_bytes(past.to_bytes()) == past
    estimates = past.estimates({"a": 7})
    assert estimates.files["a"] == estimates.tests["a::t"]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"schema": 9}', b'{"schema":1,"tests":[1]}'])
def test_a_history_that_cannot_be_read_is_an_empty_one(data):
    assert SuiteHistory.from_bytes(data) == SuiteHistory()
