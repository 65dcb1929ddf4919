"""Where code of a wheel runs: a sandbox without network or privileges, stubs in ROCm's place.

`unshare` (util-linux) makes namespaces of user, mounts, network, processes. In them a small program
makes every file system read-only, hides home, /run (sockets of services), /tmp and devices, sets
limits, and starts the command without any capability. It can read files of the system, and change,
send or keep nothing.

A stub defines names and does nothing: functions return 100, HIP's "no device"; C++ data is 64 zero
bytes. Written here and not by a linker: it needs no program, takes a millisecond, and gives each
name the symbol version by which a wheel wants it (System V gABI, chapter 5; the LSB's versions).
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rocwheel.base.errors import CommandError, HostError
from rocwheel.base.process import Command, Runner
from rocwheel.wheel import LIMITS
from rocwheel.wheel.wheel_policy import RunLimits

PROGRAMS: Final = ("unshare", "setpriv")
PAGE: Final = 4096
_CODE: Final = bytes.fromhex("b864000000c3")  # mov eax, 100; ret
# What HIP gets is kept: a count, and for each call the first argument and the name of a kernel, 0
# for a bundle. The first argument is returned: with it as handle kernels name their bundle.
BUNDLES, KERNELS, LOG = "__hipRegisterFatBinary", "__hipRegisterFunction", "rocwheel_log"
CALLS: Final = 1 << 16
_KEEPS: Final = "31c9488d15{}b801000000f0480fc102483d{}730e48c1e00448897c021048894c02184889f8c3"
_DATA: Final = ("_ZTI", "_ZTS", "_ZTV", "_ZTT")  # type information and tables of C++
_ENTER: Final = r"""
import ctypes, os, resource, shutil, sys, time
setpriv = shutil.which("setpriv")
libc, kept, argv = ctypes.CDLL(None, use_errno=True), sys.argv[6], sys.argv[7:]
seconds, space, wall, memory, processes = map(int, sys.argv[1:6])
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
open("/dev/dxg", "w").close()  # by which AMD's plugins count one GPU, as below WSL
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
resource.setrlimit(resource.RLIMIT_AS, (space, space))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.chdir("/")
if child := os.fork():  # signals that a process sends to itself do not reach process 1
    end, page = time.monotonic() + wall, os.sysconf("SC_PAGE_SIZE")
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        others, held = [each for each in os.listdir("/proc") if each.isdecimal()], 0
        for each in others:
            try:
                with open(f"/proc/{each}/statm") as file:
                    held += int(file.read().split()[1]) * page
            except OSError:  # it ended
                pass
        for why in (
            f"no end after {wall} s" if time.monotonic() > end else "",
            f"more than {processes} processes" if len(others) > processes else "",
            f"more than {memory >> 20} MiB of memory" if held > memory else "",
        ):
            if why:
                os.write(2, f"{why}\n".encode())
                os._exit(1)  # with which the kernel ends all other processes
        time.sleep(0.05)
    os._exit(os.waitstatus_to_exitcode(ended[1]) % 256)
