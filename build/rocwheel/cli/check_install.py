"""`check_install`: whether the wheels of a Python work on this machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click

from rocwheel import check_install as script
from rocwheel.base.console import columns
from rocwheel.base.errors import ConfigError, HostError
from rocwheel.base.process import Command
from rocwheel.cli.app import App
from rocwheel.cli.options import command, option


@command("check_install")
@option(
    "--python",
    metavar="PROGRAM",
    default="python3",
    help="The Python to look at, or its environment.",
)
@option("--no-run", is_flag=True, help="Look at files alone; do not start JAX.")
@click.pass_obj
def check_install(app: App, python: str, no_run: bool) -> int:
    """Check whether the ROCm JAX wheels of a Python work on this machine.

    Checks driver and device files, versions, the ROCm that the loader finds, the backend that JAX
    starts, and one kernel. Each line is ok, bad, or not looked at; one bad line makes the exit
    status 8. The check is one file, `rocwheel/check_install.py`, which also runs alone.
    """
    program = _python(python, app.environ.get("PATH", ""))
    argv = (program, script.__file__, "--json", *(("--no-run",) if no_run else ()))
    answer = app.runner.run(Command(argv=argv, env=dict(app.environ)), check=False)
    try:
        document = json.loads(answer.output[answer.output.index("{") :])
    except ValueError:
        raise HostError(
            f"{python}: could not run the check",
            hint="name a CPython of 3.10 or newer: --python",
            detail=answer.output,
        ) from None
    rows = [(row["state"], row["what"], row["found"], row["todo"]) for row in document["checks"]]
    app.emit(document, "\n".join(columns(("state", "what", "found", "to do"), rows)))
    return answer.returncode


def _python(named: str, path: str) -> str:
    if program := shutil.which(Path(named, "bin/python")) or shutil.which(named, path=path):
        return program
    raise ConfigError(
        f"--python: {named}: no such program", hint="name a Python or its environment"
    )
