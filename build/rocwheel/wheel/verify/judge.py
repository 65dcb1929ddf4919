"""One wheel against policy and expectation: `Judge` knows how each rule is checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocwheel.model import WheelKind
from rocwheel.wheel.elf import GPU_MACHINE
from rocwheel.wheel.inspect import LIBRARIES, kind_of
from rocwheel.wheel.metadata import normal_name
from rocwheel.wheel.verify.rules import Finding, finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from packaging.requirements import Requirement

    from rocwheel.wheel.elf import ElfFacts
    from rocwheel.wheel.inspect import WheelReport
    from rocwheel.wheel.policy import WheelPolicy

ENTRY_POINT_GROUP: Final = "jax_plugins"
METADATA_VERSIONS: Final = frozenset({"1.0", "1.1", "1.2", "2.1", "2.2", "2.3", "2.4", "2.5"})
MODULE_ENDINGS: Final = (".py", "/__init__.py", ".so", ".abi3.so")
LEFTOVERS: Final = re.compile(
    r"(^|/)(__pycache__|\.git|\.DS_Store|\.hypothesis|\.pytest_cache|node_modules)(/|$)"
    r"|\.(pyc|pyo|orig|rej|swp|o|a|d)$|~$"
)
_MACHINE: Final = re.compile(
    r"(?:manylinux_[0-9]+_[0-9]+|manylinux[0-9]+|linux|musllinux_[0-9]+_[0-9]+)_(\w+)\Z"
)


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What a wheel was meant to be; what is empty or None is not checked."""

    kind: WheelKind | None = None  # None: as its project name says
    project: str = ""
    version: str = ""
    python: str = ""  # interpreter tag: cp312, py3
    abi: str = ""  # cp312, cp314t, none
    platform: str = ""  # manylinux_2_27_x86_64
    gfx_targets: frozenset[str] | None = None
    rocm_sonames: frozenset[str] | None = None  # of every library in the ROCm root
    siblings: Mapping[str, str] | None = None  # project -> version of every wheel of the set


