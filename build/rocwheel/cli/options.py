"""The options of a build, declared once: before the command (the group) and after it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from rocwheel.choices import COMPILERS, CPU_FEATURES, EXECUTORS, JAXLIB_ORIGINS, WHEEL_TYPES
from rocwheel.cli import known
from rocwheel.cli.command import once, option, section, together
from rocwheel.cli.known import OneOf

_PATH = click.Path(path_type=Path)


@dataclass(frozen=True, kw_only=True)
class RocmOptions:
    """Options that name a ROCm, and the cache it is kept in."""

    therock_path: str | None = None
    therock_sha256: str | None = None
    rocm_version: str | None = None
    therock_index_url: str | None = None
    device: str | None = None
    cache_dir: Path | None = None
    rocm_dir: Path | None = None
    cache_budget: str | None = None


@dataclass(frozen=True, kw_only=True)
class BuildOptions(RocmOptions):
    """Everything that decides what is built; what a command has no option for keeps its default."""

    python_versions: str | None = None
    family: str | None = None
    gfx_targets: str | None = None
    jax_version: str | None = None
    jax_repository: str | None = None
    jax_ref: str | None = None
    allow_unverified_pin: bool = False
    jax_source_dir: Path | None = None
    xla_source_dir: Path | None = None
    xla_repo: str | None = None
    xla_ref: str | None = None
    jaxlib: str | None = None
    compiler: str = "clang"
    compiler_path: Path | None = None
    target_cpu_features: str = "release"
    wheel_suffix: str | None = None
    wheel_type: str = "release"
    wheel_date: str | None = None
    wheel_hash: str | None = None
    bazel_path: str | None = None
    bazel_mirror: str | None = None
    bazel_proxy: str | None = None
    locked: bool = False
    bazel_options: tuple[str, ...] = ()
    bazel_startup_options: tuple[str, ...] = ()
    remote_cache: str | None = None
    remote_executor: str | None = None
    remote_upload: bool = False
    remote_header_file: Path | None = None
    remote_tls_ca: Path | None = None
    remote_tls_certificate: Path | None = None
    remote_tls_key: Path | None = None
    remote_timeout: int = 60
    executor: str = "host"
    builder_image: str | None = None
    builder_recipe: str = "manylinux_2_28"
    commit: str = ""
    container_python: tuple[Path, ...] = ()
    container_network: str = "none"
    container_proxies: bool = False
    container_sandbox: bool = False
    container_cpus: str = ""
    container_memory: str = ""
    container_shm: str = "1g"
    wheelhouse: Path = Path("wheelhouse")
    allow_dirty: bool = False


rocm_options = section(
    "Inputs",
    once(
        "--therock-path",
        metavar="SOURCE",
        type=known.FILE,
        help="ROCm: URL of a TheRock tarball, a local tarball (.tar.gz, .tar.xz, .tar.zst), a "
        "directory that holds ROCm, or pip:REQUIREMENT.",
    ),
    once(
        "--therock-index-url",
        metavar="URL",
        help="pip index with TheRock's packages to install ROCm from, or one of its channels.",
    ),
    once(
        "--device",
        metavar="LIST",
        help="GPUs whose code a ROCm by pip has, comma-separated, or all.",
    ),
    once("--therock-sha256", metavar="HEX", help="SHA-256 the tarball must have."),
    once(
        "--rocm-version",
        metavar="VERSION",
        help="ROCm version, checked against the tree; default: the tarball's name.",
    ),
)
python_options = section(
    "Inputs",
    once(
        "--python-versions",
        metavar="LIST",
        type=OneOf(known.pythons, many=True),
        help="CPythons, comma-separated: 3.12,3.13; default: all of the JAX pin.",
    ),
)
family_options = section(
    "Inputs",
    once(
        "--family",
        metavar="NAME",
        type=OneOf(known.families),
        help="GPU family that gives the gfx targets; default: the tarball's name.",
    ),
)
gfx_options = section(
    "Inputs",
    once(
        "--gfx-targets",
        "--rocm-amdgpu-targets",
        metavar="LIST",
        type=OneOf(known.gfx_targets, many=True),
        help="gfx targets, comma-separated: gfx942,gfx1100.",
    ),
)
jax_options = section(
    "JAX and XLA",
    once(
        "--jax-version",
        metavar="VERSION",
        type=OneOf(known.jax_versions),
        help="JAX pin of ci/pins.yaml; default: the default pin.",
    ),
    once(
        "--jax-repository",
        metavar="URL",
        help="Repository of --jax-ref, such as ROCm's fork of JAX; default: the pin's.",
    ),
    once(
        "--jax-ref", metavar="REF", help="Branch, tag or commit of JAX to build instead of a pin."
    ),
    option(
        "--allow-unverified-pin",
        is_flag=True,
        help="Build a pin whose facts were not compared with the sources.",
    ),
    once("--jax-source-dir", type=_PATH, help="JAX source tree to build instead of a pin."),
    once(
        "--xla-source-dir",
        type=_PATH,
        help="XLA source tree to build instead of the one JAX pins.",
    ),
    once(
        "--xla-repo",
        metavar="URL",
        help="Repository of --xla-ref; default: the one JAX takes.",
    ),
    once("--xla-ref", metavar="REF", help="Branch, tag or commit of XLA to build instead."),
    once(
        "--jaxlib",
        metavar="ORIGIN",
        type=OneOf(known.of(*JAXLIB_ORIGINS)),
        help="jaxlib: built here, or the upstream wheel pinned by hash; default: what the JAX pin "
        "says.",
    ),
)
version_options = section(
    "Wheels",
    once(
        "--wheel-suffix",
        metavar="SUFFIX",
        help="Version suffix of the wheels; default: +rocm<version>.",
    ),
    once(
        "--wheel-type",
        metavar="TYPE",
        default="release",
        show_default=True,
        type=OneOf(known.of(*WHEEL_TYPES)),
        help="How the version is made: release, nightly (with --wheel-date), custom or snapshot.",
    ),
    once(
        "--wheel-date",
        metavar="YYYYMMDD",
        help="Date in the version of nightly and custom wheels.",
    ),
    once("--wheel-hash", metavar="HEX", help="Commit in the version of custom wheels."),
)
compiler_option = section(
    "Bazel",
    once(
        "--compiler",
        metavar="NAME",
        default="clang",
        show_default=True,
        type=OneOf(known.of(*COMPILERS)),
        help="Host compiler: clang (this machine's where JAX builds with it, else JAX's own), "
        "hermetic (JAX's own clang), gcc (where the "
        "layout has it).",
    ),
)
bazel_options = section(
    "Bazel",
    once(
        "--compiler-path",
        type=_PATH,
        help="The compiler's executable; default: the newest on PATH.",
    ),
    once(
        "--target-cpu-features",
        metavar="NAME",
        default="release",
        show_default=True,
        type=OneOf(known.of(*CPU_FEATURES)),
        help="release (AVX), native (this machine only) or default (none).",
    ),
    once(
        "--bazel-path",
        "--bazel",
        type=known.FILE,
        help="The Bazel to use; default: the version the tree asks for, on PATH or fetched.",
    ),
    once(
        "--bazel-mirror",
        metavar="URL",
        help="Where Bazel releases are fetched from; default: their GitHub page.",
    ),
    once(
        "--bazel-proxy",
        metavar="URL",
        help="Proxy for fetching Bazel; default: the usual environment variables.",
    ),
    option("--locked", is_flag=True, help="Refuse a Bazel whose SHA-256 nobody verified."),
    option(
        "--bazel-options",
        multiple=True,
        help="Further Bazel option, last on its line; repeatable.",
    ),
    option(
        "--bazel-startup-options",
        multiple=True,
        help="Further Bazel startup option; repeatable.",
    ),
)
remote_options = section(
    "Remote",
    once("--remote-cache", metavar="URL", help="Bazel remote cache: http, https, grpc or grpcs."),
    once("--remote-executor", metavar="URL", help="Bazel remote executor: grpc or grpcs."),
    option(
        "--remote-upload",
        is_flag=True,
        help="Also write to the remote cache; else it is only read.",
    ),
    once(
        "--remote-header-file",
        type=_PATH,
        help="`Name: value` lines sent to cache and executor; a file only you can read.",
    ),
    once(
        "--remote-tls-ca",
        type=_PATH,
        help="Certificates that cache and executor are trusted by.",
    ),
    once(
        "--remote-tls-certificate",
        type=_PATH,
        help="Client certificate for cache and executor.",
    ),
    once("--remote-tls-key", type=_PATH, help="Key of the client certificate."),
    once(
        "--remote-timeout",
        metavar="SECONDS",
        type=click.IntRange(min=1),
        default=60,
        show_default=True,
        help="Longest a transfer to or from the remote cache may take.",
    ),
)
executor_options = section(
    "Container",
    once(
        "--executor",
        type=click.Choice(EXECUTORS),
        default="host",
        show_default=True,
        help="Where Bazel and compilers run: on this machine, or in one container.",
    ),
    once(
        "--builder-image",
        metavar="IMAGE",
        help="Image to build in: NAME@sha256:…, a tag, or `search` for one of ours.",
    ),
    once(
        "--builder-recipe",
        metavar="NAME",
        default="manylinux_2_28",
        show_default=True,
        type=OneOf(known.recipes),
        help="Recipe of ci/images.yaml that `search` looks for.",
    ),
    once(
        "--commit",
        metavar="NAME",
        default="",
        help="Keep the container afterwards as an image that no manifest takes.",
    ),
    option(
        "--container-python",
        type=click.Path(path_type=Path, readable=False),
        multiple=True,
        metavar="DIR",
        help="Prefix of a CPython of this machine to mount; repeatable.",
    ),
    once(
        "--container-network",
        metavar="NAME",
        default="none",
        show_default=True,
        help="The container's network: none, host, or one of the engine's.",
    ),
    option(
        "--container-proxies",
        is_flag=True,
        help="Hand proxy settings and CA certificates to the container.",
    ),
    option(
        "--container-sandbox",
        is_flag=True,
        help="Lift what keeps Bazel's linux-sandbox from working (seccomp, masked paths).",
    ),
    once("--container-cpus", metavar="N", default="", help="CPUs the container may use."),
    once("--container-memory", metavar="SIZE", default="", help="Memory the container may use."),
    once(
        "--container-shm",
        metavar="SIZE",
        default="1g",
        show_default=True,
        help="Size of /dev/shm in the container.",
    ),
)
wheelhouse_options = section(
    "Output",
    once(
        "--wheelhouse",
        type=_PATH,
        default=Path("wheelhouse"),
        show_default=True,
        help="Where wheelhouses appear.",
    ),
    option(
        "--allow-dirty",
        is_flag=True,
        help="Build from sources that are not a clean commit.",
    ),
)
cache_options = section(
    "Output",
    once(
        "--cache-dir",
        type=_PATH,
        help="ROCm trees and Bazel output; default: ~/.cache/rocwheel.",
    ),
    once(
        "--rocm-dir",
        type=_PATH,
        help="ROCm trees alone: a path that is the same for all who share a remote cache.",
    ),
    once(
        "--cache-budget",
        metavar="SIZE",
        help="Most the ROCm cache may hold: 60G; default: no limit.",
    ),
)

fetch_options = together(rocm_options, cache_options)
# what is built, and where and with what
source_options = together(rocm_options, family_options, gfx_options, jax_options, compiler_option)
place_options = together(bazel_options, remote_options, executor_options, cache_options)
unpublished_options = together(source_options, python_options, version_options, place_options)
build_options = together(unpublished_options, wheelhouse_options)


def listed(text: str | None) -> tuple[str, ...]:
    """Return the items of a comma-separated option."""
    return tuple(item.strip() for item in (text or "").split(",") if item.strip())
