"""Reads a tree's Bazel rc files: which configs they define, and which options a config holds.

The format is Bazel's (https://bazel.build/run/bazelrc): `command:config options…`, `#` comments,
`import` and `try-import`, a backslash at the end of a line. Only `%workspace%` is replaced.
"""

import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from rocwheel.base.errors import SourceError
from rocwheel.base.values import Plain

READ: Final = frozenset({"always", "common", "build"})  # commands whose lines `bazel build` reads
# Options whose value may be the next word.
_VALUED: Final = frozenset({
    "--action_env", "--bazelrc", "--config", "--define", "--host_action_env", "--output_base",
    "--output_user_root", "--override_module", "--override_repository", "--repo_env",
})  # fmt: skip
BY_MODULES: Final = 7  # the first Bazel that takes modules unasked, the last with WORKSPACE
_DEPTH: Final = 20  # imports, and configs in configs


class RcLine(Plain, frozen=True, kw_only=True):
    """Options of one line, for one command and perhaps one config."""

    command: str
    config: str  # "" for lines that always count
    options: tuple[str, ...]  # each with its value: `--repo_env=A=1`
    where: str  # file:line


class RcFiles(Plain, frozen=True, kw_only=True):
    """Every line that a Bazel started in the workspace would read, in order."""

    lines: tuple[RcLine, ...]

    @property
    def configs(self) -> frozenset[str]:
        """Return the configs that are defined for a build."""
        return frozenset(line.config for line in self._read() if line.config)

    def flatten(self, options: Iterable[str]) -> tuple[str, ...]:
        """Return every option of a command line, in order: rc lines first, configs in place."""
        always = ((line.where, line.options) for line in self._read() if not line.config)
        return tuple(
            item
            for where, given in (*always, ("command line", tuple(options)))
            for option in given
            for item in self._expanded(option, where, ())
        )

    def expand(self, options: Iterable[str]) -> tuple[str, ...]:
        """Return these options, each config followed by the options it holds."""
        return tuple(item for option in options for item in self._expanded(option, "options", ()))

    def _read(self) -> Iterator[RcLine]:
        return (line for line in self.lines if line.command in READ)

    def _expanded(self, option: str, where: str, inside: tuple[str, ...]) -> Iterator[str]:
        yield option
        name, _, config = option.partition("=")
        if name != "--config":
            return
        lines = [line for line in self._read() if line.config == config]
        if not lines:
            raise SourceError(
                f"{where}: --config={config}: no rc file of this tree defines it",
                hint="the tree is not what its version says, or it is incomplete",
            )
        if config in inside or len(inside) > _DEPTH:
            raise SourceError(f"{where}: --config={config} contains itself", hint="check the tree")
        for line in lines:
            for nested in line.options:
                yield from self._expanded(nested, line.where, (*inside, config))


def variables(options: Iterable[str]) -> dict[str, str]:
    """Return the variables of repository rules, by `--repo_env` and `--action_env`: the last wins.

    `--repo_env` takes precedence over `--action_env`, which repository rules see too:
    https://bazel.build/reference/command-line-reference#common_options-flag--repo_env
    """
    by_kind: dict[str, dict[str, str]] = {"--action_env": {}, "--repo_env": {}}
    for option in options:
        kind, _, assignment = option.partition("=")
        name, given, value = assignment.partition("=")
        if kind in by_kind and given:
            by_kind[kind][name] = value
    return {**by_kind["--action_env"], **by_kind["--repo_env"]}


