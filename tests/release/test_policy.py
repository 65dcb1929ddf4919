"""The policy is a pure function; every rule of it is a row here."""

from __future__ import annotations

from datetime import date, datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.wheelset import FAMILY, SUITES, make_set, make_verdict, ran

import amdgpu_family_matrix as matrix
from rocwheel.base.values import replace
from rocwheel.records.verdict import (
    SILENT,
    Counts,
    Demand,
    Demands,
    Device,
    RocmProvided,
    State,
    Verdict,
)
from rocwheel.release.index import channels
from rocwheel.release.ledger.verdicts import NOTHING, Coverage, FoundVerdict
from rocwheel.release.policy import Decision, decide
from rocwheel.release.trust.statements import Approval

NOW = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)
# all but a pass, and what the checkout that promotes decides
OTHERS = [state for state in State if state not in {State.PASS, State.UNCALIBRATED}]
DEMAND = Demand(must_run=3, may_skip=2, may_xfail=1, flaky_budget=1)
KNOWN = {name: replace(suite, demands=Demands(expected=DEMAND)) for name, suite in SUITES.items()}
CHANNEL = replace(channels.of_store("file:///nowhere"), suites=KNOWN)
NO_RUNNER = matrix.family("gfx906")
ALONE = replace(FAMILY, policy=(matrix.Rule("smoke", matrix.Level.REQUIRED),))

REQUIRED_UNIT = matrix.Rule("unit", matrix.Level.REQUIRED)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    return make_set(tmp_path_factory.mktemp("set"), pythons=("3.12",), gfx=("gfx90a", "gfx906"))


def found(*verdicts: Verdict | None, suite: str = "smoke", python: str = "3.12"):
    """Verdicts as they are found in the store; None is one that cannot be read."""
    return [
        FoundVerdict(
            key=f"verdicts/{verdict.sha256 if verdict else 'f' * 64}",
            where=f"store/verdicts/{verdict.sha256 if verdict else 'f' * 64}",
            python=python,
            suite=suite,
            sha256=verdict.sha256 if verdict else "f" * 64,
            verdict=verdict,
            problem="" if verdict else "its contents differ from its name: it was changed",
        )
        for verdict in verdicts
    ]


def judged(manifest, *verdicts, family=ALONE, now=NOW, approvals=()) -> Decision:
    return decide(manifest, family, CHANNEL, found(*verdicts), now=now, approvals=approvals)


APPROVAL = Approval(suite="smoke", python="3.12", by="ann", reason="known race")


def test_a_pass_of_exactly_these_bytes_lets_a_set_through(manifest) -> None:
    decision = judged(manifest, make_verdict(manifest))
    assert decision.blocking == ()
    assert [cell.state for cell in decision.cells] == [State.PASS]
    assert decision.bypass is None


@pytest.mark.parametrize("state", OTHERS)
def test_every_other_state_blocks(manifest, state: State) -> None:
    (cell,) = judged(manifest, make_verdict(manifest, state=state)).blocking
    assert cell.state is state
    assert cell.why


def test_no_verdict_blocks(manifest) -> None:
    (cell,) = judged(manifest).blocking
    assert (cell.state, cell.why) == (State.NOT_RUN, "no verdict")


def test_a_verdict_that_was_changed_is_a_failure(manifest) -> None:
    (cell,) = judged(manifest, None).blocking
    assert (cell.state, "differ from its name" in cell.why) == (State.FAIL, True)
    (cell,) = judged(manifest, make_verdict(manifest), None).blocking
    assert cell.state is State.FLAKY
    assert cell.notes == (
        f"unreadable: verdicts/{'f' * 64}: its contents differ from its name: it was changed",
    )


