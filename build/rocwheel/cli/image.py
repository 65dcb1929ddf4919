"""`image`: builder images: build, show, prune."""

from __future__ import annotations

import click
from msgspec import to_builtins

from rocwheel.base import container
from rocwheel.base.choices import CONTAINER_ENGINES
from rocwheel.base.console import columns, size
from rocwheel.base.container import EngineKind
from rocwheel.base.errors import HostError
from rocwheel.cli import known
from rocwheel.cli.app import App
from rocwheel.cli.options import dry_run, group, option, option_set
from rocwheel.dist.build_request import Executor
from rocwheel.dist.executor import container_spec
from rocwheel.image import build as building
from rocwheel.image import contents, found
from rocwheel.image.options import BuilderOptions

engine_option = option(
    "--engine",
    section="Container",
    type=click.Choice(CONTAINER_ENGINES),
    default="docker",
    help="The container engine.",
)
build_network = option(
    "--build-network",
    section="Container",
    metavar="NAME",
    default="default",
    rare=True,
    help="Network of the steps that install packages: default, host.",
)


def engine_of(app: App, engine: str) -> container.ContainerEngine:
    """Return the engine that --engine names. Raises HostError when it does not answer."""
    return container.ask(EngineKind(engine), environ=app.environ, runner=app.runner)


@group("image")
def images() -> None:
    """Make and show images to build in."""


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
        help="Push it to this repository, unless its tag is there already.",
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
    there = found.inspect(reference, engine=program, runner=app.runner)
    if there is None:
        raise HostError(
            f"{reference}: {program.kind.value} has no such image",
            hint=f"{program.program} pull {reference}",
        )
    spec = container_spec(Executor(), program, there, cache=app.cache, environ=app.environ)
    has = contents.ask(spec, there.config, cache=app.cache, runner=app.runner)
    document = {**to_builtins(there), "has": to_builtins(has)}
    app.emit(document, "\n".join(columns(("what", "found"), _rows(there, has))))


def _rows(there: found.Found, has: contents.ImageFacts) -> list[tuple[str, str]]:
    return [
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
