"""The engine against suites that pass, fail, crash, hang and worse, in real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from support import gate
from support.processes import gone, written

from rocwheel.base.process import Command
from rocwheel.gate import InfraError
from rocwheel.gate.engine import child, loop
from rocwheel.gate.engine.plan import Watcher
from rocwheel.gate.machine.accelerators import Accelerator, Maker
from rocwheel.gate.machine.devices import Slots
from rocwheel.gate.report import gate_page
from rocwheel.gate.suite.suites import Library
from rocwheel.records.results import Fault, LastRun, Outcome
from rocwheel.records.verdict import State

pytestmark = pytest.mark.integration

TWO = "def test_one(): pass\ndef test_two(): pass\n"


CPUS = """
import os, threading
def test_cpus(): assert os.sched_getaffinity(0) == {KEPT}
def test_of_what_it_starts():
    import subprocess, sys
    said = subprocess.check_output([sys.executable, "-c", "import os; print(os.sched_getaffinity(0))"])
    assert eval(said) == {KEPT}
"""


@pytest.mark.parametrize("number", [0, 1])
def test_a_worker_keeps_to_its_cpus_counted_on_beyond_those_there_are(root, number):
    there = sorted(os.sched_getaffinity(0))
    (lane,) = gate.lanes(1, cpus=range(number, number + 1))
    files = {"test_cpus.py": CPUS.replace("KEPT", str(there[number % len(there)]))}
    assert gate.run(root, files, lanes=(lane,)).verdict.state is State.PASS
    assert sorted(os.sched_getaffinity(0)) == there, "the gate itself keeps all"


# --- each state has a suite of its own ----------------------------------------------------------

FLAKY = """
from pathlib import Path
def test_flaky(tmp_path_factory):
    seen = Path(__file__).with_name("seen")
    first = not seen.exists()
    seen.touch()
    assert not first, "the first time"
"""

POISON = """
    state = {"poisoned": False}
    def test_before(): pass
    def test_poison(): state["poisoned"] = True
    def test_victim_1(): assert not state["poisoned"]
    def test_victim_2(): assert not state["poisoned"]
    def test_victim_3(): assert not state["poisoned"]
