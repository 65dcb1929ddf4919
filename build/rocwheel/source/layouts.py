"""Reads `ci/layouts.yaml`; every mistake is a ConfigError with file, line, key and a suggestion."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from rocwheel import yaml_file
from rocwheel.model import suggest
from rocwheel.source_layout import CONDITIONS, PLACEHOLDER, VALUES, ConditionalOptions, Layout
from rocwheel.values import Value, replace
from rocwheel.yaml_file import FieldError

Layouts = Mapping[str, Layout]


class _Layout(Layout, frozen=True, kw_only=True):
    def __post_init__(self) -> None:
        """Refuse names of conditions and values that nothing defines."""
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


class _File(Value, frozen=True, kw_only=True):
    schema: Literal[1]
    layouts: Mapping[str, _Layout]


def load(path: Path) -> Layouts:
    """Read every layout, by name. Raises ConfigError."""
    entries = yaml_file.read(path, _File).layouts
    return {name: replace(entry, name=name) for name, entry in entries.items()}


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
