"""The texts in a wheel's dist-info folder, read and edited line by line.

Editing keeps every other byte. Sources: the wheel format, core
metadata, RECORD (packaging.python.org/specifications), PEP 425 tags, PEP 503 names.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from packaging.version import Version

from rocwheel.base.errors import WheelError
from rocwheel.wheel import LIMITS
from rocwheel.wheel.zip_reader import ZipArchive

if TYPE_CHECKING:  # packaging costs as much as renaming a wheel
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

_Value = TypeVar("_Value")
UNHASHED: Final = ("RECORD", "RECORD.jws", "RECORD.p7s")  # of dist-info, by the wheel format
MANYLINUX: Final = {"manylinux1": "2_5", "manylinux2010": "2_12", "manylinux2014": "2_17"}
STRONG: Final = frozenset({"sha256", "sha384", "sha512"})  # digests RECORD may use
AGAIN: Final = "build the wheel again"  # the remedy for a text that is not as it must be
_FILENAME: Final = re.compile(
    r"(?P<project>[A-Za-z0-9](?:[A-Za-z0-9._]*[A-Za-z0-9])?)-(?P<version>[^-]+)"
    r"(?P<build>-[0-9][^-]*)?-(?P<python>[\w.]+)-(?P<abi>[\w.]+)-(?P<platform>[\w.]+)\.whl\Z",
    re.ASCII,
)
_RELEASE: Final = rb"(?m)^(_release_version\b[^=\n]*=[ \t]*)(?:None\b|(['\"])([^'\"\n]*)\2)"
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")
_EXTRA: Final = re.compile(r"\bextra\s*==\s*['\"]([^'\"]*)")
_FIELD: Final = re.compile(r"([A-Za-z][A-Za-z0-9-]*):[ \t]*(.*)\Z", re.DOTALL)


class WheelName(NamedTuple):
    """A wheel file name, parsed; `distribution` and `version_text` are spelt as in the file."""

    distribution: str
    project: str  # normalised (PEP 503)
    version_text: str
    build: str
    pythons: tuple[str, ...]
    abis: tuple[str, ...]
    platforms: tuple[str, ...]

    @classmethod
    def parse(cls, filename: str) -> WheelName:
        """Parse `project-version[-build]-python-abi-platform.whl`. Raises WheelError.

        Accepts what `packaging.utils.parse_wheel_filename` accepts, without importing it: that
        costs as much as renaming a wheel.
        """
        hint = "a wheel is named project-version-python-abi-platform.whl"
        match = _FILENAME.match(filename)
        if match is None:
            raise WheelError(f"{filename}: not a wheel's name", hint=hint)
        if version(match["version"].replace("_", "-")) is None:
            raise WheelError(f"{filename}: its version is not PEP 440", hint=hint)
        return cls(
            distribution=match["project"],
            project=normal_name(match["project"]),
            version_text=match["version"],
            build=match["build"] or "",
            pythons=tuple(match["python"].split(".")),
            abis=tuple(match["abi"].split(".")),
            platforms=tuple(match["platform"].split(".")),
        )

    @property
    def version(self) -> Version:
        return Version(self.version_text.replace("_", "-"))

    @property
    def tags(self) -> tuple[str, ...]:
        """Return every single tag that the file name stands for, sorted."""
        single = itertools.product(self.pythons, self.abis, self.platforms)
        return tuple(sorted(map("-".join, single)))

    @property
    def stem(self) -> str:
        """Return the stem that the names of the dist-info and data folders share."""
        return f"{self.distribution}-{self.version_text}"

    def moved(self, member: str, stem: str) -> str:
        """Return a member's name where the dist-info and data folders begin with `stem`."""
        folders = (f"{self.stem}.dist-info/", f"{self.stem}.data/")
        return stem + member[len(self.stem) :] if member.startswith(folders) else member

    def __str__(self) -> str:
        compressed = (".".join(tags) for tags in (self.pythons, self.abis, self.platforms))
        return f"{self.stem}{self.build}-{'-'.join(compressed)}.whl"


