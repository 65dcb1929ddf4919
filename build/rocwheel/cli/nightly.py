"""The nightly: from a settings file to cells that ran, and what people look at and order."""

from __future__ import annotations

import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click
from msgspec import to_builtins

import amdgpu_family_matrix as matrix
from rocwheel import dist
from rocwheel.base import git, yaml_file
from rocwheel.base.console import columns, count, duration
from rocwheel.base.download import Client, Retry
from rocwheel.base.errors import CommandError, ConfigError, HostError
from rocwheel.base.process import Command, HostRunner, base_env
from rocwheel.base.store.opening import open_store
from rocwheel.base.values import replace
from rocwheel.base.versions import canonical_version, moment, timestamp
from rocwheel.cli import as_called, build_options, command_line, known
from rocwheel.cli.app import App, start
from rocwheel.cli.dist import dist_wheels, request_from, rocm_source
from rocwheel.cli.options import COUNT, PATH, dry_run, given_words, group, option, seconds
from rocwheel.cli.target import (
    FamiliesOptions,
    PersonOptions,
    StoreOptions,
    families_options,
    judging,
    must_be_there,
    must_hold,
    person_options,
    store_options,
)
from rocwheel.night import cell as cells
from rocwheel.night import image_record, page, planning, probes, resolving, slurm, standing, truth
from rocwheel.night import settings as settings_file
from rocwheel.night.local import LocalScheduler
from rocwheel.night.standing import CellStanding
from rocwheel.records import families
from rocwheel.records.verdict import State
from rocwheel.release import retention
from rocwheel.release.ledger.nights import (
    INDEX,
    PROBE,
    Book,
    HostMark,
    NightPlan,
    Nights,
    Order,
    Phase,
    WheelRecipe,
    check_name,
)
from rocwheel.release.operations import Who, check_clock

LATEST: Final = "latest"
SCHEDULERS: Final = ("local", "slurm", "github")
ABANDONED: Final = timedelta(days=3)  # after which a night that is not over may be pruned

night_argument = click.argument("night", type=known.OneOf(known.nights))
latest_argument = click.argument("night", type=known.OneOf(known.nights), default=LATEST)


class NightTarget:
    """An open store, its channel, and its nights."""

    def __init__(self, app: App, options: StoreOptions, *, may_be_new: bool = False) -> None:
        """Raise UsageError, ConfigError or StoreError for options that cannot be right."""
        self.channel = options.open(app)
        self.store = self.channel.open(probe_key=PROBE)
        must_hold(self.channel, self.store, may_be_new=True)
        if not may_be_new:
            must_be_there(self.channel, self.store)
        self.nights = Nights(self.store)
        self.words = given_words(app, ("channel", "store", "channels_file"))

    @property
    def page(self) -> str:
        """The URL of the page of all families; "" while there is none."""
        there = self.store.info(page.PAGE)
        return page.page_url(self.channel, self.store) if there else ""

    def night(self, name: str) -> str:
        """Return a night by name; `latest` is the newest. Raises ConfigError when there is none."""
        if name != LATEST:
            return name
        if not (names := self.nights.names()):
            raise ConfigError(
                f"{self.store.url}: has no night", hint="make one: `nightly plan`, or wait for it"
            )
        return names[-1]


def whole(app: App) -> HostRunner:
    """Return a runner whose commands get the caller's whole environment: ours and Slurm's."""
    return HostRunner(dict(app.environ))


def worker(app: App, *, engine: str, job: str = "", how: tuple[str, ...] = ()) -> cells.Worker:
    """Return this machine, for cells to run on, with the data that is in use here."""
    program, data = how or app.program, f"--ci-dir={app.cwd / app.ci_dir}"
    program = (*program, data) if app.ci_dir and data not in program else program
    return cells.Worker(
        here=replace(app.here, runner=whole(app), program=program),
        host=app.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        engine=engine,
        job=job,
    )


def families_of(book: Book) -> dict[str, matrix.Family]:
    """Return all families that a night was planned with. Raises ConfigError."""
    words = (word for cell in book.plan.cells if cell.kind == "page" for word in cell.argv)
    files = {word.partition("=")[2] for word in words if word.startswith("--family-file=")}
    every = dict(matrix.FAMILIES)
    for path in map(Path, files):
        if not path.exists():
            what = f"{path}: no such file, and {book.plan.night} was planned with its families"
            raise ConfigError(what, hint="put it back there")
        every |= families.load(path)
    return every


