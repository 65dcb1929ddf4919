"""`ci/wheel_policy.yaml`: what wheels may need, where they look for ROCm, what they may weigh.

Every mistake in the file is a ConfigError with file, line, key and the nearest valid name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal, TypeAlias

from msgspec.structs import asdict
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from rocwheel import yaml_file
from rocwheel.model import WheelKind, suggest
from rocwheel.values import Value, matching
from rocwheel.wheel.elf import ElfFacts
from rocwheel.wheel.metadata import canonical_platform
from rocwheel.yaml_file import FieldError

PRIVATE: Final = "GLIBC_PRIVATE"  # of one glibc for itself; no system promises it
PREFIXES: Final = ("GLIBC", "GLIBCXX", "CXXABI", "GCC")
_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True, kw_only=True)
class Manylinux:
    """One manylinux level: the highest symbol version by prefix that its systems have."""

    level: str  # "2_28"
    highest: Mapping[str, tuple[int, ...]]

    def tag(self, machine: str) -> str:
        return f"manylinux_{self.level}_{machine}"


class RunpathUse(Value, frozen=True, kw_only=True):
    """Which templates wheels of these JAX versions may have; the first is the one to set."""

    jax: SpecifierSet
    templates: tuple[str, ...]


class AllowedRequirement(Value, frozen=True, kw_only=True):
    """Which versions a requirement must admit and must refuse; "" where any is right."""

    admits: str
    refuses: str

    def fits(self, specifier: SpecifierSet) -> bool:
        """Return whether a requirement's specifier is as JAX needs it."""
        contains = partial(specifier.contains, prereleases=True)
        return not (self.admits and not contains(self.admits)) and not (
            self.refuses and contains(self.refuses)
        )

    def __str__(self) -> str:
        return f"and must admit {self.admits} and refuse {self.refuses}"


class RequiredMembers(Value, frozen=True, kw_only=True):
    """What wheels of these JAX versions must have inside."""

    jax: SpecifierSet
    members: tuple[str, ...]  # `{rocm}` is the ROCm number
    pythons: tuple[str, ...] = ()  # minor versions of CPython 3 that must be admitted


class KindPolicy(Value, frozen=True, kw_only=True):
    """What is true of one kind of wheel."""

    size: int  # bytes
    packages: tuple[str, ...]  # all that is installed is below these; `{rocm}` is the ROCm number
    gpu_code: bool
    tag: Literal["cpython", "py3-none"]  # cp312-cp312, cp314-cp314t; or interpreter and ABI
    required: tuple[RequiredMembers, ...]  # the first that has the JAX version counts
    functions: Mapping[str, tuple[str, ...]]  # module -> what JAX calls in it
    entry_points: Mapping[str, tuple[str, ...]]  # group -> `name = module`
    requires: Mapping[str, AllowedRequirement]  # by normalised name
    extras: tuple[str, ...]  # patterns of names that an extra may require


@dataclass(frozen=True, kw_only=True)
class WheelPolicy:
    """The whole file."""

    manylinux: tuple[Manylinux, ...]  # from the oldest
    symbol_versions: frozenset[str]  # that any system has on x86_64
    oldest: str
    platform_libraries: frozenset[str]
    other_libraries: frozenset[str]  # that wheels outside JAX may need, too
    rocm_libraries: frozenset[str]  # versioned SONAMEs
    runpath_leaks: tuple[str, ...]
    runpath_templates: Mapping[str, tuple[str, ...]]
    runpath_uses: tuple[RunpathUse, ...]
    kinds: Mapping[WheelKind, KindPolicy]

    def outside(self, kind: WheelKind | None) -> frozenset[str]:
        """Return SONAMEs of the libraries that wheels of a kind may need from outside."""
        if kind is None:
            return self.platform_libraries | self.other_libraries
        if not kind.needs_rocm:
            return self.platform_libraries
        return self.platform_libraries | self.rocm_libraries

    def runpaths(self, version: Version) -> tuple[tuple[str, ...], ...]:
        """Return RUNPATHs that ROCm wheels of this version may have, the one to set first."""
        base = Version(version.base_version)
        for use in self.runpath_uses:
            if use.jax.contains(base):
                return tuple(self.runpath_templates[name] for name in use.templates)
        return ()

    def required(self, kind: WheelKind, version: Version) -> RequiredMembers:
        """Return what a wheel of this kind and version must have."""
        base = Version(version.base_version)
        uses = (each for each in self.kinds[kind].required if each.jax.contains(base))
        return next(uses, RequiredMembers(jax=SpecifierSet(), members=()))

    def level(self, platform: str) -> Manylinux | None:
        """Return the level of a tag such as manylinux_2_28_x86_64, None where it has none."""
        match = re.fullmatch(r"manylinux_([0-9]+_[0-9]+)_\w+", canonical_platform(platform))
        return next((item for item in self.manylinux if match and item.level == match[1]), None)

    def excess(self, level: Manylinux, facts: ElfFacts) -> tuple[str, ...]:
        """Return symbol versions that this file needs, and this level, or any, does not promise."""
        platform = self.platform_libraries if facts.machine == "x86_64" else frozenset()
        never = (
            name
            for library, names in facts.versions.items()
            for name in names
            if name == PRIVATE  # the lists of other machines are shorter, and begin later
            or (library in platform and name not in self.symbol_versions)
        )
        higher = (
            f"{prefix}_{'.'.join(map(str, facts.highest(prefix)))}"
            for prefix in PREFIXES
            if facts.highest(prefix) > level.highest[prefix]
        )
        return *never, *higher

    def best(self, facts: Iterable[ElfFacts]) -> Manylinux | None:
        """Return the oldest level, from `oldest` on, that holds for all files; None for none."""
        files = tuple(facts)
        first = next(n for n, item in enumerate(self.manylinux) if item.level == self.oldest)
        return next(
            (
                item
                for item in self.manylinux[first:]
                if not any(self.excess(item, each) for each in files)
            ),
            None,
        )


