"""Which process something belongs to, written so that others can tell whether it still runs."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from rocwheel.base import files

FIELDS: Final = 5


def owner(pid: int | None = None) -> str:
    """Identify this process over time and machines: id, start, boot, PID namespace, machine."""
    pid = os.getpid() if pid is None else pid
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    started = stat.rpartition(")")[2].split()[19]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{pid}:{started}:{boot}:{Path('/proc/self/ns/pid').stat().st_ino}:{_machine()}"


def _machine() -> str:
    """Identify this machine across reboots; its host name alone may be another's, too."""
    try:
        identity = Path("/etc/machine-id").read_bytes()  # machine-id(5); containers have none
    except OSError:
        identity = b""
    return files.sha256(os.uname().nodename.encode() + b"\0" + identity)[:12]


def is_alive(mark: str) -> bool | None:
    """Return whether the process that `owner` described still runs.

    None for one that cannot be seen from here: a job container that shares this machine's engine
    counts its processes by itself, another machine may share a folder or lend its engine, and other
    users' processes may be hidden (proc(5), `hidepid`).
    """
    fields = mark.split(":")
    if len(fields) != FIELDS or not fields[0].isdigit():
        return None
    pid, _, boot, space, machine = fields
    _, _, boot_here, space_here, here = owner().split(":")
    if boot != boot_here:  # no process outlives its machine's boot
        return False if machine == here else None
    if space != space_here:
        return None
    with suppress(OSError):
        return owner(int(pid)) == mark
    try:
        os.kill(int(pid), 0)  # /proc does not show each one that there is
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return None
