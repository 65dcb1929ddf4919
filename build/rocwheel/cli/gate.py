"""`gate` and its commands: `list`, `merge`; and `skips`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import msgspec

import amdgpu_family_matrix as matrix
from rocwheel.base.console import columns, count, duration
from rocwheel.cli import gate_run
from rocwheel.cli.app import App
from rocwheel.cli.gate_run import GATED_SET, SUITE, GateCommandOptions, gate_options
from rocwheel.cli.options import PATH, alone, dry_run, group, option, option_set
from rocwheel.cli.target import Target, TargetOptions, key_of, signer_option, trusting
from rocwheel.gate import session
from rocwheel.gate.request import Choice
from rocwheel.gate.suite import skips, suites, upstream
from rocwheel.gate.suite.suites import Suite
from rocwheel.gate.verdict import storing
from rocwheel.gate.verdict.merge import merge as merge_shards
from rocwheel.records.places import Place
from rocwheel.records.results import Results
from rocwheel.records.verdict import KnownSuite, Verdict
from rocwheel.release import proof
from rocwheel.release.ledger import verdicts
from rocwheel.tools import housekeeping


@group("gate", invoke_without_command=True)
@gate_options
@signer_option
@dry_run
@alone
@click.pass_obj
def gate(app: App, asked: GateCommandOptions, signer: str, dry_run: bool) -> int:
    """Run a suite on this machine's GPUs against staged wheels; store a verdict.

    The wheels are installed by SHA-256 into a fresh environment. The exit status is 0 for a pass,
    else 21 to 31 by the state of the first suite that did not pass. A verdict is stored in any
    case.
    """
    choice = Choice.NAMED if asked.tests or asked.failed_of else Choice.ALL
    key, requests = key_of(app, signer), gate_run.requests_of(app, asked, choice)
    if dry_run:
        return gate_run.dry_run(app, requests)
    with housekeeping.using(app.cache):
        reports = list(session.run_each(requests, app.here, key))
    return gate_run.show(app, reports)


@gate.command("list")
@click.pass_obj
def list_suites(app: App) -> None:
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


@dataclass(frozen=True, kw_only=True)
class MergeOptions(TargetOptions):
    """The shards of which set, suite and CPython are merged."""

    python: str
    manifest: str
    suite: str


@gate.command("merge")
@click.argument("folders", metavar="FOLDERS", type=PATH, nargs=-1)
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
    """Make one verdict of N shards; a missing one is `not-run`.

    FOLDERS are what `gate --shard` left in --output; without them the store is asked. Where the
    channel needs runners' signatures, a stored shard without one counts as missing.
    """
    key = key_of(app, signer)
    place, found = _found(app, asked, folders, shards, output)
    merged = merge_shards(found, shards, partial(_known, app))
    if dry_run:
        app.console.info(f"would store: {merged[1].state.value} {merged[1].message}".rstrip())
        return 0
    with storing.alone(output):
        report = session.finish(
            merged, place, output, app.here, whole=app.now(),
            signer=key, parts=[verdict.sha256 for verdict, _ in found if verdict],
        )  # fmt: skip
        return gate_run.show(app, [report])


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


def _known(app: App, name: str) -> KnownSuite:
    suite = suites.load(app.home.ci, name)
    return suites.known(app.home, suite, skips.load(app.home.ci, today=app.now().date()))


@group("skips")
def skips_group() -> None:
    """Look after the skip lists in ci/skips."""


@skips_group.command("verify")
@gate_options
@dry_run
@click.pass_obj
def verify(app: App, asked: GateCommandOptions, dry_run: bool) -> int:
    """Run what the skip lists leave out and say which of it passes now; nothing is stored."""
    request, *more = gate_run.requests_of(app, asked, Choice.SKIPPED)
    suite, empty = request.suite.name, skips.SkipAudit(passing=(), unmet=(), tests={})
    if more:
        raise click.UsageError("this takes one --suite at a time")
    if not any(suite in entry.suites for entry in request.skips):
        app.emit(msgspec.to_builtins(empty), f"ci/skips: no entry for the suite {suite}")
        return 0
    if dry_run:
        return gate_run.dry_run(app, (request,))
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
