"""From any state one command leads out: what somebody made of a store, and the commands that mend it."""

from __future__ import annotations

import shutil

import pytest
from support.wheelset import FAMILY, Shop, make_set, pass_gate

from rocwheel.cli import main
from rocwheel.ledger import log
from rocwheel.release import operations
from rocwheel.values import replace


class Desk:
    """A store in a folder, and commands on it."""

    def __init__(self, folder, console, capsys) -> None:
        self.folder, self.capsys = folder, capsys
        self.shop = Shop((folder / "store").as_uri(), console)

    def run(self, *line: str) -> int:
        self.capsys.readouterr()
        return main([*line, "--family", FAMILY.name, "--store", self.shop.store.url])

    def gated(self, name: str, **options):
        manifest = make_set(self.folder / name, pythons=("3.12",), **options)
        self.shop.stage(self.folder / name)
        pass_gate(self.shop.staging, manifest)
        return manifest

    def path(self, key: str):
        return self.shop.store.root / self.shop.release.key(key)


@pytest.fixture
def desk(tmp_path, console, capsys) -> Desk:
    return Desk(tmp_path, console, capsys)


def test_repair_of_an_index_that_has_not_begun_claims_nothing(desk) -> None:
    manifest = desk.gated("a")
    assert desk.run("index", "repair") == 0
    assert desk.run("promote", "--manifest", manifest.sha256) == 0
    assert desk.run("index", "check") == 0


def test_pages_of_a_log_that_is_gone_with_all_its_files_are_taken_over(desk) -> None:
    first = desk.shop.released(desk.folder / "old", pythons=("3.12",), jax="0.9.0")
    assert desk.run("rollback", "--manifest", first.sha256, "--reason", "x") == 0
    shutil.rmtree(desk.path("_rocwheel"))
    for path in desk.path("x").parent.glob("*.whl*"):
        path.unlink()
    manifest = desk.gated("a")
    assert desk.run("promote", "--manifest", manifest.sha256) == 7
    assert "index adopt" in desk.capsys.readouterr().err
    assert desk.run("index", "adopt") == 0
    assert desk.run("promote", "--manifest", manifest.sha256) == 0
    assert desk.run("index", "check") == 0


def test_a_snapshot_that_is_none_is_replaced_whatever_number_it_names(desk) -> None:
    desk.shop.released(desk.folder / "a", pythons=("3.12",))
    desk.path("_rocwheel/state.json").write_bytes(b'{"number": 999999, "format": 1}')
    assert desk.run("index", "check") == 7
    assert desk.run("index", "repair") == 0
    assert desk.run("index", "check") == 0
    assert operations.is_settled(log.read(desk.shop.release))


def test_adoption_leaves_the_half_of_a_set_that_a_killed_promotion_put(desk) -> None:
    """It listed the plugin of which the pjrt was not there yet."""
    manifest = desk.gated("a")
    plan = desk.shop.plan(manifest)
    plugin = next(item for item in plan.copies if item.entry.project.endswith("plugin"))
    half = replace(plan.operation, copies=(plugin,))
    half.prepare(plan.before)
    assert desk.run("index", "adopt", "--dry-run") == 0
    assert "of an unfinished operation" in desk.capsys.readouterr().out
    assert desk.run("index", "adopt") == 0
    assert not log.read(desk.shop.release).sets
    assert desk.run("promote", "--manifest", manifest.sha256) == 0
    assert desk.run("index", "check") == 0
