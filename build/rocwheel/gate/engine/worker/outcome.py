"""From pytest's reports of one test to its outcome, message and traceback."""

from __future__ import annotations

import unittest
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

TEXT_LIMIT = 64 << 10  # characters of one traceback
MESSAGE_LIMIT = 400  # characters of the line that stands for it
FAILED_STATUS, UNKNOWN = "failed", "pytest reported no outcome"
SKIPS = (pytest.skip.Exception, unittest.SkipTest)


def outcome_of(  # noqa: PLR0911 - one for each way to end
    reports: list[pytest.TestReport], raised: Mapping[str, BaseException | None], item: pytest.Item
) -> tuple[str, str, str]:
    """Fold the reports of setup, call and teardown (and of subtests) into one outcome.

    A pass needs a call phase that passed; outcomes pytest does not know are failures, and so is
    a report that says other than what was raised.
    """
    failed = [report for report in reports if report.failed]
    if failed:
        text = "\n".join(error_text(report) for report in failed)
        crash = getattr(failed[0].longrepr, "reprcrash", None)
        line = crash.message if crash else text.strip().splitlines()[-1] if text.strip() else ""
        where = "" if failed[0].when == "call" else f"in {failed[0].when}: "
        # an assertion may quote a program's output
        line = (where + (line or "no message")).splitlines()[0]
        if len(line) > MESSAGE_LIMIT:
            line = f"{line[: MESSAGE_LIMIT - 1]}…"
        return "failed", line, text
    # a skipped subtest does not make its test a skipped one
    whole = [report for report in reports if not hasattr(report, "context")]
    for report in whole:
        if report.outcome not in ("passed", "skipped"):
            return "failed", f"pytest reported the unknown outcome {report.outcome!r}", ""
        if problem := _rewritten(report, raised.get(report.when), item):
            return "failed", problem, error_text(report)
    for report in whole:
        if report.skipped and hasattr(report, "wasxfail"):
            reason = str(report.wasxfail)
            # xfail(run=False) runs nothing: https://docs.pytest.org/en/stable/how-to/skipping.html
            return "skipped" if reason.startswith("[NOTRUN]") else "xfailed", reason, ""
        if report.skipped:
            return "skipped", skip_reason(report), ""
    phases = {report.when: report.outcome for report in whole}
    if phases != {"setup": "passed", "call": "passed", "teardown": "passed"}:
        return "failed", UNKNOWN, ""
    unexpected = [str(report.wasxfail) for report in whole if hasattr(report, "wasxfail")]
    return "passed", f"expected to fail: {unexpected[0]}" if unexpected else "", ""


def _rewritten(report: pytest.TestReport, raised: BaseException | None, item: pytest.Item) -> str:
    """Say how a report differs from what its phase raised, "" when it does not."""
    if raised is None:
        return ""
    kind = type(raised).__name__
    if report.outcome == "passed":
        return f"reported as passed, but its {report.when} raised {kind}: {raised}"
    marked = isinstance(raised, pytest.xfail.Exception) or item.get_closest_marker("xfail")
    expected = hasattr(report, "wasxfail") and marked
    if expected or isinstance(raised, SKIPS):
        return ""
    return f"reported as skipped, but its {report.when} raised {kind}: {raised}"


def error_text(report: pytest.CollectReport | pytest.TestReport) -> str:
    return str(report.longreprtext)[-TEXT_LIMIT:]


def skip_reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    longrepr = report.longrepr
    reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return reason.removeprefix("Skipped: ").partition("\n")[0]
