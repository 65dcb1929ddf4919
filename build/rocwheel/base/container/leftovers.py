"""What runs that were cut short left: containers, names of images, folders of ended processes.

`leftovers` lists all of it, for `doctor`, which shows it, and `image prune`, which removes it.
"""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from rocwheel.base.container import folders
from rocwheel.base.container.engine import ContainerEngine, EngineKind
from rocwheel.base.container.owner import is_alive, owner
from rocwheel.base.container.spec import LABEL
from rocwheel.base.errors import CommandError, RocwheelError
from rocwheel.base.process import Runner
from rocwheel.base.values import Plain

BASES: Final = "localhost/rocwheel-base"
_OWNED: Final = r"([0-9]+\.[0-9]+\.[0-9a-f-]+\.[0-9]+\.[0-9a-f]+)"
_NAME: Final = re.compile(rf"{BASES}-{_OWNED}:[0-9a-f]+")
# How Podman calls what a Dockerfile's steps run in: after the image it starts from.
_STEPS: Final = re.compile(rf"{BASES.rpartition('/')[2]}-{_OWNED}-working-container(-[0-9]+)?")
LIVING: Final = frozenset({"running", "paused"})
ENDED: Final = frozenset({"exited", "stopped", "dead"})


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
            for path in folders.abandoned(cache / folders.PLACE)
        ),
    )


def remove(
    engine: ContainerEngine, items: Sequence[Leftover], *, cache: Path, runner: Runner
) -> None:
    """Remove leftovers, and nothing else."""
    for item in items:
        if item.kind == "container":
            runner.run(engine.remove(item.identity), check=False)
        elif item.kind == "name":
            untag(engine, item.identity, runner=runner)
    folders.clear(cache / folders.PLACE)


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
    """Yield those with our label that have ended, or whose process has; not one that is kept."""
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
