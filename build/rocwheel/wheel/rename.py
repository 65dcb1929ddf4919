"""Give a wheel other tags or another version: `plan_retag`, `plan_reversion`, `apply`.

The texts that say what changes (WHEEL, METADATA, the version module, RECORD, pins on wheels of the
same set) are written anew, everything else is copied as it is compressed. The output is new, the
input is never touched; several wheels are changed together or not at all. A wheel whose RECORD does
not list exactly its files, or whose texts differ from it, is refused: a new RECORD would hide that.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from rocwheel.errors import ConfigError, WheelError
from rocwheel.wheel.metadata import (
    KeyValueText,
    RecordRow,
    WheelName,
    dist_info,
    edit_record,
    normal_name,
    read_record,
    record_digest,
    row_of,
    row_problems,
)
from rocwheel.wheel.zip_reader import ZipArchive
from rocwheel.wheel.zip_writer import Fresh, Kept, Outbox

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from packaging.version import Version

SIGNATURES: Final = ("RECORD.jws", "RECORD.p7s")
_REQUIRED: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TAG: Final = re.compile(r"[A-Za-z0-9_]+\Z")
_RELEASE: Final = re.compile(rb"^(_release_version\b[^=\n]*=[ \t]*['\"])([^'\"\n]+)", re.MULTILINE)
_SET: Final = re.compile(r"jax-rocm([0-9]+)-(?:plugin|pjrt)\Z")


@dataclass(frozen=True, kw_only=True)
class Rename:
    """One wheel and what it shall become; `edits` maps present member names to new content."""

    source: Path
    before: WheelName
    after: WheelName
    edits: Mapping[str, bytes]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        changed = ", ".join(sorted(name.rpartition("/")[2] for name in self.edits))
        return f"{self.source} -> {self.after} (new: {changed or 'nothing'})"

    def path(self, member: str) -> str:
        """Where a member of the old wheel is in the new one."""
        for ending in (".dist-info/", ".data/"):
            if member.startswith(self.before.stem + ending):
                return self.after.stem + member[len(self.before.stem) :]
        return member

    def document(self, folder: Path) -> dict[str, object]:
        """The same for a program, when the new wheel lies in `folder`."""
        return {
            "source": str(self.source),
            "path": str(folder / str(self.after)),
            "rewritten": sorted(self.path(name) for name in self.edits),
        }


@dataclass(frozen=True, kw_only=True)
class NewVersion:
    """Which version wheels shall get; exactly one of the three is given."""

    version: str = ""
    post: int | None = None
    local: str = ""

    def of(self, old: Version) -> Version:
        """The new version of a wheel that has version `old`. Raises ConfigError."""
        from packaging.version import InvalidVersion, Version

        if self.post is not None and (old.is_devrelease or old.is_prerelease):
            raise ConfigError(
                f"{old}: a pre-release has no post-releases", hint="give --version instead"
            )
        local = f"+{old.local}" if old.local else ""
        text = self.version or (
            f"{old.public}+{self.local}"
            if self.local
            else f"{old.base_version}.post{self.post}{local}"
        )
        try:
            new = Version(text)
        except InvalidVersion as exc:
            raise ConfigError(
                f"{text!r}: not a PEP 440 version", hint="write for example 0.9.1.post1 or rocm7.10"
            ) from exc
        if str(new) != text:
            raise ConfigError(
                f"{text!r}: PEP 440 spells it {str(new)!r}", hint="give it in normal form"
            )
        return new


def plan_retag(
    paths: Sequence[Path], *, python: str = "", abi: str = "", platform: str = ""
) -> tuple[Rename, ...]:
    """Plan to give wheels other tags; "" keeps one, several are joined by dots.

    Raises WheelError for an unsound wheel, ConfigError for a tag that cannot be one.
    """
    for tag in (part for text in (python, abi, platform) if text for part in text.split(".")):
        if not _TAG.match(tag):
            raise ConfigError(f"{tag!r}: not a tag", hint="write for example manylinux_2_28_x86_64")
    plans = []
    for path in paths:
        with ZipArchive(path) as archive:
            draft = _Draft(archive)
            before = draft.name
            after = replace(
                before,
                pythons=tuple(python.split(".")) if python else before.pythons,
                abis=tuple(abi.split(".")) if abi else before.abis,
                platforms=tuple(platform.split(".")) if platform else before.platforms,
            )
            wheel = draft.headers("WHEEL")
            if tuple(sorted(wheel.all("Tag"))) != after.tags:
                wheel.replace_all("Tag", after.tags)
                draft.edit(f"{draft.folder}/WHEEL", wheel.to_bytes())
            plans.append(draft.rename(after))
    return tuple(plans)


def plan_reversion(paths: Sequence[Path], change: NewVersion) -> tuple[Rename, ...]:
    """Plan to give wheels that belong together another version, and adapt their pins.

    Raises WheelError for an unsound wheel, ConfigError for a version that cannot be one.
    """
    names = [WheelName.parse(path.name) for path in paths]
    versions = {name.project: change.of(name.version) for name in names}
    plans = []
    for path, name in zip(paths, names, strict=True):
        new = versions[name.project]
        with ZipArchive(path) as archive:
            draft = _Draft(archive)
            metadata = draft.headers("METADATA")
            metadata.replace("Version", {metadata.get("Version"): str(new)})
            pins, alone = _pins(metadata.all("Requires-Dist"), name, versions)
            metadata.replace("Requires-Dist", pins)
            draft.edit(f"{draft.folder}/METADATA", metadata.to_bytes())
            draft.edit_version_modules(name.version, new)
            notes = tuple(
                f"{path.name} will require {project} {new}: re-version that wheel too"
                for project in alone
            )
            plans.append(draft.rename(replace(name, version_text=str(new)), notes=notes))
    return tuple(plans)


def apply(plans: Iterable[Rename], folder: Path) -> tuple[Path, ...]:
    """Write the planned wheels into a folder, all or none.

    Raises WheelError when a file of another content has one of the names, HostError when the
    folder cannot be written.
    """
    with ExitStack() as stack:
        box = stack.enter_context(Outbox(folder))
        made = []
        for plan in plans:
            archive = stack.enter_context(ZipArchive(plan.source))
            parts = (
                Fresh(like=member, name=plan.path(member.name), content=plan.edits[member.name])
                if member.name in plan.edits
                else Kept(archive=archive, member=member, name=plan.path(member.name))
                for member in archive.members
            )
            made.append(box.write(str(plan.after), parts, archive))
    return tuple(made)


class _Draft:
    """An open wheel and the new content of some of its members."""

    def __init__(self, archive: ZipArchive) -> None:
        self._archive = archive
        self.name = WheelName.parse(archive.path.name)
        self.folder = dist_info(archive.by_name, path=archive.path)
        if self.folder != f"{self.name.stem}.dist-info":
            archive.refuse(f"its dist-info folder is {self.folder}")
        for signature in SIGNATURES:
            if f"{self.folder}/{signature}" in archive.by_name:
                archive.refuse(f"{signature}: a signed wheel cannot be changed")
        self._record = archive.read(f"{self.folder}/RECORD")
        rows = read_record(self._record, name=f"{archive.path}: RECORD", files=len(archive.members))
        for problem in row_problems(archive.by_name, rows, self.folder):
            archive.refuse(problem)
        self._texts = {name: self._headers(name) for name in ("METADATA", "WHEEL")}
        own = (
            normal_name(self._texts["METADATA"].get("Name")),
            self._texts["METADATA"].get("Version"),
        )
        if own != (self.name.project, self.name.version_text):
            archive.refuse(f"METADATA is of {' '.join(own)}")
        self._rows = {row.path: row for row in rows}
        self._edits: dict[str, bytes] = {}

    def headers(self, name: str) -> KeyValueText:
        """METADATA or WHEEL, to be changed and given to `edit`."""
        return self._texts[name]

    def _headers(self, name: str) -> KeyValueText:
        data = self._archive.read(f"{self.folder}/{name}")
        return KeyValueText(data, name=f"{self._archive.path}: {name}")

    def edit(self, member: str, content: bytes) -> None:
        """Give a member new content, where it is new. Raises WheelError if RECORD is wrong."""
        old = self._archive.read(member)
        if content == old:
            return
        row = self._rows[member]
        algorithm = row.digest.partition("=")[0]
        digest = record_digest(hashlib.new(algorithm, old).digest(), algorithm=algorithm)
        if (row.digest, row.size) != (digest, str(len(old))):
            self._archive.refuse(f"{member}: differs from RECORD, it was changed after packing")
        self._edits[member] = content

    def edit_version_modules(self, old: Version, new: Version) -> None:
        """Write the new version where a version.py carries the old release version."""
        from packaging.version import InvalidVersion, Version

        for member in self._archive.members:
            if member.name.rpartition("/")[2] != "version.py":
                continue
            content = self._archive.read(member.name)
            match = _RELEASE.search(content)
            try:
                release = Version(match[2].decode("utf-8", "replace")) if match else None
            except InvalidVersion:
                continue
            if match and release and release.base_version == old.base_version:
                # Everywhere: JAX's module repeats the assignment in the code that writes it.
                self.edit(member.name, content.replace(match[0], match[1] + str(new).encode()))

    def rename(self, after: WheelName, *, notes: tuple[str, ...] = ()) -> Rename:
        """The plan; RECORD is adapted to new content and new names."""
        plan = Rename(
            source=self._archive.path, before=self.name, after=after, edits={}, notes=notes
        )
        changes: dict[str, RecordRow] = {}
        for row in self._rows.values():
            content = self._edits.get(row.path)
            path = plan.path(row.path)
            if content is not None:
                changes[row.path] = row_of(path, [content])
            elif path != row.path:
                changes[row.path] = row._replace(path=path)
        edits = dict(self._edits)
        if changes:
            edits[f"{self.folder}/RECORD"] = edit_record(self._record, changes)
        return replace(plan, edits=edits)


def _pins(
    requires: Iterable[str], name: WheelName, versions: Mapping[str, Version]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Old requirement -> new one, for wheels of the same set; projects that were not given."""
    own_set = _SET.match(name.project)
    changed: dict[str, str] = {}
    alone: list[str] = []
    for text in requires:
        match = _REQUIRED.match(text)
        project = normal_name(match[0]) if match else ""
        theirs = _SET.match(project)
        if project in versions:
            new = versions[project]
        elif own_set and theirs and own_set[1] == theirs[1]:
            new = versions[name.project]
            alone.append(project)
        else:
            continue
        if pinned := _pinned(text, new):
            changed[text] = pinned
    return changed, tuple(alone)


def _pinned(text: str, new: Version) -> str:
    """The requirement with a pin on `new`; "" where it is a range that has it already."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
    except InvalidRequirement as exc:
        raise WheelError(f"METADATA: Requires-Dist {text!r}: {exc}", hint="mend it") from exc
    exact = [
        item
        for item in requirement.specifier
        if item.operator in ("==", "===") and not item.version.endswith(".*")
    ]
    if not exact and requirement.specifier.contains(new, prereleases=True):
        return ""
    if exact and len(requirement.specifier) == 1:
        return text.replace(exact[0].version, str(new), 1)
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    marker = f"; {requirement.marker}" if requirement.marker else ""
    return f"{requirement.name}{extras}=={new}{marker}"
