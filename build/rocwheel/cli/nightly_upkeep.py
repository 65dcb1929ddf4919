"""`nightly status`, `check`, `changes`, `retry`, `drop`, `stop`, `clear` and `prune`."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping

from rocwheel.base.errors import CommandError, ConfigError, HostError
from rocwheel.cli import as_called, command_line
from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, command, own
from rocwheel.cli.imports import when_run
from rocwheel.cli.nightly_options import (
    NamedNightOptions,
    NightCellOptions,
    NightOptions,
    NightTarget,
    document_of,
    nightly,
    told,
    whole,
)
from rocwheel.cli.target import PersonOptions, StoreOptions

with when_run():
    import shlex
    import shutil
    from pathlib import Path

    from rocwheel.base.console import columns, count, duration
    from rocwheel.night import page, slurm, standing, upkeep
    from rocwheel.night.standing import CellStanding
    from rocwheel.release.ledger.nights import Book, CauseClass


def _seconds(text: str) -> float:
    if not text:
        return 0.0
    units = {"m": 60, "h": 3600, "d": 86400}
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([mhd])", text)
    if not match:
        raise ConfigError(f"{text!r}: not an age", hint="write for example 90m, 36h or 2d")
    return float(match[1]) * units[match[2]]


@command("status", NightOptions, parent=nightly)
def status(app: App, options: NightOptions) -> int:
    """Show where every cell of a night stands, as the store knows it.

    Slurm is asked only for what waits, and why. The exit status is 5 when something did not pass,
    or nothing was built.
    """
    target = NightTarget(app, options)
    night = target.night(options.night)
    book = target.nights.book(night)
    waits = slurm.waiting(target.nights, night, whole(app))
    standings = standing.stand(book)
    what = told(app, target, book)
    lines = [f"{night}: {what.headline}", *_lines(book, standings, waits)]
    lines += [f"{c.what}: {c.first.reason}: `{as_called(c.line(night), app)}`"
              for c in what.causes]  # fmt: skip
    app.emit(document_of(book, standings, what), "\n".join(lines))
    bad = any(item.settled and not item.green for item in standings.values())
    lost = any(item.cause is CauseClass.LOST for item in standings.values())
    return CommandError.exit_code if bad or lost or what.night.nothing_built else 0


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


class NightCheckOptions(StoreOptions):
    max_age: float = own("--max-age AGE", "90m, 36h or 2d.", default="36h", parse=_seconds)


@command("check", NightCheckOptions, parent=nightly)
def check(app: App, options: NightCheckOptions) -> int:
    """Fail when something is wrong with the newest night that no failing cell says.

    That is: there is none, it is older than it may be, it was planned 2 hours ago and never ran,
    it was stopped or interrupted, or nothing began or ended for 2 minutes (on Slurm 15), with cells
    to do, something it should have is absent, nothing was built, it left no summary, or a scheduler
    holds a job of it.
    """
    target = NightTarget(app, options)
    names = target.nights.names()
    waits = slurm.waiting(target.nights, names[-1], whole(app)) if names else {}
    is_known = bool(waits) or slurm.answers(whole(app))
    problems = upkeep.problems(target.nights, app.now(), options.max_age, waits, has_slurm=is_known)
    problems = [as_called(text, app) for text in problems]
    night = names[-1] if names else ""
    text = f"{night}: nothing besides what status shows" if not problems else ""
    app.emit({"night": night, "problems": problems}, text)
    if problems:
        for line in problems[1:]:
            app.console.warn(line)
        lines = slurm.release_lines(slurm.held(waits), whole(app))
        raise HostError(problems[0], hint="; ".join(lines) or _look(target, night))
    return 0


def _look(target: NightTarget, night: str) -> str:
    where = page.page_url(target.channel, target.store)
    return f"look: `nightly status {night}`, and {where}" if night else "make one: `nightly plan`"


class NightOrderOptions(NamedNightOptions, PersonOptions, DryRun):
    """Options of `nightly stop`, and of other orders."""

    cell: str = ""


def _order(app: App, options: NightOrderOptions, action: str) -> None:
    target = NightTarget(app, options)
    night = target.night(options.night)
    book = target.nights.book(night)
    if action == "go-on" and not standing.stopped(book.orders):
        raise ConfigError(
            f"{night}: is not stopped, and no cell to retry is named",
            hint=f"name one that is red: `nightly status {night}`",
        )
    made = upkeep.order(book, action, options.cell, options.who(app))
    said = f"{night}: {action} {options.cell}".rstrip() + f" by {made.by}: {made.reason}"
    if options.dry_run:
        return app.emit_plan([said])
    target.nights.order(night, made)
    if action != "stop":
        line = shlex.join(("nightly", "run", night, *upkeep.engine_words(book)))
        app.console.info(f"now: {command_line(app, line)}")
    return app.emit({"night": night, "action": action, "cell": options.cell, "by": made.by}, said)


class NightRetryOptions(NightOrderOptions):
    cell: str = own("CELL", values="cells")


@command("retry", NightRetryOptions, parent=nightly)
def retry(app: App, options: NightRetryOptions) -> None:
    """Allow a cell one more attempt; without CELL, let a stopped night go on. Needs --reason."""
    _order(app, options, "retry" if options.cell else "go-on")


class NightDropOptions(NightCellOptions, NightOrderOptions):
    """Options of `nightly drop`."""


@command("drop", NightDropOptions, parent=nightly)
def drop(app: App, options: NightDropOptions) -> None:
    """Let a cell be: it counts as not run, and what needs it does not run. Needs --reason."""
    _order(app, options, "drop")


@command("stop", NightOrderOptions, parent=nightly)
def stop(app: App, options: NightOrderOptions) -> None:
    """Start no further cell of a night; what runs, ends. Needs --reason."""
    _order(app, options, "stop")


class NightClearOptions(StoreOptions, PersonOptions, DryRun):
    host: str = own("HOST", required=True)


@command("clear", NightClearOptions, parent=nightly)
def clear(app: App, options: NightClearOptions) -> None:
    """Let a host have cells again that was given none because everything ended `infra` there."""
    target = NightTarget(app, options)
    mark = upkeep.clearance(target.nights, options.host, options.who(app))
    said = f"{options.host}: gets cells again"
    if options.dry_run:
        return app.emit_plan([said])
    target.nights.mark_host(mark)
    return app.emit({"host": options.host, "by": mark.by}, said)


class NightChangesOptions(NightOptions):
    output: Path | None = own("--output", "Write the Markdown there, too.", is_path=True)


@command("changes", NightChangesOptions, parent=nightly)
def changes(app: App, options: NightChangesOptions) -> None:
    """Say how a night differs from the one before, for a workflow step, a mail or a chat.

    It is Markdown, or with --json a document; verdict, what users have of it, causes with the line
    to type, changes. The night before is the newest that was over when this one was planned.
    """
    target = NightTarget(app, options)
    what = told(app, target, target.nights.book(target.night(options.night)))
    where = page.page_url(target.channel, target.store)
    summary = app.environ.get("GITHUB_STEP_SUMMARY")
    for path, mode in ((options.output, "w"), (summary, "a")):
        if path:
            app.write(path, what.markdown(where), mode)
    app.emit(what.document(where), what.markdown(where).rstrip())


class NightPruneOptions(StoreOptions, DryRun):
    keep: int = own("--keep", "Nights to keep.", default=60)
    families: tuple[str, ...] = own("--family NAME", "Prune its places, too.", default=())


@command("prune", NightPruneOptions, parent=nightly)
def prune(app: App, options: NightPruneOptions) -> None:
    """Remove nights and wheel sets that retention no longer keeps."""
    target, who = NightTarget(app, options), PersonOptions(by="", reason="retention").who(app)
    plan = upkeep.plan_pruning(target.nights, target.channel, options.families, options.keep, who)
    for name in plan.stay:
        app.console.info(f"{name}: is not over, stays")
    if options.dry_run:
        return app.emit_plan(plan.lines())
    app.console.detail("\n".join(plan.lines()))
    upkeep.prune(plan, target.nights, who)
    said = f"{count(len(plan.nights), 'night')} pruned"
    return app.emit({"nights": list(plan.nights)}, said)
