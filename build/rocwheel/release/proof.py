"""What signed statements prove about a set before promotion, and the promoter's own word.

In a store a provenance lies under its own digest, the results of one runner's key about one cell
under their numbers. Number n names the digest of number n - 1, so a failure that was removed before
a pass leaves a gap. Removing the last one leaves a gap only in a bucket with Object Lock; so only
the pruner may delete.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from amdgpu_family_matrix import Family
from rocwheel.base import files
from rocwheel.base.errors import ConfigError, WheelError, named
from rocwheel.base.store import ObjectInfo, glance
from rocwheel.base.values import Plain, replace
from rocwheel.records.entry import Entry
from rocwheel.records.manifest import BUILD_RECORD, BuildRecord, Manifest
from rocwheel.records.places import Place
from rocwheel.records.verdict import PASSED, State
from rocwheel.release import operations, policy, wheelset
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger import manifests, verdicts
from rocwheel.release.ledger.state import Action
from rocwheel.release.ledger.verdicts import Coverage, FoundVerdict
from rocwheel.release.operations import Who
from rocwheel.release.policy import Decision
from rocwheel.release.trust import TrustError, envelope, statements, verifier
from rocwheel.release.trust.envelope import LARGEST
from rocwheel.release.trust.policy import SKEW, Case, KeyRole, Signer, Trust
from rocwheel.release.trust.sigstore import SigstoreSigner
from rocwheel.release.trust.statements import Approval
from rocwheel.release.trust.verifier import ChainLink, Stated

STATED_BYTES: Final = 64 << 20  # bytes of all statements about a set; `trust verify` reads no more
PROVENANCE: Final = "provenance.json"  # in a wheelhouse: build.json, signed
REPRODUCED: Final = "reproduced.json"  # of one that was built again
UNNAMED: Final = "no runner's key has signed it"
PUT_BACK: Final = "put it back from a copy of the bucket; a set with a gap is never released"
_NAMED: Final = re.compile(r"(provenance|approval)/([0-9a-f]{64})\.json")
_JUDGED: Final = re.compile(r"/[0-9a-f]{64}(/[0-9]+)?\.json\Z")  # a verdict


class Evidence(Plain, frozen=True, kw_only=True):
    """What statements prove of a set."""

    lines: Mapping[str, bytes] = {}  # envelopes that a promotion rests on, by their digest
    results: Mapping[str, ChainLink] = {}  # of stored verdicts, by their keys in the store
    approvals: Mapping[Approval, bytes] = {}  # signed by approvers
    doubts: Sequence[str] = ()  # why other approvals do not count
    parents: tuple[str, ...] = ()  # sets that this one was derived from, whose statements count
    reproduced: bool = False  # by another builder's key than one that signed the build


def state_build(wheelhouse: Path, signer: Signer | None, *, again: Manifest | None = None) -> Path:
    """Sign how a wheelhouse was built, by its build.json; a signed statement stays.

    With a set that was built `again` there, sign that this set was reproduced. Without a key the
    statement waits unsigned.
    """
    path = wheelhouse / (REPRODUCED if again else PROVENANCE)
    if signer and path.exists() and envelope.parse(path.read_bytes(), name=str(path)).signatures:
        return path
    with named(
        source := wheelhouse / BUILD_RECORD, ConfigError, hint="name a wheelhouse as it was built"
    ):
        record = BuildRecord.from_bytes(source.read_bytes(), name=str(source))
    made = statements.provenance(Manifest.load(wheelhouse), record, reproduced=again)
    data = envelope.unsigned(made)
    files.write(path, envelope.sign(data, signer, name=str(path)) if signer else data)
    return path


def built(wheelhouse: Path) -> bytes:
    """Return the signed provenances of a wheelhouse, of its build and of builds again."""
    folder = wheelhouse if wheelhouse.is_dir() else wheelhouse.parent
    paths = (path for name in (PROVENANCE, REPRODUCED) if (path := folder / name).is_file())
    lines = {path: path.read_bytes() for path in paths}
    return b"".join(x for p, x in lines.items() if envelope.parse(x, name=str(p)).signatures)


def add(place: Place, manifest: str, data: bytes, *, kind: str = "provenance") -> tuple[str, ...]:
    """Store envelopes under their digests, each on a line; return the keys. Raises StoreError."""
    lines = keyed(place, manifest, data, kind)
    for key, line in lines.items():
        place.keep(key, line)
    return tuple(lines)


def keyed(place: Place, manifest: str, data: bytes, kind: str) -> dict[str, bytes]:
    """Return envelopes, each on a line, by the keys under which they are stored."""
    lines = {files.sha256(line): line for line in data.splitlines(keepends=True)}
    where = place.built if kind == "provenance" else place.attestation
    return {where(manifest, f"{kind}/{s}.json"): x for s, x in lines.items()}


def gather(
    place: Place,
    manifest: Manifest,
    results: Sequence[FoundVerdict],
    case: Case,
    *,
    is_derived: bool = False,
) -> Evidence:
    """Judge all statements about a set; `results` are its stored verdicts.

    Of a derived set the provenance is its parent's. Raises TrustError where something is missing:
    a provenance that is needed, a number of a runner's key. Statements of keys that may not have
    made them do not count, and are noted.
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
    if KeyRole.BUILDER in case.required and not (good[KeyRole.BUILDER] or is_derived):
        what = f"{place.location}: {manifest.sha256[:12]} has no provenance"
        first, *more = (*notes[KeyRole.BUILDER], what)
        hint = "`trust sign` the wheelhouse with a builder's key, and `stage` it again"
        raise TrustError(first, hint=hint, detail="\n".join(more))
    if case.trust.rule(case.channel).locked:
        check_locked(manifest, case.trust)
    # a chain goes along as a whole: what does not count is one of those that come before
    chains = {link.stated.cell for link in good[KeyRole.RUNNER]}
    chained = [link for link in made if link.signed and link.holds and link.stated.cell in chains]
    return Evidence(
        lines={x.stated.sha256: x.stated.data for x in (*good[KeyRole.BUILDER], *chained)},
        results={link.stated.key: link for link in made if link.stated.key},
        approvals={link.word: link.stated.data for link in good[KeyRole.APPROVER] if link.word},
        doubts=notes[KeyRole.APPROVER],
        reproduced=any(
            "reproduced" in again.own and not {*again.signers} & {*first.signers}
            for again in good[KeyRole.BUILDER]
            for first in good[KeyRole.BUILDER]
        ),
    )


