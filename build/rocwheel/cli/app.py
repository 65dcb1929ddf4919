"""What every command gets: console, runner, folders, clock; and the options all commands share.

This is the edge: the process environment, the working directory and the clock are read here and
nowhere below.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from rocwheel.console import Console
    from rocwheel.process import Runner


class App:
    """One run of the command line; console and runner are made when first used."""

    def __init__(self, environ: Mapping[str, str], cwd: Path) -> None:
        self.environ = environ
        self.cwd = cwd
        self.json = False
        self.debug = False
        self.verbosity = 0

    @cached_property
    def console(self) -> Console:
        from rocwheel.console import Console, Mode

        mode = Mode.PLAIN
        if self.environ.get("GITHUB_ACTIONS") == "true":
            mode = Mode.GITHUB
        elif sys.stderr.isatty() and self.environ.get("TERM", "dumb") != "dumb":
            mode = Mode.TERMINAL
        verbosity = 2 if self.debug else self.verbosity
        return Console(sys.stderr, clock=time.monotonic, mode=mode, verbosity=verbosity)

    @cached_property
    def runner(self) -> Runner:
        from rocwheel.process import HostRunner, base_env

        return HostRunner(base_env(self.environ))

    @property
    def cache(self) -> Path:
        """The user's cache folder (XDG base directories): everything in it can be made again."""
        home = self.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(home) / "rocwheel"

    @property
    def user(self) -> str:
        """The user's name, as the system knows it."""
        import pwd

        try:
            return pwd.getpwuid(os.getuid()).pw_name
        except KeyError:  # such as in a container that knows no users
            return f"uid {os.getuid()}"

    def now(self) -> datetime:
        """Current time, UTC."""
        from datetime import datetime, timezone

        return datetime.now(tz=timezone.utc)

    def emit(self, document: Mapping[str, Any], text: str | None = None) -> None:
        """Print the result on stdout: the document with `--json`, otherwise the text."""
        if self.json:
            click.echo(json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False))
        elif text is not None:
            click.echo(text)

    def github_outputs(self, values: Mapping[str, str]) -> None:
        """Hand values to later steps of a GitHub Actions job; nothing happens elsewhere."""
        path = self.environ.get("GITHUB_OUTPUT")
        if path:
            with Path(path).open("a", encoding="utf-8") as file:
                file.writelines(f"{name}={value}\n" for name, value in values.items())


def start() -> App:
    """Read the environment and the working directory: once, here."""
    return App(os.environ, Path.cwd())


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def store(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        if value:
            setattr(ctx.find_object(App), name, value)

    return store


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json, -v, -q and --debug; they act on the App and reach no function."""
    for option in (
        click.option(
            "--debug",
            is_flag=True,
            expose_value=False,
            callback=_set("debug"),
            help="Show every command as it starts, and the traceback of an error.",
        ),
        click.option(
            "-q",
            "--quiet",
            "verbosity",
            flag_value=-1,
            type=int,
            default=None,
            expose_value=False,
            callback=_set("verbosity"),
            help="Show warnings and errors only.",
        ),
        click.option(
            "-v",
            "--verbose",
            "verbosity",
            flag_value=1,
            type=int,
            default=None,
            expose_value=False,
            callback=_set("verbosity"),
            help="Show more of what happens.",
        ),
        click.option(
            "--json",
            is_flag=True,
            expose_value=False,
            callback=_set("json"),
            help="Print one JSON document on stdout; all talk goes to stderr.",
        ),
    ):
        command = option(command)
    return command


class Movable(click.Option):
    """An option that may stand before the command too; the group puts it behind."""

    movable = True


class Once(Movable):
    """An option that may be repeated only with the same value.

    Before and after the command count as repetition, so a wrapper script and a person cannot
    silently overrule each other.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["multiple"] = True
        if "default" in kwargs:
            kwargs["default"] = (kwargs["default"],)
        super().__init__(*args, **kwargs)

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """An environment variable holds one value, blanks included."""
        value = self.resolve_envvar_value(ctx)
        return None if value is None else (value,)

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Collapse equal values. Raises UsageError for different ones."""
        values = tuple(dict.fromkeys(super().process_value(ctx, value) or ()))
        if len(values) > 1:
            shown = " and ".join(map(str, values))
            raise click.UsageError(f"{self.opts[0]} is given twice: {shown}", ctx)
        return values[0] if values else None


dry_run_option = click.option(
    "--dry-run",
    cls=Movable,
    is_flag=True,
    help="Print the plan, every command and file; change nothing.",
)
