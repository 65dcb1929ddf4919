"""Decides whether wheels may ship, and why not: one (`verify`), a set, a wheelhouse.

`rules` holds every rule as data, `one_wheel` checks each; this module checks sets.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import amdgpu_family_matrix as matrix
from rocwheel.base import files, parallel
from rocwheel.base.errors import CommandError, HostError, RocmError, WheelError
from rocwheel.base.process import Command, Runner
from rocwheel.base.values import replace
from rocwheel.base.versions import PythonVersion, WheelKind, kind_of
from rocwheel.records.install import rocm_extras
from rocwheel.records.manifest import MANIFEST, Manifest, WheelEntry
from rocwheel.wheel import LIMITS as LIMITS
from rocwheel.wheel import metadata
from rocwheel.wheel.derive import content_of, may_be_rewritten
from rocwheel.wheel.elf import ElfError, scan
from rocwheel.wheel.inspect import WheelReport, inspect
from rocwheel.wheel.metadata import WheelName
from rocwheel.wheel.verify.installs import Installers as Installers
from rocwheel.wheel.verify.installs import installs
from rocwheel.wheel.verify.libraries import Expectation as Expectation
from rocwheel.wheel.verify.one_wheel import Judge
from rocwheel.wheel.verify.rules import Finding, Severity, finding
from rocwheel.wheel.verify.runs import Running as Running
from rocwheel.wheel.verify.runs import runs as run_all
from rocwheel.wheel.wheel_policy import WheelPolicy


def verify_given(
    paths: Sequence[Path],
    policy: WheelPolicy,
    expected: Expectation,
    *,
    installers: Installers | None = None,
    runs: Running | None = None,
) -> Mapping[str, tuple[Finding, ...]]:
    """Judge what a person named, name -> findings: wheelhouses by their manifest, the rest as sets.

    With `installers` each set is installed, with `runs` its code is run.
    """
    verdicts: dict[Path, tuple[Finding, ...]] = {}
    for folder in (path for path in paths if path.is_dir()):
        if (folder / MANIFEST).exists():
            manifest = Manifest.load(folder)
            judged = verify_wheelhouse(folder, manifest, policy=policy, expected=expected)
        elif inside := sorted(folder.glob("*.whl")):
            judged = verify_set(inside, policy=policy, expected=expected, whole=True)
        else:
            raise WheelError(f"{folder}: no wheels in it", hint="name a wheelhouse or wheels")
        verdicts |= _tried(judged, installers, runs)
    wheels = [path for path in paths if not path.is_dir()]
    judged = verify_set(wheels, policy=policy, expected=expected)
    verdicts |= _tried(judged, installers, runs)
    names = Counter(path.name for path in verdicts)
    return {
        path.name if names[path.name] == 1 else str(path): findings
        for path, findings in verdicts.items()
    }


def _tried(
    verdicts: Mapping[Path, tuple[Finding, ...]],
    installers: Installers | None,
    runs: Running | None,
) -> Mapping[Path, tuple[Finding, ...]]:
    bad = {"archive", "set.manifest"}
    sound = [path for path, each in verdicts.items() if not bad & {x.rule for x in each}]
    installed = installs(sound, installers) if sound and installers else {}
    ran = run_all(sound, runs) if sound and runs else {}
    return {
        path: (*each, *installed.get(path, ()), *ran.get(path, ()))
        for path, each in verdicts.items()
    }


def of_rocm(root: Path, paths: Iterable[Path], runner: Runner) -> dict[str, Any]:
    """Return what an `Expectation` has of the ROCm in a tree, as far as wheels need it."""
    sonames = frozenset(path.name for path in root.glob("lib/**/*.so*"))
    if not sonames:
        raise RocmError(f"{root}: no shared library below lib/", hint="name a ROCm tree")
    needed = set[str]()
    for path in (x for each in paths for x in (each.glob("*.whl") if each.is_dir() else [each])):
        with suppress(WheelError):  # `verify` will say so
            needed |= {name for item in inspect(path).elf for name in item.needed}
    symbols: dict[str, Mapping[str, str]] = {}
    for library in sorted(root.glob("lib/**/*.so*")):
        if library.name in needed - symbols.keys() and library.is_file():
            with suppress(ElfError):
                facts = scan(library.name, library.stat().st_size, partial(files.blocks, library))
                symbols[library.name] = facts.defines or dict.fromkeys(facts.exports, "")
    compilers = compilers_of(root, runner)
    return {"rocm_sonames": sonames, "rocm_symbols": symbols, "compilers": compilers}


def compilers_of(root: Path, runner: Runner) -> frozenset[str]:
    """Return the names that a ROCm's clang stamps on GPU code; empty where no clang runs."""
    for clang in (root / "lib/llvm/bin/clang", root / "llvm/bin/clang"):
        if clang.exists():
            with suppress(CommandError, HostError):
                answer = runner.capture(Command(argv=(str(clang), "--version"), timeout=60))
                return frozenset({answer.partition("\n")[0].strip()})
    return frozenset()


