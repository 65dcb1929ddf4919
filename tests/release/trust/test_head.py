"""How far a release's log goes is signed, with until when: an index of an earlier day is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

import pytest
from support.schedule import Counted
from support.serving import serving
from support.trust import World, make_record
from support.wheelset import make_set

from rocwheel.base.values import replace
from rocwheel.cli import main
from rocwheel.cli.app import App
from rocwheel.records.manifest import BUILD_RECORD
from rocwheel.release.ledger import log
from rocwheel.release.trust import head, policy


@pytest.fixture
def world(tmp_path, console, monkeypatch) -> World:
    """A team's data with a released set, signed by all roles."""
    made = World(tmp_path, console, monkeypatch)
    made.released()
    return made


@contextmanager
def served(world) -> Iterator[str]:
    with serving(world.shop.store) as site:
        yield f"{site.url}{world.shop.release.index}"


def verify(world, *words: str, fresh: str = "") -> int:
    """As a user with the public keys; `fresh` is one on another machine."""
    if fresh:
        world.monkeypatch.setenv("ROCWHEEL_CACHE_DIR", str(world.tmp / fresh))
    return main(["trust", "verify", *words, f"--keys={world.ci}/trust.yaml"])


def later(world, days: float) -> None:
    now = datetime.now(timezone.utc) + timedelta(days=days)
    world.monkeypatch.setattr(App, "now", lambda _: now)


def age(world) -> None:
    """Let the head be eight days old, of which seven are believed."""
    place, trust = world.shop.release, policy.load(world.ci / "trust.yaml")
    channel = replace(world.shop.channel, name="mine", trust=trust)
    signer = world.signer("promoter")
    old = datetime.now(timezone.utc) - timedelta(days=8)
    head.renew(place, log.read(place), channel, signer, now=old)


@pytest.fixture
def copy(world):
    """The release as it was before the rollback that follows."""
    kept = world.tmp / "kept"
    shutil.copytree(world.shop.store.root / "v2", kept)
    return kept


def put_back(world, kept) -> None:
    shutil.rmtree(world.shop.store.root / "v2")
    shutil.copytree(kept, world.shop.store.root / "v2")


def test_a_release_that_was_put_back_to_before_a_rollback_is_refused(world, copy, capsys) -> None:
    """The check was clean, and what was rolled back verified."""
    with served(world) as index:
        assert verify(world, index) == verify(world, f"{index}/last-good") == 0
        assert world.change("rollback") == 0
        wheel = world.folder / world.manifest.built[0].filename
        assert verify(world, str(wheel), "--statements", index) == 9
        assert world.run(*world.target("status")) == 0
        put_back(world, copy)
        capsys.readouterr()
        assert world.run(*world.target("status")) == 9
        assert "a copy of an earlier day" in capsys.readouterr().err
        assert world.run(*world.target("index", "check")) == 7
        assert "a copy of an earlier day" in capsys.readouterr().out
        assert verify(world, index, "--at-least=2") == 9
        assert "ends with entry 1, and 2 --at-least asks for" in capsys.readouterr().out
        assert verify(world, index, fresh="elsewhere") == 0, "who saw nothing cannot know"
        later(world, 8)
        assert verify(world, index) == 9
        assert "what came since may be kept from you" in capsys.readouterr().out


def test_a_user_who_saw_a_later_head_refuses_the_one_before(world, copy, capsys) -> None:
    assert world.change("yank") == 0
    with served(world) as index:
        assert verify(world, index) == 0
        put_back(world, copy)
        capsys.readouterr()
        assert verify(world, index) == 9
        assert "ends with entry 1, and 2 was seen here" in capsys.readouterr().out


def test_statements_alone_that_were_put_back_are_not_those_that_the_head_names(
    world, copy, capsys
) -> None:
    """They said verified while the set was rolled back."""
    bundle = world.bundle.read_bytes()
    assert world.change("rollback") == 0
    with served(world) as index:
        shown = world.shop.store.root / world.shop.release.index
        old = copy / world.shop.release.family
        for page in old.glob("*/index.json"):  # a page that still lists it
            shutil.copy(page, shown / page.parent.name)
        world.bundle.write_bytes(bundle)
        capsys.readouterr()
        assert verify(world, index) == 9
        said = capsys.readouterr().out
        assert "rolled back: " in said
        assert "BROKEN release   the log has it held" in said


