#!/usr/bin/env python3
"""A build in a container against the same build on this machine, on the miniature workspace.

    python benchmarks/container.py --image REFERENCE [--engine docker] [--work DIR] [--pairs 3]

Pairs in turn on one machine; medians, ratios, and what is required of them:
- a cold build (no output base, no disk cache) in a container: at most 1.1 times the host's;
- a run without any change in a fresh container: at most 1.3 times the host's with a cold server.

REFERENCE is a builder image of the recipe debian_12 (`image build`); the engine is the one that the
environment names. Ends with status 1 when something required is not so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHES = ("bazel", "bazel-in-containers", "bazel-disk", "bazel-repositories")
MOST = {"cold build": 1.1, "nothing changed": 1.3}


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the command."""

    seconds: float
    actions: int


class Place:
    """Where it builds: a folder with caches of its own, and the options that say where."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options = folder, options
        folder.mkdir(parents=True)

    def run(self) -> Run:
        """Build, as somebody would; raises SystemExit when it fails."""
        argv = [sys.executable, str(ROOT / "build" / "ci_build"), "--json", "demo", "--wheels-only"]
        argv += ["--python-versions=3.11", *self.options]
        env = {**os.environ, "XDG_CACHE_HOME": str(self.folder), "PATH": path()}
        started = time.monotonic()
        process = subprocess.Popen(
            argv,
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        out, err = process.communicate()
        seconds = time.monotonic() - started
        if process.returncode:
            raise SystemExit(err[-3000:])
        document = json.loads(out)
        return Run(
            seconds=seconds,
            actions=document["bazel"]["actions_executed"],
        )

    def stop(self) -> None:
        """End the host's Bazel servers, so that the next run starts one."""
        for file in (self.folder / "rocwheel" / "bazel").glob("*/server/server.pid.txt"):
            pid = int(file.read_text())
            while Path(f"/proc/{pid}").exists():
                os.kill(pid, 15)
                time.sleep(0.2)

    def forget(self) -> None:
        """Remove what Bazel keeps."""
        self.stop()
        for name in CACHES:
            folder = self.folder / "rocwheel" / name
            subprocess.run(["chmod", "-R", "u+w", str(folder)], check=False, capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)


def path() -> str:
    """The system's programs first, which an image of its packages has too."""
    return f"/usr/sbin:/usr/bin:/sbin:/bin:{os.environ['PATH']}"


def measure(
    places: dict[str, Place], pairs: int, before: Callable[[Place], None]
) -> dict[str, list[Run]]:
    """Runs of each place in turn."""
    found: dict[str, list[Run]] = {name: [] for name in places}
    for turn in range(pairs):
        order = list(places) if turn % 2 == 0 else list(reversed(places))
        for name in order:
            before(places[name])
            found[name].append(places[name].run())
    return found


def told(what: str, values: dict[str, list[float]], unit: str) -> bool:
    """Print medians and their ratio; whether it is what is required."""
    host, there = (statistics.median(values[name]) for name in ("host", "container"))
    ratio, most = there / host, MOST[what]
    print(f"{what}: host {host:.1f} {unit}, container {there:.1f} {unit}: {ratio:.2f} ({most})")
    return ratio <= most


def main() -> int:
    """Return 0 when all is as required."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--image", required=True)
    parser.add_argument("--engine", default="docker", choices=["docker", "podman"])
    parser.add_argument("--work", type=Path)
    parser.add_argument("--pairs", type=int, default=3)
    asked = parser.parse_args()
    work = asked.work or Path(tempfile.mkdtemp(prefix="rocwheel-bench-"))
    inside = (f"--executor={asked.engine}", f"--builder-image={asked.image}")
    places = {"host": Place(work / "host"), "container": Place(work / "container", *inside)}
    for place in places.values():
        place.run()  # the tarball, ROCm, what the image has: not measured
    cold = measure(places, asked.pairs, Place.forget)
    same = measure(places, asked.pairs, Place.stop)
    if any(run.actions for runs in same.values() for run in runs):
        print("nothing changed, and actions were executed")
        return 1
    good = [
        told(
            "cold build", {name: [run.seconds for run in runs] for name, runs in cold.items()}, "s"
        ),
        told(
            "nothing changed",
            {name: [run.seconds for run in runs] for name, runs in same.items()},
            "s",
        ),
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
