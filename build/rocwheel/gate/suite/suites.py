"""Suites as data: `ci/suites/<name>.yaml`, what a suite runs and what it demands.

Everything is checked when the file is read: unknown keys, deadlines that do not nest, a
requirement without an exact version are ConfigErrors with file, line and key.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from rocwheel import files, yaml_file
from rocwheel.console import duration
from rocwheel.errors import ConfigError
from rocwheel.gate.suite import skips
from rocwheel.gate.suite.skips import Skip
from rocwheel.home import Home
from rocwheel.model import suggest
from rocwheel.source import git
from rocwheel.values import Count, NonEmpty, Value, canonical_json, replace
from rocwheel.verdict import Demand, KnownSuite, demand_for
from rocwheel.yaml_file import FieldError

FOLDER: Final = skips.SUITES
LIBRARIES: Final = "rocm_libraries.yaml"
DEVICE_ERRORS: Final = "device_errors.yaml"


@dataclass(frozen=True, kw_only=True)
class SuiteSource:
    """Where tests are: a folder of ours, or paths in the JAX checkout of the wheels."""

    folder: str  # relative to our checkout; "" for JAX's own tests
    paths: tuple[str, ...]  # globs below the folder, or in the JAX checkout
    exclude: tuple[str, ...] = ()  # globs of files left out
    support: tuple[str, ...] = ()  # further files of the JAX checkout that tests read
    modules: tuple[str, ...] = ()  # globs of modules of JAX that its wheel lacks and tests import

    def has(self, file: str) -> bool:
        """Return whether a file of JAX's tests is one of the suite's."""
        listed = any(fnmatch.fnmatchcase(file, pattern) for pattern in self.paths)
        left_out = any(fnmatch.fnmatchcase(file, pattern) for pattern in self.exclude)
        return not self.folder and listed and not left_out


class Deadlines(Value, frozen=True, kw_only=True):
    """The deadlines of a suite, in seconds: of one test, of a shard, of all of it."""

    test: int
    shard: int
    suite: int


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One suite of `ci/suites`: where its tests are, what they need, what they must show."""

    name: str
    about: str
    source: SuiteSource
    gpus: tuple[int, ...]  # devices per process: the first number the machine has; (0,) for none
    with_jax: bool  # whether JAX is installed and asked for its backend
    select: str  # a pytest marker expression
    environment: Mapping[str, str]
    requirements: tuple[str, ...]
    deadlines: Deadlines
    demand: Demand
    retries: int  # failing tests that are tried once more
    trace: bool  # whether ROCm libraries write traces, which is slow
    by_jax: Mapping[str, Demand] = field(default_factory=dict)  # from a release on
    partitions: bool = False  # whether those of one board count as several GPUs
    process_memory: int = 0  # GiB of a GPU a process takes; 0: a GPU has one process

    def demand_for(self, jax: str) -> Demand:
        """Return what is demanded of its results for one JAX."""
        return demand_for(self.demand, self.by_jax, jax)

    @property
    def needs_gpu(self) -> bool:
        return self.gpus != (0,)


class Library(Value, frozen=True, kw_only=True):
    """How a ROCm library can be seen at work."""

    name: str = ""  # its key in the file
    mapped: tuple[str, ...] = ()  # prefixes of its shared objects
    trace: Mapping[str, str] = {}  # environment; {file} is the trace
    printed: str = ""  # what it prints when it is called, with the environment of `trace`
    note: str = ""  # why it cannot be seen, where it cannot

    def __post_init__(self) -> None:
        """Refuse a library that cannot be seen for no reason."""
        if not (self.mapped or self.trace or self.note):
            hint = "add mapped, trace or a note why not"
            raise FieldError("nothing says how it is seen", hint=hint)


def load(ci: Path, name: str) -> Suite:
    """Read one suite of a `ci` folder. Raises ConfigError that names the nearest one."""
    names = [path.stem for path in sorted((ci / FOLDER).glob("*.yaml"))]
    if name not in names:
        raise ConfigError(
            f"{name!r}: no such suite in {ci / FOLDER}", hint=suggest(name, tuple(names))
        )
    return _suite(ci / FOLDER / f"{name}.yaml")


def load_all(ci: Path) -> tuple[Suite, ...]:
    """Read every suite of a `ci` folder. Raises ConfigError."""
    paths = sorted((ci / FOLDER).glob("*.yaml"))
    return tuple(_suite(path) for path in paths)


HEADER: Final = ("suite", "GPUs", "tests", "deadline", "must run", "families", "about")


def row(suite: Suite, required_by: Sequence[str], families: int) -> tuple[str, ...]:
    """Return a suite in a table below `HEADER`."""
    return (
        suite.name,
        " or ".join(map(str, suite.gpus)) if suite.needs_gpu else "none",
        suite.source.folder or "JAX's own",
        duration(suite.deadlines.suite),
        str(suite.demand.must_run),
        f"{len(required_by)} of {families}",
        suite.about,
    )


def document(suite: Suite, required_by: Sequence[str]) -> dict[str, Any]:
    """Return the same for a program."""
    return {
        "suite": suite.name,
        "about": suite.about,
        "gpus": list(suite.gpus),
        "tests": suite.source.folder or "jax",
        "deadlines": msgspec.structs.asdict(suite.deadlines),
        **msgspec.structs.asdict(suite.demand),
        "required_by": list(required_by),
    }


