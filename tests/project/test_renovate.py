"""Renovate finds every base image, action and lock: none is left to grow old."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rocwheel.image import recipe

ROOT = Path(__file__).parents[2]
SETTINGS = json.loads((ROOT / "renovate.json").read_text())


def python(pattern: str) -> str:
    """A pattern of JavaScript as Python has it."""
    return pattern.replace("(?<", "(?P<")


def test_it_finds_every_base_image_with_its_digest():
    (manager,) = SETTINGS["customManagers"]
    (pattern,) = manager["matchStrings"]
    found = re.finditer(python(pattern), (ROOT / "ci" / "images.yaml").read_text())
    images = recipe.load(ROOT / "ci")
    bases = [item.base for item in (*images.builders.values(), *images.runtime.bases.values())]
    assert [match.groups() for match in found] == [(b.name, b.tag, b.digest) for b in bases]


@pytest.mark.parametrize(
    ("older", "newer", "is_kept"),
    [
        ("2026.09.05-1", "2026.10.01-1", True),
        ("noble-20260911", "noble-20261001.2", True),
        ("noble-20260911", "jammy-20270101", False),
    ],
)
def test_a_newer_base_is_one_of_the_same_kind(older, newer, is_kept):
    (manager,) = SETTINGS["customManagers"]
    pattern = python(manager["versioningTemplate"].removeprefix("regex:"))
    first, second = (re.fullmatch(pattern, tag) for tag in (older, newer))
    assert (first["compatibility"] == second["compatibility"]) is is_kept
    numbers = [tuple(int(m[name]) for name in ("major", "minor", "patch")) for m in (first, second)]
    assert numbers[0] < numbers[1]


def test_it_finds_the_locks():
    (pattern,) = SETTINGS["pip_requirements"]["managerFilePatterns"]
    for name in ("build/requirements.lock", "tests/requirements.lock"):
        assert (ROOT / name).is_file()
        assert re.search(pattern.strip("/"), name)
