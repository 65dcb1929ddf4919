"""Virtual environments filled from a lock file: rocwheel's own, and the one its tests run in.

Standard library only: `build/ci_build` bootstraps itself with it. An environment lies in the
user's cache folder under a name made from the lock file and the interpreter, so that a changed
lock or another Python gets a new one and two checkouts with the same lock share one. A lock makes
two first runs at once safe; a marker file is written once an environment is complete.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocwheel.base import files
from rocwheel.base.errors import CommandError, HostError
from rocwheel.base.host import debian
from rocwheel.base.process import Command, HostRunner, base_env

if TYPE_CHECKING:
    from rocwheel.base.versions import PythonVersion

PLATFORMS: Final = ("manylinux_2_27_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")


def python(lock: Path, *, environ: Mapping[str, str], with_uv: bool = False) -> Path:
    """Return an interpreter that has every package of `lock`, a pip requirements file.

    `with_uv` has the lock's own uv fill it, in a fifth of the time where it reaches PyPI; pip,
    which knows the indexes that pip is configured for, does it otherwise. Raises HostError or
    CommandError, with what to do, when the environment cannot be made.
    """
    home = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = files.sha256(lock.read_bytes() + f"{sys.version}{sys.executable}".encode())
    target = home / "rocwheel" / "environments" / key[:16]
    marker = target / ".complete"
    executable = target / "bin" / "python"
    try:
        if marker.exists() and executable.exists():
            return executable
        with files.locked(target.parent / f"{key[:16]}.lock"):
            if not marker.exists():
                _make(target, lock, HostRunner(plain(environ)), with_uv=with_uv)
                marker.touch()
    except OSError as exc:
        raise HostError(
            f"{exc.filename or target}: {exc.strerror}",
            hint="free some space, or set XDG_CACHE_HOME to a folder that can be written",
        ) from exc
    return executable


# pip's own settings that put packages elsewhere than into the environment that is being filled:
# https://pip.pypa.io/en/stable/topics/configuration/#environment-variables
_ELSEWHERE = frozenset({"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON"})


def plain(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a pip that installs into its own environment."""
    return {name: text for name, text in base_env(environ).items() if name not in _ELSEWHERE}


def pip(*words: str, python: str = sys.executable) -> Command:
    """Return the pip of a Python, ours by default, as a command that never prompts."""
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input")
    return Command(argv=(python, "-m", "pip", *quiet, *words))


def pip_download(folder: Path, python: PythonVersion, *packages: str) -> Command:
    """Return the command that downloads wheels for a CPython that need not be here."""
    return pip(
        "download", "--no-deps", "--only-binary=:all:", "--dest", str(folder),
        "--implementation", "cp", "--python-version", f"{python.major}.{python.minor}",
        *("--abi", python.abi, "--abi", "abi3", "--abi", "none"),
        *(word for name in PLATFORMS for word in ("--platform", name)), *packages,
    )  # fmt: skip


def _make(target: Path, lock: Path, runner: HostRunner, *, with_uv: bool) -> None:
    shutil.rmtree(target, ignore_errors=True)
    if not importlib.util.find_spec("ensurepip"):
        debian.ensure(["python3-venv"], runner=runner, root=os.geteuid() == 0, say=_say)
    _say(f"first run: preparing a Python environment in {target}")
    runner.run(Command(argv=(sys.executable, "-m", "venv", str(target))))
    executable = str(target / "bin" / "python")
    arguments = ("install", "--require-hashes", "--only-binary=:all:", "-r")
    try:
        if with_uv and (own := re.search(r"^uv==(.+\n)(\s.+\n)+", lock.read_text(), re.MULTILINE)):
            alone = target / "uv.lock"
            alone.write_text(own[0])
            runner.run(pip(*arguments, str(alone), python=executable))
            fill = (executable, "-m", "uv", "pip", *arguments, str(lock), "--python", executable)
            if runner.run(Command(argv=fill), check=False).returncode == 0:
                return
        runner.run(pip(*arguments, str(lock), python=executable))
    except CommandError as exc:
        raise HostError(
            "the Python environment could not be filled",
            hint="check that pip reaches its package index, or run this in an environment that "
            f"has {lock}",
            detail=exc.detail,
        ) from exc


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
