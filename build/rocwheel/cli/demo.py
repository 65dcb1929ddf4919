"""`demo`: the whole main job on the miniature workspace."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from rocwheel.base.errors import InterruptError
from rocwheel.base.host import debian
from rocwheel.cli import command_line
from rocwheel.cli.app import App
from rocwheel.cli.build_options import (
    BAZEL,
    CACHE,
    CONTAINER,
    REMOTE,
    TARGETS,
    VERSION,
    WHEELHOUSE,
    build_of,
    pythons,
)
from rocwheel.cli.dist import request_from, show_built
from rocwheel.cli.options import command, dry_run, given_words, option
from rocwheel.image.recipe import BuilderOptions
from rocwheel.records.build_options import BuildOptions
from rocwheel.release.operations import Who

if TYPE_CHECKING:
    from rocwheel import dist
    from rocwheel.tools import demo as job

SEARCH = "search"  # of --builder-image: the image of the recipe

# options that the night itself gives to the build cell, or that it does not take
_OWN = frozenset({"base", "dry_run", "wheels_only", "python_versions", "wheelhouse"})


@command("demo")
@option("--wheels-only", is_flag=True, help="Build and verify the wheels; no night, no index.")
@option("--base", metavar="IMAGE", help="Base of the builder image.", rare=True)
@option(
    "--families",
    type=click.Choice(("2", "3")),
    help="One build for 2 or 3 GPU families, a gate and an index for each; the second family's "
    "gate fails.",
)
@build_of(TARGETS, pythons("those it finds"), VERSION, BAZEL, CACHE, WHEELHOUSE, REMOTE, CONTAINER)
@dry_run
@click.pass_obj
def demo(
    app: App,
    *,
    wheels_only: bool,
    base: str,
    families: str | None,
    build: BuildOptions,
    dry_run: bool,
) -> None:
    """Do the whole job on a small workspace: build, gate, release and install.

    Installs missing system packages (as root on Debian or Ubuntu) and makes a small ROCm tarball.
    A night, whose store is a folder, builds the wheels and releases them. Then they are installed
    from there by hash.

    With --families, each family gates the same set. It is released for the families that pass.
    With --executor docker or podman there is no night: the demo makes a builder image if this
    checkout has none, and builds the wheels in it.
    """
    from rocwheel.tools import demo as job
    from rocwheel.tools import housekeeping

    number = int(families) if families else None
    asked = job.for_families(request_from(app, build, therock=""), number)
    only = wheels_only or asked.executor.kind != "host"
    is_made = asked.executor.kind != "host" and asked.executor.image in ("", SEARCH)
    if base and not is_made:
        raise click.UsageError("--base: no image is made here; add --executor docker or podman")
    if is_made:
        image = job.image(
            BuilderOptions(recipe=job.RECIPE, base=base, locked=build.locked),
            asked.executor.kind,
            app.here,
            dry_run=dry_run,
        )
        if not image:
            line = f"image build --container-engine {asked.executor.kind} --recipe {job.RECIPE}"
            line += f" --base {base}" if base else ""
            return app.emit_plan([command_line(app, line), "# then the demo, in that image"])
        asked = replace(asked, executor=replace(asked.executor, image=image))
    if dry_run:
        lines = job.dry_run(asked, app.here, wheels_only=only)
        return app.emit_plan(lines)
    with housekeeping.using(asked.cache):
        return _run(app, _prepare(app, asked), wheels_only=only)


def _prepare(app: App, base: dist.Request) -> job.Prepared:
    from rocwheel.dist import wheelhouse
    from rocwheel.tools import demo as job

    with wheelhouse.assembling(base.wheelhouse):
        pass  # so that it fails now and not when the wheels are there
    with app.console.step("System packages", key="system_packages"):
        packages, root = debian.MINIATURE_PACKAGES, os.geteuid() == 0
        if not debian.ensure(packages, runner=app.runner, root=root, say=app.console.info):
            app.console.info("   all there")
    return job.prepare(base, app.here)


def _run(app: App, prepared: job.Prepared, *, wheels_only: bool) -> None:
    """Plan a night, run it with the engine of this machine, install what it released.

    Or build the wheels alone.
    """
    from rocwheel.cli.nightly import worker
    from rocwheel.night.local import LocalScheduler
    from rocwheel.release.ledger.nights import Nights
    from rocwheel.tools import demo as job

    if wheels_only:
        return show_built(app, job.wheels(prepared, app.here))
    words = given_words(app, without=_OWN)
    with app.console.step("Make a ROCm tarball from this machine's packages", key="tarball"):
        tarball = job.make_tarball(prepared.request, app.here)
    who = Who(by=app.user, now=app.now(), reason="demo")
    what = job.night(prepared, tarball, words, app.here, who=who)
    nights = Nights(what.setting.channel.open())
    planned = job.plan(what, nights, prepared.request.wheelhouse)
    runs = sum(not cell.kept for cell in planned.cells)
    kept = len(planned.cells) - runs
    with app.console.step(f"Night {planned.night}: {runs} cells, {kept} done before", key="night"):
        here = worker(app, engine="local", job="")
        try:
            standings = LocalScheduler(nights, planned.night, here, what.setting.target).run()
        except InterruptError as exc:
            raise InterruptError(str(exc), hint="run it again: what passed is kept") from exc
    if error := job.failure(standings, nights.store):
        raise error
    built = standings[f"build.{job.FAMILY}"]
    manifest = built.manifest or planned.recipes[0].manifest
    document, lines = job.finish(prepared, what, manifest, app.here)
    for line in lines:
        app.console.info(line)
    document |= {"new": not built.cell.kept, "seconds": app.console.seconds}
    document["night"] = planned.night
    return app.emit(document, document["manifest"])
