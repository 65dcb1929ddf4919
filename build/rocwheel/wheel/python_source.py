"""Whether the Python files of a wheel compile, and what they import of the wheel is in it.

CPython's compiler needs time that grows with the square of some sources, and memory a hundred
times their size. So a child process compiles them under limits of both; it runs none of them.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from rocwheel.base.errors import CommandError
from rocwheel.base.process import Command, HostRunner
from rocwheel.base.values import Plain
from rocwheel.wheel.limits import LIMITS

_PROGRAM: Final = r"""
import ast, builtins, collections, contextlib, json, re, resource, sys, warnings, zipfile
path, seconds, memory, most = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds)))
resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
warnings.simplefilter("ignore")
problems, functions, bindings, stated, taken, wanted = {}, {}, {}, {}, {}, []
SUFFIXES = re.compile(r"(?:/__init__)?\.(?:(?:[^./]*cpython[^./]*\.|abi3t?\.)?so|py)$")
ANY = ("", "*")  # what can be imported of every module
FORMS = (ast.ImportFrom, ast.FunctionDef, ast.Lambda, ast.Name, ast.Attribute, ast.Call)
STATED = {"_version", "__version__"}
BOUND = ("_release_version", "__version__")
NAMES = 500  # of a module, and modules whose names are listed
GENERATOR = 0x20  # inspect.CO_GENERATOR
EXITS = {"sys.exit", "exit", "quit", "os._exit", "os.abort"}
END = re.compile(rb"^(?:raise|assert|(?:sys\.|os\.)?(?:_?exit|quit|abort))\b", re.MULTILINE)
LINE = r"^(?:\S[^\n#]*;[ \t]*)?(?:from|import)\b(?:[^\n(\\]|\\\n)*(?:\([^)]*\))?"
IMPORT = re.compile(LINE, re.MULTILINE)


def bound_names(tree):
    bound = collections.Counter()
    for node in ast.walk(tree):
        name = getattr(node, "asname", None) or getattr(node, "name", None)
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            name = node.id
        bound[name] += -9 if isinstance(getattr(node, "ctx", None), ast.Del) else 1
    return bound


def callable_names(tree, code):  # what the module binds once and can be called as it is
    bound = bound_names(tree)
    lazy = {each.co_name for each in code.co_consts if getattr(each, "co_flags", 0) & GENERATOR}
    for node in tree.body:
        value = getattr(node, "value", node)
        given = getattr(value, "args", None)  # what imported and assigned ones need is not known
        if not isinstance(value, FORMS) or (bound["*"] and not isinstance(node, ast.ImportFrom)):
            continue
        if isinstance(given, ast.arguments):
            must = len(given.posonlyargs) + len(given.args) - len(given.defaults)
            if must or None in given.kw_defaults:
                continue
        names = [node.name] if isinstance(node, ast.FunctionDef) else bound_names(node)
        yield from (name for name in names if bound[name] == 1 and name not in lazy)


def ends(tree):  # whether importing a module fails, or ends the process, whatever it finds
    for node in tree.body:
        called = getattr(getattr(node, "value", None), "func", None)
        fails = isinstance(node, ast.Assert) and not getattr(node.test, "value", True)
        if fails or isinstance(node, ast.Raise) or (called and ast.unparse(called) in EXITS):
            raise ImportError(f"line {node.lineno} ends the import of it")


def lost_names(tree):  # what statements at the top use, and nothing ever binds
    known = {str(name).partition(".")[0] for name in bound_names(tree)}
    known |= {*vars(builtins), "__file__", "__path__", "__builtins__"}
    for node in tree.body:
        parts = [node.value] if isinstance(node, (ast.Assign, ast.AnnAssign, ast.Expr)) else []
        parts += getattr(node, "decorator_list", []) + getattr(node, "bases", [])
        inner = [each for part in parts if part for each in ast.walk(part)]
        if not any(isinstance(each, ast.Lambda) for each in inner) and "*" not in known:
            yield from (x.id for x in inner if isinstance(x, ast.Name) and x.id not in known)


