"""Promotion: making exactly the gated bytes installable from the release index, or nothing.

The plan reads and writes nothing: manifest, verdicts, policy, size and stated SHA-256 of every
staged object, the METADATA inside each staged wheel, what the release has already. Nothing is taken
from a staging record or page: who may write there decides nothing here. Applying it copies on
the server, create-only, with every digest proven before and after, then commits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from amdgpu_family_matrix import Family
from rocwheel import files
from rocwheel.console import Console, Unit, count
from rocwheel.console import size as readable
from rocwheel.entry import Entry
from rocwheel.errors import ObjectMissingError, PromotionError
from rocwheel.index.channels import Channel
from rocwheel.install import Install
from rocwheel.ledger import log, manifests, verdicts
from rocwheel.ledger.state import Action, IndexState, Known, Standing, Transition
from rocwheel.ledger.verdicts import Coverage, FoundVerdict
from rocwheel.manifest import Manifest, WheelEntry
from rocwheel.places import Place
from rocwheel.release import operations, policy, proof, wheelset
from rocwheel.release.operations import Operation, Tally, Who, stored
from rocwheel.release.policy import Approval, Decision
from rocwheel.release.stage import holding
from rocwheel.store import ObjectInfo, Store, replaced
from rocwheel.trust.evidence import Evidence
from rocwheel.values import replace

if TYPE_CHECKING:
    from pathlib import Path

    from securesystemslib.signer import Signer


@dataclass(frozen=True, kw_only=True)
class Copy:
    entry: Entry
    source: ObjectInfo
    metadata: bytes
    is_there: bool  # an object of this name and size; its digest is compared when applying


@dataclass(frozen=True, kw_only=True)
class Promote(Operation):
    """The operation that copies a staged set into the release and lists it there."""

    staging: Place
    manifest: Manifest
    copies: tuple[Copy, ...]
    found: tuple[FoundVerdict, ...]
    decision: Decision
    evidence: Evidence = field(default_factory=Evidence)
    bundle: bytes = b""  # the signed statements of the release
    count: Callable[[int], None] | None = None
    moved: list[int] = field(default_factory=list)  # bytes of wheels that passed through here

    def wanted(self, state: IndexState) -> Collection[str]:  # noqa: ARG002
        return {wheel.project for wheel in self.manifest.built}

    def decide(self, state: IndexState) -> Transition | None:
        known = state.sets.get(self.manifest.sha256)
        if known and known.standing is Standing.LISTED:
            return None
        entries = tuple(item.entry for item in self.copies)
        state.check_names(entries, where=self.place.location)
        if known:
            raise _withdrawn(self.place, known)
        for project in self.wanted(state):
            wheelset.check_order(state.shown(project), entries)
        brings = [holding(self.manifest, entries)]
        said = self.decision.evidence()
        if self.bundle:
            said["attestations"] = files.sha256(self.bundle)
        return self.entry(state, Action.PROMOTE, brings=brings, evidence=said)

    def prepare(self, state: IndexState) -> None:
        manifests.put(self.place, self.manifest)
        proof.put(self.place, self.manifest.sha256, self.bundle)
        self.place.each(lambda found: verdicts.keep(found, self.place), self.found)
        self.moved.extend(self.place.each(self._copy, self.copies))
        if self.manifest.sha256 in state.sets:
            return  # decided before
        known = {item.key for item in self.found}
        if later := set(verdicts.keys(self.staging, self.manifest.sha256)) - known:
            raise PromotionError(
                f"{self.manifest.sha256[:12]}: {count(len(later), 'verdict')} arrived while its "
                f"wheels were copied: {min(later)}",
                hint="run the same command again: it decides on all of them",
            )

    def _copy(self, item: Copy) -> int:
        """One wheel and its METADATA; return how many bytes of the wheel passed through here."""
        store, entry = self.place.store, item.entry
        target = self.place.key(entry.filename)
        moved = store.copy(item.source, target, sha256=entry.sha256, count=self.count)
        operations.put_metadata(self.place, entry, item.metadata)
        return moved


@dataclass(frozen=True, kw_only=True)
class PromotePlan:
    """What `promote` is going to do, or why it may not."""

    operation: Promote
    channel: Channel
    before: IndexState  # of the release
    is_done: bool

    @property
    def decision(self) -> Decision:
        return self.operation.decision

    @property
    def state(self) -> str:
        """`blocked`, `nothing-to-do` or `ready`; `published` is what applying a ready one gives."""
        if self.is_done:
            return "nothing-to-do"
        return "blocked" if self.decision.blocking else "ready"

    def lines(self) -> list[str]:
        """Return the plan for people: every source and destination URL, sizes, cells.

        Of a blocked one what blocks, first; nothing would be copied.
        """
        place, store = self.operation.place, self.operation.place.store
        lines = [f"manifest {self.operation.manifest.sha256}"]
        if self.state == "blocked":
            return [*lines, *sorted(self.cell_lines(), key=lambda line: line[:6] != "BLOCKS")]
        for item in self.operation.copies:
            act = "is there" if item.is_there else "copy"
            target = store.locate(place.key(item.entry.filename))
            size = readable(item.entry.size)
            lines.append(f"{act:9}{store.locate(item.source.key)} -> {target} ({size})")
            lines.append(f"{act:9}its METADATA -> {target}.metadata")
        lines += operations.page_lines(place, (item.entry for item in self.operation.copies))
        return [*lines, *self.cell_lines(), f"{'signed':9}{self.signed or 'no: unsigned'}"]

    @property
    def signed(self) -> str:
        """The roles whose signatures were needed and are there; "" where none were."""
        roles = self.channel.trust.required(self.channel.name)
        return ", ".join(sorted(role.value for role in roles))

    def cell_lines(self) -> list[str]:
        lines = []
        for cell in self.decision.cells:
            name = f"{cell.suite} on CPython {cell.python}"
            why = f": {cell.why}" if cell.why else ""
            act = "BLOCKS" if cell.is_blocking else "ok"
            lines.append(f"{act:9}{name}: {cell.state.value} ({cell.level.value}){why}")
            lines += [f"{'':9}{name}: {note}" for note in cell.notes]
        return lines

    def to_json(self, *, state: str = "") -> dict[str, Any]:
        place, manifest = self.operation.place, self.operation.manifest
        return {
            "state": state or self.state,
            "manifest": manifest.sha256,
            "family": place.family,
            "index_url": place.url,
            "install": Install.of(manifest, place.url).to_json(),
            "blocked_by": msgspec.to_builtins(self.decision.blocking),
            "wheels": [
                {
                    "source": place.store.locate(item.source.key),
                    "destination": place.locate(item.entry.filename),
                    "sha256": item.entry.sha256,
                    "size": item.entry.size,
                    "is_there": item.is_there,
                }
                for item in self.operation.copies
            ],
            "signed": self.signed or "unsigned",
            **self.decision.evidence(),
        }

    def refusal(self, families: Path | None = None) -> PromotionError:
        """Return the error of a blocked plan: its first cell, and what to do about it.

        `families` is the file of --families, which the next command needs, too.
        """
        cells, name = self.decision.blocking, self.operation.manifest.sha256[:12]
        first, family = cells[0], self.operation.place.family
        more = f" (and {len(cells) - 1} more)" if len(cells) > 1 else ""
        hints = {
            "flaky": f"approve it by name: --approve {first.suite}:{first.python}, "
            "with --by and --reason",
            "no-runner": "get a runner, or set bypass_tests_for_releases of the family",
            "uncalibrated": "count its tests: gate calibrate, or excuse it in the family's data",
            "not-run": f"run it: gate --manifest {name} --family {family} {self.channel.option} "
            + f"--families {families} " * bool(families)
            + f"--python {first.python} --suite {first.suite}",
        }
        return PromotionError(
            f"{name} on {family}: {first.suite} on CPython {first.python} is {first.state.value}: "
            f"{first.why}{more}",
            hint=hints.get(first.state.value, "mend what the verdict names, then gate again"),
        )


def plan(
    manifest: Manifest,
    family: Family,
    channel: Channel,
    store: Store,
    *,
    who: Who,
    approvals: Sequence[Approval] = (),
) -> PromotePlan:
    """Read everything the promotion depends on; write nothing.

    Raises PromotionError when the set is not staged, was rolled back or breaks the version order,
    ObjectDiffersError when a staged object or a released name has other bytes, WheelError when a
    wheel is not what its name and the manifest say.
    """
    wheelset.check_family(manifest, family)
    wheelset.check_complete(manifest)
    major = wheelset.rocm_major(manifest)
    staging = channel.staging(store, family.name, major)
    release = channel.release(store, family.name, major)
    state = log.read(release, {wheel.project for wheel in manifest.built})
    operations.check_sound(release, state)
    there = stored(release, manifest.built)
    whole = {name for name in there if f"{name}.metadata" in there}
    known = state.sets.get(manifest.sha256)
    if known and known.standing is not Standing.LISTED:
        raise _withdrawn(release, known)
    operation = Promote(
        place=release, who=who, staging=staging, manifest=manifest, copies=(), found=(),
        decision=policy.Decision(cells=()),
    )  # fmt: skip
    is_whole = all(wheel.filename in whole for wheel in manifest.built)
    if known and operations.is_settled(state) and is_whole:
        return PromotePlan(operation=operation, channel=channel, before=state, is_done=True)
    found = verdicts.find(staging, manifest.sha256)
    before = verdicts.released_coverage(release, state, verdicts.cells(found))
    decision, evidence = judge(
        staging,
        manifest,
        family,
        channel,
        found,
        before=before,
        now=who.now,
        approvals=approvals,
    )
    _check_approvals(approvals, decision)
    looked = staging.each(lambda wheel: _source(staging, wheel, there), manifest.built)
    names = [wheel.filename for wheel in manifest.built]
    metadata = {name: data for name, (_, data) in zip(names, looked, strict=True)}
    wheelset.check_closed(manifest, metadata)
    copies = tuple(
        Copy(entry=entry, source=source, metadata=data, is_there=entry.filename in whole)
        for entry, (source, data) in zip(
            wheelset.entries(manifest, metadata, uploaded=who.time), looked, strict=True
        )
    )
    operation = replace(operation, copies=copies, found=found, decision=decision, evidence=evidence)
    operation.decide(state)
    return PromotePlan(operation=operation, channel=channel, before=state, is_done=False)


def judge(
    staging: Place,
    manifest: Manifest,
    family: Family,
    channel: Channel,
    found: Sequence[FoundVerdict],
    *,
    before: Coverage,
    now: datetime,
    approvals: Sequence[Approval] = (),
) -> tuple[Decision, Evidence]:
    """Return what policy says of a set, by its verdicts, and the statements that prove them.

    `before` are the tests of the last released set. Raises TrustError where a link is broken.
    """
    evidence = proof.gather(staging, manifest, channel, found, now=now)
    counted = proof.believed(found, evidence, channel)
    lost = verdicts.lost(counted, before)
    decision = policy.decide(
        manifest, family, channel, counted, now=now, approvals=approvals, lost=lost
    )
    return proof.explained(decision, found, evidence, channel), evidence


def apply(
    plan: PromotePlan,
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
    if plan.decision.blocking:
        raise plan.refusal()
    operation, place = plan.operation, plan.operation.place
    bundle = proof.bundle(
        operation.manifest,
        plan.channel,
        place,
        who=operation.who,
        evidence=operation.evidence,
        facts=plan.decision.evidence(),
        signer=signer,
        policy={**(digests or {}), "trust": plan.channel.trust.sha256},
    )
    total = sum(item.entry.size for item in operation.copies)
    if lacks := place.store.abilities().copy_lacks:
        console.warn(
            f"{place.store.url}: copying on this server cannot be proven (it lacks "
            f"{', '.join(lacks)}): {readable(total)} of wheels are downloaded, "
            "checked and uploaded by this machine"
        )
    with console.progress("promoting", total=total, unit=Unit.BYTES) as progress:
        operation = replace(operation, bundle=bundle, count=Tally(progress))
        operations.perform(operation, plan.before)
    return sum(operation.moved)


def _source(
    staging: Place, wheel: WheelEntry, there: dict[str, ObjectInfo]
) -> tuple[ObjectInfo, bytes]:
    """One staged wheel: its size and stated SHA-256 are the manifest's; METADATA from inside it."""
    store, key = staging.store, staging.key(wheel.filename)
    source = store.info(key)
    if source is None:
        raise _not_staged(staging, wheel)
    if source.size != wheel.size or source.sha256 not in {"", wheel.sha256}:
        raise replaced(store.locate(key), source.sha256 or f"{source.size} bytes", wheel.sha256)
    here = there.get(wheel.filename)
    if here and here.size != wheel.size:
        raise replaced(store.locate(here.key), f"{here.size} bytes", wheel.sha256)
    return source, wheelset.staged_metadata(staging, source)


