"""Every object below `_rocwheel/`, damaged in every way, before every command.

No row ends in a traceback, no row lists what was withdrawn, and what a command did is told by its
exit status. A slice of the table runs at each merge, all of it with --soak.
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
TABLE = tuple(itertools.product(OBJECTS, DAMAGES, COMMANDS))


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


def check_row(original: Original, folder: Path, capsys, row: tuple[str, str, str]) -> None:
    what, how, command = row
    store = folder / "store"
    shutil.copytree(original.folder / "store", store)
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
    shutil.rmtree(store)


def test_a_damaged_object_is_told_and_lists_nothing_that_was_withdrawn(
    original, tmp_path, capsys
) -> None:
    for row in random.Random(SEED).sample(TABLE, SLICE):
        check_row(original, tmp_path, capsys, row)


@pytest.mark.soak
@pytest.mark.parametrize("command", COMMANDS)
def test_every_row_of_the_damage_table(original, tmp_path, capsys, command) -> None:
    for row in TABLE:
        if row[2] == command:
            check_row(original, tmp_path, capsys, row)


def lose_the_end(original: Original, folder: Path) -> Path:
    """Log and snapshot of a copy from before a rollback and a yank, below the pages of today."""
    shutil.copytree(original.folder / "store", folder / "store")
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
