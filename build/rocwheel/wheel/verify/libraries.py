"""Rules for shared objects: symbols, RUNPATH, NEEDED, entry functions, GPU code."""

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from rocwheel.base.console import brief, count, size
from rocwheel.base.values import Plain
from rocwheel.base.versions import WheelKind
from rocwheel.records import families
from rocwheel.wheel import SOME_CODE
from rocwheel.wheel.elf import GPU_MACHINE, MODULE_ENTRY, PJRT_ENTRY, ElfFacts
from rocwheel.wheel.inspect import LIBRARIES, WheelReport
from rocwheel.wheel.verify.rules import Finding, finding
from rocwheel.wheel.wheel_policy import WheelPolicy

REGISTERS: Final = "__hipRegisterFatBinary"  # what a library calls that has GPU code
_ORIGIN: Final = re.compile(r"\$(?:ORIGIN|\{ORIGIN\})(/.*|\Z)")
_MACHINE: Final = re.compile(
    r"(?:manylinux_[0-9]+_[0-9]+|manylinux[0-9]+|linux|musllinux_[0-9]+_[0-9]+)_(\w+)\Z"
)


class Expectation(Plain, frozen=True, kw_only=True):
    """What a wheel should be; an empty field or None is not checked."""

    kind: WheelKind | None = None  # None: as its project name says
    project: str = ""
    version: str = ""
    python: str = ""  # interpreter tag: cp312, py3
    abi: str = ""  # cp312, cp314t, none
    gfx_targets: frozenset[str] | None = None
    families: Mapping[str, Collection[str]] = {}  # name -> gfx targets
    spared: frozenset[str] = frozenset()  # gfx targets whose lack is only listed
    rocm_sonames: frozenset[str] | None = None  # of every library in the ROCm root
    # SONAME -> exported name -> its version, of the libraries of that ROCm that wheels need
    rocm_symbols: Mapping[str, Mapping[str, str]] | None = None
    compilers: frozenset[str] = frozenset()  # of GPU code, as they stamp it
    code: int = SOME_CODE  # bytes of unpacked GPU code that are read
    siblings: Mapping[str, str] | None = None  # project -> version of every wheel of the set
    extras: Mapping[str, str] | None = None  # that bring ROCm -> what each requires
    partial: bool = False  # wheels of the set may lie elsewhere: `siblings` has those that are here


