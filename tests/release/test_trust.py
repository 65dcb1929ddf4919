"""Whoever may write to staging may put anything there: nothing of it is released, and it stops nobody."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile

import pytest
from support.wheelset import (
    FAMILY,
    WHO,
    make_set,
    make_verdict,
    pass_gate,
    ran,
    wheel_key,
)

from rocwheel.base import store
from rocwheel.base.errors import PromotionError, RocwheelError, StoreError, WheelError
from rocwheel.base.values import replace
from rocwheel.cli import main
from rocwheel.release import audit, operations, wheelset
from rocwheel.release.index.page import links
from rocwheel.release.ledger import verdicts

pytestmark = pytest.mark.integration

PLUGIN = "jax-rocm7-plugin"


def staged(shop, tmp_path, **options):
    return shop.gated(tmp_path / "wh", pythons=("3.12",), **options)


def overwrite(shop, key: str, body: bytes) -> None:
    """With the rights of a builder, behind rocwheel's back."""
    path = shop.store.root / key
    path.write_bytes(body)


def test_metadata_is_read_out_of_the_wheel(shop, tmp_path) -> None:
    """A `.metadata` with another requirement, and its digest in every staging record."""
    manifest = staged(shop, tmp_path)
    name = next(w.filename for w in manifest.built if w.kind == "plugin")
    data, _ = shop.store.read(f"{wheel_key(shop.staging, name)}.metadata")
    overwrite(shop, f"{wheel_key(shop.staging, name)}.metadata", data + b"Requires-Dist: evil\n")
    (entry,) = shop.entries(shop.staging)
    files = [
        replace(file, metadata_sha256="e" * 64, requires_python=">=2", yanked="x")
        for file in entry.brings[0].files
    ]
    forged = replace(entry, brings=(replace(entry.brings[0], files=tuple(files)),))
    overwrite(shop, shop.staging.log(1), forged.to_bytes())
    shop.store.delete(shop.staging.state)
    shop.promote(manifest)
    released, _ = shop.store.read(f"{wheel_key(shop.release, name)}.metadata")
    assert released == data
    (shown,) = shop.shown(shop.release, PLUGIN)
    assert (shown.requires_python, shown.yanked, shown.version) == (
        ">=3.10",
        None,
        manifest.built[0].version,
    )
    assert audit.check(shop.release).problems == ()


@pytest.mark.parametrize("padding", [0, 1 << 20])
@pytest.mark.parametrize("members", [1, 6000])
def test_metadata_is_found_by_ranges_wherever_it_lies(shop, tmp_path, padding, members) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("x-1.dist-info/METADATA", "Name: x\nVersion: 1\n")
        for number in range(members):
            archive.writestr(f"x/{'long' * 20}{number}", b"")
        archive.writestr("x/data", b"\0" * padding)
    shop.store.create("v2/gfx90a/x.whl", made.getvalue(), headers=shop.release.wheel_headers)
    info = shop.store.info("v2/gfx90a/x.whl")
    assert wheelset.staged_metadata(shop.release, info) == b"Name: x\nVersion: 1\n"


@pytest.mark.parametrize("body", [b"", b"x" * 100, b"PK\x05\x06" + b"\xff" * 18])
def test_a_staged_object_that_is_no_wheel_is_told(shop, body) -> None:
    shop.store.create("v2/gfx90a/x.whl", body, headers=shop.release.wheel_headers)
    with pytest.raises(WheelError, match=r"x\.whl"):
        wheelset.staged_metadata(shop.release, shop.store.info("v2/gfx90a/x.whl"))


@pytest.mark.parametrize(
    "change",
    [
        {"project": "numpy"},
        {"filename": "numpy-1-cp312-cp312-manylinux_2_27_x86_64.whl"},
        {"version": "9"},
        {"tags": ("py3-none-any",)},
        {"kind": "pjrt"},
    ],
)
def test_file_name_metadata_and_manifest_say_the_same_or_nothing_is_listed(
    tmp_path, change
) -> None:
    manifest = make_set(tmp_path, pythons=("3.12",))
    jaxlib = manifest.built[0]
    metadata = {w.filename: wheelset.read_metadata(tmp_path / w.filename) for w in manifest.built}
    forged = replace(jaxlib, **change)
    metadata[forged.filename] = metadata[jaxlib.filename]
    wrong = replace(manifest, wheels=(forged, *manifest.wheels[1:]))
    with pytest.raises(RocwheelError):
        wheelset.check_closed(wrong, metadata)


