"""Staging: a wheelhouse into `v2-staging/<family>/`, whole, once, and listed when it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rocwheel.console import Unit
from rocwheel.console import size as readable
from rocwheel.errors import ObjectDiffersError, WheelError
from rocwheel.index.publish import read_page
from rocwheel.ledger import records
from rocwheel.ledger.records import Action
from rocwheel.model import WheelKind
from rocwheel.release import operations, wheelset
from rocwheel.store import each

if TYPE_CHECKING:
    from pathlib import Path

    from amdgpu_family_matrix import Family
    from rocwheel.console import Console
    from rocwheel.index.channels import Channel
    from rocwheel.index.page import Entry, Page
    from rocwheel.ledger.records import History
    from rocwheel.manifest import Manifest
    from rocwheel.places import Place
    from rocwheel.release.operations import Who
    from rocwheel.store import Store


@dataclass(frozen=True, kw_only=True)
class Upload:
    """One wheel to stage, with its METADATA."""

    path: Path
    entry: Entry
    metadata: bytes
    is_there: bool  # an object of this name and size; its digest is compared when applying
    before: Entry | None  # the same wheel of the version before, for the size trend


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """What `stage` is going to do."""

    place: Place
    manifest: Manifest
    history: History
    uploads: tuple[Upload, ...]
    is_done: bool

    @property
    def size(self) -> int:
        return sum(item.entry.size for item in self.uploads)

    def lines(self) -> list[str]:
        """The plan for people: every source, its full destination, its size and the trend."""
        lines = [f"manifest {self.manifest.sha256}", f"to       {self.place.location}/"]
        for item in self.uploads:
            act = "is there" if item.is_there else "upload"
            trend = ""
            if item.before:
                change = 100 * (item.entry.size / item.before.size - 1)
                trend = f", {change:+.1f} % since {item.before.version}"
            where = self.place.store.locate(self.place.key(item.entry.filename))
            lines.append(f"{act:9}{item.path} -> {where} ({readable(item.entry.size)}{trend})")
            lines.append(f"{act:9}METADATA -> {where}.metadata")
        lines += [
            f"page     {self.place.location}/{project}/"
            for project in operations.by_project(item.entry for item in self.uploads)
        ]
        return lines

    def to_json(self) -> dict[str, Any]:
        return {
            "manifest": self.manifest.sha256,
            "family": self.place.family,
            "index_url": self.place.url,
            "wheels": [
                {
                    "filename": item.entry.filename,
                    "sha256": item.entry.sha256,
                    "size": item.entry.size,
                    "size_before": item.before.size if item.before else None,
                    "url": self.place.link(item.entry.filename),
                    "is_there": item.is_there,
                }
                for item in self.uploads
            ],
        }


def plan(wheelhouse: Path, family: Family, channel: Channel, store: Store) -> StagePlan:
    """Check the wheelhouse and look at what is staged; write nothing.

    Raises WheelError for a set that is incomplete, not closed or over its size budget,
    ObjectDiffersError when a name is taken by other bytes.
    """
    manifest, paths = wheelset.load(wheelhouse)
    wheelset.check_family(manifest, family)
    wheelset.check_complete(manifest)
    metadata = {name: wheelset.read_metadata(path) for name, path in paths.items()}
    wheelset.check_closed(manifest, metadata)
    _check_sizes(manifest, channel)
    place = channel.staging(store, family.name, wheelset.rocm_major(manifest))
    entries = wheelset.entries(manifest, metadata)
    history = records.history(place, manifest.sha256)
    there = operations.stored(place, entries)
    pages = {project: read_page(place, project) for project in {e.project for e in entries}}
    uploads = []
    for entry in entries:
        pages[entry.project].taken((entry,), where=place.location)
        info = there.get(entry.filename)
        if info and info.size != entry.size:
            raise ObjectDiffersError(
                f"{place.store.locate(info.key)}: {info.size} bytes are stored, not {entry.size}",
                hint="a name is never used for other bytes: build with a new version",
            )
        uploads.append(
            Upload(
                path=paths[entry.filename],
                entry=entry,
                metadata=metadata[entry.filename],
                is_there=info is not None and f"{entry.filename}.metadata" in there,
                before=_before(pages[entry.project], entry),
            )
        )
    return StagePlan(
        place=place,
        manifest=manifest,
        history=history,
        uploads=tuple(uploads),
        is_done=history.last is Action.STAGE
        and history.open is None
        and all(item.is_there for item in uploads)
        and operations.listed(pages, entries),
    )


def apply(plan: StagePlan, *, who: Who, console: Console) -> None:
    """Do it; returns when the staging index lists every file with its hash."""
    place = plan.place
    operation = operations.begin(
        place,
        plan.history,
        Action.STAGE,
        (item.entry for item in plan.uploads),
        who=who,
        manifest=plan.manifest,
    )
    records.put_manifest(place, plan.manifest)
    with console.progress("staging", total=plan.size, unit=Unit.BYTES) as progress:
        tally = operations.Tally(progress)

        def upload(item: Upload) -> None:
            place.store.create(
                place.key(item.entry.filename),
                item.path,
                headers=place.wheel_headers,
                sha256=item.entry.sha256,
                count=tally,
            )
            place.store.create(
                place.metadata(item.entry.filename),
                item.metadata,
                headers=place.metadata_headers,
                sha256=item.entry.metadata_sha256,
            )

        each(upload, plan.uploads, threads=place.store.connections)
    operation.publish(lambda page, files: page.with_files(files, where=place.location))
    operation.finish()


def _before(page: Page, entry: Entry) -> Entry | None:
    """The newest other version's wheel of the same CPython."""
    others = (item for item in page.files if item.version != entry.version)
    return next((item for item in others if item.python == entry.python), None)


def _check_sizes(manifest: Manifest, channel: Channel) -> None:
    for wheel in manifest.built:
        budget = channel.size_budget.get(WheelKind(wheel.kind))
        if budget and wheel.size > budget:
            raise WheelError(
                f"{wheel.filename}: {readable(wheel.size)}, the budget is {readable(budget)}",
                hint=f"make it smaller, or raise size_budget_mib of channel {channel.name}",
            )
