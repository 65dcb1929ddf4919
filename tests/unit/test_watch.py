"""What a child prints is taken to the end; a child that does nothing is noticed."""

from __future__ import annotations

import errno
import os
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

    def start(code, **options):
        child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **options)
        children.append(child)
        return child

    yield start
    for child in children:
        with child:
            child.kill()


def test_rest_is_told_once_and_ends_in_an_error(started, monkeypatch):
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.05)
    told = []
    child = started("import time; print(1, flush=True); time.sleep(600)", stdout=subprocess.PIPE)
    assert child.stdout.readline()  # it has started
    monkeypatch.setattr(watch, "_cpu_ticks", lambda _: 7)  # and uses no more CPU time
    with pytest.raises(watch.StuckError):
        watch.wait(
            child, timeout=None, last=lambda: 0.0, quiet=told.append,
            quiet_seconds=0.3, stuck_seconds=1.0,
        )  # fmt: skip
    assert len(told) == 1


def test_who_works_or_prints_does_not_rest(started, monkeypatch):
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.05)
    told, looks = [], iter(range(10**9))
    sleeping = "import time; time.sleep(1)"
    with monkeypatch.context() as patch:
        patch.setattr(watch, "_cpu_ticks", lambda _: next(looks))
        watch.wait(
            started(sleeping), timeout=None, last=lambda: 0.0, quiet=told.append, quiet_seconds=0.05
        )
    talking = started(sleeping)
    watch.wait(talking, timeout=None, last=time.monotonic, quiet=told.append, quiet_seconds=0.05)
    assert told == []


def test_a_process_that_works_has_ever_more_cpu_time(started):
    busy = started("while True: pass")
    before = watch._cpu_ticks(busy.pid)
    end = time.monotonic() + 240
    while watch._cpu_ticks(busy.pid) <= before:
        assert time.monotonic() < end
        time.sleep(0.01)


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


def _no_nap(_seconds):
    raise AssertionError("looked again after a while, instead of being woken")


@pytest.mark.parametrize("told_by", ["the kernel", "nobody"])
def test_the_end_of_a_child_is_seen_when_it_comes(started, monkeypatch, told_by):
    if told_by == "the kernel":
        monkeypatch.setattr(time, "sleep", _no_nap)
    else:  # Linux before 5.3
        monkeypatch.setattr(os, "pidfd_open", lambda _: os.close(-1))
    with pytest.raises(subprocess.TimeoutExpired):
        watch.end_of(started("import time; time.sleep(600)"), 0.01)
    assert watch.end_of(started("raise SystemExit(3)"), 60) == 3
