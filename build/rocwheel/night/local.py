"""The engine of one machine: longest cells first, as many at once as the machine holds.

Each cell is a process on a leash: when the engine ends, even by a kill, its cells stop their
commands and end. The cells inherit a lock, so a second engine of the same night waits until the
last of them has ended. The engine keeps everything in the store; run again, it continues.
"""

import re
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from rocwheel.base.console import ConsoleMode, Unit, count, duration
from rocwheel.base.errors import HostError, InterruptError, StoreError
from rocwheel.base.files import locked
from rocwheel.base.host import cgroup
from rocwheel.base.process import Command
from rocwheel.gate.machine import accelerators
from rocwheel.night import standing
from rocwheel.night.cell import AWAY, Signals, Worker, end_dead, lost
from rocwheel.night.standing import CellStanding
from rocwheel.records.verdict import State
from rocwheel.release.ledger.nights import Book, Cell, Needs, Nights, Phase

POLL: Final = 0.02
LOOK: Final = 15.0  # seconds between looks for orders of people, while nothing ends
NOTED: Final = 30.0  # seconds between two lines about what runs; a terminal shows each second
STATES: Final = {state.exit_code: state.value for state in State}
LEAST_DISK: Final = 1 << 10  # MiB that stay free


@dataclass
class _Running:
    process: subprocess.Popen[bytes]
    cell: Cell
    started: float


