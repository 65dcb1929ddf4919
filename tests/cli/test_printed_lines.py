"""Every line that README, pages and templates print to install a set is one that `Install` makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import install_lines
from support.install_lines import BY_PIP, BY_TARBALL, SET

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "install-the-wheels.md"


def joined(text):
    return re.sub(r"\s+", " ", text.replace("\\\n", " "))


@pytest.mark.parametrize("page", [ROOT / "README.md", PAGE], ids=lambda path: path.name)
def test_the_lines_of_a_page_are_those_of_the_value(page):
    text = joined(page.read_text(encoding="utf-8"))
    assert all(line in text for line in SET.pip)


def test_the_page_has_the_lines_of_every_client():
    text = joined(PAGE.read_text(encoding="utf-8"))
    texts = (*SET.poetry, SET.pixi.strip(), SET.requirements.replace("sha256:…", "sha256:…"))
    assert all(joined(item).strip() in text for item in texts)


def test_the_page_of_installers_has_every_line_with_what_comes_of_it():
    lines = install_lines.of(BY_TARBALL) | install_lines.of(BY_PIP)
    assert lines.keys() == {*install_lines.RUN, *install_lines.ROCM, *install_lines.COMPARED}
    page = (ROOT / "docs/reference/clients.md").read_text()
    table = page.partition("<!-- lines -->\n")[2].partition("<!-- end of lines -->")[0]
    assert table.splitlines()[2:] == list(install_lines.rows(BY_TARBALL, BY_PIP))
