"""What a person or a log sees while something runs; results go elsewhere (stdout).

Everything here is written to one text stream (stderr): on a terminal with live progress, in a log
as plain lines now and then, on GitHub Actions with folded groups. Durations of steps are kept in
`Console.seconds`, so that a command can report where its time went.
"""

from __future__ import annotations

import enum
import io
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, TextIO

from rocwheel.base.errors import RocwheelError

PLAIN_SECONDS: Final = 10.0  # between two progress lines in a log
BRIEF: Final = 600  # characters of a message that quotes a file
WIDTH: Final = 80  # of a progress line in a log
BAR: Final = 16  # columns of a live bar, which leaves room for what happens in 80
# ECMA-48, 8.3.117
RED, YELLOW, BOLD, PLAIN = "\x1b[1;31m", "\x1b[33m", "\x1b[1m", "\x1b[0m"
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*[mK]")  # of other programs, which are not shown
_ODD: Final = re.compile(r"[^\n\t -~]")  # may not be printable
# The first character of a workflow command, which is escaped: `::` at the start of a line, after
# blanks, or `##[` anywhere (https://github.com/actions/runner, ActionCommand).
_OBEYED: Final = r"(?m)^([ \t]*):(?=:)|#(?=#\[)"


class ConsoleMode(enum.Enum):
    """What reads the stream: a terminal, a log, or a GitHub Actions job."""

    TERMINAL = "terminal"
    PLAIN = "plain"
    GITHUB = "github"


class Unit(enum.Enum):
    """What a progress bar counts."""

    BYTES = "bytes"
    ITEMS = "items"
    CELLS = "cells"  # which take seconds or hours: their number says nothing of the time left


class Progress:
    """One running task's bar: absolute figures, safe to call from any thread; this one is quiet."""

    def update(self, done: int, *, total: int | None = None, text: str = "") -> None:
        """Show how far the task is."""


class Console:
    """Messages, steps and progress on one stream."""

    def __init__(
        self,
        stream: TextIO,
        *,
        clock: Callable[[], float],
        mode: ConsoleMode = ConsoleMode.PLAIN,
        verbosity: int = 0,
        colour: bool = False,
        spelt: Callable[[str], str] = str,
    ) -> None:
        """`spelt` returns a warning or a hint with command lines that can be pasted.

        `clock` returns monotonic seconds; verbosity -1 is quiet, 1 shows details, 2 debugs.
        """
        self.mode = mode
        self.colour = colour
        self.verbosity = verbosity
        self.seconds: dict[str, float] = {}
        self._spelt = spelt
        self._stream = stream
        self._clock = clock
        self._lock = threading.Lock()
        self._depth = 0
        self._above: Callable[[str], None] | None = None  # prints above a live bar
        self._shown: set[str] = set()

    def info(self, text: str) -> None:
        if self.verbosity >= 0:
            self._print(text)

    def detail(self, text: str) -> None:
        """Print what only `-v` shows."""
        if self.verbosity > 0:
            self._print(text)

    def warn(self, text: str, *, once: bool = False) -> None:
        """Print a warning; with `once` only the first time."""
        if once and text in self._shown:
            return
        self._shown.add(text)
        text = self._spelt(text)
        if self.mode is ConsoleMode.GITHUB:  # where line breaks are escaped
            self._write(f"::warning::{escaped(text)}")
        else:
            self._labelled("warning:", printable(text), YELLOW)

    def command(self, line: str) -> None:
        """Print a workflow command, which GitHub obeys; no other output is one."""
        if self.verbosity >= 0:
            self._write(line)

    def show_early(self, detail: str) -> None:
        """Show the detail of a failure before it is raised; `fail` does not repeat it.

        On GitHub `fail` does, because messages within a step are folded there.
        """
        self._print(detail)
        if self.mode is not ConsoleMode.GITHUB:
            self._shown.add(detail)

    def fail(self, error: RocwheelError) -> None:
        """Show a failure: what the failing part printed, what happened, what to do."""
        shown = next((text for text in self._shown if error.detail.startswith(text)), "")
        if detail := error.detail.removeprefix(shown).lstrip("\n"):
            self._print(detail)
        message, hint = printable(str(error)), printable(self._spelt(error.hint))
        if self.mode is ConsoleMode.GITHUB:
            self._write("::error::" + escaped(f"{message}\n{hint}".strip()))
            return
        self._labelled("error:", message, RED)
        if hint:
            self._labelled("hint: ", hint, BOLD)

    def _labelled(self, label: str, text: str, colour: str) -> None:
        line = self.shown(f"{label} {text}")
        if self.colour:
            line = f"{colour}{label}{PLAIN}{line[len(label) :]}"
        self._emit(line)

    @contextmanager
    def step(self, title: str, *, key: str = "") -> Iterator[None]:
        """Group a stage's output; its duration is added to `seconds[key]`."""
        fold = self.mode is ConsoleMode.GITHUB and self._depth == 0
        if fold:
            self.command(f"::group::{escaped(title)}")
        else:
            self.info(f"── {title}")
        started, outcome = self._clock(), "failed"
        self._depth += 1
        try:
            yield
            outcome = "done"
        finally:
            self._depth -= 1
            took = self._clock() - started
            if key:
                self.seconds[key] = round(self.seconds.get(key, 0.0) + took, 3)
            if fold:
                self.command("::endgroup::")
            self.info(f"   {outcome} in {took:.1f} s: {title}")

    @contextmanager
    def progress(
        self, title: str, *, total: int | None = None, unit: Unit = Unit.ITEMS
    ) -> Iterator[Progress]:
        """Show how far a long task is: a live bar, or a plain line every ten seconds."""
        if self.verbosity < 0:
            yield Progress()
        elif self.mode is ConsoleMode.TERMINAL:
            with self._bar(title, total, unit) as bar:
                yield bar
        else:
            yield _Lines(title, total, unit, self._print, self._clock)

    @contextmanager
    def _bar(self, title: str, total: int | None, unit: Unit) -> Iterator[Progress]:
        from rich import progress as bars
        from rich.console import Console as RichConsole
        from rich.table import Column

        rich = RichConsole(file=self._stream, highlight=False, no_color=not self.colour)
        count = (
            (bars.DownloadColumn(binary_units=True), bars.TransferSpeedColumn())
            if unit is Unit.BYTES
            else (bars.MofNCompleteColumn(),)
        )

        cut = partial(Column, no_wrap=True, overflow="ellipsis")
        columns = (
            bars.TextColumn("{task.description}", markup=False, table_column=cut()),
            bars.BarColumn(bar_width=BAR),
            *count,
            *(() if unit is Unit.CELLS else (bars.TimeRemainingColumn(compact=True),)),
            bars.TextColumn("{task.fields[text]}", markup=False, table_column=cut(ratio=1)),
        )
        with bars.Progress(*columns, console=rich, transient=True, expand=True) as shown:
            task = shown.add_task(printable(title), total=total, text="")
            previous = self._above
            self._above = lambda line: rich.print(line, markup=False, soft_wrap=True)
            try:
                yield _Bar(shown, task)
            finally:
                self._above = previous

    def shown(self, text: str) -> str:
        """Return lines that the reader of this console's log shows and does not obey."""
        text = printable_lines(COLOURS.sub("", text))
        if self.mode is ConsoleMode.GITHUB:  # the first character as Python writes it in a string
            return re.sub(_OBEYED, lambda item: f"{item[1] or ''}\\x{ord(item[0][-1]):02x}", text)
        return text

    def shown_json(self, text: str) -> str:
        """As `shown`, for JSON, whose meaning stays."""
        text = printable_json(text)
        return text.replace("##[", r"\u0023#[") if self.mode is ConsoleMode.GITHUB else text

    def _print(self, text: str) -> None:
        self._emit(self.shown(text))

    def _write(self, line: str) -> None:
        self._emit(printable_lines(line))

    def _emit(self, line: str) -> None:
        with self._lock:
            if self._above:
                self._above(line)
            else:
                self._stream.write(line + "\n")
                self._stream.flush()


