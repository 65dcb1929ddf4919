"""The cache of unpacked ROCm trees: content-addressed, read-only, shared by runs, trimmed.

    trees/<SHA-256 of the tarball>/  tree/ and entry.json; appears whole, by one rename
    sources/<key>.json               what a URL or a path was when it was last fetched
    partial/<key>.part, .json        a download that was cut, and what it is a part of
    staging/<key>/                   a tree being unpacked; belongs to who holds the lock of <key>
    locks/<name>.lock                advisory locks (flock), and by their time the last use

A run holds the exclusive lock of its source's key while it fetches, and a shared lock of the tree
for as long as it uses it; a tree in use is never trimmed. Lock files stay: removing one that
somebody waits for would split the lock. Nothing is synced to the disk: after a power cut, empty
the cache.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import shutil
import weakref
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocwheel.download import Remote
from rocwheel.rocm.tree import Facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SCHEMA: Final = 1
TREE: Final = "tree"  # the folder with the unpacked tarball, beside entry.json


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a source was when it was last fetched."""

    remote: Remote
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What `entry.json` says about a cached tree."""

    sha256: str
    source: str
    files: int
    bytes: int
    facts: Facts


class Lease:
    """A shared lock on a cached tree: while it lives, the tree is not trimmed."""

    def __init__(self, descriptor: int) -> None:
        self._close = weakref.finalize(self, os.close, descriptor)

    def close(self) -> None:
        self._close()


class Cache:
    """The ROCm part of the user's cache folder. Raises OSError when the disk refuses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "rocm"
        self.trees = self.folder / "trees"
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
        """The unpacked tarball with this digest, without holding on to it."""
        path = self.trees / sha256 / TREE
        return path if path.is_dir() else None

    def lease(self, sha256: str) -> tuple[Entry, Path, Lease] | None:
        """Take hold of a cached tree and mark it used now; None when it is not there."""
        if self.tree(sha256) is None:
            return None
        lease = Lease(self._lock(sha256, fcntl.LOCK_SH))
        entry = self._entry(sha256)
        if entry is None:
            lease.close()
            return None
        return entry, self.trees / sha256 / TREE, lease

    def recall(self, key: str) -> Seen | None:
        """What the source with this key was; None when it was never fetched."""
        document = _read(self._sources / f"{key}.json")
        try:
            return Seen(remote=Remote(**document["remote"]), sha256=document["sha256"])
        except (KeyError, TypeError):
            return None

    def remember(self, key: str, seen: Seen, *, source: str) -> None:
        _write(self._sources / f"{key}.json", {**dataclasses.asdict(seen), "source": source})

    def partial(self, key: str) -> Path:
        """Where the download of the source with this key lies while it is incomplete."""
        return self._partial / f"{key}.part"

    def partial_bytes(self, key: str) -> int:
        try:
            return self.partial(key).stat().st_size
        except OSError:
            return 0

    def _entry(self, sha256: str) -> Entry | None:
        document = _read(self.trees / sha256 / "entry.json")
        if document.pop("schema", None) != SCHEMA:
            return None
        try:
            facts = Facts.from_json(document.pop("facts"))
            return Entry(facts=facts, **document)
        except (KeyError, TypeError):
            return None

    # Making a tree.

    @contextmanager
    def claim(self, key: str, *, waiting: Callable[[], None]) -> Iterator[Path]:
        """Be the only one who fetches this source; yields the folder to unpack beside.

        `waiting` is called once when another run has it. The folder is empty, and gone afterwards
        unless `publish` moved it.
        """
        lock = self._lock(key, fcntl.LOCK_EX, waiting=waiting)
        staging = self._staging / key
        try:
            remove(staging)  # a killed run's
            staging.mkdir(mode=0o755)
            try:
                yield staging
            finally:
                remove(staging)
        finally:
            os.close(lock)

    def publish(self, staging: Path, entry: Entry) -> tuple[Entry, Path, Lease]:
        """Make `staging/tree` the tree of its digest, by one rename; an equal one may be there."""
        _write(
            staging / "entry.json",
            {**dataclasses.asdict(entry), "facts": entry.facts.to_json(), "schema": SCHEMA},
        )
        lease = Lease(self._lock(entry.sha256, fcntl.LOCK_SH))
        target = self.trees / entry.sha256
        if self._entry(entry.sha256) is None:
            remove(target)  # of another schema
            try:
                staging.rename(target)
            except OSError as exc:
                if exc.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
        return entry, target / TREE, lease

    # Room.

    def free(self) -> int:
        """Bytes this user may still write here."""
        status = os.statvfs(self.folder)
        return status.f_bavail * status.f_frsize

    def trim(
        self, *, budget: int | None = None, room: int = 0, removed: Callable[[str, int], None]
    ) -> None:
        """Remove what nobody uses, longest unused first, until the cache fits.

        It fits when it holds at most `budget` bytes and `room` bytes are free. `removed` is told
        the name and size of each thing that went. Trees and downloads in use stay.
        """
        for leftover in tuple(self._staging.iterdir()):
            with self._unused(leftover.name) as free:
                if free:
                    remove(leftover)
        items = sorted(self._items())
        total = sum(count for _, count, _ in items)
        for _, count, name in items:
            if (budget is None or total <= budget) and self.free() >= room:
                return
            with self._unused(name) as free:
                if not free:
                    continue
                if (self.trees / name).is_dir():
                    doomed = self._staging / name
                    (self.trees / name).rename(doomed)  # gone at once, whatever happens next
                    remove(doomed)
                else:
                    self.partial(name).unlink(missing_ok=True)
                    self.partial(name).with_suffix(".json").unlink(missing_ok=True)
            total -= count
            removed(name, count)

    def _items(self) -> Iterator[tuple[float, int, str]]:
        """(last use, bytes, name) of every tree and every partial download."""
        for path in self.trees.iterdir():
            entry = self._entry(path.name)
            lock = self._locks / f"{path.name}.lock"
            used = lock.stat().st_mtime if lock.exists() else 0.0
            yield used, entry.bytes if entry else 0, path.name
        for path in self._partial.glob("*.part"):
            status = path.stat()
            yield status.st_mtime, status.st_size, path.stem

    @contextmanager
    def _unused(self, name: str) -> Iterator[bool]:
        """Whether nobody holds the lock of `name`; it is held meanwhile."""
        try:
            lock = self._lock(name, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            os.close(lock)

    def _lock(self, name: str, how: int, *, waiting: Callable[[], None] | None = None) -> int:
        path = self._locks / f"{name}.lock"
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as exc:
            # A cache on a read-only disk can still be used, and locked, for reading.
            if how != fcntl.LOCK_SH or exc.errno not in (errno.EROFS, errno.EACCES):
                raise
            lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if waiting:
                try:
                    fcntl.flock(lock, how | fcntl.LOCK_NB)
                except BlockingIOError:
                    waiting()
                    fcntl.flock(lock, how)
            else:
                fcntl.flock(lock, how)
            if how == fcntl.LOCK_SH:
                with suppress(OSError):
                    os.utime(lock)
        except BaseException:
            os.close(lock)
            raise
        return lock


def remove(folder: Path) -> None:
    """Remove a folder, also a read-only one; nothing happens when it is not there."""
    for path, _, _ in os.walk(folder):
        Path(path).chmod(0o700)
    with suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _read(path: Path) -> dict[str, Any]:
    """A JSON object; empty when there is none, or half of one."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _write(path: Path, document: dict[str, Any]) -> None:
    aside = path.with_name(f"{path.name}.new")
    aside.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    aside.replace(path)
