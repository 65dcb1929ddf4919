"""The page of all families: made of summaries, one file, the same truth as `status`."""

from __future__ import annotations

import re
from datetime import timedelta
from types import SimpleNamespace

import pytest
from support.states import DIGEST, FIRST, later, of_one_set, red_morning, summary, with_images

from rocwheel.base.values import replace
from rocwheel.night import bisect, page
from rocwheel.night.truth import CellChange, CellSummary, NightSummary, Truth
from rocwheel.records.results import Outcome
from rocwheel.records.verdict import State
from rocwheel.release.ledger.nights import CauseClass, Phase, WorstTest


def render(nights: int = 5, **kwargs) -> str:
    found = [summary(number, **kwargs) for number in range(nights)]
    now = FIRST + timedelta(days=nights)
    return page.render(found, now=now, title="nightly wheels", root="../").decode()


def with_state(base: NightSummary, **states: str) -> NightSummary:
    cells = tuple(replace(cell, state=State(states.get(cell.suite, "pass"))) for cell in base.cells)
    return replace(base, cells=cells)


def test_it_is_one_file_that_needs_nothing_from_outside():
    text = render(families=3)
    assert not re.search(r'(src|href)="(?!\.\./|#|data:,)', text)
    assert "@import" not in text
    assert "url(" not in text


def test_every_cell_is_readable_without_a_script():
    text = re.sub(r"<script>.*?</script>", "", render(families=2), flags=re.DOTALL)
    newest = summary(4, families=2)
    for cell in newest.cells:
        if cell.kind == "gate" and cell.state is not State.PASS:
            assert cell.reason in text
    assert "pip install --no-deps --index-url https://rocm.example.org/v2/gfx94X-dcgpu/" in text
    assert "uv pip install --no-deps --default-index https" in text
    assert "--extra-index-url" not in text
    assert "no runner" in render(families=16)


def test_what_somebody_wrote_cannot_become_markup():
    base = summary(0, families=1)
    evil = "<script>alert(1)</script>"
    cells = tuple(replace(c, state=State.FAIL, reason=evil) for c in base.cells)
    text = page.render([replace(base, cells=cells)], now=FIRST, title=evil, root="../").decode()
    assert evil not in text


def test_without_any_night_there_is_a_page_that_says_so():
    assert "No night yet" in page.render([], now=FIRST, title="x", root="../").decode()


@pytest.mark.parametrize(
    ("before", "here", "change"),
    [
        ("pass", "fail", CellChange.NEW),
        ("fail", "pass", CellChange.FIXED),
        ("fail", "crash", CellChange.STILL),
        ("pass", "flaky", CellChange.FLAKY),
        ("fail", "infra", CellChange.INFRA),
        ("pass", "pass", CellChange.SAME),
        ("infra", "pass", CellChange.FIXED),
        ("pass", "not-run", CellChange.NOT_RUN),
        ("infra", "infra", CellChange.STILL),
        ("not-run", "pass", CellChange.FIXED),
    ],
)
def test_a_cell_is_compared_with_the_same_cell_of_the_night_before(before, here, change):
    base = summary(0, families=1)
    nights = (with_state(base, unit=before), later(with_state(base, unit=here)))
    found = Truth(summaries=nights).changes
    kinds = {item.change for item in found if item.cell.suite == "unit"}
    assert kinds == ({change} - {CellChange.SAME})


def test_a_cell_that_passed_and_that_nothing_expects_any_more_is_absent():
    before = summary(1)
    left = next(cell for cell in before.cells if cell.kind == "gate" and cell.state is State.PASS)
    before = replace(before, cells=(*before.cells, replace(left, python="3.9", excused=True)))
    told = Truth(summaries=(before, summary(2)))
    (row,) = [item for item in told.changes if item.cell.python == "3.9"]
    assert row.change is CellChange.ABSENT
    assert (row.cell.colour, row.cell.log, row.cell.link) == ("bad", "", "")
    assert row.cell.reason.startswith(f"was in the night {before.night}; ")


def test_images_are_listed_with_their_family_and_change_each_by_itself():
    base = with_state(summary(0, families=2))
    before = with_images(base, runtime="pass", devel="fail")
    here = later(with_images(base, runtime="fail", devel="pass"))
    text = page.render([before, here], now=FIRST, title="x", root="../").decode()
    first, second = (text.index(f'id="family-{item.family}"') for item in base.families)
    assert text.count("Runtime images") == 1
    assert text.index("Runtime images") > min(first, second)
    assert "why runtime" in text
    assert "<code>here.io:5000/rocm/jax:rocm7.10.0-jax0.9.1-py3.12-devel</code>" in text
    assert text.count("docker pull") == 1
    assert f"<pre>docker pull here.io:5000/rocm/jax@{DIGEST}</pre>" in text
    family = base.families[0].family
    found = {item.cell.name: item.change for item in Truth(summaries=(before, here)).changes}
    assert found[f"image.jax.{family}.3.12.runtime"] is CellChange.NEW
    assert found[f"image.jax.{family}.3.12.devel"] is CellChange.FIXED


def test_new_failures_come_first():
    base = summary(0, families=1)
    nights = [
        with_state(base, unit="fail", e2e="pass"),
        later(with_state(base, unit="fail", e2e="fail")),
    ]
    text = page.render(nights, now=FIRST, title="x", root="../").decode()
    assert text.index("new failure") < text.index("still failing")


