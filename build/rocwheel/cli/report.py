"""`report`: pages for people, published beside the index and never inside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

import amdgpu_family_matrix as matrix
from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, command, group, option
from rocwheel.cli.nightly_options import LATEST, NightTarget
from rocwheel.cli.target import FamiliesOptions, judging
from rocwheel.errors import ConfigError, ObjectMissingError, ObjectStaleError
from rocwheel.parallel import each
from rocwheel.pipeline import summing
from rocwheel.report import night_page as page
from rocwheel.store import HTML, Headers

PUBLISHED: Final = 5  # times a page is made that another one overtakes


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
        app.emit_plan([f"summary of {night or 'no night'}", target.store.locate(page.PAGE)])
        return
    body, shown = _state(app, target, options, night, names[-options.nights :])
    if options.output:
        (app.cwd / options.output).write_bytes(body)
    url = _url(target)
    app.emit({"page": url, "nights": shown, "bytes": len(body)}, url)


def _state(
    app: App,
    target: NightTarget,
    options: StateOptions,
    night: str,
    shown: tuple[str, ...],
    *,
    tries: int = PUBLISHED,
) -> tuple[bytes, int]:
    """Sum up a night, and the newest one with it where it has a summary; publish the page."""
    past = _summaries(app, target, [name for name in shown if name != night])
    found = {item.night: item for item in past}
    for name in dict.fromkeys(filter(None, (night, *(n for n in shown[-1:] if n in found)))):
        before = ([None, *(item for other, item in found.items() if other != name)])[-1]
        found[name] = _sum_up(app, target, name, options.own_families(app), before)
    wanted = [found[name] for name in shown if name in found]
    try:
        return _publish(app, target, wanted), len(wanted)
    except ObjectStaleError:  # another page was published meanwhile, which may know more
        if not tries:
            raise
        return _state(app, target, options, night, shown, tries=tries - 1)


def _url(target: NightTarget) -> str:
    public = target.channel.public_url.rstrip("/")
    return f"{public}/{page.PAGE}" if public else target.store.http(page.PAGE)


def _sum_up(
    app: App,
    target: NightTarget,
    night: str,
    own: dict[str, matrix.Family],
    before: page.NightSummary | None,
) -> page.NightSummary:
    book = target.nights.book(night, hosts=True)
    channel = judging(app, target.channel)
    families = matrix.FAMILIES | own
    made = summing.summary(book, families, channel, target.store, now=app.now(), before=before)
    target.nights.put_summary(night, made.to_bytes())
    return made


def _summaries(app: App, target: NightTarget, nights: list[str]) -> list[page.NightSummary]:
    """What nights left; one of another version is left out with a warning."""

    def one(night: str) -> page.NightSummary | None:
        data = target.nights.summary(night)
        try:
            where = target.store.locate(target.nights.key(night, "summary.json"))
            return page.NightSummary.from_bytes(data, name=where) if data else None
        except ConfigError as exc:
            app.console.warn(str(exc))
            return None

    return [item for item in each(one, nights, threads=target.store.connections) if item]


def _publish(app: App, target: NightTarget, found: list[page.NightSummary]) -> bytes:
    """Render the page and put it beside the index; return it."""
    public = target.channel.public_url
    body = page.render(
        found,
        now=app.now(),
        title=f"{target.channel.name or 'rocwheel'} wheels",
        root=f"{public.rstrip('/')}/" if public else "../",
    )
    try:
        old, previous = target.store.read(page.PAGE)
    except ObjectMissingError:
        old, previous = b"", None
    if old != body:
        headers = Headers(content_type=HTML, cache_control="public, max-age=60")
        target.store.replace(page.PAGE, body, previous=previous, headers=headers)
    return body
