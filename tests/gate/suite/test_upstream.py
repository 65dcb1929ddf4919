"""What upstream's own jobs leave out, imported as skips with reason, issue, owner and end."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest
import yaml

from rocwheel.base.errors import ConfigError, SourceError
from rocwheel.gate.suite import skips, suites, upstream

ROOT = Path(__file__).parents[3]
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


def test_jaxs_newer_jobs_deselect_in_a_file_of_their_own(tmp_path):
    """Its scripts source it, and themselves name no test any more."""
    names = [line.strip(" \\") for line in JOB.splitlines() if "--deselect=" in line]
    text = 'export deselect="\\\n' + " \\\n".join(names[:3]) + '"\n'
    write(tmp_path, "ci/run_pytest_rocm.sh", "source ci/utilities/rocm_test_env.sh\npytest tests\n")
    entries = imported(write(tmp_path, "ci/utilities/rocm_test_env.sh", text))
    assert [entry["suites"] for entry in entries] == [["unit"], ["multi_gpu"]]


def test_what_therock_denies_is_a_keyword_on_its_gpus(tmp_path):
    denied = {"gfx94": {"keywords": [{"deny": "conv", "unless": ["convert"]}, {"deny": "Hankel"}]}}
    folder = "external-builds/jax/skip_tests"
    write(tmp_path, f"{folder}/generic.py", "skip_tests = {}\n")
    write(tmp_path, f"{folder}/jax_0.10.2.py", f"skip_tests = {denied}\n")
    entries = imported(tmp_path)
    assert [(e["keyword"], e.get("unless"), e["gfx"]) for e in entries] == [
        ("conv", ["convert"], ["gfx942"]), ("Hankel", None, ["gfx942"]),
    ]  # fmt: skip
    assert all(sorted(entry["suites"]) == ["multi_gpu", "unit"] for entry in entries)


@pytest.mark.parametrize("jax", ["0.10.1", "v0.10.2", "jax-v0.10.2", "0.10.*", "soon"])
def test_a_list_of_nothing_and_what_is_no_release_are_refused(tmp_path, jax):
    folder = "external-builds/jax/skip_tests"
    write(tmp_path, f"{folder}/jax_0.10.2.py", "skip_tests = {'common': {'keywords': []}}\n")
    with pytest.raises((ConfigError, SourceError)) as refused:
        upstream.read(tmp_path, suites.load_all(ROOT / "ci"), jax, ABOUT)
    assert refused.value.hint
    assert jax in str(refused.value)


@pytest.mark.parametrize("expires", ["2026-12-31", "soon"])
def test_a_list_that_has_expired_or_never_does_is_not_written(tmp_path, expires):
    jax = write(tmp_path / "jax", "ci/run_pytest_rocm.sh", JOB)
    entries = [entry | {"expires": expires} for entry in imported(jax)]
    for name in ("unit", "multi_gpu"):
        write(tmp_path, f"ci/suites/{name}.yaml", "")
    with pytest.raises(ConfigError, match=r"ci/skips/jax-0\.10\.2\.yaml"):
        upstream.write(
            tmp_path / "ci", jax, "0.10.2", entries, today=date(2027, 1, 1), dry_run=False
        )
    assert not (tmp_path / "ci/skips").exists()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ('export A=address # why\nexport B="--x= --y"\n', {"A": "address", "B": "--x= --y"}),
        ('export C="$OTHER"\n', {}),  # of no interest, so it may depend on what it likes
        ('export A="$OTHER"\n', None),
        ("if true; then\n  export A=1\nfi\n", None),
        ("export A=1\nexport A=2\n", None),
    ],
)
def test_variables_are_read_and_never_guessed(tmp_path, text, values):
    write(tmp_path, "ci/env.sh", text)
    if values is None:
        with pytest.raises(SourceError, match=r"env\.sh: A depends on something"):
            upstream.variables(tmp_path, ["ci/none.sh", "ci/env.sh"], ["A", "B"])
        return
    assert upstream.variables(tmp_path, ["ci/none.sh", "ci/env.sh"], ["A", "B"]) == values


def test_every_pin_has_a_list_of_what_jaxs_own_job_leaves_out_or_says_that_there_is_none():
    """A pin that is `unverified` was not compared with its sources, its job neither."""
    ci = Path(__file__).parents[3] / "ci"
    pins = yaml.safe_load((ci / "pins.yaml").read_text())["pins"]
    verified = [name for name, pin in pins.items() if not pin.get("unverified")]
    lists = {path.stem for path in (ci / "skips").glob("jax-*.yaml")}
    lacking = [name for name in verified if f"jax-{name.rpartition('-v')[2]}" not in lists]
    assert not lacking, "import one: `skips import --from CHECKOUT --jax VERSION`"
