"""Recipes of runtime images: the part `runtime` of `ci/images.yaml`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from rocwheel import located_yaml
from rocwheel.choices import IMAGE_PROFILES
from rocwheel.errors import ConfigError
from rocwheel.image.recipe import MEBI, Base, base
from rocwheel.located_yaml import Field
from rocwheel.manifest import Manifest
from rocwheel.model import PythonVersion, suggest

_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}\Z")  # OCI distribution specification
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class PythonSource:
    """Where an image's CPython comes from: packages of the base, or an archive by SHA-256."""

    packages: tuple[str, ...] = ()
    archive: str = ""  # URL, of a folder that holds bin/python3
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class RuntimeBase:
    """What a runtime image starts from."""

    name: str
    base: Base
    glibc: str
    suffix: str  # of tags, where it is not the recipe's default
    packages: tuple[str, ...]
    pythons: Mapping[str, PythonSource]

    def python(self, version: PythonVersion) -> PythonSource:
        """Raises ConfigError for a CPython that nobody said how to get."""
        found = self.pythons.get(str(version))
        if found is None:
            raise ConfigError(
                f"{self.name}: no CPython {version} for this base",
                hint=f"it has {', '.join(self.pythons)}; others: `pythons` in ci/images.yaml",
            )
        return found


@dataclass(frozen=True, kw_only=True)
class ImagedSet:
    """What a tag may say of the wheel set in an image."""

    set_id: str  # SHA-256 of the manifest
    jax: str
    rocm: str
    family: str  # whose place the set is in


@dataclass(frozen=True, kw_only=True)
class RunTimeFiles:
    """Files that nothing names in NEEDED: opened or executed at run time."""

    beside: str  # a library's name without version, "" for always
    paths: tuple[str, ...]  # patterns below ROCm's root


@dataclass(frozen=True, kw_only=True)
class RuntimeRecipe:
    """What images of one kind hold, and how they are called."""

    name: str
    repository: str
    unreleased: str  # the repository of sets that are only staged
    tag: str
    requirements: tuple[str, ...]
    suites: tuple[str, ...]
    bases: tuple[RuntimeBase, ...]
    budgets: Mapping[str, int]  # profile -> bytes
    files: tuple[RunTimeFiles, ...]

    def base(self, name: str) -> RuntimeBase:
        """A base by name, "" for the default. Raises ConfigError."""
        return _named(name, {item.name: item for item in self.bases}) if name else self.bases[0]

    def tag_of(
        self,
        wheels: ImagedSet,
        python: PythonVersion,
        chosen: RuntimeBase,
        profile: str,
    ) -> str:
        """The tag of an image; never a `+`. Raises ConfigError for one no registry takes."""
        parts = [_tag(self.tag, wheels, str(python))]
        if chosen != self.bases[0]:
            parts.append(chosen.suffix)
        if profile != IMAGE_PROFILES[0]:
            parts.append(profile)
        tag = re.sub(r"[^A-Za-z0-9_.-]", "-", "-".join(parts))
        if not _TAG.match(tag):
            raise ConfigError(f"{tag!r}: no tag", hint="shorten `tag` in ci/images.yaml")
        return tag

    def packages_beside(self, manifest: Manifest) -> tuple[str, ...]:
        """Requirements beside the set, for its JAX."""
        return tuple(item.format(jax=manifest.jax_version) for item in self.requirements)


def load(path: Path, name: str) -> RuntimeRecipe:
    """Read a recipe. Raises ConfigError with line and column."""
    whole = located_yaml.load(path).record(
        required=("schema", "registries", "builders"), optional=("runtime",)
    )
    if "runtime" not in whole:
        raise ConfigError(f"{path}: says nothing of runtime images", hint="add `runtime`")
    fields = whole["runtime"].record(required=("recipes", "bases", "files"))
    recipes = fields["recipes"].mapping()
    entry = _named(name, recipes).record(
        required=("repository", "unreleased", "tag", "requirements", "suites", "bases", "budgets")
    )
    bases = fields["bases"].mapping()
    budgets = entry["budgets"].record(required=IMAGE_PROFILES)
    try:
        _tag(entry["tag"].string(), ImagedSet(set_id="", jax="", rocm="", family=""), "")
    except (ValueError, LookupError):
        entry["tag"].fail(
            f"{entry['tag'].string()!r}: names something else than a set has",
            hint="a tag may say {rocm}, {jax}, {python}, {family} and {set}",
        )
    chosen = tuple(
        _base(item.string(), _named(item.string(), bases)) for item in entry["bases"].sequence()
    )
    if not chosen:
        entry["bases"].fail("no base", hint="name one of `bases`")
    return RuntimeRecipe(
        name=name,
        repository=entry["repository"].string(),
        unreleased=entry["unreleased"].string(),
        tag=entry["tag"].string(),
        requirements=entry["requirements"].strings(),
        suites=entry["suites"].strings(),
        bases=chosen,
        budgets={profile: budgets[profile].integer() * MEBI for profile in IMAGE_PROFILES},
        files=tuple(_extra(item) for item in fields["files"].sequence()),
    )


def _tag(scheme: str, wheels: ImagedSet, python: str) -> str:
    return scheme.format(
        rocm=wheels.rocm,
        jax=wheels.jax,
        python=python,
        family=wheels.family,
        set=wheels.set_id[:12],
    )


def _base(name: str, entry: Field) -> RuntimeBase:
    fields = entry.record(required=("base", "glibc", "suffix", "packages", "pythons"))
    return RuntimeBase(
        name=name,
        base=base(fields["base"]),
        glibc=fields["glibc"].string(),
        suffix=fields["suffix"].string(),
        packages=fields["packages"].strings(),
        pythons={
            str(PythonVersion.parse(version)): _python(item)
            for version, item in fields["pythons"].mapping().items()
        },
    )


def _python(entry: Field) -> PythonSource:
    fields = entry.record(required=(), optional=("packages", "archive", "sha256"))
    if ("archive" in fields) != ("sha256" in fields):
        entry.fail("an archive needs its SHA-256", hint="write archive: URL and sha256: 64 digits")
    return PythonSource(
        packages=fields["packages"].strings() if "packages" in fields else (),
        archive=fields["archive"].string() if "archive" in fields else "",
        sha256=fields["sha256"].sha256() if "sha256" in fields else "",
    )


def _extra(entry: Field) -> RunTimeFiles:
    fields = entry.record(required=("with", "paths"))
    return RunTimeFiles(beside=fields["with"].string(), paths=fields["paths"].strings())


def _named(name: str, known: Mapping[str, _T]) -> _T:
    if name not in known:
        raise ConfigError(f"{name!r}: not in ci/images.yaml", hint=suggest(name, tuple(known)))
    return known[name]
