"""Tests that do what no test should: each has its outcome, names nobody else and stops nothing.

Every kind is one file with an innocent test before the hostile one, one after it and another file
beside it. What is said of each: the state, the outcome of the hostile test, and whatever else is
special about it. The innocent ones pass, whatever happens.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import gate

from rocwheel.gate.report import render
from rocwheel.records.results import Outcome, Results
from rocwheel.records.verdict import State

pytestmark = pytest.mark.integration

HEAD = """\
import atexit, ctypes, faulthandler, fcntl, gc, json, os, resource, signal, subprocess, sys
import threading, time, unittest, warnings
from pathlib import Path
import pytest
HERE = Path(__file__).parent

def pipes(writing):
    "Descriptors of pipes in this process, as a test that looks for ours would find them."
    found = []
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
            mode = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
        except OSError:
            continue
        if target.startswith("pipe:") and number > 2 and mode == (os.O_WRONLY if writing else 0):
            found.append(number)
    return found

def say(data):
    for number in pipes(True):
        os.write(number, data)

def forged(**values):
    return json.dumps(values).encode() + b"\\n"

def test_before(): pass
"""
TAIL = "\ndef test_after(): pass\n"
LOG = "Path(os.readlink('/proc/self/fd/1'))"
PASS, FAIL, CRASH, HANG = Outcome.PASSED, Outcome.FAILED, Outcome.CRASHED, Outcome.TIMED_OUT
FINISH = (
    'forged(event="finish", test="test_a.py::test_it", batch=0, offset=0, '
    'outcome="passed", message="", detail="", seconds=0.1, evidence=[], left=[], going=True)'
)
BYE = 'forged(event="bye", failed=0, modules={}, backends=[], extra=[])'


@dataclass(frozen=True)
class Kind:
    """One hostile test: its body, and what becomes of it."""

    body: str
    outcome: Outcome
    message: str = ""  # part of what its first attempt says
    state: State | None = None  # of the verdict, when it is not that of the outcome
    outside: bool = False  # whether the body is module code with its own `test_it`
    left: str = ""  # part of what it is said to have left


def crash(body: str, message: str = "", **more: object) -> Kind:
    return Kind(body, CRASH, message, **more)


def hang(body: str, message: str = "no end after", **more: object) -> Kind:
    return Kind(f"(HERE / 'hangs').touch()\n    {body}", HANG, message, **more)


def fail(body: str, message: str = "", **more: object) -> Kind:
    return Kind(body, FAIL, message, **more)


def well(body: str, **more: object) -> Kind:
    return Kind(body, PASS, **more)


SLOW = 500.0  # seconds for one kind on a machine that does much else
BROKE = "broke the protocol"
KINDS = {
    # how a process can end
    "segmentation fault": crash("ctypes.string_at(0)", "SIGSEGV"),
    "abort": crash("os.abort()", "SIGABRT"),
    "SIGKILL": crash("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
    "a real-time signal": crash("os.kill(os.getpid(), 40)", "signal 40"),
    "its whole group": crash("os.killpg(0, signal.SIGKILL)", "SIGKILL"),
    "its parent": crash("os.kill(os.getppid(), signal.SIGKILL); time.sleep(20)", "SIGKILL"),
    "exit 0": crash("os._exit(0)", "exit status 0"),
    "exec": crash("os.execv('/bin/true', ['true'])", "exit status 0"),
    "exit from a thread": crash("threading.Thread(target=os._exit, args=(4,)).start(); time.sleep(9)",
                                "exit status 4"),
    "CPU limit": crash(
        "resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\n    while True: pass", "SIGKILL",
    ),
    # what only looks like an end
    "SystemExit": fail("sys.exit(0)", "SystemExit"),
    "KeyboardInterrupt": fail("raise KeyboardInterrupt", "stopped the whole session"),
    "SIGINT to itself": fail("os.kill(os.getpid(), signal.SIGINT); time.sleep(1)",
                             "stopped the whole session"),
    "BaseException": fail("raise type('Odd', (BaseException,), {})('odd')", "odd"),
    "an exception without a str": fail(
        "raise type('E', (Exception,), {'__str__': lambda s: 1 / 0})()", ""
    ),
    "RecursionError": fail("f = lambda f: f(f)\n    f(f)", "recursion"),
    "an exception with a lone surrogate": fail("raise ValueError('\\ud83d')", "\\ud83d"),
    "an exception with control characters": fail("raise ValueError('\\x1b[2J\\x00')", "\\x1b[2J"),
    "a huge exception": fail("raise ValueError('x' * (2 << 20))", "xxx"),
    # hangs
    "sleep": hang("time.sleep(1000)"),
    "a loop": hang("while True: pass"),
    "in C with the GIL": hang("ctypes.PyDLL(None).sleep(1000)"),
    "a deadlock": hang("lock = threading.Lock(); lock.acquire(); lock.acquire()"),
    "deaf to SIGTERM": hang("signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"),
    "all signals blocked": hang(
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); time.sleep(1000)"
    ),
    "stops itself": hang("os.kill(os.getpid(), signal.SIGSTOP)"),
    "waits for a child for ever": hang("subprocess.run(['sleep', '1000'])"),
    "the signal for stacks taken": hang(
        "signal.signal(62, lambda *_: None); signal.signal(signal.SIGUSR1, lambda *_: None)\n"
        "    while True: time.sleep(1)"
    ),
    "reads standard input": fail("input()", "EOFError"),
    # pipes
    "garbage": crash("say(b'\\xff\\x00garbage\\n'); time.sleep(5)", BROKE),
    "half a message": crash("say(b'{\"event\": \"finish\"'); time.sleep(0.2)", BROKE),
    "an unknown event": crash("say(forged(event='hello')); time.sleep(5)", BROKE),
    "deep JSON": crash("say(b'[' * 20000 + b'\\n'); time.sleep(5)", BROKE),
    "a forged finish": crash(f"say({FINISH}); time.sleep(5)", BROKE),
    "a forged finish, bye and a clean end": crash(f"say({FINISH} + {BYE}); os._exit(0)", BROKE),
    "a forged ready": crash("say(forged(event='ready', pid=1, pytest='8')); time.sleep(5)",
                            BROKE),
    "all pipes closed": crash("os.closerange(3, 4096)", ""),
    "low descriptors closed": well("os.closerange(3, 256)", left="closed descriptors"),
    "pipes replaced by files": crash(
        "[os.dup2(os.open('/dev/null', os.O_RDWR), n) for n in pipes(True)]", ""
    ),
    # processes
    "a fork that returns": well("os.fork()"),
    "a fork that outlives it": crash("os.fork() or time.sleep(1000); os._exit(9)", "status 9"),
    "a fork that raises": well("if os.fork() == 0: raise ValueError('the child')"),
    "a fork that sleeps": well("if os.fork() == 0: time.sleep(1000)", left="process"),
    "a fork of a fork": well(
        "if os.fork() == 0:\n        if os.fork() == 0: time.sleep(1000)\n        os._exit(0)",
        left="process",
    ),
    "a daemon": well(
        "subprocess.run(['sh', '-c', 'setsid sleep 1000 & setsid sleep 1001 &'])", left="sleep 100"
    ),
    "a child deaf to signals": well(
        "subprocess.Popen(['sh', '-c', \"trap '' TERM INT HUP; sleep 1000\"])", left="process"
    ),
    "a pool of processes": well(
        "import multiprocessing as m; sys.pool = m.get_context('fork').Pool(2)", left="a pool"
    ),
    "a child without a command line": well(
        "subprocess.Popen([''], executable='/bin/cat', stdin=subprocess.PIPE)", left="process"
    ),
    "a child that writes garbage to what it inherits": well(
        "subprocess.run(['sh', '-c', 'for n in 3 4 5 6 7 8 9; do echo x >&$n; done'], "
        "stderr=subprocess.DEVNULL)"
    ),
    # what it breaks in its process
    "os.getpid patched": well("os.getpid = lambda: 1"),
    "os.write and json patched": well("os.write = os.fstat = json.dumps = None"),
    "time patched": well("time.monotonic = time.time = lambda: 1e18"),
    "no stdout": well("sys.stdout = sys.stderr = None", left="another sys.stdout"),
    "stdout closed": well("sys.stdout.close()"),
    "descriptor 1 closed": well("os.close(1)"),
    "an alarm for later": well(
        "signal.signal(signal.SIGALRM, lambda *_: 1 / 0); signal.setitimer(0, 300)", left="an alarm"
    ),
    "a stolen SIGINT": well("signal.signal(signal.SIGINT, signal.SIG_IGN)", left="handler of SIGINT"),
    "excepthook replaced": well("sys.excepthook = threading.excepthook = None"),
    "the working directory gone": well(
        "import tempfile; d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)"
    ),
    # a process that has JAX has libgcc, which glibc would load to end a thread
    "a low limit of open files": well(
        "ctypes.CDLL('libgcc_s.so.1'); resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
        left="another limit of open files",
    ),
    "the environment emptied": well("os.environ.clear()"),
    # what it prints and is called
    "binary output": fail("os.write(1, bytes(range(256)) * 64); assert 0", "assert 0"),
    "a lot of output": fail("print('x' * (20 << 20)); assert 0", "assert 0"),
    "output that looks like a message": fail(f"os.write(1, {FINISH}); assert 0", "assert 0"),
    "skips in its teardown": Kind(
        "@pytest.fixture\ndef odd():\n    yield\n    pytest.skip('late')\ndef test_it(odd): pass",
        Outcome.SKIPPED, outside=True, state=State.PASS,
    ),
    "fails in its setup": fail(
        "@pytest.fixture\ndef odd(): raise OSError('no')\ndef test_it(odd): pass", "in setup",
        outside=True,
    ),
    "fails in its teardown": fail(
        "@pytest.fixture\ndef odd():\n    yield\n    raise OSError('no')\ndef test_it(odd): pass",
        "in teardown", outside=True,
    ),
    "crashes in its teardown": crash(
        "@pytest.fixture\ndef odd():\n    yield\n    os.abort()\ndef test_it(odd): pass", "SIGABRT",
        outside=True,
    ),
    "skips itself and crashes": crash(
        "@pytest.fixture\ndef odd():\n    yield\n    os.abort()\n"
        "def test_it(odd): pytest.skip('why')", "SIGABRT", outside=True,
    ),
    "a unittest whose subtests skip and fail": fail(
        "class Case(unittest.TestCase):\n    def test_it(self):\n"
        "        with self.subTest(1): self.skipTest('not this')\n"
        "        with self.subTest(2): self.fail('but this')\n", "but this", outside=True,
    ),
    "xfail that is not run": Kind(
        "@pytest.mark.xfail(run=False)\ndef test_it(): os.abort()", Outcome.XFAILED, outside=True,
        state=State.TOO_FEW_RAN,
    ),
    # what it does to the files and processes around it
    "its log is removed": fail(f"{LOG}.unlink(); assert 0", "assert 0"),
    "its log is a pipe that nobody writes": fail(
        f"p = {LOG}; p.unlink(); os.mkfifo(p); assert 0", "assert 0"
    ),
    "its log has no end": fail(
        f"p = {LOG}; p.unlink(); p.symlink_to('/dev/zero'); assert 0", "assert 0"
    ),
    "its log is a TiB long": fail("os.ftruncate(1, 1 << 40); assert 0", "assert 0"),
    "the file of its stacks is a pipe": crash(
        f"p = {LOG}.with_suffix('.stacks'); p.unlink(); os.mkfifo(p); os.abort()", "SIGABRT"
    ),
    "its supervisor is stopped": well("os.kill(os.getppid(), signal.SIGSTOP)"),
    "its supervisor is stopped, and it hangs": hang(
        "os.kill(os.getppid(), signal.SIGSTOP); time.sleep(1000)"
    ),
    "its supervisor is stopped, and it crashes": crash(
        "os.kill(os.getppid(), signal.SIGSTOP); os.abort()", "SIGABRT"
    ),
    "the pipe of commands cannot be waited for": well(
        "[os.set_blocking(n, False) for n in pipes(False)]"
    ),
    # what it takes from its process
    "the recursion limit": well(
        "import inspect; sys.setrecursionlimit(len(inspect.stack()) + 8)",
        left="another recursion limit",
    ),
    "all imported modules": well(
        "sys.modules.clear()", left="no imported modules", state=State.CRASH
    ),
    "the built-in functions": crash("import builtins; builtins.len = builtins.isinstance = None"),
    "the function that imports": well(
        "import builtins; builtins.__import__ = None", left="another __import__"
    ),
    "what waits for processes": crash("os.waitid = os.kill = None"),
    "another user": well(
        "os.geteuid() or (os.setgid(65534), os.setuid(65534))",
        left="another user" if os.geteuid() == 0 else "",
    ),
    "pytest's own loop": fail(
        "def test_it(request): request.session.shouldstop = 'enough'",
        "stopped the whole session: enough", outside=True,
    ),
    "the plugin that runs it": fail(
        "def test_it(request):\n    manager = request.config.pluginmanager\n"
        "    for plugin in list(manager.get_plugins()):\n"
        "        if 'rocwheel' in type(plugin).__module__: manager.unregister(plugin)",
        "no outcome", outside=True,
    ),
    "a repr that never ends": hang(
        "class R:\n        def __repr__(self):\n            while True: pass\n    assert R() == 1"
    ),
    "a repr that ends the process": crash(
        "class R:\n        def __repr__(self): os._exit(0)\n    assert R() == 1", "exit status 0"
    ),
    "a coroutine": fail("async def test_it(): assert 0", "async def", outside=True),
    "a report made a pass": fail(
        "def test_it(): assert 0, 'hidden'", "hidden", outside=True,
    ),
    # what would make an outcome of its own: the witness and the digest
    "CallInfo that holds no exception": fail(
        "pytest.CallInfo.excinfo = property(lambda s: None, lambda s, v: None); assert 0",
        "replaced pytest's CallInfo.excinfo",
    ),
    "from_call that calls nothing": fail(
        "pytest.CallInfo.from_call = classmethod(lambda *a, **k: None)", "replaced pytest's",
    ),
    "Function.runtest that runs nothing": fail(
        "@pytest.fixture(autouse=True)\ndef odd(monkeypatch, request):\n"
        "    if 'test_it' in request.node.name:\n"
        "        monkeypatch.setattr(pytest.Function, 'runtest', lambda self: None)\n"
        "def test_it(): assert 0", "never ran", outside=True,
    ),
    "Function.runtest left replaced": fail(
        "pytest.Function.runtest = lambda self: None", "replaced pytest's Function.runtest"
    ),
    "addFailure that adds nothing": fail(
        "class Case(unittest.TestCase):\n    def test_it(self):\n"
        "        from _pytest.unittest import TestCaseFunction\n"
        "        TestCaseFunction.addFailure = lambda *_: None\n        self.fail('hid')",
        "replaced pytest's TestCaseFunction.addFailure", outside=True,
    ),
    "a TestCase whose run hides what is raised": fail(
        "class Case(unittest.TestCase):\n    def run(self, result=None):\n        try: self.test_it()\n"
        "        except AssertionError: pass\n    def test_it(self): self.fail('seen')",
        "its call raised AssertionError: seen", outside=True,
    ),
    "a TestCase whose run runs nothing": fail(
        "class Case(unittest.TestCase):\n    def run(self, result=None): pass\n"
        "    def test_it(self): self.fail('unseen')", "never ran", outside=True,
    ),
    "a fixture that swaps the function": fail(
        "@pytest.fixture\ndef odd(request): request.node.obj = lambda odd: None\n"
        "def test_it(odd): assert 0", "never ran", outside=True,
    ),
    "a fixture that wraps the function and hides what it raises": fail(
        "@pytest.fixture\ndef odd(request):\n    own = request.node.obj\n"
        "    def around(odd):\n        try: own(odd)\n        except AssertionError: pass\n"
        "    request.node.obj = around\ndef test_it(odd): assert 0, 'seen'",
        "its call raised AssertionError: seen", outside=True,
    ),
    "a fixture that wraps the function as it should": well(
        "@pytest.fixture\ndef odd(request):\n    own = request.node.obj\n"
        "    request.node.obj = lambda odd: own(odd)\ndef test_it(odd): pass", outside=True,
    ),
    "a plugin that calls tests": fail(
        "def test_it(request):\n    class Odd:\n"
        "        def pytest_pyfunc_call(self, pyfuncitem): return True\n"
        "    request.config.pluginmanager.register(Odd())", "replaced pytest's hooks", outside=True,
    ),
    "a plugin that hears nothing of outcomes": well(
        "def test_it(request):\n    class Odd:\n"
        "        def pytest_report_header(self): return ''\n"
        "    request.config.pluginmanager.register(Odd())", outside=True,
    ),
    "reports of its own beside": fail(
        "def test_it(request):\n    item = request.node\n"
        "    for when in ('setup', 'call', 'teardown'):\n"
        "        item.ihook.pytest_runtest_logreport(report=pytest.TestReport(\n"
        "            item.nodeid, item.location, {}, 'passed', None, when))\n    assert 0",
        "assert 0", outside=True,
    ),
    "makereport that is another": fail(
        "def test_it(request):\n    from _pytest import runner\n"
        "    runner.pytest_runtest_makereport = None", "replaced pytest's runner", outside=True,
    ),
    "reports that never fail": fail(
        "pytest.TestReport.from_item_and_call = None", "replaced pytest's TestReport"
    ),
    "an own assertRaises": fail(
        "unittest.TestCase.assertEqual = lambda *_: None", "replaced pytest's TestCase.assertEqual"
    ),
    "an import of test files that is another": fail(
        "def test_it():\n    from _pytest import python\n"
        "    python.importtestmodule = lambda *_: None", "replaced pytest's python.importtestmodule",
        outside=True,
    ),
    "an own ast.parse": fail("import ast; ast.parse = lambda *_, **__: None", "ast.parse"),
    "a fixture that is not there": fail(
        "def test_it(nowhere): pass", "in setup: fixture 'nowhere' not found", outside=True,
    ),
    "no properties": fail(
        "def test_it(request): request.node.user_properties = None", "pytest failed", outside=True,
    ),
    "a setting of TestCase": well("unittest.TestCase.maxDiff = None"),
    "an exception in setup that is hidden": fail(
        "@pytest.fixture\ndef odd(monkeypatch):\n"
        "    monkeypatch.setattr(pytest.CallInfo, 'excinfo', None, raising=False)\n"
        "def test_it(odd): assert 0, 'here'", "here", outside=True,
    ),
    "an expected failure of unittest": Kind(
        "class Case(unittest.TestCase):\n    @unittest.expectedFailure\n"
        "    def test_it(self): self.fail('x')", Outcome.XFAILED, outside=True, state=State.TOO_FEW_RAN,
    ),
    "a test that unittest awaits": well(
        "class Case(unittest.IsolatedAsyncioTestCase):\n    async def test_it(self): pass",
        outside=True,
    ),
    "a test that unittest awaits and that fails": fail(
        "class Case(unittest.IsolatedAsyncioTestCase):\n    async def test_it(self): assert 0, 'as'",
        "as", outside=True,
    ),
    "subtests of which one skips": well(
        "class Case(unittest.TestCase):\n    def test_it(self):\n"
        "        for n in range(3):\n            with self.subTest(n):\n"
        "                if n == 1: self.skipTest('not this')", outside=True,
    ),
    "a skip in a subtest and then a failure": fail(
        "class Case(unittest.TestCase):\n    def test_it(self):\n"
        "        with self.subTest(1): self.skipTest('not this')\n        self.fail('behind')",
        "behind", outside=True,
    ),
    "a reason of 70 MB to skip it": Kind(
        "pytest.skip('x' * (70 << 20))", Outcome.SKIPPED, state=State.PASS
    ),
    "the time in nanoseconds as a figure": well(
        "def test_it(record_property): record_property('now', time.time_ns())", outside=True
    ),
    "a message that begins with empty lines": fail(
        "raise AssertionError('\\n\\n  Not equal to tolerance\\nMismatched elements: 3 / 12')",
        "AssertionError: Not equal to tolerance … Mismatched elements: 3 / 12",
    ),
    # what it leaves to those after it
    "a new variable": well("os.environ['BRAND_NEW'] = '1'", left="another environment: BRAND_NEW"),
    "the group of another": well(
        "os.geteuid() or os.setegid(65534)", left="another group" if os.geteuid() == 0 else ""
    ),
    "a trace function": well("sys.settrace(lambda *_: None); threading.settrace(lambda *_: None)"),
    "a filter of warnings": well("warnings.filterwarnings('error', category=ResourceWarning)"),
}  # fmt: skip

STATE_OF = {PASS: State.PASS, FAIL: State.FAIL, CRASH: State.CRASH, HANG: State.TIMEOUT}
LAUNDER = """\
import pytest
@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed and "hidden" in str(report.longrepr):
        report.outcome = "passed"
    return report
