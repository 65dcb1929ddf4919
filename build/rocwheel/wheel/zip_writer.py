"""Writes a wheel from parts of another: compressed members are copied, new ones go in between.

The output keeps the order, names, times, modes, flags, extra fields and comment of what it is made
from; only members that are given new content are compressed, below a local header without extra
fields. It is written beside its final place and moved there when it is complete, never over a file
with other bytes (`Outbox`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from zlib_ng import zlib_ng

from rocwheel.base import files
from rocwheel.base.errors import HostError, WheelError
from rocwheel.wheel.zip_reader import (
    CENTRAL,
    END,
    END_SIGNATURE,
    FLAG_DESCRIPTOR,
    FLAG_UTF8,
    LOCAL,
    READ,
    STORED,
    U16,
    U32,
    ZipArchive,
    ZipMember,
)

LEVEL: Final = 6  # of deflate, as wheels are packed everywhere


class ZipPart(NamedTuple):
    """A member, perhaps with another name or mode, or new content that is compressed alike."""

    member: ZipMember
    name: str
    content: bytes | Path | None = None  # None: its own bytes, below its own headers
    mode: int = 0  # type and permission bits; 0 for its own


def write(parts: Iterable[ZipPart], archive: ZipArchive, target: int) -> None:
    """Write a whole archive of members of another to a file descriptor, with its comment."""
    listed = list(parts)
    writer = _Writer(archive, target)
    for part in sorted(listed, key=lambda part: part.member.start):  # as they lay, not as listed
        writer.add(part)
    writer.finish(listed, archive.comment)


class _Writer:
    def __init__(self, archive: ZipArchive, target: int) -> None:
        self._archive, self._target = archive, target
        self._at = 0
        self._central: dict[str, bytes] = {}

    def add(self, part: ZipPart) -> None:
        offset, member = self._at, part.member
        if part.content is None:
            *fields, length, extra = LOCAL.unpack_from(member.local)
            raw = part.name.encode()
            header = LOCAL.pack(*fields, len(raw), extra) + raw
            self._write(header + member.local[LOCAL.size + length :])
            self._copy(member.data, member.end)
        else:
            member = self._compress(part, part.content)
        self._central[part.name] = _central(part, member, offset)

    def _copy(self, start: int, end: int) -> None:
        """Append bytes of the archive, whole pages at a time.

        copy_file_range and writing from mapped pages take up to twice as long where the offsets of
        the two files differ within 64 bytes, as they do behind a text that became longer.
        """
        while start < end:
            piece = self._archive.bytes_at(start, min(end - start, READ - self._at % READ))
            self._write(piece)
            start += len(piece)

    def _compress(self, part: ZipPart, content: bytes | Path) -> ZipMember:
        """Append new content; returns `part.member` with its flags, sizes and CRC."""
        offset = self._at
        # A new member has its sizes in its header.
        flags = part.member.flags & ~FLAG_DESCRIPTOR | (0 if part.name.isascii() else FLAG_UTF8)
        empty = part.member._replace(flags=flags, crc=0, compressed=0, size=0)
        self._write(_local(empty, part.name))
        start = self._at
        crc = size = 0
        packer = zlib_ng.compressobj(LEVEL, zlib_ng.DEFLATED, -15)
        is_stored = part.member.method == STORED
        for piece in files.blocks(content):
            crc = zlib_ng.crc32(piece, crc)
            size += len(piece)
            self._write(piece if is_stored else packer.compress(piece))
        self._write(b"" if is_stored else packer.flush())
        _refuse_huge(size)
        member = empty._replace(crc=crc, compressed=self._at - start, size=size)
        os.pwrite(self._target, _local(member, part.name), offset)
        return member

    def finish(self, parts: Iterable[ZipPart], comment: bytes) -> None:
        offset, count = self._at, len(self._central)
        self._write(b"".join(self._central[part.name] for part in parts))
        _refuse_huge(U32 if count >= U16 else 0)
        size = self._at - offset
        end = END.pack(END_SIGNATURE, 0, 0, count, count, size, offset, len(comment))
        self._write(end + comment)
        os.ftruncate(self._target, self._at)

    def _write(self, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            done = os.pwrite(self._target, view, self._at)
            self._at += done
            view = view[done:]
        _refuse_huge(self._at)


def _refuse_huge(size: int) -> None:
    if size >= U32:
        raise WheelError("4 GiB or 65535 members are more than a wheel has", hint="make it smaller")


def same_bytes(first: Path, second: Path) -> bool:
    import filecmp  # which most runs do not need

    filecmp.clear_cache()  # it goes by size and time
    return filecmp.cmp(first, second, shallow=False)


def _local(member: ZipMember, name: str) -> bytes:
    signature, version, _, _, time, date, *_ = LOCAL.unpack_from(member.local)
    raw = name.encode()
    header = LOCAL.pack(
        signature, version, member.flags, member.method, time, date, member.crc,
        member.compressed, member.size, len(raw), 0,
    )  # fmt: skip
    return header + raw


def _central(part: ZipPart, member: ZipMember, offset: int) -> bytes:
    fields = list(CENTRAL.unpack_from(member.central))
    extra_at = CENTRAL.size + fields[10]
    raw = part.name.encode()
    fields[3] = member.flags
    fields[7:11] = [member.crc, member.compressed, member.size, len(raw)]
    if part.mode:
        fields[15] = fields[15] & U16 | part.mode << 16
    fields[16] = offset
    return CENTRAL.pack(*fields) + raw + member.central[extra_at:]


def check_folder(folder: Path) -> None:
    """Refuse a folder that an `Outbox` could not write; makes nothing. Raises HostError."""
    if not files.is_writable(folder):
        raise _unwritable(folder, "cannot be written")


def _unwritable(path: str | Path, why: str | None) -> HostError:
    return HostError(f"{path}: {why}", hint="choose another folder with --output, or make room")


def refuse_other(made: Path, final: Path) -> None:
    """Raise WheelError where the final path has other bytes than what was made for it."""
    if final.exists() and not same_bytes(made, final):
        raise WheelError(
            f"{final}: exists with other content",
            hint="choose another folder with --output; wheels are never overwritten",
        )


class Outbox:
    """Files that appear in a folder together when the block ends well, or not at all.

    Until then they lie in a hidden folder in it, which is all that a killed run leaves behind.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._hidden = folder / f".unfinished-{os.getpid()}-{os.urandom(4).hex()}"

    def __enter__(self) -> Outbox:  # noqa: PYI034
        try:
            self._hidden.mkdir(parents=True)
        except OSError as exc:
            raise _unwritable(self.folder, exc.strerror) from exc
        return self

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        try:
            if exc is None:
                self._publish()
        finally:
            for draft in self._hidden.iterdir():  # `shutil` takes as long to import as a retag
                draft.unlink()
            self._hidden.rmdir()

    def write(self, name: str, parts: Iterable[ZipPart], archive: ZipArchive) -> Path:
        """Write a wheel aside until the block ends; threads may at once. Raises HostError."""
        try:
            with (self._hidden / name).open("wb") as draft:
                write(parts, archive, draft.fileno())
        except OSError as exc:
            raise _unwritable(self.folder, exc.strerror) from exc
        return self.folder / name

    def _publish(self) -> None:
        made: list[Path] = []
        try:
            for draft in self._hidden.iterdir():
                final = self.folder / draft.name
                try:
                    os.link(draft, final)
                    made.append(final)
                    draft.unlink()  # which changes a time of the wheel, as readers see
                except FileExistsError:
                    refuse_other(draft, final)
                except OSError as exc:
                    raise HostError(
                        f"{final}: {exc.strerror}", hint="choose another folder"
                    ) from exc
        except BaseException:
            for final in made:
                with suppress(OSError):
                    final.unlink()
            raise
