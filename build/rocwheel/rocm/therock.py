"""Reads `ci/therock.yaml`: where TheRock publishes, how it names and lists, what its trees have.

A version in a tarball's name is `7.10.0`, `7.15.0a20260630`, `7.10.0rc1`, `7.14.0.dev0+13caf791` or
`10.1.0a20260811+bkc.20260814`; `-tests` marks a tarball with ROCm's own tests. Builds with
AddressSanitizer have the same names in a folder of their own.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import unquote, urlsplit

from msgspec import Meta
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import amdgpu_family_matrix as matrix
from amdgpu_family_matrix import Family
from rocwheel.base import home, yaml_file
from rocwheel.base.download import is_loopback, without_secrets
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import NonEmpty, Plain, Value, matching
from rocwheel.base.versions import RocmVersion, suggest
from rocwheel.base.yaml_file import FieldError
from rocwheel.records.source_layout import FileText

FILE: Final = "therock.yaml"
Address = Annotated[str, matching(r"\Ahttps?://\S+/\Z", "an https address of a folder", "end in /")]
Kind = Literal["tarballs", "asan", "packages"]
OLD_FACT: Final = 30  # days after which a fact is compared with its source again
# A host as `urlsplit` names it: without a port, an address of IPv6 without brackets.
Host = Annotated[
    str,
    matching(
        r"\A([a-z0-9]([a-z0-9.-]*[a-z0-9])?|[0-9a-f]*:[0-9a-f.]*:[0-9a-f:.]*)\Z",
        "a host",
        "write for example mirror.example.lan, without a port",
    ),
]
_WORD: Final = re.compile(r"[\w-]+\Z")
_DAY: Final = re.compile(r"(?:a|\+bkc\.)(20\d\d)(\d\d)(\d\d)\b")


class ReleasePlace(Value, frozen=True, kw_only=True):
    """Where the releases of some versions are, and the source of that fact."""

    versions: SpecifierSet
    tarballs: Address
    packages: Address
    asan: Address | None = None
    ended: date | None = None  # nothing newer came after it
    as_of: date  # how old what the source says is
    source: NonEmpty

    def has(self, version: Version) -> bool:
        return self.versions.contains(version, prereleases=True)


class ReleaseStream(Value, frozen=True, kw_only=True):
    """One stream of releases: its places, the newest first."""

    also: tuple[str, ...] = ()  # older names of it
    pattern: re.Pattern[str]  # of its versions
    example: str
    quiet_days: Annotated[int, Meta(ge=1)]
    places: tuple[ReleasePlace, ...]

    def __post_init__(self) -> None:
        if not self.places:
            raise FieldError("has no place", "places", hint="add one")
        if not self.has(self.example):
            what = f"{self.example} does not fit `pattern`, or names no day"
            raise FieldError(what, "example", hint="correct one of the two")
        if not _DAY.search(self.example) and any(place.ended for place in self.places):
            what = "has a place that ended, and its versions name no day to tell which are there"
            raise FieldError(what, "places", hint="remove the place: its address may be given")
        limits = [each.version.removesuffix(".*") for at in self.places for each in at.versions]
        limits += [f"{Version(each).base_version}.{n}" for each in limits for n in ("0.0.1", "1")]
        limits += ["0", "9999"]  # what follows a limit, and what no limit holds
        for number, place in enumerate(self.places):
            for version in map(Version, limits):
                if any(place.has(version) and other.has(version) for other in self.places[:number]):
                    what = f"ROCm {version} is in an earlier place, too"
                    hint = "give each version one place"
                    raise FieldError(what, "places", number, "versions", hint=hint)

    def has(self, version: str) -> bool:
        """Return whether a version is like its own, on a day that there is."""
        return bool(self.pattern.fullmatch(version)) and all(map(_day, _DAY.findall(version)))


class Upstream(Value, frozen=True, kw_only=True):
    """Where TheRock's own sources say where it publishes."""

    repository: str
    streams: FileText  # the pattern's group is read
    released: FileText  # the stream that no workflow publishes
    packages: FileText
    tarballs: FileText
    asan: FileText
    default: FileText