class Libraries(Plain, frozen=True, kw_only=True):
    report: WheelReport
    policy: WheelPolicy
    expected: Expectation
    kind: WheelKind | None
    rocm: str  # number in the project's name

    def of_libraries(self) -> Iterator[Finding]:
        for check in (
            self._manylinux, self._machines, self._sonames, self._runpaths, self._needed,
            self._symbols, self._entries, self._gfx, self._code,
        ):  # fmt: skip
            yield from check()

    @property
    def _needs_rocm(self) -> bool:
        return self.kind is not None and self.kind.needs_rocm

    @property
    def _own_elf(self) -> list[ElfFacts]:
        """Return libraries that were built, not grafted; GPU code in a file of its own is none."""
        return [
            item
            for item in self.report.elf
            if item.machine != GPU_MACHINE and not item.path.partition("/")[0].endswith(LIBRARIES)
        ]

    def _manylinux(self) -> Iterator[Finding]:
        for platform in self.report.filename.platforms:
            if not platform.startswith("manylinux"):
                if self.report.elf and self.kind is not None:
                    yield finding("tag.manylinux", f"{platform} is not a manylinux tag")
                continue
            level = self.policy.level(platform)
            if not level:
                yield finding("tag.manylinux", f"{platform} is not in ci/wheel_policy.yaml")
                continue
            for item in self.report.elf:
                if excess := self.policy.excess(level, item):
                    what = f"{item.path}: needs {', '.join(excess)}, not in {platform}"
                    yield finding("tag.manylinux", what)

    def _machines(self) -> Iterator[Finding]:
        machines = {
            match[1] for tag in self.report.filename.platforms if (match := _MACHINE.match(tag))
        }
        for item in self.report.elf:
            if machines and item.machine not in {*machines, GPU_MACHINE}:
                yield finding(
                    "elf.machine", f"{item.path}: for {item.machine}, tagged {', '.join(machines)}"
                )

    def _sonames(self) -> Iterator[Finding]:
        for item in self._own_elf if self.kind else ():
            if item.soname in self.policy.outside(self.kind):
                yield finding("elf.soname", f"{item.path}: calls itself {item.soname}")
            if item.executable_stack:
                yield finding("elf.stack", f"{item.path}: wants an executable stack")

    def _runpaths(self) -> Iterator[Finding]:
        templates = self.policy.runpaths(self.report.filename.version)
        for item in self.report.elf:
            if item.rpath and (self.kind or not all(_ORIGIN.match(each) for each in item.rpath)):
                what = f"{item.path}: RPATH {':'.join(item.rpath)}"
                yield finding("elf.rpath", what, warn=self.kind is None)
        if not self._needs_rocm:
            yield from self._strays()
            return
        for item in self._own_elf:
            parts = self.policy.runpath.leaks
            if leaks := [each for each in item.runpath if any(part in each for part in parts)]:
                what = f"{item.path}: RUNPATH has {len(leaks)} such as {leaks[0]}"
                yield finding("elf.runpath-leak", what)
                continue
            if templates and item.runpath not in templates:
                what = f"{item.path}: RUNPATH {_difference(item.runpath, templates[0])}"
                yield finding("elf.runpath", what)

    def _strays(self) -> Iterator[Finding]:
        """Find entries that depend on where the process started; jaxlib's lead below $ORIGIN."""
        for item in self.report.elf:
            for entry in (*item.runpath, *item.rpath):
                if not _ORIGIN.match(entry) and (self.kind or not entry.startswith("/")):
                    what = f"{item.path}: RUNPATH has {entry or 'an empty entry'}"
                    yield finding("elf.runpath-leak", what, warn=self.kind is None)

    def _needed(self) -> Iterator[Finding]:
        # glibc takes a file of the right name with any SONAME; ours have the same
        sonames = {item.path: item.soname if self.kind else "" for item in self.report.elf}
        expected, present = self.policy.outside(self.kind), self.expected.rocm_sonames
        if present is None:  # JAX before 0.9 calls every plugin rocm60
            local = self.report.filename.version.local or ""
            number, others = local.removeprefix("rocm").partition(".")[0], self.policy.other_rocm
            expected -= {*others.get(number, others.get(self.rocm, ()))}
        for item in self.report.elf:
            for name in item.needed:
                other = self.kind is None and name in expected
                known = other or name in self.policy.platform_libraries
                if known or is_found(item, name, sonames):
                    continue
                if name.startswith("libpython"):
                    yield finding("elf.python", f"{item.path}: needs {name}")
                elif name not in expected:
                    own = {sonames[path] for path in sonames if path.endswith(f"/{name}")}
                    where = ", which is inside where RUNPATH does not lead" if own else ""
                    if own and not own & {"", name}:
                        where = f", which calls itself {', '.join(sorted(own))}"
                    yield finding(
                        "elf.needed", f"{item.path}: needs {name}{where}", warn=self.kind is None
                    )
                elif present is not None and name not in present:
                    yield finding("elf.needed-rocm", f"{item.path}: needs {name}")

    def _symbols(self) -> Iterator[Finding]:
        """Find names that the given ROCm does not define, or not in the wanted version."""
        rocm = self.expected.rocm_symbols
        if rocm is None:
            return
        for item in self.report.elf:
            libraries = [x for x in item.needed if x in rocm or x in self.policy.rocm_sonames]
            lost = []
            for name, version in item.imports.items():
                library, _, number = version.partition(":")
                if library in rocm and rocm[library].get(name) != number:
                    lost.append(f"{name}@{number} of {library}")
                elif not version and self.policy.is_of_rocm(name) and libraries:
                    homes = self.policy.homes(name, libraries)
                    if all(each in rocm and name not in rocm[each] for each in homes):
                        lost.append(f"{name} of {' or '.join(homes) or 'a library it NEEDs'}")
            if lost:
                more = f" and {count(len(lost) - 1, 'other name')}" if len(lost) > 1 else ""
                what = f"needs {lost[0]}{more}, which this ROCm lacks"
                yield finding("elf.needed-rocm", f"{item.path}: {what}")

    def _entries(self) -> Iterator[Finding]:
        exporting = [item.path for item in self._own_elf if PJRT_ENTRY in item.exports]
        if self.kind is WheelKind.PJRT and (len(exporting), len(self._own_elf)) != (1, 1):
            what = f"{len(self._own_elf)} libraries, {len(exporting)} of them export GetPjrtApi"
            yield finding("elf.pjrt", what)
        for item in self._own_elf if self.kind in (WheelKind.PLUGIN, WheelKind.JAXLIB) else ():
            module = item.path.rpartition("/")[2].partition(".")[0]
            if MODULE_ENTRY + module not in item.exports and not module.startswith("lib"):
                what = f"{item.path}: does not export {MODULE_ENTRY}{module}"
                yield finding("elf.python", what)

    def _gfx(self) -> Iterator[Finding]:
        meant = self.expected.gfx_targets
        if not self._needs_rocm:
            return
        if not self.report.gpu_code:
            if self.kind is not None and self.policy.kinds[self.kind].gpu_code:
                yield finding("gfx.none", "no GPU code in any shared object")
            return
        each = self.expected.families
        of_families = frozenset(target for targets in each.values() for target in targets)
        if meant is None and not each:
            meant = frozenset(self.report.gpu_code)
        wanted = of_families | (meant or frozenset())
        for item in self.report.elf:
            if REGISTERS in item.imports and not item.bundles:
                yield finding("gfx.none", f"{item.path}: registers GPU code and has none")
            for bundle in item.bundles:
                if bundle.targets != wanted:
                    missing = families.lacking(each, bundle.targets)
                    named = bundle.targets | of_families
                    words = [f"lacks {brief(missing)}"] if missing else []
                    if named != wanted or not bundle.objects:
                        what = _difference(sorted(named), sorted(wanted))
                        words += [what if bundle.objects else "is cut off or does not unpack"]
                    # a set of families is for these at least: what is beyond is only listed
                    has_all = bool(each) and bundle.targets >= wanted - self.expected.spared
                    text = f"{item.path}: bundle at {bundle.offset:#x} {'; '.join(words)}"
                    yield finding("gfx.targets", text, warn=has_all)
                    break

    def _code(self) -> Iterator[Finding]:
        """Find GPU code that was changed after compiling, and report how much was not read."""
        if not self._needs_rocm:
            return
        for item in self.report.elf:
            if item.bundles and REGISTERS not in item.imports:
                yield finding("gfx.code", f"{item.path}: has GPU code and never registers it")
            elif item.wrappers < len(item.bundles):
                what = f"hands {item.wrappers} of {count(len(item.bundles), 'bundle')} to HIP"
                yield finding("gfx.code", f"{item.path}: {what}")
        bundles = [(item.path, bundle) for item in self.report.elf for bundle in item.bundles]
        for path, bundle in bundles:
            for problem in bundle.problems[:3]:
                yield finding("gfx.code", f"{path}: bundle at {bundle.offset:#x} {problem}")
            more = {*bundle.compilers} - {*(self.expected.compilers or bundle.compilers)}
            for compiler in sorted(more):
                yield finding("gfx.compiler", f"{path}: made by {compiler}")
        unread = [bundle.unpacked for _, bundle in bundles if bundle.objects and not bundle.is_read]
        if unread:
            what = f"{len(unread)} of {count(len(bundles), 'bundle')} ({size(sum(unread))})"
            yield finding("gfx.unread", f"{what} of GPU code were not unpacked")


def is_found(item: ElfFacts, name: str, sonames: Mapping[str, str]) -> bool:
    """Return whether the loader finds a NEEDED library of a file inside the wheel.

    `sonames` has the ELF files of the wheel. RPATH counts only where there is no RUNPATH.
    """
    folder = posixpath.dirname(item.path)
    for entry in item.runpath or item.rpath:
        match = _ORIGIN.match(entry)
        if match:
            path = posixpath.normpath(posixpath.join(folder, match[1].lstrip("/"), name))
            if sonames.get(path) in ("", name):
                return True
    return False


def _difference(present: Sequence[str], wanted: Sequence[str]) -> str:
    lists = {
        "lacks": [entry for entry in wanted if entry not in present],
        "has besides": [entry for entry in present if entry not in wanted],
    }
    words = [f"{word} {brief(', '.join(each))}" for word, each in lists.items() if each]
    return "; ".join(words) or "has the right entries in another order"
