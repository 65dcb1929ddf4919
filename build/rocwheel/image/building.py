"""Making a builder image: a context whose every file was checked, and one `build` of the engine."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocwheel.console import Console, size
from rocwheel.container import ContainerEngine, headline, scratch
from rocwheel.container.leftovers import base_name, untag
from rocwheel.container.spec import LABEL
from rocwheel.container.words import Trouble
from rocwheel.errors import CommandError, ConfigError, HostError
from rocwheel.image.found import INPUTS, Found, inspect
from rocwheel.image.recipe import DOCKERFILE, SCRIPT, ImageInputs, tool_files
from rocwheel.process import Command, HostRunner

PLATFORMS: Final = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
OCI: Final = "org.opencontainers.image"


@dataclass(frozen=True, kw_only=True)
class Made:
    """A builder image, and whether it had to be made."""

    image: Found
    inputs: ImageInputs
    is_new: bool


@dataclass(frozen=True, kw_only=True)
class Ingredients:
    """What goes into the context besides the checkout's files."""

    checkout: Path
    scratch: Path  # where the context is made
    base: Found
    bazel: Path | None = None  # a checked binary
    labels: Mapping[str, str]
    network: str = "default"


def existing(inputs: ImageInputs, *, engine: ContainerEngine, runner: HostRunner) -> Found | None:
    """Return the image of these inputs, if the engine has it.

    Raises HostError when its tag is there with other contents.
    """
    image = inspect(inputs.reference, engine=engine, runner=runner)
    if image and image.labels.get(INPUTS) != inputs.digest:
        raise HostError(
            f"{inputs.reference}: there is an image of this tag that was made from other inputs",
            hint=f"no tag is overwritten: remove it yourself ({engine.program} rmi "
            f"{inputs.reference}) if you know where it came from",
        )
    return image


def build(
    inputs: ImageInputs,
    ingredients: Ingredients,
    *,
    engine: ContainerEngine,
    runner: HostRunner,
    console: Console,
) -> Made:
    """Make the image of these inputs, unless the engine has it.

    Raises HostError for what an engine says of a build that failed. Nothing is tagged unless all
    of it succeeded.
    """
    there = existing(inputs, engine=engine, runner=runner)
    if there:
        return Made(image=there, inputs=inputs, is_new=False)
    with (
        console.step(f"Image {inputs.reference}", key="image"),
        _context(inputs, ingredients, runner=runner, console=console) as context,
        named(ingredients.base, engine=engine, runner=runner) as base,
    ):
        command = command_line(inputs, ingredients, engine=engine, base=base, context=context)
        run_build(
            command, inputs.reference, ingredients.base.reference, runner=runner, console=console
        )
    made = existing(inputs, engine=engine, runner=runner)
    if made is None:
        raise HostError(f"{inputs.reference}: built, and not there", hint="ask the engine: images")
    return Made(image=made, inputs=inputs, is_new=True)


def run_build(
    command: Command, what: str, base: str, *, runner: HostRunner, console: Console
) -> None:
    """Run an engine's `build` of `what` on a base. Raises HostError with why it failed."""
    console.detail(str(command))
    try:
        runner.run(command, on_line=console.detail)
    except CommandError as exc:
        raise explained(what, base, exc) from exc


def refuse_heavy(made: Made) -> None:
    """Hold an image against its recipe's budget. Raises ConfigError."""
    own, most = made.image.size, made.inputs.recipe.budget
    if own > most:
        raise ConfigError(
            f"{made.inputs.reference}: {size(own)}, its budget is {size(most)}",
            hint=f"look at its layers ({made.image.identity[:19]}: history), or raise `budget` in "
            "ci/images.yaml; nothing was pushed",
        )


def command_line(
    inputs: ImageInputs,
    ingredients: Ingredients,
    *,
    engine: ContainerEngine,
    base: str,
    context: Path,
) -> Command:
    """Return the engine's `build`, with BuildKit where the engine is Docker."""
    recipe = inputs.recipe
    arguments = {
        "BASE": base,
        "INPUTS": inputs.digest,
        "PACKAGES": " ".join(recipe.packages),
        "CLANG": recipe.clang,
        "TOOL_PYTHON": recipe.tool.python,
    }
    labels = {
        INPUTS: inputs.digest,
        f"{LABEL}.builder": recipe.name,
        f"{LABEL}.glibc": recipe.glibc,
        f"{LABEL}.base": inputs.base,
        f"{LABEL}.tool": inputs.tool,
        f"{OCI}.title": "rocwheel builder",
        f"{OCI}.base.name": ingredients.base.reference,
        f"{OCI}.base.digest": inputs.base,
        **ingredients.labels,
    }
    file, network = context / DOCKERFILE, ingredients.network
    return engine_build(
        engine, file, tag=inputs.reference, network=network, arguments=arguments, labels=labels
    )


