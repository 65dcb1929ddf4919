"""The environment that `ci_build` makes for itself serves every CPython, whichever made it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.rocm_packages import wheel

from rocwheel.base.host import machine
from rocwheel.base.process import HostRunner, base_env

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
MAKE = """
import os, sys
sys.path[:0] = [sys.argv[1]]
from pathlib import Path
from rocwheel.base.host import virtualenv
print(virtualenv.python(Path(sys.argv[2]), environ=os.environ, with_uv=len(sys.argv) > 3))
"""


def run(*argv, **env):
    return subprocess.run(
        [*map(str, argv)], env={**os.environ, **env}, capture_output=True, text=True, check=False
    )


def block(project: str) -> str:
    """What our lock has of a project: its version and hashes."""
    _, line, rest = (ROOT / "build" / "requirements.lock").read_text().partition(f"\n{project}==")
    return (line + rest.partition("# via")[0].rstrip()).strip() + "\n"


def test_an_environment_of_the_oldest_cpython_installs_into_the_newest(tmp_path):
    pythons = machine.pythons(os.environ, runner=HostRunner(base_env(os.environ)))
    maker, newest = pythons[0], pythons[-1]
    lock = tmp_path / "pip.lock"
    lock.write_text(block("pip"))
    made = run(
        maker.executable, "-c", MAKE, ROOT / "build", lock, XDG_CACHE_HOME=str(tmp_path / "cache")
    )
    assert made.returncode == 0, made.stderr
    assert run(newest.executable, "-m", "venv", "--without-pip", tmp_path / "new").returncode == 0
    target = tmp_path / "new" / "bin" / "python"
    listed = run(made.stdout.strip(), "-m", "pip", "--python", target, "list", "--format=json")
    assert (listed.returncode, listed.stdout.strip()) == (0, "[]"), listed.stderr


def test_where_uv_cannot_fill_it_pip_does_with_the_indexes_it_is_configured_for(tmp_path):
    toy = wheel(tmp_path / "links", "toy-of-ours", "1.0", {"toy.py": b""})
    lock, digest = tmp_path / "both.lock", hashlib.sha256(toy.read_bytes()).hexdigest()
    lock.write_text(f"{block('uv')}toy-of-ours==1.0 --hash=sha256:{digest}\n")
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PIP_FIND_LINKS": str(toy.parent)}
    made = run(sys.executable, "-c", MAKE, ROOT / "build", lock, "with uv", **env)
    assert made.returncode == 0, made.stderr
    assert run(made.stdout.strip(), "-c", "import toy, uv").returncode == 0