"""

HANGS_NOW = "__import__('pathlib').Path(__file__).with_name('hangs').touch()"  # see gate.Leaper
SLEEP = f"import time\ndef test_x(): {HANGS_NOW}; time.sleep(1000)\n"
SKIP = "import pytest\n@pytest.mark.skip\ndef test_x(): pass\n"
CONTRACT = {  # what a suite does: (its file, how it is run, state, exit code)
    "passes": (TWO, {}, State.PASS, 0),
    "needs a second try": (FLAKY, {"must_run": 0}, State.FLAKY, 21),
    "fails": ("def test_x(): assert False\n", {}, State.FAIL, 22),
    "poisons its worker": (POISON, {}, State.FAIL, 22),
    "crashes": ("import os\ndef test_x(): os.abort()\n", {}, State.CRASH, 23),
    "hangs": (SLEEP, {"retry_limit": 0}, State.TIMEOUT, 24),
    "cannot be collected": ("import no_such_module\n", {}, State.COLLECT_ERROR, 25),
    "has no test": ("", {}, State.NOTHING_RAN, 26),
    "skips everything": (SKIP, {"may_skip": 9}, State.TOO_FEW_RAN, 27),
    "runs too few": (TWO, {"must_run": 3}, State.TOO_FEW_RAN, 27),
}  # SIGTERM, 30, is below; no-runner, 28, and infra, 29, need no suite: test_gate_run


@pytest.mark.parametrize("case", CONTRACT.values(), ids=CONTRACT)
def test_whatever_a_suite_does_has_its_state_and_exit_code(root, case):
    text, options, state, code = case
    run = gate.run_hanging(root, {"test_a.py": text}, **options)
    assert run.verdict.state is state
    assert run.verdict.state.exit_code == code
    assert bool(run.verdict.message) is (state is not State.PASS)


def test_a_failing_test_is_tried_again_and_named_with_what_it_printed(root):
    run = gate.run(
        root,
        {
            "test_a.py": """
            import sys
            def test_good(): pass
            def test_bad():
                print("on stdout")
                print("on stderr", file=sys.stderr)
                assert 1 + 1 == 3
            """
        },
    )
    assert run.verdict.state is State.FAIL
    assert "test_a.py::test_bad: assert (1 + 1) == 3" in run.verdict.message
    assert run.attempts("test_a.py::test_bad") == ["failed", "failed"]
    first = run["test_a.py::test_bad"].attempts[0]
    assert first.output == "on stdout\non stderr\n"
    assert ">       assert 1 + 1 == 3" in first.detail
    assert run["test_a.py::test_bad"].line == 4
    assert len({attempt.process for attempt in run["test_a.py::test_bad"].attempts}) == 2


def test_a_kill_for_memory_is_called_by_its_name(root):
    kills = iter([0, 1, 1, 2, 2])
    run = gate.run(
        root,
        {"test_a.py": "import os\ndef test_big(): os.kill(os.getpid(), 9)\n"},
        world=gate.machine(oom_kills=lambda: next(kills)),
    )
    assert run["test_a.py::test_big"].attempts[0].message.endswith("out of memory")


def test_stacks_that_a_busy_machine_writes_late_are_waited_for(root, monkeypatch):
    monkeypatch.setattr(loop, "DUMP_SECONDS", 240.0)
    code = f"""
        import signal, time
        def test_hang():
            signal.pthread_sigmask(signal.SIG_BLOCK, [{child.DUMP_SIGNAL}])
            {HANGS_NOW}
            while {child.DUMP_SIGNAL} not in signal.sigpending(): time.sleep(0.01)
            time.sleep(2)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [{child.DUMP_SIGNAL}])
            time.sleep(1000)
    """
    run = gate.run_hanging(root, {"test_a.py": code}, retry_limit=0)
    assert "in test_hang" in run["test_a.py::test_hang"].attempts[0].detail


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("def test_x(: pass", "SyntaxError"),
        ("raise SystemExit(0)", "SystemExit while the file was imported"),
        ("import ctypes; ctypes.string_at(0)", "import: signal 11"),
        ("import os; os._exit(0)", "import: exit status 0"),
        (f"import time; {HANGS_NOW}; time.sleep(1000)", "import: no end of its import after 100 s"),
        ("import pytest; pytest.exit('enough')", "enough"),
        ("raise ImportError('no numpy\\n\\nSee https://example.org.\\n')", "ImportError: no numpy"),
        ("raise SystemExit('no\\nGPU')", "SystemExit while the file was imported: no"),
        ("import pytest; pytest.fail('one\\ntwo', pytrace=False)", ": one"),
    ],
)
def test_a_file_that_cannot_be_collected_is_an_error_and_others_still_run(root, code, message):
    run = gate.run_hanging(root, {"test_a.py": code, "test_b.py": TWO})
    assert run.verdict.state is State.COLLECT_ERROR
    assert message in run.verdict.message
    (error,) = run.results.collect_errors
    assert error.file == "test_a.py"
    assert run.results.counts.passed == 2


def test_a_file_is_collected_without_a_look_at_those_beside_it(root):
    """Looking at all of a folder for each of its files would be quadratic."""
    told = "    with Path(__file__).with_name('seen').open('a') as file: print(file_path.name, file=file)"
    conftest = f"from pathlib import Path\ndef pytest_collect_file(file_path):\n{told}\n"
    tests = {f"test_{name}.py": "def test(): pass\n" for name in "abc"}
    run = gate.run(root, {"conftest.py": conftest, **tests, "sub/test_d.py": "def test(): pass\n"})
    assert run.results.counts.passed == 4
    assert sorted((root / "seen").read_text().split()) == [*tests, "test_d.py"]


def test_what_a_thread_raises_later_is_not_the_failure_of_the_next_test(root):
    run = gate.run(
        root,
        {
            "test_a.py": """
            import threading
            go = threading.Event()
            def late():
                go.wait()
                raise ValueError("too late")
            thread = threading.Thread(target=late)
            def test_starts_it(): thread.start()
            def test_runs_by_then():
                go.set()
                thread.join()
            """
        },
    )
    assert set(run.outcomes().values()) == {"passed"}
    assert run.verdict.state is State.FAIL
    assert run.verdict.message.startswith("test_a.py::test_starts_it in process 1 on gpu0: thread ")
    assert "ValueError during test_a.py::test_runs_by_then: too late" in run.verdict.message


@pytest.mark.parametrize("scope", ["session", "module"])
def test_fixtures_are_set_up_once_for_all_tests_of_their_scope(root, scope):
    conftest = f"""
        import pytest
        from pathlib import Path
        @pytest.fixture(scope={scope!r}, autouse=True)
        def costly():
            log = Path(__file__).with_name("log")
            with log.open("a") as file: file.write("up ")
            yield
            with log.open("a") as file: file.write("down ")
    """
    files = {"conftest.py": conftest, **{f"test_{n}.py": TWO for n in range(4)}}
    assert gate.run(root, files).verdict.state is State.PASS
    assert (root / "log").read_text() == "up down " * (1 if scope == "session" else 4)


def test_a_fixture_of_the_session_that_cannot_be_torn_down_is_the_fault_of_its_process(root):
    files = {
        "conftest.py": """
            import pytest
            @pytest.fixture(scope="session", autouse=True)
            def costly():
                yield
                raise RuntimeError("cannot clean up")
            """,
        "test_a.py": TWO,
    }
    run = gate.run(root, files)
    assert set(run.outcomes().values()) == {"passed"}
    assert run.verdict.state is State.FAIL
    assert "process 1 on gpu0: a fixture failed when it was torn down" in run.verdict.message


def test_a_comparison_that_fails_shows_both_sides(root):
    code = "def test_x(): assert {'a': [1, 2, 3]} == {'a': [1, 2, 4]}\n"
    run = gate.run(root, {"test_a.py": code}, retry_limit=0)
    (attempt,) = run["test_a.py::test_x"].attempts
    assert "assert {'a': [1, 2, 3]} == {'a': [1, 2, 4]}" in attempt.detail
    assert "INTERNAL" not in attempt.detail
    assert "get_terminal_writer" not in attempt.detail


@pytest.mark.parametrize(
    ("hook", "message"),
    [
        ("report.outcome = 'skipped'; report.longrepr = ('', 1, 'x')", "reported as skipped, but"),
        ("report.outcome = 'skipped'; report.wasxfail = 'x'", "reported as skipped, but its call"),
        ("report.outcome = 'rerun'", "unknown outcome 'rerun'"),
    ],
)
def test_a_conftest_that_rewrites_outcomes_is_outvoted(root, hook, message):
    conftest = f"""
        import pytest
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            if call.when == "call":
                {hook}
            return report
    """
    files = {"conftest.py": conftest, "test_a.py": "def test_x(): assert 0\n"}
    run = gate.run(root, files, retry_limit=0)
    assert run.verdict.state is State.FAIL
    assert message in run["test_a.py::test_x"].attempts[0].message


def test_what_is_deselected_is_counted_however_it_is_done(root):
    conftest = """
        def pytest_collection_modifyitems(items):
            items[:] = [item for item in items if "silent" not in item.name]
    """
    tests = (
        TWO + "import pytest\n@pytest.mark.slow\ndef test_slow(): pass\ndef test_silent(): pass\n"
    )
    files = {"conftest.py": conftest, "test_a.py": tests}
    ini = ("-c", os.devnull, "-m", "not slow")
    run = gate.run(root, files, worker={"arguments": ini})
    assert run.results.counts.deselected == 2
    assert run["test_a.py::test_silent"].outcome is Outcome.DESELECTED


def test_a_file_that_must_be_alone_has_a_process_of_its_own(root):
    code = "import os\ndef test_x(): print(os.getpid())\ndef test_y(): pass\n"
    files = {f"test_{name}.py": code for name in "abc"}
    run = gate.run(root, files, alone=frozenset({"test_b.py"}))
    process = {t.test: t.attempts[0].process for t in run.results.tests}
    assert process["test_b.py::test_x"] == process["test_b.py::test_y"]
    others = {number for test, number in process.items() if "test_b" not in test}
    assert process["test_b.py::test_x"] not in others


def test_what_reads_absls_flags_does_not_depend_on_the_files_before_it(root):
    """A file of JAX's that parses none can be the first of its process; absl is a fake here."""
    flags = """
        class Flags:
            parsed = False
            def is_parsed(self): return self.parsed
            def mark_as_parsed(self): self.parsed = True
        FLAGS = Flags()
    """
    code = "from absl import flags\ndef test_x(): assert flags.FLAGS.parsed\n"
    files = {"absl/__init__.py": "", "absl/flags.py": flags, "test_a.py": code, "test_b.py": code}
    run = gate.run(root, files, env={"PYTHONPATH": str(root)})
    assert set(run.outcomes().values()) == {"passed"}