def check_built(place: Place, manifest: Manifest, case: Case) -> None:
    """Raise TrustError for a set without the builder's signature that it needs."""
    if KeyRole.BUILDER in case.required:
        origin = manifests.find(place, manifest.parent.manifest) if manifest.parent else None
        if origin:
            wheelset.check_derived(place, manifest, origin)
            check_built(place, origin, case)
        else:
            gather(place, manifest, (), case)


def unsigned(
    place: Place, manifest: Manifest, results: Sequence[FoundVerdict], case: Case
) -> dict[str, str]:
    """Return the verdicts that no runner's key signed, by store key, each with the rule.

    None where the channel needs no runner's signature. Raises TrustError where one is missing.
    """
    if KeyRole.RUNNER not in case.required:
        return {}
    made = {link.stated.key: link for link in _judged(place, manifest, results, case)}
    links = {item.key: made.get(item.key) for item in results}
    return {k: link.about if link else UNNAMED
            for k, link in links.items() if not (link and link.is_good)}  # fmt: skip


def _judged(
    place: Place, manifest: Manifest, results: Sequence[FoundVerdict], case: Case
) -> list[ChainLink]:
    lost = filter(_JUDGED.search, place.store.deleted(place.verdicts(manifest.sha256)))
    if key := next(lost, ""):
        raise TrustError(f"{place.store.locate(key)}: was deleted", hint=PUT_BACK)
    signed = (
        Stated(
            name=item.where,
            data=item.line,
            role=KeyRole.RUNNER,
            seen=item.seen,
            cell=(item.python, item.suite, item.keyid),
            number=item.number,
            key=item.key,
        )
        for item in results
        if item.keyid
    )
    every = [*_stated(place, manifest.sha256), *signed]
    made = verifier.links(every, case, manifest=manifest.sha256, whole=manifest)
    if gap := next((link for link in made if link.is_gap), None):
        raise TrustError(gap.about, hint=PUT_BACK)
    return made


