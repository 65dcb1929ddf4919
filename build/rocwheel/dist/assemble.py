"""From the inputs to a wheelhouse: compile, repair, verify, record, publish; and once more.

A set is built again from its manifest, and compared byte by byte.
"""

import itertools
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from msgspec import UNSET, to_builtins
from packaging.utils import parse_wheel_filename

from rocwheel import bazel, rocm, source
from rocwheel.base import files, git, parallel
from rocwheel.base.console import Console
from rocwheel.base.container import Mount
from rocwheel.base.download import is_loopback
from rocwheel.base.errors import ConfigError, HostError
from rocwheel.base.git import Source
from rocwheel.base.here import Here
from rocwheel.base.process import Runner
from rocwheel.base.values import Plain, replace
from rocwheel.base.versions import PythonVersion, WheelKind, canonical_version, project_name
from rocwheel.dist import build_request, executor, wheelhouse
from rocwheel.dist.build_request import Plan, Request
from rocwheel.dist.executor import WHEELHOUSE, BuildEnvironment
from rocwheel.dist.inputs import Inputs, gather
from rocwheel.records.install import rocm_extras
from rocwheel.records.manifest import (
    BazelRecord,
    BuildRecord,
    FindingRecord,
    Manifest,
    RocmSource,
    WheelEntry,
)
from rocwheel.wheel import LIMITS, sbom
from rocwheel.wheel.diff import diff
from rocwheel.wheel.inspect import inspect
from rocwheel.wheel.repair import apply, plan_repair
from rocwheel.wheel.verify import compilers_of, verify
from rocwheel.wheel.verify.installs import Installers, installs
from rocwheel.wheel.verify.libraries import Expectation
from rocwheel.wheel.verify.rules import Finding, refuse
from rocwheel.wheel.verify.runs import Running
from rocwheel.wheel.verify.runs import runs as run_all

LLVM: Final = "https://github.com/llvm/llvm-project"
RAW: Final = "raw"  # Bazel's wheels, below the scratch folder


class Result(Plain, frozen=True, kw_only=True):
    """The result of a build: the finished wheelhouse, and what making it took."""

    wheelhouse: Path
    manifest: Manifest
    is_new: bool  # False: the same set was there already
    bazel: bazel.Runs
    findings: tuple[Finding, ...]  # warnings; errors end a build


def build(planned: Plan, here: Here, *, place: BuildEnvironment | None = None) -> Result:
    """Carry out the plan; the wheelhouse appears whole or not at all.

    `place` is where to build, if the caller has chosen it already. Raises what the stages raise;
    every failure leaves caches usable.
    """
    console = here.console
    with wheelhouse.assembling(planned.request.wheelhouse) as scratch:
        inputs = gather(planned, here, place=place)
        mount = Mount(host=scratch, guest=WHEELHOUSE, writable=True)
        built_in = inputs.place.with_mounts(mount)
        with bazel.explained(planned.failures), built_in.running(here.runner) as inside:
            invocations = bazel.invocations(inputs.spec)
            if planned.request.is_again:
                bazel.clean(invocations[0], runner=inside, console=console)
            runs = bazel.build_all(
                invocations,
                folder=planned.request.cache / "logs",
                into=scratch / RAW,
                runner=inside,
                console=console,
            )
            base, own = inside.host(inputs.spec.output_base), inputs.tree.xla_dir
            xla = [own] if own else sorted(base.glob("external/*xla*"))
            inputs = replace(inputs, llvm=next(filter(None, map(_llvm, xla)), ""))
            with console.step("Wheels: repair and verify", key="wheels"):
                by = Installers(here.runner, folder=scratch)
                entries, findings = _wheels(inputs, runs, scratch, by=by, console=console)
                shutil.rmtree(scratch / RAW)
        manifest = _manifest(inputs, entries)
        with console.step("Wheelhouse", key="wheelhouse"):
            record = _record(inputs, manifest, runs, findings, by=by, seconds=console.seconds)
            folder, is_new = wheelhouse.publish(scratch, manifest, record)
    return Result(
        wheelhouse=folder, manifest=manifest, is_new=is_new, bazel=runs, findings=findings
    )


