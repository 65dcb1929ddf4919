"""Who may write to staging, and nothing else, releases nothing: each way is a case, with its rule.

A case changes a store that holds a set which three keys signed, and the promotion must name the
link that broke. Two cases at the end change nothing that counts, and the set is released.
"""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
from datetime import date

import pytest
from support.trust import Keyring, SignedShop, spelt
from support.wheelset import NOW, make_verdict, wheel_key

from rocwheel.base import files
from rocwheel.base.errors import RocwheelError
from rocwheel.base.values import replace
from rocwheel.records.places import BUNDLE
from rocwheel.records.verdict import PASSED, Counts, State
from rocwheel.release import proof
from rocwheel.release.ledger import verdicts
from rocwheel.release.trust import envelope, statements, verifier
from rocwheel.release.trust.envelope import Sha256Digest, Statement, StatementSubject


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """A store with two sets, each built, staged and gated, all of it signed."""
    from rocwheel.base.console import Console

    folder = tmp_path_factory.mktemp("prepared")
    console = Console(io.StringIO(), clock=lambda: 0.0)
    shop = SignedShop(folder, console, Keyring(folder / "keys"))
    manifests = shop.ready(), shop.ready(suffix="+rocm7.10.1")
    return shop, manifests


class Attack:
    """One store under attack; names are those of the attacker's tools."""

    def __init__(self, shop: SignedShop, manifest, other) -> None:
        self.shop, self.manifest, self.other = shop, manifest, other
        self.root = shop.store.root

    def path(self, name: str, manifest=None):
        manifest = manifest or self.manifest
        staging = self.shop.staging
        where = staging.built if name.startswith("provenance") else staging.attestation
        return self.root / where(manifest.sha256, name)

    def glob(self, pattern: str, manifest=None):
        rest = pattern.rpartition("provenance/")[2]
        of = "provenance/" if "provenance/" in pattern else ""
        return sorted(self.path(of, manifest).glob(rest if of else pattern))

    # --- provenance ---

    @property
    def provenance(self):
        (path,) = self.glob("provenance/*.json")
        return path

    def put_provenance(self, data: bytes) -> None:
        """In place of the good one, under its own digest."""
        self.provenance.unlink()
        proof.add(self.shop.staging, self.manifest.sha256, data)

    def resign(self, *names: str, **changes) -> None:
        """Another statement than what was built, signed with these keys."""
        made = statements.provenance(self.manifest, _record(self.manifest))
        self.put_provenance(self.shop.signed(replace(made, **changes), *names))

    def put_whole(self, data: bytes) -> None:
        """In place of the good one, whatever lines it has."""
        self.provenance.unlink()
        self.path(f"provenance/{files.sha256(data)}.json").write_bytes(data)

    def edit(self, change) -> None:
        """The good envelope with its JSON changed."""
        document = json.loads(self.provenance.read_bytes())
        change(document)
        self.put_provenance(spelt(document))

    def predicate(self, change) -> None:
        """A builder's signature on a predicate that says something else."""
        made = statements.provenance(self.manifest, _record(self.manifest))
        document = json.loads(json.dumps(dict(made.predicate)))
        change(document)
        self.put_provenance(self.shop.signed(replace(made, predicate=document), "builder"))

    def payload(self, text: bytes) -> None:
        """Any payload, with a builder's signature on exactly these bytes."""
        from securesystemslib.dsse import Envelope

        made = Envelope(text, envelope.PAYLOAD, {})
        made.sign(self.shop.keys.signers["builder"])
        self.put_provenance(spelt(made.to_dict()))

    # --- results ---

    def cell(self, name: str, manifest=None):
        place = self.shop.staging.verdicts((manifest or self.manifest).sha256)
        return self.root / place / name

    def result(self, suite: str = "unit", number: int = 1, who: str = "runner", manifest=None):
        keyid = self.shop.keys.signers[who].public_key.keyid
        return self.cell(f"3.12/{suite}/{keyid}/{number}.json", manifest)

    def sign_result(
        self, who: str = "runner", *, number: int = 1, previous: str = "", edit=None, **fields
    ):
        """A statement about the cell `unit` in place of the good one, by any key."""
        found = self.result()
        found.unlink()
        verdict = make_verdict(self.manifest, suite="unit", **fields)
        statement = statements.result(verdict, number=number, previous=previous)
        if edit:
            statement = edit(statement)
        path = self.result(number=number, who=who)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.shop.signed(statement, who))

    def own(self, **changes):
        """A runner whose statement says another number, or what came before."""
        self.sign_result(edit=lambda made: predicated(made, **changes))

    def claim(self, **changes):
        """A runner whose verdict says something else than the rest of its statement."""

        def edit(made: Statement) -> Statement:
            return predicated(made, verdict={**made.own["verdict"], **changes})

        self.sign_result(edit=edit)

    def failed_then_passed(self) -> None:
        """A runner failed, and passed when the gate ran again: two numbers, and an approval."""
        self.result().unlink()
        self.shop.add(self.manifest, suite="unit", state=State.FAIL)
        self.shop.add(self.manifest, suite="unit", state=State.PASS)