def _stated(place: Place, manifest: str) -> Iterator[Stated]:
    """Read the builders' and approvers' statements about a set.

    A build is stated once, all else in each family's own folder; elsewhere it hides nothing.
    """
    base, own = place.built(manifest), place.attestation(manifest)
    named = [
        (info, match[1], match[2])
        for info in place.store.keys(base)
        for start, kind in ((base, "provenance"), (own, "approval"))
        if info.key.startswith(start) and (match := _NAMED.fullmatch(info.key[len(start) :]))
        if match[1] == kind
    ]
    if sum(info.size for info, _, _ in named if info.size <= LARGEST) > STATED_BYTES:
        what = f"{len(named)} statements of more than {STATED_BYTES >> 20} MiB"
        raise TrustError(f"{place.store.locate(base)}: {what}", hint="remove what is none of ours")

    def read(item: tuple[ObjectInfo, str, str]) -> bytes:
        """Return a statement's bytes; none if it is too long, which is no valid statement."""
        return b"" if item[0].size > LARGEST else place.store.read(item[0].key)[0]

    for (info, kind, digest), data in zip(named, place.each(read, named), strict=True):
        where, is_it = place.store.locate(info.key), files.sha256(data) == digest
        yield Stated(
            name=where if is_it else f"{where}: name: its bytes have another digest",
            data=data if is_it else b"",
            role=KeyRole.BUILDER if kind == "provenance" else KeyRole.APPROVER,
            seen=info.modified,
        )


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
        what = f"{other.filename}: {other.sha256[:12]} is not a jaxlib of its pin"
    elif manifest.rocm.sha256 not in trust.rocm:
        what = f"ROCm {manifest.rocm.name}, {manifest.rocm.sha256[:12]}: no set of a night pins it"
    else:
        return
    hint = "build it with --locked, from a ROCm whose `sha256` is in nightly.yaml"
    raise TrustError(f"locked: {what}", hint=hint)


def judge(
    staging: Place,
    manifest: Manifest,
    family: Family,
    channel: Channel,
    results: Sequence[FoundVerdict],
    *,
    before: Coverage,
    now: datetime,
    approvals: Sequence[Approval] = (),
) -> tuple[Decision, Evidence]:
    """Return the decision about a set by its verdicts, and the statements that prove them.

    `before` is what ran of the last released set. Raises TrustError where a link is broken.
    """
    case = channel.case(staging.family, now)
    if approvals and channel.requires(KeyRole.APPROVER):
        what = f"--approve: {channel.option} takes the signed word of an approver alone"
        raise TrustError(what, hint="`trust approve` signs it")
    parent, theirs, doubt = None, Evidence(), ""
    if manifest.parent and channel.derived == policy.ASKED_AGAIN:
        look = partial(judge, staging, family=family, channel=channel, before=before, now=now)
        parent, theirs, doubt = _of_parent(staging, manifest, look)
    try:
        evidence = gather(staging, manifest, results, case, is_derived=parent is not None)
    except TrustError as exc:
        raise TrustError(f"{exc}; {doubt}" if doubt else str(exc), hint=exc.hint) from exc
    if manifest.parent and parent:
        parents = (manifest.parent.manifest, *theirs.parents)
        evidence = replace(evidence, lines={**theirs.lines, **evidence.lines}, parents=parents)
    counted, notes = believed(results, evidence, channel)
    decision = policy.decide(
        manifest, family, channel, counted, now=now, before=before,
        approvals=(*approvals, *evidence.approvals), signed=channel.requires(KeyRole.APPROVER),
        parent=parent,
    )  # fmt: skip
    words = {w.signed: evidence.approvals[w] for w in decision.approvals if w.signed}
    evidence = replace(evidence, lines={**evidence.lines, **words})
    cells = []
    for cell in decision.cells:
        why, said = cell.why, notes.get((cell.suite, cell.python), [])
        if said and cell.state is State.NOT_RUN and not cell.sha256:
            why = said[0]
        if doubt and cell.state is State.NOT_RUN:
            why = f"{why}; {doubt}"
        if cell in decision.waiting and evidence.doubts:
            why = f"{why}; {'; '.join(evidence.doubts)}"
        cells.append(replace(cell, why=why, notes=(*cell.notes, *said)))
    decision, built = replace(decision, cells=tuple(cells)), theirs if parent else evidence
    if case.trust.rule(case.channel).reproduced and not (decision.blocking or built.reproduced):
        of = (manifest.parent.manifest if parent and manifest.parent else manifest.sha256)[:12]
        what = f"{staging.location}: no second builder's key says that it built {of} again"
        raise TrustError(what, hint=f"with another builder's key: `wheel rebuild {of} --signer …`")
    return decision, evidence