def imports(member, source, names):  # what it imports without a condition: module, name
    package, nodes = member.split("/")[:-1], []
    for match in IMPORT.finditer(source.decode("utf-8", "replace")):
        with contextlib.suppress(SyntaxError, ValueError):
            nodes += ast.parse(match[0]).body
    for node in nodes:
        module, level = getattr(node, "module", None), getattr(node, "level", 0)
        statement = isinstance(node, (ast.Import, ast.ImportFrom))
        if not statement or (module or node.names[0].name) not in names:  # but a text
            continue
        if level > len(package):
            raise ImportError(f"{ast.unparse(node)}: beyond its package")
        base = package[: len(package) + 1 - level] if level else []
        for each in node.names:
            parts = each.name if isinstance(node, ast.Import) else module or ""
            name = "" if isinstance(node, ast.Import) else each.name
            yield "/".join(filter(None, [*base, *parts.split(".")])), name


with zipfile.ZipFile(path) as archive:
    sources = [info for info in archive.infolist() if info.filename.endswith(".py")]
    if sum(info.file_size for info in sources) > int(most):
        problems["all Python files"], sources = f"larger together than {most} bytes", []
    files = {each: SUFFIXES.sub("", each) for each in archive.namelist() if SUFFIXES.search(each)}
    modules = dict.fromkeys(files.values())  # None: any name may be in it
    libraries = tuple(f"{module}/" for each, module in files.items() if each.endswith(".so"))
    for info in sorted(sources, key=lambda each: each.filename.endswith("/__init__.py")):
        try:  # packages last: Python imports them and not the module of that name beside them
            source = archive.read(info)
            code = compile(source, info.filename, "exec", dont_inherit=True)
            names = {*code.co_names, *ANY}
            own = [(info.filename, *each) for each in imports(info.filename, source, names)]
            wanted += own
            if "__getattr__" not in names and "*" not in (each[-1] for each in own):
                modules[files[info.filename]] = names
            if END.search(source) and not info.filename.endswith("/__main__.py"):
                ends(ast.parse(source))
            if not info.filename.endswith(("/__init__.py", "/version.py")):
                continue
            tree = ast.parse(source)
            for name in lost_names(tree):
                raise NameError(f"nothing defines {name}")
            if info.filename.endswith("/__init__.py"):
                functions[info.filename] = list(callable_names(tree, code))[:1000]
            else:
                bound = bound_names(tree)
                defined = {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
                texts = {}
                for node in tree.body:
                    value = getattr(node, "value", None)
                    if isinstance(value, ast.Constant) or getattr(value, "id", "") in defined:
                        text = getattr(value, "value", None)
                        text = text if isinstance(text, str) else ast.unparse(value)
                        texts |= dict.fromkeys(STATED & bound_names(node).keys(), text)
                bindings[info.filename] = {each: bound[each] for each in BOUND}
                stated[info.filename] = texts
        except (Exception, MemoryError) as exc:
            where = f", line {exc.lineno}" if isinstance(exc, SyntaxError) else ""
            problems[info.filename] = f"{type(exc).__name__}{where}: {exc}"[:200]
roots = []
for module in sorted(modules):
    *folder, _ = parts = module.split("/")
    if folder and not module.startswith(tuple(roots[-1:])):
        roots.append("/".join(folder) + "/")
    for n in range(1, len(parts)):
        modules.setdefault("/".join(parts[:n]), ANY)
for member, module, name in wanted:
    # A package has the name of what it imports of itself, be that there or not.
    names = ANY if module == files[member] else modules.get(module, ())
    known = names is None or name in names or f"{module}/{name}" in modules
    if f"{module}/".startswith(tuple(roots)) and not (known or module.startswith(libraries)):
        text = ".".join(filter(None, (module.replace("/", "."), name)))
        problems.setdefault(member, f"ImportError: imports {text}, which is not in the wheel")
for member, module in files.items():
    known = modules[module] if member.endswith(".py") and member not in problems else None
    if known is not None and len(known) <= NAMES and len(taken) <= NAMES:
        taken[member] = sorted(known)
answer = dict(problems=problems, functions=functions, bindings=bindings, stated=stated, taken=taken)
json.dump(answer, sys.stdout)
"""


class Compiled(Plain, frozen=True, kw_only=True):
    """What became of the sources of one wheel."""

    problems: Mapping[str, str] = {}  # member -> why it does not compile
    functions: Mapping[str, Sequence[str]] = {}  # of `__init__.py` files
    # version.py -> how often it binds each name of a version, and to which texts
    bindings: Mapping[str, Mapping[str, int]] = {}
    stated: Mapping[str, Mapping[str, str]] = {}
    # module -> every name in it; not of modules with very many, or with any (`import *`)
    taken: Mapping[str, Sequence[str]] = {}


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
    return Compiled(**answer)
