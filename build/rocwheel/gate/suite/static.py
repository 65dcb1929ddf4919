"""What a test file imports, reads and does when it is imported, found without importing it.

`check` holds that against a suite: modules that the wheel of JAX lacks must be among the suite's
`modules`, folders beside the tests among its `support`, and no pattern may be there for nothing.
"""

from __future__ import annotations

import ast
import fnmatch
import re
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from rocwheel import files as disk
from rocwheel.errors import ConfigError, SourceError
from rocwheel.gate.suite import suites
from rocwheel.gate.suite.suites import Suite, SuiteSource
from rocwheel.values import Value, replace

# Called while a file is imported, these decide how many devices the backend of the process has;
# once it runs they skip the file instead (jax/_src/test_util.py, request_cpu_devices).
CONFIGURES: Final = re.compile(
    rb"^[ \t]*(?:\w+\.)*(?:request_cpu_devices|set_host_platform_device_count)\(", re.MULTILINE
)
RECORDED: Final = "ci/jax_tests.json"
MOST: Final = 16 << 20  # bytes of a test file
# What Python raises for text that is no program, or one that is nested too deep for it.
UNPARSED: Final = (SyntaxError, ValueError, RecursionError, MemoryError)
SLACK: Final = 0.05  # of a suite's tests: figures are round, and hold for several releases
BESIDE: Final = re.compile(r"(docs|examples|benchmarks|images|build)(/.*)?")  # of JAX's checkout


class FileNeeds(Value, frozen=True, kw_only=True):
    """What one test file needs that is not beside it."""

    lacks: tuple[str, ...] = ()  # modules that the checkout has and the wheel lacks, as paths
    reads: tuple[str, ...] = ()  # folders of the checkout that it names beside its own path
    alone: bool = False  # whether it configures the backend


class Listings(Value, frozen=True, kw_only=True):
    """The test files of JAX releases, as they were listed: `ci/jax_tests.json`.

    `benchmarks/jax_tests.py --collect --record` adds how many tests a suite has, by importing them.
    """

    jax: Mapping[
        str, Mapping[str, FileNeeds]
    ]  # version -> file below the checkout -> what it needs
    collected: Mapping[str, Mapping[str, int]]  # version -> suite -> tests it has


def configures(data: bytes) -> bool:
    """Return whether importing a file configures the backend of its process."""
    return bool(CONFIGURES.search(data))


def tests_of(file: str, text: str) -> tuple[str, ...]:
    """Node ids of the tests that a file defines, without those that it generates."""
    try:
        tree = ast.parse(text)
    except UNPARSED:
        return ()
    return tuple(f"{file}::{name}" for name in _tests(tree.body, ""))


