"""The control run: what failed is tried with the released set, and each failure gets its word."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import gate

from rocwheel.base.errors import ConfigError
from rocwheel.base.process import Command
from rocwheel.base.values import replace
from rocwheel.gate import InfraError, control
from rocwheel.gate.request import Choice
from rocwheel.gate.suite.suites import device_errors
from rocwheel.gate.verdict.judge import judge
from rocwheel.records.results import KNOWN, MACHINE, NEW
from rocwheel.records.verdict import Demand, State

pytestmark = pytest.mark.integration

ERRORS = device_errors(Path(__file__).parents[2] / "ci")
HEAD = """import os, pytest, time
from pathlib import Path
HERE, STATE, HUNG = Path(__file__).parent, [], b"HW Exception by GPU node-4"
"""
X, Y = "test_a.py::test_x", "test_a.py::test_y"
OTHERWISE = "new: the released set fails otherwise: "
GONE = "not looked at: it is not there"


def does(body: str, name: str = "x") -> str:
    return f"def test_{name}():\n    {body}\n"


FAILS, PASSES = does("assert 0"), does("pass")
CRASHES = does("os.abort()")
HANGS = does("(HERE / f'hangs{os.getpid()}').touch(); time.sleep(1000)")
ONCE = "(HERE / 'seen').exists() or ((HERE / 'seen').touch(), "
MET = does(f"{ONCE}os.write(2, HUNG), os.abort())\n    assert 0")
LEAVES = does("STATE.append(1)", "before")
BAD = Command(argv=(sys.executable, "-c", "raise SystemExit('no device')"))
CASES = {  # what the new set does, what the released one does, the words, options of the control
    "fails in both": (FAILS, FAILS, {X: KNOWN}, {}),
    "fails in the new set alone": (FAILS, PASSES, {X: NEW}, {}),
    "crashes in both": (CRASHES, CRASHES, {X: KNOWN}, {}),
    "crashes in the new set alone": (CRASHES, PASSES, {X: NEW}, {}),
    "hangs in both": (HANGS, HANGS, {X: KNOWN}, {}),
    "hangs in the new set alone": (HANGS, PASSES, {X: NEW}, {}),
    "crashes where the released set fails": (CRASHES, FAILS, {X: f"{OTHERWISE}assert 0"}, {}),
    "raises another exception": (
        does("{}['a']"), does("int('a b')"),
        {X: f"{OTHERWISE}ValueError: invalid literal for int() with base 10: 'a b'"}, {},
    ),
    "raises the same with other numbers": (
        does("raise ValueError('1 of 3')"), does("raise ValueError('2 of 3')"), {X: KNOWN}, {},
    ),
    "fails in its setup there": (
        FAILS, "@pytest.fixture\ndef odd(): raise OSError('no')\ndef test_x(odd): pass\n",
        {X: f"{OTHERWISE}in setup: OSError: no"}, {},
    ),
    "cannot be collected in both": ("import nowhere\n", "import nowhere\n", {"test_a.py": KNOWN}, {}),
    "cannot be collected in the new set": ("import nowhere\n", FAILS, {"test_a.py": NEW}, {}),
    "cannot be collected there for another reason": (
        "import nowhere\n", "raise OSError('odd')\n",
        {"test_a.py": f"{OTHERWISE}OSError: odd"}, {},
    ),
    "is new itself": (FAILS, does("pass", "y"), {X: GONE}, {}),
    "is in a file that is new": (FAILS, None, {X: GONE}, {}),
    "is in a file that cannot be collected there": (
        FAILS, "import nowhere\n", {X: "not looked at: it cannot be collected there"}, {},
    ),
    "is skipped there": (
        FAILS, does("pytest.skip('why')"), {X: "not looked at: skipped there: why"}, {},
    ),
    "is expected to fail there": (FAILS, f"@pytest.mark.xfail\n{FAILS}", {X: KNOWN}, {}),
    "is flaky there": (FAILS, does(f"assert {ONCE}0)[1]"), {X: KNOWN}, {}),
    "met a broken machine": (MET, PASSES, {X: MACHINE}, {}),
    "meets a broken machine there": (CRASHES, MET, {X: MACHINE}, {}),
    "loses its device there": (
        CRASHES + does("assert 0", "y"), CRASHES + does("pass", "y"), {X: KNOWN, Y: MACHINE},
        {"lanes": gate.lanes(1, probe=BAD)},
    ),
    "fails by what it leaves": (
        LEAVES + does("assert not STATE", "y"), PASSES,
        {"test_a.py::test_before": "not looked at: it fails by what it leaves to others"}, {},
    ),
    "fails behind another that leaves something there": (
        FAILS + does("assert 0", "y"), does("STATE.append(1)") + does("assert not STATE", "y"),
        {X: NEW, Y: NEW}, {},
    ),
    "takes too long there": (
        FAILS + does("assert 0", "y"), HANGS + does("pass", "y"), {X: control.LATE, Y: control.LATE},
        {"deadline": 200.0, "test_deadline": float("inf")},
    ),
}  # fmt: skip


def compared(tmp_path, new, released, **options):
    """Run both sets, as a gate does; return the results, and what was asked of the released one."""
    asked = []

    def rerun(request, failed):
        for devices, names in failed.items():
            asked.append(names)
            files = {"test_a.py": HEAD + released} if released is not None else {}
            root = tmp_path / "released"
            found = gate.run_hanging(
                root, {"test_b.py": HEAD, **files}, wanted=names.__contains__, device_errors=ERRORS,
                **options,
            )  # fmt: skip
            assert request.choice is Choice.NAMED
            yield devices, found.results

    for name in ("new", "released"):
        (tmp_path / name).mkdir()
    run = gate.run_hanging(tmp_path / "new", {"test_a.py": HEAD + new}, device_errors=ERRORS)
    return control.compared(run.results, request(), rerun), run.verdict, asked


def request(sha256="b", error: Exception | None = None, **changes):
    def released():
        if error:
            raise error
        return SimpleNamespace(sha256=sha256, rocm=SimpleNamespace(sha256="r")), "wheels"

    manifest = SimpleNamespace(sha256="a", rocm=SimpleNamespace(sha256="r"))
    about = {
        "released": released, "whole": True, "manifest": manifest, "rocm": "", "wheels": "",
        "output": Path(), "choice": Choice.ALL, **changes,
    }  # fmt: skip
    return Asked(**about)


class Asked(control.Plain, frozen=True, kw_only=True):
    released: object
    whole: bool
    manifest: object
    rocm: str
    wheels: str
    output: Path
    choice: Choice


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_failure_that(tmp_path, case):
    new, released, words, options = case
    results, before, asked = compared(tmp_path, new, released, **options)
    assert results.control == words
    assert all(names <= words.keys() for names in asked), "nothing else ran"
    judged = judge(results, Demand(must_run=1))
    assert judged.state is before.state, "a word changes no state"
    assert judged.state is State.INFRA or any(name in judged.message for name in words)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (request(error=ConfigError("nothing is released")), "nothing is released"),
        (request(sha256="a"), "this is the released set"),
        (request(error=OSError("no\nroute")), "no route"),
    ],
)
def test_without_a_released_set_nothing_is_looked_at_and_the_reason_is_said(tmp_path, asked, said):
    (tmp_path / "suite").mkdir()
    results = gate.run(tmp_path / "suite", {"test_a.py": FAILS + does("assert 0", "y")}).results
    found = control.compared(results, asked, lambda *_: pytest.fail("it ran"))
    assert found.control == dict.fromkeys((X, Y), f"not looked at: {said}")
    message = judge(found, Demand(must_run=1)).message
    assert message.startswith(f"2 tests failed (2 not looked at): {X} (not looked at: {said})")

    def broken(_asked, _failed):
        raise InfraError("the environment could not be made")
        yield

    found = control.compared(results, request(), broken)
    assert set(found.control.values()) == {"not looked at: the environment could not be made"}
    for off in (request(whole=False), replace(request(), released=None)):
        assert control.compared(results, off, broken) is results, "a part of a suite, a local set"
