"""`dist_wheels`: the main job."""

from __future__ import annotations

import platform
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rocwheel.cli.app import App, common_options, dry_run_option
from rocwheel.cli.options import build_options

if TYPE_CHECKING:
    from rocwheel.dist import Request

CHECKOUT = Path(__file__).resolve().parents[3]


def request_from(app: App, options: dict[str, Any], *, therock: str) -> Request:
    """Turn build options into the one value `dist` takes. Raises ConfigError."""
    from rocwheel.bazel.remote import read_remote
    from rocwheel.dist import Request
    from rocwheel.model import PythonVersion, byte_count

    def folder(name: str) -> Path | None:
        return app.cwd / options[name] if options[name] else None

    def names(name: str) -> tuple[str, ...]:
        return tuple(item.strip() for item in (options[name] or "").split(",") if item.strip())

    trees = tuple(filter(None, (folder("jax_source_dir"), folder("xla_source_dir"), CHECKOUT)))
    remote = read_remote(
        cache=options["remote_cache"],
        executor=options["remote_executor"],
        header_file=folder("remote_header_file"),
        tls_ca=folder("remote_tls_ca"),
        tls_certificate=folder("remote_tls_certificate"),
        tls_key=folder("remote_tls_key"),
        upload=options["remote_upload"],
        timeout=options["remote_timeout"],
        workspaces=trees,
    )
    pythons = tuple(dict.fromkeys(PythonVersion.parse(text) for text in names("python_versions")))
    return Request(
        therock=therock,
        therock_sha256=options["therock_sha256"],
        rocm_version=options["rocm_version"],
        pythons=pythons,
        family=options["family"],
        gfx_targets=names("gfx_targets"),
        jax_version=options["jax_version"] or "",
        jax_source_dir=folder("jax_source_dir"),
        xla_source_dir=folder("xla_source_dir"),
        xla_repository=options["xla_repo"] or "",
        xla_ref=options["xla_ref"] or "",
        jaxlib=options["jaxlib"],
        compiler=options["compiler"],
        compiler_path=folder("compiler_path"),
        cpu_features=options["target_cpu_features"],
        wheel_suffix=options["wheel_suffix"],
        wheel_type=options["wheel_type"],
        wheel_date=options["wheel_date"] or "",
        wheel_hash=options["wheel_hash"] or "",
        bazel_path=options["bazel_path"],
        bazel_mirror=options["bazel_mirror"] or "",
        bazel_proxy=options["bazel_proxy"] or "",
        locked=options["locked"],
        remote=remote,
        bazel_options=options["bazel_options"],
        bazel_startup_options=options["bazel_startup_options"],
        wheelhouse=app.cwd / options["wheelhouse"],
        cache=folder("cache_dir") or app.cache,
        cache_budget=byte_count(options["cache_budget"]) if options["cache_budget"] else None,
        allow_dirty=options["allow_dirty"],
        checkout=CHECKOUT,
        cwd=app.cwd,
        environ=app.environ,
        command_line=shlex.join(sys.argv),
        started=app.now().isoformat(timespec="seconds"),
        host=platform.node(),
    )


@click.command("dist_wheels")
@build_options()
@dry_run_option
@common_options
@click.pass_obj
def dist_wheels(app: App, /, *, dry_run: bool, **options: Any) -> None:
    """Build, repair and verify a wheel set; leave a wheelhouse with its manifest.

    ROCm comes from --therock-path, JAX from a pin (--jax-version) or a folder (--jax-source-dir).
    The wheelhouse appears whole, below --wheelhouse, under the first digits of the manifest's
    SHA-256; `current` points to the newest. The path of the manifest is printed.
    """
    from rocwheel import dist

    if not options["therock_path"]:
        raise click.UsageError("dist_wheels needs --therock-path: a URL, a tarball or a directory")
    planned = dist.plan(request_from(app, options, therock=options["therock_path"]))
    if dry_run:
        shown = tuple(dist.dry_run(planned, runner=app.runner))
        app.emit({"plan": list(shown)}, "\n".join(shown))
        return
    result = dist.build(planned, runner=app.runner, console=app.console)
    seconds = app.console.seconds
    for line in dist.lines(result, seconds=seconds):
        app.console.info(line)
    app.github_outputs(dist.github_outputs(result))
    document = dist.document(result, seconds=seconds)
    app.emit(document, document["manifest"])
