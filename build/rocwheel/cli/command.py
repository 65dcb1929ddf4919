"""What a command of rocwheel is: a function of the App and one frozen value, its options.

    @dataclass(frozen=True, kw_only=True)
    class PruneOptions(TargetOptions, PersonOptions, DryRun): ...

    @command("prune", PruneOptions)
    @option("--orphans", is_flag=True, help=...)
    def prune(app: App, options: PruneOptions) -> None: ...

Options are declared once with `option` (click's, with a section of `--help`) and shared as
decorators (`section`). A class of values that several commands inherit has them as `declared`, and
a command gets those of all its bases. A command's options and the fields of its value have the same
names, which is checked when the command is made. Fields without an option keep their default.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click
from click.core import ParameterSource

from rocwheel.cli.app import App
from rocwheel.cli.imports import carry_out

if TYPE_CHECKING:  # what `--help` does not need
    from collections.abc import Iterable
    from pathlib import Path

T = TypeVar("T")
Decorator: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]

OWN: Final = "Options"
TALK: Final = "Talk"
# in the order `--help` shows them; a command's own options come first
SECTIONS: Final = (
    OWN, "Target", "Person", "Inputs", "JAX and XLA", "Wheels", "Bazel", "Remote", "Container",
    "Output", TALK,
)  # fmt: skip


class Option(click.Option):
    """An option that knows the section of `--help` it belongs to."""

    section = OWN


class Once(Option):
    """An option that may be repeated only with the same value.

    Before and after the command count as repetition, so a wrapper script and a person cannot
    silently overrule each other.
    """

    once = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["multiple"] = True
        if "default" in kwargs:
            kwargs["default"] = (kwargs["default"],)
        super().__init__(*args, **kwargs)

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """Take an environment variable as one value, blanks included."""
        value = self.resolve_envvar_value(ctx)
        return None if value is None else (value,)

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        """Collapse equal values. Raises UsageError for different ones."""
        values = tuple(dict.fromkeys(super().process_value(ctx, value) or ()))
        if len(values) > 1:
            shown = " and ".join(map(str, values))
            raise click.UsageError(f"{self.opts[0]} is given twice: {shown}", ctx)
        return values[0] if values else None


option = functools.partial(click.option, cls=Option)
once = functools.partial(click.option, cls=Once)


def given_words(
    options: object, cwd: Path, *, paths: frozenset[str] = frozenset(), leave: frozenset[str]
) -> tuple[str, ...]:
    """Return the options that were given, as words that mean the same in any folder.

    `paths` are options that name files though their values are text; `leave` are left out.
    """
    words, context = [], click.get_current_context()
    params = {p.name: p for p in context.command.params if isinstance(p, Option)}
    for name in sorted(field.name for field in dataclasses.fields(options)):  # type: ignore[arg-type]
        default = context.get_parameter_source(name) is ParameterSource.DEFAULT
        if name not in params or default or name in leave:
            continue
        value, spelt = getattr(options, name), params[name]
        if isinstance(value, bool):
            words += (spelt.opts if value else spelt.secondary_opts)[:1]
            continue
        for item in value if isinstance(value, tuple) else (value,):
            if item is not None and item != "":
                is_path = name in paths or isinstance(item, os.PathLike)
                words.append(f"{spelt.opts[0]}={cwd / str(item) if is_path else item}")
    return tuple(words)


def section(title: str, *options: Decorator) -> Decorator:
    """Options of one section of `--help`, as one decorator for every command that takes them."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for add in reversed(options):
            function = add(function)
            function.__click_params__[-1].section = title  # type: ignore[attr-defined]
        return function

    return decorate


def together(*decorators: Decorator) -> Decorator:
    """Several decorators as one."""
    return lambda function: functools.reduce(lambda f, add: add(f), reversed(decorators), function)


def params_of(*decorators: Decorator) -> list[click.Parameter]:
    """Return the options that decorators declare."""
    return click.command("taken")(together(*decorators)(lambda: None)).params


def before_the_command(params: Iterable[click.Parameter]) -> list[click.Parameter]:
    """Return options of commands that a group takes too, to put them behind the command.

    They are read from the command line alone, and the group's help does not show them:
    environment, defaults and help are the command's. Of options with one name the first counts.
    """
    taken: dict[str | None, click.Parameter] = {}
    for param in params:
        if isinstance(param, click.Option) and param.expose_value and param.name not in taken:
            taken[param.name] = mine = copy.copy(param)
            mine.hidden, mine.required = True, False
            mine.allow_from_autoenv, mine.envvar = False, None
    return list(taken.values())


class Sections:
    """Mixed into commands and groups: `--help` in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)
        rows: dict[str, list[tuple[str, str]]] = {title: [] for title in SECTIONS}
        for param in self.get_params(ctx):  # type: ignore[attr-defined]
            if isinstance(param, click.Argument):  # which the usage line has
                continue
            row = param.get_help_record(ctx)
            if row is not None:
                rows[getattr(param, "section", TALK)].append(row)
        for title, found in rows.items():
            if found:
                with formatter.section(title):
                    formatter.write_dl(found)


class SectionedCommand(Sections, click.Command):
    """A command whose help has sections."""


class SectionedGroup(Sections, click.Group):
    """A group of commands; called without one, it shows its help."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("invoke_without_command", True)
        super().__init__(*args, **kwargs)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with the whole first sentence of its help."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = [(name, _sentence(item.help or "")) for name, item in commands.items() if item]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant. Raises UsageError with the nearest there is."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            if ctx.resilient_parsing:  # a line that somebody is still typing
                return None, None, []
            from rocwheel.model import suggest

            near = "did you mean --help?" if args[0] == "help" else suggest(args[0], known)
            raise click.UsageError(f"{args[0]!r}: unknown command; {near}", ctx)
        return super().resolve_command(ctx, args)


