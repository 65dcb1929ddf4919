#!/usr/bin/env python3
"""How much CPU time help and commands that only look take, against `python -c "import click"`.

    python benchmarks/startup.py [pairs]

Run it with an interpreter that has rocwheel's dependencies, so that no environment is entered on
the way. Whole processes are measured, user and system time together, pair by pair: the ratio of
each pair cancels what the machine does beside. Ends with 1 where a limit is missed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

EXECUTABLE = Path(__file__).resolve().parents[1] / "build" / "ci_build"
LIMITS = {  # times `import click`
    "--help": 1.5,
    "dist_wheels --help": 1.5,
    "gate --help": 1.5,
    "nightly --help": 1.5,
    "doctor --help": 1.5,
    "--version": 2.5,
    "gate list": 2.5,
    "compat": 2.5,
}


def seconds(*argv: str) -> float:
    """Seconds of CPU time that a whole process takes, and what it started."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = subprocess.Popen([sys.executable, *argv], stdout=subprocess.DEVNULL, env=kept)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(argv)}: status {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime


def main() -> int:
    """Print medians and the median ratio of each command."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    missed = 0
    print("| | median | times `import click` | limit |\n| --- | --- | --- | --- |")
    for words, limit in LIMITS.items():
        ours = (str(EXECUTABLE), *words.split())
        seconds(*ours)  # writes what Python compiles
        both = [(seconds("-c", "import click"), seconds(*ours)) for _ in range(pairs)]
        ratio = statistics.median(own / floor for floor, own in both)
        median = statistics.median(own for _, own in both)
        print(f"| `{words}` | {median * 1000:.1f} ms | {ratio:.2f} | {limit} |")
        missed += ratio > limit
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
