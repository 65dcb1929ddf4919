"""Scheduling: longest first, and work taken over when it pays."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocwheel.gate.engine.plan import Estimates, Scheduler


def simulate(files, lanes, estimates, *, collect=0.5):
    """Run a scheduler in simulated time; return the makespan and what each lane ran."""
    scheduler = Scheduler(files, estimates)
    clock = dict.fromkeys(range(lanes), 0.0)
    loaded = {lane: set() for lane in clock}
    ran = {lane: [] for lane in clock}
    finish = 0.0
    idle = set()
    while True:
        busy = [lane for lane in clock if lane not in idle]
        if not busy:
            return finish, ran
        lane = min(busy, key=clock.__getitem__)
        step = scheduler.next(str(lane), clock[lane])
        if step is None:
            if scheduler.empty:
                idle.add(lane)
            else:
                clock[lane] += 0.1  # ask again, as the engine does
            continue
        if step.file not in loaded[lane]:
            loaded[lane].add(step.file)
            clock[lane] += collect
        if step.test is None:
            scheduler.collected(str(lane), files[step.file], collect)
            continue
        seconds = files[step.file][step.test]
        clock[lane] += seconds
        finish = max(finish, clock[lane])
        ran[lane].append(step.test)
        scheduler.measured(step.file, step.test, seconds)


def suite(seed, count=40):
    """Files whose durations are skewed: many short, few long."""
    source = random.Random(seed)
    return {
        f"f{n}": {
            f"f{n}::t{i}": source.paretovariate(1.2) / 20 for i in range(source.randint(1, 30))
        }
        for n in range(count)
    }


def history(files):
    return Estimates(
        tests={test: seconds for tests in files.values() for test, seconds in tests.items()},
    )


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), lanes=st.integers(1, 8), known=st.booleans())
def test_every_test_runs_exactly_once(seed, lanes, known):
    files = suite(seed, count=12)
    _, ran = simulate(files, lanes, history(files) if known else Estimates())
    flat = [test for tests in ran.values() for test in tests]
    assert sorted(flat) == sorted(test for tests in files.values() for test in tests)


@pytest.mark.parametrize("seed", range(10))
def test_two_lanes_finish_close_to_the_lower_bound(seed):
    files = suite(seed)
    total = sum(seconds for tests in files.values() for seconds in tests.values())
    longest = max(seconds for tests in files.values() for seconds in tests.values())
    makespan, _ = simulate(files, 2, history(files), collect=0.02)
    assert makespan <= 1.1 * max(total / 2, longest)


def test_longest_files_come_first_and_unknown_ones_before_them():
    estimates = Estimates(
        tests={"a::t": 1.0, "b::t": 8.0, "b::u": 1.0}, sizes={"a": 5, "b": 5, "c": 10, "d": 20}
    )
    scheduler = Scheduler(["a", "b", "c", "d"], estimates)
    assert [scheduler.next(lane, 0.0).file for lane in "wxyz"] == ["d", "c", "b", "a"]


def test_an_idle_lane_takes_over_the_end_of_a_long_file():
    scheduler = Scheduler(["f"], Estimates(tests={f"t{n}": 1.0 for n in range(10)}))
    scheduler.next("one", 0.0)
    scheduler.collected("one", [f"t{n}" for n in range(10)], 0.5)
    assert scheduler.next("one", 0.0).test == "t0"
    step = scheduler.next("two", 0.0)
    assert step.test == "t5"
    assert step.then == "t6"
    assert scheduler.next("one", 1.0).test == "t1"


def test_nothing_is_taken_over_when_importing_the_file_costs_more():
    scheduler = Scheduler(["f"], Estimates(tests={"t0": 0.1, "t1": 0.1, "t2": 0.1}))
    scheduler.next("one", 0.0)
    scheduler.collected("one", ["t0", "t1", "t2"], 5.0)
    scheduler.next("one", 0.0)
    assert scheduler.next("two", 0.0) is None
    assert not scheduler.empty


def test_a_test_that_takes_longer_than_ever_frees_the_ones_behind_it():
    scheduler = Scheduler(["f"], Estimates(tests={"t0": 0.1, "t1": 0.1}))
    scheduler.next("one", 0.0)
    scheduler.collected("one", ["t0", "t1"], 1.0)
    scheduler.next("one", 0.0)
    assert scheduler.next("two", 0.0) is None
    assert scheduler.next("two", 60.0).test == "t1"


def test_a_lost_lane_gives_everything_back():
    scheduler = Scheduler(["f", "g"], Estimates())
    scheduler.next("one", 0.0)
    scheduler.collected("one", ["t0", "t1"], 0.1)
    step = scheduler.next("one", 0.0)
    scheduler.put_back("one", step.test)
    scheduler.give_back("one")
    assert [scheduler.next("two", 0.0).test for _ in range(2)] == ["t0", "t1"]
    assert scheduler.next("two", 0.0).file == "g"
