"""Lists what the cache holds, with size and last use, and removes unused things.

Everything in the cache can be made again. Whole things are removed: a tree, a checkout, an output
base. Things in use stay: ROCm trees and folders of gates under a lease, output bases whose Bazel
server runs, the environment this program runs in, and all else while a build or gate runs
(`using`).
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rocwheel.base import files
from rocwheel.base.console import size
from rocwheel.base.errors import ANOTHER_CACHE, HostError, named

# What lies in the cache, and how deep below it one thing of the kind is.
KINDS: Final = {
    "rocm/trees-3": 1,
    "rocm/partial": 1,
    "sources": 2,
    "environments": 1,
    "bazel": 1,
    "bazel-in-containers": 1,
    "bazel-binaries": 1,
    "bazel-disk": 0,
    "bazel-repositories": 0,
    "dev": 1,
    "demo": 1,
    "gate/work": 1,
    "gate/jax": 1,
    "gate/history": 0,
    "gate/uv": 0,
    "logs": 0,
}
# Where what is in use is locked, and the time of the lock is that of the last use.
LEASES: Final = {"rocm/trees-3": "rocm/locks"}
IN_USE: Final = "in-use.lock"  # held while anything is used that has no lease of its own
OTHERWISE: Final = frozenset({"environments", "bazel"})  # whose use is seen without a lock
DAY: Final = 86400.0
HEADER: Final = ("what", "size", "unused for", "")


@dataclass(frozen=True, kw_only=True)
class CacheItem:
    kind: str
    path: Path
    bytes: int
    used: float  # seconds since the epoch
    in_use: bool

    def row(self, *, now: float) -> tuple[str, ...]:
        days = max(0.0, now - self.used) / DAY
        name = f"{self.kind}/{self.path.name}" if KINDS[self.kind] else self.kind
        return name, size(self.bytes), f"{days:.1f} days", "in use" if self.in_use else ""

    def document(self) -> dict[str, object]:
        return {**asdict(self), "path": str(self.path), "used": int(self.used)}


def using(cache: Path) -> files.Lock:
    """Keep `remove` from the cache while a build or gate runs. Raises HostError."""
    with named(cache, HostError, hint=ANOTHER_CACHE):
        return files.locked(cache / IN_USE, shared=True)


def look(cache: Path) -> tuple[CacheItem, ...]:
    """Return everything in a cache, the longest unused first."""
    places = ((kind, path) for kind, depth in KINDS.items() for path in _at(cache, kind, depth))
    return tuple(sorted((_kept(cache, *place) for place in places), key=lambda item: item.used))


def choose(
    items: Sequence[CacheItem], *, now: float, older: float | None, most: int | None
) -> tuple[CacheItem, ...]:
    """Choose what to remove: unused for `older` seconds, or the longest unused above `most`.

    Things in use stay, even if they are more than `most` bytes.
    """
    chosen = []
    total = sum(item.bytes for item in items)
    for item in sorted(items, key=lambda item: item.used):
        too_old = older is not None and now - item.used > older
        too_much = most is not None and total > most
        if not item.in_use and (too_old or too_much):
            chosen.append(item)
            total -= item.bytes
    return tuple(chosen)


def remove(cache: Path, chosen: Sequence[CacheItem]) -> tuple[CacheItem, ...]:
    """Remove what was chosen and is still unused; return what was removed. Raises OSError."""
    removed = []
    for item in chosen:
        with ExitStack() as held:
            if path := _lease(cache, item.kind, item.path):
                lease = files.try_locked(path)
                if lease is None:
                    continue
                held.enter_context(lease)
            if _in_use(item.kind, item.path, None):
                continue
            aside = item.path.with_name(f".unfinished-{item.path.name}")
            item.path.rename(aside)  # gone at once, even if removing it is interrupted
            files.remove(aside)
            removed.append(item)
    return tuple(removed)


def _lease(cache: Path, kind: str, path: Path) -> Path | None:
    if kind in LEASES:
        return cache / LEASES[kind] / f"{path.name}.lock"
    return None if kind in OTHERWISE else cache / IN_USE


def _at(cache: Path, kind: str, depth: int) -> Iterator[Path]:
    folder = cache / kind
    paths = [folder] if folder.is_dir() else []
    for _ in range(depth):
        paths = [item for path in paths if path.is_dir() for item in files.entries(path)]
    for path in paths:
        if not path.is_symlink() and not path.name.startswith(".") and path.suffix != ".lock":
            yield path


def _kept(cache: Path, kind: str, path: Path) -> CacheItem:
    lease = _lease(cache, kind, path)
    dated = lease if kind in LEASES else None
    total, used = 0, 0.0
    for about in _walk(path):
        total += about.st_blocks * 512
        used = max(used, 0.0 if dated else about.st_mtime)
    for place in (path, dated) if dated else (path,):
        with suppress(OSError):
            used = max(used, place.lstat().st_mtime)
    in_use = _in_use(kind, path, lease)
    return CacheItem(kind=kind, path=path, bytes=total, used=used, in_use=in_use)


def _walk(path: Path) -> Iterator[os.stat_result]:
    pending = [path]
    while pending:
        here = pending.pop()
        with suppress(OSError):
            about = here.lstat()
            yield about
            if stat.S_ISDIR(about.st_mode):
                pending += [Path(item.path) for item in os.scandir(here)]


def _in_use(kind: str, path: Path, lease: Path | None) -> bool:
    if lease and lease.exists() and files.is_held(lease):
        return True
    if kind == "environments":
        return Path(sys.prefix).resolve() == path.resolve()
    if kind == "bazel":  # as Bazel's own clients find their server
        pids = [*path.glob("*/server/server.pid.txt"), *path.glob("server/server.pid.txt")]
        return any(_runs(pid) for pid in pids)
    return False


def _runs(file: Path) -> bool:
    with suppress(OSError, ValueError):
        return Path("/proc", str(int(file.read_text(encoding="ascii")))).exists()
    return False
