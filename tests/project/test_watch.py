"""What a child prints is taken to the end."""

from __future__ import annotations

import errno
import sys

import pytest

from rocwheel.base.errors import HostError
from rocwheel.base.process import Command

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
