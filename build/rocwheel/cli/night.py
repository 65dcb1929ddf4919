"""What the commands of the nightly share: options that name a night, its store, this machine."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from rocwheel.cli.app import App
from rocwheel.cli.command import group
from rocwheel.cli.target import StoreOptions
from rocwheel.errors import ConfigError
from rocwheel.ledger.nights import PROBE, Nights
from rocwheel.pipeline import cell as cells
from rocwheel.pipeline import slurm
from rocwheel.process import HostRunner

if TYPE_CHECKING:
    from collections.abc import Callable

    from rocwheel.ledger.nights import Book
    from rocwheel.pipeline.standing import CellStanding
    from rocwheel.verdict import State

LATEST: Final = "latest"


@dataclass(frozen=True, kw_only=True)
class NightOptions(StoreOptions):
    """A night of a store."""

    night: str


night_argument = click.argument("night", default=LATEST)


class NightTarget:
    """An open store, its channel, and its nights."""

    def __init__(self, app: App, options: StoreOptions) -> None:
        """Raises UsageError or ConfigError."""
        self.channel = options.open(app)
        self.store = self.channel.open(probe_key=PROBE)
        self.nights = Nights(self.store)
        path = app.path(options.channels_file)
        words = (
            [f"--channel={options.channel}"]
            if options.channel
            else [f"--store={options.store_url}"]
        )
        words += [f"--channels-file={path}"] if path else []
        self.words = tuple(words)

    def night(self, name: str) -> str:
        """A night by name; `latest` is the newest. Raises ConfigError when there is none."""
        if name != LATEST:
            return name
        names = self.nights.names()
        if not names:
            raise ConfigError(
                f"{self.store.url}: has no night", hint="make one: nightly plan, or wait for it"
            )
        return names[-1]


def whole(app: App) -> HostRunner:
    """Starts what needs the caller's whole environment: our own commands, and Slurm's."""
    return HostRunner(dict(app.environ))


def _why_ended(app: App, job: str) -> Callable[[], tuple[State, str]]:
    restarts = int(app.environ.get("SLURM_RESTART_COUNT", "0") or 0)
    return slurm.why_ended(whole(app), job, restarts)


def worker(app: App, *, engine: str, job: str, how: tuple[str, ...] = ()) -> cells.Worker:
    """This machine, for cells to run on."""
    return cells.Worker(
        runner=whole(app),
        program=how or app.program,
        host=app.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        engine=engine,
        job=job,
        scratch=app.cache / "nightly",
        cache=app.cache,
        console=app.console,
        now=app.now,
        why_ended=_why_ended(app, job) if engine == "slurm" else None,
        collect=partial(slurm.collect, runner=whole(app)) if engine == "slurm" else None,
    )


@group("nightly")
def nightly() -> None:
    """Plan a night, run it here, on Slurm or on GitHub Actions, and look after it."""


def document_of(book: Book, found: dict[str, CellStanding]) -> dict[str, Any]:
    """Where every cell stands, for a program."""
    return {
        "night": book.plan.night,
        "cells": [
            {
                "cell": name,
                "phase": item.phase.value,
                "state": item.word,
                "passed": item.passed,
                "reason": item.reason,
                "attempts": len(item.attempts),
            }
            for name, item in found.items()
        ],
        "quarantined": sorted(book.quarantined),
    }