def truth_of(app: App, target: NightTarget, book: Book) -> truth.Truth:
    """Return what is true of a night now. Raises StoreError, ConfigError."""
    channel, now, warn = judging(app, target.channel), app.now(), app.console.warn
    night, every = book.plan.night, families_of(book)
    return truth.truth(target.nights, night, every, channel, now=now, warn=warn, book=book)


@group("nightly", also={"bisect": "rocwheel.cli.bisect:bisect"})
def nightly() -> None:
    """Plan a night, run it here, on Slurm or on GitHub Actions, and look after it."""


@nightly.command("plan")
@option("--night", metavar="NAME", default=None, help="Its name; default: today's date, UTC.")
@option("--config", type=PATH, help="The settings; default: ci/nightly.yaml of the data in use.")
@option(
    "--pools",
    type=PATH,
    rare=True,
    help="YAML that renames runner labels, Slurm partitions and GRES of the family matrix.",
)
@option("--from", "repeat", metavar="NIGHT", help="Repeat all of that night.")
@option("--explain", is_flag=True, help="Print of each cell why it runs or not.")
@option("--keep-going", is_flag=True, help="End with 0 if it is planned, or nothing can be built.")
@families_options
@person_options
@dry_run
@click.pass_obj
def plan(
    app: App,
    *,
    night: str | None,
    config: Path | None,
    pools: Path | None,
    repeat: str,
    explain: bool,
    keep_going: bool,
    target: FamiliesOptions,
    person: PersonOptions,
    dry_run: bool,
) -> int:
    """Decide what a night does, and store the plan, which never changes.

    It names commits and digests: of branches, of images, and of each family's newest ROCm tarball.
    What was built or tested before is not repeated, and the plan says so. The exit status is 5 if
    nothing can be built, and 0 where a source has nothing new, which is a red cell of the night.
    The plan is stored all the same, and running it makes the page.
    """  # fmt: skip
    where = NightTarget(app, target, may_be_new=True)
    night = app.now().strftime("%Y-%m-%d") if night is None else night
    check_name(night)
    by = person.who(app).by
    if repeat and (config or pools or target.family_file):
        raise ConfigError(
            f"{repeat}: is repeated as it was planned",
            hint="leave out --config, --pools and --family-file, or leave out --from",
        )
    is_there = keep_going and not dry_run and night in where.nights.names()
    if is_there:
        made, _ = where.nights.plan(night)
    elif repeat:
        old, _ = where.nights.plan(where.night(repeat))
        made = planning.again(old, night=night, by=by, now=app.now())
    else:
        path = config or app.home.ci / settings_file.FILE
        made = _plan(app, night=night, by=by, path=path, pools=pools, options=target, target=where)
        files = {"--config": config, "--pools": pools, "--ci-dir": app.ci_dir}
        files["--family-file"] = target.family_file
        words = (f"{name}={app.cwd / path}" for name, path in files.items() if path)
        made = replace(made, data=tuple(words))
    state = "planned"
    if not dry_run:
        where.nights.check_clock(app.now())
        is_new = not is_there and where.nights.add(made)
        state = "planned" if is_new else "nothing-to-do"
        if "GITHUB_OUTPUT" in app.environ:
            app.github_outputs(planning.github_outputs(made))
    _say_planned(app, made, state, explain=explain or dry_run)
    if any(not cell.absent for cell in made.cells if cell.kind == "build"):
        return 0
    app.console.warn(f"{made.night}: nothing can be built")
    return 0 if keep_going else CommandError.exit_code


