"""`report`: pages for people, published beside the index and never inside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, command, group, option
from rocwheel.cli.imports import when_run
from rocwheel.cli.nightly_options import LATEST, NightTarget
from rocwheel.cli.target import FamiliesOptions, judging

with when_run():
    import amdgpu_family_matrix as matrix
    from rocwheel.pipeline import upkeep
    from rocwheel.report.night_page import PAGE


@group("report")
def report() -> None:
    """Make pages for people."""


@dataclass(frozen=True, kw_only=True)
class StateOptions(FamiliesOptions, DryRun):
    """Options of `report state`."""

    output: Path | None
    night: str
    nights: int


@command("state", StateOptions, parent=report)
@option("--night", default=LATEST, show_default=True, metavar="NAME", help="The night to sum up.")
@option("--output", metavar="PATH", help="Write it there, too.", type=Path)
@option(
    "--nights",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="How many are shown.",
)
def state(app: App, options: StateOptions) -> None:
    """Sum up a night and publish the page of all families at <store>/status/.

    It is made of the summaries of the shown nights alone.
    """
    target = NightTarget(app, options)
    names = target.nights.names()
    night = target.night(options.night) if names or options.night != LATEST else ""
    if options.dry_run:
        app.emit_plan([f"summary of {night or 'no night'}", target.store.locate(PAGE)])
        return
    pages = _pages(app, options, target)
    body, shown = pages.publish(night)
    if options.output:
        (app.cwd / options.output).write_bytes(body)
    url = upkeep.page_url(target.channel, target.store)
    app.emit({"page": url, "nights": shown, "bytes": len(body)}, url)


def _pages(app: App, options: StateOptions, target: NightTarget) -> upkeep.NightPages:
    return upkeep.NightPages(
        nights=target.nights,
        channel=judging(app, target.channel),
        families=matrix.FAMILIES | options.own_families(app),
        now=app.now(),
        console=app.console,
        shown=options.nights,
    )
