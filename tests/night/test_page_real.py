"""The page of the nights in a real browser: by keyboard, on a phone, in the dark, without scripts."""

from __future__ import annotations

import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from support.browser import browser
from support.states import FIRST, summary, with_images

from rocwheel.night import page as night_page

pytestmark = [
    pytest.mark.integration,
    pytest.mark.needs("chromium", "chromedriver"),
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
]
NIGHTS = 30


@pytest.fixture(scope="module")
def window():
    with browser() as found:
        yield found


def written(folder: Path, *, age: timedelta = timedelta(hours=1)) -> str:
    """The page of thirty nights, the newest of which is so old by the clock of who reads it."""
    shift = datetime.now(tz=timezone.utc) - age - FIRST - timedelta(days=NIGHTS - 1)
    found = [summary(number, shift=shift) for number in range(NIGHTS)]
    found[-1] = with_images(found[-1], runtime="pass", devel="fail")
    page = folder / "index.html"
    now = datetime.now(tz=timezone.utc)
    page.write_bytes(night_page.render(found, now=now, title="nightly wheels", root="../"))
    return page.as_uri()


@pytest.fixture
def shown(window, tmp_path):
    window.open(written(tmp_path))
    yield window
    assert window.log() == [], "the console stays silent"


def picture(window, name: str) -> None:
    """For people: `NIGHT_PICTURES=DIR` keeps what the tests saw."""
    if folder := os.environ.get("NIGHT_PICTURES"):
        window.screenshot(Path(folder) / f"{name}.png")


def visible(window, selector: str) -> list[str]:
    """Texts of what is on the screen, or would be further down."""
    found = f"[...document.querySelectorAll({selector!r})].filter(e => e.checkVisibility())"
    return list(window.run(f"return {found}.map(e => e.innerText.trim())"))


def test_families_come_first_each_with_its_set_and_what_blocks(shown):
    picture(shown, "desktop")
    shown.run("document.querySelector('#trend').scrollIntoView()")
    picture(shown, "desktop-cells")
    cards = shown.texts(".families > li")
    assert len(cards) == 16
    assert all("Released: JAX 0.9.1" in card for card in cards)
    assert all("unit on 3.12: fail" in card for card in cards)


def test_the_filter_leaves_rows_with_all_words(shown):
    shown.write("#filter", "gfx90a unit")
    assert visible(shown, "section.family h3") == ["gfx90a"]
    assert visible(shown, "section.family tbody th") == ["unit"]
    first = visible(shown, "section.family tbody td")[0].splitlines()
    assert first[1].startswith("since "), "a line of its own"


def test_it_says_its_age_and_a_night_that_is_too_old_is_said_by_the_readers_clock(window, tmp_path):
    window.open(written(tmp_path))
    assert window.texts("time.night") == ["60 min ago"]
    assert visible(window, ".stale") == []
    window.open(written(tmp_path, age=timedelta(hours=40)))
    assert window.texts("time.night") == ["40 h ago"]
    assert "No newer night for more than 36 hours" in visible(window, ".stale")[0]


def test_a_keyboard_reaches_families_tables_and_install_lines(shown):
    assert shown.press("Tab") == "to the families"
    shown.press("Enter")
    assert shown.run("return location.hash") == "#families"
    seen = [shown.press("Tab") for _ in range(140)]
    assert "gfx94X-dcgpu" in seen
    assert "filter" in seen
    assert any(text.startswith("install JAX") for text in seen)
    at = next(number for number, text in enumerate(seen) if text.startswith("install"))
    shown.run("document.querySelector('.families summary').focus()")
    shown.press("Enter")
    assert shown.run("return document.querySelector('.families details').open"), at


def test_on_a_phone_nothing_is_wider_than_the_screen(shown):
    shown.size(390, 844)
    picture(shown, "phone")
    assert shown.run("return document.documentElement.scrollWidth") <= 390
    reasons = "[...document.querySelectorAll('section.family td .reason')].map(e => e.offsetWidth)"
    assert min(shown.run(f"return {reasons}")) >= 190, "whole words stand on a line"
    shown.run("document.querySelector('#trend').scrollIntoView()")
    picture(shown, "phone-cells")
    # all is green, and there are few nights
    shown.run("document.querySelectorAll('td .reason, td svg').forEach(e => e.remove())")
    dates = "[...document.querySelectorAll('section.family td .note')].map(e => e.offsetHeight)"
    assert max(shown.run(f"return {dates}")) < 30, "one line each"
    shown.devtools("Emulation.clearDeviceMetricsOverride")


def test_in_the_dark_text_and_states_can_be_told_from_the_paper(shown):
    light = shown.run("return getComputedStyle(document.body).backgroundColor")
    feature = {"name": "prefers-color-scheme", "value": "dark"}
    shown.devtools("Emulation.setEmulatedMedia", features=[feature])
    picture(shown, "dark")
    shown.run("document.querySelector('#trend').scrollIntoView()")
    picture(shown, "dark-cells")
    dark = shown.run("return getComputedStyle(document.body).backgroundColor")
    shown.devtools("Emulation.setEmulatedMedia", features=[])
    assert light == "rgb(255, 255, 255)"
    assert dark == "rgb(13, 17, 23)"


def test_without_scripts_every_cell_age_and_install_line_is_there(window, tmp_path):
    window.devtools("Emulation.setScriptExecutionDisabled", value=True)
    try:
        window.open(written(tmp_path))
        picture(window, "no-script")
        page = (tmp_path / "index.html").read_text()
    finally:
        window.devtools("Emulation.setScriptExecutionDisabled", value=False)
    # what the browser shows is what is written: scripts fill nothing in
    window.run("document.querySelectorAll('script').forEach(e => e.remove())")
    assert window.run("return document.querySelector('#filter').hidden"), "it could do nothing"
    cells = [text for text in window.texts("section.family tbody td") if text]
    newest = summary(NIGHTS - 1)
    assert len(cells) >= len([cell for cell in newest.cells if cell.suite])
    assert window.texts("time.night")[0].endswith("Z")
    assert page.count("uv pip install --no-deps") == 16
    assert page.count("docker pull") == 1
