"""Shell blocks of the pages, with the marker that says how each is tried."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "build" / "rocwheel"
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "examples" / "miniature" / "README.md",
    *sorted(p for p in ROOT.glob("docs/**/*.md") if p.name != "commands.md"),
)
# what a block may lack here; it is parsed, and where it says so, its dry run is executed
LACKS = frozenset({
    "bucket", "container", "everything", "gpu", "jax-build", "network", "remote-cache", "root", "wheels",
})  # fmt: skip
WORLDS = frozenset({"anywhere", "clone", "demo"})


@dataclass(frozen=True)
class Block:
    """One block of a page."""

    page: Path
    line: int
    marker: str  # `run: demo`, `needs: gpu`, `dry-run: gpu`, `tried by tests/…`; "" for none
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """Its command lines: of a console, those behind `$ `.

        What stands behind `# ends with` is a status, or several of which one is right.
        """
        text = self.text.replace("\\\n", " ")
        text = re.sub(
            r"^(.*\S)\s{2,}# ends with (\d+)(?: or (\d+))?.*$",
            r'rc=0 ; \1 || rc=$? ; [[ "\2 \3" =~ (^| )$rc($| ) ]]',
            text,
            flags=re.MULTILINE,
        )
        lines = [re.sub(r"\s{2,}#.*", "", line) for line in text.splitlines()]
        if self.language == "console":
            return [line[2:] for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks() -> list[Block]:
    """Every shell block of every page."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in re.finditer(
            r"(?:^<!-- (?P<marker>.+?) -->\n)?^```(?P<language>sh|console)\n(?P<text>.*?)^```$",
            text,
            re.MULTILINE | re.DOTALL,
        ):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(page, line, match["marker"] or "", match["language"], match["text"]))
    return found


def texts() -> Iterator[tuple[str, str]]:
    """What people read: pages without their shell blocks, data, and every string of the program.

    Docstrings of commands stand in the reference of commands.
    """
    for page in (*PAGES, ROOT / "docs" / "reference" / "commands.md", ROOT / "SECURITY.md"):
        text = page.read_text(encoding="utf-8")
        yield (
            page.name,
            re.sub(r"^```(?:sh|console)$.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL),
        )
    for path in sorted([*ROOT.glob("ci/**/*.yaml"), *ROOT.glob("examples/**/*.yaml")]):
        yield path.name, path.read_text(encoding="utf-8")
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                said |= {id(part) for part in node.values}
                parts = [p.value if isinstance(p, ast.Constant) else "…" for p in node.values]
                yield f"{path.name}:{node.lineno}", "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and id(node) not in said:
                yield f"{path.name}:{node.lineno}", str(node.value)


def untried() -> set[str]:
    """How lines and addresses begin that no test tries: `data/untried.txt` has the reasons."""
    text = (ROOT / "tests" / "data" / "untried.txt").read_text("utf-8")
    return set(re.findall(r"^  (.+)$", text, re.MULTILINE))
