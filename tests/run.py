#!/usr/bin/env python3
"""Run the checks and tests of the project: `python3 tests/run.py`.

Without arguments it runs what a merge needs; `quick` is the checks, the unit tests and the model, for every
push; `--soak` is the tests of campaign size, which nothing else runs, and lists them. `--lint` runs
the static checks only, `--campaign` the interleavings of docs/release-protocol.md, all of them
(tests/campaign.py). Further arguments go to pytest: `python3 tests/run.py tests/records -k manifest`.

Installs what they need first: system packages when it is root on Debian or Ubuntu (otherwise it
prints the command), Python packages into an environment of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from shutil import which

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "build"))

from rocwheel.base.errors import RocwheelError  # noqa: E402
from rocwheel.base.host import debian, virtualenv  # noqa: E402
from rocwheel.base.process import HostRunner, base_env  # noqa: E402

PACKAGES = (
    *debian.MINIATURE_PACKAGES,
    "ca-certificates",
    "catatonit",
    "chromium",
    "chromium-driver",
    "curl",
    "docker-registry",
    "docker.io",
    "git",
    "iptables",
    "isal",
    "munge",
    "mmdebstrap",
    "nginx-light",
    "openssh-server",
    "openssl",
    "podman",
    "python3-venv",
    "slurm-client",
    "slurmctld",
    "slurmd",
    "runc",
    "skopeo",
    "softhsm2",
    "zsh",
    "zstd",
)

PROGRAMS = {"npm": ("nodejs", "npm")}  # often there from elsewhere, which Debian's would not join

CHECKS = (
    ("-m", "ruff", "check"),
    ("-m", "ruff", "format", "--check"),
    ("-m", "mypy"),
    ("-c", "from importlinter.cli import lint_imports_command as run; run()"),
)
TIERS = {"quick": "quick", "--soak": "soak"}  # beside `full`, which is meant without a word
# Two processes more than cores: many tests wait for a server, a grace or a clock meanwhile.
WORKERS = str((os.cpu_count() or 1) + 2)
PYTEST = ("-m", "pytest", "-n", WORKERS, "--dist", "loadgroup", "--no-loadscope-reorder")


def main(arguments: list[str]) -> int:
    """Return 0 when everything passes."""
    if {"-h", "--help"} & {*arguments}:
        print(__doc__)
        return 0
    sys.stdout.reconfigure(line_buffering=True)  # in a log, too, a line shows when it is said
    try:
        missing = [
            name for program, names in PROGRAMS.items() if not which(program) for name in names
        ]
        debian.ensure(
            (*PACKAGES, *missing),
            runner=HostRunner(base_env(os.environ)),
            root=os.geteuid() == 0,
            say=print,
        )
        lock = ROOT / "tests" / "requirements.lock"
        python = virtualenv.python(lock, environ=os.environ, with_uv=True)
    except RocwheelError as exc:
        print(f"{exc.detail}\nerror: {exc}\nhint:  {exc.hint}".strip(), file=sys.stderr)
        return exc.exit_code
    checks = CHECKS
    if "--lint" in arguments and len(arguments) > 1:
        print("error: --lint stands alone\nhint:  leave the rest out", file=sys.stderr)
        return 2
    if arguments[:1] == ["--campaign"]:
        checks = (("tests/campaign.py", *arguments[1:]),)
    elif "--lint" not in arguments:
        checks += (pytest_command(arguments),)
        parsed = (python, *checks[-1], "--markers")  # refuses wrong words before a minute of checks
        if subprocess.run(parsed, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode:
            return 4
    env = {**os.environ, "PYTHONPATH": str(ROOT / "build")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # or each of thousands of processes compiles it all
    failed = 0
    for check in checks:
        started = time.monotonic()
        print("+ python", *check)
        done = subprocess.run([str(python), *check], cwd=ROOT, env=env, check=False)
        failed = done.returncode or failed
        if "pytest" not in check:  # which says itself how long it took, and last what it left out
            print(f"  {time.monotonic() - started:.1f} s")
    return failed


def pytest_command(arguments: list[str]) -> tuple[str, ...]:
    """Return the words of pytest: in parallel unless `arguments` choose more than a tier."""
    rest = [argument for argument in arguments if argument not in TIERS]
    tier = [f"--tier={TIERS[argument]}" for argument in arguments if argument in TIERS]
    return (*(PYTEST[:2] if rest else PYTEST), *tier, *rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
