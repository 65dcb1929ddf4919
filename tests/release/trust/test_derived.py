"""A set that was derived from one that passed: what is asked again, and what stands for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.mutants import Draft
from support.trust import NOW, SignedShop

from rocwheel.base import files
from rocwheel.base.errors import PromotionError
from rocwheel.base.values import replace
from rocwheel.cli import main
from rocwheel.records.manifest import MANIFEST, Manifest
from rocwheel.records.verdict import State
from rocwheel.release import proof
from rocwheel.release.ledger.state import Action
from rocwheel.release.trust import TrustError
from rocwheel.wheel.zip_reader import ZipArchive


def derived(shop: SignedShop, *, name: str = "wheelhouserc1", version: str = "0.9.1") -> Path:
    out = shop.tmp / version
    words = (str(shop.tmp / name), "--version", version, "--output", str(out))
    assert main(["wheel", "reversion", *words]) == 0
    return out / "current"


def cells(shop: SignedShop, manifest: Manifest) -> dict[str, tuple[State, str, str]]:
    found = shop.plan(manifest).judged[0].decision.cells
    return {cell.suite: (cell.state, cell.parent, cell.why) for cell in found}


def test_a_final_release_rests_on_its_candidate_and_asks_smoke_again(shop, tmp_path) -> None:
    candidate = shop.ready("rc1")
    folder = derived(shop)
    manifest = Manifest.load(folder)
    shop.stage(folder)
    before = cells(shop, manifest)
    assert before["unit"] == (State.PASS, candidate.sha256, "")
    assert before["smoke"][:2] == (State.NOT_RUN, "")
    shop.add(manifest, suite="smoke")
    proof.check_built(shop.staging, manifest, shop.channel.case(shop.staging.family, NOW))
    shop.promote(manifest)
    about = shop.entry(shop.release, Action.PROMOTE).evidence["families"][shop.staging.family]
    parents = {cell["suite"]: cell["parent"] for cell in about["cells"]}
    assert (parents["smoke"], parents["unit"]) == ("", candidate.sha256)
    shop.manifest = manifest
    assert shop.verified() == "verified"


def test_a_set_derived_twice_rests_on_what_was_built(shop) -> None:
    candidate = shop.ready("rc1")
    shop.stage(derived(shop))
    folder = derived(shop, name="0.9.1/current", version="0.9.1.post1")
    manifest = Manifest.load(folder)
    shop.stage(folder)
    shop.add(manifest, suite="smoke")
    proof.check_built(shop.staging, manifest, shop.channel.case(shop.staging.family, NOW))
    assert cells(shop, manifest)["unit"][:2] == (State.PASS, candidate.sha256)
    shop.promote(manifest)
    shop.manifest = manifest
    assert shop.verified() == "verified"


def failed(shop: SignedShop, candidate: Manifest) -> None:
    shop.add(candidate, suite="unit", state=State.FAIL)


def everything(shop: SignedShop, _: Manifest) -> None:
    shop.channel = replace(shop.channel, derived="all")


def gone(shop: SignedShop, candidate: Manifest) -> None:
    shop.store.delete(shop.staging.manifest(candidate.sha256))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (failed, "no verdict"),
        (everything, "has no provenance"),
        (gone, "has no provenance; the set that it was derived from, .* is not staged"),
    ],
)
def test_a_parent_that_does_not_count_stands_for_nothing(change, why: str, shop) -> None:
    candidate = shop.ready("rc1")
    folder = derived(shop)
    manifest = Manifest.load(folder)
    shop.stage(folder)
    shop.add(manifest, suite="smoke")
    change(shop, candidate)
    with pytest.raises((TrustError, PromotionError), match=why):
        shop.promote(manifest)


@pytest.mark.parametrize(
    ("member", "content"),
    [
        ("/__init__.py", b"print('other')\n"),
        ("/version.py", b"_release_version = '0.9.1'\n1/0\n"),
        (
            "/METADATA",
            b"Metadata-Version: 2.4\nName: jax-rocm7-pjrt\nVersion: 0.9.1\nRequires-Dist: evil\n",
        ),
    ],
)
def test_other_content_under_a_derived_manifest_rests_on_nothing(
    member: str, content: bytes, shop, tmp_path
) -> None:
    """Anyone who may stage can write any manifest, and any text that a new version rewrites."""
    shop.ready("rc1")
    folder = derived(shop)
    own = Manifest.load(folder)
    path = next(folder.glob("*pjrt*.whl"))
    with ZipArchive(path) as archive:
        draft = Draft(archive)
        draft.put(member, content)
        made = draft.write(tmp_path)
    other = {"sha256": files.sha256(made), "size": made.stat().st_size}
    lie = replace(
        own, wheels=tuple(replace(w, **other) if w.filename == made.name else w for w in own.wheels)
    )
    made.replace(path)
    (folder / MANIFEST).write_bytes(lie.to_bytes())
    shop.stage(folder)
    shop.add(lie, suite="smoke")
    with pytest.raises(TrustError, match=r"pjrt-0\.9\.1-.* is not what .* gives when"):
        shop.promote(lie)
