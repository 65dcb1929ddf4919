"""Looks after nights: orders, hosts, checking, pruning.

Each function takes the open store and returns what it did; options and output are the commands'.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from rocwheel.base.console import count, duration
from rocwheel.base.errors import ConfigError
from rocwheel.base.versions import moment, timestamp
from rocwheel.night import planning, slurm, standing, truth
from rocwheel.night.standing import CellStanding
from rocwheel.release import retention
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger.nights import (
    INDEX,
    LATE,
    Book,
    CauseClass,
    Nights,
    Order,
    Phase,
)
from rocwheel.release.operations import Who, check_clock

NEVER_RAN: Final = 2 * 3600  # seconds after which a night that was planned should have begun
# In which nothing of a night began or ended, though cells could: an engine here starts them within
# seconds, a cluster's node may have to boot.
STALLED: Final = {"local": timedelta(minutes=2), "slurm": timedelta(minutes=15)}
STOPPED: Final = (CauseClass.LOST, CauseClass.STORE)  # nothing may be left that tries it again
ABANDONED: Final = timedelta(days=3)  # after which a night that is not over may be pruned


def order(book: Book, action: str, cell: str, who: Who) -> Order:
    """Make the order of a person about a night, or a cell of it. Raises ConfigError."""
    night = book.plan.night
    item = book.plan.cell(cell) if cell else None
    if item and item.kept:
        raise ConfigError(
            f"{item.name}: was done before {night}: {item.why}",
            hint=f"to repeat all of it: `nightly plan --from {night} --night NAME`",
        )
    seen = len(book.attempts.get(cell, ()))
    return Order(action=action, cell=cell, seen=seen, **signed(action, who))


def signed(action: str, who: Who) -> dict[str, Any]:
    """Return person, reason and time. Raises ConfigError without a reason."""
    if not who.reason.strip():
        raise ConfigError(
            f"{action}: no reason given", hint="add --reason; it is kept with the night"
        )
    return {"by": who.by, "reason": who.reason, "time": timestamp(who.now)}


def problems(
    nights: Nights,
    now: datetime,
    limit: float,
    waits: Mapping[str, slurm.Job],
    *,
    has_slurm: bool = True,
) -> list[str]:
    """Yield what is wrong with the newest nights, each a line that names its cause.

    `limit` is the largest age of the newest, in seconds; `waits` is what waits in Slurm, unknown
    without `has_slurm`.
    """
    names = nights.names()
    if not names:
        return [f"{nights.store.url}: has no night"]
    night, book = names[-1], nights.book(names[-1])
    standings = standing.stand(book)
    age = (now - moment(book.plan.made)).total_seconds()
    over = all(item.settled or item.cell.kind == "page" for item in standings.values())
    lines = [f"{job.cell}: held by the scheduler: {job}" for job in slurm.held(waits)]
    if age > limit:
        lines.append(f"{night}: the newest night is {duration(age)} old")
    if -age > LATE.total_seconds():
        lines.append(f"{night}: is {duration(-age)} ahead of this machine's clock: set the clock")
    started = book.attempts or not any(map(planning.is_to_run, book.plan.cells))
    if not (started or waits) and age > min(limit, NEVER_RAN):
        lines.append(f"{night}: was planned and never ran")
    left = count(sum(not item.settled for item in standings.values()), "cell")
    if stop := None if over else standing.stopped(book.orders):
        again = f"`nightly retry {night} --reason=WHY`"
        lines.append(f"{night}: was stopped by {stop.by} with {left} to do: {again}")
    go_on = f"nightly run {night}"
    if not (over or waits or stop) and _is_stalled(book, standings, now):
        how = f"stands still with {left} to do: `{go_on}`"
        if "slurm" in engines(book) and not has_slurm:
            how = f"nothing runs of {left} to do, and Slurm cannot be asked here: check it there"
        lines.append(f"{night}: {how}")
    by_itself = waits or "github" in engines(book)  # a follower or a new job takes it up
    lines += standing.grouped(
        (name, f"{item.cause.value}: {item.reason}" + ("" if by_itself else f": `{go_on}`"))
        for name, item in standings.items()
        if item.cause in STOPPED and not item.settled
    )
    lines += standing.grouped(
        (name, f"absent: {item.reason}")
        for name, item in standings.items()
        if item.phase is Phase.ABSENT and not item.green
    )
    if standing.nothing_built(standings):
        lines.append(f"{night}: nothing was built")
    judged = names[-1:] if over else names[-2:-1]  # one that goes on has no summary yet
    unread: list[str] = []
    if judged and not truth.known(nights, judged, unread.append):
        lines += unread or [f"{judged[0]}: has no summary: its page was never made"]
    return lines


def _is_stalled(book: Book, standings: Mapping[str, CellStanding], now: datetime) -> bool:
    """Return whether nothing of a night has run for a while though cells are to be run.

    On GitHub a cell may wait for its runner without limit.
    """
    tries = [item for items in book.attempts.values() for item in items]
    moments = [moment(item.time) for t in tries for item in (t.begun, t.ended) if item]
    runs = any(item.phase is Phase.RUNNING for item in standings.values())
    began = engines(book)
    if runs or not moments or "github" in began:
        return False
    patience = max((STALLED[name] for name in began if name in STALLED), default=timedelta(0))
    return now - max(moments) > patience


def engines(book: Book) -> set[str]:
    """Return the engines that began attempts of a night."""
    return {t.begun.engine for tries in book.attempts.values() for t in tries if t.begun}


def plan_pruning(
    nights: Nights, channel: Channel, families: Sequence[str], keep: int, who: Who
) -> tuple[list[str], list[str], list[retention.Prune]]:
    """Return which old nights go, which are not over, and how sets are pruned.

    Raises ConfigError for a wrong clock.
    """
    store = nights.store
    check_clock(store, (INDEX,), now=who.clock, where=store.url)
    old = nights.names()[:-keep]
    stay = [name for name in old if _may_go_on(nights, name, who.now)]
    every = (pair for name in families for pair in channel.pairs(store, name))
    pairs = {two.root: (one, two) for one, two in every}  # families share them
    sets = list(retention.plans(pairs.values(), channel, who=who, orphans=False))
    return [name for name in old if name not in stay], stay, sets


def _may_go_on(nights: Nights, name: str, now: datetime) -> bool:
    """Return whether a night is young and has cells to run other than its own pruning."""
    try:
        plan, _ = nights.plan(name)
        if now - moment(plan.made) >= ABANDONED:
            return False
        standings = standing.stand(nights.book(name)).values()
    except ConfigError:  # edited, or partly deleted: nothing goes on in it
        return False
    return any(not item.settled for item in standings if item.cell.kind != "prune")