class Looker(Watcher):
    """Lets a test wait until the engine has looked at its process, which it does each second.

    A suite asks for that by a file `waits`, and waits for a file `seen`.
    """

    TURNS = 3

    def __init__(self, root):
        self._root, self._turns, self._leapt = root, 0, 0.0

    def clock(self):
        return time.monotonic() + self._leapt

    def progress(self, snapshot):
        del snapshot
        waits = self._root / "waits"
        if not waits.exists():
            return
        self._turns += 1
        self._leapt += 2 * loop.TRIM_SECONDS
        if self._turns > self.TURNS:
            waits.unlink()
            self._turns = 0
            (self._root / "seen").touch()


# a test that lasts until the engine has looked at its process
LOOKED_AT = """
    import pathlib, pytest, time
    root = pathlib.Path(__file__).parent
    def test_x():
        (root / "waits").touch()
        while not (root / "seen").exists(): time.sleep(0.01)
        (root / "seen").unlink()
    @pytest.mark.parametrize("number", range(9))
    def test_y(number): pass  # the first are sent with it
"""


@pytest.mark.parametrize("limit", [1, 1 << 50])
def test_a_process_that_holds_too_much_memory_is_sent_no_other_test(root, limit):
    """Not of its file, nor of another: what a process compiled it keeps, and suites are long."""
    looker = Looker(root)
    run = gate.run(
        root, {"test_a.py": LOOKED_AT, "test_b.py": LOOKED_AT}, watcher=looker,
        world=gate.machine(clock=looker.clock), process_memory=limit,
    )  # fmt: skip
    assert run.verdict.state is State.PASS, run.verdict
    process = {t.test: t.attempts[0].process for t in run.results.tests}
    first = {process[f"test_{name}.py::test_x"] for name in "ab"}
    assert len(first) == (2 if limit == 1 else 1)
    same = process["test_a.py::test_x"] == process["test_a.py::test_y[8]"]
    assert same is (limit > 1)
    said = ["too much memory" in item.ended for item in run.results.processes]
    assert any(said) is (limit == 1)
    assert not said[-1], "the last had nothing left to do"


