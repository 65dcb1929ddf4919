#!/usr/bin/env python3
"""How long `ci_build --help` takes against `python -c "import click"`, pair by pair.

    python benchmarks/startup.py [pairs]

Run it with an interpreter that has rocwheel's dependencies, so that no environment is entered on
the way. Whole processes are timed; the ratio of each pair cancels what the machine does beside.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

EXECUTABLE = Path(__file__).resolve().parents[1] / "build" / "ci_build"


def timed(*argv: str) -> float:
    """Seconds a whole process takes."""
    started = time.perf_counter()
    subprocess.run([sys.executable, *argv], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def main() -> None:
    """Print medians and the median ratio."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    timed("-c", "import click")
    timed(str(EXECUTABLE), "--help")
    floor, ours = [], []
    for _ in range(pairs):
        floor.append(timed("-c", "import click"))
        ours.append(timed(str(EXECUTABLE), "--help"))
    ratios = [b / a for a, b in zip(floor, ours, strict=True)]
    print(f"import click      {statistics.median(floor) * 1000:6.1f} ms")
    print(f"ci_build --help   {statistics.median(ours) * 1000:6.1f} ms")
    print(f"ratio, median of {pairs} pairs: {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
