"""Whether a wheel set may be released: a pure function of matrix, channel and verdicts.

Each required (suite, CPython) needs a verdict that passes, on a GPU of the family, of exactly the
manifest's wheels. The newest verdict counts, but a pass after a failure on the same bytes is
`flaky` and needs an approval with a name. A bypass excuses a missing runner and nothing else.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from amdgpu_family_matrix import Level
from rocwheel.values import replace
from rocwheel.verdict import State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import date

    from amdgpu_family_matrix import Bypass, Family
    from rocwheel.index.channels import Channel
    from rocwheel.ledger.records import FoundVerdict
    from rocwheel.manifest import Manifest
    from rocwheel.verdict import Verdict

BACKEND: Final = "rocm"
# What a suite says about the machine or about nothing at all: a later pass is not suspicious.
SILENT: Final = frozenset({State.NO_RUNNER, State.INFRA, State.NOT_RUN})


@dataclass(frozen=True, kw_only=True)
class Approval:
    """Somebody's word that a flaky cell may be released."""

    suite: str
    python: str
    by: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One (suite, CPython): its state, and why it does or does not hold a release up."""

    suite: str
    python: str
    level: Level
    state: State
    is_blocking: bool
    why: str
    verdict: str = ""  # key
    sha256: str = ""  # of the verdict
    excused: bool = False  # by the family's bypass

    def to_json(self) -> dict[str, str]:
        """For a release record: what was known when it was decided."""
        return {
            "suite": self.suite,
            "python": self.python,
            "level": self.level.value,
            "state": self.state.value,
            "why": self.why,
            "verdict": self.verdict,
            "sha256": self.sha256,
        }


@dataclass(frozen=True, kw_only=True)
class Decision:
    """All cells of a manifest on one family."""

    cells: tuple[Cell, ...]
    bypass: Bypass | None = None  # only when a cell needed it
    approvals: tuple[Approval, ...] = ()  # only those a cell needed

    @property
    def blocking(self) -> tuple[Cell, ...]:
        return tuple(cell for cell in self.cells if cell.is_blocking)

    def evidence(self) -> dict[str, Any]:
        """What goes into the release record."""
        evidence: dict[str, Any] = {"cells": [cell.to_json() for cell in self.cells]}
        if self.bypass:
            evidence["bypass"] = {
                "owner": self.bypass.owner,
                "reason": self.bypass.reason,
                "expires": self.bypass.expires.isoformat(),
            }
        if self.approvals:
            evidence["approvals"] = [dataclasses.asdict(item) for item in self.approvals]
        return evidence


def decide(
    manifest: Manifest,
    family: Family,
    channel: Channel,
    verdicts: Sequence[FoundVerdict],
    *,
    today: date,
    approvals: Sequence[Approval] = (),
) -> Decision:
    """Evaluate the policy; `today` is compared with the last day of a bypass."""
    by_cell: dict[tuple[str, str], list[FoundVerdict]] = {}
    for found in sorted(verdicts, key=lambda item: item.number):
        by_cell.setdefault((found.suite, found.python), []).append(found)
    approved = {(item.suite, item.python): item for item in approvals}
    cells = []
    for python in manifest.pythons:
        for suite, level in channel.levels(family, python).items():
            cell = _judge(manifest, family, suite, python, by_cell.get((suite, python), ()))
            cell = replace(cell, level=level)
            cells.append(_weigh(cell, family.bypass_tests_for_releases, approved, today))
    used = tuple(
        approved[cell.suite, cell.python]
        for cell in cells
        if cell.state is State.FLAKY and (cell.suite, cell.python) in approved
    )
    needed = any(cell.excused for cell in cells)
    return Decision(
        cells=tuple(cells),
        bypass=family.bypass_tests_for_releases if needed else None,
        approvals=used,
    )


def _judge(
    manifest: Manifest,
    family: Family,
    suite: str,
    python: str,
    found: Sequence[FoundVerdict],
) -> Cell:
    """The state of one cell, before level, bypass and approvals are looked at."""
    whole = [item for item in found if item.verdict is None or not item.verdict.shard]
    state, why = State.PASS, ""
    if not whole and not family.runners_for(suite):
        state, why = State.NO_RUNNER, f"{family.name} has no runner for {suite}"
    elif not whole:
        state, why = State.NOT_RUN, "no verdict"
    else:
        state, why = _said(whole, manifest, family, suite, python)
    return Cell(
        suite=suite,
        python=python,
        level=Level.REQUIRED,
        state=state,
        is_blocking=state is not State.PASS,
        why=why,
        verdict=whole[-1].key if whole else "",
        sha256=whole[-1].sha256 if whole else "",
    )


def _said(
    found: Sequence[FoundVerdict], manifest: Manifest, family: Family, suite: str, python: str
) -> tuple[State, str]:
    """What the verdicts on one cell say, the newest last."""
    newest = found[-1].verdict
    if newest is None:
        return State.NOT_RUN, f"the newest verdict cannot be read: {found[-1].problem}"
    said = (newest.manifest, newest.family, newest.suite, newest.python)
    if said != (manifest.sha256, family.name, suite, python):
        return State.NOT_RUN, "the verdict is about another manifest, family, suite or CPython"
    if newest.state is not State.PASS:
        return newest.state, newest.reason or newest.state.value
    if problem := next(_doubts(newest, manifest, family, python), ""):
        return State.NOT_RUN, problem
    for earlier in found[:-1]:
        if earlier.verdict is None or earlier.verdict.state not in {State.PASS, *SILENT}:
            state = earlier.verdict.state.value if earlier.verdict else "unreadable"
            return State.FLAKY, f"passed after verdict {earlier.number} was {state}"
    return State.PASS, ""


def _doubts(verdict: Verdict, manifest: Manifest, family: Family, python: str) -> Iterator[str]:
    """Why a pass does not count."""
    needed = {w.filename: w.sha256 for w in manifest.wheels if w.python in {"", python}}
    for filename, sha256 in sorted(needed.items()):
        if verdict.wheels.get(filename) != sha256:
            yield f"the verdict is about other bytes of {filename}"
    if verdict.backend != BACKEND:
        yield f"the suite ran on {verdict.backend or 'no backend'}, not on {BACKEND}"
    targets = {device.target for device in verdict.devices}
    if not targets or targets - set(family.targets):
        yield f"the suite ran on {', '.join(sorted(targets)) or 'no device'}, not {family.name}"
    counts = verdict.counts
    if not counts.ran or counts.failed or counts.crashed or counts.timed_out or counts.not_run:
        yield "the verdict says pass and counts something else"


def _weigh(
    cell: Cell,
    bypass: Bypass | None,
    approved: Mapping[tuple[str, str], Approval],
    today: date,
) -> Cell:
    """Apply level, bypass and approvals to a cell that is not a pass."""
    if not cell.is_blocking:
        return cell
    if cell.level is Level.ADVISORY:
        return replace(cell, is_blocking=False)
    if cell.state is State.FLAKY and (cell.suite, cell.python) in approved:
        approval = approved[cell.suite, cell.python]
        why = f"{cell.why}; approved by {approval.by}: {approval.reason}"
        return replace(cell, is_blocking=False, why=why)
    if cell.state is State.NO_RUNNER and bypass:
        if bypass.expires < today:
            why = f"{cell.why}; the bypass of {bypass.owner} expired on {bypass.expires}"
            return replace(cell, why=why)
        why = f"{cell.why}; bypass of {bypass.owner} until {bypass.expires}: {bypass.reason}"
        return replace(cell, is_blocking=False, why=why, excused=True)
    return cell
