"""Statements in a store: put once, and judged before a promotion plans a copy.

A provenance lies under its own digest, the results of one runner's key about one cell under their
numbers: number n names the digest of number n - 1, so a failure that was taken out before a pass
leaves a gap. The last one leaves none but in a bucket with Object Lock: only the pruner may delete.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from rocwheel.base import files
from rocwheel.base.errors import ObjectDiffersError
from rocwheel.base.parallel import each
from rocwheel.base.store import ObjectInfo
from rocwheel.base.values import Plain, replace
from rocwheel.records.build_record import BUILD_RECORD, BuildRecord
from rocwheel.records.manifest import Manifest
from rocwheel.records.places import Place
from rocwheel.records.verdict import Verdict
from rocwheel.release.trust import TrustError, envelope, statements
from rocwheel.release.trust.envelope import LARGEST, Envelope, Statement
from rocwheel.release.trust.policy import Case, KeyRole, Signer, Trust
from rocwheel.release.trust.statements import Approval

MOST: Final = 64 << 20  # bytes of all statements about a set; `trust verify` reads no more
ATTEMPTS: Final = 20  # at a number that another process with the same key takes first
PROVENANCE: Final = "provenance.json"  # in a wheelhouse
REPRODUCED: Final = "reproduced.json"  # of one that was built again
UNNAMED: Final = "no statement of a runner's key names it"
PUT_BACK: Final = "put it back from a copy of the bucket; a set with a gap is never released"
_NAMED: Final = re.compile(r"(provenance|approval)/([0-9a-f]{64})\.json")
_RESULT: Final = re.compile(r"test-result/([^/]+)/([^/]+)/([0-9a-f]{64})/([1-9][0-9]{0,8})\.json")
_JUDGED: Final = re.compile(r"/[0-9a-f]{64}(/[0-9]+)?\.json\Z")  # a verdict, its statement


class Evidence(Plain, frozen=True, kw_only=True):
    """The statements a promotion may rest on, as they are stored."""

    lines: Mapping[str, bytes] = {}  # envelopes, by their digest
    signed: frozenset[str] = frozenset()  # digests of the verdicts that runners' keys signed
    refused: Mapping[str, str] = {}  # of others: by which rule
    approvals: Mapping[Approval, bytes] = {}  # signed by approvers
    doubts: Sequence[str] = ()  # why other approvals do not count


def state_build(
    wheelhouse: Path, signer: Signer | None, *, finished: str, again: Manifest | None = None
) -> Path:
    """Write a wheelhouse's provenance, unsigned without a key; one that is signed stays.

    With a set that was built `again` there, it states that this set was reproduced.
    """
    path = wheelhouse / (REPRODUCED if again else PROVENANCE)
    if path.exists() and envelope.parse(path.read_bytes(), name=str(path)).signatures:
        return path
    record = BuildRecord.from_bytes((wheelhouse / BUILD_RECORD).read_bytes(), name=BUILD_RECORD)
    own = Manifest.load(wheelhouse)
    made = statements.provenance(own, record, finished=finished, reproduced=again)
    data = envelope.unsigned(made)
    files.write(path, envelope.sign(data, signer, name=str(path)) if signer else data)
    return path


def built(wheelhouse: Path) -> bytes:
    """Return the signed lines of who built a wheelhouse, and who built it again.

    Raises TrustError for what is no statement.
    """
    folder = wheelhouse if wheelhouse.is_dir() else wheelhouse.parent
    paths = (path for name in (PROVENANCE, REPRODUCED) if (path := folder / name).is_file())
    lines = {path: path.read_bytes() for path in paths}
    return b"".join(x for p, x in lines.items() if envelope.parse(x, name=str(p)).signatures)


def add(place: Place, manifest: str, data: bytes, *, kind: str = "provenance") -> tuple[str, ...]:
    """Store envelopes under their digests, each on a line; return the keys. Raises StoreError."""
    lines = _named(place, manifest, data, kind)
    for key, line in lines.items():
        place.store.create(key, line, headers=place.record_headers, sha256=files.sha256(line))
    return tuple(lines)


def has_provenance(place: Place, manifest: str, data: bytes) -> bool:
    """Return whether these provenances are stored already."""
    return all(map(place.store.info, _named(place, manifest, data, "provenance")))


def _named(place: Place, manifest: str, data: bytes, kind: str) -> dict[str, bytes]:
    lines = {files.sha256(line): line for line in data.splitlines(keepends=True)}
    return {place.attestation(manifest, f"{kind}/{s}.json"): x for s, x in lines.items()}


def add_result(place: Place, verdict: Verdict, signer: Signer, *, parts: Sequence[str] = ()) -> str:
    """Sign a stored verdict as the next of this key's in its cell; return the statement's key.

    Raises TrustError, StoreError.
    """
    keyid = signer.public_key.keyid
    folder = f"test-result/{verdict.python}/{verdict.suite}/{keyid}/"
    for _ in range(ATTEMPTS):
        base = place.attestation(verdict.manifest)
        stored = (_RESULT.fullmatch(info.key[len(base) :]) for info in place.store.keys(base))
        mine = (match for match in stored if match and match[0].startswith(folder))
        number = max((int(match[4]) for match in mine), default=0) + 1
        before = place.attestation(verdict.manifest, f"{folder}{number - 1}.json")
        previous = files.sha256(place.store.read(before)[0]) if number > 1 else ""
        statement = statements.result(verdict, number=number, previous=previous, parts=parts)
        data = envelope.sign(envelope.unsigned(statement), signer, name="this statement")
        key = place.attestation(verdict.manifest, f"{folder}{number}.json")
        try:
            place.store.create(key, data, headers=place.record_headers, sha256=files.sha256(data))
        except ObjectDiffersError:
            continue  # another process with this key was faster
        return key
    what = f"{ATTEMPTS} statements of this key about {verdict.suite} came first"
    raise TrustError(f"{place.location}: {what}", hint="give each runner a key of its own")


def gather(
    place: Place, manifest: Manifest, verdicts: Mapping[str, Verdict], case: Case
) -> Evidence:
    """Judge all statements about a set; `verdicts` are the stored ones, by their digest.

    Raises TrustError where a link is broken: what is there proves nothing, or something is missing.
    Statements of keys that may not have made them do not count, and are noted.
    """
    if not case.required:
        return Evidence()
    shelf = _shelf(place, manifest.sha256, case)
    (built, approvals, doubts), (results, refused) = shelf.named(manifest), shelf.results(verdicts)
    if case.trust.rule(case.channel).locked:
        check_locked(manifest, case.trust)
    return Evidence(
        lines={files.sha256(item): item for item in (*built, *results.values())},
        signed=frozenset(results),
        refused=refused,
        approvals=approvals,
        doubts=doubts,
    )


def check_built(place: Place, manifest: Manifest, case: Case) -> None:
    """Raise TrustError for a set that a builder must have signed, and none has: a stranger's."""
    if KeyRole.BUILDER in case.required:
        _shelf(place, manifest.sha256, case).named(manifest)


