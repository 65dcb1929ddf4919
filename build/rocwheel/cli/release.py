"""`stage`, `promote`, `yank`, `unyank`, `rollback`, `restore`, `prune`, `status`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rocwheel.cli.app import App
from rocwheel.cli.command import common_options, dry_run_option
from rocwheel.cli.target import (
    PersonOptions,
    Target,
    TargetOptions,
    manifest_option,
    person_options,
    target_options,
)
from rocwheel.errors import PromotionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocwheel.places import Place
    from rocwheel.release.operations import Who
    from rocwheel.release.policy import Approval
    from rocwheel.release.withdraw import ChangePlan


def target_of(app: App, options: dict[str, Any]) -> Target:
    """The target of options by name, which are taken out of them."""
    names = ("family", "channel", "store_url", "channels_file", "families")
    return Target(app, TargetOptions(**{name: options.pop(name) for name in names}))


def who(app: App, by: str, reason: str) -> Who:
    """Who acts: --by, else GitHub's actor, else the user."""
    return PersonOptions(by=by, reason=reason).who(app)


@click.command("stage")
@click.argument("wheelhouse", type=click.Path(path_type=Path), default=Path("wheelhouse/current"))
@target_options
@person_options
@dry_run_option
@common_options
@click.pass_obj
def stage(
    app: App, /, *, wheelhouse: Path, by: str, reason: str, dry_run: bool, **options: Any
) -> None:
    """Upload a wheel set to the staging index, whole and once.

    WHEELHOUSE is a wheelhouse or its manifest.json. Returns when the staging index lists every
    file with its hash; run again, it uploads only what is missing.
    """
    from rocwheel.release import stage as room

    target = target_of(app, options)
    path = app.cwd / wheelhouse
    person = who(app, by, reason)
    planned = room.plan(path, target.family, target.channel, target.store, who=person)
    state = "planned" if dry_run else "nothing-to-do" if planned.is_done else "staged"
    if state != "nothing-to-do":
        _show(app, planned.lines(), dry_run=dry_run)
    if state == "staged":
        with app.console.step(f"stage {planned.manifest.sha256[:12]}"):
            room.apply(planned, console=app.console)
    app.emit({"state": state, **planned.to_json()}, f"{planned.manifest.sha256} {state}")
    app.github_outputs({"manifest": planned.manifest.sha256, "state": state})


@click.command("promote")
@manifest_option
@target_options
@click.option(
    "--approve",
    multiple=True,
    metavar="SUITE:CPYTHON",
    help="Release although this cell is flaky; needs --reason; repeatable.",
)
@person_options
@dry_run_option
@common_options
@click.pass_obj
def promote(
    app: App,
    /,
    *,
    manifest: str,
    approve: tuple[str, ...],
    by: str,
    reason: str,
    dry_run: bool,
    **options: Any,
) -> int:
    """Make a staged and gated wheel set installable from the release index, or change nothing.

    Ends with `published`, `nothing-to-do`, or `blocked` (exit status 9) and the cells that block.
    """
    from rocwheel.console import size
    from rocwheel.release import promote as room

    target = target_of(app, options)
    person = who(app, by, reason)
    planned = room.plan(
        target.manifest(app, manifest),
        target.family,
        target.judging(app),
        target.store,
        who=person,
        approvals=_approvals(approve, person, named=bool(by or app.environ.get("GITHUB_ACTOR"))),
    )
    _show(app, planned.lines(), dry_run=dry_run)
    document, state = planned.to_json(), planned.state
    status = 0
    if state == "blocked":
        app.console.fail(planned.refusal())
        status = PromotionError.exit_code
    elif state == "ready" and not dry_run:
        with app.console.step(f"promote {planned.manifest.sha256[:12]}"):
            moved = room.apply(planned, console=app.console)
        state = "published"
        document = {**planned.to_json(state=state), "bytes_through_client": moved}
        if moved:
            app.console.info(f"{size(moved)} of wheels passed through this machine")
    app.emit(document, f"{planned.manifest.sha256} {state}")
    app.github_outputs({"manifest": planned.manifest.sha256, "state": state})
    return status


