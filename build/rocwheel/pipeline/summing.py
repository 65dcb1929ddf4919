"""The summary a night leaves: cells as they stand, families as `status` says. Pages read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from amdgpu_family_matrix import Family
from rocwheel.errors import ConfigError
from rocwheel.index.channels import Channel
from rocwheel.install import Install
from rocwheel.ledger import log, manifests
from rocwheel.ledger.log import LogEnd
from rocwheel.ledger.nights import Book, Nights, Phase, WheelRecipe
from rocwheel.ledger.state import Standing
from rocwheel.manifest import Manifest
from rocwheel.model import WheelKind, moment, timestamp
from rocwheel.parallel import each
from rocwheel.pipeline import standing
from rocwheel.pipeline.standing import CellStanding
from rocwheel.places import Place
from rocwheel.release import status
from rocwheel.report.night_summary import (
    BuildSummary,
    CellSummary,
    FamilySummary,
    NightSummary,
    SourceSummary,
    WheelSize,
)
from rocwheel.store import Store
from rocwheel.values import replace
from rocwheel.verdict import State

TELLING: Final = frozenset({"page", "notify"})


def read(nights: Nights, night: str) -> NightSummary | None:
    """Read the summary of a night; None where it has none. Raises ConfigError."""
    data = nights.summary(night)
    where = nights.store.locate(nights.key(night, "summary.json"))
    return NightSummary.from_bytes(data, name=where) if data else None


def known(data: bytes | None) -> NightSummary | None:
    """Return the last night's summary for the next plan; None where none can be used."""
    if not data:
        return None
    try:
        return NightSummary.from_bytes(data, name="summary")
    except ConfigError:  # of another version: without it a plan asks more
        return None


