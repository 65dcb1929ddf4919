"""What a test leaves in its process: found after it, and put right before the next one."""

from __future__ import annotations

import _thread
import builtins
import faulthandler
import os
import resource
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _pytest import reports, runner

from .supervisor import children, command_of, stat_of
from .text import readable

if TYPE_CHECKING:
    from .channel import EventWriter

DUMP_SIGNAL = 62  # a real-time signal that nothing else uses; stacks of all threads on request
RECURSION, USER, IMPORT = "recursion limit", "user", "__import__"
END_SECONDS = 10.0  # for killed processes to disappear
THREAD_SECONDS = 5.0  # for threads to end that Python waits for
TIMERS = (
    (signal.ITIMER_REAL, "an alarm"),
    (signal.ITIMER_VIRTUAL, "a timer of its CPU time"),
    (signal.ITIMER_PROF, "a profiling timer"),
)
KEPT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE)
LIMITS = (
    (resource.RLIMIT_NOFILE, "open files"), (resource.RLIMIT_AS, "memory"),
    (resource.RLIMIT_FSIZE, "file size"), (resource.RLIMIT_CPU, "CPU time"),
)  # fmt: skip

# Tests replace what they like: what is needed here is kept.
_fstat, _getpid, _clock, _threads, _getsignal, _setsignal, _geteuid, _getegid = (
    os.fstat, os.getpid, time.monotonic, threading.enumerate, signal.getsignal, signal.signal,
    os.geteuid, os.getegid,
)  # fmt: skip
_start, _main_thread, _sleep, _exit = (
    _thread.start_new_thread, threading.main_thread, time.sleep, os._exit,
)  # fmt: skip


