"""The page of one gate: a single HTML file, readable on a phone, sortable in a browser.

The verdict and the first failure are on top and need no script; the table of all tests is made
by one from data in the page.
"""

import json
import shlex
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from rocwheel.base import assets
from rocwheel.base.console import count, duration
from rocwheel.records.results import Attempt, Fault, LastRun, Outcome, Results, TestResult
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
}
SHARD_PASSED: Final = "none of its tests went wrong; how many must run is asked of all shards"


# What to do about a state; a machine that is not well is no failure of wheels or tests.
TO_DO: Final = {
    State.PASS: "",
    State.FLAKY: "Look at the tests that passed only when tried again. A person may approve them: "
    "`promote` prints the line. Another run of the gate changes nothing.",
    State.FAIL: "Run the first failure again with the line below it; fix the test or the wheels.",
    State.CRASH: "Read the log of the process that ended, then run the test again alone.",
    State.TIMEOUT: "Look at the stacks of the test that did not end; run it again alone.",
    State.COLLECT_ERROR: "Fix the import of the files below: none of their tests ran.",
    State.NOTHING_RAN: "Look at the suite's file: its paths, its marker expression.",
    State.TOO_FEW_RAN: "Look at what was skipped and why, and at must_run and may_skip.",
    State.NO_RUNNER: "Nothing is known of the wheels. Run it where there are GPUs of the family.",
    State.INFRA: "Nothing is known of the wheels. Repair or replace the machine, and run it again.",
    State.NOT_RUN: "Nothing is known of the wheels. Run it again, or the shard that is missing.",
}


class _Place(NamedTuple):
    ended: str  # how the process did, where this was its last test; "" elsewhere
    log: str  # its file, in the folder `logs` beside the page
    number: int  # of the tests in its process, from 1
    before: str  # the test that ran there before it, "" for the first


class Trails:
    """What the page says of a test: how to run it again, what is new, where its attempts ran."""

    def __init__(self, results: Results, last: LastRun | None) -> None:
        self._command = shlex.split(results.environment.get("command", ""))
        self._last = last
        # by lane, process, start and test
        self._places: dict[tuple[str, int, int, str], _Place] = {}
        processes = {(item.lane, item.number): item for item in results.processes}
        ran = [(attempt, test.test) for test in results.tests for attempt in test.attempts]
        ran.sort(key=lambda item: item[0].start_ms)  # at the same millisecond in the file's order
        last_of = {(item.lane, item.process): (item.start_ms, name) for item, name in ran}
        before: dict[tuple[str, int], tuple[int, str]] = {}  # in a process: number of a test, name
        for attempt, name in ran:
            where = attempt.lane, attempt.process
            known, (number, earlier) = processes.get(where), before.get(where, (0, ""))
            before[where] = (number + 1, name)
            is_last = last_of[where] == (attempt.start_ms, name)
            self._places[attempt.lane, attempt.process, attempt.start_ms, name] = _Place(
                ended=known.ended if known and is_last else "",
                log=known.log if known else "",
                number=number + 1,
                before=earlier,
            )

    def change(self, test: TestResult) -> str:
        """Compare a test with the last run of its cell; "" where there is none."""
        if not self._last:
            return ""
        was = self._last.bad.get(test.test)
        return f"{was} in the last run too" if was else "new: not so in the last run"

    def again(self, test: str) -> str:
        words = self._command
        return shlex.join(["rocwheel", *words, f"--test={test}"]) if words else ""

    def place(self, test: str, attempt: Attempt) -> _Place:
        return self._places[attempt.lane, attempt.process, attempt.start_ms, test]


def against(results: Results, last: LastRun | None) -> str:
    if last is None:
        return "There is no earlier run of this suite, family and CPython to compare with."
    new = sum(test.test not in last.bad for test in results.failures)
    old = len(results.failures) - new
    fixed = {t.test for t in results.tests if t.attempts and not t.outcome.bad} & set(last.bad)
    return (
        f"Against the last run ({last.state.value}, {last.ended}): {count(new, 'new failure')}, "
        f"{old} known from it, {len(fixed)} fixed."
    )


def colour(state: State) -> str:
    """Return the colour of a state, by what to do about it.

    `good`: nothing; `bad`: fix the wheels or tests; `warn`: a person has to look; `idle`: run it
    again elsewhere, it says nothing about the wheels.
    """
    if state is State.PASS:
        return "good"
    if state in SILENT:
        return "idle"
    return "warn" if state in (State.FLAKY, State.NOTHING_RAN, State.TOO_FEW_RAN) else "bad"


def render(
    results: Results, judged: Fault, libraries: Mapping[str, str], last: LastRun | None = None
) -> bytes:
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
        trails=trails,
        first=results.failures[0] if results.failures else None,
        colour=colour,
        to_do=TO_DO[judged.state],
        against=against(results, last) if results.tests else "",
        meaning=SHARD_PASSED if is_passed_shard else MEANINGS[judged.state],
        elsewhere=elsewhere(results),
        number=len(results.failures),
        failures=results.failures[:SHOWN],
        shown=SHOWN,
        flaky=[test for test in results.tests if test.outcome is Outcome.FLAKY],
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


def libraries_of(results: Results, known: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return what each ROCm library's tests say; `known` ones are listed also without a test."""
    tagged: dict[str, list[TestResult]] = {}
    for test in results.tests:
        for name in test.libraries:
            tagged.setdefault(name, []).append(test)
    rows = []
    for name in sorted({*tagged, *(known if tagged else ())}, key=str.lower):
        tests = tagged.get(name, [])
        seen = sum(name in test.evidence for test in tests)  # in the process of a test
        rows.append({
            "name": name, "note": known.get(name, ""), "tests": len(tests), "exercised": seen,
            "status": "no test" if not tests else "exercised" if seen else "nominal",
            "passed": sum(test.outcome is Outcome.PASSED for test in tests),
            "bad": sum(test.outcome.bad for test in tests),
        })  # fmt: skip
    return rows


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
            "reason": test.why,
            "attempts": [
                {**msgspec.to_builtins(attempt), **trails.place(test.test, attempt)._asdict()}
                for attempt in test.attempts
                if attempt.outcome.bad or len(test.attempts) > 1
            ],
        }
        for test in results.tests
    ]
    text = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
