"""What differs between two wheels, from the file down to what libraries need: `diff`, `lines`.

Two builds of one input differ in nothing. A wheel that was re-versioned is compared member by
member with the old one: `*.dist-info/` and `*.data/` count as the same folder in both.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocwheel.console import count, printable, size
from rocwheel.wheel.elf import MAGIC, ElfError, ElfFacts, scan
from rocwheel.wheel.metadata import WheelName
from rocwheel.wheel.zip_reader import ZipArchive, ZipMember
from rocwheel.wheel.zip_writer import same_bytes

TEXT: Final = 64 << 10  # bytes up to which two texts are compared line by line
LISTED: Final = 50_000  # lines that are listed, of all texts together
LINE: Final = "line"  # the aspect of a line of a text
SHOWN: Final = 100  # entries of one kind that a terminal shows; of more, how many there are
FOLDERS: Final = (".dist-info/", ".data/")  # named like the wheel, with its version


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One thing that is not the same; `before` or `after` is "" where there is nothing."""

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
    with ZipArchive(first) as old, ZipArchive(second) as new:
        if old.size == new.size and same_bytes(old.raw(0, old.size), new.raw(0, new.size)):
            same_name = first.name == second.name
            return () if same_name else tuple(_names(first.name, second.name))
        return (
            *_names(first.name, second.name),
            *_differing("", *({"size in bytes": str(each.size)} for each in (old, new))),
            *_at_most(LISTED, _archives(old, new)),
        )


def lines(differences: Sequence[Difference]) -> Iterator[str]:
    """Yield a line for each difference; long lists are counted, `--json` has them."""
    for _, group in itertools.groupby(differences, key=lambda item: (item.member, item.aspect)):
        items = list(group)
        if len(items) <= SHOWN:
            yield from map(str, items)
            continue
        removed = sum(bool(item.before) for item in items)
        where = f"{items[0].member}: " if items[0].member else ""
        counts = f"{removed} removed, {len(items) - removed} added"
        yield printable(f"{where}{items[0].aspect}: {counts}")


def _at_most(lines: int, differences: Iterator[Difference]) -> Iterator[Difference]:
    """Yield all of them but lines of texts beyond the first so many, which are counted."""
    seen = 0
    for item in differences:
        seen += item.aspect == LINE
        if item.aspect != LINE or seen <= lines:
            yield item
    if seen > lines:
        yield from _differing("", {}, {"further lines that differ": str(seen - lines)})


def _names(first: str, second: str) -> Iterator[Difference]:
    both = (WheelName.parse(name) for name in (first, second))
    yield from _differing("", *(
        {"project": x.project, "version": x.version_text, "tags": ", ".join(x.tags)} for x in both
    ))  # fmt: skip


def _differing(member: str, before: dict[str, str], after: dict[str, str]) -> Iterator[Difference]:
    """Yield what is not the same before and after, aspect by aspect."""
    for aspect in before | after:
        pair = before.get(aspect, ""), after.get(aspect, "")
        if pair[0] != pair[1]:
            yield Difference(member=member, aspect=aspect, before=pair[0], after=pair[1])


def _archives(old: ZipArchive, new: ZipArchive) -> Iterator[Difference]:
    olds, news = _members(old), _members(new)
    yield from _sets("", "member", set(olds), set(news))
    if [name for name in olds if name in news] != [name for name in news if name in olds]:
        orders = ({"order of members": ", ".join(names)} for names in (olds, news))
        yield from _differing("", *orders)
    comments = ({"comment": repr(each.directory.comment)} for each in (old, new))
    yield from _differing("", *comments)
    for name, member in olds.items():
        if name in news:
            yield from _differing(name, _headers(member), _headers(news[name]))
            yield from _contents(name, old, member, new, news[name])


def _sets(member: str, aspect: str, old: set[str], new: set[str]) -> Iterator[Difference]:
    for item in sorted(old - new):
        yield Difference(member=member, aspect=aspect, before=item, after="")
    for item in sorted(new - old):
        yield Difference(member=member, aspect=aspect, before="", after=item)


def _members(archive: ZipArchive) -> dict[str, ZipMember]:
    """Return members by name, with the version taken out of the folders that have it."""
    stem = WheelName.parse(archive.path.name).stem
    return {
        f"*{member.name[len(stem) :]}"
        if member.name.startswith(tuple(stem + ending for ending in FOLDERS))
        else member.name: member
        for member in archive.members
    }


def _headers(member: ZipMember) -> dict[str, str]:
    return {
        "mode": f"{member.mode:o}", "time": _time(member.stamp), "flags": f"{member.flags:#x}",
        "compression method": str(member.method),
    }  # fmt: skip


def _time(stamp: tuple[int, int]) -> str:
    """Return a DOS time and date."""
    time, date = stamp
    day = f"{1980 + (date >> 9)}-{date >> 5 & 15:02}-{date & 31:02}"
    return f"{day} {time >> 11:02}:{time >> 5 & 63:02}:{(time & 31) * 2:02}"


def _contents(
    name: str, old: ZipArchive, before: ZipMember, new: ZipArchive, after: ZipMember
) -> Iterator[Difference]:
    if same_bytes(
        old.raw(before.data, before.data + before.compressed),
        new.raw(after.data, after.data + after.compressed),
    ) and (before.method, before.crc) == (after.method, after.crc):
        return
    if (before.crc, before.size) == (after.crc, after.size) and same_bytes(
        old.stream(before), new.stream(after)
    ):
        packed = ({"compressed bytes": str(each.compressed)} for each in (before, after))
        yield from _differing(name, *packed)
        return
    if _is_elf(old, before) and _is_elf(new, after):
        facts = _facts(old, before), _facts(new, after)
        yield from _differing(name, *map(_library, facts))
        yield from _sets(name, "NEEDED", *(set(each.needed) for each in facts))
    elif max(before.size, after.size) <= TEXT and not name.endswith(".dist-info/RECORD"):
        # Of RECORD, whose lines follow the members, it is enough that it differs.
        texts = [archive.read(item.name) for archive, item in ((old, before), (new, after))]
        if not any(b"\0" in text for text in texts):
            was, is_now = (Counter(text.decode("utf-8", "replace").split("\n")) for text in texts)
            for line in (was - is_now).elements():
                yield Difference(member=name, aspect=LINE, before=line, after="")
            for line in (is_now - was).elements():
                yield Difference(member=name, aspect=LINE, before="", after=line)
    contents = (f"{each.size} (CRC {each.crc:08x})" for each in (before, after))
    yield Difference(member=name, aspect="bytes", before=next(contents), after=next(contents))


def _facts(archive: ZipArchive, member: ZipMember) -> ElfFacts:
    try:
        return scan(member.name, member.size, lambda: archive.stream(member))
    except ElfError as exc:
        archive.refuse(f"{member.name}: a broken ELF file: {exc}")


def _library(facts: ElfFacts) -> dict[str, str]:
    """Return what a shared object says of itself, and has GPU code for."""
    return {
        "machine": facts.machine,
        "SONAME": facts.soname,
        "RPATH": ":".join(facts.rpath),
        "RUNPATH": ":".join(facts.runpath),
        "GPU code bundles": str(len(facts.bundles)),
    } | {
        f"GPU code for {target}": f"{count(number, 'code object')}, {size(total)}"
        for target, (number, total) in facts.gpu_code.items()
    }


def _is_elf(archive: ZipArchive, member: ZipMember) -> bool:
    return next(archive.stream(member), b"").startswith(MAGIC)
