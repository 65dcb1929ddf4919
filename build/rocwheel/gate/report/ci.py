"""What CI systems show of a gate: JUnit XML, and GitHub's job summary and annotations."""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Final
from xml.etree import ElementTree as ET

from rocwheel.base.console import duration, escaped
from rocwheel.gate.report.gate_page import verdict_text
from rocwheel.records.results import Fault, Outcome, Results, TestResult
from rocwheel.records.verdict import State

# XML 1.0 has no escape for these: a test that prints them must not break the report
_FORBIDDEN: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# GitHub keeps ten annotations per step: https://github.com/orgs/community/discussions/26680
SHOWN: Final = 20  # failures in the summary
ANNOTATED: Final = 10


def junit(results: Results, judged: Fault) -> bytes:
    """Render JUnit XML with one suite per file.

    Tests that did not run and files that could not be collected are errors.
    """
    counts, unread = results.counts, len(results.collect_errors)
    errors = counts.crashed + counts.timed_out + counts.not_run + unread
    root = ET.Element(
        "testsuites",
        name=results.suite,
        tests=str(counts.collected + unread),
        failures=str(counts.failed),
        errors=str(errors),
        skipped=str(counts.skipped + counts.xfailed),
        time=_seconds(results.duration_ms),
    )
    about = ET.SubElement(root, "properties")
    for name, value in (("state", judged.state.value), *sorted(results.environment.items())):
        ET.SubElement(about, "property", name=name, value=_clean(value))
    for fault in results.faults:
        ET.SubElement(about, "property", name=f"fault.{fault.state.value}", value=fault.message)
    by_file = sorted(results.tests, key=lambda test: test.file)  # stable: order within a file
    for file, group in groupby(by_file, key=lambda test: test.file):
        tests = list(group)
        suite = ET.SubElement(
            root,
            "testsuite",
            name=file,
            tests=str(len(tests)),
            time=_seconds(sum(test.duration_ms for test in tests)),
        )
        for test in tests:
            _case(suite, test)
    for error in results.collect_errors:
        suite = ET.SubElement(root, "testsuite", name=error.file, tests="1", errors="1")
        case = ET.SubElement(suite, "testcase", classname=error.file, name="(collection)")
        _text(case, "error", error.why, error.detail)
    ET.indent(root)
    text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _case(suite: ET.Element, test: TestResult) -> None:
    path, _, name = test.test.partition("::")
    base, *parameters = name.partition("[")  # which may hold `::`, too
    owner, _, short = base.rpartition("::")
    classname = ".".join(filter(None, (path.removesuffix(".py").replace("/", "."), owner)))
    case = ET.SubElement(
        suite,
        "testcase",
        classname=_clean(classname),
        name=_clean("".join((short, *parameters)) or path),
        time=_seconds(test.duration_ms),
    )
    match test.outcome:
        case Outcome.PASSED:
            pass
        case Outcome.FAILED:
            _attempts(case, test, first="failure", later="rerunFailure")
        case Outcome.CRASHED | Outcome.TIMED_OUT:
            _attempts(case, test, first="error", later="rerunError")
        case Outcome.FLAKY:
            _attempts(case, test, first="flakyFailure", later="flakyFailure")
        case Outcome.SKIPPED | Outcome.XFAILED | Outcome.DESELECTED:
            ET.SubElement(case, "skipped", message=_clean(test.reason))
        case Outcome.NOT_RUN:
            ET.SubElement(case, "error", type="not-run", message=_clean(test.reason))


def _attempts(case: ET.Element, test: TestResult, *, first: str, later: str) -> None:
    bad = [attempt for attempt in test.attempts if attempt.outcome.bad]
    if not bad:  # a failure by what it did to others
        _text(case, first, test.why, "")
    for number, attempt in enumerate(bad):
        message = attempt.message or test.reason
        message = f"{test.control}: {message}" if test.control else message
        detail = f"{attempt.detail}\non {attempt.lane}, process {attempt.process}".strip()
        _text(case, later if number else first, message, detail, attempt.outcome.value)
    output = "\n".join(attempt.output for attempt in bad if attempt.output)
    if output:
        ET.SubElement(case, "system-out").text = _clean(output)


def _text(case: ET.Element, tag: str, message: str, text: str, kind: str = "") -> None:
    element = ET.SubElement(case, tag, message=_clean(message))
    if kind:
        element.set("type", kind)
    element.text = _clean(text)


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.3f}"


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("�", text)


def markdown(results: Results, judged: Fault) -> str:
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
            lines.append(f"| `{_cell(error.file)}` | not collected | {_cell(error.why)} |")
        for test in bad[:SHOWN]:
            lines.append(f"| `{_cell(test.test)}` | {test.outcome.value} | {_cell(test.why)} |")
        if len(bad) > SHOWN:
            lines.append(f"| {len(bad) - SHOWN} more | | |")
        lines.append("")
    lines += [f"- {_cell(what)}" for what in results.dropped]
    return "\n".join(lines).rstrip() + "\n"


def workflow_commands(results: Results, judged: Fault, folder: str) -> Iterator[str]:
    """Yield workflow commands for the first failures in `folder`, or a bad state without one."""
    if judged.state is not State.PASS and not results.failures and not results.collect_errors:
        yield f"::error title={_property(verdict_text(results, judged))}::{escaped(judged.message)}"
    total = len(results.collect_errors) + len(results.failures)
    room = ANNOTATED if total <= ANNOTATED else ANNOTATED - 1
    for error in results.collect_errors[:room]:
        where = f"file={_property(f'{folder}/{error.file}'.lstrip('/'))},line=1"
        yield f"::error {where},title=not collected::{escaped(error.why)}"
    for test in results.failures[: max(0, room - len(results.collect_errors))]:
        where = f"file={_property(f'{folder}/{test.file}'.lstrip('/'))},line={test.line or 1}"
        yield f"::error {where},title={_property(test.test)}::{escaped(test.why)}"
    if total > room:
        yield f"::error title={total - room} more::see the summary and the report"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("`", "'")


def _property(text: str) -> str:
    return escaped(text).replace(":", "%3A").replace(",", "%2C")
