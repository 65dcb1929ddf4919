"""`completion`: code for a shell, and what that code asks for at each press of Tab.

The code is registered for the names in `NAMES` and starts the program as it stands on the line, so
it completes a path such as `build/ci_build` as well: all three shells look a program up by the last
part of its path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import click

from rocwheel.cli.app import App
from rocwheel.cli.command import command

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
_FISH: Final = """\
function __rocwheel
    set -l before (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string replace -r '^~/' "$HOME/" -- $before[1])
    set -l words (begin
        printf '%s\\n' $before
        printf '%s' "$current"
    end | string collect --no-trim-newlines)
    for line in (env _ROCWHEEL_COMPLETE=fish _ROCWHEEL_WORDS="$words" $program 2> /dev/null)
        set -l answer (string split -m 1 \\t -- $line)
        set -l option (string match -r '^--[^=]*=' -- $current; or echo)
        switch $answer[1]
            case plain
                echo $answer[2]
            case dir
                string join \\n -- $option(__fish_complete_directories $answer[2])
            case file
                string join \\n -- $option(__fish_complete_path $answer[2])
        end
    end
end
for name in NAMES
    complete --no-files --command $name --arguments '(__rocwheel)'
end
"""
CODE: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """Options of `completion`."""

    shell: str


@command("completion", CompletionOptions)
@click.argument("shell", type=click.Choice(list(CODE)))
def completion(app: App, options: CompletionOptions) -> None:
    """Print shell completion code, for `rocwheel` and `ci_build`, by name and by path.

    bash: eval "$(rocwheel completion bash)" in ~/.bashrc; zsh the same with zsh in ~/.zshrc;
    fish: rocwheel completion fish | source, in ~/.config/fish/config.fish
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
    found = asked.get_completions(before, unfinished)
    return "\n".join(f"{i.type}\t{'' if i.type in FILES else joined}{i.value}" for i in found)


def _line(words: str, *, splits_options: bool) -> tuple[list[str], str]:
    """Return the finished words behind the program's name, and the unfinished one."""
    found = [_unquoted(word) for word in words.split("\n")][1:]
    if splits_options:
        if found and found[-1] == "=":
            found.append("")
        found = [word for word in found if word != "="]
    return found[:-1], found[-1] if found else ""


def _unquoted(word: str) -> str:
    import shlex

    try:
        return "".join(shlex.split(word))
    except ValueError:  # a quote that is still open
        return word.lstrip("'\"")
