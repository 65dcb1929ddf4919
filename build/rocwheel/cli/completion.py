"""`completion`: code for a shell to complete commands and options."""

from __future__ import annotations

import click

from rocwheel.cli.app import common_options


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@common_options
def completion(shell: str) -> None:
    """Print shell completion code.

    bash: eval "$(ci_build completion bash)" in ~/.bashrc, where ci_build is the path of this
    program; zsh the same in ~/.zshrc; fish: ci_build completion fish | source
    """
    from click.shell_completion import get_completion_class

    from rocwheel.cli import ci_build

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"{shell}: no completion for this shell")
    click.echo(found(ci_build, {}, "ci_build", "_CI_BUILD_COMPLETE").source())
