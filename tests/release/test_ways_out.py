"""From any state one command leads out: what somebody made of a store, and the commands that mend it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from support.wheelset import (
    FAMILY,
    Shop,
    make_set,
    make_verdict,
    make_wheel,
    pass_gate,
    ran,
    wheel_key,
)

from rocwheel.base import files
from rocwheel.base.values import canonical_json, replace
from rocwheel.cli import main
from rocwheel.cli.app import App
from rocwheel.records.verdict import Counts, State
from rocwheel.release import audit, operations
from rocwheel.release.index.channels import Retention
from rocwheel.release.index.page import links
from rocwheel.release.ledger import log, verdicts
from rocwheel.release.ledger.state import Action
from rocwheel.release.operations import Who

pytestmark = pytest.mark.integration


class Desk:
    """A store in a folder, and commands on it."""

    def __init__(self, folder, console, capsys) -> None:
        self.folder, self.capsys = folder, capsys
        self.shop = Shop((folder / "store").as_uri(), console)
        self.where = f"--family={FAMILY.name} --store={self.shop.store.url}"

    def run(self, *line: str) -> int:
        self.capsys.readouterr()
        return main([*line, "--family", FAMILY.name, "--store", self.shop.store.url])

    def gated(self, name: str, **options):
        return self.shop.gated(self.folder / name, pythons=("3.12",), **options)

    def path(self, key: str):
        """Where something lies: a record, a wheel, or else a page."""
        place = self.shop.release
        if key.startswith("_rocwheel"):
            return self.shop.store.root / place.key(key)
        name = key.removesuffix(".metadata")
        if name.endswith(".whl"):
            return self.shop.store.root / (wheel_key(place, name) + key[len(name) :])
        return self.shop.store.root / place.index / key


@pytest.fixture
def desk(tmp_path, console, capsys, monkeypatch) -> Desk:
    monkeypatch.setattr("sys.argv", ["rocwheel"])
    return Desk(tmp_path, console, capsys)


def test_repair_of_an_index_that_has_not_begun_claims_nothing(desk) -> None:
    manifest = desk.gated("a")
    assert desk.run("index", "repair") == 0
    assert desk.run("promote", "--manifest", manifest.sha256) == 0
    assert desk.run("index", "check") == 0


def test_a_staging_log_that_is_gone_goes_on_above_its_pages(desk) -> None:
    desk.gated("old", jax="0.9.0")
    desk.gated("older", jax="0.8.0")
    shutil.rmtree(desk.shop.store.root / "v2-staging" / "_rocwheel")
    make_set(desk.folder / "a", pythons=("3.12",))
    assert desk.run("stage", str(desk.folder / "a")) == 7
    assert "index repair" in desk.capsys.readouterr().err
    assert desk.run("index", "repair", "--staging") == 0
    assert desk.run("stage", str(desk.folder / "a")) == 0
    assert log.read(desk.shop.staging).number == 3
    assert desk.run("index", "check", "--staging") == 0


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
        text = text.replace('rocwheel-entry" content="1"', 'rocwheel-entry" content="9"')
        (folder / form).write_text(text.replace('rocwheel-entry":1', 'rocwheel-entry":9'))
    monkeypatch.chdir(desk.folder)
    which = ["--staging"] if where == "v2-staging" else []
    repair = " ".join(["index repair", desk.where, *which])
    remedy = f"{repair}`; where the log lost its end"
    # A release looks before its commit; staging commits, and the next run meets the page.
    shows = ": shows entry 9, the log ends with " + ("1" if where == "v2" else "2")
    for _ in range(2):
        assert desk.run(*act) == 7
        told = desk.capsys.readouterr().err
        assert f"jaxlib{shows}" in told or f"jaxlib/index.json{shows}" in told
        assert remedy in told
        assert "the same command again" not in told
    assert desk.run("index", "check", *which) == 7
    told = desk.capsys.readouterr().out
    assert f"{repair}` makes it again" in told
    assert desk.run("index", "repair", *which) == 0
    assert desk.run("index", "check", *which) == 0
    assert desk.run(*act) == 0


@pytest.mark.parametrize(
    ("page", "remedies"),
    [
        (b"", ()),
        (b"hello", ()),
        (b'<a href="../KNOWN">KNOWN</a>', ()),
        (b'<meta name="rocwheel-entry" content="9">', (("index", "repair", "--staging"),)),
    ],
)
def test_a_page_that_somebody_put_for_a_project_to_come_keeps_no_set_off(
    desk, page: bytes, remedies
) -> None:
    """It was said to be another tool's, whose files to adopt; and there was none to adopt."""
    manifest = desk.shop.staged(desk.folder / "a", pythons=("3.12",))
    coming = make_set(desk.folder / "b", rocm="8.0.0", jax="0.9.2", pythons=("3.12",))
    page = page.replace(b"KNOWN", manifest.built[0].filename.encode())
    folder = desk.shop.store.root / "v2-staging" / FAMILY.name
    (folder / "jax-rocm8-plugin").mkdir()
    (folder / "jax-rocm8-plugin/index.html").write_bytes(page)
    for remedy in remedies:
        assert desk.run("stage", str(desk.folder / "b")) == 7
        line = re.search(r"`\S* *([^`]*)`", desk.capsys.readouterr().err)[1]
        assert line == " ".join((*remedy[:2], desk.where, *remedy[2:]))
        assert main(shlex.split(line)) == 0, "as it was printed"
    assert desk.run("stage", str(desk.folder / "b")) == 0
    assert desk.run("index", "check", "--staging") == 0
    assert {wheel.project for wheel in coming.built} <= log.read(desk.shop.staging).projects


