"""Finds what a test leaves in its process, names it, and undoes it where that is safe."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import atexit
import builtins
import faulthandler
import gc
import os
import resource
import signal
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .channel import readable
from .supervisor import children, command_of, stat_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .channel import EventWriter

DUMP_SIGNAL = 62  # a real-time signal that nothing else uses; stacks of all threads on request
END_SECONDS = 10.0  # for killed processes to disappear
THREAD_SECONDS = 5.0  # for threads to end that Python waits for
NAMED = 3  # environment variables of a change
TIMERS = (
    (signal.ITIMER_REAL, "an alarm"),
    (signal.ITIMER_VIRTUAL, "a timer of its CPU time"),
    (signal.ITIMER_PROF, "a profiling timer"),
)
# Tests replace what they like: what is needed here is kept.
_fstat, _getpid, _clock, _threads, _exit, _setsignal = (
    os.fstat, os.getpid, time.monotonic, threading.enumerate, os._exit, signal.signal,
)  # fmt: skip
_start, _main_thread, _sleep, _set_umask = (
    _thread.start_new_thread, threading.main_thread, time.sleep, os.umask,
)  # fmt: skip
_getcwd, _environ = os.getcwd, os.environ  # noqa: TID251 - the test's, not ours
_registered = atexit._ncallbacks  # noqa: SLF001 - how many functions run at the process's end


class Stacks:
    """The file that stacks of all threads are written to, on request or in a crash."""

    def __init__(self, path: str) -> None:
        self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115 - to the end
        self._identity = self._now()
        faulthandler.enable(file=self._file, all_threads=True)
        self.listen()

    def listen(self) -> None:
        """Write them at the signal; a test's own handler for it is replaced."""
        faulthandler.unregister(DUMP_SIGNAL)
        faulthandler.register(DUMP_SIGNAL, file=self._file, all_threads=True, chain=False)

    @property
    def closed(self) -> bool:
        return self._now() != self._identity

    def _now(self) -> tuple[int, int]:
        try:
            status = _fstat(self._file.fileno())
        except OSError:
            return (0, 0)
        return (status[1], status[2])


# --- the state of a process: what is read around each body, and how it is put back ----------------


def _cwd() -> str:
    try:
        return _getcwd()
    except OSError:  # a folder that is gone
        return ""


def _umask() -> int:
    mask = _set_umask(0o077)
    _set_umask(mask)
    return mask


def _variables() -> dict[bytes, bytes]:
    variables = dict(_environ._data)  # type: ignore[attr-defined]  # noqa: SLF001 - undecoded
    variables.pop(b"PYTEST_CURRENT_TEST", None)
    return variables


def _put_variables(before: Mapping[bytes, bytes]) -> None:
    """Put back variables that were removed or changed; a library may need those that it added."""
    for name, value in before.items():
        _environ[os.fsdecode(name)] = os.fsdecode(value)


def _fill(target: list[Any]) -> Callable[[list[Any]], None]:
    """Return a function that puts back the lost entries of a list; added ones stay."""

    def fill(before: list[Any]) -> None:
        target[:] = [*before, *(item for item in target if item not in before)]

    return fill


def _limit(number: int) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return partial(resource.getrlimit, number), partial(resource.setrlimit, number)


