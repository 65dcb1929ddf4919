"""A container engine of this machine: which one, how it is called, what its messages mean."""

import json
import platform
import re
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Final, TypeVar

from rocwheel.base.errors import CommandError, HostError
from rocwheel.base.process import Command, Runner
from rocwheel.base.values import Plain

_Meaning = TypeVar("_Meaning")
_HELP: Final = re.compile(r"(See|Run) '\S+ .*help|(Usage|Examples?):", re.IGNORECASE)
_ERROR: Final = re.compile(r"\b(error|invalid argument|failed)\b", re.IGNORECASE)


class Trouble(Enum):
    """What a client can report; the value is the texts that report it, in small letters.

    Engines have no codes for most of what goes wrong. Each text was printed by the engine and
    version in tests/base/container/test_words.py, which has the whole output.
    """

    NO_SPACE = ("no space left",)
    # before its client's first request, and while one is under way
    NO_DAEMON = (
        "cannot connect to the docker daemon", "failed to connect to the docker api",
        "cannot connect to podman", "during connect", "error reading from server",
        "code = unavailable", "closing transport", "\nunexpected eof",
    )  # fmt: skip
    NO_PERMISSION = ("permission denied",)
    CGROUP = ("cgroup",)
    NO_IMAGE = ("no such image", "image not known", "unable to find image")
    NO_MOUNT = ("bind source path", "no such file or directory: ", "mount", "statfs")
    OTHER_ARCHITECTURE = ("exec format error",)
    LIMIT = ("rlimit",)
    NAME_TAKEN = ("already in use",)
    NO_PROGRAM = ("not found", "no such file", "chdir")
    NOT_IN_REGISTRY = ("manifest unknown", "not found")
    NOT_LOGGED_IN = ("denied", "unauthorized")
    # of a build's steps: the programs that our Dockerfiles call, which print it themselves
    NO_PACKAGE_MANAGER = ("neither apt-get nor dnf",)
    NO_NETWORK = (
        "network bridge not found", "could not resolve", "temporary failure resolving",
        "cannot download", "unable to connect",
    )  # fmt: skip
    NO_SHELL = ("/bin/sh: no such file", "exec /bin/sh failed", '"/bin/sh": stat')
    NO_PACKAGE = ("unable to locate package", "no match for argument")

    def is_in(self, output: str) -> bool:
        """Return whether a client that printed `output` reports this."""
        return any(words in output.lower() for words in self.value)


def meaning(output: str, known: Mapping[Trouble | None, _Meaning]) -> _Meaning:
    """Return the entry of `known` for the first trouble in `output`, or the one for None."""
    return known[next((trouble for trouble in known if trouble and trouble.is_in(output)), None)]


