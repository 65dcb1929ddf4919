"""What page, message and check say of nights: compared, killed, half-written, interrupted.

What each kind leaves in the store is written here as the engines write it (their own tests hold
that); truth, page, feed, badge, check and exit status are the real ones.
"""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone

import pytest
from support.states import red_morning, summary

import amdgpu_family_matrix as matrix
from rocwheel import __version__
from rocwheel.base import console
from rocwheel.base.values import replace
from rocwheel.base.versions import timestamp
from rocwheel.cli import main
from rocwheel.night import page, standing, truth
from rocwheel.night.slurm import Job
from rocwheel.records.verdict import State
from rocwheel.release.index import channels
from rocwheel.release.ledger.nights import (
    AS_JSON,
    Begun,
    Cell,
    Ended,
    NightPlan,
    Nights,
    Order,
    Phase,
)

NOW = datetime(2026, 5, 2, 9, tzinfo=timezone.utc)
PAGE = "https://rocm.example.org/status/index.html"
LIMIT = 36 * 3600


OWN = {"family": "gfx90a", "wheels": "jax"}
BUILD, UNIT = "build.jax", "gate.jax.gfx90a.3.12.unit"
E2E, PROMOTE, IMAGE = "gate.jax.gfx90a.3.12.e2e", "promote.jax.gfx90a", "image.jax.gfx90a.3.12.jax"
CELLS = (
    Cell(name=BUILD, kind="build", argv=("dist_wheels",), wheels="jax"),
    Cell(name=UNIT, kind="gate", argv=("gate",), after=(BUILD,), python="3.12", suite="unit", **OWN),
    Cell(name=E2E, kind="gate", argv=("gate",), after=(BUILD,), python="3.12", suite="e2e", **OWN),
    Cell(name=PROMOTE, kind="promote", argv=("promote",), after=(BUILD,), settled=(UNIT, E2E), **OWN),
    Cell(name=IMAGE, kind="image", argv=("image",), after=(PROMOTE,), python="3.12", **OWN),
    Cell(name="page", kind="page", argv=("report",), settled=(PROMOTE, IMAGE)),
)  # fmt: skip


FAIL = {UNIT: (State.FAIL, "3 tests failed")}


def night(
    nights: Nights,
    name: str,
    engine: str,
    ends: dict[str, tuple[State, str]],
    made: datetime,
    *,
    attempts: int = 1,
) -> None:
    """Leave a night as an engine does: every cell has passed but those with an end."""
    plan = NightPlan(
        night=name, made=timestamp(made), by="me", tool=__version__, target=(), recipes=(),
        cells=CELLS, attempts=attempts,
    )  # fmt: skip
    nights.add(plan)
    for cell in CELLS:
        state, reason = ends.get(cell.name, (State.PASS, ""))
        book = nights.book(name)
        if cell.kind == "page" or standing.stand(book)[cell.name].settled:
            continue
        said = {"cell": cell.name, "plan": book.sha256, "host": "h", "engine": engine}
        seen = standing.ends_seen(book, cell)
        number = nights.begin(name, Begun(token=cell.name, time=timestamp(made), seen=seen, **said))
        ended = Ended(
            state=state, reason=reason, began=timestamp(made), time=timestamp(made),
            milliseconds=1, **said,
        )  # fmt: skip
        nights.end(name, number, ended)


@pytest.fixture
def places(tmp_path):
    channel = channels.of_store((tmp_path / "store").as_uri())
    nights = Nights(channel.open())

    def publish(name: str) -> str:
        args = (nights, name, channel, matrix.FAMILIES)
        return page.publish(*args, now=NOW, console=console.silent(), shown=30)[0].decode()

    return nights, publish


def told(nights: Nights, name: str, warn=lambda _said: None) -> truth.Truth:
    channel = channels.of_store(nights.store.url)
    return truth.truth(nights, name, matrix.FAMILIES, channel, now=NOW, warn=warn)


def test_a_change_is_told_once_and_shown_with_the_night_since_which_it_is_there(places):
    nights, publish = places
    loud, body = {}, ""
    nightly = {"one": FAIL, "two": FAIL, "three": {}, "four": {}}
    for number, (name, kind) in enumerate(nightly.items()):
        night(nights, name, "local", kind, NOW - timedelta(hours=100 - 24 * number))
        body = publish(name)
        loud[name] = [(item.change.value, item.since) for item in told(nights, name).loud]
        if name == "two":
            assert "still failing</span> since one" in body
    assert loud == {"one": [("fails", "one")], "two": [], "three": [("fixed", "three")], "four": []}


def test_a_first_night_is_compared_with_nothing(places):
    nights, publish = places
    night(nights, "one", "local", {BUILD: (State.FAIL, "a.cc:1: error")}, NOW - timedelta(hours=6))
    body = publish("one")
    text = body
    assert "The first night: there is nothing to compare it with." in text
    for wrong in ("Nothing changed", "no longer run", "as in its last night", "new failure"):
        assert wrong not in text
    said = told(nights, "one").markdown(PAGE)
    assert "The first night" not in said, "it has causes to tell"
    assert f"`{BUILD}`: fails, since one" in said
    assert told(nights, "one").changes[1].what == "barred"


