"""The pictures of the docs are taken of the pages that rocwheel makes, by one command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.needs("chromium", "chromedriver"),
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
]


def size(webp: bytes) -> tuple[int, int]:
    """Width and height of an extended WebP: RFC 9649, section 2.7."""
    assert (webp[:4], webp[8:16]) == (b"RIFF", b"WEBPVP8X")
    return tuple(int.from_bytes(webp[at : at + 3], "little") + 1 for at in (24, 27))


def test_one_command_takes_the_pictures_of_the_docs_and_twice_the_same(tmp_path):
    for folder in ("one", "two"):
        subprocess.run(
            [sys.executable, ROOT / "docs" / "make_pictures.py", tmp_path / folder],
            check=True, capture_output=True, timeout=240,
        )  # fmt: skip
    taken = {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()}
    assert taken == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    kept = {path.name: path.read_bytes() for path in (ROOT / "docs" / "images").iterdir()}
    assert taken.keys() == kept.keys()
    assert len(set(taken.values())) == len(taken), "a dark page is no light one"
    assert {size(data) for data in (*taken.values(), *kept.values())} == {(1000, 640)}
