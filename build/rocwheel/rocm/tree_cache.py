"""The cache of unpacked ROCm trees: content-addressed, read-only, shared by runs, trimmed.

    trees-3/<SHA-256>/   tree/ and entry.json; appears whole, by one rename
    sources/<key>.json               what a URL or a path was when it was last fetched
    partial/<key>.part, .json        a download that was cut, and what it is a part of
    staging/<key>/                   a tree being unpacked, by the holder of the lock of <key>
    locks/<name>.lock                advisory locks (flock), and by their time the last use

The digest is that of the tarball, or of the list of pip's packages. A run holds the exclusive lock
of its source's key while it fetches, and a shared lock of the tree for as long as it uses it; a
tree in use is never trimmed. Two runs with the same tree from two sources take turns in publishing
it (the lock `publish`). Nothing is synced to the disk: after a power cut, empty the cache.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, TypeVar

from rocwheel.base import files
from rocwheel.base.download import Fingerprint
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Sha256, Value
from rocwheel.records.manifest import RocmPackage
from rocwheel.rocm.rocm_root import Facts

SCHEMA: Final = 3
Record = TypeVar("Record", bound=Value)
TREE: Final = "tree"  # the folder with the unpacked tarball, beside entry.json


class FetchedSource(Value, frozen=True, kw_only=True):
    """What a source was when it was last fetched."""

    remote: Fingerprint
    sha256: Sha256
    source: str  # without credentials, for people


class CachedTree(Value, frozen=True, kw_only=True):
    """What `entry.json` says about a cached tree."""

    sha256: str
    source: str
    packed: int  # bytes of the tarball
    files: int
    bytes: int
    links: tuple[str, ...]  # added to what the tarball has
    packages: tuple[RocmPackage, ...] = ()  # of pip, which are the tree in place of a tarball
    facts: Facts
    schema: Literal[3] = SCHEMA


class Cache:
    """The ROCm part of the user's cache folder. Raises OSError when the disk refuses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "rocm"
        self.trees = self.folder / f"trees-{SCHEMA}"  # those of another rocwheel stay as they are
        self._locks = self.folder / "locks"
        self._sources = self.folder / "sources"
        self._partial = self.folder / "partial"
        self._staging = self.folder / "staging"

    def prepare(self) -> None:
        """Make the folders. Raises OSError when that is not possible."""
        for folder in (self.trees, self._locks, self._sources, self._partial, self._staging):
            folder.mkdir(parents=True, exist_ok=True)

    # What is there.

    def tree(self, sha256: str) -> Path | None:
        """Return the root of the ROCm with this digest, without holding on to it."""
        entry = self._entry(sha256)
        return self.trees / sha256 / TREE / entry.facts.root if entry else None

    def lease(self, sha256: str) -> tuple[CachedTree, Path, files.Lock] | None:
        """Take hold of a cached tree and mark it used now; None when it is not there."""
        if self._entry(sha256) is None:
            return None
        lease = self._lease(sha256)
        if (entry := self._entry(sha256)) is None:
            lease.close()
            return None
        return entry, self.trees / sha256 / TREE, lease

    def recall(self, key: str) -> FetchedSource | None:
        """Return what the source with this key was; None when it was never fetched."""
        return _read(self._sources / f"{key}.json", FetchedSource)

    def remember(self, key: str, seen: FetchedSource) -> None:
        files.write(self._sources / f"{key}.json", seen.to_bytes())

    def partial(self, key: str) -> Path:
        """Return where the download of the source with this key lies while it is incomplete."""
        return self._partial / f"{key}.part"

    def _entry(self, sha256: str) -> CachedTree | None:
        return _read(self.trees / sha256 / "entry.json", CachedTree)

    # Making a tree.

    @contextmanager
    def claim(self, key: str, *, waiting: Callable[[], None]) -> Iterator[Path]:
        """Lock this source for fetching; yield the folder to unpack in.

        `waiting` is called once when another run has it. The folder is empty, and gone afterwards
        unless `publish` moved it.
        """
        staging = self._staging / key
        with files.locked(self._lock(key), waiting=waiting):
            files.remove(staging)  # a killed run's
            staging.mkdir(mode=0o755)
            try:
                yield staging
            finally:
                files.remove(staging)

    def publish(self, staging: Path, entry: CachedTree) -> tuple[CachedTree, Path, files.Lock]:
        """Make `staging/tree` the tree of its digest, by one rename; an equal one may be there."""
        files.write(staging / "entry.json", entry.to_bytes())
        lease = self._lease(entry.sha256)  # from now on no run trims it
        target = self.trees / entry.sha256
        with files.locked(self._lock("publish")):
            if self._entry(entry.sha256) is None:
                files.remove(target)  # whose record cannot be read
                staging.rename(target)
        return entry, target / TREE, lease

    # Room.

    def free(self) -> int:
        """Return bytes this user may still write here."""
        status = os.statvfs(self.folder)
        return status.f_bavail * status.f_frsize

    def trim(
        self, *, budget: int | None = None, room: int = 0, removed: Callable[[str, int], None]
    ) -> None:
        """Remove what is not in use, longest unused first, until the cache fits.

        It fits when it holds at most `budget` bytes and `room` bytes are free. `removed` gets
        the name and size of each thing that went. Trees and downloads in use stay.
        """
        for leftover in files.entries(self._staging):
            if lock := files.try_locked(self._lock(leftover.name)):
                with lock:
                    files.remove(leftover)
        items = sorted(self._items())
        total = sum(count for _, count, _ in items)
        for _, count, name in items:
            if (budget is None or total <= budget) and self.free() >= room:
                return
            if lock := files.try_locked(self._lock(name)):
                with lock:
                    if self._removed(name):
                        total -= count
                        removed(name, count)

    def _removed(self, name: str) -> bool:
        tree, part = self.trees / name, self.partial(name)
        if files.status(tree):
            doomed = self._staging / name
            files.remove(doomed)  # a killed run's
            tree.rename(doomed)  # gone at once, even if removing it is interrupted
            files.remove(doomed)
            return True
        there = files.status(part) is not None
        files.remove(part)
        files.remove(part.with_suffix(".json"))
        return there

    def _items(self) -> Iterator[tuple[float, int, str]]:
        for path in files.entries(self.trees):
            entry = self._entry(path.name)
            lock = files.status(self._lock(path.name))
            yield lock.st_mtime if lock else 0.0, entry.bytes if entry else 0, path.name
        for path in files.entries(self._partial):
            status = files.status(path)
            if path.suffix == ".part" and status:
                yield status.st_mtime, status.st_size, path.stem

    def _lease(self, name: str) -> files.Lock:
        """Return the shared lock of a tree, waited for; its time becomes that of the last use."""
        lease = files.locked(self._lock(name), shared=True)
        with suppress(OSError):
            os.utime(lease.descriptor)
        return lease

    def _lock(self, name: str) -> Path:
        return self._locks / f"{name}.lock"


def _read(path: Path, kind: type[Record]) -> Record | None:
    try:
        return kind.from_bytes(path.read_bytes(), name=path.name)
    except (OSError, ConfigError):
        return None
