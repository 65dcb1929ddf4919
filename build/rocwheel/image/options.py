"""What people may ask of an image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rocwheel.base.choices import IMAGE_PROFILES


@dataclass(frozen=True, kw_only=True)
class BuilderOptions:
    """A recipe of ci/images.yaml for a builder image, and what replaces its base."""

    recipe: str = "manylinux_2_28"
    base: str = ""
    locked: bool = False
    push: str = ""
    build_network: str = "default"


@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """A runtime image of a wheel set, and what to do with it."""

    manifest: str = ""
    python: str = ""
    recipe: str = "jax"
    base: str = ""
    base_image: str = ""
    profile: str = IMAGE_PROFILES[0]
    rocm: str = ""
    unreleased: bool = False
    build_network: str = "default"
    test: bool = False
    jax_tests: Path | None = None
    slots: Path = Path("/run/lock/rocwheel")
    output: Path = Path("gate-results/image")
    push: str = ""  # "" pushes nothing
    tags: tuple[str, ...] = ()
