"""`dist_wheels` and `rebuild`; and what else a request has than the options of a command."""

from __future__ import annotations

import sys

from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, command, own
from rocwheel.cli.imports import when_run
from rocwheel.cli.rocm import rocm_index, rocm_source
from rocwheel.cli.trust import SignerOptions
from rocwheel.records.build_options import (
    BazelOptions,
    BuildOptions,
    FamilyOptions,
    PythonOptions,
    RocmOptions,
    SourceOptions,
    TargetsOptions,
    VersionOptions,
)

with when_run():
    import platform
    import shlex
    from pathlib import Path

    from rocwheel import dist
    from rocwheel.base.download import shown_setting
    from rocwheel.records.manifest import Manifest
    from rocwheel.release.trust import evidence
    from rocwheel.tools import housekeeping


DIFFERENT = 13  # the status of `wheel diff --exit-code`, too


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
        command_line=shlex.join(shown_setting("", word) for word in sys.argv),
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
        return app.emit_plan(dist.dry_run(planned, app.here))
    with housekeeping.using(planned.request.cache):
        result = dist.build(planned, app.here)
    evidence.state_build(result.wheelhouse, signer, finished=app.now().isoformat())
    return show_built(app, result)


def show_built(app: App, result: dist.Result) -> None:
    """Say what was built, and print where its manifest is."""
    for line in dist.lines(result, seconds=app.console.seconds):
        app.console.info(line)
    document = dist.document(result, seconds=app.console.seconds)
    app.emit(document, document["manifest"])


class RebuildOptions(DistOptions):
    """Options of `rebuild`; what decides the bytes comes from the manifest."""

    manifest: Path = own("MANIFEST", is_path=True, required=True)
    wheelhouse: Path = own(
        "--wheelhouse", "Where the set appears.", is_path=True, default="rebuilt"
    )


@command(
    "rebuild",
    RebuildOptions,
    without=[
        RocmOptions, FamilyOptions, TargetsOptions, SourceOptions, PythonOptions, VersionOptions,
        BazelOptions,
    ],
)  # fmt: skip
def rebuild(app: App, options: RebuildOptions) -> int:
    """Build a wheel set again from what its manifest says, and compare it byte by byte.

    MANIFEST is a manifest.json or its wheelhouse. Where every wheel is the same, a statement says
    so, which --signer signs and `stage` takes along; else what differs is printed, and the exit
    status is 13.
    """
    before = Manifest.load(options.manifest)
    planned = dist.plan_rebuild(before, request_from(app, options, therock=options.therock))
    if options.dry_run:
        app.emit_plan(dist.dry_run(planned, app.here))
        return 0
    signer, statement = options.key(app), None
    with housekeeping.using(planned.request.cache):
        made = dist.rebuild(before, options.manifest, planned, app.here)
    if not made.wheels:
        folder, now = made.result.wheelhouse, app.now().isoformat()
        statement = evidence.state_build(folder, signer, finished=now, again=before)
    app.emit(made.to_json(statement), "\n".join(made.lines()))
    return DIFFERENT if made.wheels else 0
