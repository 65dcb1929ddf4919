"""What a container is started with, as a value, and the engine's command line for it."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Final, TypeVar

from rocwheel.base import files
from rocwheel.base.container.engine import ContainerEngine, EngineKind
from rocwheel.base.errors import HostError
from rocwheel.base.process import Command, GuestPath, guest
from rocwheel.base.values import Plain, replace

_Path = TypeVar("_Path", bound=PurePath)
LABEL: Final = "org.rocwheel"
HOME: Final = guest("/rocwheel/home")
RUN: Final = guest("/rocwheel/run")  # read-only: token, passwd, group
TEMPORARY: Final = ("/tmp", "/var/tmp", "/run", "/rocwheel/groups", str(HOME))  # noqa: S108 - inside, in memory
# The first process says the token, by which we know that our folders are the ones it sees, and
# then reads a pipe whose other end is ours: when we end, it ends, and with it the container.
FIRST: Final = 'cat "$0" && exec cat > /dev/null'
# A kept container outlives us: it ends when a file was not touched for the minutes it holds, and
# takes its token along. Each turn shares a lock on that file, however long it sleeps (Ctrl-Z, a
# laptop). Without `flock` it stays until it was asked for the token, with `flock`.
KEPT: Final = (
    'exec 3<> "$1"; flock -s 3 || { sleep 60; exit; }; '
    'until flock -n 3 && test -z "$(find "$1" -mmin "-$(cat "$1")")"; '
    'do flock -n 3 || touch "$1"; flock -u 3; touch "${0%/*}"; sleep 5; done; rm "$0"'
)


class Mount(Plain, frozen=True, kw_only=True):
    """A folder or file of this machine, and where it is seen inside."""

    host: Path
    guest: GuestPath
    writable: bool = False

    @property
    def option(self) -> str:
        """For `--mount`: comma-separated, quoted as CSV where a path has a comma."""
        parts = ["type=bind", f"source={self.host}", f"target={self.guest}"]
        if not self.writable:
            parts.append("readonly")
        line = io.StringIO()
        csv.writer(line, lineterminator="").writerow(parts)
        return line.getvalue()


class User(Plain, frozen=True, kw_only=True):
    """Who commands inside run as: the caller, so that files they make are the caller's."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    name: str = "builder"

    @property
    def passwd(self) -> str:
        own = f"{self.name}:x:{self.uid}:{self.gid}::{HOME}:/bin/sh\n"
        return own if self.uid == 0 else f"root:x:0:0:root:/root:/bin/sh\n{own}"

    @property
    def group(self) -> str:
        numbers = dict.fromkeys((0, self.gid, *self.groups))
        names = {0: "root", self.gid: self.name if self.gid else "root"}
        return "".join(f"{names.get(gid, f'g{gid}')}:x:{gid}:\n" for gid in numbers)


class ContainerLimits(Plain, frozen=True, kw_only=True):
    cpus: str = ""  # "" is no limit
    memory: str = ""
    shm: str = "1g"
    files: int = 4096  # open files: what the caller may have
    processes: int = 4096


class DeviceNode(Plain, frozen=True, kw_only=True):
    """A device node passed through, and the group that owns it here, by number."""

    path: Path
    gid: int