def test_a_night_is_compared_with_one_that_was_over_before_it_began(places):
    """An older night that ends later neither is what today is compared with nor speaks for it."""
    nights, publish = places
    night(nights, "base", "local", {}, NOW - timedelta(hours=60))
    publish("base")
    night(nights, "older", "local", {}, NOW - timedelta(hours=8))
    late = nights.key("older", f"cells/{UNIT}/1.json")
    data, info = nights.store.read(late)
    ended = Ended.from_bytes(data, name=late)
    ended = replace(ended, time=timestamp(NOW - timedelta(hours=1)))
    nights.store.replace(late, ended.to_bytes(), previous=info, headers=AS_JSON)
    nights._once.clear()
    night(nights, "today", "local", FAIL, NOW - timedelta(hours=6))
    publish("today")
    body = publish("older")
    assert told(nights, "today").before.night == "base"
    assert '<h1 class="bad">1 red' in body, "the page is of the newest night"
    older = told(nights, "older")
    assert older.has_newer
    assert "A newer night has begun since." in older.markdown(PAGE)


def test_a_night_is_held_against_the_last_that_left_a_summary(places):
    nights, publish = places
    for number, name in enumerate(("one", "two", "three")):
        night(nights, name, "local", FAIL, NOW - timedelta(hours=60 - 20 * number))
        if name != "two":
            publish(name)
    assert not told(nights, "three").loud, "nothing changed"
    warned: list[str] = []
    nights.put_summary("two", b'{"half')
    assert not told(nights, "three", warned.append).loud
    assert len(warned) == 1
    assert "two/summary.json: not JSON" in warned[0]


def test_a_family_that_the_data_have_no_more_stays_with_what_its_users_have(places):
    nights, publish = places
    night(nights, "one", "local", {}, NOW - timedelta(hours=30))
    publish("one")
    before = truth.known(nights, ["one"], print)[0]
    left = replace(summary(1).families[0], family="gfx803")
    nights.put_summary("one", replace(before, families=(*before.families, left)).to_bytes())
    night(nights, "two", "local", {}, NOW - timedelta(hours=6))
    publish("two")
    assert left in truth.known(nights, ["two"], print)[0].families


def test_a_clock_that_is_behind_cannot_say_how_old_a_night_is(places):
    nights, publish = places
    night(nights, "one", "local", {}, NOW - timedelta(hours=6))
    publish("one")
    assert truth.problems(nights, NOW - timedelta(hours=6, minutes=59), LIMIT, {}) == []
    lines = truth.problems(nights, NOW - timedelta(days=3), LIMIT, {})
    assert lines == ["one: is 66 h 0 min ahead of this machine's clock: set the clock"]


def test_check_says_what_no_cell_says(places):
    nights, publish = places
    assert "has no night" in truth.problems(nights, NOW, LIMIT, {})[0]
    night(nights, "one", "slurm", {}, NOW - timedelta(hours=6))
    assert "has no summary" in truth.problems(nights, NOW, LIMIT, {})[0]
    for spoilt, said in ((b'{"night": "on', "not JSON"), (b'{"schema": 1}', "is 1, and this")):
        nights.put_summary("one", spoilt)
        assert said in truth.problems(nights, NOW, LIMIT, {})[0]
    publish("one")
    held = {UNIT: Job(cell=UNIT, attempt=1, number="12", why="launch failed requeued held")}
    assert "requeued held" in truth.problems(nights, NOW, LIMIT, held)[0]
    assert "old" in truth.problems(nights, NOW + timedelta(days=2), LIMIT, {})[0]
    plan = nights.plan("one")[0]
    nights.add(replace(plan, night="two", made=timestamp(NOW - timedelta(hours=3))))
    assert "never ran" in truth.problems(nights, NOW, LIMIT, {})[0]


