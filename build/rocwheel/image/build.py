"""Makes images by the engine's `build`, and finds, makes and pushes builder images."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

from rocwheel.base import git
from rocwheel.base.console import size
from rocwheel.base.container import PLACE, ContainerEngine, headline, scratch
from rocwheel.base.container.engine import Trouble, meaning
from rocwheel.base.container.leftovers import base_name, untag
from rocwheel.base.container.spec import LABEL
from rocwheel.base.errors import CommandError, ConfigError, HostError
from rocwheel.base.here import Here
from rocwheel.base.home import Home
from rocwheel.base.host import virtualenv
from rocwheel.base.process import Command, Runner
from rocwheel.base.values import Plain
from rocwheel.base.versions import PythonVersion
from rocwheel.bazel.binary import Downloads, Releases, fetch
from rocwheel.image import closure, recipe, registry
from rocwheel.image.recipe import BuilderOptions, BuilderRecipe
from rocwheel.image.registry import BUILDER, INPUTS, Found, inspect, obtain

OCI: Final = "org.opencontainers.image"


class Made(Plain, frozen=True, kw_only=True):
    """An image of known inputs, and whether it had to be made."""

    name: str  # with this engine
    inputs: str  # their digest
    image: Found
    is_new: bool

    def refuse_heavy(self, most: int) -> None:
        """Hold the image against a budget in MiB. Raises ConfigError."""
        if self.image.size > most << 20:
            raise ConfigError(
                f"{self.name}: {size(self.image.size)}, its budget is {most} MiB",
                hint=f"look at its layers ({self.image.identity[:19]}: history), or raise its "
                "budget in ci/images.yaml; nothing was pushed",
            )


def existing(name: str, inputs: str, engine: ContainerEngine, here: Here) -> Found | None:
    """Return the image of these inputs, if the engine has it.

    Raises HostError when its tag is there with other contents.
    """
    image = inspect(name, engine=engine, runner=here.runner)
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
    engine: ContainerEngine,
    here: Here,
    *,
    what: str,
    base: Found,
) -> Made:
    """Make the image of these inputs by an engine's `builds`, unless the engine has it.

    `what` is how errors call it. Raises HostError for what an engine says of a build that failed.
    Nothing is tagged unless all of it succeeded.
    """
    there = existing(name, inputs, engine, here)
    if there:
        here.console.info(f"unchanged inputs: {name} is there, nothing was built")
        return Made(name=name, inputs=inputs, image=there, is_new=False)
    engine.refuse_no_buildkit()
    with here.console.step(f"Image {what}", key="image"), builds as commands:
        for command in commands:
            here.console.detail(str(command))
            try:
                here.runner.run(command, on_line=here.console.detail)
            except CommandError as exc:
                raise explained(what, base.reference, exc) from exc
    image = existing(name, inputs, engine, here)
    if image is None:
        raise HostError(f"{name}: built, but not found", hint="ask the engine: images")
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
    message, hint = meaning(exc.detail, known)
    return HostError(message, hint=hint, detail=exc.detail)


def current(name: str, home: Home, *, engine: ContainerEngine, runner: Runner) -> Found | None:
    """Return the engine's newest image of a recipe that this checkout would make again."""
    chosen, binary = _builder(name, home)
    images = []
    listed = engine.command("images", "--quiet", "--no-trunc", f"--filter=label={BUILDER}={name}")
    for identity in dict.fromkeys(runner.capture(listed).split()):
        if image := inspect(identity, engine=engine, runner=runner):
            base = image.labels.get(f"{LABEL}.base", "")
            inputs = recipe.builder_inputs(chosen, checkout=home.sources, base=base, bazel=binary)
            if image.labels.get(INPUTS) == inputs.digest:
                images.append(image)
    return max(images, key=lambda image: image.created, default=None)


def builder(options: BuilderOptions, engine: ContainerEngine, here: Here) -> Made:
    """Make the builder image unless the engine has one of its inputs."""
    chosen, binary = _builder(options.recipe, here.home)
    base = obtain(
        options.base or chosen.base.pinned("--base"),
        engine,
        runner=here.runner,
        console=here.console,
        locked=options.locked,
        alternative="choose another: --base",
    )
    inputs = recipe.builder_inputs(
        chosen, checkout=here.home.sources, base=base.config, bazel=binary
    )
    builds = _builder_build(options, inputs, base, engine, here)
    name = inputs.reference
    return make(name, inputs.digest, builds, engine, here, what=name, base=base)


@contextmanager
def _builder_build(
    options: BuilderOptions,
    inputs: recipe.BuilderInputs,
    base: Found,
    engine: ContainerEngine,
    here: Here,
) -> Iterator[tuple[Command]]:
    checkout, chosen = here.home.sources, inputs.recipe
    labels = {
        INPUTS: inputs.digest,
        BUILDER: chosen.name,
        f"{LABEL}.glibc": chosen.glibc,
        f"{LABEL}.base": inputs.base,
        f"{LABEL}.tool": inputs.tool,
        f"{OCI}.title": "rocwheel builder",
        f"{OCI}.base.name": base.reference,
        f"{OCI}.base.digest": inputs.base,
        f"{OCI}.revision": git.head(here.home.root, runner=here.runner),
        f"{OCI}.created": here.now().isoformat(timespec="seconds"),
    }
    with scratch(here.cache / PLACE, "context") as context:
        for file in (f"docker/{recipe.BUILDER}", f"docker/{recipe.SCRIPT}"):
            shutil.copy(checkout / file, context)
        lock = shutil.copy(checkout / "build" / "requirements.lock", context)
        recipe.copy_tool(checkout, context / "tool")
        (context / "bazel").mkdir()
        if chosen.bazel:  # by SHA-256
            table = Releases.of(here.home.ci)
            downloads = Downloads(
                releases=table,
                folder=here.cache / "bazel-binaries",
                only_verified=options.locked,
                env=here.environ,
            )
            bazel = fetch(table.find(chosen.bazel), downloads, console=here.console)
            shutil.copy(bazel, context / "bazel" / "bazel")
        tool = closure.Where(python=PythonVersion.parse(chosen.tool.version), glibc=chosen.glibc)
        here.runner.run(
            virtualenv.pip("download", "--require-hashes", "--no-deps", *tool.options,
                f"--requirement={lock}", f"--dest={context / 'wheels'}")
        )  # fmt: skip
        with named(base, engine=engine, runner=here.runner) as name:
            yield (
                engine_build(
                    engine,
                    context / recipe.BUILDER,
                    tag=inputs.reference,
                    network=options.build_network,
                    arguments={
                        "BASE": name,
                        "INPUTS": inputs.digest,
                        "PACKAGES": " ".join(chosen.packages),
                        "CLANG": chosen.clang,
                        "TOOL_PYTHON": chosen.tool.python,
                    },
                    labels=labels,
                ),
            )


def push_builder(
    options: BuilderOptions, made: Made, engine: ContainerEngine, here: Here
) -> dict[str, Any]:
    """Push an image that is not too heavy; return what `--json` shows of it."""
    made.refuse_heavy(_builder(options.recipe, here.home)[0].budget)
    repository, _, tag = made.name.rpartition(":")
    remote, sent = registry.push(made.image, f"{options.push}/{repository}", tag, engine, here)
    if not sent:
        here.console.info(f"{options.push}: has it already, nothing was pushed")
    return {"pushed": sent, "pull": remote.reference}


def _builder(name: str, home: Home) -> tuple[BuilderRecipe, str]:
    chosen = recipe.builder(home.ci, name)
    return chosen, Releases.of(home.ci).find(chosen.bazel).sha256 if chosen.bazel else ""
