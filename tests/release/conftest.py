"""A shop in a folder."""

from __future__ import annotations

import pytest
from support.wheelset import Shop


@pytest.fixture
def shop(tmp_path, console) -> Shop:
    return Shop((tmp_path / "store").as_uri(), console)
