"""Runs that end early leave no wheel behind, and the next run completes the work."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support import wheels
from support.wheels import File

pytestmark = pytest.mark.integration

COMMAND = (sys.executable, str(Path(__file__).parents[2] / "build" / "ci_build"), "wheel")
LIMIT = 8 << 20
REPAIRED = "jax_rocm7_plugin-0.9.1-cp312-cp312-manylinux_2_27_x86_64.whl"


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """A sound wheel whose reading and writing takes a moment."""
    made = wheels.plugin(tag="cp312-cp312-linux_x86_64")
    name = "jax_rocm7_plugin/data{}.bin"
    data = {name.format(n): File(os.urandom(1 << 20) * 64, method=0) for n in range(4)}
    return made.but(files={**made.files, **data}).write(tmp_path_factory.mktemp("large"))


@pytest.fixture(scope="module")
def sibling(tmp_path_factory) -> Path:
    return wheels.pjrt().write(tmp_path_factory.mktemp("sibling"))


def start(*arguments: object, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, error = process.communicate(timeout=240)
    return process.returncode, error


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("delay", [0.0, 0.15, 0.3, 0.45])
def test_an_interrupted_repair_leaves_nothing_or_all(large, tmp_path, delay: float) -> None:
    out = tmp_path / "out"
    process = start("repair", large, "--output", out)
    time.sleep(delay)
    process.send_signal(signal.SIGTERM)
    status, error = finished(process)
    if status:
        assert status in (130, -signal.SIGTERM)
        assert names(out) in ([], [REPAIRED])  # which may be there just before the signal
        assert "Traceback" not in error
    again = start("repair", large, "--output", out)
    assert finished(again)[0] == 0
    assert names(out) == [REPAIRED]


def test_a_killed_run_leaves_no_wheel(large, sibling, tmp_path) -> None:
    """Killed while it writes, alone and as one of a set: no wheel is there, none hinders the next."""
    out = tmp_path / "out"
    for command in (
        ("retag", large, "--platform-tag", "manylinux_2_28_x86_64"),
        ("repair", large),
        ("reversion", large, sibling, "--post-release", "1"),
        ("reversion", sibling, large, "--post-release", "1"),
    ):
        status = 0
        for _ in range(20):  # where we were too slow to see it write, once more
            shutil.rmtree(out, ignore_errors=True)
            process = start(*command, "--output", out)
            while process.poll() is None and not writing(process.pid, out):
                pass
            process.kill()
            status, _ = finished(process)
            if status:
                break
        assert status == -signal.SIGKILL
        (left,) = names(out)
        assert left.startswith(".unfinished-")
        assert finished(start(*command, "--output", out))[0] == 0
        assert len(names(out)) == 1 + len([item for item in command if isinstance(item, Path)])
        shutil.rmtree(out)


def writing(pid: int, folder: Path) -> bool:
    """Whether a process has a file open below the folder."""
    with suppress(OSError):  # descriptors come and go
        for item in Path(f"/proc/{pid}/fd").iterdir():
            if str(item.readlink()).startswith(f"{folder}/"):
                return True
    return False


def test_a_full_disk_is_the_hosts_fault_and_leaves_nothing(large, tmp_path) -> None:
    """As large as the process may write, which is found out like a full disk."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))

    out = tmp_path / "out"
    for command in (("repair", large), ("retag", large, "--platform-tag", "linux_x86_64")):
        status, error = finished(start(*command, "--output", out, preexec_fn=limit))
        assert status == 8
        assert [line.partition(":")[0] for line in error.splitlines()] == ["error", "hint"]
        assert names(out) == []


def test_two_runs_at_once_both_succeed(large, tmp_path) -> None:
    out = tmp_path / "out"
    both = [start("repair", large, "--output", out) for _ in range(2)]
    assert [finished(process)[0] for process in both] == [0, 0]
    assert names(out) == [REPAIRED]
