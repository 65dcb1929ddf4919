"""`index check`, `index repair`, `index adopt` and `serve`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial

import click

from rocwheel.base.errors import HostError, StoreError, named
from rocwheel.base.option import opt
from rocwheel.cli import as_called
from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, command, group, own
from rocwheel.cli.imports import when_run
from rocwheel.cli.target import PersonOptions, Target, TargetOptions

with when_run():
    from pathlib import Path

    from rocwheel.base.console import Unit, count
    from rocwheel.records.entry import parsed
    from rocwheel.records.install import Install
    from rocwheel.records.places import Place
    from rocwheel.release import adopt as adoption
    from rocwheel.release import audit, operations, pip_resolution, withdraw
    from rocwheel.release.index.serve import Site
    from rocwheel.release.ledger import log, manifests


class WhereOptions(TargetOptions):
    """Options that name one of the two indexes of a family, staging or release."""

    in_staging: bool = opt(
        "Target",
        "--staging/--release",
        "Which of the two indexes; default: the release.",
        param="in_staging",
        default=False,
    )

    def places(self, target: Target) -> list[Place]:
        """Return that index of every ROCm major."""
        return [staging if self.in_staging else release for staging, release in target.pairs()]


@group("index")
def index() -> None:
    """Check an index, repair it, take files over."""


class IndexCheckOptions(WhereOptions):
    resolve: bool = own(
        "--resolve", "Also let pip resolve each set for each CPython.", default=False
    )
    upstream: str = own(
        "--upstream URL", "Index for names that are not in a set; only for --resolve."
    )

    def resolver(self, app: App) -> Callable[[Place], list[str]] | None:
        """Return what asks pip about a place, None without --resolve. Raises UsageError."""
        if not self.resolve:
            if self.upstream:
                raise click.UsageError("--upstream is only for --resolve")
            return None
        if not self.upstream:
            what = "--resolve needs --upstream: the index of names that are in no set"
            raise click.UsageError(what)
        python = Path(sys.executable)
        return partial(
            pip_resolution.resolve, upstream=self.upstream, python=python, runner=app.runner
        )


@command("check", IndexCheckOptions, parent=index)
def check(app: App, options: IndexCheckOptions) -> int:
    """Download everything an index lists; compare hashes, metadata, links, log, closure."""
    resolver, target = options.resolver(app), Target(app, options)
    number, problems = 0, list[str]()
    with app.console.progress("checking", unit=Unit.BYTES) as progress:
        tally = operations.Tally(progress)
        for place in options.places(target):
            checked = audit.check(place, count=tally)
            number += checked.files
            problems += [as_called(text, app) for text in checked.problems]
            problems += resolver(place) if resolver else ()
    if not number and not problems:
        problems = [f"{target.channel.store}: nothing is listed for {target.view}"]
    document = {"files": number, "problems": problems}
    app.emit(document, "\n".join(problems) or f"{count(number, 'file')}, no problem")
    return StoreError.exit_code if problems else 0


class IndexRepairOptions(WhereOptions, PersonOptions, DryRun):
    skip_entry: tuple[str, ...] = own(
        "--skip-entry N|KEY",
        "Let a lost or damaged entry of the log change nothing, for ever; needs --reason.",
        default=(),
    )


@command("repair", IndexRepairOptions, parent=index)
def repair(app: App, options: IndexRepairOptions) -> None:
    """Let every page show what the log says, and delete what was pruned and is still there.

    The way out of whatever a stopped run, a lost page or a hand on the bucket left.
    """
    person = options.who(app)
    if options.skip_entry:
        person = withdraw.with_reason(person, options.reason)
    done = audit.plan_repairs(options.places(Target(app, options)), person, options.skip_entry)
    if not options.dry_run:
        done = [audit.apply_repair(planned) for planned in done]
    _tell(app, done, "every page is as the log says", dry_run=options.dry_run)


class IndexAdoptOptions(WhereOptions, PersonOptions, DryRun):
    """Options of `index adopt`."""


@command("adopt", IndexAdoptOptions, parent=index)
def adopt(app: App, options: IndexAdoptOptions) -> None:
    """Take over wheels that were in a prefix before rocwheel: they are listed as they are."""
    done, person = [], options.who(app)
    for place in options.places(Target(app, options)):
        with app.console.progress("reading", unit=Unit.BYTES) as progress:
            planned = adoption.plan(place, who=person, count=operations.Tally(progress))
        if planned.is_needed and not options.dry_run:
            operations.perform(planned.operation, planned.state)
        done.append(planned)
    _tell(app, done, "no file that the log does not know", dry_run=options.dry_run)


def _tell(
    app: App, done: Sequence[audit.IndexRepair | adoption.Adoption], nothing: str, *, dry_run: bool
) -> None:
    """Print what was found and done at each place, or that there was nothing."""
    documents = [item.to_json(dry_run=dry_run) for item in done]
    lines = [line for item in done for line in item.lines()]
    app.emit({"places": documents}, "\n".join(lines) or nothing)


class ServeOptions(TargetOptions):
    host: str = own("--host", "Address to listen on.", default="127.0.0.1")
    port: int = own("--port", "0 takes a free one.", kind=click.IntRange(0, 65535), default=8000)

    def site(self, app: App, target: Target) -> Site:
        """Start the server, which listens. Raises HostError."""
        hint = "choose another --port, 0 takes a free one; --host is this machine's"
        with named(f"{self.host}:{self.port}", HostError, hint=hint):
            return Site(
                target.store,
                host=self.host,
                port=self.port,
                indexes=[place.index for pair in target.pairs() for place in reversed(pair)],
                say=app.console.detail,
            )


@command("serve", ServeOptions)
def serve(app: App, options: ServeOptions) -> None:
    """Serve a store over local HTTP as pip and uv see it, until Ctrl-C.

    The lines that install the newest set of each index are printed, of released sets and of staged.
    """
    target = Target(app, options)
    site = options.site(app, target)
    places = [place for pair in target.pairs() for place in reversed(pair)]
    urls = [f"{site.url}{place.index}/" for place in places]
    lines, shown = list[str](), list[str]()
    for place, url in zip(places, urls, strict=True):
        lines += (new := _install_lines(place, url))
        shown += (f"# {'staged, not released' if place.is_staging else 'released'}:", *new)
    try:
        with site:
            app.emit({"url": site.url, "indexes": urls, "install": lines}, "\n".join(shown))
            sys.stdout.flush()
            site.serve_forever()
    except KeyboardInterrupt:
        app.console.info(f"stopped: {site.url} is not served any more")


def _install_lines(place: Place, url: str) -> tuple[str, ...]:
    """Return lines to paste: the set of the newest plugin, then jax from the package index."""
    state = log.read(place, None).of(place.view)
    for project in sorted(name for name in state.projects if name.endswith("-plugin")):
        files = [item for item in state.shown(project) if item.yanked is None]
        if files:
            newest = max(files, key=lambda item: parsed(item.version))
            manifest = manifests.find(place, newest.manifest) if newest.manifest else None
            if manifest is not None:
                return Install.of(manifest, url).pip
            return Install.of_version(project, newest.version, url).pip
    return (f"# nothing is listed at {url}",)