DOUBTS = [
    ({"wheels": {}}, "other bytes"),
    ({"backend": "cpu"}, "ran on cpu"),
    ({"backend": "cuda"}, "ran on cuda"),
    ({"backend": ""}, "no backend"),
    ({"devices": ()}, "no device"),
    ({"devices": (Device(target="gfx1100"),)}, "ran on gfx1100"),
    ({"devices": (Device(target="gfx90a"), Device(target="cpu"))}, "ran on cpu"),
    ({"counts": Counts()}, "counts something else"),
    ({"counts": Counts(passed=9, not_run=1)}, "counts something else"),
    ({"counts": Counts(skipped=9)}, "counts something else"),
    ({"counts": Counts(xfailed=9)}, "counts something else"),
    ({"jax_version": "0.9.2"}, "with JAX 0.9.2"),
    ({"rocm": RocmProvided(origin="none")}, "ROCm from none"),
    ({"rocm": RocmProvided(origin="pip", name="rocm==7.10.0", version="7.10.0")}, "ROCm from rocm"),
    ({"rocm": RocmProvided(origin="tarball", sha256="2" * 64, name="t")}, "ROCm from t, not on"),
    ({"rocm": RocmProvided(origin="path", name="rocm")}, "ROCm from rocm, not on"),
    ({"ended": "2026-05-01T12:11:00Z"}, "ended at 2026-05-01T12:11:00Z"),
    ({"ended": "2026-05-01T09:00:00Z"}, "ended at 2026-05-01T09:00:00Z"),
    ({"started": "2026-99-01T10:00:00Z"}, "has no time"),
]


@pytest.mark.parametrize(("change", "why"), DOUBTS)
@pytest.mark.parametrize("state", [State.PASS, State.FLAKY])
def test_what_proves_nothing_about_these_wheels_blocks_in_every_state_and_is_not_approved(
    manifest, state, change, why
) -> None:
    verdict = replace(make_verdict(manifest, state=state), **change)
    (cell,) = judged(manifest, verdict, approvals=(APPROVAL,)).blocking
    assert why in cell.why
    assert cell.state is State.NOT_RUN


@pytest.mark.parametrize(
    ("brought", "why"),
    [
        ({}, ""),
        ({"version": "7.10.1"}, "not on 7.10.0"),
        ({"origin": "tarball", "sha256": "2" * 64}, "not on 7.10.0"),
    ],
)
def test_a_suite_for_users_of_pip_proves_the_version_that_the_set_was_built_with(
    manifest, brought, why
) -> None:
    suites = {"smoke": replace(KNOWN["smoke"], rocm="pip")}
    beside = RocmProvided(origin="pip", name="rocm", version=manifest.rocm.version)
    verdict = replace(make_verdict(manifest), rocm=replace(beside, **brought))
    channel = replace(CHANNEL, suites=suites)
    decision = decide(manifest, ALONE, channel, found(verdict), now=NOW, approvals=())
    assert [why.replace("7.10.0", manifest.rocm.version) in cell.why
            for cell in decision.blocking] == [True] * bool(why)  # fmt: skip


@pytest.mark.parametrize(("count", "blocks"), [(1, False), (2, False), (3, True)])
def test_tests_that_are_gone_are_shown_and_block_beyond_a_budget(manifest, count, blocks) -> None:
    suites = {
        "smoke": replace(KNOWN["smoke"], demands=Demands(expected=replace(DEMAND, may_lose=2)))
    }
    gone = tuple(f"test_a.py::test_{number}" for number in range(count))
    decision = decide(
        manifest,
        ALONE,
        replace(CHANNEL, suites=suites),
        found(make_verdict(manifest)),
        now=NOW,
        approvals=(APPROVAL,),
        before=Coverage(tests={("smoke", "3.12"): frozenset(gone)}),
    )
    (cell,) = decision.cells
    tests = "1 test" if count == 1 else f"{count} tests"
    said = f"gone since the last released set: {tests}: {', '.join(gone)}"
    assert cell.notes[0] == said
    assert [item.state for item in decision.blocking] == [State.TOO_FEW_RAN] * blocks