@dataclass(frozen=True, kw_only=True)
class Judge:
    """One wheel against policy and expectation."""

    report: WheelReport
    policy: WheelPolicy
    expected: Expectation
    kind: WheelKind | None
    rocm: str  # number in the project's name

    def findings(self) -> Iterator[Finding]:
        for check in (
            self._names, self._metadata, self._tags, self._manylinux, self._layout, self._modes,
            self._entry_points, self._machines, self._runpaths, self._needed, self._python,
            self._pjrt, self._gfx, self._pins, self._grafts, self._size,
        ):  # fmt: skip
            yield from check()

    @property
    def _needs_rocm(self) -> bool:
        return self.kind is not None and self.kind.needs_rocm

    @property
    def _own_elf(self) -> list[ElfFacts]:
        """Libraries that were built, not grafted; GPU code in a file of its own is none."""
        return [
            item
            for item in self.report.elf
            if item.machine != GPU_MACHINE and not item.path.partition("/")[0].endswith(LIBRARIES)
        ]

    def _names(self) -> Iterator[Finding]:
        from packaging.version import InvalidVersion, Version

        report, name = self.report, self.report.filename
        if report.dist_info != f"{name.stem}.dist-info":
            yield finding("name.agree", f"{report.dist_info}: the file is named {name.stem}-…")
        own = "".join(report.metadata["Name"][:1])
        if normal_name(own) != name.project:
            yield finding("name.agree", f"METADATA: Name is {own!r}, the file says {name.project}")
        version = "".join(report.metadata["Version"][:1])
        try:
            if Version(version) != report.filename.version:
                yield finding(
                    "name.agree", f"METADATA: Version is {version}, the file says {report.version}"
                )
        except InvalidVersion:
            yield finding("metadata.field", f"METADATA: Version {version!r} is not PEP 440")
        if report.version != str(report.filename.version):
            yield finding(
                "name.canonical", f"{report.version}, in normal form {report.filename.version}"
            )
        for what, value, meant in (
            ("project", report.project, self.expected.project),
            ("version", report.version, self.expected.version),
        ):
            if meant and value != meant:
                yield finding("name.expected", f"{what} is {value}, expected {meant}")

    def _metadata(self) -> Iterator[Finding]:
        from packaging.specifiers import InvalidSpecifier, SpecifierSet

        metadata, wheel = self.report.metadata, self.report.wheel
        for key in ("Metadata-Version", "Name", "Version"):
            if len(metadata[key]) != 1:
                yield finding(
                    "metadata.field", f"METADATA: {key} stands {len(metadata[key])} times"
                )
        if (
            metadata["Metadata-Version"][:1]
            and metadata["Metadata-Version"][0] not in METADATA_VERSIONS
        ):
            yield finding(
                "metadata.field", f"METADATA: Metadata-Version {metadata['Metadata-Version'][0]}"
            )
        for key in ("Wheel-Version", "Root-Is-Purelib"):
            if len(wheel[key]) != 1:
                yield finding("metadata.field", f"WHEEL: {key} stands {len(wheel[key])} times")
        if wheel["Wheel-Version"][:1] and not wheel["Wheel-Version"][0].startswith("1."):
            yield finding("metadata.field", f"WHEEL: Wheel-Version {wheel['Wheel-Version'][0]}")
        try:
            SpecifierSet(self.report.requires_python)
        except InvalidSpecifier as exc:
            yield finding("metadata.field", f"METADATA: Requires-Python: {exc}")
        for text in self.report.requires:
            if _requirement(text) is None:
                yield finding("metadata.field", f"METADATA: Requires-Dist {text!r} is not PEP 508")

    def _tags(self) -> Iterator[Finding]:
        report, name = self.report, self.report.filename
        listed = tuple(sorted(report.wheel["Tag"]))
        if listed != report.tags:
            yield finding(
                "tag.agree",
                f"WHEEL lists {', '.join(listed)}; the file name {', '.join(report.tags)}",
            )
        build = "".join(report.wheel["Build"])
        if build != name.build.lstrip("-"):
            yield finding(
                "tag.agree",
                f"WHEEL: Build is {build or 'absent'}, the file name has {name.build or 'none'}",
            )
        if len(name.platforms) > 1:
            yield finding("tag.single", f"platform tags {', '.join(name.platforms)}")
        for what, values, meant in (
            ("interpreter", name.pythons, self.expected.python),
            ("ABI", name.abis, self.expected.abi),
            ("platform", name.platforms, self.expected.platform),
        ):
            if meant and values != (meant,):
                yield finding("tag.expected", f"{what} tag is {'.'.join(values)}, expected {meant}")

    def _manylinux(self) -> Iterator[Finding]:
        for platform in self.report.filename.platforms:
            if not platform.startswith("manylinux"):
                if self.report.elf and self.kind is not None:
                    yield finding("tag.manylinux", f"{platform} is no manylinux tag")
                continue
            level = self.policy.level(platform)
            if level is None:
                yield finding("tag.manylinux", f"{platform} is not in ci/wheel_policy.yaml")
                continue
            for item in self.report.elf:
                if excess := self.policy.excess(level, item):
                    yield finding(
                        "tag.manylinux",
                        f"{item.path}: needs {', '.join(excess)}, not in {platform}",
                    )

    def _layout(self) -> Iterator[Finding]:
        allowed = None
        if self.kind is not None:
            allowed = {
                text.format(rocm=self.rocm) for text in self.policy.kinds[self.kind].packages
            }
        folders = (self.report.dist_info, f"{self.report.filename.stem}.data")
        for member in self.report.members:
            top = member.name.partition("/")[0]
            if LEFTOVERS.search(member.name):
                yield finding("layout.stray", f"{member.name}: left over from a build")
            elif allowed is not None and not (
                top in allowed or top in folders or top.endswith(LIBRARIES)
            ):
                yield finding(
                    "layout.stray", f"{member.name}: not below {', '.join(sorted(allowed))}"
                )

    def _modes(self) -> Iterator[Finding]:
        for member in self.report.members:
            mode = member.mode & 0o7777
            if not mode:
                continue
            if mode & 0o444 != 0o444:  # noqa: PLR2004
                yield finding(
                    "layout.mode", f"{member.name}: mode {mode:04o} cannot be read by all"
                )
            elif mode & 0o7002:
                yield finding("layout.mode", f"{member.name}: mode {mode:04o}")

    def _entry_points(self) -> Iterator[Finding]:
        names = {member.name for member in self.report.members}
        for group, lines in self.report.entry_points.items():
            for line in lines:
                module = line.partition("=")[2].partition(":")[0].partition("[")[0].strip()
                path = module.replace(".", "/")
                if not module or not {path + ending for ending in MODULE_ENDINGS} & names:
                    yield finding("layout.entry-point", f"{group}: {line}: no such module inside")
        if (
            self.kind is WheelKind.PJRT
            and len(self.report.entry_points.get(ENTRY_POINT_GROUP, ())) != 1
        ):
            yield finding(
                "layout.entry-point", f"not one entry point in the group {ENTRY_POINT_GROUP}"
            )

    def _machines(self) -> Iterator[Finding]:
        machines = {
            match[1] for tag in self.report.filename.platforms if (match := _MACHINE.match(tag))
        }
        for item in self.report.elf:
            if machines and item.machine not in {*machines, GPU_MACHINE}:
                yield finding(
                    "elf.machine", f"{item.path}: for {item.machine}, tagged {', '.join(machines)}"
                )

    def _runpaths(self) -> Iterator[Finding]:
        templates = self.policy.runpaths(self.report.filename.version)
        for item in self.report.elf:
            if item.rpath:
                yield finding("elf.rpath", f"{item.path}: RPATH {':'.join(item.rpath)}")
        if not self._needs_rocm:
            return
        for item in self._own_elf:
            leaks = [
                entry
                for entry in item.runpath
                if any(part in entry for part in self.policy.runpath_leaks)
            ]
            if leaks:
                yield finding(
                    "elf.runpath-leak", f"{item.path}: RUNPATH has {len(leaks)} such as {leaks[0]}"
                )
                continue
            own = f"/{self.report.filename.distribution}{LIBRARIES}"  # of grafted libraries
            runpath = tuple(entry for entry in item.runpath if not entry.endswith(own))
            if templates and runpath not in templates:
                yield finding("elf.runpath", f"{item.path}: {_difference(runpath, templates)}")

    def _needed(self) -> Iterator[Finding]:
        without_rocm = self.report.provides | self.policy.platform_libraries
        expected = self.policy.outside(self.kind)
        present = self.expected.rocm_sonames
        for item in self.report.elf:
            for name in item.needed:
                if name in without_rocm:
                    continue
                if name.startswith("libpython"):
                    yield finding("elf.python", f"{item.path}: needs {name}")
                elif name not in expected:
                    yield finding("elf.needed", f"{item.path}: needs {name}")
                elif present is not None and name not in present:
                    yield finding("elf.needed-rocm", f"{item.path}: needs {name}")

    def _python(self) -> Iterator[Finding]:
        if self.kind is not WheelKind.PLUGIN:
            return
        for item in self._own_elf:
            name = "PyInit_" + item.path.rpartition("/")[2].partition(".")[0]
            if name not in item.exports:
                yield finding("elf.python", f"{item.path}: does not export {name}")

    def _pjrt(self) -> Iterator[Finding]:
        if self.kind is WheelKind.PJRT and sum(item.exports_pjrt for item in self._own_elf) != 1:
            count = sum(item.exports_pjrt for item in self._own_elf)
            yield finding("elf.pjrt", f"{count} libraries export GetPjrtApi")

    def _gfx(self) -> Iterator[Finding]:
        meant = self.expected.gfx_targets
        if not self._needs_rocm:
            return
        if not self.report.gfx_targets:
            if self.kind is not None and self.policy.kinds[self.kind].gpu_code:
                yield finding("gfx.none", "no GPU code in any shared object")
            return
        wanted = frozenset(self.report.gfx_targets if meant is None else meant)
        for item in self.report.elf:
            for bundle in item.bundles:
                if bundle.targets != wanted:
                    missing = sorted(wanted - bundle.targets)
                    extra = sorted(bundle.targets - wanted)
                    text = "; ".join(
                        f"{word} {', '.join(names)}"
                        for word, names in (("lacks", missing), ("has besides", extra))
                        if names
                    )
                    yield finding(
                        "gfx.targets", f"{item.path}: bundle at {bundle.offset:#x} {text}"
                    )
                    break

    def _pins(self) -> Iterator[Finding]:
        siblings = self.expected.siblings
        for text in self.report.requires:
            requirement = _requirement(text)
            if requirement is None or requirement.marker is not None:
                continue
            project = normal_name(requirement.name)
            related = kind_of(project)
            if siblings is not None and project in siblings:
                version = siblings[project]
            elif not self._needs_rocm or related is None or not related[0].needs_rocm:
                continue
            elif siblings is not None:
                yield finding("pin.sibling", f"requires {text}, which is not in the set")
                continue
            else:
                version = self.report.version
            if not requirement.specifier.contains(version, prereleases=True):
                yield finding("pin.sibling", f"requires {text}; its set has {project} {version}")

    def _grafts(self) -> Iterator[Finding]:
        for name in self.report.grafted:
            if self.kind is not None and not self.policy.kinds[self.kind].may_graft(name):
                yield finding("graft.allowed", f"{name} is inside and may not be")

    def _size(self) -> Iterator[Finding]:
        if self.kind is None:
            return
        budget = self.policy.kinds[self.kind].size
        if self.report.size > budget:
            yield finding("size.budget", f"{self.report.size} bytes, the budget is {budget}")


def _requirement(text: str) -> Requirement | None:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        return Requirement(text)
    except InvalidRequirement:
        return None


def _difference(found: tuple[str, ...], templates: tuple[tuple[str, ...], ...]) -> str:
    wanted = templates[0]
    missing = [entry for entry in wanted if entry not in found]
    extra = [entry for entry in found if entry not in wanted]
    if not found:
        return "has no RUNPATH"
    if missing:
        return f"RUNPATH lacks {len(missing)} of {len(wanted)} entries, first {missing[0]}"
    if extra:
        return f"RUNPATH has {len(extra)} entries too many, first {extra[0]}"
    return "RUNPATH has the right entries in another order"
