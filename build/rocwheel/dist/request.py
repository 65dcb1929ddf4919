"""What is asked for, and what is decided before the first byte is fetched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import amdgpu_family_matrix as matrix
from rocwheel import bazel, rocm, source
from rocwheel.wheel.policy import WheelPolicy
from rocwheel.bazel.invocation import COMPILERS, CPU_FEATURES, WHEEL_TYPES
from rocwheel.bazel.remote import LOCAL
from rocwheel.dist.executor import Executor
from rocwheel.download import has_secret
from rocwheel.errors import ConfigError
from rocwheel.model import PythonVersion, gfx_target, suggest
from rocwheel.wheel import policy as policy_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rocwheel.home import Home

JAXLIB_ORIGINS: Final = ("built", "upstream")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for; what is empty or None is decided by the pin, the tree or the tarball."""

    therock: str
    therock_sha256: str | None = None
    rocm_version: str | None = None
    pythons: tuple[PythonVersion, ...] = ()
    family: str | None = None
    gfx_targets: tuple[str, ...] = ()
    jax_version: str = ""
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
    home: Home  # rocwheel's own data
    cwd: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    command_line: str = ""
    started: str = ""  # ISO 8601, UTC
    host: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything decided before the first byte is fetched."""

    request: Request
    rocm: rocm.RocmPlan
    sources: source.SourcePlan
    pins: source.Pins
    layouts: source.Layouts
    policy: WheelPolicy
    failures: tuple[bazel.KnownFailure, ...]  # what a failed action may mean
    gfx_targets: tuple[str, ...]


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
    )
    return Plan(
        request=request,
        rocm=planned,
        sources=source.plan(
            source.SourceRequest(
                jax_version=request.jax_version,
                jax_dir=request.jax_source_dir,
                xla_dir=request.xla_source_dir,
                xla_repository=request.xla_repository,
                xla_ref=request.xla_ref,
            ),
            pins=pins,
            cache=request.cache,
        ),
        pins=pins,
        layouts=layouts,
        policy=policy_file.load(ci / "wheel_policy.yaml"),
        failures=bazel.load_failures(ci / "known_failures.yaml"),
        gfx_targets=_targets(request, planned.family),
    )


def _targets(request: Request, of_tarball: matrix.Family | None) -> tuple[str, ...]:
    """Explicit list, else the family, else an error; never what this machine happens to have."""
    if request.gfx_targets:
        known = matrix.known_targets()
        for target in request.gfx_targets:
            if gfx_target(target) not in known:
                raise ConfigError(f"{target!r}: unknown gfx target", hint=suggest(target, known))
        return tuple(dict.fromkeys(request.gfx_targets))
    if request.family:
        if request.family not in matrix.FAMILIES:
            raise ConfigError(
                f"{request.family!r}: unknown GPU family",
                hint=suggest(request.family, tuple(matrix.FAMILIES)),
            )
        return matrix.FAMILIES[request.family].targets
    if of_tarball:
        return of_tarball.targets
    raise ConfigError(
        "gfx targets: neither given nor in the tarball's name",
        hint="add --family gfx94X-dcgpu or --gfx-targets gfx942,gfx1100",
    )
