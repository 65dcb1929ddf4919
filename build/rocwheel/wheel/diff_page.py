"""What differs between two wheels as people read it: lines for a terminal, a page for a browser."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rocwheel.assets import style, template
from rocwheel.console import printable
from rocwheel.wheel.diff import LINE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from rocwheel.wheel.diff import Difference

LISTED: Final = 12  # entries of one kind that a terminal shows; of more, how many there are
LINES: Final = 200  # lines of a text that a terminal shows


@dataclass(frozen=True, kw_only=True)
class MemberDifferences:
    """What differs in one member, or in the wheel as a whole."""

    member: str
    plain: tuple[Difference, ...]  # one thing before and another one after
    lists: tuple[tuple[str, tuple[Difference, ...]], ...]  # by aspect: what is gone or new
    sizes: tuple[Difference, ...]

    @property
    def largest(self) -> int:
        """The largest change of a size, in bytes; at least 1."""
        found = (abs(item.sizes[1] - item.sizes[0]) for item in self.sizes if item.sizes)
        return max(1, *found) if self.sizes else 1


def groups(differences: Sequence[Difference]) -> tuple[MemberDifferences, ...]:
    """Differences by member, in the order in which they were found."""
    found = []
    for member, items in itertools.groupby(differences, key=lambda item: item.member):
        known = tuple(items)
        lists: dict[str, list[Difference]] = {}
        for item in known:
            if not item.sizes and not (item.before and item.after):
                lists.setdefault(item.aspect, []).append(item)
        found.append(
            MemberDifferences(
                member=member,
                plain=tuple(
                    item for item in known if not item.sizes and item.before and item.after
                ),
                lists=tuple((aspect, tuple(each)) for aspect, each in lists.items()),
                sizes=tuple(item for item in known if item.sizes),
            )
        )
    return tuple(found)


def lines(differences: Sequence[Difference]) -> Iterator[str]:
    """One block for each member; long lists are counted, `--json` and `--html` have all of them."""
    for group in groups(differences):
        indent = "  " if group.member else ""
        if group.member:
            yield printable(f"{group.member}:")
        for item in (*group.plain, *(item for item in group.sizes if item.before and item.after)):
            yield printable(f"{indent}{item.aspect}: {item.before} -> {item.after}")
        alone = tuple(item for item in group.sizes if not (item.before and item.after))
        for aspect, items in (*group.lists, *((item.aspect, (item,)) for item in alone)):
            if len(items) > (LINES if aspect == LINE else LISTED):
                gone = sum(bool(item.before) for item in items)
                yield printable(f"{indent}{aspect}: {gone} gone, {len(items) - gone} new")
                continue
            for item in items:
                sign = "-" if item.before else "+"
                yield printable(f"{indent}{aspect}: {sign} {item.before or item.after}")


def page(first: Path, second: Path, differences: Sequence[Difference]) -> str:
    """An HTML page without anything from elsewhere."""
    shown = [_shown(item) for item in differences]
    return template("wheel/assets/diff.html.j2").render(
        css=style(), old=first, new=second, groups=groups(shown)
    )


def _shown(item: Difference) -> Difference:
    """The same, with nothing that a browser does not show or shows elsewhere."""
    return type(item)(
        member=printable(item.member),
        aspect=printable(item.aspect),
        before=printable(item.before),
        after=printable(item.after),
        sizes=item.sizes,
    )
