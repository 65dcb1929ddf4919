"""Whether a wheel set may be released: a pure function of matrix, channel and stored verdicts.

Each CPython of the manifest has at least one required suite, and each required (suite, CPython)
needs a pass of exactly the manifest's wheels on a GPU of the family. All verdicts of a cell count,
in any order and number: a failure that was ever counted, also under a state that says
something else, makes a pass beside it `flaky`, which needs an approval with a name. A bypass
excuses a runner that does not exist, and nothing else.

How many tests run on a family is what they were on its last released set. Its first set is
`uncalibrated` on a channel that wants that number from a person: an approval that names it.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from amdgpu_family_matrix import Bypass, Family, Level
from rocwheel.base.console import count
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import moment
from rocwheel.records.manifest import Manifest
from rocwheel.records.verdict import PASSED, Demand, KnownSuite, State, Verdict
from rocwheel.release.index.channels import Channel
from rocwheel.release.ledger.verdicts import NOTHING, Coverage, FoundVerdict, lost
from rocwheel.release.trust.policy import SKEW
from rocwheel.release.trust.statements import Approval

ASKED_AGAIN: Final = "smoke"  # of a derived set, whatever its parent passed
WAITS: Final = "no approver's key has signed that it may be released"


class SuiteCell(Plain, frozen=True, kw_only=True):
    suite: str
    python: str
    level: Level
    state: State
    is_blocking: bool
    why: str
    sha256: str = ""  # of the verdict that decided
    ran: int = 0  # tests that passed there
    verdicts: tuple[str, ...] = ()  # every verdict that was looked at: digest and state
    notes: tuple[str, ...] = ()  # what does not count, and is shown
    excused: bool = False  # by the family's bypass
    approval: str = ""  # how `--approve` names it, where a person's word lets it through
    parent: str = ""  # the set that passed it, where this one was derived from that

    @property
    def name(self) -> str:
        return f"{self.suite}:{self.python}"


class Decision(Plain, frozen=True, kw_only=True):
    cells: tuple[SuiteCell, ...]
    bypass: Bypass | None = None  # only when a cell needed it
    approvals: tuple[Approval, ...] = ()  # only those a cell needed

    @property
    def blocking(self) -> tuple[SuiteCell, ...]:
        return tuple(cell for cell in self.cells if cell.is_blocking)

    @property
    def waiting(self) -> tuple[SuiteCell, ...]:
        states = {State.FLAKY, State.UNCALIBRATED}
        return tuple(c for c in self.blocking if c.state in states or WAITS in c.why)

    def evidence(self) -> dict[str, Any]:
        return {name: value for name, value in msgspec.to_builtins(self).items() if value}


def barred(python: str, state: State, why: str) -> SuiteCell:
    return SuiteCell(
        suite="any", python=python, level=Level.REQUIRED, state=state, is_blocking=True, why=why
    )


def decide(
    manifest: Manifest,
    family: Family,
    channel: Channel,
    verdicts: Sequence[FoundVerdict],
    *,
    now: datetime,
    approvals: Sequence[Approval] = (),
    before: Coverage = NOTHING,
    signed: bool = False,
    parent: Decision | None = None,
) -> Decision:
    """Evaluate the policy at the time `now`: no verdict is later, and bypasses expire.

    `before` is what ran of the last released set. With `signed` a bypass needs an approval, too.
    `parent` is what is known of the set that this one was derived from: of what passed there,
    `smoke` alone is asked again.
    """
    by_cell: dict[tuple[str, str], list[FoundVerdict]] = {}
    for verdict in sorted(verdicts, key=lambda item: item.key):
        by_cell.setdefault((verdict.suite, verdict.python), []).append(verdict)
    cells, used, gone = list[SuiteCell](), list[Approval](), lost(verdicts, before)
    judged = list[tuple[_Case, SuiteCell, Approval | None]]()
    for python in manifest.pythons:
        levels = channel.levels(family, python)
        for suite, level in levels.items():
            case = _Case(
                manifest=manifest,
                family=family,
                python=python,
                suite=suite,
                now=now,
                known=channel.suites.get(suite),
                before=before.least(suite, python),
                asks_first=channel.first_sets == "approved",
            )
            cell = _judge(case, by_cell.get((suite, python), ()), level)
            cell = _without(cell, gone.get((suite, python), ()), case)
            if suite != ASKED_AGAIN and (suite, python) not in by_cell:
                cell = _inherited(cell, manifest, parent)
            words = [item for item in approvals if (item.suite, item.python) == (suite, python)]
            against = {text for text in cell.verdicts if not text.endswith(" pass")}
            word = next((w for w in words if not w.signed or against <= {*w.verdicts}), None)
            if words and not word:
                late = f"it has a verdict that came after the approval of {words[0].by}"
                cell = replace(cell, why=f"{cell.why}; {late}")
            judged.append((case, cell, word))
        if Level.REQUIRED not in levels.values():  # it would be released untested
            why = f"the policy of {family.name} requires no suite for this CPython: add a rule "
            cells.append(barred(python, State.NOT_RUN, f"{why}to amdgpu_family_matrix.py"))
    # the number that a person named holds for the suite, whichever the CPython
    named = {cell.suite: word for _, cell, word in judged
             if word and word.ran and word.ran == cell.ran}  # fmt: skip
    for case, cell, word in judged:
        number = named.get(cell.suite) if case.is_first else None
        weighed = _weigh(cell, case, word, number)
        if cell.is_blocking and not weighed.is_blocking and cell.level is Level.REQUIRED:
            words = [item for item in dict.fromkeys((word, number)) if item]
            used += [item for item in words if item not in used]
            if signed and not words:
                why = f"{weighed.why}; {WAITS}"
                weighed = replace(weighed, is_blocking=True, excused=False, why=why)
        cells.append(weighed)
    needed = any(cell.excused for cell in cells)
    return Decision(
        cells=tuple(cells),
        bypass=family.bypass_tests_for_releases if needed else None,
        approvals=tuple(used),
    )


class _Case(Plain, frozen=True, kw_only=True):
    """What a cell's verdicts are compared with."""

    manifest: Manifest
    family: Family
    python: str
    suite: str
    now: datetime
    known: KnownSuite | None  # None where this checkout has no such suite
    before: int | None  # tests that passed on the last released set
    asks_first: bool  # whether a person names that number for the first one

    @property
    def demand(self) -> Demand | None:
        return self.known.demands.of(self.manifest.jax_version) if self.known else None

    @property
    def is_first(self) -> bool:
        """Whether nothing says how many of JAX's own tests run on the family; ours are known."""
        is_jaxs = self.known is not None and not self.known.tests
        return is_jaxs and self.asks_first and self.before is None


