"""Checks a wheel set before it is staged: it is complete, closed and in order.

Complete: every CPython of the manifest has its wheels. Closed: each requirement on a name of the
set is satisfied by the set, so that an installer finds it in our index alone. In order: no version
sorts below a released one, or installers would keep the old one.
"""

import re
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

from msgspec import UNSET
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from amdgpu_family_matrix import Family
from rocwheel.base import files
from rocwheel.base.errors import (
    ConfigError,
    ObjectDiffersError,
    ObjectMissingError,
    PromotionError,
    WheelError,
)
from rocwheel.base.parallel import each
from rocwheel.base.store import ObjectInfo
from rocwheel.base.versions import PythonVersion, RocmVersion, WheelKind, project_name
from rocwheel.records.entry import Entry, parsed, version_of
from rocwheel.records.install import jax_from_commit
from rocwheel.records.manifest import MANIFEST, Manifest, WheelEntry
from rocwheel.records.places import Place
from rocwheel.release.ledger import manifests
from rocwheel.wheel import derive
from rocwheel.wheel.metadata import KeyValueText, WheelName, applies, dist_info
from rocwheel.wheel.zip_reader import ZipArchive

HASH_THREADS: Final = 4
_SAME: Final = set[tuple[str, str]]()  # derived sets and their parents, by digest: proved once
AGAIN: Final = "build the set again, and stage it under a new version"
# What an index says of a wheel as the manifest does.
SAME: Final = ("filename", "project", "version", "size", "sha256", "kind", "python", "gfx_targets")
METADATA_LIMIT: Final = 1 << 20  # bytes
HEADER_LIMIT: Final = 64 << 10  # of a member of a wheel; bytes
# Bytes at the end of a wheel that hold its directory: mostly, with METADATA; and at most.
TAILS: Final = (256 << 10, 16 << 20)


def load(wheelhouse: Path) -> tuple[Manifest, dict[str, Path]]:
    """Read a wheelhouse, exactly as its manifest says. Raises ConfigError, WheelError."""
    manifest = Manifest.load(wheelhouse)
    folder = wheelhouse if wheelhouse.is_dir() else wheelhouse.parent
    paths = {wheel.filename: folder / wheel.filename for wheel in manifest.built}
    if not paths:
        raise WheelError(f"{folder}: the manifest has no wheel to stage", hint="build one")
    on_disk = {path.name for path in folder.glob("*.whl") if path.is_file()}
    if on_disk != set(paths):
        names = ", ".join(sorted(on_disk ^ set(paths)))
        raise WheelError(
            f"{folder}: not what its {MANIFEST} lists: {names}",
            hint="use a wheelhouse as dist_wheels wrote it",
        )

    def check(wheel: WheelEntry) -> None:
        path = paths[wheel.filename]
        digest = files.sha256(path)
        if digest != wheel.sha256 or path.stat().st_size != wheel.size:
            raise WheelError(
                f"{path}: SHA-256 is {digest}, the manifest says {wheel.sha256}",
                hint="the file was changed: build again",
            )

    each(check, manifest.built, threads=HASH_THREADS)
    return manifest, paths


def read_metadata(path: Path) -> bytes:
    """Read the METADATA file in a wheel. Raises WheelError."""
    with ZipArchive(path) as archive:
        return archive.read(f"{dist_info(archive.by_name, path=path)}/METADATA")


def staged_metadata(place: Place, info: ObjectInfo) -> bytes:
    """Read METADATA in a stored wheel by ranges. Raises WheelError, StoreError."""
    where = place.store.locate(info.key)

    def fetch(start: int, size: int) -> None:
        piece = place.store.part(info, start, size) if size else b""
        if len(piece) != size:
            raise EOFError(f"{len(piece)} of {size} bytes came")
        file.seek(start)
        file.write(piece)

    try:
        with tempfile.TemporaryFile() as file:  # sparse: what is not fetched takes no space
            file.truncate(info.size)
            tail = 0
            for size in TAILS:
                tail = min(size, info.size)
                fetch(info.size - tail, tail)
                with suppress(zipfile.BadZipFile):  # its directory begins before the tail
                    zipfile.ZipFile(file).close()
                    break
            with zipfile.ZipFile(file) as archive:
                member = archive.getinfo(f"{dist_info(archive.namelist(), path=where)}/METADATA")
                if member.file_size > METADATA_LIMIT or member.compress_size > METADATA_LIMIT:
                    raise WheelError(f"{where}: METADATA of {member.file_size} bytes", hint=AGAIN)
                start, size = member.header_offset, HEADER_LIMIT + member.compress_size
                if start < info.size - tail:
                    fetch(start, min(size, info.size - start))
                return archive.read(member)
    except (zipfile.BadZipFile, KeyError, NotImplementedError, EOFError, zlib.error) as exc:
        raise WheelError(f"{where}: {exc}", hint=AGAIN) from exc


