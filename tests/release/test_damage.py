"""Every object below `_rocwheel/` of a set of one family and of two, damaged in every way, before every command.

No row ends in a traceback, no row lists what was withdrawn, and what a command did is told by its
exit status. A slice of the table runs at each merge, all of it with --soak. What every row came to is
kept in tests/data/damage.txt; where a change is meant, the new table is in what the soak test says:
`python3 tests/run.py --soak tests/release/test_damage.py`.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import shutil
from pathlib import Path

import pytest
from support.shared import SharedShop, X, Y
from support.wheelset import FAMILY, Shop, make_set, pass_gate

from rocwheel.base.choices import ALL
from rocwheel.base.console import silent
from rocwheel.cli import main
from rocwheel.release.index.page import links

pytestmark = pytest.mark.integration

SEED, SLICE = 29, 14
INDEXES = (FAMILY.name, ALL)
BELOW = ", below a snapshot"  # that fits the log: what is before its last entry is listed alone
OBJECTS = (
    "log", "log/1.json", "log/2.json", "log/3.json", "log/4.json",
    *(f"log/{number}.json{BELOW}" for number in (1, 2, 3)),
    "state.json", "files.json", "manifests", "verdicts",
)  # fmt: skip
DAMAGES = ("lost", "truncated", "older copy", "unknown field", "another family's")
SERVED = {  # what installers read
    "pages as HTML": "*/*/index.html", "pages as JSON": "*/*/index.json",
    "wheels": "files/*/*.whl", "METADATA": "files/*/*.metadata", "compat.html": "*/compat.html",
}  # fmt: skip
COMMANDS = (
    "stage", "promote", "yank", "unyank", "rollback", "restore", "prune", "status", "index check",
    "index repair", "index adopt",
)  # fmt: skip
KINDS = (
    *((index, "nothing", "") for index in INDEXES),
    *itertools.product(INDEXES, OBJECTS, DAMAGES),
    *itertools.product(INDEXES, SERVED, ("lost", "truncated", "garbage")),
)
TABLE = tuple((*kind, command) for kind in KINDS for command in COMMANDS)
KEPT = Path(__file__).parents[1] / "data" / "damage.txt"
HEADER = """\
What each command does at a release of which one object is damaged: its exit status, and after a `>`
how many files all its pages list, where that changed ({} before). Written by test_damage.py.
"""


class Original:
    """A store of one index with a released, a rolled back and a gated set, made once."""

    def __init__(self, folder: Path, index: str) -> None:
        self.folder, self.index = folder, index
        self.release = folder / "store" / "v2"
        shop = (SharedShop if index == ALL else Shop)((folder / "store").as_uri(), silent())
        families, options = (FAMILY,), {}
        if index == ALL:
            families = (X, Y)
            options["families"] = tuple(sorted(family.name for family in families))
            options["gfx"] = tuple(target for family in families for target in family.targets)
        self.sets = {}
        for jax in ("0.9.1", "0.9.2", "0.9.3", "0.9.4"):
            self.sets[jax] = make_set(folder / jax, jax=jax, pythons=("3.12",), **options)
        for jax in ("0.9.1", "0.9.2", "0.9.3"):
            assert self.run("stage", str(folder / jax)) == 0
            for family in families:
                pass_gate(shop.staging.of(family.name), self.sets[jax], family=family)
        before = folder / "before"
        for number, line in enumerate((
            ("promote", "--manifest", self.sets["0.9.1"].sha256),
            ("promote", "--manifest", self.sets["0.9.2"].sha256),
            ("rollback", "--manifest", self.sets["0.9.1"].sha256, "--reason", "wrong"),
            ("yank", "--manifest", self.sets["0.9.2"].sha256, "--reason", "slow"),
        )):  # fmt: skip
            if number == 2:
                shutil.copytree(folder / "store", before)
            assert self.run(*line) == 0
        shutil.copytree(folder / "store", folder / "kept")
        self.withdrawn = {wheel.filename for wheel in self.sets["0.9.1"].built}

    def run(self, *line: str, store: Path | None = None) -> int:
        url = (store or self.folder / "store").as_uri()
        return main([*line, "--store", url, "--family", self.index, "--quiet"])

    def again(self) -> Path:
        """Put the store as it was, where it was: elsewhere pages would name another address."""
        shutil.rmtree(self.folder / "store", ignore_errors=True)
        shutil.copytree(self.folder / "kept", self.folder / "store")
        return self.folder / "store"


def listed(store: Path) -> list[str]:
    """The files that each page of a release lists: of a set of two families those of all three."""
    pages = sorted((store / "v2").glob("*/*/index.html"))
    return [link.filename for page in pages for link in links(page.read_bytes())]


def hurt(original: Original, what: str, how: str) -> None:
    """Damage one object, or all of a kind."""
    top = original.release / "_rocwheel"
    pattern, below, _ = what.partition(BELOW)
    if what.startswith("log") and not below:  # a snapshot that fits would hide what the log lost
        (top / "state.json").unlink()
    every = {path: path.read_bytes() for path in sorted(top.rglob("*.json"))}
    paths = [path for path in every if path.relative_to(top).as_posix().startswith(pattern)]
    if what in SERVED:
        paths = [*original.release.glob(SERVED[what])]
        every |= {path: path.read_bytes() for path in paths}
    assert paths
    for path in paths:
        old = original.folder / "before" / path.relative_to(original.folder / "store")
        if how == "lost":
            path.unlink()
        elif how == "truncated":
            path.write_bytes(every[path][:60])
        elif how == "garbage":
            path.write_bytes(b"\xff<garbage" + every[path][10:])
        elif how == "older copy":
            others = [item for item in every if item.parent == path.parent and item != path]
            other = every[(others or [path])[0]]
            path.write_bytes(old.read_bytes() if what == "state.json" else other)
        else:
            document = json.loads(every[path])
            document["novelty" if how == "unknown field" else "family"] = "gfx942"
            path.write_text(json.dumps(document, sort_keys=True, indent=2) + "\n")


def line_of(command: str, original: Original) -> list[str]:
    sets = original.sets
    return {
        "stage": ["stage", str(original.folder / "0.9.4")],
        "promote": ["promote", "--manifest", sets["0.9.3"].sha256],
        "yank": ["yank", "--manifest", sets["0.9.2"].sha256, "--reason", "x"],
        "unyank": ["unyank", "--manifest", sets["0.9.2"].sha256, "--reason", "x"],
        "rollback": ["rollback", "--manifest", sets["0.9.2"].sha256, "--reason", "x"],
        # of a set that was never rolled back: it may not bring the other one back
        "restore": ["restore", "--manifest", sets["0.9.2"].sha256, "--reason", "x"],
        "prune": ["prune", "--reason", "x"],
        "status": ["status"],
        "index check": ["index", "check", "--download"],
        "index repair": ["index", "repair"],
        "index adopt": ["index", "adopt"],
    }[command]


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> dict[str, Original]:
    return {index: Original(tmp_path_factory.mktemp(index), index) for index in INDEXES}


@pytest.fixture(scope="module")
def original(originals) -> Original:
    return originals[FAMILY.name]


def table(before: str, cells: dict[tuple[str, str, str, str], str]) -> str:
    """Return the text of the table: a line for each object and damage, a column for each command."""
    told = [(*kind, *(cells[(*kind, command)] for command in COMMANDS)) for kind in KINDS]
    rows = [("", "", "", *COMMANDS), *told]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (" | ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join((HEADER.format(before), *lines, ""))


def check_row(original: Original, capsys, row: tuple[str, str, str, str]) -> str:
    """Check one row; return its cell of the table."""
    _, what, how, command = row
    store = original.again()
    if how:
        hurt(original, what, how)
    before = listed(store)
    assert not set(before) & original.withdrawn, "the premise"
    capsys.readouterr()
    status = original.run(*line_of(command, original))
    told = "".join(capsys.readouterr())
    assert "Traceback" not in told, row
    assert status in {0, 2, 3, 7, 9}, row
    assert not set(listed(store)) & original.withdrawn, row
    if status and command not in {"index check", "status"}:
        assert listed(store) == before, row
    if (what.startswith("log") and command in {"index check", "index repair"}) or (
        what.startswith("log") and command != "stage"
    ):
        assert status == 7, row
        number = re.search(r"[1-9]|$", what)[0] or "1"  # of all that are damaged, the first is told
        assert re.search(rf"log/{number}\.json|entry {number} of|log/ back from", told), row
    after = len(listed(store))
    return f"{status}" if after == len(before) else f"{status}>{after}"


def test_a_damaged_object_is_told_and_lists_nothing_that_was_withdrawn(originals, capsys) -> None:
    lines = [line.split(" | ") for line in KEPT.read_text().splitlines() if " | " in line]
    kept = {
        (*(word.strip() for word in line[:3]), command): cell.strip()
        for line in lines
        for command, cell in zip(COMMANDS, line[3:], strict=True)
    }
    for row in random.Random(SEED).sample(TABLE, SLICE):
        assert check_row(originals[row[0]], capsys, row) == kept[row], row


@pytest.mark.soak
def test_every_row_of_the_damage_table_is_as_it_was(originals, capsys) -> None:
    cells = {row: check_row(originals[row[0]], capsys, row) for row in TABLE}
    before = " and ".join(str(len(listed(item.folder / "kept"))) for item in originals.values())
    now = table(before, cells)
    assert now == KEPT.read_text(), f"the table of today:\n{now}"


def lose_the_end(original: Original, folder: Path) -> Path:
    """Log and snapshot of a copy from before a rollback and a yank, below the pages of today."""
    shutil.copytree(original.folder / "kept", folder / "store")
    top = folder / "store" / "v2" / "_rocwheel"
    shutil.rmtree(top)
    shutil.copytree(original.folder / "before" / "v2" / "_rocwheel", top)
    return folder / "store"


@pytest.mark.parametrize("command", COMMANDS)
def test_pages_tell_of_a_lost_end_where_an_older_snapshot_fits_the_log(
    original, tmp_path, capsys, command
) -> None:
    """`index repair` took the pages back, and the next promotion took the number of a lost entry."""
    store = lose_the_end(original, tmp_path)
    pages = {path: path.read_bytes() for path in (store / "v2").rglob("index.*")}
    capsys.readouterr()
    status = original.run(*line_of(command, original), store=store)
    said = capsys.readouterr()
    if command in {"status", "promote", "yank", "rollback", "index repair", "index check"}:
        assert status == 7
        assert "log/3.json: missing" in said.out + said.err
        assert "shows entry 4" in said.out + said.err
        assert "the log ends before what its pages show" in said.out + said.err
        way = "where this is a copy of the bucket that is not up to date yet, wait for it; else put"
        assert way in said.out + said.err
    assert "damaged" not in said.out + said.err
    assert "makes it again" not in said.out + said.err
    assert {path: path.read_bytes() for path in pages} == pages
    line = ("index", "repair", "--reason", "no copy is left", "--skip-entry", "3")
    assert original.run(*line, store=store) == 7
    assert original.run(*line, "--skip-entry", "4", store=store) == 0
    assert original.run("index", "check", store=store) == 0


def test_a_page_ahead_of_its_log_that_lists_the_same_is_made_again(original, tmp_path) -> None:
    store = lose_the_end(original, tmp_path)
    folder = tmp_path / "store" / "v2" / FAMILY.name
    for path in (original.folder / "before" / "v2" / FAMILY.name).rglob("index.*"):
        text = path.read_text().replace(
            'rocwheel-entry" content="2"', 'rocwheel-entry" content="9"'
        )
        text = text.replace('rocwheel-entry":2', 'rocwheel-entry":9')
        (folder / path.relative_to(original.folder / "before" / "v2" / FAMILY.name)).write_text(
            text
        )
    assert original.run("index", "check", store=store) == 7
    assert original.run("index", "repair", store=store) == 0
    assert original.run("index", "check", store=store) == 0