def silent() -> Console:
    """Return a console whose output goes nowhere."""
    return Console(io.StringIO(), clock=float, verbosity=-1)


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Align `rows` below `header`, two blanks between columns."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    for row in (header, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def printable(text: str) -> str:
    """Return one line that a terminal shows and does not obey; it may come from a wheel or server.

    Control characters, escape sequences, line breaks and what changes the direction of text are
    written as Python writes them in a string.
    """
    return printable_lines(text).replace("\n", r"\n").replace("\t", r"\t")


def brief(text: str) -> str:
    """Cut a text to what a person reads; it may quote megabytes of a hostile file."""
    return text if len(text) <= BRIEF else f"{text[:BRIEF]}… ({len(text)} characters)"


def printable_json(text: str) -> str:
    """Return JSON of the same meaning that a terminal shows and does not obey."""
    import json  # `retag` takes as long as its imports

    return _ODD.sub(lambda odd: odd[0] if odd[0].isprintable() else json.dumps(odd[0])[1:-1], text)


def printable_lines(text: str) -> str:
    """Return lines that a terminal shows and does not obey; line breaks and tabs stay."""
    return _ODD.sub(lambda odd: odd[0] if odd[0].isprintable() else ascii(odd[0])[1:-1], text)


def size(count: float) -> str:
    """Return bytes as people read them: 1536 is `1.5 KiB`."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:  # noqa: PLR2004
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


def count(number: int, noun: str) -> str:
    """Return `1 action`, `2 actions`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    """Return seconds as people read them: 75 is `1 min 15 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


class _Bar(Progress):
    def __init__(self, shown: object, task: object) -> None:
        self._shown, self._task = shown, task

    def update(self, done: int, *, total: int | None = None, text: str = "") -> None:
        shown = printable(text)
        self._shown.update(self._task, completed=done, total=total, text=shown)  # type: ignore[attr-defined]


class _Lines(Progress):
    """Progress for a log: a line at most every `PLAIN_SECONDS`, with rate and time left."""

    def __init__(
        self,
        title: str,
        total: int | None,
        unit: Unit,
        emit: Callable[[str], None],
        clock: Callable[[], float],
    ) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._emit, self._clock = emit, clock
        self._started = self._last = clock()
        self._first: int | None = None

    def update(self, done: int, *, total: int | None = None, text: str = "") -> None:
        self._total = total if total is not None else self._total
        if self._first is None:
            self._first = done  # a resumed download does not count what an earlier run fetched
        now = self._clock()
        if now - self._last < PLAIN_SECONDS:
            return
        self._last = now
        show = size if self._unit is Unit.BYTES else str
        rate = (done - self._first) / (now - self._started)
        parts = [f"{show(done)} of {show(self._total)}" if self._total else show(done)]
        if self._total:
            parts[0] += f" ({100 * done // self._total} %)"
        if self._unit is Unit.BYTES:
            parts.append(f"{size(rate)}/s")
        if self._total and rate > 0 and self._unit is not Unit.CELLS:
            parts.append(f"{duration((self._total - done) / rate)} left")
        if text:
            parts.append(text)
        line = f"   {self._title}: {', '.join(parts)}"
        self._emit(line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…")