class TarballNames(Value, frozen=True, kw_only=True):
    """The grammar of a tarball's name."""

    pattern: re.Pattern[str]
    everything: str  # the group of a tarball for all GPU families

    def __post_init__(self) -> None:
        for name in ("platform", "group", "tests", "version"):
            if name not in self.pattern.groupindex:
                raise FieldError(f"has no group {name!r}", "pattern", hint=f"write (?P<{name}>…)")


class BucketListing(Value, frozen=True, kw_only=True):
    """The parts of a bucket's answer to a listing."""

    entry: re.Pattern[str]
    field: re.Pattern[str]
    following: re.Pattern[str]
    error: re.Pattern[str]


class TarballPages(Value, frozen=True, kw_only=True):
    """The formats of a page that lists tarballs."""

    constant: re.Pattern[str]
    link: re.Pattern[str]
    heading: re.Pattern[str]
    bucket: BucketListing


class PackageFolders(Value, frozen=True, kw_only=True):
    """How pip's packages name their folders, and what makes a tree of them."""

    begin: str
    whole: str
    expand: str


class TreeLayout(Value, frozen=True, kw_only=True):
    """Where a tree has what."""

    version: str
    header: str
    clang: str
    bitcode: tuple[str, ...]
    kernel_packs: str
    libraries: tuple[str, ...]
    links: Mapping[str, str]
    packages: PackageFolders


class ChangesPage(Value, frozen=True, kw_only=True):
    """Where people read what changed between two versions; the groups fill the address."""

    version: re.Pattern[str]
    address: str


class TheRock(Value, frozen=True, kw_only=True):
    """TheRock's interface."""

    schema: Literal[2]
    plain_http: tuple[Host, ...]  # hosts in a private network without https
    streams: Mapping[str, ReleaseStream]
    upstream: Upstream
    names: TarballNames
    pages: TarballPages
    tree: TreeLayout
    changes: tuple[ChangesPage, ...]

    def __post_init__(self) -> None:
        names, pages = {*self.streams}, dict[str, str]()
        for name, stream in self.streams.items():
            for number, other in enumerate(stream.also):
                if other in names:
                    what, hint = f"{other} is given twice", "remove one of the two"
                    raise FieldError(what, "streams", name, "also", number, hint=hint)
                names.add(other)
            for number, place in enumerate(stream.places):
                for kind in ("tarballs", "asan"):
                    page = getattr(place, kind)
                    if page and pages.setdefault(page, name) != name:
                        raise FieldError(
                            f"{page} is an address of {pages[page]}, too",
                            "streams", name, "places", number, kind,
                            hint="give each stream its own",
                        )  # fmt: skip
                for kind in ("tarballs", "asan", "packages"):
                    if host := self.unprotected(getattr(place, kind) or ""):
                        raise FieldError(
                            f"{getattr(place, kind)!r} is not an https address",
                            "streams", name, "places", number, kind,
                            hint=f"write https, or add {host} to `plain_http`",
                        )  # fmt: skip

    def unprotected(self, url: str) -> str:
        """Return the host of a plain-http address that is neither here nor in `plain_http`."""
        parts = urlsplit(url)
        is_plain = parts.scheme.lower() == "http" and not is_loopback(url)
        return parts.hostname or "" if is_plain and parts.hostname not in self.plain_http else ""


class TarballName(Plain, frozen=True, kw_only=True):
    """The parts of a tarball's name."""

    platform: str
    group: str  # a GPU family, or `multiarch`
    version: RocmVersion | None  # None where it is no version
    has_tests: bool

    @property
    def is_multiarch(self) -> bool:
        """Return whether the tarball serves every GPU family."""
        return self.group == known().names.everything

    @property
    def family(self) -> Family | None:
        """Return the GPU family; None for `multiarch` and for a family that is not known."""
        return matrix.FAMILIES.get(self.group)

    @property
    def is_release(self) -> bool:
        """Return whether it is a Linux ROCm to build with, and not one with ROCm's own tests."""
        return self.platform == "linux" and self.version is not None and not self.has_tests


def parse_name(name: str) -> TarballName | None:
    """Take a tarball's name apart; None where TheRock made no such name."""
    if (match := known().names.pattern.fullmatch(name)) is None:
        return None
    try:
        version = RocmVersion.parse(match["version"])
    except ConfigError:
        version = None
    return TarballName(
        platform=match["platform"],
        group=matrix.OLD_NAMES.get(match["group"], match["group"]),
        version=version,
        has_tests=bool(match["tests"]),
    )


