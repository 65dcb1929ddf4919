"""`trust` and what other commands sign, as a person calls them; keys lie in files of their own."""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from support.serving import serving
from support.trust import NOW, World, make_record
from support.wheelset import FAMILY, SUITES, make_verdict, ran, wheel_key

from rocwheel.base import home
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import replace
from rocwheel.cli import main
from rocwheel.gate.report import render
from rocwheel.gate.verdict import judge, storing
from rocwheel.records.manifest import BUILD_RECORD
from rocwheel.records.results import Attempt, Outcome, Results, TestResult
from rocwheel.records.verdict import State
from rocwheel.release import proof
from rocwheel.release.ledger import verdicts
from rocwheel.release.trust import TrustError, envelope, policy, signers, verifier

ROOT = Path(__file__).parents[3]


@pytest.fixture
def world(tmp_path, console, monkeypatch):
    """A team's data with one channel, three keys, and a set that is built and staged by nobody."""
    return World(tmp_path, console, monkeypatch)


def test_from_the_wheelhouse_to_a_fresh_machine_with_public_keys_alone(world, capsys) -> None:
    """A machine without a key builds, another signs; a downloaded wheel is verified offline."""
    assert world.run(*world.target("stage", world.folder)) == 0
    promote = world.target("promote", f"--manifest={world.manifest.sha256}")
    world.gate()
    assert world.run(*promote, f"--signer={world.uri('promoter')}") == 9
    assert "has no provenance" in capsys.readouterr().err
    assert world.run("trust", "sign", world.folder, f"--signer={world.uri('builder')}") == 0
    assert world.run(*world.target("stage", world.folder)) == 0
    assert world.run(*promote) == 9
    assert "needs the signature of a promoter" in capsys.readouterr().err
    assert world.run(*promote, f"--signer={world.uri('promoter')}") == 0

    fresh = world.tmp / "fresh"
    fresh.mkdir()
    shutil.copy(world.bundle, fresh)
    shutil.copy(world.ci / "trust.yaml", fresh / "keys.yaml")
    for wheel in world.manifest.built:
        shutil.copy(world.shop.store.root / wheel_key(world.shop.release, wheel.filename), fresh)
    shutil.rmtree(world.keys)
    shutil.rmtree(world.shop.store.root)
    capsys.readouterr()
    for wheel in world.manifest.built:
        assert (
            main(["trust", "verify", str(fresh / wheel.filename), f"--keys={fresh}/keys.yaml"]) == 0
        )
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[:2] for line in lines].count(["ok", "runner"]) == 2
        assert {line.split()[1] for line in lines} == {"builder", "runner", "promoter"}
        assert "promote to mine" in "".join(lines)

    wheel = fresh / world.manifest.built[0].filename
    wheel.write_bytes(wheel.read_bytes() + b"\0")
    assert main(["trust", "verify", str(wheel), f"--keys={fresh}/keys.yaml", "--json"]) == 9
    document = json.loads(capsys.readouterr().out)
    assert document["state"] == "broken"
    assert any("is not about" in link["about"] for link in document["links"])


def test_a_key_that_is_lost_in_the_middle_of_a_night_costs_its_cells_another_gate(
    world, capsys
) -> None:
    """What it signed before stands; what ran without it counts once another key signs a run."""
    world.staged()
    smoke, unit = (make_verdict(world.manifest, suite=suite) for suite in ("smoke", "unit"))
    verdicts.add(world.shop.staging, unit)
    verdicts.add(world.shop.staging, smoke, world.signer("runner"))
    (world.keys / "runner.pem").unlink()
    promote = world.target("promote", f"--manifest={world.manifest.sha256}")
    promote += (f"--signer={world.uri('promoter')}",)
    assert world.run(*promote) == 9
    assert f"verdict {unit.sha256[:12]} is unsigned" in capsys.readouterr().err
    assert world.run("trust", "keygen", world.keys / "second.pem", "--role=runner") == 0
    path, entry = world.ci / "trust.yaml", capsys.readouterr().out
    entry = re.sub(r"since: .*", "since: 2026-01-01", entry)  # the verdicts are of a day of May
    path.write_text(path.read_text().replace("keys:\n", f"keys:\n{entry}", 1))
    again = make_verdict(world.manifest, suite="unit", host="node2")
    verdicts.add(world.shop.staging, again, world.signer("second"))
    assert world.run(*promote) == 0, capsys.readouterr().err


def add_shard(
    world, number: int, *, signer: str = "runner", bad: bool = False, host: str = "n"
) -> str:
    """Store what a runner leaves of one of two shards of smoke, signed; return the verdict's digest."""
    file, outcome = f"test_{number}.py", Outcome.FAILED if bad else Outcome.PASSED
    attempt = Attempt(outcome=outcome, lane="gpu0", process=1, start_ms=0, duration_ms=1)
    results = Results(
        suite="smoke", shard=f"{number}/2", files=(file,), suite_files=("test_1.py", "test_2.py"),
        tests=tuple(
            TestResult(test=f"{file}::test_{n}", outcome=outcome, attempts=(attempt,))
            for n in range(SUITES["smoke"].demands.of(world.manifest.jax_version).must_run)
        ),
        environment={"family": FAMILY.name, "manifest": world.manifest.sha256},
    )  # fmt: skip
    demand = replace(SUITES["smoke"].demands.of(world.manifest.jax_version), must_run=0)
    found = judge.judge(results, demand)
    drawn = judge.drawn(results, found, demand)
    what = ran("smoke", world.manifest, collected=judge.collected(results))
    verdict = make_verdict(world.manifest, **{**drawn, "ran": what, "host": host})
    sign = world.signer(signer) if signer else None
    key, stored = storing.put(world.shop.staging, verdict, render(results, found, {}), signer=sign)
    assert key.endswith("json")
    return stored.sha256


def merge_of(world, *more: str) -> int:
    smoke = ("--suite=smoke", "--python=3.12", f"--manifest={world.manifest.sha256}")
    output = f"--output={world.tmp}/merged"
    return world.run(*world.target("gate", "merge", "--shards=2", *smoke, output, *more))


def merged(world) -> list[str]:
    """Digests of the shards that the last merged verdict says it was made of."""
    found = verdicts.find(world.shop.staging, world.manifest.sha256)
    every = (envelope.parse(item.line, name=item.key).statement.own for item in found)
    return next(own["parts"] for own in every if own["parts"])


