"""A person's word lets a cell pass that is no pass: signed, about this set, here, and as it was."""

from __future__ import annotations

import io
import json
import shutil
from datetime import date
from functools import partial

import pytest
from support.trust import FAMILY, NOW, Keyring, SignedShop, spelt
from support.wheelset import WHO

import amdgpu_family_matrix as matrix
from rocwheel.base.console import Console
from rocwheel.base.errors import PromotionError
from rocwheel.base.values import replace
from rocwheel.records.verdict import State
from rocwheel.release import promote, proof
from rocwheel.release.trust import TrustError, envelope, statements, verifier
from rocwheel.release.trust.policy import Revocation
from rocwheel.release.trust.statements import Approval

BY_ANN = replace(WHO, by="ann", reason="known race")


@pytest.fixture(scope="module")
def keys(tmp_path_factory) -> Keyring:
    return Keyring(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, keys):
    """A store with two sets that passed `unit` and failed it once, all of it signed."""
    folder = tmp_path_factory.mktemp("prepared")
    shop = SignedShop(folder, Console(io.StringIO(), clock=lambda: 0.0), keys)
    sets = shop.ready(), shop.ready("+rocm7.10.1")
    for manifest in sets:
        shop.add(manifest, suite="unit", state=State.FAIL)
    return shop.store.root, sets


@pytest.fixture
def shop(tmp_path, console, keys, prepared) -> SignedShop:
    """A shop with those sets, whose channel needs every role, approvers' too."""
    shutil.copytree(prepared[0], tmp_path / "store")
    shop = SignedShop(tmp_path, console, keys)
    shop.trusting("approver")
    return shop


@pytest.fixture
def manifest(prepared):
    """The first of the sets."""
    return prepared[1][0]


def word(shop: SignedShop, manifest, *, signer: str = "approver", **changes) -> bytes:
    """What an approver signs about `unit`; some fields may say something else."""
    (cell,) = shop.plan(manifest).judged[0].decision.waiting
    fields = {"suite": "unit", "python": "3.12", "by": "ann", "reason": "known race"}
    fields |= {"channel": "", "family": FAMILY.name, "verdicts": cell.verdicts}
    time = changes.pop("time", "2026-05-01T11:50:00Z")
    made = statements.approval(manifest, Approval(**{**fields, **changes}), time=time)
    return shop.signed(made, signer)


def put(shop: SignedShop, manifest, data: bytes) -> None:
    proof.add(shop.staging, manifest.sha256, data, kind="approval")


def released(shop: SignedShop) -> bool:
    return bool(shop.shown(shop.release, "jax-rocm7-pjrt"))


def test_a_signed_word_releases_a_flaky_cell_and_is_part_of_the_chain(shop, manifest) -> None:
    with pytest.raises(PromotionError, match="flaky") as refused:
        shop.promote(manifest)
    assert "trust approve unit:3.12" in refused.value.hint
    plan = shop.plan(manifest, BY_ANN)
    (key,) = promote.approve(plan, ["unit:3.12"], signer=shop.keys.signers["approver"])
    shop.promote(manifest)
    bundle = shop.store.read(shop.release.attestation(manifest.sha256, "bundle.jsonl"))[0]
    links = verifier.follow(manifest.sha256, bundle, shop.channel.trust, now=NOW)
    assert all(link.holds for link in links), list(map(str, links))
    (said,) = [link.about for link in links if link.role == "approver"]
    assert said.startswith("unit on CPython 3.12 approved by ann: known race; signed by approver")
    summary = envelope.parse(bundle.splitlines(keepends=True)[-1], name="x").statement
    digest = key.rpartition("/")[2].removesuffix(".json")
    assert digest in {item["uri"] for item in summary.predicate["inputAttestations"]}
    assert [item["signed"] for item in summary.own["approvals"]] == [digest]
    without = b"".join(x for x in bundle.splitlines(keepends=True) if b"svr" not in _payload(x))
    links = verifier.follow(manifest.sha256, without, shop.channel.trust, now=NOW)
    assert any("made on other statements" in link.about for link in links)


