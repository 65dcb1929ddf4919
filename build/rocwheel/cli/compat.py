"""`compat`: which JAX goes with which ROCm, GPU and CPython."""

from __future__ import annotations

import click

import amdgpu_family_matrix as matrix
from rocwheel.base.choices import TABLE_FORMS
from rocwheel.cli.app import App
from rocwheel.cli.options import command, option
from rocwheel.cli.target import TargetOptions, family_of, must_exist, target_options
from rocwheel.tools import compat as tables


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

    The tables come from the pins and layouts in use and the family matrix. With --channel or
    --store they also show what is released there: wheels with the suites that passed, runtime
    images with their components, and the oldest JAX and ROCm with which each library, module and
    feature passed the suite smoke. Without a run the answer is "not known".
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