def _handler(number: int) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Return how a signal's handler is read and put back; one of C is left as it is.

    `signal` makes an enum of each answer, which takes five times as long.
    """
    return partial(
        _signal.getsignal, number
    ), lambda old: old is not None and _setsignal(number, old)


def _attribute(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    return lambda: getattr(owner, name, None), lambda value: setattr(owner, name, value)


STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], Any] | None]] = {
    "another sys.stdout": _attribute(sys, "stdout"),
    "another sys.stderr": _attribute(sys, "stderr"),
    "another __import__": _attribute(builtins, "__import__"),
    "another recursion limit": (sys.getrecursionlimit, sys.setrecursionlimit),
    "another user": (os.geteuid, None),
    "another group": (os.getegid, None),
    "another working directory": (_cwd, os.chdir),
    "another environment": (_variables, _put_variables),
    "another signal mask": (
        partial(_signal.pthread_sigmask, signal.SIG_BLOCK, ()),
        partial(signal.pthread_sigmask, signal.SIG_SETMASK),
    ),
    "another umask": (_umask, _set_umask),
    "another sys.path": (partial(list, sys.path), _fill(sys.path)),
    "other import hooks": (partial(list, sys.meta_path), _fill(sys.meta_path)),
    "other CPUs": (partial(os.sched_getaffinity, 0), partial(os.sched_setaffinity, 0)),
    "another garbage collection": (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    **{
        f"a handler of {number.name}": _handler(number)
        for number in (
            signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE,
        )
    },
    "another limit of open files": _limit(resource.RLIMIT_NOFILE),
    "another limit of memory": _limit(resource.RLIMIT_AS),
    "another limit of file size": _limit(resource.RLIMIT_FSIZE),
    "another limit of CPU time": _limit(resource.RLIMIT_CPU),
}  # fmt: skip
_READERS = tuple((name, read) for name, (read, _) in STATE.items())
JAX = (
    "jax_enable_x64", "jax_default_device", "jax_default_dtype_bits",
    "jax_default_matmul_precision", "jax_platforms",
)  # fmt: skip


def _state() -> dict[str, Any]:
    """Return the state that tests share in this process, by the name for a change of it."""
    state = {name: read() for name, read in _READERS}
    config = getattr(sys.modules.get("jax"), "config", None)
    if config is not None:
        state |= {f"another {name}": getattr(config, name, None) for name in JAX}
    return state


class Leftovers:
    """What a test leaves behind in its process, undone before the next one runs.

    Processes that the body of a test started are killed; those of fixtures and the helpers of
    `multiprocessing` live on. An alarm is switched off, and changes of `STATE` by the body alone
    are put back. Threads cannot be ended: an exception in one is reported as that, and not as a
    failure of the test that runs by then.
    """

    def __init__(self, channel: EventWriter, stacks: Stacks) -> None:
        self._channel, self._stacks = channel, stacks
        self._threads: dict[threading.Thread, str] = {}  # those of earlier tests -> the test
        self._test = ""
        self._before: dict[str, Any] | None = None  # None: not known since a file was imported
        self._at_call: dict[str, Any] = {}
        self._processes: set[int] = set()
        self._pools: dict[Any, Any] = {}
        self._hook = threading.excepthook
        self._functions = 0  # that run at the process's end
        self.exits = False  # whether the test registered one
        self.left: list[str] = []
        self.spoiled = False  # whether the process is of no more use

    def begin(self, test: str) -> None:
        self._threads = {thread: self._threads.get(thread, self._test) for thread in _threads()}
        self._test, self.left, self._at_call = test, [], {}
        self._functions = _registered()
        self._before = self._before or _state()
        self._hook = threading.excepthook
        threading.excepthook = self._raised

    def body(self) -> None:
        """Note what fixtures have added before the body of the test runs."""
        self._processes = set(_children())
        self._pools = _pools()
        self._at_call = _state()

    def collected(self) -> None:
        """Forget the state of before: the import of a file may have changed it."""
        self._before = None

    def end(self) -> None:
        threading.excepthook = self._hook
        self.exits = _registered() > self._functions
        if not self._at_call:  # its setup failed
            self._before = None
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
        self._put_back()
        self._kill()
        if not self.spoiled:
            self._stacks.listen()

    def outlive_threads(self, status: int, bye: Callable[[], None]) -> None:
        """End this process after some seconds if Python would wait for a test's threads.

        Those of executors end by then: Python asks them before it waits.
        """

        def end() -> None:
            _sleep(THREAD_SECONDS)
            left = [t for t in _threads() if not t.daemon and t is not _main_thread()]
            if left:
                origin, name = self._threads.get(left[0], self._test), left[0].name
                message = readable(f"thread {name} does not end and is not a daemon")
                self._channel.emit("stray", test=origin, message=message)
                bye()
                _exit(status)

        _start(end, ())

    def _put_back(self) -> None:
        """Name what the body alone changed, and put it back."""
        before, after, at_call = self._before or {}, _state(), self._at_call
        self._before = after
        if after == at_call:
            return
        for name, value in after.items():
            expected = at_call.get(name, value)  # of a JAX that the body imported nothing is known
            if value in (expected, before.get(name, expected)):
                continue
            self._before = None
            self.left.append(f"{name}{_detail(expected, value)}")
            _, put = STATE.get(name, (None, partial(_set_jax, name.rpartition(" ")[2])))
            try:
                if put:
                    put(expected)
            except (OSError, ValueError, TypeError):  # a hard limit is for ever
                put = None
            self.spoiled = self.spoiled or put is None

    def _kill(self) -> None:
        """End processes the body started, and what those leave to us, their subreaper."""
        for key, end in _pools().items():  # it would wait for ever for a worker that was killed
            if key not in self._pools:
                self.left.append("a pool of processes")
                end()
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


def _detail(expected: Any, value: Any) -> str:
    """Name the changed variables of an environment, and short values."""
    if isinstance(expected, dict) and isinstance(value, dict):
        both = [name for name in {**expected, **value} if expected.get(name) != value.get(name)]
        names = [os.fsdecode(name) for name in both[:NAMED]]
        return f": {', '.join(names)}{f' and {len(both) - NAMED} more' if both[NAMED:] else ''}"
    return f": {value!r}" if isinstance(value, (str, bool, int)) else ""


def _set_jax(name: str, value: Any) -> None:
    sys.modules["jax"].config.update(name, value)


def _children() -> list[int]:
    """Return the processes below this one, adopted ones included; cheap without any."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    with suppress(OSError):
        return children(_getpid())
    return []


def _pools() -> dict[Any, Any]:
    """Return what ends each pool and manager of multiprocessing, as Python does when it exits."""
    known = getattr(sys.modules.get("multiprocessing.util"), "_finalizer_registry", {})
    names = ("_terminate_pool", "_finalize_manager")
    callbacks = ((key, end, getattr(end, "_callback", None)) for key, end in list(known.items()))
    return {key: end for key, end, call in callbacks if getattr(call, "__name__", "") in names}


def _helpers() -> set[int]:
    """Return the processes that multiprocessing keeps for all tests of this process."""
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", 0)
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", 0)
    pids = (getattr(tracker, "_pid", None), getattr(server, "_forkserver_pid", None))
    return {pid for pid in pids if pid}
