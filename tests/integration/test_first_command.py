"""The environment that `ci_build` makes for itself serves every CPython, whichever made it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rocwheel.host import machine
from rocwheel.process import HostRunner, base_env

ROOT = Path(__file__).parents[2]
FOUND = machine.pythons(os.environ, runner=HostRunner(base_env(os.environ)))
MAKE = """
import os, sys
sys.path[:0] = [sys.argv[1]]
from pathlib import Path
from rocwheel.host import virtualenv
print(virtualenv.python(Path(sys.argv[2]), environ=os.environ))
"""


def run(*argv, **env):
    return subprocess.run(
        [*map(str, argv)], env={**os.environ, **env}, capture_output=True, text=True, check=False
    )


def test_an_environment_of_the_oldest_cpython_installs_into_the_newest(tmp_path):
    maker = min(FOUND, key=lambda item: item.version)
    newest = max(FOUND, key=lambda item: item.version)
    lock = tmp_path / "pip.lock"
    _, line, rest = (ROOT / "build" / "requirements.lock").read_text().partition("\npip==")
    lock.write_text((line + rest.partition("# via")[0].rstrip()).strip() + "\n")
    made = run(
        maker.executable, "-c", MAKE, ROOT / "build", lock, XDG_CACHE_HOME=str(tmp_path / "cache")
    )
    assert made.returncode == 0, made.stderr
    assert run(newest.executable, "-m", "venv", "--without-pip", tmp_path / "new").returncode == 0
    target = tmp_path / "new" / "bin" / "python"
    listed = run(made.stdout.strip(), "-m", "pip", "--python", target, "list", "--format=json")
    assert (listed.returncode, listed.stdout.strip()) == (0, "[]"), listed.stderr
