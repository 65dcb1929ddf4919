from __future__ import annotations

from pathlib import Path

import pytest

import amdgpu_family_matrix as matrix
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import replace
from rocwheel.base.versions import WheelKind
from rocwheel.release.index import channels
from rocwheel.release.index.channels import Prefixes

SHIPPED = Path(__file__).parents[3] / channels.FILE

GOOD = """\
channels:
  nightly:
    store: s3://bucket
    prefixes:
      "7": {staging: v2-staging, release: v2}
"""


def load(tmp_path: Path, text: str) -> dict[str, channels.Channel]:
    path = tmp_path / "channels.yaml"
    path.write_text(text)
    return channels.load(path)


def test_the_shipped_channels_are_what_the_index_documents() -> None:
    found = channels.load(SHIPPED)
    assert {name: (item.store, item.public_url) for name, item in found.items()} == {
        "dev": ("s3://therock-dev-python", "https://rocm.devreleases.amd.com"),
        "nightly": ("s3://therock-nightly-python", "https://rocm.nightlies.amd.com"),
        "prerelease": ("s3://therock-prerelease-python", "https://rocm.prereleases.amd.com"),
    }
    for channel in found.values():
        assert channel.prefixes[7] == Prefixes(staging="v2-staging", release="v2")
        assert channel.options.region == "us-east-2"


def test_places_have_the_public_url_of_their_channel() -> None:
    channel = channels.channel(SHIPPED, "nightly")
    ((_, place),) = channel.pairs(channel.open(), "gfx94X-dcgpu", 7)
    assert place.url == "https://rocm.nightlies.amd.com/v2/gfx94X-dcgpu/"
    assert place.location == "s3://therock-nightly-python/v2"
    assert place.served(place.key("files/a+b!c.whl")).endswith("/v2/files/a%2Bb%21c.whl")


def test_a_channel_without_a_prefix_for_a_rocm_major_refuses_it() -> None:
    channel = channels.channel(SHIPPED, "nightly")
    assert channel.prefixes_of(10).release != channel.prefixes_of(7).release
    with pytest.raises(ConfigError, match="no prefix for ROCm 11"):
        channel.prefixes_of(11)


def test_an_unknown_channel_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="nightlies") as caught:
        channels.channel(SHIPPED, "nightlies")
    assert "nightly" in caught.value.hint


def test_a_channel_tightens_the_matrix_and_keeps_what_it_does_not_name(tmp_path: Path) -> None:
    text = GOOD + "    policy:\n      - {suite: e2e, level: required, pythons: ['3.12']}\n"
    channel = load(tmp_path, text)["nightly"]
    family = matrix.family("gfx90a")
    assert channel.levels(family, "3.12") == {
        "smoke": matrix.Level.REQUIRED,
        "unit": matrix.Level.REQUIRED,
        "e2e": matrix.Level.REQUIRED,
    }
    assert channel.levels(family, "3.13")["e2e"] is matrix.Level.ADVISORY


def test_an_advisory_rule_of_a_channel_never_weakens_a_required_one(tmp_path: Path) -> None:
    text = GOOD + "    policy:\n      - {suite: long, level: advisory}\n"
    (tmp_path / "suites").mkdir()
    (tmp_path / "suites" / "long.yaml").touch()
    channel = load(tmp_path, text)["nightly"]
    assert channel.levels(matrix.family("gfx90a"), "3.12")["long"] is matrix.Level.ADVISORY
    assert channel.levels(matrix.family("gfx90a"), "3.12")["smoke"] is matrix.Level.REQUIRED


def test_sizes_and_days_are_read(tmp_path: Path) -> None:
    text = GOOD + (
        "    endpoint: https://s3.example.org/\n"
        "    size_budget_mib: {pjrt: 2}\n"
        "    retention: {staging_days: 3, release_days: null, keep_newest: 1, pinned: ['"
        + "a" * 64
        + "']}\n"
    )
    channel = load(tmp_path, text)["nightly"]
    assert channel.options.endpoint == "https://s3.example.org"
    assert channel.size_budget == {WheelKind.PJRT: 2 << 20}
    assert (channel.retention.staging_days, channel.retention.release_days) == (3, None)
    assert channel.retention.pinned == ("a" * 64,)


def test_a_channel_may_have_its_nights_build_in_a_container(tmp_path: Path) -> None:
    channel = load(tmp_path, GOOD + "    build: {executor: podman, image: 'a/b:1'}\n")["nightly"]
    assert (channel.executor, channel.builder_image) == ("podman", "a/b:1")
    assert load(tmp_path, GOOD)["nightly"].executor == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("    build: {executor: runc, image: x}\n", "unknown value 'runc'"),
        ("    build: {executor: docker}\n", "'image' is missing"),
        ("    colour: red\n", r"channels\.yaml:6:\d+: channels\.nightly\.colour: unknown key"),
        ("    policy:\n      - {suite: smoke, level: advisory}\n", "requires smoke; a channel may only tighten"),
        ("    policy:\n      - {suite: smoke, level: strict}\n", "unknown value 'strict'"),
        ("    retention: {staging_days: 0}\n", "staging_days: expected a whole number >= 1"),
        ("    policy: [{suite: smok, level: required}]\n", "unknown value 'smok'"),
        ("    policy: [{suite: e2e, level: required, pythons: ['3.21']}]\n", "unknown Python version"),
        ("    policy: [{suite: e2e, level: required, pythons: 3.12}]\n", "pythons: expected text or a whole number, found float"),
        ("    retention: {pinned: [latest]}\n", "'latest' is not 64 hexadecimal digits"),
        ("    writers: one\n", r"channels\.nightly\.writers: unknown key"),
        ("    public_url: nowhere\n", "public_url: 'nowhere' is not a URL"),
        ("    cache_control: {pages: x}\n", "'wheels' is missing"),
        ("    size_budget_mib: {plugins: 1}\n", "plugins: unknown value"),
    ],
)  # fmt: skip
def test_a_key_that_cannot_be_right_is_named_with_its_line(
    tmp_path: Path, change: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, GOOD + change)


@pytest.mark.parametrize(
    ("prefixes", "message"),
    [
        ("{}", "no prefix"),
        ('{"7": {staging: v2, release: v2}}', "used twice"),
        ("{seven: {staging: a, release: b}}", "seven: expected a whole number"),
        ('{"7": {staging: /a, release: b}}', "not a prefix"),
        ('{"7": {staging: a}}', "'release' is missing"),
    ],
)
def test_a_prefix_has_one_purpose_and_a_usable_name(
    tmp_path: Path, prefixes: str, message: str
) -> None:
    text = f"channels:\n  x:\n    store: s3://b\n    prefixes: {prefixes}\n"
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text)


@pytest.mark.parametrize(
    ("prefix", "is_shared"),
    [("v2", True), ("v2/gfx90a/deeper", True), ("v2x", False), ("v3", False)],
)
def test_channels_share_keys_where_one_lies_within_the_other(prefix: str, is_shared: bool) -> None:
    """The rules of both hold there; staging lies elsewhere."""
    one = channels.of_store("s3://bucket")
    prefixes = {channels.ANY_MAJOR: Prefixes(staging="elsewhere", release=prefix)}
    other = replace(one, prefixes=prefixes)
    assert one.shares(other) is other.shares(one) is is_shared
