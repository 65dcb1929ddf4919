"""The patches a tree puts on its XLA, which an XLA of one's own comes without.

JAX names them in `third_party/xla/workspace.bzl`, where the rule that downloads XLA applies them;
`--override_repository` replaces that rule.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocwheel import files
from rocwheel.errors import CommandError
from rocwheel.process import Command, Runner

_LABEL: Final = re.compile(r"^[^#\n]*\"//[\w/]*:(?P<name>[\w.-]+\.patch)\"", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Patched:
    """An XLA folder, which of the tree's patches it has, and what to say of the others."""

    folder: Path
    applied: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def named(folder: Path) -> tuple[Path, ...]:
    """Return the patches that a tree's `third_party/xla` applies, in order."""
    workspace = folder / "workspace.bzl"
    if not workspace.is_file():
        return ()
    names = (match["name"] for match in _LABEL.finditer(workspace.read_text(encoding="utf-8")))
    return tuple(folder / name for name in names if (folder / name).is_file())


def compared(folder: Path, patches: tuple[Path, ...], *, runner: Runner) -> Patched:
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
    return Patched(folder=folder, applied=tuple(applied), warnings=tuple(warnings))


def copy_of(folder: Path, patches: tuple[Path, ...]) -> Path:
    """Where the copy of a checkout with these patches lies; the checkout itself without any."""
    if not patches:
        return folder
    key = files.sha256(b"".join(patch.read_bytes() for patch in patches))[:12]
    return folder.with_name(f"{folder.name}-{key}")


def commands(folder: Path, patches: tuple[Path, ...]) -> tuple[Command, ...]:
    """Return the commands of the copy: git's clone, then one for each patch, which may fail."""
    if not patches:
        return ()
    copy = copy_of(folder, patches)
    return (_clone(folder, copy), *(_git(copy, "apply", str(patch)) for patch in patches))


def patched(folder: Path, patches: tuple[Path, ...], *, runner: Runner) -> Patched:
    """Return a copy of a checkout in our cache with every patch that applies, made once.

    Raises CommandError when git cannot copy it, OSError when the disk refuses.
    """
    if not patches:
        return Patched(folder=folder)
    copy = copy_of(folder, patches)
    listing = copy.with_name(f"{copy.name}.applied")
    with files.locked(copy.with_name(f"{copy.name}.lock")):
        if not (copy.is_dir() and listing.is_file()):
            with files.whole_folder(copy) as aside:
                runner.run(_clone(folder, aside))
                applied = [patch for patch in patches if _applies(aside, patch, runner)]
                files.write(listing, "".join(f"{patch.name}\n" for patch in applied).encode())
    applied_names = tuple(listing.read_text(encoding="utf-8").split())
    warnings = tuple(
        f"XLA {folder.name[:12]}: JAX's {patch.name} does not apply to it"
        for patch in patches
        if patch.name not in applied_names
    )
    return Patched(folder=copy, applied=applied_names, warnings=warnings)


def _applies(folder: Path, patch: Path, runner: Runner) -> bool:
    if _fits(folder, patch, runner, "--reverse"):
        return True  # this commit has it already
    if not _fits(folder, patch, runner):
        return False
    runner.run(_git(folder, "apply", str(patch)))
    return True


def _fits(folder: Path, patch: Path, runner: Runner, *how: str) -> bool:
    try:
        runner.capture(_git(folder, "apply", "--check", *how, str(patch)))
    except CommandError:
        return False
    return True


def _clone(folder: Path, copy: Path) -> Command:
    return _git(None, "clone", "--quiet", "--shared", str(folder), str(copy))


def _git(folder: Path | None, *words: str) -> Command:
    where = ("-C", str(folder)) if folder else ()
    return Command(argv=("git", "-c", "safe.directory=*", *where, *words))