@pytest.mark.parametrize("garbage", [b"", b"{", b"[]", b'{"format": "x"}', b"\xff" * 100])
def test_garbage_in_staging_stops_no_other_set(shop, tmp_path, garbage: bytes) -> None:
    manifest = staged(shop, tmp_path)
    headers = shop.staging.record_headers
    shop.store.create(shop.staging.log(2), garbage, headers=headers)
    shop.store.create(shop.staging.manifest("0" * 64), b"x", headers=headers)
    shop.store.create(
        shop.staging.verdict("0" * 64, "3.12", "unit", "1" * 64), b"x", headers=headers
    )
    shop.store.create(shop.staging.key("what is this"), b"x", headers=headers)
    found = shop.status()
    assert any("log/2.json" in text for text in found.problems)
    overwrite(shop, shop.staging.state, b"[]")
    other = shop.gated(tmp_path / "other", jax="0.9.2", pythons=("3.12",))
    for item in (manifest, other):
        shop.promote(item)
    found = shop.status()
    assert {item.state for item in found.sets} == {"released"}
    assert any("log/2.json" in text for text in audit.check(shop.staging).problems)


def edited(document, path, value):
    """A JSON document with one value in it changed."""
    if not path:
        return value
    changed = document.copy()
    changed[path[0]] = edited(document[path[0]], path[1:], value)
    return changed


def spelt(document) -> bytes:
    """As a record is, floats too."""
    return (json.dumps(document, sort_keys=True, ensure_ascii=False, indent=2) + "\n").encode()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("time",), "yesterday"),
        (("time",), "2026-02-31T00:00:00Z"),
        (("sets",), ["../../elsewhere"]),
        (("evidence",), {"chance": 1.5}),
        (("brings", 0, "set"), "../../elsewhere"),
        (("brings", 0, "files", 0, "sha256"), "x"),
        (("brings", 0, "files", 0, "metadata_sha256"), "x"),
        (("brings", 0, "files", 0, "size"), -1),
        (("brings", 0, "files", 0, "version"), "not a version"),
        (("brings", 0, "files", 0, "version"), "9"),
        (("format",), 2),
    ],
)
def test_an_entry_that_says_what_cannot_be_changes_nothing_and_is_told(
    shop, tmp_path, capsys, path, value
) -> None:
    """Several stopped every command: a page, an age or a key cannot be made of them."""
    staged(shop, tmp_path)
    other = shop.staged(tmp_path / "other", jax="0.9.2", pythons=("3.12",))
    document = json.loads(shop.entries(shop.staging)[1].to_bytes())
    shop.store.delete(shop.staging.state)
    if path == ("format",):  # of which a newer version's entry would be no more than this
        document = {"format": 1}
    overwrite(shop, shop.staging.log(2), spelt(edited(document, path, value)))
    family = ("--family", FAMILY.name, "--store", shop.store.url)
    assert main(["status", *family]) == 0
    assert "it changes nothing" in capsys.readouterr().err
    assert main(["prune", "--dry-run", *family]) == 0
    assert main(["stage", str(tmp_path / "other"), *family]) == 0
    assert shop.store.info(shop.staging.log(3))
    pass_gate(shop.staging, other)
    assert main(["promote", "--manifest", other.sha256, *family]) == 0
    assert main(["index", "repair", "--staging", *family]) == 0


def test_a_list_of_tests_that_is_another_is_a_failure_of_its_cell_alone(shop, tmp_path) -> None:
    manifest = shop.staged(tmp_path / "wh", pythons=("3.12",))
    pass_gate(shop.staging, manifest, suites=("unit",))
    digest = hashlib.sha256(b"a.py::one\n").hexdigest()
    verdict = make_verdict(manifest, ran=ran("smoke", manifest, collected=digest))
    verdicts.add(shop.staging, verdict)
    for body, said in ((None, "no such object"), (b"a.py::two\n", "was expected")):
        if body is not None:
            verdicts.add_tests(shop.staging, verdict, b"a.py::one\n")
            (found,) = (i for i in shop.store.keys(shop.staging.key("")) if "/tests/" in i.key)
            overwrite(shop, found.key, body)
        found = shop.status()
        assert said in found.sets[0].blocked_by
        with pytest.raises(PromotionError, match="the list of its tests"):
            shop.promote(manifest)


