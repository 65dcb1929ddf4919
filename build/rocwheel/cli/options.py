"""Build options, declared once: the group takes them before the command, commands after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import click

from rocwheel.cli.app import Movable, Once

if TYPE_CHECKING:
    from collections.abc import Callable

Decorator: TypeAlias = "Callable[[Callable[..., Any]], Callable[..., Any]]"
_PATH = click.Path(path_type=str)


def _table() -> tuple[tuple[tuple[str, ...], dict[str, Any]], ...]:
    return (
        (
            ("--therock-path",),
            {
                "metavar": "SOURCE",
                "help": "ROCm: URL of a TheRock tarball, a local tarball (.tar.gz, .tar.xz, "
                ".tar.zst) or a directory that holds ROCm.",
            },
        ),
        (
            ("--therock-sha256",),
            {"metavar": "HEX", "help": "SHA-256 the tarball must have."},
        ),
        (
            ("--rocm-version",),
            {
                "metavar": "VERSION",
                "help": "ROCm version, checked against the tree; default: the tarball's name.",
            },
        ),
        (
            ("--python-versions",),
            {
                "metavar": "LIST",
                "help": "CPythons, comma-separated: 3.12,3.13; default: all of the JAX pin.",
            },
        ),
        (
            ("--family",),
            {
                "metavar": "NAME",
                "help": "GPU family that gives the gfx targets; default: the tarball's name.",
            },
        ),
        (
            ("--gfx-targets", "--rocm-amdgpu-targets"),
            {"metavar": "LIST", "help": "gfx targets, comma-separated: gfx942,gfx1100."},
        ),
        (
            ("--jax-version",),
            {"metavar": "VERSION", "help": "JAX pin of ci/pins.yaml; default: the default pin."},
        ),
        (
            ("--jax-source-dir",),
            {"type": _PATH, "help": "JAX source tree to build instead of a pin."},
        ),
        (
            ("--xla-source-dir",),
            {"type": _PATH, "help": "XLA source tree to build instead of the one JAX pins."},
        ),
        (
            ("--xla-repo",),
            {"metavar": "URL", "help": "Repository of --xla-ref; default: the one JAX takes."},
        ),
        (
            ("--xla-ref",),
            {"metavar": "REF", "help": "Branch, tag or commit of XLA to build instead."},
        ),
        (
            ("--jaxlib",),
            {
                "metavar": "ORIGIN",
                "help": "jaxlib: built here, or the upstream wheel pinned by hash; default: "
                "what the JAX pin says.",
            },
        ),
        (
            ("--compiler",),
            {
                "metavar": "NAME",
                "default": "clang",
                "show_default": True,
                "help": "Host compiler: clang (on this machine), hermetic (JAX's own clang), "
                "gcc (where the layout has it).",
            },
        ),
        (
            ("--compiler-path",),
            {"type": _PATH, "help": "The compiler's executable; default: the newest on PATH."},
        ),
        (
            ("--target-cpu-features",),
            {
                "metavar": "NAME",
                "default": "release",
                "show_default": True,
                "help": "release (AVX), native (this machine only) or default (none).",
            },
        ),
        (
            ("--wheel-suffix",),
            {
                "metavar": "SUFFIX",
                "help": "Version suffix of the wheels; default: +rocm<version>.",
            },
        ),
        (
            ("--wheel-type",),
            {
                "metavar": "TYPE",
                "default": "release",
                "show_default": True,
                "help": "How the version is made: release, nightly (with --wheel-date), custom or "
                "snapshot.",
            },
        ),
        (
            ("--wheel-date",),
            {"metavar": "YYYYMMDD", "help": "Date in the version of nightly and custom wheels."},
        ),
        (
            ("--wheel-hash",),
            {"metavar": "HEX", "help": "Commit in the version of custom wheels."},
        ),
        (
            ("--bazel-path", "--bazel"),
            {
                "type": _PATH,
                "help": "The Bazel to use; default: the version the tree asks for, on PATH or "
                "fetched.",
            },
        ),
        (
            ("--bazel-mirror",),
            {
                "metavar": "URL",
                "help": "Where Bazel releases are fetched from; default: their GitHub page.",
            },
        ),
        (
            ("--bazel-proxy",),
            {
                "metavar": "URL",
                "help": "Proxy for fetching Bazel; default: the usual environment variables.",
            },
        ),
        (
            ("--locked",),
            {"is_flag": True, "help": "Refuse a Bazel whose SHA-256 nobody verified."},
        ),
        (
            ("--bazel-options",),
            {"multiple": True, "help": "Further Bazel option, last on its line; repeatable."},
        ),
        (
            ("--bazel-startup-options",),
            {"multiple": True, "help": "Further Bazel startup option; repeatable."},
        ),
        (
            ("--remote-cache",),
            {"metavar": "URL", "help": "Bazel remote cache: http, https, grpc or grpcs."},
        ),
        (
            ("--remote-executor",),
            {"metavar": "URL", "help": "Bazel remote executor: grpc or grpcs."},
        ),
        (
            ("--remote-upload",),
            {"is_flag": True, "help": "Also write to the remote cache; else it is only read."},
        ),
        (
            ("--remote-header-file",),
            {
                "type": _PATH,
                "help": "`Name: value` lines sent to cache and executor; a file only you can read.",
            },
        ),
        (
            ("--remote-tls-ca",),
            {"type": _PATH, "help": "Certificates that cache and executor are trusted by."},
        ),
        (
            ("--remote-tls-certificate",),
            {"type": _PATH, "help": "Client certificate for cache and executor."},
        ),
        (("--remote-tls-key",), {"type": _PATH, "help": "Key of the client certificate."}),
        (
            ("--remote-timeout",),
            {
                "metavar": "SECONDS",
                "type": click.IntRange(min=1),
                "default": 60,
                "show_default": True,
                "help": "Longest a transfer to or from the remote cache may take.",
            },
        ),
        (
            ("--wheelhouse",),
            {
                "type": _PATH,
                "default": "wheelhouse",
                "show_default": True,
                "help": "Where wheelhouses appear.",
            },
        ),
        (
            ("--cache-dir",),
            {"type": _PATH, "help": "ROCm trees and Bazel output; default: ~/.cache/rocwheel."},
        ),
        (
            ("--cache-budget",),
            {"metavar": "SIZE", "help": "Most the ROCm cache may hold: 60G; default: no limit."},
        ),
        (
            ("--allow-dirty",),
            {"is_flag": True, "help": "Build from sources that are not a clean commit."},
        ),
    )


def build_options(
    *,
    group: bool = False,
    only: frozenset[str] = frozenset(),
    without: frozenset[str] = frozenset(),
) -> Decorator:
    """Decorate a command with the build options, with `only` some or `without` some (long names).

    On the group they are read from the command line alone and moved behind the command; the
    environment and defaults belong to the command.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for names, settings in reversed(_table()):
            if (only and names[0] not in only) or names[0] in without:
                continue
            kwargs = dict(settings)
            if group:
                kwargs.update(allow_from_autoenv=False)
                kwargs.pop("default", None)
                kwargs.pop("show_default", None)
            many = kwargs.get("multiple") or kwargs.get("is_flag")
            cls = Movable if many else Once
            function = click.option(*names, cls=cls, **kwargs)(function)
        return function

    return decorate
