"""The worker: a pytest session that is told what to run and reports every step of it.

It runs in the tested environment and so knows only the standard library and pytest. Commands and
events are JSON lines on two pipes; everything tests print stays on stdout and stderr, which are
the worker's log.

Commands: `begin` with the key that every event carries, `collect` a file, `run` tests in order
(after a failure the rest of those already sent is dropped: `batch` says which they are), `end`.
Events: `ready`, `collecting`, `collected`, `start`, `finish`, `late` (a fixture failed after its
test was reported), `stray` (something that an earlier test left running failed) and `bye`.

    worker.py SETTINGS      (JSON: commands, events, stacks, pytest, watch, libraries, modules)
"""

from __future__ import annotations

import ctypes
import faulthandler
import fcntl
import json
import os
import re
import resource
import signal
import sys
import threading
import time
import unittest
from collections import Counter, deque
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

# A module beside this file must never answer an import of the tests.
if sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
    del sys.path[0]

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

TEXT_LIMIT = 64 << 10  # characters of one traceback
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
DUMP_SIGNAL = 62  # a real-time signal that nothing else uses; stacks of all threads on request
HIGH_DESCRIPTOR = 800  # a test that closes the first few hundred descriptors misses ours
LOST_PIPE = 71  # exit status of a process whose pipe a test has closed or replaced
END_SECONDS = 1.0  # for a killed process to disappear
ARGUMENTS_SECONDS = 0.1  # for a new program to have its arguments
FAILED_STATUS, UNKNOWN = "failed", "pytest reported no outcome"
KEPT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD, signal.SIGPIPE)
LIMITS = (
    (resource.RLIMIT_NOFILE, "open files"), (resource.RLIMIT_AS, "memory"),
    (resource.RLIMIT_FSIZE, "file size"), (resource.RLIMIT_CPU, "CPU time"),
)  # fmt: skip
SKIPS = (pytest.skip.Exception, unittest.SkipTest)
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")

# Tests replace what they like, `os.getpid` included: what the worker itself needs it keeps.
_getpid, _write, _fstat, _exit, _dumps = os.getpid, os.write, os.fstat, os._exit, json.dumps
_clock, _threads, _getsignal, _setsignal = (
    time.monotonic, threading.enumerate, signal.getsignal, signal.signal,
)  # fmt: skip


class EventWriter:
    """JSON lines to the engine; a process that a test forked stays silent.

    What is emitted with `hold` goes out with the next event: one write per test is enough.
    """

    def __init__(self, descriptor: int, key: str) -> None:
        self._key = key  # a test that writes to the pipe by accident does not know it
        self._descriptor = descriptor = _high(descriptor)
        self._pid = _getpid()
        self._identity = _fstat(descriptor)[1:3]
        self._held = b""

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the worker and not the worker."""
        return _getpid() != self._pid

    def emit(self, event: str, *, hold: bool = False, **values: Any) -> None:
        if self.forked:
            return
        message = {"event": event, "key": self._key, **values}
        data = self._held + _dumps(message).encode() + b"\n"
        if hold:
            self._held = data
            return
        self._held = b""
        try:
            if _fstat(self._descriptor)[1:3] != self._identity:
                _exit(LOST_PIPE)
            while data:
                data = data[_write(self._descriptor, data) :]
        except OSError:
            _exit(LOST_PIPE)

    def flush(self) -> None:
        """Send what was held."""
        if self._held and not self.forked:
            data, self._held = self._held, b""
            with suppress(OSError):
                while data:
                    data = data[_write(self._descriptor, data) :]


class CommandReader:
    """The engine's commands, read only by the worker itself."""

    def __init__(self, descriptor: int) -> None:
        self._file = os.fdopen(_high(descriptor), "rb")

    def next(self) -> dict[str, Any]:
        """Wait for the next command; the end of the pipe is `end`."""
        try:
            line = self._file.readline()
        except OSError:
            _exit(LOST_PIPE)
        return dict(json.loads(line)) if line else {"op": "end"}