def _judge(case: _Case, verdicts: Sequence[FoundVerdict], level: Level) -> SuiteCell:
    unreadable = [item for item in verdicts if not item.verdict]
    readable = [(item, item.verdict) for item in verdicts if item.verdict]
    # what was run in a way of its own counts for nothing
    aside = [pair for pair in readable if pair[1].ran.unofficial and case.family.proof.official]
    kept = [pair for pair in readable if pair not in aside]
    # of several failures of one state people read the newest
    kept.sort(key=lambda pair: pair[0].seen.timestamp() if pair[0].seen else 0.0, reverse=True)
    failures = [(item.sha256, failed, f"{failed.value}: {verdict.reason}") for item, verdict in kept
                if (failed := _failure(verdict, case))]  # fmt: skip
    failures += [(item.sha256, State.FAIL, f"unreadable: {item.problem}") for item in unreadable]
    passes, doubts = list[tuple[str, State, str]](), list[tuple[str, State, str]]()
    for item, verdict in kept:
        if verdict.shard or verdict.state not in PASSED:
            continue
        doubt = next(_doubts(verdict, case), "")
        # what was counted since then, or is not any more, this checkout says
        passed = State.FLAKY if verdict.state is State.FLAKY else State.PASS
        (doubts if doubt else passes).append((item.sha256, passed, doubt))
    sha256, why, ran = "", "", 0
    if passes:
        sha256, state, _ = min(passes, key=lambda item: (item[1] is State.FLAKY, item[0]))
        ran = next(verdict.counts.ran for item, verdict in kept if item.sha256 == sha256)
        if failures:
            other, _, said = min(failures, key=_severity)
            state = State.FLAKY
            why = said if other == sha256 else f"it passed, and {other[:12]} is {said}"
    elif any(state is not State.FLAKY for _, state, _ in failures):
        sha256, state, why = min(failures, key=_severity)
    elif doubts or failures:  # `flaky` may be approved, so it needs a pass to approve
        state = State.NOT_RUN
        sha256, _, why = (doubts or failures)[0]
    else:
        sha256, state, why = _silent(case, kept)
    if state is State.PASS and case.is_first:
        state = State.UNCALIBRATED
        why = f"it is the first set of {case.family.name}, and {ran} of its tests passed"
    approval = f"{case.suite}:{case.python}" + (f"={ran}" if case.is_first else "")
    return SuiteCell(
        suite=case.suite,
        python=case.python,
        level=level,
        state=state,
        is_blocking=state is not State.PASS,
        why=why,
        sha256=sha256,
        ran=ran,
        approval=approval if state in {State.FLAKY, State.UNCALIBRATED} else "",
        verdicts=tuple(
            f"{item.sha256} {item.verdict.state.value if item.verdict else 'unreadable'}"
            for item in verdicts
        ),
        notes=(
            *(f"unreadable: {item.key}: {item.problem}" for item in unreadable),
            *(
                f"unofficial {verdict.state.value}: {item.key}: {', '.join(verdict.ran.unofficial)}"
                for item, verdict in aside
            ),
        ),
    )


