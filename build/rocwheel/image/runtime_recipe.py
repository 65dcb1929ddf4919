"""Recipes of runtime images: the part `runtime` of `ci/images.yaml`."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from msgspec import field, structs

from rocwheel.base import yaml_file
from rocwheel.base.choices import IMAGE_PROFILES
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Plain, Value, replace
from rocwheel.base.versions import CPYTHONS, PythonVersion, suggest
from rocwheel.base.yaml_file import FieldError
from rocwheel.image.recipe import Base
from rocwheel.records.manifest import Manifest

_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")  # OCI distribution specification
_T = TypeVar("_T")


class RuntimeBase(Value, frozen=True, kw_only=True):
    """What a runtime image starts from."""

    name: str = ""  # its key in the file
    base: Base
    glibc: str
    suffix: str  # of tags, where it is not the recipe's default
    packages: tuple[str, ...]
    pythons: Mapping[str, tuple[str, ...]]  # CPython -> its packages

    def __post_init__(self) -> None:
        """Refuse a CPython that does not exist, or another spelling of one."""
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
    """What a tag may say of the wheel set in an image."""

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
    """What images of one kind hold, and how they are called."""

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
        """Refuse a tag of something else than a set has, and a recipe without a base."""
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


class _Runtime(Value, frozen=True, kw_only=True):
    recipes: Mapping[str, RuntimeRecipe]
    bases: Mapping[str, RuntimeBase]
    files: tuple[RunTimeFiles, ...]


class _File(Value, frozen=True, kw_only=True):
    schema: Literal[1]
    builders: Any
    runtime: _Runtime | None = None


def load(path: Path, name: str) -> RuntimeRecipe:
    """Read a recipe. Raises ConfigError with line and column."""
    whole = yaml_file.read(path, _File).runtime
    if whole is None:
        raise ConfigError(f"{path}: says nothing of runtime images", hint="add `runtime`")
    entry = _named(name, whole.recipes)
    bases = tuple(replace(_named(base, whole.bases), name=base) for base in entry.base_names)
    return replace(entry, name=name, bases=bases, files=whole.files)


def _named(name: str, known: Mapping[str, _T]) -> _T:
    if name not in known:
        raise ConfigError(f"{name!r}: not in ci/images.yaml", hint=suggest(name, tuple(known)))
    return known[name]
