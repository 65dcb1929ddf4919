"""What upstream's own jobs leave out, imported as skips with reason, issue, owner and end."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from rocwheel.errors import SourceError
from rocwheel.gate.suite import skips, suites, upstream

ROOT = Path(__file__).parents[4]
ABOUT = {"issue": "https://here/1", "owner": "a@b.c", "expires": "2027-03-31"}
JOB = """
python -m pytest -m "not multiaccelerator" \\
  --deselect=tests/cache_test.py::CacheTest::test_metric \\
  --deselect=tests/multi_device_test.py::MultiTest::test_follows \\
  --deselect=tests/multiprocess_gpu_test.py::Multi::test_visible tests
python -m pytest --deselect=tests/cache_test.py::CacheTest::test_metric tests
"""


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return folder


def imported(checkout):
    return upstream.read(checkout, suites.load_all(ROOT / "ci"), "0.10.2", ABOUT)


def test_what_jaxs_job_deselects_is_an_entry_of_the_suites_that_have_the_file(tmp_path):
    entries = imported(write(tmp_path, "ci/run_pytest_rocm.sh", JOB))
    assert [(entry["test"], entry["suites"]) for entry in entries] == [
        ("tests/cache_test.py::CacheTest::test_metric", ["unit"]),
        ("tests/multi_device_test.py::MultiTest::test_follows", ["multi_gpu"]),
    ]


def test_what_is_written_is_a_skip_list(tmp_path):
    entries = imported(write(tmp_path / "jax", "ci/run_pytest_rocm.sh", JOB))
    for name in ("unit", "multi_gpu"):
        write(tmp_path, f"ci/suites/{name}.yaml", "")
    today, jax = date(2027, 1, 1), tmp_path / "jax"
    (tmp_path / "ci/skips").mkdir(parents=True)
    path = upstream.write(tmp_path / "ci", jax, "0.10.2", entries, today=today, dry_run=False)
    assert path == tmp_path / "ci/skips/jax-0.10.2.yaml"
    first, second = skips.load(tmp_path / "ci", today=today)
    assert first.meets("tests/cache_test.py::CacheTest::test_metric")
    assert (second.owner, second.expires) == ("a@b.c", date(2027, 3, 31))
    assert str(first.jax) == "==0.10.2.*"


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(SourceError, match="has no"):
        imported(tmp_path)
