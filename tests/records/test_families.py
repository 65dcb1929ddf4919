"""Families of a team's own: read strictly, and only ever into a folder."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from support.wheelset import FAMILY

import amdgpu_family_matrix as matrix
from amdgpu_family_matrix import Bypass
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import replace
from rocwheel.cli import main
from rocwheel.records import families

FILE = Path(__file__).parents[2] / "examples" / "miniature" / "families.yaml"


def test_the_miniature_says_what_a_pass_must_show():
    family = families.load(FILE)["miniature"]
    assert (family.proof.backend, family.proof.devices) == ("cpu", False)
    assert family.requires("miniature")
    assert family.need("miniature").gpus == 0


def test_runners_make_gate_cells_and_a_bypass_excuses_that_there_is_none(tmp_path):
    file = tmp_path / "families.yaml"
    text = FILE.read_text()
    assert [r.label for r in families.load(FILE)["miniature"].runners_for("miniature")]
    file.write_text(
        text.replace("    runners: [any-machine]", "    bypass: {owner: us, reason: moving, expires: 2026-05-01}")
    )  # fmt: skip
    family = families.load(file)["miniature"]
    assert family.runners_for("miniature") == ()
    assert family.bypass_tests_for_releases == Bypass("us", "moving", date(2026, 5, 1))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("backend: cpu", "backend: cuda", "unknown value 'cuda'"),
        ("devices: false", "devices: maybe", "expected `bool`"),
        ("required}", "requird}", "unknown value 'requird'"),
        ("name: miniature", "name: gfx94X", "is not a family name"),
        ("gfx90a", "mi210", "is not a gfx target"),
        ("any-machine", "'any machine'", "is not a runner label"),
    ],
)
def test_a_mistake_is_located(tmp_path, old, new, problem):
    file = tmp_path / "families.yaml"
    file.write_text(FILE.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=problem) as caught:
        families.load(file)
    assert f"{file}:" in str(caught.value)


def test_two_names_that_differ_in_case_are_one_name_given_twice(tmp_path):
    file = tmp_path / "families.yaml"
    entry = FILE.read_text().partition("families:\n")[2].replace("devices: false", "devices: true")
    both = (entry.replace("miniature\n", name) for name in ("gfx94X-own\n", "gfx94x-own\n"))
    file.write_text("families:\n" + "".join(both))
    with pytest.raises(ConfigError, match="gfx94x-own is given twice"):
        families.load(file)


@pytest.mark.parametrize("where", ["--store=s3://bucket/prefix", "--channel=nightly"])
def test_no_channel_and_no_bucket_takes_such_a_family(where, capsys):
    status = main(["status", f"--family-file={FILE}", "--family=miniature", where])
    assert status == 3
    assert "go into a store of this machine only" in capsys.readouterr().err


def test_the_matrix_is_still_asked_for_its_own(capsys, tmp_path):
    (tmp_path / "v2").mkdir()
    place = f"--store={tmp_path.as_uri()}"
    assert main(["status", f"--family-file={FILE}", f"--family={FAMILY.name}", place]) == 0
    assert main(["status", f"--family-file={FILE}", "--family=minature", place]) == 3
    assert "did you mean miniature?" in capsys.readouterr().err


def test_a_rule_of_the_matrix_for_a_cpython_that_is_none_is_an_error(monkeypatch):
    rule = matrix.Rule("unit", matrix.Level.REQUIRED, ("3.21",))
    wrong = replace(matrix.FAMILIES["gfx90a"], policy=(*matrix.ONE_GPU[:1], rule))
    monkeypatch.setattr(matrix, "family", lambda _name: wrong)
    with pytest.raises(ConfigError, match=r"gfx90a: policy: unit: '3\.21': unknown Python version"):
        families.named("gfx90a")