def predicated(made: Statement, **changes) -> Statement:
    """A statement with other values of our own."""
    own = {**made.own, **changes}
    return replace(made, predicate={**made.predicate, "rocwheel": own})


def _record(manifest):
    from support.trust import make_record

    return make_record(manifest)


def subject(name: str, digest: str) -> StatementSubject:
    return StatementSubject(name=name, digest=Sha256Digest(sha256=digest))


def without(path: str):
    def change(document) -> None:
        *parents, last = path.split(".")
        for name in parents:
            document = document[name]
        del document[last]

    return change


def setting(path: str, value):
    def change(document) -> None:
        *parents, last = path.split(".")
        for name in parents:
            document = document[name]
        document[last] = value

    return change


def dependency(number: int, **changes):
    def change(document) -> None:
        found = document["buildDefinition"]["resolvedDependencies"]
        found[number] = {**found[number], **changes}

    return change


def time(text):
    return setting("runDetails.metadata.finishedOn", text)


def two_keys(a: Attack) -> None:
    good = json.loads(a.shop.signed(json_statement(a), "builder", "promoter"))
    good["signatures"][0]["sig"] = good["signatures"][1]["sig"]
    a.put_provenance(spelt(good))


def json_statement(a: Attack) -> Statement:
    return statements.provenance(a.manifest, _record(a.manifest))


def same_key_twice(document) -> None:
    document["signatures"] *= 2


def duplicate(a: Attack, *, inner: bool) -> None:
    text = json_statement(a).to_bytes().decode() if inner else a.provenance.read_text()
    twice = text.replace(
        "{",
        '{"predicateType": "https://slsa.dev/provenance/v1", '
        if inner
        else '{"payloadType": "x", ',
        1,
    )
    if inner:
        a.payload(twice.encode())
    else:
        a.put_provenance(twice.encode())


def huge(a: Attack) -> None:
    with a.provenance.open("r+b") as file:
        file.truncate(50 << 20)


def move(source, target) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(source, target)


def swap_wheel(a: Attack) -> None:
    name = next(w.filename for w in a.manifest.built if w.kind == "pjrt")
    path = a.root / wheel_key(a.shop.staging, name)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def swap_signer(document) -> None:
    document["signatures"][0]["keyid"] = "a" * 64


def forged(a: Attack, **fields) -> None:
    """A pass that nobody's key signed, in place of a failure that was deleted with its statement."""
    a.result().unlink()
    verdicts.add(a.shop.staging, make_verdict(a.manifest, suite="unit", **fields))


def respelt(change):
    """The good provenance in another spelling, under its own digest: the signature still fits."""

    def attack(a: Attack) -> None:
        a.put_whole(change(a.provenance.read_bytes()))

    return attack


