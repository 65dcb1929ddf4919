"""What a command of rocwheel is: a function of the App and one frozen value, its options.

    class PruneOptions(TargetOptions, PersonOptions, DryRun):
        orphans: bool = own("--orphans", "Also what no set holds.", default=False)

    @command("prune", PruneOptions)
    def prune(app: App, options: PruneOptions) -> None: ...

Options are declared once, as fields of the value (`base.option`): a command has those of its
value, of what that inherits and of the values within it. Other fields keep their default.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import click
from click.core import ParameterSource, augment_usage_errors

from rocwheel.base.errors import ConfigError
from rocwheel.base.option import KEY, OptionField, OptionSet, listed, opt
from rocwheel.cli.app import App

if TYPE_CHECKING:  # what `--help` does not need
    from collections.abc import Collection, Iterable, Mapping

T = TypeVar("T", bound=OptionSet)

OWN: Final = "Options"
TALK: Final = "Talk"
# in the order `--help` shows them; a command's own options come first
SECTIONS: Final = (
    OWN, "Target", "Person", "Inputs", "JAX and XLA", "Wheels", "Bazel", "Remote", "Container",
    "Output", TALK,
)  # fmt: skip


class Option(click.Option):
    """An option that knows the section of `--help` it belongs to."""

    def __init__(self, *args: Any, section: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section


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


class _Amount(click.FloatRange):
    """Hours or days: a million is more than any machine has run, and NaN is refused."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number != number:  # noqa: PLR0124 - of NaN alone
            self.fail(f"{value} is no number", param, ctx)
        return number


NUMBER: Final = _Amount(0, 1_000_000)
own = functools.partial(opt, OWN)  # a field that is an option of one command


def given_words(
    app: App,
    names: Collection[str],
    *,
    instead: Mapping[str, Any] | None = None,
    paths: Collection[str] = (),
) -> tuple[str, ...]:
    """Return those of these options that were given, as words that mean the same in any folder.

    `instead` has values in place of given ones; `paths` are options that name files though their
    values are text.
    """
    if (context := app.context) is None:
        return ()
    words, given = list[str](), context.params | dict(instead or {})
    params = {p.name: p for p in context.command.params if p.name}
    for name in sorted(params.keys() & names):
        value, spelt = given[name], params[name]
        if context.get_parameter_source(name) is ParameterSource.DEFAULT:
            continue
        if isinstance(value, bool):
            words += (spelt.opts if value else spelt.secondary_opts)[:1]
            continue
        for item in value if isinstance(value, tuple) else (value,):
            if item is not None and item != "":
                is_path = name in paths or isinstance(spelt.type, click.Path)
                words.append(f"{spelt.opts[0]}={app.cwd / str(item) if is_path else item}")
    return tuple(words)


def declared(kind: type[OptionSet], without: Collection[type] = ()) -> dict[str, OptionField]:
    """Return the options of a value by name, inherited ones first; not those of `without`."""
    options: dict[str, OptionField] = {}
    for base in kind.__bases__:
        options |= declared(base, without)
    for made in vars(kind).get("declares", {}).values() if kind not in without else ():
        options |= {made.name: made} if isinstance(made, OptionField) else declared(made)
    return options


def _param(made: OptionField) -> click.Parameter:
    """Return the parameter of click that an option is."""
    from rocwheel.cli import known

    settings: dict[str, Any] = {"type": made.kind, "required": made.required}
    if made.only:
        settings["type"] = click.Choice(made.only)
    elif made.is_path:
        settings["type"] = click.Path()
    elif isinstance(made.values, str) and made.values.isupper():
        settings["type"] = getattr(known, made.values)
    elif made.values:
        offered = getattr(known, made.values) if isinstance(made.values, str) else None
        settings["type"] = known.OneOf(offered or known.of(*made.values), many=made.many)
    elif made.kind is None and type(made.default) is int:
        settings["type"] = click.IntRange(min=1)
    if made.default and made.nargs == 1:
        settings["default"] = made.default
    if made.names[0][0] != "-":  # an argument
        metavar = made.names[0] if made.param else None
        return click.Argument([made.name], metavar=metavar, nargs=made.nargs, **settings)
    settings |= {"help": made.about, "envvar": made.envvar}
    kind, names = Option, (*made.names, made.name)
    if made.default is False:
        settings["is_flag"] = True
    elif made.default == () and (made.repeats or not made.many):
        settings |= {"multiple": True, "metavar": made.metavar}
    else:
        kind = Once
        settings |= {"metavar": made.metavar, "show_default": bool(made.default)}
    return kind(names, section=made.section, **settings)


def _value(kind: type[T], given: dict[str, Any], app: App) -> T:
    """Make the value of what was given. Raises ConfigError."""
    values = {}
    for item in kind.fields():
        made = item.metadata.get(KEY)
        if isinstance(made, OptionField):
            values[item.name] = _meant(made, given.get(made.name), app)
        elif made is not None:
            values[item.name] = _value(made, given, app)
    return kind(**values)


def _meant(made: OptionField, value: Any, app: App) -> Any:
    """Return what a field holds: paths below the working directory, lists taken apart."""
    value = made.default if value is None else value
    if made.is_path:
        many = isinstance(value, tuple)
        if "" in (value if many else (value,)):  # a variable of a shell that is not set
            raise ConfigError(f"{made.names[0]}: an empty path", hint="name one, or leave it out")
        return tuple(app.cwd / path for path in value) if many else app.path(value)
    parse = made.parse or str
    if made.repeats:
        value = ",".join(value)
    if not isinstance(value, str):
        return value
    if made.many and value and not listed(value):
        raise ConfigError(
            f"{made.names[0]}: {value!r} names nothing", hint="write its values, or leave it out"
        )
    return tuple(dict.fromkeys(map(parse, listed(value)))) if made.many else parse(value)


