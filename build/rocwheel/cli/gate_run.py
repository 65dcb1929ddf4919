"""Options of the gate's commands, and what they print."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import click

from rocwheel.base.errors import ConfigError
from rocwheel.base.option import opt
from rocwheel.cli import known
from rocwheel.cli.app import App
from rocwheel.cli.command import NUMBER, DryRun, declared, given_words, own
from rocwheel.cli.imports import when_run
from rocwheel.cli.target import Target, TargetOptions, family_of, trusting
from rocwheel.cli.trust import SignerOptions

with when_run():
    import shlex
    import socket
    from pathlib import Path

    from amdgpu_family_matrix import Family
    from rocwheel.base import home
    from rocwheel.base.console import ConsoleMode
    from rocwheel.base.download import without_secrets
    from rocwheel.base.versions import PythonVersion
    from rocwheel.gate import run as gate_runs
    from rocwheel.gate import session, subject
    from rocwheel.gate.report import summary
    from rocwheel.gate.request import Choice, DeviceChoice, GateOptions, Host
    from rocwheel.gate.session import GateJob, GateReport
    from rocwheel.gate.setup_errors import SetupError
    from rocwheel.gate.subject import WheelsUnderTest
    from rocwheel.gate.suite import suites
    from rocwheel.gate.suite.discovery import Shard
    from rocwheel.records import manifest as records
    from rocwheel.records.manifest import Manifest
    from rocwheel.records.places import Place
    from rocwheel.records.verdict import State
    from rocwheel.release.trust import evidence

SLOTS = "/run/lock/rocwheel"
_SAME = ("requirements", "rocm", "lanes", "jobs", "patience", "installed", "folders")  # as asked
_NEEDED = {"suites": known.suites, "python": known.pythons, "family": known.families}


class GatedSetOptions(TargetOptions):
    """Options that name a wheel set and a CPython."""

    python: str = opt("Target", "--python VERSION", "CPython: 3.12 (required).", values="pythons")
    manifest: str = opt(
        "Target",
        "--manifest SHA|PATH",
        "The staged wheel set: SHA-256 of its manifest (6 digits or more), or the file.",
        values="MANIFEST",
    )


class GateCommandOptions(GatedSetOptions, SignerOptions, DryRun):
    """Options of `gate` and `skips verify`."""

    suites: tuple[str, ...] = opt(
        "Target",
        "--suite NAME",
        "A suite of ci/suites (required); repeatable.",
        values="suites",
        param="suites",
        default=(),
    )
    wheels: str = own(
        "--wheels DIR", "Local wheels instead of staged ones; nothing is stored.", values="FILE"
    )
    device: str = own(
        "--device",
        "The family's own GPUs; others only by name, and without storing a verdict.",
        only=("gpu", "nvidia", "cpu"),
        default="gpu",
    )
    rocm: str = own(
        "--rocm SOURCE",
        "ROCm: a tarball, URL or folder, or pip:REQUIREMENT; default: the manifest's own.",
        values="FILE",
    )
    jax_tests: str = own(
        "--jax-tests DIR",
        "A JAX checkout with the tests; default: the commit the wheels were built of.",
        values="FILE",
    )
    requirements: tuple[str, ...] = own(
        "--with NAME==VERSION",
        "A further package in the environment; repeatable.",
        param="requirements",
        default=(),
    )
    shard: str = own("--shard I/N", "One part of N.", default="1/1")
    tests: tuple[str, ...] = own("--test ID", "Only this test or file.", param="tests", default=())
    failed_of: str = own(
        "--failed-of PATH",
        "Only what failed in these results, with the same packages.",
        values="FILE",
    )
    lanes: int = own(
        "--lanes",
        "Most test processes at once; default: one per device.",
        kind=click.IntRange(min=0),
        default=0,
    )
    jobs: int = own(
        "--jobs",
        "Processes on one GPU; default: what the suite, memory and CPUs allow.",
        kind=click.IntRange(min=0),
        default=0,
    )
    patience: float = own(
        "--patience SECONDS",
        "How long to wait for devices that others hold.",
        kind=NUMBER,
        default=3600.0,
    )
    installed: Path | None = own(
        "--installed PYTHON",
        "The Python of an environment that has the set and a ROCm in /opt/rocm, as a runtime image "
        "has, instead of a fresh one; nothing is stored.",
        is_path=True,
    )
    folders: tuple[Path, ...] = own(
        "--packages DIR",
        "With --installed: a folder of packages that the suite needs beside it.",
        param="folders",
        is_path=True,
        default=(),
    )
    slots: Path = own(
        "--slots",
        "Lock files of the devices, shared by everything on this machine.",
        is_path=True,
        default=SLOTS,
    )
    runner: str = own("--runner LABEL", "Label of this runner.")
    output: Path | None = opt(
        "Output",
        "--output DIR",
        "Where reports and logs go; default: gate-results/<suite>-<python>.",
        is_path=True,
    )


def jobs_of(app: App, options: GateCommandOptions, *, choice: Choice) -> tuple[GateJob, ...]:
    """Turn options into a job for each suite. Raises UsageError, ConfigError, StoreError."""
    for name, values in _NEEDED.items():
        if not getattr(options, name):
            raise known.lacking(f"--{name.removesuffix('s')}", values)
    named = tuple(dict.fromkeys(options.suites))
    if len(named) > 1 and (options.tests or options.failed_of):
        raise click.UsageError("--test and --failed-of go with one --suite")
    if options.folders and not options.installed:
        raise click.UsageError("--packages goes with --installed")
    if options.jax_tests and not (app.cwd / options.jax_tests).is_dir():
        raise ConfigError(f"--jax-tests: {options.jax_tests}: no folder", hint="check the path")
    wanted = tuple(suites.load(app.home.ci, name) for name in named)
    python = PythonVersion.parse(options.python)
    family, manifest, place, wheels = _wheels(app, options, python)
    asked = GateOptions(
        family=family,
        python=python,
        wheels=wheels,
        manifest=manifest,
        home=app.home,
        shard=Shard.parse(options.shard),
        device=DeviceChoice(options.device),
        jax_tests=app.cwd / options.jax_tests if options.jax_tests else None,
        choice=choice,
        tests=frozenset(options.tests),
        **{name: getattr(options, name) for name in _SAME},
    )
    return session.prepare(
        asked,
        wanted,
        output=options.output,
        failed_of=app.cwd / options.failed_of if options.failed_of else None,
        command=lambda suite: _command_line(app, options, suite),
        host=Host(
            runner=app.runner,
            environ=app.environ,
            root=Path("/"),
            cwd=app.cwd,
            cache=app.cache,
            slots=options.slots,
            name=socket.gethostname(),
            label=options.runner or app.environ.get("RUNNER_NAME", ""),
            online=len(os.sched_getaffinity(0)),
            clock=time.monotonic,
            sleep=time.sleep,
            now=app.now,
        ),
        place=place,
        signer=options.key(app),
    )


def _wheels(
    app: App, options: GateCommandOptions, python: PythonVersion
) -> tuple[Family, Manifest | None, Place | None, WheelsUnderTest]:
    """Return family, manifest, staging place and wheel set of the options."""
    if options.wheels:
        if options.channel or options.store_url:
            raise click.UsageError("--wheels are local: give no --channel and no --store")
        if options.manifest:
            raise click.UsageError("--wheels and --manifest contradict each other: give one")
        folder = app.cwd / options.wheels
        family = family_of(app, options)
        if not (folder / records.MANIFEST).is_file():
            return family, None, None, subject.of_folder(folder, python)
        local = Manifest.load(folder)
        local.check_family(family.name)
        return family, local, None, subject.of_manifest(local, python, folder)
    if not options.manifest:
        raise click.UsageError("give --manifest with --channel or --store, or --wheels")
    target = Target(app, options)
    place, manifest = target.staged(app, options.manifest)
    case = trusting(app, target.channel).case(place.view, app.now())
    evidence.check_built(place, manifest, case)  # before any of it runs here
    return target.family, manifest, place, subject.of_manifest(manifest, python, place)


# of the line that asks the same again: what names a file, always or where it is one, and what
# differs when it is asked again
_PATHS = frozenset({"wheels", "jax_tests"})
_MAYBE_PATHS = frozenset({"manifest", "rocm"})
_NOT_AGAIN = frozenset({"failed_of", "output", "dry_run", "shard", "signer"})


def _command_line(app: App, options: GateCommandOptions, suite: str) -> str:
    """Return the options given, as a line that means the same anywhere."""
    paths = {name for name in _MAYBE_PATHS if (app.cwd / str(getattr(options, name))).exists()}
    rocm = without_secrets(options.rocm) if "://" in options.rocm else options.rocm
    words = given_words(
        app,
        declared(GateCommandOptions).keys() - _NOT_AGAIN,
        instead={"suites": (suite,), "rocm": rocm},
        paths=_PATHS | paths,
    )
    data = () if app.home == home.find(None) else (f"--ci-dir={app.home.ci}",)
    return shlex.join(("gate", *data, *words))


# --- running and printing ------------------------------------------------------------------------


def dry_run(app: App, jobs: Sequence[GateJob]) -> int:
    """Print what gates would do; return the exit status of the first that could not begin."""
    planned, status = [], 0
    for job in jobs:
        key, state = job.request.key, "planned"
        app.console.info(f"would gate {key}:")
        for line in gate_runs.lines(job.request, job.host):
            app.console.info(f"  {line}")
            if isinstance(line, SetupError) and state == "planned":
                state, status = line.state.value, status or line.exit_code
        planned.append({"state": state, "cell": key})
    text = "\n".join(f"{item['cell']}: {item['state']}" for item in planned)
    app.emit(planned[0] if len(planned) == 1 else {"gates": planned}, text)
    return status


def show(app: App, reports: Sequence[GateReport]) -> int:
    """Print results, also where GitHub does; return the status of the first that is no pass.

    Raises HostError where all pass and a folder could not be written.
    """
    for report in reports:
        if path := app.environ.get("GITHUB_STEP_SUMMARY"):
            app.write(path, summary.markdown(report.results, report.judged), "a")
        if app.console.mode is ConsoleMode.GITHUB:
            folder = suites.load(app.home.ci, report.results.suite).source.folder
            for line in summary.workflow_commands(report.results, report.judged, folder):
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
