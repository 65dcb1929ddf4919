"""`image`: builder images: build, search, show, prune."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from rocwheel.cli import known
from rocwheel.cli.app import App
from rocwheel.cli.command import command, group, once, option, section
from rocwheel.cli.imports import when_run
from rocwheel.cli.known import OneOf
from rocwheel.errors import ConfigError, HostError

with when_run():
    import json

    from rocwheel import container, image, source
    from rocwheel import rocm as trees
    from rocwheel.bazel import releases
    from rocwheel.bazel.releases import Downloads
    from rocwheel.console import columns, size
    from rocwheel.container import EngineKind
    from rocwheel.dist.build_request import Executor
    from rocwheel.dist.executor import container_spec
    from rocwheel.image import building, contents, found, recipe, registry, searching

ENGINES = ("docker", "podman")


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """The option that names the container engine."""

    engine: str = "docker"

    declared = section(
        "Container",
        once(
            "--engine",
            type=click.Choice(ENGINES),
            default="docker",
            show_default=True,
            help="The container engine.",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class RecipeOptions(EngineOptions):
    """Options that name a builder image: a recipe of ci/images.yaml, and what replaces its base."""

    recipe: str = "manylinux_2_28"
    base: str | None = None
    with_rocm: Path | None = None
    locked: bool = False

    declared = section(
        "Inputs",
        once(
            "--recipe",
            metavar="NAME",
            type=OneOf(known.recipes),
            default="manylinux_2_28",
            show_default=True,
            help="Builder recipe of ci/images.yaml.",
        ),
        once(
            "--base",
            metavar="IMAGE",
            help="Start from this image instead of the recipe's: NAME@sha256:…, or a local one.",
        ),
        once(
            "--with-rocm",
            type=click.Path(path_type=Path, file_okay=False, exists=True),
            metavar="DIR",
            help="Bake this ROCm tree in, as /opt/rocm; default: it is mounted.",
        ),
        option("--locked", is_flag=True, help="Take a base by digest only."),
    )


@dataclass(frozen=True, kw_only=True)
class ImageBuildOptions(RecipeOptions):
    """Options of `image build`."""

    push: str | None = None
    build_network: str = "default"


@dataclass(frozen=True, kw_only=True)
class ImageShowOptions(EngineOptions):
    """Options of `image show`."""

    reference: str


@dataclass(frozen=True, kw_only=True)
class ImagePruneOptions(EngineOptions):
    """Options of `image prune`."""

    dry_run: bool = False
    images: bool = False


@group("image")
def images() -> None:
    """Make, find and show images to build in."""


@command("build", ImageBuildOptions, parent=images)
@once("--push", metavar="REGISTRY", help="Push it there, unless its tag is there already.")
@once(
    "--build-network",
    metavar="NAME",
    default="default",
    show_default=True,
    help="Network of the steps that install packages: default, host.",
)
def build(app: App, options: ImageBuildOptions) -> None:
    """Make the builder image of a recipe, unless there is one of the same inputs.

    Its tag is made from the digest of all inputs, so unchanged inputs build and push nothing, and
    no tag is ever overwritten.
    """
    chosen, engine, reference = _asked(app, options)
    made = _made(app, options, chosen, engine=engine, reference=reference)
    document = {
        "reference": made.inputs.reference,
        "inputs": made.inputs.digest,
        "config": made.image.config,
        "new": made.is_new,
        "size": made.image.size,
    }
    document |= _pushed(app, options, made, engine=engine)
    app.emit(document, str(document.get("pull", made.inputs.reference)))


def ready(app: App, options: ImageBuildOptions, *, make: bool) -> str:
    """Return the image of a recipe that the engine has for this checkout, or that is made now.

    Return "" where it has none and none is to be made.
    """
    chosen, engine, reference = _asked(app, options)
    if not options.base:
        there = searching.local(
            chosen, checkout=app.home.sources, bazel=_bazel_digest(app, chosen),
            engine=engine, runner=app.runner,
        )  # fmt: skip
        if there:
            return there.reference
    if not make:
        return ""
    return _made(app, options, chosen, engine=engine, reference=reference).inputs.reference


def _made(
    app: App,
    options: ImageBuildOptions,
    chosen: recipe.Recipe,
    *,
    engine: container.ContainerEngine,
    reference: str,
) -> building.Made:
    base = _base(app, options, engine, reference)
    inputs = _inputs(app, options, chosen, base.config)
    there = building.existing(inputs, engine=engine, runner=app.runner)
    if there:
        app.console.info(f"unchanged inputs: {inputs.reference} is there, nothing was built")
        return building.Made(image=there, inputs=inputs, is_new=False)
    ingredients = building.Ingredients(
        checkout=app.home.sources,
        scratch=app.cache / container.PLACE,
        base=base,
        bazel=_bazel(app, inputs.recipe.bazel, locked=options.locked),
        rocm=options.with_rocm,
        labels=_labels(app),
        network=options.build_network,
    )
    return building.build(
        inputs, ingredients, engine=engine, runner=app.runner, console=app.console
    )


def _pushed(
    app: App, options: ImageBuildOptions, made: building.Made, *, engine: container.ContainerEngine
) -> dict[str, object]:
    if not options.push:
        return {}
    building.refuse_heavy(made, rocm=options.with_rocm)
    remote, sent = registry.push(
        made.image,
        f"{options.push}/{made.inputs.recipe.repository}",
        made.inputs.tag,
        engine=engine,
        runner=app.runner,
        environ=app.environ,
        console=app.console,
    )
    if not sent:
        app.console.info(f"{options.push}: has it already, nothing was pushed")
    return {"pushed": sent, "pull": remote.reference}


@command("search", RecipeOptions, parent=images)
def search(app: App, options: RecipeOptions) -> None:
    """Find the builder image of a recipe: with the engine, then in the registries.

    What is found must carry the digest of the inputs as they are now. Exit status 8 when nobody
    has it.
    """
    chosen, engine, reference = _asked(app, options)
    inputs = _inputs(app, options, chosen, _base_config(app, options, engine, reference))
    there = building.existing(inputs, engine=engine, runner=app.runner)
    if there:
        reference, config, where = inputs.reference, there.config, engine.kind.value
    else:
        remote = _searched(app, inputs, engine)
        reference, config, where = remote.reference, remote.config, "registry"
    app.emit({"reference": reference, "config": config, "where": where}, reference)


def _searched(
    app: App, inputs: recipe.ImageInputs, engine: container.ContainerEngine
) -> registry.RemoteImage:
    registries = recipe.load(app.home.ci / "images.yaml").registries
    remote = registry.find(inputs, registries, environ=app.environ, console=app.console)
    if remote is None:
        raise HostError(
            f"{inputs.reference}: neither {engine.kind.value} nor a registry has it",
            hint=f"make it: rocwheel image build --recipe {inputs.recipe.name}",
        )
    return remote


@command("show", ImageShowOptions, parent=images)
@click.argument("reference")
def show(app: App, options: ImageShowOptions) -> None:
    """Show what an image is and what it has for building wheels."""
    engine = container.ask(EngineKind(options.engine), environ=app.environ, runner=app.runner)
    there = found.inspect(options.reference, engine=engine, runner=app.runner)
    if there is None:
        raise HostError(
            f"{options.reference}: {engine.kind.value} has no such image",
            hint=f"{engine.program} pull {options.reference}",
        )
    spec = container_spec(Executor(), engine, there, cache=app.cache, environ=app.environ)
    has = contents.ask(spec, there.config, cache=app.cache, runner=app.runner)
    rows = _rows(there, has)
    app.emit(_document(there, has), "\n".join(columns(("what", "found"), rows)))


def _document(there: found.Found, has: contents.ImageFacts) -> dict[str, object]:
    return {
        "reference": there.reference,
        "config": there.config,
        "digests": list(there.digests),
        "architecture": there.architecture,
        "size": there.size,
        "labels": dict(there.labels),
        "has": json.loads(has.to_bytes()),
    }


def _rows(there: found.Found, has: contents.ImageFacts) -> list[tuple[str, str]]:
    return [
        ("image", there.reference),
        ("configuration", there.config),
        *(("digest", digest) for digest in there.digests),
        ("size", size(there.size)),
        ("C library", has.glibc),
        *(("Bazel", f"{item.version}, {item.path}") for item in has.bazels),
        *((item.kind, f"{item.major}, {item.cc}") for item in has.compilers if item.cxx),
        *(("CPython", f"{item.full}, {item.executable}") for item in has.interpreters),
        *sorted(there.labels.items()),
    ]


@command("prune", ImagePruneOptions, parent=images)
@option("--dry-run", is_flag=True, help="Say what would be removed; remove nothing.")
@option("--images", is_flag=True, help="Remove builder images of older inputs, too.")
def prune(app: App, options: ImagePruneOptions) -> None:
    """Remove what runs that were cut short left behind; never anything of others."""
    engine = container.ask(EngineKind(options.engine), environ=app.environ, runner=app.runner)
    left = container.leftovers(engine, cache=app.cache, runner=app.runner)
    if left and not options.dry_run:
        container.remove(engine, left, cache=app.cache, runner=app.runner)
        there = container.leftovers(engine, cache=app.cache, runner=app.runner)
        for item in there:
            app.console.warn(f"{item.name}: stays: it could not be removed")
        left = tuple(item for item in left if item not in there)
    names = [item.name for item in left]
    if options.images:
        old = image.superseded(engine, runner=app.runner, passing=names)
        names += _remove_images(app, engine, old, dry_run=options.dry_run)
    app.emit({"removed": names, "dry_run": options.dry_run}, "\n".join(names) or "nothing to do")


def _remove_images(
    app: App, engine: container.ContainerEngine, old: Iterable[found.Found], *, dry_run: bool
) -> Iterator[str]:
    """Remove images; gives each that is gone, and says which the engine keeps."""
    for item in old:
        title = f"{', '.join(item.names) or item.identity} ({size(item.size)})"
        # by its names: an engine removes no image by its id that has several
        removing = engine.command("rmi", *(item.names or (item.identity,)))
        done = None if dry_run else app.runner.run(removing, check=False)
        if done and done.returncode:
            app.console.warn(f"{title}: stays: {container.headline(done.output)}")
        else:
            yield title


def _asked(
    app: App, options: RecipeOptions
) -> tuple[recipe.Recipe, container.ContainerEngine, str]:
    """Return the recipe, the engine, and the reference of the base."""
    chosen = recipe.load(app.home.ci / "images.yaml").builder(options.recipe)
    engine = container.ask(EngineKind(options.engine), environ=app.environ, runner=app.runner)
    if not options.base and not chosen.base.digest:
        raise ConfigError(
            f"{chosen.base.reference}: a tag where a digest must be",
            hint="write its digest into ci/images.yaml, or give --base NAME@sha256:…",
        )
    return chosen, engine, options.base or chosen.base.reference


def _base(
    app: App, options: RecipeOptions, engine: container.ContainerEngine, reference: str
) -> found.Found:
    """Return the base itself, pulled where the engine has it not."""
    return found.obtain(
        reference,
        engine=engine,
        locked=options.locked,
        otherwise="choose another: --base",
        runner=app.runner,
        console=app.console,
    )


def _base_config(
    app: App, options: RecipeOptions, engine: container.ContainerEngine, reference: str
) -> str:
    """Return the base's part of the inputs; a base by digest is not pulled for it."""
    if "@" not in reference:
        return _base(app, options, engine, reference).config
    config = searching.base_config(reference, engine=engine, environ=app.environ, runner=app.runner)
    if config is None:
        raise HostError(
            f"{reference}: its registry has it no more", hint="choose another base: --base"
        )
    return config


