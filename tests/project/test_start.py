"""The executable as a process: help without imports, errors of two lines, completion, a full disk."""

from __future__ import annotations

import os
import resource
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support import wheelset
from support.night import World
from support.wheelset import Shop

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def run(*arguments, **env):
    return subprocess.run(
        [sys.executable, str(ROOT / "build" / "ci_build"), *arguments],
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_debug_shows_the_traceback():
    done = run("--debug", "dist_wheels", "--therock-path=x", "--python-versions=3.99")
    assert "Traceback" in done.stderr
    assert done.returncode == 3


def test_ctrl_c_while_the_program_is_imported_is_two_lines(tmp_path):
    stand_in = "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(30)\n"
    (tmp_path / "click.py").write_text(stand_in)
    done = run("--help", PYTHONPATH=str(tmp_path))
    assert done.returncode == 130
    assert done.stderr.splitlines() == [
        "error: interrupted", "hint:  run the same command again",
    ]  # fmt: skip


@pytest.mark.parametrize("mebibytes", [23, 26, 28.75, 29, 30, 31])
def test_too_little_memory_is_two_lines_wherever_it_ends(mebibytes):
    most = int(mebibytes * 2**20)
    done = subprocess.run(
        [sys.executable, ROOT / "build" / "ci_build", "status", "--store=file:///", "--family=gfx90a"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)),
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 8, done.stderr
    assert done.stderr.splitlines()[-2:] == [
        "error: not enough memory",
        "hint:  raise the limits of this shell: ulimit -v, ulimit -u",
    ]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("wheel", "inspect", "closed.whl"),
        ("status", "--store=file:///", "--family=gfx90a", "--family-file=closed.whl"),
        ("trust", "rights", "--channel=dev", "--role=runner", "--channels-file=closed.whl"),
        ("compat", "--ci-dir=closed"),
    ],
)
def test_what_may_not_be_read_asks_for_its_permissions(words, tmp_path):
    """Root may read everything: without the two capabilities it is a person like any other."""
    (tmp_path / "closed.whl").touch(0o000)
    (tmp_path / "closed").mkdir(0o000)
    lowered = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") * (os.geteuid() == 0)
    done = subprocess.run(
        [*lowered, sys.executable, ROOT / "build" / "ci_build", *words],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode in {2, 3, 8}, done.stderr
    assert "ermission" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def tab(*words):
    env = {"COMP_WORDS": shlex.join(("rocwheel", *words)), "COMP_CWORD": str(len(words))}
    done = run(_ROCWHEEL_COMPLETE="zsh_complete", **env)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()[1::3]  # type, value, help


def test_completion_offers_a_list_without_what_is_in_it():
    assert "3.12,3.13" in tab("dist_wheels", "--python-versions", "3.12,3.1")
    assert "3.12,3.12" not in tab("dist_wheels", "--python-versions", "3.12,3.1")


def test_completion_knows_the_sets_of_a_store(tmp_path, console):
    shop = Shop((tmp_path / "store").as_uri(), console)
    sha = wheelset.make_set(tmp_path / "set").sha256
    shop.stage(tmp_path / "set")
    line = (f"--store={shop.store.url}", f"--family={wheelset.FAMILY.name}")
    for command in ("promote", "yank", "rollback", "gate"):
        assert sha[:12] in tab(command, *line, "--manifest", ""), command
    assert tab("promote", *line, "--manifest", "x") == ["x"]  # files
    assert tab("promote", "--store=file:///nowhere/x", line[1], "--manifest", "") == [""]


def test_completion_knows_nights_and_cells(tmp_path):
    world = World(tmp_path, (tmp_path / "store").as_uri())
    assert world.plan("2026-05-01").code == 0
    assert tab("nightly", "retry", *world.target, "") == ["2026-05-01"]
    cells = tab("nightly", "drop", *world.target, "2026-05-01", "build.")
    assert cells
    assert all(name.startswith("build.") for name in cells)


def test_completion_of_a_line_that_is_wrong_says_nothing():
    assert tab("no_such_command", "--fam") == ["--family", "--family-file"]
    assert tab("status", "--channels-file", "/nowhere", "--channel", "") == []


def test_an_old_python_gets_one_clear_answer(tmp_path):
    script = (ROOT / "build" / "ci_build").read_text()
    old = script.replace("sys.version_info < OLDEST", "(3, 9) < OLDEST")
    path = tmp_path / "ci_build"
    path.write_text(old)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 8
    assert "is too old for rocwheel" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_the_executable_never_starts_itself_twice(tmp_path):
    """An environment that lacks something although it was just made is said, not made again."""
    done = subprocess.run(
        [sys.executable, "-S", str(ROOT / "build" / "ci_build"), "--version"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "ROCWHEEL_ENVIRONMENT_MADE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 8
    assert "lacks " in done.stderr
    assert "PYTHONPATH" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("--json", "gate", "list"), 8),
        (("gate", "list"), 8),
        (("--version",), 8),
        (("--json", "nosuch"), 2),
        (("wheel", "inspect", "--json", "missing.whl"), 3),
    ],
)
def test_a_full_stdout_is_an_error_of_two_lines(arguments, status):
    program = [sys.executable, ROOT / "build" / "ci_build", *arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            program, stdout=full, stderr=subprocess.PIPE, text=True, check=False, timeout=240
        )
    assert (done.returncode, len(done.stderr.splitlines())) == (status, 2), done.stderr


def python(code, *arguments, input="", **env):  # noqa: A002
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], input=input, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'build'}:{ROOT}", **env}, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# The least of several starts of each program that a line of stdin names.
SECONDS = """
import os, shlex, subprocess, sys
def seconds(*words):
    def once():
        before = os.times()
        subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = os.times()
        return after[2] + after[3] - before[2] - before[3]
    return min(once() for _ in range(5))
for line in sys.stdin:
    print(seconds(sys.executable, *shlex.split(line)))
"""
HELP = ("--help", "dist_wheels --help", "gate --help", "nightly --help", "status --help")
LOOK = (
    "doctor cache list",
    "compat",
    "status --store=file:/// --family=gfx90a",
    "gate list",
    "--version",
)


def test_help_takes_three_times_as_long_as_click_and_a_look_six_times(tmp_path):
    """Of the processor, as a busy machine takes longer; 0.4 s are allowed in any case."""
    program = shlex.quote(str(ROOT / "build" / "ci_build"))
    lines = ["-c 'import click'", *(f"{program} {line}" for line in (*HELP, *LOOK))]
    said = python(SECONDS, input="\n".join(lines), XDG_CACHE_HOME=str(tmp_path)).split()
    of_click, *ours = map(float, said)
    for most, line, seconds in zip(
        [3] * len(HELP) + [6] * len(LOOK), (*HELP, *LOOK), ours, strict=True
    ):
        assert seconds <= max(most * of_click, 0.4), line
