"""One set for several families: released for those that passed, from one copy of its wheels."""

from __future__ import annotations

import base64
import json
from datetime import timedelta
from itertools import product
from pathlib import Path

import pytest
from support.schedule import Counted
from support.shared import SharedShop, X, Y, Z, names
from support.tiers import merge_tries
from support.trust import Keyring, make_record
from support.wheelset import NOW, WHO, make_set, make_verdict, make_wheel, pass_gate

import amdgpu_family_matrix as matrix
from rocwheel.base import files
from rocwheel.base.choices import ALL
from rocwheel.base.errors import ConfigError, ObjectDiffersError, PromotionError, StoreError
from rocwheel.base.values import replace
from rocwheel.cli import main
from rocwheel.records.manifest import Manifest
from rocwheel.records.places import BUNDLE
from rocwheel.records.verdict import State
from rocwheel.release import audit, operations, promote, proof, retention, stage, withdraw
from rocwheel.release.ledger import log, verdicts
from rocwheel.release.ledger.state import Action
from rocwheel.release.trust import envelope, statements, verifier
from rocwheel.release.trust.policy import ChannelRule, KeyRole

pytestmark = pytest.mark.integration


@pytest.fixture
def shop(tmp_path: Path, console) -> SharedShop:
    return SharedShop((tmp_path / "store").as_uri(), console)


@pytest.fixture(params=merge_tries("file", "seaweedfs", of=["file", "seaweedfs"]))
def any_shop(request, servers, tmp_path, monkeypatch, console) -> SharedShop:
    if request.param == "file":
        return SharedShop((tmp_path / "store").as_uri(), console)
    for key, value in servers[request.param].environ().items():
        monkeypatch.setenv(key, value)
    return SharedShop(servers.fresh_url(request.param), console)


def sound(shop: SharedShop) -> None:
    for place in (shop.staging, shop.release):
        assert audit.check(place).problems == ()


def test_each_family_sees_what_passed_on_it(any_shop, tmp_path) -> None:
    shop = any_shop
    one = shop.made(tmp_path / "1", X, Y, Z)
    assert shop.seen(X.name, staged=True) == shop.seen(ALL, staged=True) == names(one)
    shop.gate(one, X, Z)
    assert shop.release_for(one) == {
        X.name: "published", Y.name: "blocked", Z.name: "published"
    }  # fmt: skip
    assert shop.seen(X.name) == shop.seen(Z.name) == names(one)
    assert shop.seen(Y.name) == shop.seen(ALL) == set()
    sound(shop)

    shop.gate(one, Y)
    before = {item.key: item.modified for item in shop.store.keys("") if ".whl" in item.key}
    assert shop.release_for(one) == {
        X.name: "nothing-to-do", Y.name: "published", Z.name: "nothing-to-do"
    }  # fmt: skip
    after = {item.key: item.modified for item in shop.store.keys("") if ".whl" in item.key}
    assert after == before
    assert shop.seen(Y.name) == shop.seen(ALL) == names(one)
    assert shop.release_for(one) == dict.fromkeys((X.name, Y.name, Z.name), "nothing-to-do")
    sound(shop)

    shop.take(Action.ROLLBACK, one, Y)
    assert shop.seen(X.name) == shop.seen(Z.name) == names(one)
    assert shop.seen(Y.name) == shop.seen(ALL) == set()
    shop.take(Action.RESTORE, one, Y)
    assert shop.seen(Y.name) == shop.seen(ALL) == names(one)
    sound(shop)
    # each wheel lies once in staging and once in the release
    folders = [key.partition("/files/")[0] for key in shop.wheels()]
    assert sorted(folders) == sorted([shop.staging.root, shop.release.root] * len(one.built))


def test_a_prune_is_of_all_families(shop, tmp_path) -> None:
    one = shop.made(tmp_path / "1")
    shop.gate(one, X, Y)
    shop.release_for(one)
    shop.take(Action.ROLLBACK, one, X)
    shop.drop(one)
    shop.drop(one)  # and again, which is nothing to do
    assert shop.prune_plan(shop.release, days=9).expired(log.read(shop.release)) == ()
    for view in (X.name, Y.name, ALL):
        assert shop.seen(view) == set()
    assert not [key for key in shop.wheels() if key.startswith(f"{shop.release.root}/")]
    sound(shop)