def _say_planned(app: App, made: NightPlan, state: str, *, explain: bool) -> None:
    rows = [  # absent ones first, then those that run
        (c.name, "absent", f"{c.absent} {c.excused}".strip())
        if c.absent
        else (c.name, f"kept ({c.kept})" if c.kept else "run", c.why)
        for c in sorted(made.cells, key=lambda cell: (not cell.absent, bool(cell.kept)))
    ]
    absent = [cell for cell in made.cells if cell.absent]
    runs, kept = sum(c.is_to_run for c in made.cells), sum(bool(c.kept) for c in made.cells)
    lines = list(columns(("cell", "what", "why"), rows)) if explain else []
    missing = f", {len(absent)} absent" if absent else ""
    lines.append(f"{made.night} {state}: {count(runs, 'cell')} to run, {kept} kept{missing}")
    lacking = () if explain else ((c.name, f"absent: {c.absent}") for c in absent if not c.excused)
    for line in standing.grouped(lacking):
        app.console.warn(line)
    cells_ = [{"cell": name, "what": what, "why": why} for name, what, why in rows]
    numbers = {"run": runs, "kept": kept, "absent": len(absent)}
    document = {"night": made.night, "state": state, **numbers, "cells": cells_}
    app.emit(document, "\n".join(lines))


def _check_line(
    app: App, recipe: WheelRecipe, settings: settings_file.NightSettings, path: Path
) -> None:
    """Refuse `options` of a set with which its build would not start. Raises ConfigError."""
    try:
        context = dist_wheels.make_context("dist_wheels", [*recipe.argv[1:]], obj=start())
        if any(context.params.get(name) for name in ("dry_run", "cost", "fetch_only")):
            context.exit()
        build = build_options.of(context.params)
        if build.wheel_suffix:
            # with any version: that of a branch, a commit or a folder is known at the build
            canonical_version("0", build.wheel_suffix.replace("-", ""))
        dist.check_words(request_from(app, build, therock=rocm_source(build), resolve=False))
    except (click.UsageError, ConfigError, click.exceptions.Exit) as exc:
        names = [
            {item.name, *(f"{item.name}-{of}" for of in recipe.families)} for item in settings.sets
        ]
        at = next(number for number, known in enumerate(names) if recipe.name in known)
        text = exc.format_message() if isinstance(exc, click.UsageError) else str(exc)
        text = "an option that builds nothing" if isinstance(exc, click.exceptions.Exit) else text
        step = ("options",) if settings.sets[at].options else ()
        hint = "write options of `dist_wheels --help-all` that the night does not set itself"
        raise yaml_file.load(path).error(text, "sets", at, *step, hint=hint) from exc


def _plan(
    app: App,
    *,
    night: str,
    by: str,
    path: Path,
    pools: Path | None,
    options: FamiliesOptions,
    target: NightTarget,
) -> NightPlan:
    settings = settings_file.load(path)
    settings = settings.built_in(target.channel.executor, target.channel.builder_image)
    own = options.own_families(app)
    families = {item.name: item for item in matrix.families(settings.trigger)} | own
    own_words = (f"--family-file={options.family_file}",) if own else ()
    last = truth.newest(target.nights, app.console.warn)
    with Client(base_env(app.environ), retry=Retry(attempts=4), note=app.console.detail) as client:
        recipes, absent = resolving.Resolver(
            settings,
            families,
            here=replace(app.here, cwd=path.parent),
            client=client,
            tool=resolving.tool_of(app.home, app.runner),
            tool_repository=git.origin(app.home.root, runner=app.runner),
            one_build=target.channel.one_build,
            own=own_words,
            last=last,
        ).resolve()
    for recipe in recipes:
        _check_line(app, recipe, settings, path)
    for item in settings.excused:
        if item.until < app.now().date():
            what = f"{path}: the excuse of {item.owner} for {item.cells} ended on {item.until}"
            app.console.warn(f"{what}: remove it, or set a later day")
    made_of = image_record.of_night(settings, app.home.ci, families)
    setting = planning.PlanInput(
        night=night,
        settings=settings,
        families=families,
        channel=judging(app, target.channel),
        target=target.words,
        ci=app.home.ci,
        by=by,
        now=app.now(),
        own=own_words,
        images=made_of,
        pools=settings_file.load_pools(pools, settings),
    )
    seen = planning.look(setting, recipes, target.store, last)
    return planning.plan(setting, recipes, absent, seen)


