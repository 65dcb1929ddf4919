"""Runs one invocation: shows how far it is, takes its outputs, explains its failure.

An output base is locked from the start of Bazel until its wheels are copied out: another run on
the same tree replaces them in place as soon as it may start.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec import to_builtins

from rocwheel.base import files
from rocwheel.base.console import COLOURS, Console, Progress, count, duration, size
from rocwheel.base.download.urls import without_secrets
from rocwheel.base.errors import BazelError, CommandError, HostError
from rocwheel.base.files import locked, read_json, sha256, write_json
from rocwheel.base.process import Command, Runner
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import WheelKind
from rocwheel.bazel import events, queries
from rocwheel.bazel.events import (
    SLOWEST,
    BuildEvents,
    FailedAction,
    line,
    read_profile,
    read_spawns,
)
from rocwheel.bazel.failures import errors
from rocwheel.bazel.invocation import BazelInvocation
from rocwheel.bazel.queries import NOT_KNOWN, Repository, needed
from rocwheel.bazel.remote import ask, write_headers
from rocwheel.records.manifest import InvocationRecord, TimedAction

Fetched: TypeAlias = dict[str, dict[str, dict[str, str]]]  # repository -> URL -> digest
POLL_SECONDS: Final = 0.2
# After so long without an event, cache and executor are asked whether they answer; after two
# failures Bazel is killed. By itself it waits 60 s for each action, and tries gRPC five times.
QUIET_SECONDS: Final = 20.0
# Bazel that counts cache hits in its build metrics: https://github.com/bazelbuild/bazel/issues/7714
RUNNER_COUNTS_SINCE: Final = (5,)
# What is remembered of an output base lies in it, and is gone with it.
DOWNLOADS: Final = "rocwheel-downloads.json"
RELEASE: Final = "rocwheel-release.json"
REPOSITORIES: Final = "rocwheel-repositories.json"
KEPT: Final = 16  # answers about repositories
# Files of a workspace that define its external repositories, beside the rules in them.
DEFINING: Final = ("WORKSPACE*", "MODULE.bazel*", ".bazelversion", "third_party/**/*.bzl")
# What Bazel warns of where a system-wide rc file is left out on purpose.
UNREAD: Final = "The following rc files are no longer being read"
START_HINT: Final = (
    "Debian's Bazel needs the rc file of its package: "
    "--bazel-startup-options=--bazelrc=/etc/bazel/bazelrc"
)
SHOWN_LINES: Final = 60  # of a failed action's output
OWN_LINES: Final = 10  # of errors, where more was printed
WARNINGS: Final = 20  # kept of one invocation
OWN_FAILURES: Final = frozenset({"NON_ZERO_EXIT", "TIMEOUT", ""})


class BazelResult(Plain, frozen=True, kw_only=True):
    """What a successful invocation made and did."""

    outputs: Mapping[WheelKind, Path]
    record: InvocationRecord
    fetched: Fetched
    repositories: Mapping[WheelKind, tuple[Repository, ...]]

    @property
    def summary(self) -> str:
        """One line for people: what was rebuilt."""
        done = self.record
        took = f"{done.milliseconds / 1000:.1f} s"
        total = done.actions_executed + done.cache_hits
        if not total:
            return f"nothing to rebuild: 0 actions, {took}"
        parts = [
            f"{count(done.actions_executed, 'action')} executed",
            f"{done.cache_hits} from a cache ({100 * done.cache_hits // total} %)",
        ]
        if done.bytes_made:
            parts.append(f"{size(done.bytes_made)} made")
        critical = done.critical_path_milliseconds / 1000
        return f"{', '.join(parts)}, {took} (critical path {critical:.1f} s)"


class Files:
    """Paths of the files that one Bazel invocation writes: log, events, profile."""

    def __init__(self, invocation: BazelInvocation, folder: Path) -> None:
        names = "-".join(kind.value for kind in invocation.kinds)
        stem = f"{names}-{invocation.python}-{invocation.key}"
        self.log = folder / f"{stem}.log"
        self.events = folder / f"{stem}.events.json"
        self.profile = folder / f"{stem}.profile.gz"
        self.spawns = folder / f"{stem}.spawns.json"
        self.rules = folder / f"{stem}.rules"  # holds the environment, so it is removed at once


def build(
    invocation: BazelInvocation, *, folder: Path, into: Path, runner: Runner, console: Console
) -> BazelResult:
    """Run the invocation and copy its wheels into the folder `into`.

    `folder` gets log, build events and profile, under names that belong to this invocation.
    Raises BazelError: what the failed action printed is its `detail`. However it ends early, no
    Bazel server stays behind.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = Files(invocation, folder)
    base = runner.host(invocation.spec.output_base)
    began, started = time.time(), time.monotonic()
    warnings = list[str]()
    with _ready(invocation, runner, console) as (answering, notes):
        now = answering
        secrets = invocation.spec.remote.secrets  # of what was asked for
        once = partial(
            _run, files=files, warnings=warnings, runner=runner, console=console, secrets=secrets
        )
        read, failure = once(now)
        own = read.problems or any(item.code in OWN_FAILURES for item in read.failed)
        if failure and now.spec.remote.options and not own:
            why = failure.last_line
            notes.append(f"built again without remote cache and executor: {failure}: {why}")
            console.warn(notes[-1])
            now = invocation.locally()
            read, failure = once(now)
        if failure:
            raise failure
        if not read.last:
            raise BazelError(
                f"{files.events}: ends early, so Bazel's outputs are not known",
                hint="is the disk full? build again",
            )
        outputs = _take(invocation, read, into)
        spawned, bytes_made, bytes_cached = read_spawns(files.spawns)
        files.spawns.unlink(missing_ok=True)
        critical_path, slowest = read_profile(files.profile)
        fetched = read_json(base / DOWNLOADS)
        repositories = _needed(now, read, runner, console)
    hits = spawned if read.cache_hits is None else read.cache_hits
    record = InvocationRecord(
        command=str(invocation.command_line()),
        actions_executed=max(0, read.actions - hits),
        cache_hits=hits,
        bytes_made=read.bytes_made or bytes_made,
        bytes_cached=bytes_cached,
        notes=tuple(notes),
        warnings=tuple(warnings),
        milliseconds=round((time.monotonic() - started) * 1000),
        critical_path_milliseconds=sum(item.milliseconds for item in critical_path),
        critical_path=critical_path,
        slowest_actions=slowest,
        log=str(files.log),
        profile=str(files.profile),
    )
    at = datetime.fromtimestamp(began, tz=timezone.utc)
    queries.remember(invocation, record, runner, when=f"{at:%Y-%m-%d %H:%M} UTC")
    return BazelResult(outputs=outputs, record=record, fetched=fetched, repositories=repositories)


