"""The worker: a pytest session that is told, test by test, what to run.

It runs in the tested environment and so knows only the standard library and pytest. Commands and
events are JSON lines on two pipes; everything tests print stays on stdout and stderr, which are
the worker's log. Commands: `collect` a file, `run` a test, `end`. Events: `ready`, `collected`,
`start`, `finish`, `late` (a fixture failed after its test was reported) and `bye`.

    worker.py SETTINGS      (JSON: commands, events, stacks, pytest, watch, libraries)
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

# A module beside this file must never answer an import of the tests.
if sys.path and Path(sys.path[0]).resolve() == Path(__file__).resolve().parent:
    del sys.path[0]

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence

TEXT_LIMIT = 64 << 10  # characters of one traceback
PR_SET_PDEATHSIG = 1


class Channel:
    """JSON lines to the engine; a process that a test forked stays silent."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pid = os.getpid()

    def emit(self, event: str, **values: Any) -> None:
        if os.getpid() != self._pid:
            return
        data = json.dumps({"event": event, **values}).encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]


class Libraries:
    """Which of the libraries a test is tagged with can be seen at work.

    `mapped` are prefixes of shared objects in this process, `traces` are files that a library
    writes a line to when it is called.
    """

    def __init__(self, table: dict[str, dict[str, list[str]]]) -> None:
        self._table = table

    def tags(self, item: pytest.Item) -> list[str]:
        found = [name for mark in item.iter_markers("rocm") for name in mark.args]
        return list(dict.fromkeys(found))

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