os.execv(setpriv, [setpriv, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", *argv])
"""


def command(argv: Sequence[str], *, keep: Sequence[Path], limits: RunLimits) -> Command:
    """Return the command that runs `argv` in a sandbox, in which only `keep` is left of home."""
    kept = ":".join(dict.fromkeys(map(str, keep)))
    return Command(
        argv=(
            "unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--ipc", "--uts",
            "--fork", "--kill-child", "--mount-proc", sys.executable, "-I", "-S", "-c", _ENTER,
            str(limits.cpu), str(LIMITS.run_memory), str(limits.wall), str(limits.memory),
            str(limits.processes), kept, *argv,
        ),
        timeout=limits.wall + 60,
    )  # fmt: skip


def check(runner: Runner, folder: Path, limits: RunLimits) -> None:
    """Raise HostError where there can be no sandbox."""
    keep = [folder, Path(sys.prefix), Path(sys.base_prefix)]
    try:
        runner.capture(command((sys.executable, "-c", ""), keep=keep, limits=limits))
    except (CommandError, HostError) as exc:
        raise HostError(
            "there is no sandbox for the wheels' code: unshare cannot make namespaces here",
            hint="allow user namespaces (sysctl kernel.apparmor_restrict_unprivileged_userns=0, "
            "a container with --security-opt seccomp=unconfined), or leave out --runs",
            detail=getattr(exc, "detail", "") or str(exc),
        ) from None


def sysv_hash(name: bytes) -> int:
    """Return the hash of the System V gABI, by which names and versions are found."""
    value = 0
    for byte in name:
        value = (value << 4) + byte
        value = (value ^ (value >> 24 & 0xF0)) & 0x0FFFFFFF
    return value


def shared_object(soname: str, symbols: Mapping[str, str]) -> bytes:
    """Return an x86-64 library that defines names; `symbols` has the version of each, or ""."""
    strings = bytearray(b"\0")
    places: dict[str, int] = {}

    def string(text: str) -> int:
        if text not in places:
            places[text] = len(strings)
            strings.extend(text.encode() + b"\0")
        return places[text]

    versions = [soname, *sorted({*symbols.values()} - {""})] if any(symbols.values()) else []
    definitions = b""
    for number, version in enumerate(versions, 1):
        step = 28 if number < len(versions) else 0
        head = (1, number == 1, number, 1, sysv_hash(version.encode()), 20, step)
        definitions += struct.pack("<HHHHIIIII", *head, string(version), 0)
    symbols = {**symbols, LOG: ""} if BUNDLES in symbols else symbols
    names = sorted(symbols)
    chosen = [0, *(versions.index(symbols[name]) + 1 if symbols[name] else 1 for name in names)]
    count = len(names) + 1
    table = struct.pack("<2I", 1, count)  # DT_HASH with one bucket: a chain of all
    table += struct.pack(f"<{1 + count}I", count - 1, 0, *range(count - 1))
    layout = {"symbols": 24 * count, "hash": len(table), "versym": 2 * count}
    layout |= {"verdef": len(definitions)}
    string(soname)
    for name in names:
        string(name)
    layout |= {"strings": len(strings), "code": 64}
    at, starts = 64 + 4 * 56, {}
    for part, size in layout.items():
        starts[part] = at = -(-at // 16) * 16
        at += size
    text_end = at
    data = -(-at // PAGE) * PAGE
    dynamic = [(14, string(soname)), (4, starts["hash"]), (5, starts["strings"])]
    dynamic += [(6, starts["symbols"]), (10, len(strings)), (11, 24)]
    if versions:
        dynamic += [(0x6FFFFFFC, starts["verdef"]), (0x6FFFFFFD, len(versions))]
        dynamic += [(0x6FFFFFF0, starts["versym"])]
    written = b"".join(struct.pack("<qQ", *each) for each in [*dynamic, (0, 0)])
    total = data + len(written) + 64
    log = -(-total // 16) * 16
    start = starts["code"] + 16
    distance, most = (each.to_bytes(4, "little").hex() for each in (log - start - 9, CALLS))
    code = _CODE.ljust(16, b"\xcc") + bytes.fromhex(_KEEPS.format(distance, most))
    entries = bytes(24)
    for name in names:
        is_data = name.startswith(_DATA)
        value = data + len(written) if is_data else starts["code"]
        if LOG in symbols:
            value = {LOG: log, BUNDLES: start, KERNELS: start + 2}.get(name, value)
        kind, size = (0x11, 64) if is_data or name == LOG else (0x12, len(_CODE))
        entries += struct.pack("<IBBHQQ", string(name), kind, 0, 1, value, size)
    kept = log + 16 + 16 * CALLS - total if LOG in symbols else 0
    segments = (
        (1, 5, 0, text_end, 0),
        (1, 6, data, total - data, kept),
        (2, 6, data, len(written), 0),
    )
    image = bytearray(total)
    for start, content in (
        (0, struct.pack("<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01" + bytes(9), 3, 62, 1, 0, 64, 0,
                        0, 64, 56, 4, 64, 0, 0)),
        (64, b"".join(struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, size + more, PAGE)
                      for kind, flags, at, size, more in segments)),
        (64 + 3 * 56, struct.pack("<IIQQQQQQ", 0x6474E551, 6, 0, 0, 0, 0, 0, 16)),  # stacks
        (starts["symbols"], entries),
        (starts["hash"], table),
        (starts["versym"], struct.pack(f"<{count}H", *chosen)),
        (starts["verdef"], definitions),
        (starts["strings"], strings),
        (starts["code"], code),
        (data, written),
    ):  # fmt: skip
        image[start : start + len(content)] = content
    return bytes(image)
