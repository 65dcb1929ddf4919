"""Prints a plan and a result, for people and programs."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import to_builtins

from rocwheel import bazel, rocm
from rocwheel.base.console import columns, duration, size
from rocwheel.base.download import has_password, without_secrets
from rocwheel.base.errors import ConfigError
from rocwheel.base.here import Here
from rocwheel.base.process import Command, base_env
from rocwheel.base.versions import canonical_version, project_name
from rocwheel.dist import checks, wheelhouse
from rocwheel.dist.assemble import Result
from rocwheel.dist.build_request import Plan
from rocwheel.dist.executor import BuildEnvironment
from rocwheel.dist.inputs import ROCM_LATER, Inputs, gather
from rocwheel.records.install import REQUIREMENTS, Install
from rocwheel.records.manifest import BUILD_RECORD, MANIFEST, Manifest
from rocwheel.rocm import by_pip

ORIGINS: Final = {"upstream": " (upstream, by hash)"}
# Bazel lies in the cache as it was released, or not at all. $1: its URL, $2: file, $3: SHA-256.
FETCH_BAZEL: Final = (
    'mkdir -p "${2%/*}" && curl --fail --location --output "$2.part" "$1"'
    ' && echo "$3  $2.part" | sha256sum --check --quiet'
    ' && chmod 755 "$2.part" && mv "$2.part" "$2"'
)


def dry_run(planned: Plan, here: Here, *, place: BuildEnvironment | None = None) -> Iterator[str]:
    """Every command `build` would run and every file it would write, as lines to read or paste.

    Looks for Bazel and the compiler; fetches nothing. Missing sources are taken to be as their pin
    says. It warns as `build` does, and raises what `build` would raise before a fetch.
    """
    request = planned.request
    ahead = gather(planned, here, place=place, fetch=False)
    tree, spec = ahead.tree, ahead.spec
    yield from fetching(ahead, here)
    yield f"# JAX {tree.jax_version} at {tree.root}"
    yield f"# gfx targets {', '.join(spec.gfx_targets)}"
    yield from (f"#   {item.name}: {', '.join(item.targets)}" for item in planned.families)
    yield from (f"# {note}" for note in (*ahead.notes, spec.remote.lacks) if note)
    for title, command in ahead.commands(bazel.invocations(spec), here):
        yield f"# {title}"
        yield pasteable(command, request.environ)
    yield "# wheels: repair (with patchelf where it is needed) and verify"
    joined = canonical_version(tree.jax_version, spec.version_suffix)
    folder = request.wheelhouse / f"<first {wheelhouse.IDENTITY_LENGTH} of the manifest's SHA-256>"
    for kind in spec.kinds:
        project = project_name(kind, spec.rocm_number).replace("-", "_")
        for python in spec.pythons if kind.per_python else (None,):
            tag = f"{python.interpreter}-{python.abi}" if python else "py3-none"
            yield f"# write {folder}/{project}-{joined}-{tag}-<platform>.whl"
    for name in (MANIFEST, REQUIREMENTS, BUILD_RECORD):
        yield f"# write {folder}/{name}"
    yield f"# point {request.wheelhouse / wheelhouse.CURRENT} to it"


def cost(planned: Plan, here: Here) -> Iterator[str]:
    """Yield lines on what each run of Bazel costs; Bazel loads and analyses, and builds nothing.

    Raises ConfigError where ROCm, Bazel or the sources are not here yet, and BazelError.
    """
    ahead = gather(planned, here, fetch=False)
    binary = ahead.spec.bazel
    lacks = {"ROCm": ahead.rocm_root == ROCM_LATER, "JAX": ahead.tree.rc is None}
    lacks["Bazel"] = binary.origin == "missing" or bool(binary.url)
    if away := [name for name, is_away in lacks.items() if is_away]:
        raise ConfigError(
            f"--cost: not here yet: {', '.join(away)}",
            hint="run the first lines of --dry-run; or --fetch-only FOLDER, then --offline FOLDER",
        )
    with ahead.place.running(here.runner) as inside:
        for invocation in bazel.invocations(ahead.spec):
            for line in bazel.price(invocation, runner=inside, console=here.console):
                yield f"# {line}"


def fetching(ahead: Inputs, here: Here) -> Iterator[str]:
    """Yield lines that bring ROCm, Bazel and the sources to the places that later lines use.

    Raises RocmError for an incomplete ROCm.
    """
    planned, environ = ahead.planned, ahead.planned.request.environ
    if ahead.rocm_root != ROCM_LATER:
        name, targets, runner = planned.rocm.name, planned.gfx_targets, here.runner
        checks.check_rocm(ahead.tree, ahead.rocm_root, name=name, targets=targets, runner=runner)
    yield "# ROCm"
    yield from (f"# {line}" for line in str(planned.rocm).splitlines())
    if ahead.rocm_root == ROCM_LATER:
        yield f'ROCM_ROOT="$({pasteable(_fetch_rocm(planned), environ)})"'
    binary = ahead.spec.bazel
    if binary.url:
        yield "# Bazel"
        words = ("sh", "-c", FETCH_BAZEL, "fetch", binary.url, str(binary.path), binary.sha256)
        yield pasteable(Command(argv=words), environ)
    yield "# sources"
    for command in planned.sources.commands:
        yield pasteable(command, environ)


def _fetch_rocm(planned: Plan) -> Command:
    request = planned.request
    folder = request.rocm_cache or request.cache
    ours = request.home
    start = ["python3", str(ours.root / "build" / "ci_build")] if ours.is_checkout else ["rocwheel"]
    words = [*start, "rocm", "fetch"]
    is_pip = planned.rocm.origin is rocm.Origin.PIP
    shown = f"{by_pip.PREFIX}{planned.rocm.source}" if is_pip else planned.rocm.shown
    words += [f"--therock-path={shown}", f"--cache-dir={folder}"]
    index = without_secrets(planned.rocm.index)
    words += [f"--therock-index-url={index}"] if index else []
    words += [f"--therock-sha256={planned.rocm.sha256}"] if planned.rocm.sha256 else []
    return Command(argv=tuple(words))


def pasteable(command: Command, environ: Mapping[str, str]) -> str:
    """Return a line that runs in rocwheel's own environment, independent of the shell's.

    A value that is not known yet is a variable, which an earlier line sets.
    """
    env = sorted({**base_env(environ), **command.env}.items())
    settings = (
        f'{name}="${name}"' if has_password(value) else f"{name}={shlex.quote(value)}"
        for name, value in env
    )
    line = " ".join(["env", "-i", *settings, *map(_word, command.argv)])
    return f"(cd {_word(str(command.cwd))} && {line})" if command.cwd else line


def writing(path: Path, lines: Sequence[str]) -> Iterator[str]:
    """Return shell lines that write a text file; unknown values are variables, as above."""
    yield f"mkdir -p {shlex.quote(str(path.parent))}"
    yield "printf '%s\\n' \\"
    yield from (f"  {_word(line)} \\" for line in lines)
    yield f"  > {shlex.quote(str(path))}"


def _word(word: str) -> str:
    parts = (shlex.quote(part) if part else "" for part in word.split(str(ROCM_LATER)))
    return '"${ROCM_ROOT}"'.join(parts) or "''"


def document(result: Result, *, seconds: Mapping[str, float]) -> dict[str, Any]:
    """Return the result for a program: what `--json` prints."""
    return {
        **contents(result.wheelhouse, result.manifest),
        "new": result.is_new,
        "bazel": result.bazel.document,
        "findings": len(result.findings),
        "seconds": dict(seconds),
    }


def contents(folder: Path, manifest: Manifest) -> dict[str, Any]:
    """Return a wheelhouse for a program."""
    return {
        "manifest": str(folder / MANIFEST),
        "manifest_sha256": manifest.sha256,
        "build": str(folder / BUILD_RECORD),
        "wheelhouse": str(folder),
        "jax_version": manifest.jax_version,
        "rocm_version": manifest.rocm.version,
        **({"families": list(manifest.families)} if manifest.families else {}),
        "wheels": to_builtins(manifest.wheels),
        "install": [*Install.of(manifest, "", folder=str(folder)).pip],
    }


def table(manifest: Manifest) -> Iterator[str]:
    """Return the wheels of a set, a line each."""
    rows = [
        (f"{item.filename}{ORIGINS.get(item.origin, '')}", size(item.size), item.sha256[:12])
        for item in manifest.wheels
    ]
    return columns(("wheel", "size", "sha256"), rows)


def lines(result: Result, *, seconds: Mapping[str, float]) -> Iterator[str]:
    """Yield the result for a person: wheels, what Bazel did, how long each stage took."""
    manifest = result.manifest
    yield from table(manifest)
    yield ""
    yield from columns(
        ("stage", "time"), [(name, duration(took)) for name, took in seconds.items()]
    )
    yield ""
    yield from result.bazel.lines()
    yield (
        f"ROCm {manifest.rocm.version}, JAX {manifest.jax_version}, "
        f"gfx targets {', '.join(manifest.gfx_targets)}"
        + (f", for {', '.join(manifest.families)}" if manifest.families else "")
    )
    state = "new" if result.is_new else "the same set was there already, nothing changed"
    yield f"manifest {manifest.sha256} ({state})"
    yield from Install.of(manifest, "", folder=str(result.wheelhouse)).pip