def test_a_signed_word_on_a_familys_first_set_names_the_number_of_its_tests(shop, manifest) -> None:
    shop.channel = replace(shop.channel, first_sets="approved")
    plan, signer = shop.plan(manifest, BY_ANN), shop.keys.signers["approver"]
    (cell,) = plan.judged[0].decision.waiting
    assert cell.approval == f"unit:3.12={cell.ran}"
    for wrong in ("unit:3.12", "unit:3.12=7"):
        with pytest.raises(PromotionError, match="waits for no approval") as refused:
            promote.approve(plan, [wrong], signer=signer)
        assert cell.approval in refused.value.hint
    promote.approve(plan, [cell.approval], signer=signer)
    shop.promote(manifest)
    assert released(shop)


def _payload(line: bytes) -> bytes:
    import base64

    return base64.b64decode(json.loads(line)["payload"])


def _edited(shop, manifest, name: str, value: object) -> bytes:
    """An approver's own signature on a statement with another field."""
    parsed = envelope.parse(word(shop, manifest), name="x").statement
    predicate = dict(parsed.predicate)
    if name in predicate:
        predicate[name] = value
    else:
        predicate["rocwheel"] = {**predicate["rocwheel"], name: value}
    return shop.signed(replace(parsed, predicate=predicate), "approver")


def _changed(shop, manifest) -> bytes:
    """An approval whose payload was edited after it was signed."""
    import base64

    document = json.loads(word(shop, manifest))
    payload = base64.b64decode(document["payload"]).replace(b"known race", b"other word")
    return spelt({**document, "payload": base64.b64encode(payload).decode()})


NO_WORDS = [
    ("forged", partial(word, signer="stranger"), "not in the trust file"),
    ("unsigned", lambda s, m: word(s, m, signer="approver").replace(b'"sig":"', b'"sig":"AAAA'), "does not fit|padding"),
    ("edited", _changed, "does not fit"),
    ("a promoter's", partial(word, signer="promoter"), "role: it is a key of the role promoter"),
    ("a runner's", partial(word, signer="runner"), "role: it is a key of the role runner"),
    ("another family's", partial(word, family="gfx942"), "scope: approves on a store, gfx942"),
    ("another channel's", partial(word, channel="dev"), "scope: approves on dev"),
    ("another suite's", partial(word, suite="smoke"), "unit on CPython 3.12 is flaky"),
    ("another CPython's", partial(word, python="3.11"), "unit on CPython 3.12 is flaky"),
    ("before a failure came", partial(word, verdicts=()), "a verdict that came after the approval of ann"),
    ("of tomorrow", partial(word, time="2026-05-02T11:00:00Z"), "later than now"),
    ("before the key's days", partial(word, time="2025-12-30T11:00:00Z"), "window: the key is valid from"),
    ("of no time", partial(_edited, name="timeCreated", value=None), "time: "),
    ("without a reason", partial(_edited, name="reason", value=""), "reason"),
    ("with a number for a name", partial(_edited, name="by", value=5), "by"),
    ("with a field of its own", partial(_edited, name="extra", value="x"), "extra"),
    ("with other properties", partial(_edited, name="properties", value=[]), "subject|properties"),
    ("garbage", lambda *_: b"garbage\n", "JSON"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "message"), [case[1:] for case in NO_WORDS], ids=[c[0] for c in NO_WORDS])  # fmt: skip
def test_no_other_word_counts(shop, manifest, make, message) -> None:
    put(shop, manifest, make(shop, manifest))
    with pytest.raises(PromotionError, match=message):
        shop.promote(manifest)
    assert not released(shop)
    put(shop, manifest, word(shop, manifest))  # and it holds up nothing
    shop.promote(manifest)
    assert released(shop)


