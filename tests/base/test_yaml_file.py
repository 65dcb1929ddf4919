"""A mistake in a YAML file is shown with file, line, column, key and the nearest valid name."""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Mapping
from datetime import date
from typing import Literal

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from rocwheel.base import yaml_file
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Commit, Count, Sha256, Value
from rocwheel.base.yaml_file import CPythons, FieldError, each_once


class Kind(enum.Enum):
    BUILT = "built"
    UPSTREAM = "upstream"


class Entry(Value, frozen=True, kw_only=True):
    name: str = ""
    commit: Commit = "0" * 40
    digest: Sha256 = "0" * 64
    count: Count = 0
    plain: int = 0
    default: bool = False
    day: date | None = None
    version: Version | None = None
    range: SpecifierSet | None = None
    pattern: re.Pattern[str] | None = None
    pythons: CPythons = CPythons()
    kind: Kind = Kind.BUILT
    level: Literal["low", "high"] = "low"
    either: str | tuple[int, str] = ""
    by_kind: Mapping[Kind, int] = {}
    numbers: Mapping[int, str] = {}
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        each_once(self.names, "names")
        if self.count > 99:
            raise FieldError("more than 99", "count", hint="write fewer")


class File(Value, frozen=True, kw_only=True):
    schema: Literal[1]
    pins: Mapping[str, Entry] = {}
    entries: tuple[Entry, ...] = ()


def entry(text: str) -> Entry:
    """Read the fields of one entry, after two good ones."""
    text = f"schema: 1\npins:\n  good: {{}}\n  '0.9.1':\n    {text}\n  last: {{}}\n"
    return yaml_file.parse(text, name="f.yaml").to(File).pins["0.9.1"]


def failure(action) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        action()
    return caught.value


def test_values_are_read_by_kind():
    read = entry(
        "{name: x, count: 1_6, default: yes, day: 2027-01-31, version: '0.9', range: '>=1',"
        " pattern: a+, pythons: ['3.14-ft'], kind: upstream, by_kind: {built: 1}, numbers: {7: x}}"
    )
    assert (read.name, read.count, read.default, read.day) == ("x", 16, True, date(2027, 1, 31))
    assert (read.version, read.range) == (Version("0.9"), SpecifierSet(">=1"))
    assert read.pattern is not None
    assert read.pattern.match("aa")
    assert [str(python) for python in read.pythons] == ["3.14-ft"]
    assert (read.kind, read.by_kind, read.numbers) == (Kind.UPSTREAM, {Kind.BUILT: 1}, {7: "x"})
    assert entry("{day: '2027-01-31'}").day == read.day
    assert entry("{day: null}").day is None


@pytest.mark.parametrize(
    ("text", "problem", "hint"),
    [
        ("comit: abc", "5:12: pins.0.9.1.comit: unknown key", "did you mean commit?"),
        ("name: [a]", "5:11: pins.0.9.1.name: expected text, got a list", "quotes"),
        ("name: {a: b}", "5:11: pins.0.9.1.name: expected text, got a mapping", "quotes"),
        ("name: 12", "5:11: pins.0.9.1.name: expected text, got a whole number", "quotes"),
        ("name: 3.10", "5:11: pins.0.9.1.name: expected text or a whole number, found float", "quotes"),
        ("name: 2027-01-31", "5:11: pins.0.9.1.name: expected text, got a day", "quotes"),
        ("name: !odd x", "5:11: pins.0.9.1.name: expected text, found !odd", "quotes"),
        ("name:", "5:10: pins.0.9.1.name: expected text, got nothing", "quotes"),
        ("name: *x", "5:11: found undefined alias", "needs quotes"),
        (f"digest: {'1' * 64}", f"{'1' * 64}: not a decimal number of 18", "as a digest is"),
        ("plain: '12'", "5:12: pins.0.9.1.plain: expected a whole number, got text", ""),
        ("plain: 017", "5:12: pins.0.9.1.plain: 017: not a decimal number", "leading 0"),
        ("plain: 0x10", "5:12: pins.0.9.1.plain: 0x10: not a decimal number", "leading 0"),
        ("plain: 1:30", "5:12: pins.0.9.1.plain: 1:30: not a decimal number", "leading 0"),
        (f"plain: {'9' * 5000}", "5:12: pins.0.9.1.plain: 999", "quotes"),
        ("count: -1", "5:12: pins.0.9.1.count: expected a whole number >= 0", ""),
        ("count: 100", "5:12: pins.0.9.1.count: more than 99", "write fewer"),
        ("default: maybe", "5:14: pins.0.9.1.default: expected true or false, got text", ""),
        ("commit: abc", "5:13: pins.0.9.1.commit: 'abc' is not 40 hexadecimal digits", "all"),
        (f"digest: {'A' * 64}", "is not 64 hexadecimal digits", "all"),
        ("day: '2027-02-30'", "5:10: pins.0.9.1.day: invalid RFC3339 encoded date", "2027-01-31"),
        ("day: 2027-02-30", "5:10: pins.0.9.1.day: invalid RFC3339 encoded date", "2027-01-31"),
        ("day: 12", "5:10: pins.0.9.1.day: expected a day or nothing, got a whole number", ""),
        ("version: 0.9.x", "5:14: pins.0.9.1.version: Invalid version: '0.9.x'", "0.9.1"),
        ("range: '=0.9'", "5:12: pins.0.9.1.range: Invalid specifier: '=0.9'", ">=0.9"),
        ("pattern: '('", "5:14: pins.0.9.1.pattern: '(': missing )", "regular expression"),
        ("pythons: ['3.12', '3.21']", "5:23: pins.0.9.1.pythons[1]: '3.21': unknown Python", "mean"),
        ("pythons: ['3.12', '3.12']", "5:23: pins.0.9.1.pythons[1]: 3.12 is given twice", "remove"),
        ("pythons: [3]", "5:15: pins.0.9.1.pythons[0]: expected text, got 3", "quotes"),
        ("names: [a, b, a]", "5:19: pins.0.9.1.names[2]: a is given twice", "remove"),
        ("pythons: '3.12'", "5:14: pins.0.9.1.pythons: expected a list, got '3.12'", "[a, b]"),
        ("kind: bult", "5:11: pins.0.9.1.kind: unknown value 'bult'", "did you mean built?"),
        ("level: lwo", "5:12: pins.0.9.1.level: unknown value 'lwo'", "did you mean low?"),
        ("either: 3", "5:13: pins.0.9.1.either: expected text or a list, got a whole number", ""),
        ("either: [3, 4]", "5:17: pins.0.9.1.either[1]: expected text", "quotes"),
        ("by_kind: {built: 1, uptream: 2}", "5:34: pins.0.9.1.by_kind.uptream: unknown value", "mean"),
        ("by_kind: {built: 1, upstream: x}", "5:35: pins.0.9.1.by_kind.upstream: expected a whole number", ""),
        ("numbers: {seven: x}", "5:22: pins.0.9.1.numbers.seven: expected a whole number", ""),
        ("name: a\n    name: b", "6:5: pins.0.9.1.name: given twice", "remove"),
        ("[a, b]: 1", "5:5: pins.0.9.1: a key is not text", "key: value"),
        ("<<: {name: x}", "unknown key", "choose from"),
    ],
)  # fmt: skip
def test_a_mistake_is_located_and_has_a_hint(text, problem, hint):
    error = failure(lambda: entry(text))
    assert str(error).startswith("f.yaml:")
    assert problem in str(error)
    assert hint in error.hint


