"""`image`: builder images (build, show, prune), and `image runtime`: images that users pull."""

from __future__ import annotations

import click
from msgspec import to_builtins

from rocwheel.base import container
from rocwheel.base.choices import CONTAINER_ENGINES, IMAGE_PROFILES
from rocwheel.base.console import columns, size
from rocwheel.base.container import EngineKind
from rocwheel.base.errors import HostError
from rocwheel.cli import known
from rocwheel.cli.app import App
from rocwheel.cli.options import PATH, alone, dry_run, group, option, option_set
from rocwheel.cli.target import (
    ON_DEVICES,
    PersonOptions,
    Target,
    TargetOptions,
    person_options,
    target_of,
    target_options,
)
from rocwheel.dist.build_request import Executor
from rocwheel.dist.executor import container_spec
from rocwheel.image import build as building
from rocwheel.image import contents, recipe, registry
from rocwheel.image.recipe import BuilderOptions, ImageOptions

engine_option = option(
    "--container-engine",
    "engine",
    section="Engine",
    type=click.Choice(CONTAINER_ENGINES),
    default="docker",
    help="The program that makes and runs containers.",
)
build_network = option(
    "--build-network",
    section="Engine",
    metavar="NAME",
    default="default",
    rare=True,
    help="Network of the steps that install packages: default, host.",
)


def engine_of(app: App, engine: str) -> container.ContainerEngine:
    """Return the engine that --container-engine names. Raises HostError when it does not answer."""
    return container.ask(EngineKind(engine), environ=app.environ, runner=app.runner)


@group("image", also={"shell": "rocwheel.cli.bazel:shell"})
def images() -> None:
    """Make images to build in, and images that users pull."""


@images.command("build")
@option_set(
    "image",
    BuilderOptions,
    option(
        "--recipe",
        metavar="NAME",
        type=known.OneOf(known.recipes),
        default="manylinux_2_28",
        help="Builder recipe of ci/images.yaml.",
    ),
    option(
        "--base",
        metavar="IMAGE",
        help="Start from this image instead of the recipe's: NAME@sha256:…, or a local one.",
    ),
    option("--locked", is_flag=True, help="Refuse a base without a digest."),
    option(
        "--push",
        metavar="REGISTRY",
        help="Push it to this registry, unless its tag is there already.",
    ),
    build_network,
)
@engine_option
@click.pass_obj
def build(app: App, image: BuilderOptions, engine: str) -> None:
    """Make the builder image of a recipe, unless there is one of the same inputs.

    Its tag is made from the digest of all inputs, so unchanged inputs build and push nothing, and
    no tag is ever overwritten.
    """
    recipe.builder(app.home.ci, image.recipe)  # before the engine is asked
    program = engine_of(app, engine)
    made = building.builder(image, program, app.here)
    document = {
        "reference": made.name,
        "inputs": made.inputs,
        "config": made.image.config,
        "new": made.is_new,
        "size": made.image.size,
    }
    if image.push:
        document |= building.push_builder(image, made, program, app.here)
    app.emit(document, str(document.get("pull", made.name)))


@images.command("show")
@click.argument("reference")
@engine_option
@click.pass_obj
def show(app: App, reference: str, engine: str) -> None:
    """Show what an image is and what it has for building wheels."""
    program = engine_of(app, engine)
    there = registry.inspect(reference, engine=program, runner=app.runner)
    if there is None:
        raise HostError(
            f"{reference}: {program.kind.value} has no such image",
            hint=f"{program.program} pull {reference}",
        )
    spec = container_spec(Executor(), program, there, cache=app.cache, environ=app.environ)
    has = contents.ask(spec, there.config, cache=app.cache, runner=app.runner)
    document = {**to_builtins(there), "has": to_builtins(has)}
    rows = [
        ("image", there.reference),
        ("configuration", there.config),
        *(("digest", digest) for digest in there.digests),
        ("size", size(there.size)),
        ("C library", has.glibc),
        *(("Bazel", f"{item.version}, {item.path}") for item in has.bazels),
        *(("clang", f"{item.major}, {item.cc}") for item in has.compilers if item.cxx),
        *(("CPython", f"{item.full}, {item.executable}") for item in has.interpreters),
        *sorted(there.labels.items()),
    ]
    app.emit(document, "\n".join(columns(("what", "found"), rows)))


@images.command("prune")
@engine_option
@dry_run
@click.pass_obj
def prune(app: App, engine: str, dry_run: bool) -> None:
    """Remove containers, image names and folders that interrupted runs of rocwheel left."""
    program = engine_of(app, engine)
    left = container.leftovers(program, cache=app.cache, runner=app.runner)
    if left and not dry_run:
        container.remove(program, left, cache=app.cache, runner=app.runner)
        there = container.leftovers(program, cache=app.cache, runner=app.runner)
        for item in there:
            app.console.warn(f"{item.name}: stays: it could not be removed")
        left = tuple(item for item in left if item not in there)
    names = [item.name for item in left]
    app.emit({"removed": names, "dry_run": dry_run}, "\n".join(names) or "nothing to do")


@images.group("runtime", invoke_without_command=True)
@option_set(
    "image",
    ImageOptions,
    option("--manifest", metavar="SHA|PATH", help="The wheel set (required)."),
    option("--python", metavar="VERSION", help="CPython: 3.12 (required)."),
    option("--recipe", metavar="NAME", default="jax", help="Recipe of ci/images.yaml."),
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
    *ON_DEVICES,
    option(
        "--output",
        section="Output",
        type=PATH,
        default="gate-results/image",
        help="Where results and logs go.",
    ),
    option("--push", metavar="REGISTRY", help="Push it to this registry once its tests pass."),
    option(
        "--tag",
        "tags",
        metavar="NAME",
        multiple=True,
        help="After the push, point this moving tag at it.",
    ),
)
@target_of("GPU family (required).")
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
    Unchanged inputs build and push nothing. The exit status is 9 if verdicts block the push.
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
