"""Mistakes a person makes: two lines, an exit code, no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = (sys.executable, str(ROOT / "build" / "ci_build"))
FAMILY = "--family=gfx94X-dcgpu"


def run(*arguments, cwd, env=None):
    return subprocess.run(
        [*PROGRAM, *arguments],
        cwd=cwd,
        env={"PATH": "/usr/bin:/bin", "HOME": str(cwd), **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("status", FAMILY, "--store=file:foo"), 3, "write s3://bucket/prefix or file:///folder"),
        (("help",), 2, "did you mean --help?"),
        (("stagee",), 2, "did you mean stage?"),
        (("status", "--family=gfx942", "--store=file:///x"), 3, "did you mean gfx94X-dcgpu?"),
        (("status", "--family=gfx940", "--store=file:///x"), 3, "MI300 is gfx942"),
        (
            ("dist_wheels", "--therock-path=x", "--python-versions=3.9"),
            3,
            "did you mean 3.10?",
        ),
    ],
)
def test_a_mistake_is_told_with_its_remedy(tmp_path, arguments, code, said):
    done = run(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_an_unknown_command_with_json_is_a_document(tmp_path):
    for arguments in (("frob", "--json"), ("--json", "frob")):
        error = json.loads(run(*arguments, cwd=tmp_path).stdout)["error"]
        assert error["kind"] == "usage"


def test_completion_with_json_is_a_document(tmp_path):
    document = json.loads(run("completion", "bash", "--json", cwd=tmp_path).stdout)
    assert document["shell"] == "bash"
    assert "_CI_BUILD_COMPLETE" in document["code"]


def test_a_deleted_working_directory_is_told(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    line = f"cd {gone} && rmdir {gone} && {' '.join(PROGRAM)} fetch_rocm --therock-path=x"
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 8
    assert done.stderr.startswith("error: the working directory was deleted\nhint:  ")


def test_a_bypass_is_added_as_the_matrix_shows_it(tmp_path):
    text = (ROOT / "amdgpu_family_matrix.py").read_text()
    added = text.replace(
        'Family("gfx900", ("gfx900",), Trigger.NIGHTLY)',
        'Family("gfx900", ("gfx900",), Trigger.NIGHTLY, bypass_tests_for_releases='
        'Bypass(owner="me", reason="no runner yet", expires=date(2027, 1, 1)))',
    )
    assert added != text
    (tmp_path / "amdgpu_family_matrix.py").write_text(added)
    done = subprocess.run(
        [sys.executable, "amdgpu_family_matrix.py"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