@dataclass
class LocalScheduler:
    """Runs the cells of one night here until nothing more can be done."""

    nights: Nights
    night: str
    worker: Worker
    target: tuple[str, ...]  # options that name the store
    workers: int = 0  # cells at once; 0 for twice the CPUs
    book: Book = field(init=False)  # as it was read last
    _cpus: int = field(default_factory=cgroup.cpus)  # which cells take together; as the next two
    _memory_mib: int = field(default_factory=lambda: cgroup.memory() >> 20)
    _gpus: int = field(init=False)
    _signals: Signals = field(default_factory=Signals)
    _output: IO[bytes] = field(init=False)  # what cells print
    _lock: int = field(init=False)  # descriptor of a lock the cells hold too
    _running: dict[str, _Running] = field(default_factory=dict)
    _paths: dict[str, int] = field(default_factory=dict)
    _refused: dict[str, int] = field(default_factory=dict)  # cell -> starts that began nothing
    _status: int = 0  # of the last process that began nothing
    _said: bool = False  # that nothing new begins
    _away: float = 0.0  # since when the store is

    def run(self) -> dict[str, CellStanding]:
        """Run what can be run.

        Raises InterruptError after a signal, HostError when cells could not be started, StoreError
        when the store is away and nothing runs any more.
        """
        here, logs = self.worker.here, self.worker.scratch / self.night
        logs.mkdir(parents=True, exist_ok=True)
        note = f"another engine of {self.night} runs here, or its cells do: waiting"
        self._gpus = len(accelerators.amd(Path("/"), here.environ).devices)
        with (
            locked(logs / "engine.lock", waiting=lambda: here.console.info(note)) as held,
            (logs / "cells.log").open("ab") as self._output,
        ):
            self._lock = held.descriptor
            return self._run()

    def _run(self) -> dict[str, CellStanding]:
        book = self.nights.book(self.night)
        self._paths, most = critical_paths(book.plan.cells), book.plan.attempts
        # what a killed scheduler of this host left without an end
        tries = (item for items in book.attempts.values() for item in items)
        dead = end_dead(self.nights, book, tries, self.worker)
        standings = self._look(None if dead else book)
        looked, fresh = time.monotonic(), True
        noted, console = 0.0, self.worker.here.console
        every = 1.0 if console.mode is ConsoleMode.TERMINAL else NOTED
        total = len(book.plan.cells)
        with (
            self._signals.caught(),
            console.progress(self.night, total=total, unit=Unit.CELLS) as shown,
        ):
            try:
                while True:
                    ended = self._reap()
                    if ended or time.monotonic() - looked > LOOK:
                        standings, fresh = self._look_again(standings)
                        looked = time.monotonic()
                    if fresh and not self._signals:
                        self._start(standings)
                    fresh = False
                    if not (self._running or (self._away and not self._signals)):
                        break
                    self._end()
                    if time.monotonic() - noted > every:
                        noted = time.monotonic()
                        settled = sum(item.settled for item in standings.values())
                        runs = [(x.cell.name, noted - x.started) for x in self._running.values()]
                        text = ", ".join(f"{name} {duration(took)}" for name, took in runs)
                        shown.update(settled, text=text)
                    time.sleep(POLL)
            finally:
                self._stop()
        if self._signals:
            standings = self._look()
            open_ = sum(not item.settled for item in standings.values())
            raise InterruptError(
                f"{self.night}: ended with {count(open_, 'cell')} to do",
                hint=f"go on with: `nightly run {self.night}`",
            )
        lacking = [name for name, times in self._refused.items() if times >= most]
        if lacking:
            printed = Path(self._output.name).read_text(encoding="utf-8", errors="replace")
            last = re.findall(r"^error: (.*)", printed, re.MULTILINE)[-1:]
            kind = StoreError if self._status == StoreError.exit_code else HostError
            raise kind(
                ": ".join((lacking[0], "its process ended before an attempt began", *last)),
                hint=f"what it printed is in {self._output.name}; then run the night again",
            )
        return standings

    def _end(self) -> None:
        """Obey a signal: report once that nothing new begins, or stop running cells."""
        if self._signals and not self._said:
            self._said = True
            self.worker.here.console.info(
                f"   interrupted: {count(len(self._running), 'cell')} may finish, nothing new "
                "starts; Ctrl-C again stops at once"
            )
        if self._signals.stops:
            self._stop()

    def _look_again(self, before: dict[str, CellStanding]) -> tuple[dict[str, CellStanding], bool]:
        """Return where all cells stand, and whether that is fresh; a store may be away for a while.

        Raises StoreError when it has been away for a quarter of an hour and nothing runs.
        """
        try:
            found = self._look()
        except StoreError as exc:
            self._away = self._away or time.monotonic()
            if not self._running and time.monotonic() - self._away > AWAY:
                raise
            self.worker.here.console.warn(f"{exc}: asking again in {LOOK:.0f} s")
            return before, False
        self._away = 0.0
        return found, True

    def _look(self, book: Book | None = None) -> dict[str, CellStanding]:
        self.book = book or self.nights.book(self.night)
        return standing.stand(self.book)

    def _start(self, standings: Mapping[str, CellStanding]) -> None:
        if standing.stopped(self.book.orders):
            return
        is_barred = self.worker.host in self.book.quarantined
        waiting = [
            item.cell
            for item in standings.values()
            if item.phase in {Phase.WAITING, Phase.OPEN}
            and item.cell.name not in self._running
            and standing.ready(standings, item.cell)
            and not (is_barred and item.cell.needs.gpus)
            and self._refused.get(item.cell.name, 0) < self.book.plan.attempts
        ]
        for cell in sorted(waiting, key=lambda cell: -self._paths[cell.name]):
            if len(self._running) >= (self.workers or 2 * self._cpus):
                return
            if not self._fits(cell.needs):
                continue
            here = self.worker.here
            words = ("nightly", "cell", self.night, cell.name, "--leash", "--engine=local")
            own = (f"--program={shlex.join(here.program)}", *self.target)
            process = here.runner.start(
                Command(argv=(*here.program, *words, *own)),
                output=self._output,
                stdin=subprocess.PIPE,  # a leash: it closes when this process ends, however it ends
                pass_fds=(self._lock,),
            )
            self._running[cell.name] = _Running(process, cell, time.monotonic())
            here.console.detail(f"   start {cell.name}")

    def _fits(self, needs: Needs) -> bool:
        """Return whether there is room for a cell; one larger than the machine runs alone."""
        if not self._running:
            return True
        all_ = [needs, *(item.cell.needs for item in self._running.values())]
        disk = shutil.disk_usage(self.worker.here.cache).free >> 20
        return (
            sum(item.cpus for item in all_) <= self._cpus
            and sum(item.memory_mib for item in all_) <= self._memory_mib
            and sum(item.gpus for item in all_) <= max(self._gpus, needs.gpus)
            and disk - sum(item.disk_mib for item in all_) > LEAST_DISK
        )

    def _reap(self) -> bool:
        ended = [name for name, item in self._running.items() if item.process.poll() is not None]
        for name in ended:
            item = self._running.pop(name)
            if item.process.stdin:
                item.process.stdin.close()
            took = duration(time.monotonic() - item.started)
            code = item.process.returncode
            if code and code not in STATES:  # it could not record its own end
                self._bury_one(name, code)
            how = "done" if code == 0 else STATES.get(code, f"exit status {code}")
            self.worker.here.console.info(f"   {name}: {how} after {took}")
        return bool(ended)

    def _bury_one(self, name: str, code: int) -> None:
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit status {code}"
        why = f"the cell's process ended {how} and left no record of the cell's end"
        try:
            book = self.nights.book(self.night)
            tries = book.attempts.get(name, ())
            buried = [lost(self.nights, book, item, self.worker, why=why) for item in tries]
        except StoreError as exc:  # the next engine will find it
            self.worker.here.console.warn(str(exc))
            buried = []
        if not any(buried):
            self._refused[name], self._status = self._refused.get(name, 0) + 1, code

    def _stop(self) -> None:
        """Close every leash and wait: each cell stops its command and records that."""
        for item in self._running.values():
            if item.process.stdin:
                item.process.stdin.close()
        for name, item in list(self._running.items()):
            item.process.wait()
            del self._running[name]


def critical_paths(cells: tuple[Cell, ...]) -> dict[str, int]:
    """Return seconds from the start of each cell to the end of the night, at best."""
    own = {cell.name: 0 if cell.kept else cell.seconds for cell in cells}
    longest = dict(own)
    for cell in reversed(cells):  # each comes after what it depends on
        for name in (*cell.after, *cell.settled):
            longest[name] = max(longest[name], own[name] + longest[cell.name])
    return longest
