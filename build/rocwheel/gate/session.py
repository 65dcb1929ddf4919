"""A session: the gates of one command, from its options to stored verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rocwheel.base.console import Console
from rocwheel.base.errors import HostError, InterruptError, RocwheelError, StoreError
from rocwheel.base.here import Here
from rocwheel.base.values import Plain, replace
from rocwheel.gate import run as gate_runs
from rocwheel.gate.engine.plan import Snapshot, Watcher
from rocwheel.gate.report import render
from rocwheel.gate.report.gate_page import verdict_text
from rocwheel.gate.request import GateRequest
from rocwheel.gate.run import GateResult
from rocwheel.gate.suite import history, skips, suites
from rocwheel.gate.suite.suites import Suite
from rocwheel.gate.verdict import storing
from rocwheel.records.places import Place
from rocwheel.records.results import Attempt, Fault, LastRun, Results
from rocwheel.records.verdict import Verdict
from rocwheel.release.trust.policy import Signer

NAME_WIDTH: Final = 40  # of a test in the progress line
SHOWN: Final = 20  # failures with what a control run says of them


class GateReport(Plain, frozen=True, kw_only=True):
    results: Results
    judged: Fault
    document: dict[str, Any]
    text: str
    error: RocwheelError | None = None  # why its folder does not hold the reports


def prepare(
    asked: GateRequest,
    wanted: Sequence[Suite],
    here: Here,
    *,
    output: Path | None,
    failed_of: Path | None,
    command: Callable[[str], str],
) -> tuple[GateRequest, ...]:
    """Make a request for each suite as is asked for the first; several have folders in `output`.

    `failed_of` are earlier results, of which only the failures run again; `command` returns the
    line that asks the same again for one suite.
    """
    home, shard = here.home, asked.shard
    listed = skips.load(home.ci, today=here.now().date())
    suffix = f"-{shard.number}-of-{shard.count}" if shard.count > 1 else ""
    requests = []
    for suite in wanted:
        own = Path("gate-results") / f"{suite.name}-{asked.python}{suffix}"
        if output:
            own = output / suite.name if len(wanted) > 1 else output
        request = replace(
            asked,
            suite=suite,
            output=here.cwd / own,
            libraries=suites.libraries(home.ci),
            device_errors=suites.device_errors(home.ci),
            skips=listed,
            known=suites.known(home, suite, listed),
            history=history.read(asked.wheels.place, suite.name, here.cache),
            command=command(suite.name),
        )
        if failed_of:
            request = request.for_failures_of(storing.results_in(failed_of))
        gate_runs.check(request, here)
        requests.append(request)
    return tuple(requests)


def run_each(
    requests: Sequence[GateRequest], here: Here, signer: Signer | None
) -> Iterator[GateReport]:
    """Run one gate after the other until a signal ends it; store each result, signed."""
    console = here.console
    with ExitStack() as held:
        for request in requests:
            held.enter_context(storing.alone(request.output))
        for number, request in enumerate(requests, 1):
            with _interruptible(request):
                gated = _run(request, here)
                if gated.error:
                    console.fail(gated.error)
                whole = request.whole and not str(request.shard)
                report = finish(
                    (gated.results, gated.judged, gated.verdict), request.stored, request.output,
                    here, signer=signer, whole=here.now() if whole else None,
                )  # fmt: skip
                if gated.results.tests:
                    with _remembering(console):
                        history.add(request.stored, request.suite.name, here.cache, gated.results)
            yield report
            if gated.is_cut:
                left = ", ".join(waiting.suite.name for waiting in requests[number:])
                unbegun = f"not begun: {left}; " if left else ""
                console.info(f"interrupted: {unbegun}run the same command again")
                return


def _run(request: GateRequest, here: Here) -> GateResult:
    storing.clear(request.output)
    here.console.info(f"gate {request.key}")
    with _watching(here.console) as watcher:
        return gate_runs.run(request, here, watcher)


def run_unstored(request: GateRequest, here: Here) -> GateResult:
    with storing.alone(request.output), _interruptible(request):
        return _run(request, here)


@contextmanager
def _interruptible(request: GateRequest) -> Iterator[None]:
    """Turn the signal that interrupts the end of a gate into an InterruptError.

    The first signal is a verdict; this is for a second one, while that is written.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptError(
            f"the gate of {request.key} was interrupted while it ended: "
            "its verdict may not be complete",
            hint="run the same command again; its tests start from the beginning",
        ) from None


