"""What `--therock-path` names: a URL, a tarball or a directory; decided before any fetching."""

import enum
import re
import sys
import tarfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from amdgpu_family_matrix import Family
from rocwheel.base import files
from rocwheel.base.download import without_secrets
from rocwheel.base.errors import ConfigError, HostError, RocmError, named
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import RocmVersion, is_sha256
from rocwheel.records import families
from rocwheel.records.manifest import RocmPackage, RocmSource
from rocwheel.rocm import by_pip, rocm_root, therock
from rocwheel.rocm.tarball import Compression
from rocwheel.rocm.tree_cache import Cache


class Origin(enum.Enum):
    """Kinds of ROCm sources."""

    URL = "url"
    TARBALL = "tarball"
    DIRECTORY = "directory"
    PIP = "pip"


class RocmPlan(Plain, frozen=True, kw_only=True):
    """A ROCm to fetch, and what is known of it without reading it."""

    origin: Origin
    source: str  # URL, absolute path, or requirement for pip
    name: str  # base name of the tarball or directory
    cache: Path
    sha256: str | None = None  # what the tarball must have
    asked: RocmVersion | None = None
    named: RocmVersion | None = None  # by the tarball's name
    family: Family | None = None  # by the tarball's name
    cached: Path | None = None  # tree that is there already, as far as is known offline
    index: str = ""  # of pip; "" for the user's own settings
    packages: tuple[RocmPackage, ...] = ()  # that pip must install, as a manifest has them

    @property
    def version(self) -> RocmVersion | None:
        """As asked, else as the tarball's name says; None until the tree is there."""
        return self.asked or self.named

    @property
    def targets(self) -> tuple[str, ...]:
        """The gfx targets it has code for, by its name; () where that is all, or is not known."""
        if self.origin is Origin.PIP:
            return by_pip.devices(self.source)
        return self.family.targets if self.family else ()

    @property
    def shown(self) -> str:
        """The source for messages: without credentials and signatures."""
        return without_secrets(self.source) if self.origin is Origin.URL else self.source

    @property
    def address(self) -> str:
        """Return the URL from which other machines can fetch it; "" for a local path."""
        if self.origin is Origin.PIP:
            return without_secrets(self.index)
        return self.shown if self.origin is Origin.URL else ""

    @property
    def key(self) -> str:
        """The cache's name for this source."""
        is_pip = self.origin is Origin.PIP  # whose packages differ with the Python that asks
        return source_key(f"{self.index} {self.source} {sys.version}" if is_pip else self.source)

    def document(self) -> dict[str, Any]:
        """Return the plan for a program: what `--dry-run --json` prints."""
        return {
            "source": self.shown,
            "origin": self.origin.value,
            "name": self.name,
            "version": str(self.version) if self.version else None,
            "family": self.family.name if self.family else None,
            "sha256": self.sha256,
            "cached": str(self.cached) if self.cached else None,
        }

    def __str__(self) -> str:
        version = f"ROCm {self.version}" if self.version else "ROCm, version as the tree says"
        if self.origin is Origin.DIRECTORY:
            return f"use {version} in {self.source} as it is"
        if self.origin is Origin.PIP:
            where = without_secrets(self.index) or "the index that pip is set to"
            return f"install {version} by pip: {self.source}\n  from {where}"
        verb = "fetch" if self.origin is Origin.URL else "unpack"
        lines = [f"{verb} {version} from {self.shown}"]
        if self.sha256:
            lines.append(f"  which must have SHA-256 {self.sha256}")
        else:
            lines.append(f"  checked against {self.shown}.sha256 where that exists")
        if self.cached:
            condition = "" if self.sha256 else ", if the source has not changed"
            lines.append(f"  cached: use {self.cached}{condition}")
        else:
            lines.append(f"  into {Cache(self.cache).trees}/{self.sha256 or '<SHA-256>'}")
        return "\n".join(lines)


def source_key(source: str) -> str:
    """Return the name under which the cache keeps what it knows about a source."""
    return files.sha256(source.encode())[:32]


def plan(
    source: str, *, sha256: str | None, version: str | None, cache: Path, cwd: Path, index: str = ""
) -> RocmPlan:
    """Decide what `source` is and look up what the cache has of it; writes nothing.

    `cache` is the user's cache folder, `cwd` is where relative paths start. Raises ConfigError for
    a source, checksum or version that cannot be right, RocmError when the version asked for is not
    the one in the tarball's name.
    """
    asked = RocmVersion.parse(version) if version else None
    if source.startswith(by_pip.PREFIX):
        families.check_targets(by_pip.devices(source.removeprefix(by_pip.PREFIX)))
        return _by_pip(source.removeprefix(by_pip.PREFIX), index, sha256, asked, cache)
    if index:
        raise ConfigError(
            f"{source}: a ROCm, and --therock-index-url names another one",
            hint="drop one of the two",
        )
    origin, location = _locate(source, cwd)
    name = therock.base_name(location)
    is_page = urlsplit(location).path.endswith(("/", ".html")) or therock.place_of(location)
    if origin is Origin.URL and is_page:
        raise ConfigError(
            f"{without_secrets(source)}: a page of tarballs, and not one of them",
            hint="add the name of a tarball that it lists, or write --therock-index-url STREAM",
        )
    parsed = None if origin is Origin.DIRECTORY else therock.parse_name(name)
    named = parsed.version if parsed else None
    if parsed and parsed.platform != "linux":
        raise RocmError(
            f"{name}: is a ROCm for {parsed.platform}", hint="name the tarball for linux"
        )
    if asked and named and asked.series != named.series:
        raise RocmError(
            f"{name}: is ROCm {named}, not {asked}",
            hint="give the version of that tarball, or name another ROCm",
        )
    if sha256 and origin is Origin.DIRECTORY:
        raise ConfigError(
            f"{location}: a directory has no tarball's SHA-256",
            hint="name a tarball, or leave --therock-sha256 out",
        )
    digest = sha256.strip().lower() if sha256 else None
    if digest and not is_sha256(digest):
        raise ConfigError(f"{sha256!r}: not a SHA-256", hint="64 hexadecimal digits")
    made = RocmPlan(
        origin=origin,
        source=location,
        name=name,
        sha256=digest,
        asked=asked,
        named=named,
        family=parsed.family if parsed else None,
        cache=cache,
    )
    return made if origin is Origin.DIRECTORY else _looked_up(made)