"""


def readable(run: gate.Run) -> None:
    """All reports can be made and read, whatever is in them."""
    reports = render(run.results, run.verdict, {})
    assert Results.from_bytes(reports["results.json"], name="r") == run.results
    assert len(reports["results.json"]) < 1 << 20, "what a test says is cut"
    ET.fromstring(reports["junit.xml"])
    json.loads(reports["results.json"])


def processes_of(folder: Path) -> list[str]:
    """Command lines of processes that were started below a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder) in str((path / "cwd").readlink()):
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return [command for command in found if command]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_hostile_test_has_its_outcome_and_hurts_no_other(root, kind):
    own = kind.body if kind.outside else f"def test_it():\n    {kind.body}\n"
    files = {"test_a.py": HEAD + own + TAIL, "test_b.py": "def test_beside(): pass\n"}
    files["conftest.py"] = LAUNDER
    started = time.monotonic()
    run = gate.run_hanging(root, files, retry_limit=0, may_skip=1)
    outcomes = run.outcomes()
    name = next(test for test in outcomes if test.endswith("test_it"))
    assert outcomes.pop(name) == kind.outcome.value, run[name]
    assert set(outcomes.values()) == {"passed"}, "the others ran and are not blamed"
    assert len(outcomes) == 3
    assert kind.message in run[name].attempts[0].message if run[name].attempts else not kind.message
    assert run.verdict.state is (kind.state or STATE_OF[kind.outcome]), run.verdict
    assert kind.left in " ".join(run[name].attempts[0].left if run[name].attempts else ())
    readable(run)
    assert not processes_of(root), "nothing of it lives on"
    assert time.monotonic() - started < SLOW, "nobody waited for what hangs"