def _wheels(
    inputs: Inputs, runs: bazel.Runs, scratch: Path, *, by: Installers, console: Console
) -> tuple[tuple[WheelEntry, ...], tuple[Finding, ...]]:
    tree, spec = inputs.tree, inputs.spec
    cells = [
        (kind, invocation.python if kind.per_python else None, done)
        for invocation, done in runs.done
        for kind in invocation.kinds
    ]
    judged = parallel.each(
        lambda cell: _wheel(inputs, *cell, into=scratch, runner=by.runner, console=console), cells
    )
    entries = [entry for entry, _ in judged]
    for entry in entries:
        console.info(f"   {entry.filename}")
    console.info(f"   installing with {by}")
    for path, wrong in installs([scratch / entry.filename for entry in entries], by).items():
        refuse(path.name, wrong)
    paths = [scratch / entry.filename for entry in entries]
    try:
        with console.progress("running") as bar:
            how = Running(by.runner, inputs.planned.policy, scratch, online=False, progress=bar)
            ran = run_all(paths, how)
    except HostError as exc:
        console.info(f"   not run: {exc}")
        ran = {}
    for path, found in ran.items():
        refuse(path.name, found)
        for item in found:
            console.info(f"   {path.name}: {item.severity.value}: {item.message}")
    if WheelKind.JAXLIB not in spec.kinds:
        entries += _upstream_jaxlib(tree, spec.pythons)
    findings = tuple(item for _, of_wheel in judged for item in of_wheel)
    return tuple(sorted(entries, key=lambda item: (item.kind, item.python))), findings


def _wheel(
    inputs: Inputs,
    kind: WheelKind,
    python: PythonVersion | None,
    done: bazel.BazelResult,
    *,
    into: Path,
    runner: Runner,
    console: Console,
) -> tuple[WheelEntry, tuple[Finding, ...]]:
    planned, root, spec = inputs.planned, inputs.root, inputs.spec
    version = canonical_version(inputs.tree.jax_version, spec.version_suffix)
    sources = (*_sources(inputs, kind), *itertools.starmap(sbom.Component, done.repositories[kind]))
    by_pip = root.origin == "pip" and kind is WheelKind.PLUGIN
    extras = rocm_extras(str(root.version), planned.gfx_targets) if by_pip else {}
    plan = plan_repair(
        done.outputs[kind], policy=planned.policy, kind=kind, sources=sources, extras=extras
    )
    expected = Expectation(
        kind=kind,
        project=project_name(kind, spec.rocm_number),
        version=version,
        python=python.interpreter if python else "py3",
        abi=python.abi if python else "none",
        gfx_targets=frozenset(planned.gfx_targets if kind.needs_rocm else ()),
        families={item.name: item.targets for item in planned.families},
        rocm_sonames=frozenset(root.facts.sonames) if kind.needs_rocm else None,
        compilers=compilers_of(root.root, runner) if kind.needs_rocm else frozenset(),
        siblings={project_name(item, spec.rocm_number): version for item in spec.kinds},
        extras=extras,
    )
    path = apply(plan, into, runner=runner, console=console).path
    report = inspect(path, hashes=True, code=LIMITS.code)
    findings = verify(report, policy=planned.policy, expected=expected)
    refuse(report.path.name, findings)
    entry = WheelEntry(
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
        grafted=report.grafted,
        compilers=report.compilers or UNSET,
        extras=tuple(extras) or UNSET,
    )
    return entry, findings


def _sources(inputs: Inputs, kind: WheelKind) -> Iterator[sbom.Component]:
    tree, root, spec = inputs.tree, inputs.root, inputs.spec
    for name, origin, version in (("jax", tree.jax, tree.jax_version), ("xla", tree.xla, "")):
        if origin.commit or origin.digest:
            known = replace(origin, repository=git.public(origin.repository))
            yield sbom.of_source(name, known, version)
    if kind.needs_rocm:
        # no digest: a folder has not that of its tarball, and makes the same wheels
        purl = f"pkg:generic/rocm@{root.version}"
        yield sbom.Component("source", "rocm", str(root.version), purl)
    if inputs.llvm:
        yield sbom.of_source("llvm", Source(repository=LLVM, commit=inputs.llvm))
    yield sbom.Component("tool", "bazel", spec.bazel.version)
    yield sbom.Component("tool", spec.compiler.kind, str(spec.compiler.major or ""))


def _llvm(xla: Path) -> str:
    file = xla / "third_party/llvm/workspace.bzl"
    text = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    commit = re.search(r'^\s*LLVM_COMMIT = "([0-9a-f]{40})"$', text, re.MULTILINE)
    return commit[1] if commit else ""


def _upstream_jaxlib(
    tree: source.SourceTree, pythons: tuple[PythonVersion, ...]
) -> Iterator[WheelEntry]:
    """Return jaxlib from the upstream index, pinned by hash: gated with the set, never staged."""
    for python in pythons:
        pinned = tree.upstream_jaxlib(python)
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
            requires_python=tree.release.jaxlib.requires_python if tree.release else "",
        )


