"""What the gate's commands share: options to a request, the run as it goes, reports and verdict."""

from __future__ import annotations

import os
import shlex
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from amdgpu_family_matrix import Family
from rocwheel import home, housekeeping
from rocwheel.cli import known
from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, given_words, once, option, section, together
from rocwheel.cli.known import OneOf
from rocwheel.cli.target import Target, TargetOptions, family_of
from rocwheel.console import ConsoleMode
from rocwheel.errors import HostError, InterruptError, RocwheelError, StoreError
from rocwheel.gate import run as gate_runs
from rocwheel.gate import subject
from rocwheel.gate.engine.plan import Snapshot, Watcher
from rocwheel.gate.request import Choice, DeviceChoice, GateRequest, Host
from rocwheel.gate.run import GateResult
from rocwheel.gate.subject import WheelsUnderTest
from rocwheel.gate.suite import history, skips, suites
from rocwheel.gate.suite.discovery import Shard
from rocwheel.gate.suite.suites import Suite
from rocwheel.gate.verdict import storing
from rocwheel.manifest import MANIFEST, Manifest
from rocwheel.model import PythonVersion
from rocwheel.places import Place
from rocwheel.report import render, summary
from rocwheel.report.gate_page import verdict_text
from rocwheel.results import Attempt, Fault, LastRun, Results
from rocwheel.verdict import State, Verdict

NAME_WIDTH = 40  # of a test in the progress line
SLOTS = Path("/run/lock/rocwheel")
_TEXT_PATH = click.Path(path_type=str)
_NEEDED = {"suites": known.suites, "python": known.pythons, "family": known.families}


