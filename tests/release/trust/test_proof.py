"""What statements prove of a set: by which key, at which commit, of a parent, where one was deleted."""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import shutil
import time
from datetime import date, timedelta
from pathlib import Path

import pytest
from support.mutants import Draft
from support.trust import FAMILY, NOW, Keyring, SignedShop, World, make_record
from support.wheelset import WHO, make_set, make_verdict

from rocwheel.base import files
from rocwheel.base.errors import PromotionError
from rocwheel.base.values import replace
from rocwheel.cli import main
from rocwheel.records.manifest import MANIFEST, BuildRecord, Manifest
from rocwheel.records.places import BUNDLE
from rocwheel.records.verdict import State
from rocwheel.release import operations, promote, proof, withdraw
from rocwheel.release.ledger import log, manifests, verdicts
from rocwheel.release.ledger.state import Action
from rocwheel.release.trust import TrustError, envelope, statements, verifier
from rocwheel.release.trust.policy import Case, Revocation
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


# A promotion believes signatures of the right role and nothing else.


def test_a_set_that_three_keys_signed_is_released_with_its_statements(shop) -> None:
    manifest = shop.ready()
    shop.promote(manifest)
    data, _ = shop.store.read(shop.release.attestation(manifest.sha256, "bundle.jsonl"))
    lines = [
        envelope.read(line + b"\n", shop.channel.trust, name="line") for line in data.splitlines()
    ]
    kinds = [line.statement.predicate_type for line in lines]
    assert sorted(kinds) == sorted(
        [statements.PROVENANCE, statements.TEST_RESULT, statements.TEST_RESULT, statements.SUMMARY]
    )
    summary = lines[-1].statement.predicate
    relied = {item["digest"]["sha256"] for item in summary["inputAttestations"]}
    assert relied == {line.sha256 for line in lines[:-1]}
    assert summary["rocwheel"]["by"] == "tester"
    assert summary["policy"]["annotations"]["rocwheel"]["trust"] == "7" * 64
    entry = shop.entry(shop.release, Action.PROMOTE)
    assert entry.bundles == {manifest.sha256: {shop.release.family: files.sha256(data)}}
    assert b"PRIVATE" not in data


def test_a_channel_that_requires_nothing_goes_on_and_says_unsigned(shop) -> None:
    manifest = shop.ready()
    shop.channel = replace(shop.channel, trust=shop.keys.trust())
    plan = shop.plan(manifest)
    assert ["signed", "no:", "unsigned"] in map(str.split, plan.lines())
    assert plan.to_json()["signed"] == "unsigned"
    shop.promote(manifest, signer=None)
    assert shop.shown(shop.release, "jax-rocm7-pjrt")


def test_a_promotion_needs_a_promoters_key(shop) -> None:
    manifest = shop.ready()
    with pytest.raises(TrustError, match="needs the signature of a promoter"):
        shop.promote(manifest, signer=None)
    for other in ("runner", "stranger"):
        with pytest.raises(TrustError, match=r"promoter|not in the trust file"):
            shop.promote(manifest, signer=other)
    assert not shop.shown(shop.release, "jax-rocm7-pjrt")


def test_the_statements_are_json_that_other_tools_read(shop) -> None:
    manifest = shop.ready()
    outer = json.loads(shop.provenance(manifest))
    assert sorted(outer) == ["payload", "payloadType", "signatures"]
    inner = json.loads(base64.b64decode(outer["payload"]))
    assert inner["_type"] == "https://in-toto.io/Statement/v1"
    assert {item["name"] for item in inner["subject"]} == {
        "manifest.json",
        *(wheel.filename for wheel in manifest.wheels),
    }
    assert {"name", "digest"} <= inner["predicate"]["buildDefinition"]["resolvedDependencies"][
        0
    ].keys()


