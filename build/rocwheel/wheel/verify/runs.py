"""Runs wheels: `verify --runs`.

The set is installed by hash, as users do, for each CPython it is for. In a sandbox that CPython
imports every module of JAX's wheels, looks up what JAX takes from them, loads the library, starts
the plugin with recorders for JAX's modules, and computes on the CPU with the set's jaxlib. ROCm's
libraries are stubs with exactly the names the wheels need. A missing CPython or JAX is a finding
"not looked at", never a pass.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import uv
from msgspec.structs import asdict

from rocwheel.base.console import Progress, count
from rocwheel.base.errors import CommandError, ConfigError, HostError
from rocwheel.base.host import machine
from rocwheel.base.process import Command, HostRunner
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion, WheelKind, kind_of
from rocwheel.wheel import SOME_CODE
from rocwheel.wheel.elf import MODULE_ENTRY, PJRT_ENTRY, ElfFacts
from rocwheel.wheel.hip import PACKED, PLAIN
from rocwheel.wheel.inspect import LIBRARIES, WheelReport, inspect
from rocwheel.wheel.verify import probe, sandbox
from rocwheel.wheel.verify.installs import abi_of, install, minor_of
from rocwheel.wheel.verify.rules import Finding, finding
from rocwheel.wheel.wheel_policy import WheelPolicy

NOTHING, ALL = -2, -1  # in place of a step's number: none began, all are done
_RULES: Final = {
    "imported": "runs.import", "named": "runs.names", "versioned": "runs.names",
    "loaded": "runs.import", "handed": "gfx.code", "started": "runs.plugin", "computed": "runs.jax",
}  # fmt: skip
_BEGINS: Final = re.compile(r'\{"step": ([0-9]+)\}\Z')
_MODULE: Final = re.compile(
    r"(.+/.+?)(?:/__init__)?\.(?:py|(?:[^./]*cpython[^./]*\.|abi3t?\.)?so)\Z"
)


class Running(NamedTuple):
    runner: HostRunner
    policy: WheelPolicy
    folder: Path | None = None  # for scratch folders
    online: bool = True  # whether to ask the package index for JAX, and uv for CPythons
    progress: Progress = Progress()


class Trial(NamedTuple):
    """One thing to do, and the wheel it is about."""

    wheel: Path
    member: str
    words: tuple[Any, ...]  # name of a function of `probe`, and what it is given


def runs(paths: Sequence[Path], by: Running) -> Mapping[Path, tuple[Finding, ...]]:
    """Run the code of wheels that belong together; path -> findings. Raises HostError."""
    reports = {path: inspect(path, code=SOME_CODE) for path in paths}
    kinds = {path: known[0] for path in paths if (known := kind_of(reports[path].project))}
    abis = {abi for path in kinds if (abi := abi_of(reports[path].filename))}
    if not abis:  # a pjrt alone: the newest of its CPythons that is here
        versions = (reports[path].filename.version for path in kinds)
        minors = {x for each in versions for x in by.policy.required(WheelKind.PJRT, each).pythons}
        own = [f"cp3{each}" for each in sorted(minors, key=int, reverse=True)]
        here = (each for each in own if _cpython(f"3.{minor_of(each)}", by))
        abis = {*itertools.islice(here, 1)} or {*own[:1]}
    found: dict[Path, list[Finding]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix=".runs-", dir=by.folder) as scratch:
        if kinds:
            sandbox.check(by.runner, Path(scratch).resolve(), by.policy.runs)
        for abi in sorted(abis, key=minor_of):
            fitting = {
                path: kind
                for kind in WheelKind  # jaxlib first, before a recorder takes JAX's place
                for path in kinds
                if kinds[path] is kind and abi_of(reports[path].filename) in ("", abi)
            }
            folder = Path(scratch).resolve() / abi
            folder.mkdir()
            for path, item in _Run(fitting, reports, abi, folder, by).findings():
                if item not in found[path]:
                    found[path].append(item)
            shutil.rmtree(folder)
    return {path: tuple(found[path]) for path in paths}


class _Run:
    def __init__(
        self,
        kinds: Mapping[Path, WheelKind],
        reports: Mapping[Path, WheelReport],
        abi: str,
        folder: Path,
        by: Running,
    ) -> None:
        self.kinds = kinds
        self.reports = reports
        self.abi = abi
        self.name = f"3.{minor_of(abi)}{'t' if abi.endswith('t') else ''}"
        self.folder = folder
        self.by = by
        self.lacks = ""  # why there is no JAX

    def findings(self) -> Iterator[tuple[Path, Finding]]:
        python = _cpython(self.name, self.by)
        if python is None:
            what = f"CPython {self.name} is not here: `uv python install {self.name}` brings it"
            yield from self._of_all("runs.unseen", what)
            return
        try:
            install([*self.kinds], "uv", self.abi, self.folder, self.by.runner, python=python)
        except CommandError as exc:
            yield from self._of_all("runs.import", f"cannot be installed, see --installs: {exc}")
            return
        hip = _write_stubs((self.reports[path] for path in self.kinds), self.by.policy, self.folder)
        steps: list[Trial] = []
        for path, kind in self.kinds.items():
            if kind is WheelKind.JAXLIB:
                self.lacks = self._bring_jax(self.reports[path], python)
                if self.lacks:
                    yield path, finding("runs.unseen", self.lacks)
            release = self.reports[path].filename.version
            if kind is WheelKind.PJRT and not self.by.policy.required(kind, release).registers:
                what = f"initialize() was not run: the policy has no plugin options of {release}"
                yield path, finding("runs.unseen", what)
            steps += _steps(path, self.reports[path], self.by.policy)
            if kind is WheelKind.JAXLIB and not self.lacks:
                steps.append(Trial(path, "jaxlib", ("computed",)))
        plan = {
            "site": str(self.folder / "uv"),
            "others": [] if self.lacks else [str(self.folder / "jax")],
            "seconds": self.by.policy.runs.step,
            "plugin": WheelKind.PLUGIN in self.kinds.values(),
            "hip": hip,
            "calls": sandbox.CALLS,
            "steps": [step.words for step in steps],
        }
        (self.folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        shutil.copyfile(probe.__file__, self.folder / "probe.py")
        yield from self._results(steps, python)

    def _of_all(self, rule: str, what: str) -> Iterator[tuple[Path, Finding]]:
        yield from ((path, finding(rule, f"{what} (CPython {self.name})")) for path in self.kinds)

    def _bring_jax(self, report: WheelReport, python: Path) -> str:
        release = report.filename.version.base_version
        if not self.by.online:
            return "the package index was not asked for JAX"
        argv = (
            uv.find_uv_bin(), "pip", "install", "--quiet", "--no-build", "--python", str(python),
            "--target", str(self.folder / "jax"), f"jax=={release}",
        )  # fmt: skip
        try:
            self.by.runner.capture(Command(argv=argv, timeout=600))
        except CommandError as exc:
            last = [line.strip() for line in exc.detail.splitlines() if line.strip()][-1:]
            return f"JAX {release} cannot be had from the package index: {''.join(last)}"
        return ""

    def _results(self, steps: Sequence[Trial], python: Path) -> Iterator[tuple[Path, Finding]]:
        """Run the steps; after one that ended the process, go on with the next."""
        todo, last, ended, missing = [*range(len(steps))], NOTHING, "", set[str]()
        wrong: dict[str, tuple[Trial, str]] = {}  # by member: what follows from it is not repeated
        limits = self.by.policy.runs
        end = time.monotonic() + limits.wall * len(self.kinds)
        while todo and (left := end - time.monotonic()) > 0:
            last = NOTHING
            ended, answers = self._answers(todo, steps, python, wall=left)
            for answer in answers:
                last = answer["step"]
                lacks = answer.get("lacks", "")
                if self.lacks and lacks and not (self.folder / "uv" / lacks).exists():
                    missing.add(lacks)
                elif "wrong" in answer:
                    wrong.setdefault(steps[last].member, (steps[last], answer["wrong"]))
            if last in (ALL, NOTHING):
                self._compare([steps[number] for number in todo], answers, wrong)
                break
            what = f"ends the process ({ended})"
            if "Timeout (" in ended:  # faulthandler's word
                what = f"takes more than {limits.step * probe.WALL} s"
            wrong.setdefault(steps[last].member, (steps[last], what))
            more = () if answers[-1].get("is_end") else todo[todo.index(last) + 1 :]
            todo = [number for number in more if steps[number].member not in wrong]
        for step, what in wrong.values():
            text = f"{step.member}: {what} (CPython {self.name})"
            yield step.wheel, finding(_RULES[step.words[0]], text)
        rest = f"the last {len(todo)} of {len(steps)} modules and calls were not run"
        for what in (
            f"what needs {', '.join(sorted(missing))} was not imported" if missing else "",
            f"nothing could run: {ended}" if last == NOTHING else "",
            f"{rest}: see `runs` in ci/wheel_policy.yaml" if last >= 0 and todo else "",
        ):
            yield from self._of_all("runs.unseen", what) if what else ()

    def _compare(
        self,
        steps: Sequence[Trial],
        answers: Sequence[Mapping[str, Any]],
        wrong: dict[str, tuple[Trial, str]],
    ) -> None:
        given: dict[str, list[Any]] = defaultdict(list)  # by member: what HIP got
        for member, *bundle in answers[-1].get("bundles", ()) if answers else ():
            given[member].append(bundle)
        for step in steps:
            if step.words[0] in ("imported", "loaded") and step.member not in wrong:
                for item in self.reports[step.wheel].elf:
                    if item.path == step.member and sandbox.BUNDLES in item.imports:
                        for what in _handed(item, given.get(item.path, ())):
                            hip = step._replace(words=("handed",))
                            wrong.setdefault(item.path, (hip, what))

    def _answers(
        self, todo: Sequence[int], steps: Sequence[Trial], python: Path, *, wall: float
    ) -> tuple[str, list[dict[str, Any]]]:
        env = {
            "LD_LIBRARY_PATH": str(self.folder / "rocm"), "LD_BIND_NOW": "1",
            "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin", "HOME": "/",
        }  # fmt: skip
        words = ("env", "-i", *(f"{name}={value}" for name, value in env.items()))
        words += (str(python), "-I", "-S", str(self.folder / "probe.py"))
        words += (str(self.folder / "plan.json"), json.dumps([*todo]))
        keep = [self.folder, python.resolve().parent.parent, python.parent.parent]
        limits = self.by.policy.runs
        cpu = limits.cpu * len(self.kinds)
        limits = replace(limits, cpu=cpu, wall=int(wall) + 1)
        command = sandbox.command(words, keep=keep, limits=limits)

        def show(line: str) -> None:
            if match := _BEGINS.match(line):
                number = int(match[1])
                self.by.progress.update(number, total=len(steps), text=steps[number].member)

        try:
            done = self.by.runner.run(command, on_line=show, check=False)
            ended, output = f"status {done.returncode}", done.output
        except (CommandError, HostError) as exc:
            ended, output = "no answer in time", getattr(exc, "detail", "")
        answers = []
        for line in output.splitlines():
            try:
                answers.append(json.loads(line))
            except ValueError:
                ended = f"{ended}: {line}"[:300]
        return ended, [each for each in answers if isinstance(each, dict) and "step" in each]


def _cpython(name: str, by: Running) -> Path | None:
    """Find a CPython of a version: uv's, or another one that this machine has."""
    find, install = (
        Command(argv=(uv.find_uv_bin(), "python", *words, "--no-config", name), timeout=300)
        for words in (("find", "--no-project", "--system"), ("install", "--quiet"))
    )
    with suppress(CommandError):
        return Path(by.runner.capture(find).strip())
    with suppress(ConfigError):  # one that nothing here knows
        version = PythonVersion.parse(name.replace("t", "-ft"))
        for item in machine.pythons(by.runner.environ, runner=by.runner, only=version):
            if item.version == version:
                return Path(item.executable)
    if by.online:
        with suppress(CommandError):
            by.runner.capture(install)
            return Path(by.runner.capture(find).strip())
    return None


