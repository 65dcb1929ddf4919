"""One cell, on whatever machine: take a number, bring what it needs, run it, say how it ended.

Every engine starts cells by `nightly cell`, so this is what happens on all of them. The command of
the cell is a process of its own: whatever ends it, this one records the end. What a command
says about itself is read from its exit status and its JSON document, never from its log.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from rocwheel import __version__
from rocwheel.base import errors, git
from rocwheel.base.choices import TEST_KINDS
from rocwheel.base.console import Console, count
from rocwheel.base.container.owner import is_alive, owner
from rocwheel.base.errors import ConfigError, FetchError, HostError, RocwheelError, StoreError
from rocwheel.base.process import Command, HostRunner, stop
from rocwheel.base.store import Store
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import moment, timestamp
from rocwheel.gate import subject
from rocwheel.night import artifacts, standing
from rocwheel.night.standing import CellStanding
from rocwheel.records.verdict import State, Verdict
from rocwheel.release.ledger.nights import (
    Begun,
    Book,
    Cell,
    CellAttempt,
    Ended,
    HostMark,
    Nights,
    Phase,
)

LOG_BYTES: Final = 1 << 20  # of a log that is kept, its end
POLL: Final = 0.05  # seconds
MACHINE: Final = frozenset({FetchError.exit_code, StoreError.exit_code, HostError.exit_code})
ROCM_OPTIONS: Final = frozenset({"--rocm", "--therock-path"})
HINTS: Final = {
    signal.SIGKILL: "killed; was memory short?",
    signal.SIGTERM: "terminated from outside",
}


class Worker(Plain, frozen=True, kw_only=True):
    """The machine a cell runs on: its programs, folders and clock."""

    runner: HostRunner
    program: tuple[str, ...]
    host: str
    engine: str
    job: str
    scratch: Path  # a folder for what a cell needs on disk
    cache: Path
    console: Console
    now: Callable[[], datetime]
    why_ended: Callable[[], tuple[State, str]] | None = None  # what the engine says of a signal
    collect: Callable[[Nights, str, Worker], int] | None = None  # ends that jobs could not say
    # the cells that the engine still has to run; None: all of them
    queued: Callable[[Nights, str, Worker], Mapping[str, str]] | None = None


class Signals:
    """Signals that end a cell or an engine from outside: how many came, and the first's reason.

    An engine drains at the first SIGINT; everything else stops it at once.
    """

    def __init__(self, *, has_leash: bool = False) -> None:
        """With a leash, standard input that closes is one: its holder, the scheduler, has ended."""
        self.came = 0
        self.stops = False
        self.reason = ""
        if has_leash:
            threading.Thread(target=self._watch_leash, daemon=True).start()

    def tell(self, reason: str, *, at_once: bool = True) -> None:
        """Note a signal; a second one stops whatever it is."""
        self.reason = self.reason or reason
        self.came += 1
        self.stops = at_once or self.came > 1

    def __bool__(self) -> bool:
        return self.came > 0

    def _watch_leash(self) -> None:
        with suppress(OSError):
            while os.read(0, 1):
                pass
        self.tell("the engine ended")

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Turn SIGINT, SIGTERM and SIGHUP into a flag while the block runs."""

        def note(number: int, _frame: object) -> None:
            name = signal.Signals(number).name
            self.tell(f"got {name}", at_once=number != signal.SIGINT)

        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = [signal.signal(number, note) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


def run(nights: Nights, night: str, name: str, worker: Worker, signals: Signals) -> Ended | None:
    """Run a cell and record it; None when there was nothing to do.

    Raises HostError on a host that gets no more cells, InterruptError when it was ended from
    outside (which is recorded), ConfigError for an unknown cell.
    """
    book = nights.book(night)
    cell = book.plan.cell(name)
    check_tool(book)
    if worker.collect and worker.collect(nights, night, worker):
        book = nights.book(night)
    standings = standing.stand(book, worker.now())
    runs = standings[name].phase is Phase.RUNNING
    if runs and end_dead(nights, book, standings[name].attempts, worker):
        book = nights.book(night)
        standings = standing.stand(book, worker.now())
    where = standings[name]
    if why := _why_not(nights, book, standings, cell, worker):
        worker.console.info(f"{name}: {why}")
        return None
    begun = Begun(
        token=uuid.uuid4().hex,
        cell=name,
        plan=book.sha256,
        host=worker.host,
        engine=worker.engine,
        job=worker.job or (owner() if worker.engine == "local" else ""),
        seen=standing.told(book, cell),
        time=timestamp(worker.now()),
    )
    last = max((item.number for item in where.attempts), default=0)
    number = nights.begin(night, begun, known=last)
    if not number:
        worker.console.info(f"{name}: not run: another attempt has just begun")
        return None
    attempt = _Attempt(nights, night, standings, cell, worker, signals, begun)
    try:
        nights.compare_clocks(nights.key(night, f"cells/{name}/{number}.begun.json"), worker.now())
    except ConfigError as exc:  # else others would take it for lost while it runs
        ended, log = attempt.ended(State.INFRA, str(exc)), b""
    else:
        ended, log = attempt.work()
    if log:
        ended = replace(ended, log=nights.keep_log(night, name, number, log))
    nights.end(night, number, ended)
    if ended.state is State.INFRA and _tells_of_host(cell):
        quarantine(nights, night, worker)
    if signals:
        raise errors.InterruptError(f"{name}: {signals.reason}", hint="run the night again")
    return ended


def _why_not(
    nights: Nights, book: Book, standings: dict[str, CellStanding], cell: Cell, worker: Worker
) -> str:
    """Return why a cell is not run now; "" when it is. Raises HostError on a barred host."""
    where = standings[cell.name]
    if where.phase in {Phase.KEPT, Phase.ENDED, Phase.ABSENT}:
        return f"{where.word}, nothing to do"
    if cell.needs.gpus and worker.host in book.quarantined:
        mark = book.quarantined[worker.host]
        raise HostError(
            f"{worker.host}: gets no more cells since {mark.time}: {mark.reason}",
            hint=f"when it is mended: `nightly clear {worker.host} --reason …`",
        )
    if held := standing.stopped(book.orders):
        return f"not run: the night was stopped by {held.by}: {held.reason}"
    if where.phase is Phase.BARRED:
        return f"not run: {where.reason}"
    if where.phase is Phase.RUNNING and not standing.wants_more(book, where):
        return f"not run: it runs {where.reason}"
    # on GitHub the workflow waited for ends; what has none by then lost its job
    waits = [n for n in cell.after if not standings[n].settled]
    if worker.engine != "github":
        open_ = [n for n in cell.settled if not standings[n].settled]
        there = worker.queued(nights, book.plan.night, worker) if worker.queued and open_ else open_
        waits += [name for name in open_ if name in there]
    return f"not run: {waits[0]} has not ended" if waits else ""


def check_tool(book: Book) -> None:
    """Raise ConfigError for a plan of another rocwheel: its commands may mean something else."""
    if book.plan.tool != __version__:
        raise ConfigError(
            f"{book.plan.night}: planned by rocwheel {book.plan.tool}, this is {__version__}",
            hint=f"use that version, or plan it again: `nightly plan --from {book.plan.night}`",
        )


def command(
    cell: Cell,
    standings: dict[str, CellStanding],
    worker: Worker,
    folder: Path,
    *,
    night: str,
    checkout: Path | None,
) -> tuple[str, ...]:
    """Return the argv of a cell with every place filled in. Raises ConfigError."""
    filled = {
        "{night}": night,
        "{scratch}": str(folder),
        "{wheelhouse}": str(folder / "wheelhouse"),
        "{checkout}": str(checkout) if checkout else "{checkout}",
    }
    for name in cell.after:
        before = standings[name].cell.after
        filled |= {f"{{{other}}}": standings[other].manifest for other in before}
        filled[f"{{{name}}}"] = standings[name].manifest
    words = []
    for word in cell.argv:
        text = word
        for place, value in filled.items():
            if place in text and not value:
                why = f"{cell.name}: {place[1:-1]} left no manifest"
                raise ConfigError(why, hint="look at its log")
            text = text.replace(place, value)
        words.append(text)
    return (*worker.program, *words)


def fetch(store: Store, cell: Cell, folder: Path, worker: Worker) -> Path | None:
    """Bring the wheelhouse and the checkout a cell needs; return where the checkout is."""
    folder.mkdir(parents=True, exist_ok=True)
    if cell.bring:
        artifacts.bring(store, cell.bring, folder / "wheelhouse")
    if not (cell.commit and cell.repository):
        return None
    wanted = subject.checkout(cell.repository, cell.commit, cache=worker.cache)
    git.checkout(replace(wanted, timeout=cell.limit), runner=worker.runner)
    return wanted.folder


@dataclass(frozen=True)
class _Attempt:
    """One attempt: where it is made, and at what."""

    nights: Nights
    night: str
    standings: dict[str, CellStanding]
    cell: Cell
    worker: Worker
    signals: Signals
    begun: Begun
    started: float = field(default_factory=time.monotonic)

    def ended(self, state: State, reason: str = "", **fields: Any) -> Ended:
        """Return the record of an end that is now."""
        seconds = time.monotonic() - self.started
        return _end_of(self.begun, self.worker, seconds, state=state, reason=reason, **fields)

    def work(self) -> tuple[Ended, bytes]:
        """Do what the cell is for; whatever goes wrong is an end. The log comes with it."""
        try:
            self.worker.scratch.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(
                prefix=".unfinished-cell-", dir=self.worker.scratch, ignore_cleanup_errors=True
            ) as name:
                folder = Path(name)
                try:
                    ended = self._in(folder)
                except RocwheelError as exc:
                    state = State.INFRA if exc.exit_code in MACHINE else State.FAIL
                    late = time.monotonic() - self.started > self.cell.limit
                    state = State.TIMEOUT if late else state
                    ended = self.ended(state, str(exc), exit_code=exc.exit_code)
                log = b""
                with suppress(OSError), (folder / "log").open("rb") as file:
                    file.seek(max(0, (folder / "log").stat().st_size - LOG_BYTES))
                    log = file.read()
        except OSError as exc:  # such as a full disk
            reason = f"{exc.filename or self.worker.scratch}: {exc.strerror or exc}"
            return self.ended(State.INFRA, reason, exit_code=HostError.exit_code), b""
        if ended.state is State.PASS or ended.reason:
            return ended, log
        lines = log.decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1].strip() if lines else f"exit status {ended.exit_code}"
        return replace(ended, reason=reason), log

    def _in(self, folder: Path) -> Ended:
        cell, worker, store = self.cell, self.worker, self.nights.store
        for option, _, path in (word.partition("=") for word in cell.argv):
            if option in ROCM_OPTIONS and path.startswith("/") and not Path(path).exists():
                raise HostError(
                    f"{path}: no such ROCm on this host", hint="install it, or share it"
                )
        checkout = fetch(store, cell, folder, worker)
        argv = command(cell, self.standings, worker, folder, night=self.night, checkout=checkout)
        worker.console.info(f"{cell.name}: {Command(argv=argv)}")
        code, document = self._child((*argv, "--json"), folder)
        if self.signals:
            end = worker.why_ended() if worker.why_ended else (State.NOT_RUN, self.signals.reason)
            return self.ended(*end, exit_code=errors.InterruptError.exit_code)
        if code is None:
            return self.ended(State.TIMEOUT, f"no end after {cell.limit} s")
        state, reason = judge(code, document)
        manifest, link = "", ""
        if state is State.PASS and cell.leave:
            manifest = artifacts.keep(store, cell.leave, Path(document["wheelhouse"]))
        if document.get("verdict"):
            link = key = str(document["verdict"])  # the page of a verdict, where it has one
            with suppress(StoreError, ConfigError):
                verdict = Verdict.from_bytes(store.read(key)[0], name=key)
                link = verdict.reports.get("html", key)
        _, _, digest = str(document.get("pull", "")).partition("@")
        image = f"{document['reference']}@{digest}" if digest else ""
        return self.ended(state, reason, exit_code=code, manifest=manifest, image=image, link=link)

    def _child(self, argv: tuple[str, ...], folder: Path) -> tuple[int | None, dict[str, Any]]:
        """Return the exit status, None when it was ended from here, and the document it printed."""
        result = folder / "result"
        with result.open("wb") as output, (folder / "log").open("wb") as log:
            process = self.worker.runner.start(
                Command(argv=argv, cwd=folder), output=log, stdout=output.fileno()
            )
            ends = time.monotonic() + self.cell.limit
            while (code := process.poll()) is None:
                if self.signals or time.monotonic() > ends:
                    stop(process)
                    break
                time.sleep(POLL)
        try:
            document = json.loads(result.read_bytes() or b"{}")
        except ValueError:
            document = {}
        return code, document if isinstance(document, dict) else {}


