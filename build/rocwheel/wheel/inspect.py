"""Reads all facts about a wheel in one pass: `inspect`.

Every member is inflated once (twice where an ELF table lies before the current position), nothing
is unpacked to disk, and memory does not grow with the wheel.
"""

import hashlib
import importlib.metadata
import itertools
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from os import PathLike
from pathlib import Path
from typing import Final, NamedTuple

from rocwheel.base import files
from rocwheel.base.versions import kind_of
from rocwheel.records.manifest import MANIFEST, Manifest
from rocwheel.wheel import LIMITS, metadata
from rocwheel.wheel.elf import MAGIC, Budget, ElfError, ElfFacts, GpuCode, scan
from rocwheel.wheel.hip import in_all, sum_of_objects
from rocwheel.wheel.metadata import KeyValueText, RecordRow, WheelName
from rocwheel.wheel.sbom import Component, read
from rocwheel.wheel.zip_reader import CHUNK, Stamp, ZipArchive, ZipMember

LIBRARIES: Final = ".libs"  # ending of the folder that `auditwheel repair` grafts into
_GRAFT_HASH: Final = re.compile(r"-[0-9a-f]{8}(?=\.so)")
_SUMMARY_ROCM: Final = re.compile(r"\(ROCm:([^)]+)\)|\b(Legacy ROCm [0-9.]+)")
_GIT_HASH: Final = re.compile(r"^_git_hash\b[^=\n]*=\s*['\"]([0-9a-f]{7,40})['\"]", re.MULTILINE)
_ENDS: Final = re.compile("[\v\f\x1c-\x1e\x85\u2028\u2029]")
_COMMIT: Final = re.compile(r"['\"]([0-9a-f]{40})['\"]")
_COMMIT_OF: Final = re.compile(r"([A-Za-z][\w./-]*?)(?:_commit)?['\"]?\s*[:=]\s*\Z")
_KEY: Final = 100  # characters before a commit in which the name of its repository is looked for
_COMMITS: Final = 100  # of one module
_MODULE: Final = 64 << 10  # bytes of a version module that is read


class WheelReport(NamedTuple):
    """Facts about a wheel. With `checked`, every byte was read and compared with RECORD."""

    path: Path
    filename: WheelName
    size: int  # bytes
    sha256: str
    stamp: Stamp  # of the file that was read
    checked: bool
    dist_info: str  # name of the folder
    metadata: Mapping[str, tuple[str, ...]]  # fields of METADATA that rules look at
    wheel: Mapping[str, tuple[str, ...]]  # fields of WHEEL
    entry_points: Mapping[str, tuple[str, ...]]  # group -> `name = module`, as JAX gets them
    members: tuple[ZipMember, ...]
    elf: tuple[ElfFacts, ...]
    provenance: Mapping[str, str]
    releases: Mapping[str, str | None]  # version.py -> `_release_version` (see `release_of`)
    sboms: Mapping[str, tuple[Component, ...]]  # below dist-info: `sboms/…` -> what it lists
    rows: tuple[str, ...]  # files that RECORD lists wrongly or not at all; () if not compared
    digests: tuple[str, ...]  # files whose content is not what RECORD says
    flaws: tuple[str, ...]  # of METADATA in one of JAX's wheels; () if not compared

    @property
    def project(self) -> str:
        return self.filename.project

    @property
    def version(self) -> str:
        return self.filename.version_text

    @property
    def tags(self) -> tuple[str, ...]:
        return self.filename.tags

    @property
    def requires(self) -> tuple[str, ...]:
        return self.metadata["Requires-Dist"]

    @property
    def requires_python(self) -> str:
        return "".join(self.metadata["Requires-Python"][:1])

    @property
    def provides(self) -> frozenset[str]:
        """Return the names inside that NEEDED may use: files, and SONAMEs of loaded libraries."""
        sonames = {item.soname for item in self.elf if item.soname}
        return frozenset({each.name.rpartition("/")[2] for each in self.members} | sonames)

    @property
    def grafted(self) -> tuple[str, ...]:
        """Return the libraries in a `*.libs` folder, without the hash that auditwheel adds."""
        paths = (member.name.split("/") for member in self.members)
        names = (path[-1] for path in paths if path[0].endswith(LIBRARIES))
        return tuple(sorted(_GRAFT_HASH.sub("", name) for name in names if name))

    @property
    def gpu_code(self) -> dict[str, tuple[int, int]]:
        """Return for each gfx target how many code objects there are, and their bytes unpacked."""
        return sum_of_objects(bundle for item in self.elf for bundle in item.bundles)

    @property
    def compilers(self) -> tuple[str, ...] | None:
        """Return those of its GPU code; None where no code was read."""
        read = [bundle for item in self.elf for bundle in item.bundles if bundle.is_read]
        return tuple(sorted({name for each in read for name in each.compilers})) if read else None

    @property
    def gfx_targets(self) -> tuple[str, ...]:
        """Return the gfx targets that every bundle of every library has code for, sorted."""
        return in_all(bundle for item in self.elf for bundle in item.bundles)


