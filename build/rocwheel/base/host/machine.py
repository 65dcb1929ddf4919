"""What this machine has: CPythons with headers, programs, compilers."""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

from rocwheel.base import files
from rocwheel.base.errors import CommandError, HostError, RocwheelError
from rocwheel.base.process import Command, GuestPath, Runner
from rocwheel.base.values import Plain
from rocwheel.base.versions import CPYTHONS, PythonVersion

# What a CPython is asked about itself, as a program of its own.
ASK: Final = """
import json, os, sys, sysconfig
print(json.dumps({
    "version": "%d.%d%s" % (*sys.version_info[:2], "-ft" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""),
    "full": sys.version.split()[0],
    "implementation": sys.implementation.name,
    "executable": os.path.realpath(sys.executable),
    "headers": os.path.isfile(os.path.join(sysconfig.get_path("include"), "Python.h")),
}))
"""  # noqa: E501
LLVM_LIBRARY: Final = re.compile(r"=> (/\S*/lib(?:clang|LLVM)\S*)")  # as `ldd` prints it


class Programs(Plain, frozen=True, kw_only=True):
    """The programs of the place where builds run: this machine, or a container of an image."""

    runner: Runner
    path: str | None = None  # below which this machine's lie; None: a shell of the place is asked

    def has(self, name: str) -> bool:
        """Return whether a program can be started. Raises CommandError, HostError if unknown."""
        if self.path is not None:
            return shutil.which(name, path=self.path) is not None
        asked = Command(argv=("/bin/sh", "-c", 'command -v "$0"', name), timeout=60)
        return self.runner.run(asked, check=False).returncode == 0

    def digest(self, compilers: Iterable[str]) -> str:
        """Return one SHA-256 of compilers by path, and of what they run and load; "" of none.

        The compilers are asked: clang's driver is a small file beside its libraries, gcc starts
        others, a script may stand before either. Raises CommandError, HostError.
        """
        paths = {path for path in compilers if path.startswith("/") and self.has(path)}
        for compiler in sorted(paths):
            for name in ("clang", "cc1plus", "ld", "ld.gold", "ld.lld"):
                found = self._ask(compiler, f"-print-prog-name={name}").strip()
                if found.startswith("/") and self.has(found):
                    loaded = self._ask("ldd", found) if name == "clang" else ""
                    paths |= {found, *LLVM_LIBRARY.findall(loaded)}
        if self.path is None:
            asked = Command(argv=("sha256sum", *sorted(paths)), timeout=120)
            each = self.runner.capture(asked).split()[::2] if paths else []
        else:
            each = [files.sha256(Path(path)) for path in paths]
        return files.sha256(" ".join(sorted({*each})).encode()) if paths else ""

    def _ask(self, *argv: str) -> str:
        with suppress(CommandError):  # such as `ldd` of a script
            return self.runner.capture(Command(argv=argv, timeout=60))
        return ""


class Interpreter(Plain, frozen=True, kw_only=True):
    """A CPython of the machine where builds run: path, version, headers."""

    version: PythonVersion
    full: str  # 3.12.1
    executable: GuestPath
    headers: bool  # whether Python.h is there: without it nothing can be compiled for it


def pythons(
    environ: Mapping[str, str], *, runner: Runner, only: PythonVersion | None = None
) -> tuple[Interpreter, ...]:
    """Find the CPythons on PATH and in pyenv, one per version, sorted.

    The first that answers counts; one with headers beats one without. A name that does not run
    (a pyenv shim of a version that is not selected) is left out. Each program is started once, and
    none that cannot change the answer: with `only` others than that version may be missing.
    """
    answers: list[Interpreter] = []
    asked = set[tuple[Path, Path]]()
    versions = [only] if only else [PythonVersion.parse(text) for text in CPYTHONS]
    for version, path in _candidates(environ, versions):
        program = path.parent.resolve(), path.resolve()  # a link from another folder is another one
        settled = {item.version for item in answers if item.headers}
        if program not in asked and not {version, only} & settled:
            asked.add(program)
            answers += filter(None, [ask(runner.path(path), runner=runner)])
    return best(answers)


def best(answers: Iterable[Interpreter | None]) -> tuple[Interpreter, ...]:
    """Return the first CPython of each version that has headers, or else the first, sorted."""
    ranked = sorted(filter(None, answers), key=lambda item: not item.headers)
    chosen = {item.version: item for item in reversed(ranked)}
    return tuple(chosen[version] for version in sorted(chosen))


