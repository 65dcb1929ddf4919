"""Write a wheel out of parts of another: compressed members are copied, new ones go in between.

The output keeps the order, names, times, modes, flags, extra fields and comment of what it is made
from; only members that are given new content are compressed. It is written beside its final place
and moved there when it is complete, never over a file with other bytes (`Outbox`).
"""

from __future__ import annotations

import errno
import os
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple

from rocwheel.errors import HostError, WheelError
from rocwheel.wheel.zip_reader import (
    CENTRAL,
    END,
    END64,
    END64_SIGNATURE,
    END_SIGNATURE,
    FLAG_DESCRIPTOR,
    FLAG_UTF8,
    LOCAL,
    LOCATOR,
    LOCATOR_SIGNATURE,
    STORED,
    U16,
    U32,
    ZIP64_EXTRA,
    CentralDirectory,
    ZipArchive,
    ZipMember,
    codec,
)

BLOCK: Final = 1 << 20
LEVEL: Final = 6  # of deflate, as wheels are packed everywhere
ZIP64_VERSION: Final = 45  # "version needed to extract" of a record with 64-bit sizes
_NO_KERNEL_HELP: Final = frozenset({
    errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF,
})  # fmt: skip
_NO_NAMELESS: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS})
_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A member with its own headers and its own bytes, perhaps with another name or mode."""

    archive: ZipArchive
    member: ZipMember
    name: str
    mode: int = 0  # type and permission bits; 0 for its own

    @property
    def untouched(self) -> bool:
        return self.name == self.member.name and not self.mode


@dataclass(frozen=True, kw_only=True)
class Fresh:
    """New content, compressed as `like` was, below its headers."""

    like: ZipMember
    name: str
    content: bytes | Path
    mode: int = 0  # type and permission bits; 0 for `like`'s


Part = Kept | Fresh


class _Sizes(NamedTuple):
    """What a header says of the bytes behind it."""

    method: int
    flags: int
    crc: int
    compressed: int
    size: int


def write(parts: Iterable[Part], archive: ZipArchive, target: int) -> None:
    """Write a whole archive to a file descriptor; its end records are like `archive`'s."""
    try:  # room at once: a full disk shows before the copying, which is faster then, too
        os.posix_fallocate(target, 0, archive.size)
    except OSError as exc:
        if exc.errno not in _NO_KERNEL_HELP:
            raise
    listed = list(parts)
    placed = listed
    starts = [member.start for member in archive.members]
    if starts != sorted(starts):  # the directory lists members in another order than they lie in
        placed = sorted(listed, key=lambda part: _member(part).start)
    writer = _Writer(target)
    for run in _runs(placed):
        writer.add(run)
    writer.finish(listed, archive.directory)


def _runs(parts: Iterable[Part]) -> Iterator[tuple[Part, ...]]:
    """Group untouched neighbours, so that they are copied in one go."""
    run: list[Part] = []
    for part in parts:
        if run and not _continues(run[-1], part):
            yield tuple(run)
            run = []
        run.append(part)
    if run:
        yield tuple(run)


def _continues(first: Part, second: Part) -> bool:
    return (
        isinstance(first, Kept)
        and isinstance(second, Kept)
        and first.untouched
        and second.untouched
        and first.archive is second.archive
        and first.member.end == second.member.start
    )


