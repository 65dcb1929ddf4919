"""`fetch_rocm`: the first stage of `dist_wheels` by itself."""

from __future__ import annotations

import click

from rocwheel.cli.app import App, common_options, dry_run_option
from rocwheel.cli.options import build_options

OPTIONS = frozenset(
    {"--therock-path", "--therock-sha256", "--rocm-version", "--cache-dir", "--cache-budget"}
)


@click.command("fetch_rocm")
@build_options(only=OPTIONS)
@dry_run_option
@common_options
@click.pass_obj
def fetch_rocm(
    app: App,
    /,
    *,
    therock_path: str | None,
    therock_sha256: str | None,
    rocm_version: str | None,
    cache_dir: str | None,
    cache_budget: str | None,
    dry_run: bool,
) -> None:
    """Fetch, check and cache a ROCm tree; print the path of its root."""
    from rocwheel import rocm
    from rocwheel.model import byte_count

    if not therock_path:
        raise click.UsageError("fetch_rocm needs --therock-path: a URL, a tarball or a directory")
    plan = rocm.plan(
        therock_path,
        sha256=therock_sha256,
        version=rocm_version,
        cache=app.cwd / cache_dir if cache_dir else app.cache,
        cwd=app.cwd,
    )
    budget = byte_count(cache_budget) if cache_budget else None
    if dry_run:
        app.emit(plan.document(), str(plan))
        return
    with app.console.step("ROCm", key="rocm"):
        root = rocm.fetch(plan, console=app.console, budget_bytes=budget, env=app.environ)
    app.emit({**root.document(), "seconds": app.console.seconds["rocm"]}, str(root.root))
