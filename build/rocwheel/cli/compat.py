"""`compat`: which JAX goes with which ROCm, GPU and CPython."""

from __future__ import annotations

from rocwheel.choices import TABLE_FORMS
from rocwheel.cli.app import App
from rocwheel.cli.command import command, own
from rocwheel.cli.imports import when_run
from rocwheel.cli.target import TargetOptions, family_of, must_exist

with when_run():
    import amdgpu_family_matrix as matrix
    from amdgpu_family_matrix import Family
    from rocwheel import compat as tables


class CompatOptions(TargetOptions):
    form: str = own("--format", "How the tables are written.", only=TABLE_FORMS, default="text")


@command("compat", CompatOptions)
def compat(app: App, options: CompatOptions) -> None:
    """Print which JAX goes with which ROCm, GPU and CPython.

    From the pins and layouts in use and the family matrix; with --channel or --store also what is
    released there, and which suites passed on it. A suite without a run says "not known".
    """
    known = (*matrix.FAMILIES.values(), *options.own_families(app).values())
    chosen = (family_of(app, options),) if options.family else known
    shown = (tables.buildable(app.home.ci), tables.gpus(chosen), _released(app, options, chosen))
    app.emit(tables.document(shown), tables.render(shown, options.form))


def _released(app: App, options: CompatOptions, chosen: tuple[Family, ...]) -> tables.Table:
    if not (options.channel or options.store_url):
        return tables.unasked()
    channel = options.open(app)
    store = channel.open()
    must_exist(store)
    places = (release for item in chosen for _, release in channel.pairs(store, item.name))
    return tables.released(places)
