"""Where a build's commands run: on this machine, or in one container of a builder image.

Only the build itself moves inside: Bazel, the compiler, the CPythons. Sources, ROCm and wheels are
fetched, read and written outside, where the credentials are. Guest paths are fixed, so that no
cache key depends on the machine.
"""

from __future__ import annotations

import os
import re
import resource
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final

from rocwheel import bazel
from rocwheel.base import container
from rocwheel.base.container import ContainerLimits, ContainerSpec, EngineKind, Mount, User
from rocwheel.base.errors import ConfigError, HostError
from rocwheel.base.here import Here
from rocwheel.base.host import machine
from rocwheel.base.host.machine import Interpreter, Programs
from rocwheel.base.process import (
    CA_BUNDLES,
    PROXIES,
    Command,
    GuestPath,
    HostRunner,
    Runner,
    ca_bundle,
    guest,
)
from rocwheel.base.values import Plain, replace
from rocwheel.dist.build_request import Executor, Request
from rocwheel.image import build, contents, registry
from rocwheel.image.contents import ImageFacts
from rocwheel.image.registry import INPUTS, Found, obtain
from rocwheel.records.manifest import BuilderRecord
from rocwheel.source import SourceTree

SEARCH: Final = "search"
OWN_INPUTS: Final = Path(contents.TOOL) / "inputs"  # in a builder image: what it was made from
MOST: Final = 1 << 20
DISK: Final = "bazel-disk"  # in the cache, of host and containers
REPOSITORIES: Final = "bazel-repositories"

SOURCE: Final = guest("/rocwheel/source")
XLA: Final = guest("/rocwheel/xla")
ROCM: Final = guest("/rocwheel/rocm")
BAZEL: Final = guest("/rocwheel/bazel")  # output bases
DISK_CACHE: Final = guest("/rocwheel/disk-cache")
REPOSITORY_CACHE: Final = guest("/rocwheel/repository-cache")
LOGS: Final = guest("/rocwheel/logs")
WHEELHOUSE: Final = guest("/rocwheel/wheelhouse")
CONFIGURE: Final = guest("/rocwheel/configure")
CA_BUNDLE: Final = guest("/rocwheel/ca-certificates.crt")


class BuildEnvironment(Plain, frozen=True, kw_only=True):
    """Where commands run, before they run: paths are translated, programs are found."""

    executor: Executor
    spec: ContainerSpec | None = None  # None is this machine
    image: Found | None = None
    facts: ImageFacts | None = None
    already_inside: str = ""  # digest of the image we run in ourselves
    dry: bool = False  # a dry run: what the image answers is not cached

    @property
    def builder_image(self) -> str:
        """For the manifest: the digest of the image's configuration, "" on this machine."""
        return self.image.config if self.image else self.already_inside

    def path(self, host: Path) -> GuestPath:
        """Return how commands see a path of this machine. Raises HostError when they cannot."""
        return self.spec.guest(host) if self.spec else GuestPath(PurePosixPath(host))

    @property
    def record(self) -> BuilderRecord | None:
        if self.image is None or self.spec is None:
            return None
        engine = self.spec.engine
        return BuilderRecord(
            reference=self.image.reference,
            config=self.image.config,
            digests=self.image.digests,
            engine=engine.kind.value,
            engine_version=engine.version,
            sandbox=self.executor.strategy,
        )

    def tree_key(self, workspace: Path) -> str:
        """Identify a tree's output base: in containers all trees are seen at one place."""
        return f"{workspace}\0{self.builder_image}" if self.spec else ""

    def caches(self, request: Request) -> bazel.Caches:
        return bazel.Caches(
            output_user_root=self.path(output_folder(request)),
            disk=self.path(request.cache / DISK),
            repository=self.path(request.cache / REPOSITORIES),
        )

    def compiler(self, request: Request, *, runner: Runner) -> bazel.Compiler:
        """Return the host compiler asked for. Raises HostError."""
        kind = request.compiler
        if kind == "hermetic":
            return bazel.Compiler(kind=kind)
        if self.facts is None:
            pair = machine.clang(request.compiler_path, request.environ, runner=runner)
        elif request.compiler_path:
            named = str(request.compiler_path)
            known = [item for item in self.facts.compilers if item.cc == named and item.cxx]
            if not known:
                raise HostError(
                    f"{named}: no compiler with its C++ twin in {self.executor.image}",
                    hint="`image show` lists what is there",
                )
            pair = known[0].pair
        else:
            pair = self.facts.clang
        return bazel.Compiler(kind=kind, cc=pair.cc, cxx=pair.cxx, major=pair.major)

    def interpreters(self, request: Request, *, runner: Runner) -> tuple[Interpreter, ...]:
        """Return the CPythons commands may use."""
        if self.facts is None:
            return machine.pythons(request.environ, runner=runner)
        return self.facts.interpreters

    def opened(self, runner: Runner) -> tuple[BuildEnvironment, tuple[Command, ...]]:
        """Return the place once its container runs, and the lines that start it by hand.

        There are none if a kept one runs, nor on this machine.
        """
        if self.spec is None:
            return self, ()
        if self.spec.keep_minutes and (spec := container.find_kept(self.spec, runner)):
            return replace(self, spec=spec), ()
        return self, (*self.spec.prepare, self.spec.start_by_hand)

    def command(self, command: Command, number: int) -> Command:
        """Return a command as it is run there."""
        return self.spec.execute(command, number) if self.spec else command

    def clang(self, environ: Mapping[str, str]) -> GuestPath:
        """Return the newest clang there. Raises HostError."""
        if self.facts:
            return self.facts.clang.cc
        return self.path(machine.newest("clang", environ))

    def with_tree(self, tree: SourceTree) -> BuildEnvironment:
        """Return the same with the sources mounted."""
        mounts = [Mount(host=tree.root, guest=SOURCE)]
        if tree.xla_dir:
            mounts.append(Mount(host=tree.xla_dir, guest=XLA))
        return self.with_mounts(*mounts)

    def with_mounts(self, *mounts: Mount) -> BuildEnvironment:
        if self.spec is None:
            return self
        return replace(self, spec=replace(self.spec, mounts=(*self.spec.mounts, *mounts)))

    @contextmanager
    def programs(self, request: Request, runner: HostRunner) -> Iterator[Programs]:
        """Yield the programs there, with the inputs that are here so far.

        It neither needs nor keeps the container of a build.
        """
        if self.spec is None:
            yield Programs(runner=runner, path=request.environ.get("PATH", ""))
            return
        here = tuple(item for item in self.spec.mounts if item.host.exists())
        so_far = replace(self.spec, mounts=here, keep_minutes=0)
        with contents.entered(so_far, runner=runner, remember=not self.dry) as inside:
            yield Programs(runner=inside)

    @contextmanager
    def running(self, runner: HostRunner) -> Iterator[Runner]:
        """Run commands there: the runner itself, or a container that ends with the block."""
        if self.spec is None:
            yield runner
            return
        for mount in self.spec.mounts:
            if mount.writable:  # before it is asked which container has them
                mount.host.mkdir(parents=True, exist_ok=True)
        open_it = container.kept if self.spec.keep_minutes else container.running
        with open_it(self.spec, runner=runner) as inside:
            yield inside


