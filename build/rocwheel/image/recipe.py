"""Recipes of builder images (`ci/images.yaml`), and the digest of everything one is made from.

The tag of an image is made from that digest: unchanged inputs are the same tag, changed ones
another, so nobody overwrites a tag and nothing is built twice.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocwheel import files, located_yaml
from rocwheel.errors import ConfigError
from rocwheel.located_yaml import Field
from rocwheel.model import PythonVersion, suggest
from rocwheel.values import canonical_json

SCHEMA: Final = 1
MEBI: Final = 1 << 20
FAMILIES: Final = ("apt", "dnf")
DOCKERFILE: Final = "builder.Dockerfile"
SCRIPT: Final = "install.sh"
# What of a checkout makes the tool: the program with its data, and what it reads.
TOOL_PARTS: Final = ("build", "ci", "suites", "amdgpu_family_matrix.py", "pyproject.toml")
LEFT_OUT: Final = frozenset({"__pycache__", "lib", "bdist.linux-x86_64"})


@dataclass(frozen=True, kw_only=True)
class Base:
    """What an image starts from: a dated tag and a digest."""

    name: str
    tag: str
    digest: str  # of the registry's manifest; "" until somebody wrote it down

    @property
    def reference(self) -> str:
        """By digest where there is one. Raises nothing: who needs a digest refuses a tag."""
        return f"{self.name}@{self.digest}" if self.digest else f"{self.name}:{self.tag}"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a builder image is made."""

    name: str
    base: Base
    family: str  # of its package manager
    glibc: str
    repository: str
    pythons: tuple[PythonVersion, ...]
    tool_python: str  # makes the environment of rocwheel itself
    tool_version: str
    packages: tuple[str, ...]
    clang: str  # gets plain names; "" where it has them
    bazel: str  # a release of ci/bazel_binaries.yaml; "" where a package brings it
    budget: int  # bytes that an image of it may weigh, a baked-in ROCm aside


@dataclass(frozen=True, kw_only=True)
class Images:
    """The whole of `ci/images.yaml` that concerns builders."""

    registries: tuple[str, ...]
    builders: tuple[Recipe, ...]

    def builder(self, name: str) -> Recipe:
        """A recipe by name. Raises ConfigError."""
        known = {recipe.name: recipe for recipe in self.builders}
        if name not in known:
            raise ConfigError(f"{name!r}: unknown builder", hint=suggest(name, tuple(known)))
        return known[name]


def load(path: Path) -> Images:
    """Read `ci/images.yaml`. Raises ConfigError with line and column."""
    fields = located_yaml.load(path).record(
        required=("schema", "registries", "builders"), optional=("runtime",)
    )
    fields["schema"].schema(SCHEMA)
    return Images(
        registries=tuple(item.string() for item in fields["registries"].sequence()),
        builders=tuple(
            _recipe(name, entry) for name, entry in fields["builders"].mapping().items()
        ),
    )


def _recipe(name: str, entry: Field) -> Recipe:
    fields = entry.record(
        required=(
            "base", "family", "glibc", "repository", "pythons", "tool", "packages", "clang",
            "bazel", "budget",
        )
    )  # fmt: skip
    tool = fields["tool"].record(required=("python", "version"))
    family = fields["family"].string()
    if family not in FAMILIES:
        fields["family"].fail(f"{family!r}: unknown", hint=suggest(family, FAMILIES))
    return Recipe(
        name=name,
        base=base(fields["base"]),
        family=family,
        glibc=fields["glibc"].string(),
        repository=fields["repository"].string(),
        pythons=fields["pythons"].cpythons(),
        tool_python=tool["python"].string(),
        tool_version=tool["version"].string(),
        packages=tuple(item.string() for item in fields["packages"].sequence()),
        clang=fields["clang"].string(),
        bazel=fields["bazel"].string(),
        budget=fields["budget"].integer() * MEBI,
    )


def base(entry: Field) -> Base:
    """A base: name, tag and digest; `latest` is refused. Raises ConfigError."""
    fields = entry.record(required=("name", "tag", "digest"))
    tag, digest = fields["tag"].string(), fields["digest"].string()
    if tag == "latest" or not tag:
        fields["tag"].fail("moves", hint="write a dated tag")
    if digest and not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        fields["digest"].fail(f"{digest!r}: no digest", hint="write sha256: and 64 hex digits")
    return Base(name=fields["name"].string(), tag=tag, digest=digest)


@dataclass(frozen=True, kw_only=True)
class ImageInputs:
    """Everything a builder image is made from."""

    recipe: Recipe
    base: str  # digest of the base's configuration
    dockerfile: str  # SHA-256, like those below
    script: str
    lock: str
    tool: str
    bazel: str = ""
    rocm: str = ""  # of what is baked in, "" where ROCm is mounted
    rocm_version: str = ""

    @property
    def digest(self) -> str:
        """One SHA-256 for all of it."""
        recipe = self.recipe
        return hashlib.sha256(
            canonical_json({
                "base": self.base,
                "bazel": self.bazel,
                "clang": recipe.clang,
                "dockerfile": self.dockerfile,
                "lock": self.lock,
                "packages": sorted(recipe.packages),
                "rocm": self.rocm,
                "script": self.script,
                "tool": self.tool,
                "tool_python": [recipe.tool_python, recipe.tool_version],
            })
        ).hexdigest()  # fmt: skip

    @property
    def tag(self) -> str:
        """For people the recipe and ROCm, for identity the digest; never a `+`."""
        rocm = re.sub(r"[^A-Za-z0-9_.-]", "-", self.rocm_version)
        parts = (self.recipe.name, f"rocm{rocm}" if rocm else "", self.digest[:16])
        return "-".join(filter(None, parts))

    @property
    def reference(self) -> str:
        return f"{self.recipe.repository}:{self.tag}"


def gather(
    recipe: Recipe,
    *,
    checkout: Path,
    base: str,
    bazel: str = "",
    rocm: str = "",
    rocm_version: str = "",
) -> ImageInputs:
    """Digest what an image is made from; nothing is fetched. Raises OSError."""
    return ImageInputs(
        recipe=recipe,
        base=base,
        dockerfile=files.sha256(checkout / "docker" / DOCKERFILE),
        script=files.sha256(checkout / "docker" / SCRIPT),
        lock=files.sha256(checkout / "build" / "requirements.lock"),
        tool=tree_digest(checkout),
        bazel=bazel,
        rocm=rocm,
        rocm_version=rocm_version,
    )


def tool_files(checkout: Path) -> Iterator[Path]:
    """The files of a checkout that make the tool, relative to it, sorted."""
    for part in TOOL_PARTS:
        root = checkout / part
        found = sorted(root.rglob("*")) if root.is_dir() else [root]
        for file in found:
            relative = file.relative_to(checkout)
            if file.is_file() and not LEFT_OUT & set(relative.parts):
                yield relative


def tree_digest(checkout: Path) -> str:
    """One SHA-256 for all files of the tool: names, modes and bytes."""
    digest = hashlib.sha256()
    for relative in tool_files(checkout):
        file = checkout / relative
        executable = bool(file.stat().st_mode & 0o100)
        digest.update(f"{relative}\0{executable}\0{files.sha256(file)}\n".encode())
    return digest.hexdigest()