def engine_build(
    engine: ContainerEngine,
    file: Path,
    *,
    tag: str,
    target: str = "",
    network: str,
    arguments: Mapping[str, str],
    labels: Mapping[str, str],
) -> Command:
    """Return the engine's `build` of a Dockerfile in its folder."""
    made = engine.command(
        "build",
        f"--file={file}",
        *([f"--target={target}"] if target else []),
        f"--tag={tag}",
        *([] if network == "default" else [f"--network={network}"]),
        *(f"--build-arg={name}={value}" for name, value in arguments.items()),
        *(f"--label={name}={value}" for name, value in sorted(labels.items())),
        str(file.parent),
    )
    return Command(argv=made.argv, env={**made.env, "DOCKER_BUILDKIT": "1"})


@contextmanager
def named(base: Found, *, engine: ContainerEngine, runner: HostRunner) -> Iterator[str]:
    """Name a base while something is made on it: no engine builds from an id.

    It says which process needs it, so others at work on the same base keep theirs.
    """
    name = base_name(base.config)
    try:
        runner.run(engine.command("tag", base.identity, name))
        yield name
    finally:
        untag(engine, name, runner=runner)


@contextmanager
def _context(
    inputs: ImageInputs, ingredients: Ingredients, *, runner: HostRunner, console: Console
) -> Iterator[Path]:
    """Make a folder with everything the Dockerfile reads."""
    checkout = ingredients.checkout
    with scratch(ingredients.scratch, "context") as context:
        for file in (DOCKERFILE, SCRIPT):
            shutil.copy(checkout / "docker" / file, context / file)
        shutil.copy(checkout / "build" / "requirements.lock", context / "requirements.lock")
        for relative in tool_files(checkout):
            target = context / "tool" / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(checkout / relative, target)
        (context / "bazel").mkdir()
        if ingredients.bazel:
            shutil.copy(ingredients.bazel, context / "bazel" / "bazel")
        console.info("   rocwheel's own packages, by hash")
        runner.run(_download(inputs, context))
        yield context


def _download(inputs: ImageInputs, context: Path) -> Command:
    """Fetch the locked wheels for the image's Python: here, where the index is known."""
    return Command(
        argv=(
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
            "--require-hashes", "--no-deps", "--only-binary=:all:", "--implementation=cp",
            f"--python-version={inputs.recipe.tool.version}",
            *(f"--platform={platform}" for platform in PLATFORMS),
            f"--requirement={context / 'requirements.lock'}", f"--dest={context / 'wheels'}",
        )
    )  # fmt: skip


def explained(what: str, base: str, exc: CommandError) -> HostError:
    """Return why an engine's `build` failed, from what it said; `what` was to be made on `base`."""
    known = (
        (Trouble.NO_PACKAGE_MANAGER, f"{base}: a base without its package manager",
         "use a base with apt-get or dnf"),
        (Trouble.NO_SPACE, f"{what}: the disk of the engine is full",
         "free some space: rocwheel image prune"),
        (Trouble.NO_DAEMON, f"{what}: the engine ended in mid-build",
         "start it again and run the same command: nothing was tagged"),
        (Trouble.NO_NETWORK, f"{what}: a step that installs packages has no network",
         "lend it this machine's: --build-network host"),
        (Trouble.NO_SHELL, f"{base}: a base without a shell", "use a base with apt-get or dnf"),
        (Trouble.NO_PACKAGE, f"{what}: the base does not know a package of the recipe",
         "see above which; `packages` in ci/images.yaml are those of its own distribution"),
    )  # fmt: skip
    for trouble, message, hint in known:
        if trouble.is_in(exc.detail):
            return HostError(message, hint=hint, detail=exc.detail)
    last = headline(exc.detail)
    return HostError(
        f"{what}: was not built: {last}",
        hint="what the engine said is above; nothing was tagged",
        detail=exc.detail,
    )