def _sentence(text: str) -> str:
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return paragraph.partition(". ")[0].rstrip(".") + "."


def group(name: str) -> Callable[[Callable[[], None]], click.Group]:
    """Make a group that does nothing itself: called without a command, it shows its help."""

    def decorate(function: Callable[[], None]) -> click.Group:
        @functools.wraps(function)
        def run(ctx: click.Context, /) -> None:
            if ctx.invoked_subcommand is None:
                click.echo(ctx.get_help())

        return click.group(name, cls=SectionedGroup)(click.pass_context(run))

    return decorate


Function: TypeAlias = Callable[[App, T], "int | None"]


def command(
    name: str,
    options: type[T],
    *,
    parent: click.Group | None = None,
    passes_options_on: bool = False,
) -> Callable[[Function[T]], click.Command]:
    """Make a command of `function(app, options)`; its status is what it returns, None is 0.

    With `passes_options_on` its arguments are a command line, and no option of ours is looked for
    in it. Raises TypeError when the options declared and the fields of `options` do not agree.
    """

    def decorate(function: Function[T]) -> click.Command:
        entry = _entry(function, options)
        settings = {"ignore_unknown_options": passes_options_on}
        made = click.command(name, cls=SectionedCommand, context_settings=settings)(
            entry if passes_options_on else common_options(entry)
        )
        _compare(made, options)
        if parent is not None:
            parent.add_command(made)
        return made

    return decorate


def group_command(name: str, options: type[T]) -> Callable[[Function[T]], click.Group]:
    """Make a command that is a group too: its function runs when no command of it is named."""

    def decorate(function: Function[T]) -> click.Group:
        made = click.group(name, cls=SectionedGroup)(common_options(_entry(function, options)))
        _compare(made, options)
        return made

    return decorate


def _entry(function: Function[T], options: type[T]) -> Callable[..., Any]:
    """Return what click calls: `function` with its value and the options it inherits."""

    @functools.wraps(function)
    def run(ctx: click.Context, /, **given: Any) -> int | None:
        if ctx.invoked_subcommand is not None:
            return None
        carry_out()
        app = ctx.find_object(App) or _no_app()
        app.context = ctx
        return function(app, options(**given))

    entry = click.pass_context(run)
    own = entry.__dict__.pop("__click_params__", [])  # the last one is shown first
    inherited = [vars(base)["declared"] for base in options.__mro__ if "declared" in vars(base)]
    together(*inherited)(entry)
    vars(entry)["__click_params__"] = [*vars(entry).get("__click_params__", []), *own]
    return entry


def _compare(made: click.Command, options: type) -> None:
    fields = {field.name: field for field in dataclasses.fields(options)}
    declared = {param.name for param in made.params if param.expose_value}
    unset = (dataclasses.MISSING, dataclasses.MISSING)
    needed = {
        name for name, item in fields.items() if (item.default, item.default_factory) == unset
    }
    wrong = sorted(map(str, (declared - fields.keys()) | (needed - declared)))
    if wrong:
        raise TypeError(f"{made.name}: {options.__name__} and the options differ: {wrong}")


def _no_app() -> App:
    raise TypeError("no App in this context")


def _set(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def store(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        if value:
            setattr(ctx.find_object(App), name, value)

    return store


def _talk(*names: str, about: str, **settings: Any) -> Decorator:
    acts = _set(settings.pop("sets", names[-1].lstrip("-")))
    return option(*names, expose_value=False, callback=acts, help=about, **settings)


# They act on the App and reach no function.
talk_options = section(
    TALK,
    _talk("--json", is_flag=True, about="Print one JSON document on stdout; talk goes to stderr."),
    _talk(
        "-v", "--verbose", "verbosity", flag_value=1, type=int, default=None,
        about="Show more of what happens.",
    ),
    _talk(
        "-q", "--quiet", "verbosity", flag_value=-1, type=int, default=None,
        about="Show warnings and errors only.",
    ),
    _talk(
        "--debug", is_flag=True,
        about="Show every command as it starts, and the traceback of an error.",
    ),
)  # fmt: skip


data_option = section(
    "Inputs",
    _talk(
        "--ci-dir", sets="ci_dir", metavar="DIR", envvar="ROCWHEEL_CI_DIR",
        about="A team's own pins, layouts, policies, channels and suites in place of those that "
        "rocwheel came with.",
    ),
)  # fmt: skip
common_options = together(data_option, talk_options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DryRun:
    """The value of `--dry-run`."""

    dry_run: bool = False

    declared = section(
        "Output",
        option(
            "--dry-run",
            is_flag=True,
            help="Print the plan, every command and file; change nothing.",
        ),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoOptions:
    """What a command without options gets."""
