"""`compat` says what the data and the index say, and "not known" where nobody ran anything."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest
from support import wheelset
from support.wheelset import FAMILY, Shop

import amdgpu_family_matrix as matrix
from rocwheel import cli, compat


def ask(capsys, *words):
    assert cli.main(["compat", *words]) == 0
    return capsys.readouterr().out


def test_without_a_channel_nothing_is_said_to_be_released(capsys):
    document = json.loads(ask(capsys, "--json"))
    (row,) = document["Released"]
    assert set(row.values()) == {"not known"}
    newest = document["JAX releases that can be built"][0]
    assert newest["ROCm"].startswith(("<", ">"))  # "!=8.*" says less than where it begins
    assert sum("(default)" in row["JAX"] for row in document["JAX releases that can be built"]) == 1
    assert [row["family"] for row in document["GPUs"]] == list(matrix.FAMILIES)


def test_a_release_is_exercised_where_its_verdicts_pass(tmp_path, console, capsys):
    shop = Shop((tmp_path / "store").as_uri(), console)
    shop.released(tmp_path / "set")
    words = ("--json", f"--store={shop.store.url}", f"--family={FAMILY.name}")
    rows = json.loads(ask(capsys, *words))["Released"]
    assert rows
    assert {row["family"] for row in rows} == {FAMILY.name}
    assert {row["exercised"] for row in rows} == {"smoke, unit"}
    for path in (tmp_path / "store").rglob("verdicts/*/*/unit/*.json"):
        path.unlink()
    rows = json.loads(ask(capsys, *words))["Released"]
    assert {row["exercised"] for row in rows} == {"smoke"}


@pytest.mark.parametrize("form", ["text", "md", "html", "rst"])
def test_every_form_has_every_cell(capsys, form):
    text = ask(capsys, f"--format={form}", "--family=gfx94X-dcgpu")
    for cell in ("JAX releases that can be built", "gfx942", "MI300X", "not known"):
        assert cell in text, cell


@pytest.mark.parametrize("form", ["text", "md", "html", "rst"])
def test_where_nothing_is_released_the_table_says_so(tmp_path, console, capsys, form):
    shop = Shop((tmp_path / "store").as_uri(), console)
    wheelset.make_set(tmp_path / "set")
    shop.stage(tmp_path / "set")
    asked = (f"--store={shop.store.url}", f"--family={FAMILY.name}")
    released = ask(capsys, f"--format={form}", *asked).partition("Released")[2]
    assert released.count("none") == len(compat.RELEASED)
    assert json.loads(ask(capsys, "--json", *asked))["Released"] == []


def test_text_cannot_become_markup():
    table = compat.Table(title="<b>", header=("a|b",), rows=(("<i>|",),))
    html = "\n".join(table.html())
    assert "<b>" not in html
    assert "<i>" not in html
    ET.fromstring(f"<body>{html}</body>")
    assert "| <i>\\| |" in list(table.md())


def test_a_page_beside_the_index_says_what_is_released_and_the_index_leads_to_it(
    tmp_path, console, capsys
):
    shop = Shop((tmp_path / "store").as_uri(), console)
    manifest = shop.released(tmp_path / "set")
    (folder,) = (path.parent for path in (tmp_path / "store" / "v2").glob("*/index.html"))
    where = (
        f"--store={shop.store.url}",
        f"--family={FAMILY.name}",
        f"--manifest={manifest.sha256}",
    )
    assert "action='compat.html'" in (folder / "index.html").read_text()
    assert cli.main(["yank", *where, "--reason=x", "--dry-run"]) == 0
    assert not (folder / "compat.html").exists()
    assert cli.main(["yank", *where, "--reason=x"]) == 0
    page = (folder / "compat.html").read_text()
    assert "<td>smoke, unit</td>" in page
    assert cli.main(["rollback", *where, "--reason=x"]) == 0
    assert "smoke, unit" not in (folder / "compat.html").read_text()
    staging = next((tmp_path / "store" / "v2-staging").glob("*/index.html"))
    assert "compat" not in staging.read_text()
