"""`index repair`: every page shows what the log says, and what was pruned is deleted.

The way out of whatever a stopped run, a lost page or a hand on the bucket left at one place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rocwheel.release import audit, retention

if TYPE_CHECKING:
    from rocwheel.places import Place


@dataclass(frozen=True, kw_only=True)
class Repair:
    """What is wrong with the pages of a place, and what was deleted there."""

    place: Place
    found: tuple[str, ...]
    deleted: tuple[str, ...] = ()  # keys; known when it was applied

    def lines(self) -> list[str]:
        locate = self.place.store.locate
        return [*self.found, *(f"deleted {locate(key)}" for key in self.deleted)]

    def to_json(self, *, dry_run: bool) -> dict[str, Any]:
        done = "planned" if dry_run else "repaired"
        return {
            "state": done if self.found or self.deleted else "nothing-to-do",
            "place": self.place.location,
            "found": list(self.found),
            "deleted": list(self.deleted),
        }


def plan(place: Place) -> Repair:
    """Compare every page with the log; write nothing."""
    return Repair(place=place, found=tuple(audit.check_pages(place)))


def apply(repair: Repair) -> Repair:
    """Write every page again and delete; the same with the keys that were deleted."""
    return replace(repair, deleted=retention.repair(repair.place))