class _Runpath(Value, frozen=True, kw_only=True):
    leaks: tuple[str, ...]
    lists: Mapping[str, tuple[str, ...]]
    templates: Mapping[str, tuple[str, ...]]
    use: tuple[RunpathUse, ...]

    def __post_init__(self) -> None:
        """Refuse the name of a list or template that does not exist."""
        for template, entries in self.templates.items():
            for number, entry in enumerate(entries):
                at = ("templates", template, number)
                for name in _PLACEHOLDER.findall(entry):
                    _refuse_unknown(f"{{{name}}}: no such list", name, self.lists, *at)
        for number, use in enumerate(self.use):
            if not use.templates:
                hint = f"choose from: {', '.join(self.templates)}"
                raise FieldError("no template", "use", number, "templates", hint=hint)
            for place, name in enumerate(use.templates):
                problem = f"unknown value {name!r}"
                _refuse_unknown(problem, name, self.templates, "use", number, "templates", place)

    def expanded(self) -> dict[str, tuple[str, ...]]:
        """Return the templates with each name of a list replaced by each of its entries."""
        return {
            name: tuple(made for entry in entries for made in _expand(entry, self.lists))
            for name, entries in self.templates.items()
        }


class _Kinds(Value, frozen=True, kw_only=True):
    jaxlib: KindPolicy
    plugin: KindPolicy
    pjrt: KindPolicy


Level: TypeAlias = Annotated[
    str, matching(r"\A[0-9]+_[0-9]+\Z", "a manylinux level", 'write for example "2_28"')
]
SymbolVersion: TypeAlias = Annotated[
    str,
    matching(r"\A[0-9]+(\.[0-9]+)*\Z", "a symbol version", 'write for example "3.4.24"'),
]


class _Highest(Value, frozen=True, kw_only=True):
    GLIBC: SymbolVersion
    GLIBCXX: SymbolVersion
    CXXABI: SymbolVersion
    GCC: SymbolVersion


class _File(Value, frozen=True, kw_only=True):
    schema: Literal[1]
    manylinux: Mapping[Level, _Highest]
    symbol_versions: Mapping[str, tuple[str, ...]]
    oldest: str
    platform_libraries: frozenset[str]
    other_libraries: frozenset[str]
    rocm_libraries: Mapping[str, tuple[str, ...]]
    runpath: _Runpath
    kinds: _Kinds

    def __post_init__(self) -> None:
        """Refuse an oldest level that does not exist."""
        _refuse_unknown(f"unknown value {self.oldest!r}", self.oldest, self.manylinux, "oldest")


def load(path: Path) -> WheelPolicy:
    """Read the policy. Raises ConfigError."""
    file = yaml_file.read(path, _File)
    levels = (
        Manylinux(level=level, highest={k: tuple(map(int, v.split("."))) for k, v in each.items()})
        for level, each in ((level, asdict(each)) for level, each in file.manylinux.items())
    )
    return WheelPolicy(
        manylinux=tuple(sorted(levels, key=lambda item: [*map(int, item.level.split("_"))])),
        symbol_versions=frozenset(
            f"{prefix}_{number}"
            for prefix, numbers in file.symbol_versions.items()
            for number in numbers
        ),
        oldest=file.oldest,
        platform_libraries=file.platform_libraries,
        other_libraries=file.other_libraries,
        rocm_libraries=frozenset(
            f"{name}.{abi}" if abi else name
            for name, abis in file.rocm_libraries.items()
            for abi in abis
        ),
        runpath_leaks=file.runpath.leaks,
        runpath_templates=file.runpath.expanded(),
        runpath_uses=file.runpath.use,
        kinds={WheelKind(name): policy for name, policy in asdict(file.kinds).items()},
    )


def _refuse_unknown(problem: str, name: str, valid: Collection[str], *at: str | int) -> None:
    if name not in valid:
        raise FieldError(problem, *at, hint=suggest(name, tuple(valid)))


def _expand(entry: str, lists: Mapping[str, tuple[str, ...]]) -> Iterable[str]:
    names = _PLACEHOLDER.findall(entry)
    for chosen in itertools.product(*(lists[name] for name in names)):
        made = entry
        for name, value in zip(names, chosen, strict=True):
            made = made.replace(f"{{{name}}}", value, 1)
        yield made
