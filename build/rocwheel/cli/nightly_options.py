"""Options that the nightly's commands share: a night, its store, this machine."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Final

import click

import amdgpu_family_matrix as matrix
from rocwheel.base.errors import ConfigError
from rocwheel.base.process import HostRunner
from rocwheel.base.values import replace
from rocwheel.cli import known
from rocwheel.cli.app import App
from rocwheel.cli.options import given_words, group
from rocwheel.cli.target import StoreOptions, judging, must_hold
from rocwheel.night import cell as cells
from rocwheel.night import page, truth
from rocwheel.night.truth import Truth
from rocwheel.records import families
from rocwheel.release.ledger import nights as night_files
from rocwheel.release.ledger.nights import Book, Nights

LATEST: Final = "latest"
SCHEDULERS: Final = ("local", "slurm", "github")


night_argument = click.argument("night", type=known.OneOf(known.nights))
latest_argument = click.argument("night", type=known.OneOf(known.nights), default=LATEST)
cell_argument = click.argument("cell", type=known.OneOf(known.cells))


class NightTarget:
    """An open store, its channel, and its nights."""

    def __init__(self, app: App, options: StoreOptions) -> None:
        """Raise UsageError or ConfigError for options that cannot be right."""
        self.channel = options.open(app)
        self.store = self.channel.open(probe_key=night_files.PROBE)
        must_hold(self.channel, self.store, may_be_new=True)
        self.nights = Nights(self.store)
        self.words = given_words(app, ("channel", "store", "channels_file"))

    @property
    def page(self) -> str:
        """The URL of the page of all families; "" while there is none."""
        there = self.store.info(page.PAGE)
        return page.page_url(self.channel, self.store) if there else ""

    def night(self, name: str) -> str:
        """Return a night by name; `latest` is the newest. Raises ConfigError when there is none."""
        if name != LATEST:
            return name
        if not (names := self.nights.names()):
            raise ConfigError(
                f"{self.store.url}: has no night", hint="make one: `nightly plan`, or wait for it"
            )
        return names[-1]


def whole(app: App) -> HostRunner:
    """Return a runner whose commands get the caller's whole environment: ours and Slurm's."""
    return HostRunner(dict(app.environ))


def worker(app: App, *, engine: str, job: str = "", how: tuple[str, ...] = ()) -> cells.Worker:
    """Return this machine, for cells to run on, with the data that is in use here."""
    program, data = how or app.program, f"--ci-dir={app.cwd / app.ci_dir}"
    program = (*program, data) if app.ci_dir and data not in program else program
    return cells.Worker(
        here=replace(app.here, runner=whole(app), program=program),
        host=app.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        engine=engine,
        job=job,
    )


def families_of(book: Book) -> dict[str, matrix.Family]:
    """Return all families that a night was planned with. Raises ConfigError."""
    words = (word for cell in book.plan.cells if cell.kind == "page" for word in cell.argv)
    files = {word.partition("=")[2] for word in words if word.startswith("--family-file=")}
    every = dict(matrix.FAMILIES)
    for path in map(Path, files):
        if not path.exists():
            what = f"{path}: no such file, and {book.plan.night} was planned with its families"
            raise ConfigError(what, hint="put it back there")
        every |= families.load(path)
    return every


def truth_of(app: App, target: NightTarget, book: Book) -> Truth:
    """Return what is true of a night now. Raises StoreError, ConfigError."""
    channel, now, warn = judging(app, target.channel), app.now(), app.console.warn
    night, every = book.plan.night, families_of(book)
    return truth.truth(target.nights, night, every, channel, now=now, warn=warn, book=book)


@group("nightly")
def nightly() -> None:
    """Plan a night, run it here, on Slurm or on GitHub Actions, and look after it."""
