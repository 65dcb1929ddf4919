"""`configure` and `dev`: Bazel by hand, and the loop of building, installing and testing."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import click

from rocwheel.build_options import BuildOptions
from rocwheel.cli import known
from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, command, once, option
from rocwheel.cli.dist import request_from
from rocwheel.cli.imports import when_run
from rocwheel.cli.known import OneOf
from rocwheel.cli.options import place_options, source_options, unpublished_options
from rocwheel.cli.rocm import rocm_source
from rocwheel.errors import ConfigError
from rocwheel.option import listed

with when_run():
    from rocwheel import dev as loop
    from rocwheel import housekeeping
    from rocwheel.console import count
    from rocwheel.container import devices

_PATH = click.Path(path_type=Path)


@dataclass(frozen=True, kw_only=True)
class ConfigureOptions(BuildOptions, DryRun):
    """Options of `configure`."""

    output: Path | None
    allow_dirty: bool = True


@command("configure", ConfigureOptions)
@option(
    "--output",
    type=_PATH,
    help="The rc file to write, outside of the checkout; default: in the cache.",
)
@unpublished_options
def configure(app: App, options: ConfigureOptions) -> None:
    """Write an rc file with the options of a build, and say how to run Bazel by hand.

    Takes the options of dist_wheels. Bazel run with the file shares its output and caches with
    rocwheel. The command lines are printed, one for each start of Bazel.
    """
    request = request_from(app, options, therock=rocm_source(options))
    rc_file = app.path(options.output)
    if rc_file and rc_file.exists() and not rc_file.is_file():
        raise ConfigError(f"--output: {rc_file}: no file", hint="name a file, or a new one")
    if options.dry_run:
        app.emit_plan(
            loop.preview_configure(request, rc_file=rc_file, runner=app.runner, console=app.console)
        )
        return
    path, lines = loop.configure(request, rc_file=rc_file, runner=app.runner, console=app.console)
    app.console.info(f"wrote {path}; by hand:")
    app.emit({"rc_file": str(path), "commands": lines}, "\n".join(lines))


def minutes(text: str) -> int:
    """Return how long, in minutes: `30m`, `2h`; `0` is not at all. Raises BadParameter."""
    match = re.fullmatch(r"0|([1-9][0-9]{0,4})([mh])", text)
    if match is None:
        raise click.BadParameter(f"{text!r}: no time; write 30m or 2h")
    return int(match[1] or 0) * (60 if match[2] == "h" else 1)


@dataclass(frozen=True, kw_only=True)
class DevOptions(BuildOptions, DryRun):
    """Options of `dev`."""

    environment: Path
    only: str | None
    tests: tuple[Path, ...]
    test_options: tuple[str, ...]
    keep_container: int = 0
    allow_dirty: bool = True


@command("dev", DevOptions)
@option(
    "--environment",
    type=_PATH,
    required=True,
    metavar="DIR",
    help="Virtual environment to install into; its CPython is built for.",
)
@option(
    "--only",
    metavar="LIST",
    type=OneOf(known.wheel_kinds, many=True),
    help="Wheels to build, comma-separated: plugin,pjrt,jaxlib; default: all.",
)
@option(
    "--test",
    "tests",
    type=_PATH,
    multiple=True,
    metavar="FILE",
    help="Test file to run with pytest afterwards; repeatable.",
)
@option("--test-option", "test_options", multiple=True, help="Option of pytest; repeatable.")
@once(
    "--keep-container",
    metavar="TIME",
    type=minutes,
    default="0",
    help="Leave the container, with its warm Bazel server, for the next turn, until it was idle "
    "for so long: 30m, 2h.",
)
@source_options
@place_options
def dev(app: App, options: DevOptions) -> None:
    """Build with local sources, install what changed, run a test: one turn of the loop.

    Wheels are built for the environment's CPython, installed as Bazel made them, and only those
    that changed. A second turn after a change executes only the actions the change concerns.
    """
    asked = _asked(app, options)
    if options.dry_run:
        app.emit_plan(loop.preview_turn(asked, runner=app.runner, console=app.console))
        return
    with housekeeping.using(asked.request.cache):
        done = loop.turn(asked, runner=app.runner, console=app.console)
    for line in done.bazel.lines():
        app.console.info(line)
    actions = count(done.bazel.actions_executed, "action")
    app.emit(
        done.document(seconds=app.console.seconds),
        f"{actions}, {count(len(done.installed), 'wheel')} installed",
    )


def _asked(app: App, options: DevOptions) -> loop.Loop:
    request = request_from(app, options, therock=rocm_source(options))
    executor = replace(request.executor, keep_minutes=options.keep_container)
    return loop.Loop(
        request=replace(request, executor=executor),
        environment=app.cwd / options.environment,
        kinds=loop.kinds(listed(options.only)),
        tests=tuple(app.cwd / test for test in options.tests),
        test_options=options.test_options,
    )


@dataclass(frozen=True, kw_only=True)
class ShellOptions(BuildOptions):
    """Options of `shell`."""

    words: tuple[str, ...]
    allow_dirty: bool = True


@command("shell", ShellOptions)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
@unpublished_options
def shell(app: App, options: ShellOptions) -> int:
    """Open a terminal in exactly the container a build would run in.

    Sources, ROCm and caches are mounted, GPUs passed through, `configure` is done: Bazel run
    there shares its caches with builds. With a command after `--` that runs instead.
    """
    request = request_from(app, options, therock=rocm_source(options))
    asked = replace(request.executor, devices=devices())
    words = options.words or ("/bin/sh", "-i")
    status = loop.shell(
        replace(request, executor=asked, is_snapshot=True),
        words,
        tty=sys.stdin.isatty(),
        runner=app.runner,
        console=app.console,
    )
    app.emit({"command": list(words), "status": status})
    return status
