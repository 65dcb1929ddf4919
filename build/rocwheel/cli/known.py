"""Options whose values are data: a shell completes them, and an error lists them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click
from click import shell_completion
from click.shell_completion import CompletionItem

from rocwheel.base.errors import ConfigError, RocwheelError
from rocwheel.base.versions import CPYTHONS, WheelKind
from rocwheel.cli.app import App, start
from rocwheel.cli.options import command

if TYPE_CHECKING:
    from pathlib import Path

    from rocwheel.release.index.channels import Channel

Values: TypeAlias = Callable[[click.Context], Collection[str]]


class OneOf(click.types.StringParamType):
    """Text that is one of `values`; the command itself refuses other text."""

    def __init__(self, values: Values, *, many: bool = False, or_file: bool = False) -> None:
        """`values` are looked up when they are asked for; `many` are separated by commas."""
        self.values = values
        self.many = many
        self.or_file = or_file

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the values that begin as typed, after those that stand in the list already."""
        del param
        file = [CompletionItem(incomplete, type="file")] if self.or_file else []
        before, comma, last = incomplete.rpartition(",") if self.many else ("", "", incomplete)
        try:
            values = [item for item in self.values(ctx) if item not in before.split(",")]
        except RocwheelError:  # the command will say what is wrong with the data
            return file
        return [CompletionItem(f"{before}{comma}{v}") for v in values if v.startswith(last)] + file

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str | None:
        """Return what click adds when a required option is not there."""
        del param
        with suppress(RocwheelError):  # such as where no store is named yet
            return f"Choose {listed(values)}." if ctx and (values := self.values(ctx)) else None
        return None


class ListOf(OneOf):
    """Such texts, separated by commas; each once, as `parse` reads it."""

    def __init__(self, values: Values, parse: Callable[[str], Any] = str) -> None:
        super().__init__(values, many=True)
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        items = [item.strip() for item in value.split(",") if item.strip()]
        name = param.opts[0] if param else ""
        if not items:
            what = f"{name}: {value!r} names nothing"
            raise ConfigError(what, hint="write its values, or leave it out")
        words, known = value.replace(",", " ").split(), self.values(ctx) if ctx else ()
        if len(words) > len(items) and not {*words}.isdisjoint(known):  # a name may have blanks
            what = f"{name}: {value!r}: the values are not separated by commas"
            raise ConfigError(what, hint=f"write {','.join(words)}")
        return tuple(dict.fromkeys(map(self.parse, items)))


def listed(values: Collection[str]) -> str:
    """Values as an error shows them."""
    return f"one of {', '.join(values)}"


def lacking(option: str, values: Values) -> click.UsageError:
    """Return the error for an option that is needed here and has these values."""
    context = click.get_current_context()
    return click.UsageError(f"give {option}, {listed(values(context))}")


def of(*values: str) -> Values:
    """Values that are always the same."""
    return lambda _ctx: values


def _ci(ctx: click.Context) -> Path:
    return (ctx.find_object(App) or start()).home.ci


def _channels_file(ctx: click.Context) -> Path:
    app, named = ctx.find_object(App) or start(), ctx.params.get("channels_file")
    return app.cwd / named if named else _ci(ctx) / "channels.yaml"


def families(ctx: click.Context) -> tuple[str, ...]:
    """GPU families of --family-file and of the matrix. Raises ConfigError."""
    import amdgpu_family_matrix as matrix

    if file := ctx.params.get("family_file"):
        from rocwheel.records.families import load

        return (*load(file), *matrix.FAMILIES)
    return tuple(matrix.FAMILIES)


def families_or_all(ctx: click.Context) -> tuple[str, ...]:
    """GPU families of the matrix, and the word for all of them."""
    return (*families(ctx), "all")


def gfx_targets(_ctx: click.Context) -> Collection[str]:
    """Targets of any family."""
    import amdgpu_family_matrix as matrix

    return matrix.known_targets()


def channels(ctx: click.Context) -> tuple[str, ...]:
    """Channels of --channels-file, or of the data in use. Raises ConfigError."""
    from rocwheel.release.index import channels as channel_file

    return tuple(channel_file.load(_channels_file(ctx)))


def _channel(ctx: click.Context) -> Channel:
    from rocwheel.release.index import channels as channel_file

    if url := ctx.params.get("store"):
        return channel_file.of_store(url)
    return channel_file.channel(_channels_file(ctx), ctx.params.get("channel") or "")


