"""A night of which each role runs one cell."""

from __future__ import annotations

from support.wheelset import FAMILY

from rocwheel import __version__
from rocwheel.ledger.nights import Cell, NightPlan

# The cell of each role, and cells whose ends it must not tell.
CELLS = {
    "builder": "build.jax",
    "stager": f"stage.jax.{FAMILY.name}",
    "runner": f"gate.jax.{FAMILY.name}.3.12.smoke",
    "imager": f"image.jax.{FAMILY.name}.3.12.jax",
    "reporter": "page",
    "promoter": "prune",
}


def a_night(url: str) -> NightPlan:
    """One cell for each role, each a command of ours that passes at once."""
    argv = ("channels", "rights", "--role=runner", f"--store={url}")
    return NightPlan(
        night="one", made="2026-05-01T00:00:00Z", by="me", tool=__version__, target=(),
        recipes=(), cells=tuple(Cell(name=name, kind="x", argv=argv) for name in CELLS.values()),
    )  # fmt: skip
