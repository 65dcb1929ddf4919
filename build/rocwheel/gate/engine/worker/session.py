"""The loop over tests: a pytest plugin that runs what the engine asks for, in its order."""

from __future__ import annotations

import atexit
import os
import sys
import time
import traceback
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.warnings import catch_warnings_for_item

from .adaptations import Extra, LibraryWatch, QuietReporter, have_flags_parsed
from .channel import MOST_FIGURE, CommandReader, EventWriter, one_line, readable, valid
from .cleanup import Leftovers, Stacks
from .outcome import (
    FAILED_STATUS,
    TEXT_LIMIT,
    PartsDigest,
    Witness,
    error_text,
    outcome_of,
    skip_reason,
)
from .supervisor import adopt

if TYPE_CHECKING:
    import warnings
    from collections.abc import Generator, Iterator, Sequence

# Tests replace what they like: what is needed here is kept.
_getpid, _fstat, _exit, _clock = os.getpid, os.fstat, os._exit, time.monotonic


class Session:
    """The plugin: replaces pytest's loop by one that obeys."""

    def __init__(self, settings: dict[str, Any], stacks: Stacks) -> None:
        self._commands = CommandReader(settings["commands"])
        self._channel = EventWriter(settings["events"])
        self._watch = settings["watch"]
        self._libraries = LibraryWatch(settings["libraries"])
        self.leftovers = Leftovers(self._channel, stacks)
        self._witness = Witness()
        self._digest: PartsDigest | None = None
        self._items: dict[str, tuple[pytest.Item, Any]] = {}  # each with its own function
        self._previous: tuple[pytest.Item, pytest.Item | None] | None = None
        self._reports: list[pytest.TestReport] = []
        self._collect_reports: list[pytest.CollectReport] = []
        self._deselected: list[str] = []
        self._dropped: list[str] = []
        self._folders: dict[Path, Any] = {}
        self._batch = 0
        self._reports_failed = False
        self._summary: dict[str, Any] = {}
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
        config.pluginmanager.register(self._witness)
        self._digest = PartsDigest(config.pluginmanager.hook)

    def pytest_collection(self, session: pytest.Session) -> bool:
        """Collect nothing yet: looking at nothing, pytest 9 forgets the fixtures of a conftest."""
        session.items = []
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self) -> bool:
        """Look at nothing beside the file that is collected, of which and its folders none asks.

        A folder is listed for each file: to make nodes of all of it each time is quadratic.
        """
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_directory(self, path: Path) -> Generator[None, Any, Any]:
        """Keep a folder's node: pytest 9 ties the fixtures of its conftest to the first one."""
        node = yield
        return self._folders.setdefault(path, node) if node else node

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
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
        """Record the tests that a marker expression or a conftest takes out, reported or not."""
        before = [item.nodeid for item in items]
        result = yield
        kept = {item.nodeid for item in items}
        self._deselected = [one_line(name) for name in before if name not in kept]
        return result

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._collect_reports.append(report)

    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        if issubclass(warning_message.category, pytest.PytestCollectionWarning):
            self._dropped.append(str(warning_message.message))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        try:
            return (yield)
        finally:
            self._no_child()

    pytest_runtest_teardown = pytest_runtest_setup

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        self.leftovers.body()
        self._witness.stand()
        try:
            return (yield)
        finally:
            self._no_child()

    def _no_child(self) -> None:
        """End a process that a test forked and that came back from the test."""
        if self._channel.forked:
            _exit(0)

    # --- commands --------------------------------------------------------------------------------

    def summed(self) -> None:
        """Note what the session counted and loaded: JAX forgets its backends at the end."""
        paths = {name: getattr(sys.modules.get(name), "__file__", None) for name in self._watch}
        modules = {name: str(path) for name, path in paths.items() if path}
        bridge = sys.modules.get("jax._src.xla_bridge")
        backends = sorted(map(str, getattr(bridge, "_backends", None) or ()))
        extra = [name for finder in sys.meta_path if isinstance(finder, Extra)
                 for name in finder.used]  # fmt: skip
        self._summary = {
            "failed": self.failed, "modules": modules, "backends": backends, "extra": extra,
        }  # fmt: skip

    def bye(self) -> None:
        summary, self._summary = self._summary, {}  # once: threads may end this process, too
        if summary:
            self._channel.emit("bye", **summary)

    def _collect(self, session: pytest.Session, file: str) -> None:
        self._collect_reports, self._deselected, self._dropped = [], [], []
        started = _clock()
        error = ""
        items: Sequence[pytest.Item] = ()
        self._channel.emit("collecting", file=file)
        try:
            planted = _planted(file)
            with catch_warnings_for_item(session.config, session.ihook, "collect", None):
                items = session.perform_collect([file])
            error = f"an earlier test put something else there: {planted}" if planted else ""
        except pytest.UsageError as exc:
            error = "\n".join(map(str, exc.args)) or type(exc).__name__
        except (SystemExit, KeyboardInterrupt, pytest.exit.Exception) as exc:
            error = f"{type(exc).__name__} while the file was imported: {exc}"
        self._no_child()
        have_flags_parsed()
        self.leftovers.collected()
        if self._digest is not None:
            self._digest.collected()
            if (replaced := self._digest.changed()) and not error:
                error = f"its import replaced pytest's {', '.join(replaced)}"
        failures = [report for report in self._collect_reports if report.failed]
        if failures and not error:
            error = "\n".join(error_text(report) for report in failures)
        names = [one_line(item.nodeid) for item in items]
        own = [(item, getattr(item, "function", None) or item.runtest) for item in items]
        self._items.update(zip(names, own, strict=True))
        if len(set(names)) < len(names) and not error:
            error = f"two tests share the id {max(names, key=names.count)}"
        tags = {name: self._libraries.tags(item) for name, item in zip(names, items, strict=True)}
        self._channel.emit(
            "collected",
            file=file,
            tests=names,
            deselected=self._deselected,
            lines=[(item.location[1] or 0) + 1 for item in items],
            tags={name: tagged for name, tagged in tags.items() if tagged},
            error=valid(error[:TEXT_LIMIT]),
            skipped=readable("; ".join(skip_reason(r) for r in self._collect_reports if r.skipped)),
            dropped=[readable(text) for text in self._dropped],
            seconds=_clock() - started,
        )

    def _run(self, name: str, then: str | None, *, batch: int) -> bool:
        """Run one test; False when it asked the whole session to stop."""
        item, own = self._items.pop(name)  # it runs once in a process, and its memory is freed
        following, _ = self._items.get(then or "", (None, None))
        if self._previous and self._previous[1] is not item:
            self._tear_down(item)
        self._reports, going, figures = [], True, dict[str, int]()
        tags = self._libraries.tags(item)
        before = self._libraries.traced(tags)
        offset = _printed()
        self._channel.emit("start", test=name, offset=offset)
        self.leftovers.begin(name)
        self._witness.begin(item, own)
        started = _clock()
        # without a next test the session's own fixtures are kept for the next file
        kept: Any = following or item.session
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=kept)
            self._no_child()
            self._previous = (item, following)
            outcome, message, detail = outcome_of(self._reports, self._witness)
            figures = {
                readable(str(name)): number
                for name, number in item.user_properties
                if type(number) is int and 0 <= number <= MOST_FIGURE
            }
        except (KeyboardInterrupt, SystemExit, pytest.exit.Exception) as exc:
            self._no_child()
            outcome, detail, going = FAILED_STATUS, "", False
            message = f"the test stopped the whole session: {type(exc).__name__}: {exc}"
        except Exception as exc:  # noqa: BLE001 - of pytest, of which the test has replaced a part
            self._no_child()
            outcome, detail, going = FAILED_STATUS, traceback.format_exc(), False
            message = f"pytest failed: {type(exc).__name__}: {exc}"
        seconds = _clock() - started
        self.leftovers.end()
        if self._digest is not None and (replaced := self._digest.changed()):
            message = f"replaced pytest's {', '.join(replaced)}{f': {message}' * bool(message)}"
            outcome, going = FAILED_STATUS, False
        if stopped := item.session.shouldstop or item.session.shouldfail:
            outcome, message = FAILED_STATUS, f"the test stopped the whole session: {stopped}"
            going = False
        registered = item.config.pluginmanager.is_registered(self)
        going = going and registered and not self.leftovers.spoiled
        self.failed += outcome == FAILED_STATUS
        self._reports_failed = outcome == FAILED_STATUS
        self._channel.emit(
            "finish",
            hold=going and outcome != FAILED_STATUS,
            test=name,
            batch=batch,
            offset=_printed(),
            outcome=outcome,
            message=readable(message),
            detail=valid(detail[-TEXT_LIMIT:]),
            seconds=seconds,
            evidence=self._libraries.evidence(tags, before, offset),
            left=[readable(item) for item in self.leftovers.left],
            exits=self.leftovers.exits,
            figures=figures,
            going=going,
        )
        return going

    def _tear_down(self, item: pytest.Item | None) -> None:
        """Finish fixtures kept for a test that went elsewhere; a failure is that of their user."""
        if not self._previous:
            return
        previous, expected = self._previous
        self._previous = None
        if expected is item and item is not None:
            return
        # the session's fixtures have many users: what is theirs is the process's
        stack: Any = previous.session._setupstate.stack  # noqa: SLF001
        own = any(node is not previous.session for node in stack)
        try:
            # what pytest_runtest_teardown does; the hook itself may be called once per test only
            kept: Any = item or previous.session
            previous.session._setupstate.teardown_exact(kept)  # noqa: SLF001
            if item is None:
                own = False
                previous.session._setupstate.teardown_exact(None)  # noqa: SLF001
        except BaseException as exc:  # noqa: BLE001 - anything a fixture raises is its failure
            self._no_child()
            what = f"a fixture failed when it was torn down: {type(exc).__name__}: {exc}"
            if own:
                self.failed += 1
                self._channel.emit("late", test=one_line(previous.nodeid), message=readable(what))
            else:
                self._channel.emit("stray", test="", message=readable(what))
        self._no_child()


