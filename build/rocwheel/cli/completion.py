"""`completion`: code for a shell, and what that code asks for at each press of Tab.

The code is registered for the names in `NAMES` and starts the program as it stands on the line, so
it completes a path such as `build/ci_build` as well: both shells look a program up by the last
part of its path.
"""

from __future__ import annotations

from typing import Final

import click

from rocwheel.base.option import OptionSet
from rocwheel.cli.app import App
from rocwheel.cli.command import command, own

NAMES: Final = ("rocwheel", "ci_build")
WORDS: Final = "_ROCWHEEL_WORDS"  # the line up to the cursor, a word to a line, the last unfinished
FILES: Final = frozenset({"file", "dir"})

# An answer is `type<tab>value` in each line. Bash sees `--option=value` as three words.
_BASH: Final = """\
_rocwheel() {
    local IFS=$'\\n' type value
    COMPREPLY=()
    while IFS=$'\\t' read -r type value; do
        case $type in
            plain) COMPREPLY+=("$value") ;;
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
        esac
    done < <(_ROCWHEEL_COMPLETE=bash _ROCWHEEL_WORDS="${COMP_WORDS[*]:0:COMP_CWORD+1}" \\
        "${1/#'~/'/$HOME/}" 2> /dev/null)
}
complete -o nosort -F _rocwheel NAMES
"""
_ZSH: Final = """\
#compdef NAMES
_rocwheel() {
    local type value
    local -a plain
    while IFS=$'\\t' read -r type value; do
        case $type in
            plain) plain+=("$value") ;;
            dir) [[ $PREFIX == --*=* ]] && compset -P '*='; _path_files -/ ;;
            file) [[ $PREFIX == --*=* ]] && compset -P '*='; _path_files ;;
        esac
    done < <(_ROCWHEEL_COMPLETE=zsh _ROCWHEEL_WORDS="${(F)words[1,CURRENT]}" \\
        ${words[1]/#'~/'/$HOME/} 2> /dev/null)
    (( $#plain )) && compadd -U -V rocwheel -a plain
}
whence compdef > /dev/null || { autoload -Uz compinit && compinit }
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _rocwheel "$@"
else
    compdef _rocwheel NAMES
fi
"""
CODE: Final = {"bash": _BASH, "zsh": _ZSH}


class CompletionOptions(OptionSet):
    """The shell that `completion` prints code for."""

    shell: str = own("SHELL", only=tuple(CODE), required=True)


@command("completion", CompletionOptions)
def completion(app: App, options: CompletionOptions) -> None:
    """Print shell completion code, for `rocwheel` and `ci_build`, by name and by path.

    bash: eval "$(rocwheel completion bash)" in ~/.bashrc; zsh the same with zsh in ~/.zshrc.
    """
    code = CODE[options.shell].replace("NAMES", " ".join(NAMES))
    app.emit({"shell": options.shell, "code": code}, code.rstrip("\n"))


def answer(program: click.Command, app: App) -> str:
    """Return what can stand where the cursor is, for the code of a shell."""
    from click.shell_completion import ShellComplete

    shell = app.environ.get("_ROCWHEEL_COMPLETE", "")
    before, unfinished = _line(app.environ.get(WORDS, ""), splits_options=shell == "bash")
    asked = ShellComplete(program, {"obj": app}, NAMES[0], "")
    joined = ""
    name, equals, value = unfinished.partition("=")
    if equals and name.startswith("--"):  # the answer is the whole word, the option too
        before, joined, unfinished = [*before, name], f"{name}=", value
    items = asked.get_completions(before, unfinished)
    return "".join(f"{i.type}\t{'' if i.type in FILES else joined}{i.value}\n" for i in items)


def _line(words: str, *, splits_options: bool) -> tuple[list[str], str]:
    """Return the finished words behind the program's name, and the unfinished one."""
    line = [_unquoted(word) for word in words.split("\n")][1:]
    if splits_options:
        line = [word for word in (*line, *([""] if line[-1:] == ["="] else ())) if word != "="]
    return line[:-1], "".join(line[-1:])


def _unquoted(word: str) -> str:
    import shlex

    try:
        return "".join(shlex.split(word))
    except ValueError:  # a quote that is still open
        return word.lstrip("'\"")