def test_a_shard_that_is_swapped_before_the_merge_is_none(world, capsys) -> None:
    """The failing run of a runner goes; a forged pass lies there instead."""
    world.staged()
    one = add_shard(world, 1)
    two = add_shard(world, 2, bad=True)
    root, sign = world.shop.store.root, f"--signer={world.uri('runner')}"
    (swapped,) = root.rglob("2.json")
    kept = swapped.read_bytes()
    swapped.unlink()
    forged = add_shard(world, 2, signer="")
    assert merge_of(world, sign) == State.NOT_RUN.exit_code
    said = capsys.readouterr()
    assert f"shard 2/2 is left out: verdict {forged[:12]} is unsigned: no runner" in said.err
    assert "shard 2 of 2 has no results" in said.out
    assert merged(world) == [one]
    assert two != forged

    swapped.rename(swapped.with_name("3.json"))  # the merged one had the number of what went
    swapped.write_bytes(kept)
    assert merge_of(world, "--dry-run") == 0
    assert "would store: fail" in capsys.readouterr().err, "put back, it counts again"


@pytest.mark.parametrize("signer", ["builder", ""])
def test_a_shard_that_no_runner_signed_is_missing(world, capsys, signer) -> None:
    world.staged()
    add_shard(world, 1)
    add_shard(world, 2, signer=signer)
    assert merge_of(world) == State.NOT_RUN.exit_code
    why = "is not a runner's key" if signer else "no runner's key has signed it"
    assert why in capsys.readouterr().err


def test_a_merged_verdict_names_the_signed_shards_alone(world, capsys) -> None:
    """Another, unsigned run of a shard stops nothing: it counts by itself where it failed."""
    world.staged()
    shards = [add_shard(world, number) for number in (1, 2)]
    add_shard(world, 2, signer="", host="stranger")
    assert merge_of(world, f"--signer={world.uri('runner')}") == 0
    assert "shard 2/2 is left out" in capsys.readouterr().err
    assert sorted(merged(world)) == sorted(shards)


def test_a_channel_that_requires_nothing_merges_unsigned_shards(world, capsys) -> None:
    rules = (world.ci / "trust.yaml").read_text().partition("channels:\n  mine:")[0]
    (world.ci / "trust.yaml").write_text(rules)
    world.staged()
    for number in (1, 2):
        add_shard(world, number, signer="")
    assert merge_of(world) == 0
    assert "unsigned" not in capsys.readouterr().err


def reproduce(world, signer: str) -> None:
    """Leave beside the set what `rebuild` states on another machine, where it made the same."""
    record = replace(make_record(world.manifest), host="build2")
    again = world.tmp / f"again-{signer}"
    shutil.copytree(world.folder, again, ignore=shutil.ignore_patterns(proof.REPRODUCED))
    (again / BUILD_RECORD).write_bytes(record.to_bytes())
    sign = world.signer(signer)
    made = proof.state_build(again, sign, again=world.manifest)
    shutil.copy(made, world.folder)


