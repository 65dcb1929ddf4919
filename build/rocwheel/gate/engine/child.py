"""One worker process as the engine sees it: pipes, a log, a file of stacks, and its end.

`worker/supervisor.py` runs between the two; when it ends, nothing of the worker is left. No call
here blocks: messages that a stopped worker does not read wait in a buffer.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import tempfile
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rocwheel.base import files
from rocwheel.base.process import Command
from rocwheel.base.values import Plain
from rocwheel.gate.engine import protocol
from rocwheel.gate.engine.protocol import BrokenProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rocwheel.base.process import HostRunner
    from rocwheel.gate.engine.protocol import Event
    from rocwheel.gate.suite.suites import Library

WORKER: Final = "gate/engine/worker/__main__.py"
SUPERVISOR: Final = "gate/engine/worker/supervisor.py"
DUMP_SIGNAL: Final = 62  # as in the worker
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
OUTPUT_HEAD, OUTPUT_TAIL = 16 << 10, 48 << 10  # bytes kept of what one test printed
LOG_LIMIT: Final = 64 << 20  # bytes a process's log may take on disk
LOG_HEAD, LOG_TAIL = 1 << 20, 8 << 20  # kept of a longer one
PUNCH_HOLE: Final = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, fallocate(2)


class WorkerSpec(Plain, frozen=True, kw_only=True):
    python: Path  # of the tested environment
    root: Path  # pytest's root directory, and the working directory
    arguments: tuple[str, ...]  # further ones for pytest
    env: Mapping[str, str]
    watch: tuple[str, ...] = ()  # modules whose file is reported at the end
    libraries: tuple[Library, ...] = ()  # to be seen at work
    trace: bool = False  # whether they write traces
    modules: Path | None = None  # folder of modules that the installed wheels lack
    locks: tuple[int, ...] = ()  # descriptors of the devices' locks, held while a process lives
    logs: Path


class _Written:
    """A file that a worker writes and we read, by its descriptor."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)  # of an earlier run with the same output
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def part(self, start: int, end: int | None) -> str:
        """Return what was written between two offsets; if that is long, only its two ends."""
        try:
            data = files.ends(self._descriptor, OUTPUT_HEAD, OUTPUT_TAIL, start=start, end=end)
        except OSError:
            return ""
        return protocol.printable(data.decode(errors="replace"))

    def trim(self) -> None:
        """Cut the middle out of a file that is too long; offsets stay as they are."""
        try:
            status = os.fstat(self._descriptor)
            if status.st_blocks * 512 > LOG_LIMIT:
                ctypes.CDLL(None).fallocate(
                    self._descriptor, PUNCH_HOLE, ctypes.c_long(LOG_HEAD),
                    ctypes.c_long(status.st_size - LOG_HEAD - LOG_TAIL),
                )  # fmt: skip
        except (OSError, AttributeError):  # a file system without holes, or another C library
            return

    def close(self) -> None:
        """Write it under its name, replacing any file there; if it is long, only its two ends."""
        own = os.fstat(self._descriptor)
        size = own.st_size
        try:
            same = os.path.samestat(own, self._path.lstat())
        except OSError:
            same = False
        if size > LOG_LIMIT or not same:
            tail = LOG_TAIL if size > LOG_LIMIT else size
            with suppress(OSError):  # a disk that is full: what it printed is in the results
                data = files.ends(self._descriptor, LOG_HEAD, tail)
                self._path.parent.mkdir(parents=True, exist_ok=True)
                files.remove(self._path)
                files.write(self._path, data)
        os.close(self._descriptor)


