"""Tab in the real shells: commands, options, values and files, by each name and by path."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PROMPTING = {
    "bash": ("bash", "--norc", "--noprofile", "-i"),
    "zsh": ("zsh", "-f", "-i"),
}
# what is typed before Tab -> what the shell adds
LINES = {
    "rocwheel compl": "etion",
    "build/ci_build --compiler=herm": "etic",
    "ci_build status --family gfx94": "X-dcgpu",
    "build/ci_build gate --suite multi": "_gpu",
    "rocwheel status --channel=night": "ly",
    "rocwheel dist_wheels --jax-version 0.9.1": "",
    "rocwheel dist_wheels --python-versions 3.12,3.11": "",
    "rocwheel dist_wheels --jax-source-dir buil": "d",
    "rocwheel wheel inspect only": ".whl",
    "rocwheel trust ri": "ghts",
    "rocwheel --store file:///s --family gfx90a promo": "te",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with `build/ci_build` and a wheel, and both names of the program on PATH."""
    folder = tmp_path_factory.mktemp("shell")
    (folder / "only.whl").touch()
    names = [folder / "bin" / name for name in ("rocwheel", "ci_build")]
    for script in (*names, folder / "build" / "ci_build"):
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT}/build/ci_build" "$@"\n')
        script.chmod(0o755)
    return folder


def environment(place):
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    return {**os.environ, "HOME": str(place), "PATH": path, "TERM": "dumb", "COLUMNS": "200"}


def code(shell, place):
    done = subprocess.run(
        [place / "bin" / "rocwheel", "completion", shell],
        env=environment(place), capture_output=True, text=True, check=True,
    )  # fmt: skip
    path = place / f"completion.{shell}"
    path.write_text(done.stdout)
    return path


class Terminal:
    """A shell on a terminal of its own, typed into."""

    def __init__(self, shell, place):
        argv = PROMPTING[shell]
        pid, self.descriptor = pty.fork()
        if not pid:
            os.chdir(place)
            os.execvpe(argv[0], argv, environment(place))
        self.until(f"PS1=; source {code(shell, place)}; echo re''ady\n", r"ready\r\n")

    def until(self, typed, pattern):
        os.write(self.descriptor, typed.encode())
        seen, deadline = "", time.monotonic() + 240
        while not re.search(pattern, seen):
            ready, _, _ = select.select([self.descriptor], [], [], deadline - time.monotonic())
            assert ready, f"{typed!r}: {pattern!r} did not come: {seen!r}"
            seen += os.read(self.descriptor, 4096).decode(errors="replace")
        return seen

    def completed(self, typed):
        """The last word of a line after Tab; the line's words are printed instead of run."""
        seen = self.until(f"{typed}\t\x01printf '<%s>' \x05\n", r"(<(?!%)[^<>]*>)+")
        return re.findall(r"<(?!%)([^<>]*)>", seen)[-1].rstrip("/")  # which zsh takes back


@pytest.mark.needs("zsh")
@pytest.mark.parametrize("shell", PROMPTING)
def test_tab_completes_a_line(shell, place):
    terminal = Terminal(shell, place)
    for typed, added in LINES.items():
        assert terminal.completed(typed) == typed.split(" ")[-1] + added, typed
    os.close(terminal.descriptor)
