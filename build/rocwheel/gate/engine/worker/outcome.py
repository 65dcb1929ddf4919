"""The outcome of one test: what pytest reports, held against what a witness saw.

The witness wraps the test's own function, as it was collected, and sees it begin and return or
raise. A report that contradicts it is a failure. A digest covers pytest's hooks, the classes that
make outcomes, and what imports test files: a test that changes them fails. This is for tests and
conftests that replace parts of pytest, by accident or for convenience. Code that changes code
objects, frames, memory or this worker's own objects is not kept out.
"""

from __future__ import annotations

import ast
import functools
import inspect
import types
import unittest
import unittest.case
from typing import TYPE_CHECKING, Any

import pluggy
import pytest
from _pytest import fixtures, nodes, pathlib, python, reports, runner, skipping
from _pytest import unittest as cases
from _pytest.assertion import rewrite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TEXT_LIMIT = 64 << 10  # characters of one traceback
MESSAGE_LIMIT = 400  # characters of the line that stands for it
FAILED_STATUS = "failed"
SKIPS = (pytest.skip.Exception, unittest.SkipTest)
HOOKS = (
    "pytest_runtest_protocol", "pytest_runtest_setup", "pytest_runtest_call",
    "pytest_runtest_teardown", "pytest_runtest_makereport", "pytest_runtest_logreport",
    "pytest_pyfunc_call", "pytest_fixture_setup", "pytest_fixture_post_finalizer",
)  # fmt: skip
OWNERS: tuple[Any, ...] = (
    ast, pathlib, python, rewrite, rewrite.AssertionRewritingHook,
    runner, reports, skipping, runner.CallInfo, runner.SetupState, reports.BaseReport,
    reports.TestReport, nodes.Node, nodes.Item, python.PyobjMixin, python.Function,
    cases.TestCaseFunction, fixtures.FixtureDef, unittest.TestCase, vars(unittest.case)["_Outcome"],
    pluggy.HookCaller, pluggy.PluginManager,
)  # fmt: skip


class PartsDigest:
    """The hooks and classes that make outcomes, as they were when the tests were collected."""

    def __init__(self, hook: Any) -> None:
        self._callers = [caller for name in HOOKS if (caller := getattr(hook, name, None))]
        self._hooks = self._now()
        self._parts: list[tuple[Any, dict[str, Any]]] = []
        for owner in OWNERS:
            if isinstance(owner, type):
                _ = owner.__annotations__ if hasattr(owner, "__annotations__") else {}
            self._parts.append((owner, dict(vars(owner))))

    def collected(self) -> None:
        self._hooks = self._now()

    def changed(self) -> list[str]:
        names = ["hooks"] if self._now() != self._hooks else []
        for number, (owner, were) in enumerate(self._parts):
            now = vars(owner)
            if now == were:
                continue
            own = owner.__name__.rpartition(".")[2]
            acting = (n for n, part in were.items() if callable(part) or hasattr(part, "__get__"))
            replaced = [n for n in acting if now.get(n) is not were[n]]
            # a property takes the place of a field
            replaced += [n for n in now if n not in were and hasattr(now[n], "__set__")]
            names += [f"{own}.{name}" for name in replaced]
            self._parts[number] = owner, dict(now)  # further names, and settings, are none of these
        return names

    def _now(self) -> list[Any]:
        return [impl.function for caller in self._callers for impl in caller.get_hookimpls()]


