"""The request for a build, and the plan: what is decided before the first byte is fetched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Literal

import amdgpu_family_matrix as matrix
from rocwheel import bazel, families, rocm, source
from rocwheel.bazel.remote import LOCAL
from rocwheel.choices import COMPILERS, CPU_FEATURES, JAXLIB_ORIGINS, WHEEL_TYPES
from rocwheel.container import DeviceNode
from rocwheel.download import has_secret
from rocwheel.errors import ConfigError
from rocwheel.home import Home
from rocwheel.model import PythonVersion, gfx_target, is_commit, suggest
from rocwheel.process import Runner
from rocwheel.wheel import wheel_policy as policy_file
from rocwheel.wheel.wheel_policy import WheelPolicy

# https://bazel.build/reference/command-line-reference#startup-options
STARTUP_OPTIONS: Final = frozenset(
    {
        "batch", "bazelrc", "block_for_lock", "client_debug", "connect_timeout_secs", "home_rc",
        "host_jvm_args", "host_jvm_debug", "idle_server_tasks", "install_base", "io_nice_level",
        "local_startup_timeout_secs", "max_idle_secs", "output_base", "output_user_root",
        "preemptible", "server_javabase", "server_jvm_out", "shutdown_on_low_sys_mem", "system_rc",
        "unlimit_coredumps", "workspace_rc",
    }
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Executor:
    """Where Bazel shall run: on this machine, or in a container of an image, and its rights."""

    kind: Literal["host", "docker", "podman"] = "host"
    image: str = ""  # a reference, or `search`
    pythons: tuple[Path, ...] = ()  # prefixes of CPythons of this machine to mount
    network: str = "none"
    pass_proxies: bool = False  # and the CA bundle
    cpus: str = ""
    memory: str = ""
    shm: str = "1g"
    sandbox: bool = False
    recipe: str = "manylinux_2_28"  # what `search` looks for
    keep_minutes: int = 0  # how long the container stays for the next turn
    commit: str = ""  # keep the container as an image of this name
    traceable: bool = True  # False: nothing comes of it that has a manifest
    devices: tuple[DeviceNode, ...] = ()

    @property
    def strategy(self) -> str:
        """The kind of sandbox that Bazel can use there."""
        return "linux-sandbox" if self.sandbox or self.kind == "host" else "processwrapper-sandbox"


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request for a build; what is empty or None comes from the pin, the tree or the tarball."""

    therock: str
    therock_sha256: str | None = None
    rocm_version: str | None = None
    therock_index: str = ""  # where pip finds ROCm
    devices: tuple[str, ...] = ()  # of a ROCm by pip
    pythons: tuple[PythonVersion, ...] = ()
    family: str | None = None
    gfx_targets: tuple[str, ...] = ()
    jax_version: str = ""
    jax_repository: str = ""
    jax_ref: str = ""  # commit, once `resolved` has asked
    jax_branch: str = ""
    allow_unverified_pin: bool = False
    jax_source_dir: Path | None = None
    xla_source_dir: Path | None = None
    xla_repository: str = ""
    xla_ref: str = ""
    jaxlib: str | None = None
    compiler: str = "clang"
    compiler_path: Path | None = None
    cpu_features: str = "release"
    wheel_suffix: str | None = None
    wheel_type: str = "release"
    wheel_date: str = ""
    wheel_hash: str = ""
    bazel_path: str | None = None
    bazel_mirror: str = ""
    bazel_proxy: str = ""
    locked: bool = False
    remote: bazel.Remote = LOCAL
    executor: Executor = Executor()
    bazel_options: tuple[str, ...] = ()
    bazel_startup_options: tuple[str, ...] = ()
    machine_options: tuple[str, ...] = ()  # Bazel's too, but about this machine: in no manifest
    wheelhouse: Path
    cache: Path
    rocm_cache: Path | None = None  # None: in `cache`, with all else
    cache_budget: int | None = None  # bytes
    allow_dirty: bool = False
    is_snapshot: bool = False  # nothing names the commits of its sources: a developer's turn
    home: Home  # rocwheel's own data
    cwd: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    command_line: str = ""
    started: str = ""  # ISO 8601, UTC
    host: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a build: everything decided before the first byte is fetched."""

    request: Request
    rocm: rocm.RocmPlan
    sources: source.SourcePlan
    pins: source.Pins
    layouts: source.Layouts
    policy: WheelPolicy
    failures: tuple[bazel.KnownFailure, ...]  # what a failed action may mean
    gfx_targets: tuple[str, ...]


def resolved(request: Request, *, runner: Runner) -> Request:
    """Replace a branch or tag of JAX by the commit it has now. Raises SourceError, ConfigError."""
    if not request.jax_ref or is_commit(request.jax_ref):
        return request
    ci = request.home.ci
    pins = source.load_pins(ci / "pins.yaml", layouts=source.load_layouts(ci / "layouts.yaml"))
    # what contradicts itself, or has a password in it, is refused before git is asked
    like = source.plan(_sources(request), pins=pins, cache=request.cache).like
    repository = like.repository if like else request.jax_repository
    commit = source.resolve_ref(repository, request.jax_ref, runner=runner)
    return replace(request, jax_ref=commit, jax_branch=request.jax_ref)


def _sources(request: Request) -> source.SourceRequest:
    return source.SourceRequest(
        jax_version=request.jax_version,
        jax_repository=request.jax_repository,
        jax_ref=request.jax_ref,
        jax_branch=request.jax_branch,
        allow_unverified=request.allow_unverified_pin,
        jax_dir=request.jax_source_dir,
        xla_dir=request.xla_source_dir,
        xla_repository=request.xla_repository,
        xla_ref=request.xla_ref,
        is_snapshot=request.is_snapshot,
    )


def plan(request: Request) -> Plan:
    """Check the request and decide. Changes nothing. Raises ConfigError, RocmError, HostError."""
    ci = request.home.ci
    layouts = source.load_layouts(ci / "layouts.yaml")
    pins = source.load_pins(ci / "pins.yaml", layouts=layouts)
    for what, value, valid in (
        ("compiler", request.compiler, COMPILERS),
        ("CPU features", request.cpu_features, CPU_FEATURES),
        ("wheel type", request.wheel_type, WHEEL_TYPES),
        ("origin of jaxlib", request.jaxlib, JAXLIB_ORIGINS),
    ):
        if value is not None and value not in valid:
            raise ConfigError(f"{value!r}: unknown {what}", hint=suggest(value, valid))
    if request.compiler == "hermetic" and request.compiler_path:
        raise ConfigError(
            f"{request.compiler_path}: a path, and --compiler hermetic is the one JAX chooses",
            hint="drop one of the two; with the path it is --compiler clang",
        )
    _check_places(request)
    _check_words(request)
    for option in (*request.bazel_options, *request.bazel_startup_options):
        if has_secret(option):
            raise ConfigError(
                f"{option.partition('=')[0]}: credentials among Bazel's options",
                hint="put them into a file: --remote-header-file",
            )
    planned = rocm.plan(
        request.therock,
        sha256=request.therock_sha256,
        version=request.rocm_version,
        cache=request.rocm_cache or request.cache,
        cwd=request.cwd,
        index=request.therock_index,
    )
    rocm.check_local(planned)
    sources = source.plan(_sources(request), pins=pins, cache=request.cache)
    pin = sources.pin or sources.like
    if request.locked and pin and pin.unverified:
        raise ConfigError(
            f"JAX {pin.version}: an unverified pin, and --locked",
            hint=f"verify it: rocwheel pin add {pin.version}",
        )
    return Plan(
        request=request,
        rocm=planned,
        sources=sources,
        pins=pins,
        layouts=layouts,
        policy=policy_file.load(ci / "wheel_policy.yaml"),
        failures=bazel.load_failures(ci / "known_failures.yaml"),
        gfx_targets=_targets(request, planned.family),
    )


def _check_places(request: Request) -> None:
    """Refuse files where folders are meant, and a folder that is not there. Raises ConfigError."""
    for name, folder in (
        ("--wheelhouse", request.wheelhouse),
        ("--cache-dir", request.cache),
        ("--rocm-dir", request.rocm_cache or request.cache),
    ):
        if not next(path for path in (folder, *folder.parents) if path.exists()).is_dir():
            raise ConfigError(f"{name}: {folder}: is no folder", hint="name a folder, or a new one")
    if request.xla_source_dir is not None and not request.xla_source_dir.is_dir():
        raise ConfigError(
            f"--xla-source-dir: {request.xla_source_dir}: no such folder", hint="check the path"
        )


def _check_words(request: Request) -> None:
    """Refuse a date that is none, and Bazel's startup options elsewhere. Raises ConfigError."""
    if request.wheel_date:
        try:
            datetime.strptime(request.wheel_date, "%Y%m%d")  # noqa: DTZ007 - a day, not a moment
        except ValueError as exc:
            raise ConfigError(
                f"--wheel-date: {request.wheel_date!r} is no day", hint="write YYYYMMDD: 20260131"
            ) from exc
    for option in request.bazel_options:
        name = option.lstrip("-").partition("=")[0]
        if not STARTUP_OPTIONS.isdisjoint((name, name.removeprefix("no"))):
            raise ConfigError(
                f"--{name}: a startup option of Bazel among the options of its commands",
                hint="give it as --bazel-startup-options",
            )


def _targets(request: Request, of_tarball: matrix.Family | None) -> tuple[str, ...]:
    """Explicit list, else the family, else an error; never what this machine happens to have."""
    if request.gfx_targets:
        known = matrix.known_targets()
        for target in request.gfx_targets:
            if gfx_target(target) not in known:
                hint = matrix.RETIRED_TARGETS.get(target) or suggest(target, known)
                raise ConfigError(f"{target!r}: unknown gfx target", hint=hint)
        return tuple(dict.fromkeys(request.gfx_targets))
    if request.family:
        return families.named(request.family).targets
    if of_tarball:
        return of_tarball.targets
    if request.devices and "all" not in request.devices:
        return _targets(replace(request, gfx_targets=request.devices), None)
    raise ConfigError(
        "gfx targets: neither given nor in the tarball's name",
        hint="add --family gfx94X-dcgpu or --gfx-targets gfx942,gfx1100",
    )