def _manifest(inputs: Inputs, entries: tuple[WheelEntry, ...]) -> Manifest:
    planned, tree, root, spec = inputs.planned, inputs.tree, inputs.root, inputs.spec
    request, compiler = planned.request, spec.compiler
    names = tuple(item.name for item in planned.families)
    return Manifest(
        jax_version=tree.jax_version,
        rocm=rocm_source(root),
        tool=inputs.tool,
        jax=replace(tree.jax, repository=git.public(tree.jax.repository)),
        xla=replace(tree.xla, repository=git.public(tree.xla.repository)),
        builder_image=inputs.place.builder_image,
        bazel_version=spec.bazel.version,
        gfx_targets=planned.gfx_targets,
        pythons=tuple(map(str, spec.pythons)),
        options={
            "layout": tree.layout.name,
            "compiler": f"{compiler.kind} {compiler.major}" if compiler.major else compiler.kind,
            **({"host_compiler": compiler.digest} if compiler.digest else {}),
            "target_cpu_features": spec.cpu_features,
            "wheel_type": spec.wheel_type,
            "wheel_suffix": spec.wheel_suffix,
            "bazel_options": request.bazel_options,
            "bazel_startup_options": request.bazel_startup_options,
            **({"xla_patches": tree.xla_patches} if tree.xla_dir else {}),
        },
        wheels=entries,
        families=names if len(names) > 1 else (),
    )


def rocm_source(root: rocm.RocmRoot) -> RocmSource:
    """Return a ROCm as a manifest has it, with an address only where others can fetch it, too."""
    is_local = is_loopback(root.delivery.url)
    return RocmSource(
        version=str(root.version),
        header_version=root.facts.header_version,
        sha256=root.sha256,
        origin=root.origin,
        name=root.name,
        delivery=replace(root.delivery, url="") if is_local else root.delivery,
    )


def _record(
    inputs: Inputs,
    manifest: Manifest,
    runs: bazel.Runs,
    findings: tuple[Finding, ...],
    *,
    by: Installers,
    seconds: Mapping[str, float],
) -> BuildRecord:
    request, binary = inputs.planned.request, inputs.spec.bazel
    path = Path(binary.path)
    is_here = not inputs.place.spec and path.is_file()
    return BuildRecord(
        manifest=manifest.sha256,
        started=request.started,
        host=request.host,
        executor=inputs.place.executor.kind,
        builder=inputs.place.record,
        rocm_root=str(inputs.root.root),
        source_root=str(inputs.tree.root),
        command_line=request.command_line,
        bazel=BazelRecord(
            path=str(binary.path),
            version=binary.version,
            invocations=runs.records,
            fetched={name: known for _, made in runs.done for name, known in made.fetched.items()},
            programs={f"program bazel {binary.version}": files.sha256(path)} if is_here else {},
        ),
        milliseconds={name: round(took * 1000) for name, took in seconds.items()},
        findings=tuple(
            FindingRecord(rule=item.rule, severity=item.severity.value, message=item.message)
            for item in findings
        ),
        installed_with=by.versions,
    )


_SAME: Final = {  # of a manifest's options and of a request's fields
    "target_cpu_features": "cpu_features",
    "bazel_options": "bazel_options",
    "bazel_startup_options": "bazel_startup_options",
}


class Rebuilt(Plain, frozen=True, kw_only=True):
    """A set that was built again, compared with the one before."""

    before: Manifest
    result: Result
    wheels: Mapping[str, tuple[str, ...]]  # those that differ, and in what
    circumstances: tuple[str, ...]  # in which the two builds differ

    @property
    def state(self) -> str:
        return "different" if self.wheels else "reproduced"

    def lines(self) -> Iterator[str]:
        """Yield the comparison for a person."""
        yield from (f"the build: {line}" for line in self.circumstances)
        for name, differences in self.wheels.items():
            yield from (f"{name}: {line}" for line in differences)
        yield f"{self.before.sha256} {self.state}"

    def to_json(self, statement: str) -> dict[str, Any]:
        """Return the comparison for a program; its reason is the first difference."""
        first = next((f"{name}: {lines[0]}" for name, lines in self.wheels.items()), "")
        return {
            "state": self.state,
            "reason": first,
            "manifest": self.before.sha256,
            "rebuilt": self.result.manifest.sha256,
            "wheels": self.wheels,
            "circumstances": self.circumstances,
            "statement": statement,
        }


