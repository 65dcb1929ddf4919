"""`fetch_rocm`: the first stage of `dist_wheels` by itself."""

from __future__ import annotations

from dataclasses import dataclass

import click

from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, command
from rocwheel.cli.imports import when_run
from rocwheel.cli.options import RocmOptions, fetch_options, listed

with when_run():
    from rocwheel import rocm
    from rocwheel.model import byte_count
    from rocwheel.rocm import by_pip, therock


@dataclass(frozen=True, kw_only=True)
class FetchOptions(RocmOptions, DryRun):
    """Options of `fetch_rocm`."""


def rocm_source(options: RocmOptions, command: str = "") -> str:
    """Return the ROCm that the options name. Raises UsageError for none or for two."""
    if options.therock_path and options.device:
        raise click.UsageError("--device is for --therock-index-url without --therock-path")
    if options.therock_path:
        return options.therock_path
    if not options.therock_index_url:
        raise click.UsageError(
            f"{command} needs --therock-path: a URL, a tarball, a directory".lstrip()
            + " or pip:REQUIREMENT; or --therock-index-url"
        )
    return by_pip.requirement(options.rocm_version, listed(options.device or "all"))


def rocm_index(app: App, options: RocmOptions) -> str:
    """Return the pip index with ROCm, which may be named by a channel of TheRock's."""
    named = options.therock_index_url or ""
    return therock.address(named, "packages", ci=app.home.ci, cwd=app.cwd) if named else ""


def _plan(app: App, options: FetchOptions) -> rocm.RocmPlan:
    return rocm.plan(
        rocm_source(options, "fetch_rocm"),
        index=rocm_index(app, options),
        sha256=options.therock_sha256,
        version=options.rocm_version,
        cache=app.path(options.rocm_dir) or app.path(options.cache_dir) or app.cache,
        cwd=app.cwd,
    )


@command("fetch_rocm", FetchOptions)
@fetch_options
def fetch_rocm(app: App, options: FetchOptions) -> None:
    """Fetch, check and cache a ROCm tree; print the path of its root."""
    plan = _plan(app, options)
    rocm.check_local(plan)
    budget = byte_count(options.cache_budget) if options.cache_budget else None
    if options.dry_run:
        app.emit(plan.document(), str(plan))
        return
    with app.console.step("ROCm", key="rocm"):
        root = rocm.fetch(plan, console=app.console, budget_bytes=budget, env=app.environ)
    app.emit({**root.document(), "seconds": app.console.seconds["rocm"]}, str(root.root))
