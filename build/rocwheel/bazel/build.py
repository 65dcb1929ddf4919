"""Runs one invocation: shows how far it is, takes its outputs, explains its failure.

Outputs are copied out while the output base is locked: another run on the same tree may replace
them in place as soon as it may start.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rocwheel.bazel.events import BuildEvents, FailedAction, spawn_cache_hits
from rocwheel.errors import BazelError, CommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rocwheel.bazel.invocation import BazelInvocation, Target
    from rocwheel.console import Console
    from rocwheel.model import WheelKind
    from rocwheel.process import Runner

POLL_SECONDS: Final = 0.2
RUNNER_COUNTS_SINCE: Final = (5,)  # Bazel that counts cache hits in its build metrics
SHOWN_LINES: Final = 60  # of a failed action's output
SHUTDOWN_SECONDS: Final = 20.0


@dataclass(frozen=True, kw_only=True)
class BazelResult:
    """What a successful invocation made and did."""

    outputs: Mapping[WheelKind, Path]
    actions_executed: int  # run on this machine or by a remote executor
    cache_hits: int  # taken from the disk or remote cache
    seconds: float
    log: Path
    events: Path


def build(
    invocation: BazelInvocation,
    *,
    into: Path,
    log: Path,
    events: Path,
    runner: Runner,
    console: Console,
) -> BazelResult:
    """Run the invocation and copy its wheels into the folder `into`.

    `log` gets everything Bazel prints, `events` its build events. Raises BazelError: what the
    failed action printed is its `detail`. However it ends early, no Bazel server stays behind.
    """
    for path in (log, events):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    spawns = events.with_suffix(".spawns.json") if _lacks_runner_counts(invocation) else None
    base = Path(invocation.output_base)
    base.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with _locked(base.with_name(base.name + ".lock"), console):
        if invocation.output:
            shutil.rmtree(invocation.output, ignore_errors=True)
            Path(invocation.output).mkdir(parents=True)
        read = _run(
            invocation, log=log, events=events, spawns=spawns, runner=runner, console=console
        )
        outputs = _take(invocation, read, into)
    hits = read.cache_hits
    if hits is None:
        hits = spawn_cache_hits(spawns) if spawns and spawns.is_file() else 0
    if spawns:
        spawns.unlink(missing_ok=True)
    return BazelResult(
        outputs=outputs,
        actions_executed=max(0, read.actions - hits),
        cache_hits=hits,
        seconds=round(time.monotonic() - started, 3),
        log=log,
        events=events,
    )


def shutdown(invocation: BazelInvocation, *, runner: Runner) -> None:
    """End the Bazel server of the invocation's output base; one that does not listen is killed."""
    base = Path(invocation.output_base)
    pid = _server(base)
    if pid is None:
        return
    with suppress(CommandError):
        runner.capture(invocation.shutdown)
    if _server(base) == pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _run(
    invocation: BazelInvocation,
    *,
    log: Path,
    events: Path,
    spawns: Path | None,
    runner: Runner,
    console: Console,
) -> BuildEvents:
    more = [
        "--build_event_publish_all_actions",
        f"--build_event_json_file={events}",
        "--color=no",
        "--curses=no",
        "--show_progress_rate_limit=5",
    ]
    if spawns:
        more.append(f"--execution_log_json_file={spawns}")
    command = invocation.command_line(*more)
    console.detail(str(command))
    read = BuildEvents()
    with (
        console.progress(invocation.title) as progress,
        _tail(events, read, lambda: progress.update(read.actions, text="actions")),
    ):
        try:
            done = runner.run(command, log=log, check=False)
        except BaseException:  # Ctrl-C, a deadline: the client is gone, the server may still work
            shutdown(invocation, runner=runner)
            raise
    if done.returncode:
        raise _failure(invocation, read, done.output, log)
    return read


@contextmanager
def _tail(path: Path, read: BuildEvents, changed: Callable[[], None]) -> Iterator[None]:
    """Feed what is written to `path` to `read`, meanwhile and to its end when the block ends."""
    over = threading.Event()

    def follow() -> None:
        pending = ""
        while not path.exists():
            if over.wait(POLL_SECONDS):
                break
        with suppress(FileNotFoundError), path.open(encoding="utf-8", errors="replace") as file:
            while True:
                last = over.is_set()  # asked before reading: what was written until then is read
                text = file.read()
                *lines, pending = (pending + text).split("\n")
                for line in lines:
                    read.feed(line)
                if lines:
                    changed()
                if last:
                    read.feed(pending)
                    return
                over.wait(POLL_SECONDS)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _take(invocation: BazelInvocation, read: BuildEvents, into: Path) -> dict[WheelKind, Path]:
    """Copy the wheel of every target; exactly one each, and it must be there. Raises BazelError."""
    into.mkdir(parents=True, exist_ok=True)
    taken = {}
    for target in invocation.targets:
        wheel = _one(target, _wheels(invocation, target, read))
        copy = into / wheel.name
        shutil.copyfile(wheel, copy)  # Bazel's outputs are read-only; the copy is not
        taken[target.kind] = copy
    return taken


def _wheels(invocation: BazelInvocation, target: Target, read: BuildEvents) -> Sequence[Path]:
    if invocation.output:  # a folder that was empty before the program of `bazel run` wrote into it
        return sorted(Path(invocation.output).glob("*.whl"))
    return [path for path in read.files(target.label) if path.suffix == ".whl"]


def _one(target: Target, wheels: Sequence[Path]) -> Path:
    if len(wheels) != 1:
        found = ", ".join(wheel.name for wheel in wheels) or "none"
        raise BazelError(
            f"{target.label}: made {len(wheels)} wheels, not one: {found}",
            hint="check the layout of this tree in ci/layouts.yaml",
        )
    if not wheels[0].is_file():
        raise BazelError(
            f"{wheels[0]}: Bazel says it made this file, but it is not there",
            hint="a remote cache may have lost it: build again without it",
        )
    return wheels[0]


def _failure(invocation: BazelInvocation, read: BuildEvents, tail: str, log: Path) -> BazelError:
    """Say what failed: the action with its own output, or what Bazel said about a target."""
    real = [action for action in read.failed if action.output or action.command] or read.failed
    hint = f"everything Bazel printed is in {log}"
    if real:
        action = real[0]
        return BazelError(
            f"{action.label or invocation.title}: {action.mnemonic} failed"
            f" (exit status {action.exit_code})",
            hint=hint,
            detail=explain(action),
        )
    how = read.exit_name.replace("_", " ").lower() or "Bazel stopped"
    return BazelError(
        f"{invocation.title}: {how}", hint=hint, detail="\n".join(read.problems) or tail
    )


def explain(action: FailedAction) -> str:
    """What a person wants to see of a failed action: its output first, then its command."""
    import shlex

    lines = (action.output or action.message).splitlines()
    if len(lines) > SHOWN_LINES:
        lines = [*lines[:SHOWN_LINES], f"… {len(lines) - SHOWN_LINES} more lines"]
    if action.command:
        lines.append(f"the command was: {shlex.join(action.command)}")
    return "\n".join(lines)


@contextmanager
def _locked(path: Path, console: Console) -> Iterator[None]:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.info("waiting for another build of this tree")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _lacks_runner_counts(invocation: BazelInvocation) -> bool:
    return invocation.bazel.release < RUNNER_COUNTS_SINCE  # unknown: as if old


def _server(base: Path) -> int | None:
    """The process id of the server that owns an output base, if it is alive."""
    try:
        pid = int((base / "server" / "server.pid.txt").read_text())
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if os.fsencode(f"--output_base={base}") in line else None
