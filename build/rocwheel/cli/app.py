"""What every command gets: console, runner, folders, clock.

This is the edge: the process environment, the working directory and the clock are read here and
nowhere below.
"""

from __future__ import annotations

import os
import sys
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime
    from pathlib import Path

    from rocwheel.base.console import Console
    from rocwheel.base.here import Here
    from rocwheel.base.home import Home
    from rocwheel.base.process import HostRunner
    from rocwheel.cli.config_file import Settings


def program_name(started: str) -> str:
    """Return the program's name as a shell here finds it."""
    folder, name = os.path.split(started)
    if name == "__main__.py":
        return "python -m rocwheel"
    return name if folder in ("", *os.environ.get("PATH", "").split(":")) else started


class App:
    """One run of the command line; console and runner are made when first used."""

    def __init__(self, environ: Mapping[str, str], cwd: Path | None = None) -> None:
        """Take the environment; the working directory is read when it is first needed."""
        self.environ = environ
        if cwd is not None:
            self.cwd = cwd
        self.command = ""  # of the table of commands
        self.context: click.Context | None = None  # of the command that runs
        self.ci_dir = ""
        self.json = False
        self.debug = False
        self.verbosity = 0
        self.spelt: Callable[[str], str] = str  # of warnings and hints, where command lines are

    @cached_property
    def cwd(self) -> Path:
        """The working directory. Raises HostError when it was deleted."""
        from pathlib import Path

        from rocwheel.base.errors import HostError

        try:
            return Path.cwd()
        except FileNotFoundError:
            raise HostError(
                "the working directory was deleted", hint="change to a folder that exists"
            ) from None

    @cached_property
    def console(self) -> Console:
        from rocwheel.base.console import Console, ConsoleMode

        mode = ConsoleMode.PLAIN
        if self.environ.get("GITHUB_ACTIONS") == "true":
            mode = ConsoleMode.GITHUB
        elif sys.stderr.isatty() and self.environ.get("TERM", "dumb") != "dumb":
            mode = ConsoleMode.TERMINAL
        return Console(
            sys.stderr,
            clock=time.monotonic,
            mode=mode,
            verbosity=2 if self.debug else self.verbosity,
            colour=mode is ConsoleMode.TERMINAL and not self.environ.get("NO_COLOR"),
            spelt=self.spelt,
        )

    @cached_property
    def runner(self) -> HostRunner:
        from rocwheel.base.process import HostRunner, base_env

        return HostRunner(base_env(self.environ))

    @property
    def here(self) -> Here:
        """What a stage may use of this machine. Raises ConfigError, HostError."""
        from rocwheel.base.here import Here

        return Here(
            environ=self.environ,
            cwd=self.cwd,
            cache=self.cache,
            home=self.home,
            console=self.console,
            runner=self.runner,
            program=self.program,
            now=self.now,
        )

    @property
    def home(self) -> Home:
        """The data in use: `--ci-dir`, else what rocwheel came with. Raises ConfigError."""
        from rocwheel.base import home

        return home.find(self.cwd / self.ci_dir if self.ci_dir else self.settings.folder("ci-dir"))

    @cached_property
    def settings(self) -> Settings:
        """The configuration file in force. Raises ConfigError."""
        from rocwheel.cli import config_file

        return config_file.find(self.cwd, self.environ.get("ROCWHEEL_CONFIG", ""))

    @property
    def program(self) -> tuple[str, ...]:
        """How this program is started again."""
        from rocwheel.base import home

        ours = home.find(None)
        if ours.is_checkout:
            return (sys.executable, str(ours.root / "build" / "ci_build"))
        return (sys.executable, "-m", "rocwheel")

    @property
    def cache(self) -> Path:
        """The cache folder: everything in it can be made again.

        ROCWHEEL_CACHE_DIR, the configuration file, or the user's (XDG base directories).
        """
        from pathlib import Path

        if named := self.environ.get("ROCWHEEL_CACHE_DIR"):
            return self.cwd / named
        return self.settings.folder("cache-dir") or Path(
            self.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rocwheel"
        )

    @property
    def user(self) -> str:
        """The user's name, as the system knows it."""
        return _user() or f"uid {os.getuid()}"

    def now(self) -> datetime:
        """Return the current time, UTC."""
        from datetime import datetime, timezone

        return datetime.now(tz=timezone.utc)

    def emit(self, document: Mapping[str, Any], text: str | None = None) -> None:
        """Print the result on stdout: the document with `--json`, otherwise the text.

        Raises HostError where stdout cannot be written, such as a file on a full disk.
        """
        if self.json:
            import json

            text = json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False)
        if not text:
            return
        try:
            click.echo(self.console.shown_json(text) if self.json else self.console.shown(text))
        except BrokenPipeError:  # who was to read this has gone, which is no error of a machine
            raise
        except OSError as exc:
            from rocwheel.base.errors import HostError

            raise HostError(
                f"standard output: {exc.strerror or exc}",
                hint="free some space, or write it elsewhere",
            ) from exc

    def emit_plan(self, lines: Iterable[str]) -> None:
        """Print the lines of a dry run as its result."""
        from rocwheel.base.console import printable

        shown = [printable(line) for line in lines]
        if not shown:
            self.console.info("nothing to do")
        self.emit({"plan": shown}, "\n".join(shown))

    def github_outputs(self, values: Mapping[str, str]) -> None:
        """Hand values to later steps of a GitHub Actions job; nothing happens elsewhere."""
        if path := self.environ.get("GITHUB_OUTPUT"):
            self.write(path, "".join(f"{name}={value}\n" for name, value in values.items()), "a")

    def write(self, path: Path | str, text: str, mode: str = "w") -> None:
        """Write a file in place: it may be a device. Raises OSError."""
        try:
            with open(path, mode, encoding="utf-8", opener=_at_once) as file:
                file.write(text)
        except OSError as exc:
            exc.filename = str(path)  # which a full disk does not name
            raise


def _at_once(path: str, flags: int) -> int:
    """Open a file as `open` does; refuse a FIFO that no program reads, and not wait for one."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


def start() -> App:
    """Read the environment, once; reopen closed standard streams on /dev/null."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # or the next file that is opened would be it
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115
    environ: Mapping[str, str] = os.environ
    if "USER" not in environ and not _user():
        # as in a container that runs as any number: Bazel starts for no user without a name
        environ = {**environ, "USER": f"uid{os.getuid()}"}
    return App(environ)


def _user() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # such as in a container that knows no users
        return ""
