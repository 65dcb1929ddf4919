"""`dist_wheels` and `rebuild`; and what else a request has than the options of a command."""

# ruff: noqa: RUF009 - each call is a `dataclasses.field`

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import click

from rocwheel.build_options import (
    BazelOptions,
    BuildCacheOptions,
    BuildOptions,
    ContainerOptions,
    RemoteOptions,
    RocmOptions,
    SourceOptions,
    WheelhouseOptions,
)
from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, command, options_of, own
from rocwheel.cli.imports import when_run
from rocwheel.cli.options import build_options
from rocwheel.cli.rocm import rocm_index, rocm_source
from rocwheel.cli.trust import SignerOptions

with when_run():
    import platform
    import shlex

    from rocwheel import dist, housekeeping
    from rocwheel.download import shown
    from rocwheel.manifest import Manifest
    from rocwheel.trust import evidence


DIFFERENT = 13  # the status of `wheel diff --exit-code`, too


@dataclass(frozen=True, kw_only=True)
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
@build_options
def dist_wheels(app: App, options: DistOptions) -> None:
    """Build, repair and verify a wheel set; leave a wheelhouse with its manifest.

    ROCm comes from --therock-path, JAX from a pin (--jax-version) or a folder (--jax-source-dir).
    The wheelhouse appears whole, below --wheelhouse, under the first digits of the manifest's
    SHA-256; `current` points to the newest. The path of the manifest is printed.
    """
    planned = dist.plan(request_from(app, options, therock=rocm_source(options)))
    if options.dry_run:
        app.emit_plan(dist.dry_run(planned, runner=app.runner, console=app.console))
        return
    signer = options.key(app)
    with housekeeping.using(planned.request.cache):
        result = dist.build(planned, runner=app.runner, console=app.console)
    evidence.state_build(result.wheelhouse, signer, finished=app.now().isoformat())
    for line in dist.lines(result, seconds=app.console.seconds):
        app.console.info(line)
    document = dist.document(result, seconds=app.console.seconds)
    app.emit(document, document["manifest"])


@dataclass(frozen=True, kw_only=True)
class RebuildOptions(DistOptions):
    """Options of `rebuild`; what decides the bytes comes from the manifest."""

    manifest: Path
    wheelhouse: Path = own(
        "--wheelhouse", "Where the set appears.", is_path=True, default=Path("rebuilt")
    )


@command("rebuild", RebuildOptions)
@click.argument("manifest", type=click.Path(path_type=Path))
@options_of(RocmOptions, only=("therock",))
@options_of(SourceOptions, only=("jax_source_dir", "xla_source_dir"))
@options_of(BazelOptions, only=("compiler_path", "bazel_path", "bazel_mirror", "locked"))
@options_of(RemoteOptions, ContainerOptions, BuildCacheOptions)
@options_of(WheelhouseOptions, only=("allow_dirty",))
@options_of(RebuildOptions)
def rebuild(app: App, options: RebuildOptions) -> int:
    """Build a wheel set again from what its manifest says, and compare it byte by byte.

    MANIFEST is a manifest.json or its wheelhouse. Where every wheel is the same, a statement says
    so, which --signer signs and `stage` takes along; else what differs is printed, and the exit
    status is 13.
    """
    path = app.cwd / options.manifest
    before = Manifest.load(path)
    planned = dist.plan_rebuild(before, request_from(app, options, therock=options.therock))
    if options.dry_run:
        app.emit_plan(dist.dry_run(planned, runner=app.runner, console=app.console))
        return 0
    signer, folder = options.key(app), path if path.is_dir() else path.parent
    with housekeeping.using(planned.request.cache):
        again = dist.rebuild(before, folder, planned, runner=app.runner, console=app.console)
    lines = [f"the build: {item}" for item in again.circumstances]
    lines += [f"{name}: {line}" for name, found in again.wheels.items() for line in found]
    document = {
        "state": "different" if again.wheels else "reproduced",
        "manifest": before.sha256,
        "rebuilt": again.result.manifest.sha256,
        "wheels": again.wheels,
        "circumstances": again.circumstances,
        "statement": "",
    }
    if not again.wheels:
        now = app.now().isoformat()
        stated = evidence.state_build(again.result.wheelhouse, signer, finished=now, again=before)
        document["statement"] = str(stated)
    lines.append(f"{before.sha256} {document['state']}")
    app.emit(document, "\n".join(lines))
    return DIFFERENT if again.wheels else 0
