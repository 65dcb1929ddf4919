"""What the gate's commands share: options to a request, the run as it goes, reports and verdict."""

from __future__ import annotations

import os
import shlex
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path

import click
from click.core import ParameterSource

from amdgpu_family_matrix import Family
from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, Option, once, option, section, together
from rocwheel.cli.target import Target, TargetOptions, family_of, target_options
from rocwheel.console import ConsoleMode
from rocwheel.errors import InterruptError, StoreError
from rocwheel.gate import environment
from rocwheel.gate import run as room
from rocwheel.gate.engine.plan import Snapshot, Watcher
from rocwheel.gate.environment import WheelsUnderTest
from rocwheel.gate.request import Choice, DeviceChoice, GateRequest, Host
from rocwheel.gate.run import GateResult
from rocwheel.gate.suite import history, skips, suites
from rocwheel.gate.suite.discovery import Shard
from rocwheel.gate.verdict import storing
from rocwheel.manifest import MANIFEST, Manifest
from rocwheel.model import PythonVersion
from rocwheel.places import Place
from rocwheel.report import render, summary
from rocwheel.report.page import verdict_text
from rocwheel.results import Attempt, Fault, Results
from rocwheel.verdict import Verdict

NAME_WIDTH = 40  # of a test in the progress line
SLOTS = Path("/run/lock/rocwheel")
_TEXT_PATH = click.Path(path_type=str)


@dataclass(frozen=True, kw_only=True)
class CellOptions(TargetOptions):
    """What names a cell: a wheel set, a suite, a family, a CPython."""

    manifest: str | None
    python: str | None
    suite: str | None


cell_options = together(
    section(
        "Target",
        once("--suite", metavar="NAME", help="A suite of ci/suites (required)."),
        once("--python", metavar="VERSION", help="CPython: 3.12 (required)."),
        once(
            "--manifest",
            metavar="SHA|PATH",
            help="The staged wheel set: SHA-256 of its manifest (6 digits or more), or the file.",
        ),
    ),
    target_options,
)


@dataclass(frozen=True, kw_only=True)
class GateOptions(CellOptions, DryRun):
    """Options of `gate` and `skips verify`."""

    wheels: str | None
    device: str
    rocm: str | None
    jax_tests: str | None
    requirements: tuple[str, ...]
    shard: str
    tests: tuple[str, ...]
    failed_of: str | None
    lanes: int
    deadline: float
    patience: float
    slots: Path
    runner: str
    output: str | None
    keep: bool


