"""Engines that really run, for one module after the other."""

from __future__ import annotations

import os

import pytest
from support import engines
from support.tiers import merge_tries

from rocwheel.base import container
from rocwheel.base.container import EngineKind
from rocwheel.base.process import HostRunner, base_env


# Its storage is of one daemon at a time, and tests elsewhere start one, too.
@pytest.fixture(scope="module", params=merge_tries("docker", of=["docker", "podman"]))
def engine(request):
    """A running engine that has the base image."""
    if request.param == "podman":
        with engines.podman() as running:
            yield engines.with_image(running)
    else:
        with engines.docker() as running:
            yield engines.with_image(running)


@pytest.fixture
def host(engine):
    return HostRunner({**base_env(os.environ), **engine.env})


@pytest.fixture
def asked(engine, host):
    return container.ask(EngineKind(engine.kind), environ={**os.environ, **engine.env}, runner=host)
