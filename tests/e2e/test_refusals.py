"""What a dry run and a real run of one build say before the first fetch: the same.

Mistakes in command lines are in `tests/data/mistakes.txt`; here are those that need more than that.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import forked, tarballs

from rocwheel import cli

ROOT = Path(__file__).parents[2]
FAMILY = "--family=gfx94X-dcgpu"
NAME = "therock-dist-linux-gfx94X-dcgpu-7.10.0.tar.gz"
BUILD = (f"--therock-path=https://example.com/{NAME}", "--compiler=hermetic")


@pytest.fixture
def run(tmp_path):
    """Run a command where no fetch can succeed, for a checkout that may be changed."""
    nowhere = "http://127.0.0.1:9"
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "https_proxy": nowhere}
    env |= {f"ROCWHEEL_{name}_ALLOW_DIRTY": "true" for name in ("DEV", "DIST_WHEELS")}

    def once(*words: str) -> forked.Done:
        return forked.run(cli.main, [*words], cwd=tmp_path, env=env)

    return once


@pytest.fixture
def venv(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    site = next((tmp_path / "venv" / "lib").glob("python3*/site-packages"))
    (site / "pip").mkdir()
    (site / "pip" / "__init__.py").touch()
    return tmp_path / "venv"


@pytest.mark.parametrize(
    ("test", "code", "said"),
    [
        ("test_it.py", 8, r"has no pytest\nhint: .*venv/bin/pip install pytest"),
        ("nowhere.py", 3, r"nowhere\.py: no such file"),
    ],
)
def test_a_test_that_dev_cannot_run_is_refused_first(run, venv, test, code, said):
    (venv.parent / "test_it.py").touch()
    if test == "nowhere.py":
        (next(venv.glob("lib/python3*/site-packages")) / "pytest.py").touch()
    for more in ((), ("--dry-run",)):
        done = run("dev", f"--environment={venv}", f"--test={test}", *BUILD, *more)
        assert (done.code, done.out) == (code, ""), done.err
        assert re.search(f"error: .*{said}", done.err)


def test_dev_takes_the_environments_own_python(run, venv):
    done = run("dev", f"--environment={venv}", *BUILD, "--jax-version=0.10.2", "--dry-run")
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert done.code == 0, done.err
    assert f"HERMETIC_PYTHON_VERSION={here}" in done.out


def test_a_relative_path_of_bazel_starts_where_one_stands(run, tmp_path):
    bazel = tmp_path / "tools" / "bazel"
    bazel.parent.mkdir()
    bazel.write_text("#!/bin/sh\necho bazel 7.4.1\n")
    bazel.chmod(0o755)
    done = run("dist_wheels", *BUILD, "--dry-run", "--json", "--bazel-path=tools/bazel")
    assert str(bazel) in "\n".join(json.loads(done.out)["plan"])


def test_a_changed_checkout_of_rocwheel_is_refused(tmp_path):
    checkout = tmp_path / "rocwheel"
    words = ("build", "ci", "suites", "amdgpu_family_matrix.py", ".gitignore")
    listed = subprocess.run(
        ["git", "ls-files", "-z", *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, checkout / name)
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@t", "-C", str(checkout))
    for command in (("init",), ("add", "--all"), ("commit", "--quiet", "--message=all")):
        subprocess.run([*git, *command], check=True, capture_output=True)
    (checkout / "ci" / "more.yaml").touch()
    for more in ((), ("--dry-run",)):
        done = subprocess.run(
            [sys.executable, str(checkout / "build" / "ci_build"), "dist_wheels", *BUILD, *more],
            cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == 3
        assert done.stderr.startswith("error: rocwheel: changes that are in no commit")


def test_a_dry_run_warns_as_a_real_run_does(run, tmp_path):
    folder = tarballs.rocm_folder(tmp_path / "home" / "rocm")
    line = ("dist_wheels", f"--therock-path={folder}", FAMILY, "--compiler=hermetic",
            "--bazel-options=--jobs=3 --verbose_failures")  # fmt: skip
    for more in ((), ("--dry-run",)):
        lines = run(*line, *more).err.splitlines()
        (warning,) = [text for text in lines if text.startswith("warning: ")]
        assert "one option for Bazel, not two" in warning
