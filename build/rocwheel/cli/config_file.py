"""The configuration file: `rocwheel.toml`.

It is looked for in the working directory and above it, or named by ROCWHEEL_CONFIG. Its tables are
commands, its keys their options. Order: option, environment, file, default.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from rocwheel.base.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

NAME: Final = "rocwheel.toml"
FOLDERS: Final = ("cache-dir", "ci-dir")  # of every command
VARIABLES: Final = ("ROCWHEEL_CACHE_DIR", "ROCWHEEL_CI_DIR", "ROCWHEEL_CONFIG")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The values of a configuration file; none where there is no file."""

    path: Path | None
    text: str
    values: Mapping[str, Any]

    def folder(self, name: str) -> Path | None:
        """Return one of `FOLDERS`, relative to the file. Raises ConfigError."""
        value = self.values.get(name)
        if value is None or self.path is None:
            return None
        if not isinstance(value, str):
            raise self._wrong(name, f"{name}: expected text", hint="put it in quotes")
        return self.path.parent / value

    def defaults(self, command: click.Command, name: str) -> dict[str, Any]:
        """Click's default map for a command. Raises ConfigError for what it has no option for."""
        table = self.values.get(name, {})
        if not isinstance(table, dict):
            raise self._wrong(name, f"{name}: expected a table", hint=f"write [{name}]")
        return self._defaults(command, name, table) if table else {}

    def _defaults(self, command: click.Command, path: str, table: dict[str, Any]) -> dict[str, Any]:
        options = {item.opts[0].lstrip("-"): item for item in _options(command)}
        groups = commands_of(command)
        defaults: dict[str, Any] = {}
        for key, value in table.items():
            if key in groups and isinstance(value, dict):
                defaults[key] = self._defaults(groups[key], f"{path}.{key}", value)
            elif key in options:
                item = options[key]
                defaults[item.name or key] = self._value(item, value, f"{path}.{key}")
            else:
                known = [*options, *groups]
                name = f"{path}.{key}"
                raise self._wrong(name, f"{name}: unknown option", hint=_suggest(key, known))
        return defaults

    def _value(self, item: click.Option, value: object, where: str) -> object:
        kinds: tuple[type, ...] = (bool,) if item.is_flag else (str, int, float)
        many = item.multiple
        values = value if many and isinstance(value, list) else [value]
        for one in values:
            if not isinstance(one, kinds) or (isinstance(one, bool) and not item.is_flag):
                wanted = "true or false" if item.is_flag else "a list of texts" if many else "text"
                raise self._wrong(where, f"{where}: expected {wanted}")
        if isinstance(item.type, click.Path) and self.path:
            values = [str(self.path.parent / str(one)) for one in values]
        return tuple(values) if item.multiple else values[0]

    def check(
        self,
        commands: Collection[str],
        meant: Callable[[], Mapping[str, str]],
        options: Callable[[], Iterable[click.Parameter]],
    ) -> None:
        """Refuse what names no command. Raises ConfigError with the nearest one.

        `meant` has other words for commands; `options` gives those of builds, which people put at
        the top of the file.
        """
        for key in self.values:
            if key not in commands and key not in FOLDERS:
                hint = f"an option stands below its command: [dist_wheels] {key} = …"
                if key not in {param.opts[0].lstrip("-") for param in options()}:
                    hint = meant().get(key) or _suggest(key, (*commands, *FOLDERS))
                raise self._wrong(key, f"{key}: unknown command or key", hint=hint)

    def lines(
        self, path: str = "", table: Mapping[str, Any] | None = None
    ) -> Iterator[tuple[str, str, str]]:
        """Yield each value that is set: key, value without credentials, and where it stands."""
        for key, value in (self.values if table is None else table).items():
            name = f"{path}.{key}" if path else key
            if isinstance(value, dict):
                yield from self.lines(name, value)
            else:
                yield name, _shown(key, value), self.where(name)

    def where(self, name: str) -> str:
        """Return file and line of a key with its table, else of the first line with that word."""
        table, _, key = name.rpartition(".")
        word, near, here = re.escape(key), 0, ""
        for number, line in enumerate(self.text.splitlines(), 1):
            if head := re.match(r"\s*\[+([^\]]+)\]", line):
                here = ".".join(part.strip(" \t'\"") for part in head[1].split("."))
            starts = re.match(rf"\s*[\"']?{word}[\"']?\s*[.=]", line)
            if here == name if head else here == table and starts:
                return f"{self.path}:{number}"
            near = near or (number if re.match(rf".*\b{word}\b", line) else 0)
        return f"{self.path}:{near or 1}"

    def _wrong(
        self, name: str, problem: str, *, hint: str = "see docs/how-to/configure.md"
    ) -> ConfigError:
        return ConfigError(f"{self.where(name)}: {problem}", hint=hint)