def _by_pip(
    text: str, index: str, sha256: str | None, asked: RocmVersion | None, cache: Path
) -> RocmPlan:
    if sha256:
        raise ConfigError(f"{text}: is not a tarball", hint="leave --therock-sha256 out")
    pinned = by_pip.pinned(text)
    named = RocmVersion.parse(pinned) if pinned else None
    if asked and named and asked != named:
        raise RocmError(f"{text}: is ROCm {named}, not {asked}", hint="give one version")
    made = RocmPlan(
        origin=Origin.PIP,
        source=text if pinned or not asked else by_pip.pin(text, asked),
        name=text,
        asked=asked,
        named=named or asked,
        cache=cache,
        index=index,
    )
    return _looked_up(made) if made.named else made


def recorded(source: RocmSource, *, cache: Path, option: str = "--rocm") -> RocmPlan:
    """Plan to bring the ROCm that a manifest names, from where the manifest says it came.

    A tree that the cache has under the recorded digest is used without a request; packages
    of pip are the recorded ones, by hash. Raises ConfigError where the manifest names no address
    and the cache does not have the tree.
    """
    if source.delivery and source.delivery.packages:
        version, packages = RocmVersion.parse(source.version), source.delivery.packages
        asked = _by_pip(source.name, source.url, None, version, cache)
        return _looked_up(replace(asked, packages=packages, sha256=by_pip.digest_of(packages)))
    held = Cache(cache).tree(source.sha256)
    if not source.url and (source.origin != "tarball" or held is None):
        raise ConfigError(
            f"{source.name}: the manifest does not say where this ROCm came from",
            hint=f"name it: {option} with a tarball or a folder",
        )
    parsed = therock.parse_name(source.name)
    return RocmPlan(
        origin=Origin.URL if source.url else Origin.TARBALL,
        source=source.url or source.name,
        name=source.name,
        sha256=source.sha256,
        asked=RocmVersion.parse(source.version),
        named=parsed.version if parsed else None,
        family=parsed.family if parsed else None,
        cache=cache,
        cached=held,
    )


def check_local(plan: RocmPlan) -> None:
    """Check a local source before anything long begins."""
    if plan.origin is Origin.DIRECTORY:
        rocm_root.inspect(Path(plan.source), name=plan.source)
    if plan.origin is not Origin.TARBALL:
        return
    path = Path(plan.source)
    with named(path, HostError, hint="name it: --therock-path"), path.open("rb") as file:
        head = file.read(tarfile.BLOCKSIZE)
    if Compression.of(head) is None:
        raise RocmError(
            f"{path}: neither .tar.gz, .tar.xz nor .tar.zst", hint="name a tarball of TheRock"
        )


def _looked_up(made: RocmPlan) -> RocmPlan:
    cache = Cache(made.cache)
    seen = cache.recall(made.key)
    sha256 = made.sha256 or (seen.sha256 if seen else None)
    return replace(made, cached=cache.tree(sha256) if sha256 else None)


def _locate(source: str, cwd: Path) -> tuple[Origin, str]:
    scheme = re.match(r"([a-zA-Z][a-zA-Z0-9+.-]*)://", source)
    if scheme and scheme[1].lower() in ("http", "https"):
        try:
            parts = urlsplit(source)
            usable = bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            usable = False
        if not usable or any(char.isspace() or not char.isprintable() for char in source):
            raise ConfigError(
                f"{source!r}: not a usable URL", hint="write https://host/path/file.tar.gz"
            )
        return Origin.URL, source
    if scheme and scheme[1].lower() != "file":
        raise ConfigError(
            f"{source}: {scheme[1]} URLs are not supported",
            hint="give an https URL or a local path",
        )
    path = cwd / (unquote(urlsplit(source).path) if scheme else source)
    try:
        path = path.resolve(strict=True)
    except (OSError, RuntimeError) as exc:
        raise ConfigError(
            f"{path}: {getattr(exc, 'strerror', None) or exc}",
            hint="name a URL, a tarball or a directory that holds ROCm",
        ) from exc
    if path.is_dir():
        return Origin.DIRECTORY, str(path)
    if path.is_file():
        return Origin.TARBALL, str(path)
    raise ConfigError(
        f"{path}: neither a file nor a directory", hint="name one of the two, or a URL"
    )