def _steps(path: Path, report: WheelReport, policy: WheelPolicy) -> Iterator[Trial]:
    kind, rocm = kind_of(report.project) or (WheelKind.JAXLIB, "")
    init = f"jax_plugins/xla_rocm{rocm}/__init__.py"
    modules = {
        member.name: match[1].replace("/", ".")
        for member in report.members
        if (match := _MODULE.match(member.name))
    }
    libraries = {
        item.path
        for item in report.elf
        if not any(name.startswith(MODULE_ENTRY) for name in item.exports)
    }
    left_out = {*libraries, init, *policy.kinds[kind].unused}
    taken = policy.required(kind, report.filename.version)
    required = {member.format(rocm=rocm) for member in taken.members}
    for member, module in sorted(modules.items()):
        is_ours = not member.partition("/")[0].endswith((".dist-info", LIBRARIES))
        if is_ours and member not in left_out and not member.endswith("/__main__.py"):
            must = member.endswith(".so") or member in required
            yield Trial(path, member, ("imported", module, member, must))
    for text, names in taken.names.items():
        if (member := text.format(rocm=rocm)) in modules:
            yield Trial(path, member, ("named", modules[member], list(names)))
    for member, module in sorted(modules.items()):
        if member.count("/") == init.count("/") - (kind is not WheelKind.PJRT) and (
            member.endswith("/version.py")
        ):
            needs = "" if kind is WheelKind.PJRT else "__version__"
            release = report.filename.version.base_version
            yield Trial(path, member, ("versioned", module, release, needs))
    if kind is WheelKind.PJRT:
        for library in sorted(libraries):
            yield Trial(path, library, ("loaded", library, PJRT_ENTRY))
        wanted = taken.registers
        words = ("started", modules.get(init, init), "".join(sorted(libraries)[:1]))
        yield Trial(path, init, (*words, asdict(wanted) if wanted else {}))