def test_check_gives_the_newest_night_two_hours_and_asks_no_page_of_one_that_never_ran(
    places, capsys
):
    nights, _ = places
    now = datetime.now(tz=timezone.utc)
    night(nights, "one", "local", {}, now - timedelta(hours=9))
    plan = nights.plan("one")[0]
    line = ["nightly", "check", f"--store={nights.store.url}"]
    nights.add(replace(plan, night="two", made=timestamp(now - timedelta(hours=1))))
    assert main([*line, "--json"]) == 8
    assert json.loads(capsys.readouterr().out)["night"] == "two"
    assert main(["nightly", "changes", line[2]]) == 0
    assert "status/index.html" not in capsys.readouterr().out, "there is no page yet"
    assert main(line) == 8
    said = capsys.readouterr().err
    assert re.search(r"error: one: has no summary: .*nightly report .*--night one`", said)
    assert re.search(r"hint:  look: `.*nightly status .*one`", said), "of the night that lacks it"
    nights.add(replace(plan, night="three", made=timestamp(now)))
    assert main(line) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("engine", "waits", "said", "young"),
    [("slurm", {}, "nightly run one", 14), ("local", {}, "nightly run one", 1),
     ("slurm", {UNIT: Job(cell=UNIT, attempt=1, number="7", why="Resources")}, "", 14),
     ("github", {}, "", 14)],
)  # fmt: skip
def test_a_night_whose_client_or_engine_was_killed_says_the_line_that_goes_on(
    places, engine, waits, said, young
):
    """Half of it was submitted or run, and nothing runs or waits now."""
    nights, _ = places
    plan_only = {UNIT, E2E, PROMOTE, IMAGE}
    night(nights, "one", engine, {UNIT: (State.INFRA, "no device")}, NOW - timedelta(hours=1))
    for key in [info.key for info in nights.store.keys(nights.key("one", "cells/"))]:
        if any(f"/{name}/" in key for name in plan_only):
            nights.store.delete(key)
    lines = truth.problems(Nights(nights.store), NOW, LIMIT, waits)
    assert lines == ([f"one: stands still with 5 cells to do: `{said}`"] if said else [])
    blind = truth.problems(Nights(nights.store), NOW, LIMIT, waits, has_slurm=False)
    assert [("Slurm cannot be asked here" in text, "stands still" in text) for text in blind] == (
        [(engine == "slurm", engine != "slurm")] if said else []
    )
    nights.order("one", Order(action="stop", by="ann", reason="disk", time=timestamp(NOW), seen=0))
    stopped = truth.problems(Nights(nights.store), NOW, LIMIT, waits)
    go_on = "`nightly retry one --reason=WHY`"
    assert stopped == [f"one: was stopped by ann with 5 cells to do: {go_on}"], "at once"
    nights.order(
        "one", Order(action="go-on", by="ann", reason="mended", time=timestamp(NOW), seen=0)
    )
    early = NOW - timedelta(minutes=60 - young)
    assert truth.problems(Nights(nights.store), early, LIMIT, waits) == []


@pytest.mark.parametrize("record", ["1.begun.json", "1.json"])
@pytest.mark.parametrize("left", [b"", b'{"cell": "gate.'])
def test_a_record_that_is_half_written_is_an_attempt_that_counts_as_infra(places, record, left):
    """A disk or its power failed: the cell is tried again, and nothing has to be deleted."""
    nights, _ = places
    night(nights, "one", "local", {}, NOW, attempts=2)  # too young to count as lost by its age
    key = nights.key("one", f"cells/{UNIT}/{record}")
    store = nights.store
    store.replace(key, left, previous=store.info(key), headers=AS_JSON)
    book = Nights(store).book("one")
    where = standing.stand(book)[UNIT]
    if record == "1.begun.json":
        assert where.passed, "how it ended is known"
        return
    assert (where.phase, where.state) == (Phase.OPEN, State.INFRA)
    assert f"{UNIT}/1.json" in where.reason
    again = Begun(
        token="t", cell=UNIT, plan=book.sha256, host="h", engine="local", time=timestamp(NOW)
    )
    assert nights.begin("one", again, known=1) == 2
    good = Ended(
        cell=UNIT, plan=book.sha256, host="h", engine="local", state=State.PASS,
        began=timestamp(NOW), time=timestamp(NOW), milliseconds=1,
    )  # fmt: skip
    assert nights.end("one", 2, good)
    assert standing.stand(Nights(store).book("one"))[UNIT].passed


def test_an_excused_absence_is_shown_and_is_not_red(places):
    nights, publish = places
    plan = NightPlan(
        night="one", made=timestamp(NOW), by="me", tool=__version__, target=(), recipes=(),
        cells=(
            replace(CELLS[0], kept="built"),
            replace(CELLS[2], after=(), absent="no runner", excused="(excused by ann until 2026-12-31: new)"),
        ),
    )  # fmt: skip
    nights.add(plan)
    body = publish("one")
    assert all(item.green for item in standing.stand(nights.book("one")).values())
    assert "excused by ann until 2026-12-31" in body
    assert truth.known(nights, ["one"], print)[0].colour == "good"
    assert truth.problems(nights, NOW, LIMIT, {}) == []


def test_failures_with_one_signature_are_one_cause_with_range_authors_and_a_line():
    nights = red_morning()
    causes = truth.Truth(summaries=tuple(nights)).causes
    assert [len(c.cells) for c in causes if "test_qr" in c.first.reason] == [4]
    (build,) = [c for c in causes if "ncclConfig" in c.first.reason]
    assert len(build.held) == 13
    text = page.render(nights, now=NOW, title="x", root="../").decode()
    assert text.count("ncclConfig") == 1
    assert text.index("ncclConfig") < text.index('id="families"')
    cause = text[text.index("test_qr") : text.index('id="families"')]
    assert "https://github.com/jax-ml/jax/compare/" in cause
    assert "by Ann Example, Ben Example" in cause
    assert "nightly cell " in cause
    assert "bigger" in text
    assert "slower" in text
