"""The base of all options and commands: help in sections, paths, lists, shared options.

A command is a click command: a function whose parameters are its options.

    @index.command("prune")  # or @command("stage") of no group
    @target_options
    @option("--orphans", is_flag=True, help="Also what no set holds.")
    @dry_run
    @click.pass_obj
    def prune(app: App, target: TargetOptions, orphans: bool, dry_run: bool) -> None: ...

Options that several commands share are decorators, `option_set`, which pass one value.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
from collections.abc import Callable, Iterable
from itertools import groupby, pairwise, takewhile
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import click
from click.core import ParameterSource, augment_usage_errors

from rocwheel.base.errors import ConfigError, RocwheelError
from rocwheel.cli.app import App

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

F = TypeVar("F", bound=Callable[..., Any])

OWN: Final = "Options"
TALK: Final = "Every command"
# in the order `--help-all` shows them
SECTIONS: Final = (
    OWN, "Store", "Target", "Who and why", "Inputs", "JAX and XLA", "Wheels", "Bazel", "Remote",
    "Container", "Engine", "Output", TALK,
)  # fmt: skip


class Option(click.Option):
    """An option with its section of the help; `--help` shows those that are not rare.

    An option with one value may be repeated only with the same value, also before and after the
    command: a wrapper script and a person cannot silently overrule each other.
    """

    def __init__(self, *args: Any, section: str = OWN, rare: bool = False, **settings: Any) -> None:
        self.section, self.rare = section, rare
        is_flag = settings.get("is_flag") or "flag_value" in settings
        self.once = not (is_flag or settings.get("multiple") or "/" in str(args[0]))
        if self.once:
            if not settings.get("required"):
                settings.setdefault("default", None if "type" in settings else "")
            settings.setdefault("show_default", bool(settings.get("default")))
        if isinstance(settings.get("type"), click.IntRange):
            settings.setdefault("metavar", "N")
        super().__init__(*args, **settings)

    @property
    def variable(self) -> str:
        """The end of its environment variable: the option as it is typed."""
        return self.opts[0].lstrip("-").replace("-", "_").upper()

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        """Read ROCWHEEL_<COMMAND>_<OPTION>, also where the parameter has another name."""
        named = click.Parameter.resolve_envvar_value(self, ctx)
        if named is not None or not ctx.auto_envvar_prefix:
            return named
        return os.environ.get(f"{ctx.auto_envvar_prefix}_{self.variable}") or None

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Collect every value that the line gives, for `consume_value` to compare."""
        self.multiple |= self.once
        super().add_to_parser(parser, ctx)
        self.multiple &= not self.once

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the value and where it is from. Raises UsageError for different ones."""
        value, source = super().consume_value(ctx, opts)
        if self.once and source is ParameterSource.COMMANDLINE:
            value, *others = dict.fromkeys(value)
            if others:
                shown = " and ".join((value, *others))
                raise click.UsageError(f"{self.opts[0]} is given twice: {shown}", ctx)
        return value, source

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        try:
            return super().process_value(ctx, value)
        except RocwheelError as exc:
            exc.param = self  # type: ignore[attr-defined] # which may come from a file
            raise


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


option = functools.partial(click.option, cls=Option)


def option_set(name: str, make: Callable[..., Any], *options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds options and passes what `make` makes of them as `name`."""
    made = functools.reduce(lambda function, each: each(function), reversed(options), lambda: None)
    params = tuple(param.name for param in getattr(made, "__click_params__", ()))

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def run(*args: Any, **given: Any) -> Any:
            values = {param: given.pop(param) for param in params}
            return function(*args, **{name: make(**values)}, **given)

        return functools.reduce(lambda inner, each: each(inner), reversed(options), cast("F", run))

    return decorate


class PathHere(click.Path):
    """A given path: below the working directory, and not empty."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":  # a variable of a shell that is not set
            is_option = isinstance(param, click.Option)
            name = (
                param.opts[0] if is_option and param else str(param and param.human_readable_name)
            )
            raise ConfigError(f"{name}: an empty path", hint="name one, or leave it out")
        given = super().convert(value, param, ctx)
        app = ctx.find_object(App) if ctx else None
        return app.cwd / str(given) if app else given


class _Amount(click.FloatRange):
    """Hours or days: a million is more than any machine has run, and NaN is refused."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number != number:  # noqa: PLR0124 - of NaN alone
            self.fail(f"{value} is not a number", param, ctx)
        return number


