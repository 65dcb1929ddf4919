"""`doctor`, `doctor cache`; and for those who install wheels `check_install` and `compat`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click
from msgspec import structs

import amdgpu_family_matrix as matrix
from rocwheel import check_install as script
from rocwheel.base.choices import ALL, TABLE_FORMS, Purpose
from rocwheel.base.console import columns, count, size
from rocwheel.base.download import shown_setting
from rocwheel.base.errors import ConfigError, HostError
from rocwheel.base.process import Command
from rocwheel.base.store import Store
from rocwheel.base.values import replace
from rocwheel.cli import as_called, known
from rocwheel.cli.app import App
from rocwheel.cli.build_options import BYTES, build
from rocwheel.cli.dist import request_from, rocm_source
from rocwheel.cli.options import NUMBER, PATH, alone, command, dry_run, group, option
from rocwheel.cli.target import (
    StoreOptions,
    TargetOptions,
    family_of,
    must_exist,
    store_options,
    target_of,
)
from rocwheel.records import families
from rocwheel.records.build_options import BuildOptions
from rocwheel.release.index import channels
from rocwheel.release.ledger import log
from rocwheel.release.status import unknown_families
from rocwheel.tools import compat as tables
from rocwheel.tools import housekeeping

if TYPE_CHECKING:
    from rocwheel.tools.doctor import Row

VERY_BUILD = "dist_wheels"


def _store(app: App, purpose: Purpose, build: BuildOptions, target: StoreOptions) -> Store | None:
    chosen = families.chosen(build.families, build.own_families) if build.families else ()
    if not (target.channel or target.store):
        return None
    channel = target.open(app)
    if purpose is not Purpose.GATE:
        return channel.open()
    if not chosen:
        raise known.lacking("--family, whose verdicts are stored there", known.families)
    first, *_ = chosen
    staging, _ = channel.pairs(channel.open(), first.name)[0]
    return channel.open(probe_key=staging.runners_probe)


@group("doctor", invoke_without_command=True)
@option(
    "--for",
    "purpose",
    type=click.Choice([*(purpose.value for purpose in Purpose), VERY_BUILD]),
    default="build",
    help="The job; dist_wheels is the build of these options.",
)
@store_options
@build
@alone
@click.pass_obj
def doctor(app: App, purpose: str, target: StoreOptions, build: BuildOptions) -> int:
    """Show what this machine has for a job, and what it lacks.

    With --for dist_wheels and that command's options it checks exactly that build. With --channel
    or --store it shows your identity there, and tests whether you may write. The exit status is 8
    when something needed is missing.
    """
    from rocwheel.base.host import cgroup
    from rocwheel.tools import doctor as examination

    if purpose == VERY_BUILD:
        request = request_from(app, build, therock=rocm_source(build))
        needs = tuple(examination.examine_build(request, app.here, memory=cgroup.memory()))
        return _show(app, needs, install=examination.install_lines(needs))
    meant = Purpose(purpose)
    known_channels = channels.load(app.home.ci / "channels.yaml").values()
    hosts = {urlsplit(item.public_url).hostname for item in known_channels if item.public_url}
    rows = examination.examine(
        replace(app.here, cache=build.cache or app.cache),
        meant,
        hosts=sorted(filter(None, hosts)),
        store=_store(app, meant, build, target),
    )
    return _show(app, (*rows, *_settings(app)))


def _settings(app: App) -> Iterable[Row]:
    """Yield each value that is set outside of the command line, without credentials, and where.

    Raises ConfigError for what no command has an option for.
    """
    from rocwheel.tools.doctor import Row

    context = click.get_current_context().find_root()
    for name in app.settings.values:
        if isinstance(context.command, click.Group) and (
            one := context.command.get_command(context, name)
        ):
            app.settings.defaults(one, name)
    for name, value, where in app.settings.lines():
        yield Row(name=name, found=f"{value}, {where}")
    for name, value in sorted(app.environ.items()):
        if name.startswith("ROCWHEEL_"):
            yield Row(name=name, found=f"{shown_setting(name, value)}, the environment")


def _show(app: App, rows: tuple[Row, ...], *, install: tuple[str, ...] = ()) -> int:
    from rocwheel.tools.doctor import NOTE

    rows = tuple(
        structs.replace(row, remedy=as_called(row.remedy, app), looks=as_called(row.looks, app))
        for row in rows
    )
    is_bad = any(row.state == "bad" for row in rows)
    table = []
    for row in (row for row in rows if row.name != NOTE):
        table.append((row.state, row.name, row.found))
        table += [("", "", f"to look: {row.looks}")] if row.looks else []
        table += [("", "", f"to do: {row.remedy}")] if row.remedy else []
    lines = [
        *columns(("state", "what", "found"), table),
        *(f"note: {row.found}" for row in rows if row.name == NOTE),
        *(f"  {line}" for line in install),
    ]
    checks = [{**structs.asdict(row), "state": row.state} for row in rows]
    more = {"install": list(install)} if install else {}
    app.emit({"checks": checks, "ok": not is_bad, **more}, "\n".join(lines))
    return HostError.exit_code if is_bad else 0


def _folder(app: App, cache_dir: Path | None) -> Path:
    folder = cache_dir or app.cache
    if not folder.is_dir() and (cache_dir or folder.exists()):
        raise ConfigError(f"--cache-dir: {folder}: no such folder", hint="check the path")
    return folder


cache_option = option(
    "--cache-dir",
    metavar="DIR",
    type=PATH,
    help="The cache; default: ROCWHEEL_CACHE_DIR, else ~/.cache/rocwheel.",
)


@doctor.group("cache")
def cache() -> None:
    """Show what is kept between runs, and remove what is unused."""


@cache.command("list")
@cache_option
@click.pass_obj
def list_kept(app: App, cache_dir: Path | None) -> None:
    """Show what is there, how big it is and when it was used."""
    folder = _folder(app, cache_dir)
    items = housekeeping.look(folder)
    total = sum(item.bytes for item in items)
    rows = [item.row(now=app.now().timestamp()) for item in items]
    text = [*columns(housekeeping.HEADER, rows)] if rows else []
    app.emit(
        {"cache": str(folder), "bytes": total, "kept": [item.document() for item in items]},
        "\n".join([*text, f"{size(total)} in {folder}"]),
    )


@cache.command("clean")
@cache_option
@option(
    "--older-than",
    metavar="DAYS",
    type=NUMBER,
    help="Remove what has not been used for this many days.",
)
@option(
    "--to-size",
    metavar="SIZE",
    type=BYTES,
    help="Remove the least recently used until this size is left: 60G.",
)
@dry_run
@click.pass_obj
def clean(
    app: App, cache_dir: Path | None, older_than: float | None, to_size: int | None, dry_run: bool
) -> None:
    """Remove what has long been unused, or enough to reach a size; keep what is in use."""
    if older_than is None and to_size is None:
        raise click.UsageError("give --older-than DAYS or --to-size SIZE")
    folder = _folder(app, cache_dir)
    older = None if older_than is None else older_than * housekeeping.DAY
    chosen = housekeeping.choose(
        housekeeping.look(folder), now=app.now().timestamp(), older=older, most=to_size
    )
    done = chosen if dry_run else housekeeping.remove(folder, chosen)
    freed = sum(item.bytes for item in done)
    said = "would be removed" if dry_run else "removed"
    lines = [f"{said}: {item.path} ({size(item.bytes)})" for item in done]
    app.emit(
        {"removed": [item.document() for item in done], "bytes": freed, "dry_run": dry_run},
        "\n".join([*lines, f"{count(len(done), 'thing')}, {size(freed)}, {said}"]),
    )


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
    JAX starts, and one kernel. The exit status is 8 if a line is bad. The file
    `rocwheel/check_install.py` also runs alone.
    """
    named, path = Path(python, "bin/python"), app.environ.get("PATH", "")
    if not (program := shutil.which(named) or shutil.which(python, path=path)):
        hint = "name a Python or its environment"
        raise ConfigError(f"--python: {python}: no such program", hint=hint)
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