def fetch(
    invocation: BazelInvocation, *, folder: Path, runner: Runner, console: Console
) -> tuple[Fetched, set[Repository]]:
    """Let Bazel fetch what the invocation needs, up to its analysis.

    Returns what was fetched into its output base, and the repositories that the wheels depend on.
    Raises BazelError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    once = partial(_run, files=Files(invocation, folder), warnings=[], secrets=())
    with _ready(invocation.locally(), runner, console) as (now, _):
        read, failure = once(now, "--nobuild", runner=runner, console=console)
        if failure:
            raise failure
        needs = {row for rows in _needed(now, read, runner, console).values() for row in rows}
        return read_json(runner.host(now.spec.output_base) / DOWNLOADS), needs


def price(invocation: BazelInvocation, *, runner: Runner, console: Console) -> Iterator[str]:
    """Yield lines on what the invocation costs: see `cost`. Raises BazelError."""
    with _ready(invocation, runner, console) as (now, _):
        try:
            yield from queries.estimate(now, runner)
        except CommandError as exc:
            raise BazelError(
                f"{invocation.title}: Bazel does not name its actions",
                hint="build it: what fails is explained then",
                detail=exc.detail,
            ) from exc


@contextmanager
def _ready(
    invocation: BazelInvocation, runner: Runner, console: Console
) -> Iterator[tuple[BazelInvocation, list[str]]]:
    """Hold the output base; yield the invocation without remote parts that do not answer, and why.

    What its startup options name is written. Raises HostError for a Bazel that is no release.
    """
    base = runner.host(invocation.spec.output_base)
    waiting = partial(console.info, "   waiting for another build of this tree")
    with locked(base.with_name(base.name + ".lock"), waiting=waiting):
        usable, notes = ask(invocation.spec.remote)
        now = replace(invocation, spec=replace(invocation.spec, remote=usable))
        if not now.spec.remote.options:  # nothing left needs the headers
            now = invocation.locally()
        write_headers(now.spec.remote, base.parent)
        if now.spec.certificates:
            now.spec.certificates.write(base.parent)
        if now.spec.wants_release:
            _check_release(now, base, runner)
        for note in notes:
            console.warn(note)
        yield now, notes


def _check_release(invocation: BazelInvocation, base: Path, runner: Runner) -> None:
    """Refuse a Bazel that is no release where the tree names one. Raises HostError.

    Such a Bazel gives rules no version (`native.bazel_version` is empty), and bazel_features takes
    it for the newest: https://github.com/bazel-contrib/bazel_features. The answer is kept.
    """
    program, memo = invocation.spec.bazel.path, base / RELEASE
    status = files.status(Path(str(program))) if not runner.isolated else None
    key = [str(program), *([status.st_size, status.st_mtime_ns] if status else [])]
    kept = read_json(memo)
    known = kept.get("release") if kept.get("program") == key else None
    if known is None:
        try:
            known = runner.capture(invocation.ask("info", "release")).strip()
        except CommandError as exc:
            raise HostError(
                f"{program}: does not start: {exc.last_line or exc}",
                hint=START_HINT,
            ) from exc
        write_json(memo, {"program": key, "release": known})
    if not known.startswith("release "):
        raise HostError(
            f"{program}: calls itself {known or 'nothing'!r}, this tree wants a release: to its "
            "rules this Bazel is newer than all others (\"name 'macro' is not defined\")",
            hint="name a Bazel release with --bazel-path; for Debian's give its label: "
            "--bazel-startup-options=--host_jvm_args=-Xbootclasspath/a:JAR, "
            "where JAR holds build-data.properties with build.label=VERSION",
        )


def _needed(
    invocation: BazelInvocation, read: BuildEvents, runner: Runner, console: Console
) -> dict[WheelKind, tuple[Repository, ...]]:
    """Return the repositories of each wheel; Bazel is asked again only when something was made.

    They follow from what the tree says and which options were in force. Where neither changed and
    no action ran, the last answer holds.
    """
    base, root = runner.host(invocation.spec.output_base), runner.host(invocation.spec.workspace)
    texts = [path.read_bytes() for name in DEFINING for path in sorted(root.glob(name))]
    key = sha256(b"\0".join([invocation.key.encode(), *map(str.encode, read.options), *texts]))
    memo = base / REPOSITORIES
    known = read_json(memo).get(key) if not read.actions and not read.fetched else None
    if known:
        return {WheelKind(name): tuple(Repository(*row) for row in rows) for name, rows in known}
    asked = _ask_needed(invocation, read.options, runner, console)
    if not any(row.name == NOT_KNOWN for rows in asked.values() for row in rows):
        kept = dict(list(read_json(memo).items())[-KEPT:])
        write_json(memo, {**kept, key: [[kind.value, rows] for kind, rows in asked.items()]})
    return asked


def _ask_needed(
    invocation: BazelInvocation, options: Sequence[str], runner: Runner, console: Console
) -> dict[WheelKind, tuple[Repository, ...]]:
    try:
        return needed(invocation, options, runner)
    except CommandError as exc:  # what a wheel lists is no reason to lose it
        why = _hidden(exc.last_line, invocation.spec.remote.secrets)
        console.warn(f"Bazel does not say which repositories the wheels depend on: {why}")
        unknown = Repository(NOT_KNOWN, "the repositories that Bazel made it from")
        return dict.fromkeys(invocation.kinds, (unknown,))
    except BaseException:
        shutdown(invocation, runner=runner)
        raise


def _remember(
    invocation: BazelInvocation, log: Path, urls: set[str], runner: Runner, since: float
) -> None:
    """Add what this run fetched to what is known of the output base.

    A rule names URLs and a digest; an event names a fetched URL (a mirror's ends like the rule's
    own). The time of a file in the repository cache shows that it was used, maybe by others. A
    file that was neither fetched nor used has failed.
    """
    base, cache = runner.host(invocation.spec.output_base), invocation.spec.caches.repository
    stored = runner.host(cache).glob("content_addressable/*/*/file") if cache else ()
    entries = [file.parent for file in stored if file.stat().st_mtime >= since]
    used = {f"{entry.parent.name}:{entry.name}": entry for entry in entries}
    before = read_json(base / DOWNLOADS)
    now: Fetched = {"": {**before.get("", {}), **{without_secrets(url): {} for url in urls}}}
    for repository, asked, named in events.read_asked(log):
        # http_archive of Bazel 7 and later marks what it puts into the cache with the URLs
        mark = f"id-{sha256(' '.join(asked).encode())}"
        digest = named or next((key for key in used if (used[key] / mark).exists()), "")
        ends = tuple(f"/{url.partition('://')[2] or url}" for url in asked)
        sources = {url for url in urls if url in asked or url.endswith(ends)}
        for url in map(without_secrets, sources or asked[: digest in used]):
            now[""].pop(url, None)
            now.setdefault(repository, {})[url] = dict([digest.split(":")]) if digest else {}
    if now := {name: known for name, known in now.items() if known}:
        write_json(base / DOWNLOADS, {**before, **now})


def shutdown(invocation: BazelInvocation, *, runner: Runner) -> None:
    """End the Bazel server of the invocation's output base; one that does not listen is killed."""
    if runner.isolated:  # its process ids mean nothing here, and it ends with the container
        with suppress(CommandError, HostError):
            runner.capture(invocation.shutdown)
        return
    base = runner.host(invocation.spec.output_base)
    pid = _server(base)
    if pid is None:
        return
    with suppress(CommandError):
        runner.capture(invocation.shutdown)
    if _server(base) == pid:
        _kill(invocation, runner)