def test_modules_that_the_installed_package_lacks_come_from_a_folder_asked_last(root):
    installed = root.parent / "installed/package"
    extra = root.parent / "modules/package"
    for folder, names in ((installed, ("__init__", "there")), (extra, ("there", "lacking"))):
        folder.mkdir(parents=True)
        for name in names:
            (folder / f"{name}.py").write_text(f"WHERE = {folder.parent.name!r}\n")
    code = """
        from package import lacking, there
        def test_x(): assert (there.WHERE, lacking.WHERE) == ("installed", "modules")
    """
    worker = {"modules": extra.parent, "env": {"PYTHONPATH": str(installed.parent)}}
    run = gate.run(root, {"test_a.py": code}, worker=worker)
    assert run.verdict.state is State.PASS
    assert run.results.processes[0].extra == ("package.lacking",)


def test_a_skipped_module_counts_every_test_it_hides(root):
    files = {"test_a.py": "import pytest\npytest.skip('needs 8', allow_module_level=True)\n"}
    hidden = lambda file: (f"{file}::test_one", f"{file}::test_two")  # noqa: E731
    run = gate.run(root, files, hidden=hidden, may_skip=9)
    assert run.outcomes() == {"test_a.py::test_one": "skipped", "test_a.py::test_two": "skipped"}
    assert run["test_a.py::test_one"].reason == "needs 8"


def test_node_ids_longer_than_a_pipe_stop_nobody(root):
    code = """
        import os, signal, pytest
        from pathlib import Path
        @pytest.mark.parametrize("n", range(40), ids=lambda n: f"{n}" + "x" * 20000)
        def test_x(n):
            if n == 3:
                Path(__file__).with_name("hangs").touch()
                os.kill(os.getpid(), signal.SIGSTOP)
    """
    run = gate.run_hanging(root, {"test_a.py": code}, retry_limit=0)
    assert run.results.counts.passed == 39
    assert run.results.counts.timed_out == 1
    assert run.seconds < 500


def test_a_log_keeps_its_head_and_tail(root, monkeypatch):
    monkeypatch.setattr(child, "LOG_LIMIT", 4 << 20)
    monkeypatch.setattr(child, "LOG_HEAD", 1 << 20)
    monkeypatch.setattr(child, "LOG_TAIL", 1 << 20)
    code = """
        import os, time
        def test_x():
            print("first words")
            for n in range(40):
                os.write(1, b"x" * (1 << 20))
                time.sleep(0.05)
            print("last words")
            assert 0
    """
    run = gate.run(root, {"test_a.py": code}, retry_limit=0)
    output = run["test_a.py::test_x"].attempts[0].output
    assert "first words" in output
    assert "last words" in output
    (process,) = run.results.processes
    log = root.parent / "suite-logs" / process.log
    assert log.stat().st_size < 3 << 20
    assert "bytes left out" in log.read_text()


