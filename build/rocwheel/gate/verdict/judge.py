"""From results to a verdict's state: the worst thing that is true of a run, with one reason.

No outcome is good by default: a suite that ran nothing, too little, or only passed with retries has
a state for that.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from rocwheel.base.values import replace
from rocwheel.records.results import Fault, Outcome, Results
from rocwheel.records.verdict import SILENT, Demand, State

# The first that applies is the state: what stopped the run before what the run found.
PRECEDENCE: Final = (
    State.NO_RUNNER,
    State.NOT_RUN,
    State.INFRA,
    State.COLLECT_ERROR,
    State.CRASH,
    State.TIMEOUT,
    State.FAIL,
    State.NOTHING_RAN,
    State.TOO_FEW_RAN,
    State.FLAKY,
    State.UNCALIBRATED,
)
TOO_LITTLE: Final = frozenset({State.NOTHING_RAN, State.TOO_FEW_RAN, State.UNCALIBRATED})
FOLLOWS_HARDWARE: Final = 3  # tests that fail on one device only, before the device is suspected


def judge(results: Results, demand: Demand) -> Fault:
    """Return the state and its reason; `State.PASS` with an empty reason when nothing is wrong."""
    return next(iter(everything(results, demand)), Fault(state=State.PASS, message=""))


def everything(results: Results, demand: Demand) -> tuple[Fault, ...]:
    """Name all that is wrong with a run, with the reason for its state first.

    In a run that was cut short, too few tests are no further reason.
    """
    faults = [*results.faults, *_by_counts(results, demand), *_device(results)]
    if any(fault.state in SILENT for fault in faults):
        faults = [fault for fault in faults if fault.state not in TOO_LITTLE]
    return tuple(sorted(faults, key=lambda fault: PRECEDENCE.index(fault.state)))


def with_unmet_skips(results: Results) -> Results:
    """Add a fault for every skip list entry that matched no test, if all files were read."""
    if results.collect_errors or results.counts.not_run:
        return results
    unmet = tuple(
        Fault(state=State.FAIL, message=f"{where}: meets no test; remove or correct the entry")
        for where, count in sorted(results.skips.items())
        if not count
    )
    return replace(results, faults=(*results.faults, *unmet))


def _by_counts(results: Results, demand: Demand) -> Iterator[Fault]:
    counts = results.counts
    if results.collect_errors:
        number = len(results.collect_errors)
        what = f"{number} files" if number > 1 else "a file"
        each = "; ".join(f"{error.file}: {error.message}" for error in results.collect_errors)
        message = f"{what} could not be collected: {each}"
        yield Fault(state=State.COLLECT_ERROR, message=message)
    for outcome, state in (
        (Outcome.CRASHED, State.CRASH),
        (Outcome.TIMED_OUT, State.TIMEOUT),
        (Outcome.FAILED, State.FAIL),
    ):
        bad = [t for t in results.failures if t.outcome is outcome]
        if bad:
            what = f"{len(bad)} tests {outcome.value}" if len(bad) > 1 else outcome.value
            why = bad[0].reason or (bad[0].worst.message if bad[0].worst else "")
            yield Fault(state=state, message=f"{what}: {bad[0].test}: {why}")
    if counts.not_run and not results.faults and not results.collect_errors:
        first_left = next(test for test in results.tests if test.outcome is Outcome.NOT_RUN)
        message = f"{counts.not_run} tests or files did not run: {first_left.reason}"
        yield Fault(state=State.NOT_RUN, message=message)
    for state, message in demand.shortfalls(counts):
        yield Fault(state=state, message=message)
    yield from _uncalled(results, demand)


def _uncalled(results: Results, demand: Demand) -> Iterator[Fault]:
    """Name each library that a ROCm run must call and that no test was seen to call."""
    if results.environment.get("backend") != "rocm" or not any(t.attempts for t in results.tests):
        return
    called = {name for test in results.tests for name in test.evidence}
    for name in demand.must_call:
        if name not in called:
            number = sum(name in test.libraries for test in results.tests)
            message = f"{name} was never called, though {number} tests are of it"
            yield Fault(state=State.FAIL, message=message)


def _device(results: Results) -> Iterator[Fault]:
    """Yield a device on which tests fail that pass on all others."""
    failed_on: Counter[str] = Counter()
    devices = {lane.name: ", ".join(d.serial for d in lane.devices) for lane in results.lanes}
    good = (Outcome.PASSED, Outcome.XFAILED)
    for test in results.tests:
        outcomes = [attempt.outcome for attempt in test.attempts]
        if len(outcomes) > 1 and outcomes[0].bad and outcomes[-1] in good:
            first, last = (devices.get(test.attempts[n].lane, "") for n in (0, -1))
            if first and first != last:
                failed_on[first] += 1
    if len(failed_on) != 1:
        return
    (serials, number), *_ = failed_on.items()
    if number < FOLLOWS_HARDWARE:
        return
    name = next(name for name, serial in devices.items() if serial == serials).partition(".")[0]
    yield Fault(
        state=State.INFRA,
        message=f"{number} tests failed on {name} ({serials}) and pass on other devices; "
        "take it out of use and look at it",
    )