def test_a_promotion_that_never_committed_verifies_nowhere(world, monkeypatch, capsys) -> None:
    another(world, "second", suffix="+rocm7.10.1")
    world.staged()
    world.gate()
    with monkeypatch.context() as patch:
        patch.setattr(log, "commit", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert world.change("promote") != 0
    root = world.shop.store.root / world.shop.release.root
    bundles = {path.name: path for path in root.glob("_rocwheel/bundles/*")}
    assert len(bundles) == 2, "the one of the promotion that stopped lies there"
    with served(world) as index:
        page = world.shop.store.root / world.shop.release.index / "jax-rocm7-pjrt/index.json"
        document = json.loads(page.read_bytes())
        (file,) = document["files"]
        wheel = next(w for w in world.manifest.built if w.kind == "pjrt")
        where = f"_rocwheel/attestations/{world.manifest.sha256}/gfx90a"
        link = f"../../{where}/bundle.jsonl"
        forged = {**file, "filename": wheel.filename, "hashes": {"sha256": wheel.sha256}}
        document["files"] = [{**forged, "_rocwheel": {"statements": link}}]
        page.write_text(json.dumps(document))
        folder = root / where
        folder.mkdir(parents=True, exist_ok=True)
        (new,) = (p for p in bundles.values() if world.manifest.sha256 in str(_manifests(p)))
        shutil.copy(new, folder / "bundle.jsonl")
        capsys.readouterr()
        assert verify(world, f"{index}/{wheel.filename}") == 9
        assert "no entry of the log up to 1 releases it" in capsys.readouterr().out


def another(world, name: str, **options) -> None:
    """Build another set, which the world's commands are about from now on."""
    world.folder = world.tmp / name
    world.manifest = make_set(world.folder, pythons=("3.12",), **options)
    (world.folder / BUILD_RECORD).write_bytes(make_record(world.manifest).to_bytes())


def test_statements_of_a_set_are_read_once_for_all_its_wheels(world) -> None:
    """From five sets on they were read for each wheel: the pages list those of one set apart."""
    for number in range(2, 6):
        another(world, str(number), jax=f"0.9.{number}")
        world.released()
    store = Counted(world.shop.store)
    with serving(store) as site:
        assert verify(world, f"{site.url}{world.shop.release.index}") == 0
    read = [text for text in store.asked if text.startswith("stream ") and "/bundles/" in text]
    assert len(read) == len({*read}) == 5


def _manifests(path) -> list[str]:
    from rocwheel.release.trust import envelope

    lines = path.read_bytes().splitlines(keepends=True)
    return [envelope.parse(x, name="x").statement.subjects["manifest.json"] for x in lines]


def test_a_release_of_another_channel_or_index_is_another_one(world, capsys) -> None:
    with served(world) as index:
        assert verify(world, index, "--channel=nightly") == 9
        assert "channel: it was released to mine, not to nightly" in capsys.readouterr().out
        elsewhere = f"{index.rpartition('/v2')[0]}/v3/{world.shop.release.family}"
        assert verify(world, index, "--index-url", elsewhere) == 9
        assert "index: it was released to" in capsys.readouterr().out
        assert verify(world, index, "--channel=mine") == 0


def test_the_files_of_a_whole_set_are_verified_at_once(world, capsys) -> None:
    with served(world) as index:
        capsys.readouterr()
        assert verify(world, str(world.folder), "--statements", index, "--json") == 0
        rows = json.loads(capsys.readouterr().out)["files"]
        assert {row["sha256"] for row in rows} == {w.sha256 for w in world.manifest.built}
        names = [str(world.folder / wheel.filename) for wheel in world.manifest.built]
        assert verify(world, *names, "--statements", index) == 0
    shutil.copy(world.bundle, world.folder)
    capsys.readouterr()
    assert verify(world, str(world.folder), "--json") == 0
    rows = json.loads(capsys.readouterr().out)["files"]
    assert len(rows) == len(world.manifest.built) + 1, "and the manifest"


def test_a_head_is_renewed_by_itself_and_by_each_prune_with_a_key(world, capsys) -> None:
    where = world.shop.store.root / world.shop.release.head
    assert len([*world.shop.store.root.rglob("_rocwheel/head/*.json")]) == 1
    sign = f"--signer={world.uri('promoter')}"
    for words in (("trust", "renew"), ("prune",)):
        age(world)
        assert world.run(*world.target("status")) == 9
        assert "expired on" in capsys.readouterr().err
        assert world.run(*world.target(*words), sign, "--dry-run") == 0
        assert world.run(*world.target("status")) == 9
        assert world.run(*world.target(*words), sign) == 0
        assert world.run(*world.target("status")) == 0
    assert where.is_file()
    assert world.run(*world.target("trust", "renew"), f"--signer={world.uri('runner')}") == 9
    assert world.run(*world.target("trust", "renew")) == 2


def test_a_rollback_without_a_key_lags_until_the_head_is_renewed(world, capsys) -> None:
    assert world.change("rollback", signer="") == 0
    capsys.readouterr()
    assert world.run(*world.target("status")) == 0
    assert "is of entry 1, the log ends with 2" in capsys.readouterr().err
    assert world.run(*world.target("trust", "renew"), f"--signer={world.uri('promoter')}") == 0
    assert world.run(*world.target("status")) == 0
    assert "the log ends with" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda said: {**said, "number": 99}, "does not fit|subject: not the entry"),
        (lambda said: {**said, "expires": "2099-01-01T00:00:00Z"}, "does not fit"),
        (lambda _: None, "no head statement"),
        (lambda _: {}, "does not fit|head.json"),
    ],
)
def test_a_head_that_nobody_signed_so_is_none(world, capsys, edit, message) -> None:
    import base64
    import re

    path = world.shop.store.root / world.shop.release.head
    outer = json.loads(path.read_bytes())
    inner = json.loads(base64.b64decode(outer["payload"]))
    changed = edit(inner["predicate"])
    if changed is None:
        path.unlink()
    else:
        payload = json.dumps({**inner, "predicate": changed}, indent=2, sort_keys=True) + "\n"
        outer["payload"] = base64.b64encode(payload.encode()).decode()
        text = json.dumps(outer, separators=(",", ":"), sort_keys=True)
        path.write_bytes(text.encode() + b"\n")
    with served(world) as index:
        capsys.readouterr()
        assert verify(world, index) == 9
        assert re.search(message, capsys.readouterr().out)
    assert world.run(*world.target("status")) == 9


