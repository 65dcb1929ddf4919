"""Writing a tar stream into a new folder, trusting nothing in it.

Every path is made of real directories that this run created: no name leaves the folder, no file
is written through a symbolic link, no file is written twice. What is refused is named, and raises
WrongBytesError; the caller removes the folder. The tree ends up without write permission; execute
bits, links and modification times of files survive.
"""

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from rocwheel.base.download import WrongBytesError
from rocwheel.base.values import Plain, replace
from rocwheel.rocm.tarball import MemberKind, TarMember, TarReader, refused, shown

# As many as Linux follows: https://man7.org/linux/man-pages/man7/path_resolution.7.html
LINK_HOPS: Final = 40
NAME_MAX: Final = 255  # bytes of one component
GIB: Final = 1 << 30


class UnpackLimits(Plain, frozen=True, kw_only=True):
    """Limits on what a tarball may unpack to, above what any ROCm has."""

    unpacked: int = 200 * GIB  # bytes, all files together
    ratio: int = 200  # unpacked to packed, beyond the first GiB
    slack: int = GIB
    members: int = 1_000_000
    name_bytes: int = 64 << 20  # all names together: they are kept in memory
    path: int = 2048  # bytes of one name
    depth: int = 100


class Unpacked(Plain, frozen=True, kw_only=True):
    """What was unpacked: the number of files, and bytes."""

    files: int
    bytes: int


def unpack(
    blocks: Iterable[bytes],
    into: Path,
    *,
    name: str,
    packed: Callable[[], int],
    limits: UnpackLimits | None = None,
) -> Unpacked:
    """Unpack the tar stream into the new folder `into` and make the tree read-only.

    `packed` returns how many bytes of the archive have been read; errors call it `name`.
    Raises WrongBytesError for a bad archive, OSError when the disk refuses.
    """
    into.mkdir()
    limits = limits or UnpackLimits()
    top = os.open(into, os.O_RDONLY | os.O_DIRECTORY)
    try:
        tar = TarReader(_in_proportion(blocks, name, packed, limits), name=name)
        return _Writer(tar, top, name, limits).run()
    finally:
        os.close(top)


def _in_proportion(
    blocks: Iterable[bytes], name: str, packed: Callable[[], int], limits: UnpackLimits
) -> Iterator[bytes]:
    total = 0
    for block in blocks:
        total += len(block)
        # The reader runs ahead of us, so `packed` is never too small.
        if total > limits.slack + limits.ratio * packed():
            raise WrongBytesError(
                f"{name}: unpacks out of all proportion: {total} bytes from {packed()}",
                hint="do not use this archive; get it from where it was made",
            )
        yield block