def _kill(invocation: BazelInvocation, runner: Runner) -> None:
    base = runner.host(invocation.spec.output_base)
    with suppress(OSError, ValueError, CommandError):
        if runner.isolated:
            pid = int((base / "server" / "server.pid.txt").read_text())
            runner.capture(Command(argv=("sh", "-c", f"kill -9 {pid}")))
        elif server := _server(base):
            os.kill(server, signal.SIGKILL)


def clean(invocation: BazelInvocation, *, runner: Runner, console: Console) -> None:
    """Drop what Bazel made in the output base, so that a build runs every action again."""
    with _ready(invocation, runner, console) as (now, _):
        runner.capture(now.ask("clean"))


def forget(invocation: BazelInvocation, *, runner: Runner) -> None:
    """Remove what Bazel unpacked, which names its place by links: it would not work elsewhere.

    The list of downloads is kept: Bazel reports each of them only once.
    """
    shutdown(invocation, runner=runner)
    base = runner.host(invocation.spec.output_base)
    fetched = read_json(base / DOWNLOADS)
    files.remove(base)
    base.mkdir()
    write_json(base / DOWNLOADS, fetched)


def _run(
    invocation: BazelInvocation,
    *more: str,
    files: Files,
    warnings: list[str],
    runner: Runner,
    console: Console,
    secrets: Sequence[str],
) -> tuple[BuildEvents, BazelError | None]:
    for path in (files.log, files.events, files.profile, files.spawns, files.rules):
        path.unlink(missing_ok=True)
    options = [
        "--build_event_publish_all_actions",
        f"--build_event_json_file={runner.path(files.events)}",
        f"--profile={runner.path(files.profile)}",
        "--color=no",
        "--curses=no",
        "--show_progress_rate_limit=1",
        f"--experimental_workspace_rules_log_file={runner.path(files.rules)}",
        *more,
    ]
    if invocation.spec.bazel.release < RUNNER_COUNTS_SINCE:  # or unknown
        options.append(f"--execution_log_json_file={runner.path(files.spawns)}")
    command = invocation.command_line(*options)
    console.detail(str(command))
    read, began, silent = BuildEvents(to_host=runner.host), time.time(), list[str]()

    def quiet() -> None:
        """End Bazel where what it waits for did not answer twice: it would wait for minutes."""
        remote = invocation.spec.remote
        usable, notes = ask(remote)
        silent[:] = [] if usable == remote else [*silent, notes[-1]]
        if len(silent) > 1:
            _kill(invocation, runner)

    with console.progress("Bazel's actions") as bar:
        shown = _Shown(read, bar, console, secrets, warnings)
        try:
            with _following(files.events, read, shown.events, quiet):
                done = runner.run(command, log=files.log, on_line=shown.line, check=False)
        except BaseException:  # Ctrl-C, a deadline: the client has ended, the server may still work
            shutdown(invocation, runner=runner)
            raise
        finally:
            _remember(invocation, files.rules, read.fetched, runner, began)
            files.rules.unlink(missing_ok=True)
            for path in (files.log, files.events) if secrets else ():
                if path.is_file():  # Bazel repeats rc options in its events
                    text = path.read_text(encoding="utf-8", errors="replace")
                    path.write_text(_hidden(text, secrets), encoding="utf-8")
    if done.returncode == 0:
        return read, None
    failure = _failure(invocation, read, done.output, files.log)
    if len(silent) > 1:
        failure = BazelError(
            f"{invocation.title}: no action ended for {2 * QUIET_SECONDS:g} s",
            hint="check the remote cache and executor, or leave them out",
            detail=silent[-1],
        )
    failure.detail = _hidden(failure.detail, secrets)
    return read, failure