def seconds(last: NightSummary) -> dict[str, int]:
    """Return how long each cell of a night took."""
    return {
        cell.name: max(1, cell.milliseconds // 1000)
        for cell in last.cells
        if cell.state is State.PASS and cell.milliseconds
    }


def summary(
    book: Book,
    families: Mapping[str, Family],
    channel: Channel,
    store: Store,
    *,
    now: datetime,
    before: NightSummary | None,
) -> NightSummary:
    """Make the summary of a night; `before` is the newest other one. Raises StoreError."""
    known = {item.family: item for item in before.families} if before else {}
    standings = standing.stand(book, now)
    wanted = [name for recipe in book.plan.recipes for name in recipe.families]
    wanted += [cell.family for cell in book.plan.cells]
    wanted += [item.family for item in known.values() if item.green]  # what is released stays shown
    chosen = [families[name] for name in dict.fromkeys(wanted) if name in families]
    ends = [item.last.time for item in standings.values() if item.last]
    held = standing.stopped(book.orders)
    return NightSummary(
        night=book.plan.night,
        made=book.plan.made,
        written=timestamp(now),
        by=book.plan.by,
        tool=book.plan.tool,
        cells=tuple(_cell(item) for item in standings.values() if not _tells(item)),
        families=tuple(each(lambda f: _family(f, channel, store, now, known), chosen, threads=4)),
        builds=_builds(book, standings, before),
        sources=tuple(_source(recipe) for recipe in book.plan.recipes),
        nothing_built=standing.nothing_built(standings),
        absent=tuple((item.name, item.why) for item in book.plan.absent),
        quarantined=tuple((host, mark.reason) for host, mark in sorted(book.quarantined.items())),
        stopped=f"Stopped by {held.by}: {held.reason}" if held else "",
        seconds=round((moment(max(ends)) - moment(book.plan.made)).total_seconds()) if ends else 0,
    )


def _tells(item: CellStanding) -> bool:
    """Return whether a cell is one of those that tell of the night, and has not failed at it."""
    return item.cell.kind in TELLING and (item.state in {None, State.PASS} or not item.settled)


def _source(recipe: WheelRecipe) -> SourceSummary:
    same = ("jax", "jax_repository", "jax_commit", "xla_commit", "rocm_sha256", "tool", "authors")
    own: dict[str, Any] = {name: getattr(recipe, name) for name in same}
    return SourceSummary(wheels=recipe.name, rocm=recipe.rocm_version, **own)


def _cell(item: CellStanding) -> CellSummary:
    last, cell = item.last, item.cell
    kept = item.phase is Phase.KEPT
    same = ("name", "kind", "family", "python", "suite", "wheels", "shard")
    own: dict[str, Any] = {name: getattr(cell, name) for name in same}
    if last:
        ended = ("image", "link", "log", "host", "milliseconds", "time")
        own |= {name: getattr(last, name) for name in ended}
    if kept:
        own["image"] = cell.image
    return CellSummary(
        phase=item.phase,
        state=_kept(cell.kept) if kept else item.state,
        excused=bool(cell.excused),
        reason=item.reason,
        runner=cell.needs.label,
        attempts=len(item.attempts),
        **own,
    )


def _kept(word: str) -> State:
    """Return the state of something that was there before: a verdict's own, or a pass."""
    return State(word) if word in {state.value for state in State} else State.PASS


def _family(
    family: Family,
    channel: Channel,
    store: Store,
    now: datetime,
    known: Mapping[str, FamilySummary],
) -> FamilySummary:
    """Return what `status` says of a family, for every ROCm major it has."""
    before = known.get(family.name, FamilySummary(family=family.name))
    pairs = channel.pairs(store, family.name)
    if _holds(before, [place for pair in pairs for place in pair]):
        return before
    newest: tuple[str, FamilySummary] = ("", FamilySummary(family=family.name))
    blocked = ""
    blocked_set = ""
    ends: list[LogEnd] = []
    since = [timestamp(now)]
    waits = False
    for staging, release in pairs:
        staged, released = log.read(staging), log.read(release)
        ends += (log.end(staging, staged), log.end(release, released))
        since += [k.time for k in staged.sets.values() if k.standing is not Standing.PRUNED]
        rows = status.of((staging, staged), (release, released), family, channel, now=now)
        for row in rows.sets:
            waits = waits or row.state in {"staged", "gated"}
            if row.state == "released" and row.yanked < row.files and row.released > newest[0]:
                if (before.green, before.green_since) == (row.set_id, row.released):
                    newest = (row.released, before)  # what a set is made of never changes
                    continue
                manifest = manifests.find(release, row.set_id)
                if manifest:
                    newest = (row.released, _green(family, row, manifest, release.url))
            elif row.blocked_by and not blocked:
                blocked, blocked_set = row.blocked_by, row.set_id
    return replace(
        newest[1],
        blocked=blocked,
        blocked_set=blocked_set,
        ends=() if waits else tuple(ends),
        staged_since=min(since, key=moment),
    )


def _holds(before: FamilySummary, places: Sequence[Place]) -> bool:
    """Return whether nothing happened to a family since then: all its logs end where they ended."""
    return len(before.ends) == len(places) and all(map(log.ends_at, places, before.ends))


def _builds(
    book: Book, standings: Mapping[str, CellStanding], before: NightSummary | None
) -> tuple[BuildSummary, ...]:
    """Return what a night's sets were built as, with earlier nights' where it lacks them."""
    made = {
        item.cell.leave: item.manifest
        for item in standings.values()
        if item.cell.leave and item.passed and item.manifest
    }
    here = {
        recipe.name: BuildSummary(wheels=recipe.name, inputs=recipe.inputs, manifest=manifest)
        for recipe in book.plan.recipes
        if (manifest := made.get(recipe.inputs) or recipe.manifest)
    }
    others = {item.wheels: item for item in before.builds} if before else {}
    return tuple({**others, **here}.values())


def _green(family: Family, row: status.SetStatus, manifest: Manifest, url: str) -> FamilySummary:
    """Return what a family has released, as people install it."""
    install = Install.of(manifest, url)
    largest = {kind.value: 0 for kind in WheelKind}
    for wheel in manifest.built:
        largest[wheel.kind] = max(largest[wheel.kind], wheel.size)
    return FamilySummary(
        family=family.name,
        green=row.set_id,
        green_since=row.released,
        jax=row.jax,
        rocm=row.rocm,
        pythons=tuple(row.pythons),
        index=url,
        requirements=tuple(map(str, install.ours)),
        upstream=tuple(map(str, install.upstream)),
        sizes=tuple(WheelSize(kind=kind, bytes=size) for kind, size in largest.items()),
    )
