"""`doctor`: what this machine has for building wheels, and what it lacks."""

from __future__ import annotations

from rocwheel import doctor as room
from rocwheel.cli.app import App
from rocwheel.cli.command import NoOptions, command
from rocwheel.console import columns
from rocwheel.errors import HostError


@command("doctor", NoOptions)
def doctor(app: App, _options: NoOptions) -> int:
    """Show what this machine has for building wheels and what it lacks.

    The exit status is 8 when something a build needs is missing.
    """
    rows = tuple(room.examine(environ=app.environ, cache=app.cache, runner=app.runner))
    bad = [row for row in rows if row.remedy]
    table = [(row.name, row.found, row.remedy or "ok") for row in rows]
    app.emit(
        {"checks": [vars(row) for row in rows], "ok": not bad},
        "\n".join(columns(("what", "found", "state"), table)),
    )
    return HostError.exit_code if bad else 0
