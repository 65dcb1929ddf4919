"""From results to a verdict's state: the worst thing that is true of a run, with one reason.

No outcome is good by default: a suite that ran nothing, too little, or only passed with retries has
a state for that.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET

from rocwheel.base import files
from rocwheel.base.errors import ConfigError
from rocwheel.base.values import replace
from rocwheel.gate.suite.discovery import Shard
from rocwheel.records.results import NEW, Fault, Outcome, Results, TestResult
from rocwheel.records.verdict import (
    SILENT,
    Attempts,
    Demand,
    KnownSuite,
    Ran,
    State,
    Verdict,
)

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
)
TOO_LITTLE: Final = frozenset({State.NOTHING_RAN, State.TOO_FEW_RAN})
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
        each = "; ".join(f"{error.file}: {error.why}" for error in results.collect_errors)
        message = f"{what} could not be collected: {each}"
        yield Fault(state=State.COLLECT_ERROR, message=message)
    for outcome, state in (
        (Outcome.CRASHED, State.CRASH),
        (Outcome.TIMED_OUT, State.TIMEOUT),
        (Outcome.FAILED, State.FAIL),
    ):
        bad = [t for t in results.failures if t.outcome is outcome]
        if bad:
            what = f"{len(bad)} test{'s' * (len(bad) > 1)} {outcome.value}"
            words = Counter(str(t.control).partition(":")[0] for t in bad if t.control)
            if len(bad) > 1 and words:
                what += f" ({', '.join(f'{number} {word}' for word, number in words.items())})"
            first = next((t for t in bad if str(t.control).startswith(NEW)), bad[0])
            reason = first.why.removeprefix(f"{first.control}: ")
            said = f"{first.test} ({first.control})" if first.control else first.test
            yield Fault(state=state, message=f"{what}: {said}: {reason}")
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


def drawn(results: Results, judged: Fault, demand: Demand) -> dict[str, Any]:
    """Return the fields of a verdict that follow from its results alone."""
    bad = [test.test for test in results.failures]
    bad += [error.file for error in results.collect_errors]
    return {
        "suite": results.suite,
        "shard": results.shard,
        "state": judged.state,
        "reason": " ".join(judged.message.split()),
        "counts": results.counts,
        "first_failure": next(iter(bad), ""),
        "attempts": tuple(
            Attempts(test=test.test, outcomes=tuple(item.outcome.value for item in test.attempts))
            for test in results.tests
            if len(test.attempts) > 1
        ),
        "control": results.control or UNSET,
        "schema": 2 if results.control else 1,  # which earlier versions read
        "also": tuple(dict.fromkeys(f.state for f in everything(results, demand)))[1:],
    }


def tests_list(results: Results) -> bytes:
    """Return the names of all tests that were collected, as they are kept to be compared."""
    return "".join(f"{name}\n" for name in sorted(test.test for test in results.tests)).encode()


def collected(results: Results) -> str:
    return files.sha256(tests_list(results)) if results.tests else ""


# --- shards as one: nothing twice, nothing missing, all of the same wheels -----------------------


def merge(
    shards: Sequence[tuple[Verdict | None, Results]], count: int, known: Callable[[str], KnownSuite]
) -> tuple[Results, Fault, Verdict | None]:
    """Join the runs of `count` shards, and judge them by what their suite, by its name, demands.

    The verdict is None where no run has one.
    """
    runs = [results for _, results in shards]
    if not runs:
        raise ConfigError("no shard has results", hint="run `gate --shard 1/4` and so on first")
    suite = known(runs[0].suite)
    for verdict, run in shards:
        _check(verdict, run)
    demanded = suite.demands.of(runs[0].environment.get("jax", ""))
    results = with_unmet_skips(merge_results(runs, count, demanded))
    judged = judge(results, demanded)
    said = [verdict for verdict, _ in shards if verdict]
    return results, judged, merge_verdicts(said, results, judged, demanded) if said else None


def merge_results(runs: Sequence[Results], count: int, demand: Demand) -> Results:
    """Join the runs of `count` shards; what a missing shard should have run is `not-run`.

    Each shard is represented by the best of its runs, and every other run that went wrong makes the
    whole flaky: running a shard again is a retry like any other.
    """
    attempts: dict[int, list[tuple[Fault, Results]]] = {}
    first = next((run for run in runs if run.suite_files), runs[0])
    for run in runs:
        shard = replace(Shard.parse(run.shard or "1/1"), count=count)
        files = run.suite_files or first.suite_files  # it ended before it looked for them
        if (run.suite, files, run.shard) != (first.suite, first.suite_files, str(shard)):
            raise ConfigError(
                f"shard {run.shard or 'without number'} of {run.suite}: not shard {shard} of "
                f"the same run of {first.suite}",
                hint="merge shards of one suite, from one checkout, cut into the same number",
            )
        attempts.setdefault(shard.number, []).append((judge(run, demand.of_part()), run))
    shards: dict[int, Results] = {}
    again: list[Fault] = []
    for number, tried in sorted(attempts.items()):
        best, *others = sorted(tried, key=_usable)
        shards[number] = best[1]
        again += (
            Fault(
                state=State.FLAKY,
                message=f"shard {number}/{count} was run again after {fault.state.value}: "
                f"{fault.message}",
            )
            for fault, _ in others
            if fault.state is not State.PASS and fault.state not in SILENT
        )
    missing = [number for number in range(1, count + 1) if number not in shards]
    there = Counter(file for results in shards.values() for file in results.files)
    if twice := next((file for file, number in there.items() if number > 1), ""):
        raise ConfigError(
            f"{twice}: in two shards: they were not cut alike",
            hint="run all shards with one rocwheel and one JAX",
        )
    left = tuple(
        TestResult(test=file, outcome=Outcome.NOT_RUN, reason="its shard has no results")
        for file in first.suite_files
        if file not in there
    )
    faults = [*(fault for results in shards.values() for fault in results.faults), *again]
    if missing:
        message = f"shard {', '.join(map(str, missing))} of {count} has no results"
        faults.append(Fault(state=State.NOT_RUN, message=message))
    met: Counter[str] = Counter()
    for results in shards.values():
        met.update(dict(results.skips))
    whole = [_renamed(results, number) for number, results in sorted(shards.items())]
    return Results(
        suite=first.suite,
        shard="",
        files=first.suite_files,
        suite_files=first.suite_files,
        tests=(*(test for item in whole for test in item.tests), *left),
        collect_errors=tuple(error for item in whole for error in item.collect_errors),
        lanes=tuple(lane for item in whole for lane in item.lanes),
        processes=tuple(process for item in whole for process in item.processes),
        faults=tuple(faults),
        dropped=tuple(what for item in whole for what in item.dropped),
        skips=dict(met),
        environment=first.environment,
        duration_ms=max(results.duration_ms for results in shards.values()),
    )


def merge_verdicts(
    verdicts: Sequence[Verdict], results: Results, judged: Fault, demand: Demand
) -> Verdict:
    first = next((verdict for verdict in verdicts if verdict.wheels), verdicts[0])
    for other in verdicts:
        for name in ("manifest", "family", "python", "suite", "jax_version"):
            if getattr(other, name) != getattr(first, name):
                raise ConfigError(
                    f"shard {other.shard}: {name} is {getattr(other, name)}, "
                    f"elsewhere {getattr(first, name)}",
                    hint="merge shards of one run",
                )
        if other.wheels and first.wheels and dict(other.wheels) != dict(first.wheels):
            raise ConfigError(f"shard {other.shard}: other wheels", hint="merge shards of one run")
    devices = {device: None for verdict in verdicts for device in verdict.devices}
    backends = {verdict.backend for verdict in verdicts if verdict.backend}
    complete = all(verdict.wheels for verdict in verdicts if verdict.state not in SILENT)
    return replace(
        first,
        **drawn(results, judged, demand),
        wheels=first.wheels if complete else {},
        backend=backends.pop() if len(backends) == 1 else "",
        runner=_joined(verdict.runner for verdict in verdicts),
        host=_joined(verdict.host for verdict in verdicts),
        devices=tuple(devices),
        started=min(verdict.started for verdict in verdicts),
        ended=max(verdict.ended for verdict in verdicts),
        reports={},
        ran=_all_ran([verdict for verdict in verdicts if verdict.state not in SILENT], results),
    )


def _check(verdict: Verdict | None, results: Results) -> None:
    """Raise ConfigError where a shard's verdict is of other results."""
    about, shard = results.environment, f"shard {results.shard} of {results.suite}"
    if verdict is None:
        if about.get("manifest"):
            raise ConfigError(
                f"{shard}: results of a manifest's wheels without their verdict",
                hint="merge a folder with all that a gate left there, or run the shard again",
            )
        return
    follows: dict[str, object] = {
        "suite": results.suite,
        "shard": results.shard,
        "counts": results.counts,
    }
    follows |= {name: about[name] for name in ("manifest", "family") if name in about}
    wrong = [name for name, value in follows.items() if getattr(verdict, name) != value]
    if verdict.ran.collected != collected(results):
        wrong.append("ran.collected")
    if wrong:
        raise ConfigError(
            f"{shard}: {', '.join(wrong)} of its verdict is not what its results say: "
            "one of them was edited",
            hint="merge what a gate left there, by the same rocwheel, or run the shard again",
        )


