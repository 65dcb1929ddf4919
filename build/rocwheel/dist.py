"""`dist_wheels`: from a ROCm source and a JAX source tree to a verified wheelhouse.

`plan` checks what can be checked without touching anything; `build` goes through the stages:
ROCm, sources, Bazel, wheels, wheelhouse. Each stage is a value that the next one takes.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import amdgpu_family_matrix as matrix
from rocwheel import bazel, rocm, source, wheel, wheelhouse
from rocwheel.bazel.invocation import COMPILERS, CPU_FEATURES, WHEEL_TYPES
from rocwheel.bazel.remote import LOCAL
from rocwheel.console import silent
from rocwheel.errors import ConfigError, HostError, WheelError
from rocwheel.manifest import BUILD_RECORD, MANIFEST, Manifest, RocmSource, Source, WheelEntry
from rocwheel.model import (
    PythonVersion,
    RocmVersion,
    WheelKind,
    canonical_version,
    gfx_target,
    project_name,
    rocm_number,
    suggest,
)
from rocwheel.wheel import policy as policy_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from packaging.version import Version

    from rocwheel.console import Console
    from rocwheel.process import Runner

JAXLIB_ORIGINS: Final = ("built", "upstream")
RAW: Final = "raw"  # Bazel's wheels, below the scratch folder
UPSTREAM: Final = " (upstream, by hash)"


@dataclass(frozen=True, kw_only=True)
class Request:
    """What was asked for; what is empty or None is decided by the pin, the tree or the tarball."""

    therock: str
    therock_sha256: str | None = None
    rocm_version: str | None = None
    pythons: tuple[PythonVersion, ...] = ()
    family: str | None = None
    gfx_targets: tuple[str, ...] = ()
    jax_version: str = ""
    jax_source_dir: Path | None = None
    xla_source_dir: Path | None = None
    xla_repository: str = ""
    xla_ref: str = ""
    jaxlib: str | None = None
    compiler: str = "clang"
    compiler_path: Path | None = None
    cpu_features: str = "release"
    wheel_suffix: str | None = None
    wheel_type: str = "release"
    wheel_date: str = ""
    wheel_hash: str = ""
    bazel_path: str | None = None
    bazel_mirror: str = ""
    bazel_proxy: str = ""
    locked: bool = False
    remote: bazel.Remote = LOCAL
    bazel_options: tuple[str, ...] = ()
    bazel_startup_options: tuple[str, ...] = ()
    machine_options: tuple[str, ...] = ()  # Bazel's too, but about this machine: in no manifest
    wheelhouse: Path
    cache: Path
    cache_budget: int | None = None  # bytes
    allow_dirty: bool = False
    checkout: Path  # rocwheel's own: where ci/ is
    cwd: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    command_line: str = ""
    started: str = ""  # ISO 8601, UTC
    host: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything decided before the first byte is fetched."""

    request: Request
    rocm: rocm.RocmPlan
    sources: source.SourcePlan
    pins: source.Pins
    layouts: source.Layouts
    policy: wheel.WheelPolicy
    gfx_targets: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished wheelhouse, and what making it took."""

    wheelhouse: Path
    manifest: Manifest
    is_new: bool  # False: the same set was there already
    rocm_root: Path
    rocm_number: str
    bazel: tuple[tuple[bazel.BazelInvocation, bazel.BazelResult], ...]
    findings: tuple[wheel.Finding, ...]  # warnings; errors end a build

    @property
    def actions_executed(self) -> int:
        return sum(done.actions_executed for _, done in self.bazel)

    @property
    def cache_hits(self) -> int:
        return sum(done.cache_hits for _, done in self.bazel)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What a build is made from, once it is all there and checked."""

    planned: Plan
    tree: source.SourceTree
    tool: Source  # rocwheel itself
    root: rocm.RocmRoot
    spec: bazel.BuildSpec


Runs: TypeAlias = "tuple[tuple[bazel.BazelInvocation, bazel.BazelResult], ...]"


