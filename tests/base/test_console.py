"""What a log, a terminal and GitHub Actions get to see."""

from __future__ import annotations

import json
import re
from io import StringIO

import pytest

from rocwheel.base.console import (
    Console,
    ConsoleMode,
    Unit,
    columns,
    duration,
    printable_json,
    printable_lines,
    size,
)
from rocwheel.base.errors import ConfigError
from rocwheel.cli.app import App


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make(mode=ConsoleMode.PLAIN, verbosity=0, **more):
    stream, clock = StringIO(), Clock()
    return Console(stream, clock=clock, mode=mode, verbosity=verbosity, **more), stream, clock


class Terminal(StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("unit", list(Unit))
def test_live_progress_is_one_line_of_80_columns(monkeypatch, unit):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    console = Console(stream, clock=Clock(), mode=ConsoleMode.TERMINAL, colour=True)
    with console.progress("checking the whole of a long index", unit=unit) as bar:
        text = " | ".join(f"gpu{n} tests/a_long_name_of_a_test.py::test_{n} 12 s" for n in range(8))
        bar.update(123_456_789, total=1_234_567_890, text=text)
    drawn = re.split(r"[\r\n]", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()))
    assert max(map(len, drawn)) <= 80, drawn
    assert any("checking" in line and "…" in line for line in drawn)
    assert "\x1b[1A" not in stream.getvalue().replace("\x1b[1A\x1b[2K", "", 1)


def test_progress_in_a_log_is_at_most_80_columns_wide():
    console, stream, clock = make()
    with console.progress("tests") as bar:
        bar.update(0, total=9)
        clock.now += 11
        bar.update(1, text="x" * 200)
    (line,) = stream.getvalue().splitlines()
    assert len(line) == 80
    assert line.endswith("…")


def test_errors_have_colour_where_there_is_one_and_the_same_words():
    coloured, shown, _ = make(ConsoleMode.TERMINAL, colour=True)
    plain, same, _ = make(ConsoleMode.TERMINAL)
    for console in (coloured, plain):
        console.warn("odd \x1b[2J")
        console.info("\x1b[31m\x1b[1mERROR: \x1b[0mof another program")
        console.fail(ConfigError("bad", hint="mend it"))
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown.getvalue()) == same.getvalue()
    assert "\x1b[1;31merror:\x1b[0m bad" in shown.getvalue()
    assert "\x1b[2J" not in shown.getvalue()
    assert "\x1b" not in same.getvalue()


def test_a_repeated_warning_is_shown_once():
    console, stream, _ = make()
    console.warn("odd")
    console.warn("odd", once=True)
    assert stream.getvalue() == "warning: odd\n"
    console.warn("odd")
    assert stream.getvalue() == "warning: odd\n" * 2


def test_a_step_says_how_long_it_took_and_keeps_it():
    console, stream, clock = make()
    with console.step("Fetch ROCm", key="rocm"):
        clock.now += 2.5
    with console.step("Fetch ROCm", key="rocm"):
        clock.now += 1
    assert console.seconds == {"rocm": 3.5}
    assert "── Fetch ROCm\n   done in 2.5 s: Fetch ROCm\n" in stream.getvalue()


def test_a_failed_step_is_called_failed():
    console, stream, _ = make()
    with pytest.raises(ZeroDivisionError), console.step("Divide"):
        1 / 0  # noqa: B018
    assert "failed in 0.0 s: Divide" in stream.getvalue()


def test_github_gets_folded_groups_one_level_deep_and_escaped_annotations():
    console, stream, _ = make(ConsoleMode.GITHUB)
    with console.step("Outer"), console.step("Inner"):
        console.warn("100 %\nof it")
    console.fail(ConfigError("bad", hint="mend it"))
    lines = stream.getvalue().splitlines()
    assert lines[0] == "::group::Outer"
    assert lines.count("::endgroup::") == 1
    assert "::warning::100 %25%0Aof it" in lines
    assert lines[-1] == "::error::bad%0Amend it"


def test_an_error_is_two_lines_after_its_detail():
    console, stream, _ = make(verbosity=-1)
    console.fail(ConfigError("pins.yaml:1: bad", hint="mend it", detail="tail of the log"))
    assert stream.getvalue() == "tail of the log\nerror: pins.yaml:1: bad\nhint:  mend it\n"


def test_progress_in_a_log_is_a_line_now_and_then_with_rate_and_time_left():
    console, stream, clock = make()
    with console.progress("rocm.tar.gz", total=100 << 20, unit=Unit.BYTES) as bar:
        bar.update(10 << 20)  # a resumed download: these bytes were there before
        clock.now += 11
        bar.update(21 << 20)
        bar.update(22 << 20)
    assert stream.getvalue() == (
        "   rocm.tar.gz: 21.0 MiB of 100.0 MiB (21 %), 1.0 MiB/s, 1 min 19 s left\n"
    )


