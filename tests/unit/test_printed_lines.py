"""Every line that README, pages and templates print to install a set is one that `Install` makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rocwheel.install import Install, Package

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "how-to" / "install-the-wheels.md"
SET = Install(
    index="https://rocm.nightlies.amd.com/v2/gfx94X-dcgpu/",
    ours=tuple(
        Package(project=name, version="0.11.0+rocm7.10.0", hashes=("…",))
        for name in ("jax-rocm7-pjrt", "jax-rocm7-plugin")
    ),
    upstream=(Package(project="jaxlib", version="0.11.0"),),
    jax="0.11.0",
)


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


def test_no_page_prints_another_line_that_installs_a_wheel_of_ours():
    """Any `pip install` or `uv pip install` with a name of ours stands in the value, too."""
    known = {*SET.pip, *SET.uv}
    looked = 0
    for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")):
        for line in re.findall(
            r"(?:uv )?pip install [^\n`|]*", page.read_text().replace("\\\n", " ")
        ):
            if re.search(r"jax-rocm\d|jax_rocm\d", line):
                assert joined(line).strip() in known, page
                looked += 1
    assert looked >= 2