def alone(shop: SharedShop, folder: Path, family: matrix.Family, **options) -> Manifest:
    """A set that was built for one family, and released there."""
    one = make_set(folder, pythons=("3.12",), gfx=family.targets, **options)
    planned = stage.plan(folder, family, shop.channel, shop.store, who=WHO)
    stage.apply(planned, console=shop.console)
    shop.gate(one, family)
    assert shop.release_for(one, family) == {family.name: "published"}
    return one


def test_sets_of_one_family_are_in_its_index_alone(any_shop, tmp_path) -> None:
    """Each family has its own build of a version: other bytes of the same names."""
    shop = any_shop
    one, two = (alone(shop, tmp_path / f.name, f, stamp=f.name) for f in (X, Y))
    assert names(one) == names(two) == shop.seen(X.name) == shop.seen(Y.name)
    assert shop.seen(ALL) == set()
    assert len(shop.wheels()) == 2 * (len(one.built) + len(two.built))
    both = shop.made(tmp_path / "both", jax="0.9.2")
    shop.gate(both, X, Y)
    shop.release_for(both)
    assert shop.seen(ALL) == names(both)
    shop.take(Action.ROLLBACK, one)
    assert shop.seen(X.name) == names(both)
    assert shop.seen(Y.name) == names(two) | names(both)
    shop.drop(one)
    assert shop.seen(Y.name) == names(two) | names(both)
    sound(shop)


def test_a_name_is_spent_for_the_families_that_knew_it(shop, tmp_path) -> None:
    one = alone(shop, tmp_path / "1", X)
    shop.drop(one)
    state = log.read(shop.release, files=True)
    other = [
        replace(file, sha256="f" * 64) for file in shop.entries(shop.release)[0].brings[0].files
    ]
    with pytest.raises(PromotionError, match="is spent for ever"):
        state.check_names(other, [X.name], where="there")
    state.check_names(other, [Y.name], where="there")


def test_all_lists_what_the_families_that_must_have(shop, tmp_path) -> None:
    led = SharedShop(shop.channel.store, shop.console, must=(X.name,))
    one = led.made(tmp_path / "1")
    led.gate(one, X)
    assert led.release_for(one) == {X.name: "published", Y.name: "blocked"}
    assert led.seen(ALL) == led.seen(X.name) == names(one)
    assert led.seen(Y.name) == set()
    led.gate(one, Y)
    led.release_for(one)
    assert led.seen(Y.name) == names(one)
    for view in (X.name, Y.name, ALL):
        assert led.seen(f"{view}/last-good") == names(one)
    sound(led)


def test_what_was_rolled_back_for_a_family_is_not_promoted_for_it(shop, tmp_path) -> None:
    one = shop.made(tmp_path / "1")
    shop.gate(one, X)
    shop.release_for(one)
    shop.take(Action.ROLLBACK, one, X)
    with pytest.raises(PromotionError, match="was rolled back"):
        shop.promote_plan(one, X)
    with pytest.raises(PromotionError, match="was rolled back"):
        shop.promote_plan(one, X, Y)
    shop.gate(one, Y)
    assert shop.release_for(one) == {X.name: "rolled-back", Y.name: "published"}
    assert shop.seen(X.name) == shop.seen(ALL) == set()
    assert shop.seen(Y.name) == names(one)
    with pytest.raises(PromotionError, match=f"never released for {Z.name}"):
        shop.take(Action.ROLLBACK, one, Z)
    shop.drop(one)
    with pytest.raises(PromotionError, match="was pruned"):
        shop.promote_plan(one)


