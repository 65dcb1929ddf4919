"""`compat`: which JAX goes with which ROCm, GPU and CPython."""

from __future__ import annotations

from rocwheel.base.choices import TABLE_FORMS
from rocwheel.cli.app import App
from rocwheel.cli.command import command, own
from rocwheel.cli.imports import when_run
from rocwheel.cli.target import TargetOptions, family_of, must_exist

with when_run():
    import amdgpu_family_matrix as matrix
    from rocwheel.tools import compat as tables


class CompatOptions(TargetOptions):
    form: str = own("--format", "How the tables are written.", only=TABLE_FORMS, default="text")


@command("compat", CompatOptions)
def compat(app: App, options: CompatOptions) -> None:
    """Print which JAX goes with which ROCm, GPU and CPython.

    From the pins and layouts in use and the family matrix; with --channel or --store also what is
    released there: wheels with the suites that passed, runtime images with their components, and
    since which JAX and ROCm each library, module and feature passed the suite smoke. What no run
    tried is "not known".
    """
    known = (*matrix.FAMILIES.values(), *options.own_families(app).values())
    chosen = (family_of(app, options),) if options.family else known
    about = tuple(map(tables.unasked, tables.HEADERS))
    if options.channel or options.store_url:
        channel = options.open(app)
        must_exist(store := channel.open())
        pairs = (pair for item in chosen for pair in channel.pairs(store, item.name))
        about = tables.of_channel(release for _, release in pairs)
    else:
        app.console.info("what is released was not looked at: --channel or --store looks")
    shown = (tables.buildable(app.home.ci), tables.gpus(chosen), *about)
    app.emit(tables.document(shown), tables.render(shown, options.form))
