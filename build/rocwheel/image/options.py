"""What people may ask of a builder image: each option is a field, and `dist.builder` takes it."""

from functools import partial

from rocwheel.base.choices import CONTAINER_ENGINES
from rocwheel.base.option import OptionSet, opt

_inputs, _container, _command = (partial(opt, name) for name in ("Inputs", "Container", "Options"))


class EngineOptions(OptionSet):
    """The option that names the container engine."""

    engine: str = _container(
        "--engine", "The container engine.", default="docker", only=CONTAINER_ENGINES
    )


class BuilderOptions(OptionSet):
    """Options that name a builder image: a recipe of ci/images.yaml, and what replaces its base."""

    recipe: str = _inputs(
        "--recipe NAME",
        "Builder recipe of ci/images.yaml.",
        default="manylinux_2_28",
        values="recipes",
    )
    base: str = _inputs(
        "--base IMAGE",
        "Start from this image instead of the recipe's: NAME@sha256:…, or a local one.",
    )
    locked: bool = _inputs("--locked", "Take a base by digest only.", default=False)
    push: str = _command("--push REGISTRY", "Push it there, unless its tag is there already.")
    build_network: str = _command(
        "--build-network NAME",
        "Network of the steps that install packages: default, host.",
        default="default",
    )
