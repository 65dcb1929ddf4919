"""Options of commands: a class of values that a room takes, each field declared as people type it.

    class PruneOptions(TargetOptions, DryRun):
        orphans: bool = opt("Target", "--orphans", "Remove what no set names.", default=False)

`cli.command` derives from a field what is typed, the environment variable and the help, and makes
the value of what was given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import Field
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_: bool) -> Callable[[type], type]:
        return lambda kind: kind


KEY: Final = "option"  # in a field's metadata


class OptionField:
    """What people see of a field; its default says whether it is a flag, a list, a number."""

    section: str
    names: tuple[str, ...]  # one without dashes is an argument
    about: str
    default: Any
    metavar: str | None
    required: bool = False
    param: str = ""  # its name in the program, where it is not that of the option
    values: str | tuple[str, ...] = ()  # offered: a name in `cli.known`, or the values
    only: tuple[str, ...] = ()  # the values, and no other
    kind: Any = None  # a type of click's, where none of the above says which
    nargs: int = 1  # of an argument; -1 for any number
    envvar: str | None = None  # of every command that has it
    is_path: bool = False
    many: bool = False  # separated by commas
    repeats: bool = False  # … and the option may be given again, for more of them
    parse: Callable[[str], Any] | None = None  # of a text, or of each of many

    def __init__(self, **settings: Any) -> None:
        vars(self).update(settings)

    @property
    def name(self) -> str:
        """The parameter's name, of which its environment variable is made."""
        return self.param or self.names[0].lower().lstrip("-").replace("-", "_")


def opt(section: str, words: str, about: str = "", *, default: Any = "", **settings: Any) -> Any:
    """Return a field that is an option: `--name NAME`, its help, settings of `OptionField`.

    Words without dashes make an argument: `NAME`.
    """
    if default == "":
        default = None if settings.get("is_path") else () if settings.get("many") else ""
    names = tuple(word for word in words.split() if word[0] == "-") or (words,)
    metavar = next((word for word in words.split() if word[0] != "-"), None)
    made = OptionField(
        section=section, names=names, about=about, default=default, metavar=metavar, **settings
    )
    if made.is_path and default is not None and default != ():
        return dataclasses.field(default_factory=lambda: _path(default), metadata={KEY: made})
    return dataclasses.field(default=default, metadata={KEY: made})


def _path(text: str) -> Path:
    from pathlib import Path  # which takes a tenth of the time that help takes

    return Path(text)


def nested(kind: type) -> Any:
    """Return a field whose value has options of its own."""
    return dataclasses.field(default_factory=kind, metadata={KEY: kind})


@dataclass_transform(kw_only_default=True, frozen_default=True)
class OptionSet:
    """Values that people give: a frozen dataclass once there is a value, as help needs none.

    Making a dataclass compiles its methods, and a command has up to twenty: a subclass is not
    decorated.
    """

    declares: ClassVar[dict[str, Any]] = {}  # options and nested values, of this class alone

    def __init_subclass__(cls) -> None:
        items = [(n, x.metadata) for n, x in vars(cls).items() if isinstance(x, Field)]
        cls.declares = {name: metadata[KEY] for name, metadata in items if KEY in metadata}

    if not TYPE_CHECKING:

        def __new__(cls, **_given: Any) -> Self:
            cls.fields()
            return object.__new__(cls)

    @classmethod
    def fields(cls) -> tuple[Field[Any], ...]:
        """Return the fields; make dataclasses of this class and what it inherits, once."""
        for kind in reversed(cls.__mro__[:-2]):
            if "__dataclass_fields__" not in vars(kind):
                dataclasses.dataclass(frozen=True, kw_only=True)(kind)
        return dataclasses.fields(cls)  # type: ignore[arg-type]


def listed(text: str | None) -> tuple[str, ...]:
    """Return the items of a comma-separated option."""
    return tuple(item.strip() for item in (text or "").split(",") if item.strip())
