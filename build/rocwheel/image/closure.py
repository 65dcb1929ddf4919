"""Finds the files of a ROCm tree that a runtime image needs.

Starting from the NEEDED entries of the wheels' ELF files (gABI chapter 5), each library is looked
up as the loader would: in the RUNPATH of the file that needs it, else among the libraries loaded
already. Files that are opened or executed at run time are data (`recipe.RunTimeFiles`).
"""

import os
import re
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final

from rocwheel.base.errors import RocmError
from rocwheel.base.files import blocks, matches
from rocwheel.base.values import Plain
from rocwheel.image.recipe import RunTimeFiles
from rocwheel.wheel import elf
from rocwheel.wheel.inspect import WheelReport

LINKS: Final = 40  # symbolic links of one path: as the kernel, path_resolution(7)
_GFX: Final = re.compile(r"gfx[0-9]+[0-9a-f]{2}")
_OUTSIDE: Final = re.compile(r"(?:\A|/)rocm/(.*)\Z")  # an entry of a wheel's RUNPATH, below ROCm


class Closure(Plain, frozen=True, kw_only=True):
    """Files of a tree, links included, and the system libraries they need."""

    paths: tuple[str, ...]  # relative to the root, sorted, without folders
    system: Mapping[str, str]  # libraries that ROCm has not -> who needs them
    size: int  # bytes


@dataclass(kw_only=True)
class _Search:
    root: Path
    targets: frozenset[str]
    paths: set[str] = field(default_factory=set)
    loaded: dict[str, str] = field(default_factory=dict)  # SONAME or file name -> path
    system: dict[str, str] = field(default_factory=dict)
    todo: deque[str] = field(default_factory=deque)

    def add(self, path: str) -> None:
        """Take a file with every link on the way to it; an ELF file is read later."""
        real = self._follow(path)
        if real not in self.paths:
            self.paths.add(real)
            self.todo.append(real)
        for name in (PurePosixPath(path).name, PurePosixPath(real).name):
            self.loaded.setdefault(name, real)

    def need(self, name: str, folders: Iterable[str], *, who: str) -> None:
        """Find a library in these folders, or among those that are loaded."""
        for folder in folders:
            path = os.path.normpath(f"{folder}/{name}")
            if not path.startswith("..") and (self.root / path).is_file():
                self.add(path)
                return
        if name not in self.loaded:
            self.system.setdefault(name, who)

    def _follow(self, path: str) -> str:
        """Return the file itself; the links that lead to it are taken. Raises RocmError."""
        left, done = deque(PurePosixPath(path).parts), PurePosixPath()
        for _ in range(LINKS + len(left)):
            if not left:
                return str(done)
            part = left.popleft()
            here = PurePosixPath(os.path.normpath(done / part))
            link = self.root / here
            if not link.is_symlink():
                done = here
                continue
            target = PurePosixPath(link.readlink())
            if target.is_absolute() or os.path.normpath(done / target).startswith(".."):
                break
            self.paths.add(str(here))
            left.extendleft(reversed(target.parts))
        raise RocmError(
            f"{self.root / path}: a link that leads nowhere in this ROCm",
            hint="use a ROCm as TheRock makes it",
        )


def whole(root: Path) -> Closure:
    """Return every file of a tree, for the profile `devel`."""
    below = (path for path in root.rglob("*") if path.is_symlink() or not path.is_dir())
    paths = sorted(path.relative_to(root).as_posix() for path in below)
    size = sum((root / path).lstat().st_size for path in paths)
    return Closure(paths=tuple(paths), system={}, size=size)


def needed(
    root: Path,
    wheels: Iterable[WheelReport],
    extras: Iterable[RunTimeFiles],
    *,
    targets: Collection[str],
) -> Closure:
    """Return the files that wheels need of a ROCm tree, for the profile `runtime`.

    Raises RocmError for a missing library or missing data.
    """
    search = _Search(root=root, targets=frozenset(targets))
    for report in wheels:
        provided = report.provides
        for facts in report.elf:
            looked = map(_OUTSIDE.search, (*facts.runpath, *facts.rpath))
            folders = [match[1] for match in looked if match]
            for name in facts.needed:
                if name not in provided:
                    search.need(name, folders, who=facts.path.rpartition("/")[2])
    waiting = list(extras)
    while search.todo or waiting:
        while search.todo:
            _look_into(search, search.todo.popleft())
        loaded = [f"{name}." for name in search.loaded]
        ready = [
            item for item in waiting
            if not item.beside or any(name.startswith(f"{item.beside}.") for name in loaded)
        ]  # fmt: skip
        if not ready:
            break
        waiting = [item for item in waiting if item not in ready]
        for item in ready:
            _take(search, item)
    for name in set(search.system) & set(search.loaded):  # found later, by another's RUNPATH
        del search.system[name]
    paths = tuple(sorted(search.paths))
    return Closure(
        paths=paths,
        system=dict(sorted(search.system.items())),
        size=sum((root / path).lstat().st_size for path in paths),
    )


def _take(search: _Search, extra: RunTimeFiles) -> None:
    beside = extra.beside or "every wheel"
    for item in extra.paths:
        patterns = (item,) if isinstance(item, str) else item
        if not sum(_take_each(search, pattern) for pattern in patterns):
            raise RocmError(
                f"{search.root}: no {' or '.join(patterns)} for {', '.join(search.targets)}, which "
                f"an image with {beside} needs",
                hint="use a ROCm of these GPUs; what a release may do without is `may_lack` in "
                "ci/images.yaml",
            )
    for pattern in extra.may_lack:
        _take_each(search, pattern)


def _take_each(search: _Search, pattern: str) -> int:
    """Take the files that a pattern names, except those of other GPUs; return their number."""
    number = 0
    for path in matches(search.root, pattern):
        relative = path.relative_to(search.root).as_posix()
        targets = set(_GFX.findall(relative))
        if path.is_file() and not (targets and targets.isdisjoint(search.targets)):
            search.add(relative)
            number += 1
    return number


def _look_into(search: _Search, path: str) -> None:
    file = search.root / path
    with file.open("rb") as stream:
        if stream.read(len(elf.MAGIC)) != elf.MAGIC:
            return
    try:
        facts = elf.scan(path, file.stat().st_size, partial(blocks, file))
    except elf.ElfError as exc:
        raise RocmError(f"{file}: {exc}", hint="fetch a whole ROCm again") from exc
    if facts.soname:
        search.loaded.setdefault(facts.soname, path)
    here = PurePosixPath(path).parent
    folders = [
        os.path.normpath(item.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", str(here)))
        for item in (*facts.runpath, *facts.rpath)
        if item.startswith(("$ORIGIN", "${ORIGIN}"))
    ]
    for name in facts.needed:
        search.need(name, folders, who=PurePosixPath(path).name)


def missing(closure: Closure, listed: str) -> Mapping[str, str]:
    """Return libraries that neither ROCm nor the system has, with the files that need them.

    `listed` is what `ldconfig -p` says where the files are used.
    """
    here = {line.split(" ", 1)[0] for line in map(str.strip, listed.splitlines()[1:])}
    return {
        name: who
        for name, who in closure.system.items()
        if name not in here and not name.startswith("ld-linux")
    }
