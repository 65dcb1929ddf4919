"""`nightly status`, `check`, `retry`, `drop`, `stop`, `clear`, `reproduce`, `prune`, `notify`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial

import click

from rocwheel.base.choices import ROLES
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
    whole,
    worker,
)
from rocwheel.cli.target import PersonOptions, StoreOptions

with when_run():
    import shlex
    from pathlib import Path

    from rocwheel.base.console import columns, count, duration
    from rocwheel.base.download import Client, Retry
    from rocwheel.base.process import Command, base_env
    from rocwheel.night import cell as cells
    from rocwheel.night import notify, rehearsal, slurm, standing, upkeep
    from rocwheel.night import settings as settings_file
    from rocwheel.night.standing import CellStanding
    from rocwheel.records import families
    from rocwheel.release import rights
    from rocwheel.release.ledger.nights import Book


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
    if waits is not None and slurm.collect(target.nights, night, worker(app, engine="slurm")):
        book = target.nights.book(night)
    standings = standing.stand(book, app.now())
    app.emit(document_of(book, standings), "\n".join(_lines(book, standings, waits or {})))
    bad = any(item.settled and not item.green for item in standings.values())
    return CommandError.exit_code if bad or standing.nothing_built(standings) else 0


def _lines(
    book: Book, standings: Mapping[str, CellStanding], waits: Mapping[str, slurm.Task]
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
    yield from columns(("cell", "state", "tries", "host", "took", "why"), rows)
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
    waits = slurm.waiting(target.nights, names[-1], whole(app)) if names else None
    is_known = bool(waits) or waits is None or slurm.answers(whole(app))
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
    page = upkeep.page_url(target.channel, target.store)
    return f"look: `nightly status {night}`, and {page}" if night else "make one: `nightly plan`"


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


class NightReproduceOptions(NightCellOptions):
    run: bool = own("--run", "Run it, instead of printing the line.", default=False)


@command("reproduce", NightReproduceOptions, parent=nightly)
def reproduce(app: App, options: NightReproduceOptions) -> int:
    """Print the line that does here exactly what a cell did; the night does not hear of it.

    What the command itself stores, such as a verdict or a release, it stores from here as well.
    """
    target = NightTarget(app, options)
    book = target.nights.book(target.night(options.night))
    standings, item = standing.stand(book, app.now()), book.plan.cell(options.cell)
    here = worker(app, engine="reproduce")
    folder = app.cwd / f"reproduce-{item.name}"
    fetch = partial(cells.fetch, target.nights.store, item, folder, here)
    checkout = fetch() if options.run else folder / "checkout"
    argv = cells.command(item, standings, here, folder, night=book.plan.night, checkout=checkout)
    if options.run:
        return here.runner.run(Command(argv=argv), on_line=app.console.info, check=False).returncode
    note = "# needs what the build left, or a checkout: --run brings it first\n"
    lines = f"{shlex.join(('mkdir', '-p', str(folder)))}\n{shlex.join(argv)}"
    text = note + lines if item.bring or item.commit else lines
    app.emit({"cell": item.name, "argv": list(argv)}, text)
    return 0


class NightPruneOptions(StoreOptions, DryRun):
    keep: int = own("--keep", "Nights to keep.", default=60)
    families: tuple[str, ...] = own("--family NAME", "Prune its places, too.", default=())


@command("prune", NightPruneOptions, parent=nightly)
def prune(app: App, options: NightPruneOptions) -> None:
    """Remove nights, kept builds and wheel sets that retention no longer keeps."""
    target, who = NightTarget(app, options), PersonOptions(by="", reason="retention").who(app)
    plan = upkeep.plan_pruning(target.nights, target.channel, options.families, options.keep, who)
    for name in plan.stay:
        app.console.info(f"{name}: is not over, stays")
    if options.dry_run:
        return app.emit_plan(plan.lines())
    app.console.detail("\n".join(plan.lines()))
    builds = upkeep.prune(plan, target.nights, target.channel, who)
    text = f"{count(len(plan.nights), 'night')} pruned"
    return app.emit({"nights": list(plan.nights), "builds": builds}, text)


class NightRehearseOptions(StoreOptions):
    role: str = own("--role", "Try its rights; default: of all that the channel names.", only=ROLES)
    family: str = own("--family NAME", "The family to try them on.", default="gfx94X-dcgpu")
    config: Path | None = own("--config", "Default: ci/nightly.yaml.", is_path=True)
    pools: Path | None = own(
        "--pools", "The file that nights are planned with, if any.", is_path=True
    )
    repository: str = own("--repository OWNER/NAME", "Ask GitHub for its runners.")


@command("rehearse", NightRehearseOptions, parent=nightly)
def rehearse(app: App, options: NightRehearseOptions) -> int:
    """Try what nights of a channel need, and change nothing: before the first, and after changes.

    Store, clock, page, message, logins at registries; one permitted and one forbidden request of
    each right of --role, or of all roles that the channel names, which are assumed first; with
    --repository whether every label has a runner that is online.
    """
    target = NightTarget(app, options)
    families.named(options.family)
    if options.role:  # a folder has no policies to try
        rights.policy(target.channel, rights.ROLES[options.role], family=options.family)
    tried = _rehearsed(app, options, target)
    words = {True: "good", False: "BAD", None: "not tried"}
    rows = [(item.what, words[item.good], item.why, item.todo) for item in tried]
    document = [dict(zip(("what", "state", "why", "todo"), row, strict=True)) for row in rows]
    text = "\n".join(columns(("what", "", "why", "what to do"), rows))
    app.emit({"channel": target.channel.name, "tried": document}, text)
    return HostError.exit_code if any(item.good is False for item in tried) else 0


def _rehearsed(
    app: App, options: NightRehearseOptions, target: NightTarget
) -> list[rehearsal.Rehearsed]:
    settings = settings_file.load(options.config or app.home.ci / settings_file.FILE)
    with Client(base_env(app.environ), retry=Retry(attempts=2), note=app.console.detail) as client:
        tried = rehearsal.Rehearsal(
            nights=target.nights,
            channel=target.channel,
            settings=settings,
            pools=settings_file.load_pools(options.pools, settings),
            client=client,
            now=app.now(),
            environ=app.environ,
            runner=app.runner,
            repository=options.repository,
        )
        return list(tried.run(options.role, options.family))


class NightNotifyOptions(NightOptions, DryRun):
    url: str = own("--url", "Where to POST the JSON summary.")
    file: Path | None = own("--file", "Where to write it; .md for Markdown.", is_path=True)
    secret_variable: str = own("--secret-variable NAME", "Variable with the signing key.")
    max_age: float = own(
        "--max-age AGE", "Tell only, and once, that it is so old: 36h.", parse=_seconds
    )


@command("notify", NightNotifyOptions, parent=nightly)
def notify_command(app: App, options: NightNotifyOptions) -> None:
    """Tell a file or URL how a night differs from the one before; without a difference, nothing.

    A POST carries X-Rocwheel-Signature: sha256=HMAC of the body; a busy server is asked again.
    """
    target = NightTarget(app, options)
    night = target.night(options.night)
    message = _message(app, options, target, night)
    if options.dry_run:
        return app.emit_plan([message.markdown if message else f"{night}: nothing to tell"])
    if not (options.url or options.file):
        raise click.UsageError("give --url URL or --file PATH; --dry-run only shows the message")
    if message:
        _tell(app, options, message)
        if options.max_age:
            notify.remember(target.store, message)
    state = "told" if message else "nothing-to-do"
    return app.emit({"night": night, "state": state}, f"{night} {state}")


def _message(
    app: App, options: NightNotifyOptions, target: NightTarget, night: str
) -> notify.Message | None:
    planned, _ = target.nights.plan(night)  # an unknown night has nothing to tell either
    page, now = upkeep.page_url(target.channel, target.store), app.now()
    if options.max_age:
        return notify.stale(target.store, planned, page, now=now, limit=options.max_age)
    return notify.message(target.nights, night, page, app.console.warn, now=now)


def _tell(app: App, options: NightNotifyOptions, message: notify.Message) -> None:
    name = options.secret_variable
    secret = app.environ.get(name, "")
    if name and not secret:
        raise ConfigError(f"{name}: is not set", hint="set it to the key for signing")
    if options.file:
        is_markdown = options.file.suffix == ".md"
        app.write(options.file, message.markdown if is_markdown else message.json)
    if options.url:
        notify.post(options.url, message, secret=secret, environ=app.environ)
