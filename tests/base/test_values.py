"""Records are parsed as strictly as their public JSON Schemas say, and nothing else is written."""

from __future__ import annotations

import copy
import json
from importlib.resources import files

import jsonschema
import pytest

from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Value, canonical_json, replace
from rocwheel.records.manifest import Manifest
from tests.dist.test_wheelhouse import record
from tests.records.test_manifest import example
from tests.records.test_verdict import VERDICT

RECORDS = {"manifest": example(), "verdict": VERDICT, "build": record()}


def schema(name: str) -> dict:
    return json.loads(
        files("rocwheel").joinpath(f"records/schemas/{name}.schema.json").read_bytes()
    )


def mutants(document: object) -> list[object]:
    """Every copy of a document with one key missing, added, or of another type or value."""
    found: list[object] = []

    def walk(node, put) -> None:
        if isinstance(node, dict):
            put({**node, "surplus": {"a": []}})
            for key, value in node.items():
                put({k: v for k, v in node.items() if k != key})
                walk(value, lambda new, key=key: put({**node, key: new}))
        elif isinstance(node, list):
            put("not a list")
            for at, value in enumerate(node):
                walk(value, lambda new, at=at: put([*node[:at], new, *node[at + 1 :]]))
        else:
            put([node])
            put(-7 if not isinstance(node, int) else "7")
            put(f"!\n{node}" if isinstance(node, str) else 99)

    walk(document, lambda new: found.append(copy.deepcopy(new)))
    return found


@pytest.mark.parametrize("name", RECORDS)
def test_what_is_written_keeps_the_public_schema_and_reads_back(name):
    value = RECORDS[name]
    document = json.loads(value.to_bytes())
    jsonschema.Draft202012Validator(schema(name)).validate(document)
    assert type(value).from_bytes(value.to_bytes(), name=name) == value


@pytest.mark.parametrize("name", RECORDS)
def test_what_the_public_schema_refuses_is_not_read(name):
    value = RECORDS[name]
    validator = jsonschema.Draft202012Validator(schema(name))
    refused = 0
    for mutant in mutants(json.loads(value.to_bytes())):
        if not validator.is_valid(mutant):
            refused += 1
            with pytest.raises(ConfigError, match=f"^{name}: "):
                type(value).from_bytes(canonical_json(mutant), name=name)
    assert refused > 10


def test_a_value_that_could_not_be_read_again_is_never_written():
    wrong = replace(VERDICT, reason="two\nlines")
    with pytest.raises(ConfigError, match=r"Verdict: reason: "):
        wrong.to_bytes()


def test_json_too_deep_for_any_reader_is_an_error_of_ours():
    with pytest.raises(ConfigError, match=r"^m: "):
        Manifest.from_bytes(b"[" * 200_000, name="m")


def test_text_that_utf8_cannot_spell_is_no_record():
    class Note(Value, frozen=True, kw_only=True):
        text: str

    with pytest.raises(ValueError, match="surrogates"):
        Note(text="\udc80").to_bytes()


@pytest.mark.parametrize("number", [2**53, -(2**53), 10**400])
def test_numbers_that_readers_of_json_take_for_others_are_no_record(number):
    class Note(Value, frozen=True, kw_only=True):
        number: int

    with pytest.raises(ValueError, match="more than 53"):
        Note(number=number).to_bytes()
    with pytest.raises(ConfigError, match=r"^n: not canonical JSON: a number of \d+ bits"):
        Note.from_bytes(b'{\n  "number": ' + str(number).encode() + b"\n}\n", name="n")
