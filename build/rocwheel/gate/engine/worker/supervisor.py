"""The supervisor: a process between the gate and one worker, which lets no process outlive it.

It starts the worker, adopts orphans of the worker's descendants (it is their subreaper,
`prctl(2)`), and ends only after all of them, daemons and sessions of their own included. When the
gate dies, its end of the lifeline closes and everything is killed. The supervisor also holds the
locks of the worker's devices, so that no other run gets a device that a process still uses.
Standard library only; it runs isolated, with the interpreter of the tested environment.

    supervisor.py SETTINGS     (JSON: argv, lifeline, status, worker, own, scratch, cpus)
"""

import ctypes
import json
import os
import resource
import select
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
NAMED = 10  # of the processes that were left behind
SHARED = Path("/dev/shm")  # noqa: S108 - what is left there holds memory until it is removed
SHARED_NAMES = ("psm_", "nccl-", "sem.mp-")  # of Python's and of RCCL's; others are not ours
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)


def children(pid: int) -> list[int]:
    pids: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            pids += map(int, (task / "children").read_text().split())
    except OSError:  # a kernel without CONFIG_PROC_CHILDREN, proc(5)
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, ValueError, IndexError):
                if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                    pids.append(int(stat.parent.name))
    return pids


def stat_of(pid: int) -> list[str]:
    """Return a process's fields of proc_pid_stat(5) from its state on; none of a dead one.

    One that waits for its parent to ask is dead.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    fields = text.rpartition(")")[2].split()
    return [] if fields[0] in "ZX" else fields


def command_of(pid: int) -> str:
    """Return a process's command line, or its name in brackets; "" of a dead one."""
    with suppress(OSError):
        text = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="backslashreplace")
        name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace")
        if stat_of(pid):  # a program that has just begun has no command line yet
            return text.replace("\0", " ").strip()[:200] or f"[{name.strip()}]"
    return ""


def start(argv: list[str], libc: Any) -> int:
    """Start the worker in a session of its own; it dies with this process."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # of GPU memory it would fill a disk
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        for number in (*IGNORED, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        if os.getppid() == parent:
            os.execv(argv[0], argv)  # noqa: S606 - that is what it is for
    finally:
        os._exit(127)


def follow(worker: int, lifeline: int) -> int:
    """Wait for the worker's end; kill it when the gate's end of the lifeline is closed."""
    wake, awake = os.pipe()
    for descriptor in (wake, awake):
        os.set_blocking(descriptor, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(awake, warn_on_full_buffer=False)
    waiting = select.poll()
    waiting.register(wake, select.POLLIN)
    waiting.register(lifeline, select.POLLIN)
    while True:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return 127 << 8
            if pid == worker:
                return status
            if not pid:
                break
        for descriptor, _ in waiting.poll():
            if descriptor == lifeline:
                waiting.unregister(lifeline)
                for kill in (os.killpg, os.kill):
                    with suppress(ProcessLookupError):
                        kill(worker, signal.SIGKILL)
            else:
                with suppress(BlockingIOError):
                    os.read(wake, 4096)


def sweep() -> list[str]:
    """Kill all processes that the worker left, and their children; return their commands."""
    left: list[str] = []
    while True:
        for pid in children(os.getpid()):
            command = command_of(pid)
            if command and len(left) < NAMED:
                left.append(command)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return left


def shared() -> set[Path]:
    """Return files of shared memory of this user's that runtimes make."""
    paths = (path for name in SHARED_NAMES for path in SHARED.glob(f"{name}*"))
    mine = set()
    for path in paths:
        with suppress(OSError):  # another process may remove its own at any time
            if path.stat().st_uid == os.getuid():
                mine.add(path)
    return mine


def clear(before: set[Path]) -> None:
    """Remove shared memory that is new and that no process holds any more."""
    left = shared() - before
    for maps in Path("/proc").glob("[0-9]*/maps") if left else ():
        with suppress(OSError):
            text = maps.read_text(errors="replace")
            left = {path for path in left if str(path) not in text}
            for link in (maps.parent / "fd").iterdir():
                with suppress(OSError):  # closed since it was listed
                    left.discard(link.readlink())
    for path in left:
        with suppress(OSError):
            path.unlink()


def adopt(*, orphans: bool) -> None:
    """Make this process the subreaper of its descendants, or no longer."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(orphans))


def main(settings: dict[str, Any]) -> int:
    """Run one worker; its pid, then its wait status and what it left, go to the status pipe."""
    libc = ctypes.CDLL(None)
    adopt(orphans=True)
    before = shared()
    mine = sorted(os.sched_getaffinity(0))
    if settings["cpus"]:  # pools of threads are as large as that
        os.sched_setaffinity(0, {mine[number % len(mine)] for number in settings["cpus"]})
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    for descriptor in (*settings["worker"], *settings["own"]):
        os.set_inheritable(descriptor, descriptor in settings["worker"])
    worker = start(settings["argv"], libc)
    for descriptor in settings["worker"]:
        os.close(descriptor)
    status_pipe = settings["status"]
    os.write(status_pipe, json.dumps({"pid": worker}).encode() + b"\n")
    status = follow(worker, settings["lifeline"])
    said = {"status": os.waitstatus_to_exitcode(status), "left": sweep()}
    shutil.rmtree(settings["scratch"], ignore_errors=True)
    clear(before)
    with suppress(BrokenPipeError):
        os.write(status_pipe, json.dumps(said).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
