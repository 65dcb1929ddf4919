"""`report`: pages for people, published beside the index and never inside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import amdgpu_family_matrix as matrix
from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, command, dry_run_option, group, option
from rocwheel.cli.night import NightTarget
from rocwheel.cli.target import StoreOptions, judging, store_options
from rocwheel.errors import ConfigError, ObjectMissingError
from rocwheel.pipeline import summing
from rocwheel.report import state as page
from rocwheel.store import HTML, Headers, each

KEY = "status/index.html"


@group("report")
def report() -> None:
    """Make pages for people."""


@dataclass(frozen=True, kw_only=True)
class StateOptions(StoreOptions, DryRun):
    """Options of `report state`."""

    output: Path | None
    nights: int


@command("state", StateOptions, parent=report)
@option("--output", metavar="PATH", help="Write it there, too.", type=Path)
@option("--nights", type=int, default=30, show_default=True, help="How many are shown.")
@store_options
@dry_run_option
def state(app: App, options: StateOptions) -> None:
    """Sum up the newest night and publish the page of all families at <store>/status/.

    It is made of the summaries of the shown nights alone.
    """
    target = NightTarget(app, options)
    names = target.nights.names()
    if options.dry_run:
        newest = names[-1] if names else "no night"
        app.emit_plan([f"summary of {newest}", target.store.locate(KEY)])
        return
    if names:
        _sum_up(app, target, names[-1])
    found = _summaries(app, target, names[-options.nights :])
    body = _publish(app, target, found)
    if options.output:
        (app.cwd / options.output).write_bytes(body)
    public = target.channel.public_url.rstrip("/")
    url = f"{public}/{KEY}" if public else target.store.http(KEY)
    app.emit({"page": url, "nights": len(found), "bytes": len(body)}, url)


def _sum_up(app: App, target: NightTarget, night: str) -> None:
    book = target.nights.book(night)
    channel = judging(app, target.channel)
    made = summing.summary(book, matrix.FAMILIES, channel, target.store, now=app.now())
    target.nights.put_summary(night, made.to_bytes())


def _summaries(app: App, target: NightTarget, nights: tuple[str, ...]) -> list[page.NightSummary]:
    """What nights left; one of another version is left out with a warning."""

    def one(night: str) -> page.NightSummary | None:
        data = target.nights.summary(night)
        try:
            return page.NightSummary.from_bytes(data, name=night) if data else None
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
        old, previous = target.store.read(KEY)
    except ObjectMissingError:
        old, previous = b"", None
    if old != body:
        headers = Headers(content_type=HTML, cache_control="public, max-age=60")
        target.store.replace(KEY, body, previous=previous, headers=headers)
    return body
