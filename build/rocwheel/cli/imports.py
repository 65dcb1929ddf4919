"""Imports that wait until a command runs, so that its help starts without the rooms it calls.

    with when_run():
        from rocwheel import dist
        from rocwheel.release.operations import Who

The block is ordinary to type checkers, linters and to everything that imports the module itself.
Where the command line imports it to parse (`parsing`), the names stand for what they will be, until
`carry_out` imports all of it: before the command's function is called.
"""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

_WAITING: Final[list[dict[str, Any]]] = []  # globals of modules with names that wait


class _Later:
    """A name that waits. What uses it before its time, such as a test, makes the import happen."""

    def __init__(self, module: str, name: str = "") -> None:
        vars(self).update(module=module, name=name)

    def __getattr__(self, name: str) -> Any:
        return getattr(_imported(self), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return _imported(self)(*args, **kwargs)


class _From:
    """The module that a `from` names: each name of it waits."""

    def __init__(self, module: str) -> None:
        self.__name__ = module

    def __getattr__(self, name: str) -> _Later:
        return _Later(self.__name__, name)


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
    """Put off the `from … import …` of a block while the command line is parsed."""
    if not _Mode.parsing:
        yield
        return
    ordinary = builtins.__import__

    def note(
        name: str, scope: Any, _locals: Any, names: tuple[str, ...] | None, _level: int
    ) -> Any:
        if not any(scope is item for item in _WAITING):
            _WAITING.append(scope)
        return _From(name) if names else _Later(name)

    builtins.__import__ = note  # type: ignore[assignment]
    try:
        yield
    finally:
        builtins.__import__ = ordinary


def carry_out() -> None:
    """Import all that waits, and bind the names."""
    while _WAITING:
        scope = _WAITING.pop()
        for name, value in list(scope.items()):
            if isinstance(value, _Later):
                scope[name] = _imported(value)


def _imported(later: _Later) -> Any:
    module, name = vars(later)["module"], vars(later)["name"]
    origin = importlib.import_module(module)
    if not name or hasattr(origin, name):
        return getattr(origin, name) if name else origin
    return importlib.import_module(f"{module}.{name}")
