"""From any state one command leads out: what somebody made of a store, and the commands that mend it."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize(
    ("where", "act"), [("v2-staging", ("stage", "b")), ("v2", ("promote", "--manifest", "b"))]
)
def test_a_page_that_shows_what_the_log_never_said_is_told_and_made_again(
    desk, monkeypatch, where, act
) -> None:
    """It was taken for a newer one and left: the set was called staged and stood on no page."""
    desk.shop.released(desk.folder / "a", pythons=("3.12",))
    desk.gated("b", jax="0.9.2") if where == "v2" else make_set(
        desk.folder / "b", jax="0.9.2", pythons=("3.12",)
    )
    folder = desk.shop.store.root / where / FAMILY.name / "jaxlib"
    for form in ("index.html", "index.json"):
        text = (folder / form).read_text()
        text = text.replace('rocwheel-log" content="1"', 'rocwheel-log" content="9"')
        (folder / form).write_text(text.replace('rocwheel-log": 1', 'rocwheel-log": 9'))
    monkeypatch.chdir(desk.folder)
    which = ["--staging"] if where == "v2-staging" else []
    remedy = " ".join(["hint:  run `index repair", *which]) + "`; where the log lost its end"
    for _ in range(2):  # it is committed, then; the next run meets the page before it decides
        assert desk.run(*act) == 7
        told = desk.capsys.readouterr().err
        assert "jaxlib/index.json: shows entry 9, the log ends with 2" in told
        assert remedy in told
        assert "the same command again" not in told
    assert desk.run("index", "check", *which) == 7
    told = desk.capsys.readouterr().out
    assert " ".join(["`index repair", *which]) + "` makes it again" in told
    assert desk.run("index", "repair", *which) == 0
    assert desk.run("index", "check", *which) == 0
    assert desk.run(*act) == 0


@pytest.mark.parametrize(
    ("page", "remedies"),
    [
        (b"", ()),
        (b"hello", ()),
        (b'<a href="../KNOWN">KNOWN</a>', ()),
        (b'<meta name="rocwheel-log" content="9">', (("index", "repair", "--staging"),)),
        (b'<a href="../HERE">HERE</a>', (("index", "adopt", "--staging"),)),
    ],
)
def test_a_page_that_somebody_put_for_a_project_to_come_keeps_no_set_off(
    desk, page: bytes, remedies
) -> None:
    """It was said to be another tool's, whose files to adopt; and there was none to adopt."""
    manifest = make_set(desk.folder / "a", pythons=("3.12",))
    desk.shop.stage(desk.folder / "a")
    coming = make_set(desk.folder / "b", rocm="8.0.0", jax="0.9.2", pythons=("3.12",))
    here = "jax_rocm8_plugin-0.1-cp312-cp312-manylinux_2_28_x86_64.whl"
    names = {b"KNOWN": manifest.built[0].filename, b"HERE": here}
    for word, name in names.items():
        page = page.replace(word, name.encode())
    folder = desk.shop.store.root / "v2-staging" / FAMILY.name
    (folder / "jax-rocm8-plugin").mkdir()
    (folder / "jax-rocm8-plugin/index.html").write_bytes(page)
    if here.encode() in page:
        old = make_set(desk.folder / "old", rocm="8.0.0", jax="0.1", suffix="", pythons=("3.12",))
        name = next(wheel.filename for wheel in old.built if wheel.kind == "plugin")
        (folder / here).write_bytes((desk.folder / "old" / name).read_bytes())
    for remedy in remedies:
        assert desk.run("stage", str(desk.folder / "b")) == 7
        assert f"`{' '.join(remedy)}`" in desk.capsys.readouterr().err
        assert desk.run(*remedy) == 0
    assert desk.run("stage", str(desk.folder / "b")) == 0
    assert desk.run("index", "check", "--staging") == 0
    assert {wheel.project for wheel in coming.built} <= log.read(desk.shop.staging).projects


@pytest.mark.parametrize("change", [{"number": 10**9}, {"number": 2}, {"head": "0" * 64}])
def test_a_snapshot_of_another_log_is_not_believed(desk, change) -> None:
    """The next entry was put after a gap, and lost with the snapshot."""
    desk.shop.released(desk.folder / "a", pythons=("3.12",))
    path = desk.path("_rocwheel/state.json")
    forged = {**json.loads(path.read_bytes()), "sets": [], "listings": {}, **change}
    path.write_text(json.dumps(forged))
    manifest = desk.gated("b", jax="0.9.2")
    assert desk.run("promote", "--manifest", manifest.sha256) == 0
    assert desk.path("_rocwheel/log/2.json").exists()
    assert len(log.read(desk.shop.release).sets) == 2
    assert desk.run("index", "check") == 0


def test_a_snapshot_that_is_not_the_fold_of_the_log_is_mended_by_repair(desk) -> None:
    manifest = desk.shop.released(desk.folder / "a", pythons=("3.12",))
    path = desk.path("_rocwheel/state.json")
    forged = json.loads(path.read_bytes())
    forged["sets"][0]["standing"] = "held"
    path.write_text(json.dumps(forged))
    assert desk.run("index", "check") == 7
    assert "index repair" in desk.capsys.readouterr().out
    assert desk.run("index", "repair") == 0
    assert desk.run("index", "check") == 0
    assert desk.run("rollback", "--manifest", manifest.sha256, "--reason", "x") == 0


@pytest.mark.parametrize("lost", [1, 2])
def test_entries_that_the_log_lost_are_told_and_take_nothing_off_the_index(desk, lost) -> None:
    for name in ("0.9.1", "0.9.2", "0.9.3"):
        desk.shop.released(desk.folder / name, jax=name, pythons=("3.12",))
    shown = desk.path("jaxlib/index.html").read_bytes()
    desk.path(f"_rocwheel/log/{lost}.json").unlink()
    assert desk.run("index", "check") == 7
    told = desk.capsys.readouterr().out
    assert "put it back" in told or "follows another one" in told
    assert desk.run("index", "repair") == 0
    assert desk.path("jaxlib/index.html").read_bytes() == shown


def test_a_yank_of_one_file_says_which(desk) -> None:
    manifest = desk.shop.released(desk.folder / "a", pythons=("3.12",))
    name = manifest.built[0].filename
    assert desk.run("yank", "--file", name, "--reason", "x") == 0
    assert desk.capsys.readouterr().out == f"{name} yanked\n"
    assert desk.run("yank", "--file", name, "--reason", "x") == 0
    told = desk.capsys.readouterr()
    assert told.out == f"{name} nothing-to-do\n"
    assert told.err == ""