OTHER_SUITES = [
    ({"definition": "e" * 64}, "suite file eeeeeeeeeeee"),
    ({"definition": ""}, "suite file unknown"),
    ({"skips": "e" * 64}, "skip list eeeeeeeeeeee"),
    ({"tests": "e" * 64}, "tests eeeeeeeeeeee"),
    ({"selection": "not slow"}, "selection not slow"),
    ({"pytest": "9.0.1"}, f"pytest 9.0.1, this checkout has {SUITES['smoke'].pytest}"),
]


@pytest.mark.parametrize(("change", "why"), OTHER_SUITES)
@pytest.mark.parametrize("state", [State.PASS, State.FLAKY])
def test_only_the_suite_that_this_checkout_has_counts(manifest, state, change, why) -> None:
    other = make_verdict(manifest, state=state, ran=ran("smoke", manifest, **change))
    (cell,) = judged(manifest, other, approvals=(APPROVAL,)).blocking
    assert cell.state is State.NOT_RUN
    assert f"another suite ran: {why}" in cell.why


def test_a_suite_that_this_checkout_has_not_counts_for_nothing(manifest) -> None:
    channel = replace(CHANNEL, suites={})
    (cell,) = decide(manifest, ALONE, channel, found(make_verdict(manifest)), now=NOW).blocking
    assert "this checkout has no suite smoke" in cell.why


def test_tests_of_jax_are_those_of_the_commit_the_wheels_were_built_of(manifest) -> None:
    family = replace(ALONE, policy=(REQUIRED_UNIT,))
    for commit, blocks in ((manifest.jax.commit, False), ("1" * 40, True)):
        verdict = make_verdict(manifest, suite="unit", ran=ran("unit", manifest, tests=commit))
        verdicts = found(verdict, suite="unit")
        assert bool(decide(manifest, family, CHANNEL, verdicts, now=NOW).blocking) == blocks


@pytest.mark.parametrize(
    ("counts", "why"),
    [
        ({"passed": 2}, "tests that passed: 2, must: 3"),
        ({"passed": 1, "xfailed": 1, "flaky": 1}, "tests that passed: 2, must: 3"),
        ({"passed": 9, "skipped": 3}, "tests skipped: 3; allowed: 2"),
        ({"passed": 9, "xfailed": 2}, "tests expected to fail: 2; allowed: 1"),
        ({"passed": 9, "deselected": 1}, "tests deselected: 1; allowed: 0"),
    ],
)
def test_a_pass_meets_what_the_suite_demands_here(manifest, counts, why) -> None:
    (cell,) = judged(manifest, make_verdict(manifest, counts=Counts(**counts))).blocking
    assert (cell.state, why in cell.why) == (State.NOT_RUN, True)


@pytest.mark.parametrize("state", [State.PASS, *sorted(SILENT, key=list(State).index)])
def test_more_retries_than_the_suite_allows_are_a_failure_under_any_state(manifest, state) -> None:
    told = make_verdict(manifest, state=state, counts=Counts(passed=9, flaky=2))
    (cell,) = judged(manifest, told, make_verdict(manifest)).blocking
    assert cell.state is State.FLAKY


def test_a_flaky_verdict_of_tests_that_all_passed_later_can_be_approved(manifest) -> None:
    told = make_verdict(manifest, state=State.FLAKY, counts=Counts(flaky=9))
    (cell,) = judged(manifest, replace(told, state=State.PASS)).blocking
    assert "counts something else" in cell.why
    (cell,) = judged(manifest, told).blocking
    assert (cell.state, cell.approval) == (State.FLAKY, f"{cell.suite}:{cell.python}")
    assert not judged(manifest, told, approvals=(APPROVAL,)).blocking


@pytest.mark.parametrize("state", list(State))
def test_an_unofficial_verdict_is_shown_and_counts_for_nothing(manifest, state) -> None:
    odd = ran("smoke", manifest, unofficial=("--with numpy==1",))
    told = make_verdict(manifest, state=state, ran=odd)
    assert judged(manifest, told, make_verdict(manifest)).blocking == ()
    (cell,) = judged(manifest, told, approvals=(APPROVAL,)).blocking
    assert (cell.state, cell.why) == (State.NOT_RUN, "no verdict")
    (note,) = cell.notes
    assert note.startswith(f"unofficial {state.value}: ")
    assert note.endswith(": --with numpy==1")


