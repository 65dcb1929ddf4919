"""Imports that wait until a command runs, so that its help starts without the rooms it calls.

    with when_run():
        from rocwheel import dist
        from rocwheel.release.operations import Who

The block is ordinary to type checkers, linters and to everything that imports the module itself.
Where the command line imports it to parse (`parsing`), the names stand for what they will be, until
`carry_out` imports what a command reaches: before the command's function is called.
"""

from __future__ import annotations

import builtins
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from types import CodeType
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


def carry_out(function: Callable[..., Any]) -> None:
    """Import what waits and is reached from a function, and bind the names.

    A name in its code leads to every function, method and class of the command line that is called
    so: that may be more than what runs, and never less.
    """
    called = _functions()
    names, pending = set[str](), [_code(function)]
    while pending:
        new = _names(pending.pop()) - names
        names |= new
        pending += [_code(item) for name in new for item in called.get(name, ())]
    for scope in _WAITING:
        for name, value in list(scope.items()):
            if isinstance(value, _Later) and name in names:
                scope[name] = _imported(value)


def _functions() -> dict[str, list[Any]]:
    """Return the functions of the command line by name; those of a class by its name, too."""
    found: dict[str, list[Any]] = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith("rocwheel.cli"):
            continue
        for item in list(vars(module).values()):
            if getattr(item, "__module__", "") != name:
                continue
            if not isinstance(item, type):
                found.setdefault(getattr(item, "__name__", ""), []).append(item)
                continue
            for method in vars(item).values():
                inner = getattr(method, "fget", getattr(method, "func", method))
                for known in (getattr(inner, "__name__", ""), item.__name__):
                    found.setdefault(known, []).append(inner)
    return found


def _code(function: Any) -> CodeType | None:
    """Return the code of what is called, below its decorators; None for what is not Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _names(code: CodeType | None) -> set[str]:
    """Return the names in a function's code, and in the functions within it."""
    if code is None:
        return set()
    inner = (_names(item) for item in code.co_consts if isinstance(item, CodeType))
    return {*code.co_names, *chain.from_iterable(inner)}


def _imported(later: _Later) -> Any:
    module, name = vars(later)["module"], vars(later)["name"]
    origin = importlib.import_module(module)
    if not name or hasattr(origin, name):
        return getattr(origin, name) if name else origin
    return importlib.import_module(f"{module}.{name}")
