"""A broken library cannot pass the smoke suite: every check against every mutant, on the CPU.

A mutant is a function of JAX whose answer is broken in one way: zeros, half of it, a tile lost, a
quarter of the sum cut, two rows swapped, an element off by three bounds, computed in a lower
precision, NaN in one lane, or the answer to an earlier question.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import uv
from support.tiers import merge_tries

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.xdist_group("gate jax"),
    pytest.mark.timeout(3600),
]

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests/support/smoke_mutants.py"
NEEDED = ("jax==0.9.1", "jaxlib==0.9.1", "ml_dtypes==0.5.3", "packaging==25.0", "pytest==9.1.1")
KINDS = {
    "zeros", "half scale", "one tile lost", "K cut", "one row swapped", "one element off",
    "lower precision inside", "NaN in one lane", "stale output",
}  # fmt: skip
PARTS = 24


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An interpreter with JAX."""
    folder = tmp_path_factory.mktemp("jax") / "env"
    tool = (uv.find_uv_bin(), "--quiet")
    subprocess.run([*tool, "venv", "--python", sys.executable, folder], check=True)
    subprocess.run(
        [*tool, "pip", "install", "--python", folder / "bin/python", *NEEDED], check=True
    )
    return folder / "bin/python"


def killed(python, part):
    """Run a part of the checks; return the mutants killed, by kind."""
    done = subprocess.run(
        [python, SCRIPT, ROOT / "suites/smoke", part],
        capture_output=True, text=True, check=False, env={"JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["survivors"] == []
    # JAX has no such product on the CPU: there only its packing is checked
    assert set(told["uncalled"]) <= {"hipSPARSELt-jax.numpy.matmul-bfloat16"}
    assert max(told["honest"].values()) < 0.75, "an honest answer takes most of its bound"
    assert max(told["coarsest"].values()) <= 1 / 8
    return told["killed"]


def test_every_kind_of_mutant_is_killed_in_one_part_of_the_checks(python):
    assert set(killed(python, f"1/{PARTS}")) == KINDS


@pytest.mark.soak
@pytest.mark.parametrize("part", [f"{number}/{PARTS}" for number in range(2, PARTS + 1)])
def test_every_mutant_of_every_check_is_killed(python, part):
    assert killed(python, part)


FAMILIES = (
    "matmul", "attention", "convolution", "pooling", "reduction", "scan", "order", "scatter", "fft",
    "linear", "factors", "triangular", "function", "random", "collective",
)  # fmt: skip


@pytest.mark.parametrize("family", merge_tries("scan", of=FAMILIES))
def test_every_broken_version_of_a_family_fails_a_cell_of_its_matrix(python, family):
    done = subprocess.run(
        [python, ROOT / "tests/support/smoke_cells.py", ROOT / "suites/smoke", family],
        capture_output=True, text=True, check=False, env={"JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["honest"] == {}
    assert told["survivors"] == []
