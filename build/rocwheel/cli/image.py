"""`image`: builder images: build, show, prune."""

from __future__ import annotations

from rocwheel.base.errors import HostError
from rocwheel.base.option import nested
from rocwheel.cli.app import App
from rocwheel.cli.command import command, group, own
from rocwheel.cli.imports import when_run
from rocwheel.image.options import BuilderOptions, EngineOptions

with when_run():
    from msgspec import to_builtins

    from rocwheel.base import container
    from rocwheel.base.console import columns, size
    from rocwheel.base.container import EngineKind
    from rocwheel.dist.build_request import Executor
    from rocwheel.dist.executor import container_spec
    from rocwheel.image import build as building
    from rocwheel.image import contents, found


class ImageBuildOptions(EngineOptions):
    image: BuilderOptions = nested(BuilderOptions)


class ImageShowOptions(EngineOptions):
    reference: str = own("REFERENCE", required=True)


class ImagePruneOptions(EngineOptions):
    dry_run: bool = own("--dry-run", "Say what would be removed; remove nothing.", default=False)


def engine_of(app: App, options: EngineOptions) -> container.ContainerEngine:
    """Return the engine that --engine names. Raises HostError when it does not answer."""
    return container.ask(EngineKind(options.engine), environ=app.environ, runner=app.runner)


@group("image")
def images() -> None:
    """Make and show images to build in."""


@command("build", ImageBuildOptions, parent=images)
def build(app: App, options: ImageBuildOptions) -> None:
    """Make the builder image of a recipe, unless there is one of the same inputs.

    Its tag is made from the digest of all inputs, so unchanged inputs build and push nothing, and
    no tag is ever overwritten.
    """
    engine = engine_of(app, options)
    made = building.builder(options.image, engine, app.here)
    document = {
        "reference": made.name,
        "inputs": made.inputs,
        "config": made.image.config,
        "new": made.is_new,
        "size": made.image.size,
    }
    if options.image.push:
        document |= building.push_builder(options.image, made, engine, app.here)
    app.emit(document, str(document.get("pull", made.name)))


@command("show", ImageShowOptions, parent=images)
def show(app: App, options: ImageShowOptions) -> None:
    """Show what an image is and what it has for building wheels."""
    engine = engine_of(app, options)
    there = found.inspect(options.reference, engine=engine, runner=app.runner)
    if there is None:
        raise HostError(
            f"{options.reference}: {engine.kind.value} has no such image",
            hint=f"{engine.program} pull {options.reference}",
        )
    spec = container_spec(Executor(), engine, there, cache=app.cache, environ=app.environ)
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


@command("prune", ImagePruneOptions, parent=images)
def prune(app: App, options: ImagePruneOptions) -> None:
    """Remove what runs that were cut short left behind; never anything of others."""
    engine = engine_of(app, options)
    left = container.leftovers(engine, cache=app.cache, runner=app.runner)
    if left and not options.dry_run:
        container.remove(engine, left, cache=app.cache, runner=app.runner)
        there = container.leftovers(engine, cache=app.cache, runner=app.runner)
        for item in there:
            app.console.warn(f"{item.name}: stays: it could not be removed")
        left = tuple(item for item in left if item not in there)
    names = [item.name for item in left]
    app.emit({"removed": names, "dry_run": options.dry_run}, "\n".join(names) or "nothing to do")
