"""ROCm tarballs made in code: sound ones, and every kind of bad one."""

from __future__ import annotations

import gzip
import io
import lzma
import random
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import zstandard

from rocwheel.rocm.rocm_root import Facts
from rocwheel.source import load_layouts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

NAME = "therock-dist-linux-gfx94X-dcgpu-7.10.0a20251120.tar.gz"
MTIME = 1_700_000_000
# of a tree that nobody looks into
FACTS = Facts(
    root="",
    info_version="7.10.0",
    header_version="7.10.0",
    clang="c",
    bitcode="b",
    targets=("gfx942",),
    sonames=("libx.so",),
)

HEADER = """\
#define ROCM_VERSION_MAJOR {}
#define ROCM_VERSION_MINOR {}
#define ROCM_VERSION_PATCH {}
"""


@dataclass(frozen=True, kw_only=True)
class File:
    data: bytes
    mode: int = 0o644


@dataclass(frozen=True, kw_only=True)
class Link:
    target: str


def rocm_files(version: str = "7.10.0", *, info: str | None = None) -> dict[str, File | Link]:
    """The smallest tree that passes every check."""
    major, minor, patch = version.split(".")
    return {
        ".info/version": File(data=(info or version).encode() + b"\n"),
        "include/rocm-core/rocm_version.h": File(data=HEADER.format(major, minor, patch).encode()),
        "lib/llvm/bin/clang-20": File(data=b"#!/bin/sh\nexit 0\n", mode=0o755),
        "lib/llvm/bin/clang": Link(target="clang-20"),
        "lib/llvm/amdgcn/bitcode/ockl.bc": File(data=b"BC\xc0\xde"),
        "lib/llvm/amdgcn/bitcode/oclc_isa_version_942.bc": File(data=b"BC\xc0\xde"),
        "lib/libamdhip64.so.7.1.0": File(data=b"\x7fELF hip", mode=0o755),
        "lib/libamdhip64.so.7": Link(target="libamdhip64.so.7.1.0"),
        "lib/libamdhip64.so": Link(target="libamdhip64.so.7"),
        "lib/rocm_sysdeps/lib/librocm_sysdeps_z.so.1": File(data=b"\x7fELF z", mode=0o755),
        "bin/hipcc": Link(target="../lib/llvm/bin/clang"),
    }


def rocm_folder(root: Path, *, targets: Iterable[str] = ("gfx942",)) -> Path:
    """The same tree as a folder, with all else that a JAX build looks for, as TheRock 7.12 has it."""
    layouts = load_layouts(Path(__file__).parents[2] / "ci" / "layouts.yaml")
    needs = [item.needs for layout in layouts.values() for item in layout.classes]
    files = rocm_files()
    for need in needs:
        for path in (*need.paths, *need.executables):
            name = path.split("|")[0].replace("clang/*", "clang/20")
            name = f"lib/{name}" if name.startswith("llvm/") else name
            macro = need.macros.get(path)
            data = f"#define {macro} 7\n".encode() if macro else b"x"
            mode = 0o755 if path in need.executables else 0o644
            files.setdefault(name, File(data=data, mode=mode))
    for target in targets:
        name = f"lib/llvm/amdgcn/bitcode/oclc_isa_version_{target.removeprefix('gfx')}.bc"
        files.setdefault(name, File(data=b"BC\xc0\xde"))
    links = {"llvm": Link(target="lib/llvm"), "amdgcn": Link(target="lib/llvm/amdgcn")}
    return write(root, {**files, **links})


def write(root: Path, files: Mapping[str, File | Link]) -> Path:
    """Files as they are in a tar, in a folder."""
    for name, item in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(item, Link):
            path.symlink_to(item.target)
        else:
            path.write_bytes(item.data)
            path.chmod(item.mode)
    return root


def filler(size: int, *, seed: int = 1) -> dict[str, File | Link]:
    """Incompressible files of about `size` bytes together: a tarball as long as it looks."""
    rng = random.Random(seed)
    return {
        f"share/data/{number}.bin": File(data=rng.randbytes(min(100_000, size - start)))
        for number, start in enumerate(range(0, size, 100_000))
    }


