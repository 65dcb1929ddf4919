"""Reads YAML files as typed values; an error names file, line, column, key and the nearest name.

A format is a `values.Value`, as for JSON; msgspec checks a document against its annotations. `read`
is all that most files need. What types cannot check, a value checks in `__post_init__` and raises
FieldError; what needs other files is checked with `load`, `Document.to` and `Document.error`.
How to add a format: docs/design/data-files.md.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import date
from functools import reduce
from pathlib import Path
from typing import Any, Final, TypeVar, get_origin

import msgspec
import yaml
from msgspec import inspect

from rocwheel.base import files, values
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Plain
from rocwheel.base.versions import PythonVersion, suggest

MOST: Final = 16 << 20  # bytes of a file that people write
NODES: Final = 1_000_000  # of a document once its aliases are expanded
DEEP: Final = 2_000  # levels that a document may have: by brackets, or by columns of a line
Step = str | int  # a key of a mapping, or an index of a list
_T = TypeVar("_T")
_STEP: Final = r"\.([^.\[\]`]+)|\[(\d+)\]|(\[\.\.\.\])"
_HINTS: Final = {  # by how a message of msgspec begins
    "Expected `str": "put it in quotes",
    "Expected `array": "write a list: [a, b], or one `- a` a line",
    "Expected `object": "write `key: value`, one a line",
    "Expected `int": "write a number such as 3, without quotes",
    "Expected `bool": "write true or false, without quotes",
    "Expected `date": 'write a day as "2027-01-31"',
    "Invalid RFC3339": 'write a day as "2027-01-31"',
}


_WORDS: Final = {  # of msgspec, in the words of people who write YAML
    "array": "a list", "bool": "true or false", "date": "a day", "float": "a number",
    "int": "a whole number", "null": "nothing", "object": "a mapping", "str": "text",
}  # fmt: skip


class FieldError(ValueError):
    """A mistake that a value finds in itself; `at` leads from the value to the field."""

    def __init__(self, problem: str, *at: Step, hint: str = "") -> None:
        super().__init__(problem)
        self.at = at
        self.hint = hint


def each_once(items: Iterable[object], *at: Step) -> None:
    """Raise FieldError when an item is twice in the list that `at` leads to."""
    seen = list[object]()
    for number, item in enumerate(items):
        if item in seen:
            raise FieldError(f"{item} is given twice", *at, number, hint="remove one of the two")
        seen.append(item)


class CPythons(tuple[PythonVersion, ...]):
    """CPythons as a file lists them, each once."""

    __slots__ = ()


class Document(Plain, frozen=True, kw_only=True):
    """A YAML document whose nodes know where they stand."""

    name: str  # what errors call the file
    node: yaml.Node
    content: Any  # the same as dicts, lists and scalars

    def to(self, kind: type[_T]) -> _T:
        """Convert the document to a value. Raises ConfigError that says where and what."""
        values.decoder(kind)  # msgspec looks at the annotations here, in one thread at a time
        try:
            return _converted(self.content, kind)
        except msgspec.ValidationError as exc:
            steps = _steps(self.content, kind, str(exc))
            own = exc.__cause__
            mistake = (
                own
                if isinstance(own, FieldError)
                else _mistake(str(exc), self.content, kind, steps)
            )
            raise self.error(str(mistake), *steps, *mistake.at, hint=mistake.hint) from exc

    def error(self, problem: str, *at: Step, hint: str = "") -> ConfigError:
        """Make the error for a mistake in the node that `at` leads to."""
        return _error(self.name, self._node(at), at, problem, hint)

    def line(self, *at: Step) -> str:
        """Return `file:line` of the node that `at` leads to."""
        return f"{self.name}:{self._node(at).start_mark.line + 1}"

    def _node(self, at: Sequence[Step]) -> yaml.Node:
        node = self.node
        for step in at:
            if isinstance(node, yaml.SequenceNode):
                node = node.value[step]
            else:
                here = (value for key, value in node.value if key.value == str(step))
                node = next(here, node)  # a field that the file leaves out: its mapping
        return node


def read(path: Path, kind: type[_T], *, name: str = "") -> _T:
    return load(path, name=name).to(kind)


def load(path: Path, *, name: str = "") -> Document:
    try:
        text = files.read(path, most=MOST).decode("utf-8")
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror}", hint="check the path") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: is not UTF-8", hint="save it as UTF-8 text") from exc
    return parse(text, name=name or str(path))


def parse(text: str, *, name: str) -> Document:
    try:
        loader = _loader(text)
        loader.name = name
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
        if node is None:
            raise ConfigError(f"{name}: the file is empty", hint="write its fields, or restore it")
        return Document(name=name, node=node, content=_Builtins(name).of(node, ())[0])
    except yaml.MarkedYAMLError as exc:
        mark, begun = exc.problem_mark, exc.context_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        since = f" since {begun.line + 1}:{begun.column + 1}" if begun else ""
        context = f"{exc.context}{since}: " if exc.context else ""
        hint = "write valid YAML there; text with `: `, or with @, ` or * in front, needs quotes"
        raise ConfigError(f"{where}: {context}{exc.problem}", hint=hint) from exc
    except UnicodeEncodeError as exc:
        raise ConfigError(f"{name}: not UTF-8 text: {exc.reason}", hint="save it as UTF-8") from exc
    except yaml.YAMLError as exc:
        problem = " ".join(str(exc).split())
        raise ConfigError(f"{name}: {problem}", hint="the file must be YAML in UTF-8") from exc
    except RecursionError as exc:
        raise ConfigError(f"{name}: nested too deeply", hint="write it with fewer levels") from exc


def _loader(text: str) -> Any:
    """Return libyaml's, which takes a tenth of the time, for what cannot overflow its stack."""
    deep = text.count("[") + text.count("{") > DEEP or max(map(len, text.split("\n"))) > DEEP
    return (yaml.SafeLoader if deep else getattr(yaml, "CSafeLoader", yaml.SafeLoader))(text)