def test_a_poisoned_worker_is_replaced_and_the_poisoner_named(root):
    run = gate.run(root, {"test_a.py": POISON, "test_b.py": TWO}, flaky_budget=10)
    assert run.verdict.state is State.FAIL
    assert run.verdict.message == (
        "1 test failed: test_a.py::test_poison: poisons its process: "
        "2 tests after it failed there and pass alone"
    )
    assert run["test_a.py::test_victim_1"].outcome is Outcome.PASSED
    assert run.attempts("test_a.py::test_victim_1") == ["failed", "passed"]
    assert "test_poison" in run["test_a.py::test_victim_1"].reason
    assert run.attempts("test_a.py::test_victim_3") == ["passed"], "it ran in the new process"


def test_failures_in_a_row_that_are_real_accuse_nobody(root):
    tests = "".join(f"def test_{n}(): assert {n} < 2\n" for n in range(8))
    run = gate.run(root, {"test_a.py": tests})
    assert run.verdict.state is State.FAIL
    assert run.results.counts.failed == 6
    assert run.results.counts.passed == 2
    assert not any(test.reason for test in run.results.tests)


def test_tests_that_wish_to_fail_are_expected_failures_and_strict(root):
    run = gate.run(
        root,
        {
            "test_a.py": """
            import pytest
            @pytest.mark.xfail(reason="no TF32", strict=True)
            def test_expected(): assert False
            @pytest.mark.xfail(reason="no int4", strict=True)
            def test_unexpected(): pass
            """
        },
    )
    assert run["test_a.py::test_expected"].outcome is Outcome.XFAILED
    assert run["test_a.py::test_expected"].reason == "no TF32"
    assert run["test_a.py::test_unexpected"].outcome is Outcome.FAILED
    assert run.verdict.state is State.FAIL


# --- what else goes wrong -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "code", ["os.kill(os.getpid(), 11)", "os._exit(7)", "os._exit(1)", "os._exit(0)"]
)
def test_an_end_by_what_a_test_registered_for_it_is_a_crash_that_names_the_test(root, code):
    tests = f"import atexit, os\ndef test_x(): atexit.register(lambda: {code})\n"
    run = gate.run(root, {"test_a.py": f"{tests}def test_last(): pass\n"})
    assert set(run.outcomes().values()) == {"passed"}
    assert run.verdict.state is State.CRASH
    said = "after test_a.py::test_last (functions that run then are of test_a.py::test_x)"
    assert said in run.verdict.message


def test_a_broken_conftest_is_a_collect_error_not_a_loop(root):
    run = gate.run(root, {"conftest.py": "import no_such_module\n", "test_a.py": TWO})
    assert run.verdict.state is State.COLLECT_ERROR
    assert "pytest did not start" in run.verdict.message
    assert "no_such_module" in run.results.collect_errors[0].detail
    assert len(run.results.processes) == 2


def test_a_fixture_that_fails_after_its_last_user_fails_that_test(root):
    run = gate.run(
        root,
        {
            "test_a.py": """
            import pytest
            @pytest.fixture(scope="module")
            def costly():
                yield
                raise RuntimeError("cannot clean up")
            def test_one(costly): pass
            def test_two(costly): pass
            """,
        },
    )
    assert run.verdict.state is State.FAIL
    assert run["test_a.py::test_one"].outcome is Outcome.PASSED
    assert run.attempts("test_a.py::test_two") == ["failed", "failed"]


def test_the_deadline_of_the_run_lists_what_did_not_run(root):
    slow = f"def test_slow(): {HANGS_NOW}; time.sleep(1000)\n"
    run = gate.run_hanging(
        root,
        {
            "test_a.py": f"import time\ndef test_ok(): pass\n{slow}def test_never(): pass\n",
            "test_b.py": TWO,
        },
        deadline=200.0,
        test_deadline=float("inf"),
    )
    assert run.verdict.state is State.TIMEOUT
    assert run.verdict.message == "the deadline of 200 s passed during test_a.py::test_slow"
    (slow,) = run["test_a.py::test_slow"].attempts
    assert slow.outcome is Outcome.TIMED_OUT
    assert "in test_slow" in slow.detail, "its stacks were dumped"
    left = {t.test: t.reason for t in run.results.tests if t.outcome is Outcome.NOT_RUN}
    assert set(left) == {"test_a.py::test_never", "test_b.py"}
    assert set(left.values()) == {"the deadline of 200 s passed"}


