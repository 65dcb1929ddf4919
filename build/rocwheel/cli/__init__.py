"""The command line. Commands live in modules of this package and are imported when they are used.

`STAGES` names them with the line `--help` shows, so that help starts without importing any.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import click

from rocwheel import __version__
from rocwheel.base.errors import (
    ConfigError,
    HostError,
    InterruptError,
    RocwheelError,
    Terminated,
)
from rocwheel.cli.app import App, program_name, start
from rocwheel.cli.options import Group, Option, given_words, imported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType

    from click.shell_completion import CompletionItem

# as the help shows them: name -> its module here, with the function of another name, and a line
STAGES: Final = {
    "Build": {
        "dist_wheels": ("dist", "Build, repair and verify a set of wheels."),
        "dev": ("bazel", "Build with local sources, install what changed, run a test."),
        "demo": ("demo", "Do the whole job on a small workspace: build, gate, release."),
        "doctor": ("doctor", "Show what this machine has for a job, and what it lacks."),
        "rocm": ("dist:rocm_group", "Fetch, check and cache a ROCm tree."),
        "wheel": ("wheel", "Inspect, verify, rename, repair and compare wheels."),
        "image": ("image:images", "Make images to build in, and images that users pull."),
        "pins": ("bump:pins", "Add JAX releases, take newer versions of what is pinned."),
    },
    "Release": {
        "stage": ("release", "Upload a set of wheels to the staging index."),
        "gate": ("gate", "Test staged wheels on this machine's GPUs."),
        "promote": ("release", "Release a staged and gated set."),
        "status": ("release", "Show every set: staged, gated, released, held up."),
        "rollback": ("release", "Take a released set out of the index."),
        "yank": ("release", "Yank a set or single files (PEP 592)."),
        "index": ("index", "Check, repair, prune and serve an index."),
        "trust": ("trust", "Make keys, sign statements, verify where wheels come from."),
    },
    "Night": {
        "nightly": ("nightly", "Plan a night, run it, and look after it."),
    },
    "Users": {
        "check_install": ("doctor", "Check whether installed wheels work on this machine."),
        "compat": ("doctor", "Print which JAX goes with which ROCm, GPU and CPython."),
    },
    "Shell": {
        "completion": ("known", "Print shell completion code."),
    },
}
# names of earlier releases, for one release more, and what they are called now
MOVED: Final = {
    "bump": "pins bump",
    "cache": "doctor cache",
    "channels rights": "trust rights",
    "configure": "dev configure",
    "fetch_rocm": "rocm fetch",
    "pin": "pins",
    "prune": "index prune",
    "rebuild": "wheel rebuild",
    "report state": "nightly report",
    "restore": "index restore",
    "runtime_images": "image runtime",
    "serve": "index serve",
    "shell": "image shell",
    "skips": "gate skips",
    "unyank": "index unyank",
}
# what groups hold: a misspelt word is answered without importing all of them
BELOW: Final = {
    "dev": "configure",
    "doctor": "cache",
    "rocm": "fetch",
    "wheel": "diff inspect rebuild repair retag reversion verify",
    "image": "build prune runtime shell show",
    "pins": "add bump",
    "gate": "list merge skips",
    "index": "adopt check prune repair restore serve unyank",
    "trust": "approve keygen renew rights rotate show sign verify",
    "nightly": "bisect cell changes check clear drop plan prune report retry run status stop",
}
COMMANDS: Final = {
    name: (f"rocwheel.cli.{where if ':' in where else f'{where}:{name}'}", line)
    for stage in STAGES.values()
    for name, (where, line) in stage.items()
}


@cache
def other_tools() -> dict[str, str]:
    """Return what is written here for words of other tools (`ci/other_tools.yaml`)."""
    from rocwheel.base import home, yaml_file

    path = home.find(None).ci / "other_tools.yaml"
    tables = yaml_file.load(path).to(dict[str, dict[str, str]])
    rows = (row for table in tables.values() for row in table.items())
    return {word: answer for words, answer in rows for word in words.split(", ")}


def as_called(text: str, app: App) -> str:
    """Return a hint whose command lines, `in such marks`, can be pasted as they are."""
    ours = rf"`(?:rocwheel )?((?:{'|'.join(COMMANDS)})(?: [^`]*)?)`"  # not a key, `rocm.source`
    return re.sub(ours, lambda line: f"`{command_line(app, line[1])}`", text)


def command_line(app: App, line: str) -> str:
    """Return a command line of ours as people paste it here.

    It gets the program's name, the data in use and the target of this command; no credentials.
    """
    import shlex

    from rocwheel.base.download import shown_setting

    typed = line.split(" ")
    names, command = _called(ci_build, ["", *typed])
    name, rest = " ".join(names[1:]), " ".join(typed[len(names) - 1 :])
    wanted = {"channel", "store", "channels_file", "family_file", "family", "manifest"}
    if app.context and app.context.command is command:
        wanted.add("signer")  # who runs another command may be another person
    given = {word.partition("=")[0] for word in rest.split()}
    if given & {"--channel", "--store"}:  # one of them
        wanted -= {"channel", "store", "channels_file"}
    params = {p.name: p for p in command.params if p.name}
    wanted -= {name for name, param in params.items() if given.intersection(param.opts)}
    words = tuple(shown_setting("", word) for word in given_words(app, wanted & params.keys()))
    families = [word for word in words if word.startswith("--family=")]
    if "," in ",".join(families) and not getattr(params["family"].type, "many", True):
        words = tuple(word for word in words if word not in families)  # it takes one, or `all`
    is_own = bool(app.ci_dir) and "--ci-dir" not in given
    data = (f"--ci-dir={app.cwd / app.ci_dir}",) if is_own else ()
    return " ".join(filter(None, (program_name(sys.argv[0]), name, shlex.join(data + words), rest)))


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from rocwheel.base import home
    from rocwheel.base.git import identify

    app = ctx.find_object(App) or start()
    source = home.tool(home.find(None), partial(identify, runner=app.runner))
    commit = source.commit or source.digest or "unknown"
    click.echo(f"rocwheel {__version__} ({commit[:12]}{', changed' if source.dirty else ''})")
    ctx.exit()


class Commands(Group):
    """A group that imports a command when it is asked for, and takes options before it."""

    @property
    def meant(self) -> Mapping[str, str]:
        moved = {old.split()[0]: f"did you mean {new}?" for old, new in MOVED.items()}
        words = ((word, here) for word, here in other_tools().items() if word[:1] != "-")
        return moved | {word: f"did you mean {word}? instead of it: {here}" for word, here in words}

    def places(self, word: str) -> list[str]:
        """Return where commands of this name are."""
        below = [f"{group} {word}" for group, names in BELOW.items() if word in names.split()]
        return [word, *below] if word in COMMANDS else below

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        return imported(COMMANDS[cmd_name][0]) if cmd_name in COMMANDS else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands of the table, and options of a build, which may stand before the command."""
        from click.shell_completion import CompletionItem

        params = [*self.get_params(ctx), *_dist_wheels(ctx).params] if incomplete[:1] == "-" else []
        names = [name for param in params for name in param.opts] or COMMANDS
        return [CompletionItem(name) for name in sorted({*names}) if name.startswith(incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for stage, commands in STAGES.items():
            with formatter.section(stage):
                formatter.write_dl([(name, line) for name, (_, line) in commands.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args, app = self._in_order(ctx, args), ctx.find_object(App)
        if app:
            app.spelt = partial(as_called, app=app)
        old = next((old for old in MOVED if args[: old.count(" ") + 1] == old.split()), "")
        if old and app and not ctx.resilient_parsing:
            with suppress(OSError):  # a stream that cannot be written changes no exit status
                app.console.warn(f"{old} is now called {MOVED[old]}; the next release drops {old}")
            del app.console  # what the command prints follows from options read after this
        return super().parse_args(ctx, _called_now(args))

    def _in_order(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put options that stand before the command behind it, where they are used.

        The command is the first word that names one and is not the value of an option of it.
        """
        own = (*ctx.help_option_names, "--help-all", "--version")
        if not args or args[0][:1] != "-" or args[0] in own:
            return args
        likely = []
        for at in range(len(args)):
            words = _called_now(args[at:])
            if words[0] in COMMANDS:
                names, target = _called(ci_build, ["", *words])
                end = len(args) - (len(words) - len(names) + 1)
                line = [*args[at:end], *args[:at], *args[end:]]
                if _words(target, args[:at]) == []:
                    return line
                if args[at - 1][:1] != "-" or "=" in args[at - 1]:  # else the value of an option
                    likely.append(line)
        if likely:  # the command refuses what it does not have
            return likely[0]
        builds = _dist_wheels(ctx)
        if ctx.resilient_parsing:  # the value of an option is typed, and no command yet
            taking = {name for p in builds.params if isinstance(p, Option) for name in p.opts}
            return [str(builds.name), *args] if args[-1] in taking else args
        rest = _words(builds, args)
        if asked := [word for word in args if word in own]:
            return asked
        if rest == []:
            what = "no command given: name one after the options, such as dist_wheels"
            raise click.UsageError(what, ctx)
        return [*rest[:1], *args] if rest else args  # whose first word is no command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Take defaults from the configuration file; warn of variables that set nothing."""
        name, command, rest = super().resolve_command(ctx, args)
        app = ctx.find_object(App)
        if app and name and command and not ctx.resilient_parsing:
            from rocwheel.cli import config_file

            app.settings.check(COMMANDS, lambda: self.meant, lambda: _dist_wheels(ctx).params)
            app.command = name  # whose settings an error may ask for: they can be read
            ctx.default_map = {name: app.settings.defaults(command, name)}
            for warning in config_file.misspelt(app.environ, command, name, COMMANDS):
                app.console.warn(warning)
        return name, command, rest


def _called_now(words: list[str]) -> list[str]:
    """Return words that begin with a command by its name of today."""
    for number in (2, 1):
        if new := MOVED.get(" ".join(words[:number])):
            return [*new.split(), *words[number:]]
    name = "".join(words[:1]).replace("-", "_")  # as `check-install`, the spelling of 0.2
    return [name, *words[1:]] if name in COMMANDS else words


def _called(command: click.Command, words: list[str]) -> tuple[list[str], click.Command]:
    names, context = words[:1], click.Context(command)
    for word in words[1:]:
        inner = command.get_command(context, word) if isinstance(command, click.Group) else None
        if inner is None:
            break
        names, command = [*names, word], inner
    return names, command


def _dist_wheels(ctx: click.Context) -> click.Command:
    command = ci_build.get_command(ctx, "dist_wheels")
    assert command is not None  # noqa: S101 - it is of the table
    return command


def _words(command: click.Command, args: list[str]) -> list[str] | None:
    try:
        return command.make_parser(click.Context(command)).parse_args(list(args))[1]
    except click.UsageError:
        return None


@click.group(
    cls=Commands,
    context_settings={
        "auto_envvar_prefix": "ROCWHEEL",
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
    help="Show program, version and commit, and exit.",
)  # fmt: skip
def ci_build() -> None:
    """Turn a ROCm tarball and a JAX source tree into tested, installable wheels.

    Start: rocwheel demo. Build: rocwheel dist_wheels --therock-path SOURCE

    Options stand before or after COMMAND; ROCWHEEL_<COMMAND>_<OPTION> sets one.
    """


# Bugs, but for what CPython says where no thread can start, or memory ends while it imports.
_BUGS: Final = (RuntimeError, SystemError)
_OURS: Final = (click.ClickException, RocwheelError, OSError, MemoryError)
_STARVED: Final = ("start new thread", "without exception set", "without setting an exception")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit status.

    0 success, 1 a bug, 2 a command line click refuses, 3-12 and 130 as in `rocwheel.base.errors`,
    21-30 the states of a gate.
    """
    app = start()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        # After a press of Tab nothing is refused: running the line shows what is wrong with it.
        if "_ROCWHEEL_COMPLETE" in app.environ:
            from rocwheel.cli.known import answer

            return answer(ci_build, app)
        return _run(app, argv)
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except BrokenPipeError:  # who was to read this has gone: it is not known what they missed
        sys.stderr.close()
        return 128 + signal.SIGPIPE
    except Exception as caught:
        failure = _mistake_in_matrix(caught) or caught
        starved = isinstance(failure, _BUGS) and any(text in str(failure) for text in _STARVED)
        if not (starved or isinstance(failure, _OURS)):
            raise
        words = list(sys.argv[1:] if argv is None else argv)
        own = words[: words.index("--")] if "--" in words else words
        app.json |= "--json" in own  # which may not have been read yet
        with suppress(MemoryError, SystemError):
            return (
                _usage(app, failure, own)
                if isinstance(failure, click.ClickException)
                else _fail(
                    app, failure if isinstance(failure, RocwheelError) else _host_error(failure)
                )
            )
        error = _host_error(MemoryError())
        os.write(2, f"error: {error}\nhint:  {error.hint}\n".encode())
        return error.exit_code


def _mistake_in_matrix(exc: Exception) -> ConfigError | None:
    """Return the error for a line of the family matrix that stopped its import."""
    import traceback

    name, frames = "amdgpu_family_matrix", traceback.extract_tb(exc.__traceback__)
    at = [(each.filename, each.lineno) for each in frames if each.name == "<module>"]
    plain = (TypeError, ValueError, AttributeError)
    what = str(exc) if isinstance(exc, plain) else f"{type(exc).__name__}: {exc}"
    if isinstance(exc, SyntaxError):
        at, what = [(exc.filename or "", exc.lineno)], f"{exc.msg}"
    for path, line in at:
        if path.endswith(f"{name}.py"):
            hint = "correct it: docs/how-to/add-a-gpu-family.md"
            return ConfigError(f"{path}:{getattr(exc, 'line', 0) or line}: {what}", hint=hint)
    if isinstance(exc, (AttributeError, ImportError)) and f"'{name}'" in what:
        return ConfigError(what, hint=f"restore it: git checkout -- {name}.py")
    return None


def _run(app: App, argv: Sequence[str] | None) -> int:
    try:
        status = ci_build.main(
            args=None if argv is None else list(argv),
            prog_name=program_name(sys.argv[0]),
            standalone_mode=False,
            obj=app,
        )
    # click's answer to EPIPE, which it takes for itself (`main` of a command):
    # https://github.com/pallets/click/blob/main/src/click/core.py
    except SystemExit:
        raise BrokenPipeError from None
    except (KeyboardInterrupt, click.Abort, RuntimeError) as exc:
        # in the middle of a class before CPython 3.12: https://github.com/python/cpython/issues/77757
        is_lost = isinstance(exc.__cause__, KeyboardInterrupt)
        if isinstance(exc, RuntimeError) and not (is_lost or isinstance(exc, click.Abort)):
            raise
        raise InterruptError(
            "interrupted", hint="run the same command again; it continues from what is complete"
        ) from None
    return status if isinstance(status, int) else 0


def _of_other_tools(ctx: click.Context | None, argv: Sequence[str], unknown: str) -> dict[str, str]:
    params = ctx.command.get_params(ctx) if ctx else ()
    has, found = {name for param in params for name in param.opts}, dict[str, str]()
    for word, following in zip(argv, (*argv[1:], ""), strict=True):
        name, is_one, value = word.lower().partition("=")
        for key in (f"{name}={value if is_one else following}", name):
            # of an option, or an argument
            is_value = bool(key[:1] != "-" and ctx and ctx.parent)
            if ctx and key == unknown.lower():  # a word of a group, which has what is meant
                is_value &= f"`{ctx.info_name} " not in other_tools().get(key, "")
            if key in other_tools() and key not in has and not is_value:
                found[key] = other_tools()[key]
    return found


def _usage(app: App, exc: click.ClickException, argv: Sequence[str]) -> int:
    ctx = getattr(exc, "ctx", None)
    command = ctx.command_path if ctx else program_name(sys.argv[0])
    from rocwheel.base.download import shown_setting

    near, text = "", exc.format_message()
    if isinstance(exc, click.NoSuchOption):  # click counts the dashes as letters that are alike
        import difflib

        params = ctx.command.get_params(ctx) if ctx else []
        names = {name.lstrip("-"): name for param in params for name in param.opts}
        wrong = exc.option_name.lstrip("-").replace("_", "-")
        close = difflib.get_close_matches(wrong, names, n=1, cutoff=0.65)
        near = f"did you mean {names[close[0]]}? " if close else ""
        if any(
            exc.option_name in param.opts for param in _dist_wheels(click.Context(ci_build)).params
        ):
            near = "dist_wheels has it, this command does not; "  # no matter which sounds like it
        inner = {} if near else getattr(ctx and ctx.command, "commands", {})  # of a group
        if its := [n for n in inner if any(exc.option_name in p.opts for p in inner[n].params)]:
            near = f"it goes after a command: {command} {its[0]} {exc.option_name}; "
        text = f"No such option {exc.option_name!r}."
    is_no_word = text.startswith("No such option") or "unknown command" in text
    unknown = text.partition(": unknown command")[0].strip("'")
    if is_no_word and (met := _of_other_tools(ctx, argv, unknown)):
        near = "".join(f"instead of {word}: {answer}; " for word, answer in met.items())
        commands = [word for word in met if word[:1] != "-"]
        if commands:
            text = f"{commands[0]!r}: unknown command"
        elif getattr(exc, "option_name", "").lower() not in met:
            text = f"No such option {next(iter(met))!r}."
    near = "check its permissions; " if text.endswith("is not readable.") else near
    has = {param.name for param in ctx.command.params} if ctx else set()
    is_of_bazel = "unexpected extra argument" in text and "(-" in text and "bazel_options" in has
    near = "give options of Bazel by --bazel-options=; " if is_of_bazel else near
    message = shown_setting("", as_called(" ".join(text.split()), app))
    error = RocwheelError(message, hint=f"{near}see {command} --help")
    _report(app, "usage", error, cause=exc)
    return exc.exit_code


def _fail(app: App, error: RocwheelError) -> int:
    from rocwheel.base.download import shown_setting

    if isinstance(error.__cause__, PermissionError) and "permission" not in error.hint:
        error.hint = f"check its permissions, or {error.hint}"
    error.args = (shown_setting("", str(error)),)
    if ": unknown " in str(error):  # a value of another tool's
        for word, answer in other_tools().items():
            _, is_one, value = word.partition("=")
            if is_one and str(error).lower().startswith(f"{value!r}: unknown "):
                error.hint = answer
    error.hint = shown_setting("", error.hint)
    if app.debug:
        import traceback

        trace = "".join(traceback.format_exception(error)).splitlines()
        with suppress(OSError):
            app.console.info("\n".join(shown_setting("", line) for line in trace))
    _report(app, error.kind, error)
    return error.exit_code


def _report(app: App, kind: str, error: RocwheelError, cause: Exception | None = None) -> None:
    """Print an error on stderr, with the variable or file that set the wrong value.

    With `--json` also on stdout. A stream that cannot be written changes no exit status.
    """
    error.hint, ctx = as_called(error.hint, app), getattr(cause, "ctx", None) or app.context
    if app.command and ctx and not isinstance(error, HostError):
        from rocwheel.cli import config_file

        if where := config_file.origin(cause or error, ctx, app.settings):
            error.hint += f"{'; ' if error.hint else ''}it is set by {where}"
    with suppress(OSError):
        app.console.fail(error)
    try:
        if app.json:
            app.emit({"error": {"kind": kind, "message": str(error), "hint": error.hint}})
        sys.stdout.flush()
    except (OSError, HostError, ValueError):  # ValueError: it is closed already
        with suppress(OSError):  # or what it holds is tried once more when Python ends
            sys.stdout.close()


def _host_error(exc: Exception) -> HostError:
    import errno

    if not isinstance(exc, OSError):
        is_thread = "thread" in str(exc)
        what = "no further thread can be started" if is_thread else "not enough memory"
        return HostError(what, hint="raise the limits of this shell: ulimit -v, ulimit -u")
    where = exc.filename or "this machine"
    hints = {
        errno.ENOSPC: "free some space there, or choose another place",
        errno.EACCES: "check the permissions, or choose another place",
        errno.EPERM: "check the permissions, or choose another place",
        errno.EROFS: "the file system is read-only: choose another place",
        errno.ENOTDIR: "a part of that path is a file: name a folder",
        errno.EISDIR: "that is a folder: name a file",
        errno.ENAMETOOLONG: "choose a shorter path",
        errno.ENXIO: "no program reads there: name a file",
    }
    hint = hints.get(exc.errno or 0, "check that path")
    error = HostError(f"{where}: {exc.strerror or exc}", hint=hint)
    error.__cause__ = exc
    return error


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise Terminated