def known(home: Home, suite: Suite, entries: Iterable[Skip]) -> KnownSuite:
    """Return a suite of ours as a verdict must name it to count."""
    listed = [entry.identity() for entry in entries if suite.name in entry.suites]
    pytest = next(item for item in map(Requirement, suite.requirements) if item.name == "pytest")
    return KnownSuite(
        definition=files.sha256((home.ci / FOLDER / f"{suite.name}.yaml").read_bytes()),
        skips=files.sha256(canonical_json(sorted(listed))),
        tests=_tests(home.tests / suite.source.folder) if suite.source.folder else "",
        selection=suite.select,
        pytest=next(iter(pytest.specifier)).version,
        demand=suite.demand,
        by_jax=suite.by_jax,
    )


def load_known(home: Home, *, today: date) -> dict[str, KnownSuite]:
    """Return every suite of ours as promotion knows it. Raises ConfigError."""
    entries = skips.load(home.ci, today=today)
    return {suite.name: known(home, suite, entries) for suite in load_all(home.ci)}


def _tests(folder: Path) -> str:
    """SHA-256 of a folder of tests; what Python leaves behind is none of them."""
    names = (
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    return git.digest(folder, names)


class _DeviceErrors(Value, frozen=True, kw_only=True):
    errors: tuple[NonEmpty, ...]


def device_errors(ci: Path) -> tuple[str, ...]:
    """Read the texts of errors that end the use of a device. Raises ConfigError."""
    return yaml_file.read(ci / DEVICE_ERRORS, _DeviceErrors).errors


class _Libraries(Value, frozen=True, kw_only=True):
    libraries: Mapping[str, Library]


def libraries(ci: Path) -> tuple[Library, ...]:
    """Read how ROCm libraries are seen. Raises ConfigError."""
    table = yaml_file.read(ci / LIBRARIES, _Libraries).libraries
    return tuple(replace(library, name=name) for name, library in table.items())


class _JaxTests(Value, frozen=True, kw_only=True):
    paths: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    support: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


class _Source(Value, frozen=True, kw_only=True):
    folder: str = ""
    jax: _JaxTests | None = None

    def source(self) -> SuiteSource:
        """Make the source."""
        if self.jax:
            return SuiteSource(folder="", **msgspec.structs.asdict(self.jax))
        return SuiteSource(folder=self.folder, paths=("**/test_*.py",))


class _File(Demand, frozen=True, kw_only=True):
    """A file of `ci/suites`; what it demands stands among the rest."""

    suite: str
    about: str
    source: _Source
    gpus: tuple[Count, ...]
    requirements: tuple[str, ...]
    deadlines: Deadlines
    select: str = ""
    environment: Mapping[str, str] = {}
    retries: Count = 20
    with_jax: bool = True
    trace: bool = False
    partitions: bool = False
    process_memory: Count = 0
    jax: Mapping[str, Mapping[str, Count]] = {}

    def __post_init__(self) -> None:
        """Refuse a suite that proves nothing, or contradicts itself."""
        for number, requirement in enumerate(self.requirements):
            _refuse_open(requirement, number)
        if bool(self.source.folder) == bool(self.source.jax):
            hint = "write `source: {folder: …}`"
            raise FieldError("a source is one of `folder` and `jax`", "source", hint=hint)
        if not self.gpus or list(self.gpus) != sorted(set(self.gpus), reverse=True):
            hint = "write [1], [8, 4, 2], or [0] for none"
            raise FieldError("not a falling list of numbers", "gpus", hint=hint)
        if 0 in self.gpus and self.gpus != (0,):
            hint = "a suite that needs no GPU has `gpus: [0]`"
            raise FieldError("0 stands alone", "gpus", hint=hint)
        if not 0 < self.deadlines.test < self.deadlines.shard <= self.deadlines.suite:
            hint = "test < shard <= suite, in seconds"
            raise FieldError("deadlines do not nest", "deadlines", hint=hint)
        self._refuse_nothing(self.must_run)
        for version, demand in self.jax.items():
            if not _is_version(version):
                hint = 'write "0.10.2": {must_run: …}'
                raise FieldError(f"{version!r} is no version of JAX", "jax", version, hint=hint)
            for name in demand.keys() - set(Demand.__struct_fields__):
                hint = suggest(name, Demand.__struct_fields__)
                raise FieldError("unknown key", "jax", version, name, hint=hint)
            self._refuse_nothing(demand.get("must_run", 1), "jax", version)

    def _refuse_nothing(self, must_run: int, *at: str) -> None:
        if not must_run:
            hint = "a suite without tests proves nothing"
            raise FieldError("must be 1 at least", *at, "must_run", hint=hint)


def _suite(path: Path) -> Suite:
    document = yaml_file.load(path)
    file = document.to(_File)
    if file.suite != path.stem or not re.fullmatch(r"[a-z][a-z0-9_]*", file.suite):
        problem = f"{file.suite!r} is not the name of the file"
        raise document.error(problem, "suite", hint=f"write {path.stem}")
    demand = Demand(**{name: getattr(file, name) for name in Demand.__struct_fields__})
    return Suite(
        name=file.suite,
        about=file.about,
        source=file.source.source(),
        gpus=file.gpus,
        with_jax=file.with_jax,
        select=file.select,
        environment=file.environment,
        requirements=file.requirements,
        deadlines=file.deadlines,
        demand=demand,
        by_jax={version: replace(demand, **measured) for version, measured in file.jax.items()},
        retries=file.retries,
        trace=file.trace,
        partitions=file.partitions,
        process_memory=file.process_memory,
    )


def _refuse_open(requirement: str, number: int) -> None:
    hint = "write name==version"
    try:
        pins = [item.operator for item in Requirement(requirement).specifier]
    except InvalidRequirement as exc:
        problem = str(exc).partition("\n")[0]
        raise FieldError(problem, "requirements", number, hint=hint) from exc
    if pins != ["=="]:
        problem = f"{requirement!r} has no exact version"
        raise FieldError(problem, "requirements", number, hint=hint)


def _is_version(text: str) -> bool:
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True
