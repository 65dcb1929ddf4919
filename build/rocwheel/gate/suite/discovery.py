"""The test files of a suite: found, cut into shards, and laid out so that only they are imported.

JAX's own tests lie beside JAX's own sources, which an import would take instead of the installed
wheels; so they are copied into a folder of their own, without the package.
"""

from __future__ import annotations

import ast
import fnmatch
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from rocwheel.base.console import count
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Plain, replace
from rocwheel.gate.suite.suites import SuiteSource

# Called while a file is imported, these decide how many devices the backend of the process has;
# once it runs they skip the file instead (jax/_src/test_util.py, request_cpu_devices).
CONFIGURES: Final = re.compile(
    rb"^[ \t]*(?:\w+\.)*(?:request_cpu_devices|set_host_platform_device_count)\(", re.MULTILINE
)


class Shard(Plain, frozen=True, kw_only=True):
    """One of `count` parts of a suite, `number` from 1."""

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        match = re.fullmatch(r"([1-9][0-9]*)/([1-9][0-9]*)", text)
        if not match or int(match[1]) > int(match[2]):
            raise ConfigError(f"{text!r}: not a shard", hint="write 1/4 to 4/4")
        return cls(number=int(match[1]), count=int(match[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.count}" if self.count > 1 else ""


class SuiteFiles(Plain, frozen=True, kw_only=True):
    root: Path  # pytest's root directory
    files: tuple[str, ...]  # of this shard, relative to the root
    suite_files: tuple[str, ...]
    sizes: Mapping[str, int]
    alone: frozenset[str] = frozenset()  # files that need a process of their own
    modules: Path | None = None  # folder of modules that the installed wheels lack
    variables: Mapping[str, str] = {}  # that JAX's own job sets

    @property
    def arguments(self) -> tuple[str, ...]:
        """The configuration file pytest must use, and no other."""
        files = (self.root / name for name in ("pytest.ini", "pyproject.toml"))
        return ("-c", str(next(filter(Path.is_file, files), "/dev/null")))


def find(source: SuiteSource, top: Path, shard: Shard) -> SuiteFiles:
    """Find the files below `top` (our suite's folder, or a JAX checkout). Raises ConfigError."""
    if not top.is_dir():
        raise ConfigError(f"{top}: no such folder", hint="the suite's tests should be there")
    matched: set[str] = set()
    for pattern in source.paths:
        met = {str(path.relative_to(top)) for path in top.glob(pattern) if path.is_file()}
        if not met:
            raise ConfigError(
                f"{top}/{pattern}: matches no file", hint="correct `paths` in the suite's file"
            )
        matched |= met
    excluded: set[str] = set()
    for pattern in source.exclude:
        met = {file for file in matched if fnmatch.fnmatchcase(file, pattern)}
        if not met:
            raise ConfigError(
                f"{top}: `exclude` {pattern}: matches no file",
                hint="correct it in the suite's file",
            )
        excluded |= met
    files = sorted(matched - excluded)
    sizes = {file: (top / file).stat().st_size for file in files}
    if shard.count > len(files):
        raise ConfigError(
            f"{top}: {count(len(files), 'test file')}: --shard {shard} would have none",
            hint=f"cut the suite into {len(files)} shards at most",
        )
    mine = part(sizes, shard)
    own = (file for file in mine if CONFIGURES.search((top / file).read_bytes()))
    return SuiteFiles(
        root=top, files=mine, suite_files=tuple(files), sizes=sizes, alone=frozenset(own)
    )


def part(sizes: Mapping[str, int], shard: Shard) -> tuple[str, ...]:
    """Return the files of one shard: the largest first, each to the smallest shard."""
    loads = [0] * shard.count
    parts: list[list[str]] = [[] for _ in range(shard.count)]
    for file in sorted(sizes, key=lambda file: (-sizes[file], file)):
        lightest = loads.index(min(loads))
        loads[lightest] += sizes[file] + 1
        parts[lightest].append(file)
    return tuple(sorted(parts[shard.number - 1]))


def lay_out(tests: SuiteFiles, source: SuiteSource, target: Path) -> SuiteFiles:
    """Copy tests and what they need out of a JAX checkout into `target`.

    Modules that the wheel lacks get a folder of their own, which an import asks last: everything
    else comes from the installed wheels.
    """
    root, modules = target / "tests", target / "modules"
    wanted = {*tests.suite_files}
    for pattern in source.support:
        base = pattern.removesuffix("/**")
        if base != pattern and (tests.root / base).is_dir():
            shutil.copytree(tests.root / base, root / base, dirs_exist_ok=True, symlinks=True)
        else:
            wanted.add(pattern)
    for file in wanted:
        _copy(tests.root / file, root / file)
    # `**` at the end of a pattern finds folders alone before Python 3.13
    patterns = (f"{pattern}/*" if pattern.endswith("**") else pattern for pattern in source.modules)
    extra = {path for pattern in patterns for path in tests.root.glob(pattern) if path.is_file()}
    for path in extra:
        _copy(path, modules / path.relative_to(tests.root))
    return replace(tests, root=root, modules=modules if extra else None)


def _copy(path: Path, target: Path) -> None:
    if path.is_file() and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)


def tests_of(file: str, text: str) -> Iterator[str]:
    """Yield node ids of the tests that a file defines, without those that it generates."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)

    def tests(body: Iterable[ast.stmt], owner: str) -> Iterator[str]:
        for node in body:
            if isinstance(node, ast.ClassDef):
                yield from tests(node.body, f"{owner}::{node.name}")
            elif isinstance(node, functions) and node.name.startswith("test"):
                yield f"{owner}::{node.name}"

    # what Python raises for text that is no program, or one that is nested too deep for it
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        yield from tests(ast.parse(text).body, file)