@pytest.mark.parametrize(("signer", "counts"), [("builder", True), ("runner", False)])
def test_who_built_a_set_again_is_part_of_its_chain(world, capsys, signer, counts) -> None:
    """`stage` takes the statement along; a key of another role says nothing, and stops nothing."""
    world.staged()
    reproduce(world, signer)
    assert world.run(*world.target("stage", world.folder)) == 0
    assert world.run(*world.target("stage", world.folder)) == 0
    assert "nothing-to-do" in capsys.readouterr().out
    world.gate()
    assert world.change("promote") == 0
    capsys.readouterr()
    bundle = f"--statements={world.bundle}"
    keys = f"--keys={world.ci}/trust.yaml"
    assert main(["trust", "verify", f"{world.folder}/manifest.json", bundle, keys]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("built by" in line for line in lines) == 1
    reproduced = [line for line in lines if "reproduced by" in line]
    assert len(reproduced) == counts
    assert all("host@build2; signed by builder" in line for line in reproduced)


def test_a_set_that_was_built_again_stands_without_its_first_builder(world, capsys) -> None:
    """What one builder's revoked key signed, another's says too: no rollback is needed.

    A channel may ask for that before a promotion: a builder's word on its own build is not it.
    """
    keys = world.ci / "trust.yaml"
    other = world.keys / "other.pem"
    public = signers.public_pem(signers.generate(other))
    entry = "".join(f"      {line}\n" for line in public.splitlines())
    keys.write_text(keys.read_text().replace("promoter]}", "promoter], reproduced: true}").replace(
        "channels:\n  mine",
        "  other:\n    algorithm: ed25519\n    role: builder\n    since: 2026-01-01\n"
        f"    until: 2099-01-01\n    public: |\n{entry}channels:\n  mine",
    ))  # fmt: skip
    world.staged()
    world.gate()
    for builder, code in (("builder", 9), ("other", 0)):
        reproduce(world, builder)
        assert world.run(*world.target("stage", world.folder)) == 0
        assert world.run(*world.target("status", "--json")) == 0
        says = "no second builder's key says that it built" in capsys.readouterr().out
        assert world.change("promote") == code
        assert says == (" wheel rebuild " in capsys.readouterr().err) == bool(code)
    trust = policy.load(keys)
    revoked = policy.Revocation(since=date(2026, 1, 2), reason="stolen")
    for names, alone in ((("builder",), False), (("builder", "other"), True)):
        changed = {
            keyid: replace(key, revoked=revoked) if trust.name(keyid) in names else key
            for keyid, key in trust.keys.items()
        }
        found = verifier.revoked(
            world.bundle.read_bytes(), replace(trust, keys=changed), released=NOW
        )
        assert found == (frozenset(names), alone)


def test_a_person_signs_an_approval_and_promote_asks_for_it(world, capsys) -> None:
    path = world.ci / "trust.yaml"
    path.write_text(path.read_text().replace("promoter]", "promoter, approver]"))
    world.staged()
    world.gate()
    failed = make_verdict(world.manifest, suite="unit", state=State.FAIL)
    verdicts.add(world.shop.staging, failed)
    named = world.target(f"--manifest={world.manifest.sha256}")
    why = ("--by=ann", "--reason=known race")
    sign = f"--signer={world.uri('promoter')}"
    assert world.run("promote", *named, sign) == 9
    line = re.search(r"`.*? (trust approve .*)`", capsys.readouterr().err)[1]
    names = {"KEY": world.uri("approver"), "NAME": "ann", "WHY": "'known race'"}
    pasted = shlex.split(re.sub("KEY|NAME|WHY", lambda word: names[word[0]], line))
    assert world.run("promote", *named, sign, "--approve=unit:3.12", *why) == 9
    assert "takes the signed word of an approver alone" in capsys.readouterr().err
    approve = ("trust", "approve", "unit:3.12", *named)
    assert world.run(*approve, *why) == 2
    assert world.run(*approve, *why, sign) == 9
    assert "role: it is a key of the role promoter" in capsys.readouterr().err
    mine = f"--signer={world.uri('approver')}"
    assert world.run(*approve, mine) == 3, "a reason is needed"
    assert world.run(*approve, *why, mine, "--dry-run") == 0
    assert main(pasted) == 0, "as it was printed, with names"
    assert world.run(*approve, *why, mine) == 9
    assert "unit:3.12: waits for no approval" in capsys.readouterr().err
    assert world.run("promote", *named, sign) == 0
    bundle = f"--statements={world.bundle}"
    assert world.run("trust", "verify", world.folder, bundle) == 0
    assert "unit on CPython 3.12 approved by ann: known race; signed by approver" in (
        capsys.readouterr().out
    )


def verified(world, capsys, number: int = 0) -> tuple[int, str, list[str]]:
    """Verify a wheel of the set: exit status, state, what is said of it since its promotion."""
    capsys.readouterr()
    wheel = world.folder / world.manifest.built[number].filename
    status = world.run("trust", "verify", wheel, f"--statements={world.bundle}", "--json")
    document = json.loads(capsys.readouterr().out)
    said = [link["about"] for link in document["links"] if link["role"] == "release"]
    assert all(link["holds"] for link in document["links"] if link["role"] != "release")
    return status, document["state"], said


def test_a_download_tells_that_its_set_was_rolled_back_or_yanked_since(world, capsys) -> None:
    world.released()
    assert verified(world, capsys) == (0, "verified", [])
    assert world.change("rollback") == 0
    status, state, (said,) = verified(world, capsys)
    assert (status, state) == (9, "rolled back")
    assert re.fullmatch(r"rolled back by ann on \d{4}-\d\d-\d\d: it leaks", said)
    assert world.change("rollback") == 0  # nothing to do, and nothing is stated twice
    assert world.change("restore") == 0
    assert verified(world, capsys) == (0, "verified", [])
    name = world.manifest.built[0].filename
    assert world.change("yank", "--file", name) == 0
    status, state, (said,) = verified(world, capsys)
    assert (status, state) == (0, "yanked")
    assert said.startswith(f"{name} was yanked by ann")
    assert verified(world, capsys, 1) == (0, "verified", [])
    assert world.change("unyank", "--file", name) == 0
    assert verified(world, capsys) == (0, "verified", [])
    assert world.change("yank") == 0
    assert [verified(world, capsys, number)[1] for number in (0, 1)] == ["yanked", "yanked"]
    lines = [json.loads(line) for line in world.bundle.read_bytes().splitlines()]
    inner = [json.loads(base64.b64decode(line["payload"]))["predicate"] for line in lines[-6:]]
    assert [item["verificationResult"] for item in inner] == [
        "PASSED", "FAILED", "PASSED", "FAILED", "PASSED", "FAILED"
    ]  # fmt: skip


def test_a_file_that_is_yanked_again_is_said_to_be(world, capsys) -> None:
    """Its own first yank was taken back with the whole set's."""
    world.released()
    file = ("--file", world.manifest.built[0].filename)
    for action, words, state in (
        ("yank", file, "yanked"),
        ("unyank", (), "verified"),
        ("yank", file, "yanked"),
        ("yank", (), "yanked"),
        ("unyank", file, "verified"),
        ("yank", (), "yanked"),
    ):
        assert world.change(action, *words) == 0
        assert verified(world, capsys)[:2] == (0, state), (action, words)
    lines = len(world.bundle.read_bytes().splitlines())
    assert world.change("yank", *file) == 0, "the command yanked it and said so"
    assert len(world.bundle.read_bytes().splitlines()) == lines


@pytest.mark.parametrize("signed", ["builder", "stranger", ""])
def test_a_runner_runs_no_set_that_no_builder_signed(world, capsys, signed) -> None:
    """Tests run with what the runner may do: its key, where that is a file."""
    if signed == "stranger":
        signers.generate(world.keys / "stranger.pem")
    key = world.signer(signed) if signed else None
    if key:
        proof.state_build(world.folder, key)
    assert world.run(*world.target("stage", world.folder)) == 0
    cell = ("--suite=smoke", "--python=3.12", f"--manifest={world.manifest.sha256}", "--dry-run")
    status = world.run(*world.target("gate", *cell))
    said = capsys.readouterr().err
    assert (status == TrustError.exit_code) is (signed != "builder"), said
    assert ("has no provenance" in said) is (signed != "builder"), said
    assert ("not in the trust file" in said) is (signed == "stranger"), said


def test_what_comes_back_needs_a_promoters_key_and_what_leaves_waits_for_none(
    world, capsys
) -> None:
    world.released()
    assert world.change("rollback", signer="runner") == 9
    assert "a key of the role runner, not promoter" in capsys.readouterr().err
    assert world.change("rollback", signer="") == 0
    assert "not signed: run it again" in capsys.readouterr().err
    assert verified(world, capsys)[1] == "verified"  # so it is said
    assert world.change("restore", signer="") == 9
    assert "`restore` needs the signature of a promoter's key" in capsys.readouterr().err
    assert world.change("rollback") == 0  # done, and stated now
    assert verified(world, capsys)[1] == "rolled back"


def test_public_statements_that_are_lost_are_put_back_by_the_next_command(world, capsys) -> None:
    world.released()
    before = world.bundle.read_bytes()
    world.bundle.unlink()
    assert world.change("rollback") == 0
    assert world.bundle.read_bytes().startswith(before)
    assert verified(world, capsys)[1] == "rolled back"


OTHERS = "other statements than these"
# how the lines of a promotion are changed, and what the command prints
CHANGED = (
    (lambda lines: lines.clear(), "unsigned: no statement holds"),
    (lambda lines: lines.pop(0), f"{OTHERS}|unsigned"),
    (lambda lines: lines.pop(1), OTHERS),
    (lambda lines: lines.pop(), "promoter  unsigned"),
    (lambda lines: lines.append(lines.pop().replace(b'"sig":"', b'"sig":"AAAA')), "does not fit"),
    (lambda lines: lines.insert(0, lines[0].replace(b" ", b"")), OTHERS),
    (lambda lines: lines.append(b"{}\n"), "payload"),
    (lambda lines: lines.append(b"\n"), "truncated|JSON"),
)
# and of a rollback and a restore that came after it
CHANGED_AFTERWARDS = (
    (lambda lines: lines.pop(-2), OTHERS),  # the rollback is taken out
    (lambda lines: lines.append(lines.pop(-2)), OTHERS),  # and put behind the restore
    (lambda lines: lines.append(lines[-3]), OTHERS),  # the promotion once more
    (lambda lines: lines.append(lines[-1]), OTHERS),
    (lambda lines: lines.pop(-3), OTHERS),  # the promotion is taken out
)


def test_statements_are_a_chain(world, capsys) -> None:
    world.released()
    wheel, bundle = world.folder / world.manifest.built[0].filename, world.tmp / "bundle.jsonl"
    for changes in (CHANGED, CHANGED_AFTERWARDS):
        stored = world.bundle.read_bytes().splitlines(keepends=True)
        for number, (change, message) in enumerate(changes):
            change(lines := [*stored])
            bundle.write_bytes(b"".join(lines))
            capsys.readouterr()
            assert world.run("trust", "verify", wheel, f"--statements={bundle}") == 9, number
            said = capsys.readouterr().out
            assert re.search(rf"BROKEN .*({message})", said), (number, said)
        assert world.change("rollback") == world.change("restore") == 0


def revoke(world, name: str, since: str) -> None:
    path = world.ci / "trust.yaml"
    old = f"  {name}:\n"
    text = path.read_text().replace(
        old, f"{old}    revoked: {{since: {since}, reason: stolen}}\n", 1
    )
    path.write_text(text)


def another_key(world, name: str, role: str, capsys) -> None:
    capsys.readouterr()
    assert world.run("trust", "keygen", world.keys / f"{name}.pem", f"--role={role}") == 0
    entry = re.sub(r"since: .*", "since: 2026-01-01", capsys.readouterr().out)
    path = world.ci / "trust.yaml"
    path.write_text(path.read_text().replace("keys:\n", f"keys:\n{entry}", 1))


def shown(world, capsys) -> dict:
    capsys.readouterr()
    assert world.run(*world.target("status", "--json")) in {0, 9}  # a revoked promoter's head
    (row,) = json.loads(capsys.readouterr().out)["sets"]
    return row


@pytest.mark.parametrize("name", ["builder", "runner", "promoter"])
def test_a_release_that_rests_on_a_revoked_key_is_taken_back_with_the_line_that_is_printed(
    world, capsys, name, monkeypatch
) -> None:
    monkeypatch.setattr("sys.argv", ["rocwheel"])
    for role in ("builder", "runner", "promoter"):
        another_key(world, f"other-{role}", role, capsys)
    world.released()
    assert (shown(world, capsys)["next"], shown(world, capsys)["rollback"]) == ("", "")
    revoke(world, name, "2099-01-01")  # after the release
    assert shown(world, capsys)["next"] == ""
    path = world.ci / "trust.yaml"
    path.write_text(
        path.read_text().replace("since: 2099-01-01, reason", "since: 2026-06-01, reason")
    )
    assert shown(world, capsys)["next"] == f"{name} revoked: it rests on nothing else: roll it back"
    assert world.run(*world.target("status")) == (9 if name == "promoter" else 0)
    program, *words = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert program == "rocwheel"
    assert world.run(*words, f"--signer={world.uri('other-promoter')}") == 0
    row = shown(world, capsys)
    assert (row["state"], row["next"], row["rollback"]) == ("rolled back", "", "")


@pytest.mark.parametrize(
    ("suites", "said"),
    [(("smoke", "unit"), "other keys signed the same"), (("smoke",), "it rests on nothing else")],
)
def test_a_release_that_others_signed_as_well_stays(world, capsys, suites, said) -> None:
    another_key(world, "other", "runner", capsys)
    for suite in suites:
        verdict = make_verdict(world.manifest, suite=suite, host="node2")
        verdicts.add(world.shop.staging, verdict, world.signer("other"))
    world.released()
    revoke(world, "runner", "2026-02-01")
    row = shown(world, capsys)
    assert said in row["next"]
    assert bool(row["rollback"]) == ("nothing else" in said)


def test_statements_that_cannot_be_read_are_told_of_a_release(world, capsys) -> None:
    world.released()
    revoke(world, "runner", "2026-02-01")
    another_key(world, "other", "runner", capsys)
    named = next((world.bundle.parents[3] / "bundles").iterdir())
    for garbage in (b"{}\n", b"\n", b"\xff\n"):
        world.bundle.write_bytes(garbage)
        named.write_bytes(garbage)
        assert "its statements cannot be read" in shown(world, capsys)["next"]


@pytest.fixture
def index(world) -> Iterator[str]:
    """The URL of the index of a released set."""
    world.released()
    with serving(world.shop.store) as site:
        yield f"{site.url}{world.shop.release.index}"


def test_every_wheel_of_an_index_and_one_by_its_url_are_verified(world, index, capsys) -> None:
    capsys.readouterr()
    assert world.run("trust", "verify", index, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["files"]
    assert {(row["file"], row["sha256"], row["state"]) for row in rows} == {
        (wheel.filename, wheel.sha256, "verified") for wheel in world.manifest.built
    }
    wheel = world.manifest.built[0]
    assert world.run("trust", "verify", f"{index}/{quote(wheel.filename)}") == 0
    assert capsys.readouterr().out.count("\nok") == 4
    real = f"{index.rpartition('/')[0]}/files/{wheel.sha256[:16]}/{quote(wheel.filename)}"
    assert world.run("trust", "verify", real) == 2, "which index offers it?"
    assert world.run("trust", "verify", real, "--statements", index) == 0
    assert world.change("yank", "--file", wheel.filename) == 0
    capsys.readouterr()
    assert world.run("trust", "verify", f"{index}/") == 0
    assert f"yanked: {wheel.filename}\n" in capsys.readouterr().out

    path = world.shop.store.root / wheel_key(world.shop.release, wheel.filename)
    path.write_bytes(path.read_bytes() + b"\0")  # the page still states the digest of before
    assert world.run("trust", "verify", f"{index}/{quote(wheel.filename)}") == 9
    assert "BROKEN builder   subject: it is not about" in capsys.readouterr().out
    world.bundle.unlink()
    assert world.run("trust", "verify", index) == 0, "those that the log names are there"
    for path in world.shop.store.root.rglob("_rocwheel/bundles/*"):
        path.unlink()
    capsys.readouterr()
    assert world.run("trust", "verify", index) == 9
    said = capsys.readouterr().out
    assert said.count("unsigned: no statement holds") == 3 * len(world.manifest.built)
    assert said.count("not the statements that the log names") == len(world.manifest.built)


def test_a_page_leads_to_the_statements_and_one_without_a_set_to_none(world, index, capsys) -> None:
    (project, *_) = sorted({wheel.project for wheel in world.manifest.built})
    page = world.shop.store.root / world.shop.release.json(project)
    document = json.loads(page.read_bytes())
    link = document["files"][0]["_rocwheel"]["statements"]
    assert (page.parent / link).resolve() == world.bundle.resolve()
    del document["files"][0]["_rocwheel"]  # as of a wheel that came before rocwheel
    page.write_text(json.dumps(document))
    capsys.readouterr()
    assert world.run("trust", "verify", index) == 9
    assert capsys.readouterr().out.count("unsigned: no statement holds") == 3


def test_pip_downloads_and_the_recipe_of_the_docs_verifies(world, index, tmp_path, capsys) -> None:
    """The lines of docs/how-to/trust.md, with a pip and an index on this machine."""
    text = (ROOT / "docs" / "how-to" / "trust.md").read_text().partition("## Verify a download")[2]
    lines = re.findall(r"^\$ (.+)$", text.partition("\n## ")[0], re.MULTILINE)
    downloads, verify, everything = (line.replace("$INDEX", index) for line in lines)
    shutil.copy(world.ci / "trust.yaml", tmp_path / "trust.yaml")
    pip = [sys.executable, "-m", *shlex.split(downloads), "--isolated", "--no-cache-dir"]
    subprocess.run(pip, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    world.monkeypatch.chdir(tmp_path)
    for line in (verify, everything):
        program, *words = shlex.split(line)
        words = [wheel.name if word.endswith("*.whl") else word for word in words]
        capsys.readouterr()
        assert program == "rocwheel"
        assert main(words) == 0
        assert "BROKEN" not in capsys.readouterr().out
    assert world.change("rollback") == 0
    assert main(["trust", "verify", wheel.name, "--statements", index, "--keys=trust.yaml"]) == 9
    assert f"does not list {wheel.name}" in capsys.readouterr().err


def test_a_url_that_is_no_index_is_two_lines(world, index, capsys) -> None:
    for path, message in (
        ("/nowhere", "no page of an index"),
        ("/jax-rocm7-pjrt", "offers no wheel"),
        ("/x-1.whl", "not the name of a wheel"),
    ):
        capsys.readouterr()
        assert world.run("trust", "verify", f"{index}{path}") == 3
        said = capsys.readouterr().err
        assert message in said
        assert len(said.splitlines()) == 2


def test_a_key_is_made_shown_and_followed_by_another(world, capsys) -> None:
    key = world.keys / "new.pem"
    assert world.run("trust", "keygen", key, "--role=runner", "--days=30") == 0
    assert key.stat().st_mode & 0o777 == 0o600
    entry = capsys.readouterr().out
    assert "PRIVATE" not in entry
    text = (world.ci / "trust.yaml").read_text().replace("keys:\n", f"keys:\n{entry}", 1)
    (world.ci / "trust.yaml").write_text(text)
    assert world.run("trust", "show") == 0
    shown = capsys.readouterr().out
    assert "new" in shown
    assert "mine needs builder, runner, promoter" in shown
    assert world.run("trust", "show", f"--signer=file:{key}") == 0
    assert capsys.readouterr().out.startswith("-----BEGIN PUBLIC KEY-----")
    assert world.run("trust", "rotate", "runner", world.keys / "next.pem", "--overlap=3") == 0
    said = capsys.readouterr()
    assert "role: runner" in said.out
    assert "runner: set until: " in said.err
    assert world.run("trust", "rotate", "nobody", world.keys / "x.pem") == 3
    assert world.run("trust", "keygen", key, "--role=runner") == 3
    assert "never written over" in capsys.readouterr().err


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_key_that_others_can_read_is_refused(world, capsys, mode) -> None:
    (world.keys / "builder.pem").chmod(mode)
    assert world.run("trust", "sign", world.folder, f"--signer={world.uri('builder')}") == 3
    assert "others can read the key" in capsys.readouterr().err


@pytest.mark.parametrize("mark", [".git", "MODULE.bazel"])
def test_a_key_is_kept_where_nothing_takes_it_along(world, capsys, mark) -> None:
    """Not in a checkout or a workspace, and not by a link to one."""
    inside = world.tmp / "work" / "v2" / "key.pem"
    (world.tmp / "work" / mark).mkdir(parents=True)
    assert world.run("trust", "keygen", inside, "--role=runner") == 3
    assert not inside.parent.exists()
    inside.parent.mkdir()
    shutil.copy(world.keys / "builder.pem", inside)
    linked = world.keys / "linked.pem"
    linked.symlink_to(inside)
    capsys.readouterr()
    assert world.run("trust", "show", f"--signer=file:{linked}") == 3
    assert "lies in the checkout" in capsys.readouterr().err


def test_a_key_is_written_into_a_folder_that_exists(world, capsys) -> None:
    key = world.tmp / "nowhere" / "builder.pem"
    assert world.run("trust", "keygen", key, "--role=builder") == 3
    assert f"make its folder: mkdir -p -m 700 {key.parent}" in capsys.readouterr().err
    assert not key.parent.exists()


@pytest.mark.parametrize(("bits", "status"), [(1024, 3), (2048, 0)])
def test_an_rsa_key_that_can_be_factored_is_refused(world, capsys, bits, status) -> None:
    public = rsa.generate_private_key(65537, bits).public_key()
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    path = world.ci / "trust.yaml"
    text = path.read_text()
    start, end = text.index(PEM), text.index("    -----END PUBLIC KEY-----\n")
    weak = "\n      ".join(pem.splitlines()[:-1]) + "\n  "
    text = text[:start] + weak + text[end:]
    path.write_text(text.replace("ed25519", "rsassa-pss-sha256", 1))
    assert world.run(*world.target("status")) == status
    assert ("1024 bits can be factored" in capsys.readouterr().err) is bool(status)


@pytest.mark.parametrize(
    "spelling", ["x/../store", "link", "/store", "%73tore", "localhost", "FILE"]
)
def test_a_channels_store_in_another_spelling_needs_what_the_channel_needs(
    world, capsys, spelling
) -> None:
    world.staged()
    (world.tmp / "x").mkdir()
    (world.tmp / "link").symlink_to(world.shop.store.root)
    url = {
        "localhost": world.store.replace("file://", "file://localhost"),
        "FILE": world.store.replace("file:", "FILE:"),
    }.get(spelling, f"{world.tmp.as_uri()}/{spelling}")
    words = ("promote", f"--manifest={world.manifest.sha256}", f"--family={FAMILY.name}")
    world.gate()
    assert world.run(*words, f"--store={url}") == 9
    assert "needs the signature of a promoter's key" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["other", "mine", "second"])
def test_a_file_of_channels_makes_no_channel_of_another_name(world, capsys, name) -> None:
    """`second` needs nothing where it is, and is not taken to the store of `mine`."""
    world.staged()
    world.gate()
    path, prefixes = (
        world.ci / "channels.yaml",
        "    prefixes: {'7': {staging: v2-staging, release: v2}}\n    first_sets: free\n",
    )
    path.write_text(f"{path.read_text()}  second:\n    store: file:///nowhere\n{prefixes}")
    own = world.tmp / "own.yaml"
    own.write_text(f"channels:\n  {name}:\n    store: {world.store}\n{prefixes}")
    words = (f"--manifest={world.manifest.sha256}", f"--family={FAMILY.name}")
    assert world.run("promote", *words, f"--channel={name}", f"--channels-file={own}") == 9
    assert "needs the signature of a promoter's key" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["a deeper prefix", "a store below", "a folder within"])
def test_rules_hold_where_the_keys_are_whatever_names_them(world, capsys, how) -> None:
    """Without a signature it was released into a channel that requires three, and without `e2e`."""
    world.staged()
    world.gate()
    parent, _, last = world.store.rpartition("/")
    path = world.ci / "channels.yaml"
    strict = "    policy: [{suite: e2e, level: required}]\n"
    path.write_text(path.read_text() + strict)
    store, staging, release = {
        "a deeper prefix": (parent, f"{last}/v2-staging", f"{last}/v2"),
        "a store below": (world.store, "v2-staging", "v2"),
        "a folder within": (world.store, "v2-staging", f"v2/{FAMILY.name}/deeper"),
    }[how]
    own = world.tmp / "own.yaml"
    own.write_text(
        f"channels:\n  loose:\n    store: {store}\n"
        f"    prefixes: {{'7': {{staging: {staging}, release: {release}}}}}\n    first_sets: free\n"
    )
    words = (f"--manifest={world.manifest.sha256}", f"--family={FAMILY.name}")
    where = ("--channel=loose", f"--channels-file={own}")
    assert world.run("promote", *words, *where) == 9
    assert "e2e on CPython 3.12 is not-run" in capsys.readouterr().err
    path.write_text(path.read_text().replace(strict, ""))
    assert world.run("promote", *words, *where) == 9
    assert "needs the signature of a promoter's key" in capsys.readouterr().err


def test_what_a_key_or_a_page_says_makes_no_line_of_its_own(world, index, capsys) -> None:
    page = next(world.shop.store.root.glob(f"v2/*/{world.manifest.built[0].project}/index.json"))
    document = json.loads(page.read_bytes())
    document["files"][0]["filename"] = "x.whl\nok     promoter  of mine"
    page.write_text(json.dumps(document))
    capsys.readouterr()
    world.run("trust", "verify", index)
    assert r"x.whl\nok     promoter" in capsys.readouterr().out


def test_an_address_that_no_installer_reads_is_refused(world, capsys) -> None:
    world.released()
    assert world.run("trust", "verify", f"{world.store}/v2/{FAMILY.name}") == 3
    assert "is read by no installer" in capsys.readouterr().err


def test_an_index_whose_only_set_was_rolled_back_is_in_order(world, capsys) -> None:
    world.released()
    assert world.change("rollback") == 0
    assert world.run("index", "check", f"--store={world.store}", f"--family={FAMILY.name}") == 0
    assert "0 files, no problem" in capsys.readouterr().out


def test_a_provenance_is_a_builders_statement(world, capsys) -> None:
    assert world.run("trust", "sign", world.folder, f"--signer={world.uri('runner')}") == 9
    assert "this key is a runner's" in capsys.readouterr().err


def test_a_trust_file_that_is_not_there_is_no_file_without_keys(world, capsys) -> None:
    world.released()
    where = f"--statements={world.bundle}"
    assert world.run("trust", "verify", world.folder, where, "--keys=/nowhere.yaml") == 3
    assert "/nowhere.yaml: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("ftp:x", "no such kind of key"),
        ("file:", "no such kind of key"),
        ("plain", "no such kind of key"),
        ("awskms:", "no such kind of key"),
        ("hsm:abc?label=x", "no such kind of key"),
        ("hsm:2?pin=1234", "no such kind of key"),
        ("file:/nowhere/key.pem", "No such file"),
        ("file:/dev/null", "others can read|no private key"),
        ("file:/etc", "directory|others can read"),
    ],
)
def test_a_signer_that_cannot_be_is_two_lines(world, capsys, uri, message) -> None:
    assert world.run("trust", "show", f"--signer={uri}") == 3
    said = capsys.readouterr().err
    assert re.search(message, said)
    assert "hint:" in said


