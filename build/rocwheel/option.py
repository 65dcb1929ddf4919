"""An option of a command, declared as the field of the value that a room takes.

`cli.command` derives from the field what people type, the environment variable and the help, and
makes the value of what they gave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

KEY: Final = "option"  # in a field's metadata


@dataclass(frozen=True, kw_only=True)
class OptionField:
    """What people see of a field; its default says whether it is a flag, a list, a number."""

    section: str
    names: tuple[str, ...]
    about: str
    default: Any
    metavar: str | None
    required: bool = False
    param: str = ""  # its name in the program, where it is not that of the option
    values: str | tuple[str, ...] = ()  # offered: a name in `cli.known`, or the values
    only: tuple[str, ...] = ()  # the values, and no other
    is_path: bool = False
    many: bool = False  # separated by commas
    repeats: bool = False  # … and the option may be given again, for more of them
    parse: Callable[[str], Any] | None = None  # of a text, or of each of many

    @property
    def name(self) -> str:
        """The parameter's name, of which its environment variable is made."""
        return self.param or self.names[0].lstrip("-").replace("-", "_")


def opt(section: str, words: str, about: str, *, default: Any = "", **settings: Any) -> Any:
    """Return a field that is an option: `--name NAME`, its help, settings of `OptionField`."""
    if default == "":
        default = None if settings.get("is_path") else () if settings.get("many") else ""
    settings |= {"names": tuple(word for word in words.split() if word.startswith("-"))}
    settings |= {"metavar": next((word for word in words.split() if word[0] != "-"), None)}
    made = OptionField(section=section, about=about, default=default, **settings)
    return field(default=default, metadata={KEY: made})


def nested(kind: type) -> Any:
    """Return a field whose value has options of its own."""
    return field(default_factory=kind, metadata={KEY: kind})


def listed(text: str | None) -> tuple[str, ...]:
    """Return the items of a comma-separated option."""
    return tuple(item.strip() for item in (text or "").split(",") if item.strip())
