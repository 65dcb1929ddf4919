"""`compat` says what the data and the index say, and "not known" where nobody ran anything."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from support import wheelset
from support.wheelset import FAMILY

import amdgpu_family_matrix as matrix
from rocwheel import cli
from rocwheel.gate.verdict import storing
from rocwheel.night import image_record as record
from rocwheel.records.results import Outcome, Results, TestResult
from rocwheel.tools import compat

pytestmark = pytest.mark.integration

NEVER = {"jax_triton": "a project of its own"}
NM = "jax.experimental.sparse.NM"
PAGE = Path(__file__).parents[1] / "data" / "jax_compatibility.csv"


def ask(capsys, *words):
    assert cli.main(["compat", *words]) == 0
    return capsys.readouterr().out


def test_without_a_channel_nothing_is_said_to_be_released(capsys):
    assert cli.main(["compat", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "to see what is released, add --channel or --store" in err
    document = json.loads(out)
    (row,) = document["Released"]
    assert set(row.values()) == {"not known"}
    releases = document["JAX releases that can be built, for any GPU"]
    assert releases[0]["ROCm"].startswith(("<", ">"))  # "!=8.*" says less than where it begins
    assert sum("(default)" in row["JAX"] for row in releases) == 1
    assert [row["family"] for row in document["GPUs"]] == list(matrix.FAMILIES)


def test_a_release_is_exercised_where_its_verdicts_pass(tmp_path, shop, capsys):
    shop.released(tmp_path / "set")
    words = ("--json", f"--store={shop.store.url}", f"--family={FAMILY.name}")
    rows = json.loads(ask(capsys, *words))["Released"]
    assert rows
    assert {row["family"] for row in rows} == {FAMILY.name}
    assert {row["exercised"] for row in rows} == {"smoke, unit"}
    for path in (tmp_path / "store").rglob("verdicts/*/*/*/unit/*.json"):
        path.unlink()
    rows = json.loads(ask(capsys, *words))["Released"]
    assert {row["exercised"] for row in rows} == {"smoke"}


@pytest.mark.parametrize("form", ["text", "md", "html"])
def test_every_form_has_every_cell(capsys, form):
    text = ask(capsys, f"--format={form}", "--family=gfx94X-dcgpu")
    for cell in ("JAX releases that can be built, for any GPU", "gfx942", "MI300X", "not known"):
        assert cell in text, cell


@pytest.mark.parametrize("form", ["text", "md", "html"])
def test_where_nothing_is_released_the_table_says_so(tmp_path, shop, capsys, form):
    wheelset.make_set(tmp_path / "set")
    shop.stage(tmp_path / "set")
    asked = (f"--store={shop.store.url}", f"--family={FAMILY.name}")
    shown = ask(capsys, f"--format={form}", *asked).partition("Released")[2]
    assert shown.partition("Runtime images")[0].count("none") == len(compat.HEADERS["Released"])
    assert json.loads(ask(capsys, "--json", *asked))["Released"] == []


def test_a_page_beside_the_index_says_what_is_released_and_the_index_leads_to_it(
    tmp_path, shop, capsys
):
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
    assert "unverified" not in page, "users are offered what somebody has tried"
    assert "--link:" in page, "it has the colours of its siblings"
    assert cli.main(["rollback", *where, "--reason=x"]) == 0
    assert "smoke, unit" not in (folder / "compat.html").read_text()
    staging = next((tmp_path / "store" / "v2-staging").glob("*/index.html"))
    assert "compat" not in staging.read_text()


def smoke(jax, *, seen):
    """What the suite finds on a GPU, test by test, for each name of AMD's page."""
    tests = []
    with PAGE.open(encoding="utf-8") as file:
        rows = [(row["section"], row["name"]) for row in csv.DictReader(file)]
    for section, name in rows:
        outcome, reason = Outcome.PASSED, NEVER.get(name, "")
        libraries = ()
        if section == "module":
            test = f"test_modules.py::test_import[{name}]"
            reason = "gone" if name == NM and jax >= "0.9.2" else reason
        elif section == "unsupported":
            test = f"test_unsupported.py::test_feature[{name}]"
            reason = f"{name}: not on ROCm"
        else:
            test = f"test_libraries.py::test_function[{section}-{name.replace(' ', '_')}-float32]"
            libraries = (section,)
        if reason:
            outcome = Outcome.XFAILED if section == "unsupported" else Outcome.SKIPPED
        tests.append(TestResult(
            test=test, outcome=outcome, reason=reason, libraries=libraries,
            evidence=libraries if section == seen else (),
        ))  # fmt: skip
    return Results(suite="smoke", shard="", files=(), suite_files=(), tests=tuple(tests))


