"""The family matrix is data that contradicts itself nowhere, and a program of its own."""

from __future__ import annotations

import ast
import dataclasses
import datetime as dt
import json
import re
import sys
from pathlib import Path

import pytest

import amdgpu_family_matrix as matrix
from amdgpu_family_matrix import NEEDS, Bypass, Family, Level, Need, Rule, RunnerPool, Trigger
from rocwheel.base import versions

FILE = Path(matrix.__file__)


def test_no_family_starts_with_a_bypass():
    assert not [f.name for f in matrix.FAMILIES.values() if f.bypass_tests_for_releases]


def test_a_trigger_includes_the_ones_before_it():
    names = [{f.name for f in matrix.families(trigger)} for trigger in Trigger]
    assert names[0] < names[1] < names[2] == set(matrix.FAMILIES)
    assert "gfx90a" in names[1] - names[0]


def test_it_imports_the_standard_library_only():
    tree = ast.parse(FILE.read_text())
    imported = {
        (node.module if isinstance(node, ast.ImportFrom) else alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert imported <= sys.stdlib_module_names


def test_the_program_prints_json_and_a_table(capsys):
    assert matrix.main(["--trigger", "presubmit", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == [
        "gfx94X-dcgpu", "gfx110X-all", "gfx1151", "gfx120X-all",
    ]  # fmt: skip
    assert rows[0]["policy"][0] == {"suite": "smoke", "level": "required", "pythons": []}
    assert rows[0]["trigger"] == "presubmit"
    assert matrix.main(["--family", "gfx90c"]) == 0
    assert "no runner" in capsys.readouterr().out


def test_an_unknown_family_names_the_nearest(capsys):
    with pytest.raises(SystemExit) as caught:
        matrix.main(["--family", "gfx94x-dcgpu"])
    assert caught.value.code == 2
    assert "did you mean gfx94X-dcgpu?" in capsys.readouterr().err


def test_a_rule_for_one_python_beats_the_general_one():
    family = dataclasses.replace(
        matrix.family("gfx90a"),
        policy=(Rule("unit", Level.REQUIRED), Rule("unit", Level.ADVISORY, ("3.14",))),
    )
    assert family.level("unit", "3.12") is Level.REQUIRED
    assert family.level("unit", "3.14") is Level.ADVISORY
    assert family.level("nothing", "3.12") is None
    assert family.suites == ("unit",)


def test_multi_gpu_needs_its_own_runner():
    assert matrix.family("gfx90a").runners_for("smoke")
    assert not matrix.family("gfx90a").runners_for("multi_gpu")
    assert matrix.family("gfx94X-dcgpu").level("multi_gpu", "3.12") is Level.REQUIRED
    (runner,) = matrix.family("gfx94X-dcgpu").runners_for("multi_gpu")
    assert runner.gpus == 8


def test_what_a_suite_needs_agrees_with_the_suite():
    from rocwheel.gate.suite import suites

    for suite in suites.load_all(FILE.parent / "ci"):
        need = next((need for need in matrix.NEEDS if need.suite == suite.name), None)
        if need:
            assert need.gpus == min(suite.gpus), suite.name


def test_the_choice_of_a_runner_follows_from_night_and_cell_and_keeps_the_weights():
    pool = matrix.family("gfx94X-dcgpu").runners_for("unit")
    keys = [f"2026-05-01/cell{number}" for number in range(3300)]
    chosen = [matrix.choose(pool, key).label for key in keys]
    assert chosen == [matrix.choose(pool, key).label for key in keys]
    share = chosen.count(pool[0].label) / len(chosen)
    assert abs(share - 5 / 33) < 0.03


def test_the_gate_matrix_stays_below_githubs_limit_and_cuts_the_longest_suites_first(capsys):
    arguments = ["--trigger", "nightly", "--matrix", "gate", "--pythons", "3.11,3.12,3.13,3.14"]
    assert matrix.main([*arguments, "--night", "2026-05-01"]) == 0
    rows = json.loads(capsys.readouterr().out)["include"]
    assert 200 < len(rows) <= 256
    assert len({row["cell"] for row in rows}) == len(rows)
    assert {row["runner"] for row in rows if row["suite"] == "multi_gpu"} == {
        "linux-gfx942-8gpu-ossci-rocm", "linux-gfx950-8gpu-ccs-ossci-rocm",
    }  # fmt: skip
    parts = [row for row in rows if row["suite"] == "unit" and row["family"] == "gfx1150"]
    counts = {row["shard"].partition("/")[2] for row in parts}
    assert all(int(count) < 16 for count in counts)
    assert matrix.main(["--matrix", "build", "--family", "gfx90a"]) == 0
    assert json.loads(capsys.readouterr().out)["include"][0]["gfx_targets"] == "gfx90a"


def test_more_cells_than_jobs_is_an_error_not_a_shorter_list(capsys):
    pythons = ",".join(f"3.{minor}" for minor in range(10, 30))
    with pytest.raises(SystemExit):
        matrix.main(["--matrix", "gate", "--pythons", pythons])
    assert "more than 256" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("name", lambda: Family("94X", ("gfx942",), Trigger.NIGHTLY)),
        ("targets", lambda: Family("gfx94X", (), Trigger.NIGHTLY)),
        ("targets", lambda: Family("gfx94X", ("gfx942", "gfx942"), Trigger.NIGHTLY)),
        ("targets", lambda: Family("gfx94X", ("sm_90",), Trigger.NIGHTLY)),
        ("policy", lambda: Family("gfx94X", ("gfx942",), Trigger.NIGHTLY, policy=())),
        (
            "policy",
            lambda: Family(
                "gfx94X",
                ("gfx942",),
                Trigger.NIGHTLY,
                policy=(Rule("a", Level.REQUIRED), Rule("a", Level.ADVISORY)),
            ),
        ),
        (
            "needs",
            lambda: Family(
                "gfx94X", ("gfx942",), Trigger.NIGHTLY, policy=(Rule("a", Level.REQUIRED),)
            ),
        ),
        ("needs", lambda: Family("gfx94X", ("gfx942",), Trigger.NIGHTLY, needs=NEEDS * 2)),
        ("platform", lambda: Family("gfx94X", ("gfx942",), Trigger.NIGHTLY, platform="windows")),
        (
            "runners",
            lambda: Family(
                "gfx94X", ("gfx942",), Trigger.NIGHTLY, runners=(RunnerPool("a"), RunnerPool("a"))
            ),
        ),
        ("label", lambda: RunnerPool("no blanks")),
        ("weight", lambda: RunnerPool("a", 0)),
        ("gpus", lambda: RunnerPool("a", gpus=-1)),
        ("partition", lambda: RunnerPool("a", partition="a,b")),
        ("gres", lambda: RunnerPool("a", gres="gpu:mi300x:4")),
        ("gpus", lambda: Need("a", gpus=-1)),
        ("shards", lambda: Need("a", shards=0)),
        ("bypass", lambda: Bypass("", "why", dt.date(2026, 1, 1))),
        ("bypass", lambda: Bypass("who", " ", dt.date(2026, 1, 1))),
    ],
)
def test_a_contradiction_is_refused_where_it_is_written_with_its_field(field, make):
    with pytest.raises(ValueError, match=field):
        make()


def test_a_rule_may_name_every_cpython_that_rocwheel_knows():
    assert matrix.CPYTHONS == versions.CPYTHONS


def test_two_families_cannot_share_a_name_or_a_target():
    one = Family("gfx942", ("gfx942",), Trigger.NIGHTLY)
    with pytest.raises(ValueError, match="twice"):
        matrix._by_name([one, one])
    with pytest.raises(ValueError, match="gfx942"):
        matrix._by_name([one, Family("gfx94X", ("gfx942",), Trigger.NIGHTLY)])


@pytest.mark.parametrize(
    ("product", "family"),
    [
        ("mi300x", "gfx94X-dcgpu"),
        ("MI 355X", "gfx950-dcgpu"),
        ("rx-7900-xtx", "gfx110X-all"),
        ("7900xtx", "gfx110X-all"),
        ("strix halo", "gfx1151"),
        ("MI25", "gfx900"),  # and not MI250, of which it is a part
        ("mi250", "gfx90a"),
        ("MI50", "gfx906"),
        ("MI100", "gfx908"),
        ("MI325X", "gfx94X-dcgpu"),
        ("RX 7800 XT", "gfx110X-all"),
        ("W7900", "gfx110X-all"),
        ("AMD Radeon 780M", "gfx110X-all"),
        ("AMD Instinct MI250X", "gfx90a"),
        ("MI308X", "gfx94X-dcgpu"),
        ("Radeon 8060S Graphics", "gfx1151"),
        ("890M", "gfx1150"),
        ("V620", "gfx103X-all"),
        ("RX6800XT", "gfx103X-all"),
        ("RX 6800", "gfx103X-all"),
        ("Radeon VII", "gfx906"),
        ("R9700", "gfx120X-all"),
        ("strix", "gfx1150 or gfx1151"),  # Point and Halo
    ],
)
def test_a_product_leads_to_its_family(product, family):
    with pytest.raises(KeyError, match=f"a product, not a family; did you mean {family}"):
        matrix.family(product)


@pytest.mark.parametrize("name", ["mi3", "xtx", "nothing"])
def test_a_piece_of_a_product_is_none(name):
    with pytest.raises(KeyError, match="unknown GPU family"):
        matrix.family(name)


def test_a_name_for_several_targets_suggests_each_family_of_them():
    close = "gfx900 or gfx906 or gfx908 or gfx90a or gfx90c"
    assert sorted(
        re.findall(r"gfx\w+", matrix.nearest("gfx90X-dcgpu", matrix.FAMILIES))
    ) == close.split(" or ")


@pytest.mark.parametrize("target", ["gfx906", "gfx900", "gfx942"])
def test_a_target_with_features_leads_to_its_family(target):
    with pytest.raises(KeyError, match=rf"did you mean {matrix.of_target(target)}\?"):
        matrix.family(f"{target}:sramecc+:xnack-")


def test_an_old_name_of_a_family_leads_to_its_new_one():
    with pytest.raises(KeyError, match="the old name of a GPU family; did you mean gfx110X-all"):
        matrix.family("gfx110x-dgpu")


def test_every_product_is_of_one_gfx_target_of_a_family():
    for target, products in matrix.PRODUCTS.items():
        assert matrix.of_target(target)
        assert all(matrix.of_product(f"AMD {name}") == [target] for name in products)
