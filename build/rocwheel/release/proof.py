"""Checks what signed statements prove about a set before promotion, and writes the summary."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from amdgpu_family_matrix import Family
from rocwheel.base import files
from rocwheel.base.store import glance
from rocwheel.base.values import replace
from rocwheel.records.entry import Entry
from rocwheel.records.manifest import Manifest
from rocwheel.records.places import Place
from rocwheel.records.verdict import PASSED, State
from rocwheel.release import operations, policy
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger import verdicts
from rocwheel.release.ledger.state import Action
from rocwheel.release.ledger.verdicts import Coverage, FoundVerdict
from rocwheel.release.operations import Who
from rocwheel.release.policy import Decision
from rocwheel.release.trust import TrustError, envelope, statements, verifier
from rocwheel.release.trust import evidence as stored
from rocwheel.release.trust.evidence import Evidence
from rocwheel.release.trust.policy import SKEW, KeyRole, Signer
from rocwheel.release.trust.sigstore import SigstoreSigner
from rocwheel.release.trust.statements import Approval


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
    evidence = stored.gather(staging, manifest, results, case)
    if approvals and channel.requires(KeyRole.APPROVER):
        what = f"--approve: {channel.option} takes the signed word of an approver alone"
        raise TrustError(what, hint="`trust approve` signs it")
    counted, notes = believed(results, evidence, channel)
    lost = verdicts.lost(counted, before)
    decision = policy.decide(
        manifest, family, channel, counted, now=now, lost=lost, before=before,
        approvals=(*approvals, *evidence.approvals), signed=channel.requires(KeyRole.APPROVER),
    )  # fmt: skip
    words = {w.signed: evidence.approvals[w] for w in decision.approvals if w.signed}
    evidence = replace(evidence, lines={**evidence.lines, **words})
    cells = []
    for cell in decision.cells:
        why, said = cell.why, notes.get((cell.suite, cell.python), [])
        if said and cell.state is State.NOT_RUN and not cell.sha256:
            why = said[0]
        if cell in decision.waiting and evidence.doubts:
            why = f"{why}; {'; '.join(evidence.doubts)}"
        cells.append(replace(cell, why=why, notes=(*cell.notes, *said)))
    return replace(decision, cells=tuple(cells)), evidence


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
    for item in sorted(results, key=lambda item: item.key not in evidence.refused):
        verdict, why = item.verdict, evidence.refused.get(item.key, stored.UNNAMED)
        broken, is_told = evidence.broken.get(item.key, ""), item.key not in evidence.void
        if broken or item.key in evidence.signed:
            kept.append(replace(item, verdict=None, problem=broken) if broken else item)
        elif is_told and verdict and verdict.state not in PASSED:
            kept.append(item)
        elif is_told and verdict and verdict.failure:
            kept.append(replace(item, verdict=None, problem="unsigned, and it has a failure"))
        elif not verdict and item.key not in evidence.refused:
            kept.append(item)
        else:
            note = f"verdict {item.sha256[:12]} is unsigned: {why}"
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
    """Return the statements of a release, each on a line, the promoter's summary last.

    Raises TrustError where the channel needs a promoter's signature and there is none.
    """
    check_signer(channel, place, signer, who=who, action=Action.PROMOTE, clock=clock)
    lines = b"".join(evidence.lines[digest] for digest in sorted(evidence.lines))
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


def put(place: Place, key: str, data: bytes) -> None:
    """Store a release's statements, or a wheel's provenance, where there are any."""
    if data:
        place.store.create(key, data, headers=place.record_headers, sha256=files.sha256(data))