class _Builtins:
    """Turns nodes into dicts, lists and scalars; an alias becomes the same object again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._made: dict[yaml.Node, tuple[Any, int]] = {}  # and its size with aliases expanded

    def of(self, node: yaml.Node, at: tuple[Step, ...]) -> tuple[Any, int]:
        """Return the content of a node, and how many nodes it has with aliases expanded."""
        if node not in self._made:
            self._made[node] = (None, NODES)  # what an alias inside of the node itself meets
            if isinstance(node, yaml.ScalarNode):
                self._made[node] = (self._scalar(node, at), 1)
            elif isinstance(node, yaml.SequenceNode):
                made = [self.of(item, (*at, number)) for number, item in enumerate(node.value)]
                self._made[node] = ([item for item, _ in made], 1 + sum(size for _, size in made))
            elif isinstance(node, yaml.MappingNode):
                self._made[node] = self._mapping(node, at)
        if self._made[node][1] > NODES:
            raise _error(self._name, node, at, f"more than {NODES} values", "use fewer aliases")
        return self._made[node]

    def _mapping(self, node: yaml.MappingNode, at: tuple[Step, ...]) -> tuple[dict[str, Any], int]:
        content: dict[str, Any] = {}
        whole = 1
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _error(self._name, key, at, "a key is not text", "write `key: value`")
            if key.value in content:
                raise _error(
                    self._name, key, (*at, key.value), "given twice", "remove one of the two"
                )
            content[key.value], size = self.of(value, (*at, key.value))
            whole += size
        return content, whole

    def _scalar(self, node: yaml.ScalarNode, at: tuple[Step, ...]) -> object:
        """Return a text, a number, true or false, a day or None; refuse `3.10` and `017`."""
        text, tag = str(node.value), str(node.tag).rpartition(":")[2]
        if tag == "int":
            if re.fullmatch(r"[-+]?(0|(?=[0-9_]{1,18}\Z)[1-9](_?[0-9])*)", text):
                return int(text)
            problem = f"{text}: not a decimal number of 18 digits or fewer"
            hint = "put it in quotes where it is text, as a digest is; a number has no leading 0"
            raise _error(self._name, node, at, problem, hint)
        if tag == "bool":
            return text.lower() in {"true", "yes", "on"}
        if tag == "timestamp" and re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            with suppress(ValueError):
                return date.fromisoformat(text)
        if tag in ("str", "timestamp"):
            return text
        if tag == "null":
            return None
        what = "text or a whole number" if tag == "float" else "text"
        hint = "write a whole number, or text in quotes" if tag == "float" else "put it in quotes"
        raise _error(self._name, node, at, f"expected {what}, found {tag}", hint)


def _error(name: str, node: yaml.Node, at: Sequence[Step], problem: str, hint: str) -> ConfigError:
    mark = node.start_mark
    key = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in at)
    where = f"{name}:{mark.line + 1}:{mark.column + 1}: {key.lstrip('.') or 'document'}"
    return ConfigError(f"{where}: {problem}", hint=hint)


def _converted(content: Any, kind: type[_T]) -> _T:
    return msgspec.convert(content, kind, str_keys=True, dec_hook=_own_type)


def _own_type(kind: type, content: Any) -> object:
    if kind is CPythons:
        if not isinstance(content, list):
            raise FieldError(f"expected a list, got {content!r}", hint="write `[a, b]`")
        pythons = CPythons(_own(PythonVersion.parse, item, n) for n, item in enumerate(content))
        each_once(pythons)
        return pythons
    return _own(re.compile if get_origin(kind) is re.Pattern else kind, content)


def _own(parse: Callable[[str], _T], text: object, *at: Step) -> _T:
    if not isinstance(text, str):
        raise FieldError(f"expected text, got {text!r}", *at, hint="put it in quotes")
    try:
        return parse(text)
    except ConfigError as exc:
        raise FieldError(str(exc), *at, hint=exc.hint) from exc
    except re.error as exc:
        raise FieldError(f"{text!r}: {exc}", *at, hint="write a regular expression") from exc
    except ValueError as exc:  # of packaging's Version and SpecifierSet
        raise FieldError(str(exc), *at, hint='write "0.9.1", or a range as ">=0.9,<0.10"') from exc


def _steps(content: Any, kind: type, text: str) -> list[Step]:
    """Return the way to the node of msgspec's error, such as ``… - at `$.sets[0].rocm` ``.

    It writes `[...]` for any key of a mapping that has no fields: which one is found by documents
    that have one key there.
    """
    place = text.partition(" - at `")[2]
    steps: list[Step] = []
    below = content
    whole = f"{place}[...]" if place.startswith("key`") else place
    for field, index, other in re.findall(_STEP, whole):
        step: Step = int(index) if index else field
        if other:
            alone = {key: _with(content, steps, {key: below[key]}) for key in below}
            step = next(key for key in alone if _refusal(alone[key], kind) == text)
            content = alone[step]
        steps.append(step)
        below = below[step]
    return steps


def _refusal(content: Any, kind: type) -> str:
    try:
        _converted(content, kind)
    except msgspec.ValidationError as exc:
        return str(exc)
    return ""


def _with(content: Any, at: Sequence[Step], value: Any) -> Any:
    if not at:
        return value
    copy = content.copy()
    copy[at[0]] = _with(content[at[0]], at[1:], value)
    return copy


def _mistake(text: str, content: Any, kind: type, steps: Sequence[Step]) -> FieldError:
    problem, _, place = text.partition(" - at `")
    types = _types(kind, steps, is_key=place.startswith("key`"))
    if problem.startswith("Object contains unknown field"):
        name = problem.split("`")[1]
        fields = [field.encode_name for item in types for field in getattr(item, "fields", ())]
        return FieldError("unknown key", name, hint=suggest(name, fields))
    if problem.startswith("Object missing required field"):
        name = problem.split("`")[1]
        return FieldError(f"{name!r} is missing", hint=f"add `{name}:` here")
    if problem.startswith("Invalid enum value"):
        value = problem.removeprefix("Invalid enum value ").strip("'")
        valid: list[str] = []
        for item in types:
            own: Any = getattr(item, "cls", None)  # an enumeration, if with a metaclass of its own
            is_enum = isinstance(own, enum.EnumMeta)
            names = [each.value for each in own] if is_enum else getattr(item, "values", ())
            valid += map(str, names)
        if steps[-1:] == ["schema"]:
            hint = "use a rocwheel of the same version"
            return FieldError(f"this rocwheel reads schema {', '.join(valid)}", hint=hint)
        return FieldError(f"unknown value {value!r}", hint=suggest(value, valid))
    described = [item for item in types if isinstance(item, inspect.Metadata) and item.extra]
    if "matching regex" in problem and described:
        extra = described[0].extra or {}
        value = reduce(lambda below, step: below[step], steps, content)
        return FieldError(f"{value!r} is not {extra['is']}", hint=extra["hint"])
    hint = next((hint for start, hint in _HINTS.items() if problem.startswith(start)), "")
    problem = re.sub(
        r"`([a-z]+(?: \| [a-z]+)*)`",
        lambda found: " or ".join(_WORDS.get(word, word) for word in found[1].split(" | ")),
        problem,
    )
    return FieldError(problem[:1].lower() + problem[1:], hint=hint)


def _types(kind: type, steps: Sequence[Step], *, is_key: bool) -> list[inspect.Type]:
    """Return what the annotations allow at a place: each member of a union."""
    types = list(_members(inspect.type_info(kind)))
    for number, step in enumerate(steps, start=1):
        of_key = is_key and number == len(steps)
        below = [info for item in types for info in _below(item, step, of_key=of_key)]
        types = [member for info in below for member in _members(info)]
    return types


def _members(info: inspect.Type) -> Iterator[inspect.Type]:
    yield info
    if isinstance(info, inspect.Metadata):
        yield from _members(info.type)
    elif isinstance(info, inspect.UnionType):
        for member in info.types:
            yield from _members(member)


def _below(info: inspect.Type, step: Step, *, of_key: bool) -> Sequence[inspect.Type]:
    if isinstance(info, inspect.StructType):
        return [field.type for field in info.fields if field.encode_name == step]
    if isinstance(info, inspect.DictType):
        return [info.key_type if of_key else info.value_type]
    if isinstance(info, inspect.TupleType):
        return [info.item_types[int(step)]]
    return [info.item_type] if hasattr(info, "item_type") else []