def plan(request: Request) -> Plan:
    """Check the request and decide. Changes nothing. Raises ConfigError, RocmError, HostError."""
    ci = request.checkout / "ci"
    layouts = source.load_layouts(ci / "layouts.yaml")
    pins = source.load_pins(ci / "pins.yaml", layouts=layouts)
    for what, value, valid in (
        ("compiler", request.compiler, COMPILERS),
        ("CPU features", request.cpu_features, CPU_FEATURES),
        ("wheel type", request.wheel_type, WHEEL_TYPES),
        ("origin of jaxlib", request.jaxlib, JAXLIB_ORIGINS),
    ):
        if value is not None and value not in valid:
            raise ConfigError(f"{value!r}: unknown {what}", hint=suggest(value, valid))
    planned = rocm.plan(
        request.therock,
        sha256=request.therock_sha256,
        version=request.rocm_version,
        cache=request.cache,
        cwd=request.cwd,
    )
    return Plan(
        request=request,
        rocm=planned,
        sources=source.plan(
            source.SourceRequest(
                jax_version=request.jax_version,
                jax_dir=request.jax_source_dir,
                xla_dir=request.xla_source_dir,
                xla_repository=request.xla_repository,
                xla_ref=request.xla_ref,
            ),
            pins=pins,
            cache=request.cache,
        ),
        pins=pins,
        layouts=layouts,
        policy=policy_file.load(ci / "wheel_policy.yaml"),
        gfx_targets=_targets(request, planned.family),
    )


def _targets(request: Request, of_tarball: matrix.Family | None) -> tuple[str, ...]:
    """Explicit list, else the family, else an error; never what this machine happens to have."""
    if request.gfx_targets:
        known = matrix.known_targets()
        for target in request.gfx_targets:
            if gfx_target(target) not in known:
                raise ConfigError(f"{target!r}: unknown gfx target", hint=suggest(target, known))
        return tuple(dict.fromkeys(request.gfx_targets))
    if request.family:
        if request.family not in matrix.FAMILIES:
            raise ConfigError(
                f"{request.family!r}: unknown GPU family",
                hint=suggest(request.family, tuple(matrix.FAMILIES)),
            )
        return matrix.FAMILIES[request.family].targets
    if of_tarball:
        return of_tarball.targets
    raise ConfigError(
        "gfx targets: neither given nor in the tarball's name",
        hint="add --family gfx94X-dcgpu or --gfx-targets gfx942,gfx1100",
    )


def build(planned: Plan, *, runner: Runner, console: Console) -> Result:
    """Do what the plan says; the wheelhouse appears whole or not at all.

    Raises what the stages raise; every failure names its stage's thing and leaves caches usable.
    """
    with wheelhouse.assembling(planned.request.wheelhouse) as scratch:
        inputs = gather(planned, runner=runner, console=console)
        runs = _compile(inputs, scratch, runner=runner, console=console)
        with console.step("Wheels: repair and verify", key="wheels"):
            entries, findings = _wheels(inputs, runs, scratch, runner=runner, console=console)
            shutil.rmtree(scratch / RAW)
        manifest = _manifest(inputs, entries)
        with console.step("Wheelhouse", key="wheelhouse"):
            record = _record(inputs, manifest, runs, findings, seconds=console.seconds)
            folder, is_new = wheelhouse.publish(scratch, manifest, record)
    return Result(
        wheelhouse=folder,
        manifest=manifest,
        is_new=is_new,
        rocm_root=inputs.root.root,
        rocm_number=inputs.spec.rocm_number,
        bazel=runs,
        findings=findings,
    )


