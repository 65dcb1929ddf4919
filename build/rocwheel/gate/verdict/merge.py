"""Shards of a suite become one: nothing twice, nothing missing, all of the same wheels."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rocwheel.errors import ConfigError
from rocwheel.gate.suite.discovery import Shard
from rocwheel.results import Fault, Outcome, Results, TestResult
from rocwheel.values import replace
from rocwheel.verdict import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from rocwheel.verdict import Verdict


def merge_results(shards: Mapping[int, Results], count: int) -> Results:
    """Join shards by number; what a missing one should have run is `not-run`.

    Raises ConfigError for shards of another suite, or that were cut in another way.
    """
    if not shards:
        raise ConfigError("no shard has results", hint="run `gate --shard 1/4` and so on first")
    first = next(iter(shards.values()))
    for number, results in shards.items():
        _fits(results, first, Shard(number=number, count=count))
    missing = [number for number in range(1, count + 1) if number not in shards]
    there = {file for results in shards.values() for file in results.files}
    left = tuple(
        TestResult(
            test=file,
            outcome=Outcome.NOT_RUN,
            reason=f"shard {', '.join(map(str, missing))} of {count} is missing",
        )
        for file in first.suite_files
        if file not in there
    )
    faults = [fault for results in shards.values() for fault in results.faults]
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
        skips=dict(met),
        environment=first.environment,
        duration_ms=max(results.duration_ms for results in shards.values()),
    )


def merge_verdicts(verdicts: Sequence[Verdict], results: Results, found: Fault) -> Verdict:
    """One verdict for the joined results. Raises ConfigError when shards tell of different sets."""
    first = verdicts[0]
    for other in verdicts[1:]:
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
    complete = all(verdict.wheels for verdict in verdicts)
    bad = results.failures
    return replace(
        first,
        state=found.state,
        reason=" ".join(found.message.split()),
        counts=results.counts,
        wheels=first.wheels if complete else {},
        backend=backends.pop() if len(backends) == 1 else "",
        runner=_joined(verdict.runner for verdict in verdicts),
        host=_joined(verdict.host for verdict in verdicts),
        devices=tuple(devices),
        started=min(verdict.started for verdict in verdicts),
        ended=max(verdict.ended for verdict in verdicts),
        first_failure=bad[0].test if bad else "",
        attempts=tuple(item for verdict in verdicts for item in verdict.attempts),
        reports={},
        shard="",
    )


def _fits(results: Results, first: Results, shard: Shard) -> None:
    wanted = (first.suite, first.suite_files, str(shard))
    if (results.suite, results.suite_files, results.shard) != wanted:
        raise ConfigError(
            f"shard {results.shard or 'without number'} of {results.suite}: not shard {shard} of "
            f"the same run of {first.suite}",
            hint="merge shards of one suite, from one checkout, cut into the same number",
        )


def _renamed(results: Results, number: int) -> Results:
    """Lanes get their shard's number: two machines both have a gpu0."""

    def name(lane: str) -> str:
        return f"{number}:{lane}"

    return replace(
        results,
        tests=tuple(
            replace(test, attempts=tuple(replace(a, lane=name(a.lane)) for a in test.attempts))
            for test in results.tests
        ),
        lanes=tuple(replace(lane, name=name(lane.name)) for lane in results.lanes),
        processes=tuple(replace(item, lane=name(item.lane)) for item in results.processes),
    )


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(texts))
