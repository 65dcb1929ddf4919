"""What differs between two wheels, from the file down to what libraries need: `diff`, `lines`.

Two builds of one input differ in nothing. A wheel that was re-versioned is compared member by
member with the old one: `*.dist-info/` and `*.data/` count as the same folder in both.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rocwheel.console import count, printable, size
from rocwheel.wheel.elf import MAGIC, ElfError, ElfFacts, scan
from rocwheel.wheel.inspect import LIBRARIES, graft_name
from rocwheel.wheel.metadata import WheelName
from rocwheel.wheel.zip_reader import ZipArchive, ZipMember
from rocwheel.wheel.zip_writer import same_bytes

TEXT: Final = 1 << 20  # bytes up to which two texts are compared line by line; RECORD always is
MOST: Final = 20_000  # lines of such a text: difflib's time grows with their square
LISTED: Final = 50_000  # lines that are listed, of all texts together
LINE: Final = "line"  # the aspect of a line of a text
SHOWN: Final = 12  # entries of one kind that a terminal shows; of more, how many there are
SHOWN_LINES: Final = 200  # lines of a text that a terminal shows
RECORD: Final = ".dist-info/RECORD"
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
            *_differing("", ("size in bytes", str(old.size), str(new.size))),
            *_at_most(LISTED, _archives(old, new)),
        )


def lines(differences: Sequence[Difference]) -> Iterator[str]:
    """Yield one block for each member; long lists are counted, `--json` has all of them."""
    for member, items in itertools.groupby(differences, key=lambda item: item.member):
        indent = "  " if member else ""
        if member:
            yield printable(f"{member}:")
        lists: dict[str, list[Difference]] = {}
        for item in items:
            if item.before and item.after:
                yield printable(f"{indent}{item.aspect}: {item.before} -> {item.after}")
            else:
                lists.setdefault(item.aspect, []).append(item)
        for aspect, entries in lists.items():
            if len(entries) > (SHOWN_LINES if aspect == LINE else SHOWN):
                removed = sum(bool(item.before) for item in entries)
                yield printable(
                    f"{indent}{aspect}: {removed} removed, {len(entries) - removed} added"
                )
                continue
            for item in entries:
                sign = "-" if item.before else "+"
                yield printable(f"{indent}{aspect}: {sign} {item.before or item.after}")


def _at_most(lines: int, found: Iterator[Difference]) -> Iterator[Difference]:
    """All of them but lines of texts beyond the first so many, which are counted."""
    seen = 0
    for item in found:
        seen += item.aspect == LINE
        if item.aspect != LINE or seen <= lines:
            yield item
    if seen > lines:
        yield from _differing("", ("further lines that differ", "", str(seen - lines)))


def _names(first: str, second: str) -> Iterator[Difference]:
    old, new = WheelName.parse(first), WheelName.parse(second)
    yield from _differing(
        "",
        ("project", old.project, new.project),
        ("version", old.version_text, new.version_text),
        ("tags", ", ".join(old.tags), ", ".join(new.tags)),
    )


def _differing(member: str, *rows: tuple[str, str, str]) -> Iterator[Difference]:
    """Yield those of (aspect, before, after) that are not the same before and after."""
    for aspect, before, after in rows:
        if before != after:
            yield Difference(member=member, aspect=aspect, before=before, after=after)


def _archives(old: ZipArchive, new: ZipArchive) -> Iterator[Difference]:
    olds, news = _members(old), _members(new)
    grafts = [
        {graft_name(name) for name in names if name.partition("/")[0].endswith(LIBRARIES)}
        for names in (olds, news)
    ]
    yield from _sets("", "grafted library", *grafts)
    yield from _sets("", "member", set(olds), set(news))
    if [name for name in olds if name in news] != [name for name in news if name in olds]:
        yield from _differing("", ("order of members", ", ".join(olds), ", ".join(news)))
    comments = repr(old.directory.comment), repr(new.directory.comment)
    yield from _differing("", ("comment", *comments))
    for name, member in olds.items():
        if name in news:
            yield from _headers(name, member, news[name])
            yield from _contents(name, old, member, new, news[name])


def _sets(member: str, aspect: str, old: set[str], new: set[str]) -> Iterator[Difference]:
    for item in sorted(old - new):
        yield Difference(member=member, aspect=aspect, before=item, after="")
    for item in sorted(new - old):
        yield Difference(member=member, aspect=aspect, before="", after=item)


def _members(archive: ZipArchive) -> dict[str, ZipMember]:
    """Members by name, with the version taken out of the folders that have it."""
    stem = WheelName.parse(archive.path.name).stem
    return {
        f"*{member.name[len(stem) :]}"
        if member.name.startswith(tuple(stem + ending for ending in FOLDERS))
        else member.name: member
        for member in archive.members
    }


def _headers(name: str, old: ZipMember, new: ZipMember) -> Iterator[Difference]:
    yield from _differing(
        name,
        ("mode", f"{old.mode:o}", f"{new.mode:o}"),
        ("time", _time(old.stamp), _time(new.stamp)),
        ("compression method", str(old.method), str(new.method)),
        ("flags", f"{old.flags:#x}", f"{new.flags:#x}"),
    )


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
        yield Difference(
            member=name,
            aspect="compressed bytes",
            before=str(before.compressed),
            after=str(after.compressed),
        )
        return
    is_text = False
    if _is_elf(old, before) and _is_elf(new, after):
        yield from _libraries(name, _facts(old, before), _facts(new, after))
    elif max(before.size, after.size) <= TEXT or name.endswith(RECORD):
        for item in _lines(name, _text(old, before), _text(new, after)):
            is_text = True
            yield item
    if not is_text:
        yield Difference(
            member=name, aspect="bytes", before=_identity(before), after=_identity(after)
        )


def _facts(archive: ZipArchive, member: ZipMember) -> ElfFacts:
    try:
        return scan(member.name, member.size, lambda: archive.stream(member))
    except ElfError as exc:
        archive.refuse(f"{member.name}: a broken ELF file: {exc}")


def _libraries(name: str, old: ElfFacts, new: ElfFacts) -> Iterator[Difference]:
    """Compare what two builds of a shared object need, promise and have GPU code for."""
    yield from _differing(
        name,
        ("machine", old.machine, new.machine),
        ("SONAME", old.soname, new.soname),
        ("RPATH", ":".join(old.rpath), ":".join(new.rpath)),
        ("RUNPATH", ":".join(old.runpath), ":".join(new.runpath)),
        ("GPU code bundles", str(len(old.bundles)), str(len(new.bundles))),
    )
    yield from _sets(name, "NEEDED", set(old.needed), set(new.needed))
    yield from _sets(name, "symbol version", _versions(old), _versions(new))
    olds, news = _gpu_code(old), _gpu_code(new)
    for target in sorted(olds.keys() | news.keys()):
        code = olds.get(target, ""), news.get(target, "")
        yield from _differing(name, (f"GPU code for {target}", *code))


def _versions(facts: ElfFacts) -> set[str]:
    return {f"{library} {name}" for library, names in facts.versions.items() for name in names}


def _gpu_code(facts: ElfFacts) -> dict[str, str]:
    """Return how many code objects there are for each gfx target, and their size unpacked."""
    return {
        target: f"{count(number, 'code object')}, {size(total)}"
        for target, (number, total) in facts.gpu_code.items()
    }


def _identity(member: ZipMember) -> str:
    return f"{member.size} (CRC {member.crc:08x})"


def _is_elf(archive: ZipArchive, member: ZipMember) -> bool:
    return next(archive.stream(member), b"").startswith(MAGIC)


def _text(archive: ZipArchive, member: ZipMember) -> bytes:
    """Return a text; RECORD's without the version in the names of the folders that have it."""
    content = archive.read(member.name)
    if member.name.endswith(RECORD):
        stem = WheelName.parse(archive.path.name).stem.encode()
        for ending in FOLDERS:
            content = content.replace(stem + ending.encode(), b"*" + ending.encode())
    return content


def _lines(name: str, old: bytes, new: bytes) -> Iterator[Difference]:
    if max(old.count(b"\n"), new.count(b"\n")) > MOST:
        return
    try:  # split at what was counted, and at nothing else that a Unicode text may end a line with
        texts = old.decode("utf-8").split("\n"), new.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return
    for before, after in _changes(*texts):
        if before or after:
            yield Difference(member=name, aspect=LINE, before=before, after=after)


def _changes(old: list[str], new: list[str]) -> Iterator[tuple[str, str]]:
    """Yield lines that were removed, with "" for what came, and the other way round."""
    lines = difflib.unified_diff(old, new, n=0, lineterm="")
    for line in itertools.islice(lines, 2, None):  # after the names of the two texts
        if line[0] != "@":
            yield (line[1:], "") if line[0] == "-" else ("", line[1:])