def test_the_deadline_of_the_run_finds_a_process_that_does_not_end_by_its_stacks(root, monkeypatch):
    monkeypatch.setattr(loop, "END_SECONDS", float("inf"))
    code = f"""
    import pytest, time
    @pytest.fixture(scope="session", autouse=True)
    def slow_to_end():
        yield
        {HANGS_NOW}
        time.sleep(1000)
    def test_ok(): pass
    """
    run = gate.run_hanging(root, {"test_a.py": code}, deadline=200.0)
    assert run.verdict.state is State.TIMEOUT
    first, second = (fault.message for fault in run.results.faults)
    assert first == "the deadline of 200 s passed during the end of process 1 on gpu0"
    assert second.endswith(
        "the deadline of 200 s passed while it ended; its stacks: 001-gpu0.stacks"
    )
    stacks = (root.parent / f"{root.name}-logs/001-gpu0.stacks").read_text()
    assert "in slow_to_end" in stacks
    assert run.outcomes() == {"test_a.py::test_ok": "passed"}


# nobody waits for a process that was given up
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_lane_whose_process_cannot_be_killed_is_lost_and_quarantined(root):
    quarantined: list[tuple[Accelerator, str]] = []
    stubborn: list[int] = []

    def killpg(pid, number):
        if (root / f"hangs-{pid}").exists():
            stubborn.append(pid)
            return
        os.killpg(pid, number)

    try:
        run = gate.run(
            root,
            {
                "test_a.py": """
                import os, time
                from pathlib import Path
                def test_stuck():
                    Path(__file__).with_name(f"hangs-{os.getpid()}").touch()
                    time.sleep(1000)
                """,
                "test_b.py": "def test_long_name_so_that_it_is_second(): pass\n",
            },
            lanes=gate.lanes(2),
            test_deadline=10.0,
            kill_deadline=0.5,
            retry_limit=0,
            world=gate.machine(
                killpg=killpg, quarantine=lambda device, why: quarantined.append((device, why))
            ),
        )
    finally:
        for pid in set(stubborn):  # by then its supervisor, without the gate, has done so
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    assert run.verdict.state is State.INFRA
    assert "cannot be killed" in run.verdict.message
    assert run["test_a.py::test_stuck"].outcome is Outcome.TIMED_OUT
    assert run.results.counts.passed == 1, "the other lane went on"
    lost = [lane for lane in run.results.lanes if lane.lost]
    assert [device.serial for device, _ in quarantined] == [lost[0].devices[0].serial]


def test_a_device_that_does_not_answer_after_a_crash_is_infra(root):
    files = {"test_a.py": "import os\ndef test_crash(): os.abort()\n" + TWO}
    bad = Command(argv=(sys.executable, "-c", "raise SystemExit('no device')"))
    run = gate.run(root, files, lanes=gate.lanes(1, probe=bad))
    assert run.verdict.state is State.INFRA
    assert "does not answer" in run.verdict.message
    assert run.results.counts.not_run == 2
    good = Command(argv=(sys.executable, "-c", ""))
    run = gate.run(root, files, lanes=gate.lanes(1, probe=good))
    assert run.verdict.state is State.CRASH
    assert run.results.counts.passed == 2


# One lane may come up much later than the other, which waits for it.
BAD_DEVICE = """\
import os, time
from pathlib import Path
def check(number):
    if os.environ["LANE"] == "1":
        Path(__file__).with_suffix(f".failed{number}").touch()
        raise AssertionError
    while len(list(Path(__file__).parent.glob("*.failed*"))) < 5: time.sleep(0.01)
"""


def test_tests_that_fail_on_one_device_only_are_blamed_on_the_device(root):
    tests = BAD_DEVICE + "".join(f"def test_{n}(): check({n})\n" for n in range(10))
    files = {"test_a.py": tests, "test_b.py": tests}
    run = gate.run(root, files, lanes=gate.lanes(2), flaky_budget=1000, retry_limit=1000)
    assert run.verdict.state is State.INFRA
    assert "failed on gpu1 (serial1) and pass on other devices" in run.verdict.message


def test_a_worker_on_another_backend_or_another_install_is_infra(root):
    fake = {
        "jax/__init__.py": "from jax._src import xla_bridge\n",
        "jax/_src/__init__.py": "",
        "jax/_src/xla_bridge.py": "import atexit\n_backends = {'cpu': object()}\n"
        "atexit.register(_backends.clear)\n",
        "test_a.py": "import jax\ndef test_x(): pass\n",
    }
    run = gate.run(root, fake, backend="rocm", worker={"watch": ("jax",)})
    assert run.verdict.state is State.INFRA
    assert "ran on cpu, not on rocm" in run.verdict.message
    run = gate.run(root, fake, modules="/venv/lib", worker={"watch": ("jax",)})
    assert "imported jax from" in run.verdict.message


