"""`pin add` and `bump jax`: how `ci/pins.yaml` gets another release."""

from __future__ import annotations

from dataclasses import dataclass

import click

from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, command, group, option
from rocwheel.cli.imports import when_run

with when_run():
    from rocwheel import files, source
    from rocwheel.source import pin_edit
    from rocwheel.source.pins import Pins

OUTDATED = 1  # status of `bump --check` where there is something newer


@group("pin")
def pin() -> None:
    """Add JAX releases to ci/pins.yaml."""


@dataclass(frozen=True, kw_only=True)
class PinAddOptions(DryRun):
    """Options of `pin add`."""

    version: str
    repository: str
    ref: str
    default: bool


@command("add", PinAddOptions, parent=pin)
@click.argument("version")
@option("--repository", default="", metavar="URL", help="Repository of --ref; default: jax-ml/jax.")
@option("--ref", default="", metavar="REF", help="Branch, tag or commit; default: jax-vVERSION.")
@option("--default", is_flag=True, help="Build this release where none is named.")
def add(app: App, options: PinAddOptions) -> None:
    """Look a release up in its sources and wheels, and add it to ci/pins.yaml.

    Fetches the commit and every jaxlib wheel, checks them against each other and against
    ci/layouts.yaml, and prints what changes. Comments stay; what contradicts is refused.
    """
    _add(app, options)


@dataclass(frozen=True, kw_only=True)
class BumpOptions(DryRun):
    """Options of `bump`."""

    what: str
    to: str
    check: bool


@command("bump", BumpOptions)
@click.argument("what", type=click.Choice(["jax"]))
@option("--to", default="", metavar="VERSION", help="The release; default: the newest there is.")
@option("--check", is_flag=True, help="Only say what is newer; status 1 where something is.")
def bump(app: App, options: BumpOptions) -> int:
    """Make a newer JAX the default, looked up as `pin add` does."""
    newer = pin_edit.newer(_pins(app), repository=pin_edit.REPOSITORY, runner=app.runner)
    if options.check or not (options.to or newer):
        app.emit({"newer": list(newer)}, "\n".join(newer))
        return OUTDATED if newer else 0
    version = options.to or newer[-1]
    _add(
        app,
        PinAddOptions(
            version=version, repository="", ref="", default=True, dry_run=options.dry_run
        ),
    )
    return 0


def _pins(app: App) -> Pins:
    layouts = source.load_layouts(app.home.ci / "layouts.yaml")
    return source.load_pins(app.home.ci / "pins.yaml", layouts=layouts)


def _add(app: App, options: PinAddOptions) -> None:
    layouts = source.load_layouts(app.home.ci / "layouts.yaml")
    path = app.home.ci / "pins.yaml"
    with app.console.step(f"JAX {options.version}"):
        facts = pin_edit.look_up(
            options.version,
            repository=options.repository or pin_edit.REPOSITORY,
            ref=options.ref,
            layouts=layouts,
            cache=app.cache,
            runner=app.runner,
            console=app.console,
        )
    text = pin_edit.added(path, facts, default=options.default, layouts=layouts)
    shown = pin_edit.difference(path, text)
    if not options.dry_run:
        files.write(path, text.encode())
    app.console.info(f"JAX {facts.version} is built as {facts.built_as}")
    app.emit({"pin": facts.version, "commit": facts.commit, "diff": shown}, shown)
