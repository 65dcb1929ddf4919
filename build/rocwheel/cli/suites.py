"""`suites check`: whether the suites of JAX's own tests fit the JAX releases they are for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from rocwheel.cli.app import App
from rocwheel.cli.command import command, group, option
from rocwheel.cli.imports import when_run

with when_run():
    from rocwheel.console import count
    from rocwheel.gate.suite import static

_PATH = click.Path(path_type=Path)


@group("suites")
def suites_group() -> None:
    """Compare the suites in ci/suites with the JAX releases they are for."""


@dataclass(frozen=True, kw_only=True)
class SuitesCheckOptions:
    """Options of `suites check`."""

    jax: str | None
    jax_tests: Path | None
    jax_wheel: Path | None
    record: bool


@command("check", SuitesCheckOptions, parent=suites_group)
@option("--jax", metavar="VERSION", help="One release only, or the name of what is compared.")
@option(
    "--jax-tests",
    type=_PATH,
    metavar="DIR",
    help="A JAX checkout instead of what is recorded; needs --jax and --jax-wheel.",
)
@option("--jax-wheel", type=_PATH, metavar="FILE", help="The wheel that was made of it.")
@option("--record", is_flag=True, help="Record what the checkout needs in ci/jax_tests.json.")
def check(app: App, options: SuitesCheckOptions) -> None:
    """Say what the suites of JAX's own tests miss, or name for nothing.

    Test files are read, not imported: modules they import that the wheel of JAX lacks must be in
    a suite's `modules`, folders they read in its `support`, and each pattern must meet a file.
    """
    given = (options.jax_tests, options.jax_wheel)
    if (
        any(given) != all(given)
        or (any(given) and not options.jax)
        or (options.record and not all(given))
    ):
        raise click.UsageError("--jax, --jax-tests and --jax-wheel belong together")
    mine = None
    if options.jax_tests and options.jax_wheel:
        mine = static.read(app.cwd / options.jax_tests, app.cwd / options.jax_wheel)
    found = static.compare(app.home.root, options.jax or "", mine, record=options.record)
    files = count(sum(map(len, found.values())), "file")
    text = f"{count(len(found), 'JAX release')}, {files}: ok"
    app.emit({"jax": sorted(found)}, text)
