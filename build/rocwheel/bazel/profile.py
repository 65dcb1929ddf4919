"""Reads Bazel's profile (gzipped JSON trace): where the time of a build went."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rocwheel.build_record import InvocationRecord, TimedAction

SLOWEST: Final = 10


def critical_lines(record: InvocationRecord) -> Iterator[str]:
    """Yield the critical path for people; nothing when nothing ran."""
    if record.critical_path:
        yield f"critical path {record.critical_path_milliseconds / 1000:.1f} s:"
        yield from map(line, record.critical_path)


def line(action: TimedAction) -> str:
    """Return an action and its duration for people."""
    return f"  {action.milliseconds / 1000:7.1f} s  {action.name}"


def read_profile(path: Path) -> tuple[tuple[TimedAction, ...], tuple[TimedAction, ...]]:
    """Return the critical path, first action first, and the slowest actions, slowest first.

    A profile is there for people: one that is missing, cut short or of another shape has none.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            events = json.load(file)["traceEvents"]
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return (), ()
    actions = sorted(_timed(events, "action processing"), key=lambda item: -item.milliseconds)
    return tuple(_timed(events, "critical path component")), tuple(actions[:SLOWEST])


def _timed(events: list[dict[str, Any]], category: str) -> Iterator[TimedAction]:
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") != category or "BazelWorkspaceStatusAction" in name:
            continue
        name = name.removeprefix("action '").removesuffix("'")
        yield TimedAction(name=name, milliseconds=round(float(event.get("dur", 0)) / 1000))
