"""A commit carries its evidence: what no entry of the log names proves nothing."""

from __future__ import annotations

import pytest
from support.trust import Keyring, SignedShop
from support.wheelset import NOW, WHO

from rocwheel.base import files
from rocwheel.base.errors import PromotionError
from rocwheel.base.values import replace
from rocwheel.records.places import BUNDLE
from rocwheel.records.verdict import State
from rocwheel.release import operations, promote, withdraw
from rocwheel.release.ledger import log, manifests, verdicts
from rocwheel.release.ledger.state import Action
from rocwheel.release.trust import verifier


class Desk(SignedShop):
    """A shop with two promoters' keys and a set that three keys signed."""

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

    def change_plan(self, action: Action, signer: str = "", **options):
        sign = self.keys.signers[signer] if signer else None
        about = {"channel": self.channel, "signer": sign, **options}
        who = withdraw.with_reason(WHO, "wrong")
        return withdraw.plan(self.release, action, who=who, set_id=self.manifest.sha256, **about)

    def change(self, action: Action, signer: str = "") -> str:
        planned = self.change_plan(action, signer)
        if not planned.is_done:
            operations.perform(planned)
        return planned.to_json(dry_run=False)["state"]


@pytest.fixture
def desk(tmp_path, console) -> Desk:
    made = Desk(tmp_path, console, Keyring(tmp_path / "keys", second="promoter"))
    made.ready()
    return made


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
    desk.promote(desk.manifest, "second")
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
