"""What a night's attempts amount to: nothing is good by default, and no failure is forgotten."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from rocwheel.base.errors import ConfigError
from rocwheel.base.store.opening import open_store
from rocwheel.base.values import replace
from rocwheel.base.versions import timestamp
from rocwheel.night import standing
from rocwheel.night.local import critical_paths
from rocwheel.night.standing import Phase
from rocwheel.records.verdict import State
from rocwheel.release.ledger.nights import (
    AS_JSON,
    Begun,
    Book,
    CauseClass,
    Cell,
    CellAttempt,
    Ended,
    HostMark,
    NightPlan,
    Nights,
    Order,
)

NOW = datetime(2026, 5, 1, 12, tzinfo=timezone.utc)
CELLS = (
    Cell(name="build", kind="build", argv=("dist_wheels",), seconds=100),
    Cell(name="gate", kind="gate", argv=("gate",), after=("build",), seconds=50),
    Cell(name="promote", kind="promote", argv=("promote",), after=("build",), settled=("gate",)),
)


def attempt(
    number: int, cell: str, state: str | None, *, plan: str = "p", age: int = 60, seen: int = 99,
    link: str = "a page",
) -> CellAttempt:  # fmt: skip
    """`seen`: what was told of the cells it waited for; 99 is more than there ever is here."""
    began = timestamp(NOW - timedelta(seconds=age))
    begun = Begun(
        token=str(number), cell=cell, plan=plan, host="h", engine="local", seen=seen, time=began
    )
    ended = state and Ended(
        cell=cell, plan=plan, host="h", engine="local", state=State(state), reason=f"was {state}",
        began=began, time=timestamp(NOW), milliseconds=1, link=link,
    )  # fmt: skip
    return CellAttempt(number=number, begun=begun, ended=ended or None)


def book(orders: tuple[Order, ...] = (), attempts: int = 2, **said: str | None) -> Book:
    """Each argument is the states of a cell's attempts, comma-separated; `-` has not ended."""
    plan = NightPlan(
        night="n", made=timestamp(NOW), by="me", tool="1", target=(), recipes=(), cells=CELLS,
        attempts=attempts,
    )  # fmt: skip
    tries = {
        cell: tuple(
            attempt(number, cell, None if word == "-" else word)
            for number, word in enumerate((words or "").split(","), 1)
            if word
        )
        for cell, words in said.items()
    }
    return Book(plan=plan, sha256="p", attempts=tries, orders=orders, quarantined={})


def stand(*args, **said):
    return standing.stand(book(*args, **said))


def order(action: str, cell: str = "", seen: int = 0) -> Order:
    return Order(action=action, cell=cell, by="me", reason="why", time=timestamp(NOW), seen=seen)


@pytest.mark.parametrize(
    ("attempts", "state"),
    [
        ("pass", State.PASS),
        ("fail", State.FAIL),
        ("infra,pass", State.PASS),
        ("pass,fail", State.FAIL),
        ("fail,pass", State.FLAKY),
        ("crash,pass", State.FLAKY),
        ("pass,infra", State.PASS),
        ("fail,infra", State.FAIL),
        ("fail,pass,pass", State.FLAKY),
    ],
)
def test_all_attempts_at_a_test_count_in_any_order(attempts, state):
    found = stand(build="pass", gate=attempts)["gate"]
    assert found.state is state, found.reason
    assert found.phase is Phase.ENDED


@pytest.mark.parametrize(
    ("first", "link", "state", "reason"),
    [
        ("fail", "", State.PASS, "one attempt tested nothing: fail: was fail"),
        ("infra", "a page", State.PASS, "one attempt tested nothing: infra: was infra"),
        ("fail", "a page", State.FLAKY, "passed after fail: was fail"),
        ("timeout", "", State.FLAKY, "passed after timeout: was timeout"),  # by the wheels?
    ],
)
def test_an_attempt_that_tested_nothing_makes_no_later_pass_flaky(first, link, state, reason):
    seen = book(build="pass")
    tries = [attempt(1, "gate", first, link=link)]

    def gate():
        told = {**seen.attempts, "gate": tuple(tries)}
        return standing.stand(replace(seen, attempts=told))["gate"]

    assert gate().state is State(first), "without a pass it is what it says"
    for number in (2, 3):
        tries.append(replace_reason(attempt(number, "gate", "pass")))
        assert (gate().state, gate().reason) == (state, reason)


def test_a_pass_keeps_what_went_wrong_in_an_attempt_behind_it():
    tries = (replace_reason(attempt(1, "gate", "pass")), attempt(2, "gate", "infra"))
    seen = book(build="pass")
    seen = replace(seen, attempts={**seen.attempts, "gate": tries})
    found = standing.stand(seen)["gate"]
    assert found.state is State.PASS
    assert found.reason == "one attempt tested nothing: infra: was infra"


def test_what_is_alike_of_many_cells_is_one_line():
    told = [("a", "absent: x"), ("b", "fail: y"), ("c", "absent: x"), ("d", "absent: x")]
    assert list(standing.grouped(told)) == ["a and 2 more: absent: x", "b: fail: y"]


def replace_reason(item: CellAttempt) -> CellAttempt:
    """A pass has no reason."""
    assert item.ended
    return replace(item, ended=replace(item.ended, reason=""))


