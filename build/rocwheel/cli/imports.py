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
import dis
import importlib
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any, Final

OURS: Final = "rocwheel.cli"
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

    A global name leads to what it is, an attribute to every function, method and class of the
    command line that is called so: that may be more than what runs, and never less.
    """
    called = _functions()
    used, seen, pending = set[tuple[str, str]](), set[int](), [function]
    while pending:
        inner = inspect.unwrap(pending.pop())
        code = getattr(inner, "__code__", None)
        if isinstance(code, CodeType) and id(code) not in seen:
            seen.add(id(code))
            new = set(_names(code, inner.__module__)) - used
            used |= new
            pending += [item for module, name in new for item in called[_named(module, name)]]
    for scope in _WAITING:
        for name, value in list(scope.items()):
            if isinstance(value, _Later) and (scope["__name__"], name) in used:
                scope[name] = _imported(value)


def _functions() -> defaultdict[str, list[Any]]:
    """Return the functions of the command line by name; those of a class by its name, too."""
    functions = defaultdict[str, list[Any]](list)
    modules = [(name, vars(item)) for name, item in sys.modules.items() if name.startswith(OURS)]
    for item in [x for name, scope in modules for x in scope.values() if _made_in(x) == name]:
        for method in vars(item).values() if isinstance(item, type) else (item,):
            inner = getattr(method, "fget", getattr(method, "func", method))
            for name in {getattr(inner, "__name__", ""), getattr(item, "__name__", "")} - {""}:
                functions[name].append(inner)
    return functions


def _made_in(item: object) -> str:
    return getattr(item, "__module__", "")


def _named(module: str, name: str) -> str:
    """Return the name of what a global name of a module stands for; an attribute (of "") is one."""
    value = vars(sys.modules[module]).get(name) if module else None
    return "" if isinstance(value, _Later) else getattr(value, "__name__", "" if module else name)


def _names(code: CodeType, module: str) -> Iterator[tuple[str, str]]:
    """Yield the names in a code and in the functions within it, globals with `module`."""
    for item in dis.get_instructions(code):
        if item.opname == "LOAD_GLOBAL" or item.opcode in dis.hasname:
            yield module if item.opname == "LOAD_GLOBAL" else "", item.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant, module)


def _imported(later: _Later) -> Any:
    module, name = vars(later)["module"], vars(later)["name"]
    origin = importlib.import_module(module)
    if not name or hasattr(origin, name):
        return getattr(origin, name) if name else origin
    return importlib.import_module(f"{module}.{name}")
