"""What earlier runs took and how they ended."""

from __future__ import annotations

import json

import pytest
from support.wheelset import Shop

from rocwheel.base.values import replace
from rocwheel.gate.suite import history
from rocwheel.gate.suite.history import SuiteHistory
from rocwheel.records.results import Attempt, LastRun, Outcome, Results, TestResult
from rocwheel.records.verdict import State


def result(name, outcome=Outcome.PASSED, ms=100, lane="gpu0"):
    attempt = Attempt(outcome=outcome, lane=lane, process=1, start_ms=0, duration_ms=ms)
    return TestResult(test=name, outcome=outcome, attempts=(attempt,))


def results(*tests, **changes):
    files = tuple(dict.fromkeys(test.file for test in tests))
    base = Results(suite="s", shard="", files=files, suite_files=files, tests=tests)
    return replace(base, **changes)


def test_a_history_keeps_durations():
    past = SuiteHistory()
    for number in range(15):
        past = past.with_results(results(result("a::t", ms=100 + number)))
    past = past.with_results(results(result("a::t", Outcome.FAILED), result("b", Outcome.SKIPPED)))
    stored = past.to_bytes()
    assert SuiteHistory.from_bytes(stored, name="history") == past
    assert json.loads(stored) == {"schema": 1, "tests": {"a::t": 106}}
    assert past.estimates({"a": 7}).tests == {"a::t": 0.106}


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"schema": 9}', b'{"schema":1,"tests":{"a":[1,"p"]}}']
)
def test_a_history_that_cannot_be_read_is_an_empty_one(data):
    assert SuiteHistory.readable(data) == SuiteHistory()


@pytest.fixture
def place(tmp_path, console):
    return Shop((tmp_path / "store").as_uri(), console).staging


@pytest.mark.parametrize("kept_in", ["the store", "the cache"])
def test_a_run_is_compared_with_the_last_of_its_cell(place, tmp_path, kept_in):
    where = place if kept_in == "the store" else None
    about = {"family": "gfx90a", "python": "3.12.1", "backend": "rocm", "manifest": "m"}
    found = results(result("a::t", Outcome.FAILED), result("b::t"), environment=about)
    cell = history.name_of(found)
    assert cell == "s-gfx90a-3.12-rocm"
    assert history.read_last(where, cell, tmp_path) is None
    run = LastRun.of(found, State.FAIL, ended="2026-05-01 12:00")
    for last in (run, replace(run, state=State.PASS)):
        history.keep_last(where, cell, tmp_path, last)
        assert history.read_last(where, cell, tmp_path) == last
    assert run.bad == {"a::t": "failed"}


def test_what_was_measured_is_kept_beside_what_earlier_runs_measured():
    def measuring(number):
        found = results(result("a::t"))
        attempt = replace(found.tests[0].attempts[0], figures={"product, GFLOP/s": number})
        return replace(found, tests=(replace(found.tests[0], attempts=(attempt,)),))

    last = None
    for number in range(30):
        last = LastRun.of(measuring(number), State.PASS, ended="", before=last)
    assert last.figures == {"product, GFLOP/s": tuple(range(10, 30))}
