"""Rarer cases of the engine: who is to blame when a process, and not a test, has gone bad."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import gate

from rocwheel.gate.suite.suites import Library, device_errors
from rocwheel.records.results import Outcome
from rocwheel.records.verdict import State

pytestmark = pytest.mark.integration

CI = Path(__file__).parents[2] / "ci"


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
    run = gate.run(root, {"test_a.py": STICKY}, device_errors=device_errors(CI))
    assert [test.test for test in run.results.failures] == ["test_a.py::test_breaks"]
    assert run.attempts("test_a.py::test_after") == ["passed"]
    ended = run.results.processes[0].ended
    assert ended == "killed: its device is of no more use to it: hipErrorIllegalAddress"


def test_a_gpu_that_hangs_is_the_machines_where_the_test_passes_on_another_try(root):
    text = """
        import os, pathlib, sys
        def test_before(): pass
        def test_hit():
            mark = pathlib.Path(__file__).with_name("mark")
            if not mark.exists():
                mark.touch()
                os.write(2, b"HW Exception by GPU node-4 (Agent handle: 0x5) reason :GPU Hang\\n")
                os.abort()
        def test_after(): pass
    """
    run = gate.run(root, {"test_a.py": text}, device_errors=device_errors(CI))
    assert run.verdict.state is State.INFRA
    assert "test_a.py::test_hit: HW Exception by GPU node" in run.verdict.message
    assert set(run.outcomes().values()) == {"passed"}
    (root / "mark").unlink()
    again = gate.run(root, {"test_a.py": text.replace("mark.touch()", "pass")},
                     device_errors=device_errors(CI))  # fmt: skip
    assert again.verdict.state is State.CRASH, "it hangs every GPU"


def test_a_file_that_another_keeps_from_being_imported_is_tried_in_a_fresh_process(root):
    files = {
        "test_a.py": "import sys\ndef test_spoils(): sys.modules['beside'] = None\n",
        "beside.py": "VALUE = 1\n",
        "test_b.py": "import beside\ndef test_b(): assert beside.VALUE\n",
    }
    run = gate.run(root, files, env={"PYTHONPATH": str(root)})
    assert run.verdict.state is State.PASS, run.verdict
    ended = run.results.processes[0].ended
    assert "replaced: it could not collect test_b.py, after test_a.py::test_spoils: " in ended


STATES = {  # what a body changes: (how, what it is called, what shows that it was put back)
    "directory": ("os.chdir(tempfile.mkdtemp())", "another working directory", "os.path.exists('test_a.py')"),
    "variables": ("os.environ['PATH'] = ''; del os.environ['HOME']", "another environment: ",
                  "os.environ['PATH'] and os.environ['HOME']"),
    "mask": ("signal.pthread_sigmask(signal.SIG_BLOCK, [10])", "another signal mask",
             "10 not in signal.pthread_sigmask(signal.SIG_BLOCK, ())"),
    "umask": ("os.umask(0o123)", "another umask", "os.umask(0o22) != 0o123"),
    "path": ("sys.path.clear()", "another sys.path", "sys.path"),
    "hooks": ("sys.meta_path.clear()", "other import hooks", "sys.meta_path"),
    "CPUs": ("os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})", "other CPUs",
             "os.sched_getaffinity(0) == CPUS"),
    "collector": ("gc.disable()", "another garbage collection: False", "gc.isenabled()"),
}  # fmt: skip


def test_what_a_body_changes_is_named_and_put_back(root):
    head = "import gc, os, signal, sys, tempfile\nCPUS = os.sched_getaffinity(0)\n"
    tests = "".join(
        f"def test_{name}(): {how}\ndef test_{name}_after(): assert {good}\n"
        for name, (how, _, good) in STATES.items()
    )
    run = gate.run(root, {"test_a.py": head + tests})
    assert set(run.outcomes().values()) == {"passed"}, run.verdict
    for name, (_, left, _) in STATES.items():
        said = run[f"test_a.py::test_{name}"].attempts[0].left
        # with one CPU there is no other choice of them
        assert name == "CPUs" or any(left in item for item in said), (name, said)


def test_what_a_fixture_changes_for_a_test_is_its_own_business(root):
    text = """
        import os, pytest
        @pytest.fixture
        def elsewhere(monkeypatch, tmp_path):
            monkeypatch.chdir(tmp_path)
            monkeypatch.setenv("NEW", "1")
        def test_it(elsewhere): assert os.environ["NEW"]
        def test_undone(monkeypatch): monkeypatch.setenv("OTHER", "1")
    """
    run = gate.run(root, {"test_a.py": text})
    assert not [
        attempt.left for test in run.results.tests for attempt in test.attempts if attempt.left
    ]


HANG_IF_LEFT = """if STATE:
        (HERE / f"hangs{os.getpid()}").touch()
        time.sleep(1000)"""
LEAVERS = {
    "a failure": ("STATE.append(1)", "assert not STATE", Outcome.FAILED),
    "a crash": ("STATE.append(1)", "STATE and os.abort()", Outcome.CRASHED),
    "a hang": ("STATE.append(1)", HANG_IF_LEFT, Outcome.TIMED_OUT),
}  # fmt: skip


@pytest.mark.parametrize(("leaves", "meets", "outcome"), LEAVERS.values(), ids=LEAVERS)
def test_one_who_leaves_something_is_named_and_its_single_victim_is_not(
    root, leaves, meets, outcome
):
    text = f"""
import os, threading, time
from pathlib import Path
HERE, STATE = Path(__file__).parent, []
def test_first(): pass
def test_leaves(): {leaves}
def test_between(): pass
def test_beside(): pass
def test_victim():
    {meets}
def test_last(): pass
"""
    run = gate.run_hanging(root, {"test_a.py": text}, flaky_budget=10)
    assert {t.test: t.outcome for t in run.results.failures} == {"test_a.py::test_leaves": outcome}
    assert run["test_a.py::test_leaves"].victims == 1
    assert run.results.counts.flaky == 0
    assert "after test_a.py::test_leaves" in run["test_a.py::test_victim"].reason


def test_one_who_leaves_something_to_another_file_is_named(root):
    files = {
        "test_a.py": "import json\ndef test_leaves(): json.broken = 1\ndef test_more(): pass\n",
        "test_b.py": "import json\ndef test_victim(): assert not hasattr(json, 'broken')\n",
    }
    run = gate.run(root, files, flaky_budget=10)
    assert [test.test for test in run.results.failures] == ["test_a.py::test_leaves"]


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
    assert "test_a.py::test_leaves in process 1 on gpu0: thread own does not" in fault.message


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
