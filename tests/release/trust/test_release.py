"""A promotion believes signatures of the right role and nothing else: first the good way."""

from __future__ import annotations

import json
import re
from datetime import date

import pytest
from support.trust import FAMILY, NOW, Keyring, SignedShop, make_record
from support.wheelset import make_set, make_verdict

from rocwheel.base import files
from rocwheel.base.values import replace
from rocwheel.records.manifest import BuildRecord
from rocwheel.records.verdict import State
from rocwheel.release.ledger.state import Action
from rocwheel.release.trust import TrustError, envelope, statements, verifier
from rocwheel.release.trust.policy import Case, Revocation


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
    import base64

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
