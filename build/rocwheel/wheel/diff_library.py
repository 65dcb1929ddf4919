"""What differs between two builds of a shared object: tables, sections, GPU code.

Which code objects there are and how large they are stands in front of each bundle, so bundles are
unpacked only where objects of one size could differ in content. Both files are read at once.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from rocwheel import parallel
from rocwheel.console import count, size
from rocwheel.wheel import hip
from rocwheel.wheel.elf import Budget, ElfError, ElfFacts, Scan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rocwheel.wheel.zip_reader import ZipArchive, ZipMember

RATIO: Final = 1000  # unpacked to packed bytes of a bundle; the most that was published is 114
FEW: Final = 24  # code objects that are named one by one; of more, sums by target
Row: TypeAlias = tuple[str, str, str, "tuple[int, int] | None"]  # aspect, before, after, sizes


class SharedObject(NamedTuple):
    """One of the two shared objects that are compared, as a member of its wheel."""

    archive: ZipArchive
    member: ZipMember

    def stream(self) -> Iterator[bytes]:
        return self.archive.stream(self.member)


class _Read(NamedTuple):
    """What was read of one: facts, and a digest of each bundle as it lies in the file."""

    facts: ElfFacts
    digests: tuple[str, ...]


def compare(old: SharedObject, new: SharedObject) -> Iterator[Row]:
    """What differs, by aspect. Raises WheelError for a broken ELF file."""
    olds, news = parallel.each(_read, (old, new))
    yield from _tables(olds.facts, news.facts)
    yield from _sections(olds.facts.sections, news.facts.sections)
    yield from _bundles(olds.facts.bundles, news.facts.bundles)
    yield from _code(old, olds, new, news)


def _read(library: SharedObject) -> _Read:
    member = library.member
    found = Scan(member.name, member.size, budget=Budget(), sections=True)
    try:
        for piece in library.stream():
            found.feed(piece)
        ranges = _Ranges(found.bundles, member.size)
        while need := max(found.again(), ranges.left):
            for piece in library.stream():
                found.feed(piece)
                ranges.feed(piece)
                need -= len(piece)
                if need <= 0:
                    break
        return _Read(found.facts(), ranges.digests)
    except ElfError as exc:
        library.archive.refuse(f"{member.name}: a broken ELF file: {exc}")


class _Ranges:
    """Digests of bundles as they lie in a file, taken while its bytes pass by once."""

    def __init__(self, bundles: tuple[hip.Bundle, ...], size: int) -> None:
        """A bundle ends where it says, but before the next one and with the file."""
        ends = [*(item.offset for item in bundles[1:]), size]
        self._open = [
            (item.offset, min(item.offset + item.size, end), hashlib.sha256())
            for item, end in zip(bundles, ends, strict=False)
        ]
        self._all = tuple(digest for _, _, digest in self._open)
        self._at = 0

    @property
    def left(self) -> int:
        """How many bytes, from the first, are still to be fed."""
        return max((end for _, end, _ in self._open), default=0)

    def feed(self, piece: bytes) -> None:
        view, start, end = memoryview(piece), self._at, self._at + len(piece)
        self._at = end
        for low, high, digest in self._open:
            if low >= end:
                break
            digest.update(view[max(low - start, 0) : max(high - start, 0)])
        self._open = [item for item in self._open if item[1] > end]

    @property
    def digests(self) -> tuple[str, ...]:
        return tuple(digest.hexdigest() for digest in self._all)


def _tables(old: ElfFacts, new: ElfFacts) -> Iterator[Row]:
    for aspect, before, after in (
        ("machine", old.machine, new.machine),
        ("SONAME", old.soname, new.soname),
        ("RPATH", ":".join(old.rpath), ":".join(new.rpath)),
        ("RUNPATH", ":".join(old.runpath), ":".join(new.runpath)),
    ):
        if before != after:
            yield aspect, before, after, None
    for aspect, befores, afters in (
        ("NEEDED", set(old.needed), set(new.needed)),
        ("symbol version", _versions(old), _versions(new)),
        ("exported symbol", set(old.exports), set(new.exports)),
        ("needed symbol", set(old.imports), set(new.imports)),
        ("gfx target", _targets(old), _targets(new)),
    ):
        for item in sorted(befores - afters):
            yield aspect, item, "", None
        for item in sorted(afters - befores):
            yield aspect, "", item, None


def _versions(facts: ElfFacts) -> set[str]:
    return {f"{library} {name}" for library, names in facts.versions.items() for name in names}


def _targets(facts: ElfFacts) -> set[str]:
    return {target for bundle in facts.bundles for target in bundle.targets}


def _sections(old: Mapping[str, int], new: Mapping[str, int]) -> Iterator[Row]:
    """Sections by how much their size changed, the most first."""
    changed = [
        (name, old.get(name, 0), new.get(name, 0))
        for name in {**old, **new}
        if old.get(name, 0) != new.get(name, 0)
    ]
    for name, before, after in sorted(changed, key=lambda item: -abs(item[2] - item[1])):
        yield f"size of {name}", *_sizes(before, after)


def _sizes(before: int, after: int) -> tuple[str, str, tuple[int, int]]:
    texts = (size(before), size(after))
    if texts[0] == texts[1]:
        texts = (f"{before} B", f"{after} B")
    return *texts, (before, after)


def _bundles(olds: tuple[hip.Bundle, ...], news: tuple[hip.Bundle, ...]) -> Iterator[Row]:
    """Number and compression of bundles; those at the same place in the order belong together."""
    if len(olds) != len(news):
        yield "GPU code bundles", str(len(olds)), str(len(news)), None
    for number, (old, new) in enumerate(zip(olds, news, strict=False)):
        if old.compression != new.compression:
            aspect = f"compression of bundle {number}"
            yield aspect, old.compression or "none", new.compression or "none", None


def _code(old: SharedObject, olds: _Read, new: SharedObject, news: _Read) -> Iterator[Row]:
    """Code objects that changed, one by one where they are few, by target where they are many."""
    pairs = list(zip(olds.facts.bundles, news.facts.bundles, strict=False))
    maybe = [
        number
        for number, both in enumerate(pairs)
        if olds.digests[number] != news.digests[number] and _same_sizes(*both)
    ]
    digests = parallel.each(
        lambda item: _digests(*item),
        ((old, olds.facts.bundles, maybe), (new, news.facts.bundles, maybe)),
    )
    changed: list[Row] = []
    for number, both in enumerate(pairs):
        befores, afters = ({str(item): item.size for item in each.objects} for each in both)
        for target in sorted(befores.keys() & afters.keys()):
            texts = [
                f"{sizes[target]} bytes{found.get((number, target), '')}"
                for sizes, found in zip((befores, afters), digests, strict=True)
            ]
            if texts[0] != texts[1]:
                aspect = f"code object {target} of bundle {number}"
                changed.append((aspect, texts[0], texts[1], (befores[target], afters[target])))
    if len(changed) <= FEW and len(olds.facts.bundles) == len(news.facts.bundles):
        yield from changed
        return
    yield from _sums(olds.facts, news.facts, Counter(row[0].split(" ")[2] for row in changed))


def _same_sizes(old: hip.Bundle, new: hip.Bundle) -> bool:
    """Whether some code object of both has one size in both."""
    sizes = {(str(item), item.size) for item in old.objects if item.size}
    return any((str(item), item.size) in sizes for item in new.objects)


def _sums(old: ElfFacts, new: ElfFacts, changed: Counter[str]) -> Iterator[Row]:
    """By target: how many code objects, how large together, how many of them changed."""
    tallies: list[dict[str, list[int]]] = []
    for facts in (old, new):
        tally: dict[str, list[int]] = {}
        for item in (entry for bundle in facts.bundles for entry in bundle.objects if entry.size):
            tally.setdefault(str(item), []).append(item.size)
        tallies.append(tally)
    for target in sorted(tallies[0].keys() | tallies[1].keys()):
        sizes = [tally.get(target, []) for tally in tallies]
        before, after = (
            f"{count(len(each), 'code object')}, {size(sum(each))}" if each else ""
            for each in sizes
        )
        if sizes[0] != sizes[1] or changed[target]:
            if after and changed[target]:
                after += f", {changed[target]} changed"
            yield f"GPU code for {target}", before, after, (sum(sizes[0]), sum(sizes[1]))


def _digests(
    library: SharedObject, bundles: tuple[hip.Bundle, ...], numbers: list[int]
) -> dict[tuple[int, str], str]:
    """(bundle, code object) -> the beginning of its digest, from one pass over the file."""
    found: dict[tuple[int, str], str] = {}
    if numbers:
        source = hip.Forward(library.stream())
        for number in numbers:
            for target, digest in _bundle_digests(bundles[number], source).items():
                found[number, target] = digest
    return found


def _bundle_digests(bundle: hip.Bundle, source: hip.Forward) -> dict[str, str]:
    """Nothing for a bundle that is damaged, or unpacks to more than any that was published."""
    in_order = sorted(bundle.objects, key=lambda item: item.offset)
    if any(one.offset + one.size > two.offset for one, two in itertools.pairwise(in_order)):
        return {}
    digests = [(item, hashlib.sha256()) for item in bundle.objects]
    at, most = 0, min(bundle.unpacked, RATIO * bundle.size)
    with suppress(ValueError):  # damaged: then it is shorter than it says
        if source.range(bundle.offset, bundle.size):
            for piece in hip.unpacked(bundle, source):
                if at > most:
                    return {}
                view = memoryview(piece)
                for item, digest in digests:
                    start, end = item.offset - at, item.offset + item.size - at
                    if start < len(view) and end > 0:
                        digest.update(view[max(start, 0) : end])
                at += len(piece)
    if at != bundle.unpacked:
        return {}
    return {str(item): f", {digest.hexdigest()[:12]}" for item, digest in digests}