class Session:
    """The plugin: replaces pytest's loop by one that obeys."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._commands = os.fdopen(settings["commands"], "rb")
        self._channel = Channel(settings["events"])
        self._watch = settings["watch"]
        self._libraries = Libraries(settings["libraries"])
        self._items: dict[str, pytest.Item] = {}
        self._previous: tuple[pytest.Item, pytest.Item | None] | None = None
        self._reports: list[pytest.TestReport] = []
        self._collect_reports: list[pytest.CollectReport] = []
        self.failed = 0
        self.over = False

    @pytest.hookimpl(trylast=True)  # after the terminal reporter, which must not write to the log
    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", "rocm(*libraries): ROCm libraries the test exercises")
        config.args[:] = []  # files are collected when a command names them
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter:
            config.pluginmanager.unregister(reporter)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self._channel.emit("ready", pid=os.getpid(), pytest=pytest.__version__)
        for line in self._commands:
            command = json.loads(line)
            if command["op"] == "end":
                break
            if command["op"] == "collect":
                self._collect(session, command["file"])
            elif not self._run(command["test"], command["then"]):
                break
        self._tear_down(None)
        self.over = True
        return True

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._collect_reports.append(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def bye(self) -> None:
        """Say what this process loaded; nothing is imported for it."""
        modules = {}
        for name in self._watch:
            path = getattr(sys.modules.get(name), "__file__", None)
            if path:
                modules[name] = path
        bridge = sys.modules.get("jax._src.xla_bridge")
        backends = sorted(getattr(bridge, "_backends", None) or ())
        self._channel.emit("bye", failed=self.failed, modules=modules, backends=backends)

    def _collect(self, session: pytest.Session, file: str) -> None:
        self._collect_reports = []
        started = time.monotonic()
        error = ""
        items: Sequence[pytest.Item] = ()
        try:
            items = session.perform_collect([file])
        except pytest.UsageError as exc:
            error = "\n".join(map(str, exc.args)) or type(exc).__name__
        except (SystemExit, KeyboardInterrupt, pytest.exit.Exception) as exc:
            error = f"{type(exc).__name__} while the file was imported: {exc}"
        failures = [report for report in self._collect_reports if report.failed]
        if failures and not error:
            error = "\n".join(_text(report) for report in failures)
        names = [item.nodeid for item in items]
        self._items.update(zip(names, items, strict=True))
        if len(set(names)) < len(names) and not error:
            error = f"two tests share the id {max(names, key=names.count)}"
        tags = {item.nodeid: self._libraries.tags(item) for item in items}
        self._channel.emit(
            "collected",
            file=file,
            tests=names,
            lines={item.nodeid: (item.location[1] or 0) + 1 for item in items},
            tags={name: found for name, found in tags.items() if found},
            error=_valid(error[:TEXT_LIMIT]),
            skipped=_valid("; ".join(_skip_reason(r) for r in self._collect_reports if r.skipped)),
            seconds=time.monotonic() - started,
        )

    def _run(self, name: str, then: str | None) -> bool:
        """Run one test; False when it asked the whole session to stop."""
        item, following = self._items[name], self._items.get(then or "")
        if self._previous and self._previous[1] is not item:
            self._tear_down(item)
        self._reports, going = [], True
        tags = self._libraries.tags(item)
        before = self._libraries.traced(tags)
        self._channel.emit("start", test=name, offset=_printed())
        started = time.monotonic()
        try:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self._previous = (item, following)
            outcome, message, detail = _outcome(self._reports)
        except (KeyboardInterrupt, pytest.exit.Exception) as exc:
            outcome, detail, going = "failed", "", False
            message = f"the test stopped the whole session: {type(exc).__name__}: {exc}"
        self.failed += outcome == "failed"
        self._channel.emit(
            "finish",
            test=name,
            offset=_printed(),
            outcome=outcome,
            message=_valid(message),
            detail=_valid(detail[-TEXT_LIMIT:]),
            seconds=time.monotonic() - started,
            evidence=self._libraries.evidence(tags, before),
            going=going,
        )
        return going

    def _tear_down(self, item: pytest.Item | None) -> None:
        """Finish fixtures kept for a test that went elsewhere; a failure is that of their user."""
        if not self._previous:
            return
        previous, expected = self._previous
        self._previous = None
        if expected is item:
            return
        try:
            # what pytest_runtest_teardown does; the hook itself may be called once per test only
            previous.session._setupstate.teardown_exact(item)  # noqa: SLF001
        except BaseException as exc:  # noqa: BLE001 - whatever a fixture raises is its failure
            self.failed += 1
            message = f"a fixture failed when it was torn down: {type(exc).__name__}: {exc}"
            self._channel.emit(
                "late", test=previous.nodeid, message=_valid(message.splitlines()[0])
            )


def _outcome(reports: list[pytest.TestReport]) -> tuple[str, str, str]:
    """Fold the reports of setup, call and teardown (and of subtests) into one outcome."""
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
        if report.skipped and hasattr(report, "wasxfail"):
            return "xfailed", str(report.wasxfail), ""
        if report.skipped:
            return "skipped", _skip_reason(report), ""
    if not any(report.when == "call" for report in whole):
        return "failed", "pytest reported no outcome", ""
    unexpected = [str(report.wasxfail) for report in whole if hasattr(report, "wasxfail")]
    return "passed", f"expected to fail: {unexpected[0]}" if unexpected else "", ""


def _text(report: pytest.CollectReport | pytest.TestReport) -> str:
    return str(report.longreprtext)[-TEXT_LIMIT:]


def _skip_reason(report: pytest.CollectReport | pytest.TestReport) -> str:
    longrepr = report.longrepr
    reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    return reason.removeprefix("Skipped: ").partition("\n")[0]


def _valid(text: str) -> str:
    """Replace what UTF-8 cannot hold: a lone surrogate of a test must not break the report."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _printed() -> int:
    """Bytes in the log so far, which is this process's standard output."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    try:
        return os.fstat(1).st_size
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


def main(settings: dict[str, Any]) -> int:
    """Run one session; 1 when a test failed, 2 when pytest itself could not go on."""
    for name in ("commands", "events"):
        os.set_inheritable(settings[name], False)  # noqa: FBT003
    # a gate that is killed must not leave a process on the device
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != settings["parent"]:
        return 2
    stacks = Path(settings["stacks"]).open("ab", buffering=0)  # noqa: SIM115 - open to the end
    faulthandler.enable(file=stacks, all_threads=True)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True, chain=False)
    session = Session(settings)
    arguments = ["-p", "no:cacheprovider", "-p", "no:faulthandler", "--capture=no"]
    status = pytest.main([*arguments, *settings["pytest"]], plugins=[session])
    if not session.over:
        return int(status) or 2
    session.bye()
    return 1 if session.failed else 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
