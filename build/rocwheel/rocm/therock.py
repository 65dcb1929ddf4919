"""Reads `ci/therock.yaml`: the addresses of each channel of TheRock's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from rocwheel import yaml_file
from rocwheel.errors import ConfigError
from rocwheel.model import suggest
from rocwheel.values import Value, matching

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


class _File(Value, frozen=True, kw_only=True):
    schema: Literal[1]
    channels: Mapping[str, TheRockChannel]


def load(path: Path) -> Mapping[str, TheRockChannel]:
    """Read the channels by name. Raises ConfigError."""
    return yaml_file.read(path, _File).channels


def address(text: str, kind: Kind, *, ci: Path, cwd: Path) -> str:
    """Return the address that a channel's name stands for; any other text as it is.

    Raises ConfigError for a word that is neither a channel nor a folder.
    """
    if not _WORD.match(text) or (cwd / text).is_dir():
        return text
    channels = load(ci / FILE)
    if text not in channels:
        raise ConfigError(
            f"{text!r}: neither a channel of TheRock's nor a folder",
            hint=suggest(text, tuple(channels)),
        )
    return str(getattr(channels[text], kind))
