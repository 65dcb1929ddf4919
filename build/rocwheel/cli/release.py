"""`stage`, `promote`, `yank`, `rollback`, `status`; `index` `unyank`, `restore` and `prune`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

import amdgpu_family_matrix as matrix
from rocwheel.base import files
from rocwheel.base.choices import ALL
from rocwheel.base.console import count, size
from rocwheel.base.errors import PromotionError, RocwheelError, StoreError
from rocwheel.base.values import replace
from rocwheel.cli import command_line, known
from rocwheel.cli.app import App
from rocwheel.cli.options import NUMBER, PATH, command, dry_run, option
from rocwheel.cli.target import (
    ManifestOptions,
    PersonOptions,
    Target,
    TargetOptions,
    judging,
    key_of,
    manifest_options,
    must_hold,
    person_options,
    signer_option,
    target_of,
    target_options,
    trusting,
)
from rocwheel.cli.trust import at_least_option, renew, stale
from rocwheel.records.places import Place
from rocwheel.release import operations, retention, withdraw
from rocwheel.release import promote as promotion
from rocwheel.release import stage as staging
from rocwheel.release import status as standing
from rocwheel.release.ledger import log, nights
from rocwheel.release.ledger.state import Action
from rocwheel.release.trust import head
from rocwheel.release.trust.policy import KeyRole
from rocwheel.release.trust.statements import Approval
from rocwheel.tools import compat

LOOK = 10  # staged sets that `status` judges


@command("stage")
@click.argument("wheelhouse", type=PATH, default="wheelhouse/current")
@target_of("GPU family; default: those that the set is for. A one-family set needs it.")
@person_options
@dry_run
@click.pass_obj
def stage(
    app: App, wheelhouse: Path, target: TargetOptions, person: PersonOptions, dry_run: bool
) -> None:
    """Upload a wheel set to the staging index.

    WHEELHOUSE is a wheelhouse or its manifest.json; it must pass `wheel verify --thorough`. The
    command returns when the index lists every file with its hash. If you run it again, it uploads
    only what is missing.
    """
    where, who = Target(app, target, makes_store=True), person.who(app)
    family = where.families[0] if where.families else None
    planned = staging.plan(wheelhouse, family, where.channel, where.store, who=who)
    sha256 = planned.manifest.sha256
    where.families_of(planned.manifest)
    if not planned.is_done:
        with app.console.step(f"verify {sha256[:12]}"):
            staging.verify(planned, app.home.ci / "wheel_policy.yaml")
    if dry_run or not planned.is_done:
        _show(app, planned.lines(), dry_run=dry_run)
    if not (dry_run or planned.is_done):
        with app.console.step(f"stage {sha256[:12]}"):
            staging.apply(planned, console=app.console)
    _finish(app, sha256, planned.to_json(dry_run=dry_run))


def _approvals(app: App, approve: tuple[str, ...], person: PersonOptions) -> tuple[Approval, ...]:
    if approve and not (person.by or app.environ.get("GITHUB_ACTOR")):
        raise click.UsageError("--approve needs --by: the name that the release record keeps")
    approvals = []
    for text in approve:
        cell = re.fullmatch(r"([^:=]+):([^:=]+)(?:=([1-9][0-9]{0,8}))?", text)
        if not cell:
            what = "write SUITE:CPYTHON, such as unit:3.12, or unit:3.12=24300 of a first set"
            raise click.UsageError(f"--approve {text}: {what}")
        who = withdraw.with_reason(person.who(app), person.reason)
        suite, python, ran = cell[1], cell[2], int(cell[3] or 0)
        approvals.append(
            Approval(suite=suite, python=python, by=who.by, reason=who.reason, ran=ran)
        )
    return tuple(approvals)


@command("promote")
@manifest_options
@option(
    "--approve",
    metavar="SUITE:CPYTHON[=RAN]",
    multiple=True,
    help="Release a flaky cell, or a first set of which RAN tests passed; needs --reason and, "
    "outside GitHub Actions, --by.",
)
@option("--night", metavar="NAME", rare=True, help="The night whose index lists the set, too.")
@person_options
@signer_option
@dry_run
@click.pass_obj
def promote(
    app: App,
    *,
    target: ManifestOptions,
    approve: tuple[str, ...],
    night: str,
    person: PersonOptions,
    signer: str,
    dry_run: bool,
) -> int:
    """Release a staged and gated wheel set, or change nothing.

    Prints `published`, `nothing-to-do`, or `blocked` and the cells that block. A set of several
    families is released for those that pass. The exit status is 9 if any of them is blocked.
    """
    key, where, who = key_of(app, signer), Target(app, target), person.who(app)
    approvals = _approvals(app, approve, person)
    if night:
        nights.check_name(night)
    manifest, channel = where.manifest(app, target.manifest), judging(app, where.channel)
    families, is_every = where.families_of(manifest), not where.names
    how: dict[str, Any] = {"who": who, "approvals": approvals, "night": night}
    how["passes_held"] = is_every
    planned = promotion.plan(manifest, families, channel, where.store, **how)
    _show(app, planned.lines(), dry_run=dry_run)
    document = planned.to_json()
    if planned.state == "ready" and not dry_run:
        channels = target.channels_file or app.home.ci / "channels.yaml"
        decided = {"matrix": Path(matrix.__file__), "channels": channels}
        digests = {name: files.sha256(path) for name, path in decided.items()}
        with app.console.step(f"promote {planned.manifest.sha256[:12]}"):
            moved = promotion.apply(planned, console=app.console, signer=key, digests=digests)
            _refresh(app, planned.place, planned.families("ready"))
        if moved:
            app.console.info(f"{size(moved)} of wheels passed through this machine")
        document = {**planned.to_json(state="published"), "bytes_through_client": moved}
    if is_blocked := bool(planned.families("blocked")):
        refusal = planned.refusal()
        app.console.fail(refusal)
        document["reason"] = str(refusal)  # which a night shows of the cell
    _finish(app, planned.manifest.sha256, document)
    return PromotionError.exit_code if is_blocked else 0


def _changes(function: Callable[..., None]) -> Callable[..., None]:
    return person_options(signer_option(dry_run(click.pass_obj(function))))


_manifest = option(
    "--manifest",
    section="Target",
    metavar="SHA|PATH",
    type=known.MANIFEST,
    default="",
    help="A whole set, or the one that has --file.",
)
_files = option(
    "--file", "files", section="Target", metavar="NAME", multiple=True,
    help="This wheel alone, in every set or in that of --manifest; repeatable.",
)  # fmt: skip


@command("yank")
@target_options
@_manifest
@_files
@_changes
def yank(app: App, **asked: Any) -> None:
    """Yank a whole set or single files (PEP 592).

    Installers take a yanked file only where it is pinned exactly. Give --manifest, --file or both.
    """
    _change(app, Action.YANK, **asked)


@command("unyank")
@target_options
@_manifest
@_files
@_changes
def unyank(app: App, **asked: Any) -> None:
    """Take a yank back, for a whole set or single files. Give --manifest, --file or both."""
    _change(app, Action.UNYANK, **asked)


@command("rollback")
@manifest_options
@_changes
def rollback(app: App, target: ManifestOptions, **asked: Any) -> None:
    """Take a released set out of the index; the bytes stay, and `index restore` puts it back."""
    _change(app, Action.ROLLBACK, target=target, manifest=target.manifest, **asked)


@command("restore")
@manifest_options
@_changes
def restore(app: App, target: ManifestOptions, **asked: Any) -> None:
    """Put a rolled back set into the index again, with the bytes that were released."""
    _change(app, Action.RESTORE, target=target, manifest=target.manifest, **asked)


def _change(
    app: App,
    action: Action,
    *,
    target: TargetOptions | ManifestOptions,
    manifest: str,
    files: tuple[str, ...] = (),
    person: PersonOptions,
    signer: str,
    dry_run: bool,
) -> None:
    where, key = Target(app, target), key_of(app, signer)
    channel = trusting(app, where.channel)
    who = withdraw.with_reason(person.who(app), person.reason)
    if manifest:
        place, set_id = where.release_of(app, manifest)
    elif files:
        releases = [release for _, release in where.pairs()]
        place, set_id = withdraw.place_of(releases, files[0]), ""
    else:
        raise click.UsageError("give --manifest, --file or both")
    is_by_family = action in {Action.ROLLBACK, Action.RESTORE}
    chosen_families = where.names if is_by_family else ()
    planned = withdraw.plan(
        place,
        action,
        who=who,
        set_id=set_id,
        filenames=files,
        families=chosen_families,
        channel=channel,
        signer=key,
    )
    if not planned.is_done:
        _show(app, planned.lines(), dry_run=dry_run)
        if not dry_run:
            state = operations.perform(planned)
            head.renew(place, state, channel, key, now=who.clock)
            _refresh(app, place, planned.views(planned.start))
    if key is None and channel.requires(KeyRole.PROMOTER):
        app.console.warn("not signed: run it again with --signer, so that `trust verify` sees it")
    document = planned.to_json(dry_run=dry_run)
    app.emit(document, f"{' '.join(sorted(files)) or set_id} {document['state']}")


@command("prune")
@target_options
@option(
    "--orphans",
    is_flag=True,
    help="Also remove wheels older than a day that are in no set, as a killed `stage` leaves them, "
    "and files from before rocwheel that `index adopt` did not take over.",
)
@person_options
@signer_option
@dry_run
@click.pass_obj
def prune(
    app: App,
    *,
    target: TargetOptions,
    orphans: bool,
    person: PersonOptions,
    signer: str,
    dry_run: bool,
) -> None:
    """Remove what the channel's retention no longer keeps, and what killed runs left.

    With a promoter's key, --signer, it also renews the head statement of each release.
    """
    where, who = Target(app, target), person.who(app, reason="retention")
    key = key_of(app, signer)
    plans = retention.plans(where.pairs(), where.channel, who=who, orphans=orphans)
    documents = []
    for planned in plans:
        _show(app, planned.lines(), dry_run=dry_run)
        swept = () if dry_run else retention.apply(planned)
        if planned.leaving(planned.start) and not dry_run:
            _refresh(app, planned.place, planned.start.views)
        if key and not dry_run:
            renew(app, planned.place, trusting(app, where.channel), key, who)
        _show(app, [f"leftover {name}" for name in swept], dry_run=False)
        documents.append(planned.to_json(dry_run=dry_run, leftovers=swept))
    sets = count(sum(len(item["sets"]) for item in documents), "set")
    app.emit({"places": documents}, f"{sets} {'to prune' if dry_run else 'pruned'}")


@command("status")
@target_options
@option(
    "--older-than",
    metavar="HOURS",
    type=NUMBER,
    help="Only sets that were staged longer ago and are not released.",
)
@option(
    "--look",
    type=click.IntRange(min=0),
    default=LOOK,
    help="Number of staged sets, newest first, whose verdicts are read; 0 reads the log alone.",
)
@at_least_option
@click.pass_obj
def status(
    app: App, target: TargetOptions, older_than: float | None, look: int, at_least: int
) -> int:
    """Show every wheel set: staged, gated, released; its age, and what holds it up.

    The exit status is 7 if the log of a release is damaged, which blocks every change until it is
    repaired. It is 9 if a release is older than one seen before, or its head statement expired. It
    is 3 if every set is of a family that only a --family-file has.
    """
    where, now = Target(app, target), app.now()
    channel, known_families = judging(app, where.channel), matrix.FAMILIES | where.own
    overview = standing.overview(
        where.pairs(), known_families, channel, now=now, hours=older_than, look=look
    )
    if not overview.sets:
        must_hold(channel, where.store)
    new = (replace(s, rollback=s.rollback and command_line(app, s.rollback)) for s in overview.sets)
    overview = replace(overview, sets=tuple(new))
    old, lags = stale(app, overview.releases, channel, at_least)
    for text in (*overview.problems, *old, *lags):
        app.console.warn(text)
    app.emit(overview.to_json(), "\n".join(overview.lines()))
    if overview.is_damaged:
        return StoreError.exit_code
    return PromotionError.exit_code if old else 0


def _refresh(app: App, place: Place, families: Iterable[str]) -> None:
    """Renew the page of what fits together beside each index; the change itself is done by now."""
    if place.is_staging:
        return
    state = log.read(place)
    for index in operations.indexes(place, state, {*families, ALL}):
        try:
            compat.refresh(index, state, app.home.ci)
        except RocwheelError as exc:
            app.console.warn(f"{index.compat} is as before: {exc}")


def _show(app: App, lines: list[str], *, dry_run: bool) -> None:
    """Print a plan: as the result of a dry run, otherwise on stderr."""
    for line in lines:
        if dry_run and not app.json:
            click.echo(line)
        else:
            app.console.info(line)


def _finish(app: App, manifest: str, document: dict[str, Any]) -> None:
    app.emit(document, f"{manifest} {document['state']}")
    app.github_outputs({"manifest": manifest, "state": document["state"]})