def test_a_provenance_names_what_bazel_fetched_where_bazel_does(shop) -> None:
    manifest = shop.ready()
    plain = make_record(manifest)
    llvm, lock = {"sha256": "1" * 64}, {"sha512": "2" * 128}
    files = {
        "repository @llvm-raw": {"https://a/llvm.tar.gz": llvm},
        "": {"https://b/source.json": {}},
        "repository @deps": {"https://c/two": lock, "https://c/one": llvm},
    }

    def stated(record):
        made = statements.provenance(manifest, record)
        definition = made.part("buildDefinition")
        said = made.part("buildDefinition", "internalParameters", "bazel")["fetched"]
        own = [*statements.dependencies(manifest)]
        return said, [item for item in definition["resolvedDependencies"] if item not in own], made

    assert stated(plain)[:2] == (statements.NOT_KNOWN, [])
    programs = {"program clang": "3" * 64}
    named = replace(plain, bazel=replace(plain.bazel, fetched=files, programs=programs))
    said, others, made = stated(BuildRecord.from_bytes(named.to_bytes(), name="x"))
    assert said == 4
    assert others == [
        {"name": "program clang", "digest": {"sha256": "3" * 64}},
        {"uri": "https://b/source.json", **statements.NO_DIGEST},  # which is said
        {"name": "repository @deps", "uri": "https://c/one", "digest": llvm},
        {"name": "repository @deps", "uri": "https://c/two", "digest": lock},
        {"name": "repository @llvm-raw", "uri": "https://a/llvm.tar.gz", "digest": llvm},
    ]
    case = Case(trust=shop.channel.trust, channel="", family=FAMILY.name, now=NOW)
    stated = verifier.Stated(name="x", data=shop.signed(made, "builder"))
    (link,) = verifier.links([stated], case, manifest=manifest.sha256, whole=manifest)
    assert link.is_good, "what a manifest does not name may be there"


def test_status_says_what_a_signature_lacks(shop) -> None:
    manifest = shop.ready()

    def row():
        (item,) = shop.status().sets
        return item

    assert row().state == "gated"
    for info in shop.store.keys(shop.staging.built(manifest.sha256, "provenance/")):
        shop.store.delete(info.key)
    assert row().state == "staged"
    assert "no provenance" in row().blocked_by


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        ("yank", {}, "a promotion comes first, and once"),
        ("promote", {"action": "promote"}, "a promotion comes first, and once"),
        ("promote", {"channel": "other"}, "another channel or family"),
        ("promote", {"family": "gfx94X-dcgpu"}, "another channel or family"),
        ("promote", {}, ""),
    ],
)
def test_a_promoter_states_what_can_have_been(shop, first, then, message) -> None:
    """A key's owner signs it all; what it says must still follow from what was before."""
    manifest, trust = shop.ready(), shop.channel.trust
    lines = [shop.provenance(manifest)]
    own = {"action": first, "channel": "", "family": FAMILY.name, "by": "ann"}
    for told in (own, {**own, "action": "rollback", **then}):
        inputs = [files.sha256(lines[-1])]
        fields = {"time": "2026-05-01T11:40:00Z", "url": "", "policy": {}, "inputs": inputs}
        made = statements.summary(manifest, **fields, own=told)
        lines.append(shop.signed(made, "promoter"))
    links = verifier.follow(manifest.sha256, b"".join(lines), trust, now=NOW)
    broken = [link.about for link in links if link.role == "promoter" and not link.holds]
    assert (message in broken[0]) if message else not broken


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([("3.11", {}), ("3.12", {})], ""),
        ([("3.11", {}), ("3.12", {"state": State.FLAKY})], ""),
        ([("3.11", {}), ("3.12", {"state": State.FAIL}), ("3.12", {})], ""),
        ([("3.11", {}), ("3.12", {"state": State.FAIL})], "untested: no runner's key has signed"),
        ([("3.11", {}), ("3.12", {"shard": "1/2"})], "untested: no runner's key has signed"),
        ([("3.11", {}), ("3.12", {"wheels": {}})], "untested: no runner's key has signed"),
        ([("3.11", {})], "untested: no runner's key has signed"),
        ([("3.11", {}), ("3.12", None), ("3.12", {})], "statement 1 of runner is gone"),
    ],
)
def test_what_a_promoter_let_out_by_hand_shows_what_no_runner_passed(
    shop, tmp_path, results, message
) -> None:
    """Its key signs any summary: a wheel verifies where its own CPython passed, and nothing is left out."""
    manifest = make_set(tmp_path / "wh", pythons=("3.11", "3.12"))
    lines, before = [shop.provenance(manifest)], {}
    for python, fields in results:
        verdict = make_verdict(
            manifest, python=python, **({"state": State.FAIL} if fields is None else fields)
        )
        number, previous = before.get(python, (0, ""))
        made = statements.result(verdict, number=number + 1, previous=previous)
        line = shop.signed(made, "runner")
        before[python] = number + 1, files.sha256(line)
        lines += [line] if fields is not None else []
    own = {"action": "promote", "channel": "", "family": FAMILY.name, "by": "ann"}
    fields = {"time": "2026-05-01T11:40:00Z", "url": "", "policy": {}}
    made = statements.summary(manifest, **fields, inputs=sorted(map(files.sha256, lines)), own=own)
    lines.append(shop.signed(made, "promoter"))
    digests = {wheel.python: wheel.sha256 for wheel in manifest.wheels}
    for sha256 in (digests["3.12"], manifest.sha256):
        links = verifier.follow(sha256, b"".join(lines), shop.channel.trust, now=NOW)
        broken = [link.about for link in links if not link.holds]
        assert re.search(message, broken[0]) if message else not broken, broken
        assert verifier.state(links) == ("broken" if message else "verified")
    links = verifier.follow(digests["3.11"], b"".join(lines), shop.channel.trust, now=NOW)
    assert verifier.state(links) == ("broken" if "is gone" in message else "verified")