def _failure(verdict: Verdict, case: _Case) -> State | None:
    over = case.demand is not None and verdict.counts.flaky > case.demand.flaky_budget
    return verdict.failure or (State.FLAKY if over else None)


def _without(cell: SuiteCell, lost: tuple[str, ...], case: _Case) -> SuiteCell:
    """List the tests that no longer run; more than the suite may lose bar the set."""
    if not lost:
        return cell
    names = ", ".join(lost[:3]) + (", …" if len(lost) > 3 else "")  # noqa: PLR2004 - an example
    said = f"gone since the last released set: {count(len(lost), 'test')}: {names}"
    cell = replace(cell, notes=(*cell.notes, said))
    allowed = case.demand.may_lose if case.demand else 0
    if len(lost) <= allowed or cell.state not in PASSED:
        return cell
    why = f"{said}; may_lose is {allowed}"
    return replace(cell, state=State.TOO_FEW_RAN, is_blocking=True, why=why)


def _inherited(cell: SuiteCell, manifest: Manifest, parent: Decision | None) -> SuiteCell:
    """Return what the set passed that this one was derived from; the cell where it did not."""
    of = manifest.parent.manifest if manifest.parent else ""
    for item in parent.cells if parent and of else ():
        if (item.name, item.state) == (cell.name, State.PASS):
            of = item.parent or of
            notes = (*item.notes, f"passed by {of[:12]}, which this set was derived from")
            return replace(item, level=cell.level, is_blocking=False, parent=of, notes=notes)
    return cell


def _severity(failure: tuple[str, State, str]) -> tuple[bool, int]:
    _, state, _ = failure
    return state is State.FLAKY, list(State).index(state)


def _silent(case: _Case, kept: Sequence[tuple[FoundVerdict, Verdict]]) -> tuple[str, State, str]:
    said = {
        verdict.state: (item.sha256, verdict)
        for item, verdict in reversed(kept)
        if not verdict.shard
    }
    if State.INFRA not in said and not case.family.runners_for(case.suite):
        return "", State.NO_RUNNER, f"{case.family.name} has no runner for {case.suite}"
    for state in (State.INFRA, State.NOT_RUN, State.NO_RUNNER):
        if state in said:
            sha256, verdict = said[state]
            return sha256, state, verdict.reason or state.value
    return "", State.NOT_RUN, "no verdict"


