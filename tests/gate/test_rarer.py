"""Rarer cases of the engine: who is to blame when a process, and not a test, has gone bad."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import gate

from rocwheel.gate.suite.suites import Library
from rocwheel.records.results import Outcome
from rocwheel.records.verdict import State

pytestmark = pytest.mark.integration

BREAKER = """
    broken = False
    def test_breaks():
        global broken
        broken = True
""" + "".join(
    f"    def test_innocent_{n}(): assert not broken, 'device is lost'\n" for n in range(9)
)


@pytest.fixture
def root(tmp_path):
    folder = tmp_path / "suite"
    folder.mkdir()
    return folder


def test_six_files_that_break_their_process_have_two_victims_each_and_six_culprits(root):
    run = gate.run(root, {f"test_{name}.py": BREAKER for name in "abcdef"}, retry_limit=50)
    failed = [test for test in run.results.tests if any(a.outcome.bad for a in test.attempts)]
    assert len(failed) == 12
    assert {test.test for test in run.results.failures} == {
        f"test_{name}.py::test_breaks" for name in "abcdef"
    }
    assert all(test.victims == 2 for test in run.results.failures)


def test_a_file_whose_tests_all_fail_costs_few_processes(root):
    tests = "".join(f"def test_{n}(): assert False\n" for n in range(40))
    run = gate.run(root, {"test_a.py": tests}, retry_limit=0)
    assert run.results.counts.failed == 40
    assert len(run.results.processes) < 7


STICKY = """
    broken = False
    def test_good(): pass
    def test_breaks():
        global broken
        broken = True
        raise RuntimeError("INTERNAL: hipErrorIllegalAddress: while running replica 0")
    def test_after(): assert not broken
    def test_later(): assert not broken
"""


def test_after_an_error_that_no_device_survives_the_process_is_replaced_at_once(root):
    run = gate.run(root, {"test_a.py": STICKY}, sticky=("hipErrorIllegalAddress",))
    assert [test.test for test in run.results.failures] == ["test_a.py::test_breaks"]
    assert run.attempts("test_a.py::test_after") == ["passed"]
    ended = run.results.processes[0].ended
    assert ended == "killed: its device is of no more use to it: hipErrorIllegalAddress"


SPOILERS = {
    "working directory": "import os, tempfile; os.chdir(tempfile.mkdtemp())",
    "modules": "import sys; sys.modules['beside'] = None",
    "search path": "import sys; sys.path.clear()",
}


@pytest.mark.parametrize("how", SPOILERS.values(), ids=SPOILERS)
def test_a_file_that_another_keeps_from_being_imported_is_tried_in_a_fresh_process(root, how):
    files = {
        "test_a.py": f"def test_spoils():\n    {how}\n",
        "beside.py": "VALUE = 1\n",
        "test_b.py": "import beside, os\nassert os.path.exists('test_b.py')\n"
        "import html.parser\ndef test_b(): assert beside.VALUE\n",
    }
    run = gate.run(root, files, env={"PYTHONPATH": str(root)})
    assert run.verdict.state is State.PASS, run.verdict
    ended = run.results.processes[0].ended
    assert "replaced: it could not collect test_b.py, after test_a.py::test_spoils: " in ended


def test_a_file_that_kills_its_import_is_tried_once_more_and_then_a_finding(root):
    files = {"test_a.py": "def test_a(): pass\n", "test_b.py": "import os\nos._exit(5)\n"}
    run = gate.run(root, files)
    assert run.verdict.state is State.COLLECT_ERROR
    assert len(run.results.collect_errors) == 1
    assert run["test_a.py::test_a"].outcome is Outcome.PASSED
    assert len(run.results.processes) == 2


CRASH_AFTER = """
    import os
    poisoned = False
    def test_first(): pass
    def test_poison():
        global poisoned
        poisoned = True
    def test_victim():
        if poisoned: os.abort()
    def test_last(): pass
