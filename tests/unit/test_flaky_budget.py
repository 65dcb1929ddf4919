"""CI forgives a few tests with real parts in them, out loud, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

SHAKY = """
from pathlib import Path
import pytest
@pytest.mark.parametrize("number", range({tests}))
def test_shaky(number):
    times = Path(__file__).with_name(f"times-{{number}}")
    times.write_text("x" * {failures} if not times.exists() else times.read_text()[1:])
    assert not times.read_text(), "the engine slept"
"""


@pytest.fixture
def outcome(tmp_path):
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = needs(*tools): programs\n")

    def run(*, tests: int, failures: int = 1, room: str = "integration", ci: str = "true"):
        (tmp_path / room).mkdir()
        (tmp_path / room / "test_shaky.py").write_text(SHAKY.format(tests=tests, failures=failures))
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
            capture_output=True,
            text=True,
            env={**os.environ, "CI": ci, "PYTHONPATH": str(TESTS.parent / "build")},
            cwd=tmp_path,
            check=False,
        )

    return run


def test_a_test_that_passes_the_second_time_is_told_with_what_it_failed_of(outcome):
    done = outcome(tests=3)
    assert done.returncode == 0
    assert done.stdout.count("failed first: integration/test_shaky.py::test_shaky") == 3
    assert "AssertionError: the engine slept" in done.stdout


@pytest.mark.parametrize(
    "case", [{"tests": 4}, {"tests": 1, "failures": 2}, {"tests": 1, "room": "unit"}]
)
def test_more_of_them_a_second_failure_or_a_unit_test_are_failures(outcome, case):
    assert outcome(**case).returncode == 1


def test_elsewhere_nothing_is_tried_twice(outcome):
    assert outcome(tests=1, ci="").returncode == 1
