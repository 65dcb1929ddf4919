"""Stores of every released version are read and changed by this one; of a newer one they are refused.

tests/data/stores has a small store that each version wrote, and says how it was made.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import zipfile
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from support.wheelset import FAMILY, Shop, make_set

import rocwheel
from rocwheel.base.values import Value
from rocwheel.cli import main
from rocwheel.release.index.page import links
from rocwheel.release.ledger import log
from rocwheel.release.ledger.state import Action, Standing

pytestmark = pytest.mark.integration

STORES = Path(__file__).parents[1] / "data" / "stores"
FORMATS = Path(__file__).parents[1] / "data" / "formats.txt"
BOTH = ("0.1.0", "0.2.0", "format-2")


class Old:
    """A copy of a store that a released version wrote."""

    def __init__(self, folder: Path, version: str, family: str, console) -> None:
        self.store, self.family = folder / "store", family
        with zipfile.ZipFile(STORES / f"{version}.zip") as archive:
            archive.extractall(self.store)
        for page in self.store.rglob("*.html"):  # which name their own address
            data = page.read_bytes()
            page.write_bytes(data.replace(b"file:///STORE", self.store.as_uri().encode()))
        self.shop = Shop(self.store.as_uri(), console)

    def run(self, *line: str) -> int:
        family = () if line[0] == "index" else ("--family", self.family)
        return main([*line, *family, "--store", self.store.as_uri()])

    def listed(self) -> dict[str, set[tuple[str, str | None]]]:
        """What every page of the release lists, and why it is yanked."""
        return {
            page.relative_to(self.store).as_posix(): {
                (link.filename, link.yanked) for link in links(page.read_bytes())
            }
            for page in self.store.glob(f"v2/{self.family}/j*/index.html")
        }


@pytest.fixture
def old(request, tmp_path, console) -> Old:
    version, family = request.param
    return Old(tmp_path, version, family, console)


each = pytest.mark.parametrize(
    "old",
    [*((version, FAMILY.name) for version in BOTH), ("0.2.0", "all"), ("format-2", "all")],
    indirect=True,
)


@each
def test_a_store_of_a_released_version_is_read_as_it_is(old, capsys) -> None:
    """0.2.0 called every log of 0.1.0 damaged: unknown field `changed`."""
    before = old.listed()
    assert sum(map(len, before.values())) >= 3
    assert old.run("status") == 0
    assert "damaged" not in (said := capsys.readouterr()).err + said.out
    assert old.run("index", "check") == 7
    assert "which rocwheel before 0.3 wrote" in (said := capsys.readouterr()).out + said.err
    assert old.run("index", "repair") == 0
    assert old.listed() == before
    assert old.run("index", "check") == 0, capsys.readouterr().out
    assert old.run("index", "check", "--staging") in {0, 7}


@pytest.mark.parametrize("version", BOTH)
def test_the_first_command_that_writes_takes_a_store_over(
    version, tmp_path, console, capsys
) -> None:
    old = Old(tmp_path, version, FAMILY.name, console)
    before = {name for page in old.listed().values() for name, _ in page}
    state = log.read(old.shop.release)
    held = [known.id for known in state.sets.values() if known.standing is Standing.HELD]
    yanked = {name for page in old.listed().values() for name, why in page if why == "slow"}
    manifest = old.shop.gated(tmp_path / "new", jax="0.10.9", pythons=("3.12",))
    for command in (("promote", "--manifest", manifest.sha256), ("prune", "--orphans")):
        assert old.run(*command, "--dry-run") == 0
        says = "which rocwheel before 0.3 wrote" in capsys.readouterr().out
        assert says is (command[0] == "promote"), "a prune has nothing to do"
    assert old.run("promote", "--manifest", manifest.sha256) == 0
    after = {name: why for page in old.listed().values() for name, why in page}
    assert after.keys() == before | {wheel.filename for wheel in manifest.built}
    assert {name for name, why in after.items() if why == "slow"} == yanked
    staged = log.read(old.shop.staging).sets
    back = [name for name in held if name in staged]
    for name in back:
        assert old.run("restore", "--manifest", name, "--reason", "x") == 0
    assert back
    assert old.run("index", "repair") == 0  # also pages that it did not change
    assert old.run("index", "check") == 0


def test_a_migration_of_0_1_0_keeps_what_was_withdrawn_and_what_is_spent(tmp_path, console) -> None:
    old = Old(tmp_path, "0.1.0", FAMILY.name, console)
    state = log.read(old.shop.release, files=True)
    (known,) = (item for item in state.sets.values() if item.action is Action.MIGRATE)
    assert (known.standing, known.first) == (Standing.HELD, "2026-01-01T00:00:00Z")
    assert known.time == "2026-02-01T00:00:00Z"
    assert len(state.spent_paths()) == 1


@pytest.mark.parametrize("command", ["status", "index check", "index repair", "stage", "promote"])
def test_a_store_of_a_newer_version_is_refused_by_name(command, tmp_path, console, capsys) -> None:
    """It was called damaged, and the hint was `--skip-entry`, which drops releases."""
    old = Old(tmp_path, "0.2.0", FAMILY.name, console)
    make_set(tmp_path / "new", jax="0.10.9", pythons=("3.12",))
    old.run("index", "repair")
    old.run("index", "repair", "--staging")
    capsys.readouterr()
    for place in (old.shop.release, old.shop.staging):
        state = log.read(place)
        entry = {"number": state.number + 1, "previous": state.head, "needs": "0.7.0", "format": 7}
        body = json.dumps({**entry, "colour": "of a field nobody knows"}).encode()
        old.shop.store.create(place.log(entry["number"]), body, headers=place.record_headers)
    before = {path: path.read_bytes() for path in old.store.rglob("*") if path.is_file()}
    (staged, *_) = _sets_of(before)
    about = {"stage": (str(tmp_path / "new"),), "promote": ("--manifest", staged)}
    assert old.run(*command.split(), *about.get(command, ())) == 7
    said = capsys.readouterr().err
    assert f"written by rocwheel ≥ 0.7.0 (format 7); this is {rocwheel.__version__}" in said
    assert "damaged" not in said
    assert "--skip-entry" not in said
    assert {path: path.read_bytes() for path in old.store.rglob("*") if path.is_file()} == before


def _sets_of(stored: dict[Path, bytes]) -> list[str]:
    kind = f"v2-staging/{FAMILY.name}/_rocwheel/manifests"
    return sorted(path.stem for path in stored if path.parent.as_posix().endswith(kind))


def records() -> dict[str, tuple[str, type[Value]]]:
    """Every record with a version that it is written with."""
    for module in pkgutil.walk_packages(rocwheel.__path__, "rocwheel."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, kinds = dict[str, tuple[str, type[Value]]](), [Value]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        for field in msgspec.structs.fields(kind):
            if field.name in {"schema", "format"} and not field.required:
                is_made = field.default is msgspec.NODEFAULT
                version = field.default_factory() if is_made else field.default
                found[kind.__qualname__] = (str(version), kind)
    return found


def _fields(schema: object) -> object:
    """Return a JSON Schema without its words, and without the values that a text may have."""
    if isinstance(schema, dict):
        words = {"title", "description", "enum", "pattern"}
        kept = (name for name in sorted(schema) if name not in words)
        return {name: _fields(schema[name]) for name in kept}
    return [*map(_fields, schema)] if isinstance(schema, list) else schema


def test_no_field_of_a_record_changes_without_its_version() -> None:
    """0.2.0 changed the fields of a log's entries and left `format` as it was."""
    kept = {tuple(line.split()[:2]): line.split()[2] for line in FORMATS.read_text().splitlines()}
    wrong = []
    for name, (version, kind) in sorted(records().items()):
        digest = sha256(json.dumps(_fields(msgspec.json.schema(kind))).encode()).hexdigest()[:12]
        if kept.get((name, version)) != digest:
            wrong.append(f"{name} {version} {digest}")
    what = "a field changed: raise the version of this record, read the one before as well, and add"
    assert not wrong, "\n".join([f"{what} this line to {FORMATS}:", *wrong])
