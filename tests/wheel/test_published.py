"""Published wheels with one thing changed: they may ship only if they still work.

    ROCWHEEL_PUBLISHED=1 python -m pytest tests/wheel/test_published.py

downloads about 1 GB, but for wheels that other tests have downloaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import published
from support.mutants import BROKEN, SOUND, mutants
from support.wheels import POLICY

from rocwheel.base.process import HostRunner, base_env
from rocwheel.wheel.verify import verify
from rocwheel.wheel.verify.rules import Severity
from rocwheel.wheel.verify.runs import Running, runs

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(
        not os.environ.get("ROCWHEEL_PUBLISHED"), reason="ROCWHEEL_PUBLISHED is not set"
    ),
]
ON_LINUX = (
    "--only-binary=:all:", "--platform", "manylinux_2_28_x86_64",
    "--platform", "manylinux_2_27_x86_64", "--python-version", "3.12",
)  # fmt: skip


def wheel(project: str, version: str, folder: Path) -> Path:
    """The wheel, from the cache of the other tests or downloaded into the folder."""
    pattern = f"{project.replace('-', '_')}-{version}-*.whl"
    for known in published.folder().glob(pattern):
        return known
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir",
         *ON_LINUX, "--dest", folder, f"{project}=={version}"],
        check=True,
    )  # fmt: skip
    (made,) = folder.glob(pattern)
    return made


@pytest.mark.parametrize("version", ["0.11.0", "0.12.0"])
@pytest.mark.parametrize("project", ["jax-rocm7-pjrt", "jax-rocm7-plugin", "jaxlib"])
def test_a_published_wheel_with_one_change_ships_only_if_it_works(
    project: str, version: str, tmp_path: Path
) -> None:
    path = wheel(project, version, tmp_path)
    kind = project.rpartition("-")[2]
    (tmp_path / "made").mkdir()
    wrong = []
    for edits, works in ((BROKEN[kind], False), (SOUND[kind], True)):
        for title, made in mutants(path, tmp_path / "made", edits):
            findings = verify(made, policy=POLICY)
            if all(item.severity is not Severity.ERROR for item in findings):
                findings = runs([made], Running(HostRunner(base_env(os.environ)), POLICY))[made]
            if works is not all(item.severity is not Severity.ERROR for item in findings):
                wrong.append((title, findings))
    assert not wrong
