"""Options of the gate's commands, and what they print."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from amdgpu_family_matrix import Family
from rocwheel.base import home
from rocwheel.base.console import ConsoleMode
from rocwheel.base.download import without_secrets
from rocwheel.base.errors import ConfigError
from rocwheel.base.versions import PythonVersion
from rocwheel.cli import known
from rocwheel.cli.app import App
from rocwheel.cli.options import NUMBER, PATH, given_words, option, option_set
from rocwheel.cli.target import FAMILIES, FAMILY, Target, TargetOptions, family_of, trusting
from rocwheel.gate import run as gate_runs
from rocwheel.gate import session, subject
from rocwheel.gate.report import ci
from rocwheel.gate.request import Choice, DeviceChoice, GateRequest
from rocwheel.gate.session import GateReport
from rocwheel.gate.setup_errors import SetupError
from rocwheel.gate.subject import WheelsUnderTest
from rocwheel.gate.suite import suites
from rocwheel.gate.suite.discovery import Shard
from rocwheel.records.manifest import Manifest
from rocwheel.records.verdict import State
from rocwheel.release import proof

SLOTS = "/run/lock/rocwheel"
_SAME = (  # as asked
    "requirements", "rocm", "jax_tests", "lanes", "jobs", "patience", "installed", "folders",
    "slots",
)  # fmt: skip
_NEEDED = {"suite": known.suites, "python": known.pythons, "family": known.families}


@dataclass(frozen=True, kw_only=True)
class GateCommandOptions(TargetOptions):
    """The options of `gate` and `gate skips verify`."""

    python: str
    manifest: str
    suite: tuple[str, ...]
    wheels: str
    device: str
    rocm: str
    jax_tests: Path | None
    requirements: tuple[str, ...]
    shard: str
    tests: tuple[str, ...]
    failed_of: Path | None
    lanes: int
    jobs: int
    patience: float
    installed: Path | None
    folders: tuple[Path, ...]
    slots: Path
    runner: str
    output: Path | None


_target = partial(option, section="Target")
GATED_SET = (  # a wheel set and a CPython
    *FAMILIES,
    FAMILY,
    _target(
        "--python",
        metavar="VERSION",
        type=known.OneOf(known.pythons),
        default="",
        help="CPython: 3.12 (required).",
    ),
    _target(
        "--manifest",
        metavar="SHA|PATH",
        type=known.MANIFEST,
        default="",
        help="The staged wheel set: SHA-256 of its manifest (6 digits or more), or the file.",
    ),
)
SUITE = partial(_target, "--suite", metavar="NAME", type=known.OneOf(known.suites))
gate_options = option_set(
    "asked",
    GateCommandOptions,
    *GATED_SET,
    SUITE(multiple=True, help="A suite of ci/suites (required); repeatable."),
    option(
        "--wheels",
        metavar="DIR",
        type=known.FILE,
        default="",
        help="Test a local wheelhouse instead of a staged set; nothing is stored.",
    ),
    option(
        "--device",
        type=click.Choice(("gpu", "nvidia", "cpu")),
        default="gpu",
        rare=True,
        help="Which devices: the family's own GPUs, or others, without storing a verdict.",
    ),
    option(
        "--rocm",
        metavar="SOURCE",
        type=known.FILE,
        default="",
        help="ROCm: a tarball, URL or folder, or pip:REQUIREMENT; default: the manifest's own.",
    ),
    option(
        "--jax-tests",
        metavar="DIR",
        type=PATH,
        rare=True,
        help="A JAX checkout with the tests; default: the commit the wheels were built from.",
    ),
    option(
        "--with",
        "requirements",
        metavar="NAME==VERSION",
        multiple=True,
        rare=True,
        help="A further package in the environment; repeatable.",
    ),
    option("--shard", metavar="I/N", default="1/1", help="One part of N."),
    option("--test", "tests", metavar="ID", multiple=True, help="Run only this test or file."),
    option(
        "--failed-of",
        metavar="PATH",
        type=PATH,
        help="Run only what failed in these results, with the same packages.",
    ),
    option(
        "--lanes",
        type=click.IntRange(min=0),
        default=0,
        rare=True,
        help="Largest number of test processes; default: one per device.",
    ),
    option(
        "--jobs",
        type=click.IntRange(min=0),
        default=0,
        rare=True,
        help="Processes on one GPU; default: what the suite, memory and CPUs allow.",
    ),
    option(
        "--patience",
        metavar="SECONDS",
        type=NUMBER,
        default=3600.0,
        rare=True,
        help="How long to wait for devices in use.",
    ),
    option(
        "--installed",
        metavar="PYTHON",
        type=PATH,
        rare=True,
        help="Test in this Python's environment instead of a fresh one, as in a runtime image: it "
        "has the set, and ROCm is in /opt/rocm. Nothing is stored.",
    ),
    option(
        "--packages",
        "folders",
        metavar="DIR",
        type=PATH,
        multiple=True,
        rare=True,
        help="With --installed: a folder of packages that the suite needs beside it.",
    ),
    option(
        "--slots",
        type=PATH,
        default=SLOTS,
        rare=True,
        help="Folder with the lock files of the devices, one for the whole machine.",
    ),
    option("--runner", metavar="LABEL", rare=True, help="Label of this runner."),
    option(
        "--output",
        section="Output",
        metavar="DIR",
        type=PATH,
        help="Where reports and logs go; default: gate-results/<suite>-<python>.",
    ),
)


def requests_of(app: App, options: GateCommandOptions, choice: Choice) -> tuple[GateRequest, ...]:
    """Turn options into a request for each suite. Raises UsageError, ConfigError, StoreError."""
    for name, values in _NEEDED.items():
        if not getattr(options, name):
            raise known.lacking(f"--{name}", values)
    named = tuple(dict.fromkeys(options.suite))
    if len(named) > 1 and (options.tests or options.failed_of):
        raise click.UsageError("--test and --failed-of go with one --suite")
    if options.folders and not options.installed:
        raise click.UsageError("--packages goes with --installed")
    if options.jax_tests and not options.jax_tests.is_dir():
        raise ConfigError(f"--jax-tests: {options.jax_tests}: no folder", hint="check the path")
    wanted = tuple(suites.load(app.home.ci, name) for name in named)
    python = PythonVersion.parse(options.python)
    family, manifest, wheels = _wheels(app, options, python)
    asked = GateRequest(
        suite=wanted[0],
        family=family,
        python=python,
        wheels=wheels,
        manifest=manifest,
        shard=Shard.parse(options.shard),
        device=DeviceChoice(options.device),
        choice=choice,
        tests=frozenset(options.tests),
        runner=options.runner or app.environ.get("RUNNER_NAME", ""),
        host=socket.gethostname(),
        **{name: getattr(options, name) for name in _SAME},
    )
    return session.prepare(
        asked,
        wanted,
        app.here,
        output=options.output,
        failed_of=options.failed_of,
        command=lambda suite: _command_line(app, options, suite),
    )


def _wheels(
    app: App, options: GateCommandOptions, python: PythonVersion
) -> tuple[Family, Manifest, WheelsUnderTest]:
    """Return family, manifest and wheel set of the options."""
    if options.wheels:
        if options.channel or options.store:
            raise click.UsageError("--wheels are local: give no --channel and no --store")
        if options.manifest:
            raise click.UsageError("--wheels and --manifest contradict each other: give one")
        folder, family = app.cwd / options.wheels, family_of(app, options)
        local = Manifest.load(folder)
        local.check_family(family.name)
        return family, local, subject.of_manifest(local, python, folder)
    if not options.manifest:
        raise click.UsageError("give --manifest with --channel or --store, or --wheels")
    target = Target(app, options)
    place, manifest = target.staged(app, options.manifest)
    case = trusting(app, target.channel).case(place.family, app.now())
    proof.check_built(place, manifest, case)  # before any of it runs here
    return target.family, manifest, subject.of_manifest(manifest, python, place)


# of the line that asks the same again: what names a file, always or where it is one, and what
# differs when it is asked again
_PATHS = frozenset({"wheels"})
_MAYBE_PATHS = frozenset({"manifest", "rocm"})
_NOT_AGAIN = frozenset({"failed_of", "output", "dry_run", "shard", "signer"})


def _command_line(app: App, options: GateCommandOptions, suite: str) -> str:
    """Return the options given, as a line that means the same anywhere."""
    paths = {name for name in _MAYBE_PATHS if (app.cwd / str(getattr(options, name))).exists()}
    rocm = without_secrets(options.rocm) if "://" in options.rocm else options.rocm
    words = given_words(
        app,
        without=_NOT_AGAIN,
        instead={"suite": (suite,), "rocm": rocm},
        paths=_PATHS | paths,
    )
    data = () if app.home == home.find(None) else (f"--ci-dir={app.home.ci}",)
    return shlex.join(("gate", *data, *words))


# --- running and printing ------------------------------------------------------------------------


def dry_run(app: App, requests: Sequence[GateRequest]) -> int:
    """Print what gates would do; return the exit status of the first that could not begin."""
    planned, status = [], 0
    for request in requests:
        state = "planned"
        app.console.info(f"would gate {request.key}:")
        for line in gate_runs.lines(request, app.here):
            app.console.info(f"  {line}")
            if isinstance(line, SetupError) and state == "planned":
                state, status = line.state.value, status or line.exit_code
        planned.append({"state": state, "cell": request.key})
    text = "\n".join(f"{item['cell']}: {item['state']}" for item in planned)
    app.emit(planned[0] if len(planned) == 1 else {"gates": planned}, text)
    return status


def show(app: App, reports: Sequence[GateReport]) -> int:
    """Print results, also where GitHub does; return the status of the first that is no pass.

    Raises HostError where all pass and a folder could not be written.
    """
    for report in reports:
        if path := app.environ.get("GITHUB_STEP_SUMMARY"):
            app.write(path, ci.markdown(report.results, report.judged), "a")
        if app.console.mode is ConsoleMode.GITHUB:
            folder = suites.load(app.home.ci, report.results.suite).source.folder
            for line in ci.workflow_commands(report.results, report.judged, folder):
                app.console.command(line)
    documents = [report.document for report in reports]
    text = "\n".join(report.text for report in reports)
    app.emit(documents[0] if len(reports) == 1 else {"gates": documents}, text)
    states = (report.judged.state for report in reports)
    state = next((state for state in states if state is not State.PASS), State.PASS)
    keys = " ".join(item["verdict"] for item in documents if item["verdict"])
    app.github_outputs({"state": state.value, "verdict": keys})
    for error in filter(None, (report.error for report in reports)):
        if state is State.PASS:
            raise error
        app.console.fail(error)
    return state.exit_code