class _Writer:
    def __init__(self, tar: TarReader, top: int, name: str, limits: UnpackLimits) -> None:
        self._tar = tar
        self._top = top  # every path is opened relative to it
        self._name = name
        self._limits = limits
        self._directories: dict[bytes, int] = {b"": 0o755}  # path -> mode in the archive
        self._links: dict[bytes, bytes] = {}
        self._files: set[bytes] = set()
        self._bytes = 0
        self._name_bytes = 0
        self._write = {
            MemberKind.FILE: self._file,
            MemberKind.DIRECTORY: self._directory,
            MemberKind.SYMLINK: self._symlink,
            MemberKind.HARDLINK: self._hardlink,
        }

    def run(self) -> Unpacked:
        limits = self._limits
        for number, member in enumerate(self._tar.members(), 1):
            self._name_bytes += len(member.name) + len(member.link)
            if number > limits.members or self._name_bytes > limits.name_bytes:
                raise self._refused(member, "is one member too many")
            self._write[member.kind](member)
        self._tar.drain()
        self._check_links()
        allowed = stat.S_IMODE(os.fstat(self._top).st_mode)  # what the umask left of 0o777
        for path in sorted(self._directories, key=len, reverse=True):
            # Closed from the leaves up; the owner can always list and enter.
            mode = self._directories[path] & allowed & 0o555 | 0o500
            os.chmod(path or b".", mode, dir_fd=self._top)
        return Unpacked(files=len(self._files), bytes=self._bytes)

    def _refused(self, member: TarMember, problem: str) -> Exception:
        return refused(self._name, member.name, problem)

    # Names.

    def _path(self, member: TarMember) -> bytes:
        parts = self._parts(member, member.name)
        folder = self._folders(member, parts[:-1])
        return b"/".join(filter(None, (folder, *parts[-1:])))

    def _parts(self, member: TarMember, name: bytes) -> list[bytes]:
        if not name or b"\0" in name:
            raise self._refused(member, "has no usable name")
        if name.startswith(b"/"):
            raise self._refused(member, f"has the absolute name {shown(name)}")
        parts = [part for part in name.split(b"/") if part not in (b"", b".")]
        if b".." in parts:
            raise self._refused(member, f"leaves the tree: {shown(name)}")
        if len(parts) > self._limits.depth:
            raise self._refused(member, "lies too deep")
        if len(name) > self._limits.path or max(map(len, parts), default=0) > NAME_MAX:
            raise self._refused(member, "has too long a name")
        return parts

    def _folders(self, member: TarMember, parts: list[bytes]) -> bytes:
        path = b""
        for part in parts:
            path = path + b"/" + part if path else part
            if path in self._directories:
                continue
            if path in self._links:
                raise self._refused(member, "would be written through a symbolic link")
            if path in self._files:
                raise self._refused(member, "lies below a file")
            self._make(path, 0o755)
        return path

    def _make(self, path: bytes, mode: int) -> None:
        os.mkdir(path, 0o755, dir_fd=self._top)
        self._directories[path] = mode

    def _new(self, member: TarMember) -> bytes:
        path = self._path(member)
        if not path or path in self._directories or path in self._files or path in self._links:
            raise self._refused(member, "is there twice")
        return path

    # Members.

    def _directory(self, member: TarMember) -> None:
        path = self._path(member)
        if path in self._links or path in self._files:
            raise self._refused(member, "is there twice")
        if path in self._directories:
            self._directories[path] = member.mode
        else:
            self._make(path, member.mode)

    def _file(self, member: TarMember) -> None:
        path = self._new(member)
        self._bytes += member.size
        if self._bytes > self._limits.unpacked:
            raise self._refused(member, f"is absurdly big ({member.size} bytes)")
        # Never setuid, never writable again; the descriptor may write all the same.
        mode = member.mode & 0o555 | 0o400
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(path, flags, mode, dir_fd=self._top)
        try:
            for run in self._tar.data():
                left = run
                while left:
                    left = left[os.write(file, left) :]
            os.utime(file, ns=(member.mtime_ns, member.mtime_ns))
        except OverflowError as exc:
            raise self._refused(member, "has an impossible time") from exc
        finally:
            os.close(file)
        self._files.add(path)

    def _symlink(self, member: TarMember) -> None:
        path = self._new(member)
        target = member.link
        if not target or b"\0" in target or len(target) > self._limits.path:
            raise self._refused(member, "points nowhere")
        if target.startswith(b"/"):
            raise self._refused(member, f"points to the absolute {shown(target)}")
        os.symlink(target, path, dir_fd=self._top)
        self._links[path] = target

    def _hardlink(self, member: TarMember) -> None:
        path = self._new(member)
        target = b"/".join(self._parts(member, member.link))
        if target in self._links:  # of links with two names, tar stores the second one so
            self._symlink(replace(member, link=self._links[target]))
            return
        if target not in self._files:
            raise self._refused(member, f"is a hard link to {shown(target)}, no file before it")
        os.link(target, path, src_dir_fd=self._top, dst_dir_fd=self._top, follow_symlinks=False)
        self._files.add(path)

    def _check_links(self) -> None:
        """Follow every symbolic link, through others too, as the kernel would."""
        for link in self._links:
            here = link.split(b"/")[:-1]
            ahead = self._links[link].split(b"/")[::-1]
            hops = 0
            while ahead:
                part = ahead.pop()
                if part == b".." and not here:
                    raise refused(
                        self._name, link, f"leads out of the tree: {shown(self._links[link])}"
                    )
                if part == b"..":
                    here.pop()
                elif part not in (b"", b"."):
                    here.append(part)
                    if (onward := self._links.get(b"/".join(here))) is not None:
                        hops += 1
                        if hops > LINK_HOPS:
                            raise refused(self._name, link, "leads round in circles")
                        here.pop()
                        ahead += onward.split(b"/")[::-1]
