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
from rocwheel.records.places import Place
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
    layout: {layout}
"""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "store").mkdir()
    return open_store(f"file://{tmp_path}/store")


def channel(tmp_path: Path, layout: str, more: str = "") -> channels.Channel:
    path = tmp_path / "channels.yaml"
    path.write_text(YAML.format(store=f"file://{tmp_path}/store", layout=layout) + more)
    return channels.channel(path, "try")


def has(place: Place, manifest: Manifest) -> None:
    headers = place.record_headers
    place.store.create(place.manifest(manifest.sha256), manifest.to_bytes(), headers=headers)


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


def test_what_is_a_familys_own_lies_in_its_folder_below_all(tmp_path: Path, store: Store) -> None:
    staging, _ = channel(tmp_path, "both").pair(store, SET, X)
    assert staging.key("a.whl") == "v2-staging/all/a.whl"
    assert staging.log(1) == "v2-staging/all/_rocwheel/log/1.json"
    assert staging.verdict(HEX, "3.12", "smoke", "d") == (
        f"v2-staging/all/_rocwheel/verdicts/{HEX}/{X}/3.12/smoke/d.json"
    )
    assert staging.attestation(HEX, "bundle.jsonl").endswith(f"{HEX}/{X}/bundle.jsonl")
    assert staging.of(ALL).attestation(HEX, "bundle.jsonl").endswith(f"{HEX}/bundle.jsonl")


@pytest.mark.parametrize(
    ("layout", "index"), [("both", f"v2/{X}"), ("shared", "v2/all"), ("family", f"v2/{X}")]
)
def test_pages_of_a_family_lie_where_its_users_look(
    tmp_path: Path, store: Store, layout: str, index: str
) -> None:
    release = channel(tmp_path, layout).release(store, X, 7)
    assert release.index == index
    assert release.url.endswith(f"/{index}/")
    assert release.json("") == f"{index}/index.json"
    assert release.views("p", folder_keys=True) == (f"{index}/p/", f"{index}/p/index.html")
    assert release.root == ("v2/all" if layout != "family" else index)


def test_a_set_stays_in_the_log_that_has_it(tmp_path: Path, store: Store) -> None:
    before, after = channel(tmp_path, "family"), channel(tmp_path, "both")
    old, new = example(), replace(example(), jax_version="0.12.0")
    has(before.staging(store, X, 7), old)
    assert after.pair(store, old, X)[1].root == f"v2/{X}"
    assert after.pair(store, new, X)[1].root == "v2/all"
    assert [release.root for _, release in after.pairs(store, X)] == ["v2/all", f"v2/{X}"]
    assert [release.root for _, release in after.pairs(store, ALL)] == ["v2/all"]


def test_a_set_of_several_families_needs_a_layout_with_all(tmp_path: Path, store: Store) -> None:
    has(channel(tmp_path, "both").staging(store, ALL, 7), SET)
    with pytest.raises(ConfigError, match=f"layout: family has no place .* is for {X}, {Y}"):
        channel(tmp_path, "family").pair(store, SET)
    with pytest.raises(ConfigError, match=f"gfx90a: the set is for {X}, {Y}"):
        channel(tmp_path, "both").pair(store, SET, "gfx90a")


def test_without_a_channel_the_set_says_where_it_lies(tmp_path: Path, store: Store) -> None:
    bare = channels.of_store(f"file://{tmp_path}/store")
    assert bare.pair(store, example(), X)[0].root == f"v2-staging/{X}"
    staging, release = bare.pair(store, SET, X)
    assert (staging.root, release.index) == ("v2-staging/all", f"v2/{X}")
    assert len(bare.pairs(store, X)) == 1
    store.create(staging.log(1), b"{}", headers=staging.record_headers)
    assert [item.root for item, _ in bare.pairs(store, X)] == ["v2-staging/all", f"v2-staging/{X}"]


def test_families_that_must_are_read(tmp_path: Path) -> None:
    assert channel(tmp_path, "both", f"    must: [{Y}, {X}]\n").must == (X, Y)


@pytest.mark.parametrize(
    ("layout", "more", "message"),
    [
        ("each", "", r"channels\.yaml:6:\d+: channels\.try\.layout: unknown value 'each'"),
        ("by set", "", r"channels\.yaml:6:\d+: channels\.try\.layout: unknown value 'by set'"),
        (
            "both",
            "    must: [gfx94X]\n",
            r"yaml:7:\d+: channels\.try\.must\[0\]: 'gfx94X': no such",
        ),
        ("both", f"    must: [{X}, {X}]\n", rf"yaml:7:\d+: channels\.try\.must\[1\]: {X} is given"),
        ("family", f"    must: [{X}]\n", r"yaml:7:\d+: channels\.try\.must: only an index of all"),
    ],
)
def test_a_layout_that_cannot_be_names_its_place(
    tmp_path: Path, layout: str, more: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        channel(tmp_path, layout, more)
