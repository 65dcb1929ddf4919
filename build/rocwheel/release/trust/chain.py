"""From a downloaded wheel back to who built, tested and released it, without a network."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from rocwheel.base.values import Plain
from rocwheel.records.manifest import MANIFEST
from rocwheel.records.verdict import PASSED
from rocwheel.release.trust import TrustError, envelope, statements
from rocwheel.release.trust.envelope import Envelope
from rocwheel.release.trust.evidence import verdict_of
from rocwheel.release.trust.policy import Case, KeyRole, Trust, time_of

RELEASE: Final = "release"  # the role of a link that tells what came after the promotion
PASSES: Final = {state.value for state in PASSED}
AFTER: Final = {"yank", "unyank", "rollback"}  # what makes no promotion good
ROLES: Final = {
    statements.PROVENANCE: KeyRole.BUILDER,
    statements.TEST_RESULT: KeyRole.RUNNER,
    statements.SUMMARY: KeyRole.PROMOTER,
    statements.APPROVAL: KeyRole.APPROVER,
}


class ChainLink(Plain, frozen=True, kw_only=True):
    """One step of the chain: which role, whether it holds, and what it says or lacks."""

    role: str
    holds: bool
    about: str

    def __str__(self) -> str:
        return f"{'ok' if self.holds else 'BROKEN':7}{self.role:9} {self.about}"


def follow(sha256: str, bundle: bytes, trust: Trust, *, now: datetime) -> tuple[ChainLink, ...]:
    """Return the links from a wheel, or a manifest, by its digest, to its release.

    All three roles must have signed, the promoter names every other statement, a runner the one
    before. What came after the promotion is a link of its own, which a rollback breaks.
    """
    try:
        signed = [
            envelope.read(line + b"\n", trust, name=f"statement {number}")
            for number, line in enumerate(bundle.splitlines(), 1)
        ]
        summaries = [item for item in signed if _role(item) is KeyRole.PROMOTER]
    except TrustError as exc:
        return (ChainLink(role="bundle", holds=False, about=str(exc)),)
    own = summaries[0].statement.own if summaries else {}
    channel, family = (str(own.get(name, "")) for name in ("channel", "family"))
    case = Case(trust=trust, channel=channel, family=family, now=now)
    links = [_link(item, sha256, signed, case) for item in signed]
    there = {link.role for link in links if link.holds}
    lacks = [
        ChainLink(role=role.value, holds=False, about="unsigned: no statement holds")
        for role in KeyRole
        if role is not KeyRole.APPROVER and role.value not in there
    ]
    good = [item for item, link in zip(signed, links, strict=True) if link.holds and _passed(item)]
    tested = {digest for item in good for digest in item.statement.subjects.values()}
    named = {name: digest for item in signed for name, digest in item.statement.subjects.items()}
    untested = {*(named.values() if sha256 == named.get(MANIFEST) else (sha256,))} - tested
    if KeyRole.RUNNER.value in there and untested:
        what = f"untested: no runner's key has signed a pass of {min(untested)[:12]}"
        lacks.append(ChainLink(role=KeyRole.RUNNER.value, holds=False, about=what))
    return (*links, *lacks, *_afterwards(summaries, sha256))


def state(links: Sequence[ChainLink]) -> str:
    """Return what links come to: verified, yanked, rolled back or broken."""
    if any(not link.holds for link in links if link.role != RELEASE):
        return "broken"
    since = [link.holds for link in links if link.role == RELEASE]
    return ("yanked" if all(since) else "rolled back") if since else "verified"


def revoked(bundle: bytes, trust: Trust, *, released: datetime) -> tuple[frozenset[str], bool]:
    """Return the names of revoked keys that a released set rests on, and whether on nothing else.

    Their statements count no more where the release, or the time they claim, is of a day of doubt.
    Others may stand in: of a provenance, of a cell a whole pass, of a promotion a restore.
    """
    names, good, doubted, verdicts = set[str](), set[Any](), set[Any](), set[str]()
    lines = bundle.splitlines(keepends=True)
    signed = [envelope.parse(line, name="a statement") for line in lines]
    for item in sorted(signed, key=lambda item: bool(item.statement.own.get("parts"))):
        own, role = item.statement.own, _role(item)
        what = (role, own.get("python"), own.get("suite"))
        time = max(released, time_of(statements.claimed(item.statement)))
        keys = {keyid: trust.keys[keyid] for keyid in item.signatures if keyid in trust.keys}
        bad = [i for i, k in keys.items() if time.date() >= k.revoked.since]
        counts = own.get("state", "pass") in PASSES and own.get("action") not in AFTER
        if bad or verdicts.intersection(own.get("parts", ())):
            verdicts.add(verdict_of(item.statement))
            names.update(map(trust.name, bad if counts else ()))
            doubted |= {what} if counts else set()
        elif counts and not own.get("shard") and len(keys) == len(item.signatures):
            good.add(what)
    return frozenset(names), bool(doubted - good)


def standing(summaries: Sequence[Envelope]) -> tuple[str, dict[str, str]]:
    """Return what promoters said last: that the set is rolled back, and of each file a yank."""
    held, yanked = "", dict[str, str]()
    for item in summaries:
        own, files = item.statement.own, item.statement.own.get("files")
        names = files if isinstance(files, list) and files else [*item.statement.subjects]
        time = str(item.statement.predicate.get("timeVerified"))[:10]
        said, action = f"by {own.get('by')} on {time}: {own.get('reason')}", own.get("action")
        if action in {"rollback", "restore"}:
            held = f"rolled back {said}" if action == "rollback" else ""
        for name in map(str, names) if action in {"yank", "unyank"} else ():
            yanked[name] = f"{name} was yanked {said}" if action == "yank" else ""
    return held, {name: about for name, about in yanked.items() if about}


def _afterwards(summaries: Sequence[Envelope], sha256: str) -> Iterator[ChainLink]:
    """Yield what promoters said of a file since its promotion: it is rolled back, or yanked."""
    held, yanked = standing(summaries)
    if held:
        yield ChainLink(role=RELEASE, holds=False, about=held)
    subjects = summaries[0].statement.subjects if summaries else {}
    whole = sha256 == subjects.get(MANIFEST)
    for name, about in yanked.items():
        if whole or subjects.get(name) == sha256:
            yield ChainLink(role=RELEASE, holds=True, about=about)


def _role(signed: Envelope) -> KeyRole:
    kind = signed.statement.predicate_type
    if kind not in ROLES:
        raise TrustError(f"{signed.name}: predicateType: {kind}", hint=envelope.AGAIN)
    return ROLES[kind]


def _link(signed: Envelope, sha256: str, every: Sequence[Envelope], case: Case) -> ChainLink:
    role, own = _role(signed), signed.statement.own
    claimed = statements.claimed(signed.statement)
    if role is KeyRole.BUILDER:
        by = signed.statement.part("runDetails", "builder").get("id")
        said = f"{'reproduced' if 'reproduced' in own else 'built'} by {by}"
    elif role is KeyRole.RUNNER:
        said = f"{own.get('suite')} on CPython {own.get('python')}: {own.get('state')}"
    elif role is KeyRole.APPROVER:
        said = f"{own.get('suite')} on CPython {own.get('python')} approved by {own.get('by')}"
        said += f": {own.get('reason')}"
    else:
        said = f"{own.get('action')} to {own.get('channel') or 'a store'} by {own.get('by')}"
    suite = str(own.get("suite", ""))
    problem = next(_problems(signed, sha256, every), "")
    problem = problem or case.refusal(signed.signatures, role, claimed, signed.logged, suite)
    names = ", ".join(map(case.trust.name, signed.signatures))
    about = problem or f"{said}; signed by {names} on {str(claimed)[:10]}"
    return ChainLink(role=role.value, holds=not problem, about=about)


def _passed(signed: Envelope) -> bool:
    own = signed.statement.own
    return _role(signed) is KeyRole.RUNNER and own.get("state") in PASSES and not own.get("shard")


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
    before = signed.statement.own.get("previous")
    if role is KeyRole.RUNNER and before and before not in {item.sha256 for item in every}:
        yield f"previous: {str(before)[:12]}, which came before it, is not here"
    if role in {KeyRole.APPROVER, KeyRole.PROMOTER}:
        yield from _context(signed, every)


def _context(signed: Envelope, every: Sequence[Envelope]) -> Iterator[str]:
    """Say why an approval or a summary does not belong to the promotion, or a summary there."""
    summaries = [i for i in every if _role(i) is KeyRole.PROMOTER]
    first, own = (summaries or every)[0].statement.own, signed.statement.own
    if any(own.get(name, "") != first.get(name) for name in ("channel", "family")):
        yield "scope: it is about another channel or family than the promotion"
    if signed not in summaries:
        return
    at = summaries.index(signed)
    others = sorted(i.sha256 for i in every if i not in summaries)
    rests_on = [summaries[at - 1].sha256] if at else others
    named = [{"uri": sha256, "digest": {"sha256": sha256}} for sha256 in rests_on]
    if signed.statement.predicate.get("inputAttestations") != named:
        yield "inputAttestations: it was made on other statements than these"
    if (own.get("action") == "promote") == bool(at):
        yield "action: a promotion comes first, and once"
