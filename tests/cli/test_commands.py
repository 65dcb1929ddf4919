"""What `--help` shows of each command, and what is common to all."""

from __future__ import annotations

import re

import click
import pytest
from click.testing import CliRunner

from rocwheel.cli import BELOW, COMMANDS, STAGES, ci_build
from rocwheel.cli.app import App
from rocwheel.cli.options import SECTIONS


def walk(group=ci_build, path=()):
    ctx = click.Context(ci_build)
    for name in group.list_commands(ctx):
        found = group.get_command(ctx, name)
        yield (*path, name), found
        if isinstance(found, click.Group):
            yield from walk(found, (*path, name))


ALL = dict(walk())


def help_of(path, *options):
    done = CliRunner().invoke(ci_build, [*path, *options], prog_name="rocwheel", obj=App({}))
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_option_stands_in_a_section_of_help_all(path):
    text, short = help_of(path, "--help-all"), help_of(path, "--help")
    for param in ALL[path].params:
        if isinstance(param, click.Option):
            assert param.opts[0] in text
            assert getattr(param, "section", "Every command") in SECTIONS
            assert not param.required or param.opts[0] in short
        else:  # stands in the usage line
            assert param.make_metavar(click.Context(ALL[path])) not in text.splitlines()[2:]


def test_the_top_page_names_every_command_by_stage_and_no_option_of_theirs():
    text = ci_build.get_help(click.Context(ci_build, info_name="rocwheel"))
    for stage, commands in STAGES.items():
        assert f"{stage}:" in text
        assert all(f"  {name} " in text for name in commands)
    assert len(COMMANDS) == sum(map(len, STAGES.values()))
    for hidden in ("--bazel-options", "--dry-run", "--family"):
        assert hidden not in text
    assert len(COMMANDS) <= 20
    assert len(STAGES) == 5
    assert len(text.splitlines()) <= 45


def test_the_table_of_what_groups_hold_is_what_they_hold():
    groups = {
        path[0]: item
        for path, item in ALL.items()
        if isinstance(item, click.Group) and not path[1:]
    }
    held = {name: item.list_commands(click.Context(item)) for name, item in groups.items()}
    assert {name: words.split() for name, words in BELOW.items()} == held


def test_help_of_a_group_cuts_no_sentence():
    for name, words in (("nightly", "which never changes"), ("wheel", "")):
        done = CliRunner().invoke(ci_build, [name, "--help"], prog_name="rocwheel", obj=App({}))
        assert done.exit_code == 0, done.output
        assert "..." not in done.output.partition("Commands:")[2]
        assert words in " ".join(done.output.split())


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_help_of_a_command_fits_a_screen_and_shows_each_option_that_it_names(path):
    """`gate --shard` in such marks is of another command, or of another command line."""
    done = CliRunner().invoke(ci_build, [*path, "--help"], terminal_width=78, obj=App({}))
    assert len(done.output.splitlines()) <= 45
    text = re.sub(r"`[^`]*`", "", re.sub(r"-\n +", "-", done.output))
    rows = re.findall(r"^  (?:-\w, )?(--[a-z-]+)(?: / (--[a-z-]+))?", text, re.MULTILINE)
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)) - {"--help", "--help-all"}
    assert named <= {name for row in rows for name in row}
    assert "1 more options" not in text
    assert not re.search(r" (?:INTEGER|FLOAT|TEXT)\b", help_of(path, "--help-all"))
