"""The patches a tree puts on its XLA, which an XLA of one's own comes without.

JAX names them in `third_party/xla/workspace.bzl`, where the rule that downloads XLA applies them;
`--override_repository` replaces that rule.
"""

import re
from pathlib import Path
from typing import Final

from rocwheel.base.errors import CommandError
from rocwheel.base.process import Command, Runner

_LABEL: Final = re.compile(r"^[^#\n]*\"//[\w/]*:(?P<name>[\w.-]+\.patch)\"", re.MULTILINE)


def named(folder: Path) -> tuple[Path, ...]:
    """Return the patches that a tree's `third_party/xla` applies, in order."""
    workspace = folder / "workspace.bzl"
    if not workspace.is_file():
        return ()
    names = (match["name"] for match in _LABEL.finditer(workspace.read_text(encoding="utf-8")))
    return tuple(folder / name for name in names if (folder / name).is_file())


def compared(
    folder: Path, patches: tuple[Path, ...], *, runner: Runner
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return which patches a user's folder has, with a warning for each other one."""
    applied, warnings = [], []
    for patch in patches:
        if _fits(folder, patch, runner, "--reverse"):
            applied.append(patch.name)
        elif _fits(folder, patch, runner):
            warnings.append(
                f"{folder}: lacks JAX's {patch.name}; to apply it: git -C {folder} apply {patch}"
            )
        else:
            warnings.append(f"{folder}: JAX's {patch.name} does not apply to this XLA")
    return tuple(applied), tuple(warnings)


def _fits(folder: Path, patch: Path, runner: Runner, *how: str) -> bool:
    words = ("-C", str(folder), "apply", "--check", *how, str(patch))
    try:
        runner.capture(Command(argv=("git", "-c", "safe.directory=*", *words)))
    except CommandError:
        return False
    return True
