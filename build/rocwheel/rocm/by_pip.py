"""ROCm as TheRock's pip packages: the requirement, and an environment that holds them.

The environment lies in the cache like an unpacked tarball, named by the digests of its packages.
"""

import re
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import parse_sdist_filename, parse_wheel_filename
from packaging.version import Version

from rocwheel.base import files
from rocwheel.base.download import without_secrets
from rocwheel.base.errors import CommandError, ConfigError, FetchError, RocmError
from rocwheel.base.host import virtualenv
from rocwheel.base.process import Command, HostRunner
from rocwheel.base.values import Plain, canonical_json
from rocwheel.base.versions import RocmVersion
from rocwheel.records import families
from rocwheel.records.install import DEVICE as EXTRA
from rocwheel.records.manifest import RocmPackage

PREFIX: Final = "pip:"
DEVELOPMENT: Final = "devel"  # the extra with headers and compilers
DEVICE: Final = f"rocm-sdk-{EXTRA}"  # before a gfx target: the package with its code
_PINNED: Final = re.compile(r"==([^,;*]+)\Z")


def digest_of(packages: tuple[RocmPackage, ...]) -> str:
    """Return one SHA-256 for a list of files with theirs."""
    return files.sha256(canonical_json({item.filename: item.sha256 for item in packages}))


def version_of(packages: tuple[RocmPackage, ...]) -> RocmVersion | None:
    """Return the version of the package `rocm`, with its nightly suffix."""
    versions = dict(map(_parsed, packages))
    return RocmVersion(versions["rocm"]) if "rocm" in versions else None


def requirement(version: str | None, devices: tuple[str, ...]) -> str:
    """Return the `pip:` source with everything a build needs of ROCm, for these GPUs.

    Raises ConfigError for a gfx target that no family has.
    """
    families.check_targets([item for item in devices if item != "all"])
    extras = ",".join(("libraries", DEVELOPMENT, *(f"{EXTRA}{item}" for item in devices)))
    return f"{PREFIX}rocm[{extras}]{f'=={version}' if version else ''}"


def checked(text: str) -> Requirement:
    """Parse a requirement; it must bring headers and a compiler. Raises ConfigError."""
    try:
        wanted = Requirement(text)
    except InvalidRequirement as exc:
        raise ConfigError(
            f"{text!r}: not a requirement for pip: {exc}",
            hint="write for example pip:rocm[libraries,devel,device-gfx942]==7.15.0a20260630",
        ) from exc
    if wanted.url:  # it may hold a password, and becomes the name of the ROCm in a manifest
        raise ConfigError(
            "pip:rocm @ URL: an address is not a requirement here",
            hint="name the index: --therock-index-url URL",
        )
    if wanted.name != "rocm" or DEVELOPMENT not in wanted.extras:
        raise ConfigError(
            f"{text}: brings no headers and no compiler",
            hint="a build needs rocm[libraries,devel,device-…]",
        )
    return wanted


def devices(text: str) -> tuple[str, ...]:
    """Return the gfx targets whose code a requirement brings; () for all, or if it names none."""
    named = sorted(e.removeprefix(EXTRA) for e in checked(text).extras if e.startswith(EXTRA))
    return () if "all" in named else tuple(named)


def pinned(text: str) -> str | None:
    """Return the version that a requirement pins; None for an open one. Raises ConfigError."""
    match = _PINNED.match(str(checked(text).specifier))
    return match[1].strip() if match else None


def pin(text: str, version: RocmVersion) -> str:
    """Return a requirement with this version in place of its limits, which must allow it."""
    wanted = checked(text)
    if not wanted.specifier.contains(version.version, prereleases=True):
        raise ConfigError(f"{text}: excludes ROCm {version}", hint="give one version")
    wanted.specifier = SpecifierSet(f"=={version}")
    return str(wanted)


