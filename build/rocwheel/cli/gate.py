"""`gate` and its commands: `list`, `merge`, `calibrate`; and `skips`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import click

from rocwheel.base.option import opt
from rocwheel.cli import gate_run
from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, NoOptions, command, group, group_command, own
from rocwheel.cli.gate_run import GateCommandOptions, GatedSetOptions
from rocwheel.cli.imports import when_run
from rocwheel.cli.target import Target, trusting
from rocwheel.cli.trust import SignerOptions

with when_run():
    from pathlib import Path

    import msgspec

    import amdgpu_family_matrix as matrix
    from rocwheel.base.console import columns, count, duration
    from rocwheel.gate import session
    from rocwheel.gate.request import Choice
    from rocwheel.gate.suite import calibration, skips, suites, upstream
    from rocwheel.gate.suite.suites import Suite
    from rocwheel.gate.verdict import storing
    from rocwheel.gate.verdict.merge import merge as merge_shards
    from rocwheel.records.places import Place
    from rocwheel.records.results import Results
    from rocwheel.records.verdict import KnownSuite, Verdict
    from rocwheel.release.ledger import verdicts
    from rocwheel.release.trust import evidence
    from rocwheel.tools import housekeeping

_needed = partial(own, required=True)


@group_command("gate", GateCommandOptions)
def gate(app: App, options: GateCommandOptions) -> int:
    """Run a suite on this machine's GPUs against staged wheels; store a verdict.

    The wheels are installed by SHA-256 into a fresh environment. The exit status is 0 for a pass
    and otherwise 21 to 31, one for each state, of the first suite that is no pass; a verdict is
    stored in any case.
    """
    named = options.tests or options.failed_of
    jobs = gate_run.jobs_of(app, options, choice=Choice.NAMED if named else Choice.ALL)
    if options.dry_run:
        return gate_run.dry_run(app, jobs)
    with housekeeping.using(app.cache):
        reports = list(session.run_each(jobs, app.console))
    return gate_run.show(app, reports)


@command("list", NoOptions, parent=gate)
def list_suites(app: App, _options: NoOptions) -> None:
    """List the suites: what they need, what they demand, who requires them."""
    loaded = suites.load_all(app.home.ci)
    required = {
        suite.name: [f.name for f in matrix.FAMILIES.values() if f.requires(suite.name)]
        for suite in loaded
    }
    rows = [_row(suite, len(required[suite.name])) for suite in loaded]
    header = ("suite", "GPUs", "tests", "deadline", "must run", "families", "about")
    listed = [{**msgspec.to_builtins(s), "required_by": required[s.name]} for s in loaded]
    app.emit({"suites": listed}, "\n".join(columns(header, rows)))


def _row(suite: Suite, number: int) -> tuple[str, ...]:
    gpus = " or ".join(map(str, suite.gpus)) if suite.needs_gpu else "none"
    source, seconds = suite.source.folder or "JAX's own", duration(suite.deadlines.suite)
    families = f"{number} of {len(matrix.FAMILIES)}"
    return suite.name, gpus, source, seconds, str(suite.must_run), families, suite.about


class GateMergeOptions(GatedSetOptions, SignerOptions, DryRun):
    suite: str = opt("Target", "--suite NAME", "A suite (required).", values="suites")
    shards: int = own("--shards", "How many there are.", kind=click.IntRange(min=2), required=True)
    output: Path = own(
        "--output", "Where the reports go.", is_path=True, default="gate-results/merged"
    )
    folders: tuple[Path, ...] = own("FOLDERS", is_path=True, nargs=-1, default=())


@command("merge", GateMergeOptions, parent=gate)
def merge(app: App, options: GateMergeOptions) -> int:
    """Make one verdict of N shards; a missing one is `not-run`.

    FOLDERS are what `gate --shard` left in --output; without them the store is asked. Where the
    channel needs runners' signatures, a stored shard without one counts as missing.
    """
    signer, (place, shards) = options.key(app), _shards(app, options)
    merged = merge_shards(shards, options.shards, partial(_known, app))
    if options.dry_run:
        app.console.info(f"would store: {merged[1].state.value} {merged[1].message}".rstrip())
        return 0
    with storing.alone(output := options.output):
        report = session.finish(
            merged, place, output,
            home=app.home, cache=app.cache, console=app.console, whole=app.now(),
            signer=signer, parts=[verdict.sha256 for verdict, _ in shards if verdict],
        )  # fmt: skip
        return gate_run.show(app, [report])


def _shards(
    app: App, options: GateMergeOptions
) -> tuple[Place | None, Sequence[tuple[Verdict | None, Results]]]:
    """Return what shards left in folders, or in a store and which that is."""
    if options.folders:
        return None, [storing.shard_in(item, seen_from=options.output) for item in options.folders]
    if not (options.manifest and options.python and options.suite):
        raise click.UsageError(
            "give --manifest, --python and --suite, or the folders of the shards"
        )
    target = Target(app, options)
    place, manifest = target.staged(app, options.manifest)
    stored = verdicts.find(place, manifest.sha256)
    every = {item.sha256: item.verdict for item in stored if item.verdict}
    case = trusting(app, target.channel).case(place.view, app.now())
    unsigned, signed = evidence.unsigned(place, manifest.sha256, every, case), []
    wanted = (options.python, options.suite, f"/{options.shards}")
    for digest, verdict in every.items():
        # one that cannot be read is none: it counts at the promotion, whatever is merged here
        if (verdict.python, verdict.suite, "/" + verdict.shard.partition("/")[2]) != wanted:
            continue
        if why := unsigned.get(digest):
            what = f"shard {verdict.shard} is left out: verdict {digest[:12]} is unsigned"
            app.console.warn(f"{what}: {why}")
        else:
            signed.append((verdict, storing.shard_of(place, verdict)))
    return place, signed


def _known(app: App, name: str) -> KnownSuite:
    suite = suites.load(app.home.ci, name)
    return suites.known(app.home, suite, skips.load(app.home.ci, today=app.now().date()))


class GateCalibrateOptions(DryRun):
    results: tuple[Path, ...] = own("RESULTS", is_path=True, nargs=-1, required=True, default=())


@command("calibrate", GateCalibrateOptions, parent=gate)
def calibrate(app: App, options: GateCalibrateOptions) -> None:
    """Write down how many tests ran on a family's GPUs: what its verdicts demand from then on.

    RESULTS are folders that `gate` or `gate merge` left in --output, of whole runs.
    """
    runs = [(str(path), storing.results_in(path)) for path in options.results]
    counted = calibration.calibrated(app.home.ci, runs, matrix.FAMILIES)
    rows = [
        (suite, family, jax, ", ".join(f"{name} {number:,}" for name, number in numbers.items()))
        for suite, by_family in counted.items()
        for family, by_jax in by_family.items()
        for jax, numbers in by_jax.items()
    ]
    if not options.dry_run:
        app.console.info(f"wrote {calibration.write(app.home.ci, counted)}")
    text = "\n".join(columns(("suite", "family", "JAX", "demanded"), rows))
    app.emit({"counted": counted}, text)


@group("skips")
def skips_group() -> None:
    """Look after the skip lists in ci/skips."""


@command("verify", GateCommandOptions, parent=skips_group)
def verify(app: App, options: GateCommandOptions) -> int:
    """Run what the skip lists leave out and say which of it passes now; nothing is stored."""
    job, *more = gate_run.jobs_of(app, options, choice=Choice.SKIPPED)
    suite, empty = job.request.suite.name, skips.SkipAudit(passing=(), unmet=(), tests={})
    if more:
        raise click.UsageError("this takes one --suite at a time")
    if not any(suite in entry.suites for entry in job.request.skips):
        app.emit(msgspec.to_builtins(empty), f"ci/skips: no entry for the suite {suite}")
        return 0
    if options.dry_run:
        return gate_run.dry_run(app, (job,))
    with housekeeping.using(app.cache):
        gated = session.run_unstored(job, app.console)
    audit = skips.SkipAudit.of(gated.results)
    app.emit(msgspec.to_builtins(audit), "\n".join(audit.lines()))
    end = gated.error or skips.SkipAudit.unfinished(gated.results)
    return end.exit_code if end else 0


class SkipsImportOptions(DryRun):
    source: Path = _needed(
        "--from", "A checkout of JAX or of TheRock.", param="source", is_path=True
    )
    jax: str = _needed("--jax VERSION", "The release of JAX that it is for.")
    issue: str = _needed("--issue URL", "Where the work on these tests is tracked.")
    owner: str = _needed("--owner NAME", "Who looks after the entries.")
    expires: str = _needed("--expires DATE", "When the entry must be looked at again.")


@command("import", SkipsImportOptions, parent=skips_group)
def import_skips(app: App, options: SkipsImportOptions) -> None:
    """Import what JAX's or TheRock's ROCm jobs leave out of JAX's tests, as a list in ci/skips."""
    about = {"issue": options.issue, "owner": options.owner, "expires": options.expires}
    checkout = options.source
    entries = upstream.read(checkout, suites.load_all(app.home.ci), options.jax, about)
    path = upstream.write(
        app.home.ci, checkout, options.jax, entries, today=app.now().date(), dry_run=options.dry_run
    )
    app.emit({"skips": entries, "file": str(path)}, f"{path}: {count(len(entries), 'test')}")