def judge(code: int, document: dict[str, Any]) -> tuple[State, str]:
    """Return what an exit status of ours means for the night, with the reason the command gave."""
    error = document.get("error")
    reason = str(error["message"] if isinstance(error, dict) else document.get("reason") or "")
    for state in State:
        if code == state.exit_code:
            return state, "" if state is State.PASS else reason
    if code < 0:
        name = signal.Signals(-code).name
        return State.INFRA, f"ended by {name}: {HINTS.get(signal.Signals(-code), 'see the log')}"
    if code in MACHINE:
        return State.INFRA, reason
    if code == errors.InterruptError.exit_code:
        return State.NOT_RUN, reason or "interrupted"
    blocked = code == errors.PromotionError.exit_code
    return State.FAIL, reason or ("blocked" if blocked else f"exit status {code}")


def end_dead(nights: Nights, book: Book, attempts: Iterable[CellAttempt], worker: Worker) -> bool:
    """Record the end of attempts that cannot be running; return whether there was one.

    Such as an earlier one of this very job, which the engine requeued without a word, or one of a
    process of this host that has ended. Another user's engine has another lock, so each local
    attempt is asked after by its process.
    """
    dead = False
    for item in attempts:
        if not item.begun or item.ended:
            continue
        here = (item.begun.host, item.begun.engine) == (worker.host, "local")
        if worker.job and item.begun.job == worker.job:
            dead |= lost(nights, book, item, worker, why="was requeued")
        elif here and not is_alive(item.begun.job):
            dead |= lost(nights, book, item, worker, why="its process was killed")
    return dead


