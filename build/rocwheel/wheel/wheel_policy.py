"""Reads `ci/wheel_policy.yaml`: what wheels may need, where they look for ROCm, their size.

Every mistake in the file is a ConfigError with file, line, key and the nearest valid name.
"""

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated, Final, Literal, TypeAlias

from msgspec.structs import asdict
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from rocwheel.base.values import Value, matching
from rocwheel.base.versions import WheelKind, suggest
from rocwheel.base.yaml_file import FieldError
from rocwheel.records.source_layout import PLACEHOLDER, filled
from rocwheel.wheel.elf import ElfFacts
from rocwheel.wheel.metadata import canonical_platform

PRIVATE: Final = "GLIBC_PRIVATE"  # of one glibc for itself; no system promises it


Level: TypeAlias = Annotated[
    str, matching(r"\A[0-9]+_[0-9]+\Z", "a manylinux level", 'write for example "2_28"')
]


class Highest(Value, frozen=True, kw_only=True):
    """The highest symbol versions that the systems of a manylinux level have, by prefix."""

    GLIBC: Version
    GLIBCXX: Version
    CXXABI: Version
    GCC: Version


class RunpathUse(Value, frozen=True, kw_only=True):
    """Which templates wheels of these JAX versions may have; the first is the one to set."""

    jax: SpecifierSet
    templates: tuple[str, ...]


class AllowedRequirement(Value, frozen=True, kw_only=True):
    """A version that a requirement must admit and one it must refuse; "" for no demand."""

    admits: str
    refuses: str

    def fits(self, specifier: SpecifierSet) -> bool:
        contains = partial(specifier.contains, prereleases=True)
        return not (self.admits and not contains(self.admits)) and not (
            self.refuses and contains(self.refuses)
        )

    def __str__(self) -> str:
        return f"and must admit {self.admits} and refuse {self.refuses}"


class RunLimits(Value, frozen=True, kw_only=True):
    """What running wheels with one CPython may take: `cpu` and `wall` for each wheel of a set."""

    step: int  # seconds of CPU time for one module or call, which may take twice as long
    cpu: int  # seconds
    wall: int  # seconds
    memory: int  # bytes in use
    processes: int


class Registers(Value, frozen=True, kw_only=True):
    """What `initialize()` of a pjrt must register with JAX, and what else it must call."""

    platform: str
    priority: int
    options: Mapping[str, str]  # each call below must name the same platform
    calls: tuple[str, ...]  # where the plugin's own package is installed, too


class RequiredMembers(Value, frozen=True, kw_only=True):
    jax: SpecifierSet
    members: tuple[str, ...]  # `{rocm}` is the ROCm number
    pythons: tuple[str, ...] = ()  # minor versions of CPython 3 that must be admitted
    registers: Registers | None = None  # with JAX, when the plugin starts
    names: Mapping[str, tuple[str, ...]] = {}  # module -> what JAX takes from it


class KindPolicy(Value, frozen=True, kw_only=True):
    size: int  # bytes, for as many gfx targets as `targets`
    targets: int = 0
    per_target: int = 0  # bytes, for each one more
    packages: tuple[str, ...]  # all that is installed is below these; `{rocm}` is the ROCm number
    gpu_code: bool
    tag: Literal["cpython", "py3-none"]  # cp312-cp312, cp314-cp314t; or interpreter and ABI
    required: tuple[RequiredMembers, ...]  # those that have the JAX version count
    names: Mapping[str, tuple[str, ...]]  # module -> what JAX takes from it
    unused: tuple[str, ...] = ()  # modules that do not import as published, and nothing takes
    entry_points: Mapping[str, tuple[str, ...]]  # group -> `name = module`
    requires: Mapping[str, AllowedRequirement]  # by normalised name
    extras: tuple[str, ...]  # patterns of names that an extra may require

    def budget(self, targets: int) -> int:
        return self.size + self.per_target * max(0, targets - self.targets)


class Runpath(Value, frozen=True, kw_only=True):
    """Where wheels look for ROCm, and how to recognise entries left by a build."""

    leaks: tuple[str, ...]
    lists: Mapping[str, tuple[str, ...]]
    templates: Mapping[str, tuple[str, ...]]
    use: tuple[RunpathUse, ...]

    def __post_init__(self) -> None:
        for template, entries in self.templates.items():
            for number, entry in enumerate(entries):
                at = ("templates", template, number)
                for name in PLACEHOLDER.findall(entry):
                    _refuse_unknown(f"{{{name}}}: no such list", name, self.lists, *at)
        for number, use in enumerate(self.use):
            if not use.templates:
                hint = f"choose from: {', '.join(self.templates)}"
                raise FieldError("no template", "use", number, "templates", hint=hint)
            for place, name in enumerate(use.templates):
                problem = f"unknown value {name!r}"
                _refuse_unknown(problem, name, self.templates, "use", number, "templates", place)

    def expanded(self, template: str) -> tuple[str, ...]:
        """Return a template's entries, each with the names of lists replaced by their entries."""
        entries = self.templates[template]
        return tuple(item for entry in entries for item in filled(entry, self.lists))