class Child:
    def __init__(
        self,
        spec: WorkerSpec,
        starter: HostRunner,
        *,
        name: str,
        env: Mapping[str, str],
        cpus: range = range(0),
    ) -> None:
        """Start it; `name` names its log. Raises HostError when the interpreter is missing."""
        self.log = spec.logs / f"{name}.log"
        self.stacks = spec.logs / f"{name}.stacks"
        # read by these descriptors alone: a test may put anything where the names are
        self._log, self._stacks = (_Written(path) for path in (self.log, self.stacks))
        self.collected: set[str] = set()
        self.left: tuple[str, ...] = ()  # processes the supervisor had to end
        libraries, tracing = _watched(spec, name)
        commands, self._commands = os.pipe()
        self._events, events = os.pipe()
        self._lifeline: int | None
        lifeline, self._lifeline = os.pipe()
        self._status, status = os.pipe()
        for descriptor in (self._events, self._status, self._commands):
            os.set_blocking(descriptor, False)
        self._scratch = tempfile.mkdtemp(prefix="gate-")
        settings = {
            "commands": commands,
            "events": events,
            "stacks": str(self.stacks),
            "pytest": [f"--rootdir={spec.root}", f"--confcutdir={spec.root}", *spec.arguments],
            "watch": list(spec.watch),
            "libraries": libraries,
            "modules": str(spec.modules or ""),
        }
        # Where the package is a zip, nothing works: rocwheel is never installed as one.
        package = resources.files("rocwheel")
        worker, supervisor = (str(package.joinpath(name)) for name in (WORKER, SUPERVISOR))
        own = {
            "argv": [str(spec.python), "-u", worker, json.dumps(settings)],
            "lifeline": lifeline,
            "status": status,
            "worker": [commands, events],
            "own": [lifeline, status, *spec.locks],
            "scratch": self._scratch,
            "cpus": list(cpus),
        }
        command = Command(
            argv=(str(spec.python), "-I", "-S", supervisor, json.dumps(own)),
            cwd=spec.root,
            # what runs is pytest and the suite's own, not plugins that happen to be installed
            env={
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "TMPDIR": self._scratch,
                **spec.env,
                **tracing,
                **env,
            },
        )
        theirs = (commands, events, lifeline, status)
        try:
            with self.log.open("ab") as output:
                self.process = starter.start(
                    command, output=output, pass_fds=(*theirs, *spec.locks)
                )
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._unread, self._unsent = b"", b""
        self._pid: int | None = None
        self._exit_status: int | None = None
        try:
            self._pidfd: int | None = os.pidfd_open(self.process.pid)
        except OSError:  # a kernel without it: the end is seen a little later
            self._pidfd = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors that become readable when the worker sends something, or ends."""
        return (self._events,) if self._pidfd is None else (self._events, self._pidfd)

    def send(self, **command: Any) -> None:
        self._unsent += json.dumps(command).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        with suppress(BlockingIOError, BrokenPipeError):  # its death is noticed by itself
            while self._unsent:
                self._unsent = self._unsent[os.write(self._commands, self._unsent) :]

    def read(self) -> Iterator[Event]:
        """Return the events that have arrived. Raises BrokenProtocolError at the first bad one."""
        chunks = [self._unread]
        with suppress(BlockingIOError):
            while chunk := os.read(self._events, 1 << 16):
                chunks.append(chunk)
        *lines, self._unread = b"".join(chunks).split(b"\n")
        for line in lines:
            yield protocol.parse(line)
        if len(self._unread) > protocol.LINE_LIMIT:
            raise BrokenProtocolError(f"wrote {len(self._unread)} bytes that are not a message")

    def output(self, start: int, end: int | None = None) -> str:
        return self._log.part(start, end)

    def stack(self) -> str:
        return self._stacks.part(0, None)

    def dump(self) -> None:
        """Ask for the stacks of all threads; works while the process is stuck in C."""
        if self._worker:
            with suppress(ProcessLookupError):
                os.kill(self._worker, DUMP_SIGNAL)

    def kill(self, killpg: Callable[[int, int], None]) -> None:
        """Kill the worker; its supervisor ends what it started."""
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
        if self._worker:
            with suppress(ProcessLookupError):
                killpg(self._worker, signal.SIGKILL)
        elif self._lifeline is not None:
            os.close(self._lifeline)
            self._lifeline = None

    def ended(self) -> int | None:
        """Return the worker's exit status, negative for a signal; None while anything lives."""
        own = self.process.poll()
        if own is None:
            return None
        self._read_status()
        if self._exit_status is None:  # the supervisor was killed, and the worker with it
            if self._worker:
                with suppress(ProcessLookupError):
                    os.killpg(self._worker, signal.SIGKILL)
            return own or -signal.SIGKILL
        return self._exit_status

    @property
    def orphaned(self) -> bool:
        """Return whether its supervisor was killed, so that this process must clean up."""
        return self.process.poll() is not None and self._exit_status is None

    def tend(self) -> None:
        """Limit the log's size, and wake the supervisor if a test has stopped it."""
        self._log.trim()
        with suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)

    def memory(self) -> int:
        """Return how many bytes of memory the worker holds, proc(5); 0 where it is unknown."""
        try:
            return int(Path(f"/proc/{self._worker}/statm").read_bytes().split()[1]) * PAGE
        except (OSError, IndexError):  # it has not started, or has ended
            return 0

    def close(self) -> None:
        for descriptor in (self._lifeline, self._commands, self._status, *self.descriptors):
            if descriptor is not None:
                os.close(descriptor)
        self._log.close()
        self._stacks.close()
        with suppress(OSError):  # a process that cannot be killed may write there still
            files.remove(Path(self._scratch))

    @property
    def _worker(self) -> int | None:
        self._read_status()
        return self._pid

    def _read_status(self) -> None:
        with suppress(BlockingIOError):
            for line in os.read(self._status, 1 << 16).splitlines():
                said = json.loads(line)
                self._pid = said.get("pid", self._pid)
                self._exit_status = said.get("status", self._exit_status)
                self.left = tuple(map(protocol.one_line, said.get("left", self.left)))


def _watched(spec: WorkerSpec, name: str) -> tuple[dict[str, dict[str, list[str]]], dict[str, str]]:
    """Return how a worker sees libraries, and the environment that makes them write traces."""
    table: dict[str, dict[str, list[str]]] = {}
    env: dict[str, str] = {}
    for library in spec.libraries:
        table[library.name] = {"mapped": list(library.mapped)}
        if spec.trace and library.trace:
            file = str(spec.logs / f"{name}-{library.name}.trace")
            seen = {"printed": [library.printed]} if library.printed else {"traces": [file]}
            table[library.name] |= seen
            env |= {key: text.replace("{file}", file) for key, text in library.trace.items()}
    return table, env


def describe(status: int) -> str:
    """Say how a process ended: `exit status 3`, `signal 11 (SIGSEGV)`."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"
