"""Checks that a ROCm tree is complete, and reads facts from it."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from amdgpu_family_matrix import Family
from rocwheel.base import files
from rocwheel.base.errors import CommandError, ConfigError, HostError, RocmError, named
from rocwheel.base.process import Command, Runner
from rocwheel.base.values import Value
from rocwheel.base.versions import RocmVersion
from rocwheel.records.manifest import ON_DISK, RocmDelivery
from rocwheel.records.source_layout import RocmNeeds
from rocwheel.rocm import therock

PROBE_SECONDS: Final = 60.0  # for one gfx target; a second, but for a cold disk
_ISA: Final = re.compile(r"oclc_isa_version_(.+)\.bc\Z")


class Facts(Value, frozen=True, kw_only=True):
    """What a ROCm tree has; paths are relative to the folder that was inspected."""

    root: str  # "" or the one folder everything is in
    info_version: str
    header_version: str  # include/rocm-core/rocm_version.h: 7.10.0
    clang: str
    bitcode: str
    targets: tuple[str, ...]  # gfx targets the device bitcode knows
    sonames: tuple[str, ...]  # file names of the shared libraries


@dataclass(frozen=True, kw_only=True)
class RocmRoot:
    """An unpacked, checked ROCm tree; while this value lives, the cache keeps the tree."""

    root: Path
    version: RocmVersion  # as asked for or named by the tarball, with nightly suffix
    facts: Facts
    sha256: str  # of the tarball; of the file listing when the source was a directory
    origin: Literal["tarball", "directory", "pip"]
    name: str  # base name of the tarball or directory
    family: Family | None  # by the tarball's name
    cached: bool  # nothing was fetched or unpacked
    delivery: RocmDelivery = ON_DISK
    bytes: int = 0  # of the unpacked files; 0 for a directory
    lease: object = field(default=None, repr=False, compare=False)

    def document(self) -> dict[str, Any]:
        """Return the tree for a program: what `--json` prints."""
        return {
            "root": str(self.root),
            "version": str(self.version),
            "header_version": self.facts.header_version,
            "sha256": self.sha256,
            "origin": self.origin,
            "name": self.name,
            "family": self.family.name if self.family else None,
            "targets": sorted(self.facts.targets),
            "kernel_packs": kernel_packs(self.root),
            "links": list(self.delivery.links),
            "cached": self.cached,
            "bytes": self.bytes,
        }


def complete(folder: Path, *, name: str) -> tuple[str, ...]:
    """Add the links that older releases of TheRock lack, to an unpacked tree; return them."""
    root = _root(folder, name)
    links, mode = _unlinked(root), root.stat().st_mode
    root.chmod(mode | 0o200)
    for link, target in links.items():
        (root / link).symlink_to(target)
    root.chmod(mode)
    return tuple(f"{link} -> {target}" for link, target in links.items())


def linking(root: Path, lacking: Iterable[str]) -> str:
    """Return the command lines that bring what a tree lacks; "" where its links do not."""
    links = _unlinked(root)
    for path in lacking:
        link, _, rest = path.partition("/")
        if link not in links or not (root / links[link] / rest).exists():
            return ""
    return "; ".join(f"ln -s {target} {root / link}" for link, target in links.items())


def _unlinked(root: Path) -> dict[str, str]:
    """Return the links that releases have and this tree lacks, with their targets."""
    return {
        link: target
        for link, target in _tree().links.items()
        if (root / target).is_dir() and not os.path.lexists(root / link)
    }


def kernel_packs(root: Path) -> list[str]:
    """Return the names of the files with GPU code that multi-arch trees keep beside libraries."""
    return sorted(path.name for path in (root / _tree().kernel_packs).glob("*.kpack"))


def inspect(folder: Path, *, name: str) -> Facts:
    """Read a tree's facts. Raises RocmError, naming `name`, when something is missing."""
    try:
        return _inspected(folder, name)
    except RocmError as exc:
        exc.hint = of_packages(folder) or exc.hint
        raise


def of_packages(folder: Path) -> str:
    """Return a hint where a folder is, or holds, a part of a tree by pip; else ""."""
    pip = _tree().packages
    if pip.whole in folder.parts or not (
        any(part.startswith(pip.begin) for part in folder.parts) or [*folder.glob(f"{pip.begin}*")]
    ):
        return ""
    if (whole := folder / pip.whole).is_dir():
        if any(whole.iterdir()):
            return f"name {whole}"
        return f"{whole} is empty: remove it; `{pip.expand}` makes it"
    return f"expand the packages: `{pip.expand}` makes {pip.whole}; name that folder"


def _inspected(folder: Path, name: str) -> Facts:
    root, tree = _root(folder, name), _tree()
    header = _header_version(root, name)
    info = _text(root, tree.version, name).strip()
    try:
        agrees = RocmVersion.parse(info).series == RocmVersion.parse(header).series
    except ConfigError as exc:
        raise RocmError(
            f"{name}: {tree.version}: {exc}", hint="this tree was not made by TheRock"
        ) from exc
    if not agrees:
        raise RocmError(
            f"{name}: {tree.version} says {info}, {tree.header} says {header}",
            hint="two ROCm versions were mixed; fetch a whole one",
        )
    if not os.access(root / tree.clang, os.X_OK) or not (root / tree.clang).is_file():
        raise RocmError(
            f"{name}: no compiler at {tree.clang}",
            hint="use a ROCm with its LLVM, as TheRock makes",
        )
    bitcode, targets = _bitcode(root, name)
    names = (name for folder in tree.libraries for name in _names(root / folder))
    return Facts(
        root=str(root.relative_to(folder)) if root != folder else "",
        info_version=info,
        header_version=header,
        clang=tree.clang,
        bitcode=bitcode,
        targets=targets,
        sonames=tuple(sorted({name for name in names if name.endswith(".so") or ".so." in name})),
    )


