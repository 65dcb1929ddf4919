"""`ci/wheel_policy.yaml`: what wheels may need, where they look for ROCm, what they may weigh.

Every mistake in the file is a ConfigError with file, line, key and the nearest valid name.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from rocwheel import located_yaml
from rocwheel.model import WheelKind, suggest
from rocwheel.wheel.metadata import canonical_platform

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from packaging.specifiers import SpecifierSet
    from packaging.version import Version

    from rocwheel.located_yaml import Field
    from rocwheel.wheel.elf import ElfFacts

SCHEMA: Final = 1
PRIVATE: Final = "GLIBC_PRIVATE"  # of one glibc for itself; no system promises it
PREFIXES: Final = ("GLIBC", "GLIBCXX", "CXXABI", "GCC")
_LEVEL: Final = re.compile(r"[0-9]+_[0-9]+\Z")
_NUMBERS: Final = re.compile(r"[0-9]+(\.[0-9]+)*\Z")
_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True, kw_only=True)
class Manylinux:
    """One manylinux level: the highest symbol version by prefix that its systems have."""

    level: str  # "2_28"
    highest: Mapping[str, tuple[int, ...]]

    def tag(self, machine: str) -> str:
        return f"manylinux_{self.level}_{machine}"

    @property
    def order(self) -> tuple[int, ...]:
        return tuple(map(int, self.level.split("_")))


@dataclass(frozen=True, kw_only=True)
class RunpathUse:
    """Which templates wheels of these JAX versions may have; the first is the one to set."""

    jax: SpecifierSet
    templates: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class AllowedRequirement:
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


@dataclass(frozen=True, kw_only=True)
class RequiredMembers:
    """What wheels of these JAX versions must have inside."""

    jax: SpecifierSet
    members: tuple[str, ...]  # `{rocm}` is the ROCm number


@dataclass(frozen=True, kw_only=True)
class KindPolicy:
    """What is true of one kind of wheel."""

    size: int  # bytes
    packages: tuple[str, ...]  # all that is installed is below these; `{rocm}` is the ROCm number
    graft: frozenset[str]  # versioned SONAMEs that may be grafted
    gpu_code: bool
    tag: str  # "cpython" (cp312-cp312, cp314-cp314t), or interpreter and ABI: "py3-none"
    required: tuple[RequiredMembers, ...]  # the first that has the JAX version counts
    functions: Mapping[str, tuple[str, ...]]  # module -> what JAX calls in it
    entry_points: Mapping[str, tuple[str, ...]]  # group -> `name = module`
    requires: Mapping[str, AllowedRequirement]  # by normalised name
    extras: tuple[str, ...]  # patterns of names that an extra may require

    def may_graft(self, library: str) -> bool:
        """Whether a library of this SONAME, or in a file of a longer version, may come in."""
        return any(library == name or library.startswith(f"{name}.") for name in self.graft)


@dataclass(frozen=True, kw_only=True)
class WheelPolicy:
    """The whole file."""

    manylinux: tuple[Manylinux, ...]  # from the oldest
    oldest: str
    platform_libraries: frozenset[str]
    rocm_libraries: frozenset[str]  # versioned SONAMEs
    runpath_leaks: tuple[str, ...]
    runpath_templates: Mapping[str, tuple[str, ...]]
    runpath_uses: tuple[RunpathUse, ...]
    kinds: Mapping[WheelKind, KindPolicy]

    def outside(self, kind: WheelKind | None) -> frozenset[str]:
        """SONAMEs of the libraries that wheels of a kind may need from outside."""
        if kind is None or not kind.needs_rocm:
            return self.platform_libraries
        return self.platform_libraries | self.rocm_libraries

    def runpaths(self, version: Version) -> tuple[tuple[str, ...], ...]:
        """RUNPATHs that ROCm wheels of this version may have, the one to set first."""
        from packaging.version import Version

        base = Version(version.base_version)
        for use in self.runpath_uses:
            if use.jax.contains(base):
                return tuple(self.runpath_templates[name] for name in use.templates)
        return ()

    def required(self, kind: WheelKind, version: Version) -> tuple[str, ...]:
        """Return the members that a wheel of this kind and version must have."""
        from packaging.version import Version

        base = Version(version.base_version)
        uses = (each for each in self.kinds[kind].required if each.jax.contains(base))
        return next((use.members for use in uses), ())

    def level(self, platform: str) -> Manylinux | None:
        """The level of a platform tag such as manylinux_2_28_x86_64, None where it has none."""
        match = re.fullmatch(r"manylinux_([0-9]+_[0-9]+)_\w+", canonical_platform(platform))
        return next((item for item in self.manylinux if match and item.level == match[1]), None)

    def holds(self, level: Manylinux, facts: Iterable[ElfFacts]) -> bool:
        return not any(self.excess(level, item) for item in facts)

    def excess(self, level: Manylinux, facts: ElfFacts) -> tuple[str, ...]:
        """Symbol versions that this file needs and the level does not promise."""
        private = any(PRIVATE in names for names in facts.versions.values())
        return ((PRIVATE,) if private else ()) + tuple(
            f"{prefix}_{'.'.join(map(str, facts.highest(prefix)))}"
            for prefix in PREFIXES
            if facts.highest(prefix) > level.highest[prefix]
        )

    def best(self, facts: Iterable[ElfFacts]) -> Manylinux | None:
        """The oldest level, not older than `oldest`, that holds for all files; None for none."""
        files = tuple(facts)
        first = next(n for n, item in enumerate(self.manylinux) if item.level == self.oldest)
        return next((item for item in self.manylinux[first:] if self.holds(item, files)), None)


def load(path: Path) -> WheelPolicy:
    """Read the policy. Raises ConfigError."""
    return read(located_yaml.load(path))


def read(document: Field) -> WheelPolicy:
    """Read the policy from a parsed document. Raises ConfigError."""
    fields = document.record(
        required=(
            "schema", "manylinux", "oldest", "platform_libraries", "rocm_libraries", "runpath",
            "kinds",
        )
    )  # fmt: skip
    fields["schema"].schema(SCHEMA)
    levels = tuple(_level(name, item) for name, item in fields["manylinux"].mapping().items())
    runpath = fields["runpath"].record(required=("leaks", "lists", "templates", "use"))
    templates = _templates(runpath["lists"], runpath["templates"])
    kinds = fields["kinds"].record(required=[kind.value for kind in WheelKind])
    return WheelPolicy(
        manylinux=tuple(sorted(levels, key=lambda item: item.order)),
        oldest=fields["oldest"].choice([item.level for item in levels]),
        platform_libraries=frozenset(fields["platform_libraries"].strings()),
        rocm_libraries=frozenset(
            f"{name}.{abi}" if abi else name
            for name, abis in fields["rocm_libraries"].mapping().items()
            for abi in abis.strings()
        ),
        runpath_leaks=runpath["leaks"].strings(),
        runpath_templates=templates,
        runpath_uses=tuple(_use(item, templates) for item in runpath["use"].sequence()),
        kinds={WheelKind(name): _kind(item) for name, item in kinds.items()},
    )


def _level(name: str, entry: Field) -> Manylinux:
    if not _LEVEL.match(name):
        entry.fail(f"{name!r}: not a manylinux level", hint='write for example "2_28"')
    return Manylinux(
        level=name,
        highest={key: _numbers(item) for key, item in entry.record(required=PREFIXES).items()},
    )


def _numbers(entry: Field) -> tuple[int, ...]:
    text = entry.string()
    if not _NUMBERS.match(text):
        entry.fail(f"{text!r}: not a symbol version", hint='write for example "3.4.24"')
    return tuple(map(int, text.split(".")))


def _templates(lists: Field, templates: Field) -> dict[str, tuple[str, ...]]:
    values = {name: item.strings() for name, item in lists.mapping().items()}
    return {
        name: tuple(made for item in entry.sequence() for made in _entries(item, values))
        for name, entry in templates.mapping().items()
    }


def _entries(entry: Field, values: Mapping[str, tuple[str, ...]]) -> Iterable[str]:
    text = entry.string()
    names = _PLACEHOLDER.findall(text)
    for name in names:
        if name not in values:
            entry.fail(f"{{{name}}}: no such list", hint=suggest(name, tuple(values)))
    for chosen in itertools.product(*(values[name] for name in names)):
        made = text
        for name, value in zip(names, chosen, strict=True):
            made = made.replace(f"{{{name}}}", value, 1)
        yield made


def _use(entry: Field, templates: Mapping[str, tuple[str, ...]]) -> RunpathUse:
    fields = entry.record(required=("jax", "templates"))
    names = tuple(item.choice(templates) for item in fields["templates"].sequence())
    if not names:
        fields["templates"].fail("no template", hint=f"choose from: {', '.join(templates)}")
    return RunpathUse(jax=fields["jax"].specifiers(), templates=names)


def _kind(entry: Field) -> KindPolicy:
    fields = entry.record(
        required=(
            "size", "packages", "graft", "gpu_code", "tag", "required", "functions",
            "entry_points", "requires", "extras",
        )
    )  # fmt: skip
    return KindPolicy(
        size=fields["size"].integer(),
        packages=fields["packages"].strings(),
        graft=frozenset(fields["graft"].strings()),
        gpu_code=fields["gpu_code"].boolean(),
        tag=fields["tag"].choice(["cpython", "py3-none"]),
        required=tuple(_required(item) for item in fields["required"].sequence()),
        functions=_lists(fields["functions"]),
        entry_points=_lists(fields["entry_points"]),
        requires={name: _allowed(item) for name, item in fields["requires"].mapping().items()},
        extras=fields["extras"].strings(),
    )


def _required(entry: Field) -> RequiredMembers:
    fields = entry.record(required=("jax", "members"))
    return RequiredMembers(jax=fields["jax"].specifiers(), members=fields["members"].strings())


def _allowed(entry: Field) -> AllowedRequirement:
    fields = entry.record(required=("admits", "refuses"))
    return AllowedRequirement(admits=fields["admits"].string(), refuses=fields["refuses"].string())


def _lists(entry: Field) -> dict[str, tuple[str, ...]]:
    return {name: item.strings() for name, item in entry.mapping().items()}