def for_users(packages: tuple[RocmPackage, ...], targets: Collection[str]) -> tuple[str, ...]:
    """Return requirements, by digest, of what users of these GPUs install: `devel` is for builds.

    `rocm` itself, whose extras they are, is an sdist and has no library.
    """
    lines = []
    for item in packages:
        name, version = _parsed(item)
        device = name.removeprefix(DEVICE)
        is_theirs = name != f"rocm-sdk-{DEVELOPMENT}" and (device == name or device in targets)
        if item.filename.endswith(".whl") and is_theirs:
            lines.append(f"{name}=={version} --hash=sha256:{item.sha256}")
    return tuple(lines)


def _parsed(package: RocmPackage) -> tuple[str, Version]:
    is_wheel = package.filename.endswith(".whl")
    try:
        return (parse_wheel_filename if is_wheel else parse_sdist_filename)(package.filename)[:2]
    except ValueError as exc:
        raise ConfigError(str(exc), hint="the manifest names no package of pip's") from exc


class Pip(Plain, frozen=True, kw_only=True):
    """The pip of this process's Python, and what it is asked for."""

    text: str  # the requirement
    index: str  # "" for the user's own settings
    env: Mapping[str, str]
    packages: tuple[RocmPackage, ...] = ()  # the only ones allowed, as a manifest has them

    def download(self, folder: Path) -> tuple[RocmPackage, ...]:
        """Download the packages into a new folder. Raises FetchError."""
        folder.mkdir()
        what: tuple[str, ...] = (self.text,)
        if self.packages:
            lock = folder.with_suffix(".txt")
            lines = (
                "{}=={} --hash=sha256:{}\n".format(*_parsed(item), item.sha256)
                for item in self.packages
            )
            lock.write_text("".join(lines), encoding="utf-8")
            what = ("--no-deps", "--require-hashes", "--requirement", str(lock))
        words = ("download", "--dest", str(folder), *self._index, *what)
        self._run(words, "pip finds no such ROCm")
        return tuple(
            RocmPackage(filename=path.name, sha256=files.sha256(path))
            for path in sorted(folder.iterdir())
        )

    def install(self, packages: Path, environment: Path) -> Path:
        """Install every package of a folder into a new environment; return the root of its ROCm.

        Nothing in that root names the environment's place, so it may be moved. Raises FetchError,
        RocmError.
        """
        runner = HostRunner(virtualenv.plain(self.env))
        runner.run(Command(argv=(sys.executable, "-m", "venv", "--without-pip", str(environment))))
        paths = map(str, sorted(packages.iterdir()))
        words = ("--python", str(environment), "install", "--no-deps")
        self._run((*words, *self._index, *paths), "pip cannot install it")  # an index for sdists
        sdk = str(environment / "bin" / "rocm-sdk")
        try:
            runner.run(Command(argv=(sdk, "init", "--quiet")))
            root = Path(runner.capture(Command(argv=(sdk, "path", "--root"))).strip())
        except CommandError as exc:
            raise RocmError(
                f"{self.text}: rocm-sdk cannot expand its development files",
                hint="check that the index has rocm-sdk-devel of the same version",
                detail=exc.detail,
            ) from exc
        if not root.is_dir() or not root.is_relative_to(environment):
            raise RocmError(
                f"{self.text}: rocm-sdk says its root is {root}, outside of its environment",
                hint="use the packages of TheRock",
            )
        return root

    @property
    def _index(self) -> tuple[str, ...]:
        return ("--index-url", self.index) if self.index else ()

    def _run(self, words: tuple[str, ...], problem: str) -> None:
        try:
            HostRunner(virtualenv.plain(self.env)).run(virtualenv.pip(*words))
        except CommandError as exc:
            lines = [line for line in exc.detail.splitlines() if line.startswith("ERROR:")]
            why = lines[-1].removeprefix("ERROR:").strip() if lines else str(exc)
            where = f" at {without_secrets(self.index)}" if self.index else ""
            raise FetchError(
                f"{self.text}: {problem}{where}: {why}",
                hint="a gate may be given another ROCm: --rocm"
                if self.packages
                else "check --therock-index-url, --rocm-version and --rocm-devices",
                detail=exc.detail,
            ) from exc