def output_folder(request: Request) -> Path:
    """Return where Bazel's output bases lie; host and containers share none.

    An output base remembers its server's process id, which has a meaning in one place only.
    """
    return request.cache / ("bazel" if request.executor.kind == "host" else "bazel-in-containers")


def choose(request: Request, here: Here, *, pull: bool = True) -> BuildEnvironment:
    """Ask the engine and the image, once, before the build starts.

    Raises ConfigError for an unknown executor, HostError for an engine or image that cannot be
    used; the error names everything that an image lacks.
    """
    asked, runner, console = request.executor, here.runner, here.console
    if asked.kind == "host":
        _refuse_container_options(asked)
        return BuildEnvironment(executor=asked, already_inside=_own_image(request, runner))
    if not asked.image:
        raise ConfigError(
            f"--executor={asked.kind} needs an image",
            hint="name one: --builder-image NAME@sha256:…, or let it be found: search",
        )
    with console.step(f"Container: {asked.kind}", key="container"):
        try:
            engine = container.ask(EngineKind(asked.kind), environ=request.environ, runner=runner)
        except HostError as exc:
            exc.hint += ", or use --executor=host"
            raise
        image = (
            build.current(asked.recipe, request.home, engine=engine, runner=runner)
            if asked.image == SEARCH
            else obtain(
                asked.image,
                engine,
                locked=request.locked,
                pull=pull,
                runner=runner,
                console=console,
            )
        )
        if image is None:
            raise HostError(
                f"{asked.recipe}: {asked.kind} has no builder image of this checkout",
                hint=f"make it: `image build --recipe {asked.recipe}`; or pull it by the "
                "digest that `image build --push` printed",
            )
        spec = container_spec(asked, engine, image, cache=request.cache, environ=request.environ)
        known = contents.ask(spec, image.config, cache=request.cache, runner=runner, remember=pull)
        spec = replace(spec, keep_minutes=asked.keep_minutes)
        place = BuildEnvironment(executor=asked, spec=spec, image=image, facts=known, dry=not pull)
        place = place.with_mounts(
            Mount(host=output_folder(request), guest=BAZEL, writable=True),
            Mount(host=request.cache / DISK, guest=DISK_CACHE, writable=True),
            Mount(host=request.cache / REPOSITORIES, guest=REPOSITORY_CACHE, writable=True),
            Mount(host=request.cache / "logs", guest=LOGS, writable=True),
        )
        console.info(f"   {engine}, image {image.reference} ({image.config[:19]})")
        console.info(f"   Bazel's sandbox there: {asked.strategy}")
    return place


