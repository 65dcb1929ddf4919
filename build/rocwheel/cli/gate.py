"""`gate` and what belongs to it: `gate list`, `gate merge`, `gate rerun`, `gate slot`; `skips`."""

from __future__ import annotations

import os
import shlex
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from rocwheel.cli import gating
from rocwheel.cli.app import App
from rocwheel.cli.command import Once, dry_run_option
from rocwheel.cli.command import talk_options as common_options
from rocwheel.cli.dist import CHECKOUT
from rocwheel.cli.release import target_options
from rocwheel.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocwheel.places import Place

SLOTS = Path("/run/lock/rocwheel")


def cell_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what names a cell: --manifest, --python, --suite, and the target options."""
    for option in (
        click.option("--suite", cls=Once, metavar="NAME", help="A suite of ci/suites (required)."),
        click.option("--python", cls=Once, metavar="VERSION", help="CPython: 3.12 (required)."),
        click.option(
            "--manifest",
            cls=Once,
            metavar="SHA|PATH",
            help="The staged wheel set: SHA-256 of its manifest (6 digits or more), or the file.",
        ),
    ):
        command = option(command)
    return target_options(command)


def run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add how and where the tests run."""
    for option in (
        click.option("--keep", is_flag=True, help="Leave the environment where it is, afterwards."),
        click.option(
            "--patience",
            type=click.FloatRange(min=0),
            default=3600.0,
            show_default=True,
            metavar="SECONDS",
            help="How long to wait for devices that others hold.",
        ),
        click.option(
            "--deadline",
            type=click.FloatRange(min=0),
            default=0.0,
            metavar="SECONDS",
            help="For everything; default: the suite's deadline and half an hour.",
        ),
        click.option(
            "--lanes",
            type=click.IntRange(min=0),
            default=0,
            help="Most test processes at once; default: one per device.",
        ),
        click.option(
            "--failed-of",
            cls=Once,
            metavar="PATH",
            type=click.Path(path_type=str),
            help="Only what failed in these results, with the same packages and devices.",
        ),
        click.option(
            "--test", "tests", multiple=True, metavar="ID", help="Only this test or file."
        ),
        click.option("--shard", cls=Once, default="1/1", metavar="I/N", help="One part of N."),
        click.option(
            "--with",
            "requirements",
            multiple=True,
            metavar="NAME==VERSION",
            help="A further package in the environment; repeatable.",
        ),
        click.option(
            "--jax-tests",
            cls=Once,
            type=click.Path(path_type=str),
            metavar="DIR",
            help="A JAX checkout with the tests; default: the commit the wheels were built of.",
        ),
        click.option(
            "--rocm",
            cls=Once,
            metavar="SOURCE",
            help="ROCm: a tarball, URL or folder, or pip:REQUIREMENT; default: the manifest's "
            "tarball.",
        ),
        click.option(
            "--device",
            type=click.Choice(["gpu", "nvidia", "cpu"]),
            default="gpu",
            show_default=True,
            help="The family's own GPUs; others only by name, and without storing a verdict.",
        ),
        click.option(
            "--wheels",
            cls=Once,
            type=click.Path(path_type=str),
            metavar="DIR",
            help="Local wheels instead of staged ones; nothing is stored.",
        ),
        click.option(
            "--output",
            cls=Once,
            type=click.Path(path_type=str),
            metavar="DIR",
            help="Where reports and logs go; default: gate-results/<suite>-<python>.",
        ),
        click.option(
            "--slots",
            type=click.Path(path_type=Path),
            default=SLOTS,
            show_default=True,
            help="Lock files of the devices, shared by everything on this machine.",
        ),
        click.option("--runner", default="", metavar="LABEL", help="Label of this runner."),
    ):
        command = option(command)
    return command


@click.group("gate", invoke_without_command=True)
@cell_options
@run_options
@dry_run_option
@common_options
@click.pass_context
def gate(ctx: click.Context, /, *, dry_run: bool, **options: Any) -> int | None:
    """Run a suite on this machine's GPUs against staged wheels; store a verdict.

    The wheels are installed by URL and SHA-256 into a fresh environment. The exit status is 0 for
    a pass and otherwise 21 to 30, one for each state; a verdict is stored in any case.
    """
    if ctx.invoked_subcommand is not None:
        return None
    return _run_gate(gating.app_of(ctx), options, dry_run=dry_run)


