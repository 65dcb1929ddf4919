"""Wheelhouses: folders with a wheel set and its manifest, which appear whole or not at all.

`<folder>/<first 12 of the manifest's SHA-256>/` holds the wheels, `requirements.txt` with their
digests, `manifest.json` and `build.json`; `<folder>/current` is a symbolic link to the newest
complete one and moves last. Unfinished ones lie in `<folder>/.unfinished/`, marked with their
process; the next run removes those of killed processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from rocwheel.base import container, files
from rocwheel.base.errors import HostError, WheelError, named
from rocwheel.records.install import REQUIREMENTS, Install
from rocwheel.records.manifest import BUILD_RECORD, MANIFEST, BuildRecord, Manifest

CURRENT: Final = "current"
UNFINISHED: Final = ".unfinished"
IDENTITY_LENGTH: Final = 12


@contextmanager
def assembling(folder: Path) -> Iterator[Path]:
    """Make a scratch folder for a set, and remove those of killed runs; it goes unless published.

    Raises HostError when `folder` cannot be written.
    """
    with ExitStack() as stack:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            scratch = stack.enter_context(container.scratch(folder / UNFINISHED, "set"))
        except (OSError, HostError) as exc:
            what = f"{folder}: {exc.strerror}" if isinstance(exc, OSError) else str(exc)
            raise HostError(what, hint="choose a folder you can write: --wheelhouse DIR") from exc
        yield scratch


def publish(scratch: Path, manifest: Manifest, record: BuildRecord | None) -> tuple[Path, bool]:
    """Turn a scratch folder with the set's wheels into a wheelhouse; move `current` to it.

    Returns its path, and whether it is new: the same wheels from the same sources are the same
    wheelhouse, which stays as it is. Raises WheelError when the folder holds other files than the
    manifest lists.
    """
    folder = scratch.parent.parent
    here = {file.name for file in scratch.iterdir()}
    listed = {wheel.filename for wheel in manifest.built}
    if here != listed:
        raise WheelError(
            f"wheelhouse: unexpected {sorted(here - listed)}, missing {sorted(listed - here)}",
            hint="this is a bug: the files and the manifest must agree",
        )
    target = folder / manifest.sha256[:IDENTITY_LENGTH]
    if record:  # a derived set was not built
        (scratch / BUILD_RECORD).write_bytes(record.to_bytes())
    (scratch / MANIFEST).write_bytes(manifest.to_bytes())
    lines = Install.of(manifest, "", folder=".").requirements
    (scratch / REQUIREMENTS).write_text(lines, encoding="utf-8")
    try:
        scratch.rename(target)
        is_new = True
    except OSError:  # not empty: an earlier run, or one beside us, made the same set
        check(target, manifest)
        is_new = False
    fresh = folder / f".{CURRENT}-{os.getpid()}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target.name)
    fresh.replace(folder / CURRENT)  # in one step
    return target, is_new


def check(folder: Path, manifest: Manifest) -> None:
    """Compare a wheelhouse with its manifest, bytes included. Raises WheelError."""
    for wheel in manifest.built:
        path = folder / wheel.filename
        with named(path, WheelError, hint=f"remove {folder} and build again"):
            digest = files.sha256(path)
        if digest != wheel.sha256:
            raise WheelError(
                f"{path}: SHA-256 is {digest}, the manifest says {wheel.sha256}",
                hint=f"the file was changed: remove {folder} and build again",
            )