@pytest.mark.parametrize("counts", [{"failed": 1}, {"crashed": 1}, {"timed_out": 1}])
@pytest.mark.parametrize("state", list(State))
def test_a_failure_that_was_counted_is_remembered_under_every_state(
    manifest, state, counts
) -> None:
    told = make_verdict(manifest, state=state, counts=Counts(passed=9, **counts))
    assert judged(manifest, told, approvals=(APPROVAL,)).blocking
    for verdicts in ((told, make_verdict(manifest)), (make_verdict(manifest), told)):
        (cell,) = judged(manifest, *verdicts).blocking
        assert cell.state is State.FLAKY
        assert judged(manifest, *verdicts, approvals=(APPROVAL,)).blocking == ()


@pytest.mark.parametrize("hidden", [State.FAIL, State.CRASH, State.COLLECT_ERROR, State.FLAKY])
@pytest.mark.parametrize("state", [State.INFRA, State.NOT_RUN, State.NO_RUNNER])
def test_what_a_silent_state_hides_is_remembered(manifest, state, hidden) -> None:
    told = make_verdict(manifest, state=state, counts=Counts(), also=(hidden,))
    (cell,) = judged(manifest, told, make_verdict(manifest)).blocking
    assert (cell.state, hidden.value in cell.why) == (State.FLAKY, True)


def test_one_wheel_with_another_digest_is_enough_to_block(manifest) -> None:
    wheels = {w.filename: w.sha256 for w in manifest.wheels}
    for name in wheels:
        changed = make_verdict(manifest, wheels={**wheels, name: "0" * 64})
        assert name in judged(manifest, changed).blocking[0].why


def test_a_shard_passes_nothing_and_may_fail(manifest) -> None:
    (cell,) = judged(manifest, make_verdict(manifest, shard="1/2")).blocking
    assert cell.why == "no verdict"
    failed = make_verdict(manifest, shard="1/2", state=State.FAIL)
    (cell,) = judged(manifest, failed, make_verdict(manifest)).blocking
    assert cell.state is State.FLAKY


@pytest.mark.parametrize(
    "other",
    [State.FAIL, State.CRASH, State.TIMEOUT, State.FLAKY, State.COLLECT_ERROR,
     State.NOTHING_RAN, State.TOO_FEW_RAN],
)  # fmt: skip
@pytest.mark.parametrize("order", [1, -1])
def test_a_pass_beside_a_failure_on_the_same_bytes_is_flaky_in_any_order(
    manifest, other: State, order: int
) -> None:
    verdicts = (make_verdict(manifest, state=other), make_verdict(manifest))[::order]
    (cell,) = judged(manifest, *verdicts).blocking
    assert cell.state is State.FLAKY
    assert other.value in cell.why


@pytest.mark.parametrize("other", [State.INFRA, State.NO_RUNNER, State.NOT_RUN, State.PASS])
def test_a_pass_beside_trouble_with_the_machine_is_a_pass(manifest, other: State) -> None:
    told = make_verdict(manifest, state=other, counts=Counts())
    if other is State.PASS:
        told = make_verdict(manifest, host="node2")
    assert judged(manifest, told, make_verdict(manifest)).blocking == ()


def test_an_approval_excuses_nothing_but_its_flaky_cell(manifest) -> None:
    for state in (State.PASS, *OTHERS):
        decision = judged(manifest, make_verdict(manifest, state=state), approvals=(APPROVAL,))
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
    (cell,) = judged(manifest, family=bypassing(family), now=NOW.replace(day=2)).blocking
    assert "expired on 2026-05-01" in cell.why


