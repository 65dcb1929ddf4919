"""Cells of `compat` are text in every form, whatever a family or a test result is called."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import markdown
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from rocwheel.base.console import printable
from rocwheel.tools import compat

ODD = (
    "a|b", "*x*", "x*", "`x`", "``", "_x_", "x_", "__x", "__0__", "|x|", "**", "\\", "\\|", "a\\", "- x", "-x y", "* x", "+ x",
    "1. x", "a) x", "(iv) x", "#. x", ".. note::", "..", "x::", ":x: y", ">>> x", "=====", "[1]_", "[x](y)", "<b>x</b>",
    "&amp;", "~~x~~", "a\nb", "a\n\nb", "\x1b[31m", "http://a.b/c_", "$x$", "{{ x }}", "gfx94X_dcgpu", "# x", "> x", "+---+",
)  # fmt: skip
CELLS = st.lists(st.one_of(st.sampled_from(ODD), st.text(min_size=1)), min_size=2, max_size=2)


def meant(row):
    return [" ".join(printable(cell).split()) for cell in row]


def of_html(text):
    table = ET.fromstring(text[text.index("<table>") : text.index("</table>")] + "</table>")
    rows = table.findall("tbody/tr")
    return [[" ".join("".join(cell.itertext()).split()) for cell in row] for row in rows]


READERS = {
    "html": [of_html],
    "md": [
        lambda text: of_html(MarkdownIt("gfm-like", {"linkify": False}).render(text)),
        lambda text: of_html(markdown.markdown(text, extensions=["tables"])),
    ],
}


@pytest.mark.parametrize("form", READERS)
def test_a_cell_is_what_it_says_in_every_form(form):
    @given(CELLS)
    def check(cells):
        table = compat.Table(title="GPUs", header=("family", "products"), rows=(tuple(cells),))
        text = compat.render([table], form)
        for read in READERS[form]:
            assert read(text) == [meant(cells)], text

    check()
    for odd in ODD:
        check.hypothesis.inner_test([odd, "x"])
