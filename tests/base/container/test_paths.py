"""Paths of this machine and paths inside are different types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_mypy_keeps_host_and_guest_paths_apart(tmp_path):
    file = tmp_path / "mixed.py"
    file.write_text(
        "from pathlib import Path\n"
        "from rocwheel.base.process import GuestPath, Runner\n"
        "def translate(runner: Runner, host: Path, guest: GuestPath) -> None:\n"
        "    runner.host(runner.path(host))\n"
        "    runner.path(guest)\n"
        "    runner.host(host)\n"
        "    guest = host\n"
        "    host = guest\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path / 'cache'}", str(file)],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT / "build"), "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    wrong = [line.split(":")[1] for line in done.stdout.splitlines() if "mixed.py" in line]
    assert wrong == ["5", "6", "7", "8"], done.stdout + done.stderr
