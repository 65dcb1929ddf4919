"""The page: one HTML file that needs nothing else, readable on a phone, sortable in a browser.

The verdict and the first failure are on top and need no script; the table of all tests is made
by one from data in the page.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rocwheel.console import duration
from rocwheel.report import assets
from rocwheel.results import Outcome
from rocwheel.verdict import State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rocwheel.results import Fault, Results, TestResult

WIDTH: Final = 1000.0  # of the timeline, in units of its own
LONG: Final = ("packages",)  # shown folded
SHOWN: Final = 50  # failures that are listed; the table below holds all of them
ELSEWHERE: Final = {"cpu": "the CPU", "cuda": "an NVIDIA GPU"}  # by JAX's backend

MEANINGS: Final = {
    State.PASS: "enough tests ran, and none went wrong",
    State.FLAKY: "everything passed, but more tests needed a second try than the suite allows",
    State.FAIL: "a test failed twice, or the wheels are not what their manifest says",
    State.CRASH: "a test, or the import of the wheels, ended its process",
    State.TIMEOUT: "a test, or the whole suite, ran past its deadline",
    State.COLLECT_ERROR: "a file of tests could not be imported",
    State.NOTHING_RAN: "no test was collected",
    State.TOO_FEW_RAN: "fewer tests ran than must, or more were skipped than may be",
    State.NO_RUNNER: "this machine has no GPU of the family, or too few; no test ran",
    State.INFRA: "the machine is not well; this says nothing about the wheels",
    State.NOT_RUN: "the run was cut short, or a shard is missing",
}


@dataclass(frozen=True, kw_only=True)
class LibraryUse:
    """What the tests say of one ROCm library."""

    name: str
    tests: int
    exercised: int  # tests in whose process the library was seen
    passed: int
    bad: int
    note: str

    @property
    def status(self) -> str:
        """`exercised` when a passing or failing test really used it, else only `nominal`."""
        if not self.tests:
            return "no test"
        return "exercised" if self.exercised else "nominal"


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A stretch of the timeline, in its units."""

    left: float
    width: float
    kind: str  # an outcome, or "process"
    title: str


def render(results: Results, found: Fault, libraries: Mapping[str, str]) -> bytes:
    """Render the page."""
    templates = assets.environment()
    templates.filters["duration"] = lambda ms: (
        duration(ms / 1000) if ms >= 60_000 else f"{ms / 1000:.2f} s"  # noqa: PLR2004
    )
    text = templates.from_string(assets.text("page.html")).render(
        css=assets.text("page.css"),
        js=assets.text("page.js"),
        data=_data(results),
        title=verdict_text(results, found),
        results=results,
        found=found,
        counts=[(name, number) for name, number in results.counts.by_outcome().items() if number],
        first=first_failure(results),
        meaning=MEANINGS[found.state],
        elsewhere=elsewhere(results),
        failures=results.failures,
        shown=SHOWN,
        flaky=[test for test in results.tests if test.outcome is Outcome.FLAKY],
        left=_left(results),
        libraries=libraries_of(results, libraries),
        lanes=[(lane, list(bars(results, lane.name))) for lane in results.lanes],
        end_ms=_end(results),
        width=WIDTH,
        about={name: text for name, text in results.environment.items() if text},
        long=LONG,
    )
    return text.encode()


def verdict_text(results: Results, found: Fault) -> str:
    """The verdict in a line: `smoke on gfx94X-dcgpu, CPython 3.12.1: fail`."""
    about = results.environment
    shard = f" shard {results.shard}" if results.shard else ""
    where = f" on {about['family']}" if about.get("family") else ""
    if elsewhere(results):
        where = f" on {elsewhere(results)}{where.replace(' on', ', not', 1)}"
    python = f", CPython {about['python']}" if about.get("python") else ""
    return f"{results.suite}{shard}{where}{python}: {found.state.value}"


def elsewhere(results: Results) -> str:
    """What the tests ran on instead of the family's GPUs, "" when it was those."""
    return ELSEWHERE.get(results.environment.get("backend", ""), "")


def first_failure(results: Results) -> TestResult | None:
    """What went wrong first, as far as a test did."""
    return results.failures[0] if results.failures else None


def libraries_of(results: Results, known: Mapping[str, str]) -> tuple[LibraryUse, ...]:
    """What each ROCm library's tests say; `known` ones are listed also without a test."""
    names = dict.fromkeys(name for test in results.tests for name in test.libraries)
    ordered = sorted({*names, *(known if names else ())}, key=str.lower)
    return tuple(_use(results, name, known.get(name, "")) for name in ordered)


def bars(results: Results, lane: str) -> Iterator[Bar]:
    """The processes of a lane and the tests in them; short passing tests in a row become one."""
    scale = WIDTH / _end(results)
    for process in results.processes:
        if process.lane == lane:
            yield Bar(
                left=process.start_ms * scale,
                width=max(1.0, (process.end_ms - process.start_ms) * scale),
                kind="process",
                title=f"process {process.number}: {process.ended}",
            )
    attempts = sorted(
        (
            (attempt, test.test)
            for test in results.tests
            for attempt in test.attempts
            if attempt.lane == lane
        ),
        key=lambda item: item[0].start_ms,
    )
    pending: Bar | None = None
    count = 0
    for attempt, name in attempts:
        left, width = attempt.start_ms * scale, max(0.5, attempt.duration_ms * scale)
        joins = pending and left - (pending.left + pending.width) < 1 and width < 2  # noqa: PLR2004
        if attempt.outcome is Outcome.PASSED and pending and joins:
            count += 1
            title = f"{count} tests passed"
            pending = Bar(
                left=pending.left, width=left + width - pending.left, kind="passed", title=title
            )
            continue
        if pending:
            yield pending
            pending = None
        title = f"{name}: {attempt.outcome.value}, {attempt.duration_ms / 1000:.2f} s"
        bar = Bar(left=left, width=width, kind=attempt.outcome.value, title=title)
        if attempt.outcome is Outcome.PASSED:
            pending, count = bar, 1
        else:
            yield bar
    if pending:
        yield pending


def _use(results: Results, name: str, note: str) -> LibraryUse:
    tests = [test for test in results.tests if name in test.libraries]
    return LibraryUse(
        name=name,
        tests=len(tests),
        exercised=sum(name in test.evidence for test in tests),
        passed=sum(test.outcome is Outcome.PASSED for test in tests),
        bad=sum(test.outcome.bad for test in tests),
        note=note,
    )


def _left(results: Results) -> list[TestResult]:
    return [test for test in results.tests if test.outcome is Outcome.NOT_RUN]


def _end(results: Results) -> int:
    ends = [process.end_ms for process in results.processes]
    return max([1, results.duration_ms, *ends])


def _data(results: Results) -> str:
    """Every test for the script, safe inside a script element."""
    rows: list[dict[str, Any]] = [
        {
            "test": test.test,
            "outcome": test.outcome.value,
            "ms": test.duration_ms,
            "libraries": list(test.libraries),
            "lanes": list(dict.fromkeys(attempt.lane for attempt in test.attempts)),
            "reason": test.reason or (test.worst.message if test.worst else ""),
            "attempts": [
                {
                    "outcome": attempt.outcome.value,
                    "lane": attempt.lane,
                    "process": attempt.process,
                    "ms": attempt.duration_ms,
                    "message": attempt.message,
                    "detail": attempt.detail,
                    "output": attempt.output,
                }
                for attempt in test.attempts
                if attempt.outcome.bad or len(test.attempts) > 1
            ],
        }
        for test in results.tests
    ]
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
