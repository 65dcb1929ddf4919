"""Fixtures of tests against real servers."""

from __future__ import annotations

import pytest
from support.faults import front
from support.s3 import servers

from examples.miniature import make_therock

__all__ = ["front", "servers"]


@pytest.fixture(scope="session")
def miniature_tarball(tmp_path_factory):
    """The miniature's ROCm, as its script makes it; making it takes seconds."""
    return make_therock.make_tarball(tmp_path_factory.mktemp("tarball"))