def test_libraries_are_seen_in_the_process_or_in_a_trace(root):
    libraries = (
        Library(name="libc", mapped=("libc.so", "libc-")),
        Library(name="absent", mapped=("librocabsent.so",)),
        Library(name="traced", mapped=("libc.so",), trace={"TRACE_TO": "{file}", "LEVEL": "1"}),
    )
    files = {
        "test_a.py": """
        import os, pytest
        @pytest.mark.rocm("libc", "absent")
        def test_mapped(): pass
        @pytest.mark.rocm("traced")
        def test_called(): open(os.environ.get("TRACE_TO", os.devnull), "a").write("call")
        @pytest.mark.rocm("traced")
        def test_not_called(): pass
        """
    }
    run = gate.run(root, files, worker={"libraries": libraries, "trace": True})
    assert run["test_a.py::test_mapped"].libraries == ("libc", "absent")
    assert run["test_a.py::test_mapped"].evidence == ("libc",)
    assert run["test_a.py::test_called"].evidence == ("traced",)
    assert run["test_a.py::test_not_called"].evidence == ()
    untraced = gate.run(root, files, worker={"libraries": libraries})
    assert untraced["test_a.py::test_not_called"].evidence == ("traced",), "it is mapped"


def test_logs_of_an_earlier_run_are_not_shown_again(root):
    crash = "import ctypes\ndef test_first(): ctypes.string_at(0)\n"
    first = gate.run(root, {"test_a.py": crash}, retry_limit=0)
    assert "test_first" in first["test_a.py::test_first"].attempts[0].detail
    second = gate.run(root, {"test_a.py": "import os\ndef test_x(): os._exit(3)\n"}, retry_limit=0)
    assert second["test_a.py::test_x"].attempts[0].detail == ""


class Seen(Watcher):
    def __init__(self, told=None):
        self.told = told  # a file that is made once a test is seen
        self.snapshots = []
        self.failures = []

    def progress(self, snapshot):
        self.snapshots.append(snapshot)
        if self.told and any("test_slow" in text for _, text, _ in snapshot.lanes):
            self.told.touch()

    def failed(self, test, attempt):
        self.failures.append((test, attempt.message))


def test_progress_counts_up_and_failures_are_told_at_once(root):
    seen = Seen(root / "told")
    code = """
        import time
        from pathlib import Path
        def test_slow():
            while not Path(__file__).with_name("told").exists(): time.sleep(0.01)
        def test_bad(): assert 0
    """
    gate.run(root, {"test_a.py": code}, watcher=seen, lanes=gate.lanes(2))
    assert seen.snapshots[-1].done == seen.snapshots[-1].total == 2
    assert seen.told.exists()
    assert all(0 <= seconds < 500 for s in seen.snapshots for _, _, seconds in s.lanes)
    assert seen.failures[0][0] == "test_a.py::test_bad"


# --- signals ------------------------------------------------------------------------------------

PROGRAM = """\
import signal, sys
from pathlib import Path
sys.path[:0] = {path!r}
from support import gate

from rocwheel.gate.engine import child
from rocwheel.gate.engine.outcomes import Outcomes
from rocwheel.gate.verdict.judge import judge

TESTS = '''
import os, time
from pathlib import Path
def test_ok(): pass
def test_long():
    Path(__file__).with_name("pid").write_text(str(os.getpid()))
    time.sleep(1000)
def test_never(): pass
'''

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGTERM, interrupt)
run = gate.run(Path({root!r}), {{"test_a.py": TESTS}})
print(run.verdict.state.value, run.results.counts.passed, run.results.counts.not_run)
"""


def _start(root, program, **places):
    """A gate in a process of its own, once its test runs, and what that wrote down."""
    script = root.parent / "program.py"
    tests = Path(__file__).parents[1]
    path = [str(tests), str(tests.parent / "build"), str(tests.parent)]
    script.write_text(program.format(path=path, root=str(root), **places))
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    return process, map(int, written(root / "pid").split())


def test_sigterm_ends_the_run_with_what_it_knows(root):
    process, (worker,) = _start(root, PROGRAM)
    process.terminate()
    out, _ = process.communicate(timeout=240)
    assert out.split() == ["not-run", "1", "2"]
    assert gone(worker)


