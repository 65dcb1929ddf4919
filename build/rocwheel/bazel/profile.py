"""Reads Bazel's profile (gzipped JSON trace): where the time of a build went."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rocwheel.build_record import TimedAction

SLOWEST: Final = 10


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The critical path, first action first, and the slowest actions, slowest first."""

    critical_path: tuple[TimedAction, ...] = ()
    slowest: tuple[TimedAction, ...] = ()

    @property
    def critical_seconds(self) -> float:
        return sum(item.milliseconds for item in self.critical_path) / 1000

    def critical_lines(self) -> Iterator[str]:
        """Yield the critical path for people; nothing when nothing ran."""
        if self.critical_path:
            yield f"critical path {self.critical_seconds:.1f} s:"
            yield from map(line, self.critical_path)


def line(action: TimedAction) -> str:
    """Return an action and its duration for people."""
    return f"  {action.milliseconds / 1000:7.1f} s  {action.name}"


def read_profile(path: Path) -> Summary:
    """Read a profile; one that is missing, cut short or of another shape gives an empty summary.

    It is there for people, and a build does not fail for want of it.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
            events = json.load(file)["traceEvents"]
    except (OSError, EOFError, ValueError, KeyError, TypeError):
        return Summary()
    actions = sorted(_timed(events, "action processing"), key=lambda item: -item.milliseconds)
    return Summary(
        critical_path=tuple(_timed(events, "critical path component")),
        slowest=tuple(actions[:SLOWEST]),
    )


def _timed(events: list[dict[str, Any]], category: str) -> Iterator[TimedAction]:
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") != category or "BazelWorkspaceStatusAction" in name:
            continue
        name = name.removeprefix("action '").removesuffix("'")
        yield TimedAction(name=name, milliseconds=round(float(event.get("dur", 0)) / 1000))