def unused_bits(data: bytes) -> bytes:
    """The last character of base64 before `==` has four bits that say nothing."""
    document = json.loads(data)
    text = document["signatures"][0]["sig"]
    assert text.endswith("==")
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/".index(text[-3])
    other = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[last ^ 1]
    document["signatures"][0]["sig"] = f"{text[:-3]}{other}=="
    return spelt(document)


SPELLINGS = {
    "blanks": lambda data: json.dumps(json.loads(data)).encode() + b"\n",
    "several lines": lambda data: json.dumps(json.loads(data), indent=1).encode() + b"\n",
    "no line break at its end": lambda data: data.rstrip(b"\n"),
    "a carriage return": lambda data: data.replace(b",", b",\r"),
    "another order": lambda data: json.dumps(dict(reversed(json.loads(data).items()))).encode() + b"\n",
    "unused bits": unused_bits,
    "4 MB of blanks": lambda data: data[:-1] + b" " * (4_000_000) + b"\n",
}  # fmt: skip


def escaped(a: Attack) -> None:
    """A key that stands twice, once in escapes."""
    a.put_whole(b'{"\\u0070ayload":"e30=",' + a.provenance.read_bytes()[1:])


def added_signature(a: Attack) -> None:
    """The promoter's own signature, of a summary of another set."""
    other = statements.summary(
        a.other, time="2026-05-01T11:30:00Z", url="", policy={}, inputs=[], own={}
    )
    good = json.loads(a.provenance.read_bytes())
    good["signatures"] += json.loads(a.shop.signed(other, "promoter"))["signatures"]
    a.put_whole(spelt({**good, "signatures": sorted(good["signatures"], key=lambda i: i["keyid"])}))


def signature(text: str):
    def change(document) -> None:
        document["signatures"][0]["sig"] = text

    return lambda a: a.edit(change)


def pipe(path) -> None:
    path.unlink()
    os.mkfifo(path)


def link(path, target) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def approval_as_provenance(a: Attack) -> None:
    word = statements.Approval(suite="unit", python="3.12", by="ann", reason="x")
    made = statements.approval(a.manifest, word, time="2026-05-01T11:30:00Z")
    a.put_provenance(a.shop.signed(made, "builder"))


def flood(a: Attack) -> None:
    """Each of them is small enough to be read."""
    for number in range(17):
        path = a.path(f"provenance/{number:064x}.json")
        path.touch()
        os.truncate(path, 4 << 20)


def wheel_path(a: Attack):
    return a.root / wheel_key(a.shop.staging, next(w.filename for w in a.manifest.built))


