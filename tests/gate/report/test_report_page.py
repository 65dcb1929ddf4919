"""The page in a real browser: sort, filter, open a failure; on a phone as well."""

from __future__ import annotations

import pytest
from support.browser import browser
from support.report import FOUND, rich

from rocwheel.gate.report import gate_page

pytestmark = [
    pytest.mark.integration,
    pytest.mark.needs("chromium", "chromedriver"),
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
]


@pytest.fixture(scope="module")
def window():
    with browser() as found:
        yield found


@pytest.fixture
def shown(window, tmp_path):
    path = tmp_path / "report.html"
    path.write_bytes(gate_page.render(rich(passing=500), FOUND, {"rocThrust": "header-only"}))
    window.open(path.as_uri())
    yield window
    assert window.log() == [], "the console stays silent"
    assert window.run("return window.broken") is None


def rows(window):
    return window.texts("#table tbody > tr:not(.detail) > td:first-child")


def test_the_worst_comes_first_and_the_rest_on_demand(shown):
    assert rows(shown)[:3] == [
        "test_b.py::test_crash",
        "test_b.py::test_hang",
        "test_b.py::Case::test_bad[a::b]",
    ]
    assert len(rows(shown)) == 200
    assert shown.texts("#shown") == ["506 of 506"]
    shown.click("#more")
    assert len(rows(shown)) == 400


def test_columns_sort_both_ways(shown):
    shown.click("#table button[data-key=ms]")
    shown.click("#table button[data-key=ms]")
    assert rows(shown)[0] == "test_b.py::test_hang"
    assert shown.run("return document.querySelectorAll('[aria-sort=descending]').length") == 1
    shown.click("#table button[data-key=test]")
    assert rows(shown)[0] == "test_a.py::test_0000"


def test_what_did_not_run_has_no_time(shown):
    cells = "#table tbody > tr:not(.detail) > td:nth-child(3)"
    times = dict(zip(rows(shown), shown.texts(cells), strict=True))
    assert times["test_b.py::test_hang"] == "0.20 s"
    assert times["test_b.py::test_never"] == times["test_b.py::test_skip"] == ""


def test_filters_narrow_by_name_outcome_and_library(shown):
    shown.write("#search", "FLAKY")
    assert rows(shown) == ["test_b.py::test_flaky"]
    shown.run("document.querySelector('#search').value = ''")
    shown.run(
        "const s = document.querySelector('#library'); s.value = 'hipFFT';"
        "s.dispatchEvent(new Event('input'))"
    )
    assert len(rows(shown)) == 3
    shown.run(
        "const s = document.querySelector('#outcome'); s.value = 'failed';"
        "s.dispatchEvent(new Event('input'))"
    )
    assert rows(shown) == []
    assert shown.texts("#shown") == ["0 of 506"]


def test_a_failure_opens_with_every_attempt(shown):
    shown.write("#search", "test_bad")
    shown.click("#table tbody details summary")
    (detail,) = shown.wait("#table tr.detail", 1)
    assert "the traceback" in detail
    assert "window.broken = true" in detail, "printed markup is text"
    assert "gpu1" in detail
    shown.click("#table tbody details summary")
    shown.wait("#table tr.detail", 0)


def test_the_first_failure_is_seen_without_scrolling_far(shown):
    top = shown.run("return document.querySelector('#first').getBoundingClientRect().top")
    assert top < 900


def test_nothing_overflows_on_a_phone(shown):
    shown.size(360, 740)
    assert shown.run("return document.documentElement.scrollWidth") <= 360
    assert shown.run("return getComputedStyle(document.body).fontSize") == "16px"
    assert rows(shown)