def _candidates(
    environ: Mapping[str, str], versions: list[PythonVersion]
) -> Iterable[tuple[PythonVersion | None, Path]]:
    folders = [Path(part) for part in environ.get("PATH", "").split(":") if part]
    root = environ.get("PYENV_ROOT") or str(Path(environ.get("HOME", "/")) / ".pyenv")
    with suppress(OSError):  # inherited of another user, who keeps it to himself
        own = Path(root).glob("versions/3.*/bin")  # by numbers, so that 3.9.18 is before 3.10.2
        folders += sorted(own, key=lambda path: [*map(int, re.findall(r"\d+", path.parent.name))])
    names = [*((version, version.executable) for version in versions), (None, "python3")]
    for folder in folders:
        for version, name in names:
            path = folder / name
            if os.path.isfile(path):  # noqa: PTH113 - False, too, where we may not look
                yield version, path


def ask(executable: GuestPath, *, runner: Runner) -> Interpreter | None:
    """Ask a Python about itself; None when it does not work or is no known CPython."""
    try:
        return interpreter(runner.capture(Command(argv=(str(executable), "-c", ASK), timeout=20)))
    except RocwheelError:
        return None


def interpreter(printed: str) -> Interpreter | None:
    """Read what a Python printed about itself; None when it is no known CPython."""
    try:
        answer = json.loads(printed)
        if answer["implementation"] != "cpython" or answer["version"] not in CPYTHONS:
            return None
        return Interpreter(
            version=PythonVersion.parse(answer["version"]),
            full=answer["full"],
            executable=GuestPath(PurePosixPath(answer["executable"])),
            headers=answer["headers"],
        )
    except (ValueError, TypeError, KeyError):  # another program of that name
        return None


def newest(name: str, environ: Mapping[str, str]) -> Path:
    """Find `name`, or its highest numbered variant (clang-20 beats clang-9). Raises HostError."""
    path = environ.get("PATH", "")
    if plain := shutil.which(name, path=path):
        return Path(plain)
    variants = [
        file
        for folder in path.split(":")
        for file in Path(folder or ".").glob(f"{name}-*")
        if re.fullmatch(re.escape(name) + r"-(\d+)", file.name)
    ]
    if not variants:
        raise HostError(
            f"{name}: not found on PATH", hint=f"install {name}, or give its path as an option"
        )
    return preferred(name, variants, str)


_T = TypeVar("_T")


def preferred(name: str, candidates: Sequence[_T], path: Callable[[_T], str]) -> _T:
    """Choose the program `name` itself, else the variant with the highest number."""

    def rank(candidate: _T) -> tuple[bool, int]:
        base = path(candidate).rpartition("/")[2]
        number = base.removeprefix(f"{name}-")
        return base == name, int(number) if number.isdigit() else 0

    return max(candidates, key=rank)


class CompilerPair(Plain, frozen=True, kw_only=True):
    cc: GuestPath
    cxx: GuestPath
    major: int


def clang(path: Path | None, environ: Mapping[str, str], *, runner: Runner) -> CompilerPair:
    """Find clang, or take `path`, with its C++ twin and its version. Raises HostError."""
    cc = path or newest("clang", environ)
    if not cc.is_file():
        raise HostError(f"{cc}: no such program", hint="name clang itself: --compiler-path")
    if "clang" not in cc.name:
        raise HostError(
            f"{cc}: --compiler clang needs clang, by its name",
            hint="name it with clang++ beside it, or choose another --compiler",
        )
    candidates = [cc.with_name(cc.name.replace("clang", "clang++", 1)), cc.with_name("clang++")]
    cxx = next((item for item in candidates if item.is_file()), None)
    if cxx is None:
        raise HostError(
            f"{candidates[0]}: not found, {cc} has no C++ compiler beside it",
            hint="install it, or name another compiler: --compiler-path",
        )
    introduced = runner.capture(Command(argv=(str(cc), "--version"), timeout=60))
    if "Free Software Foundation" in introduced:
        raise HostError(
            f"{cc}: is not clang: it calls itself {introduced.splitlines()[0]!r}",
            hint="name another compiler: --compiler-path",
        )
    version = runner.capture(Command(argv=(str(cc), "-dumpversion"), timeout=60)).strip()
    match = re.match(r"(\d+)", version)
    if match is None:
        raise HostError(
            f"{cc}: printed {version!r} instead of its version", hint="name another compiler"
        )
    return CompilerPair(cc=runner.path(cc), cxx=runner.path(cxx), major=int(match[1]))
