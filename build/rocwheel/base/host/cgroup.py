"""What this process may use of the machine: CPUs and memory as its control group says.

A container with 2 CPUs on a host with 128 must not start 128 threads per worker. Both versions of
Linux control groups are read below `root` (the machine's is `/`).
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

# NPROC is what XLA sizes its own pools by (DefaultThreadPoolSize):
# https://github.com/openxla/xla/blob/main/xla/pjrt/utils.cc
THREAD_VARIABLES: Final = ("MKL_NUM_THREADS", "NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
REQUEST: Final = "KUBE_CPU_REQUEST"  # what a pod was promised; no control group holds it to that


def cpus(root: Path = Path("/"), *, online: int = 0, requested: str = "") -> int:
    """Count the CPUs for this process: `online` (0: its affinity), or less by a cgroup's quota.

    A pod's request to Kubernetes (`requested`) counts too: "4", "2.5" cores, or "3500m".
    """
    online = online or len(os.sched_getaffinity(0))
    if match := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(m?)", requested.strip()):
        online = min(online, int(float(match[1]) / (1000 if match[2] else 1)) or online)
    quotas = [quota for folder in _folders(root, "cpu") if (quota := _quota(folder))]
    return max(1, min([online, *(int(quota) for quota in quotas)]))


def memory(root: Path = Path("/")) -> int:
    """Return the memory for this process in bytes: the machine's, or less by a cgroup's limit."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for folder in _folders(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with suppress(OSError, ValueError):  # ValueError: `max`
                limits.append(int((folder / name).read_text(encoding="ascii")))
    return min(limits)


def available(root: Path) -> int:
    """Return the bytes of memory that nothing uses now. Raises OSError, ValueError."""
    text = (root / "proc/meminfo").read_text(encoding="ascii")
    return int(text.partition("MemAvailable:")[2].partition("kB")[0]) << 10


def oom_kills(root: Path) -> int:
    """Count the processes of this control group that the kernel killed for memory."""
    for folder in _folders(root, "memory"):
        for name in ("memory.events", "memory.oom_control"):
            with suppress(OSError, ValueError, KeyError):
                lines = (folder / name).read_text(encoding="ascii").splitlines()
                return int(dict(line.split() for line in lines)["oom_kill"])
    return 0


def thread_env(count: int) -> dict[str, str]:
    """Size the thread pools of a worker that shares the machine with others."""
    return dict.fromkeys(THREAD_VARIABLES, str(max(1, count)))


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield folders of this process's control group, from its own up to the hierarchy's root.

    A container sees its own group as the root of the hierarchy, while /proc may still name the
    path on the host; folders that do not exist are left out.
    """
    base = root / "sys/fs/cgroup"
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, names, path = line.split(":", 2)
            if names and controller not in names.split(","):
                continue
            top = base / names if names else base
            top = top if top.is_dir() else base / controller
            own = top / path.strip("/")
            for folder in (own, *own.parents):
                if folder.is_dir():
                    yield folder
                if folder == top:
                    break


def _quota(folder: Path) -> float | None:
    with suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        micros = int((folder / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        period_us = int((folder / "cpu.cfs_period_us").read_text(encoding="ascii"))
        return micros / period_us if micros > 0 else None
    return None