def _hidden(text: str, secrets: Sequence[str]) -> str:
    """Return `text` without secrets, as they are and as JSON with HTML escapes spells them."""
    for secret in secrets:
        escaped = json.dumps(secret)[1:-1]
        for mark in "&'<=>":
            escaped = escaped.replace(mark, f"\\u{ord(mark):04x}")
        for spelt in (secret, escaped):
            text = text.replace(spelt, "[redacted]")
    return text


@dataclass
class _Shown:
    """What is seen while Bazel runs: actions from its events, what is running in its own words."""

    _read: BuildEvents
    _bar: Progress
    _console: Console
    _secrets: Sequence[str]
    _warnings: list[str]  # each once
    _heading: str = ""  # `WARNING: Reading from Remote Cache:` says what in the next line
    _explained: int = 0
    _status: str = ""
    _started: float = field(default_factory=time.monotonic)

    def line(self, line: str) -> None:
        """Show a warning, and keep Bazel's status line; nothing is concluded from either."""
        text = f"{self._heading} {line}" if self._heading else line.removeprefix("WARNING: ")
        is_warning = bool(self._heading) or text != line
        self._heading = text if text != line and not self._heading and text.endswith(":") else ""
        is_new = text not in self._warnings and len(self._warnings) < WARNINGS
        if is_warning and is_new and not self._heading and not text.startswith(UNREAD):
            self._warnings.append(text)
            self._console.warn(f"Bazel: {text}")
        if line.startswith("["):
            self._status = line
            self._update()

    def events(self) -> None:
        """Print a failed action at once: Bazel may wait for others before it ends."""
        for action in self._read.failed[self._explained :]:
            if action.code in OWN_FAILURES:
                self._console.show_early(_hidden(explain(action), self._secrets))
        self._explained = len(self._read.failed)
        self._update()

    def _update(self) -> None:
        targets = f"{len(self._read.completed)} of {len(self._read.targets)} targets"
        elapsed = duration(time.monotonic() - self._started)
        text = ", ".join(filter(None, (elapsed, targets, self._status)))
        self._bar.update(self._read.actions, text=text)


