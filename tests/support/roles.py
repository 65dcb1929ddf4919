"""What each role may do, as users of a server, and a night of which each role runs one cell."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from support.s3 import BUCKET, SECRET, seaweedfs
from support.wheelset import FAMILY

from rocwheel import __version__
from rocwheel.release import rights
from rocwheel.release.index import channels
from rocwheel.release.ledger.nights import Cell, NightPlan

# The cell of each role, and cells whose ends it must not tell.
CELLS = {
    "builder": "build.jax",
    "runner": f"gate.jax.{FAMILY.name}.3.12.smoke",
    "imager": f"image.jax.{FAMILY.name}.3.12.jax",
    "reporter": "page",
    "promoter": "prune",
}


def a_night(url: str) -> NightPlan:
    """One cell for each role, each a command of ours that passes at once."""
    argv = ("trust", "rights", "--role=runner", f"--store={url}")
    return NightPlan(
        night="one", made="2026-05-01T00:00:00Z", by="me", tool=__version__, target=(),
        recipes=(), cells=tuple(Cell(name=name, kind="x", argv=argv) for name in CELLS.values()),
    )  # fmt: skip


@contextlib.contextmanager
def private_bucket(
    folder: Path, family: str = FAMILY.name
) -> Iterator[tuple[str, Callable[[str], dict[str, str]]]]:
    """A store that strangers may not read, and the environment of each role on it.

    A role may write what `trust rights` lets it, no more; all may read, as with `*` there.
    """
    url = f"s3://{BUCKET}/place"
    channel, users = channels.of_store(url), {}
    for name, role in rights.ROLES.items():
        keys = [
            key.removeprefix("arn:aws:s3:::")
            for statement in rights.policy(channel, role, family=family)["Statement"]
            if statement["Effect"] == "Allow" and "s3:PutObject" in statement["Action"]
            for key in statement["Resource"]
        ]
        # It takes no pattern that does not end in a star.
        users[name] = ("Read", "List", *(f"Write:{key.rstrip('*')}*" for key in keys))
    with seaweedfs(folder, users=users) as server:
        server.bucket(BUCKET)
        yield url, lambda name: server.environ(f"rocwheel{name}", SECRET)
