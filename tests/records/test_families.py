"""Families of a team's own: read strictly, and only ever into a folder."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
from support.wheelset import FAMILY

from amdgpu_family_matrix import Bypass
from rocwheel.base.choices import ALL
from rocwheel.base.errors import ConfigError
from rocwheel.base.store.opening import open_store
from rocwheel.base.values import replace
from rocwheel.cli import main
from rocwheel.records import families
from rocwheel.records.manifest import Manifest
from rocwheel.records.places import OWN
from rocwheel.release.index import channels
from tests.records.test_manifest import example

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


# Where sets of several families lie, and which place of a channel has a set.


X, Y = "gfx110X-all", "gfx94X-dcgpu"
SET = replace(example(), families=(X, Y))
HEX = "f" * 64
YAML = """\
channels:
  try:
    store: {store}
    prefixes:
      "7": {{staging: v2-staging, release: v2}}
"""


@pytest.fixture
def store(tmp_path):
    (tmp_path / "store").mkdir()
    return open_store(f"file://{tmp_path}/store")


def channel(tmp_path: Path, more: str = "") -> channels.Channel:
    path = tmp_path / "channels.yaml"
    path.write_text(YAML.format(store=f"file://{tmp_path}/store") + more)
    return channels.channel(path, "try")


def test_a_set_without_families_keeps_its_bytes_and_its_digest():
    manifest = example()
    assert b"families" not in manifest.to_bytes()
    assert b'"schema": 3' in manifest.to_bytes()
    assert manifest.sha256 == "b1e4787b0072cd289156d5ab92ecb6ef74f75b53633d418f03a33e54674bcb53"
    assert Manifest.from_bytes(SET.to_bytes(), name="m").families == (X, Y)


@pytest.mark.parametrize(("one", "other"), [(X, "gfx950-all"), (Y, X)])
def test_a_set_names_each_family_once_and_sorted(one, other):
    data = SET.to_bytes().replace(one.encode(), other.encode())
    with pytest.raises(ConfigError, match="each family once, sorted"):
        Manifest.from_bytes(data, name="m")


def test_one_prefix_has_one_log_and_each_family_what_is_its_own(tmp_path, store):
    staging, release = channel(tmp_path).pair(store, SET, X)
    assert staging.log(1) == "v2-staging/_rocwheel/log/1.json"
    assert staging.wheel("a.whl", HEX) == "v2-staging/files/ffffffffffffffff/a.whl"
    assert staging.verdict(HEX, "3.12", "smoke", "d") == (
        f"v2-staging/_rocwheel/verdicts/{HEX}/{X}/3.12/smoke/d.json"
    )
    assert staging.attestation(HEX, "bundle.jsonl").endswith(f"{HEX}/{X}/bundle.jsonl")
    assert staging.built(HEX, "provenance/d.json").endswith(f"{HEX}/provenance/d.json")
    assert release.url.endswith(f"/v2/{X}/")
    assert release.json("") == f"v2/{X}/index.json"
    assert release.views("p", folder_keys=True) == (f"v2/{X}/p/", f"v2/{X}/p/index.html")


def test_records_of_a_set_of_before_0_3_stay_in_its_home(tmp_path, store):
    staging, _ = channel(tmp_path).pair(store, SET, X)
    own, shared = staging.at(OWN), staging.at(ALL)
    assert own.wheel("a.whl", HEX) == f"v2-staging/{X}/a.whl"
    assert own.verdicts(HEX) == f"v2-staging/{X}/_rocwheel/verdicts/{HEX}/"
    assert shared.wheel("a.whl", HEX) == "v2-staging/all/a.whl"
    assert shared.verdicts(HEX) == f"v2-staging/all/_rocwheel/verdicts/{HEX}/{X}/"
    assert own.log(1) == shared.log(1) == "v2-staging/_rocwheel/log/1.json"


def test_a_set_is_for_its_families_alone(tmp_path, store):
    with pytest.raises(ConfigError, match=f"gfx90a: the set is for {X}, {Y}"):
        channel(tmp_path).pair(store, SET, "gfx90a")
    with pytest.raises(ConfigError, match="is a set of one family"):
        channel(tmp_path).pair(store, example())
    assert channel(tmp_path).pair(store, example(), X)[0].index == f"v2-staging/{X}"


def test_families_that_must_are_read(tmp_path):
    assert channel(tmp_path, f"    must: [{Y}, {X}]\n").must == (X, Y)