def test_a_word_about_another_set_is_none(shop, manifest, prepared) -> None:
    """That set is flaky in the same cell."""
    put(shop, manifest, word(shop, prepared[1][1]))
    with pytest.raises(PromotionError, match="subject: not the wheels"):
        shop.promote(manifest)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"until": date(2026, 4, 1)}, "window: the key was valid until"),
        ({"since": date(2098, 1, 1)}, "window: the key is valid from"),
        ({"revoked": Revocation(since=date(2026, 4, 1), reason="stolen")}, "revoked: since"),
        ({"suites": ("smoke",)}, "scope: suites are smoke"),
        ({"families": ("gfx942",)}, "scope: families are gfx942"),
        (None, "not in the trust file"),
    ],
)
def test_an_approver_signs_within_its_scope_and_days(shop, manifest, changes, message) -> None:
    put(shop, manifest, word(shop, manifest))
    shop.trusting("approver", approver=changes)
    with pytest.raises(PromotionError, match=message):
        shop.promote(manifest)
    plan = shop.plan(manifest, BY_ANN)
    with pytest.raises(TrustError, match="--signer"):
        promote.approve(plan, ["unit:3.12"], signer=shop.keys.signers["approver"])
    assert not released(shop)


def test_a_later_failure_needs_another_word(shop, manifest) -> None:
    put(shop, manifest, word(shop, manifest))
    shop.add(manifest, suite="unit", state=State.PASS, host="node2")
    assert shop.plan(manifest).state == "ready"
    shop.add(manifest, suite="unit", state=State.FAIL, host="node3")
    assert shop.plan(manifest).state == "blocked"
    put(shop, manifest, word(shop, manifest))
    assert shop.plan(manifest).state == "ready"


def test_a_bypass_is_signed_as_well(shop, manifest) -> None:
    """A reviewed line of the matrix is not enough where the channel asks for a person's key."""
    bypass = matrix.Bypass(owner="bob", reason="no GPU yet", expires=date(2026, 6, 1))
    for prefix in (shop.staging.verdicts, shop.staging.attestation):
        for info in shop.store.keys(prefix(manifest.sha256)):
            if "provenance" not in info.key:
                shop.store.delete(info.key)
    family = replace(FAMILY, runners=(), bypass_tests_for_releases=bypass)

    def plan(who=WHO):
        return promote.plan(manifest, family, shop.channel, shop.store, who=who)

    cell, _ = plan().judged[0].decision.blocking
    assert "bypass of bob until 2026-06-01: no GPU yet; no approver's key has signed" in cell.why
    assert "trust approve smoke:3.12" in plan().refusal().hint
    approved = partial(promote.approve, signer=shop.keys.signers["approver"])
    assert len(approved(plan(BY_ANN), ["unit:3.12"])) == 1
    (cell,) = plan().judged[0].decision.blocking
    assert cell.suite == "smoke"
    approved(plan(BY_ANN), ["smoke:3.12"])
    decision = plan().judged[0].decision
    assert decision.blocking == ()
    assert decision.bypass == bypass
    assert [item.by for item in decision.approvals] == ["ann", "ann"]
    expired = replace(bypass, expires=date(2026, 4, 1))  # an approval alone is no runner
    family = replace(family, bypass_tests_for_releases=expired)
    assert plan().state == "blocked"


def test_only_what_waits_is_approved_and_only_signed(shop, manifest) -> None:
    unsigned = Approval(suite="unit", python="3.12", by="ann", reason="x")
    with pytest.raises(TrustError, match="takes the signed word of an approver alone"):
        shop.plan(manifest, approvals=[unsigned])
    signer = shop.keys.signers["approver"]
    for cell in ("smoke:3.12", "unit:3.11", "unit"):
        with pytest.raises(PromotionError, match=f"{cell}: waits for no approval"):
            promote.approve(shop.plan(manifest, BY_ANN), ["unit:3.12", cell], signer=signer)
    assert not [
        i for i in shop.store.keys(shop.staging.attestation(manifest.sha256)) if "approval" in i.key
    ]
    shop.trusting()
    with pytest.raises(TrustError, match="requires no approver's signature"):
        promote.approve(shop.plan(manifest, BY_ANN), ["unit:3.12"], signer=signer)


def test_a_revoked_approver_is_what_a_release_rests_on(shop, manifest) -> None:
    put(shop, manifest, word(shop, manifest))
    shop.promote(manifest)
    bundle = shop.store.read(shop.release.attestation(manifest.sha256, "bundle.jsonl"))[0]
    revoked = Revocation(since=date(2026, 2, 1), reason="left")
    shop.trusting("approver", approver={"revoked": revoked})
    assert verifier.revoked(bundle, shop.channel.trust, released=NOW) == ({"approver"}, True)
