"""Wheels and findings as people and programs read them."""

from __future__ import annotations

import itertools
import textwrap
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict

import amdgpu_family_matrix as matrix
from rocwheel.base.console import columns, count, printable, size
from rocwheel.base.values import replace
from rocwheel.wheel import hip
from rocwheel.wheel.elf import PJRT_ENTRY
from rocwheel.wheel.verify.rules import Severity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rocwheel.wheel.elf import ElfFacts
    from rocwheel.wheel.inspect import WheelReport
    from rocwheel.wheel.repair import RepairPlan, RepairResult
    from rocwheel.wheel.verify.installs import Installers
    from rocwheel.wheel.verify.rules import Finding

PREFIXES: Final = ("GLIBC", "GLIBCXX", "CXXABI")
PLAIN: Final = (  # what a report calls as JSON does
    "project", "version", "tags", "size", "sha256", "requires", "requires_python", "entry_points",
    "gfx_targets", "compilers", "grafted", "provenance",
)  # fmt: skip
MANY: Final = 50  # findings of a rule in one wheel that are shown; of others, their number
FEW: Final = 4  # entries of a list that are all shown; of a longer one, its length and its first


def document(report: WheelReport) -> dict[str, Any]:
    return {
        "path": str(report.path),
        "filename": report.path.name,
        **{name: getattr(report, name) for name in PLAIN},
        "gpu_code": {
            target: {"objects": number, "bytes": total, "family": matrix.of_target(target)}
            for target, (number, total) in report.gpu_code.items()
        },
        "sboms": {name: [part._asdict() for part in parts] for name, parts in report.sboms.items()},
        "members": [
            {name: getattr(item, name) for name in ("name", "size", "compressed")}
            | {"mode": f"{item.mode & 0o7777:04o}"}
            for item in report.members
        ],
        "elf": [_elf_document(item) for item in report.elf],
    }


def lines(report: WheelReport, *, width: int) -> Iterator[str]:
    """Return a report as a person reads it: the wheel, then members and libraries by size.

    A field of a wheel cannot break out of its line.
    """
    return map(printable, _lines(report, width))


def _lines(report: WheelReport, width: int) -> Iterator[str]:
    unpacked = sum(item.size for item in report.members)
    points = report.entry_points.items()
    yield report.path.name
    for label, values in (
        ("project", [f"{report.project} {report.version}"]),
        ("tags", report.tags),
        ("size", [f"{size(report.size)} ({report.size} bytes), {size(unpacked)} unpacked"]),
        ("sha256", [report.sha256]),
        ("python", [report.requires_python] if report.requires_python else []),
        ("requires", report.requires),
        ("entry points", [f"{group}: {item}" for group, items in points for item in items]),
        ("grafted", report.grafted),
        ("compilers", report.compilers or ()),
        ("made from", [f"{name} {text}" for name, text in sorted(report.provenance.items())]),
    ):
        for number, value in enumerate(values):
            yield f"  {'' if number else label:<14} {value}"
    for name, parts in report.sboms.items():
        rows = [(part.role or "part", part.name, part.version, part.purl) for part in parts]
        yield from _table((name, "", "version", "package URL"), rows)
    members = [
        (size(item.size), size(item.compressed), item.name)
        for item in sorted(report.members, key=lambda item: (-item.size, item.name))
    ]
    yield from _table(("size", "packed", "member"), members)
    if report.gpu_code:
        code = [
            (target, str(number), size(total), matrix.of_target(target))
            for target, (number, total) in report.gpu_code.items()
        ]
        yield from _table(("gfx target", "code objects", "size unpacked", "family"), code)
    if report.elf:
        yield ""
        yield "  shared objects"
    for item in sorted(report.elf, key=lambda item: (-item.size, item.path)):
        yield f"  {item.path}"
        yield from _elf_lines(item, width)


def plan_document(plan: RepairPlan) -> dict[str, Any]:
    return {
        "source": str(plan.report.path),
        "platform": plan.platform,
        "runpaths": plan.runpaths,
        "releases": plan.releases,
        "sbom": [part._asdict() for part in plan.components],
        "modes": {name: f"{mode & 0o7777:04o}" for name, mode in plan.modes.items()},
    }


