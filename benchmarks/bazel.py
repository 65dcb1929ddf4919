#!/usr/bin/env python3
"""Bazel on the miniature workspace: what one invocation, the disk cache and a warm server bring.

    python benchmarks/bazel.py [--work DIR] [--pairs 3]

Three comparisons, each pair in turn on the same machine; medians, ratios, and what is required:
- plugin and pjrt in one invocation against one invocation per wheel (as JAX's own CLI does it),
  from nothing: quicker;
- a build after the output root was wiped, with the disk cache against without: quicker, and no
  action is executed;
- a run without any change, with a warm server, against the bare Bazel command: at most 1.3 times as
  long (median of pairs) and 0 actions. Bazel has to look at every source either way.

Ends with status 1 when something required is not so. Needs what the demo needs (bazel, clang-19,
…); makes its ROCm tarball itself.
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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "build"), str(ROOT)]

from examples.miniature.make_therock import make_tarball  # noqa: E402
from rocwheel import bazel, dist  # noqa: E402
from rocwheel.base import home  # noqa: E402
from rocwheel.base.console import silent  # noqa: E402
from rocwheel.base.here import Here  # noqa: E402
from rocwheel.base.process import HostRunner, base_env  # noqa: E402
from rocwheel.base.values import replace  # noqa: E402
from rocwheel.base.versions import WheelKind  # noqa: E402
from rocwheel.bazel import BuildSpec  # noqa: E402
from rocwheel.tools import demo  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NO_CHANGE = 1.3  # times the bare command
NO_CHANGE_PAIRS = 5  # for one of the long ones: a run takes half a second
GPU_WHEELS = (WheelKind.PLUGIN, WheelKind.PJRT)


@dataclass(frozen=True, kw_only=True)
class Measured:
    seconds: float
    actions: int
    hits: int


class Bench:
    """One specification, built again and again."""

    def __init__(self, work: Path) -> None:
        self.work = work
        here = Here(
            environ=os.environ,
            cwd=work,
            cache=work / "cache",
            home=home.find(None),
            console=silent(),
            runner=HostRunner(base_env(os.environ)),
        )
        self.runner, self.console = here.runner, here.console
        base = dist.Request(
            therock="",
            wheelhouse=work / "wheelhouse",
            cache=work / "cache",
            home=home.find(None),
            cwd=work,
            environ=os.environ,
        )
        wanted = demo.prepare(base, here).request
        tarball = make_tarball(work)
        request = replace(wanted, therock=str(tarball), pythons=wanted.pythons[:1])
        inputs = dist.gather(dist.plan(request), here)
        self.spec = inputs.spec
        self.lease = inputs.root  # the tree stays in the cache as long as this lives

    def build(self, *specs: BuildSpec) -> Measured:
        """Every invocation of the specifications, one after the other."""
        started, actions, hits = time.monotonic(), 0, 0
        for spec in specs:
            for invocation in bazel.invocations(spec):
                done = bazel.build(
                    invocation,
                    folder=self.work / "logs",
                    into=self.work / "out",
                    runner=self.runner,
                    console=self.console,
                )
                actions += done.record.actions_executed
                hits += done.record.cache_hits
        return Measured(seconds=time.monotonic() - started, actions=actions, hits=hits)

    def bare(self, spec: BuildSpec) -> Measured:
        """The command line alone, as somebody would paste it."""
        started = time.monotonic()
        for invocation in bazel.invocations(spec):
            self.runner.run(invocation.command_line())
        return Measured(seconds=time.monotonic() - started, actions=0, hits=0)

    def wipe(self, *, disk_cache: bool) -> None:
        """As on a fresh machine, with or without the disk cache."""
        bazel.shutdown(bazel.invocations(self.spec)[0], runner=self.runner)
        gone = [Path(self.spec.caches.output_user_root)]
        if disk_cache:
            gone.append(Path(str(self.spec.caches.disk)))
        for folder in gone:
            subprocess.run(["chmod", "-R", "u+w", str(folder)], check=False, stderr=-3)
            shutil.rmtree(folder, ignore_errors=True)


def pairs(
    count: int, one: Callable[[], Measured], other: Callable[[], Measured]
) -> tuple[list[Measured], list[Measured]]:
    """Measure alternately, the first of a pair in turn."""
    first, second = [], []
    for number in range(count):
        if number % 2:
            second.append(other())
            first.append(one())
        else:
            first.append(one())
            second.append(other())
    return first, second


def median(measured: Sequence[Measured]) -> float:
    return statistics.median(item.seconds for item in measured)


def compare(
    one: tuple[str, list[Measured]],
    other: tuple[str, list[Measured]],
    *,
    required: str,
    least: float,
    idle: bool = False,
) -> bool:
    """Print two series, the median ratio of their pairs, and whether it is at least `least`.

    With `idle` the first series may have executed no action.
    """
    for name, measured in (one, other):
        seconds = [item.seconds for item in measured]
        print(
            f"{name:42} {median(measured):6.2f} s  ({min(seconds):.2f}-{max(seconds):.2f})  "
            f"{measured[-1].actions} actions, {measured[-1].hits} from a cache"
        )
    ratio = statistics.median(b.seconds / a.seconds for a, b in zip(one[1], other[1], strict=True))
    good = ratio >= least and not (idle and any(item.actions for item in one[1]))
    print(f"  ratio {ratio:.2f}; {required}: {'pass' if good else 'FAIL'}\n")
    return good


def measure(bench: Bench, count: int) -> bool:
    """All three comparisons; whether everything required is so."""
    gpu = replace(bench.spec, kinds=GPU_WHEELS)
    uncached = replace(gpu, caches=replace(gpu.caches, disk=None))
    apart = [replace(uncached, kinds=(kind,)) for kind in GPU_WHEELS]

    def fresh(*specs: BuildSpec) -> Measured:
        bench.wipe(disk_cache=False)
        return bench.build(*specs)

    together, one_by_one = pairs(count, lambda: fresh(uncached), lambda: fresh(*apart))
    first = compare(
        ("plugin and pjrt in one invocation, cold", together),
        ("one invocation per wheel, cold", one_by_one),
        required="one is quicker",
        least=1,
    )
    bench.wipe(disk_cache=True)
    bench.build(gpu)  # fills the disk cache
    warm, cold = pairs(count, lambda: fresh(gpu), lambda: fresh(uncached))
    second = compare(
        ("wiped output root, disk cache", warm),
        ("wiped output root, no disk cache", cold),
        required="the cache is quicker, 0 actions",
        least=1,
        idle=True,
    )
    bench.build(gpu)
    ours, bare = pairs(NO_CHANGE_PAIRS * count, lambda: bench.build(gpu), lambda: bench.bare(gpu))
    third = compare(
        ("no change, warm server", ours),
        ("no change, the bare Bazel command", bare),
        required=f"at most {NO_CHANGE} times the bare command, 0 actions",
        least=1 / NO_CHANGE,
        idle=True,
    )
    return first and second and third


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path)
    parser.add_argument("--pairs", type=int, default=3)
    arguments = parser.parse_args()
    work = arguments.work or Path(tempfile.mkdtemp(prefix="bench-bazel-"))
    work.mkdir(parents=True, exist_ok=True)
    bench = Bench(work)
    try:
        good = measure(bench, arguments.pairs)
    finally:
        bench.wipe(disk_cache=True)
        if not arguments.work:
            shutil.rmtree(work, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
