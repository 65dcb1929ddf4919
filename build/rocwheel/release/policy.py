"""Whether a wheel set may be released: a pure function of matrix, channel and stored verdicts.

Each CPython of the manifest has at least one required suite, and each required (suite, CPython)
needs a pass of exactly the manifest's wheels on a GPU of the family. All verdicts of a cell count,
whatever their order and number: a failure that was ever counted, also under a state that says
something else, makes a pass beside it `flaky`, which needs an approval with a name. Nothing else is
approved. A bypass excuses a runner that does not exist, an excuse of the family a suite whose tests
were never counted on it, and neither excuses anything else.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
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
from rocwheel.release.ledger.verdicts import FoundVerdict
from rocwheel.release.trust.policy import SKEW
from rocwheel.release.trust.statements import Approval

WAITS: Final = "no approver's key has signed that it may be released"


class SuiteCell(Plain, frozen=True, kw_only=True):
    """One (suite, CPython): its state, and why it does or does not hold a release up."""

    suite: str
    python: str
    level: Level
    state: State
    is_blocking: bool
    why: str
    sha256: str = ""  # of the verdict that decided
    verdicts: tuple[str, ...] = ()  # every verdict that was looked at: digest and state
    notes: tuple[str, ...] = ()  # what does not count, and is shown
    excused: bool = False  # by the family's bypass

    @property
    def name(self) -> str:
        """How a command line names it."""
        return f"{self.suite}:{self.python}"


class Decision(Plain, frozen=True, kw_only=True):
    """All cells of a manifest on one family."""

    cells: tuple[SuiteCell, ...]
    bypass: Bypass | None = None  # only when a cell needed it
    approvals: tuple[Approval, ...] = ()  # only those a cell needed

    @property
    def blocking(self) -> tuple[SuiteCell, ...]:
        return tuple(cell for cell in self.cells if cell.is_blocking)

    @property
    def waiting(self) -> tuple[SuiteCell, ...]:
        """The cells that block and that a person's word would let pass."""
        return tuple(c for c in self.blocking if c.state is State.FLAKY or WAITS in c.why)

    def evidence(self) -> dict[str, Any]:
        """Return what goes into the release record: what was known when it was decided."""
        return {name: value for name, value in msgspec.to_builtins(self).items() if value}


def barred(python: str, state: State, why: str) -> SuiteCell:
    """Return a cell that blocks whatever the suites said."""
    return SuiteCell(
        suite="any", python=python, level=Level.REQUIRED, state=state, is_blocking=True, why=why
    )


def decide(
    manifest: Manifest,
    family: Family,
    channel: Channel,
    verdicts: Iterable[FoundVerdict],
    *,
    now: datetime,
    approvals: Sequence[Approval] = (),
    lost: Mapping[tuple[str, str], tuple[str, ...]] | None = None,
    signed: bool = False,
) -> Decision:
    """Evaluate the policy; nothing may have ended after `now`, no bypass before its day.

    `lost` are tests of the last released set that this one has not, by suite and CPython. With
    `signed` a bypass and an excuse need an approval, too.
    """
    by_cell: dict[tuple[str, str], list[FoundVerdict]] = {}
    for verdict in sorted(verdicts, key=lambda item: item.key):
        by_cell.setdefault((verdict.suite, verdict.python), []).append(verdict)
    cells, used = list[SuiteCell](), list[Approval]()
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
            )
            cell = _judge(case, by_cell.get((suite, python), ()), level)
            cell = _without(cell, (lost or {}).get((suite, python), ()), case)
            words = [item for item in approvals if (item.suite, item.python) == (suite, python)]
            against = {text for text in cell.verdicts if not text.endswith(" pass")}
            word = next((w for w in words if not w.signed or against <= {*w.verdicts}), None)
            if words and not word:
                late = f"it has a verdict that came after the approval of {words[0].by}"
                cell = replace(cell, why=f"{cell.why}; {late}")
            weighed = _weigh(cell, case, word)
            if cell.is_blocking and not weighed.is_blocking and level is Level.REQUIRED:
                used += [word] if word else []
                if signed and not word:
                    why = f"{weighed.why}; {WAITS}"
                    weighed = replace(weighed, is_blocking=True, excused=False, why=why)
            cells.append(weighed)
        if Level.REQUIRED not in levels.values():  # it would be released untested
            why = f"the policy of {family.name} requires no suite for this CPython: add a rule "
            cells.append(barred(python, State.NOT_RUN, f"{why}to amdgpu_family_matrix.py"))
    needed = any(cell.excused for cell in cells)
    return Decision(
        cells=tuple(cells),
        bypass=family.bypass_tests_for_releases if needed else None,
        approvals=tuple(used),
    )


class _Case(Plain, frozen=True, kw_only=True):
    """What a cell's verdicts are held against."""

    manifest: Manifest
    family: Family
    python: str
    suite: str
    now: datetime
    known: KnownSuite | None  # None where this checkout has no such suite

    @property
    def demand(self) -> Demand | None:
        """What the suite demands for the set's JAX."""
        jax, family = self.manifest.jax_version, self.family.name
        return self.known.demands.of(jax, family) if self.known else None

    @property
    def uncounted(self) -> str:
        """Return why it is not known how many tests must run, "" where it is."""
        return self.demand.uncounted if self.demand else ""