def test_a_key_file_that_is_none_is_refused(world, capsys) -> None:
    path = world.keys / "bad.pem"
    path.write_text("-----BEGIN PRIVATE KEY-----\nsecretsecret\n")
    path.chmod(0o600)
    assert world.run("trust", "show", f"--signer=file:{path}") == 3
    assert "secretsecret" not in capsys.readouterr().err


def test_no_private_key_is_stored_printed_or_in_the_environment_of_a_child(world, capfd) -> None:
    world.monkeypatch.setenv("ROCWHEEL_SIGNER", world.uri("builder"))
    assert world.run("trust", "sign", world.folder, "--debug") == 0  # the environment names the key
    world.monkeypatch.setenv("ROCWHEEL_SIGNER", world.uri("promoter"))
    world.gate()
    assert world.run(*world.target("stage", world.folder)) == 0
    assert (
        world.run(*world.target("promote", f"--manifest={world.manifest.sha256}"), "--debug") == 0
    )
    secrets = [
        line
        for path in world.keys.glob("*.pem")
        for line in path.read_text().splitlines()
        if "-----" not in line
    ]
    stored = b"".join(
        p.read_bytes() for p in world.tmp.rglob("*") if p.is_file() and p.parent != world.keys
    )
    said = "".join(capfd.readouterr())
    for secret in secrets:
        assert secret.encode() not in stored
        assert secret not in said
    from rocwheel.base.process import base_env

    assert not [name for name in base_env(os.environ) if "SIGNER" in name]


