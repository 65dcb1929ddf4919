"""Which XLA a tree builds, and the patches it puts on it, which a user's own XLA comes without.

A tree of WORKSPACE names both below `third_party/xla`, where the rule that downloads XLA applies
the patches; with bzlmod both stand in MODULE.bazel. An override replaces either.
"""

import re
import shutil
import tempfile
from pathlib import Path
from typing import Final

from rocwheel.base.errors import CommandError, SourceError
from rocwheel.base.git import Source
from rocwheel.base.process import Command, Runner
from rocwheel.base.versions import is_commit
from rocwheel.records.source_layout import XlaPin

_LABEL: Final = re.compile(r"^[^#\n]*\"//[\w/]*:(?P<name>[\w.-]+\.patch)\"", re.MULTILINE)
_TOUCHED: Final = re.compile(r"^(?:---|\+\+\+) [ab]/(\S+)", re.MULTILINE)


def pinned(root: Path, where: XlaPin, *, by_module: bool) -> Source:
    """Return the XLA that a tree names; an empty one for a tree that builds none.

    Raises SourceError where no file names it.
    """
    folder = root / where.folder
    if by_module:
        path = root / where.module.file
        if match := where.module.pattern.search(text(path)):
            return Source(repository=match["repository"], commit=match["commit"])
        raise SourceError(
            f"{path}: has no archive_override of the module xla with a commit",
            hint="use the file as JAX has it, or give --xla-source-dir",
        )
    if not folder.is_dir():
        return Source(repository="", commit="")
    for name in where.files:
        path = folder / name
        commit = assigned(path, where.variable) if path.is_file() else None
        if commit and is_commit(commit):
            return Source(repository=where.repository, commit=commit)
    raise SourceError(
        f"{folder}: no file says which XLA is built ({where.variable})",
        hint="use the files as JAX has them, or give --xla-source-dir",
    )


def assigned(path: Path, variable: str) -> str | None:
    """Return the text assigned to a variable at the start of a line, without running the file."""
    pattern = rf"^{re.escape(variable)}\s*=\s*([\"'])(?P<value>[^\"']*)\1"
    match = re.search(pattern, text(path), re.MULTILINE)
    return match["value"] if match else None


def patches(root: Path, where: XlaPin, *, by_module: bool) -> tuple[Path, ...]:
    """Return the patches that a tree puts on its XLA, in order."""
    folder = root / where.folder
    file = root / where.module.file if by_module else folder / "workspace.bzl"
    if not file.is_file():
        return ()
    content = text(file)
    if by_module:
        match = where.module.pattern.search(content)
        content = content[match.start() : content.index("\n)", match.start())] if match else ""
    names = (match["name"] for match in _LABEL.finditer(content))
    return tuple(folder / name for name in names if (folder / name).is_file())


def compared(
    folder: Path, wanted: tuple[Path, ...], *, runner: Runner
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return which patches a user's folder has, with a warning for each other one.

    Two may change neighbouring lines: on a copy of the files they touch, each is taken off, the
    last first, and those that are missing are put on, in order.
    """
    warnings: list[str] = []
    with tempfile.TemporaryDirectory(prefix="rocwheel-xla-") as name:
        scratch = Path(name)
        for touched in {path for patch in wanted for path in _TOUCHED.findall(text(patch))}:
            if (folder / touched).is_file() and ".." not in Path(touched).parts:
                (scratch / touched).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(folder / touched, scratch / touched)
        applied = {p for p in reversed(wanted) if _applies(scratch, p, runner, "--reverse")}
        for patch in wanted:
            if _applies(scratch, patch, runner):
                if patch not in applied:
                    line = f"git -C {folder} apply {patch}"
                    warnings.append(f"{folder}: lacks JAX's {patch.name}; to apply it: {line}")
            else:
                warnings.append(f"{folder}: JAX's {patch.name} does not apply to this XLA")
    return tuple(patch.name for patch in wanted if patch in applied), tuple(warnings)


def _applies(folder: Path, patch: Path, runner: Runner, *how: str) -> bool:
    words = ("git", "-c", "safe.directory=*", "-C", str(folder), "apply", *how, str(patch))
    try:
        runner.capture(Command(argv=words))
    except CommandError:
        return False
    return True


def text(path: Path) -> str:
    """Return the text of a file of a tree. Raises SourceError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise SourceError(f"{path}: {exc}", hint="check the checkout") from exc