def result_document(plan: RepairPlan, result: RepairResult) -> dict[str, Any]:
    return {"source": str(plan.report.path), **result._asdict(), "path": str(result.path)}


def verdict_document(
    verdicts: Mapping[str, tuple[Finding, ...]],
    installers: Installers | None = None,
    unseen: Sequence[str] = (),
) -> dict[str, Any]:
    """Return what was found, wheel by wheel, and whether all of them may ship."""
    every = itertools.chain.from_iterable(verdicts.values())
    unseen = (*unseen, *(item.message for item in every if item.severity is Severity.UNSEEN))
    return {
        "ships": ships(verdicts),
        "not_looked_at": [*dict.fromkeys(unseen)],
        "installed_with": installers.versions if installers else {},
        "wheels": {
            name: [item._asdict() | {"severity": item.severity.value} for item in findings]
            for name, findings in verdicts.items()
        },
    }


def verdict_lines(
    verdicts: Mapping[str, tuple[Finding, ...]], installers: Installers | None = None
) -> Iterator[str]:
    """Return the same for a person: the remedy below the first findings of a rule."""
    if installers:
        yield f"installed with {installers}"
    for name, findings in verdicts.items():
        outcome = "may ship" if ships({name: findings}) else "may not ship"
        numbers = Counter(item.severity for item in findings)
        judged = (each for each in Severity if numbers[each] and each is not Severity.UNSEEN)
        counts = (count(numbers[each], each.value) for each in judged)
        yield printable(f"{name}: {', '.join((outcome, *counts))}")
        for rule, number in Counter(item.rule for item in findings).items():
            first = itertools.islice((item for item in findings if item.rule == rule), MANY)
            for remedy, each in itertools.groupby(first, key=attrgetter("remedy")):
                yield from (printable(f"  {x.severity.value} {rule}: {x.message}") for x in each)
                yield f"    {remedy}"
            if number > MANY:
                yield f"  {rule}: and {number - MANY} more, which --json lists"


def ships(verdicts: Mapping[str, tuple[Finding, ...]]) -> bool:
    """Return whether wheels with these findings may be published: none is an error."""
    return all(x.severity is not Severity.ERROR for each in verdicts.values() for x in each)


def _elf_document(item: ElfFacts) -> dict[str, Any]:
    return {
        **asdict(item),
        "highest": {prefix: _dotted(item.highest(prefix)) for prefix in PREFIXES},
        "exports_pjrt": PJRT_ENTRY in item.exports,
        "gfx_targets": hip.in_all(item.bundles),
        "bundles": [
            asdict(replace(bundle, objects=(), kernels=()))
            | {"targets": list(map(str, bundle.objects))}
            for bundle in item.bundles
        ],
    }


def _elf_lines(item: ElfFacts, width: int) -> Iterator[str]:
    highest = [
        f"{prefix} {_dotted(item.highest(prefix))}" for prefix in PREFIXES if item.highest(prefix)
    ]
    for label, text in (
        ("machine", "" if item.machine == "x86_64" else item.machine),
        ("SONAME", item.soname),
        ("symbols", ", ".join(highest)),
        ("NEEDED", " ".join(item.needed)),
        ("RPATH", _few(item.rpath)),
        ("RUNPATH", _few(item.runpath)),
        ("exports", "GetPjrtApi, the PJRT API" if PJRT_ENTRY in item.exports else ""),
        ("GPU code", _gpu_code(item)),
    ):
        if text:
            yield from textwrap.wrap(
                text,
                width=max(width, 60),
                initial_indent=f"    {label:<9} ",
                subsequent_indent=" " * 14,
                break_long_words=False,
                break_on_hyphens=False,
            )


def _gpu_code(item: ElfFacts) -> str:
    if not item.bundles:
        return ""
    targets = hip.in_all(item.bundles)
    some = ", ".join(sorted({*hip.sum_of_objects(item.bundles)} - {*targets}))
    text = f"{count(len(item.bundles), 'bundle')} for {count(len(targets), 'target')}"
    return f"{text}; only some have {some}" if some else text


def _few(items: tuple[str, ...]) -> str:
    """Return a list that may have 79 entries; `--json` has them all."""
    return " ".join(items) if len(items) <= FEW else f"{len(items)} entries, first {items[0]}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield ""
    yield from (f"  {line}" for line in columns(header, rows))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