class WheelPolicy(Value, frozen=True, kw_only=True):
    schema: Literal[1]
    manylinux: Mapping[Level, Highest]
    symbol_versions: Mapping[str, tuple[str, ...]]  # by prefix, that any system has on x86_64
    oldest: str
    platform_libraries: frozenset[str]
    other_libraries: frozenset[str]  # that wheels outside JAX may need, too
    rocm_libraries: Mapping[str, tuple[str, ...]]  # name -> the ABI numbers of its SONAMEs
    other_rocm: Mapping[str, tuple[str, ...]]  # ROCm number -> SONAMEs of other numbers
    rocm_names: tuple[str, ...]  # patterns of the names that ROCm's libraries define
    defined_by: Mapping[str, tuple[str, ...]]  # library -> patterns of names that it alone has
    runpath: Runpath
    runs: RunLimits
    kinds: Mapping[WheelKind, KindPolicy]

    def __post_init__(self) -> None:
        _refuse_unknown(f"unknown value {self.oldest!r}", self.oldest, self.manylinux, "oldest")
        for kind in WheelKind:
            if kind not in self.kinds:
                raise FieldError(f"{kind.value!r} is missing", "kinds", hint="describe every kind")

    @property
    def levels(self) -> list[str]:
        """Return the manylinux levels, from the oldest."""
        return sorted(self.manylinux, key=lambda level: [*map(int, level.split("_"))])

    @property
    def rocm_sonames(self) -> frozenset[str]:
        libraries = self.rocm_libraries.items()
        return frozenset(
            f"{name}.{abi}" if abi else name for name, abis in libraries for abi in abis
        )

    def outside(self, kind: WheelKind | None) -> frozenset[str]:
        """Return SONAMEs of the libraries that wheels of a kind may need from outside."""
        if kind is None:
            return self.platform_libraries | self.other_libraries
        if not kind.needs_rocm:
            return self.platform_libraries
        return self.platform_libraries | self.rocm_sonames

    def runpaths(self, version: Version) -> tuple[tuple[str, ...], ...]:
        """Return RUNPATHs that ROCm wheels of this version may have, the one to set first."""
        base = Version(version.base_version)
        uses = (use.templates for use in self.runpath.use if use.jax.contains(base))
        return tuple(map(self.runpath.expanded, next(uses, ())))

    def required(self, kind: WheelKind, version: Version) -> RequiredMembers:
        base = Version(version.base_version)
        uses = [each for each in self.kinds[kind].required if each.jax.contains(base)]
        members = dict.fromkeys(name for each in uses for name in each.members)
        pythons = next((each.pythons for each in uses), ())
        registers = next((each.registers for each in uses if each.registers), None)
        names: dict[str, tuple[str, ...]] = {}
        for each in (self.kinds[kind].names, *(use.names for use in uses)):
            names |= {module: (*names.get(module, ()), *each[module]) for module in each}
        return RequiredMembers(
            jax=SpecifierSet(),
            members=tuple(members),
            pythons=pythons,
            registers=registers,
            names=names,
        )

    def is_of_rocm(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, each) for each in self.rocm_names)

    def homes(self, name: str, needed: Sequence[str]) -> list[str]:
        """Return the NEEDED libraries of ROCm that may define a name without version."""
        for library, patterns in self.defined_by.items():
            if any(fnmatch.fnmatchcase(name, each) for each in patterns):
                return [each for each in needed if each.startswith(f"{library}.")]
        return [*needed] if self.is_of_rocm(name) else []

    def level(self, platform: str) -> str:
        """Return the level of a tag such as manylinux_2_28_x86_64, "" where it has none."""
        match = re.fullmatch(r"manylinux_([0-9]+_[0-9]+)_\w+", canonical_platform(platform))
        return match[1] if match and match[1] in self.manylinux else ""

    def excess(self, level: str, facts: ElfFacts) -> tuple[str, ...]:
        """Return the file's symbol versions that this level, or every level, does not promise."""
        # the lists of other machines are shorter, and begin later
        platform = self.platform_libraries if facts.machine == "x86_64" else frozenset()
        known = {f"{prefix}_{each}" for prefix, x in self.symbol_versions.items() for each in x}
        never = (
            name
            for library, names in facts.versions.items()
            for name in names
            if name == PRIVATE or (library in platform and name not in known)
        )
        higher = (
            f"{prefix}_{'.'.join(map(str, facts.highest(prefix)))}"
            for prefix, version in asdict(self.manylinux[level]).items()
            if facts.highest(prefix) > version.release
        )
        return *never, *higher

    def best(self, facts: Iterable[ElfFacts]) -> str:
        """Return the oldest level, from `oldest` on, that holds for all files; "" for none."""
        files, levels = tuple(facts), self.levels
        fitting = (
            level
            for level in levels[levels.index(self.oldest) :]
            if not any(self.excess(level, each) for each in files)
        )
        return next(fitting, "")


def _refuse_unknown(problem: str, name: str, valid: Collection[str], *at: str | int) -> None:
    if name not in valid:
        raise FieldError(problem, *at, hint=suggest(name, tuple(valid)))