def test_a_manifest_that_was_overwritten_holds_up_its_set_alone(shop, tmp_path) -> None:
    manifest = staged(shop, tmp_path)
    shop.staged(tmp_path / "other", jax="0.9.2", pythons=("3.12",))
    overwrite(shop, shop.staging.manifest(manifest.sha256), b"{}")
    found = shop.status()
    by_set = {item.set_id: item for item in found.sets}
    assert "its manifest cannot be read" in by_set[manifest.sha256].blocked_by
    assert len(by_set) == 2


def test_a_huge_object_is_not_read_into_memory(shop, tmp_path, monkeypatch) -> None:
    manifest = staged(shop, tmp_path)
    monkeypatch.setattr(store, "LIMIT", 100_000)
    huge = shop.store.root / shop.staging.log(2)
    with huge.open("wb") as file:
        file.truncate(1 << 30)
    shop.promote(manifest)
    assert [link.filename for link in links(page(shop, PLUGIN))]
    found = shop.status()
    assert found.sets[0].state == "released"


def test_huge_pages_and_snapshots_are_not_read_into_memory_and_made_again(
    shop, tmp_path, monkeypatch, capsys
) -> None:
    """With the rights of a builder one could end every command that came after."""
    manifest = staged(shop, tmp_path)
    place = shop.staging
    monkeypatch.setattr(store, "LIMIT", 100_000)
    page = place.views(PLUGIN, folder_keys=False)[0]
    for key in (place.state, place.json(PLUGIN), page):
        overwrite(shop, key, shop.store.read(key)[0] + bytes(200_000))
        with pytest.raises(store.HugeError, match="more than"):
            shop.store.read(key)
    family = ("--family", FAMILY.name, "--store", shop.store.url)
    assert main(["index", "check", "--staging", *family]) == 7
    assert f"{page}: not what the log says" in capsys.readouterr().out
    make_set(tmp_path / "other", jax="0.9.2", pythons=("3.12",))
    assert main(["stage", str(tmp_path / "other"), *family]) == 0
    assert main(["index", "check", "--staging", *family]) == 0
    shop.promote(manifest)


def page(shop, project: str) -> bytes:
    return shop.store.read(f"{shop.release.index}/{project}/index.html")[0]


# Files of others


@pytest.mark.parametrize(
    ("attribute", "reason"), [('data-yanked="old"', "old"), ("data-yanked", ""), ("", None)]
)
def test_adoption_keeps_yanks_and_a_yank_without_a_reason_is_one(
    shop, tmp_path, attribute, reason
) -> None:
    place = shop.release
    old = make_set(tmp_path / "old", pythons=("3.12",))
    for wheel in old.built:
        shop.store.create(
            f"{place.index}/{wheel.filename}",
            tmp_path / "old" / wheel.filename,
            headers=place.wheel_headers,
        )
    name = old.built[0].filename
    shop.store.create(
        f"{place.index}/jaxlib/index.html", f'<a {attribute} href="../{name}">x</a>'.encode(),
        headers=place.view_headers,
    )  # fmt: skip
    operations.perform(audit.plan_adoption(place, who=WHO))
    (shown,) = shop.shown(place, "jaxlib")
    assert shown.yanked == reason
    (link,) = links(page(shop, "jaxlib"))
    assert link.yanked == reason


@pytest.mark.parametrize("where", ["folder", "file"])
def test_a_folder_in_the_way_is_told_and_nothing_is_taken_for_stored(shop, where: str) -> None:
    path = shop.store.root / "v2"
    if where == "folder":
        (path / "a.whl").mkdir(parents=True)
    else:
        shop.store.root.mkdir(parents=True)
        path.write_bytes(b"x")
    for write in (
        lambda: shop.store.create("v2/a.whl", b"a", headers=shop.release.wheel_headers),
        lambda: shop.store.replace(
            "v2/a.whl", b"a", previous=None, headers=shop.release.wheel_headers
        ),
    ):
        with pytest.raises(StoreError, match=r"a folder is there|is a file"):
            write()
