"""Shell blocks of the pages, with the marker that says how each is tried."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
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
