"""Finds the Bazel to build with, and says which one it is."""

import os
import re
import shutil
from pathlib import Path
from typing import Final

from rocwheel.base.console import Console, silent
from rocwheel.base.errors import CommandError, HostError
from rocwheel.base.process import Command, GuestPath, Runner
from rocwheel.base.values import Plain, replace
from rocwheel.bazel import releases
from rocwheel.bazel.releases import Downloads

UNKNOWN: Final = "unknown"
NAMES: Final = ("bazel", "bazelisk")
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
DEBIAN: Final = "apt-get install bazel-bootstrap bazel-rules-java bazel-rules-proto bazel-skylib"


class BazelBinary(Plain, frozen=True, kw_only=True):
    """A Bazel that was found: where, which version (or `unknown`), and how."""

    path: GuestPath
    version: str
    origin: str  # "flag", "PATH", "cache" or "download"
    url: str = ""  # where a downloaded one comes from
    sha256: str = ""  # which it must have
    passed_over: tuple[str, ...] = ()  # others that were found, and why they were not taken

    def __str__(self) -> str:
        version = self.version.replace(UNKNOWN, "of unknown version")
        return f"Bazel {version}: {self.path} ({self.origin})"

    @property
    def release(self) -> tuple[int, ...]:
        """The version as numbers to compare; () when unknown."""
        match = re.match(r"\d+(?:\.\d+)*", self.version)
        return tuple(map(int, match[0].split("."))) if match else ()


def locate(
    flag: str | None,
    *,
    wanted: str,
    search_path: str,
    workspace: Path,
    runner: Runner,
    downloads: Downloads | None = None,
    console: Console | None = None,
) -> BazelBinary:
    """Find Bazel: what the flag names, else on the search path, else cached or downloaded.

    `wanted` is what the tree's `.bazelversion` says, "" when it says nothing. A Bazel named by
    flag is used in any version; any other must be the wanted one. Without `console` nothing
    is downloaded: the path is where the download will be. Raises HostError, ConfigError,
    FetchError.
    """
    say = console or silent()
    if flag:
        path = shutil.which(flag, path=search_path)
        if path is None:
            raise HostError(f"{flag}: no such program", hint="name Bazel by its full path")
        version = identity(path, workspace, runner)
        binary = BazelBinary(path=runner.path(_absolute(path)), version=version, origin="flag")
        if wanted not in {"", binary.version}:
            say.warn(f"{binary.path}: is Bazel {binary.version}, this tree asks for {wanted}")
    else:
        taken, others = _search(wanted, search_path, workspace, runner)
        for other in others:
            say.info(f"not used: {other}")
        if taken is None:
            if not (wanted and downloads):
                raise _missing(wanted, others)
            taken = _release(wanted, downloads, runner, console)
        binary = replace(taken, passed_over=others)
    say.info(str(binary))
    return binary


def _search(
    wanted: str, search_path: str, workspace: Path, runner: Runner
) -> tuple[BazelBinary | None, tuple[str, ...]]:
    """Return the wanted Bazel on the search path, and why each earlier one was passed over."""
    others = []
    for path in filter(None, (shutil.which(name, path=search_path) for name in NAMES)):
        try:
            version = identity(path, workspace, runner)
        # a wrapper without the version that `.bazelversion` asks for:
        # https://github.com/bazelbuild/bazelisk#how-does-bazelisk-know-which-bazel-version-to-run
        except HostError as exc:
            others.append(str(exc))
            continue
        if wanted in {"", version}:
            binary = BazelBinary(path=runner.path(_absolute(path)), version=version, origin="PATH")
            return binary, tuple(others)
        others.append(f"{path} is {version}, this tree asks for {wanted}")
    return None, tuple(others)


def _missing(wanted: str, others: tuple[str, ...]) -> HostError:
    if not others:
        return HostError("bazel: no such program", hint=f"{DEBIAN}, or give --bazel-path")
    name = f"Bazel {wanted}" if wanted else "Bazel"
    return HostError(
        f"{name}: found no usable one: {'; '.join(others)}",
        hint=f"install {name} (bazelisk brings it), or insist with --bazel-path",
    )


def _release(
    wanted: str, downloads: Downloads, runner: Runner, console: Console | None
) -> BazelBinary:
    release = downloads.releases.find(wanted, mirror=downloads.mirror)
    is_here = releases.place(release, downloads.folder).is_file()
    return BazelBinary(
        path=runner.path(releases.fetch(release, downloads, console=console)),
        version=wanted,
        origin="cache" if is_here else "download",
        url="" if is_here else release.url,
        sha256=release.sha256,
    )


def identity(path: str, workspace: Path, runner: Runner) -> str:
    """Ask a Bazel for its version; Debian's knows none and says so. Raises HostError.

    It is asked in the workspace, where bazelisk answers with the version it would fetch.
    """
    cwd = workspace if workspace.is_dir() else None  # a dry run may not have it yet
    try:
        said = runner.capture(Command(argv=(path, "--version"), cwd=cwd, timeout=120)).strip()
    except CommandError as exc:
        why = _COLOURS.sub("", exc.detail).strip().partition("\n")[0] or str(exc)
        raise HostError(
            f"{path}: does not run: {why}", hint="name another with --bazel-path"
        ) from exc
    match = re.match(r"bazel (\S+)", said)
    if match is None:
        raise HostError(
            f"{path}: is no Bazel, it says {said!r}", hint="name another with --bazel-path"
        )
    return UNKNOWN if match[1] == "no_version" else match[1]


def _absolute(path: str) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - bazelisk's name is a link that must stay