@nightly.command("run")
@latest_argument
@option(
    "--engine",
    type=click.Choice(SCHEDULERS),
    default=None,
    help="Where cells run; default: on Slurm if some of the night's did, else here.",
)
@option(
    "--workers",
    type=click.IntRange(0),
    default=0,
    help="Largest number of cells at once; default: as many as have room.",
)
@option("--only", metavar="FAMILY", help="With --engine github: the jobs of this family.")
@option(
    "--program",
    metavar="COMMAND",
    rare=True,
    help="How the cells' machines start rocwheel; default: as it was started here.",
)
@store_options
@dry_run
@click.pass_obj
def run(
    app: App,
    *,
    night: str,
    engine: str | None,
    workers: int,
    only: str,
    program: str,
    target: StoreOptions,
    dry_run: bool,
) -> int:
    """Run a planned night until nothing more can be done; run again, it continues.

    On this machine, Ctrl-C starts nothing new and waits for running cells; a second one stops them.
    On Slurm it submits the cells that are ready, with a small job that does the same when one of
    them ends. Then it returns, and the night goes on without you.
    """
    where = NightTarget(app, target)
    book = where.nights.book(where.night(night))
    cells.check_tool(book)
    words = (word.partition("=") for word in book.plan.target)
    planned = next((url for name, _, url in words if name == "--store"), "")
    if planned and open_store(planned).url != where.store.url:
        what = f"{book.plan.night}: was planned for another store: {planned}"
        raise ConfigError(what, hint="give that one; a copy of a store takes nights of its own")
    if held := standing.stopped(book.orders):
        raise ConfigError(
            f"{book.plan.night}: was stopped by {held.by}: {held.reason}",
            hint=f"let it go on: `nightly retry {book.plan.night} --reason=WHY`",
        )
    engine = engine or ("slurm" if "slurm" in truth.engines(book) else "local")
    if engine == "github":
        families = tuple(sorted({cell.family for cell in book.plan.cells if cell.family}))
        if only and only not in families:
            what = f"{only!r}: not in the night {book.plan.night}"
            raise ConfigError(what, hint=matrix.nearest(only, families))
        values = planning.github_outputs(book.plan, only)
        app.github_outputs(values)
        app.emit(dict(values), "\n".join(f"{name}={value}" for name, value in values.items()))
        return 0
    if only:
        raise click.UsageError("--only is for --engine github")
    if dry_run:
        app.emit_plan(
            f"{item.cell.name}: {item.word}: {shlex.join(item.cell.argv)}"
            for item in standing.stand(book).values()
            if not item.settled
        )
        return 0
    name, here = book.plan.night, worker(app, engine=engine, how=tuple(shlex.split(program)))
    if engine == "slurm":
        jobs = slurm.SlurmScheduler(
            nights=where.nights, night=name, worker=here, target=where.words, most=workers
        )
        made = jobs.submit()
        rows = [(item.number, item.cell, str(item.attempt)) for item in made]
        listed = columns(("job", "cell", "attempt"), rows) if rows else ("nothing to submit",)
        said = [{"job": item.number, "cell": item.cell} for item in made]
        app.emit({"night": name, "jobs": said}, "\n".join(listed))
        jobs.check_held()
        if standing.nothing_built(standing.stand(where.nights.book(name))):
            app.console.warn(f"{name}: nothing was built")
            return CommandError.exit_code
        return 0
    local = LocalScheduler(where.nights, name, here, where.words, workers)
    code = _say_ran(app, where, local.run(), local.book)
    if where.channel.bisect_gpu_hours:
        _bisect(app, where, local.book, here)
    return code


def _bisect(app: App, where: NightTarget, book: Book, here: cells.Worker) -> None:
    """Bisect new failures of a night while its channel lets GPUs be held; make its page again."""
    hours, night, run = where.channel.bisect_gpu_hours, book.plan.night, here.here.runner.run
    asks = list(truth_of(app, where, book).new_failures(book))
    for asked in asks:
        found = truth_of(app, where, where.nights.book(night)).findings.values()
        left = hours - sum(item.gpu_milliseconds for item in found) / 3_600_000
        if left <= 0:
            app.console.warn(f"{asked.test}: not bisected: all {hours} GPU hours are spent")
            continue
        words = [
            f"--{'set' if name == 'wheels' else name}={value}"
            for name, value in to_builtins(asked).items()
            if value
        ]
        words += [f"--gpu-hours={left}", f"--program={shlex.join(here.here.program)}"]
        argv = (*here.here.program, "nightly", "bisect", *words, *where.words)
        run(Command(argv=argv), check=False, on_line=app.console.info)
    for cell in (cell for cell in book.plan.cells if asks and cell.kind == "page"):
        argv = cells.filled(cell, cell.argv, {}, here, night=night)
        run(Command(argv=argv), check=False, on_line=app.console.detail)


