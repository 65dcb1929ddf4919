"""Promotion: making exactly the gated bytes installable from the release index, or nothing.

The plan reads and writes nothing: manifest, verdicts, policy, size and stated SHA-256 of every
staged object, the METADATA inside each staged wheel, what the release has already. Nothing is taken
from a staging record or page: who may write there decides nothing here. Applying it copies on
the server, create-only, with every digest proven before and after, then commits.

A set of several families is judged for each, and released for those that pass. One that passes
later is one more entry of the log; the bytes are there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import msgspec

from amdgpu_family_matrix import Family
from rocwheel.base import files
from rocwheel.base.choices import ALL
from rocwheel.base.console import Console, Unit, count
from rocwheel.base.console import size as readable
from rocwheel.base.errors import PromotionError
from rocwheel.base.store import WHEEL, ObjectInfo, Store, replaced
from rocwheel.base.values import Plain, replace
from rocwheel.records.entry import Entry
from rocwheel.records.install import Install
from rocwheel.records.manifest import Manifest, WheelEntry
from rocwheel.records.places import Place
from rocwheel.records.verdict import State
from rocwheel.release import operations, policy, proof, wheelset
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger import log, verdicts
from rocwheel.release.ledger.state import (
    Action,
    IndexState,
    Standing,
    Transition,
    is_foreign,
)
from rocwheel.release.ledger.verdicts import FoundVerdict
from rocwheel.release.operations import Operation, Tally, Who, stored
from rocwheel.release.policy import Decision
from rocwheel.release.proof import Evidence
from rocwheel.release.stage import holding
from rocwheel.release.trust import TrustError, envelope, head, statements
from rocwheel.release.trust.policy import KeyRole, Signer
from rocwheel.release.trust.sigstore import SigstoreSigner
from rocwheel.release.trust.statements import Approval
from rocwheel.release.withdraw import withdrawn


class Copy(Plain, frozen=True, kw_only=True):
    entry: Entry
    source: ObjectInfo
    metadata: bytes
    is_there: bool  # an object of this name and size; its digest is compared when applying
    provenance: bytes = b""  # of PEP 740, where Sigstore signs


@dataclass(frozen=True, kw_only=True)
class Judged:
    family: str
    decision: Decision = field(default_factory=lambda: Decision(cells=()))
    verdicts: tuple[FoundVerdict, ...] = ()
    evidence: Evidence = field(default_factory=Evidence)
    bundle: bytes = b""  # the signed statements of the release
    standing: Standing | None = None  # in the release, where it came before

    @property
    def state(self) -> str:
        """`blocked` or `ready`, or what became of it before."""
        if self.standing:
            return "nothing-to-do" if self.standing is Standing.LISTED else "rolled-back"
        return "blocked" if self.decision.blocking else "ready"


@dataclass(frozen=True, kw_only=True)
class Promote(Operation):
    channel: Channel
    staging: Place
    manifest: Manifest
    judged: tuple[Judged, ...]  # for each family that was asked for
    copies: tuple[Copy, ...] = ()
    must: tuple[str, ...] = ()  # families that `all` waits for; none of a set of one family
    night: str = ""  # that does it
    count: Callable[[int], None] | None = None
    moved: list[int] = field(default_factory=list)  # bytes of wheels that passed through here

    def decide(self, state: IndexState) -> Transition | None:
        known = state.sets.get(self.manifest.sha256)
        new = self.new(state)
        if not new:
            return None
        entries = tuple(item.entry for item in self.copies)
        stand = {item.family: known and known.of(item.family) for item in new}
        state.check_names(entries, stand, where=self.place.location)
        for seen in filter(None, stand.values()):
            raise withdrawn(self.place, seen)
        listed = {*stand, *(known.families if known else ())}
        must = known.must if known else self.must
        views = (*stand, *([ALL] if must and listed.issuperset(must) else ()))
        for view, project in product(views, {entry.project for entry in entries}):
            wheelset.check_order(state.of(view).shown(project), entries)
        signed = {i.family: files.sha256(i.bundle) for i in new if i.bundle}
        about: dict[str, Any] = {"bundles": {self.manifest.sha256: signed} if signed else {}}
        about["evidence"] = {"families": {i.family: i.decision.evidence() for i in new}}
        about["evidence"] |= {"night": self.night} if self.night else {}
        about["families"] = sorted(stand)
        if known:
            return self.entry(state, Action.PROMOTE, sets=[known.id], **about)
        self._check_all(state)
        brings = [holding(self.manifest, entries)]
        return self.entry(state, Action.PROMOTE, brings=brings, must=must, **about)

    def new(self, state: IndexState) -> tuple[Judged, ...]:
        """Return the families that pass and do not have the set listed in a state."""
        ready = (item for item in self.judged if item.state == "ready")
        return tuple(i for i in ready if not state.of(i.family).lists(self.manifest.sha256))

    def _check_all(self, state: IndexState) -> None:
        """Refuse a set that lacks a family which finds sets in the index of all. PromotionError."""
        waits = self.must == self.manifest.families  # else the channel names the families of `all`
        for known in state.sets.values() if self.must and waits else ():
            lacks = sorted(set(known.must) - set(self.must))
            if lacks and not is_foreign(known.id) and known.standing is not Standing.PRUNED:
                raise PromotionError(
                    f"{self.place.location}: {self.manifest.sha256[:12]} is not for "
                    f"{', '.join(lacks)}, as {known.id[:12]} is there",
                    hint="pip cannot choose by GPU: build for all of them, or let `must` of the "
                    "channel name the families that `all` is for",
                )

    def prepare(self, state: IndexState, entry: Transition | None) -> Transition | None:
        name = self.manifest.sha256
        if not self.moved:  # else an attempt put all, and nothing is deleted but by an entry
            self.place.keep(self.place.manifest(self.manifest.sha256), self.manifest.to_bytes())
            for item in self.new(state):
                place = self.place.of(item.family)
                place.keep(place.bundle(files.sha256(item.bundle)), item.bundle)
                place.each(partial(verdicts.copy, release=place), item.verdicts)
            self.moved.extend(self.place.each(partial(self._copy, name in state.sets), self.copies))
        for item in self.new(state):
            before = {verdict.key for verdict in item.verdicts}
            later = set(verdicts.keys(self.staging.of(item.family), name)) - before
            if later:
                raise PromotionError(
                    f"{name[:12]}: {count(len(later), 'verdict')} arrived while its "
                    f"wheels were copied: {min(later)}",
                    hint="run the same command again: it decides on all of them",
                )
        return entry

    def _copy(self, is_known: bool, item: Copy) -> int:  # noqa: FBT001 (it comes first)
        store, entry = self.place.store, item.entry
        if is_known and item.is_there:
            operations.verify(self.place, entry)
            return 0
        target = self.place.key(entry.path)
        source = replace(item.source, content_type=WHEEL, cache_control=self.place.wheel_cache)
        moved = store.copy(source, target, sha256=entry.sha256, count=self.count)
        operations.put_metadata(self.place, entry, item.metadata)
        proven = self.place.built(entry.manifest, f"{entry.filename}.provenance")
        self.place.keep(proven, item.provenance)
        return moved

    @property
    def state(self) -> str:
        """`blocked`, `nothing-to-do` or `ready`; `published` is what applying a ready one gives.

        Of a set of several families it is ready while one of them is.
        """
        if self.is_done:
            return "nothing-to-do"
        return "blocked" if self.families("blocked") and not self.families("ready") else "ready"

    def families(self, state: str) -> list[str]:
        return [item.family for item in self.judged if item.state == state]

    def file_lines(self, after: IndexState) -> list[str]:  # noqa: ARG002
        """Say every source and destination URL, sizes, cells.

        Of a blocked one what blocks, first; nothing would be copied.
        """
        place, store = self.place, self.place.store
        lines = [f"manifest {self.manifest.sha256}"]
        if self.state == "blocked":
            return [*lines, *sorted(self.cell_lines(), key=lambda line: line[:6] != "BLOCKS")]
        for item in self.copies:
            act = "is there" if item.is_there else "copy"
            target = place.locate(item.entry.path)
            size = readable(item.entry.size)
            lines.append(f"{act:9}{store.locate(item.source.key)} -> {target} ({size})")
            lines.append(f"{act:9}its METADATA -> {target}.metadata")
        if self.state != "nothing-to-do":  # then no signature was looked at
            lines = [*lines, *self.cell_lines(), f"{'signed':9}{self.signed or 'no: unsigned'}"]
        return lines

    @property
    def signed(self) -> str:
        """The roles whose signatures were needed and are there; "" where none were."""
        roles = self.channel.trust.rule(self.channel.name).required
        return ", ".join(sorted(role.value for role in roles))

    def cell_lines(self) -> list[str]:
        lines, judged = [], self.judged
        for item, cell in [(each, cell) for each in judged for cell in each.decision.cells]:
            name = f"{cell.suite} on {item.family} on CPython {cell.python}"
            why = f": {cell.why}" if cell.why else ""
            act = "BLOCKS" if cell.is_blocking else "ok"
            lines.append(f"{act:9}{name}: {cell.state.value} ({cell.level.value}){why}")
            lines += [f"{'':9}{name}: {note}" for note in cell.notes]
        return lines

    def to_json(self, *, state: str = "") -> dict[str, Any]:
        place, manifest = self.place, self.manifest
        every = {item.family: self._family(item, state) for item in self.judged}
        return {
            "state": state or self.state,
            "manifest": manifest.sha256,
            "families": every,
            "all": self._all(every) if self.must else None,
            "wheels": [
                {
                    "source": place.store.locate(item.source.key),
                    "destination": place.locate(item.entry.path),
                    "sha256": item.entry.sha256,
                    "size": item.entry.size,
                    "is_there": item.is_there,
                }
                for item in self.copies
            ],
            "signed": self.signed or "unsigned",
        }

    def _all(self, families: Mapping[str, Any]) -> dict[str, Any]:
        sha256, index = self.manifest.sha256, self.place.of(ALL)
        known = self.start.sets.get(sha256)
        must = known.must if known else self.must
        has = {name for name in must if self.start.of(name).lists(sha256)}
        has |= {name for name, item in families.items() if item["released"]}
        return {
            "released": has.issuperset(must),
            "waits_for": sorted({*must} - has),
            "index_url": index.url,
            "install": Install.of(self.manifest, index.url).to_json(),
        }

    def _family(self, item: Judged, state: str) -> dict[str, Any]:
        place = self.place.of(item.family)
        own = state if state and item.state == "ready" else item.state
        return {
            "state": own,
            "released": own in {"published", "nothing-to-do"},
            "index_url": place.url,
            "install": Install.of(self.manifest, place.url).to_json(),
            "blocked_by": msgspec.to_builtins(item.decision.blocking),
            **item.decision.evidence(),
        }

    def refusal(self) -> PromotionError:
        """Return the error of a blocked plan: its first cell, and what to do about it."""
        name = self.manifest.sha256[:12]
        blocked = [item for item in self.judged if item.decision.blocking]
        (first, *others), family = blocked[0].decision.blocking, blocked[0].family
        target, who = f"--manifest {name} --family {family}", "--by NAME --reason WHY"
        wanted = first.approval or first.name
        more = f" (and {len(others)} more)" if others else ""
        hints = {
            "flaky": (approve := f"approve it: `promote {target} --approve {wanted} {who}`"),
            "no-runner": "get a runner, or set bypass_tests_for_releases of the family",
            "uncalibrated": approve,
            "not-run": f"run it: `gate {target} --python {first.python} --suite {first.suite}`",
        }
        hint = hints.get(first.state.value, "fix what the verdict names, then gate again")
        if first in blocked[0].decision.waiting and self.channel.requires(KeyRole.APPROVER):
            hint = f"an approver signs it: `trust approve {wanted} {target} --signer KEY {who}`"
        return PromotionError(
            f"{name} on {family}: {first.suite} on CPython {first.python} is {first.state.value}: "
            f"{first.why.removeprefix(f'{first.state.value}: ')}{more}",
            hint=hint,
        )


def plan(
    manifest: Manifest,
    family: Family | Sequence[Family],
    channel: Channel,
    store: Store,
    *,
    who: Who,
    approvals: Sequence[Approval] = (),
    passes_held: bool = False,
    night: str = "",
) -> Promote:
    """Read everything the promotion depends on; write nothing.

    With `passes_held` families are passed over for which it was rolled back. `night` is whose
    index lists the set as well.
    """
    asked = [family] if isinstance(family, Family) else family
    for one in asked:
        wheelset.check_family(manifest, one)
    wheelset.check_complete(manifest)
    staging, release = [channel.pair(store, manifest, one.name) for one in asked][-1]
    state = operations.read(release)
    release = state.at(release, manifest.sha256)
    staging = log.read(staging).at(staging, manifest.sha256)
    there = stored(release, manifest.built)
    whole = {name for name in there if f"{name}.metadata" in there}
    known = state.sets.get(manifest.sha256)
    stand = {one.name: seen for one in asked if known and (seen := known.of(one.name))}
    for seen in stand.values():
        if seen.standing is Standing.PRUNED or (seen.standing is Standing.HELD and not passes_held):
            raise withdrawn(release, seen)
    if known and known.standing is Standing.PRUNED:  # also for a family that it never came for
        raise withdrawn(release, known)
    operation = Promote(
        place=release,
        who=who,
        start=state,
        channel=channel,
        staging=staging,
        manifest=manifest,
        night=night,
        judged=tuple(
            Judged(family=name, standing=stand[name].standing if name in stand else None)
            for name in (one.name for one in asked)
        ),
        must=known.must if known else manifest.families and (channel.must or manifest.families),
    )
    is_whole = all(wheel.filename in whole for wheel in manifest.built)
    if len(stand) == len(asked) and operations.is_settled(state) and is_whole:
        return replace(operation, is_done=True)
    judged, broken = list[Judged](), list[TrustError]()
    for one, item in zip(asked, operation.judged, strict=True):
        if item.standing:
            judged.append(item)
            continue
        here = staging.of(one.name)
        results = verdicts.find(here, manifest.sha256)
        before = verdicts.released_coverage(release.of(one.name), state, verdicts.cells(results))
        try:
            decision, evidence = proof.judge(
                here, manifest, one, channel, results, before=before, now=who.now,
                approvals=approvals,
            )  # fmt: skip
        except TrustError as exc:  # it stops this family: the others have statements of their own
            broken.append(exc)
            infra = (policy.barred(name, State.INFRA, str(exc)) for name in manifest.pythons)
            decision, evidence = Decision(cells=tuple(infra)), Evidence()
        judged.append(replace(item, decision=decision, verdicts=results, evidence=evidence))
    if broken and all(item.state != "ready" for item in judged):
        raise broken[0]
    _check_approvals(approvals, [cell for item in judged for cell in item.decision.cells])
    looked = staging.each(lambda wheel: _source(staging, wheel, there), manifest.built)
    metadata = {w.filename: data for w, (_, data) in zip(manifest.built, looked, strict=True)}
    wheelset.check_closed(manifest, metadata)
    copies = tuple(
        Copy(entry=entry, source=source, metadata=data, is_there=entry.filename in whole)
        for entry, (source, data) in zip(
            wheelset.entries(manifest, metadata, release, uploaded=who.time), looked, strict=True
        )
    )
    operation = replace(operation, copies=copies, judged=tuple(judged))
    operation.decide(state)
    return operation


def apply(
    operation: Promote,
    *,
    console: Console,
    signer: Signer | None = None,
    digests: Mapping[str, str] | None = None,
) -> int:
    """Publish; return how many bytes of wheels passed through this machine.

    `signer` signs the summary, which has `digests`: those of the files that were decided by.
    Raises PromotionError when the plan is blocked, or something else was committed meanwhile that
    forbids it; TrustError where the channel needs a signature.
    """
    if operation.state == "blocked":
        raise operation.refusal()
    place, channel, judged = operation.place, operation.channel, []
    for item in (each for each in operation.judged if each.state == "ready"):
        bundle = proof.bundle(
            operation.manifest,
            channel,
            place.of(item.family),
            who=operation.who,
            evidence=item.evidence,
            facts=item.decision.evidence(),
            signer=signer,
            policy={**(digests or {}), "trust": channel.trust.sha256},
            clock=[operation.staging.state, operation.staging.json("")],
        )
        judged.append(replace(item, bundle=bundle))
    is_known = operation.manifest.sha256 in operation.start.sets
    if isinstance(signer, SigstoreSigner) and not is_known:
        signed = proof.provenances(place, [item.entry for item in operation.copies], signer)
        if not signed:
            console.warn("no provenance on pages: PEP 740 knows no publisher like this identity")
        copies = (
            replace(item, entry=replace(item.entry, provenance=True), provenance=signed[name])
            if (name := item.entry.filename) in signed
            else item
            for item in operation.copies
        )
        operation = replace(operation, copies=tuple(copies))
    total = sum(item.entry.size for item in operation.copies)
    if lacks := place.store.abilities().copy_lacks:
        console.warn(
            f"{place.store.url}: copying on this server cannot be proven (it lacks "
            f"{', '.join(lacks)}): {readable(total)} of wheels are downloaded, "
            "checked and uploaded by this machine"
        )
    with console.progress("promoting", total=total, unit=Unit.BYTES) as progress:
        operation = replace(operation, judged=tuple(judged), count=Tally(progress))
        state = operations.perform(operation)
    head.renew(place, state, channel, signer, now=operation.who.clock)
    return sum(operation.moved)


def approve(
    operation: Promote, cells: Sequence[str], *, signer: Signer, dry_run: bool = False
) -> list[str]:
    """Store an approver's signed word on each of these cells, `suite:python`; return the keys."""
    channel, made = operation.channel, list[tuple[Place, bytes]]()
    who, manifest = operation.who, operation.manifest
    if not channel.requires(KeyRole.APPROVER):
        what = f"{channel.option}: requires no approver's signature"
        raise TrustError(what, hint="`promote` with --approve is enough there")
    judged = operation.judged
    waiting = [(i.family, c.approval or c.name, c) for i in judged for c in i.decision.waiting]
    for text in sorted({*cells} - {name for _, name, _ in waiting}):
        hint = ", ".join(dict.fromkeys(name for _, name, _ in waiting))
        hint = f"what waits is {hint}" if hint else "look at the plan: `promote --dry-run`"
        raise PromotionError(f"{text}: waits for no approval", hint=hint)
    for family, name, cell in waiting:
        if name in cells:
            place = operation.staging.of(family)
            proof.check_key(
                channel, place, signer, who=who, role=KeyRole.APPROVER, suite=cell.suite
            )
            about: Any = {name: getattr(cell, name) for name in ("suite", "python", "verdicts")}
            about |= {"by": who.by, "reason": who.reason, "channel": channel.name, "family": family}
            about |= {"ran": cell.ran} if "=" in name else {}
            word = statements.approval(manifest, Approval(**about), time=who.time)
            made.append((place, envelope.sign(envelope.unsigned(word), signer, name="it")))
    add = partial(proof.keyed if dry_run else proof.add, manifest=manifest.sha256, kind="approval")
    return [key for place, data in made for key in add(place, data=data)]


