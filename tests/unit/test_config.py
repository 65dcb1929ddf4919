"""A mistake in a YAML file is named with file, line, column, key and the nearest valid name."""

from __future__ import annotations

import pytest

from rocwheel.config import load, parse
from rocwheel.errors import ConfigError

TEXT = """\
pins:
  "0.9.1":
    commit: abc
    pythons: ["3.11", "3.12"]
    count: 0x10
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