def tar(
    files: Mapping[str, File | Link], *, prefix: str = "", format_: int = tarfile.GNU_FORMAT
) -> bytes:
    """A deterministic tar of `files`, each folder a member before what is in it."""
    out = io.BytesIO()
    made: set[str] = set()
    with tarfile.open(fileobj=out, mode="w", format=format_) as archive:
        if prefix.rstrip("/"):
            archive.addfile(_info(prefix.rstrip("/"), tarfile.DIRTYPE, 0o755))
        for name, item in files.items():
            parts = name.split("/")
            for depth in range(1, len(parts)):
                folder = "/".join(parts[:depth])
                if folder not in made:
                    made.add(folder)
                    archive.addfile(_info(prefix + folder, tarfile.DIRTYPE, 0o755))
            if isinstance(item, Link):
                info = _info(prefix + name, tarfile.SYMTYPE, 0o777)
                info.linkname = item.target
                archive.addfile(info)
            else:
                info = _info(prefix + name, tarfile.REGTYPE, item.mode)
                info.size = len(item.data)
                archive.addfile(info, io.BytesIO(item.data))
    return out.getvalue()


def _info(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime = kind, mode, MTIME
    return info


def gz(data: bytes) -> bytes:
    return gzip.compress(data, compresslevel=1, mtime=0)


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gz,
    "xz": lambda data: lzma.compress(data, preset=0),
    "zst": lambda data: zstandard.ZstdCompressor(level=1).compress(data),
}


def rocm_tarball(version: str = "7.10.0", *, extra: int = 0, prefix: str = "") -> bytes:
    """A `.tar.gz` that is accepted; `extra` adds incompressible bytes."""
    return gz(tar({**rocm_files(version), **filler(extra)}, prefix=prefix))


# Members no tool would write: header blocks made by hand.


@dataclass(frozen=True, kw_only=True)
class Raw:
    """One header block (ustar) and its data."""

    name: bytes
    type: bytes = b"0"
    data: bytes = b""
    link: bytes = b""
    mode: int = 0o644
    size: bytes | None = None  # the field as it stands there; else the length of `data`
    checksum: bytes | None = None
    extra: bytes = field(default=b"", repr=False)  # from byte 345 on

    def __bytes__(self) -> bytes:
        size = self.size if self.size is not None else b"%011o\0" % len(self.data)
        head = b"".join(
            (
                self.name[:100].ljust(100, b"\0"),
                b"%07o\0" % self.mode,
                b"0000000\0" * 2,
                size,
                b"%011o\0" % MTIME,
                b" " * 8,
                self.type,
                self.link[:100].ljust(100, b"\0"),
                b"ustar\x0000" if not self.extra else b"ustar  \0",
                b"\0" * 80,
                self.extra.ljust(167, b"\0"),
            )
        )
        assert len(head) == 512, len(head)
        checksum = self.checksum or b"%06o\0 " % sum(head)
        return head[:148] + checksum + head[156:] + self.data + b"\0" * (-len(self.data) % 512)


END = b"\0" * 1024


def raw_tar(members: Iterable[Raw], *, after: bytes = END) -> bytes:
    """A sound ROCm tree, then `members`, then the end."""
    sound = tar(rocm_files())
    body = sound[: _end_of_members(sound)]
    return body + b"".join(bytes(member) for member in members) + after


def _end_of_members(data: bytes) -> int:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        last = archive.getmembers()[-1]
    return last.offset_data + last.size + -last.size % 512


def pax(**records: str) -> bytes:
    """The data of a pax header."""
    return b"".join(pax_record(key.encode(), value.encode()) for key, value in records.items())


def pax_record(key: bytes, value: bytes) -> bytes:
    length = len(key) + len(value) + 3
    while len(str(length)) + len(key) + len(value) + 3 != length:
        length = len(str(length)) + len(key) + len(value) + 3
    return b"%d %s=%s\n" % (length, key, value)


