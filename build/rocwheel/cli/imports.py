"""Imports that wait until their name is used, so that help starts without the rooms it calls.

    with when_run():
        from rocwheel import dist
        from rocwheel.release.operations import Who

The block is ordinary to type checkers, linters and to everything that imports the module itself.
Where the command line imports it to parse (`parsing`), each name stands for what it will be, which
is imported when the name is called, looked into, or asked whether something is one. A test refuses
every other use of such a name.
"""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from types import SimpleNamespace
from typing import Any


class _Later:
    """A name that waits: of a module, or a module."""

    def __init__(self, module: str, name: str = "") -> None:
        self._module, self._name = module, name

    @cached_property
    def _meant(self) -> Any:
        origin = importlib.import_module(self._module)
        if not self._name or hasattr(origin, self._name):
            return getattr(origin, self._name) if self._name else origin
        return importlib.import_module(f"{self._module}.{self._name}")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._meant, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._meant(*args, **kwargs)

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, self._meant)


class _Mode:
    parsing = False


@contextmanager
def parsing() -> Iterator[None]:
    """Let modules of commands that are imported meanwhile put off what they mark."""
    _Mode.parsing = True
    try:
        yield
    finally:
        _Mode.parsing = False


@contextmanager
def when_run() -> Iterator[None]:
    """Put off the imports of a block while the command line is parsed."""
    if not _Mode.parsing:
        yield
        return
    ordinary = builtins.__import__

    def note(name: str, _scope: Any, _locals: Any, names: Any, _level: int) -> Any:
        later = {item: _Later(name, item) for item in names or ()}  # each that a `from` names
        return SimpleNamespace(**later) if names else _Later(name)

    builtins.__import__ = note  # type: ignore[assignment]
    try:
        yield
    finally:
        builtins.__import__ = ordinary
