"""The one module that starts processes.

A process to start is a value (`Command`: argv, working directory, environment additions), shown
as a line one can paste into a shell and run by a `Runner`. There is no shell in between. Output
streams live, into a log file and to a callback; a failure carries its last lines. When a run ends
early (Ctrl-C, SIGTERM, a deadline, a bug), the child's whole process group is ended first: SIGINT,
then SIGTERM, then SIGKILL.
"""

from __future__ import annotations

import codecs
import os
import shlex
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from io import RawIOBase
from pathlib import Path, PurePath, PurePosixPath
from typing import IO, Any, Final, NewType, Protocol

from rocwheel.base.errors import CommandError, HostError, Terminated

# A path as commands see it where they run. A plain `Path` is one of this machine: mypy lets
# neither stand for the other, and only a `Runner` turns one into the other.
GuestPath = NewType("GuestPath", PurePosixPath)


def guest(text: str) -> GuestPath:
    return GuestPath(PurePosixPath(text))


TAIL_LINES: Final = 40
CAPTURE_SECONDS: Final = 1800.0  # for a short command that says no other
GRACE_SECONDS: Final = (10.0, 5.0)  # after SIGINT, after SIGTERM

PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
# What a child may see of the caller's environment; everything else is given explicitly, so that
# two machines run the same build. Proxies, CA bundles and ssh's agent are how some networks work.
PASSED_ENV: Final = (
    "HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SSL_CERT_DIR", "SSL_CERT_FILE", "TERM", "TMPDIR",
    "TZ", "USER", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE",
    "GIT_SSL_CAINFO", "GIT_SSH", "GIT_SSH_COMMAND", "SSH_AUTH_SOCK", "PYENV_ROOT", *PROXIES,
    *(name.upper() for name in PROXIES),
)  # fmt: skip
# Programs that take no other's variable for their CA bundle: git-config(1), http.sslCAInfo; pip.
CA_BUNDLES: Final = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
OWN_BUNDLE: Final = ("GIT_SSL_CAINFO", "PIP_CERT")


def base_env(environ: Mapping[str, str]) -> dict[str, str]:
    """Select from `environ` what every child process may see.

    The settings of our own downloads hold for all: the CA bundle is set in each program's own
    variable, and a proxy is spelt in lower case too, the only spelling curl reads
    (https://curl.se/docs/manpage.html#ENVIRONMENT).
    """
    chosen = {
        name: value
        for name, value in environ.items()
        if name in PASSED_ENV or name.startswith(("PIP_", "UV_"))
    }
    for name in PROXIES:
        if value := environ.get(name) or environ.get(name.upper()):
            chosen[name] = value
    if bundle := ca_bundle(environ):
        chosen = {**dict.fromkeys(OWN_BUNDLE, bundle), **chosen}
    return chosen


def ca_bundle(environ: Mapping[str, str]) -> str:
    """Return the file of trusted CA certificates; "" for each program's own."""
    return next(filter(None, (environ.get(name, "") for name in CA_BUNDLES)), "")


@dataclass(frozen=True, kw_only=True)
class Command:
    """One process: an argv, never a shell string; `env` adds to the runner's fixed base."""

    argv: tuple[str, ...]
    cwd: PurePath | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float | None = None  # seconds

    def __str__(self) -> str:
        pairs = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.env.items())]
        line = " ".join([*pairs, shlex.join(self.argv)])
        return f"(cd {shlex.quote(str(self.cwd))} && {line})" if self.cwd else line


@dataclass(frozen=True, kw_only=True)
class Completed:
    """How a process ended: `output` is everything it printed, or its last lines when logged."""

    returncode: int
    output: str


