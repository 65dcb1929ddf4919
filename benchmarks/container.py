#!/usr/bin/env python3
"""A build in a container against the same build on this machine, on the miniature workspace.

    python benchmarks/container.py --image REFERENCE [--engine docker] [--work DIR] [--pairs 3]

Pairs in turn on one machine; medians, ratios, and what is required of them:
- a cold build (no output base, no disk cache) in a container: at most 1.1 times the host's;
- a run without any change in a fresh container: at most 1.3 times the host's with a cold server;
- a turn of `dev` without any change in a kept container, on a tree with as many targets as JAX and
  XLA have: at most 1.2 times the lines of Bazel that its dry run shows, run by hand in the same
  container. On the small miniature the same is told and nothing is required: both invocations take
  Bazel half a second there, and to start, to ask engine and environment takes as long;
- the most memory that rocwheel itself takes for a cold build in a container: at most 1.1 times what
  it takes on the host.

REFERENCE is a builder image of the recipe debian_12 (`image build`); the engine is the one that the
environment names. Ends with status 1 when something required is not so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHES = ("bazel", "bazel-in-containers", "bazel-disk", "bazel-repositories")
MOST = {
    "cold build": 1.1, "nothing changed": 1.3, "kept container": 1.2, "memory": 1.1,
    "kept container, miniature": None,
}  # fmt: skip
WORKSPACE = ROOT / "examples" / "miniature" / "workspace"
# JAX for a GPU was built of 11,954 actions in 2021 (https://github.com/jax-ml/jax/pull/7956), each
# with more inputs than one; it has grown since.
TARGETS = 12_000
WARM = 8  # turns until the server's Java has compiled what it runs
MANY = """
def _copy(ctx):
    out = ctx.actions.declare_file(ctx.label.name + ".out")
    ctx.actions.symlink(output = out, target_file = ctx.file.src)
    return [DefaultInfo(files = depset([out]))]

copy = rule(implementation = _copy, attrs = {"src": attr.label(allow_single_file = True)})

def _all(ctx):
    out = ctx.actions.declare_file("all.txt")
    files = depset(transitive = [dep[DefaultInfo].files for dep in ctx.attr.deps])
    ctx.actions.run_shell(inputs = files, outputs = [out], command = "echo all > " + out.path)
    return [DefaultInfo(files = depset([out]))]

everything = rule(implementation = _all, attrs = {"deps": attr.label_list()})

def many():
    names = native.glob(["*.txt"])
    for name in names:
        copy(name = name[:-4], src = name)
    everything(
        name = "all",
        deps = [name[:-4] for name in names],
        visibility = ["//visibility:public"],
    )
"""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of the command."""

    seconds: float
    actions: int
    memory: float  # MiB, the largest of rocwheel's own process


class Memory(threading.Thread):
    """The most memory a process had (VmHWM, without its children): looked at until it ends."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._file, self._most = Path(f"/proc/{pid}/status"), 0
        self.start()

    def run(self) -> None:
        while True:
            try:
                text = self._file.read_text(encoding="ascii")
            except OSError:
                return
            peak = next((line for line in text.splitlines() if line.startswith("VmHWM:")), "")
            if not peak:  # it has ended, and nobody has asked how
                return
            self._most = int(peak.split()[1])
            time.sleep(0.05)

    def most(self) -> float:
        self.join()
        return self._most / 1024


class Place:
    """Where it builds: a folder with caches of its own, and the options that say where."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder, self.options = folder, options
        folder.mkdir(parents=True)

    def prepare(self) -> None:
        """The miniature's ROCm, and what the image has: not measured."""
        self.command("demo", "--wheels-only", "--python-versions=3.11")

    def run(self) -> Run:
        """Build, as somebody would; raises SystemExit when it fails."""
        words = ("--python-versions=3.11", "--allow-dirty", f"--wheelhouse={self.folder / 'made'}")
        return self.command("dist_wheels", *words, *self.building(WORKSPACE))

    def building(self, workspace: Path) -> tuple[str, ...]:
        """The options of a build by hand."""
        (tarball,) = (self.folder / "rocwheel" / "demo").glob("*/therock-dist-*.tar.gz")
        return (
            f"--therock-path={tarball}", "--rocm-version=7.10.0a20251120",
            "--gfx-targets=gfx90a,gfx942,gfx1100,gfx1201", f"--jax-source-dir={workspace}",
            "--jaxlib=built", "--bazel-startup-options=--bazelrc=bazel/debian.bazelrc",
            "--bazel-options=--repo_env=MINIATURE_PYTHON_3_11=/usr/bin/python3.11",
            "--bazel-options=--repo_env=CC=/usr/bin/clang-19",
        )  # fmt: skip

    def command(self, *words: str) -> Run:
        """Run a command of rocwheel; raises SystemExit when it fails."""
        argv = [sys.executable, str(ROOT / "build" / "ci_build"), "--json", *words, *self.options]
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
        watch = Memory(process.pid)
        out, err = process.communicate()
        seconds = time.monotonic() - started
        if process.returncode:
            raise SystemExit(err[-3000:])
        self.said = json.loads(out)
        actions = self.said["bazel"]["actions_executed"] if "bazel" in self.said else 0
        return Run(seconds=seconds, actions=actions, memory=watch.most())

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