@pytest.mark.parametrize("change", [{"number": 10**9}, {"number": 2}, {"head": "0" * 64}])
def test_a_snapshot_of_another_log_is_not_believed(desk, change) -> None:
    """The next entry was put after a gap, and lost with the snapshot."""
    desk.shop.released(desk.folder / "a", pythons=("3.12",))
    path = desk.path("_rocwheel/state.json")
    forged = {**json.loads(path.read_bytes()), "sets": [], "projects": [], **change}
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
    entry = desk.path(f"_rocwheel/log/{lost}.json")
    kept = entry.read_bytes()
    entry.unlink()
    way = f"put v2/_rocwheel/log/{lost}.json back"
    assert desk.run("index", "check") == 7
    told = desk.capsys.readouterr().out
    assert way in told
    assert "put it back" in told or "does not follow" in told
    assert desk.run("status") == 7, "also below a snapshot that fits"
    assert way in desk.capsys.readouterr().err
    assert desk.run("index", "repair") == 7
    assert way in desk.capsys.readouterr().err
    assert desk.path("jaxlib/index.html").read_bytes() == shown
    entry.write_bytes(kept)
    coming = desk.gated("d", jax="0.9.4")
    assert desk.run("promote", "--manifest", coming.sha256) == 0, "put back, it is another object"
    assert desk.run("index", "check") == 0


@pytest.mark.parametrize("has_snapshot", [True, False])
def test_an_entry_that_was_rewritten_is_named_and_not_the_one_after_it(desk, has_snapshot) -> None:
    """The way out named the entry that still stood as it was, and would have given it up."""
    for name in ("0.9.1", "0.9.2", "0.9.3"):
        last = desk.shop.released(desk.folder / name, jax=name, pythons=("3.12",))
    entry = desk.path("_rocwheel/log/1.json")
    entry.write_bytes(canonical_json({**json.loads(entry.read_bytes()), "reason": "another"}))
    if not has_snapshot:
        desk.path("_rocwheel/state.json").unlink()
    assert desk.run("yank", "--manifest", last.sha256, "--reason", "x") == 7
    told = desk.capsys.readouterr().err
    assert "entry 2 of the log does not follow the entry before it" in told
    assert "put v2/_rocwheel/log/1.json back" in told
    assert desk.run("index", "repair", "--skip-entry", "1", "--reason", "no copy") == 0
    assert desk.run("index", "check") == 0


def test_a_yank_of_one_file_says_which(desk) -> None:
    manifest = desk.shop.released(desk.folder / "a", pythons=("3.12",))
    name = manifest.built[0].filename
    assert desk.run("yank", "--file", name, "--reason", "x") == 0
    assert desk.capsys.readouterr().out == f"{name} yanked\n"
    assert desk.run("yank", "--file", name, "--reason", "x") == 0
    told = desk.capsys.readouterr()
    assert told.out == f"{name} nothing-to-do\n"
    assert told.err == ""


# A damaged log of a release stops everything that writes