@contextmanager
def _following(
    path: Path, read: BuildEvents, changed: Callable[[], None], quiet: Callable[[], None]
) -> Iterator[None]:
    """Feed what is written to a file to `BuildEvents`; `quiet` is called where that is nothing."""
    from concurrent.futures import ThreadPoolExecutor

    over = threading.Event()

    def follow() -> None:
        pending, at, last, last_event = b"", 0, False, time.monotonic()
        while not last:
            last = over.wait(POLL_SECONDS)  # before reading: what was written by then is read
            if path.exists():  # Bazel came that far
                with path.open("rb") as file:
                    file.seek(at)
                    *lines, pending = (pending + file.read()).split(b"\n")
                    at = file.tell()
                for line in lines:
                    read.feed(line.decode(errors="replace"))
                if lines:
                    last_event = time.monotonic()
                    changed()
            if not last and time.monotonic() > last_event + QUIET_SECONDS:
                quiet()
                last_event = time.monotonic()

    with ThreadPoolExecutor(max_workers=1) as pool:
        following = pool.submit(follow)
        try:
            yield
        finally:
            over.set()
        following.result()  # raises what went wrong in that thread


def _take(invocation: BazelInvocation, read: BuildEvents, into: Path) -> dict[WheelKind, Path]:
    into.mkdir(parents=True, exist_ok=True)
    taken = {}
    for kind, label in invocation.targets.items():
        wheels = [path for path in read.files(label) if path.suffix == ".whl"]
        if len(wheels) != 1:
            names = ", ".join(wheel.name for wheel in wheels) or "none"
            raise BazelError(
                f"{label}: made {len(wheels)} wheels, not one: {names}",
                hint="check the layout of this tree in ci/layouts.yaml",
            )
        (wheel,) = wheels
        if not wheel.is_file():
            raise BazelError(
                f"{wheel}: Bazel says it made this file, but it is not there",
                hint="a remote cache may have lost it: build again without it",
            )
        copy = into / wheel.name
        shutil.copyfile(wheel, copy)  # Bazel's outputs are read-only; the copy is not
        taken[kind] = copy
    return taken


