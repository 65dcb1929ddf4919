"""`status`: every wheel set of a family: staged, gated, released, and what holds it up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rocwheel.console import duration
from rocwheel.ledger import records, verdicts
from rocwheel.ledger.records import Action
from rocwheel.places import ADOPTED
from rocwheel.release import policy
from rocwheel.release.operations import short
from rocwheel.release.retention import moment
from rocwheel.store import each

if TYPE_CHECKING:
    from datetime import datetime

    from amdgpu_family_matrix import Family
    from rocwheel.index.channels import Channel
    from rocwheel.ledger.records import History
    from rocwheel.places import Place
    from rocwheel.release.policy import Decision

STATES = {
    Action.PROMOTE: "released",
    Action.RESTORE: "released",
    Action.ADOPT: "foreign",
    Action.ROLLBACK: "rolled back",
    Action.PRUNE: "pruned",
    Action.STAGE: "staged",
}


@dataclass(frozen=True, kw_only=True)
class SetStatus:
    """Where one set stands."""

    set_id: str
    last: Action | None  # the last operation that was completed
    jax: str
    rocm: str
    pythons: tuple[str, ...]
    staged: str  # time, "" when it never was
    released: str
    age: timedelta  # since it was staged (or released, where it was not staged here)
    files: int
    yanked: int
    open: str  # an operation that was cut short: "promote by … at …"
    decision: Decision | None  # of a staged set that is not released

    @property
    def state(self) -> str:
        """Released, gated (staged, and may be promoted), staged, rolled back, pruned, foreign."""
        if self.last is None:
            return "incomplete"
        may = self.last is Action.STAGE and self.decision and not self.blocked_by
        return "gated" if may else STATES[self.last]

    @property
    def blocked_by(self) -> str:
        """The first thing that holds the set up, "" when nothing does."""
        if self.open:
            return f"unfinished {self.open}"
        cells = self.decision.blocking if self.decision else ()
        if not cells:
            return ""
        more = f" (+{len(cells) - 1})" if len(cells) > 1 else ""
        cell = cells[0]
        return f"{cell.suite} on {cell.python}: {cell.state.value}: {cell.why}{more}"

    def row(self) -> tuple[str, ...]:
        yanked = f", {self.yanked} yanked" if self.yanked else ""
        return (
            short(self.set_id),
            self.state,
            self.jax,
            self.rocm,
            " ".join(self.pythons),
            duration(self.age.total_seconds()),
            f"{self.files}{yanked}",
            self.blocked_by or ("may be promoted" if self.state == "gated" else ""),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "set": self.set_id,
            "state": self.state,
            "jax": self.jax,
            "rocm": self.rocm,
            "pythons": list(self.pythons),
            "staged": self.staged,
            "released": self.released,
            "age_seconds": round(self.age.total_seconds()),
            "files": self.files,
            "yanked": self.yanked,
            "unfinished": self.open,
            "blocked_by": [
                cell.to_json() for cell in (self.decision.blocking if self.decision else ())
            ],
        }


HEADER = ("set", "state", "JAX", "ROCm", "CPython", "age", "files", "next")


def read(
    staging: Place, release: Place, family: Family, channel: Channel, *, now: datetime
) -> list[SetStatus]:
    """Everything both places know, the youngest first."""
    staged, released = records.histories(staging), records.histories(release)

    def one(set_id: str) -> SetStatus:
        here, there = staged.get(set_id), released.get(set_id)
        decision = None
        if here and here.live and not (there and there.last):
            decision = _decision(staging, set_id, family, channel, now)
        return _status(here, there, decision, now)

    found = each(one, sorted({*staged, *released}), threads=staging.store.connections)
    return sorted(found, key=lambda item: (item.age, item.set_id))


def waiting(found: list[SetStatus], *, hours: float) -> list[SetStatus]:
    """Sets that were staged longer ago than this and are not released."""
    limit = timedelta(hours=hours)
    return [item for item in found if item.last in {Action.STAGE, None} and item.age > limit]


def _decision(
    staging: Place, set_id: str, family: Family, channel: Channel, now: datetime
) -> Decision | None:
    manifest = records.find_manifest(staging, set_id)
    if manifest is None:
        return None
    return policy.decide(manifest, family, channel, verdicts.find(staging, set_id), now=now)


def _status(
    here: History | None, there: History | None, decision: Decision | None, now: datetime
) -> SetStatus:
    histories = [item for item in (there, here) if item]
    leading = histories[0]
    if there and there.last is None and here:
        leading = here  # its promotion is not complete
    first = histories[-1].intents[0]
    unfinished = next((item.open for item in histories if item.open), None)
    live = leading.live.values()
    return SetStatus(
        set_id=leading.set_id,
        last=leading.last,
        jax=first.jax or ("-" if leading.set_id == ADOPTED else ""),
        rocm=first.rocm,
        pythons=first.pythons,
        staged=here.intents[0].time if here else "",
        released=there.intents[0].time if there and there.last else "",
        age=now - moment(first.time),
        files=len(live),
        yanked=sum(item.yanked is not None for item in live),
        open=f"{unfinished.action.value} by {unfinished.by or 'somebody'} at {unfinished.time}"
        if unfinished
        else "",
        decision=decision,
    )