def _not_staged(staging: Place, wheel: WheelEntry) -> PromotionError:
    try:
        spent = wheel.filename in log.read(staging, [wheel.project]).listing(wheel.project).spent
    except ObjectMissingError:
        spent = False
    why = " any more: it was pruned" if spent else ""
    hint = f"stage its wheelhouse: stage WHEELHOUSE --family {staging.family}"
    if spent:
        hint = "build the set again under a new version"
    return PromotionError(f"{staging.location}: {wheel.filename} is not staged{why}", hint=hint)


def _check_approvals(approvals: Iterable[Approval], decision: Decision) -> None:
    cells = {(cell.suite, cell.python): cell for cell in decision.cells}
    for item in approvals:
        cell = cells.get((item.suite, item.python))
        if cell is None or cell.state.value != "flaky":
            what = cell.state.value if cell else "no such cell"
            raise PromotionError(
                f"--approve {item.suite}:{item.python}: {what}",
                hint="only a flaky cell can be approved; look at the plan with --dry-run",
            )


def _withdrawn(release: Place, known: Known) -> PromotionError:
    told = f"{known.by}: {known.reason}" if known.reason else known.by
    if known.standing is Standing.PRUNED:
        return PromotionError(
            f"{release.location}: {known.id[:12]} was pruned by {told}",
            hint="its names are spent for ever: build it again under a new version",
        )
    return PromotionError(
        f"{release.location}: {known.id[:12]} was rolled back by {told}",
        hint="`restore` puts it back; a mended build needs a new version",
    )
