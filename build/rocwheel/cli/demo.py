"""`demo`: the whole main job on the miniature workspace."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rocwheel.build_options import BuildOptions, PythonOptions, SourceOptions, VersionOptions
from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, command, given_words, option, options_of
from rocwheel.cli.dist import request_from
from rocwheel.cli.image import engine_of
from rocwheel.cli.imports import when_run
from rocwheel.cli.nightly_options import run_here, worker
from rocwheel.cli.options import place_options, wheelhouse_options
from rocwheel.errors import ConfigError, InterruptError
from rocwheel.image.options import BuilderOptions, EngineOptions

with when_run():
    import dataclasses

    from rocwheel import demo as job
    from rocwheel import dist, housekeeping, wheelhouse
    from rocwheel.dist import builder
    from rocwheel.dist.executor import SEARCH
    from rocwheel.ledger.nights import Nights
    from rocwheel.release.operations import Who

# what the build cell is told by the night, or is not asked of it
_OWN = frozenset(
    {"base", "build_network", "dry_run", "wheels_only", "python_versions", "wheelhouse"}
)


@dataclass(frozen=True, kw_only=True)
class DemoOptions(BuildOptions, DryRun):
    """Options of `demo`: sources, ROCm and compiler are the miniature's own."""

    wheels_only: bool
    base: str | None
    build_network: str


@command("demo", DemoOptions)
@option("--wheels-only", is_flag=True, help="Build, install and import; no night, no index.")
@option("--base", metavar="IMAGE", help="Start the image from this one where it has to be made.")
@option(
    "--build-network",
    default="default",
    metavar="NAME",
    help="Network of the steps that install packages in it: default, host.",
)
@options_of(PythonOptions)
@options_of(SourceOptions, only=("gfx_targets",))
@options_of(VersionOptions)
@place_options
@wheelhouse_options
def demo(app: App, options: DemoOptions) -> None:
    """Run the whole main job on the miniature workspace: a night whose store is a folder.

    Installs missing system packages (as root on Debian or Ubuntu, after saying which), makes a
    TheRock-like tarball, serves it on loopback, fetches it, builds jaxlib, pjrt and plugin with
    Bazel for the CPythons it finds, repairs and verifies the wheels, stages, gates and promotes
    them into a folder, and installs them from there by hash. A build in a container ends with the
    wheels: a gate needs the CPythons they were built with. Its image is made where the engine has
    none of this checkout.
    """
    base = request_from(app, options, therock="")
    job.accept(base.pythons)
    only = options.wheels_only or base.executor.kind != "host"
    if options.base or base.executor.kind != "host":
        if not (image := _image(app, options, base)):
            return app.emit_plan(_image_first(options, base))
        base = dataclasses.replace(base, executor=dataclasses.replace(base.executor, image=image))
    if options.dry_run:
        lines = job.dry_run(base, wheels_only=only, runner=app.runner, console=app.console)
        return app.emit_plan(lines)
    _prepare(app, base)
    with housekeeping.using(base.cache):
        if only:
            return _wheels(app, base)
        return _night(app, base, given_words(options, app.cwd, leave=_OWN))


def _prepare(app: App, base: dist.Request) -> None:
    """Try the wheelhouse, so that it fails now and not when the wheels are there, and install."""
    with wheelhouse.assembling(base.wheelhouse):
        pass
    job.install_packages(runner=app.runner, console=app.console, root=os.geteuid() == 0)


def _image_first(options: DemoOptions, base: dist.Request) -> list[str]:
    """Return the lines of a dry run where the image to build in is not made yet."""
    line = f"rocwheel image build --engine {base.executor.kind} --recipe {job.RECIPE}"
    more = f" --base {options.base}" if options.base else ""
    more += (
        f" --build-network {options.build_network}" if options.build_network != "default" else ""
    )
    return [line + more, "# then the demo, in that image"]


def _image(app: App, options: DemoOptions, base: dist.Request) -> str:
    """Return the image to build in: what was named, or that of the recipe, made where need be."""
    asked = base.executor
    named = asked.image if asked.image != SEARCH else ""
    if options.base and (named or asked.kind == "host"):
        raise ConfigError(
            "--base: no image is made here",
            hint="add --executor=docker or podman, without --builder-image",
        )
    if named:
        return named
    engine = engine_of(app, EngineOptions(engine=asked.kind))
    there = builder.current(job.RECIPE, app.home, engine=engine, runner=app.runner)
    if there and not options.base:
        return there.reference
    wanted = BuilderOptions(
        recipe=job.RECIPE,
        base=options.base or "",
        build_network=options.build_network,
        locked=options.locked,
    )
    return "" if options.dry_run else builder.make(wanted, app, engine).name


def _wheels(app: App, base: dist.Request) -> None:
    built, installed = job.wheels(base, runner=app.runner, console=app.console)
    for line in dist.lines(built, seconds=app.console.seconds):
        app.console.info(line)
    document = dist.document(built, seconds=app.console.seconds)
    document["installed"] = [dataclasses.asdict(item) for item in installed]
    app.emit(document, document["manifest"])


def _night(app: App, base: dist.Request, words: tuple[str, ...]) -> None:
    """Plan a night, run it with the engine of this machine, install what it released."""
    prepared = job.prepare(base, runner=app.runner, console=app.console)
    with app.console.step("Make a ROCm tarball from this machine's packages", key="tarball"):
        folder = job.miniature(base.home)
        tarball = job.make_tarball(folder, base.cache, runner=app.runner, console=app.console)
    who = Who(by=app.user, now=app.now(), reason="demo")
    what = job.night(prepared, tarball, words, who=who, runner=app.runner)
    nights = Nights(what.setting.channel.open())
    planned = job.plan(what, nights, base.wheelhouse)
    runs = sum(not cell.kept for cell in planned.cells)
    kept = len(planned.cells) - runs
    with app.console.step(f"Night {planned.night}: {runs} cells, {kept} done before", key="night"):
        here = worker(app, engine="local", job="")
        try:
            _, found = run_here(
                app, nights, nights.book(planned.night), here, words=what.setting.target, workers=0
            )
        except InterruptError as exc:
            raise InterruptError(str(exc), hint="run it again: what passed is kept") from exc
    if error := job.failure(found, nights.store):
        raise error
    built = found[f"build.{job.FAMILY}"]
    manifest = built.manifest or planned.recipes[0].manifest
    result = job.finish(prepared, what, manifest, runner=app.runner, console=app.console)
    for line in job.lines(result):
        app.console.info(line)
    document = job.document(result) | {"new": not built.cell.kept, "seconds": app.console.seconds}
    document["night"] = planned.night
    app.emit(document, document["manifest"])
