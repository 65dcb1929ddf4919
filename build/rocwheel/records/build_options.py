"""The values of a build's options, which `cli.build_options` declares."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rocwheel.base.versions import PythonVersion


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """What is compiled, for which gfx targets, and the compiler."""

    jax_source_dir: Path | None = None
    xla_source_dir: Path | None = None
    gfx_targets: tuple[str, ...] = ()
    jax_version: str = ""
    jax_repository: str = ""
    jax_ref: str = ""  # a commit, once `dist.resolved` has asked
    allow_unverified_pin: bool = False
    jaxlib: str | None = None
    compiler: str = "clang"


@dataclass(frozen=True, kw_only=True)
class RemoteOptions:
    """A remote cache and executor, and what they trust."""

    cache: str = ""
    executor: str = ""
    upload: bool = False
    header_file: Path | None = None
    tls_ca: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    timeout: int = 60  # seconds


@dataclass(frozen=True, kw_only=True)
class ContainerOptions:
    """Where Bazel runs: on this machine, or in a container."""

    kind: Literal["host", "docker", "podman"] = "host"
    image: str = ""
    recipe: str = "manylinux_2_28"
    network: str = "none"
    pass_proxies: bool = False
    sandbox: bool = False
    cpus: str = ""
    memory: str = ""
    shm: str = "1g"


@dataclass(frozen=True, kw_only=True)
class Wanted(SourceOptions):
    """The inputs of a build as people gave them; an empty field or None follows from the rest."""

    therock: str = ""
    therock_index: str = ""
    devices: tuple[str, ...] = ()  # whose code a ROCm by pip has
    therock_sha256: str | None = None
    rocm_version: str | None = None
    families: tuple[str, ...] = ()
    own_families: Path | None = None
    pythons: tuple[PythonVersion, ...] = ()
    wheel_suffix: str | None = None
    compiler_path: Path | None = None
    bazel_path: str | None = None
    bazel_mirror: str = ""
    locked: bool = False
    cpu_features: str = "release"
    bazel_options: tuple[str, ...] = ()
    bazel_startup_options: tuple[str, ...] = ()
    cache: Path | None = None
    rocm_cache: Path | None = None  # None: in `cache`, with all else
    cache_budget: int | None = None  # bytes
    wheelhouse: Path = Path("wheelhouse")
    allow_dirty: bool = False


@dataclass(frozen=True, kw_only=True)
class BuildOptions(Wanted):
    """Everything that decides what is built; fields without an option keep their default."""

    remote: RemoteOptions = field(default_factory=RemoteOptions)
    executor: ContainerOptions = field(default_factory=ContainerOptions)