class _Writer:
    """Appends members to a file and remembers their central records."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._at = 0
        self._central: dict[str, bytes] = {}

    def add(self, run: Sequence[Part]) -> None:
        """Append parts that lie one after the other in one archive, or a single part."""
        first, last = run[0], run[-1]
        if isinstance(first, Kept) and isinstance(last, Kept) and first.untouched:
            shift = self._at - first.member.start
            for part in run:
                member = _member(part)
                self._list(part, _sizes(member), member.start + shift)
            self._copy(first.archive, first.member.start, last.member.end)
            return
        for part in run:
            self._add(part)

    def _add(self, part: Part) -> None:
        offset = self._at
        if isinstance(part, Kept):
            member, sizes = part.member, _sizes(part.member)
            self._write(_renamed(member, part.name))
            self._copy(part.archive, member.data, member.end)
        else:
            sizes = self._compress(part)
        self._list(part, sizes, offset)

    def _compress(self, part: Fresh) -> _Sizes:
        offset = self._at
        # The sizes of a member that is written anew stand in its header.
        flags = part.like.flags & ~FLAG_DESCRIPTOR | (0 if part.name.isascii() else FLAG_UTF8)
        # Room for 64-bit sizes is made before they are known, where they could be needed.
        wide = isinstance(part.content, Path) and part.content.stat().st_size >= U32 - (64 << 20)
        empty = _Sizes(method=part.like.method, flags=flags, crc=0, compressed=0, size=0)
        self._write(_local(part.like, part.name, empty, wide=wide))
        start = self._at
        crc = size = 0

        def counted() -> Iterator[bytes]:
            nonlocal crc, size
            for piece in pieces(part.content):
                crc = zlib.crc32(piece, crc)
                size += len(piece)
                yield piece

        content: Iterator[bytes] = counted()
        if part.like.method != STORED:
            content = deflated(content, is_large=isinstance(part.content, Path))
        for piece in content:
            self._write(piece)
        sizes = empty._replace(crc=crc, compressed=self._at - start, size=size)
        os.pwrite(self._target, _local(part.like, part.name, sizes, wide=wide), offset)
        return sizes

    def _list(self, part: Part, sizes: _Sizes, offset: int) -> None:
        self._central[part.name] = _central(part, sizes, offset)

    def finish(self, parts: Iterable[Part], like: CentralDirectory) -> None:
        """Write the central directory, in the order of `parts`, and end records as `like` has them.

        What stood in 64 bits, and what the short record left to the long one, stays so.
        """
        offset = self._at
        records = b"".join(self._central[part.name] for part in parts)
        self._write(records)
        count, size = len(self._central), len(records)
        if like.end64 or count >= U16 or max(size, offset) >= U32:
            at = self._at
            versions = (ZIP64_VERSION, ZIP64_VERSION)
            if like.end64:
                versions = END64.unpack(like.end64)[2:4]
            self._write(
                END64.pack(
                    END64_SIGNATURE, END64.size - 12, *versions, 0, 0, count, count, size, offset
                )
            )
            self._write(LOCATOR.pack(LOCATOR_SIGNATURE, 0, at, 1))
        old = END.unpack(like.end)[3:7]
        short = [
            mask if before == mask or now >= mask else now
            for now, before, mask in zip(
                (count, count, size, offset), old, (U16, U16, U32, U32), strict=True
            )
        ]
        end = END.pack(END_SIGNATURE, 0, 0, *short, len(like.comment))
        self._write(end + like.comment)
        os.ftruncate(self._target, self._at)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(self._target, view, self._at)
            self._at += done
            view = view[done:]

    def _copy(self, archive: ZipArchive, start: int, end: int) -> None:
        """Copy bytes of a file; in the kernel where it can."""
        kernel_copy = getattr(os, "copy_file_range", None)
        while kernel_copy and start < end:
            try:
                done = kernel_copy(archive.fileno(), self._target, end - start, start, self._at)
            except OSError as exc:
                if exc.errno not in _NO_KERNEL_HELP:
                    raise
                break
            if not done:
                break
            start += done
            self._at += done
        for piece in archive.raw(start, end, step=BLOCK):
            self._write(piece)


def _member(part: Part) -> ZipMember:
    return part.like if isinstance(part, Fresh) else part.member


def _sizes(member: ZipMember) -> _Sizes:
    return _Sizes(member.method, member.flags, member.crc, member.compressed, member.size)


def pieces(content: bytes | Path) -> Iterator[bytes]:
    """Yield content as it stands in memory, or of a file in blocks."""
    if isinstance(content, bytes):
        yield content
        return
    with content.open("rb") as file:
        while piece := file.read(BLOCK):
            yield piece


def deflated(content: Iterator[bytes], *, is_large: bool) -> Iterator[bytes]:
    """Return a raw deflate stream of the content."""
    packer = codec(is_large=is_large).compressobj(LEVEL, zlib.DEFLATED, -15)
    for piece in content:
        yield packer.compress(piece)
    yield packer.flush()


def same_bytes(first: Iterator[bytes], second: Iterator[bytes]) -> bool:
    """Return whether two streams have the same bytes, in whatever pieces they come."""
    left = right = b""
    while True:
        left = left or next(first, b"")
        right = right or next(second, b"")
        length = min(len(left), len(right))
        if not length:
            return left == right
        if left[:length] != right[:length]:
            return False
        left, right = left[length:], right[length:]


def _renamed(member: ZipMember, name: str) -> bytes:
    """Return the member's local header with another name."""
    *fields, length, extra = LOCAL.unpack_from(member.local)
    raw = name.encode()
    return LOCAL.pack(*fields, len(raw), extra) + raw + member.local[LOCAL.size + length :]