def dry_run(planned: Plan, *, runner: Runner) -> Iterator[str]:
    """Every command `build` would run and every file it would write, as lines to read or paste.

    Looks for Bazel and the compiler; fetches nothing. Sources that are not here yet are taken to
    be what their pin says.
    """
    request = planned.request
    tree, spec, notes = preview(planned, runner=runner)
    yield "# ROCm"
    yield from (f"# {line}" for line in str(planned.rocm).splitlines())
    yield "# sources"
    for command in (*planned.sources.commands, *planned.sources.xla_commands(tree)):
        yield str(command)
    yield f"# JAX {tree.jax_version} at {tree.root}"
    yield from (f"# {note}" for note in notes)
    for invocation in bazel.invocations(spec):
        yield f"# Bazel: {invocation.title}"
        yield str(invocation.command_line())
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


def preview(
    planned: Plan, *, runner: Runner
) -> tuple[source.SourceTree, bazel.BuildSpec, tuple[str, ...]]:
    """The tree and specification `gather` would give, fetching nothing; and what is missing."""
    request, notes = planned.request, []
    tree = source.preview(
        planned.sources, layouts=planned.layouts, pins=planned.pins, runner=runner
    )
    tree.accept(request.pythons)
    version, rocm_root = _expected_rocm(planned)
    try:
        binary = find_bazel(request, tree, runner=runner)
        if binary.url:
            notes.append(f"fetch {binary.url} to {binary.path}")
    except HostError as exc:
        notes.append(f"{exc}; {exc.hint}")
        binary = bazel.BazelBinary(path=PurePath("bazel"), version=tree.bazel, origin="missing")
    spec = specification(
        planned,
        tree,
        version=version,
        rocm_root=rocm_root,
        binary=binary,
        compiler=find_compiler(request, runner=runner),
    )
    return tree, spec, tuple(notes)


def _expected_rocm(planned: Plan) -> tuple[RocmVersion, PurePath]:
    """Version and root of a ROCm that may not be here yet. Raises ConfigError."""
    if planned.rocm.origin is rocm.Origin.DIRECTORY:
        root = rocm.fetch(planned.rocm, console=silent())
        return root.version, root.root
    if planned.rocm.version is None:
        raise ConfigError(
            f"{planned.rocm.name}: its name does not say which ROCm it is",
            hint="add --rocm-version, which a dry run cannot read from the tree",
        )
    return planned.rocm.version, planned.rocm.cached or PurePath("<ROCm root>")


def gather(planned: Plan, *, runner: Runner, console: Console) -> Inputs:
    """Get and check everything a build is made from; Bazel has not been started yet."""
    request = planned.request
    with console.step("Sources", key="source"):
        tree = source.resolve(
            planned.sources,
            pins=planned.pins,
            layouts=planned.layouts,
            runner=runner,
            console=console,
        )
        tool = source.identify(request.checkout, runner=runner)
        _refuse_dirty(request, tree, tool)
        tree.accept(request.pythons)
    binary = find_bazel(request, tree, runner=runner, console=console)
    compiler = find_compiler(request, runner=runner)
    spec = partial(specification, planned, tree, binary=binary, compiler=compiler)
    if planned.rocm.version:  # what cannot work is refused before gigabytes are fetched
        bazel.invocations(spec(version=planned.rocm.version, rocm_root=PurePath("/")))
    with console.step("ROCm", key="rocm"):
        root = rocm.fetch(
            planned.rocm,
            console=console,
            budget_bytes=request.cache_budget,
            env=request.environ,
        )
    return Inputs(
        planned=planned,
        tree=tree,
        tool=tool,
        root=root,
        spec=spec(version=root.version, rocm_root=root.root),
    )


def _compile(inputs: Inputs, scratch: Path, *, runner: Runner, console: Console) -> Runs:
    logs = inputs.planned.request.cache / "logs"
    runs = []
    for number, invocation in enumerate(bazel.invocations(inputs.spec), 1):
        with console.step(f"Bazel: {invocation.title}", key="bazel"):
            done = bazel.build(
                invocation,
                folder=logs,
                into=scratch / RAW / str(number),
                runner=runner,
                console=console,
            )
            console.info(f"   {done.summary}")
            for line in done.details.lines():
                console.detail(f"   {line}")
            runs.append((invocation, done))
    return tuple(runs)


