"""The options of a build, in groups; `build` adds all of them and passes one value.

Commands with only some of the groups use `build_of`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from rocwheel.base.choices import COMPILERS, CPU_FEATURES, EXECUTORS, JAXLIB_ORIGINS
from rocwheel.base.versions import PythonVersion, byte_count
from rocwheel.cli import known
from rocwheel.cli.known import ListOf, OneOf
from rocwheel.cli.options import COUNT, PATH, option, option_set
from rocwheel.records.build_options import BuildOptions, ContainerOptions, RemoteOptions

_inputs, _jax, _wheels, _output = (
    functools.partial(option, section=section)
    for section in ("Inputs", "JAX and XLA", "Wheels", "Output")
)
_bazel, _remote, _container = (  # rare, unless one says otherwise
    functools.partial(option, section=section, rare=True)
    for section in ("Bazel", "Remote", "Container")
)


def _python(text: str) -> PythonVersion:
    # CPythons that JAX had or will have: the tree says which it accepts
    if match := re.fullmatch(r"3\.([6-9]|1[5-9])", text):
        return PythonVersion(3, int(match[1]))
    return PythonVersion.parse(text)


class _Bytes(int):
    """A number of bytes that is written as it is read."""

    def __str__(self) -> str:
        return f"{int(self)}B"


class ByteCount(click.types.StringParamType):
    """A number of bytes as people write it: 60G."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        del param, ctx
        return _Bytes(byte_count(value)) if isinstance(value, str) and value else value or None


BYTES: Final = ByteCount()

THEROCK: Final = (
    _inputs(
        "--therock-path",
        metavar="SOURCE",
        type=known.FILE,
        default="",
        help="ROCm: the URL or path of a TheRock tarball, a directory, or pip:REQUIREMENT.",
    ),
)
ROCM: Final = (
    *THEROCK,
    _inputs(
        "--therock-index-url",
        metavar="URL",
        rare=True,
        help="Install ROCm with pip from this index, or from this stream of TheRock.",
    ),
    _inputs(
        "--rocm-devices",
        metavar="LIST",
        rare=True,
        type=ListOf(known.gfx_targets),
        default=(),
        help="GPUs to install ROCm packages for with pip: a list, or all.",
    ),
    _inputs(
        "--therock-sha256",
        metavar="HEX",
        rare=True,
        default=None,
        help="SHA-256 the tarball must have.",
    ),
    _inputs(
        "--rocm-version",
        metavar="VERSION",
        default=None,
        help="ROCm version, checked against the tree; default: the tarball's name.",
    ),
)
CACHE: Final = (
    _output(
        "--cache-dir",
        type=PATH,
        rare=True,
        help="ROCm trees and Bazel output; default: ~/.cache/rocwheel.",
    ),
    _output(
        "--rocm-dir",
        type=PATH,
        rare=True,
        help="ROCm trees only: the same path on every machine that shares a remote cache.",
    ),
    _output(
        "--cache-budget",
        metavar="SIZE",
        type=BYTES,
        rare=True,
        help="Largest size of the ROCm cache: 60G; default: no limit.",
    ),
)
FAMILY_FILE: Final = _inputs(
    "--family-file",
    type=PATH,
    rare=True,
    metavar="FILE",
    help="A file of further GPU families.",
)


def family_options(text: str) -> Callable[[Any], Any]:
    """Return --family of a command that takes several, with its help, and their file."""
    kind = ListOf(known.families_or_all)
    several = _inputs("--family", metavar="LIST", type=kind, multiple=True, help=text)
    return lambda function: several(FAMILY_FILE(function))


