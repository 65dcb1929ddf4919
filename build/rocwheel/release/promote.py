"""Promotion: making exactly the gated bytes installable from the release index, or nothing.

The plan reads and writes nothing: manifest, verdicts, policy, size and stated SHA-256 of every
staged object, what the release has already. Applying it copies on the server, create-only, with
every digest proven before and after, then changes the pages, then writes the release record.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rocwheel.console import Unit
from rocwheel.console import size as readable
from rocwheel.errors import ObjectMissingError, PromotionError
from rocwheel.index.publish import read_page
from rocwheel.ledger import records, verdicts
from rocwheel.ledger.records import Action
from rocwheel.release import operations, policy, wheelset
from rocwheel.release.operations import Tally, listed, short, stored
from rocwheel.store import each, replaced

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from amdgpu_family_matrix import Family
    from rocwheel.console import Console
    from rocwheel.index.channels import Channel
    from rocwheel.index.page import Entry, Page
    from rocwheel.ledger.records import History
    from rocwheel.ledger.verdicts import FoundVerdict
    from rocwheel.manifest import Manifest
    from rocwheel.places import Place
    from rocwheel.release.operations import Who
    from rocwheel.release.policy import Approval, Decision
    from rocwheel.store import Info, Store


@dataclass(frozen=True, kw_only=True)
class Copy:
    """One wheel to copy, with its METADATA."""

    entry: Entry
    source: Info
    metadata: bytes
    is_there: bool  # an object of this name and size; its digest is compared when applying


@dataclass(frozen=True, kw_only=True)
class PromotePlan:
    """What `promote` is going to do, or why it may not."""

    staging: Place
    release: Place
    channel: Channel
    manifest: Manifest
    history: History  # at the release
    copies: tuple[Copy, ...]
    verdicts: tuple[FoundVerdict, ...]
    decision: Decision
    is_done: bool

    @property
    def state(self) -> str:
        """`blocked`, `nothing-to-do` or `ready`; `published` is what applying a ready one gives."""
        if self.is_done:
            return "nothing-to-do"
        return "blocked" if self.decision.blocking else "ready"

    @property
    def size(self) -> int:
        return sum(item.entry.size for item in self.copies)

    def lines(self) -> list[str]:
        """The plan for people: every source and destination URL, sizes, cells."""
        store = self.release.store
        lines = [f"manifest {self.manifest.sha256}"]
        for item in self.copies:
            act = "is there" if item.is_there else "copy"
            target = store.locate(self.release.key(item.entry.filename))
            size = readable(item.entry.size)
            lines.append(f"{act:9}{store.locate(item.source.key)} -> {target} ({size})")
            lines.append(f"{act:9}{store.locate(item.source.key)}.metadata -> {target}.metadata")
        lines += [
            f"page     {self.release.location}/{project}/"
            for project in operations.by_project(item.entry for item in self.copies)
        ]
        return [*lines, *self.cell_lines()]

    def cell_lines(self) -> list[str]:
        return [
            f"{'BLOCKS' if cell.is_blocking else 'ok':9}{cell.suite} on CPython {cell.python}: "
            f"{cell.state.value} ({cell.level.value})" + (f": {cell.why}" if cell.why else "")
            for cell in self.decision.cells
        ]

    def to_json(self, *, state: str = "") -> dict[str, Any]:
        store = self.release.store
        return {
            "state": state or self.state,
            "manifest": self.manifest.sha256,
            "family": self.release.family,
            "index_url": self.release.url,
            "blocked_by": [cell.to_json() for cell in self.decision.blocking],
            "wheels": [
                {
                    "source": store.locate(item.source.key),
                    "destination": store.locate(self.release.key(item.entry.filename)),
                    "sha256": item.entry.sha256,
                    "size": item.entry.size,
                    "is_there": item.is_there,
                }
                for item in self.copies
            ],
            **self.decision.evidence(),
        }

    def refusal(self) -> PromotionError:
        """The error of a blocked plan: its first cell, and what to do about it."""
        cells = self.decision.blocking
        first = cells[0]
        more = f" (and {len(cells) - 1} more)" if len(cells) > 1 else ""
        hints = {
            "flaky": f"approve it by name: --approve {first.suite}:{first.python}, "
            "with --by and --reason",
            "no-runner": "get a runner, or set bypass_tests_for_releases of the family",
            "not-run": f"run it: gate --manifest {short(self.manifest.sha256)} "
            f"--family {self.release.family} {self.channel.option} --python {first.python} "
            f"--suite {first.suite}",
        }
        return PromotionError(
            f"{short(self.manifest.sha256)} on {self.release.family}: {first.suite} on CPython "
            f"{first.python} is {first.state.value}: {first.why}{more}",
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
    ObjectDiffersError when a staged object or a released name has other bytes.
    """
    wheelset.check_family(manifest, family)
    wheelset.check_complete(manifest)
    major = wheelset.rocm_major(manifest)
    staging = channel.staging(store, family.name, major)
    release = channel.release(store, family.name, major)
    history = records.history(release, manifest.sha256)
    if history.last is Action.ROLLBACK:
        raise _rolled_back(release, history)
    pages = {
        project: read_page(release, project) for project in {w.project for w in manifest.built}
    }
    is_listed = listed(pages, manifest.built)
    done = history.last is not None and history.open is None and is_listed
    staged = records.history(staging, manifest.sha256)
    if done and staged.last is Action.PRUNE:  # released, and staging let go of it
        return PromotePlan(
            staging=staging, release=release, channel=channel, manifest=manifest, history=history,
            copies=(), verdicts=(), decision=policy.Decision(cells=()), is_done=True,
        )  # fmt: skip
    entries = _staged(staging, manifest, staged)
    for entry in entries:
        pages[entry.project].taken((entry,), where=release.location)
        if not done:
            wheelset.check_order(pages[entry.project], (entry,))
    there = stored(release, entries)
    found = verdicts.find(staging, manifest.sha256)
    decision = policy.decide(manifest, family, channel, found, now=who.now, approvals=approvals)
    _check_approvals(approvals, decision)
    copies = each(lambda entry: _copy(staging, entry, there), entries, threads=store.connections)
    wheelset.check_closed(manifest, {item.entry.filename: item.metadata for item in copies})
    return PromotePlan(
        staging=staging,
        release=release,
        channel=channel,
        manifest=manifest,
        history=history,
        copies=tuple(copies),
        verdicts=found,
        decision=decision,
        is_done=done and all(item.is_there for item in copies),
    )