def missing(root: Path, needs: RocmNeeds) -> tuple[str, ...]:
    """Return what a JAX looks for and the tree lacks, one line each.

    An empty file, a folder in a file's place and a dangling link count as missing.
    """
    lines = [
        path.replace("|", " or ")
        for path in needs.paths
        if not any(
            _is_file(file)
            for choice in path.split("|")
            for file in (root.glob(choice) if "*" in choice else (root / choice,))
        )
    ]
    for path in needs.executables:
        if not _is_file(root / path):
            lines.append(path)
        elif not os.access(root / path, os.X_OK):
            lines.append(f"{path}: not executable")
    for header, macro in needs.macros.items():
        if header in lines:
            continue
        text = (root / header).read_text(encoding="utf-8", errors="replace")
        if re.search(rf"^#define {macro} +\d+", text, re.MULTILINE) is None:
            lines.append(f"{header}: does not define {macro}")
    return tuple(lines)


def uncompiled(root: Path, targets: Iterable[str], *, runner: Runner) -> tuple[str, ...] | None:
    """Return the gfx targets for which the ROCm's own clang fails on an empty HIP file, and why.

    None where clang does not start, such as outside of a build's container.
    """
    clang, found = root / _tree().clang, []
    for target in targets:
        words = ("-x", "hip", "-nogpuinc", "--cuda-device-only", f"--offload-arch={target}")
        rest = (f"--rocm-path={root}", "-S", "-emit-llvm", "-o", "-", os.devnull)
        try:
            runner.capture(Command(argv=(str(clang), *words, *rest), timeout=PROBE_SECONDS))
        except CommandError as exc:
            said = [line for line in exc.detail.splitlines() if "error:" in line]
            if said:
                found.append(f"{target}: {said[0].partition('error:')[2].strip()}")
        except HostError:
            return None
    return tuple(found)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size > 0
    except OSError:  # such as a circle of links
        return False


def agreed_version(
    facts: Facts, *, asked: RocmVersion | None, named: RocmVersion | None, name: str
) -> RocmVersion:
    """Return the version of the tree: as asked, as named, or as its own files say.

    All that are known must agree on major.minor, or RocmError is raised.
    """
    header = RocmVersion.parse(facts.header_version)
    for version, where in ((asked, "was asked for"), (named, "is in the tarball's name")):
        if version and version.series != header.series:
            raise RocmError(
                f"{name}: the tree is ROCm {header}, but {version} {where}",
                hint="give the version of that tree, or name another ROCm",
            )
    return asked or named or RocmVersion.parse(facts.info_version)


def listing_digest(root: Path) -> str:
    """SHA-256 that identifies a directory by its listing: names, kinds, sizes, link targets.

    The two version files count with their contents; times do not, so that equal copies agree.
    """
    lines = [line + b"\n" for line in sorted(_listing(root))]
    versions = ((root / path).read_bytes() for path in (_tree().version, _tree().header))
    return files.sha256([*lines, *versions])


def _listing(root: Path) -> Iterator[bytes]:
    top = os.fsencode(root)
    folders = [top]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                path = entry.path[len(top) + 1 :]
                if entry.is_symlink():
                    yield b"link %r %r" % (path, os.readlink(entry.path))  # noqa: PTH115 - bytes
                elif entry.is_dir():
                    folders.append(entry.path)
                    yield b"directory %r" % path
                else:
                    status = entry.stat()
                    yield b"file %r %d %d" % (path, status.st_size, bool(status.st_mode & 0o111))


def _root(folder: Path, name: str) -> Path:
    inside, tree = sorted(folder.iterdir()), _tree()
    candidates = [folder, *inside] if len(inside) == 1 else [folder]
    for root in candidates:
        if (root / tree.version).is_file() or (root / tree.header).is_file():
            return root
    raise RocmError(
        f"{name}: no ROCm tree: neither {tree.version} nor {tree.header} is there",
        hint="use a tarball of TheRock, or name the folder that holds bin, include and lib",
    )


def _header_version(root: Path, name: str) -> str:
    text = _text(root, _tree().header, name)
    numbers = []
    for part in ("MAJOR", "MINOR", "PATCH"):
        match = re.search(
            rf"^[ \t]*#[ \t]*define[ \t]+ROCM_VERSION_{part}[ \t]+(\d+)", text, re.MULTILINE
        )
        if not match:
            raise RocmError(
                f"{name}: {_tree().header} does not define ROCM_VERSION_{part}",
                hint="this tree was not made by TheRock",
            )
        numbers.append(match[1])
    return ".".join(numbers)


def _tree() -> therock.TreeLayout:
    return therock.known().tree


def _text(root: Path, path: str, name: str) -> str:
    hint = "the tree is incomplete; fetch a whole one"
    with named(f"{name}: {path}", RocmError, hint=hint), (root / path).open("rb") as file:
        return file.read(1 << 20).decode("utf-8", "replace")


def _bitcode(root: Path, name: str) -> tuple[str, tuple[str, ...]]:
    for path in _tree().bitcode:
        names = _names(root / path)
        known = sorted(match[1] for item in names if (match := _ISA.match(item)))
        if known:
            return path, tuple(f"gfx{number}" for number in known)
    raise RocmError(
        f"{name}: no device bitcode at {_tree().bitcode[0]}",
        hint="use a ROCm with its device libraries, as TheRock makes",
    )


def _names(folder: Path) -> tuple[str, ...]:
    try:
        return tuple(path.name for path in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return ()
