"""YAML whose errors carry file, line, column, key and the nearest valid name.

`load(path)` returns a `Field`: a node of the document that knows where it stands. Readers ask it
for what they expect (`mapping`, `sequence`, `string`, …, `sha256`, `commit`, `cpythons`, `day`);
anything else is a ConfigError such as `pins.yaml:12:5: pins.0.9.1.comit: unknown key`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Final, NoReturn

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from rocwheel import files
from rocwheel.errors import ConfigError
from rocwheel.model import PythonVersion, is_commit, is_sha256, suggest

MOST: Final = 16 << 20  # bytes of a file that people write


@dataclass(frozen=True, kw_only=True)
class Field:
    """One node of a YAML document, with the dotted key that leads to it."""

    node: yaml.Node
    key: str

    def fail(self, problem: str, *, hint: str = "") -> NoReturn:
        mark = self.node.start_mark
        where = f"{mark.name}:{mark.line + 1}:{mark.column + 1}"
        raise ConfigError(f"{where}: {self.key or 'document'}: {problem}", hint=hint)

    def mapping(self) -> dict[str, Field]:
        """Read a mapping with any keys; a key given twice is an error."""
        if not isinstance(self.node, yaml.MappingNode):
            self.fail(f"expected a mapping, found {self._tag()}", hint="write `key: value` lines")
        fields: dict[str, Field] = {}
        for key, value in self.node.value:
            if not isinstance(key, yaml.ScalarNode):
                Field(node=key, key=self.key).fail("a key is not text", hint="write `key: value`")
            name = f"{self.key}.{key.value}" if self.key else str(key.value)
            field = Field(node=value, key=name)
            if key.value in fields:
                Field(node=key, key=name).fail("given twice", hint="remove one of the two")
            fields[key.value] = field
        return fields

    def record(self, *, required: Iterable[str], optional: Iterable[str] = ()) -> dict[str, Field]:
        """Read a mapping with exactly these keys: unknown and missing ones are errors."""
        required, known = tuple(required), {*required, *optional}
        fields = self.mapping()
        for name in fields.keys() - known:
            fields[name].fail("unknown key", hint=suggest(name, frozenset(known)))
        for name in required:
            if name not in fields:
                self.fail(f"{name!r} is missing", hint=f"add `{name}:` here")
        return fields

    def sequence(self) -> tuple[Field, ...]:
        if not isinstance(self.node, yaml.SequenceNode):
            self.fail(f"expected a list, found {self._tag()}", hint="write `[a, b]` or `- a` lines")
        return tuple(
            Field(node=node, key=f"{self.key}[{number}]")
            for number, node in enumerate(self.node.value)
        )

    def string(self) -> str:
        """Read a scalar as text; `3.10` must be quoted, or YAML makes it the number 3.1."""
        if not isinstance(self.node, yaml.ScalarNode) or self._tag() != "str":
            self.fail(f"expected text, found {self._tag()}", hint="put it in quotes")
        return str(self.node.value)

    def strings(self) -> tuple[str, ...]:
        return tuple(field.string() for field in self.sequence())

    def choice(self, valid: Iterable[str]) -> str:
        valid = tuple(valid)
        value = self.string()
        if value not in valid:
            self.fail(f"unknown value {value!r}", hint=suggest(value, valid))
        return value

    def integer(self) -> int:
        """Read a whole number in decimal digits; YAML 1.1's `017`, `0x1f`, `1:30` are none."""
        if self._tag() != "int":
            self.fail(f"expected a whole number, found {self._tag()}", hint="write digits only")
        if not re.fullmatch(r"[-+]?(0|[1-9][0-9_]*)", self.node.value):
            self.fail(f"{self.node.value}: not a decimal number", hint="write it without leading 0")
        return int(self.node.value)

    def boolean(self) -> bool:
        if self._tag() != "bool":
            self.fail(f"expected true or false, found {self._tag()}")
        return str(self.node.value).lower() in {"true", "yes", "on"}

    def schema(self, known: int) -> None:
        """Require the schema that this program reads."""
        if self.integer() != known:
            self.fail(
                f"this rocwheel reads schema {known}", hint="use a rocwheel of the same version"
            )

    def sha256(self) -> str:
        text = self.string()
        if not is_sha256(text):
            self.fail(f"{text!r} is not 64 hexadecimal digits", hint="write all of them")
        return text

    def commit(self) -> str:
        text = self.string()
        if not is_commit(text):
            self.fail(f"{text!r} is not 40 hexadecimal digits", hint="write all of them")
        return text

    def version(self) -> Version:
        text = self.string()
        try:
            return Version(text)
        except InvalidVersion:
            self.fail(f"{text!r} is no version", hint='write for example "0.9.1"')

    def specifiers(self) -> SpecifierSet:
        """Read a range of versions: https://packaging.python.org/en/latest/specifications/version-specifiers/."""
        text = self.string()
        try:
            return SpecifierSet(text)
        except InvalidSpecifier:
            self.fail(f"{text!r} is no version specifier", hint='write for example ">=0.9,<0.10"')

    def cpythons(self) -> tuple[PythonVersion, ...]:
        """Read a list of CPythons, each once."""
        found: list[PythonVersion] = []
        for item in self.sequence():
            try:
                python = PythonVersion.parse(item.string())
            except ConfigError as exc:
                item.fail(str(exc), hint=exc.hint)
            if python in found:
                item.fail(f"{python} is given twice", hint="remove one of the two")
            found.append(python)
        return tuple(found)

    def day(self) -> date:
        """Read a date, quoted or not: YAML has a type of its own for it."""
        if self._tag() not in ("str", "timestamp"):
            self.fail(f"expected a day, found {self._tag()}", hint='write "2027-01-31"')
        try:
            return date.fromisoformat(str(self.node.value))
        except ValueError:
            self.fail(f"{self.node.value!r} is not a day", hint='write "2027-01-31"')

    def null(self) -> bool:
        """Whether nothing (or `null`) stands here."""
        return self._tag() == "null"

    def _tag(self) -> str:
        return str(self.node.tag).rpartition(":")[2]


def parse(text: str, *, name: str) -> Field:
    """Parse a YAML document; `name` is the file name that errors show."""
    try:
        loader = yaml.SafeLoader(text)
        loader.name = name
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise ConfigError(f"{where}: {exc.problem}", hint="mend the YAML there") from exc
    except yaml.YAMLError as exc:
        problem = " ".join(str(exc).split())
        raise ConfigError(f"{name}: {problem}", hint="the file must be YAML in UTF-8") from exc
    if node is None:
        raise ConfigError(f"{name}: the file is empty", hint="restore it from the repository")
    return Field(node=node, key="")


def load(path: Path, *, name: str = "") -> Field:
    """Read a YAML file, called `name`. Raises ConfigError when it cannot be read or is not YAML."""
    try:
        text = files.read(path, most=MOST).decode("utf-8")
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}", hint="check the path") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: {exc}", hint="check the path") from exc
    return parse(text, name=name or str(path))
