"""`nightly report`: pages for people, published beside the index and never inside it."""

from __future__ import annotations

from pathlib import Path

import click

import amdgpu_family_matrix as matrix
from rocwheel.cli.app import App
from rocwheel.cli.nightly_options import LATEST, NightTarget
from rocwheel.cli.options import COUNT, PATH, dry_run, group, option
from rocwheel.cli.target import FamiliesOptions, families_options, judging
from rocwheel.night import page


@group("report")
def report() -> None:
    """Make pages for people."""


@report.command("state")
@option("--night", metavar="NAME", default=LATEST, help="The night to sum up.")
@option("--output", type=PATH, help="Write it there, too.")
@option("--nights", type=COUNT, default=30, help="How many are shown.")
@families_options
@dry_run
@click.pass_obj
def state(
    app: App,
    *,
    night: str,
    output: Path | None,
    nights: int,
    target: FamiliesOptions,
    dry_run: bool,
) -> None:
    """Sum up a night and publish the page of all families at <store>/status/.

    The page is made from the summaries of the shown nights alone.
    """
    where = NightTarget(app, target)
    names = where.nights.names()
    night = where.night(night) if names or night != LATEST else ""
    if dry_run:
        app.emit_plan([f"summary of {night or 'no night'}", where.store.locate(page.PAGE)])
        return
    pages = page.NightPages(
        nights=where.nights,
        channel=judging(app, where.channel),
        families=matrix.FAMILIES | target.own_families(app),
        now=app.now(),
        console=app.console,
        shown=nights,
    )
    body, shown = pages.publish(night)
    if output:
        app.write(output, body.decode())
    url = page.page_url(where.channel, where.store)
    app.emit({"page": url, "nights": shown, "bytes": len(body)}, url)
