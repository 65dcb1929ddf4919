"""A mistake in a YAML file is named with file, line, column, key and the nearest valid name."""

from __future__ import annotations

import os
from datetime import date

import pytest

from rocwheel.errors import ConfigError
from rocwheel.located_yaml import Field, load, parse

TEXT = """\
pins:
  "0.9.1":
    commit: abc
    pythons: ["3.11", "3.12"]
    count: 1_6
    default: yes
    nothing:
"""


def pin():
    return parse(TEXT, name="pins.yaml").record(required=["pins"])["pins"].mapping()["0.9.1"]


def test_values_are_read_by_kind():
    fields = pin().mapping()
    assert fields["commit"].string() == "abc"
    assert fields["pythons"].strings() == ("3.11", "3.12")
    assert fields["count"].integer() == 16
    assert fields["default"].boolean() is True
    assert fields["nothing"].null()
    assert fields["commit"].choice(["abc", "def"]) == "abc"


def failure(action) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        action()
    return caught.value


def test_an_unknown_key_is_located_and_the_nearest_one_named():
    error = failure(
        lambda: pin().record(
            required=["comit", "pythons"], optional=["count", "default", "nothing"]
        )
    )
    assert str(error) == "pins.yaml:3:13: pins.0.9.1.commit: unknown key"
    assert error.hint == "did you mean comit?"


def test_a_missing_key_is_located():
    fields = ["commit", "pythons", "count", "default", "nothing", "ref"]
    error = failure(lambda: pin().record(required=fields))
    assert str(error) == "pins.yaml:3:5: pins.0.9.1: 'ref' is missing"


@pytest.mark.parametrize(
    ("key", "read", "problem"),
    [
        ("commit", "mapping", "expected a mapping, found str"),
        ("commit", "sequence", "expected a list, found str"),
        ("count", "string", "expected text, found int"),
        ("commit", "integer", "expected a whole number, found str"),
        ("commit", "boolean", "expected true or false, found str"),
    ],
)
def test_the_wrong_kind_of_value_is_said(key, read, problem):
    error = failure(getattr(pin().mapping()[key], read))
    assert str(error).endswith(f"pins.0.9.1.{key}: {problem}")


def test_an_unquoted_version_is_not_silently_a_number():
    field = parse("python: 3.10\n", name="x.yaml").mapping()["python"]
    error = failure(field.string)
    assert "x.yaml:1:9: python: expected text, found float" in str(error)
    assert error.hint == "put it in quotes"


def test_a_bad_choice_names_the_nearest():
    error = failure(lambda: pin().mapping()["commit"].choice(["abd", "zzz"]))
    assert "unknown value 'abc'" in str(error)
    assert error.hint == "did you mean abd?"


@pytest.mark.parametrize("text", ["a: 1\na: 2\n", "a: [1\n", "", "a: \x00\n", "&a [*a]\n: x"])
def test_broken_documents_are_one_located_error(text):
    error = failure(lambda: parse(text, name="bad.yaml").mapping())
    assert str(error).startswith("bad.yaml")
    assert error.hint


def test_a_missing_file_is_an_error_with_its_path(tmp_path):
    error = failure(lambda: load(tmp_path / "no.yaml"))
    assert str(tmp_path / "no.yaml") in str(error)


@pytest.mark.parametrize(
    ("value", "reader", "problem"),
    [
        ("017", Field.integer, "not a decimal number"),
        ("0x10", Field.integer, "not a decimal number"),
        ("1:30", Field.integer, "not a decimal number"),
        ("'12'", Field.integer, "expected a whole number"),
        ("2", lambda field: field.schema(1), "this rocwheel reads schema 1"),
        ("abc", Field.sha256, "not 64 hexadecimal digits"),
        ("A" * 64, Field.sha256, "not 64 hexadecimal digits"),
        ("abc", Field.commit, "not 40 hexadecimal digits"),
        ("'0.9.x'", Field.version, "no version"),
        ("'=0.9'", Field.specifiers, "no version specifier"),
        ("['3.12', '3.21']", Field.cpythons, "unknown Python version"),
        ("['3.12', '3.12']", Field.cpythons, "given twice"),
        ("2027-02-30", Field.day, "not a day"),
        ("12", Field.day, "expected a day"),
    ],
)
def test_a_value_that_cannot_be_right_is_located(value, reader, problem):
    field = parse(f"a:\n  key: {value}\n", name="f.yaml").mapping()["a"].mapping()["key"]
    error = failure(lambda: reader(field))
    assert str(error).startswith("f.yaml:2:")
    assert problem in str(error)
    assert error.hint


def test_the_vocabulary_reads_what_is_right():
    text = f"day: 2027-01-31\nquoted: '2027-01-31'\ncommit: '{'a' * 40}'\npythons: ['3.14-ft']\n"
    fields = parse(text, name="f.yaml").mapping()
    assert fields["day"].day() == fields["quoted"].day() == date(2027, 1, 31)
    assert fields["commit"].commit() == "a" * 40
    assert [str(item) for item in fields["pythons"].cpythons()] == ["3.14-ft"]


@pytest.mark.parametrize("text", ["[a, b]: 1\n", "? {a: b}\n: 1\n", "x:\n  [1]: 2\n"])
def test_a_key_that_is_no_text_is_located(text):
    def read(field):
        for value in field.mapping().values():
            value.mapping()

    error = failure(lambda: read(parse(text, name="f.yaml")))
    assert str(error).startswith("f.yaml:")
    assert "a key is not text" in str(error)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_regular_file_is_refused_and_never_read(tmp_path, make):
    make(tmp_path / "odd.yaml")
    with pytest.raises(ConfigError, match=r"odd\.yaml: is no regular file"):
        load(tmp_path / "odd.yaml")
