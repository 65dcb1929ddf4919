"""What signed statements prove of a set before it is promoted, and the summary that says so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from rocwheel import files
from rocwheel.index.channels import Channel
from rocwheel.ledger.verdicts import FoundVerdict
from rocwheel.manifest import Manifest
from rocwheel.places import Place
from rocwheel.release.operations import Who
from rocwheel.release.policy import Decision
from rocwheel.trust import TrustError, chain, envelope, statements
from rocwheel.trust import evidence as stored
from rocwheel.trust.evidence import BUNDLE, Evidence
from rocwheel.trust.policy import Case, KeyRole
from rocwheel.values import replace
from rocwheel.verdict import State

if TYPE_CHECKING:
    from securesystemslib.signer import Signer

_PASSES: Final = frozenset({State.PASS, State.FLAKY})


def gather(
    staging: Place,
    manifest: Manifest,
    channel: Channel,
    verdicts: Iterable[FoundVerdict],
    *,
    now: datetime,
) -> Evidence:
    """Return the statements a promotion may rest on. Raises TrustError where a link is broken."""
    case = Case(trust=channel.trust, channel=channel.name, family=staging.family, now=now)
    readable = {item.sha256: item.verdict for item in verdicts if item.verdict}
    return stored.gather(staging, manifest, readable, case)


def believed(
    verdicts: Sequence[FoundVerdict], evidence: Evidence, channel: Channel
) -> tuple[FoundVerdict, ...]:
    """Return the verdicts that policy may see: a pass that no runner's key signed is none.

    A failure counts, signed or not, as does what cannot be read.
    """
    if KeyRole.RUNNER not in channel.trust.required(channel.name):
        return tuple(verdicts)
    kept = []
    for item in verdicts:
        verdict = item.verdict
        if item.sha256 in evidence.signed or not verdict or verdict.state not in _PASSES:
            kept.append(item)
        elif verdict.failure:
            kept.append(replace(item, verdict=None, problem="unsigned, and it tells of a failure"))
    return tuple(kept)


def explained(
    decision: Decision, verdicts: Sequence[FoundVerdict], evidence: Evidence, channel: Channel
) -> Decision:
    """Return the same decision with what does not count named in its cell."""
    kept = {item.sha256 for item in believed(verdicts, evidence, channel)}
    unsigned: dict[tuple[str, str], list[str]] = {}
    # a statement that was refused says more than a verdict without one: it is named first
    for item in sorted(verdicts, key=lambda item: item.sha256 not in evidence.refused):
        if item.sha256 not in kept:
            rule = evidence.refused.get(item.sha256, "no statement of a runner's key names it")
            unsigned.setdefault((item.suite, item.python), []).append(
                f"verdict {item.sha256[:12]} is unsigned: {rule}"
            )
    cells = []
    for cell in decision.cells:
        notes = unsigned.get((cell.suite, cell.python), [])
        why = notes[0] if notes and cell.state is State.NOT_RUN and not cell.sha256 else cell.why
        cells.append(replace(cell, why=why, notes=(*cell.notes, *notes)))
    return replace(decision, cells=tuple(cells))


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
) -> bytes:
    """Return the statements of a release, each on a line, the promoter's summary last.

    Raises TrustError where the channel needs a promoter's signature and there is none.
    """
    required = channel.trust.required(channel.name)
    lines = b"".join(evidence.lines[digest] for digest in sorted(evidence.lines))
    if signer is None:
        if KeyRole.PROMOTER in required:
            what = f"{channel.option}: a promotion needs the signature of a promoter's key"
            raise TrustError(what, hint="add --signer")
        return lines
    own = {
        "action": "promote",
        "channel": channel.name,
        "family": place.family,
        "by": who.by,
        "reason": who.reason,
        **facts,
    }
    inputs = sorted(evidence.lines)
    summary = statements.summary(
        manifest, time=who.time, url=place.url, policy=policy, inputs=inputs, own=own
    )
    whole = lines + envelope.sign(envelope.unsigned(summary), signer, name="the summary")
    if KeyRole.PROMOTER in required:
        for link in chain.follow(manifest.sha256, whole, channel.trust, now=who.now):
            if not link.holds and link.role in {"bundle", KeyRole.PROMOTER.value}:
                raise TrustError(f"--signer: {link.about}", hint="sign with a promoter's key")
    return whole


def settled(place: Place, manifest: str, made: bytes) -> bytes:
    """Return the statements that a promotion that was stopped left there, else these.

    They differ in the summary's time alone, and are written once.
    """
    key = place.attestation(manifest, BUNDLE)
    return place.store.read(key)[0] if place.store.info(key) else made


def put(place: Place, manifest: str, data: bytes) -> None:
    """Store a release's statements beside it, where there are any. Raises StoreError."""
    if data:
        key = place.attestation(manifest, BUNDLE)
        place.store.create(key, data, headers=place.record_headers, sha256=files.sha256(data))