HOLDER = """\
import sys, time
from pathlib import Path
sys.path[:0] = {path!r}
from support import gate
from rocwheel.gate.machine.accelerators import Accelerator, Maker
from rocwheel.gate.machine.devices import Slots

TESTS = '''
import os, subprocess, time
from pathlib import Path
def test_long():
    daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    Path(__file__).with_name("pid").write_text(f"{{os.getpid()}} {{daemon.pid}}")
    time.sleep(1000)
'''
device = Accelerator(maker=Maker.AMD, index=0, target="gfx942", serial="s0")
with Slots(folder=Path({slots!r}), boot="b").take(
    (device,), least=1, most=1, patience=0
) as held:
    gate.run(Path({root!r}), {{"test_a.py": TESTS}}, worker={{"locks": tuple(held.values())}})
"""


def test_a_gate_killed_outright_frees_its_device_only_when_nothing_uses_it(root, tmp_path):
    folder = tmp_path / "slots"
    process, (worker, daemon) = _start(root, HOLDER, slots=str(folder))
    device = Accelerator(maker=Maker.AMD, index=0, target="gfx942", serial="s0")
    slots = Slots(folder=folder, boot="b")
    with pytest.raises(InfraError), slots.take((device,), least=1, most=1, patience=0):
        pytest.fail("taken while the gate has it")
    process.kill()
    process.communicate()
    slots = Slots(folder=folder, boot="b", sleep=lambda _: time.sleep(0.001))
    with slots.take((device,), least=1, most=1, patience=240):
        assert not Path(f"/proc/{worker}").exists(), "no process of it is left by now"
        assert not Path(f"/proc/{daemon}").exists(), "nor one in a session of its own"


MEASURES = """
def test_a(record_property):
    record_property("product, GFLOP/s", 1234)
    record_property("its name", "no number")
    record_property("wrong", -1)
"""


def test_a_figure_that_a_test_measured_is_in_the_results_and_on_the_page(tmp_path):
    found = gate.run(tmp_path, {"test_a.py": MEASURES}).results
    assert found.figures == {"product, GFLOP/s": 1234}
    passed = Fault(state=State.PASS, message="")
    before = LastRun.of(found, State.PASS, ended="")
    for last, floor in ((None, "none yet"), (before, "1,234")):
        page = gate_page.render(found, passed, {}, last).decode()
        row = page.partition("product, GFLOP/s</th>")[2].partition("</tr>")[0]
        assert "1,234" in row
        assert f">{floor}<" in row


def test_a_file_that_is_taken_over_is_collected_again_in_a_fresh_process(tmp_path):
    """The other lane has imported it: what cannot here is spoilt by what ran before."""
    tests = "".join(f"def test_{n}(): time.sleep(0.5)\n" for n in range(8))
    files = {
        "test_long.py": f"import json, time\nassert not hasattr(json, 'broken')\n{tests}",
        "test_a.py": "import json\ndef test(): json.broken = True\n",
    }
    found = gate.run(tmp_path, files, lanes=gate.lanes(2)).results
    assert found.collect_errors == ()
    assert found.counts.passed == 9
    assert any("could not collect test_long.py" in item.ended for item in found.processes)


def test_what_pytest_drops_is_named_and_no_conftest_above_the_tests_is_read(root):
    (root.parent / "conftest.py").write_text("def pytest_pyfunc_call(): return True\n")
    code = """
        class TestOdd:
            def __init__(self): pass
            def test_it(self): pass
        def test_x(): assert 0, "seen"
    """
    run = gate.run(root, {"test_a.py": code}, retry_limit=0)
    assert "TestOdd" in " ".join(run.results.dropped)
    assert run["test_a.py::test_x"].attempts[0].message == "AssertionError: seen"


def test_a_module_that_a_test_plants_is_not_taken_for_a_test_file(root):
    plants = """
        import sys, types
        def test_plants():
            odd = types.ModuleType("test_b")
            odd.__file__, odd.test_x = __file__.replace("test_a", "test_b"), lambda: None
            sys.modules["test_b"] = odd
    """
    run = gate.run(root, {"test_a.py": plants, "test_b.py": "def test_x(): assert 0\n"})
    assert run.outcomes()["test_b.py::test_x"] == "failed", "a fresh process collects it again"


def test_a_file_whose_import_fails_has_the_first_line_with_a_word(root):
    run = gate.run(root, {"test_a.py": "raise RuntimeError('\\n\\n  no such device')\n"})
    assert run.results.collect_errors[0].message == "RuntimeError: no such device"