def seconds(text: str) -> float:
    """Read a time such as 90m, 36h or 2d. Raises ConfigError."""
    if match := re.fullmatch(r"0|([0-9]{1,5}(?:\.[0-9]+)?)([mhd])", text):
        return float(match[1] or 0) * {"m": 60, "h": 3600, "d": 86400}[match[2] or "m"]
    raise ConfigError(f"{text!r}: not a time", hint="write for example 90m, 36h or 2d")


PATH: Final = PathHere()
NUMBER: Final = _Amount(0, 1_000_000)
COUNT: Final = click.IntRange(min=1)
dry_run = option(
    "--dry-run",
    is_flag=True,
    section="Output",
    help="Print every command and file of the plan; change nothing.",
)


def given_words(
    app: App,
    names: Collection[str] | None = None,
    *,
    without: Collection[str] = (),
    instead: Mapping[str, Any] | None = None,
    paths: Collection[str] = (),
) -> tuple[str, ...]:
    """Return the given ones of these options, as words that mean the same in any folder.

    Without names it returns all options of the command except those of `without`. `instead` has
    values in place of given ones; `paths` are options with file names as text.
    """
    if (context := app.context) is None:
        return ()
    words, given = list[str](), context.params | dict(instead or {})
    params = {p.name: p for p in context.command.params if p.name}
    for name in sorted(params.keys() & given.keys() - without):
        if names is not None and name not in names:
            continue
        value, spelt = given[name], params[name]
        if context.get_parameter_source(name) is ParameterSource.DEFAULT:
            continue
        if isinstance(value, bool):
            words += (spelt.opts if value else spelt.secondary_opts)[:1]
            continue
        for item in value if getattr(spelt, "multiple", False) else (value,):
            if item is not None and item not in ("", ()):
                is_path = name in paths or isinstance(spelt.type, click.Path)
                words.append(f"{spelt.opts[0]}={app.cwd / str(item) if is_path else _text(item)}")
    return tuple(words)