def _local(like: ZipMember, name: str, sizes: _Sizes, *, wide: bool = False) -> bytes:
    """Return a local header as `like`'s, with another name and sizes."""
    signature, version, _, _, time, date, _, _, _, length, _ = LOCAL.unpack_from(like.local)
    raw = name.encode()
    extra = b"".join(
        struct.pack("<HH", tag, len(body)) + body
        for tag, body in _extras(like.local[LOCAL.size + length :])
        if tag != ZIP64_EXTRA
    )
    short = (sizes.compressed, sizes.size)
    if wide or max(short) >= U32:
        extra += struct.pack("<HHQQ", ZIP64_EXTRA, 16, sizes.size, sizes.compressed)
        short = (U32, U32)
        version = max(version, ZIP64_VERSION)
    return (
        LOCAL.pack(
            signature, version, sizes.flags, sizes.method, time, date, sizes.crc, *short,
            len(raw), len(extra),
        )
        + raw
        + extra
    )  # fmt: skip


def _central(part: Part, sizes: _Sizes, offset: int) -> bytes:
    """Return a central record as the old member's, with another name, mode, sizes and place.

    What stood in 64 bits stays in 64 bits and where it was among the extra fields.
    """
    like = _member(part)
    fields = list(CENTRAL.unpack_from(like.central))
    name_length, extra_length = fields[10], fields[11]
    at = CENTRAL.size + name_length
    values = {8: sizes.compressed, 9: sizes.size, 16: offset}
    wide = b""
    for field in (9, 8, 16):  # the order that the zip64 field has
        is_wide = values[field] >= U32 or fields[field] == U32
        wide += values[field].to_bytes(8, "little") if is_wide else b""
        fields[field] = U32 if is_wide else values[field]
    extras = _extras(like.central[at : at + extra_length])
    if wide and all(tag != ZIP64_EXTRA for tag, _ in extras):
        extras.insert(0, (ZIP64_EXTRA, wide))
        fields[2] = max(fields[2], ZIP64_VERSION)
    extra = b"".join(
        struct.pack("<HH", tag, len(body)) + body
        for tag, body in ((tag, wide if tag == ZIP64_EXTRA else body) for tag, body in extras)
        if tag != ZIP64_EXTRA or body
    )
    raw = part.name.encode()
    fields[3:5] = [sizes.flags, sizes.method]
    if part.mode:
        fields[15] = fields[15] & U16 | part.mode << 16
    fields[7] = sizes.crc
    fields[10:12] = [len(raw), len(extra)]
    fields[13] = 0  # the disk
    return CENTRAL.pack(*fields) + raw + extra + like.central[at + extra_length :]


def _extras(raw: bytes) -> list[tuple[int, bytes]]:
    """Split extra fields; `ZipArchive` has refused broken ones."""
    extras = []
    at = 0
    while at < len(raw):
        tag, length = struct.unpack_from("<HH", raw, at)
        extras.append((tag, raw[at + 4 : at + 4 + length]))
        at += 4 + length
    return extras


