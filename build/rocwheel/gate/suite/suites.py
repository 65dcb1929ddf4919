"""Suites as data: `ci/suites/<name>.yaml`, what a suite runs and what it demands.

Everything is checked when the file is read: unknown keys, deadlines that do not nest, a
requirement without an exact version are ConfigErrors with file, line and key.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from packaging.version import InvalidVersion, Version

from rocwheel.base import files, yaml_file
from rocwheel.base.errors import ConfigError
from rocwheel.base.home import SUITES, Home
from rocwheel.base.values import Count, Value, canonical_json, replace
from rocwheel.base.versions import suggest
from rocwheel.base.yaml_file import FieldError
from rocwheel.records.verdict import Demand, Demands, KnownSuite

if TYPE_CHECKING:
    from rocwheel.bazel import KnownFailure
    from rocwheel.gate.suite.skips import Skip

FOLDER: Final = SUITES
LIBRARIES: Final = "rocm_libraries.yaml"
DEVICE_ERRORS: Final = "device_errors.yaml"
OURS: Final = ("**/test_*.py",)


class SuiteSource(Value, frozen=True, kw_only=True):
    """Where tests are: a folder of ours, or paths in the JAX checkout of the wheels."""

    folder: str = ""  # relative to our checkout; "" for JAX's own tests
    paths: tuple[str, ...] = OURS  # globs below the folder, or in the JAX checkout
    exclude: tuple[str, ...] = ()  # globs of files left out
    support: tuple[str, ...] = ()  # further files of the JAX checkout that tests read
    modules: tuple[str, ...] = ()  # globs of modules of JAX that its wheel lacks and tests import
    variables: tuple[str, ...] = ()  # its scripts whose variables stand for those of `environment`

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


Numbers = Mapping[str, Count]  # of a demand


class Suite(Demand, frozen=True, kw_only=True):
    """One suite of `ci/suites`: where its tests are, what they need, what they must show."""

    name: str = msgspec.field(name="suite")
    about: str
    source: SuiteSource
    gpus: tuple[Count, ...]  # devices per process: the first number the machine has; (0,) for none
    requirements: tuple[str, ...]
    deadlines: Deadlines
    rocm: Literal["root", "pip"] = "root"  # how users have it: a root that is linked, or by pip
    with_jax: bool = True  # whether JAX is installed and asked for its backend
    select: str = ""  # a pytest marker expression
    environment: Mapping[str, str] = {}
    retries: Count = 20  # failing tests that are tried once more
    trace: bool = False  # whether ROCm libraries write traces, which is slow
    jax: Mapping[str, Numbers] = {}  # what is demanded from a release on
    partitions: bool = False  # whether those of one board count as several GPUs
    process_memory: Count = 0  # GiB of a GPU a process takes; 0: a GPU has one process

    def __post_init__(self) -> None:
        pinned = dict(_pinned(line, at) for at, line in enumerate(self.requirements))
        if int(pinned.get("pytest", "0").partition(".")[0]) < 9:  # noqa: PLR2004  # hides failures
            hint = "write pytest==9.1.1, or a later one"  # 8 reports one outcome of subtests alone
            raise FieldError("pytest 9 or later is missing", "requirements", hint=hint)
        if not self.source.folder and self.source.paths == OURS:
            hint = "write `source: {folder: …}`, or `paths` of JAX's own tests"
            raise FieldError("a source has a `folder` or `paths`", "source", hint=hint)
        if not self.gpus or list(self.gpus) != sorted(set(self.gpus), reverse=True):
            hint = "write [1], [8, 4, 2], or [0] for none"
            raise FieldError("not a falling list of numbers", "gpus", hint=hint)
        if 0 in self.gpus and self.gpus != (0,):
            hint = "a suite that needs no GPU has `gpus: [0]`"
            raise FieldError("0 stands alone", "gpus", hint=hint)
        if not 0 < self.deadlines.test < self.deadlines.shard <= self.deadlines.suite:
            hint = "test < shard <= suite, in seconds"
            raise FieldError("deadlines do not nest", "deadlines", hint=hint)
        _refuse_numbers({"must_run": self.must_run})
        for version, numbers in self.jax.items():
            _refuse_numbers(numbers, "jax", version)

    @property
    def demands(self) -> Demands:
        demand = Demand(**{name: getattr(self, name) for name in Demand.__struct_fields__})
        by_jax = {version: replace(demand, **numbers) for version, numbers in self.jax.items()}
        return Demands(expected=demand, by_jax=by_jax)

    @property
    def needs_gpu(self) -> bool:
        return self.gpus != (0,)


def _refuse_numbers(numbers: Numbers, *at: str) -> None:
    """Refuse numbers of no JAX, of nothing that is demanded, or that prove nothing."""
    try:
        Version(at[-1] if at else "0")
    except InvalidVersion as exc:
        hint = 'write "0.10.2": {must_run: …}'
        raise FieldError(f"{at[-1]!r} is not a version of JAX", *at, hint=hint) from exc
    for name in numbers.keys() - set(Demand.__struct_fields__):
        raise FieldError("unknown key", *at, name, hint=suggest(name, Demand.__struct_fields__))
    if not numbers.get("must_run", 1):
        hint = "a suite without tests proves nothing"
        raise FieldError("must be 1 at least", *at, "must_run", hint=hint)


class Library(Value, frozen=True, kw_only=True):
    """How a ROCm library can be seen at work."""

    name: str = ""  # its key in the file
    mapped: tuple[str, ...] = ()  # prefixes of its shared objects
    trace: Mapping[str, str] = {}  # environment; {file} is the trace
    printed: str = ""  # what it prints when it is called, with the environment of `trace`
    note: str = ""  # why it cannot be seen, where it cannot

    def __post_init__(self) -> None:
        if not (self.mapped or self.trace or self.note):
            hint = "add mapped, trace or a note why not"
            raise FieldError("nothing says how it is seen", hint=hint)


def load(ci: Path, name: str) -> Suite:
    """Read one suite of a `ci` folder. Raises ConfigError that names the nearest one."""
    names = [path.stem for path in sorted((ci / FOLDER).glob("*.yaml"))]
    if name not in names:
        hint = "repeat --suite for each" if "," in name else suggest(name, names)
        raise ConfigError(f"{name!r}: no such suite in {ci / FOLDER}", hint=hint)
    return _suite(ci / FOLDER / f"{name}.yaml")


def load_all(ci: Path) -> tuple[Suite, ...]:
    return tuple(_suite(path) for path in sorted((ci / FOLDER).glob("*.yaml")))


def known(home: Home, suite: Suite, entries: Iterable[Skip]) -> KnownSuite:
    """Return a suite of ours as a verdict must name it to count."""
    from rocwheel.base import git

    listed = [entry.identity() for entry in entries if suite.name in entry.suites]
    folder = home.tests / suite.source.folder
    names = (  # of our tests; what Python leaves behind is none of them
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    )
    pinned = dict(_pinned(line, at) for at, line in enumerate(suite.requirements))
    return KnownSuite(
        definition=files.sha256((home.ci / FOLDER / f"{suite.name}.yaml").read_bytes()),
        skips=files.sha256(canonical_json(sorted(listed))),
        tests=git.digest(folder, names) if suite.source.folder else "",
        selection=suite.select,
        pytest=pinned["pytest"],
        demands=suite.demands,
        rocm=suite.rocm,
    )


def load_known(home: Home, *, today: date) -> dict[str, KnownSuite]:
    from rocwheel.gate.suite import skips

    entries = skips.load(home.ci, today=today)
    return {suite.name: known(home, suite, entries) for suite in load_all(home.ci)}


def device_errors(ci: Path) -> tuple[KnownFailure, ...]:
    """Read how errors of devices are recognised, and whose they are. Raises ConfigError."""
    from rocwheel.bazel import load_failures  # the same form

    return load_failures(ci / DEVICE_ERRORS)


class _Libraries(Value, frozen=True, kw_only=True):
    libraries: Mapping[str, Library]


def libraries(ci: Path) -> tuple[Library, ...]:
    table = yaml_file.read(ci / LIBRARIES, _Libraries).libraries
    return tuple(replace(library, name=name) for name, library in table.items())


def _suite(path: Path) -> Suite:
    document = yaml_file.load(path)
    suite = document.to(Suite)
    if suite.name != path.stem or not re.fullmatch(r"[a-z][a-z0-9_]*", suite.name):
        problem = f"{suite.name!r} is not the name of the file"
        raise document.error(problem, "suite", hint=f"write {path.stem}")
    return suite


def _pinned(requirement: str, number: int) -> tuple[str, str]:
    """Return name and version of a requirement. Raises FieldError where it has no exact one."""
    if plain := re.fullmatch(r"([A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*)==(\d+(?:\.\d+)*)", requirement):
        return plain[1], plain[2]
    from packaging.requirements import InvalidRequirement, Requirement  # slow, and seldom needed

    try:
        asked = Requirement(requirement)
        if [item.operator for item in asked.specifier] == ["=="]:
            return asked.name, next(iter(asked.specifier)).version
        problem = f"{requirement!r} has no exact version"
    except InvalidRequirement as exc:
        problem = str(exc).partition("\n")[0]
    raise FieldError(problem, "requirements", number, hint="write name==version")
