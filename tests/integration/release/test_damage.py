"""Every object below `_rocwheel/`, damaged in every way, before every command.

No row ends in a traceback, no row lists what was withdrawn, and what a command did is told by its
exit status. A slice of the table runs at each merge, all of it with --soak. What every row came to is
kept in tests/data/damage.txt; where a change is meant, the new table is in what the soak test says:
`python3 tests/run.py --soak tests/integration/release/test_damage.py`.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
from pathlib import Path

import pytest
from support.wheelset import FAMILY, Shop, make_set, pass_gate

from rocwheel.cli import main
from rocwheel.console import silent
from rocwheel.index.page import links

SEED, SLICE = 29, 14
OBJECTS = (
    "log/1.json", "log/2.json", "log/3.json", "log/4.json", "state.json", "listings", "manifests",
    "verdicts",
)  # fmt: skip
DAMAGES = ("lost", "truncated", "older copy", "unknown field", "another family's")
COMMANDS = (
    "stage", "promote", "yank", "unyank", "rollback", "restore", "prune", "status", "index check",
    "index repair", "index adopt",
)  # fmt: skip
KINDS = (("nothing", ""), *itertools.product(OBJECTS, DAMAGES))
TABLE = tuple((*kind, command) for kind in KINDS for command in COMMANDS)
KEPT = Path(__file__).parents[2] / "data" / "damage.txt"
HEADER = """\
What each command does at a store of which one object is damaged: its exit status, and after a `>`
how many wheels are listed, where that changed ({} before). Written by test_damage.py.
"""


class Original:
    """A store of one family with a released, a rolled back and a gated set, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shop = Shop((folder / "store").as_uri(), silent())
        run = lambda *line: main([*line, *where(folder / "store")])  # noqa: E731
        self.sets = {}
        for jax in ("0.9.1", "0.9.2", "0.9.3", "0.9.4"):
            self.sets[jax] = make_set(folder / jax, jax=jax, pythons=("3.12",))
        for jax in ("0.9.1", "0.9.2", "0.9.3"):
            shop.stage(folder / jax)
            pass_gate(shop.staging, self.sets[jax])
        before = folder / "before"
        for number, line in enumerate((
            ("promote", "--manifest", self.sets["0.9.1"].sha256),
            ("promote", "--manifest", self.sets["0.9.2"].sha256),
            ("rollback", "--manifest", self.sets["0.9.1"].sha256, "--reason", "wrong"),
            ("yank", "--manifest", self.sets["0.9.2"].sha256, "--reason", "slow"),
        )):  # fmt: skip
            if number == 2:
                shutil.copytree(folder / "store", before)
            assert run(*line) == 0
        shutil.copytree(folder / "store", folder / "kept")
        self.withdrawn = {wheel.filename for wheel in self.sets["0.9.1"].built}


def where(store: Path) -> tuple[str, ...]:
    return ("--store", store.as_uri(), "--family", FAMILY.name, "--quiet")


def listed(store: Path) -> set[str]:
    pages = (store / "v2" / FAMILY.name).glob("*/index.html")
    return {link.filename for page in pages for link in links(page.read_bytes())}


def hurt(store: Path, before: Path, what: str, how: str) -> None:
    """Damage one object, or all of a kind."""
    top = Path("v2") / FAMILY.name / "_rocwheel"
    paths = [path for path in (store / top).rglob("*.json") if what in path.as_posix()]
    assert paths
    for path in paths:
        old = before / path.relative_to(store)
        if how == "lost":
            path.unlink()
        elif how == "truncated":
            path.write_bytes(path.read_bytes()[:60])
        elif how == "older copy":
            others = sorted({*path.parent.glob("*.json")} - {path}) or [path]
            path.write_bytes(
                (old if old.exists() and what == "state.json" else others[0]).read_bytes()
            )
        else:
            document = json.loads(path.read_bytes())
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
        "index check": ["index", "check"],
        "index repair": ["index", "repair"],
        "index adopt": ["index", "adopt"],
    }[command]


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Original:
    return Original(tmp_path_factory.mktemp("original"))


