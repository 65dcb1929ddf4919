"""Engines that really run, one session of each."""

from __future__ import annotations

import pytest
from support import engines


@pytest.fixture(scope="session", params=["docker", "podman"])
def engine(request):
    """A running engine that has the base image."""
    if request.param == "podman":
        with engines.podman() as running:
            yield engines.with_image(running)
    else:
        with engines.docker() as running:
            yield engines.with_image(running)
