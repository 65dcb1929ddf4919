"""Files that several processes share: locks, digests, writes that are whole or not there at all.

Standard library only: `build/ci_build` uses it before anything is installed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, final

BLOCK: Final = 1 << 20


def matches(root: Path, pattern: str) -> Iterator[Path]:
    """Yield what a pattern names below `root`; `folder/**` names every file below that folder.

    Before Python 3.13 `Path.glob` yields folders alone for a pattern that ends in `**`.
    """
    yield from sorted(root.glob(f"{pattern}/*" if pattern.endswith("**") else pattern))


@final
class Lock(AbstractContextManager["Lock"]):
    """A held advisory lock on a file (flock(2)); `close`, or the end of the process, releases it.

    The file stays: removing it would let two processes hold locks on different files of one name.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._close = weakref.finalize(self, os.close, descriptor)

    def close(self) -> None:
        self._close()

    def __exit__(self, *_: object) -> None:
        self.close()


def locked(
    path: Path,
    *,
    shared: bool = False,
    waiting: Callable[[], None] = lambda: None,
    mode: int = 0o666,
) -> Lock:
    """Hold the lock `path`, alone or with others who share it; its folder is made.

    `waiting` is called once when another process has it. Raises OSError.
    """
    lock = try_locked(path, shared=shared, mode=mode)
    if lock is None:
        waiting()
        lock = _opened(path, shared=shared, mode=mode)
        fcntl.flock(lock.descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
    return lock


def try_locked(path: Path, *, shared: bool = False, mode: int = 0o666) -> Lock | None:
    """Take the lock `path`; return None when another process has it now. Raises OSError."""
    lock = _opened(path, shared=shared, mode=mode)
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(lock.descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except BaseException:
        lock.close()
        raise
    return lock


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock `path`, also on a read-only disk. Raises OSError."""
    with _opened(path, shared=True, mode=0o666) as lock:
        try:
            fcntl.flock(lock.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _opened(path: Path, *, shared: bool, mode: int) -> Lock:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return Lock(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode))
    except OSError as exc:
        # What lies on a read-only disk can still be used, and locked, for reading.
        if not shared or exc.errno not in (errno.EROFS, errno.EACCES):
            raise
        return Lock(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def sha256(source: Path | bytes | Iterable[bytes]) -> str:
    """Return the SHA-256 of a file, of bytes, or of blocks. Raises OSError, with its name."""
    import hashlib  # milliseconds, which who only looks does not wait for

    digest = hashlib.sha256()
    for block in blocks(source) if isinstance(source, Path | bytes) else source:
        digest.update(block)
    return digest.hexdigest()


def blocks(source: Path | bytes) -> Iterator[bytes]:
    """Yield bytes, or a file in blocks. Raises OSError with its name, which read() does not say."""
    if isinstance(source, bytes):
        yield source
        return
    try:
        with source.open("rb", buffering=0) as file:
            while block := file.read(BLOCK):
                yield block
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, str(source)) from exc


def read(path: Path, *, most: int) -> bytes:
    """Read a regular file of at most `most` bytes.

    Raises OSError, also for a device or FIFO, which could be read without end or not at all.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        data = b"".join(islice(iter(partial(file.read, BLOCK), b""), most // BLOCK + 1))
    if len(data) > most:
        raise OSError(errno.EFBIG, f"is larger than {most >> 20} MiB", str(path))
    return data


def write(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Write a file so that it has its old bytes or the new ones, never a part. Raises OSError.

    Two writers at once end as one of the two.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.new")
    try:
        aside.write_bytes(data)
        if mode is not None:
            aside.chmod(mode)
        aside.replace(path)
    except BaseException as exc:
        remove(aside)
        if isinstance(exc, OSError):  # ENOSPC names no file, other errors name the temporary one
            exc.filename, exc.filename2 = str(path), None
        raise


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """Yield where to make a folder that appears whole or not at all; the caller holds its lock.

    It replaces `folder` once the block ends well. What a killed run left there is removed.
    """
    aside = folder.with_name(f"{folder.name}.part")
    remove(aside)
    try:
        yield aside
        remove(folder)
        aside.rename(folder)
    except BaseException:
        with suppress(OSError):  # the first error is the one to raise
            remove(aside)
        raise


def ends(descriptor: int, head: int, tail: int, *, start: int = 0, end: int | None = None) -> bytes:
    """Read a part of a file; of one longer than head + tail its two ends. Raises OSError."""
    size = os.fstat(descriptor).st_size
    last = size if end is None else min(end, size)
    if last - start <= head + tail:
        return os.pread(descriptor, max(0, last - start), start)
    left_out = f"\n… {last - start - head - tail} bytes left out …\n".encode()
    return os.pread(descriptor, head, start) + left_out + os.pread(descriptor, tail, last - tail)


def write_json(path: Path, document: object) -> None:
    write(path, (json.dumps(document, indent=2, sort_keys=True) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    """Return what `write_json` wrote; nothing where that cannot be read."""
    with suppress(OSError, ValueError, TypeError):  # TypeError: it holds no object
        return dict(json.loads(path.read_bytes()))
    return {}


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it, read-only or not.

    Nothing happens when it does not exist, or when another process removes it meanwhile.
    """
    if path.is_symlink() or not path.is_dir():
        with suppress(FileNotFoundError):
            path.unlink()
        return
    import shutil  # which imports every kind of compression

    for folder, _, _ in os.walk(path):
        with suppress(FileNotFoundError):
            Path(folder).chmod(0o700)
    while path.is_dir():
        with suppress(FileNotFoundError):
            shutil.rmtree(path)


def is_writable(path: Path) -> bool:
    """Return whether `path` can be made or changed, with the folders above it.

    Root has the right to write in /proc and /sys, where the kernel makes nothing all the same.
    """
    while not os.path.lexists(path) and path != path.parent:
        path = path.parent
    kernels = {found.st_dev for name in ("/proc", "/sys") if (found := status(Path(name)))}
    own = path.is_dir() and path.stat().st_dev not in kernels - {Path("/").stat().st_dev}
    return own and os.access(path, os.W_OK | os.X_OK)


def entries(folder: Path) -> tuple[Path, ...]:
    """List a folder by name; a folder that does not exist (any more) is empty."""
    try:
        return tuple(sorted(folder.iterdir()))
    except (FileNotFoundError, NotADirectoryError):
        return ()


def status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
