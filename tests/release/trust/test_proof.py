"""What statements prove of a set: of a lost key, of a commit, of a parent, of what was deleted."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from datetime import date, timedelta
from pathlib import Path

import pytest
from support.mutants import Draft
from support.trust import NOW, Keyring, SignedShop, World
from support.wheelset import WHO

from rocwheel.base import files
from rocwheel.base.errors import PromotionError
from rocwheel.base.values import replace
from rocwheel.cli import main
from rocwheel.records.manifest import MANIFEST, Manifest
from rocwheel.records.places import BUNDLE
from rocwheel.records.verdict import State
from rocwheel.release import operations, promote, proof, withdraw
from rocwheel.release.ledger import log, manifests, verdicts
from rocwheel.release.ledger.state import Action
from rocwheel.release.trust import TrustError, verifier
from rocwheel.release.trust.policy import Revocation
from rocwheel.release.trust.statements import Approval
from rocwheel.wheel.zip_reader import ZipArchive


class Desk(SignedShop):
    """A shop with two runners' and two promoters' keys, and a set that the first of them signed."""

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

    def stop(self, monkeypatch) -> None:
        """A promotion that ends after its copies, right before its commit."""
        with monkeypatch.context() as patch:
            patch.setattr(log, "commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                self.promote(self.manifest)

    def public(self) -> bytes:
        key = self.release.attestation(self.manifest.sha256, BUNDLE)
        return self.store.read(key)[0] if self.store.info(key) else b""

    def links(self) -> tuple:
        return verifier.follow(self.manifest.sha256, self.public(), self.channel.trust, now=NOW)

    def change(self, action: Action, signer: str = "") -> str:
        sign = self.keys.signers[signer] if signer else None
        about = {"who": withdraw.with_reason(WHO, "wrong"), "set_id": self.manifest.sha256}
        about |= {"channel": self.channel, "signer": sign}
        planned = withdraw.plan(self.release, action, **about)
        if not planned.is_done:
            operations.perform(planned)
        return planned.to_json(dry_run=False)["state"]


@pytest.fixture
def desk(tmp_path, console) -> Desk:
    made = Desk(tmp_path, console, Keyring(tmp_path / "keys", second="runner", other="promoter"))
    made.ready()
    return made


# A key that is lost blocks nothing and counts for nothing; what it left is named, and set aside.


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


# A commit carries its evidence: what no entry of the log names proves nothing.


def test_a_later_promotion_states_what_it_rests_on_itself(desk, monkeypatch) -> None:
    """The bundle that a run before had put was published: without the failure and the approval."""
    copy, failing = verdicts.copy, ["unit"]

    def late(verdict, release) -> None:
        copy(verdict, release)
        while failing:
            desk.add(desk.manifest, suite=failing.pop(), state=State.FAIL)

    with monkeypatch.context() as patch:
        patch.setattr(promote.verdicts, "copy", late)
        with pytest.raises(PromotionError, match="arrived while its wheels were copied"):
            desk.promote(desk.manifest)
    desk.trusting("approver")
    planned = desk.plan(desk.manifest, withdraw.with_reason(WHO, "it is the machine"))
    promote.approve(planned, ["unit:3.12"], signer=desk.keys.signers["approver"])
    desk.promote(desk.manifest)
    said = desk.public()
    assert len(said.splitlines()) == 6  # built, three results, the approval, the summary
    state = log.read(desk.release).sets[desk.manifest.sha256]
    assert state.bundles == {desk.release.family: files.sha256(said)}
    assert manifests.bundle(desk.release, state) == said


def test_a_key_that_was_revoked_before_the_commit_leaves_nothing(desk, monkeypatch) -> None:
    """Its summary stayed in the bundle: another key's promotion could never be verified."""
    desk.stop(monkeypatch)
    assert desk.public() == b""
    assert not log.read(desk.release).sets
    trust, keyid = desk.channel.trust, desk.keys.signers["promoter"].public_key.keyid
    keys = {name: key for name, key in trust.keys.items() if name != keyid}
    desk.channel = replace(desk.channel, trust=replace(trust, keys=keys))
    desk.promote(desk.manifest, "other")
    assert verifier.state(desk.links()) == "verified"


def test_a_rollback_that_is_signed_later_is_one_entry_and_says_so(desk) -> None:
    """It wrote a statement and said `nothing-to-do`."""
    desk.promote(desk.manifest)
    assert desk.change(Action.ROLLBACK) == "rolled-back"
    before = desk.public()
    assert desk.change(Action.ROLLBACK, "promoter") == "signed"
    after = desk.public()
    assert after.startswith(before)
    assert len(after.splitlines()) == len(before.splitlines()) + 1
    assert desk.entry(desk.release, Action.ATTEST).bundles == {
        desk.manifest.sha256: {desk.release.family: files.sha256(after)}
    }
    number = log.read(desk.release).number
    assert desk.change(Action.ROLLBACK, "promoter") == "nothing-to-do"
    assert log.read(desk.release).number == number
    assert verifier.state(desk.links()) != "verified"
    assert desk.change(Action.RESTORE, "promoter") == "restored"
    assert verifier.state(desk.links()) == "verified"


# What is asked again of a derived set, and what stands for it.


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


# In a bucket with Object Lock what was deleted leaves a marker.


@pytest.fixture(params=["moto", "seaweedfs"])
def locked(servers, monkeypatch, tmp_path, console, request):
    """A shop with a signed set in a new bucket with Object Lock; the bucket's client and name."""
    server, bucket = servers[request.param], f"kept-{secrets.token_hex(4)}"
    client, where = server.client(), {"LocationConstraint": "us-east-2"}
    client.create_bucket(
        Bucket=bucket, ObjectLockEnabledForBucket=True, CreateBucketConfiguration=where
    )
    for key, value in server.environ().items():
        monkeypatch.setenv(key, value)
    shop = SignedShop(tmp_path, console, Keyring(tmp_path / "keys"), f"s3://{bucket}/x")
    return shop, shop.ready(), client, bucket


@pytest.mark.integration
@pytest.mark.xdist_group("servers")
def test_the_newest_failure_cannot_be_deleted_unseen(locked) -> None:
    """No gap tells of it: nothing came after."""
    shop, manifest, client, bucket = locked
    before = {item.key for item in shop.store.keys("")}
    shop.add(manifest, suite="unit", state=State.FAIL)
    (newest,) = {item.key for item in shop.store.keys("")} - before
    client.delete_object(Bucket=bucket, Key=f"x/{newest}")
    with pytest.raises(TrustError, match="was deleted"):
        shop.promote(manifest)
    for kept in client.list_object_versions(Bucket=bucket)["DeleteMarkers"]:
        client.delete_object(Bucket=bucket, Key=kept["Key"], VersionId=kept["VersionId"])
    assert shop.plan(manifest).families("blocked"), "it is flaky, as the runner said"


@pytest.mark.integration
@pytest.mark.xdist_group("servers")
def test_logs_and_pages_may_go(locked) -> None:
    """A bucket's own rules may expire what no decision rests on."""
    shop, manifest, _, _ = locked
    key = shop.staging.report(manifest.sha256, "3.12", "unit", "runs/1/report.html")
    shop.store.create(key, b"x", headers=shop.staging.view_headers)
    shop.store.delete(key)
    shop.promote(manifest)
    assert shop.shown(shop.release, "jax-rocm7-pjrt")