def digests(ctx: click.Context) -> tuple[str, ...]:
    """Wheel sets of a family, by the first digits. Raises ConfigError, StoreError."""
    from rocwheel.release.ledger import log

    channel = _channel(ctx)
    family = ctx.params.get("family") or ""
    pairs = channel.pairs(channel.open(), family if isinstance(family, str) else family[0][0])
    names = (name for pair in pairs for place in pair for name in log.read(place).sets)
    return tuple(dict.fromkeys(name[:12] for name in names))


def nights(ctx: click.Context) -> tuple[str, ...]:
    """Nights of a store, newest first. Raises ConfigError, StoreError."""
    from rocwheel.release.ledger.nights import Nights

    return tuple(reversed(Nights(_channel(ctx).open()).names()))


def cells(ctx: click.Context) -> tuple[str, ...]:
    """Cells of the night that is named. Raises ConfigError, StoreError."""
    from rocwheel.release.ledger.nights import Nights

    plan, _ = Nights(_channel(ctx).open()).plan(ctx.params.get("night") or "")
    return tuple(cell.name for cell in plan.cells)


def suites(ctx: click.Context) -> tuple[str, ...]:
    """Suites of the data in use."""
    from rocwheel.base import files
    from rocwheel.gate.suite.suites import FOLDER

    return tuple(path.stem for path in files.entries(_ci(ctx) / FOLDER) if path.suffix == ".yaml")


def jax_versions(ctx: click.Context) -> tuple[str, ...]:
    """JAX releases that are pinned, newest first. Raises ConfigError."""
    from rocwheel import source

    return tuple(pin.name for pin in reversed(source.pins_of(_ci(ctx)).pins))


def recipes(ctx: click.Context) -> tuple[str, ...]:
    """Builder images. Raises ConfigError."""
    from rocwheel.image import recipe

    return tuple(recipe.load(_ci(ctx)).builders)


pythons = of(*CPYTHONS)
wheel_kinds = of(*(kind.value for kind in WheelKind))
MANIFEST: Final = OneOf(digests, or_file=True)
FILE: Final = OneOf(of(), or_file=True)


NAMES: Final = ("rocwheel", "ci_build")
VARIABLE: Final = "_ROCWHEEL_COMPLETE"  # set by the code that is printed


class Bash(shell_completion.BashComplete):
    """Bash sees `--option=value` as three words."""

    def get_completion_args(self) -> tuple[list[str], str]:
        args, incomplete = super().get_completion_args()
        return [word for word in args if word != "="], incomplete.removeprefix("=")


class Zsh(shell_completion.ZshComplete):
    """Zsh replaces the whole word, so what completes `--option=value` has the option too."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        name, equals, value = incomplete.partition("=")
        if not (equals and name.startswith("--")):
            return super().get_completions(args, incomplete)
        found = super().get_completions([*args, name], value)
        for item in found:
            item.value = f"{name}={item.value}" if item.type == "plain" else item.value
        return found


SHELLS: Final = {"bash": Bash, "zsh": Zsh, "fish": shell_completion.FishComplete}


@command("completion")
@click.argument("shell", type=click.Choice([*SHELLS]))
@click.pass_obj
def completion(app: App, shell: str) -> None:
    """Print shell completion code, for `rocwheel` and `ci_build`, by name and by path.

    For bash, add `eval "$(rocwheel completion bash)"` to ~/.bashrc. For zsh, add the same line with
    zsh in place of bash to ~/.zshrc. For fish, add `rocwheel completion fish | source` to
    ~/.config/fish/config.fish.
    """
    program = click.get_current_context().find_root().command
    made = [SHELLS[shell](program, {}, name, VARIABLE).source() for name in NAMES]
    if shell == "zsh":  # where no file of the person has done so
        made.insert(0, "whence compdef > /dev/null || { autoload -Uz compinit && compinit; }")
    app.emit({"shell": shell, "code": "\n".join(made)}, "\n".join(made))


def answer(program: click.Command, app: App) -> int:
    """Print what can stand where the cursor is, for the code of a shell."""
    for name, kind in SHELLS.items():
        shell_completion.add_completion_class(kind, name)
    asked = app.environ[VARIABLE]
    return shell_completion.shell_complete(program, {"obj": app}, NAMES[0], VARIABLE, asked)
