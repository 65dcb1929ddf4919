"""The page of `wheel diff --html` in a browser: what is shown, on a phone, in the dark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import wheels
from support.browser import Browser, browser
from support.wheels import File, Wheel, make_bundle, make_elf, pack_bundle

from rocwheel.wheel import diff_page
from rocwheel.wheel.diff import diff

pytestmark = [pytest.mark.needs("chromium", "chromedriver"), pytest.mark.slow]

EVIL = "<script>window.broken = true</script>"
# WCAG 2.1, 1.4.3: the least contrast of a text that people read is 4.5.
LEAST_CONTRAST = """
const light = color => {
  const [r, g, b] = color.match(/[\\d.]+/g).map(n => n / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = element => {
  for (let e = element; e; e = e.parentElement) {
    const color = getComputedStyle(e).backgroundColor;
    if (!color.endsWith(', 0)')) return color;
  }
  return 'rgb(255, 255, 255)';
};
return Math.min(...[...document.querySelectorAll('h1 span, h2, p, th, td, pre span, summary')]
  .filter(e => e.innerText.trim()).map(e => {
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  }));
"""


def release(version: str, *, targets: tuple[str, ...], symbols: range, **changes) -> Wheel:
    library = make_elf(
        needed=("libamdhip64.so.7", *changes.get("needed", ())), exports=("GetPjrtApi",),
        runpath=changes.get("runpath", "/opt/rocm/lib"),
        imports=tuple(f"_ZN3xla3gpu{number}LongNameOfASymbolEv" for number in symbols),
        bundles=(pack_bundle(make_bundle(targets)),),
    )  # fmt: skip
    name = "jax_plugins/xla_rocm7/xla_rocm_plugin.so"
    made = wheels.pjrt(version=version, summary=changes.get("summary", "a plugin"))
    return made.but(files={**made.files, name: File(library, mode=0o755)})


@pytest.fixture(scope="module")
def window() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture
def shown(window: Browser, tmp_path: Path) -> Iterator[Browser]:
    """Two releases that differ in everything that a page shows."""
    first = release("0.11.0", targets=("gfx942", "gfx906"), symbols=range(50))
    second = release(
        "0.12.0", targets=("gfx942", "gfx1250"), symbols=range(20, 90), summary=EVIL,
        runpath=":".join(f"$ORIGIN/../../_rocm_sdk_libraries_{n}/lib" for n in range(79)),
        needed=("librccl.so.1",),
    )  # fmt: skip
    (tmp_path / "a").mkdir()
    paths = first.write(tmp_path / "a"), second.write(tmp_path)
    page = tmp_path / "diff.html"
    page.write_text(diff_page.page(*paths, diff(*paths)))
    window.open(page.as_uri())
    yield window
    assert window.log() == [], "the console stays silent"
    assert window.run("return window.broken") is None


def test_what_changed_is_told_by_member_and_kind(shown: Browser) -> None:
    names = (f"jax_rocm7_pjrt-{n}-py3-none-manylinux_2_28_x86_64.whl" for n in ("0.11.0", "0.12.0"))
    assert shown.texts("h1") == [" → ".join(names)]
    assert shown.texts("h2")[0] == "The wheel"
    assert "jax_plugins/xla_rocm7/xla_rocm_plugin.so" in shown.texts("h2")
    summaries = shown.texts("summary")
    assert "NEEDED: 0 gone, 1 new" in summaries
    assert "gfx target: 1 gone, 1 new" in summaries
    assert "needed symbol: 20 gone, 40 new" in summaries
    assert any(EVIL in text for text in shown.texts("pre")), "what a wheel says is text"
    assert ".dynstr" in shown.texts("td:first-child")


def test_long_lists_open_on_demand(shown: Browser) -> None:
    hidden = "return [...document.querySelectorAll('details')].filter(e => !e.open).length"
    assert shown.run(hidden) == 1
    shown.click("details:not([open]) summary")
    assert shown.run(hidden) == 0
    assert len(shown.texts("details[open] pre .new")) >= 40


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(shown: Browser, scheme: str) -> None:
    shown.scheme(scheme)
    paper = shown.run("return getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(13, 17, 23)"}[scheme]
    assert shown.run(LEAST_CONTRAST) >= 4.5


def test_nothing_overflows_on_a_phone(shown: Browser) -> None:
    shown.size(360, 740)
    assert shown.run("return document.documentElement.scrollWidth") <= 360
    assert shown.run("return getComputedStyle(document.body).fontSize") == "16px"
