"""Runs one cell, on any machine: takes a number, runs its command, records how it ended.

Every engine starts cells by `nightly cell`, so this happens on all of them. The command of the cell
is a separate process: however it ends, this one records the end. While it runs, the attempt renews
its lease. A build stages what it built, so that wheels leave its machine once.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from msgspec import convert

from rocwheel import __version__
from rocwheel.base import errors, git
from rocwheel.base.choices import TEST_KINDS
from rocwheel.base.console import count
from rocwheel.base.container.leftovers import is_alive, owner
from rocwheel.base.here import Here
from rocwheel.base.process import Command, stop
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import moment, timestamp
from rocwheel.bazel import load_failures
from rocwheel.gate import subject
from rocwheel.gate.suite.suites import device_errors
from rocwheel.night import standing
from rocwheel.night.standing import CellStanding
from rocwheel.records.manifest import MANIFEST
from rocwheel.records.verdict import SILENT, State, Verdict
from rocwheel.release.ledger.nights import (
    AS_TEXT,
    LASTING,
    RENEWED,
    Begun,
    Book,
    CauseClass,
    Cell,
    CellAttempt,
    Ended,
    HostMark,
    Nights,
    Phase,
    WorstTest,
)

LOG_BYTES: Final = 1 << 20  # of a log that is kept, its end
POLL: Final = 0.05  # seconds
SOON: Final = 5.0  # seconds until what the store did not take is tried again
AWAY: Final = 900.0  # seconds that a store may be away before what is to be written is given up
LEFT: Final = 3 * 86400  # seconds after which a wheelhouse that was never staged is removed
AGAIN: Final = (errors.FetchError, errors.StoreError, errors.HostError)
MACHINE: Final = frozenset(kind.exit_code for kind in AGAIN)
CAUSES: Final = "causes.yaml"
BY_STATUS: Final = {  # of a command
    errors.ConfigError.exit_code: CauseClass.INPUTS,
    errors.FetchError.exit_code: CauseClass.INPUTS,
    errors.RocmError.exit_code: CauseClass.INPUTS,
    errors.SourceError.exit_code: CauseClass.INPUTS,
    errors.StoreError.exit_code: CauseClass.STORE,
    errors.HostError.exit_code: CauseClass.MACHINE,
    errors.PromotionError.exit_code: CauseClass.WHEELS,
}
ROCM_OPTIONS: Final = frozenset({"--rocm", "--therock-path"})


class Worker(Plain, frozen=True, kw_only=True):
    """The machine a cell runs on, and which engine started it there."""

    here: Here
    host: str
    engine: str
    job: str = ""  # the engine's own name for the attempt

    @property
    def scratch(self) -> Path:
        """The folder for what a cell needs on disk."""
        return self.here.cache / "nightly"


class Signals:
    """Signals that end a cell or an engine from outside, and the first's reason.

    An engine drains at the first SIGINT; every other signal stops it at once.
    """

    def __init__(self, *, has_leash: bool = False) -> None:
        """With a leash, standard input that closes is one: its holder, the scheduler, has ended."""
        self.stops = False
        self.reason = ""
        self.full: errors.FullError | None = None  # what it said when it took no lease any more

        def watch() -> None:
            with suppress(OSError):
                while os.read(0, 1):
                    pass
            self.tell("the engine ended")

        if has_leash:
            threading.Thread(target=watch, daemon=True).start()

    def tell(self, reason: str, *, at_once: bool = True) -> None:
        """Note a signal; a second one stops the cell at once."""
        self.stops = at_once or bool(self.reason)
        self.reason = self.reason or reason

    def __bool__(self) -> bool:
        return bool(self.reason)

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


@contextmanager
def _leased(renew: Callable[[], bool], worker: Worker, signals: Signals) -> Iterator[None]:
    """Renew the lease of an attempt while the block runs, or until another one takes it over."""
    over = threading.Event()

    def keep() -> None:
        wait = 0.0
        while not over.wait(wait):
            wait = RENEWED
            try:
                if not renew():
                    signals.tell("it was silent for minutes, and another attempt began")
                    return
            except errors.FullError as exc:  # and no result either
                signals.full = exc
                signals.tell(str(exc))
                return
            except errors.RocwheelError as exc:  # the store is away
                worker.here.console.warn(f"the lease was not renewed: {exc}")
                wait = SOON

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=SOON)


def run(nights: Nights, night: str, name: str, worker: Worker, signals: Signals) -> Ended | None:
    """Run a cell and record it; None when there was nothing to do, or Slurm records the end.

    Raises HostError on a host that gets no more cells, InterruptError after a signal from outside
    (which is recorded), ConfigError for an unknown cell.
    """
    book = nights.book(night)
    cell = book.plan.cell(name)
    check_tool(book)
    standings = standing.stand(book)
    runs = standings[name].phase is Phase.RUNNING
    if runs and end_dead(nights, book, standings[name].attempts, worker):
        book = nights.book(night)
        standings = standing.stand(book)
    where, console, now = standings[name], worker.here.console, worker.here.now
    if why := _why_not(book, standings, cell, worker):
        console.info(f"{name}: {why}")
        return None
    begun = Begun(
        token=uuid.uuid4().hex,
        cell=name,
        plan=book.sha256,
        host=worker.host,
        engine=worker.engine,
        job=worker.job or (owner() if worker.engine == "local" else ""),
        seen=standing.ends_seen(book, cell),
        sets=standing.sets_before(standings, cell),
        time=timestamp(now()),
    )
    tries = where.attempts
    dead = [item.number for item in tries if item.is_lost and item.begun]
    is_free = all(nights.take_over(night, name, number, begun.token) for number in dead)
    number = nights.begin(night, begun, known=tries[-1].number if tries else 0) if is_free else 0
    if not number:  # another one is alive, or was faster
        console.info(f"{name}: not run: another attempt is alive or has just begun")
        return None
    attempt = _Attempt(nights, night, standings, cell, worker, signals, begun)
    with _leased(partial(nights.renew, night, name, number, begun.token), worker, signals):
        try:
            nights.compare_clocks(nights.key(night, f"cells/{name}/{number}.begun.json"), now())
        except errors.ConfigError as exc:  # its times would be wrong
            ended, log = attempt.ended(State.INFRA, str(exc), cause=CauseClass.MACHINE), b""
        else:
            ended, log = attempt.work()
        attempt.record(number, ended, log)
    if ended.state is State.INFRA and cell.needs.gpus and cell.kind in TEST_KINDS:
        quarantine(nights, night, worker)
    if signals and not signals.full:
        raise errors.InterruptError(f"{name}: {signals.reason}", hint="run the night again")
    return ended


def _why_not(book: Book, standings: dict[str, CellStanding], cell: Cell, worker: Worker) -> str:
    """Return why a cell is not run now; "" when it is. Raises HostError on a barred host."""
    where = standings[cell.name]
    if where.phase in {Phase.KEPT, Phase.ENDED, Phase.ABSENT}:
        return f"{where.word}, nothing to do"
    if cell.needs.gpus and worker.host in book.quarantined:
        mark = book.quarantined[worker.host]
        raise errors.HostError(
            f"{worker.host}: gets no more cells since {mark.time}: {mark.reason}",
            hint=f"once it is repaired: `nightly clear {worker.host} --reason …`",
        )
    if held := standing.stopped(book.orders):
        return f"not run: the night was stopped by {held.by}: {held.reason}"
    if where.phase is Phase.BARRED:
        return f"not run: {where.reason}"
    if where.phase is Phase.RUNNING:
        return f"not run: it runs {where.reason}"
    # on GitHub the workflow waited for ends; what has none by then lost its job
    waits = [n for n in cell.after if not standings[n].settled]
    if worker.engine != "github":
        waits += [n for n in cell.settled if not standings[n].settled]
    return f"not run: {waits[0]} has not ended" if waits else ""


def check_tool(book: Book) -> None:
    """Raise ConfigError for a plan of another rocwheel: its commands may mean something else."""
    if book.plan.tool != __version__:
        raise errors.ConfigError(
            f"{book.plan.night}: planned by rocwheel {book.plan.tool}, this is {__version__}",
            hint=f"use that version, or plan it again: `nightly plan --from {book.plan.night}`",
        )


def filled(
    cell: Cell,
    argv: tuple[str, ...],
    standings: Mapping[str, CellStanding],
    worker: Worker,
    **places: object,
) -> tuple[str, ...]:
    """Return words of a cell with every place filled in. Raises ConfigError."""
    values = {f"{{{name}}}": str(value) for name, value in places.items()}
    values |= {f"{{{name}}}": standings[name].manifest for name in cell.after}
    for name in cell.after:
        values |= {
            f"{{{other}}}": standings[other].manifest for other in standings[name].cell.after
        }
    words = []
    for word in argv:
        text = word
        for place, value in values.items():
            if place in text and not value:
                why = f"{cell.name}: {place[1:-1]} left no manifest"
                raise errors.ConfigError(why, hint="look at its log")
            text = text.replace(place, value)
        words.append(text)
    return (*worker.here.program, *words)


@dataclass(frozen=True)
class _Attempt:
    nights: Nights
    night: str
    standings: dict[str, CellStanding]
    cell: Cell
    worker: Worker
    signals: Signals
    begun: Begun
    started: float = field(default_factory=time.monotonic)

    def ended(self, state: State, reason: str = "", **fields: Any) -> Ended:
        """Return the record of an end at this moment."""
        seconds = time.monotonic() - self.started
        return end_of(self.begun, self.worker, seconds, state=state, reason=reason, **fields)

    def work(self) -> tuple[Ended, bytes]:
        """Carry out the cell; every failure is an end. Return it with the log."""
        try:
            self.worker.scratch.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(
                prefix=".unfinished-cell-", dir=self.worker.scratch, ignore_cleanup_errors=True
            ) as name:
                folder = Path(name)
                try:
                    ended = self._in(folder)
                except errors.RocwheelError as exc:
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
            return self.ended(State.INFRA, reason, exit_code=errors.HostError.exit_code), b""
        text = log.decode("utf-8", "replace")
        if ended.state is not State.PASS and not ended.reason:
            lines = text.strip().splitlines()
            reason = lines[-1].strip() if lines else f"exit status {ended.exit_code}"
            ended = replace(ended, reason=reason)
        return judged(self.worker.here.home.ci, self.cell.kind, ended, text), log

    def _in(self, folder: Path) -> Ended:
        cell, worker = self.cell, self.worker
        given = (word.partition("=") for word in cell.argv)
        rocm = (path for name, _, path in given if name in ROCM_OPTIONS and path.startswith("/"))
        if lacking := next((path for path in rocm if not Path(path).exists()), ""):
            why = f"{lacking}: no such ROCm on this host"
            raise errors.HostError(why, hint="install it, or share it")
        built, old = worker.scratch / "built", time.time() - LEFT
        for item in built.glob("*") if cell.stages else ():
            with suppress(OSError):
                if item.stat().st_mtime < old:
                    shutil.rmtree(item, ignore_errors=True)
        kept = built / f"{self.night}-{cell.name}-{self.begun.plan[:8]}"  # until it is staged
        wheelhouse = kept if (kept / MANIFEST).exists() else folder / "wheelhouse"
        places = {"night": self.night, "scratch": folder, "wheelhouse": wheelhouse,
                  "checkout": self._checkout(cell.repository, cell.commit),
                  "xla": self._checkout(*cell.xla)}  # fmt: skip
        if wheelhouse == kept:
            worker.here.console.info(f"{cell.name}: built before, in {kept}: staged from there")
            ended, document = self.ended(State.PASS), dict[str, Any]()
        else:
            ended, document = self._command(cell.argv, folder, **places)
        if ended.state is not State.PASS or not cell.stages:
            return ended
        wheelhouse = Path(document.get("wheelhouse", wheelhouse))
        if folder in wheelhouse.parents:  # which goes with this attempt
            built.mkdir(exist_ok=True)
            wheelhouse = wheelhouse.rename(kept)
        places["wheelhouse"] = wheelhouse
        for words in cell.stages:
            ended, document = self._command(words, folder, **places)
            if ended.state is not State.PASS:
                return ended
        if wheelhouse == kept:
            shutil.rmtree(kept, ignore_errors=True)
        return replace(ended, manifest=str(document["manifest"]))

    def _checkout(self, repository: str = "", commit: str = "") -> Path | str:
        here = self.worker.here
        if not (commit and repository):
            return ""
        wanted = subject.checkout(repository, commit, cache=here.cache)
        try:
            git.checkout(replace(wanted, timeout=self.cell.limit), runner=here.runner)
        except errors.SourceError as exc:  # it does not come, whatever is in it
            raise errors.FetchError(str(exc), hint=exc.hint) from exc
        return wanted.folder

    def _command(
        self, words: tuple[str, ...], folder: Path, **places: object
    ) -> tuple[Ended, dict[str, Any]]:
        """Run a command of the cell; return how it ended, and the document that it printed."""
        self.nights.check_there(self.night)  # some commands make a store
        argv = filled(self.cell, words, self.standings, self.worker, **places)
        self.worker.here.console.info(f"{self.cell.name}: {Command(argv=argv)}")
        result = folder / "result"
        with result.open("wb") as output, (folder / "log").open("ab") as log:
            command = Command(argv=(*argv, "--json"), cwd=folder)
            process = self.worker.here.runner.start(command, output=log, stdout=output.fileno())
            ends = self.started + self.cell.limit
            while (code := process.poll()) is None:
                if self.signals or time.monotonic() > ends:
                    stop(process)
                    break
                time.sleep(POLL)
        document: dict[str, Any] = {}
        with suppress(ValueError):
            said = json.loads(result.read_bytes() or b"{}")
            document = said if isinstance(said, dict) else {}
        if self.signals.full:
            raise self.signals.full
        if self.signals:
            code = errors.InterruptError.exit_code
            return self.ended(State.NOT_RUN, self.signals.reason, exit_code=code), document
        if code is None:
            return self.ended(State.TIMEOUT, f"no end after {self.cell.limit} s"), document
        state, reason = judge(code, document)
        link, testing = "", 0
        if document.get("verdict"):
            link = key = str(document["verdict"])  # the page of a verdict, where it has one
            with suppress(errors.StoreError, errors.ConfigError):
                verdict = Verdict.from_bytes(self.nights.store.read(key)[0], name=key)
                link = verdict.reports.get("html", key)
                took = moment(verdict.ended) - moment(verdict.started)
                testing = max(0, round(1000 * took.total_seconds()))
        _, _, digest = str(document.get("pull", "")).partition("@")
        image = f"{document['reference']}@{digest}" if digest else ""
        worst = convert(document["worst"], WorstTest) if document.get("worst") else None
        fields = {"exit_code": code, "image": image, "link": link, "testing": testing}
        fields |= {"worst": worst}
        return self.ended(state, reason, **fields), document

    def record(self, number: int, ended: Ended, log: bytes) -> None:
        """Record an end; on a full store the room of the lease is enough for it."""
        nights, night, name = self.nights, self.night, self.cell.name
        if log:
            key = nights.key(night, f"cells/{name}/{number}.log")
            with suppress(errors.FullError):
                self._insist(partial(nights.store.create, key, log, headers=AS_TEXT))
                ended = replace(ended, log=key)
        is_cut = self.signals and not self.signals.full
        if is_cut and self.worker.engine == "slurm":  # which knows why: the next round asks it
            raise errors.InterruptError(f"{name}: {self.signals.reason}", hint="Slurm says why")
        end = partial(nights.end, night, number, ended)
        try:
            self._insist(end)
        except errors.FullError:
            with suppress(errors.RefusedError):
                nights.store.delete(nights.lease(night, name, number))
            end()

    def _insist(self, write: Callable[[], object]) -> None:
        """Repeat a write while the store is away for minutes: hours of work may hang on it."""
        here = self.worker.here
        until = here.clock() + AWAY
        while True:
            try:
                self.nights.check_there(self.night)
                write()
            except errors.RefusedError:
                raise
            except errors.StoreError as exc:
                if self.signals.stops or here.clock() > until:
                    raise
                here.console.warn(f"{exc}: trying again in {SOON:.0f} s")
                here.sleep(SOON)
            else:
                return


def judged(ci: Path, kind: str, ended: Ended, log: str) -> Ended:
    """Return how a cell of a kind ended, corrected by known texts, with its cause.

    The exit status says it in general. What tells of wheels or inputs is not tried again: the same
    bytes fail in the same way. A test keeps the state of its verdict, which promotions name.
    """
    state = ended.state
    if state in {State.PASS, State.NOT_RUN}:
        return ended
    machine = [i for i in device_errors(ci) if i.cause == CauseClass.MACHINE.value]
    known = [*load_failures(ci / CAUSES), *machine]
    met = next((item.cause for item in known if item.pattern.search(ended.reason)), "")
    said = CauseClass(met) if met else None
    if not said and kind in TEST_KINDS and state not in SILENT:
        lines = (item for item in known if item.cause == CauseClass.MACHINE.value)
        match = next((m for item in lines if (m := item.pattern.search(log))), None)
        if match:
            said = CauseClass.MACHINE
            line = log[log.rfind("\n", 0, match.start()) + 1 :].partition("\n")[0].strip()
            ended = replace(ended, reason=line)
    if said is CauseClass.MACHINE:
        state = State.INFRA
    elif said in LASTING and state in SILENT and not ended.link:
        state = State.FAIL
    cause = said or BY_STATUS.get(ended.exit_code) or standing.usual(kind, state)
    return replace(ended, state=state, cause=cause)


def judge(code: int, document: dict[str, Any]) -> tuple[State, str]:
    """Return the state for an exit status of rocwheel, with the command's reason."""
    error = document.get("error")
    reason = str(error["message"] if isinstance(error, dict) else document.get("reason") or "")
    if code == errors.PromotionError.exit_code and isinstance(error, dict):
        reason = "; ".join(filter(None, (reason, error.get("hint"))))
    for state in State:
        if code == state.exit_code:
            return state, "" if state is State.PASS else reason
    if code < 0:
        hints = {"SIGKILL": "killed; was memory short?", "SIGTERM": "terminated from outside"}
        name = signal.Signals(-code).name
        return State.INFRA, f"ended by {name}: {hints.get(name, 'see the log')}"
    if code in MACHINE:
        return State.INFRA, reason
    if code == errors.InterruptError.exit_code:
        return State.NOT_RUN, reason or "interrupted"
    blocked = code == errors.PromotionError.exit_code
    return State.FAIL, reason or ("blocked" if blocked else f"exit status {code}")


