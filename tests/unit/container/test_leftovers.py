"""Whose a container is: a process of this machine, one that is gone, one that cannot be seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import rocwheel
from rocwheel.container.leftovers import folders, is_alive, owner


def test_a_process_is_told_from_another_of_the_same_number():
    assert is_alive(owner()) is True
    pid, _, rest = owner().partition(":")
    assert is_alive(f"{pid}:1{rest}") is False


def test_one_that_has_ended_is_gone():
    with subprocess.Popen(["sleep", "60"]) as process:
        mark = owner(process.pid)
        assert is_alive(mark) is True
        process.kill()
    assert is_alive(mark) is False


def test_a_process_of_a_job_container_is_not_said_to_be_gone():
    """It counts its processes by itself, and its number here is nobody or somebody else."""
    pid, started, boot, _ = owner().split(":")
    assert is_alive(f"{pid}:{started}:{boot}:4026539999") is None
    assert is_alive(f"{pid}:{started}:another-boot:4026539999") is False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a /proc that hides processes")
def test_a_process_that_is_hidden_from_us_is_not_said_to_be_gone():
    """Where users do not see each other's processes, nobody's container is taken for a leftover."""
    with subprocess.Popen(["sleep", "3600"]) as process:
        mark = owner(process.pid)
        process.kill()
    hide = 'mount -t proc -o hidepid=2 proc /proc && exec "$@"'
    ask = "import os, sys; from rocwheel.container.leftovers import is_alive;"
    ask += "print(*map(is_alive, sys.argv[1:]));"  # while all of Python can be read, too
    ask += "os.setgid(1234); os.setuid(1234); print(*map(is_alive, sys.argv[1:]))"
    said = subprocess.run(
        ["unshare", "--mount", "sh", "-c", hide, "sh", sys.executable, "-c", ask, owner(), mark],
        env={**os.environ, "PYTHONPATH": str(Path(rocwheel.__file__).parents[1])},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert said.split() == ["True", "False", "None", "False"]


def test_only_folders_of_runs_that_are_gone_are_left_over(tmp_path):
    for name, mark in (("alive", owner()), ("gone", f"{os.getpid()}:1:x:1"), ("kept", "")):
        (tmp_path / name).mkdir()
        if mark:
            (tmp_path / name / "owner").write_text(f"{mark}\n")
    assert [item.name for item in folders(tmp_path)] == ["gone"]
