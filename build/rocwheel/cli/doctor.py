"""`doctor`: what this machine has for building wheels, and what it lacks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rocwheel import dist
from rocwheel import doctor as room
from rocwheel.cli.app import App
from rocwheel.cli.command import command, option
from rocwheel.cli.dist import needed_rocm, request_from
from rocwheel.cli.options import BuildOptions, build_options
from rocwheel.console import columns
from rocwheel.dist import readiness
from rocwheel.dist.readiness import NOTE
from rocwheel.errors import HostError
from rocwheel.host import machine

PURPOSES = ("dist_wheels",)


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(BuildOptions):
    """Options of `doctor`: those of a build say which one is meant."""

    purpose: str | None = None


@command("doctor", DoctorOptions)
@option("--for", "purpose", metavar="COMMAND", help="For this very build: dist_wheels.")
@build_options
def doctor(app: App, options: DoctorOptions) -> int:
    """Show what this machine has for building wheels and what it lacks.

    With --for dist_wheels and that command's options: for exactly that build. The exit status is 8
    when something a build needs is missing.
    """
    if options.purpose is None:
        return _show(app, room.examine(environ=app.environ, cache=app.cache, runner=app.runner))
    room.known_purpose(options.purpose, PURPOSES)
    planned = dist.plan(request_from(app, options, therock=needed_rocm(options)))
    needs = tuple(readiness.examine(planned, runner=app.runner, memory=machine.memory()))
    return _show(app, needs, install=readiness.install_lines(needs))


def _show(
    app: App, rows: Iterable[room.Row | readiness.Need], *, install: tuple[str, ...] = ()
) -> int:
    rows = tuple(rows)
    bad = [row for row in rows if row.remedy]
    table = [(row.name, row.found, row.remedy or "ok") for row in rows if row.name != NOTE]
    notes = (f"note: {row.found}" for row in rows if row.name == NOTE)
    lines = [
        *columns(("what", "found", "state"), table),
        *notes,
        *(f"  {line}" for line in install),
    ]
    document = {"checks": [vars(row) for row in rows], "ok": not bad}
    app.emit({**document, **({"install": list(install)} if install else {})}, "\n".join(lines))
    return HostError.exit_code if bad else 0
