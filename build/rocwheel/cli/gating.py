"""What the gate's commands share: options to a request, the run as it goes, reports and verdict."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from rocwheel.cli.dist import CHECKOUT
from rocwheel.cli.release import Target, family_named
from rocwheel.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from amdgpu_family_matrix import Family
    from rocwheel.cli.app import App
    from rocwheel.gate.engine.plan import Snapshot, Watcher
    from rocwheel.gate.environment import WheelsUnderTest
    from rocwheel.gate.request import Choice, GateRequest, Host
    from rocwheel.gate.run import GateResult
    from rocwheel.manifest import Manifest
    from rocwheel.model import PythonVersion
    from rocwheel.places import Place
    from rocwheel.results import Attempt, Fault, Results
    from rocwheel.verdict import Verdict

NAME_WIDTH = 40  # of a test in the progress line


def app_of(ctx: click.Context) -> App:
    """The run of the command line that a context belongs to."""
    from rocwheel.cli.app import App

    app = ctx.find_object(App)
    if app is None:
        raise ValueError("no App in this context")
    return app


def request(
    app: App, options: dict[str, Any], *, choice: Choice
) -> tuple[GateRequest, Host, Place | None]:
    """Turn options into a request. Raises UsageError, ConfigError, StoreError."""
    from rocwheel.gate.request import DeviceChoice, GateRequest
    from rocwheel.gate.suite import history, skips, suites
    from rocwheel.gate.suite.discovery import Shard
    from rocwheel.gate.verdict import storing
    from rocwheel.model import PythonVersion

    command = _command_line(app, options)
    for name in ("suite", "python", "family"):
        if not options[name]:
            raise click.UsageError(f"give --{name}; `gate list` shows the suites")
    python = PythonVersion.parse(options["python"])
    suite = suites.load(CHECKOUT, options["suite"])
    host = this_host(app, options["slots"], options["runner"])
    family, manifest, place, wheels = _wheels(app, options, python)
    shard = Shard.parse(options["shard"])
    suffix = f"-{shard.number}-of-{shard.count}" if shard.count > 1 else ""
    output = options["output"] or f"gate-results/{suite.name}-{python}{suffix}"
    request = GateRequest(
        suite=suite,
        family=family,
        python=python,
        wheels=wheels,
        manifest=manifest,
        checkout=CHECKOUT,
        output=app.cwd / output,
        libraries=suites.libraries(CHECKOUT),
        skips=skips.load(CHECKOUT, today=app.now().date()),
        shard=shard,
        device=DeviceChoice(options["device"]),
        rocm=options["rocm"] or "",
        jax_tests=app.cwd / options["jax_tests"] if options["jax_tests"] else None,
        requirements=options["requirements"],
        lanes=options["lanes"],
        choice=choice,
        tests=frozenset(options["tests"]),
        deadline=options["deadline"],
        patience=options["patience"],
        keep=options["keep"],
        history=history.read(place, suite.name, host.cache),
        command=command,
    )
    if options["failed_of"]:
        request = request.for_failures_of(storing.results_in(app.cwd / options["failed_of"]))
    return request, host, place


def _wheels(
    app: App, options: dict[str, Any], python: PythonVersion
) -> tuple[Family, Manifest | None, Place | None, WheelsUnderTest]:
    """Family, manifest, staging place and wheel set of the options."""
    from rocwheel.gate import environment
    from rocwheel.manifest import MANIFEST, Manifest
    from rocwheel.release.wheelset import rocm_major

    if options["wheels"]:
        if options["channel"] or options["store_url"]:
            raise click.UsageError("--wheels are local: give no --channel and no --store")
        folder = app.cwd / options["wheels"]
        family = family_named(options["family"])
        if not (folder / MANIFEST).is_file():
            return family, None, None, environment.of_folder(folder, python)
        local: Manifest = Manifest.load(folder)
        link = lambda name: (folder / name).resolve().as_uri()  # noqa: E731
        return family, local, None, environment.of_manifest(local, python, link)
    if not options["manifest"]:
        raise click.UsageError("give --manifest with --channel or --store, or --wheels")
    target = Target(app, _target_of(options))
    manifest = target.manifest(app, options["manifest"])
    place = target.channel.staging(target.store, target.family.name, rocm_major(manifest))
    return target.family, manifest, place, environment.of_manifest(manifest, python, place.link)


def _target_of(options: dict[str, Any]) -> dict[str, Any]:
    names = ("store_url", "channel", "channels_file", "family", "single_writer")
    return {name: options[name] for name in names}


def this_host(app: App, slots: Path, label: str) -> Host:
    from rocwheel.gate.request import Host
    from rocwheel.process import HostRunner, base_env

    return Host(
        runner=HostRunner(base_env(app.environ)),
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


def _command_line(app: App, options: dict[str, Any]) -> str:
    """The options that were given, as a line that means the same anywhere; without `rerun`'s."""
    paths = {"wheels", "jax_tests", "channels_file", "slots"}
    maybe = {"manifest", "rocm"}
    names = {"store_url": "store", "requirements": "with", "tests": "test"}
    words, context = ["gate"], click.get_current_context()
    for name, value in sorted(options.items()):
        default = context.get_parameter_source(name) is ParameterSource.DEFAULT
        if not value or default or name in {"failed_of", "output", "keep"}:
            continue
        option = f"--{names.get(name, name).replace('_', '-')}"
        if value is True:
            words.append(option)
            continue
        is_path = name in paths or (name in maybe and (app.cwd / str(value)).exists())
        values = value if isinstance(value, tuple) else (value,)
        words += [f"{option}={app.cwd / str(item) if is_path else item}" for item in values]
    return shlex.join(words)


