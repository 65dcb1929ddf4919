"""`runtime_images`: images that users pull, from a released wheel set; and their list."""

from __future__ import annotations

import click

from rocwheel.base.option import nested
from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, command, group_command
from rocwheel.cli.image import engine_of
from rocwheel.cli.imports import when_run
from rocwheel.cli.target import PersonOptions, Target, TargetOptions
from rocwheel.image.options import EngineOptions, ImageOptions

with when_run():
    from rocwheel.base.console import columns, size
    from rocwheel.night import image_job as job
    from rocwheel.night import image_record as record


class RuntimeOptions(TargetOptions, PersonOptions, EngineOptions, DryRun):
    image: ImageOptions = nested(ImageOptions)


@group_command("runtime_images", RuntimeOptions)
def runtime_images(app: App, options: RuntimeOptions) -> int:
    """Make, test and push a runtime image of a released wheel set.

    Base, ROCm, CPython and wheels are layers of their own; what users pull is what was tested.
    Unchanged inputs build and push nothing. Exit status 9 when verdicts hold the push up.
    """
    image = options.image
    given = {"manifest": image.manifest, "python": image.python, "family": options.family}
    for name, value in given.items():
        if not value:
            raise click.UsageError(f"give --{name}")
    if image.tags and not image.push:
        raise click.UsageError("--tag needs --push")
    target = Target(app, options)
    manifest = target.manifest(app, image.manifest)
    staging, release = target.channel.pair(target.store, manifest, target.family.name)
    planned = job.plan(
        image,
        app.here,
        manifest=manifest,
        family=target.family,
        families=app.path(options.families),
        release=release,
        staging=staging,
        who=options.who(app, reason="runtime image"),
    )
    if options.dry_run:
        app.emit_plan(planned.lines)
        return 0
    status, document, line = job.make(planned, engine_of(app, options), app.here)
    app.emit(document, line)
    return status


@command("list", TargetOptions, parent=runtime_images)
def list_images(app: App, options: TargetOptions) -> None:
    """List the images that were pushed: reference, digest, size, set."""
    target = Target(app, options)
    images = [item for pair in target.pairs() for place in pair for item in record.listed(place)]
    rows = [
        (item["reference"], item["digest"][7:19], size(item["size"]), item["manifest"][:12],
         "released" if item["released"] else "staged")
        for item in images
    ]  # fmt: skip
    head = ("image", "digest", "size", "set", "state")
    app.emit({"images": images}, "\n".join(columns(head, rows)))
