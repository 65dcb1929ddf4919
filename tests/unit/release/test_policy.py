"""The policy is a pure function; every rule of it is a row here."""

from __future__ import annotations

import hashlib
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wheelset import FAMILY, make_set, make_verdict

import amdgpu_family_matrix as matrix
from rocwheel.index import channels
from rocwheel.ledger.records import FoundVerdict
from rocwheel.release.policy import Approval, Decision, decide
from rocwheel.values import replace
from rocwheel.verdict import Counts, Device, State, Verdict

TODAY = date(2026, 5, 1)
CHANNEL = channels.of_store("file:///nowhere")
NO_RUNNER = matrix.family("gfx906")
ALONE = replace(FAMILY, policy=(matrix.Rule("smoke", matrix.Level.REQUIRED),))


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return make_set(tmp_path_factory.mktemp("set"), pythons=("3.12",), gfx=("gfx90a", "gfx906"))


def found(*verdicts: Verdict | None, suite: str = "smoke", python: str = "3.12"):
    return [
        FoundVerdict(
            key=f"verdicts/{number}",
            python=python,
            suite=suite,
            number=number,
            sha256=hashlib.sha256(verdict.to_bytes() if verdict else b"").hexdigest(),
            verdict=verdict,
            problem="" if verdict else "verdicts/1: not JSON",
        )
        for number, verdict in enumerate(verdicts, 1)
    ]


def judged(manifest, *verdicts, family=ALONE, today=TODAY, approvals=()) -> Decision:
    return decide(manifest, family, CHANNEL, found(*verdicts), today=today, approvals=approvals)


def test_a_pass_of_exactly_these_bytes_lets_a_set_through(manifest) -> None:
    decision = judged(manifest, make_verdict(manifest))
    assert decision.blocking == ()
    assert [cell.state for cell in decision.cells] == [State.PASS]
    assert decision.bypass is None


@pytest.mark.parametrize("state", [state for state in State if state is not State.PASS])
def test_every_other_state_blocks(manifest, state: State) -> None:
    (cell,) = judged(manifest, make_verdict(manifest, state=state)).blocking
    assert cell.state is state
    assert cell.why


def test_no_verdict_blocks(manifest) -> None:
    (cell,) = judged(manifest).blocking
    assert (cell.state, cell.why) == (State.NOT_RUN, "no verdict")


def test_a_verdict_that_cannot_be_read_blocks_and_hides_what_came_before(manifest) -> None:
    (cell,) = judged(manifest, make_verdict(manifest), None).blocking
    assert (cell.state, "cannot be read" in cell.why) == (State.NOT_RUN, True)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"manifest": "f" * 64}, "another manifest"),
        ({"family": "gfx1151"}, "another manifest"),
        ({"wheels": {}}, "other bytes"),
        ({"backend": "cpu"}, "ran on cpu"),
        ({"backend": "cuda"}, "ran on cuda"),
        ({"backend": ""}, "no backend"),
        ({"devices": ()}, "no device"),
        ({"devices": (Device(target="gfx1100"),)}, "ran on gfx1100"),
        ({"devices": (Device(target="gfx90a"), Device(target="cpu"))}, "ran on cpu"),
        ({"counts": Counts()}, "counts something else"),
        ({"counts": Counts(passed=9, failed=1)}, "counts something else"),
        ({"counts": Counts(passed=9, crashed=1)}, "counts something else"),
        ({"counts": Counts(passed=9, timed_out=1)}, "counts something else"),
        ({"counts": Counts(passed=9, not_run=1)}, "counts something else"),
        ({"counts": Counts(skipped=9)}, "counts something else"),
    ],
)
def test_a_pass_that_proves_nothing_about_these_wheels_blocks(manifest, change, why) -> None:
    (cell,) = judged(manifest, replace(make_verdict(manifest), **change)).blocking
    assert why in cell.why
    assert cell.state is State.NOT_RUN


def test_one_wheel_with_another_digest_is_enough_to_block(manifest) -> None:
    wheels = {w.filename: w.sha256 for w in manifest.wheels}
    for name in wheels:
        changed = make_verdict(manifest, wheels={**wheels, name: "0" * 64})
        assert name in judged(manifest, changed).blocking[0].why


def test_a_shard_is_no_verdict(manifest) -> None:
    (cell,) = judged(manifest, make_verdict(manifest, shard="1/2")).blocking
    assert cell.why == "no verdict"


@pytest.mark.parametrize(
    "earlier",
    [State.FAIL, State.CRASH, State.TIMEOUT, State.FLAKY, State.COLLECT_ERROR,
     State.NOTHING_RAN, State.TOO_FEW_RAN],
)  # fmt: skip
def test_a_pass_after_a_failure_on_the_same_bytes_is_flaky(manifest, earlier: State) -> None:
    (cell,) = judged(
        manifest, make_verdict(manifest, state=earlier), make_verdict(manifest)
    ).blocking
    assert cell.state is State.FLAKY
    assert f"verdict 1 was {earlier.value}" in cell.why