slots_option = option(
    "--slots",
    type=click.Path(path_type=Path),
    default=SLOTS,
    show_default=True,
    help="Lock files of the devices, shared by everything on this machine.",
)
run_options = together(
    once(
        "--wheels",
        type=_TEXT_PATH,
        metavar="DIR",
        help="Local wheels instead of staged ones; nothing is stored.",
    ),
    option(
        "--device",
        type=click.Choice(["gpu", "nvidia", "cpu"]),
        default="gpu",
        show_default=True,
        help="The family's own GPUs; others only by name, and without storing a verdict.",
    ),
    once(
        "--rocm",
        metavar="SOURCE",
        help="ROCm: a tarball, URL or folder, or pip:REQUIREMENT; default: the manifest's tarball.",
    ),
    once(
        "--jax-tests",
        type=_TEXT_PATH,
        metavar="DIR",
        help="A JAX checkout with the tests; default: the commit the wheels were built of.",
    ),
    option(
        "--with",
        "requirements",
        multiple=True,
        metavar="NAME==VERSION",
        help="A further package in the environment; repeatable.",
    ),
    once("--shard", default="1/1", metavar="I/N", help="One part of N."),
    option("--test", "tests", multiple=True, metavar="ID", help="Only this test or file."),
    once(
        "--failed-of",
        metavar="PATH",
        type=_TEXT_PATH,
        help="Only what failed in these results, with the same packages and devices.",
    ),
    option(
        "--lanes",
        type=click.IntRange(min=0),
        default=0,
        help="Most test processes at once; default: one per device.",
    ),
    option(
        "--deadline",
        type=click.FloatRange(min=0),
        default=0.0,
        metavar="SECONDS",
        help="For everything; default: the suite's deadline and half an hour.",
    ),
    option(
        "--patience",
        type=click.FloatRange(min=0),
        default=3600.0,
        show_default=True,
        metavar="SECONDS",
        help="How long to wait for devices that others hold.",
    ),
    slots_option,
    option("--runner", default="", metavar="LABEL", help="Label of this runner."),
    section(
        "Output",
        once(
            "--output",
            type=_TEXT_PATH,
            metavar="DIR",
            help="Where reports and logs go; default: gate-results/<suite>-<python>.",
        ),
        option("--keep", is_flag=True, help="Leave the environment where it is, afterwards."),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a gate's options mean."""

    request: GateRequest
    host: Host
    place: Place | None  # staging; None for local wheels

    @property
    def stored(self) -> Place | None:
        """Where the verdict goes; None for what speaks for no whole suite on the family's GPUs."""
        counts = self.request.whole and self.request.device is DeviceChoice.FAMILY
        return self.place if counts else None


def request(app: App, options: GateOptions, *, choice: Choice) -> Asked:
    """Turn options into a request. Raises UsageError, ConfigError, StoreError."""
    for name in ("suite", "python", "family"):
        if not getattr(options, name):
            raise click.UsageError(f"give --{name}; `gate list` shows the suites")
    python = PythonVersion.parse(options.python or "")
    suite = suites.load(app.home.ci, options.suite or "")
    host = this_host(app, options.slots, options.runner)
    family, manifest, place, wheels = _wheels(app, options, python)
    shard = Shard.parse(options.shard)
    suffix = f"-{shard.number}-of-{shard.count}" if shard.count > 1 else ""
    output = options.output or f"gate-results/{suite.name}-{python}{suffix}"
    listed = skips.load(app.home.ci, today=app.now().date())
    request = GateRequest(
        suite=suite,
        family=family,
        python=python,
        wheels=wheels,
        manifest=manifest,
        home=app.home,
        output=app.cwd / output,
        libraries=suites.libraries(app.home.ci),
        skips=listed,
        known=suites.known(app.home, suite, listed),
        shard=shard,
        device=DeviceChoice(options.device),
        rocm=options.rocm or "",
        jax_tests=app.cwd / options.jax_tests if options.jax_tests else None,
        requirements=options.requirements,
        lanes=options.lanes,
        choice=choice,
        tests=frozenset(options.tests),
        deadline=options.deadline,
        patience=options.patience,
        keep=options.keep,
        history=history.read(place, suite.name, host.cache),
        command=_command_line(app, options),
    )
    if options.failed_of:
        request = request.for_failures_of(storing.results_in(app.cwd / options.failed_of))
    return Asked(request=request, host=host, place=place)


def _wheels(
    app: App, options: GateOptions, python: PythonVersion
) -> tuple[Family, Manifest | None, Place | None, WheelsUnderTest]:
    """Family, manifest, staging place and wheel set of the options."""
    if options.wheels:
        if options.channel or options.store_url:
            raise click.UsageError("--wheels are local: give no --channel and no --store")
        folder = app.cwd / options.wheels
        family = family_of(app, options)
        if not (folder / MANIFEST).is_file():
            return family, None, None, environment.of_folder(folder, python)
        local = Manifest.load(folder)
        link = lambda name: (folder / name).resolve().as_uri()  # noqa: E731
        return family, local, None, environment.of_manifest(local, python, link)
    if not options.manifest:
        raise click.UsageError("give --manifest with --channel or --store, or --wheels")
    target = Target(app, options)
    place, manifest = target.staged(app, options.manifest)
    return target.family, manifest, place, environment.of_manifest(manifest, python, place.link)


def this_host(app: App, slots: Path, label: str) -> Host:
    """This machine, and the process's place on it."""
    return Host(
        runner=app.runner,
        environ=app.environ,
        root=Path("/"),
        cwd=app.cwd,
        cache=app.cache,
        slots=slots,
        name=socket.gethostname(),
        label=label or app.environ.get("RUNNER_NAME", ""),
        online=len(os.sched_getaffinity(0)),
        clock=time.monotonic,
        sleep=time.sleep,
        now=app.now,
    )


# of the line that asks the same again: what names a file, always or where it is one, and what
# `gate rerun` decides anew
_PATHS = frozenset({"wheels", "jax_tests", "channels_file", "slots"})
_MAYBE_PATHS = frozenset({"manifest", "rocm"})
_NOT_AGAIN = frozenset({"failed_of", "output", "keep", "dry_run"})


def _command_line(app: App, options: GateOptions) -> str:
    """The options that were given, as a line that means the same anywhere; without `rerun`'s."""
    words, context = ["gate"], click.get_current_context()
    spelt = {p.name: p.opts[0] for p in context.command.params if isinstance(p, Option)}
    for name in sorted(field.name for field in fields(options)):
        value = getattr(options, name)
        default = context.get_parameter_source(name) is ParameterSource.DEFAULT
        if not value or default or name in _NOT_AGAIN:
            continue
        if value is True:
            words.append(spelt[name])
            continue
        is_path = name in _PATHS or (name in _MAYBE_PATHS and (app.cwd / str(value)).exists())
        values = value if isinstance(value, tuple) else (value,)
        words += [f"{spelt[name]}={app.cwd / str(item) if is_path else item}" for item in values]
    return shlex.join(words)


# --- running and telling -------------------------------------------------------------------------


def dry_run(app: App, asked: Asked) -> int:
    """Say what a gate would do."""
    cell = asked.request.cell
    app.console.info(f"would gate {cell}:")
    for line in room.lines(asked.request, asked.host):
        app.console.info(f"  {line}")
    app.emit({"state": "planned", "cell": cell}, f"{cell}: planned")
    return 0


def run(app: App, asked: Asked) -> GateResult:
    """Gate, and show it as it goes."""
    storing.clear(asked.request.output)
    app.console.info(f"gate {asked.request.cell}")
    try:
        with _watching(app) as watcher:
            return room.run(asked.request, asked.host, app.console, watcher)
    except KeyboardInterrupt:
        raise InterruptError(
            f"the gate of {asked.request.cell} was interrupted: no verdict was stored",
            hint="run the same command again; its tests start anew",
        ) from None


@contextmanager
def _watching(app: App) -> Iterator[Watcher]:
    """Show a run as it goes: a bar, and every failure at once."""

    class Shown(Watcher):
        def progress(self, snapshot: Snapshot) -> None:
            lanes = " | ".join(
                f"{name} {_short(what)} {seconds:.0f} s" for name, what, seconds in snapshot.lanes
            )
            bar.update(snapshot.done, total=snapshot.total, text=f"{snapshot.bad} bad | {lanes}")

        def failed(self, test: str, attempt: Attempt) -> None:
            again = " again" if test in told else ""
            told.add(test)
            app.console.info(
                f"   {attempt.outcome.value}{again} on {attempt.lane}: {test}: {attempt.message}"
            )

    told: set[str] = set()
    with app.console.progress("tests") as bar:
        yield Shown()


def _short(name: str) -> str:
    return name if len(name) <= NAME_WIDTH else f"…{name[1 - NAME_WIDTH :]}"


def finish(
    app: App, judged: tuple[Results, Fault, Verdict | None], place: Place | None, output: Path
) -> int:
    """Write the reports, store them and the verdict, say the result; return its exit status."""
    results, found, verdict = judged
    notes = {library.name: library.note for library in suites.libraries(app.home.ci)}
    reports = render(results, found, notes)
    storing.write(output, reports, None)  # before anything can go wrong with the store
    key = ""
    if verdict and place:
        key, verdict = storing.put(place, verdict, reports)
        app.console.info(f"stored {place.store.locate(key)}")
    storing.write(output, {}, verdict)
    _tell_github(app, results, found)
    counts = {name: number for name, number in results.counts.by_outcome().items() if number}
    numbers = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in counts.items())
    text = verdict_text(results, found) + (f": {found.message}" if found.message else "")
    text += f"\n{numbers or 'no test ran'}\n{output / 'report.html'}"
    document = {
        "state": found.state.value,
        "reason": found.message,
        "counts": results.counts.by_outcome(),
        "report": str(output / "report.html"),
        "verdict": key,
    }
    app.emit(document, text)
    app.github_outputs({"state": found.state.value, "verdict": key})
    return found.state.exit_code


def _tell_github(app: App, results: Results, found: Fault) -> None:
    path = app.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(summary.markdown(results, found))
    if app.console.mode is ConsoleMode.GITHUB:
        folder = suites.load(app.home.ci, results.suite).source.folder
        for line in summary.workflow_commands(results, found, folder):
            app.console.command(line)


def remember(app: App, asked: Asked, results: Results) -> None:
    """Keep durations for the next run; without them it is slower, so failing is a warning."""
    if not results.tests:
        return
    try:
        history.add(asked.stored, asked.request.suite.name, asked.host.cache, results)
    except (StoreError, OSError) as exc:
        app.console.warn(f"durations were not kept: {exc}")


# --- stored results --------------------------------------------------------------------


def stored_shards(
    app: App, options: CellOptions, count: int
) -> tuple[Place, list[tuple[Verdict | None, Results]]]:
    """Staging place and what the shards of a cell left there."""
    if not (options.manifest and options.python and options.suite):
        raise click.UsageError(
            "give --manifest, --python and --suite, or the folders of the shards"
        )
    place, manifest = Target(app, options).staged(app, options.manifest)
    found = storing.shards(place, manifest.sha256, options.python, options.suite, count)
    return place, list(found)


def stored_results(app: App, options: TargetOptions, key: str) -> Results:
    """The results that a stored verdict speaks of."""
    place = Target(app, options).pairs()[0][0]
    return storing.read(place, key)[1]
