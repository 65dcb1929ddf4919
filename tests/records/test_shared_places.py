"""Where sets of several families lie, and which place of a channel has a set."""

from __future__ import annotations

from pathlib import Path

import pytest

from rocwheel.base.choices import ALL
from rocwheel.base.errors import ConfigError
from rocwheel.base.store import Store
from rocwheel.base.store.opening import open_store
from rocwheel.base.values import replace
from rocwheel.records.manifest import Manifest
from rocwheel.records.places import OWN
from rocwheel.release.index import channels
from tests.records.test_manifest import example

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
def store(tmp_path: Path) -> Store:
    (tmp_path / "store").mkdir()
    return open_store(f"file://{tmp_path}/store")


def channel(tmp_path: Path, more: str = "") -> channels.Channel:
    path = tmp_path / "channels.yaml"
    path.write_text(YAML.format(store=f"file://{tmp_path}/store") + more)
    return channels.channel(path, "try")


def test_a_set_without_families_keeps_its_bytes_and_its_digest() -> None:
    manifest = example()
    assert b"families" not in manifest.to_bytes()
    assert b'"schema": 3' in manifest.to_bytes()
    assert manifest.sha256 == "b1e4787b0072cd289156d5ab92ecb6ef74f75b53633d418f03a33e54674bcb53"
    assert Manifest.from_bytes(SET.to_bytes(), name="m").families == (X, Y)


@pytest.mark.parametrize(("one", "other"), [(X, "gfx950-all"), (Y, X)])
def test_a_set_names_each_family_once_and_sorted(one: str, other: str) -> None:
    data = SET.to_bytes().replace(one.encode(), other.encode())
    with pytest.raises(ConfigError, match="each family once, sorted"):
        Manifest.from_bytes(data, name="m")


def test_one_prefix_has_one_log_and_each_family_what_is_its_own(tmp_path, store: Store) -> None:
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


def test_records_of_a_set_of_before_0_3_stay_in_its_home(tmp_path: Path, store: Store) -> None:
    staging, _ = channel(tmp_path).pair(store, SET, X)
    own, shared = staging.at(OWN), staging.at(ALL)
    assert own.wheel("a.whl", HEX) == f"v2-staging/{X}/a.whl"
    assert own.verdicts(HEX) == f"v2-staging/{X}/_rocwheel/verdicts/{HEX}/"
    assert shared.wheel("a.whl", HEX) == "v2-staging/all/a.whl"
    assert shared.verdicts(HEX) == f"v2-staging/all/_rocwheel/verdicts/{HEX}/{X}/"
    assert own.log(1) == shared.log(1) == "v2-staging/_rocwheel/log/1.json"


def test_a_set_is_for_its_families_alone(tmp_path: Path, store: Store) -> None:
    with pytest.raises(ConfigError, match=f"gfx90a: the set is for {X}, {Y}"):
        channel(tmp_path).pair(store, SET, "gfx90a")
    with pytest.raises(ConfigError, match="is of one family"):
        channel(tmp_path).pair(store, example())
    assert channel(tmp_path).pair(store, example(), X)[0].index == f"v2-staging/{X}"


def test_families_that_must_are_read(tmp_path: Path) -> None:
    assert channel(tmp_path, f"    must: [{Y}, {X}]\n").must == (X, Y)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("    layout: both\n", r"yaml:6:\d+: channels\.try\.layout: unknown key"),
        ("    must: [gfx94X]\n", r"yaml:6:\d+: channels\.try\.must\[0\]: 'gfx94X': no such"),
        (f"    must: [{X}, {X}]\n", rf"yaml:6:\d+: channels\.try\.must\[1\]: {X} is given"),
    ],
)
def test_a_mistake_in_a_channel_names_its_place(tmp_path: Path, more: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        channel(tmp_path, more)