@pytest.mark.parametrize("earlier", [State.INFRA, State.NO_RUNNER, State.NOT_RUN, State.PASS])
def test_a_pass_after_trouble_with_the_machine_is_a_pass(manifest, earlier: State) -> None:
    decision = judged(manifest, make_verdict(manifest, state=earlier), make_verdict(manifest))
    assert decision.blocking == ()


def test_the_newest_verdict_counts_also_when_it_is_worse(manifest) -> None:
    failed = make_verdict(manifest, state=State.FAIL)
    (cell,) = judged(manifest, make_verdict(manifest), failed).blocking
    assert cell.state is State.FAIL


def test_a_flaky_cell_passes_with_a_named_approval_which_is_kept(manifest) -> None:
    approval = Approval(suite="smoke", python="3.12", by="ann", reason="known race")
    flaky = make_verdict(manifest, state=State.FLAKY)
    decision = judged(manifest, flaky, approvals=(approval,))
    assert decision.blocking == ()
    assert decision.evidence()["approvals"] == [
        {"suite": "smoke", "python": "3.12", "by": "ann", "reason": "known race"}
    ]
    assert "approved by ann" in decision.cells[0].why


def test_an_approval_excuses_nothing_but_its_flaky_cell(manifest) -> None:
    approval = Approval(suite="smoke", python="3.12", by="ann", reason="x")
    for state in State:
        decision = judged(manifest, make_verdict(manifest, state=state), approvals=(approval,))
        assert bool(decision.blocking) == (state not in {State.PASS, State.FLAKY})


BYPASS = matrix.Bypass(owner="ann", reason="no hardware yet", expires=date(2026, 5, 1))


def bypassing(family=ALONE):
    return replace(family, bypass_tests_for_releases=BYPASS)


def test_a_bypass_excuses_a_missing_runner_until_its_last_day_and_is_kept(manifest) -> None:
    family = replace(NO_RUNNER, policy=ALONE.policy)
    (cell,) = judged(manifest, family=family).blocking
    assert cell.state is State.NO_RUNNER
    decision = judged(manifest, family=bypassing(family))
    assert decision.blocking == ()
    assert decision.evidence()["bypass"] == {
        "owner": "ann",
        "reason": "no hardware yet",
        "expires": "2026-05-01",
    }
    (cell,) = judged(manifest, family=bypassing(family), today=date(2026, 5, 2)).blocking
    assert "expired on 2026-05-01" in cell.why


@pytest.mark.parametrize("state", [s for s in State if s not in {State.PASS, State.NO_RUNNER}])
def test_a_bypass_excuses_no_failure_no_timeout_and_no_infra(manifest, state: State) -> None:
    decision = judged(manifest, make_verdict(manifest, state=state), family=bypassing())
    assert [cell.state for cell in decision.blocking] == [state]
    assert decision.bypass is None


def test_a_bypass_does_not_excuse_a_suite_that_was_just_not_run(manifest) -> None:
    (cell,) = judged(manifest, family=bypassing()).blocking
    assert cell.state is State.NOT_RUN


def test_an_advisory_suite_never_blocks_and_is_shown(manifest) -> None:
    family = replace(ALONE, policy=(matrix.Rule("smoke", matrix.Level.ADVISORY),))
    decision = judged(manifest, make_verdict(manifest, state=State.FAIL), family=family)
    assert decision.blocking == ()
    assert decision.cells[0].state is State.FAIL


def test_every_required_suite_of_every_cpython_is_a_cell(tmp_path) -> None:
    manifest = make_set(tmp_path, pythons=("3.11", "3.12", "3.13"))
    decision = decide(manifest, FAMILY, CHANNEL, [], today=TODAY)
    assert len(decision.cells) == 9
    assert len(decision.blocking) == 6


@given(st.lists(st.sampled_from(list(State)), max_size=4), st.booleans(), st.booleans())
def test_nothing_but_a_pass_an_approval_or_a_bypass_lets_a_cell_through(
    states: list[State], approved: bool, bypassed: bool
) -> None:
    manifest = SHARED[0]
    verdicts = [make_verdict(manifest, state=state) for state in states]
    approval = Approval(suite="smoke", python="3.12", by="ann", reason="x")
    decision = judged(
        manifest,
        *verdicts,
        family=bypassing() if bypassed else ALONE,
        approvals=(approval,) if approved else (),
    )
    if not decision.blocking:
        newest = states[-1]
        excused = (newest is State.NO_RUNNER and bypassed) or (newest is State.FLAKY and approved)
        assert newest is State.PASS or excused
        tainted = set(states[:-1]) - {State.PASS, State.INFRA, State.NO_RUNNER, State.NOT_RUN}
        assert newest is not State.PASS or not tainted or approved


SHARED: list = []


@pytest.fixture(autouse=True)
def _shared(manifest) -> None:
    SHARED[:] = [manifest]
