"""`completion`: click's shell completion, for both names of the program."""

from __future__ import annotations

from typing import Final

import click
from click import shell_completion
from click.shell_completion import CompletionItem

from rocwheel.cli.app import App
from rocwheel.cli.options import command

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

    bash: eval "$(rocwheel completion bash)" in ~/.bashrc; zsh the same with zsh in ~/.zshrc.
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