def params_of(*kinds: type[OptionSet], without: Collection[type] = ()) -> list[click.Parameter]:
    """Return the parameters of click that the options of values are."""
    return [_param(made) for kind in kinds for made in declared(kind, without).values()]


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
    """Mixed into commands and groups: `--help` in sections, and an answer to a missing value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuse the name of an option as the value of another. Raises UsageError."""
        params = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]  # type: ignore[attr-defined]
        names = {n for p in params for n in p.opts}
        # the values of --bazel-options and such are options themselves
        taking = {n for p in params if not p.is_flag for n in p.opts if "-option" not in n}
        with augment_usage_errors(ctx):
            for word, value in pairwise(takewhile("--".__ne__, args)):
                if word in taking and value in names and not ctx.resilient_parsing:
                    raise click.UsageError(f"{word} needs a value, and {value} is an option")
            return super().parse_args(ctx, args)  # type: ignore[misc, no-any-return]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)
        rows: dict[str, list[tuple[str, str]]] = {title: [] for title in SECTIONS}
        for param in self.get_params(ctx):  # type: ignore[attr-defined]
            if isinstance(param, click.Argument):  # which the usage line has
                continue
            if (row := param.get_help_record(ctx)) is not None:
                rows[getattr(param, "section", TALK)].append(row)
        for title, records in rows.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class SectionedCommand(Sections, click.Command):
    """A command whose help has sections; its options wait, as a group's help shows none."""

    def __init__(
        self, *args: Any, declares: Callable[[], list[click.Parameter]], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self._declares = declares
        del self.params

    def __getattr__(self, name: str) -> Any:
        if name != "params":
            raise AttributeError(name)
        self.params = self._declares()
        return self.params


# Words of other tools, whose nearest spelling here would mislead.
MEANT: Final = {"build": "dist_wheels", "help": "--help", "install": "serve", "pip": "serve"}


class SectionedGroup(Sections, click.Group):
    """A group of commands; called without one, it shows its help."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("invoke_without_command", True)
        super().__init__(*args, **kwargs)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with the whole first sentence of its help."""
        rows = []
        for name in self.list_commands(ctx):
            item = self.get_command(ctx, name)
            paragraph = " ".join((item.help or "" if item else "").partition("\n\n")[0].split())
            rows.append((name, f"{paragraph.partition('. ')[0].rstrip('.')}."))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that is meant. Raises UsageError with the nearest there is."""
        known = self.list_commands(ctx)
        if args and args[0] not in known and not args[0].startswith("-"):
            if ctx.resilient_parsing:  # a line that is still being typed
                return None, None, []
            from rocwheel.base.versions import suggest

            meant = MEANT.get(args[0], "")
            is_here = meant in {*known, "--help"}
            near = f"did you mean {meant}?" if is_here else suggest(args[0], known)
            near = f"did you mean --{args[0]}?" if "=" in args[0] else near
            raise click.UsageError(f"{args[0]!r}: unknown command; {near}", ctx)
        return super().resolve_command(ctx, args)


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
    without: Collection[type] = (),
) -> Callable[[Function[T]], click.Command]:
    """Make a command of `function(app, options)`; its status is what it returns, None is 0.

    Options that are declared by a class of `without` it does not have: they keep their default.
    """

    def decorate(function: Function[T]) -> click.Command:
        made = click.command(
            name,
            cls=SectionedCommand,
            declares=lambda: [*params_of(options, without=without), *COMMON],
        )(_entry(function, options))
        if parent is not None:
            parent.add_command(made)
        return made

    return decorate


def group_command(name: str, options: type[T]) -> Callable[[Function[T]], click.Group]:
    """Make a command that is a group too: its function runs when no command of it is named."""
    params = [*params_of(options), *COMMON]
    return lambda function: click.group(name, cls=SectionedGroup, params=params)(
        _entry(function, options)
    )


def _entry(function: Function[T], options: type[T]) -> Callable[..., Any]:
    """Return what click calls: `function` with its value."""

    @functools.wraps(function)
    def run(ctx: click.Context, /, **given: Any) -> int | None:
        if ctx.invoked_subcommand is not None:
            return None
        app = ctx.ensure_object(App)
        app.context = ctx
        return function(app, _value(options, given, app))

    return click.pass_context(run)


def _talk(
    *names: str, about: str, sets: str = "", section: str = TALK, **settings: Any
) -> click.Parameter:
    """Return an option that acts on the App and reaches no function."""

    def store(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        if value:
            setattr(ctx.find_object(App), sets or names[-1].lstrip("-"), value)

    return Option(
        names, expose_value=False, callback=store, help=about, section=section, **settings
    )


COMMON: Final = (  # of every command
    _talk(
        "--ci-dir", sets="ci_dir", section="Inputs", metavar="DIR", envvar="ROCWHEEL_CI_DIR",
        about="A team's own pins, layouts, policies, channels and suites in place of those that "
        "rocwheel came with.",
    ),
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


class DryRun(OptionSet):
    """The value of `--dry-run`."""

    dry_run: bool = opt(
        "Output",
        "--dry-run",
        "Print the plan, every command and file; change nothing.",
        default=False,
    )


class NoOptions(OptionSet):
    """What a command without options gets."""
