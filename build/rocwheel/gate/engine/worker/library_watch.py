"""Which ROCm libraries are seen at work in this process while a test runs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest


MOST_READ = 1 << 20  # bytes


class LibraryWatch:
    """Which of the libraries a test is tagged with can be seen at work.

    `mapped` are prefixes of shared objects in this process, `traces` are files that a library
    writes a line to when it is called, `printed` is what it prints then.
    """

    def __init__(self, table: dict[str, dict[str, list[str]]]) -> None:
        self._table = table

    def tags(self, item: pytest.Item) -> list[str]:
        names = [name for mark in item.iter_markers("rocm") for name in mark.args]
        return [str(name) for name in dict.fromkeys(names)]

    def traced(self, names: list[str]) -> dict[str, int]:
        """Return the size of every trace file of these libraries."""
        sizes = {path: 0 for n in names for path in self._table.get(n, {}).get("traces", ())}
        for path in sizes:
            with suppress(OSError):
                sizes[path] = Path(path).stat().st_size
        return sizes

    def evidence(self, names: list[str], before: dict[str, int], start: int) -> list[str]:
        """Return libraries that were called, or without a trace are mapped.

        A trace has grown, or something was printed from `start` of the log on.
        """
        maps = Path("/proc/self/maps").read_text(errors="replace") if names else ""
        mapped = {line.rpartition("/")[2] for line in maps.splitlines() if "/" in line}
        after = self.traced(names)

        def called(name: str) -> bool:
            entry = self._table.get(name, {})
            if printed := entry.get("printed"):
                output = _log(start)
                return any(text.encode() in output for text in printed)
            if traces := entry.get("traces"):
                return any(after[path] > before[path] for path in traces)
            return any(so.startswith(tuple(entry.get("mapped", ()))) for so in mapped)

        return list(filter(called, names))


def _log(start: int) -> bytes:
    """Return what this process printed from an offset on, of much the beginning."""
    # Ours is open for writing alone, and a test may have closed it.
    with suppress(OSError), Path("/proc/self/fd/1").open("rb") as log:
        log.seek(start)
        return log.read(MOST_READ)
    return b""
