"""`pins add` and `pins bump`: pinned facts are added and updated."""

from __future__ import annotations

from typing import TypeAlias

import click

from rocwheel.base import files
from rocwheel.base.download import Client, Retry
from rocwheel.base.errors import RocwheelError
from rocwheel.cli.app import App
from rocwheel.cli.options import dry_run, group, option
from rocwheel.tools import bump as bumping

Wanted: TypeAlias = "tuple[str, bumping.Fact, str]"
OUTDATED = 1  # status of `bump --check` where there is something newer
KINDS = ("jax", "rocm", "therock", "bazel")


@group("pins")
def pins() -> None:
    """Add JAX releases to ci/pins.yaml, and take newer versions of what is pinned."""


@pins.command("add")
@click.argument("version")
@option("--repository", metavar="URL", help="Repository of --ref; default: jax-ml/jax.")
@option("--ref", metavar="REF", help="Branch, tag or commit; default: jax-vVERSION.")
@option("--default", is_flag=True, help="Make it the default release.")
@dry_run
@click.pass_obj
def add(app: App, *, version: str, repository: str, ref: str, default: bool, dry_run: bool) -> None:
    """Look a release up in its sources and wheels, and add it to ci/pins.yaml.

    Fetches the commit and every jaxlib wheel, and compares them with each other and with
    ci/layouts.yaml. Counts each suite's tests. Prints what changes; comments in the file stay.
    """
    with Client(app.environ, retry=Retry(), note=app.console.info) as client:
        context = bumping.BumpContext(here=app.here, client=client)
        with app.console.step(f"JAX {version}"):
            facts = bumping.add_pin(
                version,
                repository=repository or f"{context.github}jax-ml/jax",
                ref=ref,
                default=default,
                context=context,
            )
    app.console.info(f"JAX {facts.pin.name} is built as {facts.built_as}")
    _finish(app, context, {"pin": facts.pin.name, "commit": facts.pin.commit}, dry_run=dry_run)


@pins.command("bump")
@click.argument("what", required=False, type=click.Choice(KINDS))
@option("--to", metavar="[NAME=]VERSION", help="The version; default: the newest there is.")
@option("--check", is_flag=True, help="Only print what is newer; status 1 if anything is.")
@dry_run
@click.pass_obj
def bump(app: App, what: str | None, to: str, check: bool, dry_run: bool) -> int:
    """Take a newer JAX, ROCm or Bazel, once verified; compare TheRock's addresses.

    Compares sources with wheels, bytes with published digests, and the addresses of TheRock with
    its own sources. Prints what changes and the upstream log. Without WHAT it looks at all of them.
    --check ends with 4, 5 or 11 if nothing is newer, but a server did not answer.
    """
    if to and not what:
        raise click.UsageError("--to is for one WHAT")
    if to and check:
        raise click.UsageError("--check looks for the newest, and --to names one: drop one of them")
    with Client(app.environ, retry=Retry(), note=app.console.info) as client:
        context = bumping.BumpContext(here=app.here, client=client)
        unreachable: list[RocwheelError] = []
        if what and to:
            wanted: list[Wanted] = [(what, *bumping.named(what, to, context))]
        else:
            kinds = (what,) if what else KINDS
            goes_on = check and not what
            wanted = list(bumping.newer(kinds, context, unreachable if goes_on else None))
        if check:
            return _newer(app, wanted, unreachable)
        done = []
        for kind, fact, newer in wanted:
            with app.console.step(f"{kind} {fact.name}: {fact.now} -> {newer}"):
                log = bumping.bump(kind, fact, newer, context)
                for line in log:
                    app.console.info(f"   {line}")
            one = {"kind": kind, "name": fact.name, "now": fact.now, "to": newer, "log": log}
            done.append(one)
    _finish(app, context, {"bumped": done}, dry_run=dry_run)
    return 0


def _newer(app: App, wanted: list[Wanted], unreachable: list[RocwheelError]) -> int:
    rows = [
        {"kind": kind, "name": fact.name, "now": fact.now, "newer": to} for kind, fact, to in wanted
    ]
    missed = list(dict.fromkeys(map(str, unreachable)))
    for text in missed:
        app.console.warn(f"not looked at: {text}")
    if not rows and not missed:
        app.console.info("nothing newer")
    app.emit(
        {"newer": rows, "not_looked_at": missed},
        "\n".join(map("{kind} {name}: {now} -> {newer}".format_map, rows)),
    )
    return OUTDATED if wanted else unreachable[0].exit_code if unreachable else 0


def _finish(
    app: App, context: bumping.BumpContext, document: dict[str, object], *, dry_run: bool
) -> None:
    shown = bumping.difference(context)
    if not dry_run:
        for path, text in context.texts.items():
            files.write(path, text.encode())
    app.emit({**document, "diff": shown}, shown)
