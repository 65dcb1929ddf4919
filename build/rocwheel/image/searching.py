"""Finding the builder image of a recipe: by its label *and* by its inputs, computed anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rocwheel.console import Console
from rocwheel.container import ContainerEngine
from rocwheel.container.spec import LABEL
from rocwheel.image import recipe as recipes
from rocwheel.image import registry
from rocwheel.image.found import INPUTS, Found, inspect
from rocwheel.image.recipe import Recipe
from rocwheel.process import Runner


def local(
    wanted: Recipe, *, checkout: Path, bazel: str, engine: ContainerEngine, runner: Runner
) -> Found | None:
    """Find the engine's newest image that this checkout would make again; None without one."""
    asked = engine.command(
        "images", "--quiet", "--no-trunc", f"--filter=label={LABEL}.builder={wanted.name}"
    )
    found = []
    for identity in dict.fromkeys(runner.capture(asked).split()):
        item = inspect(identity, engine=engine, runner=runner)
        if item is None or not item.traceable or item.labels.get(f"{LABEL}.rocm"):
            continue
        base = item.labels.get(f"{LABEL}.base", "")
        inputs = recipes.gather(wanted, checkout=checkout, base=base, bazel=bazel)
        if item.labels.get(INPUTS) == inputs.digest:
            found.append(item)
    return max(found, key=lambda item: item.created, default=None)


def base_config(
    reference: str, *, engine: ContainerEngine, environ: Mapping[str, str], runner: Runner
) -> str | None:
    """Return the digest of a base's configuration; `reference` is by digest.

    The engine is asked first; a registry tells it without sending the base. None when neither has
    it. Raises StoreError when the registry does not answer.
    """
    there = inspect(reference, engine=engine, runner=runner)
    if there:
        return there.config
    found = registry.look(*registry.parts(reference), environ=environ)
    return found.config if found else None


def remote(
    wanted: Recipe,
    registries: Sequence[str],
    *,
    checkout: Path,
    bazel: str,
    engine: ContainerEngine,
    environ: Mapping[str, str],
    runner: Runner,
    console: Console,
) -> registry.RemoteImage | None:
    """Find the image in the first registry that has it; None when the base has no digest.

    Raises as `base_config` and `registry.find`.
    """
    if not wanted.base.digest:
        return None
    base = base_config(wanted.base.reference, engine=engine, environ=environ, runner=runner)
    if base is None:
        return None
    inputs = recipes.gather(wanted, checkout=checkout, base=base, bazel=bazel)
    return registry.find(inputs, registries, environ=environ, console=console)
