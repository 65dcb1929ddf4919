"""Commands are values: one frozen options class each, short functions, help in sections."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from rocwheel.base.errors import ConfigError
from rocwheel.base.option import OptionSet
from rocwheel.cli import COMMANDS, STAGES, ci_build
from rocwheel.cli.app import App
from rocwheel.cli.command import SECTIONS, DryRun, command, declared, own
from rocwheel.records.build_options import BuildOptions, WheelhouseOptions

CLI = Path(__file__).parents[2] / "build" / "rocwheel" / "cli"
LONGEST = 15


def walk(group=ci_build, path=()):
    ctx = click.Context(ci_build)
    for name in group.list_commands(ctx):
        found = group.get_command(ctx, name)
        yield (*path, name), found
        if isinstance(found, click.Group):
            yield from walk(found, (*path, name))


ALL = dict(walk())


def commands_of(file):
    """Functions of a module that `command(...)` decorates."""
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef) and any(
            isinstance(item, ast.Call)
            and getattr(item.func, "id", "") in {"command", "group_command"}
            for item in node.decorator_list
        ):
            yield node


def test_every_command_function_is_fifteen_lines_or_fewer():
    long = {}
    for file in CLI.glob("*.py"):
        for node in commands_of(file):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = node.end_lineno - body[0].lineno + 1
            if lines > LONGEST:
                long[node.name] = lines
    assert not long


def test_no_command_takes_its_options_by_string():
    for file in CLI.glob("*.py"):
        if file.stem in {"__init__", "command"}:
            continue
        assert "**options" not in file.read_text(), file


def test_a_value_is_frozen_and_a_dataclass_only_once_there_is_one():
    class Base(OptionSet):
        first: int = own("--first", default=1)

    class Derived(Base, DryRun):
        second: str = own("--second TEXT")

    assert list(declared(Derived)) == ["first", "dry_run", "second"]
    assert not dataclasses.is_dataclass(Base)
    assert "__dataclass_fields__" not in vars(Derived), (
        "it inherits what another test made of DryRun"
    )
    value = Derived(second="two")
    assert (value.first, value.second, value.dry_run) == (1, "two", False)
    assert dataclasses.replace(value, first=2) == Derived(first=2, second="two")
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.first = 3
    assert Base(first=4).first == 4


def test_options_that_a_command_is_without_keep_their_default():
    @command("probe", BuildOptions, without=[WheelhouseOptions])
    def probe(_app, options):
        """Probe."""
        assert options.wheelhouse == Path("/w/wheelhouse")

    assert "wheelhouse" not in {param.name for param in probe.params}
    assert probe.main([], standalone_mode=False, obj=App({}, Path("/w"))) is None


def waiting(tree):
    """Yield the names of `with when_run()` that are used, annotations aside, and what uses them."""
    blocks = [x for x in tree.body if isinstance(x, ast.With) and "when_run" in ast.unparse(x)]
    names = {item.asname or item.name for x in blocks for line in x.body for item in line.names}
    for part in tree.body:
        local = {
            x.id for x in ast.walk(part) if isinstance(x, ast.Name) and type(x.ctx) is ast.Store
        }
        for node in ast.walk(part) if part not in blocks else ():
            for field, value in ast.iter_fields(node):
                for child in value if isinstance(value, list) else [value]:
                    if field in {"annotation", "returns"}:
                        child.__dict__.clear() if child else None
                    elif isinstance(child, ast.Name) and child.id in names - local:
                        yield child, node


def may_wait(name, use):
    """Say whether a name that waits can be used so: looked into, called, asked, handed to map."""
    if isinstance(use, ast.Call) and use.func is not name:
        return ast.unparse(use.func) in {"isinstance", "map"}
    return isinstance(use, ast.Attribute | ast.Call)


def test_what_waits_until_it_is_used_is_used_as_what_waits_can_be():
    uses = [
        (file.name, name, use)
        for file in CLI.glob("*.py")
        for name, use in waiting(ast.parse(file.read_text()))
    ]
    assert len(uses) > 200
    assert [
        (file, name.id, ast.unparse(use)) for file, name, use in uses if not may_wait(name, use)
    ] == []


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_option_stands_in_a_section_that_help_shows(path):
    ctx = click.Context(ALL[path], info_name=path[-1], parent=click.Context(ci_build))
    text = ALL[path].get_help(ctx)
    for param in ALL[path].get_params(ctx):
        if isinstance(param, click.Option) and not param.hidden:
            assert param.opts[0] in text
            assert getattr(param, "section", "Talk") in SECTIONS
        elif isinstance(param, click.Argument):  # stands in the usage line
            assert param.make_metavar(ctx) not in map(str.strip, text.splitlines())


def test_the_top_page_names_every_command_by_stage_and_no_option_of_theirs():
    text = ci_build.get_help(click.Context(ci_build, info_name="rocwheel"))
    for stage, commands in STAGES.items():
        assert f"{stage}:" in text
        assert all(f"  {name} " in text for name in commands)
    assert len(COMMANDS) == sum(map(len, STAGES.values()))
    for hidden in ("--therock-path", "--bazel-options", "--dry-run"):
        assert hidden not in text
    assert len(text.splitlines()) < 80, "it fits two screens"


def test_help_of_a_group_cuts_no_sentence():
    for name, words in (("nightly", "resolved once, never"), ("wheel", "")):
        done = CliRunner().invoke(ci_build, [name, "--help"], prog_name="rocwheel", obj=App({}))
        assert done.exit_code == 0, done.output
        assert "..." not in done.output.partition("Commands:")[2]
        assert words in " ".join(done.output.split())


def test_a_list_that_names_nothing_is_refused():
    class Listed(OptionSet):
        items: tuple[str, ...] = own("--items LIST", many=True)

    @command("probe", Listed)
    def probe(_app, options):
        """Probe."""
        assert options.items == ("a", "b")

    app = App({}, Path("/w"))
    probe.main(["--items=a,b,"], standalone_mode=False, obj=app)
    with pytest.raises(ConfigError, match="--items: ',' names nothing"):
        probe.main(["--items=,"], standalone_mode=False, obj=app)
