"""Suites as data: `ci/suites/<name>.yaml`, what a suite runs and what it demands.

Everything is checked when the file is read: unknown keys, deadlines that do not nest, a
requirement without an exact version are ConfigErrors with file, line and key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Final

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from rocwheel import files, located_yaml
from rocwheel.console import duration
from rocwheel.errors import ConfigError
from rocwheel.gate.suite import skips
from rocwheel.gate.suite.skips import Skip
from rocwheel.home import Home
from rocwheel.located_yaml import Field
from rocwheel.model import suggest
from rocwheel.source import git
from rocwheel.values import canonical_json, replace
from rocwheel.verdict import Demand, KnownSuite, demand_for

FOLDER: Final = skips.SUITES
LIBRARIES: Final = "rocm_libraries.yaml"
NUMBERS: Final = tuple(name for name in Demand.__struct_fields__ if name != "must_call")
DEVICE_ERRORS: Final = "device_errors.yaml"


@dataclass(frozen=True, kw_only=True)
class SuiteSource:
    """Where tests are: a folder of ours, or paths in the JAX checkout of the wheels."""

    folder: str  # relative to our checkout; "" for JAX's own tests
    paths: tuple[str, ...]  # globs below the folder, or in the JAX checkout
    exclude: tuple[str, ...] = ()  # globs of files left out
    support: tuple[str, ...] = ()  # further files of the JAX checkout that tests read
    modules: tuple[str, ...] = ()  # globs of modules of JAX that its wheel lacks and tests import


@dataclass(frozen=True, kw_only=True)
class Deadlines:
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
    process_memory: int = 0  # GiB of a GPU a process takes; 0: a GPU has one process

    def demand_for(self, jax: str) -> Demand:
        """What is demanded of its results for one JAX."""
        return demand_for(self.demand, self.by_jax, jax)

    @property
    def needs_gpu(self) -> bool:
        return self.gpus != (0,)


@dataclass(frozen=True, kw_only=True)
class Library:
    """How a ROCm library can be seen at work."""

    name: str
    mapped: tuple[str, ...] = ()  # prefixes of its shared objects
    trace: Mapping[str, str] = field(default_factory=dict)  # environment; {file} is the trace
    printed: str = ""  # what it prints when it is called, with the environment of `trace`
    note: str = ""  # why it cannot be seen, where it cannot


def load(ci: Path, name: str) -> Suite:
    """Read one suite of a `ci` folder. Raises ConfigError that names the nearest one."""
    names = [path.stem for path in sorted((ci / FOLDER).glob("*.yaml"))]
    if name not in names:
        raise ConfigError(
            f"{name!r}: no such suite in {ci / FOLDER}", hint=suggest(name, tuple(names))
        )
    return _suite(located_yaml.load(ci / FOLDER / f"{name}.yaml"), name)


def load_all(ci: Path) -> tuple[Suite, ...]:
    """Read every suite of a `ci` folder. Raises ConfigError."""
    paths = sorted((ci / FOLDER).glob("*.yaml"))
    return tuple(_suite(located_yaml.load(path), path.stem) for path in paths)


HEADER: Final = ("suite", "GPUs", "tests", "deadline", "must run", "families", "about")


def row(suite: Suite, required_by: Sequence[str], families: int) -> tuple[str, ...]:
    """A suite in a table below `HEADER`."""
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
    """The same for a program."""
    return {
        "suite": suite.name,
        "about": suite.about,
        "gpus": list(suite.gpus),
        "tests": suite.source.folder or "jax",
        "deadlines": vars(suite.deadlines),
        **msgspec.structs.asdict(suite.demand),
        "required_by": list(required_by),
    }


def known(home: Home, suite: Suite, entries: Iterable[Skip]) -> KnownSuite:
    """A suite of ours as a verdict must name it to count."""
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
    """Every suite of ours as promotion knows it. Raises ConfigError."""
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


def device_errors(ci: Path) -> tuple[str, ...]:
    """Read the texts of errors that end the use of a device. Raises ConfigError."""
    fields = located_yaml.load(ci / DEVICE_ERRORS).record(required=("errors",))
    return fields["errors"].strings()


def libraries(ci: Path) -> tuple[Library, ...]:
    """Read how ROCm libraries are seen. Raises ConfigError."""
    table = located_yaml.load(ci / LIBRARIES).record(required=("libraries",))["libraries"]
    return tuple(_library(name, entry) for name, entry in table.mapping().items())


def _suite(document: Field, name: str) -> Suite:
    fields = document.record(
        required=("suite", "about", "source", "gpus", "requirements", "deadlines", "must_run"),
        optional=(
            "select", "environment", "may_skip", "may_xfail", "may_deselect", "may_lose",
            "flaky_budget", "crash_budget", "timeout_budget", "poison_budget", "retries",
            "with_jax", "trace", "process_memory", "jax", "must_call",
        ),
    )  # fmt: skip
    said = fields["suite"].string()
    if said != name or not re.fullmatch(r"[a-z][a-z0-9_]*", said):
        fields["suite"].fail(f"{said!r} is not the name of the file", hint=f"write {name}")

    def number(key: str, default: int) -> int:
        return _natural(fields[key]) if key in fields else default

    called = fields["must_call"].strings() if "must_call" in fields else ()
    demand = _demand(fields, Demand(must_run=1, must_call=called))
    environment = fields["environment"].mapping() if "environment" in fields else {}
    return Suite(
        name=name,
        about=fields["about"].string(),
        source=_source(fields["source"]),
        gpus=_gpus(fields["gpus"]),
        with_jax=fields["with_jax"].boolean() if "with_jax" in fields else True,
        select=fields["select"].string() if "select" in fields else "",
        environment={key: value.string() for key, value in environment.items()},
        requirements=tuple(_pinned(item) for item in fields["requirements"].sequence()),
        deadlines=_deadlines(fields["deadlines"]),
        demand=demand,
        by_jax=_by_jax(fields["jax"], demand) if "jax" in fields else {},
        retries=number("retries", 20),
        trace=fields["trace"].boolean() if "trace" in fields else False,
        process_memory=number("process_memory", 0),
    )


def _demand(fields: Mapping[str, Field], base: Demand) -> Demand:
    """What a suite demands; what is not said is as in `base`."""
    numbers = [name for name in NUMBERS if name in fields]
    said = {name: _natural(fields[name]) for name in numbers}
    found = replace(base, **said)
    if not found.must_run:
        fields["must_run"].fail("must be 1 at least", hint="a suite without tests proves nothing")
    return found


def _by_jax(entry: Field, base: Demand) -> dict[str, Demand]:
    """What was measured per release of JAX; each holds from that release on."""
    found = {}
    for name, item in entry.mapping().items():
        try:
            Version(name)
        except InvalidVersion:
            item.fail(f"{name!r} is no version of JAX", hint='write "0.10.2": {must_run: …}')
        found[name] = _demand(item.record(required=(), optional=NUMBERS), base)
    return found


def _source(entry: Field) -> SuiteSource:
    kinds = entry.mapping()
    if set(kinds) == {"folder"}:
        return SuiteSource(folder=kinds["folder"].string(), paths=("**/test_*.py",))
    if set(kinds) != {"jax"}:
        entry.fail("a source is one of `folder` and `jax`", hint="write `source: {folder: …}`")
    fields = kinds["jax"].record(required=("paths",), optional=("exclude", "support", "modules"))
    return SuiteSource(
        folder="",
        paths=fields["paths"].strings(),
        exclude=fields["exclude"].strings() if "exclude" in fields else (),
        support=fields["support"].strings() if "support" in fields else (),
        modules=fields["modules"].strings() if "modules" in fields else (),
    )


def _gpus(entry: Field) -> tuple[int, ...]:
    numbers = tuple(_natural(item) for item in entry.sequence())
    if not numbers or list(numbers) != sorted(set(numbers), reverse=True):
        entry.fail("not a falling list of numbers", hint="write [1], [8, 4, 2], or [0] for none")
    if 0 in numbers and numbers != (0,):
        entry.fail("0 stands alone", hint="a suite that needs no GPU has `gpus: [0]`")
    return numbers


def _deadlines(entry: Field) -> Deadlines:
    fields = entry.record(required=("test", "shard", "suite"))
    found = Deadlines(**{name: _natural(item) for name, item in fields.items()})
    if not 0 < found.test < found.shard <= found.suite:
        entry.fail("deadlines do not nest", hint="test < shard <= suite, in seconds")
    return found


def _pinned(entry: Field) -> str:
    text = entry.string()
    try:
        pins = [item.operator for item in Requirement(text).specifier]
    except InvalidRequirement as exc:
        entry.fail(str(exc).partition("\n")[0], hint="write name==version")
    if pins != ["=="]:
        entry.fail(f"{text!r} has no exact version", hint="write name==version")
    return text


def _natural(entry: Field) -> int:
    value = entry.integer()
    if value < 0:
        entry.fail("must not be negative")
    return value


def _library(name: str, entry: Field) -> Library:
    fields = entry.record(required=(), optional=("mapped", "trace", "printed", "note"))
    trace = fields["trace"].mapping() if "trace" in fields else {}
    if not fields:
        entry.fail("nothing says how it is seen", hint="add mapped, trace or a note why not")
    return Library(
        name=name,
        mapped=fields["mapped"].strings() if "mapped" in fields else (),
        trace={key: value.string() for key, value in trace.items()},
        printed=fields["printed"].string() if "printed" in fields else "",
        note=fields["note"].string() if "note" in fields else "",
    )