def verify(
    wheel: Path | WheelReport, *, policy: WheelPolicy, expected: Expectation | None = None
) -> tuple[Finding, ...]:
    """Judge a wheel; a report that was made without `hashes` is made again with them.

    Never raises for a bad wheel: an archive that cannot be read is a finding too.
    """
    expected = expected or Expectation()
    if isinstance(wheel, Path) or not wheel.checked:
        try:
            path = wheel if isinstance(wheel, Path) else wheel.path
            wheel = inspect(path, hashes=True, code=expected.code)
        except WheelError as exc:
            return (finding("archive", str(exc)),)
    known = kind_of(wheel.project)
    judge = Judge(
        report=wheel,
        policy=policy,
        expected=expected,
        kind=expected.kind or (known[0] if known else None),
        rocm=known[1] if known else "",
    )
    verdict = (
        *(finding("record.row", text) for text in wheel.rows),
        *(finding("record.hash", text) for text in wheel.digests),
        *judge.findings(),
    )
    return tuple(sorted(verdict, key=lambda item: [*Severity].index(item.severity)))


def verify_set(
    paths: Sequence[Path],
    *,
    policy: WheelPolicy,
    expected: Expectation | None = None,
    whole: bool = False,
) -> Mapping[Path, tuple[Finding, ...]]:
    """Judge wheels that belong together, path -> findings.

    Pins hold within the set, and there is one wheel per version and Python. With `whole`
    nothing of the set lies elsewhere: each pinned wheel must be there.
    """
    names: dict[Path, WheelName] = {}
    for path in paths:
        with suppress(WheelError):  # `verify` will say so
            names[path] = WheelName.parse(path.name)
    cells = Counter(map(_cell, names.values()))

    def judge(path: Path) -> tuple[Finding, ...]:
        name = names.get(path)
        siblings = None
        if name:  # what its pins must accept, its own version before another of one project
            own_last = sorted(names.values(), key=lambda n: n.version_text == name.version_text)
            siblings = {other.project: other.version_text for other in own_last}
        meant = replace(expected or Expectation(), siblings=siblings, partial=not whole)
        verdict = verify(path, policy=policy, expected=meant)
        if name is None or cells[_cell(name)] == 1:
            return verdict
        return (finding("set.double", "one of several wheels for one Python"), *verdict)

    return dict(zip(paths, parallel.each(judge, paths), strict=True))


def _cell(name: WheelName) -> tuple[object, ...]:
    return name.project, name.version_text, name.pythons, name.abis


def verify_wheelhouse(
    folder: Path, manifest: Manifest, *, policy: WheelPolicy, expected: Expectation | None = None
) -> Mapping[Path, tuple[Finding, ...]]:
    """Judge a wheelhouse against its manifest, path -> findings.

    Upstream wheels of the set are not in the folder; they count as siblings only.
    """
    siblings = {wheel.project: wheel.version for wheel in manifest.wheels}
    meant = replace(expected or Expectation(), siblings=siblings)
    if not meant.families:  # a team's own are in no matrix: their targets are the manifest's
        known = (matrix.FAMILIES[name] for name in manifest.families if name in matrix.FAMILIES)
        meant = replace(meant, families={item.name: item.targets for item in known})
    entries = {entry.filename: entry for entry in manifest.built}
    listed = Counter(entry.filename for entry in manifest.built)

    def judge(entry: WheelEntry) -> tuple[Finding, ...]:
        verdicts = _verify_entry(folder, entry, manifest, meant, policy)
        if listed[entry.filename] == 1:
            return verdicts
        return (finding("set.manifest", "listed more than once in the manifest"), *verdicts)

    judged = parallel.each(judge, entries.values())
    verdicts = {folder / name: findings for name, findings in zip(entries, judged, strict=True)}
    for path in sorted(folder.glob("*.whl")):
        if path not in verdicts:
            verdicts[path] = (finding("set.manifest", "not in the manifest"),)
    return verdicts


def _verify_entry(
    folder: Path, entry: WheelEntry, manifest: Manifest, meant: Expectation, policy: WheelPolicy
) -> tuple[Finding, ...]:
    kind = WheelKind(entry.kind)
    python = PythonVersion.parse(entry.python) if entry.python else None
    targets = meant.gfx_targets or frozenset(manifest.gfx_targets)
    expected = replace(
        meant,
        kind=kind,
        project=entry.project,
        version=entry.version,
        python=python.interpreter if python else "",
        abi=python.abi if python else "",
        gfx_targets=targets if kind.needs_rocm else None,
        extras=rocm_extras(manifest.rocm.version, manifest.gfx_targets) if entry.extras else {},
    )
    try:
        report = inspect(folder / entry.filename, hashes=True, code=meant.code)
    except WheelError as exc:
        return (finding("archive", str(exc)),)
    python_of = entry.requires_python or report.requires_python  # older manifests have none
    version, jax = map(metadata.version, (report.version, manifest.jax_version))
    differs = [
        finding("set.manifest", f"{what}: {is_now or 'none'}, the manifest says {was or 'none'}")
        for what, is_now, was in (
            ("JAX release", version and version.base_version, jax and jax.base_version),
            ("SHA-256", report.sha256, entry.sha256),
            ("size", report.size, entry.size),
            ("Requires-Python", report.requires_python, python_of),
            ("gfx targets", report.gfx_targets, entry.gfx_targets),
            ("tags", report.tags, entry.tags),
            ("grafted libraries", report.grafted, entry.grafted),
        )
        if is_now != was
    ]
    origin = manifest.parent.wheels.get(entry.filename) if manifest.parent else None
    if origin and not (
        content_of(folder / entry.filename, origin.rewritten) == origin.content
        and all(map(may_be_rewritten, origin.rewritten))
    ):
        differs.append(finding("set.manifest", f"is not the content of {origin.filename}"))
    return (*verify(report, policy=policy, expected=expected), *differs)
