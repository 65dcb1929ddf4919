"""ROCm as TheRock's pip packages: an environment in the cache, expanded by `rocm-sdk init`.

    pip/requests/<key>.json      which packages an index and a pinned requirement came to
    pip/environments/<digest>/   the environment with exactly these packages, and `packages.json`
    pip/locks/<digest>.lock      shared by those who use it; its time is that of the last use

An environment is named by the digests of what is installed in it, made under a lock and complete
once `packages.json` is there.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import parse_sdist_filename, parse_wheel_filename

from rocwheel import files
from rocwheel.console import Console
from rocwheel.download import without_secrets
from rocwheel.errors import CommandError, ConfigError, FetchError, RocmError
from rocwheel.host import virtualenv
from rocwheel.manifest import RocmPackage
from rocwheel.process import Command, HostRunner
from rocwheel.rocm import rocm_root
from rocwheel.values import NonEmpty, Value, canonical_json

PREFIX: Final = "pip:"
DEVELOPMENT: Final = "devel"  # the extra with headers and compilers
_PINNED: Final = re.compile(r"==([^,;*]+)\Z")
_PIP: Final = ("-m", "pip", "--disable-pip-version-check", "--no-input")


class Packages(Value, frozen=True, kw_only=True):
    """What an environment was filled with, and where its ROCm lies."""

    files: tuple[RocmPackage, ...]
    root: str  # relative to the environment
    links: tuple[str, ...]
    schema: Literal[1] = 1

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the packages, which names them all."""
        return digest_of(self.files)


class _Asked(Value, frozen=True, kw_only=True):
    digest: NonEmpty


@dataclass(frozen=True, kw_only=True)
class PipRocm:
    """A ROCm that pip installed."""

    root: Path
    packages: Packages
    cached: bool
    lease: files.Lock  # while it is held, the cache keeps the environment


def digest_of(packages: tuple[RocmPackage, ...]) -> str:
    """Return one SHA-256 for a list of files with theirs."""
    return files.sha256(canonical_json({item.filename: item.sha256 for item in packages}))


def requirement(version: str | None, devices: tuple[str, ...]) -> str:
    """Return the source that installs what a build needs of ROCm, for these GPUs."""
    extras = ",".join(("libraries", DEVELOPMENT, *(f"device-{item}" for item in devices)))
    return f"{PREFIX}rocm[{extras}]{f'=={version}' if version else ''}"


def checked(text: str) -> str | None:
    """Return the version that a requirement pins; None for an open one. Raises ConfigError."""
    try:
        wanted = Requirement(text)
    except InvalidRequirement as exc:
        raise ConfigError(
            f"{text!r}: not a requirement for pip: {exc}",
            hint="write for example pip:rocm[libraries,devel,device-gfx942]==7.15.0a20260630",
        ) from exc
    if wanted.url:  # it may hold a password, and becomes the name of the ROCm in a manifest
        raise ConfigError(
            "pip:rocm @ URL: an address is no requirement here",
            hint="name the index: --therock-index-url URL",
        )
    if wanted.name != "rocm" or DEVELOPMENT not in wanted.extras:
        raise ConfigError(
            f"{text}: brings no headers and no compiler",
            hint="a build needs rocm[libraries,devel,device-…]",
        )
    pinned = _PINNED.match(str(wanted.specifier))
    return pinned[1].strip() if pinned else None


def _locked(package: RocmPackage) -> str:
    """Return the line of a requirements file that allows these bytes only."""
    is_wheel = package.filename.endswith(".whl")
    try:
        name, version = (parse_wheel_filename if is_wheel else parse_sdist_filename)(
            package.filename
        )[:2]
    except ValueError as exc:
        raise ConfigError(str(exc), hint="the manifest names no package of pip's") from exc
    return f"{name}=={version} --hash=sha256:{package.sha256}\n"


