"""Statements in a wheelhouse and in a store, and what they prove about a set before promotion.

A provenance lies under its own digest, the results of one runner's key about one cell under their
numbers. Number n names the digest of number n - 1, so a failure that was removed before a pass
leaves a gap. Removing the last one leaves a gap only in a bucket with Object Lock; so only the
pruner may delete.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from rocwheel.base import files
from rocwheel.base.errors import ConfigError, named
from rocwheel.base.parallel import each
from rocwheel.base.store import ObjectInfo
from rocwheel.base.values import Plain
from rocwheel.records.manifest import BUILD_RECORD, BuildRecord, Manifest
from rocwheel.records.places import Place
from rocwheel.release.ledger.verdicts import FoundVerdict
from rocwheel.release.trust import TrustError, envelope, statements, verifier
from rocwheel.release.trust.envelope import LARGEST
from rocwheel.release.trust.policy import Case, KeyRole, Signer, Trust
from rocwheel.release.trust.statements import Approval
from rocwheel.release.trust.verifier import ChainLink, Stated

MOST: Final = 64 << 20  # bytes of all statements about a set; `trust verify` reads no more
PROVENANCE: Final = "provenance.json"  # in a wheelhouse: build.json, signed
REPRODUCED: Final = "reproduced.json"  # of one that was built again
UNNAMED: Final = "no runner's key has signed it"
PUT_BACK: Final = "put it back from a copy of the bucket; a set with a gap is never released"
_NAMED: Final = re.compile(r"(provenance|approval)/([0-9a-f]{64})\.json")
# as they were before 0.3, beside the verdicts
_RESULT: Final = re.compile(r"test-result/([^/]+)/([^/]+)/([0-9a-f]{64})/([1-9][0-9]{0,8})\.json")
_JUDGED: Final = re.compile(r"/[0-9a-f]{64}(/[0-9]+)?\.json\Z")  # a verdict


class Evidence(Plain, frozen=True, kw_only=True):
    """What statements prove of a set, by the keys of its verdicts in the store."""

    lines: Mapping[str, bytes] = {}  # envelopes that a promotion rests on, by their digest
    signed: frozenset[str] = frozenset()  # of verdicts that runners' keys signed
    refused: Mapping[str, str] = {}  # of others: by which rule
    broken: Mapping[str, str] = {}  # of what is no statement: why, and whose it is
    void: frozenset[str] = frozenset()  # of revoked keys: they block nothing either
    approvals: Mapping[Approval, bytes] = {}  # signed by approvers
    doubts: Sequence[str] = ()  # why other approvals do not count


def state_build(wheelhouse: Path, signer: Signer, *, again: Manifest | None = None) -> Path:
    """Sign how a wheelhouse was built, by its build.json; a signed statement stays.

    With a set that was built `again` there, sign that this set was reproduced. Raises ConfigError
    for a folder without a build.json, TrustError.
    """
    path = wheelhouse / (REPRODUCED if again else PROVENANCE)
    if path.exists() and envelope.parse(path.read_bytes(), name=str(path)).signatures:
        return path
    return sign_file(path, unsigned_build(wheelhouse, again), signer)


def unsigned_build(wheelhouse: Path, again: Manifest | None = None) -> bytes:
    """Return the provenance of a wheelhouse, unsigned: it follows from build.json and manifest."""
    path = wheelhouse / BUILD_RECORD
    with named(path, ConfigError, hint="name a wheelhouse as it was built"):
        record = BuildRecord.from_bytes(path.read_bytes(), name=str(path))
    own = Manifest.load(wheelhouse)
    return envelope.unsigned(statements.provenance(own, record, reproduced=again))


def leave_build(wheelhouse: Path, again: Manifest) -> Path:
    """Write the unsigned statement that a wheelhouse reproduces its set."""
    path = wheelhouse / REPRODUCED
    files.write(path, unsigned_build(wheelhouse, again))
    return path


def sign_file(path: Path, data: bytes, signer: Signer) -> Path:
    """Write a statement with the signature of one more key. Raises TrustError."""
    files.write(path, envelope.sign(data, signer, name=str(path)))
    return path


def built(wheelhouse: Path) -> bytes:
    """Return the signed provenances of a wheelhouse, of its build and of builds again.

    Raises TrustError for an invalid statement.
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
    where = place.built if kind == "provenance" else place.attestation
    return {where(manifest, f"{kind}/{s}.json"): x for s, x in lines.items()}


