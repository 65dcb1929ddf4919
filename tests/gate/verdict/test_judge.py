"""From results to the state of a verdict: the worst thing that is true of a run."""

from __future__ import annotations

import pytest

from rocwheel.base.errors import ConfigError
from rocwheel.base.values import replace
from rocwheel.gate.verdict.judge import PRECEDENCE, judge
from rocwheel.records.results import (
    Attempt,
    CollectError,
    Fault,
    LaneRecord,
    Outcome,
    Results,
    TestResult,
)
from rocwheel.records.verdict import Demand, Device, State

DEMAND = Demand(must_run=1, may_skip=1, may_xfail=2, flaky_budget=0)
EMPTY = Results(suite="s", shard="", files=("a",), suite_files=("a",), tests=())


def attempt(outcome, lane="gpu0", start=0, message="why"):
    return Attempt(
        outcome=outcome, lane=lane, process=1, start_ms=start, duration_ms=5, message=message
    )


def having(*outcomes):
    return tuple(
        TestResult(
            test=f"a::t{n}",
            outcome=outcome,
            attempts=(attempt(outcome, start=n),) if outcome is not Outcome.NOT_RUN else (),
            reason="the reason" if outcome is Outcome.NOT_RUN else "",
        )
        for n, outcome in enumerate(outcomes)
    )


PASSED, FAILED, CRASHED = Outcome.PASSED, Outcome.FAILED, Outcome.CRASHED


SKIPPED, XFAILED, NOT_RUN = Outcome.SKIPPED, Outcome.XFAILED, Outcome.NOT_RUN
LOST = {"faults": (Fault(state=State.INFRA, message="gpu0 is lost"),)}
CUT = {"faults": (Fault(state=State.NOT_RUN, message="cut short"),)}
UNREAD = {"collect_errors": (CollectError(file="b", message="no module"),)}
TOO_MANY_XFAIL = "tests expected to fail: 3; allowed: 2"


@pytest.mark.parametrize(
    ("outcomes", "more", "state", "reason"),
    [
        ([PASSED], {}, State.PASS, ""),
        ([PASSED, FAILED], {}, State.FAIL, "1 test failed: a::t1: why"),
        ([FAILED, CRASHED, CRASHED], {}, State.CRASH, "2 tests crashed: a::t1: why"),
        ([Outcome.TIMED_OUT, FAILED], {}, State.TIMEOUT, "1 test timed-out: a::t0"),
        ([], {}, State.NOTHING_RAN, "no test was collected"),
        ([SKIPPED], {}, State.TOO_FEW_RAN, "tests that passed: 0, must: 1"),
        ([PASSED, SKIPPED, SKIPPED], {}, State.TOO_FEW_RAN, "tests skipped: 2; allowed: 1"),
        ([Outcome.FLAKY, PASSED], {}, State.FLAKY, "passed only when tried again: 1; allowed: 0"),
        ([XFAILED], {}, State.TOO_FEW_RAN, "must: 1; skipped: 0, expected to fail: 1"),
        ([PASSED, *[XFAILED] * 3], {}, State.TOO_FEW_RAN, TOO_MANY_XFAIL),
        ([PASSED, Outcome.DESELECTED], {}, State.TOO_FEW_RAN, "tests deselected: 1; allowed: 0"),
        ([PASSED, XFAILED, XFAILED], {}, State.PASS, ""),
        ([PASSED, NOT_RUN], {}, State.NOT_RUN, "the reason"),
        ([PASSED, NOT_RUN], LOST, State.INFRA, "gpu0 is lost"),
        ([FAILED], CUT, State.NOT_RUN, "cut short"),
        ([PASSED, FAILED], UNREAD, State.COLLECT_ERROR, "b: no module"),
    ],
)
def test_the_worst_that_is_true_is_the_state(outcomes, more, state, reason):
    found = judge(replace(EMPTY, tests=having(*outcomes), **more), DEMAND)
    assert found.state is state
    assert reason in found.message
    assert bool(found.message) is (state is not State.PASS)


def test_every_state_but_pass_has_a_place_in_the_order():
    assert set(PRECEDENCE) == set(State) - {State.PASS, State.UNCALIBRATED}  # of a cell alone


def flaky(number, first, last, start=0):
    return tuple(
        TestResult(
            test=f"a::{first}{start + n}",
            outcome=Outcome.FLAKY,
            attempts=(attempt(FAILED, first), attempt(PASSED, last)),
        )
        for n in range(number)
    )


LANES = tuple(
    LaneRecord(name=f"gpu{n}", devices=(Device(target="gfx942", serial=f"serial{n}"),))
    for n in range(3)
)


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (flaky(3, "gpu1", "gpu0"), State.INFRA),
        (flaky(2, "gpu1", "gpu0"), State.PASS),
        (flaky(5, "gpu1", "gpu1"), State.PASS),  # the same device: nothing to compare with
        (flaky(3, "gpu1", "gpu0") + flaky(1, "gpu2", "gpu0"), State.PASS),
    ],
)
def test_failures_that_follow_one_device_are_infra(found, state):
    results = replace(EMPTY, tests=found, lanes=LANES)
    verdict = judge(results, replace(DEMAND, must_run=0, flaky_budget=100))
    assert verdict.state is state
    assert ("serial1" in verdict.message) is (state is State.INFRA)


def test_lanes_that_share_a_gpu_are_one_device():
    same = (Device(target="gfx942", serial="serial0"),)
    lanes = tuple(LaneRecord(name=f"gpu0.{n}", devices=same) for n in range(2))
    results = replace(EMPTY, tests=flaky(5, "gpu0.1", "gpu0.0"), lanes=lanes)
    verdict = judge(results, replace(DEMAND, must_run=0, flaky_budget=100))
    assert verdict.state is State.PASS, "passing on the same GPU says nothing against it"


@pytest.mark.parametrize("data", [b"{", b"{}", b"[]", b'{"suite": "x"}'])
def test_results_that_are_not_ours_are_refused(data):
    with pytest.raises(ConfigError, match=r"r\.json"):
        Results.from_bytes(data, name="r.json")


def test_a_test_that_passed_when_tried_again_has_run():
    """How many may need that is the flaky budget, and its own state; that they ran is not in doubt."""
    tests = (*having(PASSED), *flaky(1, "gpu0", "gpu0"))
    results, demand = replace(EMPTY, tests=tests), replace(DEMAND, must_run=2)
    assert judge(results, demand).state is State.FLAKY
    assert judge(results, replace(demand, flaky_budget=1)).state is State.PASS
    assert judge(results, replace(demand, must_run=3)).state is State.TOO_FEW_RAN


def called(*libraries, backend="rocm", evidence=()):
    test = replace(having(PASSED)[0], libraries=libraries, evidence=evidence)
    return replace(EMPTY, tests=(test,), environment={"backend": backend})


@pytest.mark.parametrize(
    ("results", "state"),
    [
        (called("hipFFT", evidence=("hipFFT",)), State.PASS),
        (called("hipFFT"), State.FAIL),
        (called(), State.FAIL),
        (called("hipFFT", backend="cpu"), State.PASS),
        (called("hipFFT", backend="cuda"), State.PASS),
    ],
)
def test_a_library_that_must_be_called_and_was_not_fails_a_suite_on_rocm(results, state):
    judged = judge(results, replace(DEMAND, must_call=("hipFFT",)))
    assert judged.state is state
    assert ("hipFFT was never called" in judged.message) is (state is State.FAIL)
