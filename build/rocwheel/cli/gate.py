"""`gate` and its commands: `list`, `merge`; and `skips`."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import msgspec

import amdgpu_family_matrix as matrix
from amdgpu_family_matrix import Family
from rocwheel.base import home
from rocwheel.base.console import ConsoleMode, columns, count, duration
from rocwheel.base.download import without_secrets
from rocwheel.base.errors import ConfigError
from rocwheel.base.versions import PythonVersion
from rocwheel.cli import known
from rocwheel.cli.app import App
from rocwheel.cli.options import (
    NUMBER,
    PATH,
    alone,
    dry_run,
    given_words,
    group,
    option,
    option_set,
)
from rocwheel.cli.target import (
    FAMILIES,
    ON_DEVICES,
    Target,
    TargetOptions,
    family_of,
    family_option,
    key_of,
    signer_option,
    trusting,
)
from rocwheel.gate import SetupError, run, session, subject
from rocwheel.gate.report import ci
from rocwheel.gate.request import Choice, DeviceChoice, GateRequest
from rocwheel.gate.session import GateReport
from rocwheel.gate.subject import WheelsUnderTest
from rocwheel.gate.suite import skips, suites, upstream
from rocwheel.gate.suite.discovery import Shard
from rocwheel.gate.verdict import storing
from rocwheel.gate.verdict.judge import merge as merge_shards
from rocwheel.records.manifest import Manifest
from rocwheel.records.places import Place
from rocwheel.records.results import Results
from rocwheel.records.verdict import KnownSuite, State, Verdict
from rocwheel.release import proof
from rocwheel.release.ledger import manifests, verdicts
from rocwheel.tools import housekeeping

Released = Callable[[], tuple[Manifest, WheelsUnderTest]]
_SAME = (  # as asked
    "requirements", "rocm", "jax_tests", "lanes", "jobs", "patience", "installed", "folders",
    "slots",
)  # fmt: skip
_NEEDED = {"suite": known.suites, "python": known.pythons, "family": known.families}


@dataclass(frozen=True, kw_only=True)
class GateCommandOptions(TargetOptions):
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
    family_option("GPU family (required)."),
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
    *ON_DEVICES,
    option(
        "--with",
        "requirements",
        metavar="NAME==VERSION",
        multiple=True,
        rare=True,
        help="A further package in the environment; repeatable.",
    ),
    option("--shard", metavar="I/N", default="1/1", help="Run part I of N."),
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
    family, manifest, wheels, released = _wheels(app, options, python)
    asked = GateRequest(
        suite=wanted[0],
        family=family,
        python=python,
        wheels=wheels,
        manifest=manifest,
        released=released,
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
) -> tuple[Family, Manifest, WheelsUnderTest, Released | None]:
    """Return family, manifest and wheel set of the options, and how to find the released one."""
    if options.wheels:
        if options.channel or options.store:
            raise click.UsageError("--wheels are local: give no --channel and no --store")
        if options.manifest:
            raise click.UsageError("--wheels and --manifest contradict each other: give one")
        folder, family = app.cwd / options.wheels, family_of(app, options)
        local = Manifest.load(folder)
        local.check_family(family.name)
        return family, local, subject.of_manifest(local, python, folder), None
    if not options.manifest:
        raise click.UsageError("give --manifest with --channel or --store, or --wheels")
    target = Target(app, options)
    place, manifest = target.staged(app, options.manifest)
    case = trusting(app, target.channel).case(place.family, app.now())
    proof.check_built(place, manifest, case)  # before any of it runs here

    def released() -> tuple[Manifest, WheelsUnderTest]:
        _, release = target.channel.pair(target.store, manifest, place.family)
        there, found = manifests.released(release, jax=manifest.jax_version)
        proof.check_built(place.at(there.home), found, case)
        return found, subject.of_manifest(found, python, there)

    wheels = subject.of_manifest(manifest, python, place)
    return target.family, manifest, wheels, None if options.installed else released


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


def preview(app: App, requests: Sequence[GateRequest]) -> int:
    """Print what gates would do; return the exit status of the first that could not begin."""
    planned, status = [], 0
    for request in requests:
        state = "planned"
        app.console.info(f"would gate {request.key}:")
        for line in run.lines(request, app.here):
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


@group("gate", invoke_without_command=True)
@gate_options
@signer_option
@dry_run
@alone
@click.pass_obj
def gate(app: App, asked: GateCommandOptions, signer: str, dry_run: bool) -> int:
    """Run a suite on this machine's GPUs against staged wheels; store a verdict.

    The wheels are installed by SHA-256 into a fresh environment. The exit status is 0 if every
    suite passes, else 21 to 30: the state of the first that does not.
    """
    choice = Choice.NAMED if asked.tests or asked.failed_of else Choice.ALL
    key, requests = key_of(app, signer), requests_of(app, asked, choice)
    if dry_run:
        return preview(app, requests)
    with housekeeping.using(app.cache):
        reports = list(session.run_each(requests, app.here, key))
    return show(app, reports)


@gate.command("list")
@click.pass_obj
def list_suites(app: App) -> None:
    """List the suites: what each needs, what a pass demands, which families require it."""
    loaded = suites.load_all(app.home.ci)
    required = {
        suite.name: [f.name for f in matrix.FAMILIES.values() if f.requires(suite.name)]
        for suite in loaded
    }
    rows = [
        (
            suite.name,
            " or ".join(map(str, suite.gpus)) if suite.needs_gpu else "none",
            suite.source.folder or "JAX's own",
            duration(suite.deadlines.suite),
            str(suite.must_run),
            f"{len(required[suite.name])} of {len(matrix.FAMILIES)}",
            suite.about,
        )
        for suite in loaded
    ]
    header = ("suite", "GPUs", "tests", "deadline", "must run", "families", "about")
    listed = [{**msgspec.to_builtins(s), "required_by": required[s.name]} for s in loaded]
    app.emit({"suites": listed}, "\n".join(columns(header, rows)))


@dataclass(frozen=True, kw_only=True)
class MergeOptions(TargetOptions):
    python: str
    manifest: str
    suite: str


@gate.command("merge")
@click.argument("folders", metavar="[FOLDER]...", type=PATH, nargs=-1)
@option_set("asked", MergeOptions, *GATED_SET, SUITE(default="", help="A suite (required)."))
@option("--shards", type=click.IntRange(min=2), required=True, help="How many there are.")
@option("--output", type=PATH, default="gate-results/merged", help="Where the reports go.")
@signer_option
@dry_run
@click.pass_obj
def merge(
    app: App,
    *,
    folders: tuple[Path, ...],
    asked: MergeOptions,
    shards: int,
    output: Path,
    signer: str,
    dry_run: bool,
) -> int:
    """Combine N shards into one verdict; a missing shard is `not-run`.

    FOLDER is what `gate --shard` left in --output; without any, the store's results count. If
    the channel needs runners' signatures, a stored shard without one counts as missing.
    """
    key = key_of(app, signer)
    place, found = _found(app, asked, folders, shards, output)
    listed = skips.load(app.home.ci, today=app.now().date())

    def known_suite(name: str) -> KnownSuite:
        return suites.known(app.home, suites.load(app.home.ci, name), listed)

    merged = merge_shards(found, shards, known_suite)
    if dry_run:
        app.console.info(f"would store: {merged[1].state.value} {merged[1].message}".rstrip())
        return 0
    with storing.alone(output):
        report = session.finish(
            merged, place, output, app.here, whole=app.now(),
            signer=key, parts=[verdict.sha256 for verdict, _ in found if verdict],
        )  # fmt: skip
        return show(app, [report])


def _found(
    app: App, asked: MergeOptions, folders: tuple[Path, ...], shards: int, output: Path
) -> tuple[Place | None, Sequence[tuple[Verdict | None, Results]]]:
    """Return what shards left in folders, or in a store and which that is."""
    if folders:
        return None, [storing.shard_in(item, seen_from=output) for item in folders]
    if not (asked.manifest and asked.python and asked.suite):
        raise click.UsageError(
            "give --manifest, --python and --suite, or the folders of the shards"
        )
    target = Target(app, asked)
    place, manifest = target.staged(app, asked.manifest)
    stored = verdicts.find(place, manifest.sha256)
    case = trusting(app, target.channel).case(place.family, app.now())
    unsigned, signed = proof.unsigned(place, manifest, stored, case), []
    wanted = (asked.python, asked.suite, f"/{shards}")
    for item in stored:
        # an unreadable one is left out: it counts at the promotion, not in this merge
        verdict = item.verdict
        if not verdict or wanted != (
            verdict.python, verdict.suite, "/" + verdict.shard.partition("/")[2]
        ):  # fmt: skip
            continue
        if why := unsigned.get(item.key):
            what = f"shard {verdict.shard} is left out: verdict {item.sha256[:12]} is unsigned"
            app.console.warn(f"{what}: {why}")
        else:
            signed.append((verdict, storing.shard_of(place, verdict)))
    return place, signed


@gate.group("skips")
def skips_group() -> None:
    """Import and check the skip lists in ci/skips."""


@skips_group.command("verify")
@gate_options
@dry_run
@click.pass_obj
def verify(app: App, asked: GateCommandOptions, dry_run: bool) -> int:
    """Run the tests that skip lists leave out, and print which pass now; store nothing."""
    request, *more = requests_of(app, asked, Choice.SKIPPED)
    suite, empty = request.suite.name, skips.SkipAudit(passing=(), unmet=(), tests={})
    if more:
        raise click.UsageError("this takes one --suite at a time")
    if not any(suite in entry.suites for entry in request.skips):
        app.emit(msgspec.to_builtins(empty), f"ci/skips: no entry for the suite {suite}")
        return 0
    if dry_run:
        return preview(app, (request,))
    with housekeeping.using(app.cache):
        gated = session.run_unstored(request, app.here)
    audit = skips.SkipAudit.of(gated.results)
    app.emit(msgspec.to_builtins(audit), "\n".join(audit.lines()))
    end = gated.error or skips.SkipAudit.unfinished(gated.results)
    return end.exit_code if end else 0


_needed = partial(option, required=True)


@skips_group.command("import")
@_needed("--from", "checkout", type=PATH, help="A checkout of JAX or of TheRock.")
@_needed("--jax", metavar="VERSION", help="The release of JAX that it is for.")
@_needed("--issue", metavar="URL", help="Where the work on these tests is tracked.")
@_needed("--owner", metavar="NAME", help="Who looks after the entries.")
@_needed("--expires", metavar="DATE", help="When the entry must be looked at again.")
@dry_run
@click.pass_obj
def import_skips(
    app: App, *, checkout: Path, jax: str, issue: str, owner: str, expires: str, dry_run: bool
) -> None:
    """Import what JAX's or TheRock's ROCm jobs leave out of JAX's tests, as a list in ci/skips."""
    about = {"issue": issue, "owner": owner, "expires": expires}
    entries = upstream.read(checkout, suites.load_all(app.home.ci), jax, about)
    path = upstream.write(
        app.home.ci, checkout, jax, entries, today=app.now().date(), dry_run=dry_run
    )
    app.emit({"skips": entries, "file": str(path)}, f"{path}: {count(len(entries), 'test')}")