@contextmanager
def _watching(console: Console) -> Iterator[Watcher]:
    class Shown(Watcher):
        def progress(self, snapshot: Snapshot) -> None:
            lanes = " | ".join(
                f"{name} {what if len(what) <= NAME_WIDTH else f'…{what[1 - NAME_WIDTH :]}'} "
                f"{seconds:.0f} s"
                for name, what, seconds in snapshot.lanes
            )
            bar.update(snapshot.done, total=snapshot.total, text=f"{snapshot.bad} bad | {lanes}")

        def failed(self, test: str, attempt: Attempt) -> None:
            again = " again" if test in shown else ""
            shown.add(test)
            console.info(
                f"   {attempt.outcome.value}{again} on {attempt.lane}: {test}: {attempt.message}"
            )

    shown: set[str] = set()
    with console.progress("tests") as bar:
        yield Shown()


def finish(
    judged: tuple[Results, Fault, Verdict | None],
    place: Place | None,
    output: Path,
    here: Here,
    *,
    whole: datetime | None,
    signer: Signer | None = None,
    parts: Sequence[str] = (),
) -> GateReport:
    """Write the reports, store them and the verdict, signed; return the text to print.

    `parts` are digests of the verdicts that one on shards was made of. `whole` is when the run of a
    whole suite ended, with which the next run is compared.
    """
    results, fault, verdict = judged
    notes = {library.name: library.note for library in suites.libraries(here.home.ci)}
    last = history.read_last(place, history.name_of(results), here.cache)
    reports = render(results, fault, notes, last)
    unwritten = _write(output, reports, None)  # before anything can go wrong with the store
    key = ""
    if verdict and place:
        logs = output / storing.LOGS
        key, verdict = storing.put(place, verdict, reports, logs, signer=signer, parts=parts)
        here.console.info(f"stored {'and signed ' if signer else ''}{place.store.locate(key)}")
    unwritten = _write(output, {}, verdict) or unwritten
    for reason in verdict.ran.unofficial if verdict else ():
        here.console.info(f"this verdict is unofficial: {reason}")
    if whole and results.tests:
        run = LastRun.of(results, fault.state, ended=whole.strftime("%Y-%m-%d %H:%M"), before=last)
        with _remembering(here.console):
            history.keep_last(place, history.name_of(results), here.cache, run)
    counts = {name: number for name, number in results.counts.by_outcome().items() if number}
    numbers = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in counts.items())
    words = "".join(f"{word}: {name}\n" for name, word in list(results.control.items())[:SHOWN])
    page = output / "report.html"
    reason = f": {fault.message}" if fault.message else ""
    return GateReport(
        results=results,
        judged=fault,
        document={
            "suite": results.suite,
            "state": fault.state.value,
            "reason": fault.message,
            "counts": results.counts.by_outcome(),
            "control": results.control,
            "worst": results.worst,
            "report": str(page),
            "verdict": key,
        },
        text=f"{verdict_text(results, fault)}{reason}\n{words}{numbers or 'no test ran'}\n{page}",
        error=unwritten,
    )


def _write(
    output: Path, reports: Mapping[str, bytes], verdict: Verdict | None
) -> RocwheelError | None:
    """Write into the folder; a full disk does not stop storing and printing."""
    try:
        storing.write(output, reports, verdict)
    except OSError as exc:
        return HostError(
            f"{output}: the reports could not be written: {exc.strerror}",
            hint="free some space, or choose another --output",
        )
    return None


@contextmanager
def _remembering(console: Console) -> Iterator[None]:
    """Turn a failure to keep data for the next run into a warning: it decides nothing."""
    try:
        yield
    except (StoreError, OSError) as exc:
        console.warn(f"this run was not kept for the next one: {exc}")
