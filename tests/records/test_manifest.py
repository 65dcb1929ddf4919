"""A manifest is its bytes: canonical, validated, and refused when edited."""

from __future__ import annotations

import json

import pytest

from rocwheel.base.errors import ConfigError
from rocwheel.base.git import Source
from rocwheel.base.values import canonical_json, replace
from rocwheel.records.manifest import Manifest, RocmDelivery, RocmSource, WheelEntry

COMMIT = "0" * 39 + "a"


def example() -> Manifest:
    source = Source(repository="https://example.com/jax.git", commit=COMMIT)
    return Manifest(
        jax_version="0.11.0",
        rocm=RocmSource(
            version="7.10.0a20251120",
            header_version="7.10.0",
            sha256="1" * 64,
            origin="tarball",
            name="therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz",
            delivery=RocmDelivery(url="https://rocm.example/rocm.tar.gz", size=9),
        ),
        tool=source,
        jax=source,
        xla=source,
        builder_image="",
        bazel_version="7.7.0",
        gfx_targets=("gfx942",),
        pythons=("3.12",),
        options={"compiler": "clang", "bazel_options": ("--copt=-g0",)},
        wheels=(
            WheelEntry(
                kind="pjrt",
                filename="jax_rocm7_pjrt-0.11.0-py3-none-manylinux_2_27_x86_64.whl",
                project="jax-rocm7-pjrt",
                version="0.11.0",
                tags=("py3-none-manylinux_2_27_x86_64",),
                python="",
                size=1,
                sha256="2" * 64,
                gfx_targets=("gfx942",),
            ),
        ),
    )


def test_a_manifest_survives_a_round_trip_with_its_identity(tmp_path):
    manifest = example()
    (tmp_path / "manifest.json").write_bytes(manifest.to_bytes())
    again = Manifest.load(tmp_path)
    assert again == manifest
    assert again.sha256 == manifest.sha256
    assert Manifest.load(tmp_path / "manifest.json") == manifest


def test_identity_follows_every_wheel_byte():
    manifest = example()
    other = replace(manifest.wheels[0], sha256="3" * 64)
    assert replace(manifest, wheels=(other,)).sha256 != manifest.sha256


def test_canonical_json_has_no_floats_and_one_order():
    assert canonical_json({"b": 1, "a": "é"}) == '{\n  "a": "é",\n  "b": 1\n}\n'.encode()
    with pytest.raises(TypeError, match="floats"):
        canonical_json({"a": [{"b": 0.5}]})


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda d: d.update(schema=4), "schema"),
        (lambda d: d.update(schema=1), "document"),
        (lambda d: d["rocm"].pop("delivery"), "document"),
        (lambda d: d["rocm"]["delivery"].update(etag='"e"'), "rocm.delivery"),
        (lambda d: d.update(wheels=[]), "wheels"),
        (lambda d: d.update(extra=1), "document"),
        (lambda d: d["wheels"][0].update(sha256="x"), r"wheels\[0\].sha256"),
        (lambda d: d["wheels"][0].update(filename="../a.whl"), r"wheels\[0\].filename"),
        (lambda d: d["jax"].update(commit="main"), "jax.commit"),
    ],
)
def test_a_manifest_that_breaks_the_schema_is_refused_with_the_place(change, where):
    document = json.loads(example().to_bytes())
    change(document)
    with pytest.raises(ConfigError, match=rf"^m\.json: {where}: "):
        Manifest.from_bytes(canonical_json(document), name="m.json")


def test_a_manifest_of_the_first_schema_is_read_and_keeps_its_identity():
    document = json.loads(example().to_bytes())
    document["schema"] = 1
    del document["rocm"]["delivery"]
    data = canonical_json(document)
    manifest = Manifest.from_bytes(data, name="m.json")
    assert manifest.to_bytes() == data
    assert manifest.rocm.url == ""


def test_a_manifest_says_where_its_rocm_can_be_fetched_again():
    assert example().rocm.url == "https://rocm.example/rocm.tar.gz"
    assert json.loads(example().to_bytes())["rocm"]["delivery"]["size"] == 9


def test_an_edited_manifest_has_no_second_identity():
    data = example().to_bytes().replace(b"\n  ", b"\n ", 1)
    with pytest.raises(ConfigError, match="canonical"):
        Manifest.from_bytes(data, name="m.json")


def test_garbage_is_no_manifest(tmp_path):
    with pytest.raises(ConfigError, match="not JSON"):
        Manifest.from_bytes(b"\x00", name="m.json")
    with pytest.raises(ConfigError, match="No such file"):
        Manifest.load(tmp_path / "nowhere")