def check_derived(place: Place, manifest: Manifest, parent: Manifest) -> None:
    """Derive a set again from its parent's stored wheels: the same bytes and manifest come out.

    The parent's tests stand for it, so nothing less will do. Raises WheelError.
    """
    if (manifest.sha256, parent.sha256) in _SAME:
        return
    with tempfile.TemporaryDirectory() as scratch:
        wanted = {wheel.filename: wheel.sha256 for wheel in parent.built}
        try:
            manifests.bring(place, wanted, Path(scratch))
        except (ObjectMissingError, ObjectDiffersError) as exc:
            raise WheelError(str(exc), hint=AGAIN) from exc
        made = derive.again(manifest, parent, Path(scratch), Path(scratch, "again"))
    if made.sha256 != manifest.sha256:
        was = {wheel.filename: wheel for wheel in made.wheels}
        other = next((w.filename for w in manifest.wheels if was.get(w.filename) != w), "manifest")
        raise WheelError(
            f"{other}: is not what {parent.sha256[:12]} gives when it is derived again",
            hint="derive it again with `wheel reversion`, or build it",
        )
    _SAME.add((manifest.sha256, parent.sha256))


def check_family(manifest: Manifest, family: Family) -> None:
    """Refuse a family of which the set lacks a gfx target. Raises ConfigError."""
    missing = sorted(set(family.targets) - set(manifest.gfx_targets))
    if missing:
        raise ConfigError(
            f"{family.name}: the wheels lack {', '.join(missing)}",
            hint=f"they are for {', '.join(manifest.gfx_targets)}: choose another --family",
        )


def check_complete(manifest: Manifest) -> None:
    """Every CPython has a jaxlib and a plugin, and there is one pjrt. Raises WheelError."""
    for python in ("", *manifest.pythons):
        for kind in WheelKind:
            if kind.per_python == (python == ""):
                continue
            wheels = [w for w in manifest.wheels if (w.kind, w.python) == (kind.value, python)]
            if len(wheels) != 1:
                names = ", ".join(wheel.filename for wheel in wheels) or "none"
                where = f"CPython {python}" if python else "all CPythons"
                raise WheelError(
                    f"manifest: one {kind.value} wheel is needed for {where}, it has {names}",
                    hint="a wheel set is staged whole: build the missing cells",
                )


def check_closed(manifest: Manifest, metadata: Mapping[str, bytes]) -> None:
    """Every requirement of staged wheels' METADATA on a name of the set is met by the set."""
    parsed = {name: KeyValueText(data, name=f"{name}: METADATA") for name, data in metadata.items()}
    for wheel in manifest.built:
        check_name(wheel, parsed[wheel.filename])
    for python in manifest.pythons:
        cell = {wheel.project: wheel for wheel in manifest.of_python(python)}
        for wheel in cell.values():
            if wheel.filename not in parsed:
                continue  # upstream's own, which is pinned and not ours
            for requirement in _requirements(parsed[wheel.filename], python):
                _check_met(wheel, requirement, cell)


