"""Recipes of images (`ci/images.yaml`): builders and runtime images, their tags, their inputs.

The inputs of an image have one digest, and a builder's tag is made from it. Unchanged inputs give
the same tag, changed ones another; so no tag is overwritten and nothing is built twice.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, TypeVar

from msgspec import field, structs

from rocwheel.base import files, yaml_file
from rocwheel.base.choices import IMAGE_PROFILES
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Plain, Value, canonical_json, matching, replace
from rocwheel.base.versions import CPYTHONS, PythonVersion, suggest
from rocwheel.base.yaml_file import FieldError
from rocwheel.records.manifest import Manifest


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


FILE: Final = "images.yaml"
BUILDER: Final = "builder.Dockerfile"
RUNTIME: Final = "runtime.Dockerfile"
SCRIPT: Final = "install.sh"  # of every Dockerfile
# What of a checkout makes the tool: the program with its data, and what it reads.
TOOL_PARTS: Final = ("build", "ci", "suites", "amdgpu_family_matrix.py", "pyproject.toml")
LEFT_OUT: Final = frozenset({"__pycache__", "lib", "bdist.linux-x86_64"})
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")  # OCI distribution specification
_T = TypeVar("_T")


class Base(Value, frozen=True, kw_only=True):
    """A base image: a dated tag and a digest."""

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


class BuilderRecipe(Value, frozen=True, kw_only=True):
    """How a builder image is made."""

    name: str = ""  # its key in the file
    base: Base
    glibc: str
    repository: str
    tool: Tool
    packages: tuple[str, ...]
    clang: str  # version of a clang-N that gets plain names; "" where it has them
    bazel: str  # a release of ci/bazel_binaries.yaml; "" where a package brings it
    budget: int  # MiB that an image of it may weigh


class RuntimeBase(Value, frozen=True, kw_only=True):
    """The base of a runtime image."""

    name: str = ""  # its key in the file
    base: Base
    glibc: str
    suffix: str  # of tags, where it is not the recipe's default
    packages: tuple[str, ...]
    pythons: Mapping[str, tuple[str, ...]]  # CPython -> its packages

    def __post_init__(self) -> None:
        for version in self.pythons:
            if version not in CPYTHONS:
                problem, hint = f"{version!r}: unknown Python version", suggest(version, CPYTHONS)
                raise FieldError(problem, "pythons", version, hint=hint)

    def python(self, version: PythonVersion) -> tuple[str, ...]:
        """Return the packages of a CPython. Raises ConfigError for one that the base lacks."""
        if str(version) not in self.pythons:
            raise ConfigError(
                f"{self.name}: no CPython {version} for this base",
                hint=f"it has {', '.join(self.pythons)}; others: `pythons` in ci/images.yaml",
            )
        return self.pythons[str(version)]


class ImagedSet(Plain, frozen=True, kw_only=True):
    """The facts about a wheel set that an image's tag may contain."""

    set_id: str  # SHA-256 of the manifest
    jax: str
    rocm: str
    family: str  # whose place the set is in


class RunTimeFiles(Value, frozen=True, kw_only=True):
    """Files that nothing names in NEEDED: opened or executed at run time."""

    beside: str = field(name="with")  # a library's name without version, "" for always
    # Patterns below ROCm's root that must meet a file; of a list in the list, one of them.
    paths: tuple[str | tuple[str, ...], ...] = ()
    may_lack: tuple[str, ...] = ()  # patterns that a release need not have


class _Budgets(Value, frozen=True, kw_only=True):
    """MiB that an image may weigh, by profile."""

    runtime: int
    devel: int


