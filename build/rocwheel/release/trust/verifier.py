"""Checks statements about one set against the trust file, for all commands.

A statement *holds* if it fits its place, its set and the statements beside it. One that holds
*counts*, unless its key was not allowed to sign it then: that proves nothing and breaks nothing.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import msgspec

from rocwheel.base import files
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Plain, replace
from rocwheel.records.manifest import MANIFEST, Manifest
from rocwheel.records.places import BELOW
from rocwheel.records.verdict import PASSED
from rocwheel.release.trust import TrustError, envelope, statements
from rocwheel.release.trust.envelope import Envelope, Statement
from rocwheel.release.trust.policy import Case, KeyRole, Trust, time_of
from rocwheel.release.trust.statements import Approval

RELEASE: Final = "release"  # the role of a link for what came after the promotion
PASSES: Final = {state.value for state in PASSED}
RELEASES: Final = {"promote", "restore"}  # what a promoter does that makes a set installable
UNREADABLE: Final = "unreadable"
ROLES: Final = {
    statements.PROVENANCE: KeyRole.BUILDER,
    statements.TEST_RESULT: KeyRole.RUNNER,
    statements.SUMMARY: KeyRole.PROMOTER,
    statements.APPROVAL: KeyRole.APPROVER,
}


class Stated(Plain, frozen=True, kw_only=True):
    """The bytes of a statement, and facts from its place in the store."""

    name: str  # what errors call it
    data: bytes
    role: KeyRole | None = None  # of what belongs there
    seen: datetime | None = None  # when the store got it
    cell: tuple[str, str, str] = ("", "", "")  # of a result: CPython, suite, id of the key
    number: int = 0
    key: str = ""  # of the stored verdict that it is, or is about

    @property
    def sha256(self) -> str:
        return files.sha256(self.data)


class ChainLink(Plain, frozen=True, kw_only=True):
    role: str
    holds: bool
    about: str
    counts: bool = True
    is_gap: bool = False  # something is missing that no approval stands in for
    is_void: bool = False  # its key is revoked: it blocks nothing either
    stated: Stated = Stated(name="", data=b"")
    signed: Envelope | None = None
    digest: str = ""  # of the verdict of a result
    word: Approval | None = None

    def __str__(self) -> str:
        mark = ("ok" if self.counts else "none") if self.holds else "BROKEN"
        return f"{mark:7}{self.role:9} {self.about}"

    @property
    def is_good(self) -> bool:
        return self.holds and self.counts

    @property
    def own(self) -> Mapping[str, Any]:
        return self.signed.statement.own if self.signed else {}

    @property
    def signers(self) -> Collection[str]:
        return self.signed.signatures if self.signed else ()

    @property
    def passes(self) -> tuple[str, str] | None:
        """The CPython and suite that it proves a whole pass of."""
        if not (self.is_good and self.signed and self.role == KeyRole.RUNNER.value):
            return None
        fields = statements.result_fields(self.signed.statement)
        is_pass = fields.get("state") in PASSES and not fields.get("shard")
        return (str(fields.get("python")), str(fields.get("suite"))) if is_pass else None

    def to_json(self) -> dict[str, Any]:
        return {n: getattr(self, n) for n in ("role", "holds", "counts", "about")}


def links(
    every: Iterable[Stated],
    case: Case,
    *,
    manifest: str,
    whole: Manifest | None = None,
    unread: Collection[str] = (),
) -> list[ChainLink]:
    """Return a link for each statement about a set, by its manifest's digest.

    `whole` is that manifest, if it is at hand. `unread` are digests of unreadable statements that a
    promotion left out: a missing number is no gap then.
    """
    made = [_link(item, case, manifest, whole) for item in every]
    made = _chained(made, case, unread)
    while True:  # a merged verdict counts with each of its shards
        counted = {link.digest for link in made if link.is_good and link.digest}
        short = [(n, set(link.own.get("parts") or ()) - counted) for n, link in enumerate(made)
                 if link.is_good and link.role == KeyRole.RUNNER.value]  # fmt: skip
        if not (short := [(n, missing) for n, missing in short if missing]):
            return made
        for n, missing in short:
            what = f"was made of {min(missing)[:12]}, which no runner's key has signed"
            made[n] = replace(made[n], counts=False, about=f"{made[n].stated.name}: {what}")


def _link(item: Stated, case: Case, manifest: str, whole: Manifest | None) -> ChainLink:
    role = item.role.value if item.role else "bundle"
    broken = ChainLink(role=role, holds=False, about="", stated=item)
    try:
        signed = envelope.read(item.data, case.trust, name=item.name)
        kind = ROLES.get(signed.statement.predicate_type)
        if kind is None or item.role not in {None, kind}:
            raise wrong(item.name, f"predicateType: {signed.statement.predicate_type}")
        broken = replace(broken, role=kind.value)
        digest, word = _content(signed, item, case, manifest, whole)
    except TrustError as exc:
        return replace(broken, about=str(exc))
    about, own = signed.statement, signed.statement.own
    claimed, seen = statements.claimed(about), item.seen or signed.logged
    if kind is KeyRole.RUNNER:
        own = statements.result_fields(about)
        number, keyid = int(about.own.get("number", 0)), "+".join(signed.signatures)
        item = replace(
            item, cell=(str(own.get("python")), str(own.get("suite")), keyid), number=number
        )
    why = case.refusal(signed.signatures, kind, claimed, seen, str(own.get("suite", "")))
    names = ", ".join(map(case.trust.name, signed.signatures))
    said = f"{_said(kind, signed)}; signed by {names} on {str(claimed)[:10]}"
    return ChainLink(
        role=kind.value,
        holds=True,
        about=f"{item.name}: {why}" if why else said,
        counts=not why,
        is_void=case.is_void(signed.signatures, claimed, seen),
        stated=item,
        signed=signed,
        digest=digest,
        word=word,
    )


def _said(kind: KeyRole, signed: Envelope) -> str:
    own = signed.statement.own
    if kind is KeyRole.BUILDER:
        by = signed.statement.part("runDetails", "builder").get("id")
        return f"{'reproduced' if 'reproduced' in own else 'built'} by {by}"
    if kind is KeyRole.PROMOTER:
        return f"{own.get('action')} to {own.get('channel') or 'a store'} by {own.get('by')}"
    own = statements.result_fields(signed.statement)
    cell = f"{own.get('suite')} on CPython {own.get('python')}"
    if kind is KeyRole.APPROVER:
        return f"{cell} approved by {own.get('by')}: {own.get('reason')}"
    return f"{cell}: {own.get('state')}"


def _content(
    signed: Envelope, item: Stated, case: Case, manifest: str, whole: Manifest | None
) -> tuple[str, Approval | None]:
    """Return a result's verdict by its digest, and the word of an approval.

    Raises TrustError where the statement is not about this set, or is not what belongs here.
    """
    statement, kind = signed.statement, ROLES[signed.statement.predicate_type]
    mine = f"subject: not the wheels of {manifest[:12]}"
    if statement.subjects.get(MANIFEST) != manifest:
        raise wrong(signed.name, mine)
    if kind is KeyRole.RUNNER:
        return _result(signed, item, case), None
    if whole and statement.subject != statements.subjects(whole):
        raise wrong(signed.name, mine)
    if kind is KeyRole.BUILDER and whole:
        definition = statement.part("buildDefinition")
        named = definition.get("resolvedDependencies")
        named = named if isinstance(named, list) else []
        if missing := next((d for d in statements.dependencies(whole) if d not in named), None):
            raise wrong(signed.name, f"resolvedDependencies: not the manifest's {missing}")
        if definition.get("externalParameters") != statements.parameters(whole):
            raise wrong(signed.name, "externalParameters: not the manifest's")
    return "", _word(signed, case, whole) if kind is KeyRole.APPROVER else None


def _result(signed: Envelope, item: Stated, case: Case) -> str:
    statement = signed.statement
    if "verdict" in statement.own:
        verdict = statements.verdict_in(statement, name=signed.name)
    elif item.number:
        raise wrong(signed.name, "verdict: it states none")
    else:  # of before 0.3: the verdict that it names, by its digest
        return statements.verdict_of(statement)
    number = statement.own.get("number")
    there = (verdict.python, verdict.suite, *signed.signatures)
    if item.number and (there, number) != (item.cell, item.number):
        raise wrong(signed.name, "name: it belongs to another cell, number or key")
    if verdict.family != case.family:
        raise wrong(signed.name, f"family: it is about {verdict.family}, not {case.family}")
    if not isinstance(number, int) or number < 1:
        raise wrong(signed.name, "number: a runner's statements are numbered")
    return verdict.sha256


def _word(signed: Envelope, case: Case, whole: Manifest | None) -> Approval:
    try:
        word = msgspec.convert({**signed.statement.own, "signed": signed.sha256}, Approval)
    except msgspec.ValidationError as exc:
        raise wrong(signed.name, f"{exc}") from exc
    if (word.channel, word.family) != (case.channel, case.family):
        what = f"scope: approves on {word.channel or 'a store'}, {word.family}"
        raise wrong(signed.name, what)
    said = {**signed.statement.predicate, "timeCreated": ""}  # of its time, `refusal` says
    if whole and said != statements.approval(whole, word, time="").predicate:
        raise wrong(signed.name, f"subject: not the wheels of {whole.sha256[:12]}")
    return word


def _chained(made: list[ChainLink], case: Case, unread: Collection[str]) -> list[ChainLink]:
    """Return links of results that follow one another, and one for each gap.

    A revoked key's chain ends at its first gap, or at what cannot be read: that blocks nothing.
    """
    chains: dict[tuple[str, str, str], dict[int, ChainLink]] = {}
    others, done = list[ChainLink](), list[ChainLink]()
    for link in made:
        is_result = link.stated.number and link.role == KeyRole.RUNNER.value
        place = chains.setdefault(link.stated.cell, {}) if is_result else None
        if place is None or link.stated.number in place:
            others.append(link if place is None else replace(link, holds=False, is_gap=True,
                          about=f"{link.stated.name}: number: stands twice"))  # fmt: skip
        else:
            place[link.stated.number] = link
    for (*_, keyid), chain in chains.items():
        done += _chain(keyid, chain, case, unread)
    return [*others, *done]


def _chain(
    keyid: str, chain: Mapping[int, ChainLink], case: Case, unread: Collection[str]
) -> Iterator[ChainLink]:
    key, name = case.trust.keys.get(keyid), case.trust.name(keyid)
    if key is None or key.role is not KeyRole.RUNNER:
        for link in chain.values():
            about = f"{link.stated.name}: role: {name} is not a runner's key"
            yield replace(link, holds=True, counts=False, about=about)
        return
    is_over, gap, at, before = key.revoked.since <= case.now.date(), "", 1, ""
    for number, item in sorted(chain.items()):
        previous = str(item.own.get("previous", "")) if item.signed else before
        is_next = number == at and previous == before
        if not is_next and not (number > at and previous in unread):
            gap = gap or f"{item.stated.name}: previous: {previous[:12]} is not before it"
            if number > at:
                what = f"statement {at} of {name} is gone, {number} comes after it"
                gap = f"{item.stated.name}: {what}"
        link = item
        if not link.holds:
            link = replace(link, about=f"{link.about} (it lies where {name} puts statements)")
            gap = gap or (link.about if is_over else "")
        if gap and is_over:
            what = f"{name}: revoked, and what came before is not as it was: {gap}"
            link = replace(link, holds=True, counts=False, is_void=True, about=what)
        yield link
        at, before = number + 1, link.stated.sha256
    if gap and not is_over:
        yield ChainLink(role=KeyRole.RUNNER.value, holds=False, is_gap=True, about=gap)


def wrong(name: str, why: str) -> TrustError:
    return TrustError(f"{name}: {why}", hint=envelope.AGAIN)


# What is released


def follow(
    sha256: str,
    bundle: bytes,
    trust: Trust,
    *,
    now: datetime,
    channels: Collection[str] = (),
    url: str = "",
    seen: datetime | None = None,
) -> tuple[ChainLink, ...]:
    """Return the links from a wheel, or a manifest, by its digest, to its release.

    All three roles must have signed, the promoter names every other statement, a runner the one
    before. What came after the promotion is a link of its own, which a rollback breaks. It must be
    a release to one of `channels`, on the index at `url`, if these are given. `seen` is a time at
    which all was there, beside those that the statements claim.
    """
    every = [
        Stated(name=f"statement {number}", data=line + b"\n", seen=seen)
        for number, line in enumerate(bundle.splitlines(), 1)
    ]
    read = {item.sha256: _unchecked(item) for item in every}
    # what follows is held against what the first summary says
    summary = (said for said in read.values() if said and said.predicate_type == statements.SUMMARY)
    first = next(summary, None)
    own = first.own if first else {}
    channel, family = (str(own.get(name, "")) for name in ("channel", "family"))
    case = Case(trust=trust, channel=channel, family=family, now=now)
    manifest = first.subjects.get(MANIFEST, "") if first else ""
    unread = {
        text.partition(" ")[0]
        for cell in _cells(own)
        for text in map(str, cell.get("verdicts") or ())
        if text.endswith(f" {UNREADABLE}")
    }
    named = own.get("parents")
    parents = [str(each) for each in named] if isinstance(named, list) else []
    of = {name: said.subjects.get(MANIFEST, "") if said else "" for name, said in read.items()}
    made = [
        replace(link, about=f"of {parent[:12]}, its parent: {link.about}")
        for parent in parents
        for link in links(
            [x for x in every if of[x.sha256] == parent], case, manifest=parent, unread=unread
        )
    ]
    inherited = {link.stated.sha256 for link in made}
    every = [item for item in every if item.sha256 not in inherited]
    made += links(every, case, manifest=manifest, unread=unread)
    made = [
        replace(link, holds=False, about=problem)
        if link.holds
        and link.stated.sha256 not in inherited
        and (problem := next(_problems(link, made, sha256, inherited), ""))
        else link
        for link in made
    ]
    summaries = [link for link in made if link.role == KeyRole.PROMOTER.value and link.is_good]
    made += _lacks(made, own, sha256)
    if summaries and (why := _elsewhere(own, first, channels, url)):
        made.append(ChainLink(role=KeyRole.PROMOTER.value, holds=False, about=why))
    return (*made, *_afterwards(summaries, sha256))


def state(found: Sequence[ChainLink]) -> str:
    """Return the result of links: verified, yanked, rolled back or broken."""
    if any(not link.holds for link in found if link.role != RELEASE):
        return "broken"
    since = [link.holds for link in found if link.role == RELEASE]
    return ("yanked" if all(since) else "rolled back") if since else "verified"


def revoked(bundle: bytes, trust: Trust, *, released: datetime) -> tuple[frozenset[str], bool]:
    """Return the names of revoked keys that a released set rests on, and whether on nothing else.

    Their statements count no more where the release, or the time they claim, is of a day of doubt.
    Raises TrustError where the statements cannot be read.
    """
    lines = bundle.splitlines(keepends=True)
    every = [envelope.parse(line, name="a statement").statement for line in lines]
    first = next((s for s in every if s.predicate_type == statements.SUMMARY), None)
    times = (time_of(statements.claimed(item)) for item in every)
    now = max((released, *times))
    manifest = first.subjects.get(MANIFEST, "") if first else ""
    found = follow(manifest, bundle, trust, now=now, seen=released)
    names = {
        trust.name(keyid)
        for link in found
        if link.is_void and link.signed and _helps(link)
        for keyid in link.signed.signatures
        if keyid in trust.keys
    }
    return frozenset(names), bool(names) and state(found) == "broken"


def _helps(link: ChainLink) -> bool:
    """Return whether a statement would let a set be released, if it counted."""
    if link.role == KeyRole.PROMOTER.value:
        return link.own.get("action") in RELEASES
    if link.role == KeyRole.RUNNER.value and link.signed:
        return statements.result_fields(link.signed.statement).get("state") in PASSES
    return True


def _unchecked(item: Stated) -> Statement | None:
    with suppress(TrustError, ConfigError):
        return envelope.parse(item.data, name=item.name).statement
    return None


def _cells(own: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    cells = own.get("cells")
    return [c for c in cells if isinstance(c, dict)] if isinstance(cells, list) else []


def _lacks(made: Sequence[ChainLink], own: Mapping[str, Any], sha256: str) -> Iterator[ChainLink]:
    """Yield missing things: a role, a pass of a wheel, a pass of a cell that a promoter names."""
    there = {link.role for link in made if link.is_good}
    if not any(link.own.get("action") in RELEASES for link in made if link.is_good):
        there.discard(KeyRole.PROMOTER.value)
    for role in KeyRole:
        if role is not KeyRole.APPROVER and role.value not in there:
            yield ChainLink(role=role.value, holds=False, about="unsigned: no statement holds")
    passing = [link for link in made if link.passes]
    tested = {digest for link in passing if link.signed for digest in _subjects(link).values()}
    named = {name: digest for link in made for name, digest in _subjects(link).items()}
    untested = {*(named.values() if sha256 == named.get(MANIFEST) else (sha256,))} - tested
    about = {
        f"untested: no runner's key has signed a pass of {digest[:12]}"
        for digest in sorted(untested)[:1]
    }
    cells = {(str(cell.get("python")), str(cell.get("suite"))) for cell in _cells(own)
             if cell.get("level") == "required" and cell.get("state") in PASSES}  # fmt: skip
    for python, suite in sorted(cells - {link.passes for link in passing}):
        about.add(f"untested: no runner's key has signed a pass of {suite} on CPython {python}")
    for what in sorted(about if KeyRole.RUNNER.value in there else ()):
        yield ChainLink(role=KeyRole.RUNNER.value, holds=False, about=what)
    words = own.get("approvals")
    rests_on = {str(w.get("signed", "")) for w in (words if isinstance(words, list) else ())}
    for digest in sorted(rests_on - {link.stated.sha256 for link in made if link.is_good} - {""}):
        what = f"unapproved: the word {digest[:12]} that it rests on does not count"
        yield ChainLink(role=KeyRole.APPROVER.value, holds=False, about=what)


def _subjects(link: ChainLink) -> dict[str, str]:
    return link.signed.statement.subjects if link.signed else {}


def _problems(
    link: ChainLink, every: Sequence[ChainLink], sha256: str, inherited: Collection[str]
) -> Iterator[str]:
    subjects = _subjects(link)
    if link.role != KeyRole.RUNNER.value and sha256 not in subjects.values():
        yield f"subject: it is not about {sha256[:12]}"
    for other in (each for each in every if each.stated.sha256 not in inherited):
        for name, digest in _subjects(other).items():
            if subjects.get(name, digest) != digest:
                yield f"subject: {name} has another digest in {other.stated.name}"
    summaries = [item for item in every if item.role == KeyRole.PROMOTER.value and item.signed]
    if link not in summaries:
        return
    first, own = summaries[0].own, link.own
    if any(own.get(name, "") != first.get(name) for name in ("channel", "family")):
        yield "scope: it is about another channel or family than the promotion"
    at = summaries.index(link)
    others = sorted(item.stated.sha256 for item in every
                    if item.stated.data and item not in summaries)  # fmt: skip
    rests_on = [summaries[at - 1].stated.sha256] if at else others
    named = [{"uri": digest, "digest": {"sha256": digest}} for digest in rests_on]
    if link.signed and link.signed.statement.predicate.get("inputAttestations") != named:
        yield "inputAttestations: it was made on other statements than these"
    if (own.get("action") == "promote") == bool(at):
        yield "action: a promotion comes first, and once"


def _elsewhere(
    own: Mapping[str, Any], first: Statement | None, channels: Collection[str], url: str
) -> str:
    channel = str(own.get("channel", ""))
    said = str(first.predicate.get("resourceUri", "")) if first else ""
    if channels and channel not in channels:
        wanted = " or ".join(sorted(channels))
        return f"channel: it was released to {channel or 'a store'}, not to {wanted}"
    if not url:
        return ""
    urls = (BELOW.sub("", text).rstrip("/") for text in (said, url))
    (there, _, name), (here, _, asked) = (text.rpartition("/") for text in urls)
    if there.startswith("file:"):  # a folder has no URL that users know: its prefix is compared
        there, here = there.rpartition("/")[2], here.rpartition("/")[2]
    if there != here or asked not in {name, "all"}:
        return f"index: it was released to {said or 'no URL'}, not to {url}"
    return ""


def standing(summaries: Iterable[Envelope]) -> tuple[str, dict[str, str]]:
    """Return the promoters' last words: a rollback of the set, and a yank of each file."""
    held, yanked = "", dict[str, str]()
    for item in summaries:
        own, names = item.statement.own, item.statement.own.get("files")
        names = names if isinstance(names, list) and names else [*item.statement.subjects]
        time = str(item.statement.predicate.get("timeVerified"))[:10]
        said, action = f"by {own.get('by')} on {time}: {own.get('reason')}", own.get("action")
        if action in {"rollback", "restore"}:
            held = f"rolled back {said}" if action == "rollback" else ""
        for name in map(str, names) if action in {"yank", "unyank"} else ():
            yanked[name] = f"{name} was yanked {said}" if action == "yank" else ""
    return held, {name: about for name, about in yanked.items() if about}


def _afterwards(summaries: Sequence[ChainLink], sha256: str) -> Iterator[ChainLink]:
    held, yanked = standing(link.signed for link in summaries if link.signed)
    if held:
        yield ChainLink(role=RELEASE, holds=False, about=held)
    subjects = _subjects(summaries[0]) if summaries else {}
    whole = sha256 == subjects.get(MANIFEST)
    for name, about in yanked.items():
        if whole or subjects.get(name) == sha256:
            yield ChainLink(role=RELEASE, holds=True, about=about)