def _inputs(
    app: App, options: RecipeOptions, chosen: recipe.Recipe, base: str
) -> recipe.ImageInputs:
    """Return the digest of everything; `base` is that of the base's configuration."""
    rocm, version = "", ""
    if options.with_rocm:
        planned = trees.plan(
            str(options.with_rocm), sha256=None, version=None, cache=app.cache, cwd=app.cwd
        )
        held = trees.fetch(planned, console=app.console)
        rocm, version = held.sha256, str(held.version)
    return recipe.gather(
        chosen,
        checkout=app.home.sources,
        base=base,
        bazel=_bazel_digest(app, chosen),
        rocm=rocm,
        rocm_version=version,
    )


def _bazel_digest(app: App, chosen: recipe.Recipe) -> str:
    """Return the SHA-256 of the Bazel that goes in; "" where a package brings it."""
    table = releases.load_releases(app.home.ci / "bazel_binaries.yaml")
    return table.find(chosen.bazel).sha256 if chosen.bazel else ""


def _bazel(app: App, version: str, *, locked: bool) -> Path | None:
    """Return the Bazel that goes in, by SHA-256; None where a package brings it."""
    if not version:
        return None
    downloads = Downloads(
        releases=releases.load_releases(app.home.ci / "bazel_binaries.yaml"),
        folder=app.cache / "bazel-binaries",
        only_verified=locked,
        env=app.environ,
    )
    release = downloads.releases.find(version)
    releases.check(release, downloads, console=app.console)
    return releases.fetch(release, downloads, console=app.console)


def _labels(app: App) -> dict[str, str]:
    return {
        "org.opencontainers.image.revision": source.head(app.home.root, runner=app.runner),
        "org.opencontainers.image.created": app.now().isoformat(timespec="seconds"),
    }
