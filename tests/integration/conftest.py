"""Fixtures of tests against real servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.faults import front
from support.s3 import servers
from support.wheelset import SUITES

__all__ = ["front", "servers"]

RELEASES = {"release", "index", "test_release.py"}


@pytest.fixture(autouse=True, scope="module")
def counted(request) -> Iterator[None]:
    """Let suites be counted where a test is about releases: ours are on no GPU yet, which blocks."""
    with pytest.MonkeyPatch.context() as patch:
        if RELEASES.intersection(request.path.parts):
            patch.setattr("rocwheel.gate.suite.suites.load_known", lambda *_, **__: SUITES)
        yield
