"""Reads `ci/layouts.yaml`; every mistake is a ConfigError with file, line, key and a suggestion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec.structs import asdict

from rocwheel import yaml_file
from rocwheel.errors import ConfigError
from rocwheel.model import suggest
from rocwheel.source_layout import (
    CONDITIONS,
    PLACEHOLDER,
    VALUES,
    ClassFields,
    ConditionalOptions,
    Layout,
    LayoutFields,
    RocmNeeds,
    VersionClass,
)
from rocwheel.values import Value
from rocwheel.yaml_file import FieldError


class _Class(ClassFields, frozen=True, kw_only=True):
    needs: str


class _Layout(LayoutFields, frozen=True, kw_only=True):
    rocm_needs: Mapping[str, RocmNeeds]
    classes: tuple[_Class, ...]

    def __post_init__(self) -> None:
        """Refuse names of needs, conditions and values that nothing defines."""
        for number, item in enumerate(self.classes):
            if item.needs not in self.rocm_needs:
                raise FieldError(
                    f"unknown value {item.needs!r}", "classes", number, "needs",
                    hint=suggest(item.needs, tuple(self.rocm_needs)),
                )  # fmt: skip
        features = frozenset[str]().union(*(item.features for item in self.classes))
        values = VALUES.union(*(item.values for item in self.classes))
        used = set[str]()
        for number, step in enumerate(self.recipe):
            used |= {*step.when}
            _check_step(step, CONDITIONS | features, values, number)
        for unread in sorted(features - used):
            raise FieldError(
                f"no step asks for the feature {unread!r}", "classes", hint="remove it"
            )

    def layout(self, name: str) -> Layout:
        fields = asdict(self)
        needs = fields.pop("rocm_needs")
        fields["classes"] = tuple(
            VersionClass(**{**asdict(item), "needs": needs[item.needs]}) for item in self.classes
        )
        return Layout(name=name, **fields)


class _File(Value, frozen=True, kw_only=True):
    schema: Literal[1]
    layouts: Mapping[str, _Layout]


@dataclass(frozen=True, kw_only=True)
class Layouts:
    """Every layout by name, in the order of the file."""

    by_name: Mapping[str, Layout]

    def __getitem__(self, name: str) -> Layout:
        try:
            return self.by_name[name]
        except KeyError:
            raise ConfigError(
                f"{name!r}: unknown layout", hint=suggest(name, tuple(self.by_name))
            ) from None


def load(path: Path) -> Layouts:
    """Read the layouts. Raises ConfigError."""
    entries = yaml_file.read(path, _File).layouts
    return Layouts(by_name={name: entry.layout(name) for name, entry in entries.items()})


def _check_step(
    step: ConditionalOptions, conditions: frozenset[str], values: frozenset[str], place: int
) -> None:
    """Refuse a condition or a value that nothing defines. Raises FieldError."""
    named = [("when", number, name, name) for number, name in enumerate(step.when)]
    for number, template in enumerate(step.options):
        named += [("options", number, n, f"{{{n}}}") for n in PLACEHOLDER.findall(template)]
    for key, number, name, shown in named:
        known = sorted(conditions if key == "when" else values)
        if name not in known:
            problem = f"unknown value {shown if key == 'options' else repr(name)}"
            raise FieldError(problem, "recipe", place, key, number, hint=suggest(name, known))
