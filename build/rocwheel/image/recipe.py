"""Recipes of builder images (`ci/images.yaml`), and the digest of everything one is made from.

The tag of an image is made from that digest: unchanged inputs are the same tag, changed ones
another, so no tag is overwritten and nothing is built twice.
"""

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import field

from rocwheel.base import files
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Plain, Value, canonical_json, matching, replace
from rocwheel.base.versions import suggest
from rocwheel.base.yaml_file import CPythons

MEBI: Final = 1 << 20
DOCKERFILE: Final = "builder.Dockerfile"
SCRIPT: Final = "install.sh"
# What of a checkout makes the tool: the program with its data, and what it reads.
TOOL_PARTS: Final = ("build", "ci", "suites", "amdgpu_family_matrix.py", "pyproject.toml")
LEFT_OUT: Final = frozenset({"__pycache__", "lib", "bdist.linux-x86_64"})


class Base(Value, frozen=True, kw_only=True):
    """What an image starts from: a dated tag and a digest."""

    name: str
    tag: Annotated[str, matching(r"\A(?!latest\Z).", "a tag that stays", "write a dated tag")]
    # of the registry's manifest; "" until it is known
    digest: Annotated[
        str, matching(r"\A(sha256:[0-9a-f]{64})?\Z", "a digest", "write sha256: and 64 hex digits")
    ]

    @property
    def reference(self) -> str:
        """The digest where it is known, else the tag, which a push refuses."""
        return f"{self.name}@{self.digest}" if self.digest else f"{self.name}:{self.tag}"

    def pinned(self, option: str) -> str:
        """Return the reference by digest. Raises ConfigError where it is not known."""
        if not self.digest:
            raise ConfigError(
                f"{self.reference}: a tag where a digest must be",
                hint=f"write its digest into ci/images.yaml, or give {option} NAME@sha256:…",
            )
        return self.reference


class Tool(Value, frozen=True, kw_only=True):
    """The Python that makes the environment of rocwheel itself."""

    python: str
    version: str


class Recipe(Value, frozen=True, kw_only=True):
    """How a builder image is made."""

    name: str = ""  # its key in the file
    base: Base
    family: Literal["apt", "dnf"]  # of its package manager
    glibc: str
    repository: str
    pythons: CPythons
    tool: Tool
    packages: tuple[str, ...]
    clang: str  # gets plain names; "" where it has them
    bazel: str  # a release of ci/bazel_binaries.yaml; "" where a package brings it
    budget_mib: int = field(name="budget")

    @property
    def budget(self) -> int:
        """Bytes that an image of it may weigh."""
        return self.budget_mib * MEBI


class Images(Value, frozen=True, kw_only=True):
    """The whole of `ci/images.yaml` that concerns builders."""

    schema: Literal[1]
    builders: Mapping[str, Recipe]
    runtime: Any = None  # read by runtime/image_recipe.py

    def builder(self, name: str) -> Recipe:
        """Find a recipe by name. Raises ConfigError."""
        if name not in self.builders:
            raise ConfigError(
                f"{name!r}: unknown builder", hint=suggest(name, tuple(self.builders))
            )
        return replace(self.builders[name], name=name)


class ImageInputs(Plain, frozen=True, kw_only=True):
    """Everything a builder image is made from."""

    recipe: Recipe
    base: str  # digest of the base's configuration
    tool: str  # SHA-256
    digest: str  # one SHA-256 for all of it

    @property
    def tag(self) -> str:
        """For people the recipe, for identity the digest."""
        return f"{self.recipe.name}-{self.digest[:16]}"

    @property
    def reference(self) -> str:
        return f"{self.recipe.repository}:{self.tag}"


def gather(recipe: Recipe, *, checkout: Path, base: str, bazel: str = "") -> ImageInputs:
    """Digest what an image is made from; nothing is fetched. Raises OSError."""
    tool = tree_digest(checkout)
    document = {
        "base": base,
        "bazel": bazel,
        "clang": recipe.clang,
        "dockerfile": files.sha256(checkout / "docker" / DOCKERFILE),
        "lock": files.sha256(checkout / "build" / "requirements.lock"),
        "packages": sorted(recipe.packages),
        "script": files.sha256(checkout / "docker" / SCRIPT),
        "tool": tool,
        "tool_python": [recipe.tool.python, recipe.tool.version],
    }
    digest = files.sha256(canonical_json(document))
    return ImageInputs(recipe=recipe, base=base, tool=tool, digest=digest)


def tool_files(checkout: Path) -> Iterator[Path]:
    """Yield the files of a checkout that make the tool, relative to it, sorted."""
    for part in TOOL_PARTS:
        root = checkout / part
        below = sorted(root.rglob("*")) if root.is_dir() else [root]
        for file in below:
            relative = file.relative_to(checkout)
            if file.is_file() and not LEFT_OUT & set(relative.parts):
                yield relative


def copy_tool(checkout: Path, target: Path) -> None:
    """Copy the files that make the tool."""
    for relative in tool_files(checkout):
        file = target / relative
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(checkout / relative, file)


def tree_digest(checkout: Path) -> str:
    """Return one SHA-256 for all files of the tool: names, modes and bytes."""
    digest = hashlib.sha256()
    for relative in tool_files(checkout):
        file = checkout / relative
        executable = bool(file.stat().st_mode & 0o100)
        digest.update(f"{relative}\0{executable}\0{files.sha256(file)}\n".encode())
    return digest.hexdigest()