def program() -> list[str]:
    return [sys.executable, str(CHECKOUT / "build" / "ci_build")]


# --- running and telling -------------------------------------------------------------------------


def dry_run(app: App, request: GateRequest, host: Host) -> int:
    from rocwheel.gate import run as room

    app.console.info(f"would gate {request.cell}:")
    for line in room.lines(request, host):
        app.console.info(f"  {line}")
    app.emit({"state": "planned", "cell": request.cell}, f"{request.cell}: planned")
    return 0


def run(app: App, request: GateRequest, host: Host) -> GateResult:
    from rocwheel.gate import run as room
    from rocwheel.gate.verdict import storing

    storing.clear(request.output)
    app.console.info(f"gate {request.cell}")
    with _watching(app) as watcher:
        return room.run(request, host, app.console, watcher)


@contextmanager
def _watching(app: App) -> Iterator[Watcher]:
    """Show a run as it goes: a bar, and every failure at once."""
    from rocwheel.gate.engine.plan import Watcher

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
    app: App,
    results: Results,
    found: Fault,
    verdict: Verdict | None,
    *,
    place: Place | None,
    output: Path,
) -> int:
    """Write the reports, store them and the verdict, say the result; return its exit status."""
    from rocwheel.gate.suite import suites
    from rocwheel.gate.verdict import storing
    from rocwheel.report import render
    from rocwheel.report.page import verdict_text

    notes = {library.name: library.note for library in suites.libraries(CHECKOUT)}
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
    from rocwheel.console import Mode
    from rocwheel.gate.suite import suites
    from rocwheel.report import summary

    path = app.environ.get("GITHUB_STEP_SUMMARY")
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(summary.markdown(results, found))
    if app.console.mode is Mode.GITHUB:
        folder = suites.load(CHECKOUT, results.suite).source.folder
        for line in summary.workflow_commands(results, found, folder):
            app.console.info(line)


def remember(
    app: App, request: GateRequest, host: Host, results: Results, place: Place | None
) -> None:
    """Keep durations for the next run; without them it is slower, so failing is a warning."""
    from rocwheel.gate.suite import history

    if not results.tests:
        return
    try:
        history.add(place, request.suite.name, host.cache, results)
    except (StoreError, OSError) as exc:
        app.console.warn(f"durations were not kept: {exc}")


# --- stored results --------------------------------------------------------------------


def stored_shards(
    app: App, options: dict[str, Any], count: int
) -> tuple[Place, list[tuple[Verdict | None, Results]]]:
    from rocwheel.gate.verdict import storing
    from rocwheel.release.wheelset import rocm_major

    for name in ("manifest", "python", "suite"):
        if not options[name]:
            raise click.UsageError(f"give --{name}, or the folders of the shards")
    target = Target(app, _target_of(options))
    manifest: Manifest = target.manifest(app, options["manifest"])
    place = target.channel.staging(target.store, target.family.name, rocm_major(manifest))
    found = storing.shards(place, manifest.sha256, options["python"], options["suite"], count)
    return place, list(found)


def stored_results(app: App, options: dict[str, Any], key: str) -> Results:
    from rocwheel.gate.verdict import storing

    target = Target(app, _target_of(options))
    place = target.pairs()[0][0]
    return storing.read(place, key)[1]