def base_name(source: str) -> str:
    """Return the last part of a URL's path, decoded, or of a path."""
    path = unquote(urlsplit(source).path) if "://" in source else source
    return path.rstrip("/").rpartition("/")[2]


def day_of(version: RocmVersion) -> date | None:
    """Return the day in a nightly's version, the later of two."""
    return max(filter(None, map(_day, _DAY.findall(str(version)))), default=None)


def _day(parts: tuple[str, ...]) -> date | None:
    with suppress(ValueError):  # such as a20261399
        return date(*map(int, parts))
    return None


@cache
def known() -> TheRock:
    """Return the facts about TheRock that this rocwheel comes with."""
    return yaml_file.read(home.find(None).ci / FILE, TheRock)


def stream_of(text: str, *, ci: Path, cwd: Path) -> ReleaseStream | None:
    """Return the stream that a word, or the address of one of its pages, names.

    None for a folder, or another address that may be asked. Raises ConfigError.
    """
    data = yaml_file.read(ci / FILE, TheRock)
    if "://" in text and urlsplit(text).scheme.lower() not in {"http", "https"}:
        raise ConfigError(
            f"{without_secrets(text)}: is not an https address", hint="write https, or a folder"
        )
    if host := data.unprotected(text):
        raise ConfigError(
            f"{without_secrets(text)}: is not an https address",
            hint=f"write https, or add {host} to `plain_http` in {ci / FILE}",
        )
    if at := _place_of(text, data):
        return data.streams[at[0]]
    if not _WORD.match(text) or (cwd / text).is_dir():
        return None
    named = (item for name, item in data.streams.items() if text in {name, *item.also})
    if (stream := next(named, None)) is None:
        raise ConfigError(
            f"{text!r}: neither a stream of TheRock's nor a folder",
            hint=suggest(text, tuple(data.streams)),
        )
    return stream


def address(text: str, kind: Kind, *, version: str = "", ci: Path, cwd: Path) -> str:
    """Return the address that a stream's name stands for; any other text as it is."""
    if (stream := stream_of(text, ci=ci, cwd=cwd)) is None or "://" in text:
        return text
    places = [place for place in stream.places if getattr(place, kind)]
    hint = f"it has {' or '.join(str(place.versions) for place in places)}" if places else ""
    if version:
        wanted = RocmVersion.parse(version)
        day = day_of(wanted)
        if not stream.has(str(wanted)):
            places, hint = [], f"its versions are like {stream.example}"
        fitting = [place for place in places if place.has(wanted.version)]
        if fitting and fitting[0].ended and day and day > fitting[0].ended:
            fitting = [place for place in places if place.ended is None]  # an old series goes on
        places = fitting
    if not places:
        raise ConfigError(
            f"ROCm {version or kind}: the stream {text!r} has none",
            hint=f"{hint}; name another stream or an address".removeprefix("; "),
        )
    return str(getattr(places[0], kind))


def place_of(url: str) -> tuple[str, ReleasePlace] | None:
    """Return the stream and the place whose page of tarballs has this address."""
    return _place_of(url, known())


def _place_of(url: str, data: TheRock) -> tuple[str, ReleasePlace] | None:
    for name, stream in data.streams.items():
        for place in stream.places:
            pages = [page.rstrip("/") for page in (place.tarballs, place.asan) if page]
            if url.rstrip("/") in pages:
                return name, place
    return None


def outdated(today: date, streams: Collection[ReleaseStream]) -> Iterator[str]:
    """Yield a warning where what we know of these streams is too old, or yet to come."""
    days = [stream.places[0].as_of for stream in streams] or [today]
    day = max(days) if max(days) > today + timedelta(1) else min(days)
    if not 0 <= (age := (today - day).days) <= OLD_FACT:
        yield (
            f"{FILE}: what it says of TheRock's addresses is of {day}, "
            f"{f'{age} days old' if age > 0 else 'which is yet to come'}; "
            "compare it with TheRock's sources: `rocwheel pins bump therock`"
        )


def changes(old: str, new: str) -> str:
    """Return where people read what changed between two ROCms; "" if no page fits them."""
    for page in known().changes:
        was, is_now = (page.version.fullmatch(text) for text in (old, new))
        if was and is_now:
            return page.address.format(*was.groups(), *is_now.groups())
    return ""