class ContainerSpec(Plain, frozen=True, kw_only=True):
    """One container: image, folders, user, limits. `run` names it and everything about it."""

    engine: ContainerEngine
    image: str  # what the engine is asked for: an id or a reference by digest
    run: str
    folder: Path  # of this run, on this machine: token, passwd and group lie there
    mounts: tuple[Mount, ...] = ()
    user: User
    env: Mapping[str, str] = {}
    network: str = "none"
    limits: ContainerLimits = ContainerLimits()
    devices: tuple[DeviceNode, ...] = ()
    # lift what keeps Bazel's linux-sandbox from its mounts and namespaces:
    # https://github.com/bazelbuild/bazel/issues/1972
    sandbox: bool = False
    owner: str = ""  # the process it belongs to, so that leftovers are found
    purpose: str = "build"
    keep_minutes: int = 0  # outlive us, until idle for so long

    @property
    def name(self) -> str:
        return f"rocwheel-{self.run}"

    @property
    def all_mounts(self) -> tuple[Mount, ...]:
        """The given ones and our own: where commands see who they are."""
        own = [Mount(host=self.folder, guest=RUN, writable=bool(self.keep_minutes))]
        own += [
            Mount(host=self.folder / name, guest=guest(f"/etc/{name}"))
            for name in ("passwd", "group")
        ]
        return (*own, *self.mounts)

    @property
    def files(self) -> Mapping[str, str]:
        """Names and contents of the files that must lie in `folder` before the start."""
        alive = {"alive": f"{self.keep_minutes}\n"} if self.keep_minutes else {}
        own = {"token": f"{self.run}\n", "passwd": self.user.passwd, "group": self.user.group}
        return own | alive

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels that mark it as ours, and the process that started it."""
        owner = {f"{LABEL}.owner": self.owner} if self.owner else {}
        kept = {f"{LABEL}.kept": self.key} if self.keep_minutes else {}
        return {f"{LABEL}.run": self.run, f"{LABEL}.purpose": self.purpose, **owner, **kept}

    @property
    def key(self) -> str:
        """Everything that is asked of it: the identity of a kept container.

        Folders count by device and number: a container goes on seeing one that was replaced by
        another of its name, or a link's former target.
        """
        asked = replace(self, run="", folder=self.folder.parent, owner="", keep_minutes=0)
        there = [files.status(item.host) for item in self.mounts]
        which = [f"{about.st_dev} {about.st_ino}" if about else "" for about in there]
        return files.sha256("\0".join([*asked.start.argv, *which]).encode())[:12]

    @property
    def start(self) -> Command:
        """The engine's `run`: with the caller's rights and no others, on a read-only root."""
        kept = (KEPT, f"{RUN}/token", f"{RUN}/alive")
        first = kept if self.keep_minutes else (FIRST, f"{RUN}/token")
        return self.engine.command("run", *self._options(), self.image, "-c", *first)

    @property
    def start_by_hand(self) -> Command:
        """The engine's `run` to paste into a shell: in the background, until it is removed."""
        if self.keep_minutes:
            return self.start
        options = ("--detach" if word == "--interactive" else word for word in self._options())
        return self.engine.command("run", *options, self.image, "-c", "exec sleep 2147483647")

    @property
    def end_by_hand(self) -> tuple[Command, ...]:
        """For a dry run: commands that remove what the lines before them started and wrote."""
        return self.engine.remove(self.name), Command(argv=("rm", "-r", str(self.folder)))

    @property
    def take_name(self) -> Command:
        """The engine's `create` of a container that is never started, for its name alone."""
        return self.engine.command(
            "create", *self._names(), "--network=none", self.image, "/bin/sh", timeout=60
        )

    def execute(
        self, command: Command, number: int, *, interactive: bool = False, tty: bool = False
    ) -> Command:
        """Return the engine's `exec` of a command; its process group is noted under `number`."""
        env = [f"--env={name}={value}" for name, value in sorted(command.env.items())]
        return Command(
            argv=(
                self.engine.program,
                "exec",
                *(("--interactive",) if interactive else ()),
                *(("--tty",) if tty else ()),
                *((f"--workdir={command.cwd}",) if command.cwd else ()),
                *env,
                self.name,
                *("/bin/sh", "-c", 'echo $$ > "/rocwheel/groups/$0"; exec "$@"', str(number)),
                *command.argv,
            ),
            env=self.engine.env,
            timeout=command.timeout,
        )

    def end(self, number: int, signal: str, *, leader: bool = False) -> Command:
        """Return the `exec` that signals the process group of the command started as `number`.

        Ending the client of an `exec` does not end what it started. With `leader` only the
        group's first process gets the signal.
        """
        script = f'kill -s "$1" -- "{"" if leader else "-"}$(cat "/rocwheel/groups/$0")"'
        return self.engine.command(
            "exec", self.name, "/bin/sh", "-c", script, str(number), signal, timeout=30
        )

    @property
    def prepare(self) -> Iterator[Command]:
        """For a dry run: commands that write what `folder` must hold."""
        written = (str(item.host) for item in self.mounts if item.writable)
        yield Command(argv=("mkdir", "-p", str(self.folder), *written))
        for name, text in self.files.items():  # a line is a word: newlines cannot be pasted
            script = 'printf "%s\\n" "$@" > "$0"'
            yield Command(argv=("sh", "-c", script, str(self.folder / name), *text.splitlines()))

    def guest(self, host: Path) -> GuestPath:
        """Return where commands see `host`. Raises HostError when no mount covers it."""
        pairs = [(item.host, item.guest) for item in self.all_mounts]
        return GuestPath(_moved(host, pairs, "is not mounted in the container"))

    def host(self, guest: GuestPath) -> Path:
        """Return where `guest` lies on this machine. Raises HostError when it is only inside."""
        pairs = [(item.guest, item.host) for item in self.all_mounts]
        return _moved(guest, pairs, "exists only in the container")

    def _options(self) -> Iterator[str]:
        engine, user = self.engine, self.user
        yield "--detach" if self.keep_minutes else "--interactive"
        yield from ("--rm", "--read-only", "--init")
        yield from self._names()
        yield f"--network={self.network}"
        if engine.kind is EngineKind.PODMAN and engine.rootless:
            yield "--userns=keep-id"
        inside = 0 if engine.kind is EngineKind.DOCKER and engine.rootless else user.uid
        yield f"--user={inside}:{user.gid if inside == user.uid else 0}"
        devices = (item.gid for item in self.devices)
        yield from (f"--group-add={gid}" for gid in dict.fromkeys((*user.groups, *devices)))
        yield "--cap-drop=ALL"
        yield "--security-opt=no-new-privileges"
        yield "--security-opt=label=disable"
        if self.sandbox:
            masked = "systempaths=unconfined" if engine.kind is EngineKind.DOCKER else "unmask=ALL"
            yield from ("--security-opt=seccomp=unconfined", f"--security-opt={masked}")
        yield from (f"--tmpfs={path}:rw,exec,nosuid,mode=1777" for path in TEMPORARY)
        limits = self.limits
        yield f"--shm-size={limits.shm}"
        yield f"--ulimit=nofile={limits.files}:{limits.files}"
        yield f"--ulimit=nproc={limits.processes}:{limits.processes}"
        yield "--ulimit=core=0:0"
        if limits.cpus:
            yield f"--cpus={limits.cpus}"
        if limits.memory:
            yield f"--memory={limits.memory}"
        yield from (f"--device={item.path}" for item in self.devices)
        env = {"HOME": str(HOME), "LANG": "C.UTF-8", "USER": user.name, **self.env}
        yield from (f"--env={name}={value}" for name, value in sorted(env.items()))
        yield from (f"--mount={item.option}" for item in self.all_mounts)
        yield "--entrypoint=/bin/sh"

    def _names(self) -> Iterator[str]:
        yield f"--name={self.name}"
        yield from (f"--label={name}={value}" for name, value in self.labels.items())
        yield "--pull=never"


def _moved(path: PurePath, pairs: Iterable[tuple[PurePath, _Path]], problem: str) -> _Path:
    """Return `path` below the second of the pair whose first is the nearest folder above it."""
    above = [pair for pair in pairs if path.is_relative_to(pair[0])]
    if not above:
        hint = "this is a bug: what is named inside and outside must lie in a mounted folder"
        raise HostError(f"{path}: {problem}", hint=hint)
    folder, other = max(above, key=lambda pair: len(pair[0].parts))
    return other / path.relative_to(folder)


def devices(root: Path = Path("/")) -> tuple[DeviceNode, ...]:
    """Return the AMD GPU nodes of this machine (kfd, dri), with the groups that own them here."""
    nodes = [root / "dev" / "kfd", *sorted((root / "dev" / "dri").glob("[cr]*"))]
    return tuple(
        DeviceNode(path=Path("/") / node.relative_to(root), gid=node.stat().st_gid)
        for node in nodes
        if node.exists()
    )