def _refuse_dirty(request: Request, tree: source.SourceTree, tool: Source) -> None:
    """R36: what cannot be told again from the manifest is not built by accident."""
    dirty = [*tree.dirty, *(["rocwheel"] if tool.dirty else [])]
    if dirty and not request.allow_dirty:
        raise ConfigError(
            f"{' and '.join(dirty)}: changes that no commit has",
            hint="commit them, or add --allow-dirty: the wheels' version will say so",
        )


def find_bazel(
    request: Request,
    tree: source.SourceTree,
    *,
    runner: Runner,
    console: Console | None = None,
) -> bazel.BazelBinary:
    """The Bazel the user names, else one of the version the tree asks for.

    With a console it may be downloaded. Raises HostError, ConfigError, FetchError.
    """
    proxy = request.bazel_proxy
    env = {**request.environ, **({"http_proxy": proxy, "https_proxy": proxy} if proxy else {})}
    return bazel.locate(
        request.bazel_path,
        wanted=tree.bazel,
        search_path=request.environ.get("PATH", ""),
        workspace=tree.workspace,
        runner=runner,
        downloads=bazel.Downloads(
            releases=bazel.load_releases(request.checkout / "ci" / "bazel_binaries.yaml"),
            folder=request.cache / "bazel-binaries",
            mirror=request.bazel_mirror,
            only_verified=request.locked,
            env=env,
        ),
        console=console,
    )


def specification(
    planned: Plan,
    tree: source.SourceTree,
    *,
    version: RocmVersion,
    rocm_root: PurePath,
    binary: bazel.BazelBinary,
    compiler: bazel.Compiler,
) -> bazel.BuildSpec:
    """Everything Bazel's command lines follow from."""
    request = planned.request
    number = rocm_number(layout=tree.layout.name, jax=_version(tree.jax_version), rocm=version)
    built_here = (request.jaxlib or tree.jaxlib_origin) == "built"
    kinds = (WheelKind.PLUGIN, WheelKind.PJRT, *((WheelKind.JAXLIB,) if built_here else ()))
    return bazel.BuildSpec(
        bazel=binary,
        workspace=tree.workspace,
        layout=tree.layout,
        version_class=tree.version_class,
        jax_version=tree.jax_version,
        kinds=kinds,
        pythons=request.pythons or tree.pythons,
        rocm=version,
        rocm_root=rocm_root,
        rocm_number=number,
        gfx_targets=planned.gfx_targets,
        compiler=compiler,
        cpu_features=request.cpu_features,
        wheel_version=_wheel_version(request, tree, version),
        git_hash=tree.jax.commit,
        xla_dir=tree.xla_dir,
        caches=bazel.Caches(
            output_user_root=request.cache / "bazel",
            disk=request.cache / "bazel-disk",
            repository=request.cache / "bazel-repositories",
        ),
        remote=request.remote,
        startup_options=request.bazel_startup_options,
        options=(*request.machine_options, *request.bazel_options),
    )


def find_compiler(request: Request, *, runner: Runner) -> bazel.Compiler:
    """The host compiler asked for. Raises HostError."""
    from rocwheel import host

    if request.compiler == "hermetic":
        return bazel.Compiler(kind="hermetic")
    found = host.compiler(request.compiler, request.compiler_path, request.environ, runner=runner)
    return bazel.Compiler(kind=request.compiler, cc=found.cc, cxx=found.cxx, major=found.major)