def grown(folder: Path) -> Path:
    """The miniature with `TARGETS` more targets that each of its wheels is made from."""
    shutil.copytree(WORKSPACE, folder)
    many = folder / "many"
    many.mkdir()
    (many / "many.bzl").write_text(MANY, encoding="utf-8")
    (many / "BUILD.bazel").write_text('load(":many.bzl", "many")\n\nmany()\n', encoding="utf-8")
    for number in range(TARGETS):
        (many / f"n{number}.txt").write_text(f"{number}\n", encoding="utf-8")
    build = folder / "jaxlib" / "tools" / "BUILD.bazel"
    version = re.compile(r'( +)"//jax:version.py": (.*)version.py",')
    text, found = version.subn(r'\1"//many:all": \2all.txt",\n\g<0>', build.read_text("utf-8"))
    if found != 3:  # a wheel each
        raise SystemExit(f"{build}: {found} wheels have a version, not 3")
    build.write_text(text, encoding="utf-8")
    return folder


def kept(place: Place, workspace: Path, pairs: int) -> dict[str, list[float]]:
    """Turns without any change in a kept container, and its lines of Bazel by hand, in turn."""
    environment = place.folder / "venv"
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--clear", environment], check=True)
    turn = (
        "dev",
        f"--environment={environment}",
        "--keep-container=10m",
        *place.building(workspace),
    )
    place.command(*turn)
    place.command(*turn, "--dry-run")
    entering = re.compile(r"\b(docker|podman) exec .*\bbazel\b")  # not the line that starts it
    lines = [line for line in place.said["plan"] if entering.search(line)]
    if not lines:
        raise SystemExit("the dry run of dev shows no line of Bazel")
    found: dict[str, list[float]] = {"host": [], "container": []}

    def by_hand() -> float:
        started = time.monotonic()
        for line in lines:
            subprocess.run(line, shell=True, check=True, capture_output=True)
        return time.monotonic() - started

    def by_dev() -> float:
        done = place.command(*turn)
        if done.actions:
            raise SystemExit("nothing changed, and actions were executed in the kept container")
        return done.seconds

    for _ in range(WARM):
        by_hand()
    ways = {"host": by_hand, "container": by_dev}
    for number in range(pairs):
        for name in (ways, reversed(ways))[number % 2]:
            found[name].append(ways[name]())
    for alive in (place.folder / "rocwheel" / "containers").glob("*/alive"):
        alive.write_text("0\n", encoding="ascii")  # minutes that it stays: it ends now
    return found


def told(what: str, values: dict[str, list[float]], unit: str) -> bool:
    """Print medians and their ratio; whether it is what is required."""
    host, there = (statistics.median(values[name]) for name in ("host", "container"))
    ratio, most = there / host, MOST[what]
    other = "by hand" if what.startswith("kept") else "host"
    limit = f" ({most})" if most else ""
    print(f"{what}: {other} {host:.1f} {unit}, container {there:.1f} {unit}: {ratio:.2f}{limit}")
    return most is None or ratio <= most


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
        place.prepare()
        place.run()
    cold = measure(places, asked.pairs, Place.forget)
    same = measure(places, asked.pairs, Place.stop)
    if any(run.actions for runs in same.values() for run in runs):
        print("nothing changed, and actions were executed")
        return 1
    small = kept(places["container"], WORKSPACE, asked.pairs)
    turns = kept(places["container"], grown(work / "grown"), asked.pairs)

    def of(found: dict[str, list[Run]], name: str) -> dict[str, list[float]]:
        return {where: [getattr(run, name) for run in runs] for where, runs in found.items()}

    good = [
        told("cold build", of(cold, "seconds"), "s"),
        told("nothing changed", of(same, "seconds"), "s"),
        told("kept container, miniature", small, "s"),
        told("kept container", turns, "s"),
        told("memory", of(cold, "memory"), "MiB"),
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
