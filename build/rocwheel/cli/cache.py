"""`cache`: what is kept between runs, and removing it."""

from __future__ import annotations

import click

from rocwheel.base.errors import ConfigError
from rocwheel.base.option import OptionSet, opt
from rocwheel.cli.app import App
from rocwheel.cli.command import NUMBER, DryRun, command, group, own
from rocwheel.cli.imports import when_run

with when_run():
    from pathlib import Path

    from rocwheel.base.console import columns, count, size
    from rocwheel.base.versions import byte_count
    from rocwheel.tools import housekeeping


class CacheOptions(OptionSet):
    """The option that names the cache folder."""

    cache_dir: str = opt(
        "Inputs", "--cache-dir DIR", "Default: ROCWHEEL_CACHE_DIR, ~/.cache/rocwheel."
    )

    def folder(self, app: App) -> Path:
        """Return the cache. Raises ConfigError for what is no folder, or named and not there."""
        folder = app.cwd / self.cache_dir if self.cache_dir else app.cache
        if not folder.is_dir() and (self.cache_dir or folder.exists()):
            raise ConfigError(f"--cache-dir: {folder}: no such folder", hint="check the path")
        return folder


@group("cache")
def cache() -> None:
    """Show what is kept between runs, and remove the unused."""


@command("list", CacheOptions, parent=cache)
def list_kept(app: App, options: CacheOptions) -> None:
    """Show what is there, how big it is and when it was used."""
    folder = options.folder(app)
    items = housekeeping.look(folder)
    total = sum(item.bytes for item in items)
    rows = [item.row(now=app.now().timestamp()) for item in items]
    text = [*columns(housekeeping.HEADER, rows)] if rows else []
    app.emit(
        {"cache": str(folder), "bytes": total, "kept": [item.document() for item in items]},
        "\n".join([*text, f"{size(total)} in {folder}"]),
    )


class CleanOptions(CacheOptions, DryRun):
    older_than: float | None = own(
        "--older-than DAYS", "Remove what was not used for so long.", kind=NUMBER, default=None
    )
    to_size: int | None = own(  # bytes
        "--to-size SIZE",
        "Remove the longest unused until this is left: 60G.",
        parse=lambda text: byte_count(text) if text else None,
        default=None,
    )


@command("clean", CleanOptions, parent=cache)
def clean(app: App, options: CleanOptions) -> None:
    """Remove what was not used for long, or down to a size; what is in use stays."""
    if options.older_than is None and options.to_size is None:
        raise click.UsageError("give --older-than DAYS or --to-size SIZE")
    folder = options.folder(app)
    older = None if options.older_than is None else options.older_than * housekeeping.DAY
    chosen = housekeeping.choose(
        housekeeping.look(folder), now=app.now().timestamp(), older=older, most=options.to_size
    )
    done = chosen if options.dry_run else housekeeping.remove(folder, chosen)
    freed = sum(item.bytes for item in done)
    said = "would be removed" if options.dry_run else "removed"
    lines = [f"{said}: {item.path} ({size(item.bytes)})" for item in done]
    app.emit(
        {"removed": [item.document() for item in done], "bytes": freed, "dry_run": options.dry_run},
        "\n".join([*lines, f"{count(len(done), 'thing')}, {size(freed)}, {said}"]),
    )
