"""What people may ask of an image: each option is a field, and the room's functions take it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rocwheel.base.choices import CONTAINER_ENGINES, IMAGE_PROFILES
from rocwheel.base.option import OptionSet, opt

if TYPE_CHECKING:
    from pathlib import Path

_inputs, _container, _command = (partial(opt, name) for name in ("Inputs", "Container", "Options"))
_output, _target = (partial(opt, name) for name in ("Output", "Target"))


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


class ImageOptions(OptionSet):
    """Options that name a runtime image of a wheel set, and what is done with it."""

    manifest: str = _inputs("--manifest SHA|PATH", "The wheel set (required).")
    python: str = _inputs("--python VERSION", "CPython: 3.12 (required).")
    recipe: str = _inputs("--recipe", "Recipe of ci/images.yaml.", default="jax")
    base: str = _inputs("--base NAME", "Base of ci/images.yaml; default: the first.")
    base_image: str = _inputs(
        "--base-image IMAGE",
        "This image in place of the base's own: NAME@sha256:…, or a local one.",
    )
    profile: str = _inputs(
        "--profile",
        "What of ROCm: what the wheels need, or all of it.",
        default=IMAGE_PROFILES[0],
        only=IMAGE_PROFILES,
    )
    rocm: str = _inputs(
        "--rocm SOURCE", "ROCm as a tarball, URL or folder; default: the manifest's own."
    )
    unreleased: bool = _inputs(
        "--unreleased",
        "Of a set that is only staged: to another repository, labelled so.",
        default=False,
    )
    build_network: str = _inputs(
        "--build-network NAME",
        "Network of the steps that install packages: default, host.",
        default="default",
    )
    test: bool = _output("--test", "Run the recipe's suites in the image.", default=False)
    jax_tests: Path | None = _output(
        "--jax-tests DIR",
        "A JAX checkout at the set's commit; default: it is fetched.",
        is_path=True,
    )
    slots: Path = _output(
        "--slots",
        "Lock files of the devices, shared by everything on this machine.",
        default="/run/lock/rocwheel",
        is_path=True,
    )
    output: Path = _output(
        "--output", "Where results and logs go.", default="gate-results/image", is_path=True
    )
    push: str = _target(
        "--push REGISTRY", "Push it there, tested; needs verdicts that pass."
    )  # "" pushes nothing
    tags: tuple[str, ...] = _target("--tag NAME", "Then point this moving tag at it.", default=())