def test_a_release_by_the_address_of_a_channel_is_one_of_that_channel(world, capsys) -> None:
    """It was signed for no channel, and `trust verify` refused what the promotion had released."""
    world.staged()
    world.gate()
    words = ("promote", f"--manifest={world.manifest.sha256}", f"--store={world.store}")
    signer = f"--signer={world.uri('promoter')}"
    assert world.run(*words, f"--family={FAMILY.name}", signer) == 0
    assert world.run("trust", "verify", world.folder, f"--statements={world.bundle}") == 0


PEM = "-----BEGIN PUBLIC KEY-----"
MISTAKES = [
    ("role: runner", "role: king", r"trust\.yaml:\d+:\d+: keys\.runner\.role"),
    ("algorithm: ed25519", "algorithm: md5", r"keys\.builder\.algorithm: unknown value 'md5'"),
    ("algorithm: ed25519", "algorithm: rsassa-pss-sha256", r"keys\.builder\.public: no rsassa"),
    ("BEGIN PUBLIC", "BEGIN PUBLIK", r"keys\.builder\.public"),
    ("since: 2026-01-01", "since: today", r"keys\.builder\.since"),
    ("until: 2099-01-01", "until: 2025-01-01", r"keys\.builder\.until: 2025-01-01 is before"),
    ("  mine:", "  mien:", r"channels\.mien: no such channel"),
    ("[builder, runner, promoter]", "[builder, judge]", r"channels\.mine\.required"),
    ("[builder, runner, promoter]", "[builder, builder]", r"builder is given twice"),
    ("    role: promoter\n", "    role: runner\n", r"required\[2\]: no key has the role promoter"),
    ("    role: promoter\n", "    role: promoter\n    channels: [other]\n", r"no key has the role"),
    ("    role: promoter\n", "    role: promoter\n    revoked: {since: 2026-01-01, reason: x}\n", r"no key has the role"),
    ("    role: promoter\n", "    role: promoter\n    revoked: {since: 2026-01-01}\n", r"'reason' is missing"),
    ("    role: promoter\n", "    role: promoter\n    revoked:\n", r"promoter\.revoked: expected a mapping, got nothing"),
    ("    role: promoter\n", "    role: promoter\n    rôle: x\n", r"unknown key"),
    ("[builder, runner, promoter]}", "[runner], locked: true}", r"mine\.locked: only a builder"),
    ("promoter]}", "promoter], reproduced: true}", r"required\[0\]: only one key has the role builder"),
    ("    role: promoter\n", "    role: promot\N{CYRILLIC SMALL LETTER IE}r\n", r"promoter\.role: unknown value"),
    ("    role: promoter\n", "    role: promoter\n    role: runner\n", r"promoter\.role: given twice"),
    ("  mine:", "  ' mine':", r"channels\. mine: no such channel"),
    ("channels:\n  mine", "channels:\n  mine: {required: []}\n  mine", r"channels\.mine: given twice"),
    ("until: 2099-01-01", "until: 2099-01-01T00:00:00Z", r"invalid RFC3339"),
    (PEM, f"{PEM}\n      MCowBQYDK2VwAyEAAQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n      -----END PUBLIC KEY-----\n      {PEM}", r"public: .*text beside one PUBLIC KEY"),
    (PEM, f"This is the key of ann\n      {PEM}", r"public: .*text beside one PUBLIC KEY"),
]  # fmt: skip