def _wheel_version(
    request: Request, tree: source.SourceTree, version: RocmVersion
) -> bazel.WheelVersion:
    """Type, date, hash and suffix; overridden sources show in the local part of the version."""
    mark, suffix = tree.local_suffix, request.wheel_suffix
    if request.wheel_type in {"nightly", "snapshot"}:
        if mark or suffix:
            raise ConfigError(
                f"{request.wheel_type} wheels: their version has no room for {suffix or mark}",
                hint="add --wheel-type custom with --wheel-date",
            )
        return bazel.WheelVersion(kind=request.wheel_type, date=request.wheel_date)
    if suffix is None:
        suffix = "" if request.wheel_hash else version.wheel_suffix
    local = "+" in suffix or bool(request.wheel_hash)
    return bazel.WheelVersion(
        kind=request.wheel_type,
        suffix=suffix + (mark if local else mark.replace(".", "+", 1)),
        date=request.wheel_date,
        git_hash=request.wheel_hash,
    )


def _version(text: str) -> Version:
    from packaging.version import Version

    return Version(text)


def _wheels(
    inputs: Inputs, runs: Runs, scratch: Path, *, runner: Runner, console: Console
) -> tuple[tuple[WheelEntry, ...], tuple[wheel.Finding, ...]]:
    """Repair and verify each wheel Bazel made; one per cell, or an error with the list (R19)."""
    planned, tree, root, spec = inputs.planned, inputs.tree, inputs.root, inputs.spec
    version = canonical_version(tree.jax_version, spec.wheel_version.effective)
    entries: list[WheelEntry] = []
    findings: list[wheel.Finding] = []
    for invocation, done in runs:
        for kind in invocation.kinds:
            python = invocation.python if kind.per_python else None
            repaired = wheel.repair(
                done.outputs[kind],
                scratch,
                policy=planned.policy,
                kind=kind,
                runner=runner,
                console=console,
            )
            expected = wheel.Expectation(
                kind=kind,
                project=project_name(kind, spec.rocm_number),
                version=version,
                python=python.interpreter if python else "py3",
                abi=python.abi if python else "none",
                gfx_targets=frozenset(planned.gfx_targets if kind.needs_rocm else ()),
                rocm_sonames=root.sonames if kind.needs_rocm else None,
                siblings={project_name(item, spec.rocm_number): version for item in spec.kinds},
            )
            report = wheel.inspect(repaired.path)
            found = wheel.verify(report, policy=planned.policy, expected=expected)
            _refuse(repaired.path.name, found)
            findings += found
            entries.append(_entry(kind, python, report, repaired))
            console.info(f"   {repaired.path.name}")
    _one_per_cell(entries)
    if WheelKind.JAXLIB not in spec.kinds:
        entries += _upstream_jaxlib(tree, spec.pythons)
    return tuple(sorted(entries, key=lambda item: (item.kind, item.python))), tuple(findings)


def _refuse(filename: str, findings: tuple[wheel.Finding, ...]) -> None:
    errors = [item for item in findings if item.severity is wheel.Severity.ERROR]
    if errors:
        raise WheelError(
            f"{filename}: {len(errors)} rules are broken, the first is {errors[0].rule}",
            hint=errors[0].remedy,
            detail="\n".join(f"{item.rule}: {item.message}" for item in errors),
        )


def _entry(
    kind: WheelKind,
    python: PythonVersion | None,
    report: wheel.WheelReport,
    repaired: wheel.RepairResult,
) -> WheelEntry:
    return WheelEntry(
        kind=kind.value,
        filename=report.path.name,
        project=report.project,
        version=report.version,
        tags=report.tags,
        python=str(python or ""),
        size=report.size,
        sha256=report.sha256,
        requires_python=report.requires_python,
        gfx_targets=report.gfx_targets,
        grafted=repaired.grafted,
    )


def _one_per_cell(entries: list[WheelEntry]) -> None:
    cells: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        cells.setdefault((entry.kind, entry.python), []).append(entry.filename)
    double = [", ".join(names) for names in cells.values() if len(names) > 1]
    if double or len({entry.filename for entry in entries}) != len(entries):
        raise WheelError(
            f"more than one wheel for one cell: {'; '.join(double)}",
            hint="this is a bug in the layout: each label must make exactly one wheel",
        )


