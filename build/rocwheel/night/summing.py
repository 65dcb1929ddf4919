"""The summary a night leaves: cells as they stand, families as `status` says. Pages read it."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from amdgpu_family_matrix import Family
from rocwheel.base.choices import ALL
from rocwheel.base.errors import ConfigError
from rocwheel.base.parallel import each
from rocwheel.base.store import Store
from rocwheel.base.values import replace
from rocwheel.base.versions import WheelKind, moment, timestamp
from rocwheel.night import standing
from rocwheel.night.night_summary import UNDER_WAY, CellSummary, FamilySummary, NightSummary
from rocwheel.night.standing import CellStanding
from rocwheel.records.install import Install
from rocwheel.records.places import Place
from rocwheel.records.verdict import State
from rocwheel.release import status
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger import log, manifests
from rocwheel.release.ledger.nights import Book, Nights, Phase
from rocwheel.release.ledger.state import Standing

STATES: Final = frozenset(state.value for state in State)
TELLING: Final = frozenset({"page", "notify"})
PAST: Final = 7  # nights among which the last summary is looked for: one may have left none


def read(nights: Nights, night: str) -> NightSummary | None:
    """Read the summary of a night; None where it has none. Raises ConfigError."""
    data = nights.summary(night)
    where = nights.store.locate(nights.key(night, "summary.json"))
    return NightSummary.from_bytes(data, name=where) if data else None


def known(nights: Nights, names: Sequence[str], warn: Callable[[str], None]) -> list[NightSummary]:
    """Return the summaries of earlier nights; warn once of those that cannot be read."""
    unread: list[ConfigError] = []

    def readable(night: str) -> NightSummary | None:
        try:
            return read(nights, night)
        except ConfigError as exc:
            unread.append(exc)
            return None

    made = [item for item in each(readable, names, threads=8) if item]
    if unread:
        more = f" (and {len(unread) - 1} more)" if unread[1:] else ""
        warn(f"{unread[0]}{more}: {unread[0].hint}")
    return made


def seconds(last: NightSummary) -> dict[str, int]:
    """Return how long each cell of a night took."""
    passed = [cell for cell in last.cells if cell.state is State.PASS and cell.milliseconds]
    return {cell.name: max(1, cell.milliseconds // 1000) for cell in passed}


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
    standings = standing.stand(book, now)
    wanted = [name for recipe in book.plan.recipes for name in recipe.families]
    wanted += [cell.family for cell in book.plan.cells]
    # what is released stays shown, also of a family that the data have no more
    green = [item for item in before.families if item.green] if before else []
    unknown = [item for item in green if item.family not in families]
    wanted += [item.family for item in green]
    chosen = [families[name] for name in dict.fromkeys(wanted) if name in families]
    ends = [item.last.time for item in standings.values() if item.last]
    held = standing.stopped(book.orders)
    made = {item.cell.leave: item.manifest for item in standings.values() if item.passed}
    recipes = [replace(r, manifest=made.get(r.inputs) or r.manifest) for r in book.plan.recipes]
    builds = [*(before.builds if before else ()), *(item for item in recipes if item.manifest)]
    return NightSummary(
        night=book.plan.night,
        made=book.plan.made,
        written=timestamp(now),
        by=book.plan.by,
        tool=book.plan.tool,
        cells=cells(standings),
        families=(*each(lambda f: _family(f, channel, store, now), chosen, threads=4), *unknown),
        recipes=tuple(recipes),
        builds=tuple({item.name: item for item in builds}.values()),
        nothing_built=standing.nothing_built(standings),
        quarantined=tuple((host, mark.reason) for host, mark in sorted(book.quarantined.items())),
        stopped=f"Stopped by {held.by}: {held.reason}" if held else "",
        seconds=round((moment(max(ends)) - moment(book.plan.made)).total_seconds()) if ends else 0,
    )


def cells(standings: Mapping[str, CellStanding]) -> tuple[CellSummary, ...]:
    """Sum up cells; those that tell of the night only where they failed at it."""
    return tuple(
        _cell(item)
        for item in standings.values()
        if item.cell.kind not in TELLING or not (item.passed or item.phase in UNDER_WAY)
    )


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
        state=State(cell.kept) if kept and cell.kept in STATES else item.state,
        excused=bool(cell.excused),
        reason=item.reason,
        attempts=len(item.attempts),
        **own,
    )


def _family(family: Family, channel: Channel, store: Store, now: datetime) -> FamilySummary:
    """Return what `status` says of a family, for every ROCm major it has."""
    newest, blocked, blocked_set = FamilySummary(family=family.name), "", ""
    for staging, release in channel.pairs(store, family.name):
        rows = status.read(staging, release, family, channel, now=now, asks_pages=False).sets
        for row in rows:
            if row.state == "released" and row.known.yanked < row.files:
                is_newer = row.released > newest.green_since
                if is_newer and (manifest := manifests.find(release, row.set_id)):
                    sizes = {kind.value: 0 for kind in WheelKind}
                    for wheel in manifest.built:
                        sizes[wheel.kind] = max(sizes[wheel.kind], wheel.size)
                    newest = FamilySummary(
                        family=family.name,
                        green=row.set_id,
                        green_since=row.released,
                        install=Install.of(
                            manifest,
                            _index(release, row.set_id),
                            targets=family.targets if manifest.families else (),
                        ),
                        sizes=sizes,
                    )
            elif row.blocked_by and not blocked:
                blocked, blocked_set = row.blocked_by, row.set_id
    return replace(newest, blocked=blocked, blocked_set=blocked_set)


def _index(release: Place, set_id: str) -> str:
    """Return the URL for a family's users: that of `all` where it lists the set, else their own."""
    if release.family == ALL:
        known = log.read(release).of(ALL).sets.get(set_id)
        release = release.of(ALL) if known and known.standing is Standing.LISTED else release
    return release.url
