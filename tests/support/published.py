"""Wheels from the package index, downloaded once into the user's cache folder.

`ROCWHEEL_TEST_WHEELS` names another folder.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path


def folder() -> Path:
    """Where they lie."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("ROCWHEEL_TEST_WHEELS") or home / "rocwheel" / "test-wheels")


def wheel(name: str, *, python: str = "3.12") -> Path:
    """The wheel with this file name; two processes do not download it twice."""
    target = folder() / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            project, version = name.split("-")[:2]
            subprocess.run(
                [
                    sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                    "--only-binary=:all:", "--platform", "manylinux_2_28_x86_64",
                    "--platform", "manylinux_2_27_x86_64", "--python-version", python,
                    "--dest", target.parent, f"{project.replace('_', '-')}=={version}",
                ],
                check=True,
            )  # fmt: skip
    return target
