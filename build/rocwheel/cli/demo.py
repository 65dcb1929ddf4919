"""`demo`: the whole main job on the miniature workspace."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rocwheel import demo as job
from rocwheel import dist
from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, command, dry_run_option
from rocwheel.cli.dist import request_from
from rocwheel.cli.gating import this_host
from rocwheel.cli.options import (
    BuildOptions,
    bazel_options,
    cache_options,
    executor_options,
    python_options,
    remote_options,
    target_options,
    version_options,
    wheelhouse_options,
)
from rocwheel.release.operations import Who


@dataclass(frozen=True, kw_only=True)
class DemoOptions(BuildOptions, DryRun):
    """Options of `demo`: sources, ROCm and compiler are the miniature's own."""


@command("demo", DemoOptions)
@python_options
@target_options
@version_options
@bazel_options
@remote_options
@executor_options
@wheelhouse_options
@cache_options
@dry_run_option
def demo(app: App, options: DemoOptions) -> None:
    """Run the whole main job on the miniature workspace.

    Installs missing system packages (as root on Debian or Ubuntu, after saying which), makes a
    TheRock-like tarball, serves it on loopback, fetches it, builds jaxlib, pjrt and plugin with
    Bazel for the CPythons it finds, repairs and verifies the wheels, stages, gates and promotes
    them into a folder, and installs them from there by hash.
    """
    base = request_from(app, options, therock="")
    if options.dry_run:
        app.emit_plan(job.dry_run(base, runner=app.runner))
        return
    host = this_host(app, base.cache / "slots", "")
    who = Who(by=app.user, now=app.now(), reason="demo")
    root = os.geteuid() == 0
    result = job.run(base, host=host, who=who, console=app.console, root=root)
    for line in job.lines(result, seconds=app.console.seconds):
        app.console.info(line)
    app.github_outputs(dist.github_outputs(result.built))
    document = job.document(result, seconds=app.console.seconds)
    app.emit(document, document["manifest"])
