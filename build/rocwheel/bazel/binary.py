"""Finds the Bazel to build with, says which one it is, or fetches a release by SHA-256.

The table of releases is `ci/bazel_binaries.yaml`. A release lies in the cache under its digest, so
that a cached one is the right one; nothing is executed before its bytes were compared.
"""

import os
import platform
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from rocwheel.base import files, yaml_file
from rocwheel.base.console import COLOURS, Console, Unit, silent
from rocwheel.base.download import Client, Retry, has_password, save, without_secrets
from rocwheel.base.errors import CommandError, ConfigError, HostError
from rocwheel.base.process import Command, GuestPath, Runner
from rocwheel.base.values import Plain, Sha256, Value, replace
from rocwheel.base.versions import suggest
from rocwheel.base.yaml_file import FieldError

ELSEWHERE: Final = "check --bazel-mirror and HTTPS_PROXY, or name a Bazel with --bazel-path"
PATIENT: Final = Retry()
_MACHINES: Final = {"x86_64": "x86_64", "aarch64": "arm64"}  # as Bazel spells them


class Release(Plain, frozen=True, kw_only=True):
    """One Bazel release for this machine, identified by its SHA-256."""

    version: str
    url: str
    sha256: str
    verified: bool  # the digest was compared with the release itself


class Digest(Value, frozen=True, kw_only=True):
    """What identifies a release for one platform."""

    sha256: Sha256
    verified: bool


class Releases(Value, frozen=True, kw_only=True):
    """All Bazel releases of `ci/bazel_binaries.yaml`: by version, then by platform."""

    schema: Literal[1] = 1
    url: str  # template: {version} and {platform}
    releases: Mapping[str, Mapping[str, Digest]]

    @classmethod
    def of(cls, ci: Path) -> "Releases":
        """Read the table. Raises ConfigError that says where and what."""
        return yaml_file.read(ci / "bazel_binaries.yaml", cls)

    def __post_init__(self) -> None:
        for placeholder in ("{version}", "{platform}"):
            if placeholder not in self.url:
                raise FieldError(f"does not contain {placeholder}", "url", hint="write it in")

    def find(self, version: str, *, mirror: str = "") -> Release:
        """Return the release for this machine. Raises ConfigError when the table does not have it.

        `mirror` stands in for the folder that holds the versions' folders.
        """
        here = host_platform()
        known = [name for name, platforms in self.releases.items() if here in platforms]
        if version not in known:
            raise ConfigError(
                f"Bazel {version} for {here}: not in ci/bazel_binaries.yaml",
                hint=f"add it, or give --bazel-path; {suggest(version, known)}",
            )
        if mirror and (not mirror.startswith(("https://", "http://")) or has_password(mirror)):
            raise ConfigError(
                f"--bazel-mirror {without_secrets(mirror)}: not http, or with credentials",
                hint="write https://host/path; it is recorded and shown, so without a password",
            )
        digest, url = self.releases[version][here], self.url.format(version=version, platform=here)
        if mirror:
            url = f"{mirror.rstrip('/')}/{version}/{url.rpartition('/')[2]}"
        return Release(version=version, url=url, sha256=digest.sha256, verified=digest.verified)


class Downloads(Plain, frozen=True, kw_only=True):
    """Whether and how Bazel may be downloaded."""

    releases: Releases
    folder: Path
    mirror: str = ""
    only_verified: bool = False
    env: Mapping[str, str] = {}  # proxies, CA bundle
    retry: Retry = PATIENT


def host_platform() -> str:
    """Return this machine as Bazel's release names say it: `linux-x86_64`."""
    machine = platform.machine()
    return f"{platform.system().lower()}-{_MACHINES.get(machine, machine)}"


def place(release: Release, folder: Path) -> Path:
    """Return where the release lies in the cache, or will lie: below its digest."""
    return folder / release.sha256 / f"bazel-{release.version}"


def fetch(release: Release, downloads: Downloads, *, console: Console | None) -> Path:
    """Download a release unless it is there; compare its bytes; make it executable.

    Warns of a digest that was not verified. Without `console` nothing is downloaded. Raises
    ConfigError where only verified ones may be used, FetchError when it cannot be had or is not
    what it should be.
    """
    if not release.verified:
        text = f"Bazel {release.version}: its SHA-256 was never compared with the release"
        if downloads.only_verified:
            hint = "compare it as ci/bazel_binaries.yaml says, or drop --locked"
            raise ConfigError(text, hint=hint)
        (console or silent()).warn(text)
    path = place(release, downloads.folder)
    if console is None:
        return path
    with files.locked(path.parent.with_suffix(".lock")):
        if not path.is_file():
            with (
                Client(
                    downloads.env,
                    retry=downloads.retry,
                    note=console.info,
                    hint=ELSEWHERE,
                    unreachable=ELSEWHERE,
                ) as client,
                console.progress(f"Bazel {release.version}", unit=Unit.BYTES) as bar,
            ):
                save(client, release.url, path, sha256=release.sha256, progress=bar.update)
        path.chmod(0o755)
    return path


UNKNOWN: Final = "unknown"
NAMES: Final = ("bazel", "bazelisk")
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
    is_here = place(release, downloads.folder).is_file()
    return BazelBinary(
        path=runner.path(fetch(release, downloads, console=console)),
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
        printed = runner.capture(Command(argv=(path, "--version"), cwd=cwd, timeout=120)).strip()
    except CommandError as exc:
        why = COLOURS.sub("", exc.detail).strip().partition("\n")[0] or str(exc)
        raise HostError(
            f"{path}: does not run: {why}", hint="name another with --bazel-path"
        ) from exc
    match = re.match(r"bazel (\S+)", printed)
    if match is None:
        raise HostError(
            f"{path}: is not Bazel: it says {printed!r}", hint="name another with --bazel-path"
        )
    return UNKNOWN if match[1] == "no_version" else match[1]


def _absolute(path: str) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - bazelisk's name is a link that must stay
