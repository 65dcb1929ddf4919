"""Reads `ci/therock.yaml`: where TheRock publishes, how it names and lists, what its trees have."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Final, Literal

from rocwheel.base import home, yaml_file
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Value, matching
from rocwheel.base.versions import suggest
from rocwheel.base.yaml_file import FieldError

FILE: Final = "therock.yaml"
Address = Annotated[str, matching(r"\Ahttps://\S+/\Z", "an https address of a folder", "end in /")]
Kind = Literal["tarballs", "per_family", "asan", "packages"]
_WORD: Final = re.compile(r"[a-z]+\Z")


class TheRockChannel(Value, frozen=True, kw_only=True):
    """One channel: what lies where."""

    tarballs: Address
    per_family: Address
    packages: Address
    asan: Address | None = None


class TarballNames(Value, frozen=True, kw_only=True):
    """The grammar of a tarball's name."""

    pattern: re.Pattern[str]
    everything: str  # the group of a tarball for all GPU families

    def __post_init__(self) -> None:
        """Refuse a pattern without the parts that are asked for."""
        for name in ("platform", "group", "tests", "version"):
            if name not in self.pattern.groupindex:
                raise FieldError(f"has no group {name!r}", "pattern", hint=f"write (?P<{name}>…)")


class BucketListing(Value, frozen=True, kw_only=True):
    """The parts of a bucket's answer to a listing."""

    entry: re.Pattern[str]
    field: re.Pattern[str]
    following: re.Pattern[str]


class TarballPages(Value, frozen=True, kw_only=True):
    """The formats of a page that lists tarballs."""

    constant: re.Pattern[str]
    link: re.Pattern[str]
    bucket: BucketListing


class TreeLayout(Value, frozen=True, kw_only=True):
    """Where a tree has what."""

    version: str
    header: str
    clang: str
    bitcode: tuple[str, ...]
    kernel_packs: str
    libraries: tuple[str, ...]
    links: Mapping[str, str]


class ChangesPage(Value, frozen=True, kw_only=True):
    """Where people read what is between two versions of a pattern: its groups fill the address."""

    version: re.Pattern[str]
    address: str


class TheRock(Value, frozen=True, kw_only=True):
    """TheRock's interface."""

    schema: Literal[1]
    changes: tuple[ChangesPage, ...]
    channels: Mapping[str, TheRockChannel]
    names: TarballNames
    pages: TarballPages
    tree: TreeLayout


@cache
def known() -> TheRock:
    """Return the interface that this rocwheel comes with."""
    return yaml_file.read(home.find(None).ci / FILE, TheRock)


def address(text: str, kind: Kind, *, ci: Path, cwd: Path) -> str:
    """Return the address that a channel's name stands for; any other text as it is.

    Raises ConfigError for a word that is neither a channel nor a folder.
    """
    if not _WORD.match(text) or (cwd / text).is_dir():
        return text
    channels = yaml_file.read(ci / FILE, TheRock).channels
    if text not in channels:
        raise ConfigError(
            f"{text!r}: neither a channel of TheRock's nor a folder",
            hint=suggest(text, tuple(channels)),
        )
    return str(getattr(channels[text], kind))


def changes(old: str, new: str) -> str:
    """Return where people read what changed between two ROCms; "" where versions do not tell."""
    for page in known().changes:
        was, is_now = (page.version.fullmatch(text) for text in (old, new))
        if was and is_now:
            return page.address.format(*was.groups(), *is_now.groups())
    return ""
