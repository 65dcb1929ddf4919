"""`index` and its commands `check`, `repair`, `adopt` and `serve`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click

from rocwheel.base.choices import ALL
from rocwheel.base.console import Unit, count
from rocwheel.base.errors import HostError, StoreError, named
from rocwheel.base.values import replace
from rocwheel.cli import as_called, known
from rocwheel.cli.app import App
from rocwheel.cli.options import dry_run, group, option
from rocwheel.cli.target import (
    PersonOptions,
    Target,
    TargetOptions,
    person_options,
    target_of,
    target_options,
    trusting,
)
from rocwheel.cli.trust import at_least_option, stale
from rocwheel.records.entry import parsed
from rocwheel.records.install import Install
from rocwheel.records.places import Place
from rocwheel.release import audit, operations, withdraw
from rocwheel.release.index.serve import Site
from rocwheel.release.ledger import log, manifests
from rocwheel.release.ledger.state import IndexState

RELEASES = ("prune", "restore", "unyank")  # of `cli.release`


def _places(target: Target, *, staging: bool) -> list[Place]:
    return [pair[0] if staging else pair[1] for pair in target.pairs()]


which_option = option(
    "--staging/--release",
    section="Target",
    default=False,
    help="Which of the two indexes; default: the release.",
)


@group("index", also={name: f"rocwheel.cli.release:{name}" for name in RELEASES})
def index() -> None:
    """Check, repair, prune and serve an index."""


@index.command("check")
@target_options
@which_option
@at_least_option
@option("--download", is_flag=True, help="Also download every wheel; compare hash and metadata.")
@option("--resolve", is_flag=True, help="Also let pip resolve each set for each CPython.")
@option(
    "--upstream",
    metavar="URL",
    help="Index for names that are not in a set; only for --resolve.",
)
@click.pass_obj
def check(
    app: App,
    *,
    target: TargetOptions,
    staging: bool,
    at_least: int,
    download: bool,
    resolve: bool,
    upstream: str,
) -> int:
    """Compare log, pages, files and statements of an index.

    Files are compared by name and size, with --download byte by byte.
    """
    if resolve != bool(upstream):
        raise click.UsageError(
            "--resolve and --upstream URL go together: that index has the names that are in no set"
        )
    where = Target(app, target)
    number, problems, logs, sets = 0, list[str](), [], False
    with app.console.progress("checking", unit=Unit.BYTES) as progress:
        tally = operations.Tally(progress)
        for place in _places(where, staging=staging):
            checked = audit.check(place, download=download, count=tally)
            number += checked.files
            logs.append((place, checked.state))
            is_all = place.family == ALL
            sets |= bool((checked.state if is_all else checked.state.of(place.family)).sets)
            problems += [as_called(text, app) for text in checked.problems]
            if resolve:
                problems += audit.resolve(
                    place, upstream=upstream, python=Path(sys.executable), runner=app.runner
                )
    channel = trusting(app, where.channel)
    problems += stale(app, logs, channel, at_least)[0]
    # after a rollback nothing may be listed, and the log says so
    if not (number or problems or sets):
        what = "any family" if where.view == ALL else where.view
        raise StoreError(
            f"{where.channel.store}: nothing is {'staged' if staging else 'released'} for {what}",
            hint="`status` shows which sets there are; --staging checks those that are staged",
        )
    document = {"files": number, "problems": problems}
    app.emit(document, "\n".join(problems) or f"{count(number, 'file')}, no problem")
    return StoreError.exit_code if problems else 0


@index.command("repair")
@target_options
@which_option
@option(
    "--skip-entry",
    metavar="N|KEY",
    multiple=True,
    help="Give up a lost or damaged entry of the log for good; needs --reason.",
)
@person_options
@dry_run
@click.pass_obj
def repair(
    app: App,
    *,
    target: TargetOptions,
    staging: bool,
    skip_entry: tuple[str, ...],
    person: PersonOptions,
    dry_run: bool,
) -> None:
    """Make every page show what the log says, and delete pruned files that are still there.

    Repairs what an interrupted run, a lost page or a manual change left behind.
    """
    who = person.who(app)
    if skip_entry:
        who = withdraw.with_reason(who, person.reason)
    done = audit.plan_repairs(_places(Target(app, target), staging=staging), who, skip_entry)
    if not dry_run:
        done = [replace(p, deleted=audit.repair(p.place, p.who, p.skips)) for p in done]
    _report(app, done, "every page is as the log says", dry_run=dry_run)


@index.command("adopt")
@target_of("GPU family whose folder it is (required).")
@which_option
@person_options
@dry_run
@click.pass_obj
def adopt(
    app: App, target: TargetOptions, staging: bool, person: PersonOptions, dry_run: bool
) -> None:
    """List wheels that another tool uploaded, as they are.

    The index must have no set yet. The wheels lie in its folder, such as v2/gfx90a of the store.
    Each is read once and listed with its yank; nothing is moved, deleted or gated.
    """
    if not target.family:
        raise known.lacking("--family", known.families_or_all)
    done, who = [], person.who(app)
    for place in _places(Target(app, target), staging=staging):
        with app.console.progress("reading", unit=Unit.BYTES) as progress:
            planned = audit.plan_adoption(place, who=who, count=operations.Tally(progress))
        if not (planned.is_done or dry_run):
            operations.perform(planned)
        done.append(planned)
    _report(app, done, "no wheel to adopt, or the index has sets already", dry_run=dry_run)


def _report(
    app: App, done: Sequence[audit.IndexRepair | audit.Adopt], nothing: str, *, dry_run: bool
) -> None:
    documents = [item.to_json(dry_run=dry_run) for item in done]
    lines = [line for item in done for line in item.lines()]
    app.emit({"places": documents}, "\n".join(lines) or nothing)


@index.command("serve")
@target_options
@option("--host", metavar="ADDRESS", default="127.0.0.1", help="Address to listen on.")
@option("--port", type=click.IntRange(0, 65535), default=8000, help="0 takes a free one.")
@click.pass_obj
def serve(app: App, target: TargetOptions, host: str, port: int) -> None:
    """Serve a store over local HTTP as pip and uv see it, until Ctrl-C.

    It prints the lines that install the newest set of each index, released and staged.
    """
    where = Target(app, target)
    places = [place for pair in where.pairs() for place in reversed(pair)]
    looked = [(place, log.read(place, files=True)) for place in places]
    if not target.family:  # every index there is
        every = [(place.of(name), state) for place, state in looked for name in state.views]
        looked = every or looked
    places = [place for place, _ in looked]
    hint = "choose another --port, 0 takes a free one; --host is this machine's"
    with named(f"{host}:{port}", HostError, hint=hint):
        site = Site(
            where.store,
            host=host,
            port=port,
            indexes=[place.index for place in places],
            say=app.console.detail,
        )
    urls = [f"{site.url}{place.index}/" for place in places]
    lines, shown = list[str](), list[str]()
    out = {  # what is released
        (place.family, known.id)
        for place, state in looked
        for known in state.of(place.family).listed
        if not place.is_staging
    }
    for (place, state), url in zip(looked, urls, strict=True):
        newest, *new = _install_lines(place, state.of(place.family), url)
        lines += new
        also = "and" if (place.family, newest) in out else "not"
        shown += (f"# staged, {also} released:" if place.is_staging else "# released:", *new)
    try:
        with site:
            app.emit({"url": site.url, "indexes": urls, "install": lines}, "\n".join(shown))
            sys.stdout.flush()
            site.serve_forever()
    except KeyboardInterrupt:
        app.console.info(f"stopped serving {site.url}")


def _install_lines(place: Place, state: IndexState, url: str) -> tuple[str, ...]:
    """Return the newest set, "" for none, and the lines that install it."""
    for project in sorted(name for name in state.projects if name.endswith("-plugin")):
        files = [item for item in state.shown(project) if item.yanked is None]
        if files:
            newest = max(files, key=lambda item: parsed(item.version))
            at = state.at(place, newest.manifest)
            manifest = manifests.find(at, newest.manifest) if newest.manifest else None
            if manifest is not None:
                return newest.manifest, *Install.of(manifest, url).pip
            return newest.manifest, *Install.of_version(project, newest.version, url).pip
    return "", f"# nothing is listed at {url}"
