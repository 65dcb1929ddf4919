"""What tests/conftest.py does for every run: tools, second tries, tiers; by pytest in pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

TESTS = Path(__file__).parents[1]
MARKERS = "needs(*tools): programs\n    integration: has real parts\n    slow: is slow\n    soak: of campaign size\n"

SHAKY = """
from pathlib import Path
import pytest
@pytest.mark.parametrize("number", range({tests}))
def test_shaky(number):
    times = Path(__file__).with_name(f"times-{{number}}")
    times.write_text("x" * {failures} if not times.exists() else times.read_text()[1:])
    assert not times.read_text(), "the engine slept"
"""

PROBE = """
import pytest
@pytest.mark.needs("igzip")
def test_with_a_tool(): pass
def test_without(): pass
"""

TIERS = """
import pytest
@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2])
def test_a_campaign(seed): pass
@pytest.mark.slow
def test_a_slow_one(): pass
@pytest.mark.parametrize("engine", ["docker", pytest.param("podman", marks=pytest.mark.soak)])
def test_an_engine(engine): pass
"""


@pytest.fixture
def outcome(tmp_path):
    """Run tests with our conftest beside them; on PATH are no tools."""
    (tmp_path / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nmarkers =\n    {MARKERS}")

    def run(source: str, *arguments: str, room: str = "integration", ci: str = ""):
        (tmp_path / room).mkdir()
        mark = "\npytestmark = pytest.mark.integration\n" if room == "integration" else ""
        (tmp_path / room / "test_probe.py").write_text(source + mark)
        path = os.pathsep.join(map(str, (TESTS.parent / "build", TESTS.parent, TESTS)))
        env = {**os.environ, "PYTHONPATH": path, "CI": ci}
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", *arguments],
            capture_output=True,
            text=True,
            env={**env, "PATH": str(tmp_path)},
            cwd=tmp_path,
            check=False,
        )

    return run


def test_a_test_that_passes_the_second_time_is_shown_with_what_it_failed_of(outcome):
    done = outcome(SHAKY.format(tests=3, failures=1), ci="true")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("failed first: integration/test_probe.py::test_shaky") == 3
    assert "AssertionError: the engine slept" in done.stdout


@pytest.mark.parametrize(
    ("tests", "failures", "room"), [(4, 1, "integration"), (1, 2, "e2e"), (1, 1, "unit")]
)
def test_more_of_them_a_second_failure_or_a_unit_test_are_failures(outcome, tests, failures, room):
    done = outcome(SHAKY.format(tests=tests, failures=failures), room=room, ci="true")
    assert done.returncode == 1, done.stdout


def test_elsewhere_nothing_is_tried_twice(outcome):
    assert outcome(SHAKY.format(tests=1, failures=1)).returncode == 1


def test_in_ci_a_missing_tool_is_a_failure(outcome):
    done = outcome(PROBE, ci="true")
    assert done.returncode == 1
    assert "igzip is missing: apt-get install isal" in done.stdout


def test_elsewhere_the_last_line_says_what_was_left_out(outcome):
    done = outcome(PROBE)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "1 tests did not run for lack of: igzip (1)"


def test_the_script_of_ci_asks_for_that():
    assert "export CI=true" in (TESTS.parent / ".ci" / "run").read_text()


def names(done):
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    return [line.rpartition("::")[2] for line in lines if line.startswith("PASSED")]


def test_a_run_without_a_word_is_full_and_leaves_out_what_only_soak_runs(outcome):
    done = outcome(TIERS)
    assert names(done) == ["test_a_slow_one", "test_an_engine[docker]"]
    assert "only soak covers" not in done.stdout
    assert "3 deselected" in done.stdout


def test_soak_runs_nothing_else_and_lists_what_no_other_tier_covers(outcome):
    done = outcome(TIERS, "--tier=soak")
    assert names(done) == ["test_a_campaign[1]", "test_a_campaign[2]", "test_an_engine[podman]"]
    listed = done.stdout.partition("only soak covers")[2]
    assert "integration/test_probe.py::test_a_campaign[1, 2]\n" in listed
    assert "integration/test_probe.py::test_an_engine[podman]\n" in listed


@pytest.mark.parametrize(("room", "ran"), [("unit", 1), ("integration", 0), ("e2e", 0)])
def test_quick_runs_what_is_neither_slow_nor_has_real_parts(outcome, room, ran):
    done = outcome(TIERS, "--tier=quick", room=room)
    assert (f"{ran} passed" in done.stdout) is bool(ran), done.stdout