class RuntimeRecipe(Value, frozen=True, kw_only=True):
    """The contents of images of one kind, and their names."""

    name: str = ""  # its key in the file
    repository: str
    unreleased: str  # the repository of sets that are only staged
    tag: str
    requirements: tuple[str, ...]
    suites: tuple[str, ...]
    base_names: tuple[str, ...] = field(name="bases")
    budgets: _Budgets
    bases: tuple[RuntimeBase, ...] = field(name="_bases", default=())  # those of these names
    files: tuple[RunTimeFiles, ...] = field(name="_files", default=())  # of the whole file

    def __post_init__(self) -> None:
        try:
            self.tag.format(**dict.fromkeys(("rocm", "jax", "python", "family", "set"), ""))
        except (ValueError, LookupError) as exc:
            hint = "a tag may say {rocm}, {jax}, {python}, {family} and {set}"
            problem = f"{self.tag!r}: names something else than a set has"
            raise FieldError(problem, "tag", hint=hint) from exc
        if not self.base_names:
            raise FieldError("no base", "bases", hint="name one of `bases`")

    def base(self, name: str) -> RuntimeBase:
        """Return a base by name, "" for the default. Raises ConfigError."""
        return _named(name, {item.name: item for item in self.bases}) if name else self.bases[0]

    def tag_of(
        self, wheels: ImagedSet, python: PythonVersion, chosen: RuntimeBase, profile: str
    ) -> str:
        """Return the tag of an image; never a `+`. Raises ConfigError for one no registry takes."""
        named = {**structs.asdict(wheels), "python": str(python), "set": wheels.set_id[:12]}
        parts = [self.tag.format(**named)]
        if chosen != self.bases[0]:
            parts.append(chosen.suffix)
        if profile != IMAGE_PROFILES[0]:
            parts.append(profile)
        tag = re.sub(r"[^A-Za-z0-9_.-]", "-", "-".join(parts))
        if not _TAG.match(tag):
            raise ConfigError(f"{tag!r}: no tag", hint="shorten `tag` in ci/images.yaml")
        return tag

    def packages_beside(self, manifest: Manifest) -> tuple[str, ...]:
        """Return the requirements beside the set, for its JAX."""
        return tuple(item.format(jax=manifest.jax_version) for item in self.requirements)


class RuntimeImages(Value, frozen=True, kw_only=True):
    """The part `runtime`: recipes, and the bases and files that they name."""

    recipes: Mapping[str, RuntimeRecipe]
    bases: Mapping[str, RuntimeBase]
    files: tuple[RunTimeFiles, ...]


class Images(Value, frozen=True, kw_only=True):
    """The whole of `ci/images.yaml`."""

    schema: Literal[1]
    builders: Mapping[str, BuilderRecipe]
    runtime: RuntimeImages | None = None


def builder(ci: Path, name: str) -> BuilderRecipe:
    """Read the recipe of a builder. Raises ConfigError with line and column."""
    return replace(_named(name, load(ci).builders), name=name)


def runtime(ci: Path, name: str) -> RuntimeRecipe:
    """Read the recipe of a runtime image. Raises ConfigError with line and column."""
    part = load(ci).runtime
    if part is None:
        raise ConfigError(f"{ci / FILE}: has no runtime images", hint="add `runtime`")
    recipe = _named(name, part.recipes)
    bases = tuple(replace(_named(base, part.bases), name=base) for base in recipe.base_names)
    return replace(recipe, name=name, bases=bases, files=part.files)


def load(ci: Path) -> Images:
    """Read all recipes. Raises ConfigError with line and column."""
    return yaml_file.read(ci / FILE, Images)


def _named(name: str, known: Mapping[str, _T]) -> _T:
    if name not in known:
        raise ConfigError(f"{name!r}: not in ci/{FILE}", hint=suggest(name, tuple(known)))
    return known[name]


def inputs_digest(**parts: object) -> str:
    """Return one SHA-256 for everything an image is made from."""
    return files.sha256(canonical_json(parts))


class BuilderInputs(Plain, frozen=True, kw_only=True):
    """Everything a builder image is made from."""

    recipe: BuilderRecipe
    base: str  # digest of the base's configuration
    tool: str  # SHA-256
    digest: str  # one SHA-256 for all of it

    @property
    def tag(self) -> str:
        """The recipe's name, for people, and the digest, for identity."""
        return f"{self.recipe.name}-{self.digest[:16]}"

    @property
    def reference(self) -> str:
        return f"{self.recipe.repository}:{self.tag}"


def builder_inputs(
    recipe: BuilderRecipe, *, checkout: Path, base: str, bazel: str = ""
) -> BuilderInputs:
    """Digest what a builder is made from; nothing is fetched. Raises OSError."""
    tool = tree_digest(checkout)
    digest = inputs_digest(
        base=base,
        bazel=bazel,
        clang=recipe.clang,
        dockerfile=files.sha256(checkout / "docker" / BUILDER),
        lock=files.sha256(checkout / "build" / "requirements.lock"),
        packages=sorted(recipe.packages),
        script=files.sha256(checkout / "docker" / SCRIPT),
        tool=tool,
        tool_python=[recipe.tool.python, recipe.tool.version],
    )
    return BuilderInputs(recipe=recipe, base=base, tool=tool, digest=digest)


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
    rows = ((name, checkout / name) for name in tool_files(checkout))
    return files.sha256(
        f"{name}\0{bool(file.stat().st_mode & 0o100)}\0{files.sha256(file)}\n".encode()
        for name, file in rows
    )
