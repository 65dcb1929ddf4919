"""How the house is kept: no circles of imports, and what each room may weigh and how it speaks."""

from __future__ import annotations

import ast
import re
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

PACKAGE = Path(__file__).parents[2] / "build" / "rocwheel"
MOST = 49_979  # lines of all rooms; fewer than 50,000
# What the paths of a room's modules begin with: lines it may have, lines aimed at, docstrings with
# UNCLEAR words, what is called `found`: the fields of a table's column in `check_install` and
# `doctor` alone. The last two only ever fall; a room needs a sentence in docs/design/budgets.md
# before its lines rise.
ROOMS = {
    "": (4669, 2850, 0, 1),
    "bazel/ bump dist/ download/ git rocm/ source/": (8377, 7350, 0, 1),
    "cli/": (5277, 4900, 0, 0),
    "container/ dist/builder dist/executor image/": (2725, 3050, 0, 0),
    "demo dev doctor housekeeping report/": (2030, 2100, 0, 0),
    "gate/": (6968, 7150, 0, 0),
    "host/": (449, 400, 0, 0),
    "index/ store/": (2513, 2510, 0, 0),
    "ledger/ release/": (4376, 3950, 0, 0),
    "ledger/nights pipeline/": (3932, 3500, 0, 0),
    "runtime/": (1469, 1300, 0, 0),
    "cli/trust release/proof trust/": (2258, 1400, 0, 0),
    "wheel/": (4936, 5250, 0, 0),
}
UNCLEAR = re.compile(
    r"\b(nobody|somebody|whoever|which is none|(is|are|was|were|be|been) (told|said|gone))\b"
)


def test_no_modules_import_each_other_in_a_circle():
    """Imports for annotations and within functions count, too."""
    graph = grimp.build_graph("rocwheel", cache_dir=None)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert len(imports) > 200
    TopologicalSorter(imports).prepare()  # raises CycleError, with the circle


def room_of(path: Path) -> str:
    """Return the room with the longest beginning that fits."""
    name = str(path.relative_to(PACKAGE))
    starts = ((start, room) for room in ROOMS for start in room.split() or [""])
    return max(pair for pair in starts if name.startswith(pair[0]))[1]


def unclear_in(text: str) -> int:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds))
    return sum(bool(UNCLEAR.search(ast.get_docstring(node) or "")) for node in nodes)


def found_in(text: str) -> int:
    """Count what is bound to the name: variables, arguments, attributes, fields."""
    stored = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.arg) or isinstance(getattr(node, "ctx", None), ast.Store)
    ]
    names = [getattr(node, field, "") for node in stored for field in ("id", "attr", "arg")]
    return names.count("found")


# What begins a docstring that names a thing where a function does something.
NO_VERB = re.compile(
    r"(An?|All|Another|At|Base64|Bytes|Container|Direct|Each|Exit|Explicit|Family|File|For|Hosts|JSON"
    r"|Jaxlib|Keys|Lanes|Lines|Masks|Modules|Nothing|Old|Only|Plans|Printable|Projects?|Repository"
    r"|Signal handlers|Size of|Some\w+|Step|Tells|Text|The|Those|Topology|Tracked|Version|Wh[aoy]t?(ever)?|Which"
    r"|Workflow)\b|[^A-Z]"
)


def test_the_docstring_of_a_function_begins_with_a_verb():
    """A property is what it is, and `__init__` explains its arguments."""
    things = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef) or node.name == "__init__":
                continue
            made = "".join(map(ast.unparse, node.decorator_list))
            text = ast.get_docstring(node) or "Say nothing."
            if "property" not in made and NO_VERB.match(text):
                things.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {text[:40]}")
    assert not things, "\n".join(things)


def test_every_room_keeps_its_budget():
    lines, unclear, found = Counter[str](), Counter[str](), Counter[str]()
    for path in PACKAGE.rglob("*.py"):
        room, text = room_of(path), path.read_text(encoding="utf-8")
        lines[room] += text.count("\n")
        unclear[room] += unclear_in(text)
        found[room] += found_in(text)
    allowed = {room: (most, words, names) for room, (most, _, words, names) in ROOMS.items()}
    measured = {room: (lines[room], unclear[room], found[room]) for room in ROOMS}
    above = {
        room: (measured[room], allowed[room])
        for room in ROOMS
        if any(is_now > most for is_now, most in zip(measured[room], allowed[room], strict=True))
    }
    assert above == {}
    assert sum(lines.values()) <= MOST


@pytest.mark.parametrize(
    ("text", "unclear", "found"),
    [
        ('def f():\n    """What is told."""\n', 1, 0),
        ('"""Whether nobody waits."""\nclass A:\n    """Somebody."""\nfound = 1\n', 1, 1),
        ('x = "nobody is told"  # nobody\nfor found in (): found.y = 1\n', 0, 1),
        ('def f():\n    """Return what was found."""\n    return found\n', 0, 0),
        ("def f(found, *, x=lambda found: 1):\n    x.found = x(found=1).found\n", 0, 3),
    ],
)
def test_words_and_names_are_counted(text, unclear, found):
    assert (unclear_in(text), found_in(text)) == (unclear, found)