def unsigned(
    place: Place, manifest: str, verdicts: Mapping[str, Verdict], case: Case
) -> dict[str, str]:
    """Return the verdicts that no runner's statement proves, by digest, each with the rule.

    None where the channel needs no runner's signature. Raises TrustError where a link is broken.
    """
    if KeyRole.RUNNER not in case.required:
        return {}
    good, refused = _shelf(place, manifest, case).results(verdicts)
    return {sha256: refused.get(sha256, UNNAMED) for sha256 in verdicts if sha256 not in good}


def _shelf(place: Place, manifest: str, case: Case) -> _Shelf:
    """Read all statements about a set.

    A build is stated once, all else in each family's own folder; elsewhere it hides nothing.
    """
    base, own = (item.attestation(manifest) for item in (place.of(place.family), place))
    infos = {
        name: info
        for info in place.store.keys(base)
        for start in {base, own}
        if info.key.startswith(start) and (name := info.key[len(start) :])
        if start == (base if name.startswith("provenance/") else own)
    }
    names = [name for name in infos if _NAMED.fullmatch(name) or _RESULT.fullmatch(name)]
    if sum(size for name in names if (size := infos[name].size) <= LARGEST) > MOST:
        what = f"{len(names)} statements of more than {MOST >> 20} MiB"
        raise TrustError(f"{place.store.locate(base)}: {what}", hint="remove what is none of ours")

    for start in (f"{own}test-result/", place.verdicts(manifest)):
        if lost := next(filter(_JUDGED.search, place.store.deleted(start)), ""):
            raise TrustError(f"{place.store.locate(lost)}: was deleted", hint=PUT_BACK)

    def read(name: str) -> bytes:
        """Return a statement's bytes; of one that is too long nothing, which is no statement."""
        return b"" if infos[name].size > LARGEST else place.store.read(infos[name].key)[0]

    data = dict(zip(names, each(read, names, threads=place.store.connections), strict=True))
    return _Shelf(place=place, case=case, infos=infos, data=data)


