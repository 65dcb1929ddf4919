"""What a child prints is taken to the end; a child that does nothing is noticed."""

from __future__ import annotations

import errno
import subprocess
import sys
import time

import pytest

from rocwheel import watch
from rocwheel.errors import CommandError, HostError
from rocwheel.process import Command, HostRunner, base_env

MANY = "for _ in range(20000): print('x' * 99)"  # two megabytes: no pipe holds them


def python(code: str, **kwargs) -> Command:
    return Command(argv=(sys.executable, "-u", "-c", code), **kwargs)


def test_a_listener_that_fails_does_not_hang_the_child(runner):
    heard = []

    def on_line(line):
        heard.append(line)
        if len(heard) == 3:
            raise BrokenPipeError(errno.EPIPE, "the terminal went away")

    with pytest.raises(HostError, match="the terminal went away"):
        runner.run(python(MANY), on_line=on_line)
    assert len(heard) == 3, "it is not tried again"


def test_a_full_disk_does_not_hang_the_child(runner, tmp_path):
    log = tmp_path / "full.log"
    log.symlink_to("/dev/full")
    with pytest.raises(HostError, match=r"full\.log: No space left on device") as caught:
        runner.run(python(MANY + "\nprint('end')"), log=log)
    assert "free some space" in caught.value.hint


def test_a_bug_in_a_listener_stays_a_bug(runner):
    def on_line(_line):
        raise KeyError("oops")

    with pytest.raises(KeyError):
        runner.run(python("print(1)"), on_line=on_line)


@pytest.fixture
def started():
    children = []

    def start(code):
        child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()


def test_rest_is_told_once_and_ends_in_an_error(started, monkeypatch):
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.05)
    told = []
    child = started("import time; time.sleep(60)")
    time.sleep(0.5)  # it has started: from now on it uses no CPU time
    with pytest.raises(watch.StuckError):
        watch.wait(
            child, timeout=None, last=lambda: 0.0, quiet=told.append,
            quiet_seconds=0.3, stuck_seconds=1.0,
        )  # fmt: skip
    assert len(told) == 1


def test_who_works_or_prints_does_not_rest(started, monkeypatch):
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.05)
    told = []
    busy = started("import time\nend = time.time() + 1.5\nwhile time.time() < end: pass")
    watch.wait(busy, timeout=None, last=lambda: 0.0, quiet=told.append, quiet_seconds=0.8)
    talking = started("import time; time.sleep(1.5)")
    watch.wait(talking, timeout=None, last=time.monotonic, quiet=told.append, quiet_seconds=0.5)
    assert told == []


def test_a_runner_says_which_command_rests(monkeypatch):
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(watch.wait, "__kwdefaults__", {"quiet_seconds": 0.2, "stuck_seconds": 1.0})
    told = []
    runner = HostRunner(base_env({"PATH": "/usr/bin:/bin"}), tell=told.append)
    with pytest.raises(CommandError, match="no end after"):
        runner.run(python("import time; time.sleep(60)"))
    assert "no output and no CPU time" in told[0]
    assert sys.executable in told[0]


def test_processes_that_end_while_they_are_counted_do_no_harm(started):
    """Looking for a pattern below /proc raises ESRCH when one ends in between."""
    busy = "import subprocess, sys\nwhile True: subprocess.run(['/bin/true'])"
    children = [started(busy) for _ in range(2)]
    end = time.monotonic() + 2
    while time.monotonic() < end:
        for child in children:
            assert watch._cpu_ticks(child.pid) >= 0