def test_a_set_that_lacks_a_family_of_the_index_of_all_is_refused(shop, tmp_path) -> None:
    one, two = shop.made(tmp_path / "1", X, Y), shop.made(tmp_path / "2", Y, Z, jax="0.9.2")
    shop.gate(one, X, Y)
    shop.gate(two, Y, Z)
    shop.release_for(one)
    before = shop.listing(shop.release)
    with pytest.raises(PromotionError, match=f"is not for {X.name}") as caught:
        shop.promote_plan(two)
    assert "`must`" in caught.value.hint
    assert shop.listing(shop.release) == before
    shop.channel = replace(shop.channel, must=(X.name, Y.name))
    assert set(shop.release_for(two).values()) == {"published"}
    assert shop.seen(Z.name) == names(two)
    assert shop.seen(ALL) == names(one)  # X has no second one


def test_a_family_whose_targets_are_not_in_the_wheels_is_refused(shop, tmp_path) -> None:
    one = shop.made(tmp_path / "1")
    with pytest.raises(ConfigError, match=f"{Z.name}: the wheels lack gfx1153"):
        shop.promote_plan(one, Z)
    short = make_set(tmp_path / "2", jax="0.9.2", families=(Y.name, X.name), gfx=X.targets)
    with pytest.raises(ConfigError, match=f"{Y.name}: the wheels lack"):
        stage.plan(tmp_path / "2", None, shop.channel, shop.store, who=WHO)
    assert short.families == (Y.name, X.name)


def test_a_name_that_a_family_has_with_other_bytes_is_refused(shop, tmp_path) -> None:
    alone(shop, tmp_path / "old", X, jax="0.9.0")
    with pytest.raises(ObjectDiffersError, match=r"v2-staging/.*other bytes have this name"):
        shop.made(tmp_path / "1", jax="0.9.0", pythons=("3.12",), stamp="other")
    same = shop.made(tmp_path / "2", Y, Z, jax="0.9.0", pythons=("3.12",), stamp="other")
    shop.gate(same, Y, Z)
    assert set(shop.release_for(same).values()) == {"published"}


def test_a_log_that_lost_its_end_is_seen_on_a_familys_page(shop, tmp_path) -> None:
    one = shop.made(tmp_path / "1")
    shop.gate(one, X, Y)
    shop.release_for(one, X)
    shop.release_for(one, Y)
    shop.take(Action.ROLLBACK, one, Y)
    shop.store.delete(shop.release.log(3))
    state = log.read(shop.release)
    assert "shows entry 3" in "".join(
        operations.damage(shop.release, state, state.projects).values()
    )
    with pytest.raises(StoreError, match="the log ends before what its pages show"):
        audit.repair(shop.release, WHO)


def test_wheels_that_came_before_are_on_their_index_alone(shop, tmp_path) -> None:
    made = make_wheel(
        tmp_path, project="jaxlib", version="0.8.0", tag="cp312-cp312-any", module="jaxlib"
    )
    place = shop.release
    key = f"{place.index}/{made.name}"
    shop.store.create(key, made, headers=place.wheel_headers, sha256=files.sha256(made))
    operations.perform(audit.plan_adoption(place, who=WHO))
    one = shop.made(tmp_path / "1")
    shop.gate(one, X, Y)
    shop.release_for(one)
    assert shop.seen(ALL) == names(one) | {made.name}
    assert shop.seen(X.name) == names(one)
    sound(shop)


def test_statements_are_of_each_family_and_a_page_leads_to_them(shop, tmp_path) -> None:
    keys = shop.requiring(tmp_path, "runner", "promoter")
    one = shop.made(tmp_path / "1", pythons=("3.12",))
    for family in (X, Y):
        place = shop.staging.of(family.name)
        for suite in ("smoke", "unit"):
            verdict = make_verdict(one, suite=suite, family=family)
            is_signed = family is X or suite == "unit"
            verdicts.add(place, verdict, keys.signers["runner"] if is_signed else None)
    plan = shop.promote_plan(one)
    assert [item.state for item in plan.judged] == ["blocked", "ready"]  # Y, X
    assert "unsigned" in plan.refusal().args[0]
    promoter = keys.signers["promoter"]
    promote.apply(plan, console=shop.console, signer=promoter)
    again = make_verdict(one, family=Y)
    verdicts.add(shop.staging.of(Y.name), again, keys.signers["runner"])
    promote.apply(shop.promote_plan(one), console=shop.console, signer=promoter)
    operations.perform(
        withdraw.plan(
            shop.release,
            Action.ROLLBACK,
            who=WHO,
            set_id=one.sha256,
            channel=shop.channel,
            signer=promoter,
            families=[Y.name],
        )
    )
    for family in (X.name, Y.name):
        bundle, _ = shop.store.read(shop.release.of(family).attestation(one.sha256, BUNDLE))
        links = verifier.follow(one.sha256, bundle, shop.channel.trust, now=NOW)
        broken = {link.about for link in links if not link.holds and link.role != "builder"}
        assert all("rolled back" in about for about in broken)
        assert bool(broken) is (family == Y.name)
        assert all(json.dumps(family).encode() in base64.b64decode(json.loads(line)["payload"])
                   for line in bundle.splitlines())  # fmt: skip