METADATA_FIELDS: Final = (
    "Metadata-Version", "Name", "Version", "Summary", "Requires-Dist", "Requires-Python",
    "Provides-Extra",
)  # fmt: skip
WHEEL_FIELDS: Final = ("Wheel-Version", "Generator", "Root-Is-Purelib", "Tag", "Build")


def inspect(path: Path, *, hashes: bool = False, code: int = 0) -> WheelReport:
    """Read a wheel; with `hashes` every byte of it, compared with RECORD.

    GPU code of a ROCm wheel is unpacked and checked up to `code` bytes.
    """
    filename = WheelName.parse(path.name)
    known = kind_of(filename.project)
    room = code if known and known[0].needs_rocm else 0
    with (
        ZipArchive(path) as archive,
        ThreadPoolExecutor(1) as beside,
        closing(GpuCode(room)) as gpu_code,
    ):
        whole = beside.submit(files.sha256, archive.raw(0, archive.size, step=CHUNK))
        folder = metadata.dist_info(archive.by_name, path=path)
        texts = {
            name: KeyValueText(archive.read(f"{folder}/{name}"), name=f"{path}: {name}")
            for name in ("METADATA", "WHEEL")
        }
        _, rows = metadata.read_record(archive, folder)
        reader = _Reader(archive, {row.path: row for row in rows} if hashes else None, gpu_code)
        elf = [facts for member in archive.members if (facts := reader.read(member))]
        provenance, releases = _provenance(archive, folder, texts)
        sboms = dict(itertools.islice(_sboms(archive, folder), LIMITS.provenance))
        name = f"{folder}/entry_points.txt"
        points = archive.read(name) if name in archive.by_name else b""
        sha256 = whole.result()
    return WheelReport(
        path=path,
        filename=filename,
        size=archive.size,
        sha256=sha256,
        stamp=archive.stamp,
        checked=hashes,
        dist_info=folder,
        metadata={key: texts["METADATA"].all(key) for key in METADATA_FIELDS},
        wheel={key: texts["WHEEL"].all(key, exact=True) for key in WHEEL_FIELDS},
        entry_points=_entry_points(points),
        members=archive.members,
        elf=tuple(elf),
        provenance=provenance,
        releases=releases,
        sboms=sboms,
        rows=tuple(metadata.row_problems(archive.by_name, rows, folder)) if hashes else (),
        digests=tuple(reader.problems),
        flaws=tuple(metadata.flaws(texts["METADATA"].to_bytes())) if hashes and known else (),
    )


def inspect_with_manifest(path: Path, *, thorough: bool = False) -> WheelReport:
    """Inspect, and add what a manifest beside it says of its sources. Raises ConfigError."""
    report = inspect(path, code=LIMITS.code if thorough else 0)
    folder = report.path.parent
    manifest = Manifest.load(folder) if (folder / MANIFEST).exists() else None
    if manifest is None or all(entry.sha256 != report.sha256 for entry in manifest.wheels):
        return report
    sources = {"jax": manifest.jax, "xla": manifest.xla, "rocwheel": manifest.tool}
    known = {
        "manifest": manifest.sha256,
        "ROCm": f"{manifest.rocm.version}, SHA-256 {manifest.rocm.sha256}",
        "builder image": manifest.builder_image or "none",
        "Bazel": manifest.bazel_version,
        **{
            name: " ".join(filter(None, (each.repository, each.commit or each.digest, changes)))
            for name, each in sources.items()
            for changes in ("with changes" if each.dirty else "",)
        },
    }
    return report._replace(provenance={**report.provenance, **known})


