"""`report`: pages for people, published beside the index and never inside it."""

from __future__ import annotations

from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, command, group, own
from rocwheel.cli.imports import when_run
from rocwheel.cli.nightly_options import LATEST, NightTarget
from rocwheel.cli.target import FamiliesOptions, judging

with when_run():
    from pathlib import Path

    import amdgpu_family_matrix as matrix
    from rocwheel.night import page


@group("report")
def report() -> None:
    """Make pages for people."""


class StateOptions(FamiliesOptions, DryRun):
    night: str = own("--night NAME", "The night to sum up.", default=LATEST)
    output: Path | None = own("--output", "Write it there, too.", is_path=True)
    nights: int = own("--nights", "How many are shown.", default=30)


@command("state", StateOptions, parent=report)
def state(app: App, options: StateOptions) -> None:
    """Sum up a night and publish the page of all families at <store>/status/.

    It is made of the summaries of the shown nights alone.
    """
    target = NightTarget(app, options)
    names = target.nights.names()
    night = target.night(options.night) if names or options.night != LATEST else ""
    if options.dry_run:
        app.emit_plan([f"summary of {night or 'no night'}", target.store.locate(page.PAGE)])
        return
    body, shown = _pages(app, options, target).publish(night)
    if options.output:
        app.write(options.output, body.decode())
    url = page.page_url(target.channel, target.store)
    app.emit({"page": url, "nights": shown, "bytes": len(body)}, url)


def _pages(app: App, options: StateOptions, target: NightTarget) -> page.NightPages:
    return page.NightPages(
        nights=target.nights,
        channel=judging(app, target.channel),
        families=matrix.FAMILIES | options.own_families(app),
        now=app.now(),
        console=app.console,
        shown=options.nights,
    )