def canonical_platform(tag: str) -> str:
    """Return a platform tag with older names of manylinux levels replaced by those of PEP 600."""
    old, _, machine = tag.partition("_")
    return f"manylinux_{MANYLINUX[old]}_{machine}" if old in MANYLINUX and machine else tag


def normal_name(name: str) -> str:
    """Return a project name in normal form (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


class RecordRow(NamedTuple):
    """One line of RECORD; `digest` is `sha256=…` as written, "" where there is none."""

    path: str
    digest: str
    size: str

    @property
    def algorithm(self) -> str:
        return self.digest.partition("=")[0]


class KeyValueText:
    """An e-mail-like block of `Key: value` lines, with a body after the first empty line."""

    def __init__(self, data: bytes, *, name: str) -> None:
        """Raise WheelError when it is not UTF-8 or has a line that is no header."""
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as exc:
            raise WheelError(f"{name}: not UTF-8", hint=AGAIN) from exc
        self.name = name
        lines = _lines(text)
        end = next((n for n, line in enumerate(lines) if not line.strip("\r\n")), len(lines))
        fields: list[list[str]] = []
        for number, line in enumerate(lines[:end], 1):
            if fields and line[0] in " \t":
                fields[-1].append(line)
            elif _FIELD.match(line):
                fields.append([line])
            else:
                raise WheelError(f"{name}: line {number} is no `Key: value`", hint=AGAIN)
        self._lines = ["".join(field) for field in fields]
        self._body = "".join(lines[end:])

    def all(self, key: str, *, exact: bool = False) -> tuple[str, ...]:
        """Return values of a key; with `exact` case counts, as for uv, which reads WHEEL so."""
        values = []
        for match in filter(None, map(_FIELD.match, self._lines)):
            name, value = match.groups()
            if name == key or (not exact and name.lower() == key.lower()):
                if name.lower() == "name":  # pip and uv take no name of several lines
                    values.append(value.removesuffix("\n").removesuffix("\r").strip(" \t"))
                else:
                    values.append(value.strip())
        return tuple(values)

    def get(self, key: str) -> str:
        """Return the value of a key, "" where it is absent. Raises WheelError if it is twice."""
        values = self.all(key)
        if len(values) > 1:
            raise WheelError(f"{self.name}: {key} is given twice", hint=AGAIN)
        return values[0] if values else ""

    def replace(self, key: str, values: Mapping[str, str]) -> None:
        """Change values of a key: `values` maps old ones to new ones."""
        for number, line in enumerate(self._lines):
            match = _FIELD.match(line)
            if match and match[1].lower() == key.lower():
                old = match[2].strip()
                if old and old in values:
                    at = line.index(old, match.start(2))
                    self._lines[number] = line[:at] + values[old] + line[at + len(old) :]

    def replace_all(self, key: str, values: Iterable[str]) -> None:
        """Put these values in the first line of the key, and remove its other lines."""
        at = {
            number: None
            for number, line in enumerate(self._lines)
            if line.partition(":")[0].lower() == key.lower()
        }
        end = "\r\n" if self._lines and self._lines[0].endswith("\r\n") else "\n"
        first = next(iter(at), len(self._lines))
        kept = [line for number, line in enumerate(self._lines) if number not in at]
        kept[first:first] = [f"{key}: {value}{end}" for value in values]
        self._lines = kept

    def to_bytes(self) -> bytes:
        return ("".join(self._lines) + self._body).encode()


def release_of(module: bytes) -> str | None:
    """Return the release in a version.py: "" for None, None where there is no assignment."""
    match = re.search(_RELEASE, module)
    return (match[3] or b"").decode("utf-8", "replace") if match else None


def with_release(module: bytes, version: str) -> bytes:
    """Return a version.py with another release; one without an assignment is not changed.

    JAX's module repeats an assignment in the code that writes it; it is replaced there too.
    """
    match = re.search(_RELEASE, module)
    if match is None:
        return module
    if not match[2]:
        return module[: match.start()] + match[1] + repr(version).encode() + module[match.end() :]
    return module.replace(match[1] + match[2] + match[3], match[1] + match[2] + version.encode())


def sound_mode(mode: int) -> int:
    """Return permission bits with which all can use a file, and only its owner changes it.

    A sound mode stays; so does 0, of an archive without modes. pip and uv set their own modes;
    other programs that unpack wheels (Bazel, distributions) take the archive's.
    """
    bits = mode & 0o7777
    sound = (bits | 0o444) & ~0o7002
    if not bits or sound == bits:
        return mode
    return mode & ~0o7777 | sound | (0o111 if bits & 0o111 else 0)


def read_record(archive: ZipArchive, folder: str) -> tuple[bytes, tuple[RecordRow, ...]]:
    """Read and parse RECORD: UTF-8 CSV, three columns, one line a row."""
    data, name = archive.read(f"{folder}/RECORD"), f"{archive.path}: RECORD"
    rows = list[RecordRow]()
    reader = csv.reader(io.TextIOWrapper(io.BytesIO(data), "utf-8", newline=""), strict=True)
    try:
        for number, row in enumerate(reader, 1):
            if len(row) != 3:  # noqa: PLR2004
                raise WheelError(f"{name}: line {number} has {len(row)} columns, not 3", hint=AGAIN)
            if reader.line_num != number or not "".join(row).isprintable():
                raise WheelError(f"{name}: line {number} has a control character", hint=AGAIN)
            if number > 2 * len(archive.members) + 9:
                raise WheelError(f"{name}: more rows than the wheel has files", hint=AGAIN)
            rows.append(RecordRow(*row))
    except (UnicodeDecodeError, csv.Error) as exc:
        raise WheelError(f"{name}: {exc}", hint=AGAIN) from exc
    return data, tuple(rows)


def row_problems(names: Iterable[str], rows: Iterable[RecordRow], folder: str) -> Iterator[str]:
    """Return what is wrong in RECORD: each file is listed once, hashed if it may be."""
    unhashed = {f"{folder}/{name}" for name in UNHASHED}
    files = {name for name in names if not name.endswith("/")}
    seen = set()
    for row in rows:
        if row.path in seen:
            yield f"{row.path}: listed twice in RECORD"
        elif row.path not in files:
            yield f"{row.path}: listed in RECORD, but not in the wheel"
        elif row.path in unhashed:
            if row.digest or row.size:
                yield f"{row.path}: has a digest in RECORD and must not have one"
        elif row.algorithm not in STRONG:
            yield f"{row.path}: has no SHA-256 in RECORD"
        seen.add(row.path)
    for name in sorted(files - seen - {f"{folder}/{name}" for name in UNHASHED[1:]}):
        yield f"{name}: not listed in RECORD"


def edit_record(data: bytes, changes: Mapping[str, RecordRow]) -> bytes:
    """Replace rows by path, and add new ones; every other line keeps its bytes and its place."""
    edited, new = [], dict(changes)
    for line in _lines(data.decode("utf-8")):
        path = next(csv.reader([line], strict=True), [""])[0]
        end = line[len(line.rstrip("\r\n")) :]
        new.pop(path, None)
        edited.append(record_line(changes[path], end=end) if path in changes else line)
    if new and edited and edited[-1] == edited[-1].rstrip("\r\n"):
        edited.append("\n")
    edited += map(record_line, new.values())
    return "".join(edited).encode()


def record_line(row: RecordRow, *, end: str = "\n") -> str:
    sink = io.StringIO()
    csv.writer(sink, lineterminator=end).writerow(row)
    return sink.getvalue()


def record_digest(digest: bytes, *, algorithm: str = "sha256") -> str:
    """Return a digest as RECORD writes it: URL-safe base64 without padding."""
    return f"{algorithm}=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def dist_info(names: Iterable[str], *, path: object) -> str:
    """Return the one dist-info folder among member names, without a slash. Raises WheelError."""
    # pip counts a file of that name, too: pip/_internal/utils/wheel.py, wheel_dist_info_dir.
    folders = {name.partition("/")[0] for name in names}
    matching = sorted(name for name in folders if name.lower().endswith(".dist-info"))
    if len(matching) != 1:
        what = f"a wheel has one dist-info folder, this has {', '.join(matching) or 'none'}"
        raise WheelError(f"{path}: {what}", hint=AGAIN)
    return matching[0]


def row_of(path: str, content: Iterable[bytes], *, algorithm: str = "sha256") -> RecordRow:
    digest = hashlib.new(algorithm)
    size = 0
    for piece in content:
        digest.update(piece)
        size += len(piece)
    return RecordRow(path, record_digest(digest.digest(), algorithm=algorithm), str(size))


def _lines(text: str) -> list[str]:
    """Split into lines with their ends; only LF, CR and CRLF end one."""
    return list(io.StringIO(text, newline=""))


def version(text: str) -> Version | None:
    return _parsed(Version, text)


def flaws(data: bytes) -> list[str]:
    """Say what core metadata breaks that is well formed: by packaging, and what it lacks."""
    from packaging.metadata import Metadata, parse_email

    raw, _ = parse_email(data)
    requires = raw.get("requires_dist", [])
    found = ["a character that is not for texts"] if _CONTROL.search(data) else []
    if raw.get("license") and raw.get("license_expression"):
        found.append("License beside License-Expression")
    if specifiers(raw.get("requires_python", "")) is None or None in map(requirement, requires):
        return found  # whose time to parse nothing limits
    extras = {normal_name(each) for each in raw.get("provides_extra", [])}
    markers = " ".join(text.partition(";")[2] for text in requires)
    asked = {normal_name(name) for name in _EXTRA.findall(markers)}
    found += [f"no Provides-Extra for {name}" for name in sorted(asked - extras)]
    try:
        Metadata.from_email(data)
    except Exception as exc:  # noqa: BLE001  # a group, of more than packaging documents
        texts = map(str, getattr(exc, "exceptions", (exc,)))
        # setuptools writes it since 56, whatever the version
        found += [each for each in texts if not each.startswith("license-file introduced")]
    return found


def specifiers(text: str) -> SpecifierSet | None:
    from packaging.specifiers import SpecifierSet

    parsed = _parsed(SpecifierSet, text)
    return parsed if parsed is not None and _compares(parsed) else None


def requirement(text: str) -> Requirement | None:
    """Return a requirement by PEP 508 whose marker has a value on Linux; None if it is invalid."""
    from packaging.requirements import Requirement

    parsed = _parsed(Requirement, text)
    if parsed is None or not _compares(parsed.specifier):
        return None
    try:
        applies(parsed, python_minor="12")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return None
    return parsed


def applies(requirement: Requirement, *, python_minor: str) -> bool:
    """Return whether it is installed with CPython 3.`python_minor` where no extra is asked for."""
    return requirement.marker is None or requirement.marker.evaluate({
        "extra": "", "python_version": f"3.{python_minor}",
        "python_full_version": f"3.{python_minor}.0",
        "implementation_version": f"3.{python_minor}.0", "sys_platform": "linux",
        "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64",
        "implementation_name": "cpython", "platform_python_implementation": "CPython",
    })  # fmt: skip


def _compares(specifier: SpecifierSet) -> bool:
    """Return whether it can be compared: packaging parses some numbers only then."""
    try:
        specifier.contains("0", prereleases=True)
    except ValueError:
        return False
    return True


def _parsed(kind: Callable[[str], _Value], text: str) -> _Value | None:
    """Parse a text that may be anything; packaging raises more than it documents."""
    if len(text) > LIMITS.specifier or text.count("(") > LIMITS.brackets:
        return None
    try:
        return kind(text)
    except (ValueError, RecursionError):  # what packaging calls invalid is a ValueError too
        return None
