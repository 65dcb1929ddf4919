"""What was counted on GPUs of a family is what its verdicts demand from then on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import amdgpu_family_matrix as matrix
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import replace
from rocwheel.gate.suite import calibration, suites
from rocwheel.gate.verdict.judge import judge
from rocwheel.records.results import Attempt, Fault, LaneRecord, Outcome, Results, TestResult
from rocwheel.records.verdict import Counts, Device, State

ROOT = Path(__file__).parents[3]
FAMILY = matrix.family("gfx94X-dcgpu")


def results(passed=300, skipped=100, failed=0, **changes):
    """A whole run of `unit` on a GPU of the family."""
    kinds = {Outcome.PASSED: passed, Outcome.SKIPPED: skipped, Outcome.FAILED: failed}
    names = [(kind, f"tests/a_test.py::test_{kind.value}_{n}") for kind in kinds
             for n in range(kinds[kind])]  # fmt: skip
    tests = tuple(
        TestResult(test=name, outcome=kind, attempts=(
            Attempt(outcome=kind, lane="gpu0", process=1, start_ms=0, duration_ms=1),
        ))
        for kind, name in names
    )  # fmt: skip
    lane = LaneRecord(name="gpu0", devices=(Device(target="gfx942", serial="1"),))
    about = {"family": FAMILY.name, "backend": "rocm", "jax": "0.11.0"}
    run = Results(suite="unit", shard="", files=("tests/a_test.py",), tests=tests, lanes=(lane,),
                  suite_files=("tests/a_test.py",), environment=about)  # fmt: skip
    return replace(run, **changes)


@pytest.fixture
def ci(tmp_path):
    return Path(shutil.copytree(ROOT / "ci", tmp_path / "ci"))


def test_a_family_is_uncalibrated_until_its_runs_were_counted(ci):
    run = results()
    demand = replace(suites.load(ci, "unit").demands.of("0.11.0", FAMILY.name), must_run=1)
    found = judge(run, demand)
    assert found.state is State.UNCALIBRATED
    why = "its tests were never counted on gfx94X-dcgpu with JAX 0.11"
    assert found.message == f"{why}; tests that passed: 300"
    calibration.write(ci, calibration.calibrated(ci, [("a", run)], matrix.FAMILIES))
    demands = suites.load(ci, "unit").demands
    assert judge(run, demands.of("0.11.0", FAMILY.name)).state is State.PASS
    assert judge(run, demands.of("0.11.2", FAMILY.name)).state is State.PASS
    assert demands.of("0.10.2", FAMILY.name).uncounted, "another series"
    assert demands.of("0.11.0", "gfx90a").uncounted, "another family"
    assert not demands.of("0.11.0").uncounted, "on the CPU nothing is asked of it"


def test_the_numbers_are_those_that_no_run_falls_short_of(ci):
    runs = [results(300, 100), results(280, 90, failed=15)]
    counted = calibration.calibrated(ci, [(str(n), run) for n, run in enumerate(runs)],
                                     matrix.FAMILIES)  # fmt: skip
    numbers = counted["unit"][FAMILY.name]["0.11.0"]
    assert numbers == {"must_run": 293, "may_skip": 101, "may_xfail": 0, "may_deselect": 0}
    calibration.write(ci, counted)
    demand = suites.load(ci, "unit").demands.of("0.11.0", FAMILY.name)
    assert list(demand.shortfalls(Counts(passed=293, skipped=101))) == []
    for short in (Counts(passed=292, skipped=100), Counts(passed=300, skipped=102)):
        assert [state for state, _ in demand.shortfalls(short)] == [State.TOO_FEW_RAN]


def test_a_second_family_leaves_the_first_as_it_was(ci):
    calibration.write(ci, calibration.calibrated(ci, [("a", results())], matrix.FAMILIES))
    other = {**results().environment, "family": "gfx90a"}
    lane = LaneRecord(name="gpu0", devices=(Device(target="gfx90a"),))
    second = results(50, environment=other, lanes=(lane,))
    path = calibration.write(ci, calibration.calibrated(ci, [("b", second)], matrix.FAMILIES))
    assert path.read_text().startswith("# How many tests a suite has on GPUs of a family")
    assert sorted(suites.calibration(ci)["unit"]) == ["gfx90a", FAMILY.name]


ABOUT = results().environment
UNFIT = {
    "of the whole suite": {"shard": "1/2"},
    "whole suite": {"suite_files": ("tests/a_test.py", "tests/b_test.py")},
    "not on gfx94X": {"environment": {**ABOUT, "backend": "cpu"}},
    "no such family": {"environment": {**ABOUT, "family": "miniature"}},
    "no device": {"lanes": ()},
    "gfx90a, not on": {"lanes": (LaneRecord(name="a", devices=(Device(target="gfx90a"),)),)},
    "cut short": {"faults": (Fault(state=State.NOT_RUN, message="cut short"),)},
    "not counted by family": {"suite": "smoke"},
    "did not run": {"tests": (TestResult(test="a.py::a", outcome=Outcome.NOT_RUN),)},
}


@pytest.mark.parametrize("why", UNFIT)
def test_what_is_no_whole_run_on_the_family_counts_nothing(ci, why):
    run = results(**UNFIT[why])
    with pytest.raises(ConfigError, match=why):
        calibration.calibrated(ci, [("here", run)], matrix.FAMILIES)
