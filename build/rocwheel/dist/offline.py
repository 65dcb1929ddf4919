"""One folder with all that a build needs: filled with a network, built from without one.

The folder is the cache of a build that ends where Bazel would run its first action: ROCm, JAX and
Bazel lie in it, and loading and analysing fill Bazel's repository cache. `offline.json` says for
what it was filled, with a digest of each file that Bazel may take. A build from it compares both
first, and lets Bazel reach no address (`--experimental_downloader_config`): what the repository
cache lacks is an error that names it, wherever the folder lies by then.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Literal

from packageurl import PackageURL

from rocwheel import bazel, rocm
from rocwheel.base import files
from rocwheel.base.errors import ConfigError, HostError
from rocwheel.base.here import Here
from rocwheel.base.host import virtualenv
from rocwheel.base.values import Sha256, Value, replace
from rocwheel.base.versions import PythonVersion
from rocwheel.dist import build_request
from rocwheel.dist.assemble import rocm_source
from rocwheel.dist.build_request import Plan, Request
from rocwheel.dist.executor import REPOSITORIES, REPOSITORY_CACHE
from rocwheel.dist.inputs import gather
from rocwheel.records.manifest import RocmSource
from rocwheel.rocm.rocm_root import listing_digest

RECORD: Final = "offline.json"
WHEELS: Final = "python-wheels"  # in the repository cache, which containers see
BLOCKED: Final = "no-network.cfg"
BLOCK: Final = "block *\n"  # https://bazel.build/rules/lib/repo/http, "URL rewriting"
# What a folder is filled for, by the fields of a request.
ASKED: Final = {
    "therock": "--therock-path", "therock_index": "--therock-index-url",
    "jax_version": "--jax-version", "jax_repository": "--jax-repository",
    "jax_ref": "--jax-ref", "jax_source_dir": "--jax-source-dir",
    "xla_source_dir": "--xla-source-dir", "jaxlib": "--jaxlib", "compiler": "--compiler",
    "bazel_path": "--bazel-path", "bazel_options": "--bazel-options",
    "bazel_startup_options": "--bazel-startup-options",
}  # fmt: skip


class Filled(Value, frozen=True, kw_only=True):
    """What a folder was filled for, and what it holds."""

    asked: Mapping[str, str]  # option -> value
    jax_commit: str  # "" for a folder of the user's
    pythons: tuple[str, ...]
    rocm: RocmSource
    rocm_listing: Sha256
    bazel: str  # version
    files: Mapping[str, Sha256]  # that Bazel may take, and Bazel
    schema: Literal[1] = 1


def fill(planned: Plan, here: Here) -> Path:
    """Fetch all that a build of this plan needs into its cache; return the record of it.

    Raises what a build raises before Bazel runs an action.
    """
    request, console = replace(planned.request, is_alone=True), here.console
    folder, repositories = request.cache, request.cache / REPOSITORIES
    inputs = gather(replace(planned, request=request), here)
    with bazel.explained(planned.failures), inputs.place.running(here.runner) as inside:
        for invocation in bazel.invocations(inputs.spec):
            with console.step(f"Bazel fetches: {invocation.title}", key="fetch"):
                fetched, needs = bazel.fetch(
                    invocation, folder=folder / "logs", runner=inside, console=console
                )
                purls = [PackageURL.from_string(each.purl) for each in needs if each.purl]
                named = sorted(f"{one.name}=={one.version}" for one in purls if one.type == "pypi")
                if named:
                    wheels = repositories / WHEELS
                    here.runner.run(virtualenv.pip_download(wheels, invocation.python, *named))
                kept = {path.parent.name for path in repositories.glob("content_*/*/*/file")}
                for url, digest in (row for urls in fetched.values() for row in urls.items()):
                    if kept.isdisjoint(digest.values()):
                        console.warn(f"{url}: has no digest, so Bazel keeps no copy of it")
        bazel.forget(invocation, runner=inside)
    root, commit = inputs.root, inputs.tree.jax.commit
    program = Path(str(inputs.spec.bazel.path))
    held = [*repositories.rglob("*"), *([program] if program.is_relative_to(folder) else [])]
    record = Filled(
        asked=dict(_asked(request, jax_ref=request.jax_branch or request.jax_ref)),
        jax_commit="" if request.jax_source_dir else commit,
        pythons=tuple(map(str, inputs.spec.pythons)),
        rocm=rocm_source(root),
        rocm_listing=listing_digest(root.root),
        bazel=inputs.spec.bazel.version,
        files={
            str(path.relative_to(folder)): files.sha256(path)
            for path in sorted(held)
            if path.is_file() and path.name not in {BLOCKED, "lock"}
        },
    )
    repositories.mkdir(exist_ok=True)  # where Bazel downloaded nothing
    files.write(repositories / BLOCKED, BLOCK.encode())
    files.write(folder / RECORD, record.to_bytes())
    return folder / RECORD


def plan_offline(request: Request) -> Plan:
    """Plan to build from the folder that is the request's cache, with no network.

    Raises ConfigError for a folder that was filled for something else, HostError for one that lacks
    a file or has another one in its place.
    """
    folder = request.cache
    path = folder / RECORD
    if not path.is_file():
        raise ConfigError(
            f"{folder}: was never filled, it has no {RECORD}",
            hint="fill it where there is a network: --fetch-only in place of --offline",
        )
    record = Filled.from_bytes(path.read_bytes(), name=str(path))
    now = dict(_asked(request, jax_ref=request.jax_ref))
    for option in ASKED.values():
        _same(folder, option, record.asked.get(option, ""), now.get(option, ""))
    pythons = request.pythons or tuple(map(PythonVersion.parse, record.pythons))
    for python in map(str, pythons):
        if python not in record.pythons:
            _same(folder, "CPython", ", ".join(record.pythons), python)
    for name, digest in record.files.items():
        _check(folder / name, digest)
    repositories = folder / REPOSITORIES
    _check(repositories / BLOCKED, files.sha256(BLOCK.encode()))
    inside = request.executor.kind != "host"
    seen = REPOSITORY_CACHE if inside else repositories
    again = replace(
        request,
        pythons=pythons,
        jax_ref=record.jax_commit if request.jax_ref else "",
        jax_branch=request.jax_ref,
        is_alone=True,
        is_offline=True,
        machine_options=(
            *request.machine_options,
            f"--experimental_downloader_config={seen / BLOCKED}",
            "--repo_env=RULES_PYTHON_PIP_ISOLATED=0",
            "--repo_env=PIP_NO_INDEX=1",
            f"--repo_env=PIP_FIND_LINKS={seen / WHEELS}",
        ),
    )
    is_folder = record.rocm.origin == "directory"
    planned = build_request.plan(
        again, recorded=None if is_folder else rocm.recorded(record.rocm, cache=folder)
    )
    where = Path(planned.rocm.source) if is_folder else planned.rocm.cached
    if where is None or listing_digest(where) != record.rocm_listing:
        raise _other(where or folder / "rocm", "the ROCm")
    pin = planned.sources.pin or planned.sources.like
    if pin and record.jax_commit:
        _same(folder, "JAX", record.jax_commit, pin.commit)
    if planned.sources.commands:
        raise _other(planned.sources.root, "the JAX")
    return planned


def _asked(request: Request, *, jax_ref: str) -> Iterator[tuple[str, str]]:
    for field, option in ASKED.items():
        value = jax_ref if field == "jax_ref" else getattr(request, field)
        if value:
            yield option, " ".join(value) if isinstance(value, tuple) else str(value)


def _same(folder: Path, what: str, had: str, wants: str) -> None:
    if had != wants:
        raise ConfigError(
            f"{folder}: was filled for {what} {had or '(none)'}, not {wants or '(none)'}",
            hint="fill another folder for this request: --fetch-only",
        )


def _check(path: Path, digest: str) -> None:
    if not path.is_file() or files.sha256(path) != digest:
        raise _other(path, "a file")


def _other(path: Path, what: str) -> HostError:
    return HostError(
        f"{path}: is not {what} that was fetched" if path.exists() else f"{path}: is not there",
        hint="fill the folder again where there is a network: --fetch-only",
    )
