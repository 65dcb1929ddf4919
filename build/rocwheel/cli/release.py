"""`stage`, `promote`, `yank`, `unyank`, `rollback`, `restore`, `prune`, `status`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from rocwheel.base.choices import ALL
from rocwheel.base.errors import PromotionError, RocwheelError, StoreError
from rocwheel.base.option import opt
from rocwheel.cli import as_called, command_line
from rocwheel.cli.app import App
from rocwheel.cli.command import NUMBER, DryRun, command, own
from rocwheel.cli.imports import when_run
from rocwheel.cli.target import (
    ManifestOptions,
    PersonOptions,
    Target,
    TargetOptions,
    judging,
    trusting,
)
from rocwheel.cli.trust import SignerOptions

with when_run():
    from pathlib import Path

    import amdgpu_family_matrix as matrix
    from rocwheel.base import files
    from rocwheel.base.console import count, size
    from rocwheel.base.values import replace
    from rocwheel.records.places import Place
    from rocwheel.release import operations, retention, withdraw
    from rocwheel.release import promote as promotion
    from rocwheel.release import stage as staging
    from rocwheel.release import status as standing
    from rocwheel.release.ledger.state import Action
    from rocwheel.release.trust.policy import KeyRole, Signer
    from rocwheel.release.trust.statements import Approval
    from rocwheel.tools import compat

LOOK = 10  # staged sets that `status` judges


class StageOptions(TargetOptions, PersonOptions, DryRun):
    wheelhouse: Path = own("WHEELHOUSE", is_path=True, default="wheelhouse/current")


@command("stage", StageOptions)
def stage(app: App, options: StageOptions) -> None:
    """Upload a wheel set to the staging index, whole and once.

    WHEELHOUSE is a wheelhouse or its manifest.json. Returns when the staging index lists every
    file with its hash; run again, it uploads only what is missing.
    """
    target, dry_run = Target(app, options, makes_store=True), options.dry_run
    path, person = options.wheelhouse, options.who(app)
    family = target.families[0] if target.families else None
    planned = staging.plan(path, family, target.channel, target.store, who=person)
    sha256 = planned.operation.manifest.sha256
    target.families_of(planned.operation.manifest)
    if dry_run or not planned.is_done:
        _show(app, planned.lines(), dry_run=dry_run)
    if not (dry_run or planned.is_done):
        with app.console.step(f"stage {sha256[:12]}"):
            staging.apply(planned, console=app.console)
    _finish(app, sha256, planned.to_json(dry_run=dry_run))


class PromoteOptions(ManifestOptions, PersonOptions, SignerOptions, DryRun):
    approve: tuple[str, ...] = own(
        "--approve SUITE:CPYTHON",
        "Release although this cell is flaky; needs --reason; repeatable.",
        default=(),
    )

    def approvals(self, app: App) -> tuple[Approval, ...]:
        """Return what --approve says. Raises UsageError, ConfigError without a name or a reason."""
        if self.approve and not (self.by or app.environ.get("GITHUB_ACTOR")):
            raise click.UsageError("--approve needs --by: the name that the release record keeps")
        approvals = []
        for text in self.approve:
            suite, colon, python = text.partition(":")
            if not (suite and colon and python):
                raise click.UsageError(f"--approve {text}: write SUITE:CPYTHON, such as unit:3.12")
            who = withdraw.with_reason(self.who(app), self.reason)
            approvals.append(Approval(suite=suite, python=python, by=who.by, reason=who.reason))
        return tuple(approvals)

    def plan(self, app: App) -> promotion.PromotePlan:
        """Look at what would be released, and for which families. Raises what it does."""
        target, who, approvals = Target(app, self), self.who(app), self.approvals(app)
        manifest, channel = target.manifest(app, self.manifest), judging(app, target.channel)
        families, is_every = target.families_of(manifest), not target.names
        how: dict[str, Any] = {"who": who, "approvals": approvals, "passes_held": is_every}
        return promotion.plan(manifest, families, channel, target.store, **how)


@command("promote", PromoteOptions)
def promote(app: App, options: PromoteOptions) -> int:
    """Make a staged and gated wheel set installable from the release index, or change nothing.

    Ends with `published`, `nothing-to-do`, or `blocked` (exit status 9) and the cells that block. A
    set of several families is released for those that pass; 9 says that one of them is held up.
    """
    signer, planned = options.key(app), options.plan(app)
    _show(app, planned.lines(), dry_run=options.dry_run)
    document = planned.to_json()
    if planned.state == "ready" and not options.dry_run:
        document = _publish(app, planned, options, signer)
    if is_blocked := bool(planned.families("blocked")):
        refusal = planned.refusal()
        refusal.hint = as_called(refusal.hint, app)
        app.console.fail(refusal)
        document["reason"] = str(refusal)  # which a night shows of the cell
    _finish(app, planned.operation.manifest.sha256, document)
    return PromotionError.exit_code if is_blocked else 0


def _publish(
    app: App, planned: promotion.PromotePlan, options: PromoteOptions, signer: Signer | None
) -> dict[str, Any]:
    channels = app.path(options.channels_file) or app.home.ci / "channels.yaml"
    digests = {"matrix": files.sha256(Path(matrix.__file__)), "channels": files.sha256(channels)}
    with app.console.step(f"promote {planned.operation.manifest.sha256[:12]}"):
        moved = promotion.apply(planned, console=app.console, signer=signer, digests=digests)
        _refresh(app, planned.operation.place, planned.families("ready"))
    if moved:
        app.console.info(f"{size(moved)} of wheels passed through this machine")
    return {**planned.to_json(state="published"), "bytes_through_client": moved}


class YankOptions(TargetOptions, PersonOptions, SignerOptions, DryRun):
    manifest: str = opt("Target", "--manifest SHA|PATH", "A whole set.", values="MANIFEST")
    files: tuple[str, ...] = opt("Target", "--file NAME", "One wheel.", param="files", default=())


@command("yank", YankOptions)
def yank(app: App, options: YankOptions) -> None:
    """Yank a whole set or single files (PEP 592).

    Installers take a yanked file only where it is pinned exactly.
    """
    _change(app, options, Action.YANK)


@command("unyank", YankOptions)
def unyank(app: App, options: YankOptions) -> None:
    """Take a yank back, for a whole set or single files."""
    _change(app, options, Action.UNYANK)


class SetOptions(ManifestOptions, PersonOptions, SignerOptions, DryRun):
    files: tuple[str, ...] = ()


@command("rollback", SetOptions)
def rollback(app: App, options: SetOptions) -> None:
    """Take a released set out of the index; the bytes are kept, `restore` puts it back."""
    _change(app, options, Action.ROLLBACK)


@command("restore", SetOptions)
def restore(app: App, options: SetOptions) -> None:
    """Put a rolled back set into the index again, with the bytes that were released."""
    _change(app, options, Action.RESTORE)


def _change(app: App, options: YankOptions | SetOptions, action: Action) -> None:
    target, files, signer = Target(app, options), options.files, options.key(app)
    channel = trusting(app, target.channel)
    person = withdraw.with_reason(options.who(app), options.reason)
    if options.manifest:
        place, set_id = target.release_of(app, options.manifest)
    elif files:
        releases = [release for _, release in target.pairs()]
        place, set_id = withdraw.place_of(releases, files[0]), ""
    else:
        raise click.UsageError("give --manifest, or --file")
    is_by_family = place.family == ALL and action in {Action.ROLLBACK, Action.RESTORE}
    chosen_families = target.names if is_by_family else ()
    planned = withdraw.plan(
        place, action, who=person, set_id=set_id, filenames=files, families=chosen_families,
        channel=channel, signer=signer,
    )  # fmt: skip
    if not planned.is_done:
        _show(app, planned.lines(), dry_run=options.dry_run)
        if not options.dry_run:
            operations.perform(planned.operation, planned.state)
            _refresh(app, place, planned.families)
    if signer is None and channel.requires(KeyRole.PROMOTER):
        app.console.warn("unsigned: `trust verify` tells it after the same command with --signer")
    document = planned.to_json(dry_run=options.dry_run)
    app.emit(document, f"{set_id or ' '.join(sorted(files))} {document['state']}")


class PruneOptions(TargetOptions, PersonOptions, DryRun):
    orphans: bool = own(
        "--orphans",
        "Also wheels older than a day that no set holds, such as a killed `stage` left; files "
        "that came before rocwheel are among them until `index adopt`.",
        default=False,
    )


@command("prune", PruneOptions)
def prune(app: App, options: PruneOptions) -> None:
    """Remove what the channel's retention no longer keeps, and what killed runs left."""
    target, person = Target(app, options), options.who(app, reason="retention")
    plans = retention.plans(target.pairs(), target.channel, who=person, orphans=options.orphans)
    documents = []
    for planned in plans:
        _show(app, planned.lines(), dry_run=options.dry_run)
        swept = () if options.dry_run else retention.apply(planned, who=person)
        if planned.operation.leaving(planned.state) and not options.dry_run:
            _refresh(app, planned.operation.place, planned.state.views)
        _show(app, [f"leftover {name}" for name in swept], dry_run=False)
        documents.append(planned.to_json(dry_run=options.dry_run, leftovers=swept))
    sets = count(sum(len(item["sets"]) for item in documents), "set")
    app.emit({"places": documents}, f"{sets} {'to prune' if options.dry_run else 'pruned'}")