def _failure(invocation: BazelInvocation, read: BuildEvents, tail: str, log: Path) -> BazelError:
    hint = f"everything Bazel printed is in {log}"
    if read.failed:
        action = max(read.failed, key=lambda failed: bool(failed.output))
        # Bazel's own words, such as of an undeclared inclusion, stand beside a compiler's
        shown = explain(action)
        own = [line for line in errors(tail) if line.startswith("ERROR:") and line not in shown]
        return BazelError(
            f"{action.label or invocation.title}: {action.mnemonic} failed"
            f" (exit status {action.exit_code})",
            hint=hint,
            detail="\n".join([shown, *own[-OWN_LINES:]]),
        )
    how = read.exit_name.replace("_", " ").lower() or "Bazel stopped"
    return BazelError(
        f"{invocation.title}: {how}", hint=hint, detail="\n".join(read.problems) or tail
    )


def explain(action: FailedAction) -> str:
    """Return what a person wants to see of a failed action: its output first, then its command."""
    lines = COLOURS.sub("", action.output or action.message).splitlines()
    if len(lines) > SHOWN_LINES:
        more = f"… {len(lines) - SHOWN_LINES} more lines"
        lines = [*lines[:SHOWN_LINES], more, *errors("\n".join(lines[SHOWN_LINES:]))[:OWN_LINES]]
    if action.command:
        lines.append(f"the command was: {shlex.join(action.command)}")
    return "\n".join(lines)


def _server(base: Path) -> int | None:
    try:
        pid = int((base / "server" / "server.pid.txt").read_text())
        line = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return None
    return pid if os.fsencode(f"--output_base={base}") in line else None


class Runs(Plain, frozen=True, kw_only=True):
    """Invocations with their results, in the order they ran."""

    done: tuple[tuple[BazelInvocation, BazelResult], ...]

    @property
    def outputs(self) -> tuple[Path, ...]:
        return tuple(path for _, result in self.done for path in result.outputs.values())

    @property
    def records(self) -> tuple[InvocationRecord, ...]:
        """For `build.json`: one entry for each invocation."""
        return tuple(result.record for _, result in self.done)

    @property
    def actions_executed(self) -> int:
        return sum(record.actions_executed for record in self.records)

    @property
    def cache_hits(self) -> int:
        return sum(record.cache_hits for record in self.records)

    @property
    def slowest(self) -> tuple[TimedAction, ...]:
        """The slowest actions of all invocations, slowest first."""
        actions = [action for record in self.records for action in record.slowest_actions]
        return tuple(sorted(actions, key=lambda action: -action.milliseconds)[:SLOWEST])

    def lines(self) -> Iterator[str]:
        """Say to a person what was rebuilt, what took longest, where to read more."""
        invocations = count(len(self.done), "invocation")
        total = self.actions_executed + self.cache_hits
        if not total:
            yield f"Nothing was rebuilt: Bazel ran 0 actions in {invocations}."
            return
        made = sum(record.bytes_made for record in self.records)
        yield (
            f"Bazel ran {count(self.actions_executed, 'action')} in {invocations}, "
            f"{self.cache_hits} came from a cache ({100 * self.cache_hits // total} %), "
            f"{size(made)} made."
        )
        if self.slowest:
            yield "slowest actions:"
            yield from map(line, self.slowest)
        yield f"logs and profiles: {Path(self.records[0].profile).parent}"

    @property
    def document(self) -> dict[str, Any]:
        """For a program."""
        return {
            "invocations": len(self.done),
            "actions_executed": self.actions_executed,
            "cache_hits": self.cache_hits,
            "slowest_actions": to_builtins(self.slowest),
        }


def build_all(
    invocations: Sequence[BazelInvocation],
    *,
    folder: Path,
    into: Path,
    runner: Runner,
    console: Console,
) -> Runs:
    """Run one invocation after the other; each has a folder of its own below `into`.

    `folder` gets logs, build events and profiles. Raises BazelError at the first that fails.
    """
    done = []
    for number, invocation in enumerate(invocations, 1):
        with console.step(f"Bazel: {invocation.title}", key="bazel"):
            result = build(
                invocation, folder=folder, into=into / str(number), runner=runner, console=console
            )
            console.info(f"   {result.summary}")
            if path := result.record.critical_path:
                seconds = result.record.critical_path_milliseconds / 1000
                console.detail(f"   critical path {seconds:.1f} s:")
                for action in path:
                    console.detail(f"   {line(action)}")
            done.append((invocation, result))
    return Runs(done=tuple(done))
