"""Additions to pytest and the import system, and a watch on ROCm's libraries."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

MOST_READ = 1 << 20  # bytes of what a library prints


class QuietReporter:
    """Stands where pytest's terminal reporter was, and prints nothing.

    pytest asks the plugin of that name for its terminal writer when it explains a comparison
    (`Config.get_terminal_writer`).
    """

    def __init__(self, config: pytest.Config) -> None:
        from _pytest.config import create_terminal_writer

        self._tw = create_terminal_writer(config, Path(os.devnull).open("w"))  # noqa: SIM115
        self._tw.fullwidth = 100
        self.verbosity = 0
        self.stats: dict[str, list[Any]] = {}

    def __getattr__(self, name: str) -> Any:
        """Drop everything that a conftest writes to the reporter."""
        if name.startswith(("pytest_", "__")):
            raise AttributeError(name)
        return lambda *_args, **_options: None


class Extra:
    """An import finder, asked last: modules that the installed wheels lack, from a folder.

    JAX's tests import a few modules of JAX's tree that its wheel leaves out.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self.used: list[str] = []

    def find_spec(self, name: str, path: Sequence[str] | None, _target: Any = None) -> Any:
        """Find a module below the folder; only packages of what is installed are added to."""
        if path is None:
            return None
        *parents, _ = name.split(".")
        spec = PathFinder.find_spec(name, [str(self._folder.joinpath(*parents))])
        if spec is not None and spec.origin is not None:
            self.used.append(name)
            return spec
        return None


def have_flags_parsed() -> None:
    """Let tests read absl's flags, whichever file their process began with.

    A file that is run by itself parses them in `absltest.main`. Under pytest the first file does
    that asks JAX to (`jax.config.parse_flags_with_absl`), for all files that come after it.
    """
    flags: Any = getattr(sys.modules.get("absl.flags"), "FLAGS", None)
    with suppress(AttributeError):  # there is none, or what has that name is another's
        if not flags.is_parsed():
            flags.mark_as_parsed()


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