def lost(
    nights: Nights,
    book: Book,
    attempt: CellAttempt,
    worker: Worker,
    *,
    state: State = State.INFRA,
    why: str,
) -> bool:
    """Record the end of an attempt that could not. Return False if an end is recorded already."""
    begun = attempt.begun
    if begun is None or attempt.ended:
        return False
    took = max(0.0, (worker.now() - moment(begun.time)).total_seconds())
    ended = _end_of(begun, worker, took, state=state, reason=why, written_by=worker.engine)
    return nights.end(book.plan.night, attempt.number, ended)


def _end_of(begun: Begun, worker: Worker, seconds: float, **fields: Any) -> Ended:
    """Return the end of an attempt that began so."""
    return Ended(
        cell=begun.cell,
        plan=begun.plan,
        host=begun.host,
        engine=begun.engine,
        began=begun.time,
        time=timestamp(worker.now()),
        milliseconds=round(1000 * seconds),
        **fields,
    )


def _tells_of_host(cell: Cell) -> bool:
    """Return whether its `infra` speaks against the host's GPUs; an image's may be a registry's."""
    return cell.needs.gpus > 0 and cell.kind in TEST_KINDS


def quarantine(nights: Nights, night: str, worker: Worker) -> bool:
    """Give a host no more cells when its newest ends are all `infra`."""
    book = nights.book(night)
    every = (item.ended for items in book.attempts.values() for item in items if item.ended)
    own = (e for e in every if e.host == worker.host and _tells_of_host(book.plan.cell(e.cell)))
    ends = sorted(own, key=lambda ended: ended.time)[-book.plan.quarantine :]
    bad = len(ends) == book.plan.quarantine and all(e.state is State.INFRA for e in ends)
    if not bad or worker.host in book.quarantined:
        return False
    why = f"{count(len(ends), 'cell')} in a row ended infra in {night}: {ends[-1].reason}"
    worker.console.warn(f"{worker.host} gets no more cells: {why}")
    time_ = timestamp(worker.now())
    mark = HostMark(host=worker.host, quarantined=True, by="nightly", reason=why, time=time_)
    nights.mark_host(mark)
    return True