class StatusOptions(TargetOptions):
    older_than: float | None = own(
        "--older-than HOURS",
        "Only sets that were staged longer ago and are not released.",
        kind=NUMBER,
        default=None,
    )
    look: int = own(
        "--look",
        "Staged sets whose verdicts are read, the youngest; 0 asks the log alone.",
        kind=click.IntRange(min=0),
        default=LOOK,
    )


@command("status", StatusOptions)
def status(app: App, options: StatusOptions) -> int:
    """Show every wheel set: staged, gated, released; its age, and what holds it up.

    Ends with 7 where the log of a release is damaged: nothing is changed there before it is mended.
    """
    target = Target(app, options)
    channel, now = judging(app, target.channel), app.now()
    pairs, hours = target.pairs(), options.older_than
    overview = standing.overview(
        pairs, matrix.FAMILIES | target.own, channel, now=now, hours=hours, look=options.look
    )
    new = (replace(s, rollback=s.rollback and command_line(app, s.rollback)) for s in overview.sets)
    overview = replace(overview, sets=tuple(new))
    for text in overview.problems:
        app.console.warn(as_called(text, app))
    app.emit(overview.to_json(), "\n".join(overview.lines()))
    return StoreError.exit_code if overview.is_damaged else 0


def _refresh(app: App, place: Place, families: Iterable[str]) -> None:
    """Renew the page of what fits together beside each index; the change itself is done by now."""
    views = dict.fromkeys((place.family, *(families if place.is_split else ())))
    for index in map(place.shown_as, views) if not place.is_staging else ():
        try:
            compat.refresh(index, app.home.ci)
        except RocwheelError as exc:
            app.console.warn(f"{index.compat} is as before: {exc}")


def _show(app: App, lines: list[str], *, dry_run: bool) -> None:
    """Print a plan: it is the result of a dry run, and otherwise talk."""
    for line in lines:
        if dry_run and not app.json:
            click.echo(line)
        else:
            app.console.info(line)


def _finish(app: App, manifest: str, document: dict[str, Any]) -> None:
    """Tell people and later steps of a GitHub Actions job where a set stands now."""
    app.emit(document, f"{manifest} {document['state']}")
    app.github_outputs({"manifest": manifest, "state": document["state"]})