class _Shelf(Plain, frozen=True, kw_only=True):
    """All stored statements about one set, by their names, and what they are held against."""

    place: Place
    case: Case
    infos: Mapping[str, ObjectInfo]
    data: Mapping[str, bytes]

    def named(self, manifest: Manifest) -> tuple[list[bytes], dict[Approval, bytes], list[str]]:
        """Return provenances and approvals that hold, and why other approvals do not.

        Raises TrustError where a provenance is needed and none holds.
        """
        built, approved = list[bytes](), dict[Approval, bytes]()
        notes: dict[str, list[str]] = {"provenance": [], "approval": []}
        for name, body in sorted(self.data.items()):
            if not (match := _NAMED.fullmatch(name)):
                continue
            try:
                if files.sha256(body) != match[2]:
                    raise _broken(self._where(name), "name: its bytes have another digest")
                signed = envelope.read(body, self.case.trust, name=self._where(name))
                seen = self.infos[name].modified
                if match[1] == "approval":
                    approved[check_approval(signed, manifest, self.case, seen)] = body
                else:
                    check_provenance(signed, manifest, self.case, seen)
                    built.append(body)
            except TrustError as exc:
                notes[match[1]].append(str(exc))
        if KeyRole.BUILDER in self.case.required and not built:
            what = f"{self.place.location}: {manifest.sha256[:12]} has no provenance"
            first, *more = (*notes["provenance"], what)
            hint = "`trust sign` the wheelhouse with a builder's key, and `stage` it again"
            raise TrustError(first, hint=hint, detail="\n".join(more))
        return built, approved, notes["approval"]

    def results(self, verdicts: Mapping[str, Verdict]) -> tuple[dict[str, bytes], dict[str, str]]:
        """Return the results that hold, by the digest of their verdict, and why others do not."""
        good, refused = dict[str, bytes](), dict[str, str]()
        parts: dict[str, list[str]] = {}
        for name, number, before in self._chained():
            (python, suite, keyid), where = name.split("/")[1:4], self._where(name)
            if not number:
                with suppress(TrustError):  # it is read for the message alone
                    sha256 = verdict_of(envelope.parse(self.data[name], name="").statement)
                    why = f"{where}: role: {self.case.trust.name(keyid)} is no runner's key"
                    refused[sha256] = why
                continue
            signed = envelope.read(self.data[name], self.case.trust, name=where)
            verdict = check_result(signed, verdicts, number=number, previous=before)
            if (verdict.python, verdict.suite, *signed.signatures) != (python, suite, keyid):
                raise _broken(where, "name: it belongs to another cell or key")
            seen = self.infos[name].modified
            if why := self.case.refusal((keyid,), KeyRole.RUNNER, verdict.ended, seen, suite):
                refused[verdict.sha256] = f"{where}: {why}"
            else:
                good[verdict.sha256] = self.data[name]
                parts[verdict.sha256] = signed.statement.own["parts"]
        for sha256, shards in parts.items():
            if missing := set(shards) - parts.keys():
                what = f"was made of {min(missing)[:12]}, which no runner's key has signed"
                hint = "run that shard again, then `gate merge`"
                raise TrustError(f"the merged verdict {sha256[:12]} {what}", hint=hint)
        return good, refused

    def _chained(self) -> Iterator[tuple[str, int, str]]:
        """Yield each result's name, its number, 0 where no runner signed, and the digest before.

        Raises TrustError for a gap.
        """
        chains: dict[str, dict[int, str]] = {}
        for name in sorted(self.data):
            if match := _RESULT.fullmatch(name):
                chains.setdefault(name.rpartition("/")[0], {})[int(match[4])] = name
        for chain, names in chains.items():
            key = self.case.trust.keys.get(chain[-64:])
            if key is None or key.role is not KeyRole.RUNNER:
                yield from ((name, 0, "") for name in names.values())
                continue
            before = ""
            for number in range(1, max(names) + 1):
                if number not in names:
                    what = f"statement {number} of a runner is gone, {max(names)} comes after it"
                    raise TrustError(f"{self.place.location}/{chain}: {what}", hint=PUT_BACK)
                yield names[number], number, before
                before = files.sha256(self.data[names[number]])

    def _where(self, name: str) -> str:
        return self.place.store.locate(self.infos[name].key)