def _of_parent(
    staging: Place, manifest: Manifest, look: Callable[..., tuple[Decision, Evidence]]
) -> tuple[Decision | None, Evidence, str]:
    """Return what is known of the set that one was derived from; or why nothing of it counts."""
    name = manifest.parent.manifest if manifest.parent else ""
    parent = manifests.find(staging, name)
    if parent is None:
        return None, Evidence(), f"the set that it was derived from, {name[:12]}, is not staged"
    try:
        wheelset.check_derived(staging, manifest, parent)
        return *look(manifest=parent, results=verdicts.find(staging, name)), ""
    except (TrustError, WheelError) as exc:
        return None, Evidence(), f"{name[:12]} does not count for it: {exc}"


def believed(
    results: Sequence[FoundVerdict], evidence: Evidence, channel: Channel
) -> tuple[tuple[FoundVerdict, ...], dict[verdicts.Cell, list[str]]]:
    """Return the verdicts for the policy, and those left out by cell, with the reason.

    A pass without a runner's signature does not count. A failure counts, signed or not, and so does
    an unreadable verdict; unless its key is revoked, or no runner's key signs at its place.
    """
    if not channel.requires(KeyRole.RUNNER):
        return tuple(results), {}
    kept, notes = list[FoundVerdict](), dict[verdicts.Cell, list[str]]()
    # a statement that was refused says more than a verdict without one: it is named first
    for item in sorted(results, key=lambda item: item.key not in evidence.results):
        verdict, link = item.verdict, evidence.results.get(item.key)
        fails = None if link and link.is_void else verdict
        if link and not link.holds:
            kept.append(replace(item, verdict=None, problem=link.about))
        elif (link and link.is_good) or (fails and fails.state not in PASSED):
            kept.append(item)
        elif fails and fails.failure:
            kept.append(replace(item, verdict=None, problem="unsigned, and it has a failure"))
        elif not (verdict or link):
            kept.append(item)
        else:
            note = f"verdict {item.sha256[:12]} is unsigned: {link.about if link else UNNAMED}"
            notes.setdefault((item.suite, item.python), []).append(note)
    return tuple(kept), notes


def bundle(
    manifest: Manifest,
    channel: Channel,
    place: Place,
    *,
    who: Who,
    evidence: Evidence,
    facts: Mapping[str, Any],
    signer: Signer | None,
    policy: Mapping[str, str],
    clock: Sequence[str] = (),
) -> bytes:
    """Return the statements of a release, each on a line, the promoter's summary last."""
    check_signer(channel, place, signer, who=who, action=Action.PROMOTE, clock=clock)
    lines = b"".join(evidence.lines[digest] for digest in sorted(evidence.lines))
    facts = {**facts, "parents": evidence.parents} if evidence.parents else facts
    if signer is None:
        return lines
    inputs, own = sorted(evidence.lines), _own(Action.PROMOTE, channel, place, who)
    summary = statements.summary(
        manifest, time=who.time, url=place.url, policy=policy, inputs=inputs, own={**own, **facts}
    )
    return lines + envelope.sign(envelope.unsigned(summary), signer, name="the summary")