class LibraryWatch:
    """Which of the libraries a test is tagged with can be seen at work.

    `mapped` are prefixes of shared objects in this process, `traces` are files that a library
    writes a line to when it is called.
    """

    def __init__(self, table: dict[str, dict[str, list[str]]]) -> None:
        self._table = table

    def tags(self, item: pytest.Item) -> list[str]:
        found = [name for mark in item.iter_markers("rocm") for name in mark.args]
        return [str(name) for name in dict.fromkeys(found)]

    def traced(self, names: list[str]) -> dict[str, int]:
        """Size of every trace file of these libraries."""
        paths = [path for name in names for path in self._table.get(name, {}).get("traces", ())]
        return {path: _size(path) for path in paths}

    def evidence(self, names: list[str], before: dict[str, int]) -> list[str]:
        """Libraries that were called (their trace grew), or without a trace that are mapped."""
        mapped = _mapped() if names else set()
        after = self.traced(names)
        seen = []
        for name in names:
            entry = self._table.get(name, {})
            if entry.get("traces"):
                if any(after[path] > before[path] for path in entry["traces"]):
                    seen.append(name)
            elif any(so.startswith(tuple(entry.get("mapped", ()))) for so in mapped):
                seen.append(name)
        return seen


class Leftovers:
    """What a test leaves behind in its process, put right before the next one runs.

    Processes that the body of a test started are killed; those of fixtures and the helpers of
    `multiprocessing` live on. An alarm is switched off; signal handlers and standard streams that
    the body replaced and nobody put back are put back. Threads cannot be ended: what one of an
    earlier test raises is told of as that, and not as a failure of the test that runs by then.
    """

    def __init__(self, channel: EventWriter) -> None:
        self._channel = channel
        self._threads: dict[threading.Thread, str] = {}  # those of earlier tests -> the test
        self._test = ""
        self._before: dict[str, Any] = {}
        self._at_call: dict[str, Any] = {}
        self._processes: set[int] = set()
        self._hook = threading.excepthook
        self._descriptor = _identity()
        self.found: list[str] = []
        self.spoiled = False  # whether the process is of no more use

    def begin(self, test: str) -> None:
        """Note what there is before a test is set up."""
        self._threads = {thread: self._threads.get(thread, self._test) for thread in _threads()}
        self._test, self.found = test, []
        self._before, self._at_call = _state(), {}
        self._hook = threading.excepthook
        threading.excepthook = self._raised

    def body(self) -> None:
        """Note what fixtures have added before the body of the test runs."""
        self._processes = set(_children())
        self._at_call = _state()

    def end(self) -> None:
        """Put right what the body of the test left."""
        threading.excepthook = self._hook
        if not self._at_call:  # its setup failed
            return
        if signal.getitimer(signal.ITIMER_REAL)[0]:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.found.append("an alarm")
        if _identity() != self._descriptor:
            self.found.append("closed descriptors that were not its own")
            self.spoiled = True
        self._restore(_state())
        self._kill()
        # a handler that the test installed over ours is replaced
        if self.spoiled:
            return
        faulthandler.unregister(DUMP_SIGNAL)
        faulthandler.register(DUMP_SIGNAL, file=STACKS[0], all_threads=True, chain=False)

    def _restore(self, after: dict[Any, Any]) -> None:
        """Put back what the body changed and no fixture did."""
        for name, value in after.items():
            expected = self._at_call[name]
            if value in (expected, self._before[name]):
                continue
            if isinstance(name, tuple):
                self.found.append(f"another limit of {name[1]}")
                try:
                    resource.setrlimit(name[0], expected)
                except (OSError, ValueError):  # a hard limit is for ever
                    self.spoiled = True
                continue
            if isinstance(name, str):
                setattr(sys, name, expected)
                self.found.append(f"another sys.{name}")
            elif expected is not None:
                _setsignal(name, expected)
                self.found.append(f"a handler of {signal.Signals(name).name}")

    def _kill(self) -> None:
        """End processes the body started, and what those leave to us, their subreaper."""
        until = _clock() + END_SECONDS
        while started := set(_children()) - self._processes - _helpers():
            for pid in started:
                command = _command_of(pid)
                if command:
                    self.found.append(f"process {pid}: {command}")
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in started:
                while _clock() < until and _alive(pid):
                    time.sleep(0.002)
            self._processes |= started
            if _clock() > until:
                return

    def _raised(self, args: threading.ExceptHookArgs) -> None:
        origin = self._threads.get(args.thread) if args.thread else None
        if origin is None or args.thread is None or self._channel.forked:
            self._hook(args)
            return
        name, kind = args.thread.name, args.exc_type.__name__
        self._channel.emit(
            "stray", test=origin,
            message=_line(f"thread {name} raised {kind} during {self._test}: {args.exc_value}"),
        )  # fmt: skip