def _say_ran(app: App, where: NightTarget, standings: dict[str, CellStanding], book: Book) -> int:
    bad = [item for item in standings.values() if not item.green]
    kept = sum(item.phase is Phase.KEPT for item in standings.values())
    passed = sum(item.passed for item in standings.values())
    if all(item.phase in {Phase.KEPT, Phase.ABSENT} for item in standings.values()):
        app.console.info("everything was there already")
    for line in standing.grouped((i.cell.name, f"{i.word}: {i.reason}".rstrip(": ")) for i in bad):
        app.console.info(line)
    what = truth_of(app, where, book)
    text = f"{book.plan.night}: {what.headline}; {passed} of {len(standings)} cells passed"
    app.emit(_document(book, standings, what), f"{text}, {kept} kept")
    return CommandError.exit_code if bad or what.night.nothing_built else 0


def _document(book: Book, standings: dict[str, CellStanding], what: truth.Truth) -> dict[str, Any]:
    """Return where every cell stands, for a program."""
    return {
        "night": book.plan.night,
        "verdict": what.night.verdict,
        "impact": what.night.impact,
        "cells": [
            {
                "cell": name,
                "phase": item.phase.value,
                "state": item.word,
                "passed": item.passed,
                "cause": item.cause.value if item.cause else None,
                "reason": item.reason,
                "attempts": len(item.attempts),
            }
            for name, item in standings.items()
        ],
        "quarantined": sorted(book.quarantined),
    }


@nightly.command("cell")
@night_argument
@click.argument("name", metavar="CELL", type=known.OneOf(known.cells))
@option(
    "--engine",
    type=click.Choice(SCHEDULERS),
    default=SCHEDULERS[0],
    help="The engine that starts it.",
)
@option("--job", metavar="ID", help="The engine's own name for this attempt.")
@option("--leash", is_flag=True, help="Stop the cell when standard input closes.")
@option("--keep-going", is_flag=True, help="End with 0 whether the cell passes or fails.")
@option("--program", metavar="COMMAND", help="How it starts rocwheel; default: as here.")
@store_options
@dry_run
@click.pass_obj
def cell(
    app: App,
    *,
    night: str,
    name: str,
    engine: str,
    job: str,
    leash: bool,
    keep_going: bool,
    program: str,
    target: StoreOptions,
    dry_run: bool,
) -> int:
    """Run one cell here and record how it ended; every engine calls this.

    --dry-run prints its commands, to paste. The exit status is 0 for a pass, else that of its
    state, as `gate` has it.
    """
    where = NightTarget(app, target)
    night = where.night(night)
    job = job or app.environ.get("GITHUB_RUN_ID", "")
    here = worker(app, engine=engine, job=job, how=tuple(shlex.split(program)))
    if dry_run:  # its lines, as they are pasted here
        book, folder = where.nights.book(night), app.cwd / f"cell-{name}"
        item, standings = book.plan.cell(name), standing.stand(book)
        places = {"night": night, "scratch": folder, "wheelhouse": folder / "wheelhouse"}
        app.emit_plan(
            str(Command(argv=cells.filled(item, words, standings, here, **places)))
            for words in (item.argv, *item.stages)
        )
        return 0
    signals = cells.Signals(has_leash=leash)
    with signals.caught():
        ended = cells.run(where.nights, night, name, here, signals)
    stood = standing.stand(where.nights.book(night))[name]
    if ended is not None:
        state, reason, code = ended.state.value, ended.reason, ended.state.exit_code
    else:  # there was nothing to do
        state, reason = stood.word, stood.reason
        code = 0 if stood.passed else (stood.state or State.NOT_RUN).exit_code
    code = 0 if keep_going and stood.settled and not probes.says_nothing(stood) else code
    document = {"cell": name, "state": state, "reason": reason}
    app.emit(document, f"{name}: {state} {reason}".rstrip())
    if path := app.environ.get("GITHUB_STEP_SUMMARY"):
        app.write(path, f"`{name}`: **{state}** {reason}\n\n", "a")
    return code


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
        typed = [command_line(app, line) for line in cause.lines(what.night)]
        lines.append(f"{cause.what}: {cause.first.reason}; {cause.ask(typed)}")
        lines += [f"  {text}" for text, _ in what.found(cause)]
    app.emit(_document(book, standings, what), "\n".join(lines))
    bad = any(item.settled and not item.green for item in standings.values())
    bad |= any(item.cause in truth.STOPPED for item in standings.values())
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
@option("--max-age", metavar="AGE", type=seconds, default="36h", help="At most how old: 36h, 2d.")
@store_options
@click.pass_obj
def check(app: App, max_age: float, target: StoreOptions) -> int:
    """Check that the newest night runs as it should, whether or not its cells pass.

    The exit status is 8 if there is no night, if the newest one misses a part, is too old, was
    stopped, did not begin within 2 hours, or no cell ran, began or ended for 2 minutes (15 on
    Slurm). It is 8 if it built nothing, if Slurm holds a job, or if the newest night that is over
    has no summary.
    """
    where = NightTarget(app, target)
    names = where.nights.names()
    waits = slurm.waiting(where.nights, names[-1], whole(app)) if names else {}
    is_known = bool(waits) or slurm.answers(whole(app))
    problems = truth.problems(where.nights, app.now(), max_age, waits, has_slurm=is_known)
    problems = [as_called(text, app) for text in problems]
    night = names[-1] if names else ""
    text = f"{night}: nothing beyond what `nightly status` shows" if not problems else ""
    app.emit({"night": night, "problems": problems}, text)
    if not problems:
        return 0
    for line in problems[1:]:
        app.console.warn(line)
    hint = "; ".join(slurm.release_lines(slurm.held(waits), whole(app)))
    night = next((name for name in names if problems[0].startswith(f"{name}: ")), night)
    look = ", and ".join(filter(None, (f"look: `nightly status {night}`", where.page)))
    hint = hint or (look if night else "make one: `nightly plan`")
    app.console.fail(HostError(problems[0], hint=hint))  # which spells it
    return HostError.exit_code