def headline(output: str) -> str:
    """Return the line of a client's output that states the error.

    That is the last line with "error" or the like in it, else the last that is no hint on usage.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    rest = [line for line in lines if not _HELP.match(line)]
    errors = [line for line in rest if _ERROR.search(line)]
    return next(iter([*errors[-1:], *rest[-1:], *lines[-1:]]), "")


# What the clients read of the caller's environment: which engine they talk to. By name, since it is
# shown in dry runs and hints, and CI jobs keep passwords in DOCKER_… and CONTAINER_… of their own:
# https://docs.docker.com/reference/cli/docker/#environment-variables, containers.conf(5)
CLIENT_ENV: Final = {
    "docker": (
        "DOCKER_API_VERSION", "DOCKER_CERT_PATH", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_HOST",
        "DOCKER_TLS", "DOCKER_TLS_VERIFY", "XDG_RUNTIME_DIR",
    ),
    "podman": (
        "BUILDAH_FORMAT", "BUILDAH_ISOLATION", "CONTAINERS_CONF", "CONTAINERS_CONF_OVERRIDE",
        "CONTAINERS_REGISTRIES_CONF", "CONTAINERS_STORAGE_CONF", "CONTAINER_CONNECTION",
        "CONTAINER_HOST", "CONTAINER_SSHKEY", "REGISTRY_AUTH_FILE", "XDG_CONFIG_HOME",
        "XDG_DATA_HOME", "XDG_RUNTIME_DIR",
    ),
}  # fmt: skip
CLIENT_HOST: Final = {"docker": "DOCKER_HOST", "podman": "CONTAINER_HOST"}  # of those
ANSWER_SECONDS: Final = 60.0
ARCHITECTURES: Final = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
RUNC: Final = 'runtime = "runc" and cgroup_manager = "cgroupfs" in containers.conf'
PACKAGES: Final = {"docker": "docker.io", "podman": "podman"}  # of Debian and Ubuntu


class EngineKind(Enum):
    DOCKER = "docker"
    PODMAN = "podman"

    @property
    def oldest(self) -> tuple[int, int]:
        """The oldest release that has what is used here: `--mount`, `--init`, BuildKit."""
        return (20, 10) if self is EngineKind.DOCKER else (4, 0)


class ContainerEngine(Plain, frozen=True, kw_only=True):
    """An engine that answered, and what it said about itself."""

    kind: EngineKind
    program: str
    version: str
    architecture: str  # as images name it: amd64
    root: Path  # where it keeps images and volumes
    rootless: bool
    has_buildkit: bool = True  # its client can `build` with BuildKit
    env: Mapping[str, str] = {}  # which its client needs

    def command(self, *arguments: str, timeout: float | None = None) -> Command:
        return Command(argv=(self.program, *arguments), env=self.env, timeout=timeout)

    def remove(self, container: str) -> Command:
        """End a container at once and remove it."""
        now = ("--time=0",) if self.kind is EngineKind.PODMAN else ()
        return self.command("rm", "--force", "--volumes", *now, container, timeout=60)

    def refuse_no_buildkit(self) -> None:
        """Raise HostError for a client that cannot build: our Dockerfiles need BuildKit."""
        if not self.has_buildkit:
            raise HostError(
                f"{self.program}: its client cannot build images: it has no buildx",
                hint="install it (Debian and Ubuntu: docker-buildx; of Docker's own packages: "
                "docker-buildx-plugin), or use podman",
            )

    def __str__(self) -> str:
        return f"{self.kind.value} {self.version}{' (rootless)' if self.rootless else ''}"


def ask(kind: EngineKind, *, environ: Mapping[str, str], runner: Runner) -> ContainerEngine:
    """Ask an engine who it is, and refuse one that cannot be used.

    Raises HostError: no client, no answer, no permission, too old, another machine, another
    architecture.
    """
    env = {name: environ[name] for name in CLIENT_ENV[kind.value] if name in environ}
    program, name = kind.value, CLIENT_HOST[kind.value]
    if (address := env.get(name, "")) and not address.startswith(("unix://", "fd://")):
        raise _elsewhere(program, f"{name}={address}")
    command = Command(
        argv=(program, "info", "--format", "{{json .}}"), env=env, timeout=ANSWER_SECONDS
    )
    try:
        said = runner.capture(command)
    except HostError as exc:
        hint = f"install it (Debian and Ubuntu: {PACKAGES[program]})"
        raise HostError(f"{program}: no such program", hint=hint) from exc
    except CommandError as exc:
        raise _unusable(kind, exc.detail or str(exc)) from exc
    try:
        document = json.loads(said)
    except ValueError as exc:
        raise HostError(
            f"{program}: does not say what it is: {said[:80]!r}", hint=f"try: {program} info"
        ) from exc
    if errors := document.get("ServerErrors"):  # newer clients answer for themselves, status 0
        raise _unusable(kind, "; ".join(errors))
    facts = _docker(document) if kind is EngineKind.DOCKER else _podman(document)
    engine = ContainerEngine(kind=kind, program=program, env=env, **facts)
    match = re.match(r"(\d+)\.(\d+)", engine.version)
    if match is None or (int(match[1]), int(match[2])) < kind.oldest:
        oldest = ".".join(map(str, kind.oldest))
        raise HostError(
            f"{program} {engine.version or 'of unknown version'}: too old",
            hint=f"install {program} {oldest} or newer",
        )
    here = _architecture(platform.machine())
    if engine.architecture != here:
        raise HostError(
            f"{program}: runs {engine.architecture}, this machine is {here}",
            hint="use an engine on this machine",
        )
    return engine


def _docker(document: Mapping[str, Any]) -> dict[str, Any]:
    client = document.get("ClientInfo") or {}
    plugins = client.get("Plugins") or ()
    has_buildx = any(item.get("Name") == "buildx" and not item.get("Err") for item in plugins)
    return {
        # Clients say their version since 23.0, where buildx took the place of what they had:
        # https://docs.docker.com/engine/release-notes/23.0/
        "has_buildkit": has_buildx or not client.get("Version"),
        "version": document.get("ServerVersion", ""),
        "architecture": _architecture(document.get("Architecture", "")),
        "root": Path(document.get("DockerRootDir", "/var/lib/docker")),
        "rootless": "name=rootless" in " ".join(document.get("SecurityOptions") or ()),
    }


def _podman(document: Mapping[str, Any]) -> dict[str, Any]:
    host = document.get("host", {})
    if host.get("serviceIsRemote"):
        raise _elsewhere("podman", "a remote service")
    return {
        "version": document.get("version", {}).get("Version", ""),
        "architecture": _architecture(host.get("arch", "")),
        "root": Path(document.get("store", {}).get("graphRoot", "/var/lib/containers/storage")),
        "rootless": bool(host.get("security", {}).get("rootless")),
    }


def _architecture(name: str) -> str:
    return ARCHITECTURES.get(name, name)


def _elsewhere(program: str, where: str) -> HostError:
    """Folders of this machine can only be mounted by an engine on this machine."""
    return HostError(
        f"{program}: is on another machine ({where}), which cannot see this one's folders",
        hint="run rocwheel on that machine",
    )


def _unusable(kind: EngineKind, output: str) -> HostError:
    program, line = kind.value, headline(output)
    known = {
        Trouble.NO_PERMISSION: (
            f"this user may not use it: {line}",
            f"ask for membership in the group {program}"
            if kind is EngineKind.DOCKER
            else "check the permissions of its storage",
        ),
        Trouble.NO_DAEMON: (
            f"its daemon does not answer: {line}",
            "start it (systemctl start docker), or set DOCKER_HOST",
        ),
        Trouble.CGROUP: (
            f"refuses the layout of control groups here: {line}",
            f"run it as root with {RUNC}",
        ),
        None: (f"does not work: {line}", f"try: {program} info"),
    }
    if "no end after" in output:  # of rocwheel.base.process, not of an engine
        late = f"no answer within {ANSWER_SECONDS:g} s"
        known[None] = (late, f"restart its daemon, and try: {program} info")
    problem, hint = meaning(output, known)
    return HostError(f"{program}: {problem}", hint=hint)