@pytest.mark.parametrize(
    ("signed", "alone"),
    [
        ([("runner", "1/2"), ("other", "2/2"), ("other", "merged")], True),
        ([("other", "1/2"), ("other", "2/2"), ("runner", "merged")], True),
        ([("runner", "1/2"), ("other", "2/2"), ("runner", "merged"), ("other", "")], False),
        ([("runner", ""), ("other", "fail")], True),
        ([("runner", "fail"), ("other", "")], False),
        ([("runner", ""), ("other", "1/2")], True),
        ([("runner", "uncalibrated")], True),
        ([("runner", ""), ("other", "uncalibrated")], False),
    ],
)
def test_a_shard_of_a_revoked_key_spoils_what_was_merged_of_it(tmp_path, console, signed, alone):
    keys = Keyring(tmp_path / "keys", ("builder", "runner", "promoter", "other"))
    shop, parts, before = SignedShop(tmp_path, console, keys), [], {}
    manifest = make_set(tmp_path / "wh", pythons=("3.12",))
    lines = [shop.provenance(manifest)]
    for number, (who, what) in enumerate(signed):
        shard = what if "/" in what else ""
        state = State(what) if what in {"fail", "uncalibrated"} else State.PASS
        verdict = make_verdict(manifest, shard=shard, host=f"node{number}", state=state)
        named = parts if what == "merged" else ()
        at, previous = before.get(who, (0, ""))
        made = statements.result(verdict, number=at + 1, previous=previous, parts=named)
        parts += [verdict.sha256] if shard else []
        lines.append(shop.signed(made, who))
        before[who] = at + 1, files.sha256(lines[-1])
    cells = [{"level": "required", "state": "pass", "python": "3.12", "suite": "smoke"}]
    own = {"action": "promote", "channel": "", "family": FAMILY.name, "by": "ann", "cells": cells}
    fields = {"time": "2026-05-01T11:40:00Z", "url": "", "policy": {}}
    made = statements.summary(manifest, **fields, inputs=sorted(map(files.sha256, lines)), own=own)
    lines.append(shop.signed(made, "promoter"))
    trust = keys.trust(runner={"revoked": Revocation(since=date(2026, 2, 1), reason="x")})
    more = {keys.signers["other"].public_key.keyid: keys.key("other", "runner")}
    known = replace(trust, keys={**trust.keys, **more})
    unknown = verifier.revoked(b"".join(lines), trust, released=NOW)[1]
    assert unknown is (
        signed[0] != ("runner", "fail")
    )  # a key that left the file stands in for none
    names, is_alone = verifier.revoked(b"".join(lines), known, released=NOW)
    assert is_alone is alone
    assert names == ({"runner"} if signed[0] != ("runner", "fail") else set())