def end_dead(nights: Nights, book: Book, attempts: Iterable[CellAttempt], worker: Worker) -> bool:
    """Record the end of attempts that cannot be running; return whether there was one.

    Such as an earlier one of this very job, which the engine requeued, or one of an ended process
    on this host. Another user's engine has another lock, so each local attempt is checked by its
    process.
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
    """Record the end of an attempt whose process died. Return False if one is recorded already."""
    begun = attempt.begun
    if begun is None or attempt.ended:
        return False
    took = max(0.0, (worker.here.now() - moment(begun.time)).total_seconds())
    cause = CauseClass.LOST if state is State.INFRA else None
    fields = {"state": state, "cause": cause, "reason": why, "written_by": worker.engine}
    return nights.end(book.plan.night, attempt.number, end_of(begun, worker, took, **fields))


def end_of(begun: Begun, worker: Worker, seconds: float, **fields: Any) -> Ended:
    """Return the end of an attempt with this begin."""
    return Ended(
        cell=begun.cell,
        plan=begun.plan,
        host=begun.host,
        engine=begun.engine,
        began=begun.time,
        time=timestamp(worker.here.now()),
        milliseconds=round(1000 * seconds),
        **fields,
    )


def quarantine(nights: Nights, night: str, worker: Worker) -> None:
    """Exclude a host when its newest ends are all `infra`."""
    book = nights.book(night)
    every = (item.ended for items in book.attempts.values() for item in items if item.ended)
    # an image's may be the registry's
    gates = {c.name for c in book.plan.cells if c.needs.gpus and c.kind in TEST_KINDS}
    own = (e for e in every if e.host == worker.host and e.cell in gates)
    ends = sorted(own, key=lambda ended: ended.time)[-book.plan.quarantine :]
    not_its = {CauseClass.STORE, *LASTING}
    bad = sum(e.state is State.INFRA and e.cause not in not_its for e in ends)
    if bad < book.plan.quarantine or worker.host in book.quarantined:
        return
    why = f"{count(len(ends), 'cell')} in a row ended infra in {night}: {ends[-1].reason}"
    worker.here.console.warn(f"{worker.host} gets no more cells: {why}")
    time_ = timestamp(worker.here.now())
    mark = HostMark(host=worker.host, quarantined=True, by="nightly", reason=why, time=time_)
    nights.mark_host(mark)
