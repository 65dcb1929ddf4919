"""`demo`: the whole main job on the miniature workspace."""

from __future__ import annotations

import os

import click

from rocwheel.base.errors import InterruptError
from rocwheel.cli import command_line
from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, command, declared, given_words, own
from rocwheel.cli.dist import request_from, show_built
from rocwheel.cli.imports import when_run
from rocwheel.cli.nightly_options import run_here, worker
from rocwheel.image.options import BuilderOptions
from rocwheel.records.build_options import (
    BuildOptions,
    FamilyOptions,
    FolderOptions,
    RocmOptions,
    SourceOptions,
    TherockOptions,
)

with when_run():
    import dataclasses

    from rocwheel import dist
    from rocwheel.base.host import debian
    from rocwheel.dist import executor, wheelhouse
    from rocwheel.release.ledger.nights import Nights
    from rocwheel.release.operations import Who
    from rocwheel.tools import demo as job
    from rocwheel.tools import housekeeping

# what the build cell is told by the night, or is not asked of it
_OWN = frozenset({"base", "dry_run", "wheels_only", "python_versions", "wheelhouse"})
# sources and ROCm are the miniature's
_NOT_ITS = (TherockOptions, RocmOptions, FamilyOptions, FolderOptions, SourceOptions)


class DemoOptions(BuildOptions, DryRun):
    """Options of `demo`: sources, ROCm and compiler are the miniature's own."""

    wheels_only: bool = own("--wheels-only", "Build and verify; no night, no index.", default=False)
    base: str = own("--base IMAGE", "Make the image of --executor from this one.", default="")
    # other commands mean a file by it; no such field of a build is asked for here
    number: int | None = own(
        "--families N",
        "One build for 2 or 3 GPU families, a gate and an index for each; the second family's gate "
        "fails.",
        param="families",
        only=("2", "3"),
        parse=int,
        default=None,
    )


@command("demo", DemoOptions, without=_NOT_ITS)
def demo(app: App, options: DemoOptions) -> None:
    """Run the whole main job on the miniature workspace: a night whose store is a folder.

    Installs missing system packages (as root on Debian or Ubuntu, after saying which), makes a
    TheRock-like tarball, unpacks it, builds jaxlib, pjrt and plugin with
    Bazel for the CPythons it finds, repairs and verifies the wheels, stages, gates and promotes
    them into a folder, and installs them from there by hash. With --families the set is for several
    GPU families: it is built and staged once, each gates it, and those that pass get it. A build in
    a container ends with the wheels: a gate needs the CPythons they were built with. Its image is
    made where the engine has none of this checkout.
    """
    base = job.for_families(request_from(app, options, therock=""), options.number)
    only = options.wheels_only or base.executor.kind != "host"
    if _makes_image(base, options):
        image = job.image(
            BuilderOptions(recipe=job.RECIPE, base=options.base, locked=options.locked),
            base.executor.kind,
            app.here,
            dry_run=options.dry_run,
        )
        if not image:
            line = f"image build --engine {base.executor.kind} --recipe {job.RECIPE}"
            line += f" --base {options.base}" if options.base else ""
            return app.emit_plan([command_line(app, line), "# then the demo, in that image"])
        base = dataclasses.replace(base, executor=dataclasses.replace(base.executor, image=image))
    if options.dry_run:
        lines = job.dry_run(base, app.here, wheels_only=only)
        return app.emit_plan(lines)
    with housekeeping.using(base.cache):
        return _run(app, _prepare(app, base), wheels_only=only)


def _makes_image(base: dist.Request, options: DemoOptions) -> bool:
    """Return whether an image is looked for, and made. Raises UsageError for --base without."""
    is_made = base.executor.kind != "host" and base.executor.image in ("", executor.SEARCH)
    if options.base and not is_made:
        raise click.UsageError("--base: no image is made here; add --executor docker or podman")
    return is_made


def _prepare(app: App, base: dist.Request) -> job.Prepared:
    """Try the wheelhouse, install packages, look for CPythons."""
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
    if wheels_only:
        return show_built(app, job.wheels(prepared, app.here))
    words = given_words(app, declared(DemoOptions).keys() - _OWN)
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
            _, standings = run_here(
                app, nights, planned.night, here, words=what.setting.target, workers=0
            )
        except InterruptError as exc:
            raise InterruptError(str(exc), hint="run it again: what passed is kept") from exc
    if error := job.failure(standings, nights.store):
        raise error
    built = standings[f"build.{job.FAMILY}"]
    manifest = built.manifest or planned.recipes[0].manifest
    result = job.finish(prepared, what, manifest, app.here)
    for line in result.lines():
        app.console.info(line)
    document = result.document() | {"new": not built.cell.kept, "seconds": app.console.seconds}
    document["night"] = planned.night
    return app.emit(document, document["manifest"])