@command("compat")
@option(
    "--format",
    "form",
    type=click.Choice(TABLE_FORMS),
    default="text",
    help="The form of the tables.",
)
@target_of("GPU family whose GPUs and releases are shown; default: all.")
@click.pass_obj
def compat(app: App, form: str, target: TargetOptions) -> None:
    """Print which JAX goes with which ROCm, GPU and CPython.

    With --channel or --store the tables also show what is released there: wheels with the suites
    that passed, runtime images, and the oldest JAX and ROCm with which each library, module and
    feature passed the suite smoke.
    """
    every = matrix.FAMILIES | target.own_families(app)
    chosen = (family_of(app, target),) if target.family else tuple(every.values())
    about = tuple(map(tables.unasked, tables.HEADERS))
    if target.channel or target.store:
        channel = target.open(app)
        must_exist(channel, store := channel.open())
        pairs = [pair for item in chosen for pair in channel.pairs(store, item.name)]
        about = tables.of_channel(release for _, release in pairs)
        states = [] if target.family else [log.read(at) for _, at in channel.pairs(store, ALL)]
        if unknown := unknown_families(channel, states, every):
            app.console.warn(unknown)
    else:
        app.console.info("to see what is released, add --channel or --store")
    shown = (tables.buildable(app.home.ci), tables.gpus(chosen), *about)
    app.emit(tables.document(shown), tables.render(shown, form))
