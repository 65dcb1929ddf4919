"""The page of one gate: a single HTML file, readable on a phone, sortable in a browser.

The verdict and the first failure are on top and need no script; the table of all tests is made
by one from data in the page.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

from rocwheel.base import assets
from rocwheel.base.console import duration
from rocwheel.base.values import Plain
from rocwheel.gate.report import trail
from rocwheel.gate.report.trail import Trails
from rocwheel.records.results import Fault, LastRun, Outcome, Results, TestResult
from rocwheel.records.verdict import SILENT, State

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
    State.UNCALIBRATED: "how many of its tests must run on this family waits for an approval",
}
SHARD_PASSED: Final = "none of its tests went wrong; how many must run is asked of all shards"


class LibraryUse(Plain, frozen=True, kw_only=True):
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


# What to do about a state; a machine that is not well is no failure of wheels or tests.
TO_DO: Final = {
    State.PASS: "",
    State.FLAKY: "Look at the tests that passed only when tried again; then run the gate again.",
    State.FAIL: "Run the first failure again with the line below it; fix the test or the wheels.",
    State.CRASH: "Read the log of the process that ended, then run the test again alone.",
    State.TIMEOUT: "Look at the stacks of the test that did not end; run it again alone.",
    State.COLLECT_ERROR: "Fix the import of the files below: none of their tests ran.",
    State.NOTHING_RAN: "Look at the suite's file: its paths, its marker expression.",
    State.TOO_FEW_RAN: "Look at what was skipped and why, and at must_run and may_skip.",
    State.NO_RUNNER: "Nothing is known of the wheels. Run it where there are GPUs of the family.",
    State.INFRA: "Nothing is known of the wheels. Repair or replace the machine, and run it again.",
    State.NOT_RUN: "Nothing is known of the wheels. Run it again, or the shard that is missing.",
    State.UNCALIBRATED: "Look at the tests that ran; then approve their number when you promote.",
}


def colour(state: State) -> str:
    """Return the colour of a state, by what to do about it.

    `good`: nothing; `bad`: fix the wheels or tests; `warn`: a person has to look; `idle`: run it
    again elsewhere, it says nothing about the wheels.
    """
    if state is State.PASS:
        return "good"
    if state in SILENT:
        return "idle"
    look = (State.FLAKY, State.NOTHING_RAN, State.TOO_FEW_RAN, State.UNCALIBRATED)
    return "warn" if state in look else "bad"


def render(
    results: Results, judged: Fault, libraries: Mapping[str, str], last: LastRun | None = None
) -> bytes:
    """Render the page; `last` is the run of the same cell it is compared with."""
    trails = Trails(results, last)
    is_passed_shard = judged.state is State.PASS and results.shard
    minute = 60_000
    shown = {"duration": lambda ms: duration(ms / 1000) if ms >= minute else f"{ms / 1000:.2f} s"}
    text = assets.template("gate/report/assets/page.html", **shown).render(
        css=assets.style("gate/report/assets/page.css"),
        js=assets.text("gate/report/assets/page.js"),
        data=_data(results, trails),
        title=verdict_text(results, judged),
        results=results,
        judged=judged,
        counts=[(name, number) for name, number in results.counts.by_outcome().items() if number],
        first=trails.of(results.failures[0]) if results.failures else None,
        colour=colour,
        to_do=TO_DO[judged.state],
        against=trail.summary(results, last) if results.tests else "",
        meaning=SHARD_PASSED if is_passed_shard else MEANINGS[judged.state],
        elsewhere=elsewhere(results),
        number=len(results.failures),
        failures=[trails.of(test) for test in results.failures[:SHOWN]],
        shown=SHOWN,
        flaky=[trails.of(t) for t in results.tests if t.outcome is Outcome.FLAKY],
        left=[test for test in results.tests if test.outcome is Outcome.NOT_RUN],
        libraries=libraries_of(results, libraries),
        figures=[
            (name, number, last.figures.get(name, ()) if last else ())
            for name, number in results.figures.items()
        ],
        about={name: text for name, text in results.environment.items() if text},
        long=LONG,
    )
    return text.encode()


def verdict_text(results: Results, judged: Fault) -> str:
    """Return the verdict in a line: `smoke on gfx94X-dcgpu, CPython 3.12.1: fail`."""
    about = results.environment
    shard = f" shard {results.shard}" if results.shard else ""
    where = f" on {about['family']}" if about.get("family") else ""
    if elsewhere(results):
        where = f" on {elsewhere(results)}{where.replace(' on', ', not', 1)}"
    python = f", CPython {about['python']}" if about.get("python") else ""
    return f"{results.suite}{shard}{where}{python}: {judged.state.value}"


def elsewhere(results: Results) -> str:
    """Return what the tests ran on instead of the family's GPUs, "" when it was those."""
    return ELSEWHERE.get(results.environment.get("backend", ""), "")


def libraries_of(results: Results, known: Mapping[str, str]) -> tuple[LibraryUse, ...]:
    """Return what each ROCm library's tests say; `known` ones are listed also without a test."""
    tagged: dict[str, list[TestResult]] = {}
    for test in results.tests:
        for name in test.libraries:
            tagged.setdefault(name, []).append(test)
    return tuple(
        LibraryUse(
            name=name,
            tests=len(tests := tagged.get(name, [])),
            exercised=sum(name in test.evidence for test in tests),
            passed=sum(test.outcome is Outcome.PASSED for test in tests),
            bad=sum(test.outcome.bad for test in tests),
            note=known.get(name, ""),
        )
        for name in sorted({*tagged, *(known if tagged else ())}, key=str.lower)
    )


def _data(results: Results, trails: Trails) -> str:
    """Return every test for the script, safe inside a script element."""
    rows: list[dict[str, Any]] = [
        {
            "test": test.test,
            "outcome": test.outcome.value,
            "ms": test.duration_ms,
            "libraries": list(test.libraries),
            "lanes": list(dict.fromkeys(attempt.lane for attempt in test.attempts)),
            "again": trails.again(test.test) if test.outcome.bad else "",
            "reason": test.reason or (test.worst.message if test.worst else ""),
            "attempts": [
                {**msgspec.to_builtins(attempt), **asdict(trails.place(test.test, attempt))}
                for attempt in test.attempts
                if attempt.outcome.bad or len(test.attempts) > 1
            ],
        }
        for test in results.tests
    ]
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