def _orders(function: Callable[..., None]) -> Callable[..., None]:
    """Add what every order of a person has."""
    return night_argument(store_options(person_options(click.pass_obj(function))))


def _signed(action: str, who: Who) -> dict[str, Any]:
    """Return person, reason and time. Raises ConfigError without a reason."""
    if not who.reason.strip():
        raise ConfigError(
            f"{action}: no reason given", hint="add --reason; it is kept with the night"
        )
    return {"by": who.by, "reason": who.reason, "time": timestamp(who.now)}


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
    item, standings = book.plan.cell(cell) if cell else None, standing.stand(book)
    if item and item.kept:
        raise ConfigError(
            f"{item.name}: was done before {night}: {item.why}",
            hint=f"to repeat all of it: `nightly plan --from {night} --night NAME`",
        )
    if action == "retry" and standings[cell].phase is Phase.RUNNING:
        what = f"{cell}: runs {standings[cell].reason}"
        raise ConfigError(what, hint="retry it once it has ended, or is lost")
    if action == "drop" and standings[cell].settled and standings[cell].passed:
        raise ConfigError(
            f"{cell}: has passed in {night}: there is nothing to leave out",
            hint=f"to try it again: `nightly retry {night} {cell} --reason=WHY`; to take back what "
            "it released: `status` prints the line",
        )
    cells_ = (item for item in standings.values() if item.cell.kind not in {"page", "prune"})
    if action == "stop" and all(item.settled for item in cells_):
        hint = f"look: `nightly status {night}`"
        raise ConfigError(f"{night}: has ended: there is nothing to stop", hint=hint)
    seen = len(book.attempts.get(cell, ()))
    made = Order(action=action, cell=cell, seen=seen, **_signed(action, person.who(app)))
    said = f"{night}: {action} {cell}".rstrip() + f" by {made.by}: {made.reason}"
    where.nights.order(night, made)
    app.emit({"night": night, "action": action, "cell": cell, "by": made.by}, said)
    if action != "stop":
        app.console.info(f"now: {command_line(app, f'nightly run {night}')}")


@nightly.command("retry")
@_orders
@click.argument("cell", type=known.OneOf(known.cells), default="")
def retry(app: App, cell: str, **asked: Any) -> None:
    """Allow a cell one more attempt; without CELL, let a stopped night go on. Needs --reason."""
    _order(app, "retry" if cell else "go-on", cell=cell, **asked)


