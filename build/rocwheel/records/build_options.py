"""What people may ask of a build: each option is a field, and `dist` takes the values."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Literal

from rocwheel.base.choices import COMPILERS, CPU_FEATURES, EXECUTORS, JAXLIB_ORIGINS
from rocwheel.base.option import OptionSet, nested, opt

if TYPE_CHECKING:  # what `--help` does not need
    from pathlib import Path

    from rocwheel.base.versions import PythonVersion

_inputs, _jax, _wheels, _bazel, _remote, _container, _output = (
    partial(opt, section)
    for section in ("Inputs", "JAX and XLA", "Wheels", "Bazel", "Remote", "Container", "Output")
)


def _python(text: str) -> PythonVersion:
    from rocwheel.base.versions import PythonVersion

    # CPythons that JAX had or will have: the tree says which it accepts
    if match := re.fullmatch(r"3\.([6-9]|1[5-9])", text.strip()):
        return PythonVersion(3, int(match[1]))
    return PythonVersion.parse(text)


def _bytes(text: str) -> int | None:
    from rocwheel.base.versions import byte_count

    return byte_count(text) if text else None


class TherockOptions(OptionSet):
    """The option that names a ROCm."""

    therock: str = _inputs(
        "--therock-path SOURCE",
        "ROCm: URL of a TheRock tarball, a local tarball (.tar.gz, .tar.xz, .tar.zst), a directory "
        "that holds ROCm, or pip:REQUIREMENT.",
        values="FILE",
    )


class RocmOptions(TherockOptions):
    """Options that name a ROCm, and what it must be."""

    therock_index: str = _inputs(
        "--therock-index-url URL",
        "pip index with TheRock's packages to install ROCm from, or one of its channels.",
    )
    devices: tuple[str, ...] = _inputs(
        "--device LIST", "GPUs whose code a ROCm by pip has, comma-separated, or all.", many=True
    )
    therock_sha256: str | None = _inputs(
        "--therock-sha256 HEX", "SHA-256 the tarball must have.", default=None
    )
    rocm_version: str | None = _inputs(
        "--rocm-version VERSION",
        "ROCm version, checked against the tree; default: the tarball's name.",
        default=None,
    )


class BuildCacheOptions(OptionSet):
    """Options about what is kept between builds."""

    cache: Path | None = _output(
        "--cache-dir", "ROCm trees and Bazel output; default: ~/.cache/rocwheel.", is_path=True
    )
    rocm_cache: Path | None = _output(  # None: in `cache`, with all else
        "--rocm-dir",
        "ROCm trees alone: a path that is the same for all who share a remote cache.",
        is_path=True,
    )
    cache_budget: int | None = _output(  # bytes
        "--cache-budget SIZE",
        "Most the ROCm cache may hold: 60G; default: no limit.",
        parse=_bytes,
        default=None,
    )


class FamilyOptions(OptionSet):
    """Options that name the GPU families that wheels are for."""

    families: tuple[str, ...] = _inputs(
        "--family LIST",
        "GPU families that the wheels are for, or all: one build with the gfx targets of each; "
        "default: the tarball's name.",
        values="families_or_all",
        many=True,
        repeats=True,
    )
    own_families: Path | None = _inputs(
        "--families FILE", "Families of your own beside the matrix.", param="families", is_path=True
    )


class TargetsOptions(OptionSet):
    """The option that names gfx targets."""

    gfx_targets: tuple[str, ...] = _inputs(
        "--gfx-targets --rocm-amdgpu-targets LIST",
        "gfx targets, comma-separated: gfx942,gfx1100.",
        values="gfx_targets",
        many=True,
    )


class FolderOptions(OptionSet):
    """Options that name folders of sources."""

    jax_source_dir: Path | None = _jax(
        "--jax-source-dir", "JAX source tree to build instead of a pin.", is_path=True
    )
    xla_source_dir: Path | None = _jax(
        "--xla-source-dir", "XLA source tree to build instead of the one JAX pins.", is_path=True
    )


class SourceOptions(FolderOptions, TargetsOptions):
    """Options that name what is compiled, and the compiler."""

    jax_version: str = _jax(
        "--jax-version VERSION",
        "JAX pin of ci/pins.yaml; default: the default pin.",
        values="jax_versions",
    )
    jax_repository: str = _jax(
        "--jax-repository URL",
        "Repository of --jax-ref, such as ROCm's fork of JAX; default: the pin's.",
    )
    jax_ref: str = _jax(  # a commit, once `resolved` has asked
        "--jax-ref REF", "Branch, tag or commit of JAX to build instead of a pin."
    )
    allow_unverified_pin: bool = _jax(
        "--allow-unverified-pin",
        "Build a pin whose facts were not compared with the sources.",
        default=False,
    )
    jaxlib: str | None = _jax(
        "--jaxlib ORIGIN",
        "jaxlib: built here, or the upstream wheel pinned by hash; default: what the JAX pin says.",
        values=JAXLIB_ORIGINS,
        default=None,
    )
    compiler: str = _bazel(
        "--compiler NAME",
        "Host compiler: clang (this machine's where JAX builds with it, else JAX's own), or "
        "hermetic (JAX's own clang).",
        values=COMPILERS,
        default="clang",
    )


class PythonOptions(OptionSet):
    """The option that names CPythons."""

    pythons: tuple[PythonVersion, ...] = _inputs(
        "--python-versions LIST",
        "CPythons, comma-separated: 3.12,3.13; default: all of the JAX pin.",
        values="pythons",
        many=True,
        parse=_python,
    )


class VersionOptions(OptionSet):
    """Options that make the version of the wheels."""

    wheel_suffix: str | None = _wheels(
        "--wheel-suffix SUFFIX",
        "Version suffix of the wheels; default: +rocm<version>.",
        default=None,
    )


class ProgramOptions(OptionSet):
    """Options that name the compiler's and Bazel's executables."""

    compiler_path: Path | None = _bazel(
        "--compiler-path", "The compiler's executable; default: the newest on PATH.", is_path=True
    )
    bazel_path: str | None = _bazel(
        "--bazel-path --bazel",
        "The Bazel to use; default: the version the tree asks for, on PATH or fetched.",
        values="FILE",
        default=None,
    )
    bazel_mirror: str = _bazel(
        "--bazel-mirror URL", "Where Bazel releases are fetched from; default: their GitHub page."
    )
    locked: bool = _bazel(
        "--locked", "Refuse a Bazel whose SHA-256 was not verified.", default=False
    )


class BazelOptions(ProgramOptions):
    """Options about Bazel and how it compiles."""

    cpu_features: str = _bazel(
        "--target-cpu-features NAME",
        "release (AVX), native (this machine only) or default (none).",
        values=CPU_FEATURES,
        default="release",
    )
    bazel_options: tuple[str, ...] = _bazel(
        "--bazel-options", "Further Bazel option, last on its line; repeatable.", default=()
    )
    bazel_startup_options: tuple[str, ...] = _bazel(
        "--bazel-startup-options", "Further Bazel startup option; repeatable.", default=()
    )


class RemoteOptions(OptionSet):
    """Options that name a remote cache and executor, and what they trust."""

    cache: str = _remote("--remote-cache URL", "Bazel remote cache: http, https, grpc or grpcs.")
    executor: str = _remote("--remote-executor URL", "Bazel remote executor: grpc or grpcs.")
    upload: bool = _remote(
        "--remote-upload", "Also write to the remote cache; else it is only read.", default=False
    )
    header_file: Path | None = _remote(
        "--remote-header-file",
        "`Name: value` lines sent to cache and executor; a file only you can read.",
        is_path=True,
    )
    tls_ca: Path | None = _remote(
        "--remote-tls-ca", "Certificates that cache and executor are trusted by.", is_path=True
    )
    tls_certificate: Path | None = _remote(
        "--remote-tls-certificate", "Client certificate for cache and executor.", is_path=True
    )
    tls_key: Path | None = _remote(
        "--remote-tls-key", "Key of the client certificate.", is_path=True
    )
    timeout: int = _remote(
        "--remote-timeout SECONDS",
        "Longest a transfer to or from the remote cache may take.",
        default=60,
    )


class ContainerOptions(OptionSet):
    """Options that say where Bazel shall run: on this machine, or in a container."""

    kind: Literal["host", "docker", "podman"] = _container(
        "--executor",
        "Where Bazel and compilers run: on this machine, or in one container.",
        only=EXECUTORS,
        default="host",
    )
    image: str = _container(
        "--builder-image IMAGE",
        "Image to build in: NAME@sha256:…, a tag, or `search` for the recipe's.",
    )
    recipe: str = _container(
        "--builder-recipe NAME",
        "Recipe of ci/images.yaml that `search` looks for.",
        values="recipes",
        default="manylinux_2_28",
    )
    network: str = _container(
        "--container-network NAME",
        "The container's network: none, host, or one of the engine's.",
        default="none",
    )
    pass_proxies: bool = _container(
        "--container-proxies",
        "Hand proxy settings and CA certificates to the container.",
        default=False,
    )
    sandbox: bool = _container(
        "--container-sandbox",
        "Lift what keeps Bazel's linux-sandbox from working (seccomp, masked paths).",
        default=False,
    )
    cpus: str = _container("--container-cpus N", "CPUs the container may use.")
    memory: str = _container("--container-memory SIZE", "Memory the container may use.")
    shm: str = _container(
        "--container-shm SIZE", "Size of /dev/shm in the container.", default="1g"
    )


class WheelhouseOptions(OptionSet):
    """Options about the wheelhouse."""

    wheelhouse: Path = _output(
        "--wheelhouse", "Where wheelhouses appear.", is_path=True, default="wheelhouse"
    )
    allow_dirty: bool = _output(
        "--allow-dirty", "Build from sources that are not a clean commit.", default=False
    )


class Wanted(
    RocmOptions, FamilyOptions, SourceOptions, PythonOptions, VersionOptions, BazelOptions,
    BuildCacheOptions, WheelhouseOptions,
):  # fmt: skip
    """What a build takes as people gave it; what is empty or None follows from the rest."""


class BuildOptions(Wanted):
    """Everything that decides what is built; what a command has no option for keeps its default."""

    remote: RemoteOptions = nested(RemoteOptions)
    executor: ContainerOptions = nested(ContainerOptions)