def test_a_promoters_clock_that_is_ahead_stops_what_it_signs(world, capsys) -> None:
    """It was published, and nobody believed it before that time had come."""
    real = App.now
    for minutes, status in ((15, 3), (59, 3), (8, 0)):
        ahead = timedelta(minutes=minutes)
        world.monkeypatch.setattr(App, "now", lambda app, ahead=ahead: real(app) + ahead)
        assert world.change("yank") == status, minutes
        said = capsys.readouterr().err
        assert ("they may differ by 10 min" in said) is (status == 3), said
    number = log.read(world.shop.release).number
    assert number == 2, "one yank"
    assert world.manifest


# What `status`, `index check` and `trust verify` of the index end with.
DAMAGED = {
    "v2/_rocwheel/head.json": [9, 7, 9],
    "v2/_rocwheel/head/*.json": [9, 7, 9],
    "v2/_rocwheel/bundles/*.jsonl": [0, 7, 0],  # the public copy has the same
    "v2/_rocwheel/attestations/*/*/bundle.jsonl": [0, 7, 0],
    "v2/_rocwheel/manifests/*.json": [0, 7, 0],
    "v2/_rocwheel/verdicts/**/*.json": [0, 0, 0],  # the log has what they came to
    "v2-staging/_rocwheel/attestations/**/provenance/*.json": [0, 0, 0],
}


@pytest.mark.parametrize("how", ["lost", "truncated", "garbage"])
@pytest.mark.parametrize("what", DAMAGED)
def test_a_signed_record_that_is_damaged_is_told_and_one_command_leads_out(
    world, capsys, what, how
) -> None:
    """The head's tables were never looked at, nor made again: no user could verify a wheel."""
    paths = [*world.shop.store.root.glob(what)]
    assert paths
    for path in paths:
        body = {"truncated": path.read_bytes()[:40], "garbage": b"\xff{garbage"}.get(how)
        path.write_bytes(body) if body is not None else path.unlink()
    check, sign = world.target("index", "check", "--download"), f"--signer={world.uri('promoter')}"
    with served(world) as index:
        codes = [world.run(*world.target("status")), world.run(*check), verify(world, index)]
        assert codes == DAMAGED[what]
        assert world.run(*world.target("index", "repair")) == 0
        assert world.run(*world.target("trust", "renew"), sign) == 0
        assert world.run(*check) == (7 if "manifests" in what else 0)
        assert verify(world, index) == 0
    assert world.change("rollback") == 0
    assert "Traceback" not in "".join(capsys.readouterr())
