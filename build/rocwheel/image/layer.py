"""The ROCm layer: a tar stream that depends on the files alone, so that it is the same anywhere."""

import os
import tarfile
from pathlib import Path, PurePosixPath
from typing import Final

from rocwheel.base import files
from rocwheel.base.errors import HostError, named
from rocwheel.image.closure import Closure

PREFIX: Final = PurePosixPath("opt/rocm")
TIME: Final = 315532800  # 1980-01-01, of every member


def write(target: Path, root: Path, closure: Closure) -> str:
    """Write the layer of these files; return its SHA-256. Raises HostError for a full disk.

    Members are sorted, root's, of one time, executable or not; folders come before what is in them.
    """
    folders: set[PurePosixPath] = set()
    hint = f"free {closure.size >> 20} MiB where TMPDIR points"
    with (
        named(target, HostError, hint=hint),
        tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in closure.paths:
            inside = PREFIX / path
            for folder in reversed(inside.parents[:-1]):
                if folder not in folders:
                    folders.add(folder)
                    archive.addfile(_info(str(folder), tarfile.DIRTYPE, 0o755))
            _copy(archive, root / path, str(inside))
    return files.sha256(target)


def _copy(archive: tarfile.TarFile, source: Path, name: str) -> None:
    if source.is_symlink():
        archive.addfile(_info(name, tarfile.SYMTYPE, 0o777, link=str(source.readlink())))
        return
    with source.open("rb") as stream:
        status = os.fstat(stream.fileno())
        info = _info(name, tarfile.REGTYPE, 0o755 if status.st_mode & 0o111 else 0o644)
        info.size = status.st_size
        archive.addfile(info, stream)


def _info(name: str, kind: bytes, mode: int, *, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.mode, info.mtime, info.linkname = kind, mode, TIME, link
    return info
