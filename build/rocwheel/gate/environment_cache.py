"""Kept environments: one for the same wheels, requirements, interpreter and ROCm, used again.

    environments/<key>-<random>/      env/, what was asked of pip, and last of all environment.json
    locks/<key>.lock                  held by who looks for one, or makes one
    locks/<key>-<random>.lock         shared by who uses it; its time is that of the last use

The key is a digest of all that goes in. Before an environment is used again every file of it is
hashed and held against what was there when it was made, pip checks it, and pip is asked what it
would install today: only where that is nothing is it what a fresh one would be. One that was
interrupted has no environment.json and is removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from rocwheel import files
from rocwheel.console import Console
from rocwheel.errors import ConfigError, StoreError
from rocwheel.gate import environment
from rocwheel.gate.environment import Environment, InstallPlan
from rocwheel.gate.request import Host
from rocwheel.gate.setup_errors import InfraError
from rocwheel.gate.subject import WheelsUnderTest
from rocwheel.host.machine import Interpreter
from rocwheel.ledger import manifests
from rocwheel.values import Value, canonical_json

FOLDER: Final = "gate/environments"
LOCKS: Final = "gate/locks"
MARK: Final = "environment.json"
POLL_SECONDS: Final = 0.5
KEY_DIGITS: Final = 24


class _Made(Value, frozen=True, kw_only=True):
    """What was there when an environment was finished."""

    made: str  # when
    milliseconds: int  # it took
    site: str
    packages: tuple[str, ...]
    files: dict[str, str]  # path below the folder -> SHA-256, `-> target` of a link, `mode …`


@dataclass(frozen=True, kw_only=True)
class EnvironmentInputs:
    """All that an environment is made of."""

    wheels: WheelsUnderTest
    interpreter: Interpreter
    rocm: Path | None
    environ: Mapping[str, str]
    plan: Callable[[Path], InstallPlan]  # of a folder

    @property
    def key(self) -> str:
        """A digest of it; where the wheels lie does not matter, what is in them does."""
        binary = Path(str(self.interpreter.executable)).resolve()
        asked = self.plan(Path("/"))
        return files.sha256(
            canonical_json(
                {
                    "wheels": sorted([w.filename, w.sha256] for w in self.wheels.wheels),
                    "requirements": asked.requirements,
                    "interpreter": [
                        str(self.interpreter.executable),
                        self.interpreter.full,
                        files.sha256(binary),
                    ],
                    "rocm": str(self.rocm or ""),
                    "pip": sorted([k, v] for k, v in self.environ.items() if k.startswith("PIP_")),
                }
            )
        )[:KEY_DIGITS]


@dataclass(frozen=True, kw_only=True)
class PreparedEnvironment:
    """An environment that is ready, and how it came to be."""

    environment: Environment
    how: str
    _folder: Path
    _states: Mapping[str, tuple[int, ...]] = field(repr=False)

    def changed(self) -> str:
        """Return the first file that is not what it was before the tests, "" when there is none.

        Its inode and times tell (`ctime` cannot be set back). Nobody uses the environment again.
        """
        now = states(self._folder)
        for name in sorted({*now, *self._states}):
            if now.get(name) != self._states.get(name):
                files.remove(self._folder / MARK)
                return name
        return ""


@contextmanager
def prepared(
    asked: EnvironmentInputs, host: Host, console: Console, *, log: Path, left: Callable[[], float]
) -> Iterator[PreparedEnvironment]:
    """Find or make the environment; while the block lasts, no process removes it.

    Raises InfraError, WrongWheelsError.
    """
    _check(asked.wheels)
    key = asked.key
    folder, locks = (host.cache / FOLDER).resolve(), host.cache / LOCKS
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(locks / f"{key}.lock", host, console, left=left):
        found = _find(asked, folder, key, host, console, log=log, left=left)
        if found is None:
            found = _make(asked, folder, key, host, console, log=log, left=left)
        _remove_others(folder, locks, key, found[0])
        lease = files.locked(locks / f"{found[0].name}.lock", shared=True)
    with lease:
        with suppress(OSError):
            os.utime(lease.descriptor)
        console.info(f"   {found[1].how}")
        yield found[1]


def _check(wheels: WheelsUnderTest) -> None:
    """Raise InfraError for a wheel of this machine that is not what its set names.

    pip would, but installs nothing where an environment is kept.
    """
    for wheel in wheels.wheels:
        if not wheel.url.startswith("file:"):
            continue
        path = Path(unquote(urlsplit(wheel.url).path))
        try:
            there = files.sha256(path)
        except OSError as exc:
            raise InfraError(f"{path}: {exc.strerror}", hint="get the wheel set again") from exc
        if there != wheel.sha256:
            raise InfraError(
                f"{path}: its SHA-256 is {there}, its set says {wheel.sha256}",
                hint="get the wheel set again",
            )


def _alone(path: Path, host: Host, console: Console, *, left: Callable[[], float]) -> files.Lock:
    """Hold a lock as soon as it is free. Raises InfraError when that takes too long."""
    until = host.clock() + left()
    lock = files.try_locked(path)
    if lock is None:
        console.info("   another gate prepares the same environment: waiting for it")
    while lock is None:
        if host.clock() > until:
            raise InfraError(
                "the environment is still being prepared by another gate",
                hint=f"see who holds it: fuser -v {path}",
            )
        host.sleep(POLL_SECONDS)
        lock = files.try_locked(path)
    return lock


def _find(
    asked: EnvironmentInputs,
    folder: Path,
    key: str,
    host: Host,
    console: Console,
    *,
    log: Path,
    left: Callable[[], float],
) -> tuple[Path, PreparedEnvironment] | None:
    """Return a kept environment that is whole and what a fresh one would be."""
    for kept in sorted(folder.glob(f"{key}-*"), key=_made_at, reverse=True):
        started = host.clock()
        try:
            made = _Made.from_bytes((kept / MARK).read_bytes(), name=MARK)
        except (OSError, ConfigError):
            continue
        seen = states(kept)
        problem = difference(made.files, _digests(kept)) or environment.outdated(
            asked.plan(kept), runner=host.runner, log=log, left=left
        )
        if problem:
            console.info(f"   a kept environment is not used again: {problem}")
            continue
        how = (
            f"kept, as it was made {made.made}: {len(made.files):,} files and what pip would "
            f"install verified in {host.clock() - started:.1f} s"
        )
        return kept, _prepared(asked.plan(kept), made, how, kept, seen)
    return None


def _make(
    asked: EnvironmentInputs,
    folder: Path,
    key: str,
    host: Host,
    console: Console,
    *,
    log: Path,
    left: Callable[[], float],
) -> tuple[Path, PreparedEnvironment]:
    """Make one; what is begun and not finished has no mark."""
    target = folder / f"{key}-{os.urandom(4).hex()}"
    target.mkdir()
    started = host.clock()
    planned = asked.plan(target)
    try:
        _bring(asked.wheels, target / environment.BROUGHT, console)
        fresh = environment.make(
            planned, runner=host.runner, rocm=asked.rocm, console=console, log=log, left=left
        )
        files.remove(target / environment.BROUGHT)
        made = _Made(
            made=host.now().strftime("%Y-%m-%d %H:%M:%S %Z").strip(),
            milliseconds=round(1000 * (host.clock() - started)),
            site=str(fresh.site),
            packages=fresh.packages,
            files=_digests(target),
        )
        seen = states(target)
        files.write(target / MARK, made.to_bytes())
    except BaseException:
        files.remove(target)
        raise
    how = f"made in {made.milliseconds / 1000:.1f} s: {len(fresh.packages)} packages"
    return target, _prepared(planned, made, how, target, seen)


def _bring(wheels: WheelsUnderTest, folder: Path, console: Console) -> None:
    """Download the wheels of a store by digest; pip has no credentials. Raises InfraError."""
    if wheels.place is None or not wheels.stored:
        return
    try:
        with console.step(f"{len(wheels.stored)} wheels from {wheels.place.location}"):
            manifests.bring(wheels.place, wheels.stored, folder)
    except StoreError as exc:
        raise InfraError(f"{exc}: the wheels could not be brought", hint=exc.hint) from exc


def _prepared(
    planned: InstallPlan, made: _Made, how: str, folder: Path, states: Mapping[str, tuple[int, ...]]
) -> PreparedEnvironment:
    found = Environment(python=planned.python, site=Path(made.site), packages=made.packages)
    return PreparedEnvironment(environment=found, how=how, _folder=folder, _states=states)


def _remove_others(folder: Path, locks: Path, key: str, used: Path) -> None:
    """Remove what was interrupted, is damaged or out of date, and unused."""
    for other in folder.glob(f"{key}-*"):
        lease = files.try_locked(locks / f"{other.name}.lock") if other != used else None
        if lease is not None:
            with lease:
                files.remove(other)


def _made_at(folder: Path) -> float:
    about = files.status(folder / MARK)
    return about.st_mtime if about else 0.0


def difference(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return the first file that differs, "" when none does."""
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            what = "was added" if name not in before else "differs" if name in now else "is gone"
            return f"{name} {what}"
    return ""


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    pending = [str(folder)]
    while pending:
        with os.scandir(pending.pop()) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif entry.name != MARK:
                    yield entry


def _digests(folder: Path) -> dict[str, str]:
    """Return every file of a folder by what is in it, every link by where it goes."""
    start = len(str(folder)) + 1
    return {entry.path[start:]: _content(entry) for entry in _entries(folder)}


def _content(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return f"-> {Path(entry.path).readlink()}"
    if not entry.is_file():  # a pipe, which would be waited for
        return f"mode {entry.stat(follow_symlinks=False).st_mode:o}"
    return files.sha256(Path(entry.path))


def states(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return every file of a folder with what changes when it is written to."""
    start = len(str(folder)) + 1
    found: dict[str, tuple[int, ...]] = {}
    for entry in _entries(folder):
        about = entry.stat(follow_symlinks=False)
        found[entry.path[start:]] = (
            about.st_ino,
            about.st_size,
            about.st_mtime_ns,
            about.st_ctime_ns,
        )
    return found
