"""Every line that README, pages and templates print to install a set is one that `Install` makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support import install_lines

from rocwheel.base.values import replace
from rocwheel.records.install import Install, Package

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
BY_TARBALL = replace(
    SET, rocm="7.10.0a20251120", rocm_origin="tarball",
    rocm_url="https://example.com/therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz",
)  # fmt: skip
BY_PIP = replace(
    SET, rocm="7.15.0a20260630", rocm_origin="pip", rocm_url="https://example.com/rocm/",
    targets=("gfx942",),
)  # fmt: skip


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
    """Any `pip install` or `uv pip install` with a name of ours stands in the value, too.

    Those with an `$INDEX` are run by `e2e/test_pages.py`.
    """
    known = {*SET.pip, *SET.uv}
    looked = 0
    for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")):
        for line in re.findall(
            r"(?:uv )?pip install [^\n`|]*", page.read_text().replace("\\\n", " ")
        ):
            if re.search(r"jax-rocm\d|jax_rocm\d", line) and "$INDEX" not in line:
                assert joined(line).strip() in known, page
                looked += 1
    assert looked >= 2


def test_the_page_of_installers_has_every_line_with_what_comes_of_it():
    lines = install_lines.of(BY_TARBALL) | install_lines.of(BY_PIP)
    assert lines.keys() == {*install_lines.RUN, *install_lines.ROCM, *install_lines.COMPARED}
    page = (ROOT / "docs/reference/clients.md").read_text()
    table = page.partition("<!-- lines -->\n")[2].partition("<!-- end of lines -->")[0]
    assert table.splitlines()[2:] == list(install_lines.rows(BY_TARBALL, BY_PIP))