"""


def test_a_crash_that_only_comes_after_another_test_is_the_other_ones(root):
    run = gate.run(root, {"test_a.py": CRASH_AFTER})
    assert [test.test for test in run.results.failures] == ["test_a.py::test_poison"]
    assert run["test_a.py::test_poison"].outcome is Outcome.CRASHED
    assert run["test_a.py::test_victim"].outcome is Outcome.PASSED
    assert "crashed after test_a.py::test_poison" in run["test_a.py::test_victim"].reason
    assert run.verdict.state is State.CRASH


def test_a_crash_that_comes_once_accuses_nobody(root):
    text = """
        import os, pathlib
        def test_before(): pass
        def test_crashes_once():
            mark = pathlib.Path(__file__).with_name("mark")
            if not mark.exists():
                mark.touch()
                os.abort()
    """
    run = gate.run(root, {"test_a.py": text})
    assert run["test_a.py::test_before"].outcome is Outcome.PASSED
    assert run["test_a.py::test_crashes_once"].outcome is Outcome.CRASHED


@pytest.mark.parametrize("timer", ["ITIMER_PROF", "ITIMER_VIRTUAL", "ITIMER_REAL"])
def test_a_timer_that_a_test_leaves_does_not_end_the_next_one(root, timer):
    text = f"""
        import signal, time
        def test_leaves(): signal.setitimer(signal.{timer}, 0.2)
        def test_works():
            until = time.process_time() + 0.4
            while time.process_time() < until: pass
    """
    run = gate.run(root, {"test_a.py": text})
    assert run.verdict.state is State.PASS, run.verdict
    assert len(run["test_a.py::test_leaves"].attempts[0].left) == 1


def test_a_library_that_prints_is_seen_where_it_was_called_and_nowhere_else(root):
    text = """
        import os, pytest
        @pytest.mark.rocm("MIOpen")
        def test_calls(): os.write(2, (os.environ["LOGGING"] + " [call]\\n").encode())
        @pytest.mark.rocm("MIOpen")
        def test_does_not(): print("nothing")
    """
    library = Library(name="MIOpen", trace={"LOGGING": "MIOpen(HIP)"}, printed="MIOpen(HIP)")
    run = gate.run(root, {"test_a.py": text}, worker={"libraries": (library,), "trace": True})
    assert run["test_a.py::test_calls"].evidence == ("MIOpen",)
    assert run["test_a.py::test_does_not"].evidence == ()


def test_a_crash_leaves_no_core(root):
    text = """
        import resource
        def test_cores(): assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)
    """
    assert gate.run(root, {"test_a.py": text}).verdict.state is State.PASS


PATCH = """
    import pytest
    def never(func, when, reraise=None):
        return pytest.CallInfo(
            None, None, start=0, stop=0, duration=0, when=when, _ispytest=True
        )
"""
PATCHES = {
    "a test": "def test_a(): pytest.CallInfo.from_call = never\n    def test_b(): assert False\n",
    "a fixture that puts it back": "@pytest.fixture\n"
    "    def silent(monkeypatch): monkeypatch.setattr(pytest.CallInfo, 'from_call', never)\n"
    "    def test_a(silent): pass\n    def test_b(): assert False\n",
}


@pytest.mark.parametrize("how", PATCHES.values(), ids=PATCHES)
def test_who_replaces_what_makes_outcomes_in_pytest_is_a_fault(root, how):
    run = gate.run(root, {"test_a.py": f"{PATCH}    {how}"}, retry_limit=0)
    (fault,) = run.results.faults
    assert "test_a.py::test_a replaced pytest's CallInfo.from_call" in fault.message
    assert run["test_a.py::test_b"].outcome is Outcome.FAILED, "pytest was put right again"


def test_a_conftest_that_replaces_what_makes_outcomes_is_a_file_that_cannot_be_collected(root):
    conftest = f"{PATCH}    pytest.CallInfo.from_call = never\n"
    run = gate.run(root, {"conftest.py": conftest, "test_a.py": "def test_a(): assert False\n"})
    assert run.verdict.state is State.COLLECT_ERROR
    assert "its import replaced pytest's CallInfo.from_call" in run.verdict.message


def test_a_daemon_whose_supervisor_is_killed_does_not_survive(root):
    text = """
        import os, pathlib, signal, subprocess, time
        def test_kills():
            daemon = subprocess.Popen(["sleep", "1000"], start_new_session=True)
            pathlib.Path(__file__).with_name("pid").write_text(str(daemon.pid))
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(1000)
        def test_next(): pass
    """
    run = gate.run(root, {"test_a.py": text}, retry_limit=0)
    assert run.outcomes() == {"test_a.py::test_kills": "crashed", "test_a.py::test_next": "passed"}
    assert not (Path("/proc") / (root / "pid").read_text()).exists()


def test_a_thread_without_an_end_costs_seconds_and_names_its_test(root):
    text = """
        import concurrent.futures, threading
        pool = concurrent.futures.ThreadPoolExecutor()
        def test_pool(): pool.submit(print).result()
        def test_leaves(): threading.Thread(target=threading.Event().wait, name="own").start()
        def test_next(): pass
    """
    run = gate.run(root, {"test_a.py": text})
    assert run.seconds < 60
    assert set(run.outcomes().values()) == {"passed"}
    (fault,) = run.results.faults
    assert "test_a.py::test_leaves left: thread own has no end" in fault.message


def test_threads_of_an_executor_are_nothing_left(root):
    text = """
        import concurrent.futures
        pool = concurrent.futures.ThreadPoolExecutor()
        def test_pool(): pool.submit(print).result()
    """
    assert gate.run(root, {"test_a.py": text}).verdict.state is State.PASS


@pytest.mark.parametrize("end", ["pass", "os.abort()", "os.kill(os.getppid(), signal.SIGKILL)"])
def test_temporary_files_and_shared_memory_go_with_their_process(root, end):
    text = f"""
        import os, pathlib, signal, tempfile
        def test_leaves():
            made = [tempfile.mkstemp()[1], tempfile.mkdtemp()]
            shared = pathlib.Path("/dev/shm/psm_" + os.urandom(4).hex())
            shared.touch()
            pathlib.Path(__file__).with_name("made").write_text(" ".join([*made, str(shared)]))
            {end}
    """
    gate.run(root, {"test_a.py": text}, retry_limit=0)
    *made, shared = map(Path, (root / "made").read_text().split())
    assert len(made) == 2
    assert not [path for path in made if path.exists()]
    assert shared.exists() is ("getppid" in end), "whose end is no supervisor's stays"
    shared.unlink(missing_ok=True)
