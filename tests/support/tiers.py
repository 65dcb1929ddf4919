"""Which cases of a test a merge tries, and which only a soak run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def merge_tries(*kept: Any, of: Iterable[Any]) -> list[Any]:
    """Return the cases `of` a test, all but the `kept` ones marked as soak."""
    every = list(of)
    assert set(kept) <= set(every), "what is kept is one of them"
    return [case if case in kept else pytest.param(case, marks=pytest.mark.soak) for case in every]