@pytest.mark.parametrize(("promote", "green"), [("pass", True), ("fail", False), ("", False)])
@pytest.mark.parametrize("gate", ["fail,pass", "flaky"])
def test_a_flaky_cell_is_not_red_once_the_promotion_that_waited_for_it_released(
    gate, promote, green
):
    states = {"build": "pass", "gate": gate, "promote": promote}
    assert not stand(**states)["gate"].green, "until a person looked at it"
    for asked in (order("retry", "gate"), order("retry", "promote")):
        cell = stand((asked,), **states)["gate"]
        assert cell.green is green
    assert cell.word == "flaky", "it is shown as what it is"


def test_what_the_machine_was_at_fault_for_is_tried_again_as_often_as_the_plan_says():
    assert stand(build="infra")["build"].phase is Phase.OPEN
    assert stand(build="infra,infra")["build"].phase is Phase.ENDED
    assert stand(build="infra,infra", attempts=3)["build"].phase is Phase.OPEN
    assert stand(build="fail")["build"].phase is Phase.ENDED


@pytest.mark.parametrize(("silence", "phase"), [(179, Phase.RUNNING), (181, Phase.OPEN)])
def test_an_attempt_that_renews_no_lease_for_three_minutes_is_lost(silence, phase):
    """However long its cell may take: that limit is for cells that live."""
    seen = book(build="-")
    tries = (replace(seen.attempts["build"][0], silence=timedelta(seconds=silence)),)
    found = standing.stand(replace(seen, attempts={"build": tries}))["build"]
    assert found.phase is phase
    if phase is Phase.OPEN:
        assert (found.word, found.cause) == ("lost", CauseClass.LOST)
        assert found.reason == "h has given no sign of attempt 1 for more than 3 minutes"


@pytest.mark.parametrize("unread", ["", "2.json: half-written"])
def test_an_attempt_that_is_lost_after_an_interrupted_one_is_what_counts(unread):
    """Status named the end of the first try, and nothing tried it again."""
    seen = book(build="not-run,-")
    lost = replace(seen.attempts["build"][1], silence=timedelta(minutes=4), unread=unread)
    tries = (seen.attempts["build"][0], lost)
    found = standing.stand(replace(seen, attempts={"build": tries}))["build"]
    assert found.phase is Phase.OPEN, "one try was the machine's, of two"
    assert found.cause is (CauseClass.STORE if unread else CauseClass.LOST)
    assert found.reason == (unread or "h has given no sign of attempt 2 for more than 3 minutes")


def test_a_promotion_that_a_dropped_gate_refuses_waits_for_no_retry():
    cells = [*CELLS[:1], replace(CELLS[1], suite="unit", python="3.12"), *CELLS[2:]]
    orders = (order("drop", "gate"),)
    seen = book(orders, build="pass")
    refused = attempt(1, "promote", "fail")
    refused = replace(
        refused, ended=replace(refused.ended, reason="unit on CPython 3.12 is not-run")
    )
    plan = replace(seen.plan, cells=tuple(cells))
    found = standing.stand(
        replace(seen, plan=plan, attempts={**seen.attempts, "promote": (refused,)})
    )
    assert found["promote"].phase is Phase.BARRED
    assert found["promote"].reason == found["gate"].reason == "dropped by me: why"
    assert found["promote"].cause is None


def promoted(gate: str, orders: tuple[Order, ...] = (), *, seen: int) -> Book:
    """A night whose promotion ended when so much was told of the gate."""
    found = book(orders, build="pass", gate=gate)
    tries = {**found.attempts, "promote": (attempt(1, "promote", "fail", seen=seen),)}
    return Book(plan=found.plan, sha256="p", attempts=tries, orders=orders, quarantined={})


def test_a_promotion_is_done_again_after_a_gate_that_was_dropped():
    asked = (order("drop", "gate"),)
    found = standing.stand(promoted("fail", asked, seen=1))
    assert standing.ready(found, found["promote"].cell)
    assert not found["promote"].settled


def test_a_record_of_another_plan_counts_as_nothing_that_passed():
    tries = {"build": (attempt(1, "build", "pass", plan="other"),)}
    found = standing.stand(
        Book(plan=book().plan, sha256="p", attempts=tries, orders=(), quarantined={})
    )["build"]
    assert not found.passed
    assert "another plan" in found.reason


def test_the_critical_path_counts_everything_that_follows():
    paths = critical_paths(CELLS)
    assert paths["build"] == 100 + 50 + 60
    assert paths["gate"] == 50 + 60
    assert paths["promote"] == 60


def test_a_host_is_held_back_until_it_is_cleared_whatever_its_clock_said(tmp_path):
    nights = Nights(open_store(tmp_path.as_uri()))
    tomorrow = timestamp(NOW + timedelta(days=1))
    nights.mark_host(HostMark(host="h", quarantined=True, by="x", reason="y", time=tomorrow))
    assert set(nights.quarantined()) == {"h"}
    nights.mark_host(HostMark(host="h", quarantined=False, by="x", reason="y", time=timestamp(NOW)))
    assert not nights.quarantined()


def test_a_plan_whose_maker_was_killed_before_the_index_knew_it_is_found(tmp_path):
    nights = Nights(open_store(tmp_path.as_uri()))
    plan = replace(book().plan, by="killed")
    nights.store.create(nights.key("n", "plan.json"), plan.to_bytes(), headers=AS_JSON)
    assert nights.names() == ("n",)
    with pytest.raises(ConfigError, match="another plan, made by killed"):
        nights.add(book().plan)
    assert nights.names() == ("n",)