def _judge(case: _Case, verdicts: Sequence[FoundVerdict], level: Level) -> SuiteCell:
    """Return the state of one cell, before level, bypass and approvals are looked at."""
    unreadable = [item for item in verdicts if not item.verdict]
    readable = [(item, item.verdict) for item in verdicts if item.verdict]
    # what was run in a way of its own counts for nothing
    aside = [pair for pair in readable if pair[1].ran.unofficial and case.family.proof.official]
    told = [pair for pair in readable if pair not in aside]
    failures = [(item.sha256, failed, f"{failed.value}: {verdict.reason}") for item, verdict in told
                if (failed := _failure(verdict, case))]  # fmt: skip
    failures += [(item.sha256, State.FAIL, f"unreadable: {item.problem}") for item in unreadable]
    passes, doubts = list[tuple[str, State, str]](), list[tuple[str, State, str]]()
    for item, verdict in told:
        if verdict.shard or verdict.state not in PASSED:
            continue
        doubt = next(_doubts(verdict, case), "")
        # what was counted since then, or is not any more, this checkout says
        passed = State.FLAKY if verdict.state is State.FLAKY else State.PASS
        (doubts if doubt else passes).append((item.sha256, passed, doubt))
    sha256, why = "", ""
    if passes:
        sha256, state, _ = min(passes, key=lambda item: (item[1] is State.FLAKY, item[0]))
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
        sha256, state, why = _silent(case, told)
    if state is State.PASS and case.uncounted:
        state, why = State.UNCALIBRATED, case.uncounted
    return SuiteCell(
        suite=case.suite,
        python=case.python,
        level=level,
        state=state,
        is_blocking=state is not State.PASS,
        why=why,
        sha256=sha256,
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
    """Return the failure it is; more retries than the suite allows are one in any state."""
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


def _severity(failure: tuple[str, State, str]) -> tuple[bool, int, str]:
    """Order failures: a flaky one says least; the rest goes by state, then by digest."""
    sha256, state, _ = failure
    return state is State.FLAKY, list(State).index(state), sha256


def _silent(case: _Case, told: Sequence[tuple[FoundVerdict, Verdict]]) -> tuple[str, State, str]:
    """Return what a cell without passes, failures and doubts is: digest, state and reason."""
    said = {verdict.state: (item.sha256, verdict) for item, verdict in told if not verdict.shard}
    if State.INFRA not in said and not case.family.runners_for(case.suite):
        return "", State.NO_RUNNER, f"{case.family.name} has no runner for {case.suite}"
    for state in (State.INFRA, State.NOT_RUN, State.NO_RUNNER):
        if state in said:
            sha256, verdict = said[state]
            return sha256, state, verdict.reason or state.value
    return "", State.NOT_RUN, "no verdict"


def _doubts(verdict: Verdict, case: _Case) -> Iterator[str]:
    """Return why what passed proves nothing about these wheels, on this family, now."""
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
    if not counts.passed or counts.failed or counts.crashed or counts.timed_out or counts.not_run:
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
    """Doubt another suite than this checkout's, and one that fell short of its demands."""
    if case.known is None:
        yield f"this checkout has no suite {case.suite}"
        return
    for difference in verdict.ran.differences(case.known, jax_commit=case.manifest.jax.commit):
        yield f"another suite ran: {difference}"
    for state, message in case.demand.shortfalls(verdict.counts) if case.demand else ():
        if state not in {State.FLAKY, State.UNCALIBRATED}:
            yield message


def _rocm_doubts(verdict: Verdict, case: _Case) -> Iterator[str]:
    """Doubt another ROCm than that of the build, or its packages: it shows nothing of theirs."""
    brought, wanted = verdict.rocm, case.manifest.rocm
    what = brought.name or brought.origin
    if case.family.proof.rocm and case.known and case.known.rocm == "pip":
        if (brought.origin, brought.version) != ("pip", wanted.version):
            yield f"the suite ran on ROCm from {what}, not on {wanted.version} by pip"
    elif case.family.proof.rocm and (not brought.sha256 or brought.sha256 != wanted.sha256):
        yield f"the suite ran on ROCm from {what}, not on {wanted.name} with the manifest's digest"


def _weigh(cell: SuiteCell, case: _Case, approval: Approval | None) -> SuiteCell:
    """Apply level, bypass, excuse and approvals to a cell that is not a pass."""
    if not cell.is_blocking:
        return cell
    if cell.level is Level.ADVISORY:
        return replace(cell, is_blocking=False)
    today = case.now.date()
    if cell.state is State.FLAKY and approval:
        why = f"{cell.why}; approved by {approval.by}: {approval.reason}"
        cell = replace(cell, is_blocking=bool(case.uncounted), why=why)
    if case.uncounted and cell.state in {State.FLAKY, State.UNCALIBRATED}:
        excuse = next((e for e in case.family.uncalibrated if e.suite == cell.suite), None)
        is_excused = cell.state is State.UNCALIBRATED or approval is not None
        return _excused(cell, excuse, "excuse", today) if is_excused else cell
    if cell.state is State.NO_RUNNER and not cell.sha256:
        bypassed = _excused(cell, case.family.bypass_tests_for_releases, "bypass", today)
        return replace(bypassed, excused=not bypassed.is_blocking)
    return cell


def _excused(cell: SuiteCell, excuse: Bypass | None, what: str, today: date) -> SuiteCell:
    """Return a cell that an excuse lets through until its last day; then it only says so."""
    if excuse is None:
        return cell
    if excuse.expires < today:
        why = f"{cell.why}; the {what} of {excuse.owner} expired on {excuse.expires}"
        return replace(cell, why=why)
    why = f"{cell.why}; {what} of {excuse.owner} until {excuse.expires}: {excuse.reason}"
    return replace(cell, is_blocking=False, why=why)