def _all_ran(verdicts: Sequence[Verdict], results: Results) -> Ran:
    """Return what ran in all shards, which must be the same to count."""
    unofficial = {reason: None for verdict in verdicts for reason in verdict.ran.unofficial}
    same = {replace(verdict.ran, collected="", unofficial=()) for verdict in verdicts}
    if len(same) > 1:
        unofficial["its shards ran different suites"] = None
    return replace(
        same.pop() if same else Ran(), collected=collected(results), unofficial=tuple(unofficial)
    )


def _usable(run: tuple[Fault, Results]) -> tuple[bool, bool, int, bytes]:
    """Order the runs of a shard: a pass, then results about the wheels, then the rest."""
    state = run[0].state
    return state is not State.PASS, state in SILENT, list(State).index(state), run[1].to_bytes()


def _renamed(results: Results, number: int) -> Results:
    """Give lanes their shard's number: two machines both have a gpu0."""
    own = f"{number}:"
    return replace(
        results,
        tests=tuple(
            replace(test, attempts=tuple(replace(a, lane=own + a.lane) for a in test.attempts))
            for test in results.tests
        ),
        lanes=tuple(replace(lane, name=own + lane.name) for lane in results.lanes),
        processes=tuple(replace(item, lane=own + item.lane) for item in results.processes),
    )


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))
