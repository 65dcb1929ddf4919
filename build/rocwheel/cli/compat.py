"""`compat`: which JAX goes with which ROCm, GPU and CPython."""

from __future__ import annotations

from dataclasses import dataclass

from rocwheel.choices import TABLE_FORMS
from rocwheel.cli.app import App
from rocwheel.cli.command import command, options_of, own
from rocwheel.cli.imports import when_run
from rocwheel.cli.target import TargetOptions, must_exist

with when_run():
    from amdgpu_family_matrix import Family
    from rocwheel import compat as tables
    from rocwheel import families


@dataclass(frozen=True, kw_only=True)
class CompatOptions(TargetOptions):
    """Options of `compat`."""

    form: str = own("--format", "How the tables are written.", only=TABLE_FORMS, default="text")


@command("compat", CompatOptions)
@options_of(CompatOptions)
def compat(app: App, options: CompatOptions) -> None:
    """Print which JAX goes with which ROCm, GPU and CPython.

    From the pins and layouts in use and the family matrix; with --channel or --store also what is
    released there, and which suites passed on it. A suite without a run says "not known".
    """
    pins = tables.load_pins(app.home.ci)
    chosen = _families(app, options)
    shown = (tables.buildable(pins), tables.gpus(chosen), _released(app, options, chosen))
    app.emit(tables.document(shown), tables.render(shown, options.form))


def _families(app: App, options: CompatOptions) -> tuple[Family, ...]:
    """Return the family that was named, or all. Raises ConfigError."""
    own = options.own_families(app)
    if options.family:
        return (own.get(options.family) or families.named(options.family, tuple(own)),)
    return (*tables.all_families(), *own.values())


def _released(app: App, options: CompatOptions, chosen: tuple[Family, ...]) -> tables.Table:
    if not (options.channel or options.store_url):
        return tables.unasked()
    channel = options.open(app)
    store = channel.open()
    must_exist(store)
    places = (release for item in chosen for _, release in channel.pairs(store, item.name))
    return tables.released(places)
