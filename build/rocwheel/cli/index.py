"""`index check`, `index repair`, `index adopt`, `index migrate`, and `serve`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rocwheel.cli.app import App
from rocwheel.cli.command import common_options, dry_run_option
from rocwheel.cli.release import target_of, who
from rocwheel.cli.target import Target, person_options, target_options
from rocwheel.errors import HostError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocwheel.index.serve import Site
    from rocwheel.places import Place


def where_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --staging / --release."""
    return click.option(
        "--staging/--release",
        "in_staging",
        default=False,
        help="Which of the two indexes; default: the release.",
    )(command)


def _places(target: Target, *, in_staging: bool) -> list[Place]:
    return [staging if in_staging else release for staging, release in target.pairs()]


@click.group("index")
def index() -> None:
    """Check an index, repair it, take files over."""


@index.command("check")
@target_options
@where_option
@click.option("--resolve", is_flag=True, help="Also let pip resolve each set for each CPython.")
@click.option(
    "--upstream",
    default="",
    show_default=True,
    metavar="URL",
    help="Index for names that are not in a set; only for --resolve.",
)
@common_options
@click.pass_obj
def check(app: App, /, *, in_staging: bool, resolve: bool, upstream: str, **options: Any) -> int:
    """Download everything an index lists; compare hashes, metadata, links, log, closure."""
    if resolve and not upstream:
        raise click.UsageError("--resolve needs --upstream: the index of names that are in no set")
    from rocwheel.console import Unit
    from rocwheel.release import audit, operations
    from rocwheel.release.resolving import resolve as let_pip_resolve

    target = target_of(app, options)
    problems: list[str] = []
    files = 0
    with app.console.progress("checking", unit=Unit.BYTES) as progress:
        tally = operations.Tally(progress)
        for place in _places(target, in_staging=in_staging):
            checked = audit.check(place, count=tally)
            files, problems = files + checked.files, [*problems, *checked.problems]
            if resolve:
                problems += let_pip_resolve(
                    place, upstream=upstream, python=Path(sys.executable), runner=app.runner
                )
    if not files and not problems:
        problems.append(f"{target.channel.store}: nothing is listed for {target.family.name}")
    told = "\n".join(problems) or f"{files} files, no problem"
    app.emit({"files": files, "problems": problems}, told)
    return StoreError.exit_code if problems else 0


@index.command("repair")
@target_options
@where_option
@dry_run_option
@common_options
@click.pass_obj
def repair(app: App, /, *, in_staging: bool, dry_run: bool, **options: Any) -> None:
    """Let every page show what the log says, and delete what was pruned and is still there.

    The way out of whatever a stopped run, a lost page or a hand on the bucket left.
    """
    from rocwheel.release import audit, retention

    target = target_of(app, options)
    documents, lines = [], []
    for place in _places(target, in_staging=in_staging):
        found = audit.check_pages(place)
        gone = () if dry_run else retention.repair(place)
        state = "nothing-to-do" if not found and not gone else "planned" if dry_run else "repaired"
        documents.append(
            {"state": state, "place": place.location, "found": found, "deleted": list(gone)}
        )
        lines += [*found, *(f"deleted {place.store.locate(key)}" for key in gone)]
    app.emit({"places": documents}, "\n".join(lines) or "every page is as the log says")


@index.command("adopt")
@target_options
@where_option
@person_options
@dry_run_option
@common_options
@click.pass_obj
def adopt(
    app: App, /, *, in_staging: bool, by: str, reason: str, dry_run: bool, **options: Any
) -> None:
    """Take over wheels that were in a prefix before rocwheel: they are listed as they are."""
    from rocwheel.console import Unit
    from rocwheel.release import adopt as room
    from rocwheel.release import operations

    target = target_of(app, options)
    person = who(app, by, reason)
    documents, lines = [], []
    for place in _places(target, in_staging=in_staging):
        with app.console.progress("reading", unit=Unit.BYTES) as progress:
            planned = room.plan(place, who=person, count=operations.Tally(progress))
        if planned.entries and not dry_run:
            room.apply(planned)
        documents.append(planned.to_json(dry_run=dry_run))
        lines += planned.lines()
    app.emit({"places": documents}, "\n".join(lines) or "no file that the log does not know")


@index.command("migrate")
@target_options
@person_options
@dry_run_option
@common_options
@click.pass_obj
def migrate(app: App, /, *, by: str, reason: str, dry_run: bool, **options: Any) -> None:
    """Take over staging and release that a version before the log wrote, once.

    That version refuses to write there afterwards. Stop what still runs it first.
    """
    from rocwheel.release import migrate as room

    target = target_of(app, options)
    person = who(app, by, reason or "taken over from the records of an earlier version")
    documents, lines = [], []
    for place in [place for pair in target.pairs() for place in pair]:
        planned = room.plan(place, who=person)
        if planned.is_needed and not dry_run:
            room.apply(planned, who=person)
        documents.append(planned.to_json(dry_run=dry_run))
        lines += planned.lines()
    app.emit({"places": documents}, "\n".join(lines) or "nothing of an earlier version")


@click.command("serve")
@target_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8000, show_default=True, type=int, help="0 takes a free one.")
@click.option(
    "--upstream",
    default="",
    metavar="URL",
    help="Index that names we do not have are redirected to.",
)
@common_options
@click.pass_obj
def serve(app: App, /, *, host: str, port: int, upstream: str, **options: Any) -> None:
    """Serve a store over local HTTP as pip and uv see it, until Ctrl-C."""
    from rocwheel.index.serve import Site

    target = target_of(app, options)
    try:
        site = Site(target.store, host=host, port=port, upstream=upstream, say=app.console.detail)
    except OSError as exc:
        raise HostError(
            f"{host}:{port}: {exc.strerror}", hint="choose another --port; 0 takes a free one"
        ) from exc
    urls = _urls(site, target)
    text = "\n".join(f"pip install --index-url {url} …" for url in urls)
    app.emit({"url": site.url, "indexes": urls}, text)
    sys.stdout.flush()
    with site:
        site.serve_forever()


def _urls(site: Site, target: Target) -> list[str]:
    return [f"{site.url}{place.root}/" for pair in target.pairs() for place in reversed(pair)]