def table(before: int, cells: dict[tuple[str, str, str], str]) -> str:
    """Return the text of the table: a line for each object and damage, a column for each command."""
    found = [(*kind, *(cells[(*kind, command)] for command in COMMANDS)) for kind in KINDS]
    rows = [("", "", *COMMANDS), *found]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (" | ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
    return "\n".join((HEADER.format(before), *lines, ""))


def check_row(original: Original, capsys, row: tuple[str, str, str]) -> str:
    """Check one row; return its cell of the table."""
    what, how, command = row
    store = original.folder / "store"  # elsewhere pages would name another address
    shutil.rmtree(store)
    shutil.copytree(original.folder / "kept", store)
    if how:
        hurt(store, original.folder / "before", what, how)
    if what.startswith("log/"):  # a snapshot that fits would hide what the log lost
        (store / "v2" / FAMILY.name / "_rocwheel/state.json").unlink()
    before = listed(store)
    assert not before & original.withdrawn, "the premise"
    capsys.readouterr()
    status = main([*line_of(command, original), *where(store)])
    told = capsys.readouterr().err
    assert "Traceback" not in told, row
    assert status in {0, 2, 3, 7, 9}, row
    assert not listed(store) & original.withdrawn, row
    if status and command not in {"index check", "status"}:
        assert listed(store) == before, row
    if what.startswith("log/") and command != "stage":
        assert status == 7, row
    after = len(listed(store))
    return f"{status}" if after == len(before) else f"{status}>{after}"


def test_a_damaged_object_is_told_and_lists_nothing_that_was_withdrawn(original, capsys) -> None:
    lines = [line.split("|") for line in KEPT.read_text().splitlines() if "|" in line]
    kept = {
        (line[0].strip(), line[1].strip(), command): cell.strip()
        for line in lines
        for command, cell in zip(COMMANDS, line[2:], strict=True)
    }
    for row in random.Random(SEED).sample(TABLE, SLICE):
        assert check_row(original, capsys, row) == kept[row], row


@pytest.mark.soak
def test_every_row_of_the_damage_table_is_as_it_was(original, capsys) -> None:
    cells = {row: check_row(original, capsys, row) for row in TABLE}
    now = table(len(listed(original.folder / "kept")), cells)
    assert now == KEPT.read_text(), f"the table of today:\n{now}"


def lose_the_end(original: Original, folder: Path) -> Path:
    """Log and snapshot of a copy from before a rollback and a yank, below the pages of today."""
    shutil.copytree(original.folder / "kept", folder / "store")
    top = folder / "store" / "v2" / FAMILY.name / "_rocwheel"
    shutil.rmtree(top)
    shutil.copytree(original.folder / "before" / "v2" / FAMILY.name / "_rocwheel", top)
    return folder / "store"


@pytest.mark.parametrize("command", COMMANDS)
def test_pages_tell_of_a_lost_end_where_an_older_snapshot_fits_the_log(
    original, tmp_path, capsys, command
) -> None:
    """`index repair` took the pages back, and the next promotion took the number of a lost entry."""
    store = lose_the_end(original, tmp_path)
    pages = {path: path.read_bytes() for path in (store / "v2").rglob("index.*")}
    capsys.readouterr()
    status = main([*line_of(command, original), *where(store)])
    said = capsys.readouterr()
    if command in {"status", "promote", "yank", "rollback", "index repair", "index check"}:
        assert status == 7
        assert "log/3.json: missing" in said.out + said.err
        assert "shows entry 4" in said.out + said.err
    assert "makes it again" not in said.out + said.err
    assert {path: path.read_bytes() for path in pages} == pages
    line = ("index", "repair", "--reason", "no copy is left", "--skip-entry", "3")
    assert main([*line, *where(store)]) == 7
    assert main([*line, "--skip-entry", "4", *where(store)]) == 0
    assert main(["index", "check", *where(store)]) == 0


def test_a_page_ahead_of_its_log_that_lists_the_same_is_made_again(original, tmp_path) -> None:
    store = lose_the_end(original, tmp_path)
    folder = tmp_path / "store" / "v2" / FAMILY.name
    for path in (original.folder / "before" / "v2" / FAMILY.name).rglob("index.*"):
        text = path.read_text().replace('rocwheel-log" content="2"', 'rocwheel-log" content="9"')
        text = text.replace('rocwheel-log":2', 'rocwheel-log":9')
        (folder / path.relative_to(original.folder / "before" / "v2" / FAMILY.name)).write_text(
            text
        )
    assert main(["index", "check", *where(store)]) == 7
    assert main(["index", "repair", *where(store)]) == 0
    assert main(["index", "check", *where(store)]) == 0
