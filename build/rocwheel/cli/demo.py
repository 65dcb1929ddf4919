"""`demo`: the whole main job on the miniature workspace."""

from __future__ import annotations

import os
from typing import Any

import click

from rocwheel.cli.app import App, common_options, dry_run_option
from rocwheel.cli.dist import request_from
from rocwheel.cli.options import build_options

NOT_HERE = frozenset({
    "--therock-path", "--therock-sha256", "--rocm-version", "--jax-version", "--jax-source-dir",
    "--jaxlib", "--compiler", "--family", "--xla-source-dir", "--xla-repo", "--xla-ref",
})  # fmt: skip


@click.command("demo")
@build_options(without=NOT_HERE)
@dry_run_option
@common_options
@click.pass_obj
def demo(app: App, /, *, dry_run: bool, **options: Any) -> None:
    """Run the whole main job on the miniature workspace.

    Installs missing system packages (as root on Debian or Ubuntu, after saying which), makes a
    TheRock-like tarball, serves it on loopback, fetches it, builds jaxlib, pjrt and plugin with
    Bazel for the CPythons it finds, repairs, verifies, installs and imports the wheels.
    """
    from rocwheel import demo as job
    from rocwheel import dist

    absent = {
        "therock_sha256": None, "rocm_version": None, "jax_version": None, "jax_source_dir": None,
        "jaxlib": None, "compiler": "clang", "family": None, "xla_source_dir": None,
        "xla_repo": None, "xla_ref": None,
    }  # fmt: skip
    base = request_from(app, {**absent, **options}, therock="")
    if dry_run:
        shown = tuple(job.dry_run(base, runner=app.runner))
        app.emit({"plan": list(shown)}, "\n".join(shown))
        return
    root = os.geteuid() == 0
    result = job.run(base, runner=app.runner, console=app.console, root=root)
    seconds = app.console.seconds
    for line in dist.lines(result.built, seconds=seconds):
        app.console.info(line)
    app.github_outputs(dist.github_outputs(result.built))
    document = job.document(result, seconds=seconds)
    app.emit(document, document["manifest"])
