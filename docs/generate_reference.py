#!/usr/bin/env python3
"""Write the pages of docs/reference that are generated from the project itself.

    python docs/generate_reference.py [--check]

`commands.md` is the command line, `jax-tests.md` what is recorded of JAX's own tests. With
`--check` nothing is written; exit status 1 says that a file is stale.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "build"), str(ROOT)]

import click  # noqa: E402
from packaging.version import Version  # noqa: E402

from rocwheel.cli import ci_build  # noqa: E402
from rocwheel.gate.suite import suites  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

REFERENCE = ROOT / "docs" / "reference"
JAX_TESTS = """\
# JAX's own tests, release by release

Made by `python docs/generate_reference.py` of `ci/jax_tests.json` and `ci/suites`; do not edit.

The suites `unit` and `multi_gpu` run JAX's own tests. `must run` and `may skip` are what they
demand of a release. No file is lost: a release is counted only where each file that the suite
takes can be imported.

The tests were counted on the CPU (CPython 3.12, `JAX_NUM_GENERATED_CASES=10` as in the suite):

<!-- needs: network -->
```console
$ python3 benchmarks/jax_tests.py --python ENV/bin/python --checkout JAX --work DIR \\
    --collect --record 0.10.2
```

How many of the tests an AMD GPU skips is not counted yet; `must run` is a little under three
fifths of them, and the first runs on a GPU say better.
"""


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
    """Return a table row per option, with its environment variable and default."""
    for param in command.params:
        if isinstance(param, click.Argument):
            yield f"| `{param.make_metavar(ctx)}` | | |"
            continue
        if not isinstance(param, click.Option) or param.hidden:
            continue
        names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
        help_text = (param.help or "").replace("|", "\\|")
        if param.required:
            help_text += " Required."
        default = param.default
        if param.show_default and isinstance(default, (float, Path)):
            default = f"{default:g}" if isinstance(default, float) else str(default)
        if isinstance(default, (str, int)) and not isinstance(default, bool) and not param.is_flag:
            help_text += f" Default: `{default}`."
        elif isinstance(default, tuple) and any(default):
            help_text += f" Default: `{default[0]}`."
        ending = getattr(param, "variable", (param.name or "").upper())
        variable = f"`{ctx.auto_envvar_prefix}_{ending}`"
        hidden = not param.expose_value and param.name in {"json", "debug", "verbosity", "help_all"}
        yield f"| {names} | {help_text.strip()} | {'' if hidden else variable} |"


def render() -> str:
    """Return the whole page of commands."""
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
        if isinstance(command, click.Group) and not command.invoke_without_command:
            continue
        lines += ["| option | meaning | environment |", "| --- | --- | --- |"]
        lines += [*option_rows(command, ctx), ""]
    return "\n".join(lines).rstrip() + "\n"


def jax_tests() -> str:
    """Return the page about JAX's own tests."""
    counted = json.loads((ROOT / "ci" / "jax_tests.json").read_text(encoding="utf-8"))
    own = [suite for suite in suites.load_all(ROOT / "ci") if not suite.source.folder]
    lines = [JAX_TESTS]
    for suite in sorted(own, key=lambda suite: suite.name, reverse=True):
        lines += [
            f"## {suite.name}", "",
            "| JAX | tests | must run | may skip |",
            "| --- | --- | --- | --- |",
        ]  # fmt: skip
        for version in sorted(counted, key=Version):
            number, demand = counted[version].get(suite.name), suite.demands.of(version)
            lines.append(
                f"| {version} | {f'{number:,}' if number else 'not counted'} "
                f"| {demand.must_run:,} | {demand.may_skip:,} |"
            )
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def main(arguments: list[str]) -> int:
    """Write or check the pages."""
    stale = False
    for name, text in (("commands.md", render()), ("jax-tests.md", jax_tests())):
        path = REFERENCE / name
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            stale = True
    return int(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