def _doubts(verdict: Verdict, case: _Case) -> Iterator[str]:
    manifest, family, proof = case.manifest, case.family, case.family.proof
    needed = {w.filename: w.sha256 for w in manifest.of_python(case.python)}
    for filename, sha256 in sorted(needed.items()):
        if verdict.wheels.get(filename) != sha256:
            yield f"the verdict is about other bytes of {filename}"
    if verdict.backend != proof.backend:
        yield f"the suite ran on {verdict.backend or 'no backend'}, not on {proof.backend}"
    targets = {device.target for device in verdict.devices}
    shown = set(family.targets) if proof.devices else {"cpu"}
    if (not targets and proof.devices) or targets - shown:
        yield f"the suite ran on {', '.join(sorted(targets)) or 'no device'}, not {family.name}"
    counts = verdict.counts
    passed = counts.passed + counts.flaky * (verdict.state is State.FLAKY)
    if not passed or counts.failed or counts.crashed or counts.timed_out or counts.not_run:
        yield f"the verdict says {verdict.state.value} and counts something else"
    if verdict.jax_version != manifest.jax_version:
        yield f"the suite ran with JAX {verdict.jax_version or 'of no version'}"
    yield from _suite_doubts(verdict, case)
    yield from _rocm_doubts(verdict, case)
    try:
        started, ended = map(moment, (verdict.started, verdict.ended))
        if not started <= ended <= case.now + SKEW:
            yield f"the suite began at {verdict.started} and ended at {verdict.ended}"
    except ConfigError:
        yield f"the verdict has no time: {verdict.started!r}, {verdict.ended!r}"


def _suite_doubts(verdict: Verdict, case: _Case) -> Iterator[str]:
    if case.known is None:
        yield f"this checkout has no suite {case.suite}"
        return
    for difference in verdict.ran.differences(case.known, jax_commit=case.manifest.jax.commit):
        yield f"another suite ran: {difference}"
    for state, message in case.demand.shortfalls(verdict.counts) if case.demand else ():
        if state is not State.FLAKY:
            yield message
    passed, may_lose = verdict.counts.ran, case.demand.may_lose if case.demand else 0
    if case.before is not None and passed < case.before - may_lose:
        what = f"tests that passed: {passed}, on the last released set: {case.before}"
        yield f"{what}; may_lose is {may_lose}"


def _rocm_doubts(verdict: Verdict, case: _Case) -> Iterator[str]:
    """Doubt another ROCm than that of the build, or its packages: it shows nothing of theirs."""
    brought, wanted = verdict.rocm, case.manifest.rocm
    what = brought.name or brought.origin
    if case.family.proof.rocm and case.known and case.known.rocm == "pip":
        if (brought.origin, brought.version) != ("pip", wanted.version):
            yield f"the suite ran on ROCm from {what}, not on {wanted.version} by pip"
    elif case.family.proof.rocm and (not brought.sha256 or brought.sha256 != wanted.sha256):
        yield f"the suite ran on ROCm from {what}, not on {wanted.name} with the manifest's digest"


def _weigh(
    cell: SuiteCell, case: _Case, approval: Approval | None, named: Approval | None = None
) -> SuiteCell:
    if not cell.is_blocking:
        return cell
    if cell.level is Level.ADVISORY:
        return replace(cell, is_blocking=False)
    if cell.state in {State.FLAKY, State.UNCALIBRATED}:
        may_lose = case.demand.may_lose if case.demand else 0
        is_known = not case.is_first or (named is not None and cell.ran >= named.ran - may_lose)
        is_approved = approval is not None or cell.state is State.UNCALIBRATED
        words = [f"approved by {approval.by}: {approval.reason}"] if approval else []
        if named and named is not approval:
            words += [f"{named.by} approved {named.ran}: {named.reason}"]
        return replace(
            cell, is_blocking=not (is_known and is_approved), why="; ".join([cell.why, *words])
        )
    bypass = case.family.bypass_tests_for_releases
    if cell.state is not State.NO_RUNNER or cell.sha256 or bypass is None:
        return cell
    what = f"bypass of {bypass.owner}"
    if bypass.expires < case.now.date():
        return replace(cell, why=f"{cell.why}; the {what} expired on {bypass.expires}")
    why = f"{cell.why}; {what} until {bypass.expires}: {bypass.reason}"
    return replace(cell, is_blocking=False, excused=True, why=why)
