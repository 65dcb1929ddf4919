#!/usr/bin/env python3
"""Write docs/reference/commands.md from the command line itself.

    python docs/generate_reference.py [--check]

With `--check` nothing is written; exit status 1 says that the file is stale.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "build"), str(ROOT)]

import click  # noqa: E402

from rocwheel.cli import ci_build  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGET = ROOT / "docs" / "reference" / "commands.md"


def commands(
    group: click.Group, ctx: click.Context, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    """Walk every command below `group`, in the order its help shows them."""
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name) or click.Command(name)
        inner = click.Context(
            command,
            info_name=name,
            parent=ctx,
            auto_envvar_prefix=f"{ctx.auto_envvar_prefix}_{name.upper().replace('-', '_')}",
        )
        yield (*path, name), command, inner
        if isinstance(command, click.Group):
            yield from commands(command, inner, (*path, name))


def option_rows(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """One table row per option, with its environment variable and default."""
    for param in command.params:
        if isinstance(param, click.Argument):
            yield f"| `{param.make_metavar(ctx)}` | | |"
            continue
        if not isinstance(param, click.Option) or param.hidden:
            continue
        names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
        help_text = (param.help or "").replace("|", "\\|")
        default = param.default
        if isinstance(default, (str, int)) and not isinstance(default, bool) and not param.is_flag:
            help_text += f" Default: `{default}`."
        elif isinstance(default, tuple) and default:
            help_text += f" Default: `{default[0]}`."
        variable = f"`{ctx.auto_envvar_prefix}_{(param.name or '').upper()}`"
        hidden = not param.expose_value and param.name in {"json", "debug", "verbosity"}
        yield f"| {names} | {help_text} | {'' if hidden else variable} |"


def render() -> str:
    """The whole page."""
    root = click.Context(ci_build, info_name="rocwheel", auto_envvar_prefix="ROCWHEEL")
    lines = [
        "# Commands and options",
        "",
        "Made from the command line by `python docs/generate_reference.py`; do not edit. Build",
        "options may also stand before the command: `rocwheel --compiler=clang dist_wheels`.",
        "",
    ]
    for path, command, ctx in commands(ci_build, root, ()):
        lines += [f"{'#' * min(len(path) + 1, 4)} `{' '.join(path)}`", ""]
        text = (command.help or "").replace("\b", "").strip()
        lines += [line.strip() for line in text.splitlines()] + [""]
        if isinstance(command, click.Group):
            continue
        lines += ["| option | meaning | environment |", "| --- | --- | --- |"]
        lines += [*option_rows(command, ctx), ""]
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str]) -> int:
    """Write or check the page."""
    text = render()
    if "--check" in arguments:
        current = TARGET.read_text(encoding="utf-8") if TARGET.exists() else ""
        return int(current != text)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