@gate.command("list")
@common_options
@click.pass_obj
def list_suites(app: App, /) -> None:
    """List the suites: what they need, what they demand, who requires them."""
    import amdgpu_family_matrix as matrix
    from rocwheel.console import columns, duration
    from rocwheel.gate.suite import skips, suites

    found = suites.load_all(CHECKOUT)
    skips.load(CHECKOUT, today=app.now().date())
    required = {
        suite.name: [
            family.name
            for family in matrix.FAMILIES.values()
            if any(
                rule.suite == suite.name and rule.level is matrix.Level.REQUIRED
                for rule in family.policy
            )
        ]
        for suite in found
    }
    rows = [
        (
            suite.name,
            " or ".join(map(str, suite.gpus)) if suite.needs_gpu else "none",
            suite.source.folder or "JAX's own",
            duration(suite.deadlines.suite),
            str(suite.demand.must_run),
            f"{len(required[suite.name])} of {len(matrix.FAMILIES)}",
            suite.about,
        )
        for suite in found
    ]
    header = ("suite", "GPUs", "tests", "deadline", "must run", "families", "about")
    document = [
        {
            "suite": suite.name,
            "about": suite.about,
            "gpus": list(suite.gpus),
            "tests": suite.source.folder or "jax",
            "deadlines": vars(suite.deadlines),
            **vars(suite.demand),
            "required_by": required[suite.name],
        }
        for suite in found
    ]
    app.emit({"suites": document}, "\n".join(columns(header, rows)))


@gate.command("merge")
@cell_options
@click.option("--shards", type=click.IntRange(min=2), required=True, help="How many there are.")
@click.option("--output", type=click.Path(path_type=Path), default=Path("gate-results/merged"))
@click.argument("folders", nargs=-1, type=click.Path(path_type=Path))
@dry_run_option
@common_options
@click.pass_obj
def merge(
    app: App,
    /,
    *,
    shards: int,
    output: Path,
    folders: tuple[Path, ...],
    dry_run: bool,
    **options: Any,
) -> int:
    """Make one verdict of N shards; a missing one is `not-run`.

    FOLDERS are what `gate --shard` left in --output; without them the store is asked.
    """  # fmt: skip
    from rocwheel.gate.run import with_unmet_skips
    from rocwheel.gate.suite import suites
    from rocwheel.gate.verdict import merge as room
    from rocwheel.gate.verdict import storing
    from rocwheel.gate.verdict.judge import judge

    place: Place | None = None
    if folders:
        found = [storing.shard_in(app.cwd / folder) for folder in folders]
    else:
        place, found = gating.stored_shards(app, options, shards)
    runs = [item[1] for item in found]
    if not runs:
        raise ConfigError("no shard has results", hint="run `gate --shard 1/4` and so on first")
    demand = suites.load(CHECKOUT, runs[0].suite).demand
    results = with_unmet_skips(room.merge_results(runs, shards, demand))
    judged = judge(results, demand)
    said = [item[0] for item in found if item[0]]
    verdict = room.merge_verdicts(said, results, judged, demand) if said else None
    if dry_run:
        app.console.info(f"would store: {judged.state.value} {judged.message}".rstrip())
        return 0
    return gating.finish(app, results, judged, verdict, place=place, output=app.cwd / output)


@gate.command("rerun")
@click.argument("verdict")
@target_options
@click.option("--output", type=click.Path(path_type=Path), default=Path("gate-results/rerun"))
@dry_run_option
@common_options
@click.pass_context
def rerun(
    ctx: click.Context, /, *, verdict: str, output: Path, dry_run: bool, **options: Any
) -> int | None:
    """Run again what failed: the same wheels, packages and devices; nothing is stored.

    VERDICT is a folder that `gate` left in --output (or its results.json), or with --channel or
    --store the key of a stored verdict.
    """
    from rocwheel.gate.verdict import storing

    app = gating.app_of(ctx)
    target = app.cwd / output
    if options["channel"] or options["store_url"]:
        results = gating.stored_results(app, options, verdict)
    else:
        results = storing.results_in(app.cwd / verdict)
    line = shlex.split(results.environment.get("command", ""))
    if not line:
        raise ConfigError(f"{verdict}: does not say how it was made", hint="name a gate's results")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory())) if dry_run else target
        folder.mkdir(parents=True, exist_ok=True)
        of = folder / "failed-of.json"
        of.write_bytes(results.to_bytes())
        arguments = [*line[1:], f"--failed-of={of}", f"--output={target}"]
        if dry_run:
            arguments.append("--dry-run")
        else:
            again = shlex.join([*gating.program(), "gate", *arguments])
            app.console.info(f"to run this again: {again}")
        result = gate.main(arguments, standalone_mode=False, obj=app)
    return result if isinstance(result, int) else None


