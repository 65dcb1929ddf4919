"""What tests start beside the thing they test."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

# In front of a command line: a test that is killed takes its servers with it.
DIES_WITH_US = ("setpriv", "--pdeathsig", "TERM")


def written(file: Path) -> str:
    """What a child writes there once it has begun."""
    until = time.monotonic() + 240
    while not (file.exists() and (text := file.read_text())):
        assert time.monotonic() < until, f"{file} is not written"
        time.sleep(0.05)
    return text


def called(text: str) -> dict[int, list[str]]:
    """The words of all processes but ours, those of containers included, whose line has this."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if text in " ".join(words) and int(process.name) != os.getpid():
                found[int(process.name)] = words
    return found


def gone(pid: int) -> bool:
    """Whether a process ends in time; a zombie that waits for its parent counts as ended."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False
