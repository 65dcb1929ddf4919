"""A test that needs a tool which is not there fails in CI; elsewhere the last line says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

PROBE = """
import pytest
@pytest.mark.needs("igzip")
def test_with_a_tool(): pass
def test_without(): pass
"""


@pytest.fixture
def outcome(tmp_path):
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = needs(*tools): programs\n")
    (tmp_path / "test_probe.py").write_text(PROBE)

    def run(**extra):
        env = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(TESTS.parent / "build")}
        env.pop("CI", None)
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
            capture_output=True,
            text=True,
            env={**env, **extra},
            cwd=tmp_path,
            check=False,
        )

    return run


def test_in_ci_a_missing_tool_is_a_failure(outcome):
    done = outcome(CI="true")
    assert done.returncode == 1
    assert "igzip is missing: apt-get install isal" in done.stdout


def test_elsewhere_the_last_line_says_what_was_left_out(outcome):
    done = outcome()
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "1 tests did not run for lack of: igzip (1)"


def test_the_script_of_ci_asks_for_that():
    assert "export CI=true" in (TESTS.parent / ".ci" / "run").read_text()