class QuietReporter:
    """Stands where pytest's terminal reporter was, and prints nothing.

    pytest asks the plugin of that name for its terminal writer when it explains a comparison
    (`Config.get_terminal_writer`); without one every failing `==` is an error inside pytest 8.
    """

    def __init__(self, config: pytest.Config) -> None:
        from _pytest.config import create_terminal_writer

        self._tw = create_terminal_writer(config, Path(os.devnull).open("w"))  # noqa: SIM115
        self._tw.fullwidth = 100
        self.verbosity = 0
        self.stats: dict[str, list[Any]] = {}

    def __getattr__(self, name: str) -> Any:
        """Whatever a conftest writes to the reporter goes nowhere."""
        if name.startswith(("pytest_", "__")):
            raise AttributeError(name)
        return lambda *_args, **_options: None


class Extra:
    """An import finder, asked last: modules that the installed wheels lack, from a folder.

    JAX's tests import a few modules of JAX's tree that its wheel leaves out.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self.used: list[str] = []

    def find_spec(self, name: str, path: Sequence[str] | None, _target: Any = None) -> Any:
        """Find a module below the folder; only packages of what is installed are added to."""
        if path is None:
            return None
        *parents, _ = name.split(".")
        spec = PathFinder.find_spec(name, [str(self._folder.joinpath(*parents))])
        if spec is not None and spec.origin is not None:
            self.used.append(name)
            return spec
        return None


class Session:
    """The plugin: replaces pytest's loop by one that obeys."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._commands = CommandReader(settings["commands"])
        self._channel = EventWriter(settings["events"], self._commands.next()["key"])
        self._watch = settings["watch"]
        self._libraries = LibraryWatch(settings["libraries"])
        self._leftovers = Leftovers(self._channel)
        self._items: dict[str, pytest.Item] = {}
        self._previous: tuple[pytest.Item, pytest.Item | None] | None = None
        self._reports: list[pytest.TestReport] = []
        self._raised: dict[str, BaseException | None] = {}  # phase -> what it raised
        self._collect_reports: list[pytest.CollectReport] = []
        self._deselected: list[str] = []
        self._folders: dict[Path, Any] = {}
        self._session: pytest.Session | None = None
        self._batch = 0
        self._ran: Counter[str] = Counter()
        self.failed = 0
        self.over = False

    # --- hooks -----------------------------------------------------------------------------------

    @pytest.hookimpl(trylast=True)  # after the terminal reporter, which must not write to the log
    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "rocm(*libraries): ROCm libraries the test exercises")
        config.args[:] = []  # files are collected when a command names them
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter:
            config.pluginmanager.unregister(reporter)
        config.pluginmanager.register(QuietReporter(config), "terminalreporter")

    def pytest_collection(self, session: pytest.Session) -> bool:
        """Collect nothing yet: looking at nothing, pytest 9 forgets the fixtures of a conftest."""
        session.items = []
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_directory(self, path: Path) -> Generator[None, Any, Any]:
        """Keep a folder's node: pytest 9 ties the fixtures of its conftest to the first one."""
        node = yield
        return self._folders.setdefault(path, node) if node else node

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._session = session
        self._channel.emit("ready", pid=_getpid(), pytest=pytest.__version__)
        waiting: deque[tuple[str, str | None]] = deque()
        while True:
            if waiting:
                test, following = waiting.popleft()
                if not self._run(test, following, batch=self._batch):
                    break
                if self._reports_failed:
                    waiting.clear()
                    self._batch += 1
                continue
            self._channel.flush()
            command = self._commands.next()
            if command["op"] == "end":
                break
            if command["op"] == "collect":
                self._collect(session, command["file"])
            elif command["batch"] == self._batch:
                tests = command["tests"]
                waiting.extend(zip(tests, [*tests[1:], command["then"]], strict=True))
        self._tear_down(None)
        self.over = True
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        """Notice what a marker expression or a conftest takes out, told of or not."""
        before = [item.nodeid for item in items]
        result = yield
        kept = {item.nodeid for item in items}
        self._deselected = [_line(name) for name in before if name not in kept]
        return result

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._collect_reports.append(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        try:
            return (yield)
        finally:
            self._no_child()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        self._leftovers.body()
        try:
            return (yield)
        finally:
            self._no_child()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Iterator[None]:
        try:
            return (yield)
        finally:
            self._no_child()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None]:
        """Keep what a phase really raised: a conftest may have made something else of it."""
        caught = getattr(item, "_excinfo", None)
        if isinstance(caught, list) and len(caught) > 1:
            # of a unittest's subtests pytest 8 reports the first that went wrong, a skip as well
            caught.sort(key=lambda info: isinstance(info.value, SKIPS))
        report = yield
        self._raised[call.when] = call.excinfo.value if call.excinfo else None
        return report

    @property
    def spoiled(self) -> bool:
        """Whether a test has made the process useless for others."""
        return self._leftovers.spoiled

    def _no_child(self) -> None:
        """End a process that a test forked and that came back from the test."""
        if self._channel.forked:
            _exit(0)

    # --- commands --------------------------------------------------------------------------------

    def bye(self) -> None:
        """Say what this process loaded and counted; nothing is imported for it."""
        modules = {}
        for name in self._watch:
            path = getattr(sys.modules.get(name), "__file__", None)
            if path:
                modules[name] = str(path)
        bridge = sys.modules.get("jax._src.xla_bridge")
        backends = sorted(map(str, getattr(bridge, "_backends", None) or ()))
        extra = [name for finder in sys.meta_path if isinstance(finder, Extra)
                 for name in finder.used]  # fmt: skip
        self._channel.emit(
            "bye", failed=self.failed, ran=dict(self._ran), modules=modules, backends=backends,
            extra=extra, pytest_failed=self._session.testsfailed if self._session else 0,
        )  # fmt: skip

    def _collect(self, session: pytest.Session, file: str) -> None:
        self._collect_reports, self._deselected = [], []
        started = _clock()
        error = ""
        items: Sequence[pytest.Item] = ()
        self._channel.emit("collecting", file=file)
        try:
            items = session.perform_collect([file])
        except pytest.UsageError as exc:
            error = "\n".join(map(str, exc.args)) or type(exc).__name__
        except (SystemExit, KeyboardInterrupt, pytest.exit.Exception) as exc:
            error = f"{type(exc).__name__} while the file was imported: {exc}"
        self._no_child()
        failures = [report for report in self._collect_reports if report.failed]
        if failures and not error:
            error = "\n".join(_text(report) for report in failures)
        names = [_line(item.nodeid) for item in items]
        self._items.update(zip(names, items, strict=True))
        if len(set(names)) < len(names) and not error:
            error = f"two tests share the id {max(names, key=names.count)}"
        tags = {name: self._libraries.tags(item) for name, item in zip(names, items, strict=True)}
        self._channel.emit(
            "collected",
            file=file,
            tests=names,
            deselected=self._deselected,
            lines=[(item.location[1] or 0) + 1 for item in items],
            tags={name: found for name, found in tags.items() if found},
            error=_valid(error[:TEXT_LIMIT]),
            skipped=_line("; ".join(_skip_reason(r) for r in self._collect_reports if r.skipped)),
            seconds=_clock() - started,
        )

    def _run(self, name: str, then: str | None, *, batch: int) -> bool:
        """Run one test; False when it asked the whole session to stop."""
        item, following = self._items[name], self._items.get(then or "")
        if self._previous and self._previous[1] is not item:
            self._tear_down(item)
        self._reports, self._raised, going = [], {}, True
        tags = self._libraries.tags(item)
        before = self._libraries.traced(tags)
        self._channel.emit("start", test=name, offset=_printed())
        self._leftovers.begin(name)
        started = _clock()
        # without a next test the session's own fixtures are kept for the next file
        kept: Any = following or item.session
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=kept)
            self._no_child()
            self._previous = (item, following)
            outcome, message, detail = _outcome(self._reports, self._raised, item)
        except (KeyboardInterrupt, SystemExit, pytest.exit.Exception) as exc:
            self._no_child()
            outcome, detail, going = FAILED_STATUS, "", False
            message = f"the test stopped the whole session: {type(exc).__name__}: {exc}"
        seconds = _clock() - started
        self._leftovers.end()
        going = going and not self._leftovers.spoiled
        self.failed += outcome == FAILED_STATUS
        self._ran[outcome] += 1
        self._reports_failed = outcome == FAILED_STATUS
        self._channel.emit(
            "finish",
            hold=going and outcome != FAILED_STATUS,
            test=name,
            batch=batch,
            offset=_printed(),
            outcome=outcome,
            message=_line(message),
            detail=_valid(detail[-TEXT_LIMIT:]),
            seconds=seconds,
            evidence=self._libraries.evidence(tags, before),
            left=[_line(text) for text in self._leftovers.found],
            going=going,
        )
        return going

    _reports_failed = False

    def _tear_down(self, item: pytest.Item | None) -> None:
        """Finish fixtures kept for a test that went elsewhere; a failure is that of their user."""
        if not self._previous:
            return
        previous, expected = self._previous
        self._previous = None
        if expected is item and item is not None:
            return
        # the session's fixtures have many users: what is theirs is the process's
        own = any(node is not previous.session for node in _stack(previous))
        try:
            # what pytest_runtest_teardown does; the hook itself may be called once per test only
            kept: Any = item or previous.session
            previous.session._setupstate.teardown_exact(kept)  # noqa: SLF001
            if item is None:
                own = False
                previous.session._setupstate.teardown_exact(None)  # noqa: SLF001
        except BaseException as exc:  # noqa: BLE001 - whatever a fixture raises is its failure
            self._no_child()
            what = f"a fixture failed when it was torn down: {type(exc).__name__}: {exc}"
            if own:
                self.failed += 1
                self._channel.emit("late", test=_line(previous.nodeid), message=_line(what))
            else:
                self._channel.emit("stray", test="", message=_line(what))
        self._no_child()