FAMILY: Final = (family_options("GPU families to build for, or all; default: the tarball's."),)
TARGETS: Final = (
    _inputs(
        "--gfx-targets",
        "--rocm-amdgpu-targets",
        metavar="LIST",
        default=(),
        type=ListOf(known.gfx_targets),
        rare=True,
        help="gfx targets, comma-separated: gfx942,gfx1100.",
    ),
)
FOLDERS: Final = (
    _jax("--jax-source-dir", type=PATH, help="JAX source tree to build instead of a pin."),
    _jax(
        "--xla-source-dir",
        type=PATH,
        help="XLA source tree to build instead of JAX's.",
    ),
)
SOURCES: Final = (
    *FOLDERS,
    *TARGETS,
    _jax(
        "--jax-version",
        metavar="VERSION",
        type=OneOf(known.jax_versions),
        default="",
        help="JAX release of ci/pins.yaml; default: the one there.",
    ),
    _jax(
        "--jax-repository",
        metavar="URL",
        rare=True,
        help="Repository of --jax-ref, such as ROCm's fork of JAX; default: the pin's.",
    ),
    _jax(
        "--jax-ref",
        metavar="REF",
        rare=True,
        help="Branch, tag or commit of JAX to build instead of a pin.",
    ),
    _jax(
        "--allow-unverified-pin",
        is_flag=True,
        rare=True,
        help="Build a pin whose facts were not compared with the sources.",
    ),
    _jax(
        "--jaxlib",
        metavar="ORIGIN",
        type=OneOf(known.of(*JAXLIB_ORIGINS)),
        rare=True,
        help="jaxlib: built here, or the upstream wheel pinned by hash; default: what the JAX pin "
        "says.",
    ),
    _bazel(
        "--compiler",
        metavar="NAME",
        type=OneOf(known.of(*COMPILERS)),
        default="clang",
        rare=False,
        help="Host compiler: clang (of this machine; where it has none, JAX's own) or hermetic "
        "(JAX's own).",
    ),
)


def pythons(default: str) -> tuple[Callable[[Any], Any], ...]:
    """Return --python-versions, whose help says which it is by default."""
    text, kind = "CPythons, comma-separated: 3.12,3.13; default:", ListOf(known.pythons, _python)
    return (
        _inputs(
            "--python-versions", metavar="LIST", default=(), type=kind, help=f"{text} {default}."
        ),
    )


PYTHONS: Final = pythons("all of the JAX pin")
VERSION: Final = (
    _wheels(
        "--wheel-suffix",
        metavar="SUFFIX",
        default=None,
        rare=True,
        help="Version suffix of the wheels; default: +rocm<version>.",
    ),
)
PROGRAMS: Final = (
    _bazel(
        "--compiler-path",
        type=PATH,
        help="The compiler's executable; default: the newest on PATH.",
    ),
    _bazel(
        "--bazel-path",
        "--bazel",
        metavar="PATH",
        type=known.FILE,
        help="The Bazel to use; default: the version the tree asks for, on PATH or fetched.",
    ),
    _bazel(
        "--bazel-mirror",
        metavar="URL",
        help="Where Bazel releases are fetched from; default: their GitHub page.",
    ),
    _bazel(
        "--locked",
        is_flag=True,
        help="Refuse a Bazel whose SHA-256 was not verified.",
    ),
)
BAZEL: Final = (
    *PROGRAMS,
    _bazel(
        "--target-cpu-features",
        metavar="NAME",
        type=OneOf(known.of(*CPU_FEATURES)),
        default="release",
        help="release (AVX), native (this machine only) or default (none).",
    ),
    _bazel(
        "--bazel-options",
        metavar="OPTION",
        multiple=True,
        rare=False,
        help="Bazel option, added last; repeatable.",
    ),
    _bazel(
        "--bazel-startup-options",
        metavar="OPTION",
        multiple=True,
        help="Further Bazel startup option; repeatable.",
    ),
)
REMOTE: Final = (
    _remote(
        "--remote-cache",
        metavar="URL",
        rare=False,
        help="Bazel cache: http(s):// or grpc(s)://.",
    ),
    _remote(
        "--remote-executor",
        metavar="URL",
        help="Bazel remote executor: grpc or grpcs.",
    ),
    _remote(
        "--remote-upload",
        is_flag=True,
        help="Also write to the remote cache; by default it is only read.",
    ),
    _remote(
        "--remote-header-file",
        type=PATH,
        help="`Name: value` lines sent to cache and executor; a file only you can read.",
    ),
    _remote(
        "--remote-tls-ca",
        type=PATH,
        help="CA certificates for cache and executor.",
    ),
    _remote(
        "--remote-tls-certificate",
        type=PATH,
        help="Client certificate for cache and executor.",
    ),
    _remote("--remote-tls-key", type=PATH, help="Key of the client certificate."),
    _remote(
        "--remote-timeout",
        metavar="SECONDS",
        type=COUNT,
        default=60,
        help="Longest a transfer to or from the remote cache may take.",
    ),
)
CONTAINER: Final = (
    _container(
        "--executor",
        type=click.Choice(EXECUTORS),
        default="host",
        rare=False,
        help="Build on this machine or in one container.",
    ),
    _container(
        "--builder-image",
        "-b",
        metavar="IMAGE",
        default="",
        help="Image to build in: NAME@sha256:…, a tag, or `search` for the recipe's.",
    ),
    _container(
        "--builder-recipe",
        metavar="NAME",
        type=OneOf(known.recipes),
        default="manylinux_2_28",
        help="Recipe of ci/images.yaml that `search` looks for.",
    ),
    _container(
        "--container-network",
        metavar="NAME",
        default="none",
        help="The container's network: none, host, or one of the engine's.",
    ),
    _container(
        "--container-proxies",
        is_flag=True,
        help="Hand proxy settings and CA certificates to the container.",
    ),
    _container(
        "--container-sandbox",
        is_flag=True,
        help="Allow Bazel's linux-sandbox: no seccomp filter, no masked paths.",
    ),
    _container("--container-cpus", metavar="N", help="CPUs the container may use."),
    _container("--container-memory", metavar="SIZE", help="Memory the container may use."),
    _container(
        "--container-shm",
        metavar="SIZE",
        default="1g",
        help="Size of /dev/shm in the container.",
    ),
)
ALLOW_DIRTY: Final = _output(
    "--allow-dirty", is_flag=True, help="Build sources that are not a clean commit."
)
WHEELHOUSE: Final = (
    _output("--wheelhouse", type=PATH, default="wheelhouse", help="Folder for the wheelhouses."),
    ALLOW_DIRTY,
)

