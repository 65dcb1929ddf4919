"""Standard streams that are closed or end early: no hang, no traceback, no success."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "build" / "ci_build"


def shell(line, cwd, stdout=subprocess.PIPE):
    return subprocess.run(
        ["/bin/bash", "-c", line.replace("PROGRAM", f"{sys.executable} {PROGRAM}")],
        cwd=cwd, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=400, check=False,
    )  # fmt: skip


def test_closed_streams_do_no_harm(tmp_path):
    assert shell("PROGRAM gate list 2>&-", tmp_path).returncode == 0
    assert shell("PROGRAM gate list >&-", tmp_path).returncode == 0
    done = shell("PROGRAM fetch_rocm --therock-path nowhere 2>&- <&-", tmp_path)
    assert done.returncode not in (0, 1), done


def test_a_full_stderr_changes_no_exit_status(tmp_path):
    assert shell("PROGRAM fetch_rocm --therock-path nowhere 2>/dev/full", tmp_path).returncode == 3
    assert shell("PROGRAM nosuch --debug 2>/dev/full", tmp_path).returncode == 2
    assert shell("PROGRAM gate list 2>/dev/full", tmp_path).returncode == 0


def test_a_reader_that_leaves_is_no_success(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = shell("PROGRAM --json gate list; exit $?", tmp_path, stdout=writing)
    finally:
        os.close(writing)
    assert "Traceback" not in done.stderr
    assert done.returncode == 141
