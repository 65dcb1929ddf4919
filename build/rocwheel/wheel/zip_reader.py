"""Reads a wheel's zip archive without trusting it, and without holding a member in memory.

`ZipArchive` accepts only archives that every reader understands alike: one end record, no bytes
outside members, local headers that agree with the central directory, no two members that could
land on one path. Everything else is refused with a WheelError before a single byte is inflated;
sizes and CRCs are checked while a member streams. The format is PKWARE's APPNOTE 6.3.10; the
restrictions are those of the wheel format (packaging.python.org) and of the confusion attacks
that PyPI has refused since 2025.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

# ISA-L is faster still and accepts incomplete distance codes, which pip's zlib refuses
# (https://github.com/madler/zlib/blob/master/inftrees.c).
from zlib_ng import zlib_ng

from rocwheel.base.console import brief
from rocwheel.base.errors import WheelError, named
from rocwheel.wheel import LIMITS

LOCAL: Final = struct.Struct("<IHHHHHIIIHH")
CENTRAL: Final = struct.Struct("<IHHHHHHIIIHHHHHII")
END: Final = struct.Struct("<IHHHHIIH")
LOCAL_SIGNATURE: Final = 0x04034B50
CENTRAL_SIGNATURE: Final = 0x02014B50
END_SIGNATURE: Final = 0x06054B50
DESCRIPTOR_SIGNATURE: Final = 0x08074B50
ZIP64_EXTRA: Final = 0x0001
# Extra fields that some readers go by and others do not: unzip and bsdtar take a mode and a link's
# target from those of ASi and of PKWARE for Unix, pip does not.
MISLEADING_EXTRAS: Final = {
    0x7075: "a second name",
    0x6375: "a second comment",
    0x756E: "a file of another type",
    0x000D: "a file of another type",
}
# DOS attributes: a volume's label, a folder, a device; of Windows: a link (a reparse point).
LABEL_FOLDER_DEVICE_LINK: Final = 0x0008 | 0x0010 | 0x0040 | 0x0400
DOS_FOLDER: Final = 0x0010
U16: Final = 0xFFFF
U32: Final = 0xFFFFFFFF
STORED: Final = 0
DEFLATED: Final = 8
FLAG_DESCRIPTOR: Final = 0x0008
FLAG_UTF8: Final = 0x0800
KNOWN_FLAGS: Final = 0x0002 | 0x0004 | FLAG_DESCRIPTOR | FLAG_UTF8
UNIX: Final = 3  # "version made by", high byte
NEWEST: Final = 45  # "version needed to extract": zip64; what comes later no wheel uses
DESCRIPTOR: Final = 24  # bytes of the longest data descriptor
NAME: Final = 1024  # bytes of a member's path; with a prefix it must fit into PATH_MAX
PART: Final = 255  # bytes of one name in it (NAME_MAX)
READ: Final = 256 << 10  # bytes of compressed input at a time
CHUNK: Final = 1 << 20  # bytes of inflated output at a time
_LIKE_AN_ARCHIVE: Final = re.compile(rb"PK[\0-\x1f]")  # uv refuses such a comment, too


class Stamp(NamedTuple):
    """What changes when another program writes or replaces a file."""

    device: int
    inode: int
    size: int  # bytes
    changed: int  # nanoseconds; nothing sets this time back

    @classmethod
    def of(cls, status: os.stat_result) -> Stamp:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)


class ZipMember(NamedTuple):
    """One file or folder of the archive; its local header and its central record agree.

    While the directory is read, fields of the local header are 0 or empty.
    """

    name: str
    method: int
    flags: int
    crc: int
    compressed: int  # bytes
    size: int  # bytes, inflated
    mode: int  # permission and type bits; 0 where the maker was not Unix
    stamp: tuple[int, int]  # DOS time and date as they stand in the archive
    start: int  # offset of the local header
    central: bytes  # the whole central record
    local: bytes = b""  # the whole local header
    data: int = 0  # offset of the compressed bytes
    end: int = 0  # past the data and its descriptor

    @property
    def is_dir(self) -> bool:
        return self.name.endswith("/")


class ZipArchive:
    """An open wheel; every method raises WheelError where the archive is not sound.

    So does the end of a `with` block when the file was written to or replaced meanwhile: then what
    was read need not belong together.
    """

    def __init__(self, path: Path, *, stamp: Stamp | None = None) -> None:
        """Open it and check the structure; with `stamp`, that it is still that file."""
        self.path = path
        with named(path, WheelError, hint="name an existing wheel"):
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                self.refuse("not a regular file", hint="name a wheel that is a file")
            self.size = status.st_size
            self.stamp = Stamp.of(status)
            if stamp is not None and stamp != self.stamp:
                self._changed()
            self.members = self._read_members(*self._find_directory())
        except BaseException:
            os.close(self._fd)
            raise
        self.by_name = {member.name: member for member in self.members}

    def __enter__(self) -> ZipArchive:  # noqa: PYI034
        return self

    def __exit__(self, kind: object, exc: BaseException | None, trace: object) -> None:
        os.close(self._fd)
        if exc is None:
            try:
                unchanged = Stamp.of(self.path.stat()) == self.stamp
            except OSError:
                unchanged = False
            if not unchanged:
                self._changed()

    def refuse(self, problem: str, *, hint: str = "build or fetch the wheel again") -> NoReturn:
        raise WheelError(f"{self.path}: {brief(problem)}", hint=hint)

    def _changed(self) -> NoReturn:
        raise WheelError(
            f"{self.path}: was changed while it was read", hint="wait for its writer, then again"
        )

    def bytes_at(self, offset: int, size: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) != size:
            self.refuse(f"cut short: {size} bytes expected at offset {offset}")
        return data

    def raw(self, offset: int, end: int, *, step: int = READ) -> Iterator[bytes]:
        while offset < end:
            piece = self.bytes_at(offset, min(step, end - offset))
            offset += len(piece)
            yield piece

    def read(self, name: str) -> bytes:
        """Return a small member's content. Raises WheelError when it is absent or too large."""
        member = self.by_name.get(name)
        if member is None:
            self.refuse(f"{name} is missing")
        is_record = name.endswith(".dist-info/RECORD")
        if member.size > (LIMITS.record if is_record else LIMITS.text):
            self.refuse(f"{name}: {member.size} bytes are too many for a text file")
        return b"".join(self.stream(member))

    def stream(self, member: ZipMember) -> Iterator[bytes]:
        """Return a member's content in pieces of at most 1 MiB; size and CRC must hold."""
        size = crc = 0
        stored = self.raw(member.data, member.data + member.compressed, step=CHUNK)
        for piece in stored if member.method == STORED else self._inflated(member):
            size += len(piece)
            if size > member.size:
                self.refuse(f"{member.name}: expands beyond its declared {member.size} bytes")
            crc = zlib_ng.crc32(piece, crc)
            yield piece
        if size != member.size:
            self.refuse(f"{member.name}: holds {size} bytes and declares {member.size}")
        if crc != member.crc:
            self.refuse(f"{member.name}: its CRC is {crc:08x} and it declares {member.crc:08x}")

    def _inflated(self, member: ZipMember) -> Iterator[bytes]:
        inflate = zlib_ng.decompressobj(-15)
        try:
            for packed in self.raw(member.data, member.data + member.compressed):
                if inflate.eof:
                    self.refuse(f"{member.name}: bytes after the end of its deflate stream")
                rest = packed
                while rest and not inflate.eof:
                    if piece := inflate.decompress(rest, CHUNK):
                        yield piece
                    rest = inflate.unconsumed_tail
            while not inflate.eof and (piece := inflate.decompress(b"", CHUNK)):
                yield piece
        except zlib_ng.error as exc:  # type: ignore[misc]  # its stub declares a value
            self.refuse(f"{member.name}: its deflate stream is damaged: {exc}")
        if not inflate.eof or inflate.unused_data:
            self.refuse(f"{member.name}: its deflate stream does not end with its bytes")

    def _find_directory(self) -> tuple[int, int, int]:
        """Return offset, size and number of members of the central directory; keep the comment."""
        start = max(0, self.size - END.size - U16)
        tail = self.bytes_at(start, self.size - start)
        signature = END_SIGNATURE.to_bytes(4, "little")
        at = tail.rfind(signature)
        if at < 0 or len(tail) - at < END.size:
            self.refuse("not a zip archive, or cut short")
        _, disk, first_disk, here, count, size, offset, length = END.unpack_from(tail, at)
        if at + END.size + length != len(tail):
            self.refuse("bytes after its end record")
        if _LIKE_AN_ARCHIVE.search(tail, at + END.size):
            self.refuse("its comment looks like another archive")
        if disk or first_disk or here != count:
            self.refuse("spans several disks")
        if U32 in (size, offset) or count == U16:
            self.refuse("of 4 GiB or 65535 members: rocwheel reads smaller ones")
        if offset + size != start + at:
            self.refuse("its central directory is not where its end record says")
        if size > LIMITS.directory:
            self.refuse(f"a directory of {size} bytes is larger than any wheel's")
        self.comment = tail[at + END.size :]
        return offset, size, count

    def _read_members(self, offset: int, size: int, count: int) -> tuple[ZipMember, ...]:
        raw = self.bytes_at(offset, size)
        records: list[ZipMember] = []
        at = 0
        while at < len(raw):
            if len(records) == count:
                self.refuse(f"{count} members declared, and more listed")
            records.append(self._record(raw, at))
            at += len(records[-1].central)
        if len(records) != count:
            self.refuse(f"{count} members declared, {len(records)} listed")
        if conflict := path_conflict(record.name for record in records):
            self.refuse(conflict)
        self._check_sizes(records)
        bounds = [*sorted(record.start for record in records), offset]
        if bounds[0] != 0:
            self.refuse("bytes before its first member")
        if len(set(bounds)) != len(bounds):
            self.refuse("members that overlap")
        ends = dict(itertools.pairwise(bounds))
        members = []
        local = 0
        for record in records:
            members.append(self._member(record, ends[record.start]))
            local += len(members[-1].local)
            if local > LIMITS.directory:
                self.refuse("its local headers are larger than any wheel's")
        return tuple(members)

    def _record(self, raw: bytes, at: int) -> ZipMember:
        if len(raw) - at < CENTRAL.size:
            self.refuse("its central directory is cut short")
        fields = CENTRAL.unpack_from(raw, at)
        signature, made, needed, flags, method, time, date, crc, compressed, size = fields[:10]
        name_length, extra_length, comment_length, disk, _, attributes, offset = fields[10:]
        length = CENTRAL.size + name_length + extra_length + comment_length
        if signature != CENTRAL_SIGNATURE or at + length > len(raw):
            self.refuse("its central directory is broken")
        name = self._name(raw[at + CENTRAL.size : at + CENTRAL.size + name_length], flags)
        if needed > NEWEST:
            self.refuse(f"{name}: needs version {needed / 10:.1f} of the format to be read")
        if flags & ~KNOWN_FLAGS:
            self.refuse(f"{name}: encrypted, or a flag no wheel uses ({flags:#06x})")
        if method not in (STORED, DEFLATED):
            self.refuse(f"{name}: compression method {method}; wheels are stored or deflated")
        if method == STORED and flags & FLAG_DESCRIPTOR:  # uv, while it downloads, says the same
            self.refuse(f"{name}: stored with its sizes behind it: a stream does not show its end")
        if disk:
            self.refuse("spans several disks")
        if U32 in (size, compressed, offset):
            self.refuse(f"{name}: of 4 GiB, or behind them: rocwheel reads smaller wheels")
        extra = raw[at + CENTRAL.size + name_length : at + length - comment_length]
        self._check_wide(name, self._zip64(name, extra), 0)
        self._check_type(name, attributes)
        if _LIKE_AN_ARCHIVE.search(raw, at + length - comment_length, at + length):
            self.refuse(f"{name}: its comment looks like another archive")
        return ZipMember(
            name=name,
            method=method,
            flags=flags,
            crc=crc,
            compressed=compressed,
            size=size,
            mode=attributes >> 16 if made >> 8 == UNIX else 0,
            stamp=(time, date),
            start=offset,
            central=raw[at : at + length],
        )

    def _check_type(self, name: str, attributes: int) -> None:
        """Refuse all but plain files and folders, by the mode bits of any making system.

        unzip takes the mode of other systems than Unix too, and pip of all.
        """
        kind = stat.S_IFMT(attributes >> 16)
        if kind not in (0, stat.S_IFDIR if name.endswith("/") else stat.S_IFREG):
            self.refuse(f"{name}: a link or a special file; wheels hold files only")
        if attributes & LABEL_FOLDER_DEVICE_LINK & ~(DOS_FOLDER if name.endswith("/") else 0):
            self.refuse(f"{name}: not a plain file by its DOS attributes ({attributes & U16:#06x})")

    def _name(self, raw: bytes, flags: int) -> str:
        try:
            name = raw.decode("utf-8" if flags & FLAG_UTF8 else "ascii")
        except UnicodeDecodeError:
            self.refuse(f"{raw!r}: a name that is neither ASCII nor marked UTF-8")
        is_odd = "\\" in name or name.startswith("/") or name.endswith("//")
        if not name or is_odd or not name.isprintable():
            self.refuse(f"{name!r}: not a relative path")
        if name[1:2] == ":" or any(part in ("", ".", "..") for part in name.rstrip("/").split("/")):
            self.refuse(f"{name!r}: a path that leaves the wheel or is not in its simplest form")
        if len(raw) > NAME or any(len(part) > PART for part in raw.split(b"/")):
            self.refuse(f"{name[:60]}…: a name of {len(raw)} bytes, too long for a file system")
        return name

    def _check_sizes(self, records: list[ZipMember]) -> None:
        total = sum(record.size for record in records)
        if total > min(LIMITS.total, max(LIMITS.total_from, LIMITS.total_ratio * self.size)):
            self.refuse(f"{self.size} bytes that expand to {total}")
        for record in records:
            if record.is_dir and record.size:
                self.refuse(f"{record.name}: a folder with content")
            if record.method == STORED and record.size != record.compressed:
                self.refuse(f"{record.name}: stored, but its two sizes differ")
            if record.size > max(LIMITS.ratio_from, LIMITS.ratio * record.compressed):
                self.refuse(
                    f"{record.name}: {record.compressed} bytes that expand to {record.size}"
                )

    def _zip64(self, name: str, extra: bytes) -> bytes:
        wide: bytes | None = None
        at = 0
        while at < len(extra):
            tag, length = struct.unpack("<HH", extra[at : at + 4].ljust(4, b"\xff"))
            body = extra[at + 4 : at + 4 + length]
            at += 4 + length
            if len(body) != length or (tag == ZIP64_EXTRA and wide is not None):
                self.refuse(f"{name}: a broken extra field")
            if tag in MISLEADING_EXTRAS:
                self.refuse(f"{name}: {MISLEADING_EXTRAS[tag]} in an extra field")
            if tag == ZIP64_EXTRA:
                wide = body
        return wide or b""

    def _check_wide(self, name: str, wide: bytes, asked: int) -> None:
        if len(wide) < 8 * asked:
            self.refuse(f"{name}: its zip64 sizes are missing or cut short")
        if len(wide) > 8 * asked:
            self.refuse(f"{name}: 64-bit sizes that nothing asks for")

    def _member(self, record: ZipMember, bound: int) -> ZipMember:
        """Return the member with its local header, which must agree with its central record."""
        name, has_descriptor = record.name, record.flags & FLAG_DESCRIPTOR
        header = self.bytes_at(record.start, LOCAL.size)
        signature, needed, flags, method, *rest = LOCAL.unpack(header)
        *stamp, crc, compressed, size, length, extra = rest
        if signature != LOCAL_SIGNATURE or needed > NEWEST:
            self.refuse(f"{name}: no local header where the directory says, or one too new")
        data = record.start + LOCAL.size + length + extra
        end = data + record.compressed
        if end > bound:
            self.refuse(f"{name}: overlaps the next member")
        local = self.bytes_at(record.start, data - record.start)
        if local[LOCAL.size : LOCAL.size + length] != name.encode():
            self.refuse(f"{name}: its local header has another name")
        wide = self._zip64(name, local[LOCAL.size + length :])
        short = [size, compressed]
        asked = short.count(U32)
        # zipfile repeated the short ones (Python's gh-103861). To some readers a descriptor is then
        # as wide as these, to others as the short ones.
        if asked or has_descriptor or wide != struct.pack("<QQ", *short):
            self._check_wide(name, wide, asked)
        values = iter(struct.unpack_from(f"<{asked}Q", wide))
        sizes = tuple(next(values) if each == U32 else each for each in short)[::-1]
        agreed = (crc, *sizes) == (record.crc, record.compressed, record.size)
        deferred = has_descriptor and (crc, *sizes) == (0, 0, 0)
        shared = (flags, method, tuple(stamp)) == (record.flags, record.method, record.stamp)
        if not shared or not (agreed or deferred):
            self.refuse(f"{name}: its local header and the directory disagree")
        behind = self.bytes_at(end, min(bound - end, DESCRIPTOR + 1))
        if has_descriptor and not behind:
            self.refuse(f"{name}: its data descriptor is missing")
        # Readers of a stream take a descriptor for as wide as the local header's sizes are.
        layout = "<IQQ" if asked else "<III"
        if behind and not (has_descriptor and _is_descriptor(record, behind, layout)):
            self.refuse(f"{name}: followed by bytes that belong to no member")
        return record._replace(local=local, data=data, end=bound)


def _is_descriptor(member: ZipMember, raw: bytes, layout: str) -> bool:
    sizes = (member.compressed, member.size)
    if layout == "<III" and max(sizes) > U32:
        return False
    body = struct.pack(layout, member.crc, *sizes)
    return raw in (body, struct.pack("<I", DESCRIPTOR_SIGNATURE) + body)


def path_conflict(names: Iterable[str]) -> str:
    """Return what is wrong with names that are unpacked together; "" for nothing."""
    seen: dict[str, str] = {}
    for name in names:
        key = _key(name.rstrip("/"))
        if key in seen:
            return f"{name!r} and {seen[key]!r} would land on one path"
        seen[key] = name
    # With NUL for the slash, all that lies below a path comes right after it.
    in_order = sorted((key.replace("/", "\0"), name) for key, name in seen.items())
    for (above, upper), (below, lower) in itertools.pairwise(in_order):
        if below.startswith(f"{above}\0") and not upper.endswith("/"):
            return f"{lower!r} lies below a member that is a file"
    return ""


def _key(name: str) -> str:
    """Return a key that is the same for names that become one path on some system."""
    if name.isascii():
        return name.lower()
    import unicodedata

    return unicodedata.normalize("NFC", name).casefold()