def check_locked(manifest: Manifest, trust: Trust) -> None:
    """Raise TrustError unless a set is made of a verified pin, unchanged, and of a pinned ROCm."""
    jax, xla = manifest.jax, manifest.xla
    changed = any(source.dirty or source.digest for source in (jax, xla, manifest.tool))
    jaxlibs = trust.pins.get((jax.commit, xla.commit, manifest.bazel_version))
    upstream = (wheel for wheel in manifest.wheels if wheel.origin == "upstream")
    other = next((wheel for wheel in upstream if wheel.sha256 not in (jaxlibs or ())), None)
    if changed or jaxlibs is None:
        what = f"JAX {jax.commit[:12]}, XLA {xla.commit[:12]}, Bazel {manifest.bazel_version}"
        what += ": not a verified pin, unchanged"
    elif other:
        what = f"{other.filename}: {other.sha256[:12]} is no jaxlib of its pin"
    elif manifest.rocm.sha256 not in trust.rocm:
        what = f"ROCm {manifest.rocm.name}, {manifest.rocm.sha256[:12]}: no set of a night pins it"
    else:
        return
    hint = "build it with --locked, of a ROCm whose `sha256` stands in nightly.yaml"
    raise TrustError(f"locked: {what}", hint=hint)


def check_provenance(signed: Envelope, manifest: Manifest, case: Case, seen: datetime) -> None:
    """Raise TrustError unless it is a builder's word on exactly this manifest's set."""
    statement = _of_kind(signed, statements.PROVENANCE)
    definition = statement.part("buildDefinition")
    claimed = statements.claimed(statement)
    if why := case.refusal(signed.signatures, KeyRole.BUILDER, claimed, seen):
        raise _broken(signed.name, why)
    wanted = {item.name: item.digest.sha256 for item in statements.subjects(manifest)}
    if statement.subjects != wanted:
        raise _broken(signed.name, f"subject: not the wheels of {manifest.sha256[:12]}")
    named = definition.get("resolvedDependencies")
    named = named if isinstance(named, list) else []
    if missing := next((d for d in statements.dependencies(manifest) if d not in named), None):
        raise _broken(signed.name, f"resolvedDependencies: not the manifest's {missing}")
    if definition.get("externalParameters") != statements.parameters(manifest):
        raise _broken(signed.name, "externalParameters: not the manifest's")


def check_approval(signed: Envelope, manifest: Manifest, case: Case, seen: datetime) -> Approval:
    """Return what an approver signed; raise TrustError unless it is about this set, here."""
    statement = _of_kind(signed, statements.APPROVAL)
    claimed, own = statements.claimed(statement), statement.own
    suite = str(own.get("suite"))
    if why := case.refusal(signed.signatures, KeyRole.APPROVER, claimed, seen, suite):
        raise _broken(signed.name, why)
    try:
        word = msgspec.convert({**own, "signed": signed.sha256}, Approval)
    except msgspec.ValidationError as exc:
        raise _broken(signed.name, f"{exc}") from exc
    here = replace(word, channel=case.channel, family=case.family)
    if here != word:
        raise _broken(signed.name, f"scope: approves on {word.channel or 'a store'}, {word.family}")
    if statement != statements.approval(manifest, word, time=str(claimed)):
        raise _broken(signed.name, f"subject: not the wheels of {manifest.sha256[:12]}")
    return word


def _of_kind(signed: Envelope, kind: str) -> Statement:
    if signed.statement.predicate_type != kind:
        raise _broken(signed.name, f"predicateType: {signed.statement.predicate_type}, not {kind}")
    return signed.statement


def check_result(
    signed: Envelope, verdicts: Mapping[str, Verdict], *, number: int, previous: str
) -> Verdict:
    """Return the verdict that a test result states; raise TrustError where they differ."""
    statement = _of_kind(signed, statements.TEST_RESULT)
    own, sha256 = statement.own, verdict_of(statement)
    verdict = verdicts.get(sha256)
    if verdict is None:
        what = f"the verdict {sha256[:12]} that it signs is gone or cannot be read"
        raise TrustError(f"{signed.name}: {what}", hint=PUT_BACK)
    parts = own.get("parts")
    shards = parts if isinstance(parts, list) else ()
    wanted = statements.result(verdict, number=number, previous=previous, parts=shards)
    if statement != wanted:
        wrong = [name for name, value in wanted.own.items() if own.get(name) != value]
        what = ", ".join(wrong) or "subject or configuration"
        raise _broken(signed.name, f"{what}: not what stands in the verdict and what came before")
    return verdict


def verdict_of(statement: Statement) -> str:
    """Return the digest of the verdict that a test result names; "" for none."""
    try:
        items: Any = statement.predicate["configuration"]
        return next(str(i["digest"]["sha256"]) for i in items if i["name"] == "verdict")
    except (KeyError, TypeError, StopIteration):
        return ""


def _broken(name: str, why: str) -> TrustError:
    return TrustError(f"{name}: {why}", hint=envelope.AGAIN)
