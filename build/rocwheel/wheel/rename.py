"""Give a wheel other tags or another version: `plan_retag`, `plan_reversion`, `apply`.

The texts that change (WHEEL, METADATA, the version module, RECORD, pins on wheels of the same set)
are rewritten; everything else is copied in compressed form. The output is new, the input is never
touched; several wheels are changed together or not at all. A wheel whose RECORD does not list
exactly its files, or whose texts differ from it, is refused: a new RECORD would hide that.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from packaging.version import Version

from rocwheel.base import parallel
from rocwheel.base.console import brief
from rocwheel.base.errors import ConfigError, WheelError
from rocwheel.base.versions import kind_of
from rocwheel.wheel import metadata
from rocwheel.wheel.metadata import KeyValueText, RecordRow, WheelName, normal_name, row_of
from rocwheel.wheel.zip_reader import Stamp, ZipArchive
from rocwheel.wheel.zip_writer import Outbox, ZipPart, check_folder, refuse_other

TEXT: Final = 64 << 10  # bytes up to which a member counts as a text that RECORD must confirm
# Patterns are compiled where they are used: `retag` needs one, and each takes a millisecond.
_REQUIRED: Final = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_CLAUSE: Final = r"(===|==|<=|>=|~=|!=|<|>)\s*([^\s,;()]+)"
# PEP 425 and 600; https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/
# The levels of glibc 2 begin with 2.5 (PEP 513), and 2.49 is years ahead; of musl's 1.1 is first.
_LIBC: Final = "musllinux_1_[1-9][0-9]?|manylinux(?:1|2010|2014|_2_(?:[5-9]|[1-4][0-9]))"
_TAGS: Final = {
    "python": (r"(?:py|cp|pp|ip|jy|graalpy)[1-9][0-9]{0,3}", "cp312"),
    "ABI": (r"none|abi3|abi3t|(?:cp|pypy|graalpy)[1-9][a-z0-9_]{0,30}", "cp312"),
    "platform": (
        rf"any|win32|(?:win|linux|macosx_[1-9][0-9]?_[0-9]{{1,2}}|{_LIBC})_[a-z0-9_]+",
        "manylinux_2_28_x86_64",
    ),
}


class Rename(NamedTuple):
    """A planned rename of one wheel; `edits` maps present member names to new content."""

    source: Path
    stamp: Stamp  # of the source as it was read
    before: WheelName
    after: WheelName
    edits: Mapping[str, bytes]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        changed = ", ".join(sorted(name.rpartition("/")[2] for name in self.edits))
        return f"{self.source} -> {self.after} (new: {changed or 'nothing'})"

    def path(self, member: str) -> str:
        return self.before.moved(member, self.after.stem)

    def document(self, folder: Path) -> dict[str, object]:
        return {
            "source": str(self.source),
            "path": str(folder / str(self.after)),
            "rewritten": sorted(self.path(name) for name in self.edits),
        }


class NewVersion(NamedTuple):
    """The version that wheels get; exactly one of these is given."""

    version: str = ""
    post: int | None = None
    local: str = ""
    each: Mapping[Version, Version] = MappingProxyType({})  # old -> new, as a manifest has them

    def of(self, old: Version) -> Version:
        """Return the new version of a wheel that has version `old`. Raises ConfigError."""
        if self.each:
            return self.each.get(old, old)
        if self.post is not None and (old.is_devrelease or old.is_prerelease):
            raise ConfigError(
                f"{old}: a pre-release has no post-releases", hint="give --version instead"
            )
        local = f"+{old.local}" if old.local else ""
        post = f"{old.base_version}.post{self.post}{local}"
        text = self.version or (f"{old.public}+{self.local}" if self.local else post)
        new = metadata.version(text)
        if new is None:
            raise ConfigError(
                f"{brief(text)!r}: not a PEP 440 version",
                hint="write for example 0.9.1.post1 or rocm7.10",
            )
        if str(new) != text:
            raise ConfigError(
                f"{text!r}: PEP 440 spells it {str(new)!r}", hint="give it in normal form"
            )
        return new


def plan_retag(
    paths: Sequence[Path], *, python: str = "", abi: str = "", platform: str = ""
) -> tuple[Rename, ...]:
    """Plan to give wheels other tags; "" keeps one, several are joined by dots."""
    tags = {
        "pythons": _tags(python, "python"),
        "abis": _tags(abi, "ABI"),
        "platforms": _tags(platform, "platform"),
    }
    given: dict[str, Any] = {name: each for name, each in tags.items() if each}

    def plan(path: Path) -> Rename:
        with ZipArchive(path) as archive:
            draft = _Draft(archive)
            after = draft.name._replace(**given)
            wheel = draft.texts["WHEEL"]
            if tuple(sorted(wheel.all("Tag"))) != after.tags:
                wheel.replace_all("Tag", after.tags)
                draft.edit(f"{draft.folder}/WHEEL", wheel.to_bytes())
            return draft.rename(after)

    return tuple(parallel.each(plan, paths))


def plan_reversion(paths: Sequence[Path], change: NewVersion) -> tuple[Rename, ...]:
    """Plan to give wheels that belong together another version, and adapt their pins."""
    names = [WheelName.parse(path.name) for path in paths]
    old: dict[str, Version] = {}
    for name in names:
        first = old.setdefault(name.project, name.version)
        if name.version != first:
            raise WheelError(
                f"{name.project}: {first} and {name.version}, two versions of one project",
                hint="re-version one set at a time",
            )
    versions = {project: (version, change.of(version)) for project, version in old.items()}

    def plan(path: Path) -> Rename:
        name = WheelName.parse(path.name)
        _, new = versions[name.project]
        with ZipArchive(path) as archive:
            draft = _Draft(archive)
            core = draft.texts["METADATA"]
            core.replace("Version", {core.get("Version"): str(new)})
            pins, alone = _pins(core.all("Requires-Dist"), name, versions)
            core.replace("Requires-Dist", pins)
            draft.edit(f"{draft.folder}/METADATA", core.to_bytes())
            notes = (
                *draft.edit_version_modules(name.version, new),
                *(
                    f"{path.name} will require {project} {new}: re-version that wheel too"
                    for project in alone
                ),
            )
            return draft.rename(name._replace(version_text=str(new)), notes=notes)

    return tuple(parallel.each(plan, paths))


def check(plans: Sequence[Rename], folder: Path) -> None:
    """Refuse what `apply` would refuse; only wheels whose names are taken are written, aside."""
    import tempfile  # with `shutil`: a retag takes as long as its imports

    check_folder(folder)
    _refuse_doubles(plans)
    taken = [plan for plan in plans if (folder / str(plan.after)).exists()]
    with tempfile.TemporaryDirectory() as aside:
        for path in apply(taken, Path(aside)):
            refuse_other(path, folder / path.name)


def apply(plans: Sequence[Rename], folder: Path) -> tuple[Path, ...]:
    """Write the planned wheels into a folder, all or none; never over a file of other content."""
    _refuse_doubles(plans)
    with Outbox(folder) as box:

        def write(plan: Rename) -> Path:
            with ZipArchive(plan.source, stamp=plan.stamp) as archive:
                parts = (
                    ZipPart(member, plan.path(member.name), plan.edits.get(member.name))
                    for member in archive.members
                )
                return box.write(str(plan.after), parts, archive)

        return tuple(parallel.each(write, plans))


def _refuse_doubles(plans: Iterable[Rename]) -> None:
    for name, number in Counter(str(plan.after) for plan in plans).items():
        if number > 1:
            hint = "give each wheel once"
            raise WheelError(f"{name}: two of the wheels would get this name", hint=hint)


class _Draft:
    """An open wheel, its texts to be changed, and the new content of some of its members."""

    def __init__(self, archive: ZipArchive) -> None:
        self._archive = archive
        self.name = WheelName.parse(archive.path.name)
        self.folder = metadata.dist_info(archive.by_name, path=archive.path)
        if self.folder != f"{self.name.stem}.dist-info":
            archive.refuse(f"its dist-info folder is {self.folder}")
        for signature in metadata.UNHASHED[1:]:
            if f"{self.folder}/{signature}" in archive.by_name:
                archive.refuse(f"{signature}: a signed wheel cannot be changed")
        self._record, rows = metadata.read_record(archive, self.folder)
        for problem in metadata.row_problems(archive.by_name, rows, self.folder):
            archive.refuse(problem)
        self.texts = {
            name: KeyValueText(
                archive.read(f"{self.folder}/{name}"), name=f"{archive.path}: {name}"
            )
            for name in ("METADATA", "WHEEL")
        }
        core = self.texts["METADATA"]
        own = normal_name(core.get("Name")), core.get("Version")
        if own != (self.name.project, self.name.version_text):
            archive.refuse(f"METADATA is of {' '.join(own)}")
        self._rows = {row.path: row for row in rows}
        self._edits: dict[str, bytes] = {}
        for member in archive.members:  # RECORD must confirm texts; libraries are not read
            row = self._rows.get(member.name)
            is_info = member.name.startswith(f"{self.folder}/")
            if row is None or not row.digest or not (is_info or member.size <= TEXT):
                continue
            now = row_of(member.name, archive.stream(member), algorithm=row.algorithm)
            if now != row._replace(size=row.size or now.size):  # PEP 376: it may be left out
                archive.refuse(f"{member.name}: differs from RECORD, it was changed after packing")

    def edit(self, member: str, content: bytes) -> None:
        if content != self._archive.read(member):
            self._edits[member] = content

    def edit_version_modules(self, old: Version, new: Version) -> Iterator[str]:
        """Write the new version into our SBOM, and into a version.py with the old one, or None.

        Yields the modules of JAX's wheels that keep another version, or have none.
        """
        for member in self._archive.members:
            if member.name == f"{self.folder}/sboms/rocwheel.cdx.json":
                from rocwheel.wheel import sbom

                self.edit(member.name, sbom.with_version(self._archive.read(member.name), str(new)))
            if member.name.rpartition("/")[2] != "version.py":
                continue
            if member.size > TEXT:  # a version in it would stay as it is
                self._archive.refuse(f"{member.name}: {member.size} bytes, too large to be edited")
            content = self._archive.read(member.name)
            text = metadata.release_of(content)
            release = metadata.version(text or "")
            if text == "" or (release and release.base_version == old.base_version):
                self.edit(member.name, metadata.with_release(content, str(new)))
            elif _rocm_number(self.name.project):
                yield f"{member.name} keeps {text or 'no version'}: it is not of {old}"

    def rename(self, after: WheelName, *, notes: tuple[str, ...] = ()) -> Rename:
        """Return the plan; RECORD is adapted to new content and new names."""
        plan = Rename(
            source=self._archive.path,
            stamp=self._archive.stamp,
            before=self.name,
            after=after,
            edits=self._edits,
            notes=notes,
        )
        changes: dict[str, RecordRow] = {}
        for row in self._rows.values():
            path = plan.path(row.path)
            if row.path in self._edits:
                changes[row.path] = row_of(path, [self._edits[row.path]])
            elif path != row.path:
                changes[row.path] = row._replace(path=path)
        if changes:
            self._edits[f"{self.folder}/RECORD"] = metadata.edit_record(self._record, changes)
        return plan


def _rocm_number(project: str) -> str:
    return (kind_of(project) or ("", ""))[1]


def _tags(text: str, kind: str) -> tuple[str, ...]:
    pattern, example = _TAGS[kind]
    tags = tuple(dict.fromkeys(text.split("."))) if text else ()
    for tag in tags:
        if not re.fullmatch(pattern, tag):
            meant = re.sub(r"(?<=\d)\.(?=\d)", "_" if kind == "platform" else "", text)
            if meant != text and all(re.fullmatch(pattern, each) for each in meant.split(".")):
                raise ConfigError(f"{brief(repr(text))}: not a {kind} tag", hint=f"write {meant}")
            shown = brief(repr(tag if len(tags) > 1 and tag else text))
            raise ConfigError(f"{shown}: not a {kind} tag", hint=f"write for example {example}")
    return tags


def _pins(
    requires: Iterable[str], name: WheelName, versions: Mapping[str, tuple[Version, Version]]
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return old requirement -> new one within the set, and the set's projects not given."""
    own_set = _rocm_number(name.project)
    changed: dict[str, str] = {}
    alone: list[str] = []
    for text in requires:
        match = re.match(_REQUIRED, text)
        project = normal_name(match[0]) if match else ""
        theirs = _rocm_number(project)
        if project in versions:
            old, new = versions[project]
        elif own_set and own_set == theirs:
            old, new = versions[name.project]
        else:
            continue
        pinned = _pinned(text, old, new)
        if pinned != text:
            changed[text] = pinned
            alone += [project] if project not in versions else []
    return changed, tuple(alone)


