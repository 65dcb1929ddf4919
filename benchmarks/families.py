#!/usr/bin/env python3
"""One build for all GPU families against a build for each, on the miniature: time and disk.

    python benchmarks/families.py [--work DIR] [--families 16] [--pythons 3.11]

Each side begins on a machine that has ROCm, and nothing of Bazel's; the builds of a side follow one
another there and share what Bazel keeps, which favours many: machines of their own would share
nothing. A family is a gfx target that the miniature's compiler knows. What is compiled for a GPU is
as much on both sides; jaxlib, the host's part of plugin and pjrt, repair and verification are not.
Required: the one build takes at most half the time, and its wheels half the disk. Needs what the
demo needs (bazel, clang-19, …), 2 GB and about four minutes on 2 cores. Ends with status 1 when
something required is not so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGETS = (
    *("gfx942", "gfx90a", "gfx1100", "gfx1201", "gfx908", "gfx906", "gfx900", "gfx1030"),
    *("gfx1010", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1200"),
)
OF_BAZEL = ("bazel", "bazel-disk", "bazel-repositories")
MOST = 0.5
KIB = 1024


@dataclass(frozen=True, kw_only=True)
class Side:
    """What the builds of one side took."""

    seconds: float
    actions: int
    wheels: float  # KiB
    kept: float  # KiB of Bazel's


class Machine:
    """A folder with a cache, a wheelhouse, and the command."""

    def __init__(self, work: Path, pythons: str) -> None:
        self.work, self.pythons, self.cache = work, pythons, work / "cache" / "rocwheel"
        self.build(TARGETS[:1])  # ROCm and its tarball, which both sides have

    def build(self, targets: tuple[str, ...]) -> int:
        """Build a set; return how many actions ran. Raises SystemExit when it fails."""
        done = subprocess.run(
            [
                sys.executable, str(ROOT / "build" / "ci_build"), "--json", "demo", "--wheels-only",
                f"--python-versions={self.pythons}", f"--gfx-targets={','.join(targets)}",
            ],
            cwd=self.work, env={**os.environ, "XDG_CACHE_HOME": str(self.work / "cache")},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        document = json.loads(done.stdout)
        there = {target for wheel in document["wheels"] for target in wheel["gfx_targets"]}
        if there != set(targets):
            raise SystemExit(f"asked for {targets}, the wheels have {sorted(there)}")
        return int(document["bazel"]["actions_executed"])

    def side(self, builds: list[tuple[str, ...]]) -> Side:
        """Build sets one after the other, from nothing."""
        self.forget()
        started = time.monotonic()
        actions = sum(self.build(targets) for targets in builds)
        seconds = time.monotonic() - started
        wheels = [
            path
            for path in (self.work / "wheelhouse").glob("*/*.whl")
            if path.parent.name != "current"
        ]
        if len({path.parent for path in wheels}) != len(builds):
            raise SystemExit("two families have one set")
        return Side(
            seconds=seconds,
            actions=actions,
            wheels=sum(path.stat().st_size for path in wheels) / KIB,
            kept=sum(disk(self.cache / name) for name in OF_BAZEL) / KIB,
        )

    def forget(self) -> None:
        """End Bazel's servers, remove what it keeps, and the wheels."""
        for file in (self.cache / "bazel").glob("*/server/server.pid.txt"):
            pid = int(file.read_text())
            while Path(f"/proc/{pid}").exists():
                os.kill(pid, 15)
                time.sleep(0.2)
        for folder in (*(self.cache / name for name in OF_BAZEL), self.work / "wheelhouse"):
            subprocess.run(["chmod", "-R", "u+w", str(folder)], check=False, capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)


def disk(folder: Path) -> int:
    """Bytes that a folder takes, each file once however many names it has."""
    told = subprocess.run(
        ["du", "-s", "-k", str(folder)], capture_output=True, text=True, check=False
    )
    return int(told.stdout.split()[0]) * 1024 if told.stdout else 0


def main() -> int:
    """Return 0 when all is as required."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path)
    parser.add_argument("--families", type=int, default=len(TARGETS))
    parser.add_argument("--pythons", default="3.11")
    asked = parser.parse_args()
    work = asked.work or Path(tempfile.mkdtemp(prefix="rocwheel-bench-"))
    work.mkdir(parents=True, exist_ok=True)
    targets = TARGETS[: asked.families]
    machine = Machine(work, asked.pythons)
    once = machine.side([targets])
    each = machine.side([(target,) for target in targets])
    machine.forget()
    print(f"| | one build for {len(targets)} families | a build for each | ratio |")
    print("| --- | --- | --- | --- |")
    for what, unit in (("seconds", "s"), ("actions", ""), ("wheels", "KiB"), ("kept", "KiB")):
        one, other = getattr(once, what), getattr(each, what)
        name = {"wheels": "wheels on disk", "kept": "kept by Bazel"}.get(what, what)
        print(f"| {name} | {one:.1f} {unit} | {other:.1f} {unit} | {one / other:.2f} |")
    good = once.seconds <= MOST * each.seconds and once.wheels <= MOST * each.wheels
    print(f"time and wheels are at most {MOST} of the others: {'yes' if good else 'no'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