def apply(plan: PromotePlan, *, who: Who, console: Console) -> int:
    """Publish; return how many bytes of wheels passed through this machine.

    Raises PromotionError when the plan is blocked, or was rolled back while this was running.
    """
    if plan.decision.blocking:
        raise plan.refusal()
    release, store = plan.release, plan.release.store
    able = store.abilities()
    if not able.copies:
        console.info(
            f"{store.url}: this server lacks {', '.join(able.missing)}: wheels are downloaded, "
            "checked and put"
        )
    operation = operations.begin(
        release,
        plan.history,
        Action.PROMOTE,
        (item.entry for item in plan.copies),
        who=who,
        manifest=plan.manifest,
    )
    records.put_manifest(release, plan.manifest)
    each(
        lambda found: verdicts.keep(found, plan.staging, release, manifest=plan.manifest.sha256),
        plan.verdicts,
        threads=store.connections,
    )
    with console.progress("promoting", total=plan.size, unit=Unit.BYTES) as progress:
        tally = Tally(progress)
        moved = each(
            lambda item: _publish(item, release, tally), plan.copies, threads=store.connections
        )
    operation.publish(lambda page, files: listing(page, files, release))
    try:
        operation.finish(evidence=plan.decision.evidence())
    except PromotionError:
        # Somebody rolled back while this was running: leave the index as they wanted it.
        operations.withdraw(release, operation.intent.entries)
        raise
    return sum(moved)


def _publish(item: Copy, release: Place, tally: Tally) -> int:
    """One wheel and its METADATA; return how many bytes of the wheel passed through here."""
    store, entry = release.store, item.entry
    moved = store.copy(item.source, release.key(entry.filename), sha256=entry.sha256, count=tally)
    store.create(
        release.metadata(entry.filename),
        item.metadata,
        headers=release.metadata_headers,
        sha256=entry.metadata_sha256,
    )
    return moved


def listing(page: Page, files: list[Entry], release: Place) -> Page:
    """Add the files; the order is checked again, another promotion may have been faster."""
    new = [item for item in files if page.file(item.filename) is None]
    wheelset.check_order(page, new)
    return page.with_files(files, where=release.location)


def _staged(staging: Place, manifest: Manifest, history: History) -> tuple[Entry, ...]:
    """The set's files as staged. Raises PromotionError when they are not, or not all."""
    live = history.live
    for wheel in manifest.built:
        entry = live.get(wheel.filename)
        if entry is None:
            gone = history.last is Action.PRUNE
            raise PromotionError(
                f"{staging.location}: {short(manifest.sha256)} is not "
                f"{'staged any more: it was pruned' if gone else 'staged'}: {wheel.filename}",
                hint=f"stage its wheelhouse: stage WHEELHOUSE --family {staging.family}",
            )
        if (entry.sha256, entry.size) != (wheel.sha256, wheel.size):
            raise replaced(staging.link(wheel.filename), entry.sha256, wheel.sha256)
    return tuple(live[wheel.filename] for wheel in manifest.built)


def _copy(staging: Place, entry: Entry, there: dict[str, Info]) -> Copy:
    """Look at one staged wheel: size and stated SHA-256 equal the manifest's."""
    store, key = staging.store, staging.key(entry.filename)
    source = store.info(key)
    if source is None:
        raise ObjectMissingError(
            f"{store.locate(key)}: it was staged and is gone", hint="stage the wheelhouse again"
        )
    if source.size != entry.size or source.sha256 not in {"", entry.sha256}:
        raise replaced(store.locate(key), source.sha256 or f"{source.size} bytes", entry.sha256)
    metadata, _ = store.read(f"{key}.metadata")
    digest = hashlib.sha256(metadata).hexdigest()
    if digest != entry.metadata_sha256:
        raise replaced(f"{store.locate(key)}.metadata", digest, entry.metadata_sha256)
    here = there.get(entry.filename)
    if here and here.size != entry.size:
        raise replaced(store.locate(here.key), f"{here.size} bytes", entry.sha256)
    return Copy(
        entry=entry,
        source=source,
        metadata=metadata,
        is_there=here is not None and f"{entry.filename}.metadata" in there,
    )


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


def _rolled_back(release: Place, history: History) -> PromotionError:
    record = history.record(Action.ROLLBACK)
    told = f" by {record.by}: {record.reason}" if record else ""
    return PromotionError(
        f"{release.location}: {short(history.set_id)} was rolled back{told}",
        hint="`restore` puts it back; a mended build needs a new version",
    )