def _refuse_container_options(asked: Executor) -> None:
    inside = OWN_INPUTS.is_file()  # then --builder-image says which image this is
    given = {
        "--builder-image": "" if inside else asked.image,
        "--keep-container": asked.keep_minutes,
        "--container-network": asked.network.removeprefix("none"),
        "--container-proxies": asked.pass_proxies,
        "--container-sandbox": asked.sandbox,
        "--container-cpus": asked.cpus,
        "--container-memory": asked.memory,
        "--container-shm": asked.shm != Executor.shm,
        "--builder-recipe": asked.recipe != Executor.recipe,
    }
    option = next((name for name, value in given.items() if value), "")
    if option:
        raise ConfigError(
            f"{option}: this build has no container",
            hint=f"add --executor=docker or podman, or leave {option} out",
        )


def _own_image(request: Request, runner: Runner) -> str:
    """Return the digest of the builder image that rocwheel itself runs in, "" for none.

    An image cannot hold its own digest, so the job that started the container gives it
    (`--builder-image sha256:…`, or a reference by digest that is looked up). Raises ConfigError
    without it, or when the digest is another image's.
    """
    if not OWN_INPUTS.is_file():
        return ""
    named = request.executor.image
    if re.fullmatch(r"sha256:[0-9a-f]{64}", named):
        return named
    if "@" not in named:
        raise ConfigError(
            "this is a builder image, and its digest is not given",
            hint="add --builder-image sha256:… (its configuration) or NAME@sha256:…",
        )
    remote = registry.look(*registry.parts(named), environ=request.environ, runner=runner)
    inputs = OWN_INPUTS.read_text(encoding="ascii").strip()
    if remote is None or remote.labels.get(INPUTS) != inputs:
        raise ConfigError(
            f"{named}: is not the image that this runs in",
            hint="name the image of this container by digest",
        )
    return remote.config


def check(place: BuildEnvironment, request: Request, *, bazel_version: str) -> None:
    """Raise HostError with everything that the image lacks."""
    if place.facts is None or place.image is None:
        return
    wanted = bazel_version if not request.bazel_path else ""
    missing = place.facts.lacks(compiler=request.compiler, bazel=wanted, architecture="x86_64")
    if missing:
        raise HostError(
            f"{place.image.reference}: lacks {'; '.join(missing)}",
            hint="make an image that has it: `image build`, or choose another",
        )


def container_spec(
    asked: Executor,
    engine: container.ContainerEngine,
    image: Found,
    *,
    cache: Path,
    environ: Mapping[str, str],
) -> ContainerSpec:
    """Return a container of an image, run as the caller, with nothing mounted yet.

    Raises ConfigError for a proxy whose address is a secret.
    """
    run = secrets.token_hex(6)
    env: dict[str, str] = {}
    mounts: list[Mount] = []
    if asked.pass_proxies:
        names = (*PROXIES, *(name.upper() for name in PROXIES))
        env |= {name: environ[name] for name in names if name in environ}
        named = next((name for name, value in env.items() if "@" in value), "")
        if named:
            raise ConfigError(
                f"{named}: has a user name or password, which `inspect` would show to every user",
                hint="name a proxy without a login, such as one on this machine that forwards",
            )
        if bundle := ca_bundle(environ):
            mounts.append(Mount(host=Path(bundle), guest=CA_BUNDLE))
            env |= dict.fromkeys(CA_BUNDLES, str(CA_BUNDLE))
    return ContainerSpec(
        engine=engine,
        image=image.identity,
        run=run,
        folder=cache / container.PLACE / run,
        mounts=tuple(mounts),
        user=caller(),
        env=env,
        network=asked.network,
        limits=limits(asked),
        sandbox=asked.sandbox,
        devices=asked.devices,
    )


def caller() -> User:
    """Return the user of this process, for the container."""
    return User(uid=os.getuid(), gid=os.getgid(), groups=tuple(sorted({*os.getgroups()})))


def _most(number: int) -> int:
    hard = resource.getrlimit(number)[1]
    return MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)


def limits(executor: Executor) -> ContainerLimits:
    """Return the container's limits: those asked for, at most those of this process.

    Podman fails for more processes than the kernel allows.
    """
    processes = _most(resource.RLIMIT_NPROC)
    with suppress(OSError, ValueError):
        there = Path("/proc/sys/kernel/pid_max").read_text(encoding="ascii")
        processes = min(processes, int(there))
    return ContainerLimits(
        cpus=executor.cpus,
        memory=executor.memory,
        shm=executor.shm,
        files=_most(resource.RLIMIT_NOFILE),
        processes=processes,
    )
