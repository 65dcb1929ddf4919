"""One worker process as the engine sees it: two pipes, a log, a file of stacks, and its end."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from rocwheel.process import Command

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Collection, Mapping
    from typing import IO

    from rocwheel.gate.suite.suites import Library

WORKER: Final = "gate/engine/worker.py"
OUTPUT_LIMIT: Final = 64 << 10  # bytes kept of what one test printed


class Starter(Protocol):
    """Starts a process and returns at once (`rocwheel.process.HostRunner` does)."""

    def start(
        self, command: Command, /, *, output: IO[bytes], pass_fds: Collection[int] = ()
    ) -> subprocess.Popen[bytes]: ...


@dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """What every worker of a run has in common."""

    python: Path  # of the tested environment
    root: Path  # pytest's root directory, and the working directory
    arguments: tuple[str, ...]  # further ones for pytest
    env: Mapping[str, str]
    watch: tuple[str, ...] = ()  # modules whose file is reported at the end
    libraries: tuple[Library, ...] = ()  # to be seen at work
    trace: bool = False  # whether they write traces
    logs: Path


class Child:
    """A started worker."""

    def __init__(
        self, spec: WorkerSpec, starter: Starter, *, name: str, env: Mapping[str, str]
    ) -> None:
        """Start it; `name` names its log. Raises HostError when the interpreter is missing."""
        self.log = spec.logs / f"{name}.log"
        self.stacks = spec.logs / f"{name}.stacks"
        for stale in (self.log, self.stacks):  # of an earlier run with the same output
            stale.unlink(missing_ok=True)
        self.collected: set[str] = set()
        libraries, tracing = _watched(spec, name)
        commands, self._commands = os.pipe()
        self._events, events = os.pipe()
        os.set_blocking(self._events, False)
        settings = {
            "parent": os.getpid(),
            "commands": commands,
            "events": events,
            "stacks": str(self.stacks),
            "pytest": [f"--rootdir={spec.root}", *spec.arguments],
            "watch": list(spec.watch),
            "libraries": libraries,
        }
        # Where the package is a zip, nothing works: rocwheel is never installed as one.
        worker = Path(str(files("rocwheel").joinpath(WORKER)))
        command = Command(
            argv=(str(spec.python), "-u", str(worker), json.dumps(settings)),
            cwd=spec.root,
            env={**spec.env, **tracing, **env},
        )
        try:
            with self.log.open("ab") as output:
                self.process = starter.start(command, output=output, pass_fds=(commands, events))
        finally:
            os.close(commands)
            os.close(events)
        self._pending = b""
        try:
            self._pidfd: int | None = os.pidfd_open(self.process.pid)
        except OSError:  # a kernel without it: the end is seen a little later
            self._pidfd = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What becomes readable when the worker says something, or ends."""
        return (self._events,) if self._pidfd is None else (self._events, self._pidfd)

    def send(self, **command: str | None) -> None:
        with suppress(BrokenPipeError):  # its death is noticed by itself
            os.write(self._commands, json.dumps(command).encode() + b"\n")

    def read(self) -> list[dict[str, Any]]:
        """Return the events that have arrived since the last call."""
        with suppress(BlockingIOError):
            while chunk := os.read(self._events, 1 << 16):
                self._pending += chunk
        *lines, self._pending = self._pending.split(b"\n")
        return [json.loads(line) for line in lines]

    def output(self, start: int, end: int | None = None) -> str:
        """Return what was printed between two offsets of the log; of much, the end."""
        return _part(self.log, start, end)

    def stack(self) -> str:
        """Return what the interpreter wrote about its threads, on request or in a crash."""
        return _part(self.stacks, 0, None)

    def dump(self) -> None:
        """Ask for the stacks of all threads; works while the process is stuck in C."""
        with suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGUSR1)

    def kill(self, killpg: Callable[[int, int], None]) -> None:
        """Kill the process and everything it started."""
        with suppress(ProcessLookupError):
            killpg(self.process.pid, signal.SIGKILL)

    def ended(self) -> int | None:
        """Return the exit status, negative for a signal; None while it lives."""
        return self.process.poll()

    def close(self) -> None:
        os.close(self._commands)
        for descriptor in self.descriptors:
            os.close(descriptor)


def _watched(spec: WorkerSpec, name: str) -> tuple[dict[str, dict[str, list[str]]], dict[str, str]]:
    """How a worker sees libraries, and the environment that makes them write traces."""
    table: dict[str, dict[str, list[str]]] = {}
    env: dict[str, str] = {}
    for library in spec.libraries:
        table[library.name] = {"mapped": list(library.mapped)}
        if spec.trace and library.trace:
            file = str(spec.logs / f"{name}-{library.name}.trace")
            table[library.name]["traces"] = [file]
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


def _part(path: Path, start: int, end: int | None) -> str:
    try:
        with path.open("rb") as file:
            last = path.stat().st_size if end is None else end
            file.seek(max(start, last - OUTPUT_LIMIT))
            return file.read(max(0, last - file.tell())).decode(errors="replace")
    except OSError:
        return ""
