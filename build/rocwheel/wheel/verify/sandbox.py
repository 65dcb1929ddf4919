"""Runs code of a wheel in a sandbox: no network, nothing to write to, no privileges, limits.

`unshare` (util-linux) makes namespaces of user, mounts, network, processes. In them a small program
makes every file system read-only, hides home, /run (sockets of services), /tmp and devices, sets
limits, and starts the command without any capability. It can read files of the system, and change,
send or keep nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rocwheel.base.errors import CommandError, HostError
from rocwheel.base.process import Command, Runner
from rocwheel.wheel.limits import LIMITS

PROGRAMS: Final = ("unshare", "setpriv")
_ENTER: Final = r"""
import ctypes, os, resource, shutil, sys
setpriv = shutil.which("setpriv")
libc, (seconds, memory, kept), argv = ctypes.CDLL(None, use_errno=True), sys.argv[1:4], sys.argv[4:]
RDONLY, NOSUID, NODEV, RECURSIVE, BIND = 1, 2, 4, 0x8000, 4096


def attributes(path, setting, clearing=0, flags=0):
    values = (ctypes.c_uint64 * 4)(setting, clearing, 0, 0)
    if libc.syscall(442, -100, path.encode(), flags, values, ctypes.sizeof(values)):
        raise OSError(ctypes.get_errno(), f"mount_setattr {path}")


def mount(source, path, kind=None, flags=0, options=None):
    words = [each.encode() if each else None for each in (source, path, kind)]
    if libc.mount(*words, flags, options):
        raise OSError(ctypes.get_errno(), f"mount {path}")


opened = {path: os.open(path, os.O_PATH) for path in kept.split(":")}
nodes = {f"/dev/{name}": os.open(f"/dev/{name}", os.O_PATH) for name in ("null", "zero", "urandom")}
attributes("/", RDONLY | NOSUID, flags=RECURSIVE)
hidden = {"/tmp", "/var/tmp", "/run", "/home", "/root", "/dev", os.path.expanduser("~")}
for path in sorted({os.path.realpath(each) for each in hidden} - {"/"}):
    if os.path.isdir(path):
        flags = NOSUID | (0 if path == "/dev" else NODEV)
        mount("none", path, "tmpfs", flags, b"size=256m,mode=755")
for path, file in {**opened, **nodes}.items():
    if path in nodes:
        open(path, "w").close()
    else:
        os.makedirs(path, exist_ok=True)
    mount(f"/proc/self/fd/{file}", path, None, BIND | (RECURSIVE if path in opened else 0))
    os.close(file)
os.makedirs("/dev/shm", exist_ok=True)
resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.chdir("/")
if child := os.fork():  # signals that a process sends to itself do not reach process 1
    status = os.waitpid(child, 0)[1]
    os._exit(os.waitstatus_to_exitcode(status) % 256)
os.execv(setpriv, [setpriv, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", *argv])
"""


def command(argv: Sequence[str], *, keep: Sequence[Path], seconds: int) -> Command:
    """Return the command that runs `argv` in a sandbox, in which only `keep` is left of home."""
    kept = ":".join(dict.fromkeys(map(str, keep)))
    return Command(
        argv=(
            "unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--ipc", "--uts",
            "--fork", "--kill-child", "--mount-proc", sys.executable, "-I", "-S", "-c", _ENTER,
            str(seconds), str(LIMITS.run_memory), kept, *argv,
        ),
        timeout=seconds * 4,
    )  # fmt: skip


def check(runner: Runner, folder: Path) -> None:
    """Raise HostError where there can be no sandbox."""
    try:
        runner.capture(command((sys.executable, "-c", ""), keep=_own(folder), seconds=20))
    except (CommandError, HostError) as exc:
        raise HostError(
            "there is no sandbox for the wheels' code: unshare cannot make namespaces here",
            hint="allow user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0, "
            "a container with --security-opt seccomp=unconfined), or leave out --runs",
            detail=getattr(exc, "detail", "") or str(exc),
        ) from None


def _own(folder: Path) -> list[Path]:
    return [folder, Path(sys.prefix), Path(sys.base_prefix)]
