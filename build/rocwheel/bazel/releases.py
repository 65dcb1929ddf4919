"""Bazel releases by SHA-256, and fetching one of them into the cache.

The table is `ci/bazel_binaries.yaml`. A release lies in the cache under its digest, so that a
cached one is the right one; nothing is executed before its bytes were compared.
"""

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from rocwheel.base import files
from rocwheel.base.console import Console, Unit, silent
from rocwheel.base.download import Client, Retry, has_password, save, without_secrets
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Plain, Sha256, Value
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

    def __post_init__(self) -> None:
        """Refuse a template without what differs between releases."""
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