# of options whose value has another name in the program
FIELDS: Final = {
    "therock_path": "therock",
    "therock_index_url": "therock_index",
    "rocm_devices": "devices",
    "cache_dir": "cache",
    "rocm_dir": "rocm_cache",
    "family": "families",
    "family_file": "own_families",
    "python_versions": "pythons",
    "target_cpu_features": "cpu_features",
}
EXECUTOR_FIELDS: Final = {
    "executor": "kind",
    "builder_image": "image",
    "builder_recipe": "recipe",
    "container_network": "network",
    "container_proxies": "pass_proxies",
    "container_sandbox": "sandbox",
    "container_cpus": "cpus",
    "container_memory": "memory",
    "container_shm": "shm",
}


def _asked(**given: Any) -> BuildOptions:
    executor = {EXECUTOR_FIELDS[k]: given.pop(k) for k in [*given] if k in EXECUTOR_FIELDS}
    is_remote = [name for name in given if name.startswith("remote_")]
    remote = {name.removeprefix("remote_"): given.pop(name) for name in is_remote}
    if "family" in given:
        given["family"] = tuple(dict.fromkeys(name for each in given["family"] for name in each))
    return BuildOptions(
        **{FIELDS.get(name, name): value for name, value in given.items()},
        remote=RemoteOptions(**remote),
        executor=ContainerOptions(**executor),
    )


Options = tuple[Callable[[Any], Any], ...]
PARTS: Final[tuple[Options, ...]] = (
    ROCM,
    FAMILY,
    SOURCES,
    PYTHONS,
    VERSION,
    BAZEL,
    CACHE,
    WHEELHOUSE,
    REMOTE,
    CONTAINER,
)


def build_of(*parts: Options, **fixed: Any) -> Callable[[Any], Any]:
    """Return a decorator with these options, which passes them as `build`."""
    make = functools.partial(_asked, **fixed)
    return option_set("build", make, *(each for part in parts for each in part))


build = build_of(*PARTS)


def of(params: Mapping[str, Any]) -> BuildOptions:
    """Return the value that `build` passes, of the parameters of a parsed command."""
    make: Any = build(lambda build: build)
    return make(**{param.name: params[param.name] for param in make.__click_params__})  # type: ignore[no-any-return]
