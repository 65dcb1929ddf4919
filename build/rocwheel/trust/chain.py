"""From a downloaded wheel back to who built, tested and released it, without a network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rocwheel.trust import TrustError, envelope, statements
from rocwheel.trust.envelope import Envelope
from rocwheel.trust.policy import Case, KeyRole, Trust

ROLES: Final = {
    statements.PROVENANCE: KeyRole.BUILDER,
    statements.TEST_RESULT: KeyRole.RUNNER,
    statements.SUMMARY: KeyRole.PROMOTER,
}


@dataclass(frozen=True, kw_only=True)
class ChainLink:
    """One step of the chain: which role, whether it holds, and what it says or lacks."""

    role: str
    holds: bool
    about: str

    def __str__(self) -> str:
        return f"{'ok' if self.holds else 'BROKEN':7}{self.role:9} {self.about}"


def follow(sha256: str, bundle: bytes, trust: Trust, *, now: datetime) -> tuple[ChainLink, ...]:
    """Return the links from a wheel, or a manifest, by its digest, to its release.

    All three roles must have signed, and the promoter must name every other statement.
    """
    try:
        signed = [
            envelope.read(line + b"\n", trust, name=f"statement {number}")
            for number, line in enumerate(bundle.splitlines(), 1)
        ]
        own = next((i.statement.own for i in signed if _role(i) is KeyRole.PROMOTER), {})
    except TrustError as exc:
        return (ChainLink(role="bundle", holds=False, about=str(exc)),)
    channel, family = (str(own.get(name, "")) for name in ("channel", "family"))
    case = Case(trust=trust, channel=channel, family=family, now=now)
    links = [_link(item, sha256, signed, case) for item in signed]
    there = {link.role for link in links if link.holds}
    missing = (role.value for role in KeyRole if role.value not in there)
    return (
        *links,
        *(
            ChainLink(role=role, holds=False, about="unsigned: no statement holds")
            for role in missing
        ),
    )


def _role(signed: Envelope) -> KeyRole:
    kind = signed.statement.predicate_type
    if kind not in ROLES:
        raise TrustError(f"{signed.name}: predicateType: {kind}", hint=envelope.AGAIN)
    return ROLES[kind]


def _link(signed: Envelope, sha256: str, every: Sequence[Envelope], case: Case) -> ChainLink:
    role, own, statement = _role(signed), signed.statement.own, signed.statement
    if role is KeyRole.BUILDER:
        claimed = statement.part("runDetails", "metadata").get("finishedOn")
        said = f"built by {statement.part('runDetails', 'builder').get('id')}"
    elif role is KeyRole.RUNNER:
        claimed = own.get("ended")
        said = f"{own.get('suite')} on CPython {own.get('python')}: {own.get('state')}"
    else:
        claimed = statement.predicate.get("timeVerified")
        said = f"{own.get('action')} to {own.get('channel') or 'a store'} by {own.get('by')}"
    suite = str(own.get("suite", ""))
    problem = next(_problems(signed, sha256, every), "") or case.refusal(
        signed.signatures, role, claimed, suite=suite
    )
    names = ", ".join(map(case.trust.name, signed.signatures))
    about = problem or f"{said}; signed by {names} on {str(claimed)[:10]}"
    return ChainLink(role=role.value, holds=not problem, about=about)


def _problems(signed: Envelope, sha256: str, every: Sequence[Envelope]) -> Iterator[str]:
    """Say why a statement is not about this file, or about another set than the others."""
    role, subjects = _role(signed), signed.statement.subjects
    if role is not KeyRole.RUNNER and sha256 not in subjects.values():
        yield f"subject: it is not about {sha256[:12]}"
    if len({item.statement.subjects.get("manifest.json") for item in every}) > 1:
        yield "subject: the statements are about more than one manifest"
    for other in every:
        for name, digest in other.statement.subjects.items():
            if subjects.get(name, digest) != digest:
                yield f"subject: {name} has another digest in {other.name}"
    if role is KeyRole.PROMOTER:
        others = [i.sha256 for i in every if _role(i) is not KeyRole.PROMOTER]
        named = [{"uri": sha256, "digest": {"sha256": sha256}} for sha256 in sorted(others)]
        if signed.statement.predicate.get("inputAttestations") != named:
            yield "inputAttestations: it was made on other statements than these"