def origin(error: Exception, ctx: click.Context, settings: Settings) -> str:
    """Return where the value that an error is about was set: a variable, or file and line.

    "" stands for the command line, and for an error that more than one option may have caused.
    """
    param = getattr(error, "param", None)
    suspects = [param] if param in ctx.command.params else _quoted(str(error), ctx)
    if len(suspects) != 1:
        return ""
    match ctx.get_parameter_source(suspects[0].name or ""):
        case ParameterSource.ENVIRONMENT:
            name = f"{ctx.auto_envvar_prefix}_{_variable(suspects[0])}"
            return str(suspects[0].envvar or name)
        case ParameterSource.DEFAULT_MAP:
            key, inner = suspects[0].opts[0].lstrip("-"), ctx
            while inner.parent is not None:
                key, inner = f"{inner.info_name}.{key}", inner.parent
            return settings.where(key)
        case _:
            return ""


def _quoted(message: str, ctx: click.Context) -> list[click.Parameter]:
    suspects: list[click.Parameter] = []
    for item in _options(ctx.command):
        value = ctx.params.get(item.name or "")
        given = ctx.get_parameter_source(item.name or "") is not ParameterSource.DEFAULT
        texts = map(str, value if isinstance(value, tuple | list) else (value,))
        words = {word.strip() for text in texts for word in (text, *text.split(","))}
        if given and any(word and repr(word) in message for word in words):
            suspects.append(item)
    return suspects


def _shown(key: str, value: object) -> str:
    from rocwheel.base.download import shown_setting

    if isinstance(value, list):
        return str([_shown(key, item) for item in value])
    return shown_setting(key, str(value))


def _suggest(name: str, known: Collection[str]) -> str:
    from rocwheel.base.versions import suggest

    return suggest(name, known)


def find(folder: Path, named: str) -> Settings:
    """Read the configuration file in force. Raises ConfigError if it cannot be read."""
    places = (item / NAME for item in (folder, *folder.parents))
    path = folder / named if named else next(filter(os.path.isfile, places), None)
    if path is None:
        return Settings(path=None, text="", values={})
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    if path.exists() and not path.is_file():  # such as a FIFO, which would be read without end
        raise ConfigError(f"{path}: is not a file", hint="check ROCWHEEL_CONFIG")
    try:
        text = path.read_text(encoding="utf-8")
        return Settings(path=path, text=text, values=tomllib.loads(text))
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: is not UTF-8", hint="save it as UTF-8 text") from exc
    except OSError as exc:
        hint = "check ROCWHEEL_CONFIG" if named else "make it readable, or remove it"
        raise ConfigError(f"{path}: {exc.strerror}", hint=hint) from exc
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{path}: {exc}", hint="correct the TOML there") from exc


def misspelt(
    environ: Mapping[str, str], command: click.Command, name: str, others: Collection[str]
) -> Iterator[str]:
    """Variables that begin with ROCWHEEL_ and set nothing, each with the nearest valid name."""
    prefixes = tuple(f"ROCWHEEL_{other.upper()}_" for other in others)
    ours = sorted(item for item in environ if item.startswith("ROCWHEEL_"))
    mine = set(_variables(command, f"ROCWHEEL_{name.upper()}_")) if ours else ()
    for variable in ours:
        of_this = variable.startswith(f"ROCWHEEL_{name.upper()}_")
        of_another = not of_this and variable.startswith(prefixes)
        if variable not in mine and variable not in VARIABLES and not of_another:
            known = (*mine, *VARIABLES) if of_this else (*VARIABLES, *prefixes)
            meant = variable.replace("ROCWHEEL", f"ROCWHEEL_{name.upper()}", 1)
            near = f"did you mean {meant}?" if meant in mine else _suggest(variable, known)
            yield f"{variable}: sets nothing; {near}"


def _variables(command: click.Command, prefix: str) -> Iterator[str]:
    yield from (f"{prefix}{_variable(item)}" for item in _options(command))
    for name, inner in commands_of(command).items():
        yield from _variables(inner, f"{prefix}{name.upper().replace('-', '_')}_")


def _variable(item: click.Parameter) -> str:
    return str(getattr(item, "variable", (item.name or "").upper()))


def _options(command: click.Command) -> list[click.Option]:
    return [p for p in command.params if isinstance(p, click.Option) and p.expose_value]


def commands_of(command: click.Command) -> dict[str, click.Command]:
    """Return the commands of a group, those that are imported late too; of another command none."""
    if not isinstance(command, click.Group):
        return {}
    ctx = click.Context(command)
    named = ((name, command.get_command(ctx, name)) for name in command.list_commands(ctx))
    return {name: found for name, found in named if found}