@gate.command("slot", context_settings={"ignore_unknown_options": True})
@click.option("--gpus", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--nvidia", is_flag=True, help="NVIDIA GPUs instead of AMD ones.")
@click.option("--patience", type=click.FloatRange(min=0), default=3600.0, show_default=True)
@click.option(
    "--slots", type=click.Path(path_type=Path), default=SLOTS, show_default=True,
    help="Lock files of the devices.",
)  # fmt: skip
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def slot(
    app: App, /, *, gpus: int, nvidia: bool, patience: float, slots: Path, command: tuple[str, ...]
) -> None:
    """Become COMMAND with a GPU of its own, as soon as one is free.

    For Bazel: --run_under="ci_build gate slot --". The masks this process was given are narrowed,
    never widened; the lock is held until COMMAND ends.
    """
    from rocwheel.gate.machine import accelerators
    from rocwheel.gate.machine.slots import Patience, Slots
    from rocwheel.gate.setup_errors import NoRunnerError
    from rocwheel.host import cgroup

    host = gating.this_host(app, slots, "")
    found = (
        accelerators.nvidia(host.runner, host.environ)
        if nvidia
        else accelerators.amd(host.root, host.environ)
    )
    count = len(found.devices)
    if count < gpus:
        raise NoRunnerError(
            f"{gpus} GPUs asked for, this machine has {count} for us",
            hint="check /dev/kfd, /dev/dri and the masks: ROCR_VISIBLE_DEVICES and the like",
        )
    waiting = Patience(seconds=patience, clock=host.clock, sleep=host.sleep)
    locks = Slots(folder=slots, boot=host.boot)
    with locks.take(
        found.devices, least=gpus, most=gpus, patience=waiting, inheritable=True
    ) as got:
        usable = cgroup.cpus(host.root, online=host.online) * gpus // count
        env = {**app.environ, **cgroup.thread_environment(usable), **found.environment(got)}
        try:
            os.execvpe(command[0], command, env)  # noqa: S606 - that is what it is for
        except OSError as exc:
            raise ConfigError(f"{command[0]}: {exc.strerror}", hint="check the command") from exc


@click.group("skips")
def skips_group() -> None:
    """Look after the skip lists in ci/skips."""


@skips_group.command("verify")
@cell_options
@run_options
@dry_run_option
@common_options
@click.pass_obj
def verify(app: App, /, *, dry_run: bool, **options: Any) -> int:
    """Run what the skip lists leave out and say which of it passes now; nothing is stored."""
    from rocwheel.console import columns
    from rocwheel.gate.request import Choice
    from rocwheel.results import Outcome

    request, host, _ = gating.request(app, options, choice=Choice.SKIPPED)
    if not any(request.suite.name in entry.suites for entry in request.skips):
        text = f"ci/skips: no entry for the suite {request.suite.name}"
        app.emit({"passing": [], "unmet": [], "tests": {}}, text)
        return 0
    if dry_run:
        return gating.dry_run(app, request, host)
    gated = gating.run(app, request, host)
    results = gated.results
    rows = [
        (test.test, "passes now" if test.outcome is Outcome.PASSED else test.outcome.value)
        for test in results.tests
    ]
    unmet = [where for where, count in results.skips.items() if not count]
    passing = [test.test for test in results.tests if test.outcome is Outcome.PASSED]
    text = "\n".join([*columns(("test", "now"), rows), *(f"{w}: meets no test" for w in unmet)])
    app.emit(
        {
            "passing": passing,
            "unmet": unmet,
            "tests": {test.test: test.outcome.value for test in results.tests},
        },
        text,
    )
    return gated.error.exit_code if gated.error else 0


def _run_gate(app: App, options: dict[str, Any], *, dry_run: bool) -> int:
    from rocwheel.gate.request import Choice

    named = options["tests"] or options["failed_of"]
    request, host, place = gating.request(
        app, options, choice=Choice.NAMED if named else Choice.ALL
    )
    if dry_run:
        return gating.dry_run(app, request, host)
    gated = gating.run(app, request, host)
    stored = place if request.whole and request.device.value == "gpu" else None
    if gated.error:
        app.console.fail(gated.error)
    status = gating.finish(
        app, gated.results, gated.found, gated.verdict, place=stored, output=request.output
    )
    gating.remember(app, request, host, gated.results, stored)
    return status
