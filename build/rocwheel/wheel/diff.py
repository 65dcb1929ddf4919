"""Compares what `inspect` reads of two wheels: `diff`.

Two builds of one input differ in nothing. A wheel that was re-versioned is compared member by
member with the old one: `*.dist-info/` and `*.data/` count as the same folder in both.
"""

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rocwheel.base import parallel
from rocwheel.base.console import count, printable, size
from rocwheel.wheel import hip
from rocwheel.wheel.elf import ElfFacts
from rocwheel.wheel.inspect import WheelReport, inspect
from rocwheel.wheel.zip_reader import ZipArchive, ZipMember
from rocwheel.wheel.zip_writer import same_bytes

_Facts = Mapping[str, tuple[str, ...]]  # aspect -> its values


class Difference(NamedTuple):
    """One difference; `before` or `after` is "" where there is nothing."""

    member: str  # "" for the wheel as a whole
    aspect: str
    before: str
    after: str

    def __str__(self) -> str:
        where = f"{self.member}: " if self.member else ""
        sign = "-" if self.before else "+"
        change = f"{sign} {self.before or self.after}"
        if self.before and self.after:
            change = f"{self.before} -> {self.after}"
        return printable(f"{where}{self.aspect}: {change}")


def diff(first: Path, second: Path) -> tuple[Difference, ...]:
    """Compare two wheels. Raises WheelError where one of them is not sound."""
    if first.name == second.name:
        with ZipArchive(first), ZipArchive(second):
            if same_bytes(first, second):
                return ()  # without unpacking either
    old, new = map(_facts, parallel.each(inspect, (first, second)))
    members = (_differing(name, old[name], new[name]) for name in old if name in new)
    return tuple(itertools.chain.from_iterable(members))


def _differing(member: str, old: _Facts, new: _Facts) -> Iterator[Difference]:
    for aspect in {**old, **new}:
        was, is_now = old.get(aspect, ()), new.get(aspect, ())
        if was == is_now:
            continue
        pairs = []
        if max(len(was), len(is_now)) > 1:
            pairs = [(item, "") for item in sorted({*was} - {*is_now})]
            pairs += [("", item) for item in sorted({*is_now} - {*was})]
        for before, after in pairs or [(", ".join(was), ", ".join(is_now))]:
            yield Difference(member=member, aspect=aspect, before=before, after=after)


def _facts(report: WheelReport) -> dict[str, _Facts]:
    members = {report.filename.moved(member.name, "*"): member for member in report.members}
    facts: dict[str, _Facts] = {
        "": {
            "project": (report.project,),
            "version": (report.version,),
            "tags": report.tags,
            "SHA-256": (report.sha256,),
            "size in bytes": (str(report.size),),
            "member": tuple(members),
            **report.metadata,
            **report.wheel,
            **{name: tuple(map(" ".join, parts)) for name, parts in report.sboms.items()},
            **{f"entry point of {group}": points for group, points in report.entry_points.items()},
        }
    }
    libraries = {item.path: item for item in report.elf}
    for name, member in members.items():
        library = libraries.get(member.name)
        facts[name] = _headers(member) | (_library(library) if library else {})
    return facts


def _headers(member: ZipMember) -> dict[str, tuple[str, ...]]:
    time, date = member.stamp
    day = f"{1980 + (date >> 9)}-{date >> 5 & 15:02}-{date & 31:02}"
    return {
        "mode": (f"{member.mode:o}",),
        "time": (f"{day} {time >> 11:02}:{time >> 5 & 63:02}:{(time & 31) * 2:02}",),
        "compression method": (str(member.method),),
        "bytes": (f"{member.size} (CRC {member.crc:08x})",),
    }


def _library(facts: ElfFacts) -> dict[str, tuple[str, ...]]:
    return {
        "machine": (facts.machine,),
        "SONAME": (facts.soname,),
        "NEEDED": facts.needed,
        "RPATH": (":".join(facts.rpath),),
        "RUNPATH": (":".join(facts.runpath),),
        "GPU code bundles": (str(len(facts.bundles)),),
    } | {
        f"GPU code for {target}": (f"{count(number, 'code object')}, {size(total)}",)
        for target, (number, total) in hip.sum_of_objects(facts.bundles).items()
    }
