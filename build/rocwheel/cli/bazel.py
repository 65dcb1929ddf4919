"""`configure` and `dev`: Bazel by hand, and the loop of building, installing and testing."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import click

from rocwheel.base.errors import ConfigError
from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, command, own
from rocwheel.cli.dist import request_from
from rocwheel.cli.imports import when_run
from rocwheel.cli.rocm import rocm_source
from rocwheel.records.build_options import (
    BuildOptions,
    PythonOptions,
    VersionOptions,
    WheelhouseOptions,
)

with when_run():
    from pathlib import Path

    from rocwheel.base.console import count
    from rocwheel.tools import dev as loop
    from rocwheel.tools import housekeeping


class ConfigureOptions(BuildOptions, DryRun):
    output: Path | None = own(
        "--output",
        "The rc file to write, outside of the checkout; default: in the cache.",
        is_path=True,
    )
    allow_dirty: bool = True


@command("configure", ConfigureOptions, without=[WheelhouseOptions])
def configure(app: App, options: ConfigureOptions) -> None:
    """Write an rc file with the options of a build, and say how to run Bazel by hand.

    Takes the options of dist_wheels. Bazel run with the file shares its output and caches with
    rocwheel. The command lines are printed, one for each start of Bazel.
    """
    request = request_from(app, options, therock=rocm_source(options))
    rc_file = options.output
    if rc_file and rc_file.exists() and not rc_file.is_file():
        raise ConfigError(f"--output: {rc_file}: no file", hint="name a file, or a new one")
    path, lines = loop.configure(request, app.here, rc_file=rc_file, dry_run=options.dry_run)
    if options.dry_run:
        app.emit_plan(lines)
        return
    app.console.info(f"wrote {path}; by hand:")
    app.emit({"rc_file": str(path), "commands": lines}, "\n".join(lines))


def minutes(text: str) -> int:
    """Return how long, in minutes: `30m`, `2h`; `0` is not at all. Raises BadParameter."""
    if (match := re.fullmatch(r"0|([1-9][0-9]{0,4})([mh])", text)) is None:
        raise click.BadParameter(f"{text!r}: no time; write 30m or 2h")
    return int(match[1] or 0) * (60 if match[2] == "h" else 1)


class DevOptions(BuildOptions, DryRun):
    environment: Path = own(
        "--environment DIR",
        "Virtual environment to install into; its CPython is built for.",
        is_path=True,
        required=True,
    )
    only: tuple[str, ...] = own(
        "--only LIST",
        "Wheels to build, comma-separated: plugin,pjrt,jaxlib; default: all.",
        values="wheel_kinds",
        many=True,
    )
    tests: tuple[Path, ...] = own(
        "--test FILE",
        "Test file to run with pytest afterwards; repeatable.",
        param="tests",
        is_path=True,
        default=(),
    )
    test_options: tuple[str, ...] = own(
        "--test-option", "Option of pytest; repeatable.", param="test_options", default=()
    )
    keep_container: int = own(
        "--keep-container TIME",
        "Leave the container, with its warm Bazel server, for the next turn, until it was idle "
        "for so long: 30m, 2h.",
        kind=minutes,
        default=0,
    )
    allow_dirty: bool = True


@command("dev", DevOptions, without=[PythonOptions, VersionOptions, WheelhouseOptions])
def dev(app: App, options: DevOptions) -> None:
    """Build with local sources, install what changed, run a test: one turn of the loop.

    Wheels are built for the environment's CPython, installed as Bazel made them, and only those
    that changed. A second turn after a change executes only the actions the change concerns.
    """
    asked = _asked(app, options)
    if options.dry_run:
        return app.emit_plan(loop.lines_of_turn(asked, app.here))
    with housekeeping.using(asked.request.cache):
        done = loop.turn(asked, app.here)
    for line in done.bazel.lines():
        app.console.info(line)
    actions = count(done.bazel.actions_executed, "action")
    return app.emit(
        done.document(seconds=app.console.seconds),
        f"{actions}, {count(len(done.installed), 'wheel')} installed",
    )


def _asked(app: App, options: DevOptions) -> loop.Loop:
    if options.test_options and not options.tests:
        raise click.UsageError("--test-option: needs a --test FILE, which it is for")
    request = request_from(app, options, therock=rocm_source(options))
    executor = replace(request.executor, keep_minutes=options.keep_container)
    return loop.Loop(
        request=replace(request, executor=executor),
        environment=options.environment,
        kinds=loop.kinds(options.only),
        tests=options.tests,
        test_options=options.test_options,
    )


class ShellOptions(BuildOptions):
    words: tuple[str, ...] = own(
        "[-- COMMAND...]", param="words", kind=click.UNPROCESSED, nargs=-1, default=()
    )
    allow_dirty: bool = True


@command("shell", ShellOptions, without=[WheelhouseOptions])
def shell(app: App, options: ShellOptions) -> int:
    """Open a terminal in exactly the container a build would run in.

    Sources, ROCm and caches are mounted, GPUs passed through, `configure` is done: Bazel run
    there shares its caches with builds. With a command after `--` that runs instead.
    """
    request = request_from(app, options, therock=rocm_source(options))
    words = options.words or ("/bin/sh", "-i")
    status = loop.shell(
        replace(request, is_snapshot=True),
        words,
        app.here,
        tty=sys.stdin.isatty(),
    )
    app.emit({"command": list(words), "status": status})
    return status