def test_a_pass_of_one_family_is_none_of_another(shop, tmp_path) -> None:
    """It is copied to where the other's lie."""
    keys = shop.requiring(tmp_path, "runner", "promoter")
    one = shop.made(tmp_path / "1", pythons=("3.12",))
    for family, suites in ((X, ("smoke", "unit")), (Y, ("smoke",))):
        for suite in suites:
            verdict = make_verdict(one, suite=suite, family=family)
            verdicts.add(shop.staging.of(family.name), verdict, keys.signers["runner"])
    here, there = (shop.staging.of(family.name) for family in (X, Y))
    for info in list(shop.store.keys(f"{here.verdicts(one.sha256)}3.12/unit/")):
        key = there.verdicts(one.sha256) + info.key.removeprefix(here.verdicts(one.sha256))
        shop.store.create(key, shop.store.read(info.key)[0], headers=here.record_headers)
    plan = shop.promote_plan(one, Y)
    assert plan.state == "blocked"
    assert f"family: it is about {X.name}, not {Y.name}" in plan.refusal().args[0]
    assert shop.promote_plan(one, X).state == "ready"
    assert not shop.wheels() or not shop.seen(Y.name)


def signed_everywhere(shop: SharedShop, folder: Path) -> tuple[Manifest, Keyring]:
    """A set that passed on two families of a channel that requires runners."""
    keys = shop.requiring(folder, "runner", "promoter")
    one = shop.made(folder / "1", pythons=("3.12",))
    for family, suite in product((X, Y), ("smoke", "unit")):
        verdict = make_verdict(one, suite=suite, family=family)
        verdicts.add(shop.staging.of(family.name), verdict, keys.signers["runner"])
    return one, keys


def test_a_broken_statement_of_one_family_blocks_that_family_alone(shop, tmp_path) -> None:
    one, keys = signed_everywhere(shop, tmp_path)
    (key, *_) = (info.key for info in shop.store.keys(shop.staging.of(Y.name).verdicts(one.sha256)))
    shop.store.delete(key)
    shop.store.create(key, b"garbage", headers=shop.staging.record_headers)
    plan = shop.promote_plan(one)
    assert (plan.families("ready"), plan.families("blocked")) == ([X.name], [Y.name])
    assert key in plan.to_json()["families"][Y.name]["blocked_by"][0]["why"]
    assert any(line.startswith("BLOCKS") and key in line for line in plan.lines())
    promote.apply(plan, console=shop.console, signer=keys.signers["promoter"])
    assert shop.seen(X.name) == names(one)
    assert shop.seen(Y.name) == shop.seen(ALL) == set()
    for plan in (shop.promote_plan(one), shop.promote_plan(one, Y)):
        assert plan.state == "blocked", "nothing is left that could go out"
        assert key in plan.refusal().args[0]