def _high(descriptor: int) -> int:
    """Move a descriptor out of the way of tests that close all low ones."""
    try:
        high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, HIGH_DESCRIPTOR)
    except OSError:  # a low limit of open files
        return descriptor
    os.close(descriptor)
    return high


def _stack(item: pytest.Item) -> list[Any]:
    return list(item.session._setupstate.stack)  # noqa: SLF001


def _outcome(  # noqa: PLR0911 - one for each way to end
    reports: list[pytest.TestReport], raised: Mapping[str, BaseException | None], item: pytest.Item
) -> tuple[str, str, str]:
    """Fold the reports of setup, call and teardown (and of subtests) into one outcome.

    A pass needs a call phase that passed; outcomes pytest does not know are failures, and so is
    a report that says other than what was raised.
    """
    failed = [report for report in reports if report.failed]
    if failed:
        text = "\n".join(_text(report) for report in failed)
        crash = getattr(failed[0].longrepr, "reprcrash", None)
        line = crash.message if crash else text.strip().splitlines()[-1] if text.strip() else ""
        where = "" if failed[0].when == "call" else f"in {failed[0].when}: "
        return "failed", (where + line).splitlines()[0] if line else where + "no message", text
    # a skipped subtest does not make its test a skipped one
    whole = [report for report in reports if not hasattr(report, "context")]
    for report in whole:
        if report.outcome not in ("passed", "skipped"):
            return "failed", f"pytest reported the unknown outcome {report.outcome!r}", ""
        if problem := _rewritten(report, raised.get(report.when), item):
            return "failed", problem, _text(report)
    for report in whole:
        if report.skipped and hasattr(report, "wasxfail"):
            reason = str(report.wasxfail)
            # xfail(run=False) runs nothing: https://docs.pytest.org/en/stable/how-to/skipping.html
            return "skipped" if reason.startswith("[NOTRUN]") else "xfailed", reason, ""
        if report.skipped:
            return "skipped", _skip_reason(report), ""
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


