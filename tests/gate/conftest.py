"""What tests of the gate begin with: an empty suite, and a CPython."""

from __future__ import annotations

import os

import pytest

from rocwheel.base.host import machine
from rocwheel.base.process import HostRunner, base_env


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "suite"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def interpreter():
    """A CPython of this machine: there is the one the tests themselves run on."""
    found = machine.pythons(os.environ, runner=HostRunner(base_env(os.environ)))
    return next(item for item in found if item.version.minor >= 11)