def plan_rebuild(manifest: Manifest, request: Request) -> Plan:
    """Plan to build a set again; `request` says where and with what, the manifest all else.

    ROCm is the recorded one, by digest, unless the request names one. Raises ConfigError for an
    input without an address in the manifest, and what `dist.plan` raises.
    """
    options: Mapping[str, Any] = manifest.options
    if "xla_patches" in options and not request.xla_source_dir:
        raise _unnamed("XLA", manifest.xla.digest or manifest.xla.commit, "--xla-source-dir")
    again = replace(
        request,
        is_again=True,
        rocm_version=manifest.rocm.version,
        families=manifest.families,
        gfx_targets=manifest.gfx_targets,
        pythons=tuple(map(PythonVersion.parse, manifest.pythons)),
        jaxlib="built" if any(w.kind == "jaxlib" for w in manifest.built) else "upstream",
        compiler=options.get("compiler", request.compiler).partition(" ")[0],
        wheel_suffix=_asked_suffix(manifest),
        **{field: options[name] for name, field in _SAME.items() if name in options},
        **({} if request.jax_source_dir else _jax(manifest, request.home.ci)),
    )
    recorded = None
    if not request.therock:
        cache = request.rocm_cache or request.cache
        recorded = rocm.recorded(manifest.rocm, cache=cache, option="--therock-path")
    return build_request.plan(again, recorded=recorded)


def _asked_suffix(manifest: Manifest) -> str:
    """Return the suffix without the part of its sources, `SourceTree.local_suffix`."""
    jax, xla = manifest.jax, manifest.xla
    marks = rf"([.+]jax{jax.commit[:9]})?([.+]xla{(xla.commit or xla.digest)[:9]})?"
    marks += r"([.+]dirty)?" if jax.dirty or xla.digest else ""
    return re.sub(rf"{marks}\Z", "", str(manifest.options.get("wheel_suffix", "")), count=1)


def _jax(manifest: Manifest, ci: Path) -> dict[str, Any]:
    jax = manifest.jax
    pins = source.load_pins(ci / "pins.yaml", layouts=source.load_layouts(ci / "layouts.yaml"))
    own = next((pin.name for pin in pins.pins if pin.commit == jax.commit), "")
    if jax.dirty or not (own or (jax.commit and jax.repository)):
        raise _unnamed("JAX", jax.digest or jax.commit, "--jax-source-dir")
    like = next((pin.name for pin in pins.pins if pin.name == manifest.jax_version), "")
    ref = {} if own else {"jax_ref": jax.commit, "jax_repository": jax.repository}
    return {"jax_version": own or like, "allow_unverified_pin": True, **ref}


def _unnamed(what: str, identity: str, option: str) -> ConfigError:
    problem = f"the manifest does not say where the files of its {what} are: {identity[:12]}"
    return ConfigError(problem, hint=f"name their folder: {option}")


def rebuild(
    manifest: Manifest,
    where: Callable[[str], Path],
    planned: Plan,
    here: Here,
    *,
    place: BuildEnvironment | None = None,
) -> Rebuilt:
    """Build a set again and compare it with its wheels; with their digests alone if it has none.

    `where` returns the path of one that differs.
    Raises ConfigError for another builder image, and what `dist.build` raises.
    """
    place = place or executor.choose(planned.request, here)
    if place.builder_image != manifest.builder_image:
        own, its = (text or "none" for text in (place.builder_image, manifest.builder_image))
        hint = "give --executor and --builder-image as the set had them"
        raise ConfigError(f"the builder image is {own}, that of the set {its}", hint=hint)
    result = build(planned, here, place=place)
    old, new = ({w.filename: w.sha256 for w in m.built} for m in (manifest, result.manifest))
    wheels: dict[str, tuple[str, ...]] = {}
    for name in sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name)):
        paths = where(name), result.wheelhouse / name
        differences = diff(*paths) if all(path.is_file() for path in paths) else ()
        members_first = sorted(differences, key=lambda item: not item.member)
        wheels[name] = (*map(str, members_first),) or (f"{old.get(name)} -> {new.get(name)}",)
    was, now = (dict(_facts(to_builtins(item))) for item in (manifest, result.manifest))
    differ = (name for name in sorted(was.keys() | now.keys()) if was.get(name) != now.get(name))
    circumstances = tuple(f"{name}: {was.get(name)} -> {now.get(name)}" for name in differ)
    return Rebuilt(before=manifest, result=result, wheels=wheels, circumstances=circumstances)


def _facts(document: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if isinstance(value, dict):
            yield from _facts(value, f"{start}{name}.")
        elif name != "wheels":
            yield start + name, value
