"""`nightly bisect`: which commit, or which other input, made a test of a night fail."""

from __future__ import annotations

import math
import re
import shlex
from functools import partial

import click
from msgspec import to_builtins

from rocwheel.base import files
from rocwheel.base.console import count, duration
from rocwheel.base.download import Client, Retry
from rocwheel.base.errors import CommandError, ConfigError, FetchError, InterruptError
from rocwheel.base.git import Source
from rocwheel.base.process import base_env
from rocwheel.base.values import replace
from rocwheel.cli import command_line, known
from rocwheel.cli.app import App
from rocwheel.cli.nightly import LATEST, SCHEDULERS, NightTarget, worker
from rocwheel.cli.options import command, dry_run, option, option_set
from rocwheel.cli.target import (
    PersonOptions,
    StoreOptions,
    must_exist,
    person_options,
    store_options,
)
from rocwheel.night import bisect as search
from rocwheel.night import planning, probes, slurm, standing
from rocwheel.night.bisect import BisectRequest
from rocwheel.night.cell import Worker
from rocwheel.night.local import LocalScheduler
from rocwheel.night.probes import Probes, Side
from rocwheel.release.index import channels
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger import log, manifests
from rocwheel.release.ledger.nights import AS_JSON, AS_TEXT, BISECT, PROBE, Nights

SOON = 15.0  # seconds until a probe that runs elsewhere is looked for again
NUMBER = re.compile(r"(<?\d+(\.\d+)?)?")
needed = partial(option, required=True)
gated = partial(option, metavar="NAME", default="")


asked_options = option_set(
    "asked",
    BisectRequest,
    needed("--test", metavar="ID", help="The test that fails: a pytest node id of the suite."),
    needed("--bad", metavar="NIGHT", type=known.OneOf(known.nights), help="A night it failed in."),
    option(
        "--good",
        metavar="NIGHT",
        type=known.OneOf(known.nights),
        default="",
        help="An earlier night it passed in; default: the search goes back for one.",
    ),
    gated("--family", type=known.OneOf(known.families), help="Default: that of the failed gate."),
    gated("--suite", type=known.OneOf(known.suites), help="Suite; default: the gate's."),
    gated("--python", type=known.OneOf(known.pythons), help="CPython; default: the gate's."),
    option("--set", "wheels", metavar="NAME", help="Set of ci/nightly.yaml; default: the gate's."),
    option(
        "--confirm",
        type=click.IntRange(min=1),
        default=3,
        help="How often to test both ends and the final pair.",
    ),
    option("--suspect", metavar="COMMIT", help="A commit to test first, with its parent."),
    option("--metric", metavar="NAME", help="A number the test reports, or its milliseconds."),
    option(
        "--threshold",
        metavar="[<]X",
        help="In place of pass and fail: more than X of --metric is bad, or less with `<X`.",
    ),
    option("--find-fix", "fix", is_flag=True, help="Find what repaired it after the bad night."),
)


