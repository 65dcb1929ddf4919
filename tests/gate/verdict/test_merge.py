"""Shards of a suite become one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocwheel.base.errors import ConfigError
from rocwheel.base.values import replace
from rocwheel.gate.report import render
from rocwheel.gate.verdict.judge import judge, merge_results, with_unmet_skips
from rocwheel.records.results import Attempt, Fault, LaneRecord, Outcome, Results, TestResult
from rocwheel.records.verdict import Demand, State

DEMAND = Demand(must_run=1, may_skip=0, flaky_budget=0)


def result(name, outcome=Outcome.PASSED, ms=100, lane="gpu0"):
    attempt = Attempt(outcome=outcome, lane=lane, process=1, start_ms=0, duration_ms=ms)
    return TestResult(test=name, outcome=outcome, attempts=(attempt,))


def results(*tests, **changes):
    files = tuple(dict.fromkeys(test.file for test in tests))
    base = Results(suite="s", shard="", files=files, suite_files=files, tests=tests)
    return replace(base, **changes)


def shard(number, *tests, count=2, files=("a", "b")):
    mine = tuple(dict.fromkeys(test.file for test in tests))
    return results(
        *tests,
        shard=f"{number}/{count}",
        files=mine,
        suite_files=files,
        lanes=(LaneRecord(name="gpu0", devices=()),),
    )


def test_shards_become_one_suite_with_lanes_of_their_own():
    merged = merge_results((shard(1, result("a::t")), shard(2, result("b::t"))), 2, DEMAND)
    assert [test.test for test in merged.tests] == ["a::t", "b::t"]
    assert [lane.name for lane in merged.lanes] == ["1:gpu0", "2:gpu0"]
    assert merged.tests[1].attempts[0].lane == "2:gpu0"
    assert merged.shard == ""


@pytest.mark.parametrize(
    "other",
    [
        shard(2, result("b::t"), count=3),
        shard(2, result("b::t"), files=("a", "b", "c")),
        replace(shard(2, result("b::t")), suite="other"),
    ],
)
def test_shards_that_do_not_fit_are_refused(other):
    with pytest.raises(ConfigError, match="not shard"):
        merge_results((shard(1, result("a::t")), other), 2, DEMAND)


BAD = (Outcome.FAILED, Outcome.CRASHED, Outcome.TIMED_OUT)


@pytest.mark.parametrize("outcome", BAD)
@pytest.mark.parametrize("order", [1, -1])
def test_a_shard_that_failed_and_was_run_again_makes_the_suite_flaky(outcome, order):
    other = shard(2, result("b::t"))
    tried = (shard(1, result("a::t", outcome)), shard(1, result("a::t")))[::order]
    merged = merge_results((*tried, other), 2, DEMAND)
    found = judge(merged, replace(DEMAND, flaky_budget=5))
    assert found.state is State.FLAKY, "the budget is for tests, not for whole shards"
    assert found.message.startswith("shard 1/2 was run again after ")


def test_a_shard_is_run_again_freely_after_trouble_with_the_machine():
    trouble = replace(
        shard(1), suite_files=(), faults=(Fault(state=State.INFRA, message="no disk"),)
    )
    runs = (trouble, shard(1, result("a::t")), shard(2, result("b::t")))
    assert judge(merge_results(runs, 2, DEMAND), DEMAND).state is State.PASS
    assert judge(merge_results(runs[::2], 2, DEMAND), DEMAND).state is State.INFRA


def test_skip_entries_are_counted_over_all_shards():
    one = replace(shard(1, result("a::t")), skips={"x:1": 0, "x:2": 1})
    two = replace(shard(2, result("b::t")), skips={"x:1": 0, "x:2": 0})
    merged = with_unmet_skips(merge_results((one, two), 2, DEMAND))
    assert [fault.message.partition(":  ")[0][:3] for fault in merged.faults] == ["x:1"]
    cut = merge_results((one,), 2, DEMAND)
    assert with_unmet_skips(cut) == cut, "what did not run cannot be said to meet nothing"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: TestResult(test="a::t", outcome=Outcome.CRASHED), "crashed without an attempt"),
        (lambda: results(result("a::t"), result("a::t")), "a test is there twice"),
        (
            lambda: results(faults=(Fault(state=State.PASS, message=""),)),
            "a fault that is a pass",
        ),
        (lambda: results(environment={"command": "gate '"}), "command: No closing quotation"),
    ],
)
def test_what_no_run_leaves_is_no_result(wrong, named):
    with pytest.raises(ConfigError, match=named):
        wrong()


TEXTS = st.sampled_from(["", "a", "a::t", "x::y[z::w]", "gpu0", "gpu1", "\n", "</script>"])
NUMBERS = st.one_of(st.integers(0, 9), st.just(2**53 - 1))
ATTEMPTS = st.builds(
    Attempt,
    outcome=st.sampled_from(Outcome),
    lane=TEXTS,
    process=NUMBERS,
    start_ms=NUMBERS,
    duration_ms=NUMBERS,
    message=TEXTS,
)


@st.composite
def edited(draw):
    """Results as somebody could have written them by hand: in the format, and nothing more."""
    names = draw(st.lists(st.integers(0, 9), unique=True, max_size=6))
    tests = tuple(
        TestResult(
            test=f"{draw(TEXTS)}::{name}",
            outcome=draw(st.sampled_from(Outcome)),
            attempts=tuple(draw(st.lists(ATTEMPTS, min_size=1, max_size=3))),
            victims=draw(NUMBERS),
        )
        for name in names
    )
    lanes = draw(st.lists(st.builds(LaneRecord, name=TEXTS, devices=st.just(())), max_size=2))
    return results(
        *tests,
        lanes=tuple(lanes),
        shard=draw(st.sampled_from(["1/2", "2/2"])),
        duration_ms=draw(NUMBERS),
    )


RUNS = st.lists(edited(), min_size=1, max_size=2)


@settings(max_examples=25, derandomize=True)
@given(RUNS)
def test_results_in_their_format_are_joined_and_shown_or_refused(runs):
    for run in runs:
        again = Results.from_bytes(run.to_bytes(), name="r")
        assert render(again, judge(again, DEMAND), {})
    try:
        merged = merge_results(runs, 2, DEMAND)
    except ConfigError:
        return
    assert render(merged, judge(merged, DEMAND), {})
