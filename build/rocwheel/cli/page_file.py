"""`--html FILE`: a page that a command writes for people, and what it must not replace."""

from __future__ import annotations

from pathlib import Path

import click

from rocwheel.cli.app import App
from rocwheel.cli.imports import when_run
from rocwheel.errors import HostError

with when_run():
    from rocwheel import files


def page_path(app: App, asked: Path | None) -> Path | None:
    """Where the page goes. Raises UsageError where it cannot, or would replace what is no page."""
    path = app.path(asked)
    if asked is None or path is None:
        return None
    if str(asked) == "-":
        raise click.UsageError("--html -: a page is not printed; write a file, such as page.html")
    if path.is_dir():
        raise click.UsageError(f"--html {asked}: a folder; write a file in it")
    if path.exists() and not _begins_like_a_page(path):
        raise click.UsageError(f"--html {asked}: exists and is no page; name a new file")
    return path


def _begins_like_a_page(path: Path) -> bool:
    """Return whether a file may be replaced by a page: it is one, or empty."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(512).lstrip().lower()
    return not start or start.startswith((b"<!doctype html", b"<html"))


def write_page(path: Path, content: bytes) -> None:
    """Write the page, whole or not at all. Raises HostError."""
    try:
        files.write(path, content)
    except OSError as exc:  # which names the file that is written aside
        raise HostError(
            f"{path}: {exc.strerror or exc}", hint="choose another file with --html"
        ) from exc
