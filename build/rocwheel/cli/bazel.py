"""`dev`, `dev configure` and `image shell`: build, install and test in a loop; Bazel by hand."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from rocwheel.base.console import count
from rocwheel.base.errors import ConfigError
from rocwheel.cli import known
from rocwheel.cli.app import App
from rocwheel.cli.build_options import (
    BAZEL,
    CACHE,
    CONTAINER,
    FAMILY,
    PYTHONS,
    REMOTE,
    ROCM,
    SOURCES,
    VERSION,
    build_of,
)
from rocwheel.cli.dist import request_from, rocm_source
from rocwheel.cli.options import PATH, alone, command, dry_run, group, option, seconds
from rocwheel.records.build_options import BuildOptions

COMMON = (ROCM, FAMILY, SOURCES, BAZEL, CACHE, REMOTE, CONTAINER)


@group("dev", invoke_without_command=True)
@option(
    "--environment",
    metavar="DIR",
    type=PATH,
    help="Virtual environment to install into; wheels are built for its CPython (required).",
)
@option(
    "--only",
    metavar="LIST",
    type=known.ListOf(known.wheel_kinds),
    default=(),
    help="Wheels to build, comma-separated: plugin,pjrt,jaxlib; default: all.",
)
@option(
    "--test",
    "tests",
    metavar="FILE",
    type=PATH,
    multiple=True,
    help="Test file to run with pytest; repeatable.",
)
@option(
    "--test-option",
    "test_options",
    metavar="OPTION",
    multiple=True,
    help="Option of pytest; repeatable.",
)
@option(
    "--keep-container",
    metavar="TIME",
    type=seconds,
    default="0",
    help="Keep the container and its Bazel server until they are idle for this long: 30m, 2h.",
)
@build_of(*COMMON, allow_dirty=True)
@dry_run
@alone
@click.pass_obj
def dev(
    app: App,
    *,
    environment: Path | None,
    only: tuple[str, ...],
    tests: tuple[Path, ...],
    test_options: tuple[str, ...],
    keep_container: float,
    build: BuildOptions,
    dry_run: bool,
) -> None:
    """Build with local sources, install what changed, run a test.

    Wheels are built for the environment's CPython and installed as Bazel made them. The next run
    repeats only what depends on your change.
    """
    from rocwheel.tools import dev as loop
    from rocwheel.tools import housekeeping

    if environment is None:
        raise click.UsageError("give --environment: the virtual environment to install into")
    if test_options and not tests:
        raise click.UsageError("--test-option needs a --test FILE")
    request = request_from(app, build, therock=rocm_source(build))
    executor = replace(request.executor, keep_minutes=round(keep_container / 60))
    asked = loop.Loop(
        request=replace(request, executor=executor),
        environment=environment,
        kinds=loop.kinds(only),
        tests=tests,
        test_options=test_options,
    )
    if dry_run:
        return app.emit_plan(loop.lines_of_turn(asked, app.here))
    with housekeeping.using(asked.request.cache):
        runs, installed = loop.turn(asked, app.here)
    for line in runs.lines():
        app.console.info(line)
    document = {"bazel": runs.document, "installed": installed, "tested": bool(tests)}
    said = f"{count(runs.actions_executed, 'action')}, {count(len(installed), 'wheel')} installed"
    return app.emit({**document, "seconds": app.console.seconds}, said)


@dev.command("configure")
@build_of(*COMMON, PYTHONS, VERSION, allow_dirty=True)
@option(
    "--output",
    type=PATH,
    help="The rc file to write, outside of the checkout; default: in the cache.",
)
@dry_run
@click.pass_obj
def configure(app: App, build: BuildOptions, output: Path | None, dry_run: bool) -> None:
    """Write an rc file with the options of a build, and print how to run Bazel by hand.

    Takes the options of dist_wheels. With the file, Bazel shares its output and caches with
    rocwheel. It prints one command line for each start of Bazel.
    """
    from rocwheel.tools import dev as loop

    request = request_from(app, build, therock=rocm_source(build))
    if output and output.exists() and not output.is_file():
        raise ConfigError(f"--output: {output}: no file", hint="name a file, or a new one")
    path, lines = loop.configure(request, app.here, rc_file=output, dry_run=dry_run)
    if dry_run:
        return app.emit_plan(lines)
    app.console.info(f"wrote {path}; by hand:")
    return app.emit({"rc_file": str(path), "commands": lines}, "\n".join(lines))


@command("shell")
@click.argument("words", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@build_of(*COMMON, PYTHONS, VERSION, allow_dirty=True)
@click.pass_obj
def shell(app: App, words: tuple[str, ...], build: BuildOptions) -> int:
    """Open a terminal in the container that a build would run in.

    Sources, ROCm and caches are mounted, GPUs are passed through, and Bazel is configured: it
    shares its caches with builds. A command after `--` runs in place of the terminal.
    """
    from rocwheel.tools import dev as loop

    request = request_from(app, build, therock=rocm_source(build))
    words = words or ("/bin/sh", "-i")
    status = loop.shell(
        replace(request, is_snapshot=True),
        words,
        app.here,
        tty=sys.stdin.isatty(),
    )
    app.emit({"command": list(words), "status": status})
    return status