def _handed(item: ElfFacts, given: Sequence[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """Compare the bundles and kernels that HIP is given with those in the library."""
    if len(given) != len(item.bundles):
        yield f"gives HIP {len(given)} of {count(len(item.bundles), 'bundle')} when it is loaded"
    for front, kernels in given:
        bundles = [
            bundle
            for bundle in item.bundles
            if bytes.fromhex(front).startswith(PACKED if bundle.header else PLAIN[:8])
            and front[2 * bundle.header - 16 : 2 * bundle.header] in ("", bundle.digest)
        ]
        if not bundles:
            yield "gives HIP something else than a bundle of its own"
        elif all(bundle.is_read and not bundle.problems for bundle in bundles):
            # rocPRIM's names differ by target: what one of them has is there
            known = frozenset().union(*(bundle.kernels for bundle in bundles))
            for kernel in sorted({*kernels} - known)[:1]:
                yield f"registers kernel {kernel}, which code in its bundle lacks"
            for kernel in sorted(known - {*kernels})[:1]:  # renamed for one of the GPUs
                yield f"never registers kernel {kernel}, which code in its bundle has"


def _write_stubs(reports: Iterable[WheelReport], policy: WheelPolicy, folder: Path) -> list[str]:
    symbols: dict[str, dict[str, str]] = defaultdict(dict)
    for item in (item for report in reports for item in report.elf):
        outside = [name for name in item.needed if name in policy.rocm_sonames]
        for library in outside:
            symbols[library].update()
        for name, version in item.imports.items():
            library, _, number = version.partition(":")
            homes = [library] if library in outside else policy.homes(name, outside)
            if homes and (number == "" or library in outside):
                symbols[homes[0]][name] = number
    (folder / "rocm").mkdir()
    for library, names in symbols.items():
        (folder / "rocm" / library).write_bytes(sandbox.shared_object(library, names))
    hip = (library for library, names in symbols.items() if sandbox.BUNDLES in names)
    return [str(folder / "rocm" / each) for each in hip]