def check_name(wheel: WheelEntry, metadata: KeyValueText) -> None:
    """Compare name, version and tags of file name, METADATA and manifest. Raises WheelError."""
    number = re.match(r"\d*", wheel.project.partition("rocm")[2])
    own = project_name(WheelKind(wheel.kind), number[0] if number else "")
    said = {
        "its file name": version_of(wheel.filename) if "/" not in wheel.filename else ("", ""),
        "its METADATA": (canonicalize_name(metadata.get("Name")), metadata.get("Version")),
    }
    for what, (project, version) in said.items():
        if (project, version) != (wheel.project, wheel.version) or project != own:
            raise WheelError(
                f"{wheel.filename}: {what} says {project} {version}, the manifest "
                f"{wheel.project} {wheel.version} ({wheel.kind})",
                hint="build the set again: nothing is listed under a name that is not its own",
            )
    if WheelName.parse(wheel.filename).tags != wheel.tags:
        raise WheelError(
            f"{wheel.filename}: the manifest says {', '.join(wheel.tags)}", hint="build it again"
        )


def check_order(released: Iterable[Entry], entries: Iterable[Entry]) -> None:
    """Raise PromotionError for what installers would not prefer, or a second ROCm major."""
    listed = (other for other in released if other.yanked is None)
    others = {(other.project, other.version, other.rocm): other for other in listed}.values()
    for entry in entries:
        version, major = parsed(entry.version), _major(entry.rocm)
        for other in others:
            is_same = (other.project, other.version) == (entry.project, entry.version)
            if other.project != entry.project or is_same:
                continue
            if major and _major(other.rocm) not in {0, major}:
                raise PromotionError(
                    f"{entry.filename}: {entry.project} is for ROCm {_major(other.rocm)} here, "
                    f"{other.version} for one",
                    hint="give this ROCm major prefixes of its own in ci/channels.yaml",
                )
            there = parsed(other.version)
            if there > version and there.public == version.public:
                raise PromotionError(
                    f"{entry.filename}: sorts below {other.version}, which is released already: "
                    "installers would not take it",
                    hint="build with a higher --wheel-suffix, or yank or roll back the other",
                )


def entries(
    manifest: Manifest, metadata: Mapping[str, bytes], place: Place, *, uploaded: str
) -> tuple[Entry, ...]:
    """List the wheels as the index does: all from the manifest and the wheels' own bytes."""
    jax = jax_from_commit(manifest)
    return tuple(
        Entry(
            **{name: getattr(wheel, name) for name in SAME},
            metadata_sha256=files.sha256(metadata[wheel.filename]),
            uploaded=uploaded,
            requires_python=requires_python(metadata[wheel.filename], name=wheel.filename),
            rocm=manifest.rocm.version,
            jax=UNSET if jax is None else jax,
            manifest=manifest.sha256,
            folder=place.folder or UNSET,
        )
        for wheel in manifest.built
    )


def requires_python(metadata: bytes, *, name: str) -> str:
    return KeyValueText(metadata, name=f"{name}: METADATA").get("Requires-Python")


@lru_cache(maxsize=1 << 10)
def _major(rocm: str) -> int:
    return RocmVersion.parse(rocm).major if rocm else 0


def _requirements(metadata: KeyValueText, python: str) -> Iterator[Requirement]:
    version, required = PythonVersion.parse(python), metadata.get("Requires-Python")
    if required and f"{version.major}.{version.minor}.999" not in SpecifierSet(required):
        raise WheelError(
            f"{metadata.name}: Requires-Python {required} excludes CPython {python}",
            hint="leave that CPython out of the build",
        )
    for text in metadata.all("Requires-Dist"):
        try:
            requirement = Requirement(text)
        except InvalidRequirement as exc:
            raise WheelError(f"{metadata.name}: Requires-Dist {text!r}", hint=str(exc)) from exc
        if applies(requirement, python_minor=str(version.minor)):
            yield requirement


def _check_met(wheel: WheelEntry, requirement: Requirement, cell: Mapping[str, WheelEntry]) -> None:
    other = cell.get(canonicalize_name(requirement.name))
    if other and not requirement.specifier.contains(other.version, prereleases=True):
        raise WheelError(
            f"{wheel.filename}: requires {requirement}, the set has {other.version}",
            hint="build the set again: its wheels must fit each other",
        )
    if other is None and requirement.name.startswith("jax-rocm"):
        raise WheelError(
            f"{wheel.filename}: requires {requirement}, which the set lacks",
            hint="build the set again: such wheels come from nowhere else",
        )
