"""The builder image of a recipe and this checkout: what it is made from, found or made, pushed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rocwheel.base import container, git, yaml_file
from rocwheel.base.container import ContainerEngine
from rocwheel.base.container.spec import LABEL
from rocwheel.base.home import Home
from rocwheel.base.process import Command, Runner
from rocwheel.bazel import releases
from rocwheel.image import building, recipe, registry
from rocwheel.image.building import OCI, Made, Workplace
from rocwheel.image.found import BUILDER, INPUTS, Found, inspect, obtain
from rocwheel.image.options import BuilderOptions
from rocwheel.image.recipe import ImageInputs


def current(name: str, home: Home, *, engine: ContainerEngine, runner: Runner) -> Found | None:
    """Return the engine's newest image of a recipe that this checkout would make again."""
    wanted, binary = _recipe(name, home)
    images = []
    listed = engine.command("images", "--quiet", "--no-trunc", f"--filter=label={BUILDER}={name}")
    for identity in dict.fromkeys(runner.capture(listed).split()):
        if image := inspect(identity, engine=engine, runner=runner):
            base = image.labels.get(f"{LABEL}.base", "")
            inputs = recipe.gather(wanted, checkout=home.sources, base=base, bazel=binary)
            if image.labels.get(INPUTS) == inputs.digest:
                images.append(image)
    return max(images, key=lambda image: image.created, default=None)


def make(options: BuilderOptions, here: Workplace, engine: ContainerEngine) -> Made:
    """Make the image unless the engine has one of its inputs. Raises ConfigError, HostError."""
    chosen, binary = _recipe(options.recipe, here.home)
    base = obtain(
        options.base or chosen.base.pinned("--base"),
        engine=engine,
        locked=options.locked,
        otherwise="choose another: --base",
        runner=here.runner,
        console=here.console,
    )
    inputs = recipe.gather(chosen, checkout=here.home.sources, base=base.config, bazel=binary)
    builds = _builds(options, inputs, base, here, engine)
    name = inputs.reference
    return building.make(
        name, inputs.digest, builds, what=name, base=base, engine=engine, here=here
    )


@contextmanager
def _builds(
    options: BuilderOptions,
    inputs: ImageInputs,
    base: Found,
    here: Workplace,
    engine: ContainerEngine,
) -> Iterator[tuple[Command]]:
    """Return the engine's `build` of a builder image on a base that is named for it."""
    checkout, runner, chosen = here.home.sources, here.runner, inputs.recipe
    binary = _binary(chosen.bazel, here, locked=options.locked)
    labels = {
        INPUTS: inputs.digest,
        BUILDER: chosen.name,
        f"{LABEL}.glibc": chosen.glibc,
        f"{LABEL}.base": inputs.base,
        f"{LABEL}.tool": inputs.tool,
        f"{OCI}.title": "rocwheel builder",
        f"{OCI}.base.name": base.reference,
        f"{OCI}.base.digest": inputs.base,
        f"{OCI}.revision": git.head(here.home.root, runner=runner),
        f"{OCI}.created": here.now().isoformat(timespec="seconds"),
    }
    place = here.cache / container.PLACE
    with (
        building.context(inputs, checkout, place, bazel=binary, runner=runner) as context,
        building.named(base, engine=engine, runner=runner) as name,
    ):
        arguments = {
            "BASE": name,
            "INPUTS": inputs.digest,
            "PACKAGES": " ".join(chosen.packages),
            "CLANG": chosen.clang,
            "TOOL_PYTHON": chosen.tool.python,
        }
        yield (
            building.engine_build(
                engine,
                context / recipe.DOCKERFILE,
                tag=inputs.reference,
                network=options.build_network,
                arguments=arguments,
                labels=labels,
            ),
        )


def push(
    options: BuilderOptions, made: Made, here: Workplace, engine: ContainerEngine
) -> dict[str, Any]:
    """Push an image that is not too heavy; return what `--json` shows of it."""
    chosen, _ = _recipe(options.recipe, here.home)
    made.refuse_heavy(chosen.budget)
    repository, _, tag = made.name.rpartition(":")
    remote, sent = registry.push(
        made.image,
        f"{options.push}/{repository}",
        tag,
        engine=engine,
        runner=here.runner,
        environ=here.environ,
        console=here.console,
    )
    if not sent:
        here.console.info(f"{options.push}: has it already, nothing was pushed")
    return {"pushed": sent, "pull": remote.reference}


def _recipe(name: str, home: Home) -> tuple[recipe.Recipe, str]:
    """Return a recipe and the SHA-256 of its Bazel, "" where a package brings that."""
    chosen = yaml_file.read(home.ci / "images.yaml", recipe.Images).builder(name)
    table = yaml_file.read(home.ci / "bazel_binaries.yaml", releases.Releases)
    return chosen, table.find(chosen.bazel).sha256 if chosen.bazel else ""


def _binary(version: str, here: Workplace, *, locked: bool) -> Path | None:
    """Return the Bazel that goes in, by SHA-256; None where a package brings it."""
    if not version:
        return None
    downloads = releases.Downloads(
        releases=yaml_file.read(here.home.ci / "bazel_binaries.yaml", releases.Releases),
        folder=here.cache / "bazel-binaries",
        only_verified=locked,
        env=here.environ,
    )
    return releases.fetch(downloads.releases.find(version), downloads, console=here.console)