def _planted(file: str) -> str:
    """Return the name under which something else is taken for the module of a file, or ""."""
    path = Path(file)
    for name in (path.stem, ".".join(path.with_suffix("").parts)):
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        origin = getattr(spec, "origin", None)
        if module is not None and (not isinstance(origin, str) or not Path(origin).is_file()):
            return f"sys.modules[{name!r}]"
    return ""


def _printed() -> int:
    """Return bytes in the log so far, which is this process's standard output."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    try:
        return _fstat(1).st_size
    except OSError:
        return 0


def main(settings: dict[str, Any]) -> int:
    """Run one session; 1 when a test failed, 2 when pytest itself could not go on."""
    for name in ("commands", "events"):
        os.set_inheritable(settings[name], False)  # noqa: FBT003
    with suppress(OSError, AttributeError):
        adopt(orphans=True)  # daemons of a test stay ours
    stacks = Stacks(settings["stacks"])
    sys.path.insert(0, str(Path.cwd()))  # as `python -m pytest` has it
    if settings["modules"]:
        sys.meta_path.append(Extra(settings["modules"]))
    session = Session(settings, stacks)
    atexit.register(session.bye)  # runs behind what tests register
    arguments = ["-p", "no:cacheprovider", "-p", "no:faulthandler", "--capture=no"]
    status = 2
    try:
        status = pytest.main([*arguments, *settings["pytest"]], plugins=[session])
    except OSError:
        if not (session.over and session.leftovers.spoiled):  # pytest closes what a test has closed
            raise
    if not session.over:
        return int(status) or 2
    session.summed()
    status = 1 if session.failed else 0
    session.leftovers.outlive_threads(status, session.bye)
    return status
