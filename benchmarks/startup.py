#!/usr/bin/env python3
"""How much CPU time help and commands that only look take, against `python -c "import click"`.

    python benchmarks/startup.py [pairs]

Run it with an interpreter that has rocwheel's dependencies, so that no environment is entered on
the way. Whole processes are measured, user and system time together, pair by pair: the ratio of
each pair cancels what the machine does beside. Ends with 1 where a limit is missed.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "build"), str(ROOT), str(ROOT / "tests")]
from support import s3  # noqa: E402
from support.wheelset import FAMILY, Shop  # noqa: E402

from rocwheel.base.console import Console  # noqa: E402

EXECUTABLE = ROOT / "build" / "ci_build"
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
STATUS = f"status --family {FAMILY.name} --store"  # of stores made here, without a limit


def seconds(*argv: str) -> float:
    """Seconds of CPU time that a whole process takes, and what it started."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = subprocess.Popen([sys.executable, *argv], stdout=subprocess.DEVNULL, env=kept)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(argv)}: status {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime


def stores(work: Path, stack: contextlib.ExitStack) -> dict[str, str]:
    """Make stores with one released set each: a folder, and a bucket of a server here."""
    server = stack.enter_context(s3.seaweedfs(work))
    server.bucket(s3.BUCKET)
    os.environ.update(server.environ())
    console = Console(sys.stderr, clock=time.monotonic, verbosity=-1)
    urls = {"folder": (work / "store").as_uri(), "S3": f"s3://{s3.BUCKET}/store"}
    for name, url in urls.items():
        Shop(url, console).released(work / name)
    return urls


def row(name: str, ours: tuple[str, ...], pairs: int, limit: float | None) -> bool:
    """Print the median and the median ratio of a command; return whether a limit is missed."""
    seconds(*ours)  # writes what Python compiles
    both = [(seconds("-c", "import click"), seconds(*ours)) for _ in range(pairs)]
    ratio = statistics.median(own / floor for floor, own in both)
    median = statistics.median(own for _, own in both)
    print(f"| `{name}` | {median * 1000:.1f} ms | {ratio:.2f} | {limit or ''} |", flush=True)
    return limit is not None and ratio > limit


def main() -> int:
    """Print medians and the median ratio of each command."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    print("| | median | times `import click` | limit |\n| --- | --- | --- | --- |")
    missed = sum(
        row(words, (str(EXECUTABLE), *words.split()), pairs, limit)
        for words, limit in LIMITS.items()
    )
    with tempfile.TemporaryDirectory() as work, contextlib.ExitStack() as stack:
        for kind, url in stores(Path(work), stack).items():
            row(f"status ({kind})", (str(EXECUTABLE), *STATUS.split(), url), pairs, None)
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