@pytest.mark.parametrize(
    ("control", "asked"),
    [
        ("", ["unit.py::test_a"]),
        ("new", ["unit.py::test_a"]),
        ("not looked at: nothing is released", ["unit.py::test_a"]),
        ("also in the released set", []),
        ("the machine: HSA_STATUS_ERROR_OUT_OF_RESOURCES", []),
    ],
)
def test_what_a_control_run_does_not_call_new_is_not_bisected(control, asked):
    base = with_state(summary(0, families=1, pythons=("3.12",)))
    (unit,) = [cell for cell in base.cells if cell.suite == "unit"]
    bad = replace(unit, state=State.FAIL, cause=CauseClass.TESTS, reason="it")
    night = later(replace(base, cells=tuple(bad if c is unit else c for c in base.cells)))
    worst = WorstTest(test="unit.py::test_a", outcome=Outcome.FAILED, control=control)
    ended = SimpleNamespace(worst=worst, cause=CauseClass.TESTS)
    book = SimpleNamespace(attempts={unit.name: [SimpleNamespace(ended=ended)]})
    found = Truth(summaries=(base, night)).new_failures(book)
    assert [item.test for item in found] == asked


def test_two_sets_of_one_family_have_a_row_each():
    base = summary(0, families=1, pythons=("3.12",))
    (unit,) = [cell for cell in base.cells if cell.suite == "unit"]
    other = replace(
        unit, name=f"{unit.name}.main", wheels="jax-main", state=State.FAIL, reason="of main"
    )
    good = replace(unit, state=State.PASS, reason="")
    cells = (*(cell for cell in base.cells if cell is not unit), good, other)
    two = later(replace(base, cells=cells))
    text = page.render([base, two], now=FIRST, title="x", root="../").decode()
    table = text[text.index('id="trend"') :]
    for name in (unit.wheels, "jax-main"):
        assert f'<th scope="row">unit <span class="note">{name}</span></th>' in table
    assert 'href="#cause-1"' in table
    alone = render(families=1)
    assert '<th scope="row">unit</th>' in alone


def test_a_build_for_several_families_that_fails_is_red_for_each_of_them():
    made = of_one_set(summary(3, families=4))
    build = CellSummary(name="build.x", kind="build", wheels="jax", state=State.FAIL, reason="why")
    failed = replace(made, cells=(*made.cells, build))
    for name in (family.family for family in made.families):
        assert build in failed.of_family(name)
    text = page.render([failed], now=FIRST, title="x", root="../").decode()
    cards = text[text.index('<ul class="families">') : text.index('<h2 id="trend"')]
    (number,) = re.findall(
        r'id="cause-(\d+)">\s*<p class="reason"><span class="chip">fail</span> why', text
    )
    assert cards.count(f'href="#cause-{number}"') == 4


def test_gpus_that_were_held_but_not_testing_are_waste_with_a_name():
    base = summary(0, families=1, pythons=("3.12",))
    cells = tuple(
        replace(c, milliseconds=3_600_000, testing=600_000) if c.suite == "e2e" else c
        for c in base.cells
    )
    text = page.render([replace(base, cells=cells)], now=FIRST, title="x", root="../").decode()
    row = text[text.index('id="gpus"') :].split("<tr>")[2].partition("</tr>")[0]
    assert re.search(r"<td>gate\.\S+\.3\.12\.e2e <span class=\"note\">50 min 0 s</span>", row)


def test_impact_says_who_has_it_and_what_the_others_keep():
    made = of_one_set(summary(3, families=3))
    assert made.impact == "2 of 3 families released; gfx1151 keeps JAX 0.9.1 of 3 January"
    assert made.short.endswith(" red · 2 of 3 families released · 4 January")
    cell = made.cells[1]
    failed = replace(cell, state=State.FAIL, reason=f"{cell.name}: build.x left no manifest")
    assert replace(made, cells=(failed,)).verdict == "1 red", "what it names is itself"


def test_what_a_build_is_made_from_is_told_as_ranges_with_links():
    old = replace(
        red_morning()[0].recipes[0], rocm_version="7.13.0", rocm_sha256="a" * 64,
        tool="0.2.0 " + "a" * 40, tool_repository="https://github.com/me/rocwheel",
    )  # fmt: skip
    new = replace(
        old, rocm_version="7.14.0", jax_commit="c" * 40, tool="0.2.0 " + "b" * 40 + " " + "d" * 64,
    )  # fmt: skip
    links = {what: link for what, _, link in bisect.ranges(new, old)}
    assert links == {
        "JAX": f"https://github.com/jax-ml/jax/compare/{'a' * 40}...{'c' * 40}",
        "ROCm": "https://github.com/ROCm/TheRock/compare/therock-7.13...therock-7.14",
        "rocwheel": f"https://github.com/me/rocwheel/compare/{'a' * 40}...{'b' * 40}",
    }
    installed = replace(new, tool="0.3.0")  # no checkout, so no commit
    assert {link for _, _, link in bisect.ranges(installed, new)} == {""}


def test_a_dropped_cell_is_called_on_the_page_what_status_calls_it():
    made = summary(3)
    why = "dropped by me: known"
    dropped = replace(made.cells[0], phase=Phase.BARRED, state=State.NOT_RUN, reason=why)
    night = replace(made, cells=(dropped, *made.cells[1:]))
    text = page.render([night], now=FIRST, title="x", root="../").decode()
    assert dropped.word == "barred"
    assert re.search(r">barred<", text)
    assert "not-run" not in text
