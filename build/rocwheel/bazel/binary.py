"""Finds the Bazel to build with, and says which one it is."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final

from rocwheel.errors import CommandError, HostError
from rocwheel.process import Command

if TYPE_CHECKING:
    from rocwheel.process import Runner

UNKNOWN: Final = "unknown"
NAMES: Final = ("bazel", "bazelisk")
DEBIAN: Final = "apt-get install bazel-bootstrap bazel-rules-java bazel-rules-proto bazel-skylib"


@dataclass(frozen=True, kw_only=True)
class BazelBinary:
    """A Bazel that was found: where, which version (or `unknown`), and how."""

    path: PurePath
    version: str
    origin: str  # "flag", "PATH" or "cache"

    @property
    def release(self) -> tuple[int, ...]:
        """The version as numbers to compare; () when unknown."""
        match = re.match(r"\d+(?:\.\d+)*", self.version)
        return tuple(map(int, match[0].split("."))) if match else ()


def locate(
    flag: str | None, *, wanted: str, search_path: str, workspace: Path, runner: Runner
) -> BazelBinary:
    """Find Bazel: what the flag names, else on the search path.

    `wanted` is what the tree's `.bazelversion` says, "" when it says nothing. A Bazel named by
    flag is used whatever its version; one found must be the wanted one. Raises HostError.
    """
    if flag:
        path = shutil.which(flag, path=search_path)
        if path is None:
            raise HostError(f"{flag}: no such program", hint="name Bazel by its full path")
        return BazelBinary(
            path=_absolute(path), version=identity(path, workspace, runner), origin="flag"
        )
    seen = []
    for name in NAMES:
        path = shutil.which(name, path=search_path)
        if path is None:
            continue
        version = identity(path, workspace, runner)
        if wanted in {"", version}:
            return BazelBinary(path=_absolute(path), version=version, origin="PATH")
        seen.append(f"{path} is {version}")
    if seen:
        raise HostError(
            f"Bazel {wanted}: {', '.join(seen)}",
            hint=f"install Bazel {wanted} (bazelisk brings it), or insist with --bazel",
        )
    raise HostError("bazel: no such program", hint=f"{DEBIAN}, or give --bazel")


def identity(path: str, workspace: Path, runner: Runner) -> str:
    """Ask a Bazel for its version; Debian's knows none and says so. Raises HostError.

    It is asked in the workspace, where bazelisk answers with the version it would fetch.
    """
    cwd = workspace if workspace.is_dir() else None  # a dry run may not have it yet
    try:
        said = runner.capture(Command(argv=(path, "--version"), cwd=cwd, timeout=120))
    except CommandError as exc:
        raise HostError(f"{path}: does not run: {exc}", hint="name another with --bazel") from exc
    match = re.match(r"bazel (\S+)", said.strip())
    if match is None:
        raise HostError(
            f"{path}: is no Bazel, it says {said.strip()!r}", hint="name another with --bazel"
        )
    return UNKNOWN if match[1] == "no_version" else match[1]


def _absolute(path: str) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - bazelisk's name is a link that must stay
