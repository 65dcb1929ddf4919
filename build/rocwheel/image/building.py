"""Making an image: a context whose every file was checked, and the engine's `build`s."""

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

from rocwheel.base.console import Console, size
from rocwheel.base.container import ContainerEngine, headline, scratch, words
from rocwheel.base.container.leftovers import base_name, untag
from rocwheel.base.container.words import Trouble
from rocwheel.base.errors import CommandError, ConfigError, HostError
from rocwheel.base.home import Home
from rocwheel.base.process import Command, HostRunner, Runner
from rocwheel.base.values import Plain
from rocwheel.image.found import INPUTS, Found, inspect
from rocwheel.image.recipe import DOCKERFILE, SCRIPT, ImageInputs, copy_tool

PLATFORMS: Final = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
OCI: Final = "org.opencontainers.image"


class Workplace(Protocol):
    """What a command lends an image's making: where it works, and how it talks."""

    @property
    def environ(self) -> Mapping[str, str]: ...
    @property
    def cwd(self) -> Path: ...
    @property
    def cache(self) -> Path: ...
    @property
    def home(self) -> Home: ...
    @property
    def runner(self) -> HostRunner: ...
    @property
    def console(self) -> Console: ...
    def now(self) -> datetime: ...


class Made(Plain, frozen=True, kw_only=True):
    """An image of known inputs, and whether it had to be made."""

    name: str  # with this engine
    inputs: str  # their digest
    image: Found
    is_new: bool

    def refuse_heavy(self, most: int) -> None:
        """Hold the image against a budget in bytes. Raises ConfigError."""
        if self.image.size > most:
            raise ConfigError(
                f"{self.name}: {size(self.image.size)}, its budget is {size(most)}",
                hint=f"look at its layers ({self.image.identity[:19]}: history), or raise its "
                "budget in ci/images.yaml; nothing was pushed",
            )


def existing(name: str, inputs: str, *, engine: ContainerEngine, runner: Runner) -> Found | None:
    """Return the image of these inputs, if the engine has it.

    Raises HostError when its tag is there with other contents.
    """
    image = inspect(name, engine=engine, runner=runner)
    if image and image.labels.get(INPUTS) != inputs:
        raise HostError(
            f"{name}: there is an image of this tag that was made from other inputs",
            hint=f"no tag is overwritten: remove it yourself ({engine.program} rmi {name}) if you "
            "know where it came from",
        )
    return image


def make(
    name: str,
    inputs: str,
    builds: AbstractContextManager[Sequence[Command]],
    *,
    what: str,
    base: Found,
    engine: ContainerEngine,
    here: Workplace,
) -> Made:
    """Make the image of these inputs by an engine's `builds`, unless the engine has it.

    `what` is how errors call it. Raises HostError for what an engine says of a build that failed.
    Nothing is tagged unless all of it succeeded.
    """
    there = existing(name, inputs, engine=engine, runner=here.runner)
    if there:
        here.console.info(f"unchanged inputs: {name} is there, nothing was built")
        return Made(name=name, inputs=inputs, image=there, is_new=False)
    with here.console.step(f"Image {what}", key="image"), builds as commands:
        for command in commands:
            here.console.detail(str(command))
            try:
                here.runner.run(command, on_line=here.console.detail)
            except CommandError as exc:
                raise explained(what, base.reference, exc) from exc
    image = existing(name, inputs, engine=engine, runner=here.runner)
    if image is None:
        raise HostError(f"{name}: built, and not there", hint="ask the engine: images")
    return Made(name=name, inputs=inputs, image=image, is_new=True)


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
def named(base: Found, *, engine: ContainerEngine, runner: Runner) -> Iterator[str]:
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
def context(
    inputs: ImageInputs, checkout: Path, place: Path, *, bazel: Path | None, runner: Runner
) -> Iterator[Path]:
    """Make a folder below `place` with everything that a builder's Dockerfile reads."""
    with scratch(place, "context") as folder:
        for file in (f"docker/{DOCKERFILE}", f"docker/{SCRIPT}", "build/requirements.lock"):
            shutil.copy(checkout / file, folder)
        copy_tool(checkout, folder / "tool")
        (folder / "bazel").mkdir()
        if bazel:
            shutil.copy(bazel, folder / "bazel" / "bazel")
        runner.run(
            Command(
                argv=(
                    sys.executable, "-m", "pip", "download", "--quiet",
                    "--disable-pip-version-check", "--require-hashes", "--no-deps",
                    "--only-binary=:all:", "--implementation=cp",
                    f"--python-version={inputs.recipe.tool.version}",
                    *(f"--platform={platform}" for platform in PLATFORMS),
                    f"--requirement={folder / 'requirements.lock'}", f"--dest={folder / 'wheels'}",
                )
            )
        )  # fmt: skip
        yield folder


def explained(what: str, base: str, exc: CommandError) -> HostError:
    """Return why an engine's `build` failed, from what it said; `what` was to be made on `base`."""
    known = {
        Trouble.NO_PACKAGE_MANAGER: (f"{base}: a base without its package manager",
         "use a base with apt-get or dnf"),
        Trouble.NO_SPACE: (f"{what}: the disk of the engine is full",
         "free some space: `image prune`"),
        Trouble.NO_DAEMON: (f"{what}: the engine ended in mid-build",
         "start it again and run the same command: nothing was tagged"),
        Trouble.NO_NETWORK: (f"{what}: a step that installs packages has no network",
         "lend it this machine's: --build-network host (for a demo: of `image build`)"),
        Trouble.NO_SHELL: (f"{base}: a base without a shell", "use a base with apt-get or dnf"),
        Trouble.NO_PACKAGE: (f"{what}: the base does not know a package of the recipe",
         "see above which; `packages` in ci/images.yaml are those of its own distribution"),
        None: (f"{what}: was not built: {headline(exc.detail)}",
         "what the engine said is above; nothing was tagged"),
    }  # fmt: skip
    message, hint = words.meaning(exc.detail, known)
    return HostError(message, hint=hint, detail=exc.detail)