@pytest.mark.parametrize("state", OTHERS)
def test_a_bypass_excuses_nothing_where_the_family_has_a_runner(manifest, state: State) -> None:
    decision = judged(manifest, make_verdict(manifest, state=state), family=bypassing())
    assert len(decision.blocking) == 1
    assert decision.bypass is None
    assert judged(manifest, family=bypassing()).blocking[0].state is State.NOT_RUN


@pytest.mark.parametrize("state", [state for state in OTHERS if state not in SILENT])
def test_a_bypass_excuses_no_failure_whoever_says_no_runner_afterwards(manifest, state) -> None:
    family = bypassing(replace(NO_RUNNER, policy=ALONE.policy))
    told = make_verdict(manifest, state=state, family=family)
    silent = make_verdict(manifest, state=State.NO_RUNNER, counts=Counts(), family=family)
    for verdicts in ((told, silent), (silent, told), (told,)):
        assert len(judged(manifest, *verdicts, family=family).blocking) == 1
    decision = judged(manifest, silent, family=family)
    assert (decision.blocking, decision.bypass) == ((), BYPASS)
    infra = make_verdict(manifest, state=State.INFRA, counts=Counts(), family=family)
    assert judged(manifest, infra, silent, family=family).blocking


def test_a_cpython_that_no_rule_requires_anything_of_blocks(manifest) -> None:
    rules = (matrix.Rule("smoke", matrix.Level.REQUIRED, ("3.11",)),
             matrix.Rule("unit", matrix.Level.ADVISORY))  # fmt: skip
    family = replace(ALONE, policy=rules)
    (cell,) = decide(
        manifest, family, CHANNEL, found(make_verdict(manifest)), now=NOW, approvals=(APPROVAL,)
    ).blocking
    assert (cell.suite, cell.python) == ("any", "3.12")
    assert "requires no suite for this CPython" in cell.why


def test_an_advisory_suite_never_blocks_and_is_shown(manifest) -> None:
    family = replace(ALONE, policy=(matrix.Rule("smoke", matrix.Level.ADVISORY), REQUIRED_UNIT))
    decision = judged(manifest, make_verdict(manifest, state=State.FAIL), family=family)
    assert [cell.suite for cell in decision.blocking] == ["unit"]
    assert decision.cells[0].state is State.FAIL


def test_every_required_suite_of_every_cpython_is_a_cell(tmp_path) -> None:
    manifest = make_set(tmp_path, pythons=("3.11", "3.12", "3.13"))
    decision = decide(manifest, FAMILY, CHANNEL, [], now=NOW)
    assert len(decision.cells) == 9
    assert len(decision.blocking) == 6


# --- how many tests run on a family ---------------------------------------------------------------

NUMBER = replace(APPROVAL, suite="unit", ran=9)
APPROVED = replace(CHANNEL, first_sets="approved", suites={
    "unit": replace(KNOWN["unit"], demands=Demands(expected=replace(DEMAND, may_lose=2)))
})  # fmt: skip
UNIT = replace(FAMILY, policy=(REQUIRED_UNIT,))


def first(manifest, *words, state=State.PASS, passed=9, before=NOTHING, **more):
    """Judge one verdict of JAX's own tests."""
    verdict = make_verdict(
        manifest, suite="unit", state=state, counts=Counts(passed=passed, **more)
    )
    return decide(
        manifest, UNIT, APPROVED, found(verdict, suite="unit"), now=NOW, approvals=words,
        before=before,
    )  # fmt: skip


def test_the_first_set_of_a_family_waits_for_the_number_of_its_tests(manifest) -> None:
    (cell,) = first(manifest).blocking
    assert (cell.state, cell.approval) == (State.UNCALIBRATED, "unit:3.12=9")
    assert cell.why == f"it is the first set of {FAMILY.name}, and 9 of its tests passed"
    for word in (replace(NUMBER, ran=0), replace(NUMBER, ran=8), replace(NUMBER, suite="smoke")):
        assert first(manifest, word).blocking, word
    decision = first(manifest, NUMBER)
    assert (decision.blocking, decision.approvals) == ((), (NUMBER,))
    assert first(manifest, NUMBER, passed=2).blocking, "the suite's own number holds as well"


