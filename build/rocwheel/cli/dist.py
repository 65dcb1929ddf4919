"""`dist_wheels`: the main job; and the request that every building command makes of its options."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from rocwheel.cli.app import App
from rocwheel.cli.command import DryRun, command
from rocwheel.cli.imports import when_run
from rocwheel.cli.options import BuildOptions, build_options, listed
from rocwheel.cli.rocm import rocm_index, rocm_source
from rocwheel.errors import ConfigError

with when_run():
    import platform
    import shlex

    from rocwheel import dist, housekeeping
    from rocwheel.bazel.remote import Remote, read_remote
    from rocwheel.dist.build_request import Executor
    from rocwheel.download import shown
    from rocwheel.model import PythonVersion, byte_count

LEAST_MEMORY = 6 << 20  # of Docker: https://docs.docker.com/engine/containers/resource_constraints


@dataclass(frozen=True, kw_only=True)
class DistOptions(BuildOptions, DryRun):
    """Options of `dist_wheels`."""


def request_from(app: App, options: BuildOptions, *, therock: str) -> dist.Request:
    """Turn build options into the one value `dist` takes. Raises ConfigError."""
    pythons = dict.fromkeys(PythonVersion.parse(item) for item in listed(options.python_versions))
    request = dist.Request(
        therock=therock,
        therock_sha256=options.therock_sha256,
        rocm_version=options.rocm_version,
        therock_index=rocm_index(app, options),
        devices=listed(options.device),
        pythons=tuple(pythons),
        family=options.family,
        gfx_targets=listed(options.gfx_targets),
        jax_version=options.jax_version or "",
        jax_repository=options.jax_repository or "",
        jax_ref=options.jax_ref or "",
        allow_unverified_pin=options.allow_unverified_pin,
        jax_source_dir=app.path(options.jax_source_dir),
        xla_source_dir=app.path(options.xla_source_dir),
        xla_repository=options.xla_repo or "",
        xla_ref=options.xla_ref or "",
        jaxlib=options.jaxlib,
        compiler=options.compiler,
        compiler_path=app.path(options.compiler_path),
        cpu_features=options.target_cpu_features,
        wheel_suffix=options.wheel_suffix,
        wheel_type=options.wheel_type,
        wheel_date=options.wheel_date or "",
        wheel_hash=options.wheel_hash or "",
        bazel_path=options.bazel_path,
        bazel_mirror=options.bazel_mirror or "",
        bazel_proxy=options.bazel_proxy or "",
        locked=options.locked,
        remote=_remote(app, options),
        executor=_executor(app, options),
        bazel_options=options.bazel_options,
        bazel_startup_options=options.bazel_startup_options,
        wheelhouse=app.cwd / options.wheelhouse,
        cache=app.path(options.cache_dir) or app.cache,
        rocm_cache=app.path(options.rocm_dir),
        cache_budget=byte_count(options.cache_budget) if options.cache_budget else None,
        allow_dirty=options.allow_dirty,
        home=app.home,
        cwd=app.cwd,
        environ=app.environ,
        command_line=shlex.join(shown(sys.argv)),
        started=app.now().isoformat(timespec="seconds"),
        host=platform.node(),
    )
    return dist.resolved(request, runner=app.runner)


def _executor(app: App, options: BuildOptions) -> Executor:
    return Executor(
        kind=options.executor,  # type: ignore[arg-type]  # click has checked it
        image=options.builder_image or "",
        pythons=tuple((app.cwd / path).resolve() for path in options.container_python),
        network=options.container_network,
        pass_proxies=options.container_proxies,
        cpus=_cpus(options.container_cpus),
        memory=_size("--container-memory", options.container_memory, least=LEAST_MEMORY),
        shm=_size("--container-shm", options.container_shm, least=1),
        sandbox=options.container_sandbox,
        recipe=options.builder_recipe,
        commit=options.commit,
    )


def _cpus(text: str) -> str:
    """Return how many CPUs, as engines take it; "" is no limit. Raises ConfigError."""
    if text and (not re.fullmatch(r"\d+(\.\d+)?", text) or not float(text)):
        raise ConfigError(
            f"--container-cpus: {text!r}: no number of CPUs", hint="write for example 4 or 1.5"
        )
    return text


def _size(name: str, text: str, *, least: int) -> str:
    """Return a size as engines take it; "" is no limit. Raises ConfigError."""
    try:
        too_small = bool(text) and byte_count(text) < least
    except ConfigError as exc:
        raise ConfigError(f"{name}: {exc}", hint=exc.hint) from exc
    if too_small:
        raise ConfigError(
            f"{name}: {text!r}: less than a container can have", hint="write for example 4G"
        )
    return text


def _remote(app: App, options: BuildOptions) -> Remote:
    trees = (app.path(options.jax_source_dir), app.path(options.xla_source_dir), app.home.root)
    return read_remote(
        cache=options.remote_cache,
        executor=options.remote_executor,
        header_file=app.path(options.remote_header_file),
        tls_ca=app.path(options.remote_tls_ca),
        tls_certificate=app.path(options.remote_tls_certificate),
        tls_key=app.path(options.remote_tls_key),
        upload=options.remote_upload,
        timeout=options.remote_timeout,
        workspaces=tuple(filter(None, trees)),
    )


@command("dist_wheels", DistOptions)
@build_options
def dist_wheels(app: App, options: DistOptions) -> None:
    """Build, repair and verify a wheel set; leave a wheelhouse with its manifest.

    ROCm comes from --therock-path, JAX from a pin (--jax-version) or a folder (--jax-source-dir).
    The wheelhouse appears whole, below --wheelhouse, under the first digits of the manifest's
    SHA-256; `current` points to the newest. The path of the manifest is printed.
    """
    planned = dist.plan(request_from(app, options, therock=rocm_source(options)))
    if options.dry_run:
        app.emit_plan(dist.dry_run(planned, runner=app.runner, console=app.console))
        return
    with housekeeping.using(planned.request.cache):
        result = dist.build(planned, runner=app.runner, console=app.console)
    for line in dist.lines(result, seconds=app.console.seconds):
        app.console.info(line)
    app.github_outputs(dist.github_outputs(result.wheelhouse, result.manifest))
    document = dist.document(result, seconds=app.console.seconds)
    app.emit(document, document["manifest"])
