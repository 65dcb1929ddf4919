"""What runs that were cut short left in an engine: containers whose owner is gone."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocwheel.container.engine import ContainerEngine
from rocwheel.container.spec import LABEL
from rocwheel.errors import CommandError
from rocwheel.process import Runner


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A container of ours whose process is gone."""

    identity: str
    name: str
    state: str
    purpose: str


def owner(pid: int | None = None) -> str:
    """This process, told from every other of any time: its id, start, boot and id namespace."""
    pid = os.getpid() if pid is None else pid
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    started = stat.rpartition(")")[2].split()[19]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{pid}:{started}:{boot}:{Path('/proc/self/ns/pid').stat().st_ino}"


def is_alive(mark: str) -> bool | None:
    """Whether the process that `owner` described still runs.

    None for one that cannot be seen from here: a job container that shares this machine's engine
    counts its processes by itself, and other users' may be hidden (proc(5), `hidepid`).
    """
    pid, _, rest = mark.partition(":")
    where, here = rest.split(":")[1:], owner().split(":")[2:]
    if not pid.isdigit() or where[:1] != here[:1]:  # no process outlives its boot
        return False
    if where != here:
        return None
    try:
        return owner(int(pid)) == mark
    except OSError:
        return None if _exists(int(pid)) else False


def _exists(pid: int) -> bool:
    """Whether there is such a process, also where /proc does not show it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def ours(engine: ContainerEngine, *, runner: Runner) -> tuple[Mapping[str, Any], ...]:
    """Every container with our label, as the engine describes it."""
    listed = runner.capture(
        engine.command("ps", "--all", "--quiet", "--no-trunc", f"--filter=label={LABEL}.run")
    ).split()
    found: list[Mapping[str, Any]] = []
    for identity in listed:
        try:  # one at a time: one that goes away meanwhile is no reason to know nothing
            found += json.loads(runner.capture(engine.command("inspect", identity)))
        except CommandError:
            continue
    return tuple(found)


def leftovers(engine: ContainerEngine, *, runner: Runner) -> tuple[Leftover, ...]:
    """Containers of ours that nobody waits for. A kept one that still runs is none.

    Neither is one that runs for somebody who cannot be seen from here: it ends with them.
    """
    found = []
    for item in ours(engine, runner=runner):
        labels = item.get("Config", {}).get("Labels") or {}
        state = item.get("State", {}).get("Status", "")
        mark = labels.get(f"{LABEL}.owner", "")
        kept = labels.get(f"{LABEL}.purpose") == "kept" and state == "running"
        alive = is_alive(mark)
        if kept or alive or (alive is None and state in {"created", "running"}):
            continue
        found.append(
            Leftover(
                identity=item["Id"],
                name=item.get("Name", "").lstrip("/"),
                state=state,
                purpose=labels.get(f"{LABEL}.purpose", ""),
            )
        )
    return tuple(found)


def folders(root: Path) -> tuple[Path, ...]:
    """Folders of runs below `root` whose process is gone: what a container was told lies there."""
    found = []
    for mark in sorted(root.glob("*/owner")):
        with suppress(OSError):
            if is_alive(mark.read_text(encoding="utf-8").strip()) is False:
                found.append(mark.parent)
    return tuple(found)


def remove(engine: ContainerEngine, found: Sequence[Leftover], *, runner: Runner) -> None:
    """Remove leftovers, and nothing else."""
    for item in found:
        runner.run(engine.remove(item.identity), check=False)
