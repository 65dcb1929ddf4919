"""A key that is lost blocks nothing and counts for nothing; what it left is named, and set aside."""

from __future__ import annotations

import os
import shutil
import time
from datetime import date, timedelta

import pytest
from support.trust import Keyring, SignedShop, World

from rocwheel.base import files
from rocwheel.base.errors import PromotionError
from rocwheel.base.values import replace
from rocwheel.records.verdict import State
from rocwheel.release import proof
from rocwheel.release.ledger import verdicts
from rocwheel.release.ledger.state import Action
from rocwheel.release.trust.policy import Revocation
from rocwheel.release.trust.statements import Approval


class Desk(SignedShop):
    """A shop with two runners' keys and a set that is built, staged and gated by the first."""

    def revoke(self) -> None:
        self.trusting(runner={"revoked": Revocation(since=date(2026, 1, 2), reason="stolen")})

    def garbage(self, number: int = 2, data: bytes = b"garbage") -> str:
        keyid = self.keys.signers["runner"].public_key.keyid
        place, manifest = self.staging, self.manifest.sha256
        key = place.report(manifest, "3.12", "unit", f"{keyid}/{number}.json")
        path = self.store.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return key

    def gate(self) -> None:
        for suite in ("smoke", "unit"):
            self.add(self.manifest, "second", suite=suite, host="node2")

    @property
    def is_released(self) -> bool:
        return bool(self.shown(self.release, "jax-rocm7-pjrt"))


@pytest.fixture
def desk(tmp_path, console) -> Desk:
    made = Desk(tmp_path, console, Keyring(tmp_path / "keys", second="runner"))
    made.ready()
    return made


@pytest.mark.parametrize("number", [1, 2, 7])
def test_garbage_under_a_revoked_runners_key_blocks_no_set_that_another_gated(desk, number) -> None:
    desk.garbage(number)
    desk.gate()
    desk.revoke()
    desk.promote(desk.manifest)
    assert desk.is_released


def test_a_failure_of_a_revoked_key_counts_for_nothing(desk) -> None:
    desk.add(desk.manifest, suite="unit", state=State.FAIL)
    desk.gate()
    desk.revoke()
    desk.promote(desk.manifest)
    assert desk.is_released


def test_garbage_names_the_key_that_lies_there_and_an_approval_sets_it_aside(desk) -> None:
    key = desk.garbage()
    with pytest.raises(PromotionError) as refused:
        desk.promote(desk.manifest)
    assert desk.store.locate(key) in str(refused.value)
    assert "it lies where runner puts statements" in str(refused.value)
    assert "promote" in refused.value.hint
    assert "--approve unit:3.12" in refused.value.hint
    word = Approval(suite="unit", python="3.12", by="ann", reason="the disk was full")
    desk.promote(desk.manifest, approvals=[word])
    said = desk.entry(desk.release, Action.PROMOTE).evidence["families"]["gfx90a"]
    assert said["approvals"][0]["reason"] == "the disk was full"
    (cell,) = (cell for cell in said["cells"] if cell["suite"] == "unit")
    assert f"{files.sha256(b'garbage')} unreadable" in cell["verdicts"]


def test_a_runner_goes_on_after_its_garbage_and_the_release_verifies(desk) -> None:
    desk.garbage()
    desk.add(desk.manifest, suite="unit", host="node3")
    word = Approval(suite="unit", python="3.12", by="ann", reason="the disk was full")
    desk.promote(desk.manifest, approvals=[word])
    assert desk.verified() == "verified"


def test_a_failure_over_which_garbage_was_written_is_a_gap_that_no_approval_lifts(desk) -> None:
    desk.add(desk.manifest, suite="unit", state=State.FAIL)
    desk.add(desk.manifest, suite="unit", host="node3")
    desk.garbage(2)
    word = Approval(suite="unit", python="3.12", by="ann", reason="x")
    with pytest.raises(PromotionError, match="is not before it"):
        desk.promote(desk.manifest, approvals=[word])


def test_a_gate_of_before_0_3_counts_unsigned(desk) -> None:
    """0.2 signed beside the verdict, which is not read any more: such a set is gated again."""
    place = desk.staging
    for found in verdicts.find(place, desk.manifest.sha256):
        desk.store.delete(found.key)
        key = place.verdict(desk.manifest.sha256, "3.12", found.suite, found.sha256)
        desk.store.create(key, found.verdict.to_bytes(), headers=place.record_headers)
    with pytest.raises(PromotionError, match="no runner's key has signed it") as refused:
        desk.promote(desk.manifest)
    assert "run it: `gate " in refused.value.hint
    desk.channel = replace(desk.channel, trust=desk.keys.trust())
    desk.promote(desk.manifest, signer=None)
    found = verdicts.find(desk.release, desk.manifest.sha256)
    assert {item.verdict.suite for item in found} == {"smoke", "unit"}
    assert desk.is_released


def test_a_set_that_waits_while_its_bucket_is_moved_needs_keys_of_that_day(
    tmp_path, console
) -> None:
    """It is as old as the copy for the new bucket, as docs/how-to/buckets.md says."""
    keys = Keyring(tmp_path / "keys", another="builder", second="runner")
    ended = {"until": date.today() - timedelta(days=1)}  # noqa: DTZ011 - files lie there today
    here, there = (SignedShop(tmp_path / name, console, keys) for name in ("here", "there"))
    manifest = here.ready()
    for path in here.store.root.rglob("*"):
        os.utime(path, (ago := time.time() - 3 * 86_400, ago))
    shutil.copytree(here.store.root, there.store.root, copy_function=shutil.copy)
    for shop in (here, there):
        shop.trusting(builder=ended, runner=ended)
    assert here.plan(manifest).state == "ready"
    with pytest.raises(PromotionError, match="builder: window: the key was valid until"):
        there.promote(manifest)
    proof.add(there.staging, manifest.sha256, there.provenance(manifest, "another"))
    for suite in ("smoke", "unit"):
        there.add(manifest, "second", suite=suite, host="node2")
    there.promote(manifest)
    assert there.shown(there.release, "jax-rocm7-pjrt")


def test_a_folder_without_a_build_record_is_two_lines(tmp_path, console, monkeypatch, capsys):
    world = World(tmp_path, console, monkeypatch)
    (world.folder / "build.json").unlink()
    assert world.run("trust", "sign", world.folder, f"--signer={world.uri('builder')}") == 3
    said = capsys.readouterr().err
    assert "build.json: No such file" in said
    assert "name a wheelhouse as it was built" in said
    assert len(said.splitlines()) == 2