# --- random scripts of behaviours ----------------------------------------------------------------

BEHAVIOURS = {
    "pass": ("pass", PASS),
    "fail": ("assert 0", FAIL),
    "skip": ("pytest.skip('why')", Outcome.SKIPPED),
    "crash": ("os.abort()", CRASH),
    "exit": ("os._exit(0)", CRASH),
    "garbage": ("say(b'garbage\\n'); time.sleep(5)", CRASH),
    "forge": (f"say({FINISH.replace('test_it', 'test_0')}); time.sleep(5)", CRASH),
    "stop": ("pytest.exit('enough')", FAIL),
    "fork": ("os.fork()", PASS),
    "daemon": ("subprocess.Popen(['sleep', '1000'], start_new_session=True)", PASS),
    "alarm": ("signal.signal(signal.SIGALRM, lambda *_: 1 / 0); signal.setitimer(0, 300)", PASS),
    "thread": ("threading.Thread(target=time.sleep, args=(0.2,), daemon=True).start()", PASS),
}


def examples(number: int):
    """Make a test of so many suites, each a few files of behaviours in any order."""
    quietly = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    made = settings(
        max_examples=number, deadline=None, derandomize=True, suppress_health_check=quietly
    )
    file = st.lists(st.sampled_from(sorted(BEHAVIOURS)), min_size=1, max_size=8)
    drawn = given(scripts=st.lists(file, min_size=1, max_size=3), lanes=st.integers(1, 2))
    return lambda test: made(drawn(test))


