"""What this machine has: CPythons with headers, programs, compilers."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocwheel.errors import HostError, RocwheelError
from rocwheel.model import CPYTHONS, PythonVersion
from rocwheel.process import Command

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rocwheel.process import Runner

_ASK: Final = """
import json, os, sys, sysconfig
print(json.dumps({
    "version": "%d.%d%s" % (*sys.version_info[:2], "-ft" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""),
    "full": sys.version.split()[0],
    "implementation": sys.implementation.name,
    "executable": os.path.realpath(sys.executable),
    "headers": os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")),
}))
"""  # noqa: E501


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A CPython found on this machine."""

    version: PythonVersion
    full: str  # 3.12.1
    executable: Path
    headers: bool  # whether Python.h is there: without it nothing can be compiled for it


def pythons(environ: Mapping[str, str], *, runner: Runner) -> tuple[Interpreter, ...]:
    """Find the CPythons 3.10-3.14 on PATH and in pyenv, one per version, sorted.

    The first that answers counts; one with headers beats one without. A name that does not run
    (a pyenv shim of a version that is not selected) is passed over.
    """
    found: dict[PythonVersion, Interpreter] = {}
    for candidate in _candidates(environ):
        interpreter = _ask(candidate, runner)
        if interpreter is None:
            continue
        known = found.get(interpreter.version)
        if known is None or (interpreter.headers and not known.headers):
            found[interpreter.version] = interpreter
    return tuple(found[version] for version in sorted(found))


def _candidates(environ: Mapping[str, str]) -> Iterable[Path]:
    versions = [PythonVersion.parse(text) for text in CPYTHONS]
    folders = [Path(part) for part in environ.get("PATH", "").split(":") if part]
    root = environ.get("PYENV_ROOT") or str(Path(environ.get("HOME", "/")) / ".pyenv")
    folders += sorted(Path(root).glob("versions/3.*/bin"))
    names = dict.fromkeys([*(version.executable for version in versions), "python3"])
    for folder in folders:
        for name in names:
            path = folder / name
            if path.is_file():
                yield path


def _ask(executable: Path, runner: Runner) -> Interpreter | None:
    try:
        answer = json.loads(runner.capture(Command(argv=(str(executable), "-c", _ASK), timeout=20)))
    except (RocwheelError, ValueError):
        return None  # not a Python that works: no candidate
    if answer["implementation"] != "cpython" or answer["version"] not in CPYTHONS:
        return None
    return Interpreter(
        version=PythonVersion.parse(answer["version"]),
        full=answer["full"],
        executable=Path(answer["executable"]),
        headers=answer["headers"],
    )


def newest(name: str, environ: Mapping[str, str]) -> Path:
    """The program `name`, or its highest numbered variant on PATH: clang-20 beats clang-9.

    Raises HostError when there is none.
    """
    path = environ.get("PATH", "")
    variants: list[tuple[int, Path]] = []
    for folder in path.split(":"):
        variants.extend(
            (int(match[1]), file)
            for file in Path(folder or ".").glob(f"{name}-*")
            if (match := re.fullmatch(re.escape(name) + r"-(\d+)", file.name))
        )
    plain = shutil.which(name, path=path)
    if plain:
        return Path(plain)
    if not variants:
        raise HostError(
            f"{name}: not found on PATH", hint=f"install {name}, or give its path as an option"
        )
    return max(variants, key=lambda variant: variant[0])[1]


def memory(limit: Path = Path("/sys/fs/cgroup/memory.max")) -> int:
    """Bytes of memory this process may use: the machine's, or what its control group allows."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(whole, int(limit.read_text()))
    except (OSError, ValueError):  # no control groups of the second kind, or `max`
        return whole


@dataclass(frozen=True, kw_only=True)
class CompilerPair:
    """A C compiler, its C++ twin, and their major version."""

    cc: Path
    cxx: Path
    major: int


def compiler(
    name: str, path: Path | None, environ: Mapping[str, str], *, runner: Runner
) -> CompilerPair:
    """Find `clang` or `gcc` (or take the one at `path`) with its C++ twin and ask its version.

    Raises HostError when one of the two is missing or does not say its version.
    """
    cc = path or newest(name, environ)
    twin = {"clang": "clang++", "gcc": "g++"}[name]
    candidates = (cc.with_name(cc.name.replace(name, twin, 1)), cc.with_name(twin))
    cxx = next((item for item in candidates if item != cc and item.is_file()), None)
    if cxx is None:
        raise HostError(
            f"{candidates[0]}: not found, {cc} has no C++ compiler beside it",
            hint="install it, or name another compiler: --compiler-path",
        )
    said = runner.capture(Command(argv=(str(cc), "-dumpversion"), timeout=60)).strip()
    match = re.match(r"(\d+)", said)
    if match is None:
        raise HostError(f"{cc}: said {said!r} instead of its version", hint="name another compiler")
    return CompilerPair(cc=cc, cxx=cxx, major=int(match[1]))
