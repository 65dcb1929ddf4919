"""`image runtime`: images that users pull, from a released wheel set; and their list."""

from __future__ import annotations

from typing import Any

import click

from rocwheel.base.choices import IMAGE_PROFILES
from rocwheel.base.console import columns, size
from rocwheel.cli.app import App
from rocwheel.cli.image import build_network, engine_of, engine_option
from rocwheel.cli.options import PATH, alone, dry_run, group, option, option_set
from rocwheel.cli.target import PersonOptions, Target, TargetOptions, person_options, target_options
from rocwheel.image.options import ImageOptions


def _asked(tag: tuple[str, ...], **given: Any) -> ImageOptions:
    return ImageOptions(tags=tag, **given)


@group("runtime_images", invoke_without_command=True)
@option_set(
    "image",
    _asked,
    option("--manifest", metavar="SHA|PATH", help="The wheel set (required)."),
    option("--python", metavar="VERSION", help="CPython: 3.12 (required)."),
    option("--recipe", metavar="TEXT", default="jax", help="Recipe of ci/images.yaml."),
    option("--base", metavar="NAME", help="Base of ci/images.yaml; default: the first."),
    option(
        "--base-image",
        metavar="IMAGE",
        rare=True,
        help="This image in place of the base's own: NAME@sha256:…, or a local one.",
    ),
    option(
        "--profile",
        type=click.Choice(IMAGE_PROFILES),
        default=IMAGE_PROFILES[0],
        help="The part of ROCm in the image: what the wheels need, or all of it.",
    ),
    option(
        "--rocm",
        metavar="SOURCE",
        rare=True,
        help="ROCm as a tarball, URL or folder; default: the manifest's own.",
    ),
    option(
        "--unreleased",
        is_flag=True,
        rare=True,
        help="Make it from a set that is only staged, labelled so, for another repository.",
    ),
    build_network,
    option("--test", is_flag=True, help="Run the recipe's suites in the image."),
    option(
        "--jax-tests",
        metavar="DIR",
        type=PATH,
        rare=True,
        help="A JAX checkout at the set's commit; default: it is fetched.",
    ),
    option(
        "--slots",
        type=PATH,
        default="/run/lock/rocwheel",
        rare=True,
        help="Lock files of the devices, shared by everything on this machine.",
    ),
    option(
        "--output",
        section="Output",
        type=PATH,
        default="gate-results/image",
        help="Where results and logs go.",
    ),
    option("--push", metavar="REGISTRY", help="Push it to this repository once its tests pass."),
    option(
        "--tag", metavar="NAME", multiple=True, help="After the push, point this moving tag at it."
    ),
)
@target_options
@person_options
@engine_option
@dry_run
@alone
@click.pass_obj
def runtime_images(
    app: App,
    *,
    image: ImageOptions,
    target: TargetOptions,
    person: PersonOptions,
    engine: str,
    dry_run: bool,
) -> int:
    """Make, test and push a runtime image of a released wheel set.

    Base, ROCm, CPython and wheels are separate layers; users pull exactly what was tested.
    Unchanged inputs build and push nothing. The exit status is 9 when verdicts hold the push up.
    """
    from rocwheel.night import image_job as job

    given = {"manifest": image.manifest, "python": image.python, "family": target.family}
    for name, value in given.items():
        if not value:
            raise click.UsageError(f"give --{name}")
    if image.tags and not image.push:
        raise click.UsageError("--tag needs --push")
    where = Target(app, target)
    manifest = where.manifest(app, image.manifest)
    staging, release = where.channel.pair(where.store, manifest, where.family.name)
    planned = job.plan(
        image,
        app.here,
        manifest=manifest,
        family=where.family,
        families=target.family_file,
        release=release,
        staging=staging,
        who=person.who(app, reason="runtime image"),
    )
    if dry_run:
        app.emit_plan(planned.lines)
        return 0
    status, document, line = job.make(planned, engine_of(app, engine), app.here)
    app.emit(document, line)
    return status


@runtime_images.command("list")
@target_options
@click.pass_obj
def list_images(app: App, target: TargetOptions) -> None:
    """List the images that were pushed: reference, digest, size, set."""
    from rocwheel.night import image_record as record

    pairs = Target(app, target).pairs()
    images = [item for pair in pairs for place in pair for item in record.listed(place)]
    rows = [
        (item["reference"], item["digest"][7:19], size(item["size"]), item["manifest"][:12],
         "released" if item["released"] else "staged")
        for item in images
    ]  # fmt: skip
    head = ("image", "digest", "size", "set", "state")
    app.emit({"images": images}, "\n".join(columns(head, rows)))