def listing(data: bytes, wheel: Collection[str], checkout: Collection[str]) -> FileNeeds:
    """List what a file needs; `wheel` and `checkout` are paths of modules. Raises `UNPARSED`."""
    tree = ast.parse(data)
    imports: dict[str, None] = {}
    strings: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports |= dict.fromkeys(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            imports |= dict.fromkeys(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and "__file__" in ast.unparse(node):
            strings |= dict.fromkeys(
                part.value
                for part in ast.walk(node)
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            )
    found = (BESIDE.fullmatch(text) for text in strings)
    reads = dict.fromkeys(match[1] for match in found if match)
    paths = (path for name in imports for path in _paths(name))
    lacks = dict.fromkeys(p for p in paths if p in checkout and p not in wheel)
    return FileNeeds(lacks=tuple(lacks), reads=tuple(reads), alone=configures(data))


def files_of(source: SuiteSource, files: Iterable[str]) -> tuple[str, ...]:
    """Return the test files of a JAX that a suite takes."""
    chosen = _matching(files, source.paths)
    left_out = set(_matching(chosen, source.exclude))
    return tuple(file for file in chosen if file not in left_out)


def check(source: SuiteSource, files: Mapping[str, FileNeeds]) -> Iterator[str]:
    """Say what a suite's file misses for one JAX, and what it names for nothing."""
    chosen = _matching(files, source.paths)
    for pattern in source.paths:
        if not _matching(files, (pattern,)):
            yield f"paths: {pattern}: meets no file"
    for pattern in source.exclude:
        if not _matching(chosen, (pattern,)):
            yield f"exclude: {pattern}: meets no file"
    for file in files_of(source, files):
        yield from _needs(source, file, files[file])


def _needs(source: SuiteSource, file: str, listed: FileNeeds) -> Iterator[str]:
    for path in listed.lacks:
        if not _matching((path,), source.modules):
            yield f"{file} imports {path}, which the wheel lacks: add it to `modules`"
    for folder in listed.reads:
        if not any(pattern.startswith(f"{folder}/") for pattern in source.support):
            yield f"{file} reads {folder}/: add it to `support`"


def check_all(
    listed: Iterable[Suite],
    listings: Mapping[str, Mapping[str, FileNeeds]],
    collected: Mapping[str, Mapping[str, int]],
) -> tuple[str, ...]:
    """Return what suites of JAX's own tests miss for several JAX releases, one line each."""
    own = [suite for suite in listed if not suite.source.folder]
    missed = (
        (suite.name, version, problem)
        for suite in own
        for version, files in listings.items()
        for problem in check(suite.source, files)
    )
    demanded = (
        (suite.name, version, problem)
        for suite in own
        for version, numbers in collected.items()
        if suite.name in numbers
        for problem in check_demand(suite, version, numbers[suite.name])
    )
    return tuple(
        f"ci/suites/{name}.yaml, JAX {version}: {problem}"
        for name, version, problem in (*missed, *demanded)
    )


def check_demand(suite: Suite, version: str, number: int) -> Iterator[str]:
    """Say where a suite's demands do not fit the number of tests it has for one JAX.

    A test passes, is skipped or fails as expected. Where more must pass than `must_run` for the
    rest to be allowed, or more may skip than is left, the figure means nothing.
    """
    demand = suite.demands.of(version)
    least = number - demand.may_skip - demand.may_xfail
    if demand.must_run < least:
        yield (
            f"of {number} tests {demand.may_skip} may skip and {demand.may_xfail} fail: "
            f"must_run {demand.must_run} means nothing below {least}"
        )
    most = number - demand.must_run
    if demand.may_skip > most + number * SLACK:
        yield (
            f"of {number} tests {demand.must_run} must run: "
            f"may_skip {demand.may_skip} means nothing above {most}"
        )


def compare(
    folder: Path, version: str, mine: Mapping[str, FileNeeds] | None, *, record: bool
) -> Mapping[str, Mapping[str, FileNeeds]]:
    """Compare our checkout's suites with what is recorded, or with one release read just now.

    Returns what was compared. Raises ConfigError that lists what the suites miss.
    """
    path = folder / RECORDED
    known = Listings.from_bytes(path.read_bytes(), name=RECORDED)
    found = {name: files for name, files in known.jax.items() if version in ("", name)}
    if mine is not None:
        found = {version: mine}
    if not found:
        raise ConfigError(
            f"JAX {version}: not in {RECORDED}", hint="add --jax-tests and --jax-wheel"
        )
    if record:
        disk.write(path, replace(known, jax={**known.jax, **found}).to_bytes())
    ours = suites.load_all(folder / "ci")
    numbers = {name: known.collected.get(name, {}) for name in found}
    problems = check_all(ours, found, numbers)
    if problems:
        hint = "mend ci/suites, then try again"
        raise ConfigError(problems[0], hint=hint, detail="\n".join(problems))
    return found


def read(checkout: Path, wheel: Path) -> dict[str, FileNeeds]:
    """List the test files of a checkout of JAX beside its wheel. Raises SourceError."""
    hint = "name a checkout of JAX and the wheel made of it"
    if not wheel.is_file():
        raise SourceError(f"{wheel}: no such file", hint=hint)
    try:
        with zipfile.ZipFile(wheel) as archive:
            installed = frozenset(archive.namelist())
    except (OSError, zipfile.BadZipFile) as exc:
        raise SourceError(f"{wheel}: {exc}", hint=hint) from exc
    modules = frozenset(str(path.relative_to(checkout)) for path in checkout.glob("jax/**/*.py"))
    found = {}
    for path in sorted(checkout.glob("tests/**/*_test.py")):
        try:
            needs = listing(disk.read(path, most=MOST), installed, modules)
        except OSError as exc:
            raise SourceError(f"{path}: {exc.strerror}", hint=hint) from exc
        except UNPARSED as exc:
            said = str(exc) or type(exc).__name__
            raise SourceError(f"{path}: not read as Python: {said}", hint=hint) from exc
        found[str(path.relative_to(checkout))] = needs
    return found


def _matching(names: Iterable[str], patterns: Sequence[str]) -> tuple[str, ...]:
    return tuple(n for n in names if any(fnmatch.fnmatchcase(n, p) for p in patterns))


def _paths(module: str) -> Iterator[str]:
    """Yield files that importing a module may load: its own and its packages'."""
    parts = module.split(".")
    for number in range(1, len(parts) + 1):
        base = "/".join(parts[:number])
        yield f"{base}.py"
        yield f"{base}/__init__.py"


def _tests(body: Iterable[ast.stmt], owner: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name.startswith("test"):
                yield f"{owner}{node.name}"
        elif isinstance(node, ast.ClassDef):
            yield from _tests(node.body, f"{owner}{node.name}::")
