"""Whether the Python files of a wheel compile: asked of a child process that they may exhaust.

CPython's compiler needs time that grows with the square of some sources, and memory a hundred
times their size. So a child compiles them under limits of both; it runs none of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from rocwheel.errors import CommandError
from rocwheel.process import Command, HostRunner
from rocwheel.wheel.limits import LIMITS

_PROGRAM: Final = """
import ast, collections, json, resource, sys, warnings, zipfile
path, seconds, memory, most = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
warnings.simplefilter("ignore")
problems, functions = {}, {}


def callable_names(tree):  # functions of the module that are bound once and need no argument
    bound = collections.Counter()
    for node in ast.walk(tree):
        name = getattr(node, "asname", None) or getattr(node, "name", None)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            name = node.id
        bound[name] += 1
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and bound[node.name] == 1 and not bound["*"]:
            given = node.args
            must = len(given.posonlyargs) + len(given.args) - len(given.defaults)
            if not must and None not in given.kw_defaults:
                yield node.name


with zipfile.ZipFile(path) as archive:
    sources = [info for info in archive.infolist() if info.filename.endswith(".py")]
    if sum(info.file_size for info in sources) > int(most):
        problems["all Python files"] = f"larger together than {most} bytes"
        sources = []
    for info in sources:
        try:
            source = archive.read(info)
            compile(source, info.filename, "exec", dont_inherit=True)
            if info.filename.endswith("/__init__.py"):
                functions[info.filename] = list(callable_names(ast.parse(source)))[:1000]
        except (Exception, MemoryError) as exc:
            where = f", line {exc.lineno}" if isinstance(exc, SyntaxError) else ""
            problems[info.filename] = f"{type(exc).__name__}{where}: {exc}"[:200]
json.dump({"problems": problems, "functions": functions}, sys.stdout)
"""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What became of the sources of one wheel."""

    problems: Mapping[str, str] = field(default_factory=dict)  # member -> why it does not compile
    functions: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of `__init__.py` files


def compile_members(path: Path) -> Compiled:
    """Compile every `.py` member of a wheel."""
    limits = (LIMITS.compile_seconds, LIMITS.compile_memory, LIMITS.sources)
    command = Command(
        argv=(sys.executable, "-I", "-S", "-c", _PROGRAM, str(path), *map(str, limits)),
        timeout=LIMITS.compile_seconds * 20,
    )
    try:
        answer = json.loads(HostRunner({}).capture(command))
    except (CommandError, ValueError):
        why = f"not compiled in {limits[0]} s of CPU time and {limits[1] >> 20} MiB of memory"
        return Compiled(problems={"all Python files": why})
    return Compiled(problems=answer["problems"], functions=answer["functions"])