def malicious() -> dict[str, tuple[bytes, str]]:
    """Title -> (tarball, what its refusal must say); every one of them starts as sound ROCm."""
    members: dict[str, tuple[list[Raw], str]] = {
        "absolute name": ([Raw(name=b"/etc/cron.d/x", data=b"x")], "/etc/cron.d/x"),
        "absolute folder": ([Raw(name=b"/tmp/evil/", type=b"5")], "/tmp/evil"),
        "parent in the name": ([Raw(name=b"../evil", data=b"x")], "../evil"),
        "parent inside the name": ([Raw(name=b"lib/../../evil", data=b"x")], "lib/../../evil"),
        "parent at the end": ([Raw(name=b"lib/..", type=b"5")], "lib/.."),
        "parent folder, then a file": (
            [Raw(name=b"lib/../", type=b"5"), Raw(name=b"x", data=b"x")],
            "lib/..",
        ),
        "absolute symlink": ([Raw(name=b"lib/a", type=b"2", link=b"/etc/passwd")], "/etc/passwd"),
        "symlink out of the tree": ([Raw(name=b"lib/a", type=b"2", link=b"../../x")], "lib/a"),
        "symlink out through a symlink": (
            [
                Raw(name=b"deep/up", type=b"2", link=b".."),
                Raw(name=b"deep/out", type=b"2", link=b"up/../x"),
            ],
            "deep/out",
        ),
        "symlink out through a later symlink": (
            [
                Raw(name=b"first", type=b"2", link=b"d/e/../../x"),
                Raw(name=b"d/e", type=b"2", link=b"../lib"),
            ],
            "first",
        ),
        "file written through a symlink": (
            [
                Raw(name=b"way", type=b"2", link=b"lib"),
                Raw(name=b"way/evil", data=b"x"),
            ],
            "way/evil",
        ),
        "file written through a symlink to outside": (
            [
                Raw(name=b"out", type=b"2", link=b"../../.."),
                Raw(name=b"out/evil", data=b"x"),
            ],
            "out/evil",
        ),
        "folder made through a symlink": (
            [
                Raw(name=b"way", type=b"2", link=b"lib"),
                Raw(name=b"way/new/", type=b"5"),
            ],
            "way/new",
        ),
        "symlink replaced by a file": (
            [
                Raw(name=b"lib/x", type=b"2", link=b"libamdhip64.so.7.1.0"),
                Raw(name=b"lib/x", data=b"evil"),
            ],
            "lib/x",
        ),
        "folder replaced by a symlink": (
            [Raw(name=b"lib", type=b"2", link=b"bin")],
            "lib",
        ),
        "file twice": (
            [Raw(name=b"one", data=b"1"), Raw(name=b"./one", data=b"2")],
            "./one",
        ),
        "file where a folder is": ([Raw(name=b"lib", data=b"x")], "lib"),
        "file below a file": ([Raw(name=b".info/version/x", data=b"x")], ".info/version/x"),
        "symlinks in a circle": (
            [
                Raw(name=b"a", type=b"2", link=b"b"),
                Raw(name=b"b", type=b"2", link=b"a"),
            ],
            "circles",
        ),
        "symlink to nothing": ([Raw(name=b"a", type=b"2")], "points nowhere"),
        "hard link out of the tree": (
            [Raw(name=b"a", type=b"1", link=b"../../etc/passwd")],
            "../../etc/passwd",
        ),
        "hard link to an absolute name": (
            [Raw(name=b"a", type=b"1", link=b"/etc/passwd")],
            "/etc/passwd",
        ),
        "hard link to a folder": ([Raw(name=b"a", type=b"1", link=b"lib")], "hard link"),
        "hard link to a later file": (
            [Raw(name=b"a", type=b"1", link=b"b"), Raw(name=b"b", data=b"x")],
            "hard link",
        ),
        "hard link through a symlink": (
            [
                Raw(name=b"way", type=b"2", link=b".info"),
                Raw(name=b"a", type=b"1", link=b"way/version"),
            ],
            "hard link",
        ),
        "character device": ([Raw(name=b"null", type=b"3")], "null"),
        "block device": ([Raw(name=b"sda", type=b"4")], "sda"),
        "named pipe": ([Raw(name=b"pipe", type=b"6")], "pipe"),
        "another volume": ([Raw(name=b"vol", type=b"M")], "vol"),
        "unknown type": ([Raw(name=b"odd", type=b"Q")], "odd"),
        "absurd size": (
            [Raw(name=b"huge", size=b"\x80" + (1 << 60).to_bytes(11, "big"))],
            "huge",
        ),
        "negative size": ([Raw(name=b"minus", size=b"\xff" * 11 + b"\xfe")], "damaged"),
        "size that is not a number": ([Raw(name=b"nan", size=b"1234567x901\0")], "no tar header"),
        "wrong header checksum": ([Raw(name=b"sum", data=b"x", checksum=b"000000\0 ")], "header"),
        "component too long": ([_long(b"x" * 256)], "too long"),
        "name too long": ([_long(b"/".join([b"y" * 200] * 11))], "too long"),
        "too deep": ([_long(b"z/" * 101 + b"f")], "too deep"),
        "name with a zero byte": (
            [Raw(name=b"h", type=b"x", data=pax_record(b"path", b"a\0b")), Raw(name=b"a")],
            "no usable name",
        ),
        "empty name": ([Raw(name=b"", data=b"x")], "no usable name"),
        "the root as a file": ([Raw(name=b"./.", data=b"x")], "./."),
        "huge name header": (
            [Raw(name=b"L", type=b"L", size=b"%011o\0" % (1 << 28))],
            "a header of",
        ),
        "pax header that is not one": ([Raw(name=b"h", type=b"x", data=b"hello")], "header"),
        "pax record longer than its header": (
            [Raw(name=b"h", type=b"x", data=b"999 path=x\n")],
            "header",
        ),
        "pax name that leaves the tree": (
            [Raw(name=b"h", type=b"x", data=pax(path="../../evil")), Raw(name=b"a")],
            "../../evil",
        ),
        "one name for every member": (
            [Raw(name=b"h", type=b"g", data=pax(path="x")), Raw(name=b"a")],
            "every member",
        ),
        "header without its member": (
            [Raw(name=b"h", type=b"x", data=pax(path="x"))],
            "end of file header",
        ),
        "sparse map beyond the file": (
            [_sparse((0, 512), (1 << 40, 512), size=1024, data=b"s" * 1024)],
            "sparse file",
        ),
        "sparse map that overlaps": (
            [_sparse((0, 512), (100, 512), size=4096, data=b"s" * 1024)],
            "sparse file",
        ),
        "sparse map with less than the data": (
            [_sparse((0, 100), size=4096, data=b"s" * 1024)],
            "sparse file",
        ),
        "sparse file of absurd size": (
            [_sparse((0, 512), size=1 << 60, data=b"s" * 512)],
            "sparse file",
        ),
        "control characters in a name": (
            [Raw(name=b"../\x1b[2J\x07evil", data=b"x")],
            r"\x1b[2J\x07evil",
        ),
    }
    return {title: (gz(raw_tar(raws)), says) for title, (raws, says) in members.items()}


def _long(name: bytes) -> Raw:
    """A member with a GNU long name."""
    first = Raw(name=b"././@LongLink", type=b"L", data=name + b"\0")
    return _Chain(name=name[:100], data=b"x", before=bytes(first))


@dataclass(frozen=True, kw_only=True)
class _Chain(Raw):
    before: bytes = b""

    def __bytes__(self) -> bytes:
        return self.before + super().__bytes__()


def _octal(value: int) -> bytes:
    if value < 8**11:
        return b"%011o\0" % value
    return b"\x80" + value.to_bytes(11, "big")


def _sparse(*pieces: tuple[int, int], size: int, data: bytes) -> Raw:
    """A member of the old GNU sparse type with up to four pieces."""
    entries = b"".join(_octal(offset) + _octal(length) for offset, length in pieces)
    extra = b"\0" * 41 + entries.ljust(96, b"\0") + b"\0" + _octal(size)
    return Raw(name=b"sparse", type=b"S", data=data, extra=extra)