@command("bisect")
@asked_options
@option("--engine", type=click.Choice(SCHEDULERS), default=SCHEDULERS[0], help="Where probes run.")
@option(
    "--gpu-hours",
    metavar="HOURS",
    type=float,
    default=math.inf,
    show_default=False,
    help="Largest number of GPU hours; default: no limit.",
)
@option("--program", metavar="COMMAND", rare=True, help="How cells start rocwheel.")
@store_options
@person_options
@dry_run
@click.pass_obj
def bisect(
    app: App,
    *,
    asked: BisectRequest,
    engine: str,
    gpu_hours: float,
    program: str,
    target: StoreOptions,
    person: PersonOptions,
    dry_run: bool,
) -> int:
    """Find the commit of JAX, or the other input, that made a test fail between two nights.

    It first tries the sets of the nights between, then each input that changed, then commits of JAX
    by `git bisect`. After an interruption the same command continues. The exit status is 5 if it
    finds no culprit. With --find-fix the good night is the later one; default: the newest.
    """
    if bool(asked.metric) != bool(asked.threshold) or not NUMBER.fullmatch(asked.threshold):
        raise click.UsageError("--metric NAME goes with --threshold: a number, or <NUMBER")
    if not gpu_hours > 0:  # nor is NaN
        raise click.UsageError("--gpu-hours: a number above 0")
    if engine == "github" and LATEST in {asked.good, asked.bad}:
        raise click.UsageError("name the nights: `latest` is another one when the next run starts")
    if engine == "github" and not (dry_run or app.environ.get("GITHUB_OUTPUT")):
        raise click.UsageError("--engine=github is for jobs of the workflow bisect.yml")
    where = NightTarget(app, target)
    must_exist(where.channel, where.store)
    good = asked.good or (LATEST if asked.fix else "")
    asked = replace(asked, good=good and where.night(good), bad=where.night(asked.bad))
    asked = search.chosen(where.nights, asked)
    url = f"{where.channel.store.rstrip('/')}/{BISECT}"
    own = channels.of_store(url)
    xla_of = partial(_xla_of, (where.channel, own), asked.family)
    sets, told = search.sets(where.nights, asked, xla_of)
    between = search.between(sets, asked.suspect, app.runner) if dry_run or asked.suspect else []
    builds: tuple[str, ...] = ()
    with Client(base_env(app.environ), retry=Retry(attempts=4), note=app.console.detail) as client:
        try:
            builds = search.offered(sets, client)
        except (ConfigError, FetchError) as exc:
            told.append(f"builds of ROCm between the nights are not known: {exc}")
    if dry_run:
        told += filter(None, [search.unsearched(sets[0], sets[-1])])
        most = search.estimate(sets, asked.confirm, len(builds), between)
        stood = standing.stand(where.nights.book(asked.bad))
        took = [
            of.last.milliseconds // 1000 if (of := stood[cell.name]).last else cell.seconds
            for cell in (sets[-1].side.gate, sets[-1].build)
        ]
        seconds = most["gates"] * took[0] + most["builds"] * took[1]
        names = ("set", "commit", "gate", "build")
        kept, commits, gates, many = (count(most[f"{name}s"], name) for name in names)
        text = (
            f"{asked.test} on {asked.family}: {kept}, {commits}: at most {gates} and {many}, "
            f"{duration(seconds)} if each takes as long as in {asked.bad}"
        )
        app.emit({**most, "seconds": seconds, "told": told}, "\n".join([*told, text]))
        return 0
    nights = Nights(own.open(probe_key=PROBE))
    here = worker(app, engine=engine, how=tuple(shlex.split(program)))
    ask = Probes(
        nights=nights, test=asked.test, metric=asked.metric, threshold=asked.threshold,
        by=person.who(app).by, now=app.now,
        run=lambda name: _settle(app, nights, name, here, (f"--store={url}",)),
    )  # fmt: skip

    def line(side: Side, manifest: str) -> str:
        return command_line(app, shlex.join(probes.without(ask.words(side, manifest), "--runner")))

    finding = search.Search(
        asked, ask, told, line, app.runner, app.console.info, xla_of, builds, 3600 * gpu_hours
    ).find(sets)
    app.emit(to_builtins(finding), "\n".join(finding.lines()))
    body = finding.to_bytes()
    key = where.nights.key(asked.bad, f"bisects/{files.sha256(body)[:16]}")
    where.store.create(f"{key}.md", finding.issue.encode(), headers=AS_TEXT)
    where.store.create(f"{key}.json", body, headers=AS_JSON)  # last: a page links to the text
    if path := app.environ.get("GITHUB_STEP_SUMMARY"):
        app.write(path, finding.issue, "a")
    app.console.info(f"kept: {where.store.locate(key)}.json; text for an issue: {key}.md")
    again = command_line(app, f"nightly report --night={asked.bad}")
    app.console.info(f"to show it on the page: {again}")
    return 0 if finding.is_named else CommandError.exit_code


def _settle(app: App, nights: Nights, name: str, here: Worker, words: tuple[str, ...]) -> None:
    """Run a probe, here or on Slurm, until it has ended; on GitHub name its job, and end."""
    said = ""
    if here.engine == "github":
        plan, _ = nights.plan(name)
        values = planning.github_outputs(plan, plan.cells[0].family) | {"store": nights.store.url}
        app.github_outputs(values)
        app.emit(values, f"{name}: is for a job of the workflow")
        raise click.exceptions.Exit(0)
    while True:
        if here.engine == "slurm":
            jobs = slurm.SlurmScheduler(
                nights=nights, night=name, worker=here, target=words, stays=True
            )
            jobs.submit()
            jobs.check_held()
        else:
            try:
                LocalScheduler(nights, name, here, words).run()
            except InterruptError as exc:
                hint = "run the same command again: it goes on"
                raise InterruptError(str(exc), hint=hint) from exc
        (cell,) = standing.stand(nights.book(name)).values()
        if cell.settled:
            return
        if (text := f"{name}: {cell.word} {cell.reason}: waiting") != said:
            app.console.info(text)
        said = text
        here.here.sleep(SOON)


def _xla_of(stores: tuple[Channel, ...], family: str, manifest: str) -> Source:
    """Return the XLA of a set in one of these stores; one without a commit where it is in none."""
    for channel in stores if manifest else ():
        for staging, _ in channel.pairs(channel.open(), family):
            place = log.read(staging).at(staging, manifest)
            if found := manifests.find(place, manifest):
                return found.xla
    return search.NO_XLA