def modules(workspace: Path, rc: RcFiles, options: Iterable[str] = ()) -> bool | None:
    """Return whether Bazel takes external repositories from MODULE.bazel; None: from there alone.

    A user's `options` come last. A config that no rc file of the tree defines decides nothing here;
    the checks of a user's options refuse it, or find it in an rc file of the user's. By default
    Bazel takes MODULE.bazel from 7 on, and WORKSPACE before 8. Raises SourceError for a tree whose
    rc files say one thing and whose files the other.
    """
    given = [
        item
        for item in joined(options)
        if not item.startswith("--config") or item.partition("=")[2] in rc.configs
    ]
    said = switched(rc.flatten(given))
    has_workspace = any((workspace / name).exists() for name in ("WORKSPACE", "WORKSPACE.bazel"))
    has_module, wanted = (workspace / "MODULE.bazel").exists(), workspace / ".bazelversion"
    number = re.match(r"\d+", wanted.read_text("utf-8", "replace") if wanted.is_file() else "")
    major = int(number[0]) if number else 0
    is_on = said.get("bzlmod", not has_workspace or (has_module and major >= BY_MODULES))
    lacks = "" if has_module or not is_on else "MODULE.bazel"
    lacks = lacks or ("" if is_on or has_workspace else "WORKSPACE")
    if lacks:
        word, hint = "enable" if is_on else "disable", "incomplete, or mixes two releases"
        who, hint = f"its rc files {word}", f"the checkout is {hint}"
        if own := [item for item in given if "bzlmod" in switched(rc.expand([item]))]:
            who, hint = f"--bazel-options={own[-1]} {word}s", "drop that option"
        raise SourceError(f"{workspace}: {who} bzlmod, and it has no {lacks}", hint=hint)
    if is_on and not (has_workspace and said.get("workspace", major <= BY_MODULES)):
        return None
    return is_on


def switched(options: Iterable[str]) -> dict[str, bool]:
    """Return whether options turn `bzlmod` and `workspace` on, as the last of them says."""
    said: dict[str, bool] = {}
    for option in options:
        match = re.fullmatch(
            r"--(no)?(?:experimental_)?enable_(bzlmod|workspace)(?:=(\w+))?", option
        )
        if match:
            said[match[2]] = (match[3] in {None, "1", "true", "yes"}) is not bool(match[1])
    return said


def read_rc(workspace: Path, names: Iterable[str] = ()) -> RcFiles:
    """Read the workspace's `.bazelrc`, then the rc files named (relative to the workspace)."""
    own = workspace / ".bazelrc"
    files = [*((own,) if own.is_file() else ()), *(workspace / name for name in names)]
    return RcFiles(lines=tuple(line for path in files for line in _lines(path, workspace, 0)))


def _lines(path: Path, workspace: Path, depth: int) -> Iterator[RcLine]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as exc:
        raise SourceError(f"{path}: missing", hint="check out the whole release") from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise SourceError(f"{path}: {exc}", hint="check out the whole release") from exc
    for number, line in _joined(text):
        where = f"{path}:{number}"
        try:
            words = shlex.split(line, comments=True)
        except ValueError as exc:
            raise SourceError(f"{where}: {exc}", hint="use the file as its project has it") from exc
        if not words:
            continue
        if words[0] in ("import", "try-import"):
            target = Path(" ".join(words[1:]).replace("%workspace%", str(workspace)))
            if depth > _DEPTH:
                raise SourceError(f"{where}: imports itself", hint="check the tree")
            if words[0] == "import" or target.is_file():
                yield from _lines(workspace / target, workspace, depth + 1)
            continue
        command, _, config = words[0].partition(":")
        yield RcLine(command=command, config=config, options=joined(words[1:]), where=where)


def _joined(text: str) -> Iterator[tuple[int, str]]:
    number, parts = 0, ""
    for count, line in enumerate(text.splitlines(), start=1):
        number = number if parts else count
        if re.search(r"(?<!\\)\\$", line):
            parts += line[:-1] + " "
            continue
        yield number, parts + line
        parts = ""
    if parts:
        yield number, parts


def joined(words: Iterable[str]) -> tuple[str, ...]:
    """Return options with their values: `--repo_env A=1` becomes `--repo_env=A=1`."""
    rest = iter(words)
    return tuple(f"{word}={next(rest, '')}" if word in _VALUED else word for word in rest)
