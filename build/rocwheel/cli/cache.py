"""`doctor cache`: lists what is kept between runs, and removes it."""

from __future__ import annotations

from pathlib import Path

import click

from rocwheel.base.console import columns, count, size
from rocwheel.base.errors import ConfigError
from rocwheel.cli.app import App
from rocwheel.cli.build_options import BYTES
from rocwheel.cli.options import NUMBER, PATH, dry_run, group, option, option_set
from rocwheel.tools import housekeeping


def _folder(cache_dir: Path | None) -> Path:
    """Return the cache. Raises ConfigError for a named folder that is missing, or a file."""
    folder: Path = cache_dir or click.get_current_context().obj.cache
    if not folder.is_dir() and (cache_dir or folder.exists()):
        raise ConfigError(f"--cache-dir: {folder}: no such folder", hint="check the path")
    return folder


cache_option = option_set(
    "folder",
    _folder,
    option(
        "--cache-dir",
        metavar="DIR",
        type=PATH,
        help="Default: ROCWHEEL_CACHE_DIR, ~/.cache/rocwheel.",
    ),
)


@group("cache")
def cache() -> None:
    """Show what is kept between runs, and remove what is unused."""


@cache.command("list")
@cache_option
@click.pass_obj
def list_kept(app: App, folder: Path) -> None:
    """Show what is there, how big it is and when it was used."""
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
    help="Remove what was unused for so many days.",
)
@option(
    "--to-size",
    metavar="SIZE",
    type=BYTES,
    help="Remove what was unused longest until this size is left: 60G.",
)
@dry_run
@click.pass_obj
def clean(
    app: App, folder: Path, older_than: float | None, to_size: int | None, dry_run: bool
) -> None:
    """Remove what was not used for long, or down to a size; things in use stay."""
    if older_than is None and to_size is None:
        raise click.UsageError("give --older-than DAYS or --to-size SIZE")
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