class Witness:
    """Sees one test from inside; also a plugin, the innermost around setup and teardown."""

    def __init__(self) -> None:
        self._item: pytest.Item | None = None
        self._own: Any = None
        self._shim: Any = None
        self.entered = self.returned = False
        self.raised: dict[str, BaseException | None] = {}  # phase -> what it raised

    def begin(self, item: pytest.Item, own: Any) -> None:
        """Wrap the function that an item had when it was collected."""
        self._item, self._own = item, own
        self.entered = self.returned = False
        self.raised = {}
        self._shim = self._around(own)
        self.stand()

    def stand(self) -> None:
        """Wrap it again: setting a test up may make its function again."""
        item = self._item
        if not isinstance(item, pytest.Function):
            item.runtest = self._shim  # type: ignore[union-attr,method-assign]
            return
        there = item.obj
        if getattr(there, "__func__", there) is self._own:
            bound = there is not self._own
            item.obj = types.MethodType(self._shim, there.__self__) if bound else self._shim
            if inspect.iscoroutinefunction(self._own) and isinstance(item, cases.TestCaseFunction):
                setattr(item.instance, item.name, item.obj)  # unittest looks there for it

    def _around(self, own: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(own):

            @functools.wraps(own)
            async def shim(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return await own(*args, **kwargs)
        else:

            @functools.wraps(own)
            def shim(*args: Any, **kwargs: Any) -> Any:
                with self:
                    return own(*args, **kwargs)

        return shim

    def __enter__(self) -> None:
        self.entered, self.returned = True, False
        self.raised.pop("call", None)

    def __exit__(self, _kind: object, raised: BaseException | None, _tb: object) -> None:
        self.returned = raised is None
        if raised is not None:
            self.raised["call"] = raised

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        try:
            return (yield)
        except BaseException as exc:
            self.raised["setup"] = exc
            raise

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        try:
            return (yield)
        except BaseException as exc:
            self.raised["teardown"] = exc
            raise

    def problem(self, outcome: str, *, expected: bool) -> str:
        """Return how a report other than a failure differs from what was seen, or ""."""
        marked = expected and (
            (self._item is not None and self._item.get_closest_marker("xfail") is not None)
            or any(
                getattr(owner, "__unittest_expecting_failure__", False)
                for owner in (self._own, getattr(self._item, "cls", None))
            )
        )  # fmt: skip
        for phase, raised in self.raised.items():
            if marked or (outcome == "skipped" and isinstance(raised, SKIPS)):
                continue
            if expected and isinstance(raised, pytest.xfail.Exception):
                continue
            said = f"its {phase} raised {type(raised).__name__}: {raised}"
            return f"reported as {outcome}, but {said}"
        if outcome == "passed" and not self.returned:
            how = "did not return" if self.entered else "never ran"
            return f"reported as passed, but its own function, as it was collected, {how}"
        return ""


def outcome_of(reports: list[pytest.TestReport], witness: Witness) -> tuple[str, str, str]:
    """Fold the reports of setup, call and teardown (and of subtests) into one outcome.

    Return it with its message and traceback. A pass needs a call phase that passed. Outcomes that
    pytest does not know are failures, and so is a report that contradicts the witness.
    """
    if failed := [report for report in reports if report.failed]:
        text = "\n".join(error_text(report) for report in failed)
        shown = failed[0].longrepr
        crash = getattr(shown, "reprcrash", None)
        said = crash.message if crash else getattr(shown, "errorstring", "")  # of a fixture
        line = reason_of(said or text.strip().rpartition("\n")[2])
        where = "" if failed[0].when == "call" else f"in {failed[0].when}: "
        return FAILED_STATUS, f"{where}{line or 'no message'}"[:MESSAGE_LIMIT], text
    # a skipped subtest does not make its test a skipped one
    whole = [report for report in reports if not hasattr(report, "context")]
    outcome, message = _folded(whole)
    if outcome == FAILED_STATUS:
        return outcome, message, ""
    said = "passed" if outcome == "passed" else "skipped"
    expected = any(hasattr(report, "wasxfail") for report in whole)
    if problem := witness.problem(said, expected=expected):
        return FAILED_STATUS, problem, "\n".join(map(error_text, whole)).strip()
    return outcome, message, ""


def _folded(whole: list[pytest.TestReport]) -> tuple[str, str]:
    """Return outcome and message of reports that are no failures."""
    for report in whole:
        if report.outcome not in ("passed", "skipped"):
            return FAILED_STATUS, f"pytest reported the unknown outcome {report.outcome!r}"
    for report in whole:
        if report.skipped and hasattr(report, "wasxfail"):
            return "xfailed", str(report.wasxfail)
        if report.skipped:
            return "skipped", skip_reason(report)
    phases = {report.when: report.outcome for report in whole}
    if phases != {"setup": "passed", "call": "passed", "teardown": "passed"}:
        return FAILED_STATUS, "pytest reported no outcome"
    unexpected = [str(report.wasxfail) for report in whole if hasattr(report, "wasxfail")]
    return "passed", f"expected to fail: {unexpected[0]}" if unexpected else ""


def reason_of(message: str) -> str:
    """Return an exception's text in one line.

    That is its type with its first line that has a word, and NumPy's count of differences:
    `assert_allclose` begins with an empty line.
    """
    lines = [line.strip() for line in message.splitlines()]
    lines = [line for line in lines if any(map(str.isalnum, line))]
    if not lines:
        return ""
    first, *rest = lines
    if first.endswith(":") and rest:
        first = f"{first} {rest.pop(0)}"
    differs = next((line for line in rest if line.startswith("Mismatched elements: ")), "")
    room = MESSAGE_LIMIT - len(differs) - 3
    first = first if len(first) <= room else f"{first[: room - 1]}…"
    return f"{first} … {differs}" if differs else first


def error_text(report: pytest.CollectReport | pytest.TestReport) -> str:
    return str(report.longreprtext)[-TEXT_LIMIT:]


def skip_reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    longrepr = report.longrepr
    reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return reason.removeprefix("Skipped: ").partition("\n")[0]
