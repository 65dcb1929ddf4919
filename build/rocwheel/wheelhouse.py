"""Wheelhouses: folders with a wheel set and its manifest, which appear whole or not at all.

`<folder>/<first 12 of the manifest's SHA-256>/` holds the wheels, `manifest.json` and
`build.json`; `<folder>/current` is a symbolic link to the newest complete one and moves last.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rocwheel import files
from rocwheel.build_record import BUILD_RECORD, BuildRecord
from rocwheel.errors import HostError, WheelError
from rocwheel.manifest import MANIFEST, Manifest

CURRENT: Final = "current"
IDENTITY_LENGTH: Final = 12


@contextmanager
def assembling(folder: Path) -> Iterator[Path]:
    """Make a scratch folder beside the wheelhouses; remove it unless `publish` moved it.

    Raises HostError when `folder` cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix=".unfinished-", dir=folder)
    except OSError as exc:
        raise HostError(
            f"{folder}: {exc.strerror}", hint="choose a folder you can write: --wheelhouse DIR"
        ) from exc
    path = folder / os.path.basename(scratch)  # noqa: PTH119
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def publish(scratch: Path, manifest: Manifest, record: BuildRecord) -> tuple[Path, bool]:
    """Turn a scratch folder with the set's wheels into a wheelhouse; move `current` to it.

    Returns its path, and whether it is new: the same wheels from the same sources are the same
    wheelhouse, which stays as it is. Raises WheelError when the folder holds other files than the
    manifest lists.
    """
    folder = scratch.parent
    here = {file.name for file in scratch.iterdir()}
    listed = {wheel.filename for wheel in manifest.built}
    if here != listed:
        raise WheelError(
            f"wheelhouse: unexpected {sorted(here - listed)}, missing {sorted(listed - here)}",
            hint="this is a bug: the files and the manifest must agree",
        )
    target = folder / manifest.sha256[:IDENTITY_LENGTH]
    (scratch / BUILD_RECORD).write_bytes(record.to_bytes())
    (scratch / MANIFEST).write_bytes(manifest.to_bytes())
    scratch.chmod(0o755)  # mkdtemp made it private
    try:
        scratch.rename(target)
        is_new = True
    except OSError:  # not empty: an earlier run, or one beside us, made the same set
        check(target, manifest)
        is_new = False
    _point(folder / CURRENT, target.name)
    return target, is_new


def check(folder: Path, manifest: Manifest) -> None:
    """Compare a wheelhouse with its manifest, bytes included. Raises WheelError."""
    for wheel in manifest.built:
        path = folder / wheel.filename
        try:
            digest = files.sha256(path)
        except OSError as exc:
            raise WheelError(
                f"{path}: {exc.strerror}", hint=f"remove {folder} and build again"
            ) from exc
        if digest != wheel.sha256:
            raise WheelError(
                f"{path}: SHA-256 is {digest}, the manifest says {wheel.sha256}",
                hint=f"the file was changed: remove {folder} and build again",
            )


def _point(link: Path, name: str) -> None:
    """Replace a symbolic link in one step."""
    fresh = link.with_name(f".{link.name}-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(name)
    fresh.replace(link)