TORSION = (  # y of the points of order 1, 2, 4, 8, 8; each with either sign of x
    "01" + 31 * "00",
    "ec" + 30 * "ff" + "7f",
    32 * "00",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "ed" + 30 * "ff" + "7f",  # 0 and 1 once more, not reduced
    "ee" + 30 * "ff" + "7f",
)


@pytest.mark.parametrize("sign", [0, 0x80])
@pytest.mark.parametrize("y", TORSION)
def test_a_key_for_which_anybody_can_sign_is_refused(world, capsys, y, sign) -> None:
    """Without a private key: one of few messages fits the signature of the point itself and 0."""
    raw = bytearray.fromhex(y)
    raw[31] |= sign
    public = Ed25519PublicKey.from_public_bytes(bytes(raw))

    def fits(message: bytes, point: bytes) -> bool:
        with suppress(InvalidSignature):
            public.verify(point + bytes(32), message)
            return True
        return False

    points = [bytes.fromhex(TORSION[0]), bytes(raw), bytes.fromhex(TORSION[1])]
    assert any(fits(b"%d" % n, point) for n in range(64) for point in points)
    pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    path = world.ci / "trust.yaml"
    text = path.read_text()
    start = text.index(PEM)
    end = text.index("-----END PUBLIC KEY-----\n", start)
    weak = "\n      ".join(pem.splitlines()[:-1]) + "\n      "
    path.write_text(text[:start] + weak + text[end:])
    assert world.run(*world.target("status")) == 3
    said = capsys.readouterr().err
    assert re.search(r"trust\.yaml:\d+.*public: no ed25519 key: .*can be forged", said), said