def test_garbage_where_no_such_statement_belongs_hides_none(shop, tmp_path) -> None:
    """A build is stated for all families: elsewhere is a stranger's."""
    one, keys = signed_everywhere(shop, tmp_path)
    rules = shop.channel.trust
    made = statements.provenance(one, make_record(one))
    line = envelope.sign(envelope.unsigned(made), keys.signers["builder"], name="it")
    (stated,) = proof.add(shop.staging, one.sha256, line)
    required = ChannelRule(required=(KeyRole.BUILDER, KeyRole.RUNNER))
    shop.channel = replace(shop.channel, trust=replace(rules, rules={"try": required}))
    here = [shop.staging.of(family.name).attestation(one.sha256) for family in (X, Y)]
    base = shop.staging.attestation(one.sha256)
    for place in here:
        key = place + stated.removeprefix(base)
        shop.store.create(key, b"garbage", headers=shop.staging.record_headers)
    assert set(shop.promote_plan(one).families("ready")) == {X.name, Y.name}


def test_an_approval_is_a_familys_own(shop, tmp_path) -> None:
    """A set that is flaky on two families needs a word for each; one that is copied is none."""
    keys = shop.requiring(tmp_path, "runner", "promoter", "approver")
    one = shop.made(tmp_path / "1", pythons=("3.12",))
    for family, state in product((X, Y), (State.PASS, State.FAIL)):
        place = shop.staging.of(family.name)
        for suite in ("smoke", "unit") if state is State.PASS else ("unit",):
            verdict = make_verdict(one, suite=suite, family=family, state=state)
            verdicts.add(place, verdict, keys.signers["runner"])

    def approve(*families) -> list[str]:
        plan = replace(shop.promote_plan(one, *families), who=replace(WHO, reason="known race"))
        return promote.approve(plan, ["unit:3.12"], signer=keys.signers["approver"])

    (key,) = approve(X)
    assert f"/{X.name}/approval/" in key
    states = {item.family: item.state for item in shop.promote_plan(one).judged}
    assert states == {X.name: "ready", Y.name: "blocked"}
    word, _ = shop.store.read(key)
    proof.add(shop.staging.of(Y.name), one.sha256, word, kind="approval")
    proof.add(shop.staging, one.sha256, word, kind="approval")
    plan = shop.promote_plan(one)
    assert plan.families("blocked") == [Y.name]
    assert f"scope: approves on try, {X.name}" in plan.refusal().args[0]
    assert len(approve()) == 1
    promote.apply(shop.promote_plan(one), console=shop.console, signer=keys.signers["promoter"])
    for family in (X, Y):
        place = shop.release.of(family.name)
        bundle, _ = shop.store.read(place.attestation(one.sha256, "bundle.jsonl"))
        links = verifier.follow(one.sha256, bundle, shop.channel.trust, now=NOW)
        (word,) = [link for link in links if link.role == "approver"]
        assert word.holds


def spent(shop: SharedShop, folder: Path, families, **options) -> tuple[int, int]:
    """The requests that stage and promote make, and the bytes of wheels that they write."""
    many = len(families) > 1
    own = {"families": tuple(sorted(family.name for family in families))} if many else {}
    gfx = tuple(target for family in families for target in family.targets)
    manifest = make_set(folder, pythons=("3.12",), padding=1 << 16, gfx=gfx, **own, **options)
    store = Counted(shop.store)
    one = None if many else families[0]
    staged = stage.plan(folder, one, shop.channel, store, who=WHO)
    stage.apply(staged, console=shop.console)
    for family in families:
        suites = [rule.suite for rule in family.policy if rule.level is matrix.Level.REQUIRED]
        place = staged.place.of(family.name)
        pass_gate(replace(place, store=shop.store), manifest, family=family, suites=suites)
    plan = promote.plan(manifest, families, shop.channel, store, who=WHO)
    promote.apply(plan, console=shop.console)
    return len(store.asked), store.size


def test_sixteen_families_cost_the_bytes_of_one_and_few_requests(tmp_path, console) -> None:
    every = list(matrix.FAMILIES.values())
    found = {}
    for kind in ("a set each", "one set"):
        shop = SharedShop((tmp_path / kind).as_uri(), console)
        if kind == "one set":
            found[kind] = spent(shop, tmp_path / kind / "wheels", every, stamp="00")
        else:
            parts = [
                spent(shop, tmp_path / f.name, [f], stamp=f"{number:02}")
                for number, f in enumerate(every)
            ]
            found[kind] = tuple(map(sum, zip(*parts, strict=True)))
    print(len(every), found)
    # the wheels of a set each have the code of one family alone
    assert found["a set each"][1] == pytest.approx(len(every) * found["one set"][1], rel=0.02)
    # what grows with families is what is theirs alone: verdicts and pages
    assert found["one set"][0] < 0.7 * found["a set each"][0]