class Runner(Protocol):
    """Where commands run: on this machine, or in a container that it runs."""

    @property
    def isolated(self) -> bool:
        """Return whether commands have process ids of their own, which mean nothing here."""

    def path(self, host: Path, /) -> GuestPath:
        """Return how commands see a path of this machine. Raises HostError when they cannot."""

    def host(self, guest: GuestPath, /) -> Path:
        """Return where what commands call `guest` lies on this machine: the inverse of `path`."""

    def run(
        self,
        command: Command,
        /,
        *,
        log: Path | None = None,
        on_line: Callable[[str], None] | None = None,
        check: bool = True,
    ) -> Completed:
        """Run to the end, stdout and stderr together.

        With `log` the output is appended there and `Completed.output` holds the last lines.
        Raises CommandError when `check` and the status is not 0, or when the command's timeout
        passes; HostError when the program or its working directory does not exist.
        """

    def capture(self, command: Command, /) -> str:
        """Run a short command; return its standard output, raise CommandError if it fails."""

    def interact(self, command: Command, /, *, tty: bool = False) -> int:
        """Run a command with our own standard streams and return its status.

        `tty` says whether they are a terminal, where the command itself receives Ctrl-C. Elsewhere
        Ctrl-C ends it and us, as SIGTERM and SIGHUP always do.
        """