def _pinned(text: str, old: Version, new: Version) -> str:
    """Return the requirement, admitting the new version where it admitted the old one.

    Only versions in it change, at their places. A pin on another version than `old` stays: it is
    not of this set (jax's extra `minimum-jaxlib` has one). Raises WheelError where none fits.
    """
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    requirement = metadata.requirement(text)
    if requirement is None:
        what = brief(f"METADATA: Requires-Dist {text!r} is not PEP 508")
        raise WheelError(what, hint=metadata.AGAIN)
    admits = requirement.specifier.contains
    bases = (old, type(old)(old.base_version))  # a plugin 0.9.2.post1 pins pjrt 0.9.2
    if requirement.url or not any(admits(version, prereleases=True) for version in bases):
        return text
    edited = text
    end = text.find(";") if requirement.marker else len(text)
    for match in reversed(list(re.finditer(_CLAUSE, text[:end]))):
        operator, version = match.groups()
        exact = operator in ("==", "===") and not version.endswith(".*")
        if exact or not SpecifierSet(match[0]).contains(new, prereleases=True):
            operator, version = _clause(operator, version, new)
            between = text[match.end(1) : match.start(2)]
            edited = f"{edited[: match.start()]}{operator}{between}{version}{edited[match.end() :]}"
    if not Requirement(edited).specifier.contains(new, prereleases=True):
        raise WheelError(
            f"METADATA: Requires-Dist {text!r} cannot admit {new}", hint="choose another version"
        )
    return edited


def _clause(operator: str, version: str, new: Version) -> tuple[str, str]:
    if version.endswith(".*"):
        parts = len(version.split(".")) - 1
        return operator, ".".join(map(str, (*new.release, 0, 0)[:parts])) + ".*"
    if operator in ("<", ">"):
        operator += "="
    # PEP 440 allows a local version in == and != only.
    return operator, new.public if operator in ("<=", ">=", "~=") else str(new)