@pytest.mark.parametrize(
    ("old", "new", "message"), MISTAKES, ids=[str(n) for n in range(len(MISTAKES))]
)
def test_a_mistake_in_the_trust_file_is_shown_where_it_is(world, capsys, old, new, message) -> None:
    path = world.ci / "trust.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    assert world.run(*world.target("status")) == 3
    said = capsys.readouterr().err
    assert re.search(message, said), said


def test_a_locked_channel_takes_the_sources_of_verified_pins_alone(world, capsys) -> None:
    path = world.ci / "trust.yaml"
    path.write_text(path.read_text().replace("promoter]}", "promoter], locked: true}"))
    pin = yaml.safe_load((world.ci / "pins.yaml").read_text())["pins"]["0.9.1"]
    signer, plain = world.signer("builder"), world.manifest
    proof.state_build(world.folder, signer)
    assert world.run(*world.target("stage", world.folder)) == 0
    world.gate()
    assert world.run(*world.target("promote", f"--manifest={plain.sha256}", "--dry-run")) == 9
    assert "locked: JAX 000000000000, XLA 000000000000, Bazel" in capsys.readouterr().err

    trust = policy.load(path)
    source = replace(plain.jax, commit=pin["commit"])
    xla = replace(plain.xla, commit=pin["xla_commit"])
    wheel = pin["jaxlib"]["wheels"]["3.12"]
    jaxlib = replace(
        plain.wheels[0], filename=wheel["filename"], sha256=wheel["sha256"], origin="upstream"
    )
    real = replace(
        plain, jax=source, xla=xla, bazel_version=pin["bazel"], wheels=(jaxlib, *plain.wheels)
    )
    with pytest.raises(
        TrustError, match=r"ROCm therock-dist-.*, 111111111111: no set of a night pins"
    ):
        proof.check_locked(real, trust)
    night = world.ci / "nightly.yaml"
    rocm = f"{{source: {plain.rocm.url}, sha256: '{plain.rocm.sha256}'}}"
    night.write_text(night.read_text().replace("{tarballs: nightly}", rocm))
    trust = policy.load(path)
    proof.check_locked(real, trust)
    other = replace(jaxlib, sha256="2" * 64)
    with pytest.raises(TrustError, match=r"jaxlib-.*whl: 222222222222 is not a jaxlib of its pin"):
        proof.check_locked(replace(real, wheels=(other, *plain.wheels)), trust)
    for change in (
        {"jax": replace(source, commit="2" * 40)},
        {"jax": replace(source, dirty=True)},
        {"xla": replace(xla, commit="2" * 40)},
        {"xla": replace(xla, digest="2" * 64)},
        {"tool": replace(plain.tool, dirty=True)},
        {"bazel_version": "6.0.0"},
    ):
        with pytest.raises(TrustError, match="not a verified pin"):
            proof.check_locked(replace(real, **change), trust)
    text = night.read_text()
    for wrong in ("sets: 5\n", text.replace(rocm, "newest"), ""):
        night.write_text(wrong)
        with pytest.raises(ConfigError, match=r"nightly\.yaml"):
            policy.load(path)
    night.write_text(text)
    unverified = (
        (world.ci / "pins.yaml")
        .read_text()
        .replace(pin["commit"], f"{pin['commit']}\n    unverified: all")
    )
    (world.ci / "pins.yaml").write_text(unverified)
    with pytest.raises(TrustError, match="not a verified pin"):
        proof.check_locked(real, policy.load(path))


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        ("mine: {required: [builder, runner, promoter]}", ""),
        ("mine: {required: [runner]}", ""),
        ("other: {required: [builder, runner]}", ""),  # a channel that the team does not have
        ("mine: {required: [builder], locked: true}", "requires less of mine"),
    ],
)
def test_a_teams_own_trust_file_may_only_add(world, capsys, ours, message) -> None:
    """Requirements of the file that rocwheel came with hold for who has a `ci` of their own."""
    shipped, own = world.tmp / "shipped.yaml", world.ci / "trust.yaml"
    text = own.read_text()
    shipped.write_text(f"{text.partition('channels:')[0]}channels:\n  {ours}\n")

    def load() -> str:
        try:
            policy.load(own, channels=["mine"], least=shipped)
        except ConfigError as exc:
            return str(exc)
        return ""

    for name in ("pins.yaml", "nightly.yaml"):
        shutil.copy(world.ci / name, world.tmp)
    assert message in load()
    assert bool(load()) is bool(message)
    own.write_text(text.replace("[builder, runner, promoter]", "[promoter]"))
    assert ("requires less of mine" in load()) is ours.startswith("mine")
    own.write_text(text.partition("channels:")[0])
    assert ("requires less of mine" in load()) is ours.startswith("mine")
    own.unlink()
    rules = policy.load(own, channels=["mine"], least=shipped).rules
    assert rules == policy.load(shipped).rules


