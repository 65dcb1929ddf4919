"""Staging: uploads a wheelhouse to `v2-staging/<family>/`, whole and once, and lists it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import amdgpu_family_matrix as matrix
from amdgpu_family_matrix import Family
from rocwheel.base import yaml_file
from rocwheel.base.choices import ALL
from rocwheel.base.console import Console, Unit
from rocwheel.base.console import size as readable
from rocwheel.base.errors import ConfigError, ObjectDiffersError, WheelError
from rocwheel.base.store import Store
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import WheelKind
from rocwheel.records.entry import Entry, parsed
from rocwheel.records.manifest import Manifest
from rocwheel.release import operations, proof, wheelset
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger import log
from rocwheel.release.ledger.state import Action, Holding, IndexState, Standing, Transition
from rocwheel.release.operations import Operation, Who
from rocwheel.release.withdraw import withdrawn
from rocwheel.wheel.verify import LIMITS, Expectation, verify_wheelhouse
from rocwheel.wheel.verify.rules import refuse
from rocwheel.wheel.wheel_policy import WheelPolicy


class Upload(Plain, frozen=True, kw_only=True):
    path: Path
    entry: Entry
    metadata: bytes
    is_there: bool  # an object of this name and size; its digest is compared when applying
    before: Entry | None  # the same wheel of the version before, for the size trend


@dataclass(frozen=True, kw_only=True)
class Stage(Operation):
    manifest: Manifest
    families: tuple[str, ...]  # that the set is for
    uploads: tuple[Upload, ...]
    provenance: bytes = b""  # a builder's statement, where the wheelhouse has one
    count: Callable[[int], None] | None = None

    def decide(self, state: IndexState) -> Transition | None:
        known = state.sets.get(self.manifest.sha256)
        missing = [name for name in self.families if not (known and known.of(name))]
        if known and known.standing is Standing.LISTED and not missing:
            return None
        entries = tuple(item.entry for item in self.uploads)
        state.check_names(entries, missing, where=self.place.location)
        if known and known.standing is not Standing.LISTED:
            raise withdrawn(self.place, known)
        if known:
            return self.entry(state, Action.STAGE, sets=[known.id], families=missing)
        brings, must = [holding(self.manifest, entries)], self.manifest.families
        return self.entry(state, Action.STAGE, brings=brings, families=self.families, must=must)

    def prepare(self, state: IndexState, entry: Transition | None) -> Transition | None:  # noqa: ARG002
        self.place.keep(self.place.manifest(self.manifest.sha256), self.manifest.to_bytes())
        self.place.each(self._upload, self.uploads)
        proof.add(self.place, self.manifest.sha256, self.provenance)
        return entry

    def _upload(self, item: Upload) -> None:
        place, entry = self.place, item.entry
        key, headers = place.key(entry.path), place.wheel_headers
        place.store.create(key, item.path, headers=headers, sha256=entry.sha256, count=self.count)
        operations.put_metadata(place, entry, item.metadata)

    def file_lines(self, after: IndexState) -> list[str]:  # noqa: ARG002
        """List every source, its full destination, its size and the trend."""
        place = self.place
        lines = [f"manifest {self.manifest.sha256}", f"to       {place.location}/"]
        for item in self.uploads:
            act = "is there" if item.is_there else "upload"
            trend = ""
            if item.before:
                change = 100 * (item.entry.size / item.before.size - 1)
                trend = f", {change:+.1f} % since {item.before.version}"
            where = place.locate(item.entry.path)
            lines.append(f"{act:9}{item.path} -> {where} ({readable(item.entry.size)}{trend})")
            lines.append(f"{act:9}METADATA -> {where}.metadata")
        return lines

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        done = "nothing-to-do" if self.is_done else "staged"
        widest = ALL if self.manifest.families else self.families[-1]
        return {
            "state": "planned" if dry_run else done,
            "manifest": self.manifest.sha256,
            "families": list(self.families),
            "index_url": self.place.of(widest).url,
            "wheels": [
                {
                    "filename": item.entry.filename,
                    "sha256": item.entry.sha256,
                    "size": item.entry.size,
                    "size_before": item.before.size if item.before else None,
                    "url": self.place.served(self.place.key(item.entry.path)),
                    "is_there": item.is_there,
                }
                for item in self.uploads
            ],
        }


def plan(
    wheelhouse: Path, family: Family | None, channel: Channel, store: Store, *, who: Who
) -> Stage:
    """Check the wheelhouse and look at what is staged; write nothing.

    Without a family it is staged for those that it names. Raises WheelError for a set that is
    incomplete, not closed or over its size budget, ObjectDiffersError when a name is taken by
    other bytes, PromotionError when one is spent.
    """
    manifest, paths = wheelset.load(wheelhouse)
    known = (matrix.FAMILIES[name] for name in manifest.families if name in matrix.FAMILIES)
    for one in [family] if family else known:
        wheelset.check_family(manifest, one)
    wheelset.check_complete(manifest)
    metadata = {name: wheelset.read_metadata(path) for name, path in paths.items()}
    wheelset.check_closed(manifest, metadata)
    _check_sizes(manifest, channel, store)
    place, _ = channel.pair(store, manifest, family.name if family else ALL)
    state = log.read(place, files=True)
    place = state.at(place, manifest.sha256)
    if family and not manifest.families and place.family != family.name:
        raise ConfigError(
            f"{manifest.sha256[:12]}: is staged for {place.family}, before 0.3",
            hint=f"a set of one family stays with it: build one for {family.name}",
        )
    entries = wheelset.entries(manifest, metadata, place, uploaded=who.time)
    own = state.of(place.family)
    there = operations.stored(place, entries)
    uploads = []
    for entry in entries:
        info = there.get(entry.filename)
        if info and info.size != entry.size:
            raise ObjectDiffersError(
                f"{place.store.locate(info.key)}: {info.size} bytes are stored, not {entry.size}",
                hint="a name is never used for other bytes: build with a new version",
            )
        others = [  # of the same CPython
            item
            for item in own.shown(entry.project)
            if item.version != entry.version and item.python == entry.python
        ]
        uploads.append(
            Upload(
                path=paths[entry.filename],
                entry=entry,
                metadata=metadata[entry.filename],
                is_there=info is not None and f"{entry.filename}.metadata" in there,
                before=max(others, key=lambda item: parsed(item.version), default=None),
            )
        )
    operation = Stage(
        place=place,
        who=who,
        start=state,
        manifest=manifest,
        families=manifest.families or (place.family,),
        uploads=tuple(uploads),
        provenance=proof.built(wheelhouse),
    )
    is_done = operation.decide(state) is None and operations.is_settled(state)
    stated = proof.keyed(place, manifest.sha256, operation.provenance, "provenance")
    is_there = all(item.is_there for item in uploads) and all(map(place.store.info, stated))
    return replace(operation, is_done=is_done and is_there)


def verify(operation: Stage, policy: Path) -> None:
    """Refuse what `wheel verify --thorough` refuses. Raises WheelError."""
    rules, folder = yaml_file.read(policy, WheelPolicy), operation.uploads[0].path.parent
    expected = Expectation(code=LIMITS.code)
    found = verify_wheelhouse(folder, operation.manifest, policy=rules, expected=expected)
    for path, findings in found.items():
        refuse(path.name, findings)


def apply(operation: Stage, *, console: Console) -> None:
    """Upload a set; returns when the staging index lists every file with its hash."""
    size = sum(item.entry.size for item in operation.uploads)
    with console.progress("staging", total=size, unit=Unit.BYTES) as progress:
        operations.perform(replace(operation, count=operations.Tally(progress)))


def holding(manifest: Manifest, entries: tuple[Entry, ...]) -> Holding:
    return Holding(
        set=manifest.sha256,
        files=entries,
        jax=manifest.jax_version,
        rocm=manifest.rocm.version,
        pythons=tuple(manifest.pythons),
    )


def _check_sizes(manifest: Manifest, channel: Channel, store: Store) -> None:
    for wheel in manifest.built:
        if wheel.size > store.largest:
            raise WheelError(
                f"{wheel.filename}: {readable(wheel.size)}, {store.url} takes "
                f"{readable(store.largest)} at once",
                hint="build it for fewer gfx targets: what is stored in parts has no SHA-256",
            )
        budget = channel.size_budget.get(WheelKind(wheel.kind))
        if budget and wheel.size > budget:
            raise WheelError(
                f"{wheel.filename}: {readable(wheel.size)}, the budget is {readable(budget)}",
                hint=f"make it smaller, or raise size_budget_mib of channel {channel.name}",
            )