def _state() -> dict[Any, Any]:
    """Signal handlers and standard streams of this process."""
    state: dict[Any, Any] = {number: _getsignal(number) for number in KEPT_SIGNALS}
    state["stdout"], state["stderr"] = sys.stdout, sys.stderr
    state |= {limit: resource.getrlimit(limit[0]) for limit in LIMITS}
    return state


def _identity() -> tuple[int, int]:
    """Which file the descriptor of our file of stacks is; another one when a test closed it."""
    try:
        found = _fstat(STACKS[0].fileno())
    except OSError:
        return (0, 0)
    return (found[1], found[2])


def _children() -> list[int]:
    """Processes below this one, adopted ones included; cheap where there are none."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    found: list[int] = []
    with suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _helpers() -> set[int]:
    """Processes that multiprocessing keeps for itself, for all tests of this process."""
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", 0)
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", 0)
    pids = (getattr(tracker, "_pid", None), getattr(server, "_forkserver_pid", None))
    return {pid for pid in pids if pid}


def _alive(pid: int) -> bool:
    """Whether a process still runs; one that waits for its parent to ask does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def _command_of(pid: int) -> str:
    """What a process runs; its name in brackets where it has no command line, "" of a dead one.

    A new program has none for an instant: descriptors are closed before its arguments are laid
    (`begin_new_exec` and `setup_arg_pages` in Linux's fs/exec.c), so whoever waited for that pipe
    may look too early.
    """
    until = _clock() + ARGUMENTS_SECONDS
    while _alive(pid):
        try:
            text = Path(f"/proc/{pid}/cmdline").read_bytes()
            name = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
        if command := text.replace(b"\0", b" ").decode(errors="backslashreplace").strip():
            return command[:200]
        if _clock() > until:
            return f"[{name.strip()}]"
        time.sleep(0.001)
    return ""


