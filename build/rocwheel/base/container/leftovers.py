"""Which process containers, names of images and folders belong to, and what killed runs left.

Each object names its process, so that others can see whether that still runs. `leftovers` lists
what has no user any more; `doctor` shows it, and `image prune` removes it. Folders lie beside each
other in the cache, which several users and machines may share.
"""

import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

from rocwheel.base import files
from rocwheel.base.container.engine import ContainerEngine, EngineKind
from rocwheel.base.container.spec import LABEL
from rocwheel.base.errors import ANOTHER_CACHE, CommandError, HostError, RocwheelError
from rocwheel.base.process import Runner
from rocwheel.base.values import Plain

FIELDS: Final = 5  # of what names a process
PLACE: Final = "containers"  # in the cache
LOCK: Final = "kept.lock"  # there, while a container to keep is looked for or started
CLAIM: Final = ".owner"
DAY: Final = 86400.0
BASES: Final = "localhost/rocwheel-base"
_OWNED: Final = r"([0-9]+\.[0-9]+\.[0-9a-f-]+\.[0-9]+\.[0-9a-f]+)"
_NAME: Final = re.compile(rf"{BASES}-{_OWNED}:[0-9a-f]+")
# How Podman calls what a Dockerfile's steps run in: after the image it starts from.
_STEPS: Final = re.compile(rf"{BASES.rpartition('/')[2]}-{_OWNED}-working-container(-[0-9]+)?")
LIVING: Final = frozenset({"running", "paused"})
ENDED: Final = frozenset({"exited", "stopped", "dead"})


def owner(pid: int | None = None) -> str:
    """Identify this process over time and machines: id, start, boot, PID namespace, machine."""
    pid = os.getpid() if pid is None else pid
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    started = stat.rpartition(")")[2].split()[19]
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{pid}:{started}:{boot}:{Path('/proc/self/ns/pid').stat().st_ino}:{_machine()}"


def _machine() -> str:
    """Identify this machine across reboots; its host name alone may be another's, too."""
    try:
        identity = Path("/etc/machine-id").read_bytes()  # machine-id(5); containers have none
    except OSError:
        identity = b""
    return files.sha256(os.uname().nodename.encode() + b"\0" + identity)[:12]


def is_alive(mark: str) -> bool | None:
    """Return whether the process that `owner` described still runs.

    None for one that cannot be seen from here: a job container that shares this machine's engine
    counts its processes by itself, another machine may share a folder or lend its engine, and other
    users' processes may be hidden (proc(5), `hidepid`).
    """
    fields = mark.split(":")
    if len(fields) != FIELDS or not fields[0].isdigit():
        return None
    pid, _, boot, space, machine = fields
    _, _, boot_here, space_here, here = owner().split(":")
    if boot != boot_here:  # no process outlives its machine's boot
        return False if machine == here else None
    if space != space_here:
        return None
    with suppress(OSError):
        return owner(int(pid)) == mark
    try:
        os.kill(int(pid), 0)  # /proc does not show each one that there is
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return None


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
    """Return a new scratch folder of this process. Raises as `claimed`."""
    return claimed(place / f"{what}-{secrets.token_hex(6)}")


def abandoned(place: Path) -> tuple[Path, ...]:
    """Return unused folders: of a process that ended, or that no process claims.

    Kept containers touch the latter, and lines of a dry run make some: they go a day after their
    last use.
    """
    try:
        entries = files.entries(place)
    except OSError:  # of another user: nothing there is ours
        return ()
    names = {item.name.removesuffix(CLAIM) for item in entries if item.name.endswith(CLAIM)}
    names |= {item.name for item in entries if item.is_dir()}
    return tuple(folder for folder in (place / name for name in sorted(names)) if _idle(folder))


def clear(place: Path) -> None:
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


class Leftover(Plain, frozen=True, kw_only=True):
    """A container, a name of an image, or a folder whose process has ended."""

    kind: str
    identity: str  # by which it is removed
    name: str  # by which people know it


def leftovers(engine: ContainerEngine, *, cache: Path, runner: Runner) -> tuple[Leftover, ...]:
    """List containers, names and folders of ours whose process has ended, engine and cache.

    Objects of processes that cannot be seen from here are left out, unless they have ended.
    """
    return (
        *_containers(engine, runner),
        *_steps(engine, runner),
        *(
            Leftover(kind="name", identity=name, name=name)
            for name in runner.capture(
                engine.command("images", "--format={{.Repository}}:{{.Tag}}")
            ).split()
            if (match := _NAME.fullmatch(name)) and _is_gone(match[1])
        ),
        *(
            Leftover(kind="folder", identity=str(path), name=str(path))
            for path in abandoned(cache / PLACE)
        ),
    )


def remove(
    engine: ContainerEngine, items: Sequence[Leftover], *, cache: Path, runner: Runner
) -> None:
    for item in items:
        if item.kind == "container":
            runner.run(engine.remove(item.identity), check=False)
        elif item.kind == "name":
            untag(engine, item.identity, runner=runner)
    clear(cache / PLACE)


def base_name(config: str) -> str:
    """Return a name for an image of this configuration that says which process needs it."""
    digest = config.partition(":")[2] or config
    return f"{BASES}-{owner().replace(':', '.')}:{digest[:12]}"


def untag(engine: ContainerEngine, name: str, *, runner: Runner) -> None:
    """Take a name from an image, and never the image, which may have no other.

    Docker removes an image with its last name. So there the name goes to an empty image first:
    https://docs.docker.com/build/building/base-images/#create-a-minimal-base-image-using-scratch
    """
    if engine.kind is EngineKind.PODMAN:
        runner.run(engine.command("untag", name, name), check=False)
        return
    with suppress(RocwheelError):  # then the name stays, and is found
        empty = runner.capture(engine.command("import", "/dev/null", name)).strip()
        runner.run(engine.command("rmi", empty), check=False)


def _containers(engine: ContainerEngine, runner: Runner) -> Iterator[Leftover]:
    labelled = engine.command("ps", "--all", "--quiet", "--no-trunc", f"--filter=label={LABEL}.run")
    for asked in runner.capture(labelled).split():
        try:  # one at a time: one that goes away meanwhile is no reason to know nothing
            (item,) = json.loads(runner.capture(engine.command("inspect", asked)))
        except CommandError:
            continue
        labels = item.get("Config", {}).get("Labels") or {}
        state = item.get("State", {}).get("Status", "")
        alive = is_alive(labels.get(f"{LABEL}.owner", ""))
        if f"{LABEL}.kept" in labels and state in LIVING:
            continue
        if alive is False or (alive is None and state in ENDED):
            name = item.get("Name", "").lstrip("/")
            yield Leftover(kind="container", identity=item["Id"], name=name)


def _steps(engine: ContainerEngine, runner: Runner) -> Iterator[Leftover]:
    """Where a killed `podman build` ran its steps; Docker's daemon clears that away itself."""
    if engine.kind is not EngineKind.PODMAN:
        return
    asked = ("ps", "--all", "--external", "--no-trunc", "--format={{.ID}} {{.Names}}")
    for line in runner.capture(engine.command(*asked)).splitlines():
        identity, _, name = line.partition(" ")
        if (match := _STEPS.fullmatch(name)) and _is_gone(match[1]):
            yield Leftover(kind="container", identity=identity, name=name)


def _is_gone(mark: str) -> bool:
    return is_alive(mark.replace(".", ":")) is False