@nightly.command("drop")
@_orders
@click.argument("cell", type=known.OneOf(known.cells))
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
    """Let an excluded host run cells again; every cell had ended `infra` there."""
    where = NightTarget(app, target)
    if host not in (held := where.nights.quarantined()):
        hint = f"choose from: {', '.join(sorted(held))}" if held else "no host is: nothing to do"
        raise ConfigError(f"{host}: is not held back", hint=hint)
    mark = HostMark(host=host, quarantined=False, **_signed("clear", person.who(app)))
    where.nights.mark_host(mark)
    app.emit({"host": host, "by": mark.by}, f"{host}: gets cells again")


@nightly.command("changes")
@latest_argument
@option("--output", type=PATH, help="Also write it to this file.")
@store_options
@click.pass_obj
def changes(app: App, night: str, output: Path | None, target: StoreOptions) -> None:
    """Print how a night differs from the one before, for a workflow step, a mail or a chat.

    Prints Markdown: the verdict, what it means for users, each cause with the command to type, and
    what changed since the last night that had ended when this one was planned.
    """
    found = NightTarget(app, target)
    what = truth_of(app, found, found.nights.book(found.night(night)))
    text, summary = what.markdown(found.page), app.environ.get("GITHUB_STEP_SUMMARY")
    for path, mode in ((output, "w"), (summary, "a")):
        if path:
            app.write(path, text, mode)
    app.emit(what.document(found.page), text.rstrip())


@nightly.command("prune")
@option("--keep", type=COUNT, default=60, help="Number of nights to keep.")
@option("--family", "families_", metavar="NAME", multiple=True, help="Also prune its indexes.")
@store_options
@dry_run
@click.pass_obj
def prune(
    app: App, keep: int, families_: tuple[str, ...], target: StoreOptions, dry_run: bool
) -> None:
    """Remove all nights but the newest.

    With --family it also removes wheel sets that the channel's retention no longer keeps.
    """
    where, who = NightTarget(app, target), PersonOptions(reason="retention").who(app)
    check_clock(where.store, (INDEX,), now=who.clock, where=where.store.url)
    nights = list(where.nights.names()[:-keep])
    for name in [name for name in nights if _may_go_on(where.nights, name, who.now)]:
        app.console.info(f"{name}: is not over, stays")
        nights.remove(name)
    pairs = (pair for name in families_ for pair in where.channel.pairs(where.store, name))
    sets = list(retention.plans(pairs, where.channel, who=who, orphans=False))
    lines = [*(f"night {name}" for name in nights), *(line for of in sets for line in of.lines())]
    if dry_run:
        return app.emit_plan(lines)
    app.console.detail("\n".join(lines))
    for planned in sets:
        retention.apply(planned)
    if nights:
        where.nights.forget(nights)
    return app.emit({"nights": nights}, f"{count(len(nights), 'night')} pruned")


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


@nightly.command("report")
@option("--night", metavar="NAME", default=LATEST, help="The night to sum up.")
@option("--output", type=PATH, help="Also write it to this file.")
@option("--nights", type=COUNT, default=30, help="Number of nights on the page.")
@families_options
@dry_run
@click.pass_obj
def report(
    app: App,
    *,
    night: str,
    output: Path | None,
    nights: int,
    target: FamiliesOptions,
    dry_run: bool,
) -> None:
    """Sum up a night and publish the page of all families at <store>/status/.

    The page is made from the stored summaries of the nights that it shows.
    """
    where = NightTarget(app, target)
    names = where.nights.names()
    if not names:  # a page would make a store that is not there
        must_hold(where.channel, where.store)
    night = where.night(night) if names or night != LATEST else ""
    if dry_run:
        app.emit_plan([f"summary of {night or 'no night'}", where.store.locate(page.PAGE)])
        return
    planned = families_of(where.nights.book(night)) if night else dict(matrix.FAMILIES)
    channel, families = judging(app, where.channel), planned | target.own_families(app)
    body, shown = page.publish(
        where.nights, night, channel, families, now=app.now(), console=app.console, shown=nights
    )
    if output:
        app.write(output, body.decode())
    url = where.page
    app.emit({"page": url, "nights": shown, "bytes": len(body)}, url)
