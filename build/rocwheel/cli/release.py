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
    from rocwheel.release.withdraw import Change


def target_of(app: App, options: dict[str, Any]) -> Target:
    """The target of options by name, which are taken out of them."""
    names = ("family", "channel", "store_url", "channels_file", "single_writer")
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
    planned = room.plan(path, target.family, target.channel, target.store)
    state = "planned" if dry_run else "nothing-to-do" if planned.is_done else "staged"
    if state != "nothing-to-do":
        _show(app, planned.lines(), dry_run=dry_run)
    if state == "staged":
        with app.console.step(f"stage {planned.manifest.sha256[:12]}"):
            room.apply(planned, who=who(app, by, reason), console=app.console)
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
            moved = room.apply(planned, who=person, console=app.console)
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
    change = withdraw.plan_yank(place, set_id=set_id, filenames=files, undo=undo)
    _change(app, change, person, dry_run=dry_run)


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
    from rocwheel.release import withdraw

    target = target_of(app, options)
    person = withdraw.with_reason(who(app, by, reason), reason)
    change = withdraw.plan_rollback(*target.release_of(app, manifest))
    _change(app, change, person, dry_run=dry_run)


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
    from rocwheel.release import withdraw

    target = target_of(app, options)
    person = withdraw.with_reason(who(app, by, reason), reason)
    change = withdraw.plan_restore(*target.release_of(app, manifest))
    _change(app, change, person, dry_run=dry_run)


@click.command("prune")
@target_options
@person_options
@dry_run_option
@common_options
@click.pass_obj
def prune(app: App, /, *, by: str, reason: str, dry_run: bool, **options: Any) -> None:
    """Remove what the channel's retention no longer keeps, and what killed runs left."""
    from rocwheel.release import retention

    target = target_of(app, options)
    person = who(app, by, reason or "retention")
    documents = []
    for staging, release in target.pairs():
        planned = retention.plan(staging, release, target.channel, now=person.now)
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
        item
        for staging, release in target.pairs()
        for item in room.read(staging, release, target.family, channel, now=app.now())
    ]
    if older_than is not None:
        found = room.waiting(found, hours=older_than)
    text = "\n".join(columns(room.HEADER, [item.row() for item in found])) if found else "no set"
    app.emit({"sets": [item.to_json() for item in found]}, text)


def _change(app: App, change: Change, person: Who, *, dry_run: bool) -> None:
    from rocwheel.release import withdraw

    _show(app, change.lines(), dry_run=dry_run)
    if not dry_run and not change.is_done:
        withdraw.apply(change, who=person)
    document = change.to_json(dry_run=dry_run)
    app.emit({**document, "reason": person.reason}, f"{change.history.set_id} {document['state']}")


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
    from rocwheel.index.page import version_of
    from rocwheel.index.publish import read_page

    places = [release for _, release in target.pairs()]
    project, _ = version_of(files[0])
    listing = (place for place in places if read_page(place, project).file(files[0]))
    return next(listing, places[-1])