def test_a_flaky_first_set_waits_for_the_number_as_well(manifest) -> None:
    flaky = {"state": State.FLAKY, "passed": 7, "flaky": 2}
    (cell,) = first(manifest, replace(NUMBER, ran=0), **flaky).blocking
    assert (cell.state, cell.approval) == (State.FLAKY, "unit:3.12=9")
    assert first(manifest, NUMBER, **flaky).blocking == ()


def test_a_number_holds_for_every_cpython_of_the_set(tmp_path) -> None:
    manifest = make_set(tmp_path, pythons=("3.11", "3.12"))
    for passed, blocks in ((7, False), (6, True)):
        told = []
        for python, number in (("3.12", 9), ("3.11", passed)):
            about = {"suite": "unit", "python": python}
            told += found(make_verdict(manifest, counts=Counts(passed=number), **about), **about)
        decision = decide(manifest, UNIT, APPROVED, told, now=NOW, approvals=(NUMBER,))
        assert [cell.python for cell in decision.blocking] == ["3.11"] * blocks


@pytest.mark.parametrize("cell", ["3.12", "3.11"], ids=["the same CPython", "another one"])
def test_as_many_tests_run_as_on_the_last_released_set(manifest, cell) -> None:
    before = Coverage(ran={("unit", cell): 11})
    assert first(manifest, before=before).blocking == ()
    (lost,) = first(manifest, NUMBER, passed=8, before=before).blocking
    why = "tests that passed: 8, on the last released set: 11; may_lose is 2"
    assert (lost.state, lost.why) == (State.NOT_RUN, why)


def test_what_an_earlier_rocwheel_called_uncalibrated_is_a_pass_like_another(manifest) -> None:
    assert first(manifest, NUMBER, state=State.UNCALIBRATED).blocking == ()
    assert first(manifest, state=State.UNCALIBRATED).blocking


SAID = st.tuples(
    st.sampled_from(list(State)),
    st.sampled_from([Counts(passed=9), Counts(passed=9, failed=1), Counts(crashed=1), Counts()]),
    st.sampled_from(["", "1/2"]),
    st.booleans(),  # on a GPU of the family
)


@given(st.lists(SAID, max_size=4), st.booleans(), st.booleans(), st.booleans(), st.randoms())
def test_nothing_but_a_pass_an_approval_or_a_bypass_lets_a_cell_through(
    said: list, approved: bool, bypassed: bool, has_runner: bool, random
) -> None:
    manifest = SHARED[0]
    family = ALONE if has_runner else replace(ALONE, runners=())
    verdicts = [
        make_verdict(manifest, state=state, counts=counts, shard=shard, host=f"node{number}",
                     **({} if sound else {"backend": "cpu"}))
        for number, (state, counts, shard, sound) in enumerate(said)
    ]  # fmt: skip
    options = {
        "family": bypassing(family) if bypassed else family,
        "approvals": (APPROVAL,) if approved else (),
    }
    decision = judged(manifest, *verdicts, **options)
    random.shuffle(verdicts)
    assert judged(manifest, *verdicts, **options) == decision, "the order does not matter"
    failed = any(
        state not in {*SILENT, State.PASS, State.UNCALIBRATED} or counts.failed or counts.crashed
        for state, counts, _, _ in said
    )
    passed = any(
        state in {State.PASS, State.FLAKY, State.UNCALIBRATED}
        and counts == Counts(passed=9)
        and sound
        and not shard
        for state, counts, shard, sound in said
    )
    silent = all(state in SILENT - {State.INFRA} or shard for state, _, shard, _ in said)
    if not decision.blocking:
        excused = bypassed and not has_runner and silent and not failed
        assert (passed and (not failed or approved)) or excused
    if passed and (not failed or approved):
        assert not decision.blocking


SHARED: list = []


@pytest.fixture(autouse=True)
def _shared(manifest) -> None:
    SHARED[:] = [manifest]