class _Reader:
    """Reads members and compares them with RECORD; without `rows` it reads ELF files alone."""

    def __init__(
        self, archive: ZipArchive, rows: Mapping[str, RecordRow] | None, code: GpuCode
    ) -> None:
        self.problems: list[str] = []  # where content differs from RECORD
        self._archive = archive
        self._rows = rows
        self._budget = Budget()
        self._code = code

    def read(self, member: ZipMember) -> ElfFacts | None:
        pieces = self._checked(member)
        front = next(pieces, b"")
        if front.startswith(MAGIC):
            streams = itertools.chain(
                [itertools.chain([front], pieces)], iter(lambda: self._archive.stream(member), None)
            )
            try:
                return scan(
                    member.name,
                    member.size,
                    lambda: next(streams),
                    budget=self._budget,
                    code=self._code,
                )
            except ElfError as exc:
                self._archive.refuse(f"{member.name}: cannot be read as an ELF file: {exc}")
        if self._rows is not None:
            for _ in pieces:
                pass
        return None

    def _checked(self, member: ZipMember) -> Iterator[bytes]:
        row = (self._rows or {}).get(member.name)
        if row is None or member.is_dir or row.algorithm not in metadata.STRONG:
            yield from self._archive.stream(member)
            return
        digest = hashlib.new(row.algorithm)
        for piece in self._archive.stream(member):
            digest.update(piece)
            yield piece
        is_now = metadata.record_digest(digest.digest(), algorithm=row.algorithm)
        if is_now != row.digest:
            self.problems.append(f"{member.name}: is {is_now}, RECORD says {row.digest}")
        elif row.size not in ("", str(member.size)):  # PEP 376: a row may leave out its size
            what = f"has {member.size} bytes, RECORD says {row.size}"
            self.problems.append(f"{member.name}: {what}")


class _Texts(importlib.metadata.PathDistribution):
    """A distribution that has entry_points.txt alone."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read_text(self, filename: str | PathLike[str]) -> str | None:
        return self._text if filename == "entry_points.txt" else None


def _entry_points(data: bytes) -> dict[str, tuple[str, ...]]:
    """Return entry points by group as JAX gets them, from importlib.metadata."""
    groups: dict[str, list[str]] = {}
    if len(data) > LIMITS.entry_points:
        return {"": (f"cannot be read: {len(data)} bytes",)}
    try:
        if odd := _ENDS.search(text := data.decode("utf-8")):
            return {"": (f"cannot be read: {odd[0]!a} ends a line to Python, not to uv",)}
        for point in _Texts(text).entry_points:
            groups.setdefault(point.group, []).append(f"{point.name} = {point.value}")
    except (TypeError, ValueError, AttributeError) as exc:
        return {"": (f"cannot be read: {type(exc).__name__}",)}
    return {group: tuple(points) for group, points in groups.items()}


def _provenance(
    archive: ZipArchive, folder: str, texts: Mapping[str, KeyValueText]
) -> tuple[dict[str, str], dict[str, str | None]]:
    """Return commits, ROCm and generator as the builders leave them, and the version modules."""
    facts: dict[str, str] = {}
    releases: dict[str, str | None] = {}
    modules = (
        member
        for member in archive.members
        if member.name.rpartition("/")[2] in ("version.py", "commit_info.py")
        and not member.name.startswith(folder)
        and member.size <= _MODULE
    )
    for member in itertools.islice(modules, LIMITS.provenance):
        content = archive.read(member.name)
        text = content.decode("utf-8", "replace")
        if member.name.endswith("commit_info.py"):
            facts |= _commits(text)
            continue
        releases[member.name] = metadata.release_of(content)
        if match := _GIT_HASH.search(text):
            facts["git"] = match[1]
    if match := _SUMMARY_ROCM.search("".join(texts["METADATA"].all("Summary")[:1])):
        facts["rocm"] = (match[1] or match[2]).strip()
    if generator := texts["WHEEL"].all("Generator"):
        facts["generator"] = generator[0]
    return facts, releases


def _sboms(archive: ZipArchive, folder: str) -> Iterator[tuple[str, tuple[Component, ...]]]:
    for member in archive.members:
        if member.name.startswith(f"{folder}/sboms/") and member.name.endswith(".json"):
            data = archive.read(member.name) if member.size <= LIMITS.sbom else b""
            yield member.name.removeprefix(f"{folder}/"), read(data)


def _commits(text: str) -> dict[str, str]:
    commits = {}
    for match in itertools.islice(_COMMIT.finditer(text), _COMMITS):
        if name := _COMMIT_OF.search(text, max(0, match.start() - _KEY), match.start()):
            commits[name[1]] = match[1]
    return commits
