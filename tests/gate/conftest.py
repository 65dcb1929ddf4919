"""The pytest that workers run: the newest, which the tests themselves have, and the suites' own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import gate
from support.tiers import merge_tries

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def pinned_pytest(tmp_path_factory) -> Path:
    """A folder with the pytest that the suites pin, to stand before the installed one."""
    texts = [path.read_text() for path in (ROOT / "ci/suites").glob("*.yaml")]
    pins = {pin for text in texts for pin in re.findall(r"\bpytest==[0-9.]+", text)}
    (pin,) = pins  # one for all
    folder = tmp_path_factory.mktemp("pytest")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--target", folder, pin], check=True)
    return folder


@pytest.fixture(params=merge_tries("newest", of=["newest", "pinned"]))
def each_pytest(request, monkeypatch) -> str:
    """Run a test once with either."""
    if request.param == "pinned":
        monkeypatch.setattr(gate, "PATH", str(request.getfixturevalue("pinned_pytest")))
    return request.param