def test_quiet_shows_warnings_and_errors_only():
    console, stream, clock = make(verbosity=-1)
    with console.step("S"), console.progress("p", total=2) as bar:
        clock.now += 60
        bar.update(1)
        console.info("i")
        console.detail("d")
    console.warn("w")
    assert stream.getvalue() == "warning: w\n"


def test_a_terminal_shows_messages_above_a_live_bar():
    console, stream, _ = make(ConsoleMode.TERMINAL)
    with console.progress("fetch", total=10, unit=Unit.ITEMS) as bar:
        bar.update(5, text="[half]")
        console.info("between [the] bars")
    assert "between [the] bars\n" in stream.getvalue()


def test_numbers_are_written_for_people():
    assert [size(n) for n in (0, 1023, 1536, 3 << 20, 5 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 MiB",
        "5.00 GiB",
    ]
    assert [duration(n) for n in (3.4, 75, 7384)] == ["3 s", "1 min 15 s", "2 h 3 min"]
    assert list(columns(("a", "bb"), [("ccc", "d")])) == ["a    bb", "ccc  d"]


EVIL = "a\x1b[2J\x9b1m\u202eb\u2028c\rd\x7f\ud800"
SHOWN = r"a\x1b[2J\x9b1m\u202eb\u2028c\rd\x7f\ud800"


def test_nothing_that_a_terminal_obeys_is_printed():
    console, stream, _ = make(verbosity=1)
    console.info(EVIL)
    console.detail(EVIL)
    console.show_early(EVIL)
    console.warn(EVIL)
    console.fail(ConfigError(EVIL, hint=EVIL, detail=f"{EVIL}\nthen"))
    with console.step(EVIL):
        pass
    lines = stream.getvalue().splitlines()
    assert all(line.isprintable() for line in lines)
    assert sum(SHOWN in line for line in lines) >= 8


FORGED = "::stop-commands::x"


def test_nothing_in_a_text_is_a_command_to_github():
    console, stream, _ = make(ConsoleMode.GITHUB, verbosity=1)
    lines = f"{FORGED}\n \t{FORGED}\nat a::b ##[error]no ###[group]"
    console.info(lines)
    console.detail(lines)
    console.show_early(lines)
    console.warn(lines)
    console.fail(ConfigError(lines, hint=lines, detail=lines))
    with console.step(lines), console.step(FORGED):
        pass
    commands = [line for line in stream.getvalue().splitlines() if line.lstrip().startswith("::")]
    assert [line.split("::")[1] for line in commands] == ["warning", "error", "group", "endgroup"]
    others = [line for line in stream.getvalue().splitlines() if line not in commands]
    assert "##[" not in "\n".join(others)
    assert others[:3] == [
        r"\x3a:stop-commands::x",
        " \t" + r"\x3a:stop-commands::x",
        r"at a::b \x23#[error]no #\x23#[group]",
    ]


def test_text_like_a_command_is_unchanged_outside_github():
    console, stream, _ = make()
    console.info(FORGED)
    assert stream.getvalue() == f"{FORGED}\n"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_result_is_no_command_to_github_either(capsys, as_json):
    app = App({"GITHUB_ACTIONS": "true"})
    app.json = as_json
    document = {"about": f"{FORGED} ##[error]no"}
    app.emit(document, f"{FORGED} ##[error]no")
    said = capsys.readouterr().out
    assert "##[" not in said
    assert not any(line.lstrip().startswith("::") for line in said.splitlines())
    assert not as_json or json.loads(said) == document


def test_a_result_without_text_is_no_empty_line(capsys):
    app = App({})
    app.emit({"problems": ["one"]}, "")
    app.emit_plan([])
    assert capsys.readouterr().out == ""
    app.json = True
    app.emit({}, "")
    assert capsys.readouterr().out == "{}\n"


def test_a_field_cannot_forge_a_line_of_an_error():
    console, stream, _ = make()
    console.fail(ConfigError("x\nhint:  all is well", hint="y\nerror: no"))
    console.warn("x\nerror: no")
    assert [line.partition(":")[0] for line in stream.getvalue().splitlines()] == [
        "error", "hint", "warning",
    ]  # fmt: skip


def test_what_is_printable_stays_as_it_is():
    for text in ("", "plain", "Größe 3 µm “x”", "ab\tc\nd"):
        assert printable_lines(text) == text
    document = {"a": EVIL[:-1], "ü": "ß"}
    shown = printable_json(json.dumps(document, indent=2, ensure_ascii=False))
    assert json.loads(shown) == document
    assert all(line.isprintable() for line in shown.splitlines())
    assert "ß" in shown