def test_a_command_holds_a_teams_file_against_the_one_that_rocwheel_came_with(
    world, capsys
) -> None:
    root = world.tmp / "checkout"
    shutil.copytree(world.ci, root / "ci")
    world.monkeypatch.setattr(home, "PACKAGE", root / "build" / "rocwheel")
    assert world.run(*world.target("status")) == 0
    path = world.ci / "trust.yaml"
    path.write_text(path.read_text().replace("[builder, runner, promoter]", "[builder, runner]"))
    assert world.run(*world.target("status")) == 3
    assert "requires less of mine" in capsys.readouterr().err


def test_one_key_has_one_role(world, capsys) -> None:
    path = world.ci / "trust.yaml"
    lines = path.read_text().splitlines(keepends=True)
    start = lines.index("  runner:\n")
    pem = lines.index("    public: |\n", start)
    own = lines.index("    public: |\n")
    lines[pem : pem + 4] = lines[own : own + 4]
    path.write_text("".join(lines))
    assert world.run("trust", "show") == 3
    assert "keys.runner.public: the same key as builder" in capsys.readouterr().err


def test_no_trust_file_requires_nothing_and_ours_is_read() -> None:
    assert policy.load(Path("/nowhere/trust.yaml")) == policy.Trust()
    assert policy.load(ROOT / "ci" / "trust.yaml", channels=["dev"]).rules == {}


def test_a_signed_provenance_stays_when_the_same_set_is_built_again(world) -> None:
    signer = world.signer("builder")
    proof.state_build(world.folder, signer)
    before = (world.folder / proof.PROVENANCE).read_bytes()
    proof.state_build(world.folder, world.signer("runner"))
    assert (world.folder / proof.PROVENANCE).read_bytes() == before
    assert envelope.parse(before, name="x").signatures
    assert replace(world.manifest) == world.manifest