def test_what_is_missing_and_another_schema_are_located():
    document = yaml_file.parse("pins: {}\n", name="f.yaml")
    error = failure(lambda: document.to(File))
    assert str(error) == "f.yaml:1:1: document: 'schema' is missing"
    document = yaml_file.parse("schema: 2\n", name="f.yaml")
    error = failure(lambda: document.to(File))
    assert str(error) == "f.yaml:1:9: schema: this rocwheel reads schema 1"


@pytest.mark.parametrize("bad", range(7))
def test_of_many_entries_the_one_with_the_mistake_is_shown(bad):
    names = [f"k{number}" for number in range(7)]
    pins = "".join(f"  {name}: {{plain: {number}}}\n" for number, name in enumerate(names))
    text = f"schema: 1\npins:\n{pins}".replace(f"plain: {bad}}}", "plain: x}")
    error = failure(lambda: yaml_file.parse(text, name="f.yaml").to(File))
    assert str(error).startswith(f"f.yaml:{bad + 3}:15: pins.k{bad}.plain: ")


def test_what_needs_other_files_is_located_too():
    document = yaml_file.parse("schema: 1\nentries: [{name: x},\n  {name: y}]\n", name="f.yaml")
    error = document.error("no such suite", "entries", 1, "name", hint="choose")
    assert str(error) == "f.yaml:3:10: entries[1].name: no such suite"
    assert document.line("entries", 1) == "f.yaml:3"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: b: c\n", "1:5: mapping values are not allowed"),
        ("a: @x\n", "1:4: while scanning for the next token"),
        ("x: 1\na: [1,\n  2\nb: 3\n", "4:2: while parsing a flow sequence since 2:4: "),
        ("a: 'x\n", "2:1: while scanning a quoted scalar since 1:4: "),
        ("--- a\n--- b\n", "2:1: expected a single document in the stream since 1:5: but found"),
        ("a: \ud800\n", " not UTF-8 text"),
    ],
)
def test_invalid_yaml_is_located(text, problem):
    error = failure(lambda: yaml_file.parse(text, name="bad.yaml"))
    assert str(error).startswith(f"bad.yaml:{problem}")
    assert error.hint


@pytest.mark.parametrize("text", ["a: 1\na: 2\n", "a: [1\n", "", "a: \x00\n", "&a [*a]\n: x"])
def test_broken_documents_are_one_located_error(text):
    error = failure(lambda: yaml_file.parse(text, name="bad.yaml"))
    assert str(error).startswith("bad.yaml")
    assert error.hint


@pytest.mark.parametrize("text", ["[" * 5000 + "]" * 5000, "{a: " * 5000 + "}" * 5000])
def test_deep_nesting_is_one_error(text):
    error = failure(lambda: yaml_file.parse(text, name="deep.yaml"))
    assert str(error) == "deep.yaml: nested too deeply"


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [*a]",
        "a: &a {b: *a}",
        "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)),
    ],
)
def test_aliases_cannot_make_a_document_that_has_no_end(text):
    error = failure(lambda: yaml_file.parse(text, name="f.yaml"))
    assert "more than 1000000 values" in str(error)


def test_an_alias_stands_for_its_value():
    text = "schema: 1\npins: {a: &a {name: x}, b: *a}\n"
    file = yaml_file.parse(text, name="f.yaml").to(File)
    assert file.pins["b"].name == "x"


def test_a_missing_file_is_an_error_with_its_path(tmp_path):
    error = failure(lambda: yaml_file.read(tmp_path / "no.yaml", File))
    assert str(tmp_path / "no.yaml") in str(error)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_refused_and_never_read(tmp_path, make):
    make(tmp_path / "odd.yaml")
    with pytest.raises(ConfigError, match=r"odd\.yaml: is not a regular file"):
        yaml_file.read(tmp_path / "odd.yaml", File)
