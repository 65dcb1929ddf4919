"""What JAX's and TheRock's own jobs leave out and set, read of their real files, release by release.

The folder of checkouts holds JAX as `jax` and TheRock as `therock`.
"""

from __future__ import annotations

import fnmatch
import re
from datetime import date
from functools import cache
from typing import TYPE_CHECKING

import pytest
import yaml
from checkouts import FOLDER, ROOT, Commit

from rocwheel.base.values import replace
from rocwheel.gate.suite import discovery, skips, suites, upstream

if TYPE_CHECKING:
    from pathlib import Path

CI = ROOT / "ci"
ALLOCATORS = {"0.9.1": "platform", "0.10.1": "platform", "0.10.2": "default", "0.11.0": "address"}
LISTS = sorted(path.name for path in (CI / "skips").glob("*-*.yaml"))
OWN = [suite for suite in suites.load_all(CI) if not suite.source.folder]


def of_jax(release: str) -> Commit:
    commit = Commit("jax", "HEAD" if release == "HEAD" else f"jax-v{release}")
    if not (FOLDER / "jax").is_dir() or not commit.is_here():
        pytest.skip(f"the folder of checkouts has no JAX {release}")
    return commit


@cache
def defined_in(release: str) -> dict[str, list[str]]:
    """Test files of a release, and the tests that they define."""
    commit = of_jax(release)
    files = commit.git("ls-tree", "-r", "--name-only", commit.name, "tests").splitlines()
    return {
        file: list(discovery.tests_of(file, commit.text(file)))
        for file in files
        if file.endswith("_test.py")
    }


def is_met(entry: skips.Skip, names: dict[str, list[str]]) -> bool:
    """Whether a test that some suite of an entry has is one that it leaves out."""
    wanted = [suite for suite in OWN if suite.name in entry.suites]
    files = [file for file in names if any(suite.source.has(file) for suite in wanted)]
    return any(entry.meets(test) for file in files for test in names[file])


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_ours_is_what_the_checkout_says_today(name: str, tmp_path: Path) -> None:
    of, release = name.removesuffix(".yaml").split("-")
    commit, folder = (
        (of_jax(release), "ci") if of == "jax" else (Commit(of, "HEAD"), upstream.DENIED)
    )
    if not (FOLDER / of).is_dir():
        pytest.skip(f"the folder of checkouts has no {of}")
    ours = yaml.safe_load((CI / "skips" / name).read_text())["skips"]
    if not ours:  # an explicit "none": JAX had no job on ROCm that could leave tests out
        assert "run_pytest_rocm" not in commit.git(
            "ls-tree", "-r", "--name-only", commit.name, "ci"
        )
        return
    about = {key: ours[0][key] for key in ("issue", "owner", "expires")}
    assert upstream.read(commit.extract(tmp_path, folder), OWN, release, about) == ours


@pytest.mark.parametrize("name", LISTS)
def test_every_entry_of_ours_meets_a_test_of_its_release(name: str) -> None:
    release = name.removesuffix(".yaml").split("-")[1]
    names = defined_in(release)
    ours = [e for e in skips.load(CI, today=date(2026, 1, 1)) if f"skips/{name}:" in e.where]
    assert bool(ours) is ("skips: []" not in (CI / "skips" / name).read_text())
    if not ours:
        return
    assert [entry.named for entry in ours if not is_met(entry, names)] == []
    part = "pattern" if ours[0].pattern else "keyword"
    assert not is_met(replace(ours[0], **{part: f"{getattr(ours[0], part)}Gone"}), names)


@pytest.mark.parametrize(("release", "allocator"), [*ALLOCATORS.items(), ("HEAD", "address")])
def test_the_variables_of_jaxs_job_are_read(release: str, allocator: str, tmp_path: Path) -> None:
    checkout = of_jax(release).extract(tmp_path, "ci")
    for suite in OWN:
        values = upstream.variables(checkout, suite.source.variables, suite.environment)
        assert values["XLA_PYTHON_CLIENT_ALLOCATOR"] == allocator
        assert "--xla_gpu_enable_command_buffer=" in values["XLA_FLAGS"].split()
        assert values["JAX_SKIP_SLOW_TESTS"] == "true"


@pytest.mark.parametrize("release", ["0.11.0", "HEAD"])
def test_jaxs_pytest_job_runs_what_its_bazel_job_excludes(release: str) -> None:
    """Why the targets are no skips of ours: `docs/how-to/gate.md`."""
    commit = of_jax(release)
    targets = commit.text("build/rocm/ci_test_targets.txt")
    excluded = re.findall(r"^-//(tests[\w/]*):(\w+)_gpu$", targets, re.MULTILINE)
    assert len(excluded) >= 44
    job = commit.text("ci/run_pytest_rocm.sh")
    assert not re.search(r"--ignore|\s-k\s", job)
    files = {f"{folder}/{name}.py" for folder, name in excluded}
    unit = next(suite for suite in OWN if suite.name == "unit")
    assert sum(unit.source.has(file) for file in files & defined_in(release).keys()) >= 35


def test_every_pattern_of_a_suite_meets_a_file_of_some_release() -> None:
    files = {file for release in ALLOCATORS for file in defined_in(release)}
    unmet = [
        (suite.name, pattern)
        for suite in OWN
        for pattern in (*suite.source.paths, *suite.source.exclude)
        if not fnmatch.filter(files, pattern)
    ]
    assert unmet == []
