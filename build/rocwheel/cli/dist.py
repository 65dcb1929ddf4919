"""`dist_wheels`: the main job; and what else a request has than the options of the command."""

from __future__ import annotations

import sys

from rocwheel.build_options import BuildOptions
from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, command
from rocwheel.cli.imports import when_run
from rocwheel.cli.rocm import rocm_index, rocm_source
from rocwheel.cli.trust import SignerOptions

with when_run():
    import platform
    import shlex

    from rocwheel import dist, housekeeping
    from rocwheel.download import shown
    from rocwheel.trust import evidence


class DistOptions(BuildOptions, SignerOptions, DryRun):
    """Options of `dist_wheels`."""


def request_from(app: App, options: BuildOptions, *, therock: str) -> dist.Request:
    """Return the request that options make here and now. Raises ConfigError."""
    request = dist.Request.of(
        options,
        therock=therock,
        therock_index=rocm_index(app, options),
        cache=options.cache or app.cache,
        home=app.home,
        cwd=app.cwd,
        environ=app.environ,
        command_line=shlex.join(shown(sys.argv)),
        started=app.now().isoformat(timespec="seconds"),
        host=platform.node(),
    )
    return dist.resolved(request, runner=app.runner)


@command("dist_wheels", DistOptions)
def dist_wheels(app: App, options: DistOptions) -> None:
    """Build, repair and verify a wheel set; leave a wheelhouse with its manifest.

    ROCm comes from --therock-path, JAX from a pin (--jax-version) or a folder (--jax-source-dir).
    The wheelhouse appears whole, below --wheelhouse, under the first digits of the manifest's
    SHA-256; `current` points to the newest. The path of the manifest is printed.
    """
    planned = dist.plan(request_from(app, options, therock=rocm_source(options)))
    signer = options.key(app)
    if options.dry_run:
        app.emit_plan(dist.dry_run(planned, runner=app.runner, console=app.console))
        return
    with housekeeping.using(planned.request.cache):
        result = dist.build(planned, runner=app.runner, console=app.console)
    evidence.state_build(result.wheelhouse, signer, finished=app.now().isoformat())
    for line in dist.lines(result, seconds=app.console.seconds):
        app.console.info(line)
    document = dist.document(result, seconds=app.console.seconds)
    app.emit(document, document["manifest"])
