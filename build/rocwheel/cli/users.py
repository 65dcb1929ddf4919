"""`check_install` and `compat`: what people ask who install wheels."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click

import amdgpu_family_matrix as matrix
from rocwheel import check_install as script
from rocwheel.base.choices import TABLE_FORMS
from rocwheel.base.console import columns
from rocwheel.base.errors import ConfigError, HostError
from rocwheel.base.process import Command
from rocwheel.cli.app import App
from rocwheel.cli.options import command, option
from rocwheel.cli.target import TargetOptions, family_of, must_exist, target_options
from rocwheel.tools import compat as tables


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

    Looks at driver and device files, versions, the ROCm that the loader finds, the backend that
    JAX starts, and one kernel. One bad line makes the exit status 8. The file
    `rocwheel/check_install.py` also runs alone.
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


@command("compat")
@option(
    "--format",
    "form",
    type=click.Choice(TABLE_FORMS),
    default="text",
    help="How the tables are written.",
)
@target_options
@click.pass_obj
def compat(app: App, form: str, target: TargetOptions) -> None:
    """Print which JAX goes with which ROCm, GPU and CPython.

    With --channel or --store the tables also show what is released there: wheels with the suites
    that passed, runtime images, and the oldest JAX and ROCm with which each library, module and
    feature passed the suite smoke.
    """
    known = (*matrix.FAMILIES.values(), *target.own_families(app).values())
    chosen = (family_of(app, target),) if target.family else known
    about = tuple(map(tables.unasked, tables.HEADERS))
    if target.channel or target.store:
        channel = target.open(app)
        must_exist(channel, store := channel.open())
        pairs = (pair for item in chosen for pair in channel.pairs(store, item.name))
        about = tables.of_channel(release for _, release in pairs)
    else:
        app.console.info("to see what is released, add --channel or --store")
    shown = (tables.buildable(app.home.ci), tables.gpus(chosen), *about)
    app.emit(tables.document(shown), tables.render(shown, form))