def _text(report: pytest.CollectReport | pytest.TestReport) -> str:
    return str(report.longreprtext)[-TEXT_LIMIT:]


def _skip_reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    longrepr = report.longrepr
    reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return reason.removeprefix("Skipped: ").partition("\n")[0]


def _valid(text: str) -> str:
    """Replace what UTF-8 cannot hold: a lone surrogate of a test must not break the report."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _line(text: str) -> str:
    """One line that any report can hold; node ids are made so once, here."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], _valid(str(text)))


def _printed() -> int:
    """Bytes in the log so far, which is this process's standard output."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    try:
        return _fstat(1).st_size
    except OSError:
        return 0


def _size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError:
        return 0


def _mapped() -> set[str]:
    """Base names of the shared objects mapped into this process."""
    text = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    return {line.rpartition("/")[2] for line in text.splitlines() if "/" in line}


def support_subtests() -> None:
    """Let `TestCase.subTest` go on after a subtest that fails or skips, as pytest 9 does.

    Without `addSubTest` in the result unittest runs no subtests at all: the first that skips ends
    its whole test as skipped (https://docs.python.org/3/library/unittest.html#subtests).
    """
    from _pytest.unittest import TestCaseFunction

    if hasattr(TestCaseFunction, "addSubTest"):
        return
    add_skip = TestCaseFunction.addSkip

    def sub_test(self: Any, _case: Any, _test: Any, error: Any) -> None:
        if error:
            self._addexcinfo(error)

    def skip(self: Any, case: Any, reason: str) -> None:
        if not hasattr(case, "test_case"):  # a subtest that skips does not skip its test
            add_skip(self, case, reason)

    methods = {"addSubTest": sub_test, "addSkip": skip}
    for name, method in methods.items():
        setattr(TestCaseFunction, name, method)


STACKS: list[Any] = []  # the file for stacks, once it is open


def main(settings: dict[str, Any]) -> int:
    """Run one session; 1 when a test failed, 2 when pytest itself could not go on."""
    for name in ("commands", "events"):
        os.set_inheritable(settings[name], False)  # noqa: FBT003
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # daemons of a test stay ours
    STACKS.append(Path(settings["stacks"]).open("ab", buffering=0))  # noqa: SIM115 - to the end
    faulthandler.enable(file=STACKS[0], all_threads=True)
    faulthandler.register(DUMP_SIGNAL, file=STACKS[0], all_threads=True, chain=False)
    sys.path.insert(0, str(Path.cwd()))  # as `python -m pytest` has it
    if settings["modules"]:
        sys.meta_path.append(Extra(settings["modules"]))
    support_subtests()
    session = Session(settings)
    arguments = ["-p", "no:cacheprovider", "-p", "no:faulthandler", "--capture=no"]
    status = 2
    try:
        status = pytest.main([*arguments, *settings["pytest"]], plugins=[session])
    except OSError:
        if not (session.over and session.spoiled):  # pytest closes what a test has closed
            raise
    if not session.over:
        return int(status) or 2
    session.bye()
    return 1 if session.failed else 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