class CliCommand(click.Command):
    """A command or group: help in two lengths, the options of every command, and the App.

    Its status is what its function returns, None is 0.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params += COMMON

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse the name of an option as the value of another. Raises UsageError."""
        if app := ctx.find_object(App):
            app.context = ctx
        params = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        names = {n for p in params for n in p.opts}
        # the values of --bazel-options and such are options themselves
        taking = {n for p in params if not p.is_flag for n in p.opts if "-option" not in n}
        with augment_usage_errors(ctx):
            for word, value in pairwise(takewhile("--".__ne__, args)):
                if word in taking and value in names and not ctx.resilient_parsing:
                    raise click.UsageError(f"{word} needs a value, and {value} is an option")
            return super().parse_args(ctx, args)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write common options, required ones first; with --help-all everything, by section."""
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)
        params = [p for p in self.get_params(ctx) if isinstance(p, click.Option) and not p.hidden]
        if ctx.meta.get(_EVERYTHING):
            params.sort(key=lambda param: SECTIONS.index(_section(param)))
            for title, of_it in groupby(params, _section):
                with formatter.section(title):
                    formatter.write_dl(_rows(ctx, of_it))
            return
        own = [p for p in params if _section(p) != TALK or ctx.parent is None]
        said = " ".join(p.help or "" for p in own if not getattr(p, "rare", False))
        named = set(re.findall(r"--[a-z-]+", f"{self.help} {said}"))  # a text of this page
        shown = [p for p in own if not getattr(p, "rare", False) or named & {*p.opts}]
        # some are only required where nothing stands in for them, and say so
        shown.sort(key=lambda p: not (p.required or "(required)" in (getattr(p, "help", "") or "")))
        if shown:
            with formatter.section("Options" if ctx.parent else TALK):
                formatter.write_dl(_rows(ctx, shown))
        if ctx.parent:
            more = len(own) - len(shown)
            rest = f"{more} more option{'s' * (more > 1)}: --help-all. " if more else ""
            formatter.write_paragraph()
            program = ctx.find_root().command_path
            formatter.write_text(f"{rest}Options of every command: {program} --help.")


def _section(param: click.Parameter) -> str:
    return getattr(param, "section", TALK)


def _rows(ctx: click.Context, params: Iterable[click.Option]) -> list[tuple[str, str]]:
    return [row for param in params if (row := param.get_help_record(ctx))]


_EVERYTHING: Final = "rocwheel.help_all"


def _help_all(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_EVERYTHING] = True
        click.echo(ctx.get_help())
        ctx.exit()


def _of_app(*names: str, sets: str = "", rare: bool = False, **settings: Any) -> click.Parameter:
    def store(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        if value:
            setattr(ctx.find_object(App), sets or names[-1].lstrip("-"), value)

    made = click.Option(names, expose_value=False, callback=store, **settings)
    made.rare = rare  # type: ignore[attr-defined]
    return made


COMMON: Final = [  # of every command
    _of_app(
        "--ci-dir", sets="ci_dir", rare=True, metavar="DIR", envvar="ROCWHEEL_CI_DIR",
        help="Use these pins, layouts, policies, channels and suites in place of rocwheel's.",
    ),
    _of_app("--json", is_flag=True, help="Print one JSON document on stdout."),
    _of_app(
        "-v", "--verbose", "verbosity", flag_value=1, type=int, default=None,
        help="Show more of what happens.",
    ),
    _of_app(
        "-q", "--quiet", "verbosity", rare=True, flag_value=-1, type=int, default=None,
        help="Show warnings and errors only.",
    ),
    _of_app(
        "--debug", is_flag=True, rare=True,
        help="Show every command as it starts, and the traceback of an error.",
    ),
    click.Option(
        ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_help_all,
        help="Show every option of a command, and exit.",
    ),
]  # fmt: skip


def imported(where: str) -> click.Command:
    """Return the command that `module:attribute` names."""
    module, _, attribute = where.partition(":")
    found: click.Command = getattr(importlib.import_module(module), attribute)
    return found


class Group(CliCommand, click.Group):
    """A group of commands; called without a word, it shows its help."""

    command_class: type[click.Command] | None = CliCommand
    group_class: type[click.Group | type] | None = type  # the same

    @property
    def meant(self) -> Mapping[str, str]:
        """Words that are no command, and what is answered."""
        return {}

    def __init__(self, *args: Any, also: Mapping[str, str] | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.also = also or {}  # commands of other modules: `module:attribute`

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.also})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, imported when it is first asked for."""
        if cmd_name in self.also:
            return imported(self.also[cmd_name])
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with the whole first sentence of its help."""
        rows = []
        for name in self.list_commands(ctx):
            item = self.get_command(ctx, name)
            paragraph = " ".join((item.help or "" if item else "").partition("\n\n")[0].split())
            rows.append((name, f"{paragraph.partition('. ')[0].rstrip('.')}."))
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not (args or self.invoke_without_command or ctx.resilient_parsing):
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant. Raises UsageError with the nearest there is."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            if ctx.resilient_parsing:  # a line that is still being typed
                return None, None, []
            import difflib

            from rocwheel.base.versions import suggest

            words = [word.lower() for word in (*self.meant, *known)]
            close = difflib.get_close_matches(args[0].lower(), words, n=1, cutoff=0.65)
            near = (close and self.meant.get(close[0])) or suggest(args[0], known)
            near = f"did you mean --{args[0]}?" if "=" in args[0] else near
            if version := re.fullmatch(r"(?:jax-)?v?([0-9]+\.[0-9.]+.*)", args[0]):
                near = f"did you mean --jax-version={version[1]}?"
            name, root = args[0].replace("-", "_"), ctx.find_root().command
            if places := getattr(root, "places", lambda _: ())(name):
                program = ctx.find_root().command_path
                near = f"did you mean {' or '.join(f'`{program} {at}`' for at in places)}?"
            raise click.UsageError(f"{args[0]!r}: unknown command; {near}", ctx)
        return super().resolve_command(ctx, args)


def alone(function: F) -> F:
    """Make the function of a group run only where no command of it is named."""

    @functools.wraps(function)
    def run(*args: Any, **given: Any) -> Any:
        if click.get_current_context().invoked_subcommand is None:
            return function(*args, **given)
        return None

    return run  # type: ignore[return-value]


def command(name: str) -> Callable[[Callable[..., Any]], CliCommand]:
    """Make a command of the top of a function."""
    return click.command(name, cls=CliCommand)


def group(name: str, **settings: Any) -> Callable[[Callable[..., Any]], Group]:
    """Make a group of commands of a function, which runs where `alone` says so."""
    return click.group(name, cls=Group, **settings)