def check_folder(folder: Path) -> None:
    """Refuse a folder that an `Outbox` could not write; makes nothing. Raises HostError."""
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    why = errno.EACCES if there.is_dir() else errno.ENOTDIR
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise _unwritable(there, os.strerror(why))


def _unwritable(path: str | Path, why: str | None) -> HostError:
    return HostError(f"{path}: {why}", hint="choose another folder with --output, or make room")


class Outbox:
    """Files that appear in a folder together when the block ends well, or not at all.

    Until then they have no name where the file system allows that, so that not even a run that was
    killed leaves anything behind.
    """

    def __init__(self, folder: Path, *, keep: bool = True) -> None:
        """With `keep=False` nothing appears: files are held against those that have their names."""
        self.folder = folder
        self._keep = keep
        self._drafts: dict[str, _DraftFile] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Outbox:  # noqa: PYI034
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise _unwritable(exc.filename or self.folder, exc.strerror) from exc
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        try:
            if exc is None:
                self._publish()
        finally:
            for draft in self._drafts.values():
                draft.discard()

    def write(self, name: str, parts: Iterable[Part], archive: ZipArchive) -> Path:
        """Write one wheel aside; it gets its name when the block ends. Raises HostError.

        Several threads may write at once.
        """
        try:
            with self._lock:
                if name in self._drafts:
                    raise WheelError(
                        f"{name}: two of the wheels would get this name",
                        hint="give each wheel once",
                    )
                draft = self._drafts[name] = _DraftFile(self.folder, name)
            write(parts, archive, draft.descriptor)
        except OSError as exc:
            raise _unwritable(exc.filename or self.folder, exc.strerror) from exc
        return self.folder / name

    def _publish(self) -> None:
        made: list[Path] = []
        try:
            for name, draft in self._drafts.items():
                final = self.folder / name
                if not self._keep:
                    if final.exists():
                        draft.refuse_other(final)
                elif draft.publish(final):
                    made.append(final)
        except BaseException:
            for final in made:
                with suppress(OSError):
                    final.unlink()
            raise


class _DraftFile:
    """A file being written, without a name or, where that cannot be, with a hidden one."""

    def __init__(self, folder: Path, name: str) -> None:
        self._hidden: Path | None = None
        flags = os.O_RDWR | os.O_CLOEXEC
        try:
            self.descriptor = os.open(folder, flags | os.O_TMPFILE, 0o666)
        except OSError as exc:
            if exc.errno not in _NO_NAMELESS:
                raise
            self._hidden = folder / f".unfinished-{os.getpid()}-{name}"
            self.descriptor = os.open(self._hidden, flags | os.O_CREAT | os.O_TRUNC, 0o666)

    @property
    def _path(self) -> Path:
        return self._hidden or Path(f"/proc/self/fd/{self.descriptor}")

    def publish(self, final: Path) -> bool:
        """Give the file its name; False where a file of the same bytes has it already.

        Raises WheelError where other bytes have the name, HostError where it cannot be given.
        """
        try:
            # Only with a descriptor for the source does link() follow the link in /proc.
            os.link(self._path, final, src_dir_fd=None if self._hidden else self.descriptor)
        except FileExistsError:
            self.refuse_other(final)
            return False
        except OSError as exc:
            if self._hidden is None or exc.errno not in _NO_LINKS:
                raise HostError(f"{final}: {exc.strerror}", hint="check the folder") from exc
            if final.exists():
                raise WheelError(f"{final}: exists", hint="choose another folder") from exc
            self._hidden.rename(final)
        return True

    def refuse_other(self, final: Path) -> None:
        """Raise WheelError where this path has other bytes."""
        if not same_bytes(pieces(self._path), pieces(final)):
            raise WheelError(
                f"{final}: exists with other content",
                hint="choose another folder with --output; wheels are never overwritten",
            ) from None

    def discard(self) -> None:
        os.close(self.descriptor)
        if self._hidden:
            self._hidden.unlink(missing_ok=True)