def cut(path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def lose(path) -> None:
    path.unlink()


def unknown_field(path) -> None:
    document = {**json.loads(path.read_bytes()), "novelty": 1}
    path.write_bytes(canonical_json(document))


def another_family(path) -> None:
    document = {**json.loads(path.read_bytes()), "family": "gfx942"}
    path.write_bytes(canonical_json(document))


def older_copy(path) -> None:
    path.write_bytes(path.with_name("1.json").read_bytes())


HURTS = (cut, lose, unknown_field, another_family, older_copy)


def shown(desk) -> set[str]:
    """What installers see in the release index: the files of every page, in both forms."""
    found = set()
    for page in desk.path("x").parent.glob("j*/index.html"):
        listed = {link.filename for link in links(page.read_bytes())}
        document = json.loads(page.with_name("index.json").read_bytes())
        assert listed == {item["filename"] for item in document["files"]}
        found |= listed
    return found


def rolled_back(desk):
    """Two released sets, of which the first was rolled back; its log is 1, 2, 3."""
    first = desk.shop.released(desk.folder / "a", pythons=("3.12",))
    desk.shop.released(desk.folder / "b", jax="0.9.2", pythons=("3.12",))
    assert desk.run("rollback", "--manifest", first.sha256, "--reason", "wrong") == 0
    return first


@pytest.mark.parametrize("hurt", HURTS)
def test_an_entry_that_is_lost_for_good_is_skipped_by_name_and_the_log_keeps_who_did_it(
    desk, hurt
) -> None:
    rolled_back(desk)
    desk.path("_rocwheel/state.json").unlink()
    path = desk.path("_rocwheel/log/2.json")
    hurt(path)
    skip = ("index", "repair", "--skip-entry", "2")
    assert desk.run(*skip) == 3, "a reason is needed"
    assert desk.run("index", "repair", "--skip-entry", "1", "--reason", "x") == 7
    assert f"index repair {desk.where} --skip-entry 2 --reason …`" in desk.capsys.readouterr().err
    assert desk.run(*skip, "--skip-entry", "1", "--reason", "x") == 3
    assert "--skip-entry 1: no damaged entry has that name at" in desk.capsys.readouterr().err
    damaged = path.read_bytes() if path.exists() else None
    assert desk.run(*skip, "--reason", "the disk broke", "--by", "ann", "--dry-run") == 0
    assert (path.read_bytes() if path.exists() else None) == damaged
    assert desk.run(*skip, "--reason", "the disk broke", "--by", "ann") == 0
    entry = json.loads(path.read_bytes())
    assert (entry["action"], entry["by"], entry["reason"]) == ("skip", "ann", "the disk broke")
    assert entry["evidence"]["was"] == (damaged or b"").decode()
    assert shown(desk) == set(), "the lost entry released the second set; the first was rolled back"
    assert desk.run("status") == 0
    assert desk.run("promote", "--manifest", desk.gated("c", jax="0.9.3").sha256) == 0
    assert desk.run("index", "check") == 0


def test_a_dry_run_names_what_a_skipped_rollback_would_list_again(desk) -> None:
    first = rolled_back(desk)
    desk.path("_rocwheel/state.json").unlink()
    cut(desk.path("_rocwheel/log/3.json"))
    assert desk.run("index", "repair", "--skip-entry", "3", "--reason", "x", "--dry-run") == 0
    told = desk.capsys.readouterr().out
    for wheel in first.built:
        assert f"lists {wheel.filename} again" in told


@pytest.mark.parametrize("lost", [(3,), (2, 3)])
def test_a_log_that_lost_its_end_is_told_by_the_pages(desk, lost) -> None:
    rolled_back(desk)
    before = shown(desk)
    for number in lost:
        desk.path(f"_rocwheel/log/{number}.json").unlink()
    for line in (("status",), ("index", "repair"), ("index", "check")):
        assert desk.run(*line) == 7, line
        told = desk.capsys.readouterr()
        assert f"log/{lost[0]}.json: missing" in told.err + told.out
        assert "makes it again" not in told.out, "a repair would drop or list released sets"
    assert shown(desk) == before
    for end in range(1, len(lost) + 1):
        words = [word for number in lost[:end] for word in ("--skip-entry", str(number))]
        status = desk.run("index", "repair", *words, "--reason", "no copy is left")
        assert status == (0 if end == len(lost) else 7)
        if status:  # and nothing is written before all that is lost is named
            named = " ".join((*words, "--skip-entry", str(lost[end])))
            assert f"index repair {desk.where} {named} --reason …`" in desk.capsys.readouterr().err
            assert not desk.path(f"_rocwheel/log/{lost[0]}.json").exists()
    assert desk.run("status") == 0
    assert desk.run("index", "check") == 0
    newest = max(int(path.stem) for path in desk.path("_rocwheel/log/1.json").parent.glob("*"))
    assert newest == 3, "the log goes on above what pages have shown"


def test_a_log_that_is_gone_whole_is_told_by_every_command(desk) -> None:
    """`status` called a set that was rolled back one that may be promoted, and ended with 0."""
    first = rolled_back(desk)
    before = shown(desk)
    shutil.rmtree(desk.path("_rocwheel"))
    ages_ago = time.time() - 9 * 86400
    for path in desk.path("x").parent.glob("*.whl*"):
        os.utime(path, (ages_ago, ages_ago))
    stored = {path: path.stat().st_mtime for path in desk.path("x").parent.rglob("*")}
    sha = ("--manifest", first.sha256)
    for line in (
        ("status",),
        ("index", "check"),
        ("index", "repair"),
        ("promote", *sha),
        ("promote", *sha, "--dry-run"),
        ("rollback", *sha, "--reason", "x"),
        ("yank", *sha, "--reason", "x"),
        ("prune", "--reason", "x", "--orphans"),
    ):
        assert desk.run(*line) == 7, line
        told = desk.capsys.readouterr()
        assert "log/1.json: missing" in told.err + told.out, line
        assert "shows entry 1" in told.err + told.out, line
        assert (
            not told.err
            or line[0] == "status"
            or "put v2/_rocwheel/log/ back from a copy of the bucket" in told.err
        )
        assert shown(desk) == before, line
    assert {path: path.stat().st_mtime for path in desk.path("x").parent.rglob("*")} == stored


@pytest.mark.parametrize("hurt", [lose, cut])
def test_a_listing_that_is_damaged_is_stored_again_when_its_digest_comes_back(desk, hurt) -> None:
    """The snapshot stayed behind until another change: its listing could not be stored."""
    first = desk.shop.released(desk.folder / "a", pythons=("3.12",))
    path = desk.path("_rocwheel/files.json")
    sound = path.read_bytes()
    change = ("--manifest", first.sha256, "--reason", "x")
    assert desk.run("yank", *change) == 0
    hurt(path)
    assert desk.run("unyank", *change) == 0
    assert json.loads(desk.path("_rocwheel/state.json").read_bytes())["number"] == 3
    assert path.read_bytes() == sound
    hurt(path)
    assert desk.run("index", "repair") == 0
    assert path.read_bytes() == sound


def test_repair_lists_nothing_that_is_not_there(desk) -> None:
    manifest = desk.shop.released(desk.folder / "a", pythons=("3.12",))
    desk.path(manifest.built[0].filename).unlink()
    assert desk.run("index", "repair") == 7
    assert "missing, and the log lists it" in desk.capsys.readouterr().err


def test_a_verdict_without_a_list_of_tests_does_not_hide_that_some_are_gone(desk) -> None:
    for jax, listed in (("0.9.1", b"a.py::one\na.py::two\n"), ("0.9.2", b"")):
        manifest = desk.shop.staged(desk.folder / jax, jax=jax, pythons=("3.12",))
        told = ran("smoke", manifest, collected=files.sha256(listed) if listed else "")
        verdict = make_verdict(manifest, ran=told)
        if listed:
            verdicts.add_tests(desk.shop.staging, verdict, listed)
        verdicts.add(desk.shop.staging, verdict)
        pass_gate(desk.shop.staging, manifest, suites=("unit",))
        plan = desk.shop.plan(manifest)
        if listed:
            desk.shop.promote(manifest)
    (cell,) = (cell for cell in plan.judged[0].decision.cells if cell.notes)
    assert cell.notes == ("gone since the last released set: 2 tests: a.py::one, a.py::two",)


def test_a_yank_of_a_shared_file_outlives_the_set_it_came_with(desk) -> None:
    """Two sets carry one pjrt; the yank of the file left with the first of them."""
    first = desk.shop.released(desk.folder / "a", pythons=("3.11",))
    pjrt = next(wheel for wheel in first.built if not wheel.python)
    assert desk.run("yank", "--file", pjrt.filename, "--reason", "it crashes") == 0
    second = desk.shop.released(desk.folder / "b", pythons=("3.11", "3.12"))
    assert pjrt.filename in {wheel.filename for wheel in second.built}
    assert desk.run("rollback", "--manifest", first.sha256, "--reason", "x") == 0
    (link,) = (
        link
        for link in links(desk.path(f"{pjrt.project}/index.html").read_bytes())
        if link.filename == pjrt.filename
    )
    assert link.yanked == "it crashes"
    assert desk.run("unyank", "--file", pjrt.filename, "--reason", "mended") == 0
    assert b"it crashes" not in desk.path(f"{pjrt.project}/index.html").read_bytes()


def test_a_snapshot_is_two_objects_however_many_sets_there_are(desk) -> None:
    """Every promotion left three listings more, which only `prune` deleted."""
    for number in (1, 2, 3):
        desk.shop.released(desk.folder / str(number), jax=f"0.9.{number}", pythons=("3.12",))
    ours = sorted(path.name for path in desk.path("_rocwheel").iterdir())
    assert ours == ["files.json", "log", "manifests", "state.json", "verdicts"]


@pytest.mark.parametrize("action", ["prune", "prune --orphans", "index repair --staging"])
def test_a_forged_snapshot_of_staging_deletes_nothing(desk, action) -> None:
    """Its last entry was the log's, and all its names were spent: every staged wheel was deleted."""
    manifest = desk.gated("a")
    place = desk.shop.staging
    wheels = {wheel.filename for wheel in manifest.built}
    files = json.loads(desk.shop.store.read(place.files)[0])
    forged = {
        name: {
            "project": name,
            "files": [],
            "spent": {
                (e := f["entry"])["filename"]: {f"files/{e['sha256'][:16]}/{e['filename']}": []}
                for f in page["files"]
            },
        }
        for name, page in files.items()
    }
    body = json.dumps(forged).encode()
    state = json.loads(desk.shop.store.read(place.state)[0])
    state |= {"files": hashlib.sha256(body).hexdigest(), "sets": [], "spent": 1}
    for key, data in ((place.files, body), (place.state, json.dumps(state).encode())):
        info = desk.shop.store.info(key)
        desk.shop.store.replace(key, data, previous=info, headers=place.record_headers)
    assert desk.run(*action.split()) == 0
    assert wheels <= {item.key.rpartition("/")[2] for item in desk.shop.store.keys(place.key(""))}
    assert desk.run("promote", "--manifest", manifest.sha256) == 0


@pytest.mark.parametrize(
    "reason",
    ["caf\udce9", "a\0b", "two\nlines", "x" * 70_000],
    ids=["no UTF-8", "NUL", "lines", "long"],
)
@pytest.mark.parametrize("option", ["--reason", "--by"])
def test_a_reason_that_no_record_can_keep_is_refused(desk, option, reason) -> None:
    """It was a traceback, or was kept."""
    manifest = desk.shop.released(desk.folder / "a", pythons=("3.12",))
    more = () if option == "--reason" else ("--reason", "x")
    assert desk.run("rollback", "--manifest", manifest.sha256, *more, option, reason) == 3
    error, hint = desk.capsys.readouterr().err.strip().splitlines()
    assert error.startswith(f"error: {option}: ")
    assert hint
    assert log.read(desk.shop.release).number == 1


def test_a_check_that_others_overtake_finds_nothing_wrong(desk, monkeypatch) -> None:
    """It was told that the log ends before what its pages show."""
    manifest = desk.shop.released(desk.folder / "a", pythons=("3.12",))
    plain = operations.pages_of

    def overtaken(*about, **options):
        monkeypatch.setattr(operations, "pages_of", plain)
        desk.shop.change(Action.YANK, manifest)
        return plain(*about, **options)

    state = log.read(desk.shop.release, files=True)
    monkeypatch.setattr(operations, "pages_of", overtaken)
    assert audit.check_pages(desk.shop.release, state) == []


def test_families_of_ones_own_go_into_a_channel_of_this_machine(desk) -> None:
    """A bucket of a server on loopback took them by `--store`, and refused them by `--channel`."""
    own, file = desk.folder / "own.yaml", desk.folder / "channels.yaml"
    own.write_text("families:\n  gfx9zz:\n    targets: [gfx9zz]\n    suites: [smoke]\n")
    for where, code in (
        (f"store: {desk.shop.store.url}", 0),
        ("store: s3://bucket\n    endpoint: http://127.0.0.1:9", 0),
        ("store: s3://bucket", 3),
    ):
        file.write_text(
            f"channels:\n  mine:\n    {where}\n"
            '    prefixes: {"7": {staging: v2-staging, release: v2}}\n'
        )
        line = ("compat", "--channel=mine", f"--channels-file={file}", f"--family-file={own}")
        desk.capsys.readouterr()
        main([*line, "--family=gfx90a"])
        refused = "into a store of this machine only" in desk.capsys.readouterr().err
        assert refused is (code == 3), where


def test_a_store_that_was_moved_goes_on_after_a_repair(desk) -> None:
    """As docs/how-to/buckets.md says."""
    first = rolled_back(desk)
    waiting = desk.gated("c", jax="0.9.3")
    before = shown(desk)
    shutil.copytree(desk.shop.store.root, desk.folder / "moved", copy_function=shutil.copy)
    desk.shop = Shop((desk.folder / "moved").as_uri(), desk.shop.console)
    for line in (("index", "repair", "--staging"), ("index", "repair"), ("index", "check")):
        assert desk.run(*line) == 0, line
    assert shown(desk) == before
    assert desk.run("restore", "--manifest", first.sha256, "--reason", "x") == 0
    assert desk.run("promote", "--manifest", waiting.sha256) == 0
    assert desk.run("index", "check") == 0


def test_a_clock_that_is_off_writes_nothing_into_a_log(desk, monkeypatch) -> None:
    manifest = desk.gated("a")
    later = datetime.now(tz=timezone.utc) + timedelta(hours=2)
    monkeypatch.setattr(App, "now", lambda _app: later)
    desk.shop.released(desk.folder / "b", jax="0.9.2", pythons=("3.12",))
    before = shown(desk)
    assert desk.run("promote", "--manifest", manifest.sha256) == 3
    assert "this machine's clock says" in desk.capsys.readouterr().err
    assert shown(desk) == before


def test_another_public_address_is_one_finding_not_one_per_page(desk) -> None:
    manifest = desk.shop.released(desk.folder / "a", pythons=("3.12",))
    place = replace(desk.shop.release, public_url="https://wheels.example.org")
    (problem,) = audit.check_pages(place, log.read(place, files=True))
    assert "pages name another address than https://wheels.example.org/v2/gfx90a/" in problem
    desk.shop.release = place
    wait = f"await    {place.url}: 5 min 0 s at most, until it shows it"
    for action, waits in ((Action.ROLLBACK, True), (Action.YANK, False)):
        assert (wait in desk.shop.change_plan(action, manifest).lines()) is waits


def test_promotion_of_a_listed_set_puts_back_metadata_that_is_missing(desk) -> None:
    manifest = desk.shop.released(desk.folder / "a", pythons=("3.12",))
    path = desk.path(f"{manifest.built[0].filename}.metadata")
    data = path.read_bytes()
    path.unlink()
    assert desk.run("index", "check") == 7
    assert desk.run("promote", "--manifest", manifest.sha256) == 0
    assert path.read_bytes() == data
    assert desk.run("index", "check") == 0


# Several indexes at once, and what takes long

TWO_MAJORS = """\
channels:
  own:
    store: STORE
    prefixes:
      "7": {staging: v2-staging, release: v2}
      "10": {staging: v3-staging, release: v3}
"""


def test_a_skipped_entry_is_that_of_the_index_where_it_is_damaged(desk) -> None:
    """The first index refused a number that was damaged in the second, or was repaired before it."""
    where = desk.folder / "channels.yaml"
    where.write_text(TWO_MAJORS.replace("STORE", desk.shop.store.url))
    rolled_back(desk)
    folder = desk.shop.store.root / "v2" / FAMILY.name
    shutil.copytree(folder.parent, desk.shop.store.root / "v3")
    other = desk.shop.store.root / "v3" / "_rocwheel"
    (other / "state.json").unlink()
    cut(other / "log/2.json")
    (folder / "jaxlib/index.html").unlink()
    places = ("--channel", "own", "--channels-file", str(where), "--family", FAMILY.name)
    line = ("index", "repair", "--reason", "x", *places)
    desk.capsys.readouterr()
    assert main([*line]) == 7
    assert not (folder / "jaxlib/index.html").exists(), (
        "no index is repaired before all are planned"
    )
    assert main([*line, "--skip-entry", "1"]) == 7
    assert main([*line, "--skip-entry", "1", "--skip-entry", "2"]) == 3
    told = desk.capsys.readouterr().err
    assert "--skip-entry 1: no damaged entry has that name at" in told
    assert "/v3" in told
    assert main([*line, "--skip-entry", "2"]) == 0
    assert json.loads((other / "log/2.json").read_bytes())["action"] == "skip"
    assert json.loads(desk.path("_rocwheel/log/2.json").read_bytes())["action"] == "promote"
    assert (folder / "jaxlib/index.html").exists()


def test_a_number_that_is_damaged_in_two_indexes_is_named_by_its_place(desk) -> None:
    """It let both change nothing, where `status` or a promotion had named one of them."""
    where = desk.folder / "channels.yaml"
    where.write_text(TWO_MAJORS.replace("STORE", desk.shop.store.url))
    rolled_back(desk)
    shutil.copytree(desk.shop.store.root / "v2", desk.shop.store.root / "v3")
    entries = [f"{major}/_rocwheel/log/2.json" for major in ("v2", "v3")]
    paths = [desk.shop.store.root / entry for entry in entries]
    for path in paths:
        cut(path)
        (path.parents[1] / "state.json").unlink()
    cut_entries = [path.read_bytes() for path in paths]
    places = ("--channel", "own", "--channels-file", str(where), "--family", FAMILY.name)
    line = ["index", "repair", "--reason", "x", *places, "--skip-entry"]
    desk.capsys.readouterr()
    assert main([*line, "2"]) == 3
    told = desk.capsys.readouterr().err
    assert "2 damaged entries have that name" in told
    assert f"--skip-entry {entries[0]} --skip-entry {entries[1]}" in told
    assert main([*line, entries[1]]) == 7, "the other one may be the rollback of a set"
    assert [path.read_bytes() for path in paths] == cut_entries
    assert main([*line, entries[0], "--skip-entry", paths[1].as_uri()]) == 0
    assert {json.loads(path.read_bytes())["action"] for path in paths} == {"skip"}
    assert main(["status", *places]) == 0
    assert main([*line, entries[1].replace("log/2", "log/9")]) == 3
    assert "no damaged entry has that name" in desk.capsys.readouterr().err


@pytest.mark.parametrize("hurt", [cut, older_copy])
def test_nothing_is_skipped_while_another_entry_is_damaged(desk, hurt) -> None:
    """It wrote the entry it was told to, and stopped at the other one."""
    rolled_back(desk)
    desk.path("_rocwheel/state.json").unlink()
    for number in (1, 3) if hurt is cut else (2, 3):
        hurt(desk.path(f"_rocwheel/log/{number}.json"))
    log_before = {path: path.read_bytes() for path in desk.path("_rocwheel/log/x").parent.iterdir()}
    words = ("index", "repair", "--reason", "x", "--skip-entry", "3")
    for more in ((), ("--dry-run",)):
        assert desk.run(*words, *more) == 7
        assert {path: path.read_bytes() for path in log_before} == log_before


@pytest.mark.parametrize("hurt", [cut, lose])
def test_a_set_whose_manifest_is_damaged_is_taken_off_the_index_all_the_same(desk, hurt) -> None:
    """The log knows it: yank and rollback ended with 7, and the set stayed listed."""
    manifest = desk.shop.released(desk.folder / "a", pythons=("3.12",))
    before = shown(desk)
    for place in (desk.shop.staging, desk.shop.release):
        hurt(desk.shop.store.root / place.manifest(manifest.sha256))
    for command, names in (("yank", before), ("rollback", set()), ("restore", before)):
        assert desk.run(command, "--manifest", manifest.sha256[:12], "--reason", "x") == 0, command
        assert shown(desk) == names
    assert desk.run("rollback", "--manifest", "f" * 12, "--reason", "x") == 3
    assert "no manifests" in desk.capsys.readouterr().err
    assert desk.run("index", "check", "--download") == 7


def test_a_prune_says_that_it_deletes_what_came_back_under_a_spent_name(desk) -> None:
    """It deleted the file and said that there was nothing to do."""
    first = desk.shop.released(desk.folder / "a", pythons=("3.12",))
    desk.shop.channel = replace(
        desk.shop.channel, retention=Retention(release_days=1, keep_newest=0)
    )
    assert desk.shop.prune(days=10) == [first.sha256]
    late = desk.shop.store.root / desk.shop.release.wheel(
        first.built[0].filename, first.built[0].sha256
    )
    late.parent.mkdir(exist_ok=True)
    late.write_bytes(b"a delayed write")
    for more, done in (("--dry-run",), "planned"), ((), "pruned"):
        assert desk.run("prune", "--json", *more) == 0
        places = json.loads(desk.capsys.readouterr().out)["places"]
        assert [place["state"] for place in places] == ["nothing-to-do", done]
        assert late.exists() == bool(more)


def test_a_command_that_takes_hours_has_no_wrong_clock(desk) -> None:
    """An adoption that read wheels for more than an hour was refused at its commit."""
    now = datetime.now(tz=timezone.utc)
    desk.gated("a")
    desk.path("x").parent.mkdir(parents=True)
    made = make_wheel(
        desk.path("x").parent, project="jaxlib", version="0.1", tag="py3-none-any", module="j"
    )
    long_ago = Who(
        by="x", now=now - timedelta(hours=3), is_checked=True, began=time.monotonic() - 3 * 3600
    )
    operations.perform(audit.plan_adoption(desk.shop.release, who=long_ago))
    assert made.name in shown(desk)


# What an error says to run is pasted as it was printed, into a shell in the same folder. The channel
# is of a file of one's own, and the data in use are, too: a line without those looks elsewhere.

ROOT = Path(__file__).parents[2]
GIVEN, DATA = ("--channel=mine", "--channels-file=mine.yaml"), "--ci-dir=tool/ci"
OURS = re.compile(r"`(rocwheel [^`]*)`")


class Bench(Desk):
    """A folder with a store, its channel and its data; commands are run in it."""

    def __init__(self, folder, console, capsys) -> None:
        super().__init__(folder, console, capsys)
        (folder / "mine.yaml").write_text(
            f"channels:\n  mine:\n    store: {self.shop.store.url}\n    first_sets: free\n"
            '    prefixes:\n      "7": {staging: v2-staging, release: v2}\n'
        )
        (folder / "tool").symlink_to(ROOT)

    def ask(self, *line: str) -> tuple[int, str]:
        """Exit status, and what was printed."""
        self.capsys.readouterr()
        status = main([*line])
        shown = self.capsys.readouterr()
        return status, shown.out + shown.err

    def run(self, *line: str) -> tuple[int, str]:
        return self.ask(*line, *GIVEN, f"--family={FAMILY.name}")

    def paste(self, line: str, **names: str) -> tuple[int, str]:
        """The same of a printed line; `names` stand in it for what a person fills in."""
        program, *words = shlex.split(line)
        assert program == "rocwheel"
        return self.ask(*(names.get(word, word) for word in words))

    def staged(self, **options):
        folder = self.folder / f"set{options.get('jax', '')}"
        return self.shop.staged(folder, pythons=("3.12",), **options)


@pytest.fixture
def bench(tmp_path, console, capsys, monkeypatch) -> Bench:
    monkeypatch.setattr("sys.argv", ["rocwheel"])
    monkeypatch.chdir(tmp_path)
    return Bench(tmp_path, console, capsys)


def test_a_set_that_was_never_released_is_looked_at_and_promoted_with_the_lines(bench) -> None:
    manifest = bench.staged()
    pass_gate(bench.shop.staging, manifest)
    status, said = bench.run("rollback", f"--manifest={manifest.sha256}", "--reason=x")
    look, promote = OURS.findall(said)
    assert status == 9
    status, said = bench.paste(look)
    assert (status, manifest.sha256[:12] in said) == (0, True)
    assert bench.paste(promote)[0] == 0
    assert "released" in bench.paste(look)[1]


def test_a_set_that_no_gate_ran_is_gated_with_the_line(bench) -> None:
    manifest = bench.staged()
    status, said = bench.run("promote", f"--manifest={manifest.sha256}", DATA)
    (line,) = OURS.findall(said)
    assert status == 9
    assert f"--ci-dir={bench.folder}/tool/ci" in line
    assert line.startswith("rocwheel gate ")
    status, said = bench.paste(f"{line} --dry-run --device=cpu")
    assert "would gate smoke on gfx90a, CPython 3.12" in said


def test_a_suite_that_failed_and_passed_is_approved_with_the_line(bench) -> None:
    manifest = bench.staged()
    pass_gate(bench.shop.staging, manifest)
    verdicts.add(bench.shop.staging, make_verdict(manifest, suite="unit", state=State.FAIL))
    status, said = bench.run("promote", f"--manifest={manifest.sha256}")
    (line,) = OURS.findall(said)
    assert status == 9
    assert bench.paste(line, NAME="ann", WHY="a known race")[0] == 0


def test_the_line_for_a_familys_first_set_names_a_number_that_later_ones_are_held_to(bench) -> None:
    file = bench.folder / "mine.yaml"
    file.write_text(file.read_text().replace("    first_sets: free\n", ""))

    def promoted(jax: str, ran: int) -> tuple[int, str]:
        manifest = bench.staged(jax=jax)
        pass_gate(bench.shop.staging, manifest, suites=("smoke",))
        unit = make_verdict(manifest, suite="unit", counts=Counts(passed=ran))
        verdicts.add(bench.shop.staging, unit)
        return bench.run("promote", f"--manifest={manifest.sha256}")

    status, said = promoted("0.9.1", 26_000)
    (line,) = OURS.findall(said)
    assert (status, "--approve unit:3.12=26000" in line) == (9, True)
    wrong = line.replace("=26000", "=25000")
    assert bench.paste(wrong, NAME="ann", WHY="looked at")[0] == 9
    assert bench.paste(line, NAME="ann", WHY="looked at")[0] == 0
    status, said = promoted("0.9.2", 24_400)
    assert (status, "24400, on the last released set: 26000; may_lose is 1500" in said) == (9, True)
    assert promoted("0.9.3", 24_500)[0] == 0


def test_pages_that_differ_from_the_log_are_mended_and_a_rollback_is_taken_back(bench) -> None:
    manifest = bench.staged()
    pass_gate(bench.shop.staging, manifest)
    named = f"--manifest={manifest.sha256}"
    assert bench.run("promote", named)[0] == 0
    page = next(bench.folder.glob("store/v2/*/jax-rocm7-plugin/index.html"))
    page.write_text("lost")
    status, said = bench.run("index", "check")
    line = OURS.findall(said)[0]
    assert status == 7
    assert bench.paste(line)[0] == 0
    assert bench.run("index", "check")[0] == 0
    assert bench.run("rollback", named, "--reason=x")[0] == 0
    status, said = bench.run("promote", named)
    (line,) = OURS.findall(said)
    assert status == 9
    assert bench.paste(line, WHY="x")[0] == 0
    assert page.is_file()


@pytest.mark.parametrize("started", ["ci_build", "./tool/build/ci_build"])
def test_a_shell_finds_the_program_as_it_was_started(bench, started) -> None:
    """On PATH, or as a file of a checkout; the line is run by bash as it stands in the answer."""
    bench.staged()
    (bench.folder / "bin").mkdir()
    (bench.folder / "bin" / "python3").symlink_to(sys.executable)
    env = os.environ | {"PATH": f"{bench.folder}/bin:{ROOT}/build:/usr/bin:/bin"}

    def shell(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", line], cwd=bench.folder, env=env, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    asked = shlex.join((*GIVEN, DATA, f"--family={FAMILY.name}", "--manifest=abcdef1"))
    done = shell(f"{started} rollback {asked} --reason=x")
    assert done.returncode == 3, done.stderr
    done = shell(f"{started} rollback {asked[:-2]} --reason=x")
    line = re.search(r"copy it from `([^`]+)`", done.stderr)[1]
    done = shell(line)
    assert done.returncode == 0, done.stderr
    assert "staged" in done.stdout
