"""Forced interleavings: real operations of the real code, stopped before each storage request.

Every process is a thread whose store asks the conductor before each request. One at a time is let
go, in an order that is given, so that a schedule can be repeated; it may also be killed there, be
answered with an error after its write was carried out, or have its write carried out later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field

from rocwheel.base.errors import StoreError

WRITES = ("create", "replace", "copy", "delete")
REQUESTS = ("info", "read", "stream", "part", "keys", *WRITES)
SECONDS = 60.0  # a step takes milliseconds


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Process:
    """One operation in a thread, and where it stands."""

    name: str
    work: Callable[[ScheduledStore], object]
    store: ScheduledStore | None = None
    thread: threading.Thread | None = None
    waiting: str = ""  # the request it is about to make
    keys: tuple[str, ...] = ()  # what that is about
    verdict: str = ""  # what it is told to do: go, kill, lost, late
    is_over: bool = False
    was_killed: bool = False
    failure: BaseException | None = None
    result: object = None
    requests: list[str] = field(default_factory=list)


class Conductor:
    """Lets processes go one request at a time."""

    def __init__(self, look: Callable[[Collection[str]], None]) -> None:
        """`look` is called with its keys after each write, while everybody stands still."""
        self._change = threading.Condition()
        self._look = look
        self.processes: list[Process] = []
        self.late: list[tuple[tuple[str, ...], Callable[[], object]]] = []

    def begin(self, name: str, store, work: Callable[[ScheduledStore], object]) -> Process:
        process = Process(name=name, work=work)
        process.store = ScheduledStore(store, self, process)
        process.thread = threading.Thread(target=self._run, args=(process,), daemon=True)
        self.processes.append(process)
        process.thread.start()
        self._stand(process)
        return process

    def go(self, process: Process, verdict: str = "go") -> None:
        """Let a process make its request; return when it stands before the next, or is over."""
        if process.is_over:
            return
        request, changed = process.waiting, process.keys
        with self._change:
            process.requests.append(request)
            process.verdict, process.waiting = verdict, ""
            self._change.notify_all()
        self._stand(process)
        if request.split()[0] in WRITES:
            self._look(changed)

    def finish(self, process: Process) -> None:
        """Let a process go to its end."""
        while not process.is_over:
            self.go(process)

    def kill(self, process: Process) -> None:
        self.go(process, "kill")
        assert process.is_over

    def arrive(self) -> None:
        """Carry out what is late."""
        for changed, write in self.late:
            with suppress(StoreError):  # where its condition holds no more
                write()
            self._look(changed)
        self.late.clear()

    def ask(self, process: Process, request: str, keys: tuple[str, ...]) -> str:
        """Called by a process before a request: what it shall do."""
        with self._change:
            if process.was_killed:
                raise Killed
            process.waiting, process.keys = request, keys
            self._change.notify_all()
            if not self._change.wait_for(lambda: process.verdict, timeout=SECONDS):
                raise AssertionError(f"{process.name}: nobody let it go on from {request}")
            verdict, process.verdict = process.verdict, ""
            if verdict == "kill":
                process.was_killed = True
                raise Killed
            return verdict

    def _run(self, process: Process) -> None:
        try:
            process.result = process.work(process.store)
        except BaseException as exc:  # noqa: BLE001 (the test looks at it)
            process.failure = exc
        with self._change:
            process.is_over = True
            self._change.notify_all()

    def _stand(self, process: Process) -> None:
        with self._change:
            if not self._change.wait_for(
                lambda: process.is_over or process.waiting, timeout=SECONDS
            ):
                raise AssertionError(f"{process.name} does not stand still")


class Counted:
    """A store that counts its requests, and the bytes of wheels that they put."""

    def __init__(self, store) -> None:
        self._store, self._lock, self.asked, self.size = store, threading.Lock(), [], 0

    def __getattr__(self, name: str):
        found = getattr(self._store, name)
        if name not in REQUESTS:
            return found

        def request(*args, **kwargs):
            put = args[1].stat().st_size if name == "create" and args[0].endswith(".whl") else 0
            with self._lock:
                self.asked.append(f"{name} {args[0]}")
                self.size += args[0].size if name == "copy" else put
            return found(*args, **kwargs)

        return request


class ScheduledStore:
    """A store whose requests wait for the conductor; one at a time, as `connections` says."""

    def __init__(self, store, conductor: Conductor, process: Process) -> None:
        self._store, self._conductor, self._process = store, conductor, process
        self.url, self.connections = store.url, 1

    def __getattr__(self, name: str):
        found = getattr(self._store, name)
        if name not in REQUESTS:
            return found

        def request(*args, **kwargs):
            keys = tuple(
                arg if isinstance(arg, str) else arg.key for arg in args[: 1 + (name == "copy")]
            )
            key = keys[0]
            verdict = self._conductor.ask(self._process, f"{name} {key}", keys)
            if verdict == "late" and name in WRITES:
                self._conductor.late.append((keys, lambda: found(*args, **kwargs)))
                raise StoreError(f"{key}: no answer in time", hint="made up")
            answer = found(*args, **kwargs)
            if verdict == "lost" and name in WRITES:
                raise StoreError(f"{key}: the answer was lost", hint="made up")
            return iter(list(answer)) if name == "keys" else answer

        return request