@examples(4)
def test_any_sequence_of_behaviours_has_the_outcomes_of_its_parts(tmp_path_factory, scripts, lanes):
    try_sequence(tmp_path_factory, scripts, lanes)


@pytest.mark.soak
@examples(int(os.environ.get("HOSTILE_EXAMPLES", "60")))
def test_many_sequences_of_behaviours_have_the_outcomes_of_their_parts(
    tmp_path_factory, scripts, lanes
):
    try_sequence(tmp_path_factory, scripts, lanes)


def try_sequence(tmp_path_factory, scripts, lanes):
    root = tmp_path_factory.mktemp("script") / "suite"
    root.mkdir()
    head = HEAD.replace("def test_before(): pass\n", "")
    files, expected = {}, {}
    for number, script in enumerate(scripts):
        name = f"test_{number}.py"
        files[name] = head + "".join(
            f"def test_{place}():\n    {BEHAVIOURS[kind][0]}\n" for place, kind in enumerate(script)
        )
        for place, kind in enumerate(script):
            expected[f"{name}::test_{place}"] = BEHAVIOURS[kind][1].value
    run = gate.run(root, files, lanes=gate.lanes(lanes), retry_limit=0, may_skip=100)
    assert run.outcomes() == expected
    assert not run.results.collect_errors
    readable(run)
    assert not processes_of(root)
