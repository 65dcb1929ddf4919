#!/usr/bin/env python3
"""The gate's engine beside `pytest -n 2` on a synthetic suite: makespan, overhead, a crash's cost.

    python3 benchmarks/gate.py [--repeat 3]

40 files with skewed durations on 2 slots. The lower bound is half of all test time, or the
longest test. No JAX is imported: what is measured is the engine and not the tests.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "build"), str(ROOT), str(ROOT / "tests")]

from support import gate  # noqa: E402

from rocwheel.gate.history import History  # noqa: E402

FILES, SLOTS, SEED = 40, 2, 7


def skewed() -> tuple[dict[str, str], float, float]:
    """Files of sleeping tests; all test seconds, and the longest test's."""
    source = random.Random(SEED)
    files, total, longest = {}, 0.0, 0.0
    for number in range(FILES):
        lines = ["import time"]
        for test in range(source.randint(1, 12)):
            seconds = min(3.0, 0.04 * source.paretovariate(1.1))
            lines.append(f"def test_{test}(): time.sleep({seconds:.4f})")
            total, longest = total + seconds, max(longest, seconds)
        files[f"test_{number:02d}.py"] = "\n".join(lines) + "\n"
    return files, total, longest


def xdist(root: Path) -> float:
    argv = [sys.executable, "-m", "pytest", "-q", "-n", str(SLOTS), "-c", os.devnull]
    argv += [f"--rootdir={root}", "-p", "no:cacheprovider", str(root)]
    started = time.monotonic()
    subprocess.run(argv, check=True, capture_output=True, cwd=root)
    return time.monotonic() - started


def measure(folder: Path, repeat: int) -> dict[str, float]:
    files, total, longest = skewed()
    bound = max(total / SLOTS, longest)
    first, later, other = [], [], []
    for turn in range(repeat):
        root = folder / f"skewed-{turn}"
        cold = gate.run(root, files, lanes=gate.lanes(SLOTS))
        estimates = History().with_results(cold.results).estimates({})
        warm = gate.run(root, files, lanes=gate.lanes(SLOTS), estimates=estimates)
        first.append(cold.seconds)
        later.append(warm.seconds)
        other.append(xdist(root))
    many = "".join(f"def test_{n}(): pass\n" for n in range(2000))
    empty = statistics.median(
        gate.run(folder / f"empty-{turn}", {"test_a.py": "def test(): pass\n"}).seconds
        for turn in range(repeat)
    )
    busy = statistics.median(
        gate.run(folder / f"many-{turn}", {"test_a.py": many}).seconds for turn in range(repeat)
    )
    crash = "import os\ndef test_a(): pass\ndef test_b(): {}\ndef test_c(): pass\n"
    calm, crashed = (
        statistics.median(
            gate.run(
                folder / f"{name}-{turn}", {"test_a.py": crash.format(code)}, retry_limit=0
            ).seconds
            for turn in range(repeat)
        )
        for name, code in (("calm", "pass"), ("crash", "os.abort()"))
    )
    return {
        "test seconds": total,
        "lower bound": bound,
        "first run": statistics.median(first),
        "later run": statistics.median(later),
        "pytest -n 2": statistics.median(other),
        "first run / bound": statistics.median(first) / bound,
        "later run / bound": statistics.median(later) / bound,
        "ms per empty test": 1000 * (busy - empty) / 2000,
        "seconds per crash": crashed - calm,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gate-bench-") as folder:
        found = measure(Path(folder), arguments.repeat)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    for name, value in found.items():
        print(f"{name:20} {value:8.2f}")


if __name__ == "__main__":
    main()