@dataclass(frozen=True, kw_only=True)
class GatedSetOptions(TargetOptions):
    """Options that name a wheel set and a CPython."""

    manifest: str | None
    python: str | None

    declared = section(
        "Target",
        once(
            "--python",
            metavar="VERSION",
            type=OneOf(known.pythons),
            help="CPython: 3.12 (required).",
        ),
        once(
            "--manifest",
            metavar="SHA|PATH",
            type=known.FILE,
            help="The staged wheel set: SHA-256 of its manifest (6 digits or more), or the file.",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class CellOptions(GatedSetOptions):
    """What names a cell: a wheel set, a suite, a family, a CPython."""

    suite: str | None

    declared = section(
        "Target",
        once(
            "--suite",
            metavar="NAME",
            type=OneOf(known.suites),
            help="A suite of ci/suites (required).",
        ),
    )


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
        type=known.FILE,
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
        "--jobs",
        type=click.IntRange(min=0),
        default=0,
        help="Processes on one GPU; default: what the suite, memory and CPUs allow.",
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
    once(
        "--installed",
        type=click.Path(path_type=Path),
        metavar="PYTHON",
        help="The Python of an environment that has the set and a ROCm in /opt/rocm, as a runtime "
        "image has, instead of a fresh one; nothing is stored.",
    ),
    option(
        "--packages",
        "folders",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="DIR",
        help="With --installed: a folder of packages that the suite needs beside it.",
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
class GateOptions(GatedSetOptions, DryRun):
    """Options of `gate` and `skips verify`."""

    suites: tuple[str, ...]
    wheels: str | None
    device: str
    rocm: str | None
    jax_tests: str | None
    requirements: tuple[str, ...]
    shard: str
    tests: tuple[str, ...]
    failed_of: str | None
    lanes: int
    jobs: int
    deadline: float
    patience: float
    slots: Path
    runner: str
    output: str | None
    keep: bool
    installed: Path | None
    folders: tuple[Path, ...]
    declared = together(
        section(
            "Target",
            option(
                "--suite",
                "suites",
                multiple=True,
                metavar="NAME",
                type=OneOf(known.suites),
                help="A suite of ci/suites (required); repeated, they share one environment.",
            ),
        ),
        run_options,
    )


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A gate as its options ask for it: request, machine, and where the verdict goes."""

    request: GateRequest
    host: Host
    place: Place | None  # staging; None for local wheels

    @property
    def stored(self) -> Place | None:
        """Where the verdict goes; None for what speaks for no whole suite on the family's GPUs."""
        counts = self.request.whole and self.request.device is DeviceChoice.FAMILY
        counts = counts and self.request.installed is None
        return self.place if counts else None


def requests(app: App, options: GateOptions, *, choice: Choice) -> tuple[Asked, ...]:
    """Turn options into a request for each suite. Raises UsageError, ConfigError, StoreError."""
    for name, values in _NEEDED.items():
        if not getattr(options, name):
            raise known.lacking(f"--{name.removesuffix('s')}", values)
    named = tuple(dict.fromkeys(options.suites))
    if len(named) > 1 and (options.tests or options.failed_of):
        raise click.UsageError("--test and --failed-of go with one --suite")
    python = PythonVersion.parse(options.python or "")
    wanted = [suites.load(app.home.ci, name) for name in named]
    host = this_host(app, options.slots, options.runner)
    family, manifest, place, wheels = _wheels(app, options, python)
    shard = Shard.parse(options.shard)
    listed = skips.load(app.home.ci, today=app.now().date())
    asked = []
    for suite in wanted:
        request = GateRequest(
            suite=suite,
            beside=tuple(other for other in wanted if other is not suite),
            family=family,
            python=python,
            wheels=wheels,
            manifest=manifest,
            home=app.home,
            output=app.cwd / _output(options, suite, several=len(wanted) > 1),
            libraries=suites.libraries(app.home.ci),
            skips=listed,
            known=suites.known(app.home, suite, listed),
            shard=shard,
            device=DeviceChoice(options.device),
            rocm=options.rocm or "",
            jax_tests=app.cwd / options.jax_tests if options.jax_tests else None,
            requirements=options.requirements,
            lanes=options.lanes,
            jobs=options.jobs,
            choice=choice,
            tests=frozenset(options.tests),
            deadline=options.deadline,
            patience=options.patience,
            keep=options.keep,
            history=history.read(place, suite.name, host.cache),
            weights=_weights(shard, place, suite, wheels, host),
            command=_command_line(app, options, suite.name),
            installed=app.path(options.installed),
            folders=tuple(app.cwd / folder for folder in options.folders),
        )
        if options.failed_of:
            earlier = storing.results_in(app.cwd / options.failed_of)
            request = request.for_failures_of(earlier)
            _compare_tests(app, request, earlier)
        gate_runs.check(request, host)
        asked.append(Asked(request=request, host=host, place=place))
    return tuple(asked)


def _compare_tests(app: App, request: GateRequest, earlier: Results) -> None:
    """Say where tests that are to run again are others by now. JAX's own are those of a commit."""
    now, before = request.known.tests if request.known else "", earlier.environment.get("tests")
    if before and now and before != now:
        app.console.warn(
            f"the files of {request.suite.name} have changed since: what passes now may be another "
            "test than the one that failed"
        )


def _weights(
    shard: Shard, place: Place | None, suite: Suite, wheels: WheelsUnderTest, host: Host
) -> Mapping[str, int]:
    """What the shards of a set are cut by; on several machines only a store knows it."""
    if shard.count == 1 or place is None:
        return {}
    return history.weights(place, suite.name, wheels.manifest, host.cache)


def request(app: App, options: GateOptions, *, choice: Choice) -> Asked:
    """Turn options into the request for their one suite. Raises as `requests`."""
    found = requests(app, options, choice=choice)
    if len(found) > 1:
        raise click.UsageError("this takes one --suite at a time")
    return found[0]


def _output(options: GateOptions, suite: Suite, *, several: bool) -> str:
    """Where reports and logs of a suite go."""
    shard = Shard.parse(options.shard)
    suffix = f"-{shard.number}-of-{shard.count}" if shard.count > 1 else ""
    if options.output:
        return f"{options.output}/{suite.name}" if several else options.output
    return f"gate-results/{suite.name}-{options.python}{suffix}"


def _wheels(
    app: App, options: GateOptions, python: PythonVersion
) -> tuple[Family, Manifest | None, Place | None, WheelsUnderTest]:
    """Family, manifest, staging place and wheel set of the options."""
    if options.wheels:
        if options.channel or options.store_url:
            raise click.UsageError("--wheels are local: give no --channel and no --store")
        if options.manifest:
            raise click.UsageError("--wheels and --manifest contradict each other: give one")
        folder = app.cwd / options.wheels
        family = family_of(app, options)
        if not (folder / MANIFEST).is_file():
            return family, None, None, subject.of_folder(folder, python)
        local = Manifest.load(folder)
        return family, local, None, subject.of_manifest(local, python, folder)
    if not options.manifest:
        raise click.UsageError("give --manifest with --channel or --store, or --wheels")
    target = Target(app, options)
    place, manifest = target.staged(app, options.manifest)
    return target.family, manifest, place, subject.of_manifest(manifest, python, place)


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
_PATHS = frozenset({"wheels", "jax_tests"})
_MAYBE_PATHS = frozenset({"manifest", "rocm"})
_NOT_AGAIN = frozenset({"failed_of", "output", "keep", "dry_run", "shard"})


def _command_line(app: App, options: GateOptions, suite: str) -> str:
    """The options that were given, as a line that means the same anywhere; without `rerun`'s."""
    paths = {name for name in _MAYBE_PATHS if (app.cwd / str(getattr(options, name))).exists()}
    alone = replace(options, suites=(suite,))
    words = given_words(alone, app.cwd, paths=_PATHS | paths, leave=_NOT_AGAIN)
    data = () if app.home == home.find(None) else (f"--ci-dir={app.home.ci}",)
    return shlex.join(("gate", *data, *words))


# --- running and telling -------------------------------------------------------------------------


def dry_run(app: App, several: Sequence[Asked]) -> int:
    """Say what gates would do."""
    planned = []
    for asked in several:
        cell = asked.request.cell
        app.console.info(f"would gate {cell}:")
        for line in gate_runs.lines(asked.request, asked.host):
            app.console.info(f"  {line}")
        planned.append({"state": "planned", "cell": cell})
    text = "\n".join(f"{item['cell']}: planned" for item in planned)
    app.emit(planned[0] if len(planned) == 1 else {"gates": planned}, text)
    return 0


def run_each(app: App, several: Sequence[Asked]) -> Iterator[Told]:
    """Gate one after the other, until somebody ends it; store what each has found."""
    with ExitStack() as held:
        for asked in several:
            held.enter_context(storing.alone(asked.request.output))
        yield from _each(app, several)


def _each(app: App, several: Sequence[Asked]) -> Iterator[Told]:
    for number, asked in enumerate(several, 1):
        with interruptible(asked):
            gated = run(app, asked)
            if gated.error:
                app.console.fail(gated.error)
            judged = (gated.results, gated.found, gated.verdict)
            request = asked.request
            whole = request.whole and not str(request.shard)
            told = finish(app, judged, asked.stored, request.output, whole=whole)
            remember(app, asked, gated.results)
        yield told
        if gated.results.cut_short:
            _interrupted(app, several[number:])
            return


def run(app: App, asked: Asked) -> GateResult:
    """Gate, and show it as it goes."""
    storing.clear(asked.request.output)
    app.console.info(f"gate {asked.request.cell}")
    with housekeeping.using(asked.host.cache), _watching(app) as watcher:
        return gate_runs.run(asked.request, asked.host, app.console, watcher)


@contextmanager
def interruptible(asked: Asked) -> Iterator[None]:
    """The first signal is a verdict; a second one, while it is written, ends that too."""
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptError(
            f"the gate of {asked.request.cell} was interrupted while it ended: "
            "its verdict may not be complete",
            hint="run the same command again; its tests start anew",
        ) from None


def _interrupted(app: App, waiting: Sequence[Asked]) -> None:
    """Say that somebody ended the gate, and which suites were not begun."""
    left = ", ".join(asked.request.suite.name for asked in waiting)
    app.console.info(
        f"interrupted: {f'not begun: {left}; ' if left else ''}run the same command again"
    )


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


@dataclass(frozen=True, kw_only=True)
class Told:
    """The result of one gate, as it is printed."""

    state: State
    document: dict[str, Any]
    text: str
    error: RocwheelError | None = None  # why its folder does not hold it


def finish(
    app: App,
    judged: tuple[Results, Fault, Verdict | None],
    place: Place | None,
    output: Path,
    *,
    whole: bool = True,
) -> Told:
    """Write the reports, store them and the verdict; return what there is to say."""
    results, found, verdict = judged
    notes = {library.name: library.note for library in suites.libraries(app.home.ci)}
    cell = history.cell(results)
    reports = render(results, found, notes, history.read_last(place, cell, app.cache))
    unwritten = _write(output, reports, None)  # before anything can go wrong with the store
    key = ""
    if verdict and place:
        key, verdict = storing.put(place, verdict, reports, output / storing.LOGS)
        app.console.info(f"stored {place.store.locate(key)}")
    unwritten = _write(output, {}, verdict) or unwritten
    for reason in verdict.ran.unofficial if verdict else ():
        app.console.info(f"no promotion takes this verdict: {reason}")
    if whole and results.tests:
        ended = app.now().strftime("%Y-%m-%d %H:%M")
        run = LastRun.of(results, found.state, ended=ended)
        with _remembering(app):
            history.keep_last(place, cell, app.cache, run)
    _tell_github(app, results, found)
    counts = {name: number for name, number in results.counts.by_outcome().items() if number}
    numbers = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in counts.items())
    text = verdict_text(results, found) + (f": {found.message}" if found.message else "")
    document = {
        "suite": results.suite,
        "state": found.state.value,
        "reason": found.message,
        "counts": results.counts.by_outcome(),
        "report": str(output / "report.html"),
        "verdict": key,
    }
    text += f"\n{numbers or 'no test ran'}\n{output / 'report.html'}"
    return Told(state=found.state, document=document, text=text, error=unwritten)


def _write(
    output: Path, reports: Mapping[str, bytes], verdict: Verdict | None
) -> RocwheelError | None:
    """Write into the folder; a disk that is full keeps nothing from being stored and told."""
    try:
        storing.write(output, reports, verdict)
    except OSError as exc:
        return HostError(
            f"{output}: the reports could not be written: {exc.strerror}",
            hint="free some space, or choose another --output",
        )
    return None


def tell(app: App, told: Sequence[Told]) -> int:
    """Print results; return the exit status: that of the first that is no pass.

    Raises HostError where all pass and a folder could not be written.
    """
    texts = "\n".join(item.text for item in told)
    documents = [item.document for item in told]
    app.emit(documents[0] if len(told) == 1 else {"gates": documents}, texts)
    state = next((item.state for item in told if item.state is not State.PASS), State.PASS)
    keys = " ".join(item["verdict"] for item in documents if item["verdict"])
    app.github_outputs({"state": state.value, "verdict": keys})
    for error in filter(None, (item.error for item in told)):
        if state is State.PASS:
            raise error
        app.console.fail(error)
    return state.exit_code


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
    """Keep durations for the next run."""
    if results.tests:
        with _remembering(app):
            history.add(asked.stored, asked.request.suite.name, asked.host.cache, results)


@contextmanager
def _remembering(app: App) -> Iterator[None]:
    """What is kept for the next run decides nothing in it: failing to is a warning."""
    try:
        yield
    except (StoreError, OSError) as exc:
        app.console.warn(f"this run was not kept for the next one: {exc}")


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
