"""Real child processes: live output, logs, deadlines, and nothing left behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import gone, written

from rocwheel.base.errors import CommandError, HostError
from rocwheel.base.process import Command, HostRunner, base_env

pytestmark = pytest.mark.integration

BUILD = Path(__file__).parents[2] / "build"


def python(code: str, **kwargs) -> Command:
    return Command(argv=(sys.executable, "-u", "-c", code), **kwargs)


def test_output_is_live_complete_and_in_the_log(runner, tmp_path):
    heard = tmp_path / "heard"  # the child says the rest once its first line was passed on
    wait = f"while not os.path.exists({str(heard)!r}): time.sleep(.01)"
    code = (
        f"import os,sys,time\nprint('ä1')\n{wait}\nprint('2', file=sys.stderr)\nprint('3',end='')"
    )
    log = tmp_path / "a.log"
    seen: list[str] = []

    def on_line(line: str) -> None:
        seen.append(line)
        heard.touch()

    done = runner.run(python(code, timeout=300), log=log, on_line=on_line)
    assert seen == ["ä1", "2", "3"]
    assert log.read_text() == "ä1\n2\n3"
    assert (done.returncode, done.output) == (0, "ä1\n2\n3")


def test_with_a_log_only_the_last_lines_are_kept(runner, tmp_path):
    done = runner.run(python("for i in range(999): print(i)"), log=tmp_path / "a.log")
    assert done.output.splitlines() == [str(n) for n in range(959, 999)]


def test_a_failure_shows_status_line_and_tail(runner, tmp_path):
    with pytest.raises(CommandError) as caught:
        runner.run(python("print('boom'); raise SystemExit(3)"), log=tmp_path / "a.log")
    assert "exit status 3" in str(caught.value)
    assert caught.value.detail == "boom"
    assert str(tmp_path / "a.log") in caught.value.hint
    with pytest.raises(CommandError, match="signal 9"):
        runner.run(python("import os; os.kill(os.getpid(), 9)"))
    assert runner.run(python("raise SystemExit(3)"), check=False).returncode == 3


def test_capture_returns_stdout_and_shows_stderr_when_it_fails(runner):
    assert runner.capture(python("import sys; print('o'); print('e', file=sys.stderr)")) == "o\n"
    with pytest.raises(CommandError) as caught:
        runner.capture(python("import sys; sys.exit('why')"))
    assert caught.value.detail == "why"


def test_a_missing_program_and_a_missing_folder_are_named(runner, tmp_path):
    with pytest.raises(HostError, match="no-such-program"):
        runner.run(Command(argv=("no-such-program",)))
    with pytest.raises(HostError, match="nowhere"):
        runner.run(python("", cwd=tmp_path / "nowhere"))
    (tmp_path / "plain").write_text("#!/bin/sh\n")
    with pytest.raises(HostError, match="may not be executed"):
        runner.run(Command(argv=(str(tmp_path / "plain"),)))


def test_a_deadline_ends_the_child_and_its_children(runner, tmp_path):
    pid = tmp_path / "pid"
    code = (
        "import subprocess,sys;"
        "p=subprocess.Popen([sys.executable,'-c','import time; time.sleep(999)']);"
        f"open({str(pid)!r},'w').write(str(p.pid)); p.wait()"
    )
    for seconds in (1, 10, 100):  # until it had the time to begin
        with pytest.raises(CommandError, match=f"no end after {seconds} s"):
            runner.run(python(code, timeout=seconds))
        if pid.exists() and pid.read_text():
            break
    assert gone(int(pid.read_text()))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_even_a_child_that_ignores_it(tmp_path, number):
    pid = tmp_path / "pid"
    child = (
        "import os,signal,time; signal.signal(2,signal.SIG_IGN); signal.signal(15,signal.SIG_IGN);"
        f"open({str(pid)!r},'w').write(str(os.getpid())); time.sleep(999)"
    )
    parent = (
        f"import sys,signal; sys.path.insert(0,{str(BUILD)!r})\n"
        "import rocwheel.base.process as p\n"
        "p.GRACE_SECONDS=(.3,.3)\n"
        "from rocwheel.cli import _interrupt\n"
        "signal.signal(signal.SIGTERM,_interrupt)\n"
        f"p.HostRunner({{}}).run(p.Command(argv=({sys.executable!r},'-c',{child!r})))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent], stderr=subprocess.PIPE, start_new_session=True
    )
    child = int(written(pid))
    process.send_signal(number)
    _, err = process.communicate(timeout=240)
    assert (b"KeyboardInterrupt" if number == signal.SIGINT else b"Terminated") in err
    assert gone(child)


@pytest.mark.parametrize("tty", [False, True])
def test_ctrl_c_is_a_commands_own_business_on_a_terminal_alone(tmp_path, tty):
    """Said to us only, as by a CI: a terminal would say it to both."""
    child = "import os, pathlib, time; pathlib.Path('begun').write_text(str(os.getpid()));"
    child += "t = pathlib.Path('told')\nwhile not t.exists(): time.sleep(0.05)\nraise SystemExit(3)"
    ours = (
        f"import os, sys; sys.path.insert(0, {str(BUILD)!r}); from rocwheel.base.process import *\n"
        "r = HostRunner(base_env(os.environ));"
        f"c = Command(argv=(sys.executable, '-c', {child!r}));"
        f"raise SystemExit(r.interact(c, tty={tty}))"
    )
    asked = subprocess.Popen(
        [sys.executable, "-c", ours], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    begun = written(tmp_path / "begun")
    asked.send_signal(signal.SIGINT)
    if tty:
        (tmp_path / "told").touch()
    _, said = asked.communicate(timeout=120)
    if tty:
        assert asked.returncode == 3
    else:
        assert "KeyboardInterrupt" in said
        assert not Path(f"/proc/{begun}").exists()


def test_a_program_for_the_terminal_that_is_missing_is_one_error(runner):
    with pytest.raises(HostError, match="nowhere: no such program"):
        runner.interact(Command(argv=("nowhere",)))


def test_a_daemon_that_keeps_the_pipe_does_not_hold_us(runner, tmp_path):
    code = (
        "import subprocess,sys;"
        "p=subprocess.Popen([sys.executable,'-c','import time; time.sleep(999)'],start_new_session=True);"
        "print(p.pid)"
    )
    done = runner.run(python(code))
    os.kill(int(done.output), signal.SIGKILL)  # which fails where it has ended by itself


def test_children_see_a_fixed_environment_and_what_the_command_adds(monkeypatch):
    monkeypatch.setenv("ROCM_PATH", "/opt/rocm")
    runner = HostRunner(base_env(os.environ))
    code = (
        "import os; print(os.environ.get('ROCM_PATH'), os.environ.get('CC'), 'PATH' in os.environ)"
    )
    assert runner.capture(python(code, env={"CC": "clang"})) == "None clang True\n"


def test_a_command_prints_as_a_line_that_does_the_same_in_a_shell(tmp_path):
    command = python(
        "import os; print(os.getcwd(), os.environ['A B'[0]])", cwd=tmp_path, env={"A": "x 'y'"}
    )
    shown = subprocess.run(["sh", "-c", str(command)], capture_output=True, text=True, check=True)
    assert shown.stdout == f"{tmp_path} x 'y'\n"


def test_mypy_keeps_host_and_guest_paths_apart(tmp_path):
    file = tmp_path / "mixed.py"
    file.write_text(
        "from pathlib import Path\n"
        "from rocwheel.base.process import GuestPath, Runner\n"
        "def translate(runner: Runner, host: Path, guest: GuestPath) -> None:\n"
        "    runner.host(runner.path(host))\n"
        "    runner.path(guest)\n"
        "    runner.host(host)\n"
        "    guest = host\n"
        "    host = guest\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", f"--cache-dir={tmp_path / 'cache'}", str(file)],
        cwd=tmp_path,
        env={"MYPYPATH": str(BUILD), "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    wrong = [line.split(":")[1] for line in done.stdout.splitlines() if "mixed.py" in line]
    assert wrong == ["5", "6", "7", "8"], done.stdout + done.stderr


# What a child prints is taken to the end.


MANY = "for _ in range(20000): print('x' * 99)"  # two megabytes: no pipe holds them


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
