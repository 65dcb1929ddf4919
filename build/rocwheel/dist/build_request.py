"""The request for a build, and the plan: what is decided before the first byte is fetched."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

import amdgpu_family_matrix as matrix
from rocwheel import bazel, rocm, source
from rocwheel.base import files, git, yaml_file
from rocwheel.base.choices import COMPILERS, CPU_FEATURES, JAXLIB_ORIGINS
from rocwheel.base.container import DeviceNode
from rocwheel.base.download import has_secret
from rocwheel.base.errors import ConfigError, HostError
from rocwheel.base.home import Home
from rocwheel.base.process import Runner
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import byte_count, is_commit, suggest
from rocwheel.bazel.remote import LOCAL
from rocwheel.records import families
from rocwheel.records.build_options import BuildOptions, ContainerOptions, Wanted
from rocwheel.wheel.wheel_policy import WheelPolicy

LEAST_MEMORY = 6 << 20  # of Docker: https://docs.docker.com/engine/containers/resource_constraints
# https://bazel.build/reference/command-line-reference#startup-options
STARTUP_OPTIONS: Final = frozenset(
    {
        "autodetect_server_javabase", "batch", "batch_cpu_scheduling", "bazelrc",
        "block_for_lock", "client_debug", "command_port", "connect_timeout_secs",
        "digest_function", "expand_configs_in_place", "failure_detail_out",
        "fatal_event_bus_exceptions", "home_rc", "host_jvm_args", "host_jvm_debug",
        "host_jvm_profile", "idle_server_tasks", "ignore_all_rc_files", "install_base",
        "invocation_policy", "io_nice_level", "local_startup_timeout_secs", "lock_install_base",
        "macos_qos_class", "max_idle_secs", "output_base", "output_user_root", "preemptible",
        "quiet", "run_in_user_cgroup", "server_javabase", "server_jvm_out",
        "shutdown_on_low_sys_mem", "system_rc", "unix_digest_hash_attribute_name",
        "unlimit_coredumps", "windows_enable_symlinks", "workspace_rc", "write_command_log",
    }
)  # fmt: skip
BOTH: Final = re.compile("watchfs|(experimental|incompatible)_.*")  # either kind


@dataclass(frozen=True, kw_only=True)
class Executor(ContainerOptions):
    """Where Bazel runs: on this machine, or in a container of an image, and its rights."""

    devices: tuple[DeviceNode, ...] = ()
    keep_minutes: int = 0  # how long the container stays for the next turn

    @property
    def strategy(self) -> str:
        """The kind of sandbox that Bazel can use there."""
        return "linux-sandbox" if self.sandbox or self.kind == "host" else "processwrapper-sandbox"


@dataclass(frozen=True, kw_only=True)
class Request(Wanted, source.SourceRequest):
    """A request for a build; an empty field or None comes from the pin, the tree or the tarball."""

    cache: Path = field()
    remote: bazel.Remote = LOCAL
    executor: Executor = Executor()
    is_alone: bool = False  # its Bazel is a release in the cache, not this machine's own
    is_offline: bool = False  # nothing may be fetched
    is_again: bool = False  # of a set that there is: what an earlier build left does not count
    machine_options: tuple[str, ...] = ()  # Bazel's too, but about this machine: in no manifest
    home: Home  # rocwheel's own data
    cwd: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    command_line: str = ""
    started: str = ""  # ISO 8601, UTC
    host: str = ""

    @classmethod
    def of(cls, options: BuildOptions, *, home: Home, **rest: Any) -> Request:
        """Make a request from options; read the remote's files. Raises ConfigError."""
        _check_limits(options.executor)
        trees = filter(None, (options.jax_source_dir, options.xla_source_dir, home.root))
        values = {item.name: getattr(options, item.name) for item in fields(BuildOptions)}
        values["remote"] = bazel.read_remote(options.remote, tuple(trees))
        values["executor"] = Executor(**vars(options.executor))
        return cls(**{**values, "home": home, **rest})


class Plan(Plain, frozen=True, kw_only=True):
    """The plan of a build: everything decided before the first byte is fetched."""

    request: Request
    rocm: rocm.RocmPlan
    sources: source.SourcePlan
    pins: source.Pins
    policy: WheelPolicy
    failures: tuple[bazel.KnownFailure, ...]  # what a failed action may mean
    gfx_targets: tuple[str, ...]
    families: tuple[matrix.Family, ...]  # of --family, by name


def resolved(request: Request, *, runner: Runner) -> Request:
    """Replace a branch or tag of JAX by the commit it has now. Raises SourceError, ConfigError."""
    if not request.jax_ref or is_commit(request.jax_ref):
        return request
    pins = source.pins_of(request.home.ci)
    # what contradicts itself, or has a password in it, is refused before git is asked
    like = source.plan(request, pins=pins, cache=request.cache).like
    repository = like.repository if like else request.jax_repository
    commit = git.resolve_ref(repository, request.jax_ref, runner=runner)
    return replace(request, jax_ref=commit, jax_branch=request.jax_ref)