def _upstream_jaxlib(
    tree: source.SourceTree, pythons: tuple[PythonVersion, ...]
) -> Iterator[WheelEntry]:
    """Jaxlib from the upstream index, pinned by hash: gated with the set, never staged."""
    from packaging.utils import parse_wheel_filename

    if tree.pin is None or not tree.pin.jaxlib:
        raise ConfigError(
            f"jaxlib {tree.jax_version}: no upstream wheels are pinned for it",
            hint="build it with --jaxlib built, or add its hashes to ci/pins.yaml",
        )
    for python in pythons:
        pinned = tree.pin.jaxlib[python]
        _, version, _, tags = parse_wheel_filename(pinned.filename)
        yield WheelEntry(
            kind=WheelKind.JAXLIB.value,
            filename=pinned.filename,
            project="jaxlib",
            version=str(version),
            tags=tuple(sorted(map(str, tags))),
            python=str(python),
            size=pinned.size,
            sha256=pinned.sha256,
            origin="upstream",
            requires_python=tree.pin.jaxlib_requires_python,
        )


def _manifest(inputs: Inputs, entries: tuple[WheelEntry, ...]) -> Manifest:
    planned, tree, root, spec = inputs.planned, inputs.tree, inputs.root, inputs.spec
    request = planned.request
    compiler = spec.compiler
    return Manifest(
        jax_version=tree.jax_version,
        rocm=RocmSource(
            version=str(root.version),
            header_version=root.header_version,
            sha256=root.sha256,
            origin=root.origin,
            name=root.name,
        ),
        tool=inputs.tool,
        jax=tree.jax,
        xla=tree.xla,
        builder_image="",
        bazel_version=spec.bazel.version,
        gfx_targets=planned.gfx_targets,
        pythons=tuple(map(str, spec.pythons)),
        options={
            "layout": tree.layout.name,
            "compiler": f"{compiler.kind} {compiler.major}" if compiler.major else compiler.kind,
            "target_cpu_features": spec.cpu_features,
            "wheel_type": spec.wheel_version.kind,
            "wheel_suffix": spec.wheel_version.suffix,
            "bazel_options": request.bazel_options,
            "bazel_startup_options": request.bazel_startup_options,
        },
        wheels=entries,
    )


def _record(
    inputs: Inputs,
    manifest: Manifest,
    runs: Runs,
    findings: tuple[wheel.Finding, ...],
    *,
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """`build.json`: how, where and how fast; not part of the set's identity."""
    request, binary = inputs.planned.request, inputs.spec.bazel
    return {
        "schema": 1,
        "manifest": manifest.sha256,
        "started": request.started,
        "host": request.host,
        "executor": "host",
        "rocm_root": str(inputs.root.root),
        "source_root": str(inputs.tree.root),
        "command_line": request.command_line,
        "bazel": {
            "path": str(binary.path),
            "version": binary.version,
            "invocations": [
                {
                    "command": str(invocation.command_line()),
                    "actions_executed": done.actions_executed,
                    "cache_hits": done.cache_hits,
                    "notes": list(done.notes),
                    "warnings": list(done.warnings),
                    "critical_path_milliseconds": round(done.details.critical_seconds * 1000),
                    "milliseconds": round(done.seconds * 1000),
                }
                for invocation, done in runs
            ],
        },
        "milliseconds": {name: round(took * 1000) for name, took in seconds.items()},
        "findings": [
            {"rule": item.rule, "severity": item.severity.value, "message": item.message}
            for item in findings
        ],
    }


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
        "bazel": {
            "invocations": len(result.bazel),
            "actions_executed": result.actions_executed,
            "cache_hits": result.cache_hits,
        },
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
    if result.actions_executed:
        yield (
            f"Bazel ran {result.actions_executed} actions in {len(result.bazel)} invocations, "
            f"{result.cache_hits} came from a cache."
        )
    else:
        yield f"Nothing was rebuilt: Bazel ran 0 actions in {len(result.bazel)} invocations."
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
