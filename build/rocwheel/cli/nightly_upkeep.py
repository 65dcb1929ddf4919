"""`nightly status`, `check`, `changes`, `retry`, `drop`, `stop`, `clear`, `prune`, `report`."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

import amdgpu_family_matrix as matrix
from rocwheel.base.console import columns, count, duration
from rocwheel.base.errors import CommandError, ConfigError, HostError
from rocwheel.cli import as_called, command_line, known
from rocwheel.cli.app import App
from rocwheel.cli.nightly_options import (
    LATEST,
    NightTarget,
    cell_argument,
    document_of,
    latest_argument,
    night_argument,
    nightly,
    truth_of,
    whole,
)
from rocwheel.cli.options import COUNT, PATH, dry_run, group, option
from rocwheel.cli.target import (
    FamiliesOptions,
    PersonOptions,
    StoreOptions,
    families_options,
    judging,
    person_options,
    store_options,
)
from rocwheel.night import page, slurm, standing, upkeep
from rocwheel.night.standing import CellStanding
from rocwheel.release import retention
from rocwheel.release.ledger.nights import Book, HostMark


def age(value: str) -> float:
    """Return how long ago, in seconds."""
    units = {"m": 60, "h": 3600, "d": 86400}
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([mhd])", value)
    if not match:
        raise ConfigError(f"{value!r}: not an age", hint="write for example 90m, 36h or 2d")
    return float(match[1]) * units[match[2]]


@nightly.command("status")
@latest_argument
@store_options
@click.pass_obj
def status(app: App, night: str, target: StoreOptions) -> int:
    """Show where every cell of a night stands, as the store knows it.

    It asks Slurm only which jobs wait, and why. The exit status is 5 when something did not pass,
    or nothing was built.
    """
    where = NightTarget(app, target)
    night = where.night(night)
    book = where.nights.book(night)
    waits = slurm.waiting(where.nights, night, whole(app))
    standings = standing.stand(book)
    what = truth_of(app, where, book)
    lines = [f"{night}: {what.headline}", *_lines(book, standings, waits)]
    for cause in what.causes:
        line = command_line(app, cause.line(what.night))
        lines.append(f"{cause.what}: {cause.first.reason}: `{line}`")
        lines += [f"  {text}" for text, _ in what.found(cause)]
    app.emit(document_of(book, standings, what), "\n".join(lines))
    bad = any(item.settled and not item.green for item in standings.values())
    bad |= any(item.cause in upkeep.STOPPED for item in standings.values())
    return CommandError.exit_code if bad or what.night.nothing_built else 0


def _lines(
    book: Book, standings: Mapping[str, CellStanding], waits: Mapping[str, slurm.Job]
) -> Iterator[str]:
    rows = [
        (
            name,
            item.word,
            str(len(item.attempts) or ""),
            item.last.host if item.last else "",
            duration(item.last.milliseconds / 1000) if item.last else "",
            str(waits.get(name, "")) or item.reason or ("" if item.passed else item.cell.why),
        )
        for name, item in standings.items()
    ]
    lines = columns(("cell", "state", "tries", "host", "took", "why"), rows)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    yield from (line if len(line) <= width else f"{line[: width - 1]}…" for line in lines)
    for host, mark in book.quarantined.items():
        yield f"{host}: gets no more cells since {mark.time}: {mark.reason}"
    if held := standing.stopped(book.orders):
        yield f"stopped by {held.by}: {held.reason}"


@nightly.command("check")
@option("--max-age", metavar="AGE", type=age, default="36h", help="90m, 36h or 2d.")
@store_options
@click.pass_obj
def check(app: App, max_age: float, target: StoreOptions) -> int:
    """Fail if anything but a failing cell is wrong with the newest night.

    It fails if there is no night, or a part of it is absent. It fails if the night is too old,
    was stopped, never ran, or made no progress for 2 minutes (15 on Slurm). It fails if the night
    built nothing or left no summary, or if Slurm holds a job.
    """
    where = NightTarget(app, target)
    names = where.nights.names()
    waits = slurm.waiting(where.nights, names[-1], whole(app)) if names else {}
    is_known = bool(waits) or slurm.answers(whole(app))
    problems = upkeep.problems(where.nights, app.now(), max_age, waits, has_slurm=is_known)
    problems = [as_called(text, app) for text in problems]
    night = names[-1] if names else ""
    text = f"{night}: nothing beyond what `nightly status` shows" if not problems else ""
    app.emit({"night": night, "problems": problems}, text)
    if problems:
        for line in problems[1:]:
            app.console.warn(line)
        lines = slurm.release_lines(slurm.held(waits), whole(app))
        shown = page.page_url(where.channel, where.store)
        look = (
            f"look: `nightly status {night}`, and {shown}" if night else "make one: `nightly plan`"
        )
        raise HostError(problems[0], hint="; ".join(lines) or look)
    return 0


def _orders(function: Callable[..., None]) -> Callable[..., None]:
    """Add what every order of a person has."""
    return night_argument(store_options(person_options(click.pass_obj(function))))


def _order(
    app: App,
    action: str,
    *,
    night: str,
    cell: str,
    target: StoreOptions,
    person: PersonOptions,
) -> None:
    where = NightTarget(app, target)
    night = where.night(night)
    book = where.nights.book(night)
    if action == "go-on" and not standing.stopped(book.orders):
        raise ConfigError(
            f"{night}: is not stopped, and no cell to retry is named",
            hint=f"name one that is red: `nightly status {night}`",
        )
    made = upkeep.order(book, action, cell, person.who(app))
    said = f"{night}: {action} {cell}".rstrip() + f" by {made.by}: {made.reason}"
    where.nights.order(night, made)
    if action != "stop":
        app.console.info(f"now: {command_line(app, f'nightly run {night}')}")
    app.emit({"night": night, "action": action, "cell": cell, "by": made.by}, said)


@nightly.command("retry")
@_orders
@click.argument("cell", type=known.OneOf(known.cells), default="")
def retry(app: App, cell: str, **asked: Any) -> None:
    """Allow a cell one more attempt; without CELL, let a stopped night go on. Needs --reason."""
    _order(app, "retry" if cell else "go-on", cell=cell, **asked)


@nightly.command("drop")
@_orders
@cell_argument
def drop(app: App, **asked: Any) -> None:
    """Leave a cell out: it counts as not run, and cells that need it do not run. Needs --reason."""
    _order(app, "drop", **asked)


@nightly.command("stop")
@_orders
def stop(app: App, **asked: Any) -> None:
    """Start no further cell of a night; running ones finish. Needs --reason."""
    _order(app, "stop", cell="", **asked)


@nightly.command("clear")
@click.argument("host")
@store_options
@person_options
@click.pass_obj
def clear(app: App, host: str, target: StoreOptions, person: PersonOptions) -> None:
    """Use a host again that was excluded because every cell ended `infra` there."""
    where = NightTarget(app, target)
    if host not in (held := where.nights.quarantined()):
        hint = f"held back: {', '.join(sorted(held)) or 'no host'}"
        raise ConfigError(f"{host}: is not held back", hint=hint)
    mark = HostMark(host=host, quarantined=False, **upkeep.signed("clear", person.who(app)))
    where.nights.mark_host(mark)
    app.emit({"host": host, "by": mark.by}, f"{host}: gets cells again")


@nightly.command("changes")
@latest_argument
@option("--output", type=PATH, help="Write the Markdown there, too.")
@store_options
@click.pass_obj
def changes(app: App, night: str, output: Path | None, target: StoreOptions) -> None:
    """Print how a night differs from the one before, for a workflow step, a mail or a chat.

    Prints the verdict, what it means for users, causes with the line to type, and changes since the
    last night that had ended when this one was planned. Markdown, or --json.
    """
    found = NightTarget(app, target)
    what = truth_of(app, found, found.nights.book(found.night(night)))
    where = page.page_url(found.channel, found.store)
    summary = app.environ.get("GITHUB_STEP_SUMMARY")
    for path, mode in ((output, "w"), (summary, "a")):
        if path:
            app.write(path, what.markdown(where), mode)
    app.emit(what.document(where), what.markdown(where).rstrip())


@nightly.command("prune")
@option("--keep", type=COUNT, default=60, help="Nights to keep.")
@option("--family", "families_", metavar="NAME", multiple=True, help="Prune its places, too.")
@store_options
@dry_run
@click.pass_obj
def prune(
    app: App, keep: int, families_: tuple[str, ...], target: StoreOptions, dry_run: bool
) -> None:
    """Remove nights and wheel sets that retention no longer keeps."""
    where, who = NightTarget(app, target), PersonOptions(reason="retention").who(app)
    nights, stay, sets = upkeep.plan_pruning(where.nights, where.channel, families_, keep, who)
    for name in stay:
        app.console.info(f"{name}: is not over, stays")
    lines = [*(f"night {name}" for name in nights), *(line for of in sets for line in of.lines())]
    if dry_run:
        return app.emit_plan(lines)
    app.console.detail("\n".join(lines))
    for planned in sets:
        retention.apply(planned, who=who)
    if nights:
        where.nights.forget(nights)
    return app.emit({"nights": nights}, f"{count(len(nights), 'night')} pruned")


@group("report")
def report() -> None:
    """Make pages for people."""


@report.command("state")
@option("--night", metavar="NAME", default=LATEST, help="The night to sum up.")
@option("--output", type=PATH, help="Write it there, too.")
@option("--nights", type=COUNT, default=30, help="How many are shown.")
@families_options
@dry_run
@click.pass_obj
def state(
    app: App,
    *,
    night: str,
    output: Path | None,
    nights: int,
    target: FamiliesOptions,
    dry_run: bool,
) -> None:
    """Sum up a night and publish the page of all families at <store>/status/.

    The page is made from the summaries of the shown nights alone.
    """
    where = NightTarget(app, target)
    names = where.nights.names()
    night = where.night(night) if names or night != LATEST else ""
    if dry_run:
        app.emit_plan([f"summary of {night or 'no night'}", where.store.locate(page.PAGE)])
        return
    channel, families = judging(app, where.channel), matrix.FAMILIES | target.own_families(app)
    body, shown = page.publish(
        where.nights, night, channel, families, now=app.now(), console=app.console, shown=nights
    )
    if output:
        app.write(output, body.decode())
    url = page.page_url(where.channel, where.store)
    app.emit({"page": url, "nights": shown, "bytes": len(body)}, url)