def gather(
    place: Place, manifest: Manifest, results: Sequence[FoundVerdict], case: Case
) -> Evidence:
    """Judge all statements about a set; `results` are its stored verdicts.

    Raises TrustError where something is missing: a provenance that is needed, a number of a
    runner's key. Statements of keys that may not have made them do not count, and are noted.
    """
    if not case.required:
        return Evidence()
    made = _judged(place, manifest, results, case)
    good = {role: [link for link in made if link.role == role.value and link.is_good]
            for role in KeyRole}  # fmt: skip
    notes = {
        role: [link.about for link in made if link.role == role.value and not link.is_good]
        for role in KeyRole
    }
    if KeyRole.BUILDER in case.required and not good[KeyRole.BUILDER]:
        what = f"{place.location}: {manifest.sha256[:12]} has no provenance"
        first, *more = (*notes[KeyRole.BUILDER], what)
        hint = "`trust sign` the wheelhouse with a builder's key, and `stage` it again"
        raise TrustError(first, hint=hint, detail="\n".join(more))
    if case.trust.rule(case.channel).locked:
        check_locked(manifest, case.trust)
    keyed = [link for link in made if link.stated.key]
    # a chain goes along as a whole: what does not count is one of those that come before
    chains = {link.stated.cell for link in good[KeyRole.RUNNER]}
    chained = [link for link in made if link.signed and link.holds and link.stated.cell in chains]
    return Evidence(
        lines={x.stated.sha256: x.stated.data for x in (*good[KeyRole.BUILDER], *chained)},
        signed=frozenset(link.stated.key for link in keyed if link.is_good),
        refused={link.stated.key: link.about for link in keyed if link.holds and not link.counts},
        broken={link.stated.key: link.about for link in keyed if not link.holds},
        void=frozenset(link.stated.key for link in keyed if link.is_void),
        approvals={link.word: link.stated.data for link in good[KeyRole.APPROVER] if link.word},
        doubts=notes[KeyRole.APPROVER],
    )


def check_built(place: Place, manifest: Manifest, case: Case) -> None:
    """Raise TrustError for a set without the builder's signature that it needs."""
    if KeyRole.BUILDER in case.required:
        gather(place, manifest, (), case)


def unsigned(
    place: Place, manifest: Manifest, results: Sequence[FoundVerdict], case: Case
) -> dict[str, str]:
    """Return the verdicts that no runner's key signed, by store key, each with the rule.

    None where the channel needs no runner's signature. Raises TrustError where one is missing.
    """
    if KeyRole.RUNNER not in case.required:
        return {}
    made = {x.stated.key: x for x in _judged(place, manifest, results, case) if x.stated.key}
    keys = (item.key for item in results)
    return {k: made[k].about if k in made else UNNAMED
            for k in keys if not (k in made and made[k].is_good)}  # fmt: skip


def _judged(
    place: Place, manifest: Manifest, results: Sequence[FoundVerdict], case: Case
) -> list[ChainLink]:
    """Hold all statements about a set against the trust file. Raises TrustError for a gap."""
    lost = filter(_JUDGED.search, place.store.deleted(place.verdicts(manifest.sha256)))
    if key := next(lost, ""):
        raise TrustError(f"{place.store.locate(key)}: was deleted", hint=PUT_BACK)
    every = [*_stated(place, manifest.sha256, results), *map(_of_verdict, filter(_lies, results))]
    made = verifier.links(every, case, manifest=manifest.sha256, whole=manifest)
    # an old result without its verdict hides one, too
    gaps = (x for x in made if x.is_gap or (not x.holds and x.stated.number and not x.stated.key))
    if gap := next(gaps, None):
        raise TrustError(gap.about, hint=PUT_BACK)
    return made


def _lies(item: FoundVerdict) -> bool:
    return bool(item.keyid)


def _of_verdict(item: FoundVerdict) -> Stated:
    return Stated(
        name=item.where,
        data=item.line,
        role=KeyRole.RUNNER,
        seen=item.seen,
        cell=(item.python, item.suite, item.keyid),
        number=item.number,
        key=item.key,
    )


def _stated(place: Place, manifest: str, results: Sequence[FoundVerdict]) -> Iterator[Stated]:
    """Read the other statements about a set.

    A build is stated once, all else in each family's own folder; elsewhere it hides nothing.
    """
    base, own = place.built(manifest), place.attestation(manifest)
    infos: dict[str, ObjectInfo] = {
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

    def read(name: str) -> bytes:
        """Return a statement's bytes; none if it is too long, which is no valid statement."""
        return b"" if infos[name].size > LARGEST else place.store.read(infos[name].key)[0]

    old = {item.sha256: item for item in results if item.verdict and not item.keyid}
    for name, data in zip(names, each(read, names, threads=place.store.connections), strict=True):
        where, seen = place.store.locate(infos[name].key), infos[name].modified
        if match := _RESULT.fullmatch(name):
            python, suite, keyid, number = match.groups()
            found = old.get(_names(data))
            yield Stated(
                name=where, data=data, role=KeyRole.RUNNER, seen=seen, number=int(number),
                cell=(python, suite, keyid), key=found.key if found else "",
                verdict=found.verdict if found else None,
            )  # fmt: skip
        elif match := _NAMED.fullmatch(name):
            role = KeyRole.BUILDER if match[1] == "provenance" else KeyRole.APPROVER
            is_it = files.sha256(data) == match[2]
            about = where if is_it else f"{where}: name: its bytes have another digest"
            yield Stated(name=about, data=data if is_it else b"", role=role, seen=seen)


def _names(data: bytes) -> str:
    """Return the verdict that an old test result names, by its digest; "" for what is none."""
    try:
        return statements.verdict_of(envelope.parse(data, name="").statement)
    except TrustError:
        return ""


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
