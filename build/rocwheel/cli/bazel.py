"""`configure` and `dev`: Bazel by hand, and the loop of building, installing and testing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rocwheel.cli.app import App, common_options, dry_run_option
from rocwheel.cli.dist import request_from
from rocwheel.cli.options import build_options

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATH = click.Path(path_type=Path)


@click.command("configure")
@click.option(
    "--output",
    type=_PATH,
    help="The rc file to write, outside of the checkout; default: in the cache.",
)
@build_options(without=frozenset({"--wheelhouse", "--allow-dirty"}))
@dry_run_option
@common_options
@click.pass_obj
def configure(app: App, /, *, output: Path | None, dry_run: bool, **options: Any) -> None:
    """Write an rc file with the options of a build, and say how to run Bazel by hand.

    Takes the options of dist_wheels. Bazel run with the file shares its output and caches with
    rocwheel. The command lines are printed, one for each start of Bazel.
    """
    from rocwheel import dev

    request = _request(app, options)
    rc_file = app.cwd / output if output else None
    if dry_run:
        _show(app, dev.preview_configure(request, rc_file=rc_file, runner=app.runner))
        return
    done = dev.configure(request, rc_file=rc_file, runner=app.runner, console=app.console)
    app.console.info(f"wrote {done.rc_file}; by hand:")
    app.emit(
        {"rc_file": str(done.rc_file), "commands": list(done.commands)}, "\n".join(done.commands)
    )


@click.command("dev")
@click.option(
    "--environment",
    type=_PATH,
    required=True,
    metavar="DIR",
    help="Virtual environment to install into; its CPython is built for.",
)
@click.option(
    "--only",
    metavar="LIST",
    help="Wheels to build, comma-separated: plugin,pjrt,jaxlib; default: all.",
)
@click.option("--editable", is_flag=True, help="Install editable, where the layout has it.")
@click.option(
    "--test",
    "tests",
    type=_PATH,
    multiple=True,
    metavar="FILE",
    help="Test file to run with pytest afterwards; repeatable.",
)
@click.option("--test-option", "test_options", multiple=True, help="Option of pytest; repeatable.")
@build_options(
    without=frozenset({
        "--wheelhouse", "--allow-dirty", "--python-versions", "--wheel-suffix", "--wheel-type",
        "--wheel-date", "--wheel-hash",
    })
)  # fmt: skip
@dry_run_option
@common_options
@click.pass_obj
def dev(
    app: App,
    /,
    *,
    environment: Path,
    only: str | None,
    editable: bool,
    tests: tuple[Path, ...],
    test_options: tuple[str, ...],
    dry_run: bool,
    **options: Any,
) -> None:
    """Build with local sources, install what changed, run a test: one turn of the loop.

    Wheels are built for the environment's CPython, installed as Bazel made them, and only those
    that changed. A second turn after a change executes only the actions the change concerns.
    """
    from rocwheel import dev as loop
    from rocwheel.console import count
    from rocwheel.errors import ConfigError
    from rocwheel.model import WheelKind, suggest

    known = {kind.value: kind for kind in WheelKind}
    names = [name.strip() for name in (only or "").split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ConfigError(f"{name!r}: unknown wheel", hint=suggest(name, tuple(known)))
    asked = loop.Loop(
        request=_request(app, options),
        environment=app.cwd / environment,
        kinds=tuple(known[name] for name in names),
        editable=editable,
        tests=tuple(app.cwd / test for test in tests),
        test_options=test_options,
    )
    if dry_run:
        _show(app, loop.preview_turn(asked, runner=app.runner))
        return
    done = loop.turn(asked, runner=app.runner, console=app.console)
    document = {
        "bazel": done.bazel.document,
        "installed": list(done.installed),
        "tested": done.tested,
        "seconds": dict(app.console.seconds),
    }
    for line in done.bazel.lines():
        app.console.info(line)
    actions = count(done.bazel.actions_executed, "action")
    app.emit(document, f"{actions}, {count(len(done.installed), 'wheel')} installed")


def _show(app: App, lines: Iterator[str]) -> None:
    shown = list(lines)
    app.emit({"plan": shown}, "\n".join(shown))


def _request(app: App, options: dict[str, Any]) -> Any:
    """A request for building in place: no wheelhouse comes of it."""
    if not options["therock_path"]:
        raise click.UsageError("needs --therock-path: a URL, a tarball or a directory")
    absent = {
        "wheelhouse": "wheelhouse", "allow_dirty": True, "python_versions": None,
        "wheel_suffix": None, "wheel_type": "release", "wheel_date": None, "wheel_hash": None,
    }  # fmt: skip
    return request_from(app, {**absent, **options}, therock=options["therock_path"])