# The command line


def run(capsys, *argv: str) -> tuple[int, dict, str]:
    code = main([*argv, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else {}, err


@pytest.fixture
def where(shop, tmp_path, monkeypatch) -> tuple[str, ...]:
    """The options that name the shop as a channel."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "store").mkdir()
    (tmp_path / "channels.yaml").write_text(
        f"channels:\n  try:\n    store: {shop.channel.store}\n    one_build: true\n    first_sets: free\n"
        '    prefixes:\n      "7": {staging: v2-staging, release: v2}\n'
    )
    return ("--channel", "try", "--channels-file", "channels.yaml")


def test_commands_speak_of_each_family(shop, where, tmp_path, capsys) -> None:
    one = make_set(tmp_path / "1", **both())
    code, said, _ = run(capsys, "stage", "1", *where)
    assert (code, said["families"]) == (0, [Y.name, X.name])
    shop.gate(one, X)
    sha = ("--manifest", one.sha256[:12])
    code, said, err = run(capsys, "promote", *sha, *where)
    assert (code, said["state"]) == (9, "published")
    assert (said["all"]["released"], said["all"]["waits_for"]) == (False, [Y.name])
    assert {name: (item["state"], item["released"]) for name, item in said["families"].items()} == {
        X.name: ("published", True),
        Y.name: ("blocked", False),
    }
    assert said["families"][Y.name]["blocked_by"][0]["suite"] == "smoke"
    assert said["families"][X.name]["index_url"].endswith(f"/v2/{X.name}/")
    assert " gate --channel=try --channels-file=" in err
    assert f" --manifest {one.sha256[:12]} --family {Y.name} --python " in err
    blocked = run(capsys, "promote", *sha, *where, "--family", Y.name)[1]
    assert blocked["state"] == "blocked"
    assert f" on {Y.name}: smoke on CPython " in blocked["reason"], "what a night shows"
    states = {s["family"]: s["state"] for s in run(capsys, "status", *where)[1]["sets"]}
    assert states == {X.name: "released", Y.name: "staged"}
    (seen,) = run(capsys, "status", *where, "--family", Y.name)[1]["sets"]
    assert (seen["state"], seen["blocked_by"][0]["suite"]) == ("staged", "smoke")

    shop.gate(one, Y)
    said = run(capsys, "promote", *sha, *where, "--dry-run")[1]
    assert (said["all"]["released"], said["all"]["waits_for"]) == (False, [Y.name])
    code, said, _ = run(capsys, "promote", *sha, *where, "--family", Y.name)
    assert (code, said["all"]["released"], said["all"]["waits_for"]) == (0, True, [])
    assert said["all"]["index_url"].endswith("/v2/all/")
    assert said["all"]["index_url"] in json.dumps(said["all"]["install"])
    why = ("--reason", "segfaults")
    for named in ((), ("--family", X.name)):
        assert run(capsys, "restore", *sha, *where, *why, *named)[0] == 9, "never rolled back"
    code, said, _ = run(capsys, "rollback", *sha, *where, *why, "--family", Y.name)
    assert (code, said["state"], said["families"]) == (0, "rolled-back", [Y.name])
    states = {s["family"]: s["state"] for s in run(capsys, "status", *where)[1]["sets"]}
    assert states == {X.name: "released", Y.name: "rolled back"}
    assert run(capsys, "restore", *sha, *where, *why)[1]["state"] == "restored"
    assert run(capsys, "restore", *sha, *where, *why)[1]["state"] == "nothing-to-do"
    assert run(capsys, "restore", *sha, *where, *why, "--family", X.name)[0] == 9
    assert run(capsys, "yank", *sha, *where, *why)[1]["state"] == "yanked"
    assert run(capsys, "index", "check", *where)[0] == 0
    assert run(capsys, "index", "check", *where, "--family", X.name)[0] == 0
    repaired = run(capsys, "index", "repair", *where)[1]["places"]
    assert [item["state"] for item in repaired] == ["nothing-to-do"]
    assert run(capsys, "prune", *where)[0] == 0
    assert shop.store.info(f"v2/{X.name}/compat.html")
    assert b"compat.html" in shop.store.read(f"v2/{X.name}/index.html")[0]
    assert shop.store.info("v2/all/compat.html")


def both() -> dict:
    """The options of a set for X and Y."""
    families = tuple(sorted((X.name, Y.name)))
    return {"pythons": ("3.12",), "families": families, "gfx": (*X.targets, *Y.targets)}


def test_who_took_it_back_is_named_for_each_family(shop, where, tmp_path, capsys) -> None:
    one = make_set(tmp_path / "1", **both())
    assert run(capsys, "stage", "1", *where)[0] == 0
    shop.gate(one, X, Y)
    sha = ("--manifest", one.sha256)
    assert run(capsys, "promote", *sha, *where)[0] == 0
    for family, who in ((X, "Ann"), (Y, "Bob")):
        why = ("--family", family.name, "--by", who, "--reason", f"hangs for {who}")
        assert run(capsys, "rollback", *sha, *where, *why)[0] == 0
    for family, who in ((X, "Ann"), (Y, "Bob")):
        code, _, err = run(capsys, "promote", *sha, *where, "--family", family.name)
        assert (code, f"was rolled back by {who}: hangs for {who}" in err) == (9, True)


def test_the_newest_sets_of_the_index_of_all_are_kept(shop, tmp_path) -> None:
    """Each family has newer ones, that all of them never had."""
    made = [shop.made(tmp_path / str(n), suffix=f"+rocm7.10.0.{n}") for n in (1, 2, 3)]
    for day, families in enumerate(((X, Y), (X,), (Y,))):
        shop.gate(made[day], *families)
        who = replace(WHO, now=NOW + timedelta(days=day))
        plan = promote.plan(made[day], families, shop.channel, shop.store, who=who)
        promote.apply(plan, console=shop.console)
    assert shop.seen(ALL) == names(made[0])
    late = replace(WHO, now=NOW.replace(year=2028), reason="retention")
    keep = replace(shop.channel.retention, release_days=1, keep_newest=1)
    plan = retention.plan(shop.release, replace(shop.channel, retention=keep), who=late)
    assert plan.expired(plan.start) == ()


@pytest.mark.parametrize("kind", ["of two families", "of one"])
def test_pages_that_only_a_lost_entry_named_are_mended(shop, where, tmp_path, capsys, kind) -> None:
    options = both() if kind == "of two families" else {"pythons": ("3.12",)}
    one = make_set(tmp_path / "1", **options)
    own = ("--family", ALL if kind == "of two families" else X.name)
    assert run(capsys, "stage", "1", *where, *own)[0] == 0
    release = shop.release
    shop.gate(one, *((X, Y) if kind == "of two families" else (X,)))
    assert run(capsys, "promote", "--manifest", one.sha256, *where, *own)[0] == 0
    pages = [
        item.key for item in shop.store.keys("v2/") if item.key.endswith(("/index.html", ".json"))
    ]
    pages = [key for key in pages if "/_rocwheel/" not in key and "jax" in key]
    assert pages
    assert all(b".whl" in shop.store.read(key)[0] for key in pages)

    (tmp_path / "store" / release.log(1)).write_text("{")
    assert run(capsys, "status", *where, *own)[0] == 7
    why = ("--skip-entry", "1", "--reason", "lost")
    code, said, _ = run(capsys, "index", "repair", *where, *own, *why)
    assert (code, [item["state"] for item in said["places"]]) == (0, ["repaired"])
    assert not any(b".whl" in shop.store.read(key)[0] for key in pages)
    assert audit.check(release).problems == ()
    code, said, _ = run(capsys, "promote", "--manifest", one.sha256, *where, *own)
    assert (code, said["state"]) == (0, "published")
    assert all(b".whl" in shop.store.read(key)[0] for key in pages)


def test_a_family_that_the_matrix_has_no_more_can_be_taken_back(
    shop, where, tmp_path, capsys, monkeypatch
) -> None:
    one = make_set(tmp_path / "1", **both())
    make_set(tmp_path / "2", jax="0.9.2", **both())
    assert run(capsys, "stage", "1", *where)[0] == 0
    shop.gate(one, X, Y)
    sha = ("--manifest", one.sha256[:12])
    assert run(capsys, "promote", *sha, *where)[0] == 0
    fewer = {name: family for name, family in matrix.FAMILIES.items() if name != Y.name}
    monkeypatch.setattr(matrix, "FAMILIES", fewer)
    for line in (("promote", *sha), ("stage", "2")):
        code, _, err = run(capsys, *line, *where)
        assert code == 3
        assert f"is for {Y.name}: no family (any more)" in err
        assert "name with --family those that are" in err
    assert not shop.store.info(shop.staging.manifest(Manifest.load(tmp_path / "2").sha256))
    code, _, err = run(capsys, "promote", *sha, *where, "--family", Y.name)
    assert (code, "unknown GPU family" in err) == (3, True)
    code, said, err = run(capsys, "status", *where)
    assert (code, [item["family"] for item in said["sets"]]) == (0, [X.name])
    assert f"has sets for {Y.name}, unknown to this data" in err
    why = ("--family", Y.name, "--reason", "no runner")
    assert run(capsys, "rollback", *sha, *where, *why)[0] == 0
    assert shop.seen(Y.name) == shop.seen(ALL) == set()
    assert shop.seen(X.name) == names(one)
    assert run(capsys, "promote", *sha, *where, "--family", X.name)[1]["state"] == "nothing-to-do"
    monkeypatch.setattr(matrix, "FAMILIES", {Z.name: Z})
    for command in ("status", "compat"):
        code, _, err = run(capsys, command, *where)
        assert (code, "name their file: --family-file FILE" in err) == (3, True)


MISTAKES = {
    "stage single": "is a set of one family",
    "promote --manifest two --family gfx1153": "gfx1153: the wheels lack",
    "promote --manifest two --family gfx94": "unknown",
    "rollback --manifest two --reason x --family gfx90a": "never released",
    "rollback --manifest 123456 --reason x --family gfx91": "unknown GPU family",
    "gate --manifest two --python 3.12 --suite smoke": "give --family, one of",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_about_families_is_one_error(shop, where, tmp_path, capsys, line) -> None:
    make_set(tmp_path / "single", jax="0.9.2", pythons=("3.12",))
    make_set(tmp_path / "two", **both())
    assert run(capsys, "stage", "two", *where)[0] == 0
    before = shop.listing(shop.staging), shop.listing(shop.release)
    assert main([*line.split(), *where, "--quiet"]) in {2, 3, 9}
    (error, *hint) = capsys.readouterr().err.strip().splitlines()
    assert MISTAKES[line] in error
    assert len(hint) <= 1
    assert (shop.listing(shop.staging), shop.listing(shop.release)) == before


def test_without_a_channel_a_set_of_several_families_is_for_each(tmp_path, capsys) -> None:
    one = make_set(tmp_path / "two", **both())
    where = ("--family", ALL, "--store", (tmp_path / "store").as_uri())
    assert run(capsys, "stage", str(tmp_path / "two"), *where)[0] == 0
    shop = SharedShop((tmp_path / "store").as_uri(), None)
    shop.gate(one, X, Y)
    said = run(capsys, "promote", "--manifest", one.sha256, *where)[1]
    assert {item["state"] for item in said["families"].values()} == {"published"}
    assert shop.seen(X.name) == shop.seen(ALL) == names(one)
    assert len(run(capsys, "status", *where)[1]["sets"]) == 2
    assert len(run(capsys, "status", "--family", X.name, *where[2:])[1]["sets"]) == 1
    assert len(run(capsys, "status", *where[2:])[1]["sets"]) == 2