# name, what the attacker does, what the refusal says
CASES = [
    *((f"spelt with {name}", respelt(change), "not written as") for name, change in SPELLINGS.items()),
    ("a byte order mark", respelt(lambda data: b"\xef\xbb\xbf" + data), "JSON"),
    ("UTF-16", respelt(lambda data: data.decode().encode("utf-16")), "JSON"),
    ("base64 for URLs", lambda a: a.edit(lambda d: d.update(payload=d["payload"][:-8] + "__-_" + d["payload"][-4:])), "payload"),
    ("a signature of no bytes", signature(""), "signature: .* does not fit"),
    ("a signature of 64 KB", signature("A" * 65_536), "signature: .* does not fit"),
    ("a key's id in capitals", lambda a: a.edit(lambda d: d["signatures"][0].update(keyid=d["signatures"][0]["keyid"].upper())), "keyid"),
    ("a payload type in capitals", lambda a: a.edit(setting("payloadType", envelope.PAYLOAD.upper())), "payloadType"),
    ("a key in escapes", escaped, "twice|payload"),
    ("a signature of another statement", added_signature, "signature: .* does not fit"),
    ("an approval for a provenance", approval_as_provenance, "predicateType"),
    ("a result under 01", lambda a: move(a.result(), a.result().with_name("01.json")), "no verdict"),
    ("a result under an Arabic number", lambda a: move(a.result(), a.result().with_name("1\N{ARABIC-INDIC DIGIT ONE}.json")), "no verdict"),
    ("a result under 999999999", lambda a: shutil.copy(a.result(), a.result(number=999_999_999)), "name: it belongs to another|statement 2 of runner is gone"),
    ("a result in a builder's folder", lambda a: move(a.result(), a.result(who="builder")), "is not a runner's key"),
    ("a pass copied over the failure before", lambda a: (a.failed_then_passed(), shutil.copy(a.result(number=2), a.result())), "previous: .* is not before it"),
    ("a failure's place taken by another set's pass", lambda a: (a.failed_then_passed(), shutil.copy(a.result(manifest=a.other), a.result())), "previous: .* is not before it"),
    ("a pipe for a provenance", lambda a: pipe(a.provenance), "has no provenance"),
    ("a pipe for a result", lambda a: pipe(a.result()), "no verdict"),
    ("a pipe for a wheel", lambda a: pipe(wheel_path(a)), "is not staged"),
    ("an endless device for a result", lambda a: link(a.result(), "/dev/zero"), "no verdict"),
    ("an endless device for a wheel", lambda a: link(wheel_path(a), "/dev/zero"), "is not staged"),
    ("a link to itself for a result", lambda a: link(a.result(), a.result()), "no verdict"),
    ("68 MiB of statements", flood, "18 statements of more than 64 MiB"),
    ("bytes of a wheel", swap_wheel, r"\.whl"),
    ("no provenance", lambda a: a.provenance.unlink(), "has no provenance"),
    ("provenance without signature", lambda a: a.resign(), "signature: it has none"),
    ("provenance of a stranger", lambda a: a.resign("stranger"), "not in the trust file"),
    ("provenance of a runner", lambda a: a.resign("runner"), "role: it is a key of the role runner"),
    ("provenance of a promoter", lambda a: a.resign("promoter"), "role: it is a key of the role promoter"),
    ("builder and runner both sign", lambda a: a.resign("builder", "runner"), "role: it is a key of the role runner"),
    ("a stranger signs too", lambda a: a.resign("builder", "stranger"), "not in the trust file"),
    ("one good and one bad signature", two_keys, "signature: .* does not fit"),
    ("the same key twice", lambda a: a.edit(same_key_twice), "two signatures of one key"),
    ("another key's id", lambda a: a.edit(swap_signer), "not in the trust file"),
    ("an empty list of signatures", lambda a: a.edit(setting("signatures", [])), "it has none"),
    ("no list of signatures", lambda a: a.edit(without("signatures")), "signatures"),
    ("malformed base64", lambda a: a.edit(setting("payload", "a*b=")), "payload"),
    ("base64 in another spelling", lambda a: a.edit(lambda d: d.update(payload=d["payload"] + "\n")), "payload"),
    ("malformed signature", lambda a: a.edit(setting("signatures", [{"keyid": "a" * 64, "sig": "!"}])), "sig"),
    ("a signature without key id", lambda a: a.edit(setting("signatures", [{"sig": "YQ=="}])), "keyid"),
    ("another payload type", lambda a: a.edit(setting("payloadType", "text/plain")), "payloadType"),
    ("a field of its own", lambda a: a.edit(setting("extra", 1)), "extra"),
    ("a payload of another statement", lambda a: a.edit(setting("payload", base64.b64encode(b"{}").decode())), "payload"),
    ("not JSON", lambda a: a.put_provenance(b"\xff"), "JSON|UTF-8|utf-8"),
    ("JSON of another kind", lambda a: a.put_provenance(b"[]"), "object"),
    ("nothing", lambda a: a.put_provenance(b""), "has no provenance"),
    ("truncated", lambda a: a.provenance.write_bytes(a.provenance.read_bytes()[:400]), "name: its bytes"),
    ("50 MB", huge, "name: its bytes|no statement"),
    ("deep nesting", lambda a: a.put_provenance(b"[" * 100_000), "JSON|recursion|object"),
    ("a key twice outside", lambda a: duplicate(a, inner=False), "payloadType|twice"),
    ("a key twice inside", lambda a: duplicate(a, inner=True), "stands twice"),
    ("no subject", lambda a: a.payload(json.dumps({**json.loads(json_statement(a).to_bytes()), "subject": []}).encode()), "subject"),
    ("another statement type", lambda a: a.payload(json.dumps({**json.loads(json_statement(a).to_bytes()), "_type": "x"}).encode()), "_type"),
    ("the payload is a list", lambda a: a.payload(b"[]"), "payload"),
    ("a wheel is missing", lambda a: a.resign("builder", subject=statements.subjects(a.manifest)[:-1]), "subject: not the wheels"),
    ("a wheel too many", lambda a: a.resign("builder", subject=(*statements.subjects(a.manifest), subject("x.whl", "1" * 64))), "subject"),
    ("other bytes of a wheel", lambda a: a.resign("builder", subject=(*statements.subjects(a.manifest)[:-1], subject(statements.subjects(a.manifest)[-1].name, "1" * 64))), "subject"),
    ("a subject twice", lambda a: a.payload(replace(json_statement(a), subject=statements.subjects(a.manifest)[:1] * 2).to_bytes()), "named twice"),
    ("another manifest", lambda a: a.resign("builder", subject=statements.subjects(a.other)), "subject"),
    ("another predicate", lambda a: a.resign("builder", predicate_type=statements.TEST_RESULT), "predicateType"),
    ("no time", lambda a: a.predicate(without("runDetails.metadata.finishedOn")), "time: "),
    ("no run", lambda a: a.predicate(without("runDetails")), "time: "),
    ("a run that is a list", lambda a: a.predicate(setting("runDetails", [1])), "time: "),
    ("a build that is a text", lambda a: a.predicate(setting("buildDefinition", "x")), "resolvedDependencies"),
    ("dependencies that are a number", lambda a: a.predicate(setting("buildDefinition.resolvedDependencies", 5)), "resolvedDependencies"),
    ("shards that are a number", lambda a: a.own(parts=5), "verdict: "),
    ("a time that is none", lambda a: a.predicate(time("yesterday")), "time: "),
    ("a local time", lambda a: a.predicate(time("2026-05-01T11:00:00+02:00")), "time: "),
    ("a time to come", lambda a: a.predicate(time("2026-05-02T11:00:00Z")), "later than now"),
    ("before the key's window", lambda a: a.predicate(time("2025-12-30T11:00:00Z")), "window: the key is valid from"),
    ("a dependency is missing", lambda a: a.predicate(lambda d: d["buildDefinition"]["resolvedDependencies"].pop(1)), "resolvedDependencies"),
    ("a dependency's other digest", lambda a: a.predicate(dependency(0, digest={"gitCommit": "1" * 40})), "resolvedDependencies"),
    ("dependencies that are none", lambda a: a.predicate(setting("buildDefinition.resolvedDependencies", None)), "resolvedDependencies"),
    ("other parameters", lambda a: a.predicate(setting("buildDefinition.externalParameters.jax", "9")), "externalParameters"),
    ("the provenance of another set", lambda a: a.put_provenance(a.glob("provenance/*.json", a.other)[0].read_bytes()), "subject"),
    ("a name that is no digest of it", lambda a: move(a.provenance, a.path("provenance/" + "1" * 64 + ".json")), "name: its bytes"),
    ("a provenance elsewhere", lambda a: move(a.provenance, a.path("provenance.json")), "has no provenance"),
    ("no result", lambda a: a.result().unlink(), "no verdict"),
    *((f"a forged {state.value}", lambda a, state=state: forged(a, state=state), "no runner's key has signed it|unsigned, and it has a failure") for state in sorted(PASSED, key=str)),
    ("a forged pass of the other set's key", lambda a: (forged(a), move(a.result(manifest=a.other), a.result())), "subject: not the wheels"),
    ("a result of a builder", lambda a: a.sign_result("builder"), "is not a runner's key"),
    ("a result of a promoter", lambda a: a.sign_result("promoter"), "is not a runner's key"),
    ("a result of a stranger", lambda a: a.sign_result("stranger"), "is not a runner's key"),
    ("a stranger's result in a runner's folder", lambda a: (a.sign_result("stranger"), move(a.result(who="stranger"), a.result())), "not in the trust file"),
    ("a signed result with other bytes", lambda a: a.result().write_bytes(a.shop.signed(statements.result(make_verdict(a.manifest, suite="unit", host="node2"), number=1), "stranger").replace(a.shop.keys.signers["stranger"].public_key.keyid.encode(), a.shop.keys.signers["runner"].public_key.keyid.encode())), "signature: .* does not fit"),
    ("a truncated result", lambda a: a.result().write_bytes(a.result().read_bytes()[:300]), "JSON|truncated"),
    ("an empty result", lambda a: a.result().write_bytes(b""), "JSON|truncated"),
    ("a 50 MB result", lambda a: os.truncate(a.result(), 50 << 20), "JSON|truncated"),
    ("a result under another number", lambda a: move(a.result(), a.result(number=2)), "name: it belongs to another|statement 1 of runner is gone"),
    ("a result that says another number", lambda a: a.own(number=2), "name: it belongs to another cell, number"),
    ("a result that names one before", lambda a: a.own(previous="1" * 64), "previous: 111111111111 is not before it"),
    ("a result of another cell", lambda a: move(a.result("smoke"), a.result("unit")), "no verdict"),
    ("a result of another CPython", lambda a: move(a.result(), a.cell(f"3.11/unit/{a.result().parent.name}/1.json")), "no verdict"),
    ("a result of another family", lambda a: a.claim(family="gfx942"), "family: it is about gfx942"),
    ("a result of another suite", lambda a: a.claim(suite="smoke"), "another cell"),
    ("other counts", lambda a: a.claim(counts={"passed": 10_000}), "something else than the verdict"),
    ("another state", lambda a: a.claim(state="fail"), "something else than the verdict"),
    ("other wheels in the verdict", lambda a: a.claim(wheels={}), "something else than the verdict"),
    ("another date", lambda a: a.claim(ended="yesterday"), "verdict: "),
    ("a shard nobody ran", lambda a: a.own(parts=["1" * 64]), "was made of 111111"),
    ("a signed result of other wheels", lambda a: a.sign_result(wheels={"x.whl": "1" * 64}), "other bytes of"),
    ("a signed result on a CPU", lambda a: a.sign_result(backend="cpu"), "ran on cpu"),
    ("a signed result with too few tests", lambda a: a.sign_result(counts=Counts(passed=1)), "tests that passed: 1"),
    ("a signed result of tests to come", lambda a: a.sign_result(ended="2026-05-02T11:00:00Z"), "later than now"),
    ("a failure that was deleted", lambda a: (a.failed_then_passed(), a.result().unlink()), "statement 1 of runner is gone"),
    ("a failure that was renamed", lambda a: (a.failed_then_passed(), a.result().rename(a.result(number=3))), "previous|statement 1 of runner is gone"),
    ("a failure that is garbage now", lambda a: (a.failed_then_passed(), a.result().write_bytes(b"{}")), "previous: .* is not before it"),
    ("two results in the other order", lambda a: (a.failed_then_passed(), move(a.result(), a.path("x")), move(a.result(number=2), a.result()), move(a.path("x"), a.result(number=2))), "previous|number"),
    ("a forged failure", lambda a: verdicts.add(a.shop.staging, make_verdict(a.manifest, suite="unit", state=State.FAIL)), "passed, and"),
]  # fmt: skip
# the trust file's side: what has become of a key
KEYS = [
    ("builder expired", {"builder": {"until": date(2026, 4, 1)}}, "window: the key was valid until"),
    ("builder not yet valid", {"builder": {"since": date(2098, 1, 1)}}, "window: the key is valid from"),
    ("builder taken out", {"builder": None}, "not in the trust file"),
    ("builder of another channel", {"builder": {"channels": ("dev",)}}, "scope: channels are dev"),
    ("builder of another family", {"builder": {"families": ("gfx942",)}}, "scope: families are gfx942"),
    ("runner expired", {"runner": {"until": date(2026, 4, 1)}}, "window: the key was valid until"),
    ("runner not yet valid", {"runner": {"since": date(2098, 1, 1)}}, "window: the key is valid from"),
    ("runner taken out", {"runner": None}, "is not a runner's key"),
    ("runner of another suite", {"runner": {"suites": ("e2e",)}}, "scope: suites are e2e"),
    ("runner of another family", {"runner": {"families": ("gfx942",)}}, "scope: families are gfx942"),
    ("runner of another channel", {"runner": {"channels": ("dev",)}}, "scope: channels are dev"),
    ("promoter expired", {"promoter": {"until": date(2026, 4, 1)}}, "window"),
    ("promoter revoked", {"promoter": {"revoked": date(2026, 4, 1)}}, "revoked: since"),
    ("builder revoked before it signed", {"builder": {"revoked": date(2026, 4, 1)}}, "revoked: since"),
    ("runner revoked before it signed", {"runner": {"revoked": date(2026, 4, 1)}}, "revoked: since"),
    ("runner revoked when the store got it", {"runner": {"revoked": date(2026, 5, 2)}}, "revoked: since"),
]  # fmt: skip