class Pump(threading.Thread):
    """Reads everything a child prints, to the end, even when it cannot be passed on.

    A full disk or a closed terminal must not stop the reading: the child would wait for ever for
    room in its pipe. The first such error is kept in `error`.
    """

    def __init__(
        self,
        stream: IO[bytes],
        *,
        keep: int | None,
        sink: RawIOBase | None,
        on_line: Callable[[str], None] | None,
    ) -> None:
        """`keep` is how many last lines `lines` holds, None for all.

        `sink` has no buffer, so that its end cannot fail too.
        """
        super().__init__(daemon=True)
        self.lines: deque[str] = deque(maxlen=keep)
        self.error: Exception | None = None
        self._stream, self._sink, self._on_line = stream, sink, on_line

    def run(self) -> None:
        """Read line by line as it arrives; a carriage return ends a line too."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pending = ""
        with suppress(ValueError, OSError):  # closed under us: the command is being stopped
            while chunk := os.read(self._stream.fileno(), 1 << 16):
                text = decoder.decode(chunk)
                self._try(self._write, text)
                parts = (pending + text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
                *whole, pending = parts
                for line in whole:
                    self._emit(line)
        if pending:
            self._emit(pending)

    def _emit(self, line: str) -> None:
        self.lines.append(line)
        if self._on_line:
            self._try(self._on_line, line)

    def _write(self, text: str) -> None:
        rest = memoryview(text.encode())
        while self._sink and rest:
            rest = rest[self._sink.write(rest) :]

    def _try(self, action: Callable[[str], None], text: str) -> None:
        if self.error is None:
            try:
                action(text)
            except Exception as exc:  # noqa: BLE001 - raised again by who waits
                self.error = exc


class HostRunner:
    """Runs commands on this machine, each in a process group of its own."""

    isolated = False

    def __init__(self, env: Mapping[str, str]) -> None:
        """`env` is the whole base environment of every command (see `base_env`)."""
        self.environ = dict(env)

    def path(self, host: Path, /) -> GuestPath:
        return GuestPath(PurePosixPath(host))

    def host(self, guest: GuestPath, /) -> Path:
        return Path(guest)

    def run(
        self,
        command: Command,
        /,
        *,
        log: Path | None = None,
        on_line: Callable[[str], None] | None = None,
        check: bool = True,
    ) -> Completed:
        with (
            log.open("ab", buffering=0) if log else nullcontext() as sink,
            self._started(command, output=subprocess.PIPE) as process,
        ):
            keep = TAIL_LINES if log else None
            pump = Pump(process.stdout, keep=keep, sink=sink, on_line=on_line)  # type: ignore[arg-type]
            pump.start()
            returncode = process.wait(command.timeout)
            pump.join(timeout=5.0)  # a daemon the child left behind may keep the pipe open
        done = Completed(returncode=returncode, output="\n".join(pump.lines))
        if isinstance(pump.error, (OSError, ValueError)):
            is_gone = isinstance(pump.error, BrokenPipeError)
            where = log if log and not is_gone else "what it printed"
            why = getattr(pump.error, "strerror", None) or pump.error
            raise HostError(
                f"{where}: {why}, while {command.argv[0]} ran",
                hint="free some space or keep the terminal open, and run the same command again",
            ) from pump.error
        if pump.error is not None:
            raise pump.error
        if check and returncode:
            raise _failure(command, returncode, done.output, log)
        return done

    def capture(self, command: Command, /) -> str:
        pipe = subprocess.PIPE
        with self._started(command, output=pipe, stdout=pipe) as process:
            out, err = process.communicate(timeout=command.timeout or CAPTURE_SECONDS)
        if process.returncode:
            tail = err.decode(errors="replace") or out.decode(errors="replace")
            raise _failure(command, process.returncode, tail.strip(), None)
        return out.decode(errors="replace")

    def start(
        self,
        command: Command,
        /,
        *,
        output: int | IO[bytes],
        pass_fds: Collection[int] = (),
        stdin: int = subprocess.DEVNULL,
        stdout: int | None = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command and return at once; `output`, a file or pipe, takes what it prints.

        With `stdout`, `output` gets only what stderr prints. `pass_fds` keep their numbers. The
        caller ends the process. Raises HostError when the program or its folder does not exist.
        """
        return self._popen(
            command,
            stdin=stdin,
            stdout=output if stdout is None else stdout,
            stderr=subprocess.STDOUT if stdout is None else output,
            start_new_session=True,
            pass_fds=pass_fds,
        )

    def _popen(self, command: Command, **settings: Any) -> subprocess.Popen[bytes]:
        cwd, env = str(command.cwd) if command.cwd else None, {**self.environ, **command.env}
        try:
            return subprocess.Popen(command.argv, cwd=cwd, env=env, **settings)
        except FileNotFoundError as exc:
            raise HostError(
                f"{exc.filename or command.argv[0]}: no such program or folder",
                hint="install it, or name it by its full path",
            ) from exc
        except PermissionError as exc:
            raise HostError(
                f"{command.argv[0]}: may not be executed", hint="check its permissions"
            ) from exc

    def interact(self, command: Command, /, *, tty: bool = False) -> int:
        """As `Runner.interact`; the command always gets our own terminal, `tty` or not."""
        process = self._popen(command)
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt as exc:
                if tty and not isinstance(exc, Terminated):
                    continue
                process.terminate()  # SIGTERM and SIGHUP reached only us, not the child
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GRACE_SECONDS[0])
                process.kill()
                process.wait()
                raise

    @contextmanager
    def _started(
        self, command: Command, *, output: int, stdout: int | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        process = self.start(command, output=output, stdout=stdout)
        try:
            yield process
        except BaseException as exc:
            stop(process)
            if isinstance(exc, subprocess.TimeoutExpired):
                raise CommandError(
                    f"{command.argv[0]}: no end after {exc.timeout:g} s: {command}",
                    hint="run it by hand to see where it hangs",
                ) from None
            raise
        finally:
            for stream in filter(None, (process.stdout, process.stderr)):
                with suppress(OSError):
                    stream.close()


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the process group of `process`: SIGINT, SIGTERM, SIGKILL, with a grace after each."""
    steps = zip((signal.SIGINT, signal.SIGTERM), GRACE_SECONDS, strict=True)
    with suppress(ProcessLookupError):
        try:
            for number, grace in steps:
                os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(grace)
                    break
        finally:  # also when a second Ctrl-C cuts the grace short: nothing of ours survives
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _failure(command: Command, returncode: int, tail: str, log: Path | None) -> CommandError:
    how = f"signal {-returncode}" if returncode < 0 else f"exit status {returncode}"
    return CommandError(
        f"{command.argv[0]}: {how}: {command}",
        hint=f"the whole output is in {log}" if log else "run the command by hand",
        detail=tail,
    )
