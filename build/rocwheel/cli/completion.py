"""`completion`: code for a shell to complete commands and options."""

from __future__ import annotations

from dataclasses import dataclass

import click
from click.shell_completion import get_completion_class

from rocwheel.cli.app import App
from rocwheel.cli.command import command


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """Options of `completion`."""

    shell: str


@command("completion", CompletionOptions)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(app: App, options: CompletionOptions) -> None:
    """Print shell completion code.

    bash: eval "$(ci_build completion bash)" in ~/.bashrc, where ci_build is the path of this
    program; zsh the same in ~/.zshrc; fish: ci_build completion fish | source
    """
    from rocwheel.cli import ci_build

    found = get_completion_class(options.shell)
    if found is None:
        raise click.UsageError(f"{options.shell}: no completion for this shell")
    code = found(ci_build, {}, "ci_build", "_CI_BUILD_COMPLETE").source()
    app.emit({"shell": options.shell, "code": code}, code)
