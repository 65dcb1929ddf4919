"""Folders that containers and images are made from: each goes with the process that made it.

They lie beside each other in the cache, which several users' processes and machines may share.
"""

import secrets
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

from rocwheel.base import files
from rocwheel.base.container.owner import is_alive, owner
from rocwheel.base.errors import ANOTHER_CACHE, HostError

PLACE: Final = "containers"  # in the cache
LOCK: Final = "kept.lock"  # there, while a container to keep is looked for or started
CLAIM: Final = ".owner"
DAY: Final = 86400.0


@contextmanager
def claimed(folder: Path) -> Iterator[Path]:
    """Make a folder until the block ends; remove those that ended processes left beside it.

    A link beside it names the process: it is there before the folder and goes after it, so a kill
    at any moment leaves nothing without a name. Raises HostError.
    """
    claim = _claim(folder)
    with refusing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        clear(folder.parent)
        claim.symlink_to(owner())
    try:
        with refusing(folder):
            folder.mkdir(mode=0o755, exist_ok=True)
        yield folder
    finally:
        with suppress(OSError):  # the next one tries again
            _remove(folder)


def scratch(place: Path, what: str) -> AbstractContextManager[Path]:
    """Return a new folder of this process for what something is made from. Raises as `claimed`."""
    return claimed(place / f"{what}-{secrets.token_hex(6)}")


def abandoned(place: Path) -> tuple[Path, ...]:
    """Return unused folders: of a process that ended, or that no process claims.

    The latter are those of kept containers, which touch them, and what a dry run's lines made: a
    day after the last use.
    """
    try:
        entries = files.entries(place)
    except OSError:  # of another user: nothing there is ours
        return ()
    names = {item.name.removesuffix(CLAIM) for item in entries if item.name.endswith(CLAIM)}
    names |= {item.name for item in entries if item.is_dir()}
    return tuple(folder for folder in (place / name for name in sorted(names)) if _idle(folder))


def clear(place: Path) -> None:
    """Remove what `abandoned` finds."""
    for folder in abandoned(place):
        with suppress(OSError):
            _remove(folder)


def _claim(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}{CLAIM}")


def _idle(folder: Path) -> bool:
    claim = _claim(folder)
    try:
        return is_alive(str(claim.readlink())) is False
    except FileNotFoundError:
        pass
    except OSError:
        return False
    used = files.status(folder)
    return used is not None and time.time() - used.st_mtime > DAY


def _remove(folder: Path) -> None:
    files.remove(folder)
    _claim(folder).unlink(missing_ok=True)


@contextmanager
def refusing(folder: Path) -> Iterator[None]:
    """Raise HostError where the folder of a container cannot be made or written."""
    try:
        yield
    except OSError as exc:
        where = exc.filename2 or exc.filename or folder  # of a link its name, not what it says
        raise HostError(f"{where}: {exc.strerror}", hint=ANOTHER_CACHE) from exc
