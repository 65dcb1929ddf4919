"""Reads `ci/layouts.yaml`; every mistake is a ConfigError with file, line, key and a suggestion."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from rocwheel.base import yaml_file
from rocwheel.base.values import Value, replace
from rocwheel.base.versions import suggest
from rocwheel.base.yaml_file import FieldError
from rocwheel.records.source_layout import CONDITIONS, PLACEHOLDER, VALUES, Layout

Layouts = Mapping[str, Layout]


class _Layout(Layout, frozen=True, kw_only=True):
    def __post_init__(self) -> None:
        """Refuse names of conditions and values that nothing defines."""
        features = frozenset[str]().union(*(item.features for item in self.classes))
        values = VALUES.union(*(item.values for item in self.classes))
        known = {"when": CONDITIONS | features, "options": values}
        used = set[str]()
        for place, step in enumerate(self.recipe):
            used |= {*step.when}
            named = [("when", number, name, repr(name)) for number, name in enumerate(step.when)]
            for number, template in enumerate(step.options):
                names = PLACEHOLDER.findall(template)
                named += [("options", number, name, f"{{{name}}}") for name in names]
            for key, number, name, shown in named:
                if name not in known[key]:
                    raise FieldError(
                        f"unknown value {shown}", "recipe", place, key, number,
                        hint=suggest(name, sorted(known[key])),
                    )  # fmt: skip
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
