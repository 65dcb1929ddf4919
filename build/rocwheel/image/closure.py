"""Finds what a runtime image needs: files of a ROCm tree, and packages.

Starting from the NEEDED entries of the wheels' ELF files (gABI chapter 5), each library is looked
up as the loader would: in the RUNPATH of the file that needs it, else among the libraries loaded
already. Files that are opened or executed at run time are data (`recipe.RunTimeFiles`).
"""

import json
import os
import re
import shutil
import tempfile
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import quote, unquote

from packaging.utils import canonicalize_name

from rocwheel.base import files
from rocwheel.base.errors import CommandError, RocmError, WheelError
from rocwheel.base.files import blocks, matches
from rocwheel.base.host.virtualenv import pip
from rocwheel.base.process import Runner
from rocwheel.base.values import Plain
from rocwheel.base.versions import PythonVersion
from rocwheel.image.recipe import RunTimeFiles
from rocwheel.records.manifest import Manifest
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


# The packages: the set and every dependency, each by SHA-256. pip resolves for the image's CPython
# and C library, outside. A folder of wheels and a list of hashes go into the image, so installing
# needs neither an index nor a network.

LIST: Final = "requirements.txt"
GUEST: Final = "/wheels"  # where the folder is seen while an image is made
OLDEST: Final = 5  # of manylinux, the minor version of its C library


class PackagePin(Plain, frozen=True, kw_only=True):
    """One wheel: its name and its digest."""

    project: str
    version: str
    filename: str
    sha256: str


class Where(Plain, frozen=True, kw_only=True):
    """The CPython and C library that wheels are chosen for."""

    python: PythonVersion
    glibc: str

    @property
    def options(self) -> tuple[str, ...]:
        """For pip: this CPython and every manylinux its C library can do."""
        newest = int(self.glibc.partition(".")[2])
        platforms = [f"manylinux_2_{minor}_x86_64" for minor in range(newest, OLDEST - 1, -1)]
        platforms += ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64"]
        return (
            "--only-binary=:all:", "--implementation=cp",
            f"--python-version={self.python.major}.{self.python.minor}",
            *(f"--platform={name}" for name in platforms),
        )  # fmt: skip


def resolve(
    local: Mapping[Path, str], requirements: Sequence[str], where: Where, *, runner: Runner
) -> tuple[PackagePin, ...]:
    """Resolve these wheels (path -> SHA-256) and requirements; sorted by project.

    Raises WheelError when they contradict each other, or an index gives no hash.
    """
    with tempfile.TemporaryDirectory(prefix="rocwheel-resolve-") as folder:
        report = Path(folder) / "report.json"
        named = [f"{path.as_uri()}#sha256={sha256}" for path, sha256 in local.items()]
        asked = pip(
            "install", "--dry-run", "--ignore-installed", f"--report={report}",
            f"--target={folder}/target", *where.options, *named, *requirements,
        )  # fmt: skip
        try:
            runner.run(asked)
        except CommandError as exc:
            raise WheelError(
                f"no wheels for CPython {where.python}, glibc {where.glibc}: {exc.last_line}",
                hint="compare the set's requirements with what the index has",
                detail=exc.detail,
            ) from exc
        resolved = json.loads(report.read_text(encoding="utf-8"))
    return tuple(sorted(map(_pin, resolved["install"]), key=lambda pin: pin.project))


def _pin(item: Mapping[str, Any]) -> PackagePin:
    url = item["download_info"]["url"].partition("#")[0]
    info = item["download_info"].get("archive_info", {})
    sha256 = info.get("hashes", {}).get("sha256", "")
    name, version = item["metadata"]["name"], item["metadata"]["version"]
    if not sha256:
        raise WheelError(
            f"{name} {version}: its index gives no SHA-256", hint="use an index that does"
        )
    return PackagePin(
        project=canonicalize_name(name),
        version=version,
        filename=unquote(url.rpartition("/")[2]),
        sha256=sha256,
    )


def gather(
    folder: Path,
    local: Mapping[Path, str],
    pins: Sequence[PackagePin],
    where: Where,
    *,
    runner: Runner,
) -> None:
    """Fill a folder with these wheels and the list that installs exactly them.

    Raises CommandError when a download fails, WheelError for other bytes than resolved.
    """
    folder.mkdir()
    ours = {path.name for path in local}
    for path in local:
        shutil.copy(path, folder / path.name)
    others = [pin for pin in pins if pin.filename not in ours]
    if others:
        wanted = folder.with_name("download.txt")
        wanted.write_text(
            "".join(f"{pin.project}=={pin.version} --hash=sha256:{pin.sha256}\n" for pin in others),
            encoding="utf-8",
        )
        runner.run(
            pip("download", "--no-deps", "--require-hashes", *where.options,
                f"--requirement={wanted}", f"--dest={folder}")
        )  # fmt: skip
    for pin in pins:
        if files.sha256(folder / pin.filename) != pin.sha256:
            raise WheelError(f"{pin.filename}: other bytes came than were resolved", hint="again")
    urls = ((pin, f"file://{GUEST}/{quote(pin.filename)}") for pin in pins)
    lines = (f"{pin.project} @ {url} --hash=sha256:{pin.sha256}\n" for pin, url in urls)
    (folder / LIST).write_text("".join(lines), encoding="utf-8")


def compare(pins: Sequence[PackagePin], manifest: Manifest, python: PythonVersion) -> None:
    """Compare the resolved wheels with the set's. Raises WheelError for other bytes."""
    known = {pin.project: pin for pin in pins}
    for wheel in manifest.of_python(python):
        pin = known.get(wheel.project)
        if pin is None or pin.sha256 != wheel.sha256:
            raise WheelError(
                f"{wheel.filename}: resolved to {pin.filename if pin else 'nothing'}",
                hint="the index has other bytes than the set was gated with",
            )
