"""A store in a folder. Writers are separate processes, killed at any moment, as on S3.

An object appears by a hard link from a scratch file (create-only, atomic) or by a rename under a
lock (replace). Scratch files and the lock live in `.rocwheel/` below the folder, which is no key.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from operator import attrgetter
from pathlib import Path
from stat import S_ISREG
from typing import Final

from rocwheel.base import files
from rocwheel.base.errors import (
    FullError,
    ObjectDiffersError,
    ObjectMissingError,
    RefusedError,
    StoreError,
)
from rocwheel.base.store import (
    BLOCK,
    Abilities,
    Body,
    Counter,
    Headers,
    ObjectInfo,
    advance,
    differs,
    replaced,
    stale,
    whole,
)

OURS: Final = ".rocwheel"
_VERSION: Final = attrgetter("st_ino", "st_ctime_ns", "st_size")  # its owner can set mtime
FAILURES: Final = {
    errno.EACCES: (RefusedError, "check the folder's permissions"),
    errno.EPERM: (RefusedError, "check the folder's permissions"),
    errno.EROFS: (RefusedError, "mount it for writing, or name another store"),
    errno.ENOSPC: (FullError, "free some space"),
    errno.EDQUOT: (FullError, "free some space, or raise the quota"),
}


class FileStore:
    """Objects as files. Its ETag is the SHA-256, so two equal contents are the same version."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.url = root.as_uri()
        self.connections = 4
        self.largest = sys.maxsize
        self._device = self._seen()

    def locate(self, key: str, /) -> str:
        return f"{self.url}/{key}"

    def http(self, key: str, /) -> str:
        return (self.root / key).as_uri() + ("/" if key.endswith("/") else "")

    def abilities(self) -> Abilities:
        return Abilities(copy_lacks=(), folder_keys=False)

    def info(self, key: str, /) -> ObjectInfo | None:
        try:
            return self.stream(key, len)
        except ObjectMissingError:
            return None

    def read(self, key: str, /) -> tuple[bytes, ObjectInfo]:
        return whole(self, key)

    def stream(self, key: str, sink: Callable[[bytes], object], /) -> ObjectInfo:
        digest = hashlib.sha256()
        with self._translated(key):
            file = self._path(key).open("rb")
        with file:
            while block := file.read(BLOCK):
                digest.update(block)
                sink(block)
            stat = os.fstat(file.fileno())
        return ObjectInfo(
            key=key,
            size=stat.st_size,
            etag=digest.hexdigest(),
            sha256=digest.hexdigest(),
            modified=_time(stat),
            now=datetime.now(tz=timezone.utc),
            version=_VERSION(stat),
        )

    def part(self, info: ObjectInfo, start: int, size: int, /) -> bytes:
        with self._translated(info.key), self._path(info.key).open("rb") as file:
            if _VERSION(os.fstat(file.fileno())) != info.version:
                raise stale(self.locate(info.key))
            file.seek(start)
            return file.read(size)

    def digest(self, info: ObjectInfo, /, *, count: Counter | None = None) -> str:
        if info.sha256:
            return info.sha256
        return self.stream(info.key, lambda block: advance(count, len(block))).sha256

    def create(
        self,
        key: str,
        body: Body,
        /,
        *,
        headers: Headers,  # noqa: ARG002
        sha256: str = "",
        count: Counter | None = None,
    ) -> bool:
        path = self._path(key)
        expected = sha256 or files.sha256(body)
        if path.exists():
            self._same(key, expected)
            advance(count, path.stat().st_size)
            return False
        with self._scratch(key, body, count) as (scratch, written):
            if written != expected:
                raise ObjectDiffersError(
                    f"{self.locate(key)}: SHA-256 of what was to be written is {written}, not "
                    f"{expected}",
                    hint="the source changed meanwhile; nothing was written",
                )
            self._make_folder(key)
            try:
                os.link(scratch, path)
            except FileExistsError:
                self._same(key, expected)
                return False
        return True

    def replace(
        self,
        key: str,
        body: bytes,
        /,
        *,
        previous: ObjectInfo | None,
        headers: Headers,  # noqa: ARG002
    ) -> None:
        with self._scratch(key, body) as (scratch, _), files.locked(self.root / OURS / "lock"):
            now = self.info(key)
            if (now.etag if now else "") != (previous.etag if previous else ""):
                raise stale(self.locate(key))
            self._make_folder(key)
            scratch.replace(self._path(key))

    def copy(
        self, source: ObjectInfo, target: str, /, *, sha256: str, count: Counter | None = None
    ) -> int:
        if source.sha256 and source.sha256 != sha256:
            raise replaced(self.locate(source.key), source.sha256, sha256)
        headers = Headers(content_type="")
        self.create(target, self._path(source.key), headers=headers, sha256=sha256, count=count)
        return 0  # never left this machine

    def delete(self, key: str, /) -> None:
        with self._translated(key):
            self._path(key).unlink(missing_ok=True)

    def keys(self, prefix: str = "", /) -> Iterator[ObjectInfo]:
        folder, _, _ = prefix.rpartition("/")
        start = self.root / folder if folder else self.root
        with self._translated(folder):
            names = sorted(self._walk(start))
        for key in names:
            if key.startswith(prefix):
                try:
                    stat = (self.root / key).stat()
                except OSError as exc:
                    if exc.errno in {errno.ENOENT, errno.ELOOP}:
                        continue  # deleted since it was listed, or a link to itself
                    raise
                if S_ISREG(stat.st_mode):  # what is no pipe or device, whose end never comes
                    size, time = stat.st_size, _time(stat)
                    yield ObjectInfo(key=key, size=size, etag="", sha256="", modified=time)

    def deleted(self, prefix: str, /) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def sweep(self, before: datetime, /) -> tuple[str, ...]:
        swept = []
        scratch = self.root / OURS
        for path in sorted(scratch.glob("*.part")) if scratch.is_dir() else ():
            if _time(path.stat()) < before:
                path.unlink(missing_ok=True)
                swept.append(path.name)
        return tuple(swept)

    def _walk(self, start: Path) -> Iterator[str]:
        def failed(exc: OSError) -> None:
            if exc.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                raise exc  # a folder that cannot be read is not an empty one

        for folder, folders, names in os.walk(start, followlinks=True, onerror=failed):
            folders[:] = [name for name in folders if name != OURS]
            yield from (Path(folder, name).relative_to(self.root).as_posix() for name in names)

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if not all(parts) or {".", "..", OURS} & set(parts):
            raise StoreError(
                f"{self.locate(key)}: a file cannot have this name", hint="a bug of ours"
            )
        path = self.root.joinpath(*parts)
        if path.is_fifo() or path.is_char_device():
            what = f"{self.locate(key)}: a device or FIFO is there, not a file"
            raise ObjectMissingError(what, hint="remove it")
        return path

    def _same(self, key: str, expected: str) -> None:
        there = self.info(key)
        if there is None:
            self._refuse_folder(key)
            raise stale(self.locate(key))  # deleted since it was seen
        if there.sha256 != expected:
            raise differs(self.locate(key), there.sha256, expected)

    def _refuse_folder(self, key: str) -> None:
        path = self._path(key)
        others = [parent for parent in path.parents if parent.is_file()]
        if path.is_dir() or others:
            what = f"{others[0]} is a file" if others else "a folder is there"
            raise StoreError(
                f"{self.locate(key)}: {what}, so nothing can be stored under this name",
                hint="this folder is not (only) a store: move what is in the way, or use another",
            )

    def _make_folder(self, key: str) -> None:
        self._refuse_folder(key)
        self._path(key).parent.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def _scratch(
        self, key: str, body: Body, count: Counter | None = None
    ) -> Iterator[tuple[Path, str]]:
        with self._translated(key):
            path = self.root / OURS / f"{uuid.uuid4().hex}.part"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except (FileNotFoundError, NotADirectoryError, FileExistsError) as exc:
                raise StoreError(
                    f"{self.url}: this folder cannot be made: {exc.strerror}",
                    hint="check --store: a folder that is there, or can be made",
                ) from exc
            digest = hashlib.sha256()
            try:
                with path.open("xb") as file:
                    for block in files.blocks(body):
                        file.write(block)
                        digest.update(block)
                        advance(count, len(block))
                    file.flush()
                    os.fsync(file.fileno())
                yield path, digest.hexdigest()
            finally:
                path.unlink(missing_ok=True)

    def _seen(self) -> int | None:
        status = files.status(self.root)
        return status.st_dev if status else None

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        where, device = self.locate(key), self._seen()
        if self._device and device != self._device:  # else it would be made again, and be empty
            raise StoreError(
                f"{self.url}: the folder went away", hint="mount it, then run the same again"
            )
        self._device = device
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as exc:
            raise ObjectMissingError(
                f"{where}: no such object", hint="check the store and the channel"
            ) from exc
        except OSError as exc:
            kind, hint = FAILURES.get(exc.errno or 0, (StoreError, "check the folder"))
            raise kind(f"{where}: {exc.strerror} ({exc.filename or self.root})", hint=hint) from exc


def _time(stat: os.stat_result) -> datetime:
    return datetime.fromtimestamp(stat.st_mtime, tz=timezone.utc)