def provenances(place: Place, entries: Sequence[Entry], signer: SigstoreSigner) -> dict[str, bytes]:
    """Return PEP 740's provenance of each wheel, by its name; none for an unknown publisher.

    Those that a promotion left which was stopped stay: nothing is logged twice. Raises TrustError.
    """

    def stored(entry: Entry) -> bytes:
        name = f"{entry.filename}.provenance"
        return glance(place.store, place.built(entry.manifest, name))[0]

    read = zip(entries, place.each(stored, entries), strict=True)
    there = {entry.filename: data for entry, data in read if data}
    missing = {entry.filename: entry.sha256 for entry in entries if entry.filename not in there}
    return there | (signer.provenances(missing) if missing else {})


def _own(action: Action, channel: Channel, place: Place, who: Who) -> dict[str, Any]:
    said = {"action": action.value, "channel": channel.name, "family": place.family}
    return {**said, "by": who.by, "reason": who.reason}


def check_signer(
    channel: Channel,
    place: Place,
    signer: Signer | None,
    *,
    who: Who,
    action: Action,
    clock: Sequence[str] = (),
) -> None:
    """Raise TrustError where a channel that needs a promoter's signature would not get it.

    Taking files out (a yank, a rollback) needs no key. The machine's clock is compared with the
    store's, by these objects and the index's own. Raises ConfigError where they differ.
    """
    is_needed = channel.requires(KeyRole.PROMOTER)
    if signer and who.is_checked:  # a statement with a later time would not be believed until then
        objects = (place.state, place.json(""), *clock)
        operations.check_clock(
            place.store, objects, now=who.clock, where=place.location, limit=SKEW
        )
    if is_needed and signer:
        check_key(channel, place, signer, who=who, role=KeyRole.PROMOTER)
    elif is_needed and action.value not in statements.WITHDRAWALS:
        what = f"{channel.option}: `{action.value}` needs the signature of a promoter's key"
        raise TrustError(what, hint="add --signer")


def check_key(
    channel: Channel, place: Place, signer: Signer, *, who: Who, role: KeyRole, suite: str = ""
) -> None:
    """Raise TrustError for a key that may not sign for this role, here and today."""
    keyid, why = signer.public_key.keyid, "it is not in the trust file"
    if keyid in channel.trust.keys:
        why = channel.case(place.family, who.now).refusal((keyid,), role, who.time, suite=suite)
    if why:
        raise TrustError(f"--signer: {why}", hint=f"sign with a key of the role {role.value}")


def extended(
    before: bytes,
    manifest: Manifest,
    names: Collection[str],
    *,
    place: Place,
    action: Action,
    channel: Channel,
    who: Who,
    signer: Signer,
) -> bytes | None:
    """Return a release's statements with one about an action after its promotion.

    `names` are single files of it. None where there is such a statement already, and for a set that
    was released without a summary. Raises TrustError.
    """
    every = [envelope.parse(line + b"\n", name="a statement") for line in before.splitlines()]
    said = [item for item in every if item.statement.predicate_type == statements.SUMMARY]
    held, yanked = verifier.standing(said)
    about = {*(names or (name for item in said for name in item.statement.subjects))}
    unsaid = {Action.YANK: about - yanked.keys(), Action.UNYANK: about & yanked.keys()}
    if not said or not unsaid.get(action, held if action is Action.RESTORE else not held):
        return None
    summary = statements.summary(
        manifest,
        time=who.time,
        url=place.url,
        policy={"trust": channel.trust.sha256},
        inputs=[said[-1].sha256],
        own={**_own(action, channel, place, who), "files": sorted(names)},
    )
    return before + envelope.sign(envelope.unsigned(summary), signer, name="the summary")