class Installer:
    """Installs one requirement from one index, once; or the very `packages` of a manifest."""

    def __init__(
        self,
        text: str,
        *,
        index: str,
        cache: Path,
        env: Mapping[str, str],
        console: Console,
        packages: tuple[RocmPackage, ...] = (),
    ) -> None:
        self._text = text
        self._index = index
        self._packages = packages
        self._folder = cache / "rocm" / "pip"
        self._runner = HostRunner(virtualenv.plain(env))
        self._console = console

    def run(self) -> PipRocm:
        """Return the ROCm, from the cache where it is there. Raises FetchError, RocmError."""
        if self._packages:
            return self._held(digest_of(self._packages)) or self._bring()
        key = files.sha256(f"{self._index} {self._text} {sys.version}".encode())[:32]
        asked = self._folder / "requests" / f"{key}.json"
        asked.parent.mkdir(parents=True, exist_ok=True)
        with files.locked(asked.with_suffix(".lock")):
            if checked(self._text) and asked.is_file():
                digest = _Asked.from_bytes(asked.read_bytes(), name=asked.name).digest
                ready = self._held(digest)
                if ready:
                    return ready
            ready = self._bring()
            files.write(asked, _Asked(digest=ready.packages.digest).to_bytes())
            return ready

    def _held(self, digest: str) -> PipRocm | None:
        """Take hold of an environment and mark it used now; None when it is not there."""
        lease = files.locked(self._folder / "locks" / f"{digest}.lock", shared=True)
        os.utime(lease.descriptor)
        place = self._folder / "environments" / digest
        record = place / "packages.json"
        if not record.is_file():
            lease.close()
            return None
        packages = Packages.from_bytes(record.read_bytes(), name=str(record))
        return PipRocm(root=place / packages.root, packages=packages, cached=True, lease=lease)

    def _bring(self) -> PipRocm:
        """Download the packages, and install them unless they are here."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix=".download-") as scratch:
            packages = self._download(Path(scratch))
            digest = digest_of(packages)
            with files.locked(self._folder / "locks" / f"{digest}.making.lock"):
                return self._held(digest) or self._make(digest, packages, Path(scratch))

    def _download(self, scratch: Path) -> tuple[RocmPackage, ...]:
        self._console.info(f"   pip download {self._text}")
        index = ("--index-url", self._index) if self._index else ()
        what: tuple[str, ...] = (self._text,)
        if self._packages:
            lock = scratch / "packages.txt"
            lock.write_text("".join(map(_locked, self._packages)), encoding="utf-8")
            what = ("--no-deps", "--require-hashes", "--requirement", str(lock))
        words = ("download", "--quiet", "--dest", str(scratch), *index, *what)
        self._pip(Path(sys.executable), words, "pip finds no such ROCm")
        return tuple(
            RocmPackage(filename=path.name, sha256=files.sha256(path))
            for path in sorted(scratch.iterdir())
            if path.suffix != ".txt"
        )

    def _make(self, digest: str, packages: tuple[RocmPackage, ...], scratch: Path) -> PipRocm:
        lease = files.locked(self._folder / "locks" / f"{digest}.lock", shared=True)
        place = self._folder / "environments" / digest
        files.remove(place)  # a killed run's
        environment = place / "env"
        self._runner.run(Command(argv=(sys.executable, "-m", "venv", str(environment))))
        paths = tuple(str(scratch / item.filename) for item in packages)
        index = ("--index-url", self._index) if self._index else ()  # for what builds an sdist
        words = ("install", "--quiet", "--no-deps", *index, *paths)
        self._pip(environment / "bin" / "python", words, "pip cannot install it")
        sdk = str(environment / "bin" / "rocm-sdk")
        try:
            self._runner.run(Command(argv=(sdk, "init", "--quiet")))
            said = self._runner.capture(Command(argv=(sdk, "path", "--root")))
        except CommandError as exc:
            raise RocmError(
                f"{self._text}: rocm-sdk cannot expand its development files",
                hint="check that the index has rocm-sdk-devel of the same version",
                detail=exc.detail,
            ) from exc
        root = Path(said.strip())
        if not root.is_dir() or not root.is_relative_to(environment):
            raise RocmError(
                f"{self._text}: rocm-sdk says its root is {root}, outside of its environment",
                hint="use the packages of TheRock",
            )
        made = Packages(
            files=packages,
            root=str(root.relative_to(place)),
            links=rocm_root.complete(root, name=self._text),
        )
        files.write(place / "packages.json", made.to_bytes())
        return PipRocm(root=root, packages=made, cached=False, lease=lease)

    def _pip(self, python: Path, words: tuple[str, ...], problem: str) -> None:
        try:
            self._runner.run(Command(argv=(str(python), *_PIP, *words)))
        except CommandError as exc:
            lines = [line for line in exc.detail.splitlines() if line.startswith("ERROR:")]
            why = lines[-1].removeprefix("ERROR:").strip() if lines else str(exc)
            where = f" at {without_secrets(self._index)}" if self._index else ""
            raise FetchError(
                f"{self._text}: {problem}{where}: {why}",
                hint="a gate may be given another ROCm: --rocm"
                if self._packages
                else "check --therock-index-url, --rocm-version and --device",
                detail=exc.detail,
            ) from exc