class Stacks:
    """The file that stacks of all threads are written to, on request or in a crash."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115 - to the end
        self._identity = self._now()
        faulthandler.enable(file=self._file, all_threads=True)
        self.listen()

    def listen(self) -> None:
        """Write them at the signal; whatever handler a test installed for it is replaced."""
        faulthandler.unregister(DUMP_SIGNAL)
        faulthandler.register(DUMP_SIGNAL, file=self._file, all_threads=True, chain=False)

    @property
    def closed(self) -> bool:
        """Return whether a test has closed or replaced its descriptor."""
        return self._now() != self._identity

    def _now(self) -> tuple[int, int]:
        try:
            status = _fstat(self._file.fileno())
        except OSError:
            return (0, 0)
        return (status[1], status[2])


class PytestCore:
    """The parts of pytest that make an outcome of what a test raised, as they were at the start."""

    def __init__(self) -> None:
        owners: dict[Any, tuple[str, ...]] = {
            runner: ("runtestprotocol", "call_and_report", "pytest_runtest_makereport"),
            runner.CallInfo: ("from_call", "__init__"),
            reports.TestReport: ("from_item_and_call", "__init__"),
        }
        self._parts = [
            (owner, name, vars(owner)[name]) for owner, names in owners.items() for name in names
        ]

    def restore(self) -> list[str]:
        """Put back what was replaced; return the names of it."""
        changed = []
        for owner, name, value in self._parts:
            if vars(owner).get(name) is not value:
                setattr(owner, name, value)
                changed.append(f"{owner.__name__.rpartition('.')[2]}.{name}")
        return changed


class Leftovers:
    """What a test leaves behind in its process, put right before the next one runs.

    Processes that the body of a test started are killed; those of fixtures and the helpers of
    `multiprocessing` live on. An alarm is switched off; signal handlers and standard streams that
    the body replaced are put back. Threads cannot be ended: what one of an
    earlier test raises is reported as that, and not as a failure of the test that runs by then.
    """

    def __init__(self, channel: EventWriter, stacks: Stacks) -> None:
        self._channel, self._stacks = channel, stacks
        self._threads: dict[threading.Thread, str] = {}  # those of earlier tests -> the test
        self._test = ""
        self._before: dict[str, Any] = {}
        self._at_call: dict[str, Any] = {}
        self._processes: set[int] = set()
        self._hook = threading.excepthook
        self.left: list[str] = []
        self.spoiled = False  # whether the process is of no more use

    def begin(self, test: str) -> None:
        """Note what there is before a test is set up."""
        self._threads = {thread: self._threads.get(thread, self._test) for thread in _threads()}
        self._test, self.left = test, []
        self._before, self._at_call = _state(), {}
        self._hook = threading.excepthook
        threading.excepthook = self._raised

    def body(self) -> None:
        """Note what fixtures have added before the body of the test runs."""
        self._processes = set(_children())
        self._at_call = _state()

    def end(self) -> None:
        """Put right what the body of the test left."""
        threading.excepthook = self._hook
        if not self._at_call:  # its setup failed
            return
        for timer, name in TIMERS:
            if signal.getitimer(timer)[0]:
                signal.setitimer(timer, 0)
                self.left.append(name)
        faulthandler.cancel_dump_traceback_later()
        if self._stacks.closed:
            self.left.append("closed descriptors that were not its own")
            self.spoiled = True
        if "pytest" not in sys.modules:
            self.left.append("no imported modules")
            self.spoiled = True
        self._restore(_state())
        self._kill()
        if not self.spoiled:
            self._stacks.listen()

    def outlive_threads(self, status: int) -> None:
        """End this process some seconds from now where Python would wait for a test's threads.

        Those of executors end by then: Python asks them to before it waits.
        """

        def end() -> None:
            _sleep(THREAD_SECONDS)
            left = [t for t in _threads() if not t.daemon and t is not _main_thread()]
            if left:
                origin, name = self._threads.get(left[0], self._test), left[0].name
                message = readable(f"thread {name} has no end and is no daemon")
                self._channel.emit("stray", test=origin, message=message)
                _exit(status)

        _start(end, ())

    def _restore(self, after: dict[Any, Any]) -> None:
        """Put back what the body changed and no fixture did."""
        for name, value in after.items():
            expected = self._at_call[name]
            if value in (expected, self._before[name]):
                continue
            if isinstance(name, tuple):
                self.left.append(f"another limit of {name[1]}")
                try:
                    resource.setrlimit(name[0], expected)
                except (OSError, ValueError):  # a hard limit is for ever
                    self.spoiled = True
                continue
            if name == RECURSION:
                sys.setrecursionlimit(expected)
            elif name == IMPORT:
                builtins.__import__ = expected
            elif name == USER:
                self.spoiled = True
            elif isinstance(name, str):
                setattr(sys, name.removeprefix("sys."), expected)
            else:
                if expected is not None:
                    _setsignal(name, expected)
                    self.left.append(f"a handler of {signal.Signals(name).name}")
                continue
            self.left.append(f"another {name}")

    def _kill(self) -> None:
        """End processes the body started, and what those leave to us, their subreaper."""
        until = _clock() + END_SECONDS
        while started := set(_children()) - self._processes - _helpers():
            for pid in started:
                command = command_of(pid)
                if command:
                    self.left.append(f"process {pid}: {command}")
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in started:
                while _clock() < until and stat_of(pid):
                    time.sleep(0.002)
            self._processes |= started
            if _clock() > until:
                return

    def _raised(self, args: threading.ExceptHookArgs) -> None:
        origin = self._threads.get(args.thread) if args.thread else None
        if origin is None or args.thread is None or self._channel.forked:
            self._hook(args)
            return
        name, kind = args.thread.name, args.exc_type.__name__
        self._channel.emit(
            "stray", test=origin,
            message=readable(f"thread {name} raised {kind} during {self._test}: {args.exc_value}"),
        )  # fmt: skip


def _state() -> dict[Any, Any]:
    """Return signal handlers and standard streams of this process."""
    state: dict[Any, Any] = {number: _getsignal(number) for number in KEPT_SIGNALS}
    state["sys.stdout"], state["sys.stderr"] = sys.stdout, sys.stderr
    state[RECURSION], state[USER] = sys.getrecursionlimit(), (_geteuid(), _getegid())
    state[IMPORT] = builtins.__import__
    state |= {limit: resource.getrlimit(limit[0]) for limit in LIMITS}
    return state


def _children() -> list[int]:
    """Return the processes below this one, adopted ones included; cheap without any."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    with suppress(OSError):
        return children(_getpid())
    return []


def _helpers() -> set[int]:
    """Return the processes that multiprocessing keeps for all tests of this process."""
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", 0)
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", 0)
    pids = (getattr(tracker, "_pid", None), getattr(server, "_forkserver_pid", None))
    return {pid for pid in pids if pid}
