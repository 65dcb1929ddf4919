"""A plan and a result as people and programs read them."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any, Final

from rocwheel import bazel, wheelhouse
from rocwheel.download import has_password
from rocwheel.dist.inputs import ROCM_LATER, preview
from rocwheel.build_record import BUILD_RECORD
from rocwheel.manifest import MANIFEST
from rocwheel.model import canonical_version, project_name
from rocwheel.process import base_env

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rocwheel.dist.assemble import Result
    from rocwheel.dist.executor import BuildEnvironment
    from rocwheel.dist.request import Plan
    from rocwheel.process import Command, HostRunner

UPSTREAM: Final = " (upstream, by hash)"
ROCM_VARIABLE: Final = "ROCM_ROOT"  # of the shell that dry-run lines are pasted into


def dry_run(
    planned: Plan, *, runner: HostRunner, place: BuildEnvironment | None = None
) -> Iterator[str]:
    """Every command `build` would run and every file it would write, as lines to read or paste.

    Looks for Bazel and the compiler; fetches nothing. Sources that are not here yet are taken to
    be what their pin says.
    """
    request = planned.request
    found = preview(planned, runner=runner, place=place)
    tree, spec = found.tree, found.spec
    base = base_env(request.environ)
    yield "# ROCm"
    yield from (f"# {line}" for line in str(planned.rocm).splitlines())
    if found.rocm_root == ROCM_LATER:
        yield _fetch_rocm(planned)
    yield "# sources"
    for command in (*planned.sources.commands, *planned.sources.xla_commands(tree)):
        yield str(command)
    yield f"# JAX {tree.jax_version} at {tree.root}"
    yield from (f"# {note}" for note in found.notes)
    for title, command in found.commands(bazel.invocations(spec)):
        yield f"# {title}"
        yield _pasteable(command, base)
    yield "# wheels: repair (auditwheel and patchelf where they are needed) and verify"
    joined = canonical_version(tree.jax_version, spec.wheel_version.effective)
    folder = request.wheelhouse / f"<first {wheelhouse.IDENTITY_LENGTH} of the manifest's SHA-256>"
    for kind in spec.kinds:
        project = project_name(kind, spec.rocm_number).replace("-", "_")
        for python in spec.pythons if kind.per_python else (None,):
            tag = f"{python.interpreter}-{python.abi}" if python else "py3-none"
            yield f"# write {folder}/{project}-{joined}-{tag}-<platform>.whl"
    for name in (MANIFEST, BUILD_RECORD):
        yield f"# write {folder}/{name}"
    yield f"# point {request.wheelhouse / wheelhouse.CURRENT} to it"


def _fetch_rocm(planned: Plan) -> str:
    """A line of ours that fetches ROCm and remembers where it is for the lines after it."""
    request = planned.request
    folder = request.rocm_cache or request.cache
    ours = request.home
    start = ["python3", str(ours.root / "build" / "ci_build")] if ours.is_checkout else ["rocwheel"]
    words = [*start, "fetch_rocm"]
    words += [f"--therock-path={planned.rocm.shown}", f"--cache-dir={folder}"]
    words += [f"--therock-sha256={planned.rocm.sha256}"] if planned.rocm.sha256 else []
    return f'{ROCM_VARIABLE}="$({shlex.join(words)})"'


def _pasteable(command: Command, base: Mapping[str, str]) -> str:
    """A line that runs with exactly the environment the build gives, whatever the shell has.

    A folder that is not there yet is the variable that `_fetch_rocm` sets.
    """
    pairs = {**base, **command.env}
    names = [
        f'{name}="${name}"' if has_password(value) else f"{name}={shlex.quote(value)}"
        for name, value in sorted(pairs.items())
    ]
    words = (shlex.quote(word) for word in command.argv)
    line = " ".join(["env -i", *names, *words])
    for word in {word for word in command.argv if str(ROCM_LATER) in word}:
        variable = word.replace(str(ROCM_LATER), f'"${ROCM_VARIABLE}"')
        line = line.replace(shlex.quote(word), variable)
    return f"(cd {shlex.quote(str(command.cwd))} && {line})" if command.cwd else line


def document(result: Result, *, seconds: Mapping[str, float]) -> dict[str, Any]:
    """The result for a program: what `--json` prints."""
    manifest = result.manifest
    return {
        "manifest": str(result.wheelhouse / MANIFEST),
        "manifest_sha256": manifest.sha256,
        "build": str(result.wheelhouse / BUILD_RECORD),
        "wheelhouse": str(result.wheelhouse),
        "new": result.is_new,
        "jax_version": manifest.jax_version,
        "rocm_version": manifest.rocm.version,
        "wheels": [
            {
                "filename": item.filename,
                "project": item.project,
                "version": item.version,
                "kind": item.kind,
                "python": item.python,
                "size": item.size,
                "sha256": item.sha256,
                "origin": item.origin,
                "gfx_targets": list(item.gfx_targets),
            }
            for item in manifest.wheels
        ],
        "bazel": result.bazel.document,
        "findings": len(result.findings),
        "seconds": dict(seconds),
    }


def lines(result: Result, *, seconds: Mapping[str, float]) -> Iterator[str]:
    """The result for a person: wheels, what Bazel did, how long each stage took."""
    from rocwheel.console import columns, duration, size

    manifest = result.manifest
    yield from columns(
        ("wheel", "size", "sha256"),
        [
            (
                f"{item.filename}{UPSTREAM if item.origin == 'upstream' else ''}",
                size(item.size),
                item.sha256[:12],
            )
            for item in manifest.wheels
        ],
    )
    yield ""
    yield from columns(
        ("stage", "time"), [(name, duration(took)) for name, took in seconds.items()]
    )
    yield ""
    yield from result.bazel.lines()
    yield (
        f"ROCm {manifest.rocm.version}, JAX {manifest.jax_version}, "
        f"gfx targets {', '.join(manifest.gfx_targets)}"
    )
    state = "new" if result.is_new else "the same set was there already, nothing changed"
    yield f"manifest {manifest.sha256} ({state})"


def github_outputs(result: Result) -> dict[str, str]:
    """What later steps of a GitHub Actions job need to know."""
    import json

    manifest = result.manifest
    outputs = {
        "jax_version": manifest.jax_version,
        "rocm_version": manifest.rocm.version,
        "manifest": str(result.wheelhouse / MANIFEST),
        "manifest_sha256": manifest.sha256,
        "wheelhouse": str(result.wheelhouse),
        "wheels": json.dumps([item.filename for item in manifest.wheels]),
    }
    for item in manifest.wheels:
        outputs[f"{item.kind}_name"] = item.project
        outputs[f"{item.kind}_version"] = item.version
    return outputs
