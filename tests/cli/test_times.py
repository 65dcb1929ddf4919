"""How long a container is kept, as people write it."""

from __future__ import annotations

import click
import pytest

from rocwheel.cli.bazel import Minutes


@pytest.mark.parametrize(("text", "expected"), [("0", 0), ("30m", 30), ("2h", 120)])
def test_a_time_is_a_number_and_its_unit(text, expected):
    assert Minutes().convert(text, None, None) == expected


@pytest.mark.parametrize("text", ["30", "m", "-5m", "1d", "0m", ""])
def test_what_is_no_time_says_how_to_write_one(text):
    with pytest.raises(click.BadParameter, match="write 30m or 2h"):
        Minutes().convert(text, None, None)