def plan(request: Request, *, recorded: rocm.RocmPlan | None = None) -> Plan:
    """Check the request and decide; `recorded` is a ROCm in place of the request's.

    It need not be here yet. Changes nothing. Raises ConfigError, RocmError, HostError.
    """
    ci = request.home.ci
    pins = source.pins_of(ci)
    check_words(request)
    _check_places(request)
    planned = recorded or rocm.plan(
        request.therock,
        sha256=request.therock_sha256,
        version=request.rocm_version,
        cache=request.rocm_cache or request.cache,
        cwd=request.cwd,
        index=request.therock_index,
    )
    if recorded is None:
        rocm.check_local(planned)
    sources = source.plan(request, pins=pins, cache=request.cache)
    pin = sources.pin or sources.like
    if request.locked and pin and pin.unverified:
        raise ConfigError(
            f"JAX {pin.name}: an unverified pin, and --locked", hint=f"verify it: {pin.adding}"
        )
    asked = families.chosen(request.families, request.own_families)
    return Plan(
        request=request,
        rocm=planned,
        sources=sources,
        pins=pins,
        policy=yaml_file.read(ci / "wheel_policy.yaml", WheelPolicy),
        failures=bazel.load_failures(ci / "known_failures.yaml"),
        gfx_targets=_targets(request, {item.name: item.targets for item in asked}, planned),
        families=asked,
    )


def check_words(request: Request) -> None:
    """Refuse values that are wrong on every machine. Raises ConfigError."""
    for what, value, valid in (
        ("compiler", request.compiler, COMPILERS),
        ("CPU features", request.cpu_features, CPU_FEATURES),
        ("origin of jaxlib", request.jaxlib, JAXLIB_ORIGINS),
    ):
        if value is not None and value not in valid:
            raise ConfigError(f"{value!r}: unknown {what}", hint=suggest(value, valid))
    if request.compiler == "hermetic" and request.compiler_path:
        raise ConfigError(
            f"{request.compiler_path}: a path, and --compiler hermetic is the one JAX chooses",
            hint="drop one of the two; with the path it is --compiler clang",
        )
    _check_bazel_words(request)
    for option in (*request.bazel_options, *request.bazel_startup_options):
        if has_secret(option):
            raise ConfigError(
                f"{option.partition('=')[0]}: credentials among Bazel's options",
                hint="put them into a file: --remote-header-file",
            )


def _check_limits(asked: ContainerOptions) -> None:
    cpus = asked.cpus
    if cpus and (not re.fullmatch(r"\d+(\.\d+)?", cpus) or not float(cpus)):
        raise ConfigError(
            f"--container-cpus: {cpus!r}: no number of CPUs", hint="write for example 4 or 1.5"
        )
    for name, text, least in (
        ("--container-memory", asked.memory, LEAST_MEMORY),
        ("--container-shm", asked.shm, 1),
    ):
        try:
            is_too_small = bool(text) and byte_count(text) < least
        except ConfigError as exc:
            raise ConfigError(f"{name}: {exc}", hint=exc.hint) from exc
        if is_too_small:
            raise ConfigError(
                f"{name}: {text!r}: less than a container can have", hint="write for example 4G"
            )


def _check_places(request: Request) -> None:
    for name, folder in (
        ("--wheelhouse", request.wheelhouse),
        ("--cache-dir", request.cache),
        ("--rocm-dir", request.rocm_cache or request.cache),
    ):
        if not next(path for path in (folder, *folder.parents) if os.path.lexists(path)).is_dir():
            raise ConfigError(
                f"{name}: {folder}: is not a folder", hint="name a folder, or a new one"
            )
        if not files.is_writable(folder):
            raise HostError(f"{name}: {folder}: cannot be written", hint="name another folder")
    xla = request.xla_source_dir
    if xla and not xla.is_dir():
        raise ConfigError(f"--xla-source-dir: {xla}: no such folder", hint="check the path")
    if xla and not (xla / "xla").is_dir():
        raise ConfigError(
            f"--xla-source-dir: {xla}: no source tree of XLA, it lacks xla/",
            hint="name the top of a checkout of XLA",
        )


def _check_bazel_words(request: Request) -> None:
    given = [(True, word) for word in source.joined(request.bazel_startup_options)]
    for wanted, option in (*given, *((False, word) for word in request.bazel_options)):
        name = option.lstrip("-").partition("=")[0]
        bare = name.removeprefix("no")
        is_startup = not STARTUP_OPTIONS.isdisjoint((name, bare))
        if option[:1] == "-" and is_startup != wanted and not BOTH.fullmatch(bare):
            what, kind = ("a", "startup-") if is_startup else ("no", "")
            hint = f"give it as --bazel-{kind}options"
            raise ConfigError(f"--{name}: {what} startup option of Bazel", hint=hint)


def _targets(
    request: Request, asked: Mapping[str, tuple[str, ...]], of: rocm.RocmPlan
) -> tuple[str, ...]:
    """Return the explicit targets, else the families', else fail: this machine's do not count."""
    if of.targets and (missing := families.lacking(asked, of.targets)):
        raise ConfigError(
            f"{of.name}: has no code for {missing}",
            hint="name a ROCm for all of them: TheRock's multiarch tarball, or --rocm-devices all",
        )
    families.check_targets(request.gfx_targets)
    if request.gfx_targets:
        families.refuse_lacking(asked, request.gfx_targets)
    of_families = tuple(dict.fromkeys(target for each in asked.values() for target in each))
    if targets := request.gfx_targets or of_families or of.targets:
        families.check_targets(targets)
        return tuple(dict.fromkeys(targets))
    raise ConfigError(
        "gfx targets: neither given nor in the tarball's name",
        hint="add --family gfx94X-dcgpu (a list, or all) or --gfx-targets gfx942,gfx1100",
    )