def _files_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --manifest and --file, of which one is needed."""
    for option in (
        click.option("--file", "files", multiple=True, metavar="NAME", help="One wheel."),
        click.option("--manifest", default="", metavar="SHA|PATH", help="A whole set."),
    ):
        command = option(command)
    return command


@click.command("yank")
@_files_options
@target_options
@person_options
@dry_run_option
@common_options
@click.pass_obj
def yank(app: App, /, **options: Any) -> None:
    """Yank a whole set or single files (PEP 592).

    Installers take a yanked file only where it is pinned exactly.
    """
    _yank(app, options, undo=False)


@click.command("unyank")
@_files_options
@target_options
@person_options
@dry_run_option
@common_options
@click.pass_obj
def unyank(app: App, /, **options: Any) -> None:
    """Take a yank back, for a whole set or single files."""
    _yank(app, options, undo=True)


def _yank(app: App, options: dict[str, Any], *, undo: bool) -> None:
    from rocwheel.ledger.state import Action
    from rocwheel.release import withdraw

    manifest, files, dry_run = (options.pop(name) for name in ("manifest", "files", "dry_run"))
    by, reason = options.pop("by"), options.pop("reason")
    target = target_of(app, options)
    person = withdraw.with_reason(who(app, by, reason), reason)
    if not manifest and not files:
        raise click.UsageError("give --manifest, or --file")
    if manifest:
        place, set_id = target.release_of(app, manifest)
    else:
        place, set_id = _place_of(target, files), ""
    action = Action.UNYANK if undo else Action.YANK
    change = withdraw.plan(place, action, who=person, set_id=set_id, filenames=files)
    _change(app, change, dry_run=dry_run)


@click.command("rollback")
@manifest_option
@target_options
@person_options
@dry_run_option
@common_options
@click.pass_obj
def rollback(
    app: App, /, *, manifest: str, by: str, reason: str, dry_run: bool, **options: Any
) -> None:
    """Take a released set out of the index; the bytes are kept, `restore` puts it back."""
    from rocwheel.ledger.state import Action
    from rocwheel.release import withdraw

    target = target_of(app, options)
    person = withdraw.with_reason(who(app, by, reason), reason)
    place, set_id = target.release_of(app, manifest)
    change = withdraw.plan(place, Action.ROLLBACK, who=person, set_id=set_id)
    _change(app, change, dry_run=dry_run)


@click.command("restore")
@manifest_option
@target_options
@person_options
@dry_run_option
@common_options
@click.pass_obj
def restore(
    app: App, /, *, manifest: str, by: str, reason: str, dry_run: bool, **options: Any
) -> None:
    """Put a rolled back set into the index again, with the bytes that were released."""
    from rocwheel.ledger.state import Action
    from rocwheel.release import withdraw

    target = target_of(app, options)
    person = withdraw.with_reason(who(app, by, reason), reason)
    place, set_id = target.release_of(app, manifest)
    change = withdraw.plan(place, Action.RESTORE, who=person, set_id=set_id)
    _change(app, change, dry_run=dry_run)


@click.command("prune")
@target_options
@click.option(
    "--orphans",
    is_flag=True,
    help="Also wheels older than a day that no set holds, such as a killed `stage` left; files "
    "that came before rocwheel are among them until `index adopt`.",
)
@person_options
@dry_run_option
@common_options
@click.pass_obj
def prune(
    app: App, /, *, orphans: bool, by: str, reason: str, dry_run: bool, **options: Any
) -> None:
    """Remove what the channel's retention no longer keeps, and what killed runs left."""
    from rocwheel.release import retention

    target = target_of(app, options)
    person = who(app, by, reason or "retention")
    documents = []
    places = [(place, number == 0) for pair in target.pairs() for number, place in enumerate(pair)]
    for place, is_staging in places:
        planned = retention.plan(
            place, target.channel, who=person, is_staging=is_staging, orphans=orphans
        )
        _show(app, planned.lines(), dry_run=dry_run)
        swept = () if dry_run else retention.apply(planned, who=person)
        for name in swept:
            app.console.info(f"leftover {name}")
        documents.append({**planned.to_json(dry_run=dry_run), "leftovers": list(swept)})
    count = sum(len(item["sets"]) for item in documents)
    app.emit({"places": documents}, f"{count} sets {'to prune' if dry_run else 'pruned'}")


@click.command("status")
@target_options
@click.option(
    "--older-than",
    type=float,
    metavar="HOURS",
    help="Only sets that were staged longer ago and are not released.",
)
@common_options
@click.pass_obj
def status(app: App, /, *, older_than: float | None, **options: Any) -> None:
    """Show every wheel set: staged, gated, released; its age, and what holds it up."""
    from rocwheel.console import columns
    from rocwheel.release import status as room

    target = target_of(app, options)
    channel = target.judging(app)
    found = [
        room.read(staging, release, target.family, channel, now=app.now())
        for staging, release in target.pairs()
    ]
    sets = [item for overview in found for item in overview.sets]
    problems = [text for overview in found for text in overview.problems]
    if older_than is not None:
        sets = room.waiting(sets, hours=older_than)
    for text in problems:
        app.console.warn(text)
    text = "\n".join(columns(room.HEADER, [item.row() for item in sets])) if sets else "no set"
    app.emit({"sets": [item.to_json() for item in sets], "problems": problems}, text)


def _change(app: App, change: ChangePlan, *, dry_run: bool) -> None:
    from rocwheel.release import withdraw

    _show(app, change.lines(), dry_run=dry_run)
    if not dry_run and not change.is_done:
        withdraw.apply(change)
    document = change.to_json(dry_run=dry_run)
    reason = change.operation.who.reason
    app.emit({**document, "reason": reason}, f"{change.operation.set_id} {document['state']}")


def _show(app: App, lines: list[str], *, dry_run: bool) -> None:
    """Print a plan: it is the result of a dry run, and otherwise talk."""
    for line in lines:
        if dry_run and not app.json:
            click.echo(line)
        else:
            app.console.info(line)


def _approvals(texts: tuple[str, ...], person: Who, *, named: bool) -> tuple[Approval, ...]:
    """Parse SUITE:CPYTHON. Raises UsageError, ConfigError where nobody gave a name or a reason."""
    from rocwheel.release import withdraw
    from rocwheel.release.policy import Approval

    if texts and not named:
        raise click.UsageError("--approve needs --by: the name that the release record keeps")
    found = []
    for text in texts:
        suite, colon, python = text.partition(":")
        if not (suite and colon and python):
            raise click.UsageError(f"--approve {text}: write SUITE:CPYTHON, such as unit:3.12")
        person = withdraw.with_reason(person, person.reason)
        found.append(Approval(suite=suite, python=python, by=person.by, reason=person.reason))
    return tuple(found)


def _place_of(target: Target, files: tuple[str, ...]) -> Place:
    """The release place that lists a file; the last one, where none does."""
    from rocwheel.release import withdraw

    places = [release for _, release in target.pairs()]
    return next((place for place in places if withdraw.lists(place, files[0])), places[-1])
