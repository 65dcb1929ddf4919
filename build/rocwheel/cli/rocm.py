"""`rocm fetch`: the first stage of `dist_wheels` by itself."""

from __future__ import annotations

import click

from rocwheel import rocm
from rocwheel.base.errors import RocmError
from rocwheel.cli.app import App
from rocwheel.cli.build_options import CACHE, ROCM, build_of
from rocwheel.cli.options import command, dry_run, group
from rocwheel.records.build_options import BuildOptions
from rocwheel.rocm import by_pip, therock


def rocm_source(options: BuildOptions) -> str:
    """Return the ROCm that the options name. Raises UsageError for none or for two."""
    if options.therock and options.devices:
        raise click.UsageError("--rocm-devices is for --therock-index-url without --therock-path")
    if options.therock:
        return options.therock
    if not options.therock_index:
        raise click.UsageError(
            "give --therock-path: a URL, a tarball, a directory or pip:REQUIREMENT;"
            " or --therock-index-url"
        )
    return by_pip.requirement(options.rocm_version, options.devices or ("all",))


def rocm_index(app: App, options: BuildOptions) -> str:
    """Return the pip index with ROCm: where a stream of TheRock's has the version asked for."""
    named, version = options.therock_index, options.rocm_version or ""
    if not named:
        return ""
    return therock.address(named, "packages", version=version, ci=app.home.ci, cwd=app.cwd)


@group("rocm")
def rocm_group() -> None:
    """Fetch, check and cache a ROCm tree."""


@command("fetch_rocm")
@build_of(ROCM, CACHE)
@dry_run
@click.pass_obj
def fetch_rocm(app: App, build: BuildOptions, dry_run: bool) -> None:
    """Fetch, check and cache a ROCm tree; print the path of its root."""
    plan = rocm.plan(
        rocm_source(build),
        index=rocm_index(app, build),
        sha256=build.therock_sha256,
        version=build.rocm_version,
        cache=build.rocm_cache or build.cache or app.cache,
        cwd=app.cwd,
    )
    rocm.check_local(plan)
    if dry_run:
        return app.emit(plan.document(), str(plan))
    with app.console.step("ROCm", key="rocm"):
        budget = build.cache_budget
        root = rocm.fetch(plan, console=app.console, budget_bytes=budget, env=app.environ)
    asked = plan.targets or root.facts.targets[:1]
    if refused := rocm.uncompiled(root.root, asked, runner=app.runner):
        raise RocmError(
            f"{root.name}: its own clang compiles nothing for {refused[0]}",
            hint="the tree is incomplete: fetch another release",
        )
    return app.emit({**root.document(), "seconds": app.console.seconds["rocm"]}, str(root.root))
