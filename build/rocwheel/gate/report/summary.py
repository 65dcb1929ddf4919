"""What GitHub shows of a gate: a job summary in Markdown, and one annotation per failure."""

from collections.abc import Iterator
from typing import Final

from rocwheel.base.console import duration, escaped
from rocwheel.gate.report.gate_page import verdict_text
from rocwheel.records.results import Fault, Outcome, Results
from rocwheel.records.verdict import State

# GitHub keeps ten annotations per step: https://github.com/orgs/community/discussions/26680
SHOWN: Final = 20  # failures in the summary
ANNOTATED: Final = 10


def markdown(results: Results, judged: Fault) -> str:
    """Render the job summary: state, counts, first failures."""
    lines = [f"### {verdict_text(results, judged)}", ""]
    if judged.message:
        lines += [_cell(judged.message), ""]
    counts = results.counts.by_outcome().items()
    text = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in counts if number)
    lines += [f"{text} in {duration(results.duration_ms / 1000)}", ""]
    bad = (*results.failures, *(t for t in results.tests if t.outcome is Outcome.FLAKY))
    if bad or results.collect_errors:
        lines += ["| test | outcome | why |", "| --- | --- | --- |"]
        for error in results.collect_errors:
            lines.append(f"| `{_cell(error.file)}` | not collected | {_cell(error.message)} |")
        for test in bad[:SHOWN]:
            why = test.reason or (test.worst.message if test.worst else "")
            lines.append(f"| `{_cell(test.test)}` | {test.outcome.value} | {_cell(why)} |")
        if len(bad) > SHOWN:
            lines.append(f"| {len(bad) - SHOWN} more | | |")
        lines.append("")
    lines += [f"- {_cell(what)}" for what in results.dropped]
    return "\n".join(lines).rstrip() + "\n"


def workflow_commands(results: Results, judged: Fault, folder: str) -> Iterator[str]:
    """Yield workflow commands for the first failures in `folder`, or a bad state without one."""
    if judged.state is not State.PASS and not results.failures and not results.collect_errors:
        yield f"::error title={_property(verdict_text(results, judged))}::{escaped(judged.message)}"
    for error in results.collect_errors[:ANNOTATED]:
        where = f"file={_property(f'{folder}/{error.file}'.lstrip('/'))},line=1"
        yield f"::error {where},title=not collected::{escaped(error.message)}"
    for test in results.failures[: max(0, ANNOTATED - len(results.collect_errors))]:
        why = test.reason or (test.worst.message if test.worst else "")
        where = f"file={_property(f'{folder}/{test.file}'.lstrip('/'))},line={test.line or 1}"
        yield f"::error {where},title={_property(test.test)}::{escaped(why)}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("`", "'")


def _property(text: str) -> str:
    return escaped(text).replace(":", "%3A").replace(",", "%2C")