def _source(
    staging: Place, wheel: WheelEntry, there: dict[str, ObjectInfo]
) -> tuple[ObjectInfo, bytes]:
    """One staged wheel: its size and stated SHA-256 are the manifest's; METADATA from inside it."""
    store, key = staging.store, staging.wheel(wheel.filename, wheel.sha256)
    source = store.info(key)
    if source is None:
        page = log.read(staging, files=True).listing(wheel.project)
        why, hint = "", f"stage its wheelhouse: stage WHEELHOUSE --family {staging.family}"
        if key.removeprefix(staging.key("")) in page.spent.get(wheel.filename, ()):
            why, hint = " any more: it was pruned", "build the set again under a new version"
        what = f"{staging.location}: {wheel.filename} is not staged{why}"
        raise PromotionError(what, hint=hint)
    if source.size != wheel.size or source.sha256 not in {"", wheel.sha256}:
        raise replaced(store.locate(key), source.sha256 or f"{source.size} bytes", wheel.sha256)
    here = there.get(wheel.filename)
    if here and here.size != wheel.size:
        raise replaced(store.locate(here.key), f"{here.size} bytes", wheel.sha256)
    return source, wheelset.staged_metadata(staging, source)


def _check_approvals(approvals: Sequence[Approval], cells: Collection[policy.SuiteCell]) -> None:
    for word in approvals:
        text = f"{word.suite}:{word.python}" + (f"={word.ran}" if word.ran else "")
        about = [c for c in cells if (c.suite, c.python) == (word.suite, word.python)]
        if text not in {cell.approval for cell in about}:
            what = about[0].state.value if about else "no such cell"
            can = "a flaky cell can be approved, and the first set of a family; look at the plan"
            wanted = next((cell.approval for cell in about if cell.approval), "")
            hint = f"write --approve {wanted}" if wanted else f"{can} with --dry-run"
            raise PromotionError(f"--approve {text}: {what}", hint=hint)
