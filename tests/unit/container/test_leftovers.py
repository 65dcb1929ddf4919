"""Whose a container is: a process of this machine, one that is gone, one that cannot be seen."""

from __future__ import annotations

import os
import subprocess

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


def test_only_folders_of_runs_that_are_gone_are_left_over(tmp_path):
    for name, mark in (("alive", owner()), ("gone", f"{os.getpid()}:1:x:1"), ("kept", "")):
        (tmp_path / name).mkdir()
        if mark:
            (tmp_path / name / "owner").write_text(f"{mark}\n")
    assert [item.name for item in folders(tmp_path)] == ["gone"]