@pytest.fixture
def attack(prepared, tmp_path, console) -> Attack:
    made, manifests = prepared
    shutil.copytree(made.store.root, tmp_path / "store")
    return Attack(SignedShop(tmp_path, console, made.keys), *manifests)


def refused(attack: Attack, message: str) -> None:
    import re

    with pytest.raises(RocwheelError) as caught:
        attack.shop.promote(attack.manifest)
    text = f"{caught.value} {caught.value.detail}"
    assert re.search(message, text), text
    assert caught.value.hint
    assert not attack.shop.shown(attack.shop.release, "jax-rocm7-pjrt")


@pytest.mark.parametrize(
    ("change", "message"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_nothing_is_released(attack, change, message) -> None:
    change(attack)
    refused(attack, message)


@pytest.mark.parametrize(
    ("changes", "message"), [case[1:] for case in KEYS], ids=[c[0] for c in KEYS]
)
def test_a_key_signs_within_its_role_scope_and_days(attack, changes, message) -> None:
    from rocwheel.release.trust.policy import Revocation

    changes = {name: fields and dict(fields) for name, fields in changes.items()}
    for fields in changes.values():
        if fields and "revoked" in fields:
            fields["revoked"] = Revocation(since=fields["revoked"], reason="stolen")
    attack.shop.trusting(**changes)
    refused(attack, message)


def test_there_are_enough_attacks() -> None:
    assert len(CASES) + len(KEYS) >= 60
    assert len({name for name, *_ in (*CASES, *KEYS)}) == len(CASES) + len(KEYS)


def test_a_key_that_is_revoked_later_still_holds(attack) -> None:
    from rocwheel.release.trust.policy import Revocation

    later = Revocation(since=date(2099, 1, 1), reason="rotated")
    attack.shop.trusting(builder={"revoked": later}, runner={"revoked": later})
    attack.shop.promote(attack.manifest)
    assert attack.shop.shown(attack.shop.release, "jax-rocm7-pjrt")


def test_what_a_stranger_adds_stops_nobody(attack) -> None:
    """A garbage provenance beside the good one, and results of a key that is not ours."""
    proof.add(attack.shop.staging, attack.manifest.sha256, b"garbage")
    verdict = make_verdict(attack.manifest, suite="e2e")
    verdicts.add(attack.shop.staging, verdict, attack.shop.keys.signers["stranger"])
    attack.path("junk/x.json").parent.mkdir(parents=True)
    attack.path("junk/x.json").write_bytes(b"junk")
    attack.shop.promote(attack.manifest)
    assert attack.shop.shown(attack.shop.release, "jax-rocm7-pjrt")


def beside(name: str, make):
    """Something of an attacker's beside the good provenance."""
    return lambda a: make(a.path(name), a)


HARMLESS = {
    "it, spelt with blanks": beside("provenance/", lambda path, a: (
        path / f"{files.sha256(made := SPELLINGS['blanks'](a.provenance.read_bytes()))}.json"
    ).write_bytes(made)),
    "a pipe": beside(f"provenance/{'1' * 64}.json", lambda path, _: os.mkfifo(path)),
    "an endless device": beside(f"provenance/{'1' * 64}.json", lambda path, _: link(path, "/dev/zero")),
    "a link to itself": beside(f"provenance/{'1' * 64}.json", lambda path, _: link(path, path)),
    "a folder that leads back": beside("provenance/up", lambda path, _: link(path, path.parent.parent)),
    "a folder for a statement": beside(f"provenance/{'1' * 64}.json/x", lambda path, _: path.parent.mkdir() or path.touch()),
    "line breaks in a name": beside(f"approval/u\nok/{'1' * 64}/1.json", lambda path, _: path.parent.mkdir(parents=True) or path.touch()),
}  # fmt: skip


@pytest.mark.parametrize("change", HARMLESS.values(), ids=HARMLESS)
def test_what_lies_beside_good_statements_neither_stops_nor_spoils_a_release(
    attack, change
) -> None:
    """The bundle that users verify holds nothing of it."""
    change(attack)
    attack.shop.promote(attack.manifest)
    shop, sha256 = attack.shop, attack.manifest.sha256
    bundle = shop.store.read(shop.release.attestation(sha256, BUNDLE))[0]
    links = verifier.follow(sha256, bundle, shop.channel.trust, now=NOW)
    assert verifier.state(links) == "verified", list(map(str, links))
    assert len(links) == 4


def test_what_is_read_of_a_wheel_is_of_the_bytes_that_are_copied(attack, monkeypatch) -> None:
    """It is swapped for one of its size and time after its digest was looked at, and put back."""
    from rocwheel.release import promote, wheelset

    good = wheel_path(attack)
    other, status, read = good.with_suffix(".other"), good.stat(), wheelset.staged_metadata
    body = good.read_bytes()
    other.write_bytes(body.replace(b"Metadata-Version", b"metadata-version"))
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))

    def swapped(place, info) -> bytes:
        if not info.key.endswith(good.name):
            return read(place, info)
        kept = good.with_suffix(".kept")
        good.rename(kept)
        other.rename(good)
        try:
            return read(place, info)
        finally:
            kept.rename(good)

    monkeypatch.setattr(promote.wheelset, "staged_metadata", swapped)
    refused(attack, "changed by another writer")


def test_a_merged_verdict_counts_with_its_signed_shards(attack) -> None:
    shop, manifest = attack.shop, attack.manifest
    attack.result().unlink()
    shards = [make_verdict(manifest, suite="unit", shard=f"{n}/2", host=f"node{n}") for n in (1, 2)]
    for shard in shards:
        shop.add(manifest, suite="unit", shard=shard.shard, host=shard.host)
    shop.add(manifest, suite="unit", parts=[shard.sha256 for shard in shards])
    assert attack.result(number=3).is_file()
    shop.promote(manifest)
    assert shop.shown(shop.release, "jax-rocm7-pjrt")


def test_the_clock_of_the_tests_lies_within_the_keys_windows() -> None:
    assert date(2026, 1, 1) < NOW.date() < date(2099, 1, 1)
