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
from typing import TYPE_CHECKING, TypeAlias

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "build"), str(ROOT)]

import click  # noqa: E402
from packaging.version import Version  # noqa: E402

from rocwheel.cli import ci_build  # noqa: E402
from rocwheel.cli.options import OWN, SECTIONS, TALK  # noqa: E402
from rocwheel.gate.suite import suites  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

Options: TypeAlias = dict[str, dict[str, list[str]]]  # names -> meaning -> commands

REFERENCE = ROOT / "docs" / "reference"
INTRO = """\
<!-- Made from the command line by `python docs/generate_reference.py`; do not edit. -->
# Commands and options

Each option stands once: with its command, or below [options that commands
share](#options-that-commands-share).

To set one permanently, use an environment variable (`ROCWHEEL_<COMMAND>_<OPTION>`, such as
`ROCWHEEL_NIGHTLY_RUN_STORE`) or the [configuration file](../how-to/configure.md). Options may
also stand before the command: `rocwheel --compiler=clang dist_wheels`.

## Commands
"""
JAX_TESTS = """\
# JAX's own tests, release by release

Made by `python docs/generate_reference.py` of `ci/jax_tests.json` and `ci/suites`; do not edit.

The suites `unit` and `multi_gpu` run JAX's own tests. `must run` and `may skip` are what they
demand of a release.

The tests were counted on the CPU (CPython 3.12, `JAX_NUM_GENERATED_CASES=10` as in the suite):

<!-- needs: network -->
```console
$ python3 benchmarks/jax_tests.py --python ENV/bin/python --checkout JAX --work DIR \\
    --collect --record 0.10.2
```

How many of the tests an AMD GPU skips is not counted yet; `must run` is a little under three
fifths of them.
"""


def commands(
    group: click.Group, ctx: click.Context, path: str = ""
) -> Iterator[tuple[str, click.Command, click.Context]]:
    """Walk every command below `group`, in the order its help shows them."""
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name) or click.Command(name)
        inner = click.Context(command, info_name=name, parent=ctx)
        yield f"{path}{name}", command, inner
        if isinstance(command, click.Group):
            yield from commands(command, inner, f"{path}{name} ")


def table(options: Options) -> list[str]:
    """Return a row per option; where commands differ about one, each meaning names its own."""
    lines = []
    for names, meanings in options.items():
        texts = [
            f"\n    - {', '.join(f'`{user}`' for user in users)}: {text}" if at else text
            for at, (text, users) in enumerate(
                sorted(meanings.items(), key=lambda item: -len(item[1]))
            )
        ]
        lines.append(f"- {names}: {''.join(texts)}")
    return [*lines, ""]


def shared(path: str, sections: dict[str, Options]) -> Iterator[str]:
    """Say which options a command has that are described in other places."""
    for title, options in sections.items():
        if title in {f"`{path}`", TALK}:
            continue
        has, lacks = list[str](), list[str]()
        for names, meanings in options.items():
            users = {user for users in meanings.values() for user in users}
            (has if path in users else lacks).append(names.partition(",")[0])
        where = f"[{title}](#{title.strip('`').lower().replace(' ', '-')})"
        if has and len(lacks) < min(len(has), 3):
            yield f"{where} without {', '.join(lacks)}" if lacks else where
        elif has:
            yield f"{where}: {', '.join(has)}"


def escaped(text: str | None) -> str:
    """Return a help text in which <store> is no HTML."""
    return (text or "").replace("<", "&lt;")


def meaning(param: click.Option) -> str:
    """Return the help of an option, with what its line of `--help` says of the default."""
    text = escaped(param.help)
    if param.required:
        text += " Required."
    default = param.default
    is_shown = isinstance(default, (str, int, float)) and not isinstance(default, bool)
    if is_shown and default and not param.is_flag:
        text += f" Default: `{f'{default:g}' if isinstance(default, float) else default}`."
    return text.strip()


def render() -> str:
    """Return the page of commands: shared options once, each other with its first command."""
    walked = list(commands(ci_build, click.Context(ci_build, info_name="rocwheel")))
    sections: dict[str, Options] = {title: {} for title in SECTIONS if title != OWN}
    own: dict[str, Options] = {}
    first: dict[tuple[str, str], str] = {}
    for path, command, _ in walked:
        for param in command.params:
            if not isinstance(param, click.Option) or param.hidden:
                continue
            text, section = meaning(param), getattr(param, "section", TALK)
            place, where = sections, section
            if section == OWN:
                place, where = own, first.setdefault((param.opts[0], text), f"`{path}`")
            names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
            options = place.setdefault(where, {})
            options.setdefault(names, {}).setdefault(text, []).append(path)
    lines = [INTRO]
    for path, command, ctx in walked:
        arguments = [p.make_metavar(ctx) for p in command.params if isinstance(p, click.Argument)]
        lines += [f"{'#' * min(path.count(' ') + 3, 4)} `{path}`", ""]
        lines += [f"`{' '.join((path, *arguments))}`", ""] if arguments else []
        text = escaped(command.help).replace("\b", "").strip()
        lines += [*(line.strip() for line in text.splitlines()), ""]
        if isinstance(command, click.Group) and not command.invoke_without_command:
            continue
        lines += table(own[f"`{path}`"]) if f"`{path}`" in own else []
        if also := list(shared(path, own | sections)):
            lines += [f"Shared: {'; '.join(also)}.", ""]
    lines += ["## Options that commands share", ""]
    for title, options in sections.items():
        lines += [f"### {title}", "", *table(options)]
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