def released(shop, wheelhouse, *, results, **options):
    manifest = wheelset.make_set(wheelhouse, pythons=("3.12",), **options)
    shop.stage(wheelhouse)
    verdict = wheelset.make_verdict(manifest, suite="smoke", python="3.12")
    storing.put(shop.staging, verdict, {"results.json": results.to_bytes()})
    wheelset.pass_gate(shop.staging, manifest, suites=("unit",))
    shop.promote(manifest)
    return manifest


def test_the_tables_of_the_page_are_made_of_what_is_released_and_was_tried(tmp_path, shop, capsys):
    """Newer JAX with older ROCm is released first: each has its own oldest."""
    newer, older = smoke("0.9.2", seen="hipBLAS"), smoke("0.9.1", seen="MIOpen")
    released(shop, tmp_path / "one", results=newer, jax="0.9.2", rocm="7.10.0")
    manifest = released(shop, tmp_path / "two", results=older, jax="0.9.1", rocm="7.11.0")
    asked = (f"--store={shop.store.url}", f"--family={FAMILY.name}")
    tables = json.loads(ask(capsys, "--json", *asked))
    assert set(compat.HEADERS) <= set(tables)

    modules = {row["module"]: row for row in tables["JAX modules"]}
    with PAGE.open(encoding="utf-8") as file:
        page = [(row["section"], row["name"]) for row in csv.DictReader(file)]
    assert set(modules) == {name for section, name in page if section == "module"}
    assert modules["jax.numpy"] == {
        "module": "jax.numpy", "since JAX": "0.9.1", "since ROCm": "7.10.0", "remark": "",
    }  # fmt: skip
    assert modules[NM]["since JAX"] == "0.9.1"
    assert modules[NM]["since ROCm"] == "7.11.0", "not with the other JAX"
    assert modules["jax_triton"]["since JAX"] == "not known"
    assert modules["jax_triton"]["remark"] == "a project of its own"

    used = {(row["library"], row["used in"]): row for row in tables["ROCm libraries"]}
    assert {(library, name.replace(" ", "_")) for library, name in page
            if library not in ("module", "unsupported")} == set(used)  # fmt: skip
    assert {library for (library, _), row in used.items() if row["remark"] == "its library was seen at work"} == {
        "hipBLAS", "MIOpen",
    }  # fmt: skip
    assert {row["since JAX"] for row in tables["JAX features"]} == {"not known"}
    assert all("not on ROCm" in row["remark"] for row in tables["JAX features"])

    assert tables["Runtime images"] == []
    record.put(shop.release, image_of(manifest, "here.io/rocm/jax:one"))
    record.put(shop.release, image_of(manifest, "here.io/rocm/jax:two", released=False))
    (image,) = json.loads(ask(capsys, "--json", *asked))["Runtime images"]
    assert image == {
        "image": f"here.io/rocm/jax:one@sha256:{'1' * 64}", "JAX": "0.9.1", "ROCm": "7.11.0",
        "Linux": "ubuntu:24.04", "CPython": "3.12",
    }  # fmt: skip


def image_of(manifest, reference, *, released=True):
    digest = f"sha256:{'1' * 64}"
    return record.ImageRecord(
        reference=reference, digest=digest, config=digest, inputs="1" * 64,
        manifest=manifest.sha256, released=released, recipe="jax", profile="runtime", python="3.12",
        base=f"ubuntu:24.04@{digest}", base_config=digest, rocm="7.11.0", rocm_sha256="",
        layers={}, blobs=(), packages={}, verdicts=(), time="2026-05-01T00:00:00Z", by="me",
        tool="x",
    )  # fmt: skip


def test_what_the_suite_found_and_cannot_be_read_is_not_known(tmp_path, shop, capsys):
    released(shop, tmp_path / "set", results=smoke("0.9.1", seen=""))
    asked = ("--json", f"--store={shop.store.url}", f"--family={FAMILY.name}")
    assert len(json.loads(ask(capsys, *asked))["JAX modules"]) > 80
    for path in (tmp_path / "store").rglob("results.json"):
        path.write_text("{")
    tables = json.loads(ask(capsys, *asked))
    for title in ("JAX modules", "JAX features", "ROCm libraries"):
        (row,) = tables[title]
        assert set(row.values()) == {"not known"}
    assert tables["Released"][0]["exercised"] == "smoke, unit"
